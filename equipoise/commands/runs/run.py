"""run: simulate one scenario under one policy."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.base.json_values import plain
from equipoise.base.tables import as_csv
from equipoise.commands.live.policies import policy_of
from equipoise.commands.types import IntRange
from equipoise.exit_codes import FAILURE, INTERRUPTED, OK
from equipoise.options import (
    CommandState,
    common,
    interruptible,
    need_out,
    note,
    output_options,
    pass_state,
    progress,
    record_options,
    scenario_options,
    wide_option,
    writable,
)
from equipoise.study.terminal import printable

if TYPE_CHECKING:
    from equipoise.sim.record import Run
    from equipoise.study.findings import Findings, FindingsTable


@click.command()
@scenario_options
@click.option("--policy", metavar="POLICY", help="Stages joined by +, none, or a file. Default: the scenario's.")
@click.option("--seed", type=IntRange(min=0), help="Seed of the run. Default: the scenario's.")
@output_options
@record_options
@wide_option
@common
@pass_state
def run(
    state: CommandState,
    scenario: str,
    policy: str | None,
    seed: int | None,
    trace: str | None,
    overrides: tuple[str, ...],
    out: str | None,
    form: str,
    timeline: bool,
    journal: bool,
    wide: bool,
) -> int:
    """Simulate SCENARIO under one policy and print the result."""
    from equipoise import api
    from equipoise.sim.run import RunFailed, RunInterrupted
    from equipoise.study.folders import only_run

    need_out(out, timeline=timeline, journal=journal)
    ready, jobs, warnings = api.prepare(scenario, trace, overrides)
    note(False, *warnings)
    chosen = None if policy is None else policy_of(policy)
    writable(out, "run")
    code = OK
    holding = nullcontext() if out is None else only_run(Path(out))
    with holding, progress(state.quiet, ready.name, "jobs") as tell, interruptible() as stop:

        def at(time_s: float, done: int, total: int) -> None:
            """Report how far the run is, in simulated hours."""
            tell(done, total, f"{time_s / 3600:.1f} h simulated")

        try:
            made = api.run(
                ready,
                policy=chosen,
                seed=seed,
                trace=jobs,
                out=out,
                progress=at,
                timeline=timeline,
                journal=journal,
                stop=stop,
            )
        except RunFailed as error:
            code = INTERRUPTED if isinstance(error, RunInterrupted) else FAILURE
            if state.debug and code == FAILURE:
                raise
            made = error.run
    note(state.quiet, *(f"note: {text}" for text in made.notes))
    if form == "table":
        sys.stdout.write(printable("".join(f"{line}\n" for line in _findings(made, wide).lines(wide))))
    else:
        sys.stdout.write(_as_csv(made) if form == "csv" else _as_json(made))
    if made.stopped:
        why = " ".join(made.stopped.split())
        what = "interrupted" if code == INTERRUPTED else f"run failed: {why}"
        kept = "" if out is None else f"; records up to this time are in {api.unfinished(Path(out))}"
        note(False, f"equipoise: {what} at {made.totals['end_s']:.6g} s simulated{kept}")
    return code


def _plain_rows(columns: Any) -> list[dict[str, Any]]:
    """Columns as rows of plain values."""
    values = [column.tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def _table(rows: Sequence[Sequence[str]], title: str = "") -> FindingsTable:
    from equipoise.study.findings import FindingsTable

    return FindingsTable(title, rows, [False, *(True for _ in rows[0][1:])])


def _groups(made: Run) -> Iterator[FindingsTable]:
    """By user, account, queue and GPU type, those with the most GPU time first."""
    from equipoise.sim.fairness import KINDS, groups
    from equipoise.study.display import digits, show

    for kind, title in [*((kind, kind) for kind in KINDS), ("ran_on", "type of GPU")]:
        rows = groups(made.jobs, kind)
        if len(rows) < 2:
            continue
        head = (title, "jobs", "GPU hours", "waiting", "time / time on GPUs", "worst")
        lines = [
            (
                r[kind],
                str(r["jobs"]),
                f"{r['service_gpu_s'] / 3600:.1f}",
                show("_s", r["queueing_mean_s"]),
                *(digits(r[k]) if math.isfinite(r[k]) else "-" for k in ("finish_ratio_mean", "finish_ratio_worst")),
            )
            for r in rows
        ]
        yield _table([head, *lines])


def _classes(made: Run) -> Iterator[FindingsTable]:
    """Percentiles of waiting and completion by class of jobs, if the workload is described by classes."""
    from equipoise.study.display import show

    found: dict[str, dict[str, float]] = {}
    for key, value in made.summary().items():
        metric, bracket, name = key.partition("[")
        if bracket:
            found.setdefault(name[:-1], {})[metric] = value
    if found:
        ranks = ("p50", "p95", "p99")
        keys = [f"{what}_{rank}_s" for what in ("queueing", "completion") for rank in ranks]
        head = ("jobs", "waiting p50", "p95", "p99", "completion p50", "p95", "p99")
        yield _table([head, *((name, *(show(k, of.get(k, math.nan)) for k in keys)) for name, of in found.items())])


def _others(made: Run) -> Iterator[FindingsTable]:
    """The tables of features, and rented node hours of each elastic group of nodes."""
    from equipoise.sim.shown import all_shown
    from equipoise.study.display import show, texts

    for shown in all_shown():
        if rows := texts(shown.rows(made.tables)):
            yield _table(rows)
    if pools := made.pools():
        lines = [(r["group"], f"{r['node_h']:.1f}", show("_usd", r["gpu_usd"])) for r in pools]
        yield _table([("nodes", "hours", "cost"), *lines])


def _findings(made: Run, wide: bool) -> Findings:
    """The answer, and the metrics; unless wide, those of the first screen."""
    from equipoise.study.display import METRICS, PER_JOB, folded, label, show
    from equipoise.study.findings import Findings
    from equipoise.study.runs.answer import LOSSES, of_run
    from equipoise.study.sure import between, read_certainty, scenario_of_config
    from equipoise.study.table import is_main

    config, found = json.loads(made.config), made.summary()
    row = {k: found[k] for k in METRICS if k in found and not folded(k, found[k])}
    if row["jobs"] == 1:  # the percentiles of one job all equal its time
        row = {k: v for k, v in row.items() if k not in (*PER_JOB, "completion_mean_s")}
    nothing = [k for k, v in row.items() if v == 0 and k not in ("jobs", "completed", "makespan_s")]
    shown = {k: v for k, v in row.items() if k not in nothing and (wide or is_main(k) or k in LOSSES)}
    sure = read_certainty(config)
    ends = {k: text for k, v in shown.items() if sure is not None and (text := between(k, v, sure.spread))}
    head = ("", "result", "90 %") if ends else ("", "result")
    lines = [(label(k), show(k, v), ends.get(k, ""))[: len(head)] for k, v in shown.items()]
    zeros = ", ".join(label(k).strip() for k in nothing if not k.endswith("_usd")) if wide else ""
    return Findings(
        made.scenario_name,
        of_run(found, made.policy_name, scenario_of_config(config)),
        (_table([head, *lines]), *_classes(made), *_others(made), *_groups(made)),
        (*([f"these are 0: {zeros}"] if zeros else []), f"{made.scenario_name}: {made.policy_name}, seed {made.seed}"),
    )


def _row(made: Run) -> dict[str, Any]:
    head = {"scenario": made.scenario_name, "policy": made.policy_name, "seed": made.seed}
    return {**head, "identity": made.identity, "cpu_s": made.cpu_s, **made.summary()}


def _as_csv(made: Run) -> str:
    row = _row(made)
    return as_csv(list(row), [list(row.values())])


def _as_json(made: Run) -> str:
    from equipoise.sim.fairness import KINDS, groups
    from equipoise.sim.shown import all_shown
    from equipoise.study.runs.answer import of_run
    from equipoise.study.sure import as_dict, read_certainty, scenario_of_config

    config, found = json.loads(made.config), made.summary()
    first = [shown.tables[0] for shown in all_shown() if shown.tables]
    more = {
        "answer": " ".join(of_run(found, made.policy_name, scenario_of_config(config))),
        "fairness": {kind: rows for kind in (*KINDS, "ran_on") if (rows := groups(made.jobs, kind))},
        "pools": made.pools(),
        **{name: _plain_rows(made.tables[name]) for name in first if name in made.tables},
        "totals": dict(made.totals),
        "sure": as_dict(read_certainty(config), found),
        "notes": list(made.notes),
        "stopped": made.stopped,
    }
    return json.dumps(plain({"schema_version": 1, **_row(made), **more}), indent=2) + "\n"
