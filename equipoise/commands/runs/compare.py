"""compare: run several policies on the same seeds."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.files import write_whole
from equipoise.base.json_values import plain
from equipoise.base.tables import as_csv
from equipoise.commands.live.policies import named
from equipoise.commands.types import IntRange
from equipoise.commands.variants import until_options
from equipoise.exit_codes import OK, OUTSIDE, SOME_FAILED
from equipoise.options import (
    KEPT,
    CommandState,
    common,
    need_out,
    note,
    output_options,
    pass_state,
    progress,
    record_options,
    say,
    scenario_options,
    wide_option,
    writable,
)
from equipoise.policies.registry import make_policy
from equipoise.study.terminal import printable

if TYPE_CHECKING:
    from equipoise.sim.scenario.model import Scenario
    from equipoise.study.findings import Findings
    from equipoise.study.runs.comparison import Comparison


@click.command()
@partial(scenario_options, several=True)
@click.option(
    "--policy",
    "policies",
    metavar="POLICY",
    multiple=True,
    help="Stages joined by +, none, or an exported file; may be repeated, ratios refer to the first. Default: none and "
    "the scenario's; of several scenarios each its own.",
)
@click.option("--seeds", type=IntRange(min=1), default=5, show_default=True, help="Seeds per policy.")
@until_options
@click.option(
    "--by",
    "kinds",
    multiple=True,
    metavar="KIND",
    help="Also by group of jobs: gpus, ran_on, class, user, account, queue or partition; may be repeated.",
)
@click.option("--jobs", type=IntRange(min=1), default=1, show_default=True, help="Processes.")
@partial(output_options, more=("latex",))
@record_options
@wide_option
@common
@pass_state
def compare(
    state: CommandState,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    seeds: int,
    until: str | None,
    max_seeds: int,
    kinds: tuple[str, ...],
    jobs: int,
    trace: tuple[str, ...],
    overrides: tuple[str, ...],
    out: str | None,
    form: str,
    timeline: bool,
    journal: bool,
    wide: bool,
) -> int:
    """Simulate SCENARIO under several policies, with the same arrivals, faults and noise for each.

    Several scenarios, each under its own policy or under one, are options of a decision: which is fastest, cheapest, or
    worth choosing; with --out, `report` draws cost against time. Under several policies: ratios and tests for each and
    over all.
    """
    from equipoise import api, studies

    need_out(out, timeline=timeline, journal=journal)
    double = [policy for k, policy in enumerate(policies) if policy in policies[:k]]
    if double:
        raise click.UsageError(f"policy {double[0]!r} is named twice")
    cases = _cases(scenarios, trace)
    prepared = {name: api.prepare(file, of, overrides) for name, (file, of) in cases.items()}
    note(False, *dict.fromkeys(line for _, _, warnings in prepared.values() for line in warnings))
    many = len(prepared) > 1
    own = {name: make_policy(ready.policy).name for name, (ready, _, _) in prepared.items()}
    chosen = tuple(map(named, policies)) or (
        () if len(scenarios) > 1 else tuple(dict.fromkeys(("none", *own.values())))
    )
    writable(out, "comparison")
    made: dict[str, Comparison] = {}
    for name, (ready, read, _) in prepared.items():
        try:
            with progress(state.quiet, name or ready.name) as tell:
                found = studies.compare(
                    ready,
                    chosen or (own[name],),
                    seeds,
                    trace=read,
                    jobs=jobs,
                    out=str(Path(out) / name) if out and many else out,
                    progress=tell,
                    until=until,
                    max_seeds=max_seeds,
                    timeline=timeline,
                    journal=journal,
                    by=kinds,
                )
        except KeyboardInterrupt:
            note(state.quiet or out is None, KEPT)
            raise
        made[name] = found
    if len(scenarios) == 1 and many:
        made = {k: replace(one, scenario_name=f"{one.scenario_name}, {k}") for k, one in made.items()}
    decided = _decide({k: prepared[k][0] for k in made}, made, out) if len(scenarios) > 1 else None
    options = decided is not None and form == "table" and len(chosen) < 2
    if decided is not None and options:
        say("\n".join(decided.lines(wide)))
    if wide or not options:
        _print(made, len(scenarios) > 1, form, wide, state)
    if decided is not None and form == "table" and not options:
        say("\n".join(decided.remarks))
    elif decided is not None and form != "table":
        note(state.quiet, *decided.remarks)
    note(False, *(f"equipoise: {text}" for one in made.values() for text in one.failures))
    if any(one.failures for one in made.values()):
        return SOME_FAILED
    met = all(one.precision is None or one.precision.met for one in made.values())
    return OK if met else OUTSIDE


def _decide(scenarios: dict[str, Scenario], made: dict[str, Comparison], out: str | None) -> Findings:
    """Which scenario to choose; with `out`, also for a page of it."""
    from equipoise.study.folders import DECISION
    from equipoise.study.report.charts.size import time_against_cost
    from equipoise.study.runs.decisions import decision, options

    key, rows = options(scenarios, made)
    found = decision(scenarios, made, key, rows)
    if out is not None:
        chart = time_against_cost(rows, key)
        page = replace(found, charts=(chart.plain(),) if chart is not None else ())
        content = {"schema_version": 1, "options": rows, "page": page.plain()}
        write_whole(Path(out) / DECISION, json.dumps(plain(content), indent=2, allow_nan=False) + "\n")
    return found


def _cases(scenarios: tuple[str, ...], traces: tuple[str, ...]) -> dict[str, tuple[str, str | None]]:
    """(scenario, trace or None) by the name used in tables and folders: each scenario with each trace."""
    of, on = _named(scenarios, "scenarios"), _named(traces, "traces")
    if len(of) == 1:
        (only,) = of.values()
        return {name: (only, trace) for name, trace in on.items()} or {"": (only, None)}
    if len(on) < 2:
        return {name: (file, next(iter(on.values()), None)) for name, file in of.items()}
    return {f"{name}-{trace}": (file, path) for name, file in of.items() for trace, path in on.items()}


def _named(files: tuple[str, ...], what: str) -> dict[str, str]:
    names = [Path(file).name.partition(".")[0] for file in files]
    if double := [name for k, name in enumerate(names) if name in names[:k]]:
        raise click.UsageError(f"two {what} are called {double[0]!r}")
    return dict(zip(names, files, strict=True))


def _print(made: dict[str, Comparison], several: bool, form: str, wide: bool, state: CommandState) -> None:
    """Print a table for each scenario or trace, and one over all of them."""
    from equipoise.study.findings import first_screen
    from equipoise.study.runs.across import Together, across
    from equipoise.study.runs.comparison import Comparison

    tables: dict[str, Comparison | Together] = dict(made)
    alike = len({one.policies for one in made.values()}) == 1
    if several and alike:
        tables["all scenarios"] = Together(made)
    elif len(made) > 1 and not several:
        tables["all traces"] = across(made)
    note(state.quiet, *dict.fromkeys(f"note: {text}" for one in made.values() for text in one.notes))
    if form == "table":
        width = shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 120
        shown = list(tables.values()) if wide else list(tables.values())[-1:]  # the last is over all
        texts = [
            (replace(one, notes=()) if isinstance(one, Comparison) else one).as_table(width, wide) for one in shown
        ]
        lines = first_screen("\n".join(texts).splitlines(), wide)
        sys.stdout.write(printable("".join(f"{line}\n" for line in lines)))
        return
    if form == "latex":
        last = [tables["all scenarios"]] if several and alike else tables.values()
        sys.stdout.write("\n".join(one.as_latex() for one in last))
    elif len(tables) == 1:
        (only,) = made.values()
        sys.stdout.write(only.as_json() if form == "json" else only.as_csv())
    elif form == "json":
        content = {"schema_version": 1, "tables": {name: json.loads(one.as_json()) for name, one in tables.items()}}
        sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
    else:
        if several and alike:
            rows = Together(made).rows()
        else:
            kind = "scenario" if several else "trace"
            rows = [{kind: name, **row} for name, one in tables.items() for row in one.rows()]
        sys.stdout.write(as_csv(list(rows[0]), [list(row.values()) for row in rows]))
