"""run, compare, validate, schema."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.cli import FAILURE, INTERRUPTED, OK, OUTSIDE, SOME_FAILED, WRONG_INPUT, State
from equipoise.commands.types import IntRange
from equipoise.options import (
    common,
    interruptible,
    need_out,
    note,
    output_options,
    progress,
    record_options,
    scenario_options,
    writable,
)
from equipoise.study.terminal import printable

if TYPE_CHECKING:
    from equipoise.sim.record import Run


@click.command()
@scenario_options
@click.option("--policy", metavar="POLICY", help="Stages joined by +, or none. Default: the scenario's.")
@click.option("--seed", type=IntRange(min=0), help="Default: the scenario's.")
@output_options
@record_options
@common
@click.pass_obj
def run(
    state: State,
    scenario: str,
    policy: str | None,
    seed: int | None,
    trace: str | None,
    overrides: tuple[str, ...],
    out: str | None,
    form: str,
    timeline: bool,
    journal: bool,
) -> int:
    """Simulate SCENARIO under one policy and print what came of it."""
    from equipoise import api
    from equipoise.policies.registry import make_policy
    from equipoise.sim.run import RunFailed, RunInterrupted

    need_out(out, timeline=timeline, journal=journal)
    ready, jobs, warnings = api.prepare(scenario, trace, overrides)
    note(False, *warnings)
    chosen = None if policy is None else make_policy(policy)
    writable(out, "run")
    code = OK
    with progress(state.quiet, ready.name) as update, interruptible() as stop:

        def tell(time_s: float, done: int, total: int) -> None:
            if update is not None:
                update(done / max(total, 1), f"{done} of {total} jobs, {time_s / 3600:.1f} h simulated")

        try:
            made = api.run(
                ready, policy=chosen, seed=seed, trace=jobs, out=out, progress=tell, timeline=timeline,
                journal=journal, stop=stop,
            )  # fmt: skip
        except RunFailed as error:
            code = INTERRUPTED if isinstance(error, RunInterrupted) else FAILURE
            if state.debug and code == FAILURE:
                raise
            made = error.run
    note(state.quiet, *(f"note: {text}" for text in made.notes))
    sys.stdout.write(printable(_shown(made, form)) if form == "table" else _shown(made, form))
    if made.stopped:
        why = " ".join(made.stopped.split())
        what = "interrupted" if code == INTERRUPTED else f"the run failed: {why}"
        kept = "" if out is None else f"; its records up to then are in {api.unfinished(Path(out))}"
        note(False, f"equipoise: {what} at {made.totals['end_s']:.6g} s simulated{kept}")
    return code


def _shown(made: Run, form: str) -> str:
    head = {"scenario": made.scenario_name, "policy": made.policy_name, "seed": made.seed}
    row: dict[str, Any] = {**head, "identity": made.identity, "cpu_s": made.cpu_s, **made.summary()}
    if form == "table":
        from equipoise.study.report.text import LABELS, show

        row = {k: v for k, v in made.summary().items() if math.isfinite(v) or not k.endswith(("_usd", "_j"))}
        lines = [(LABELS.get(k, k), show(k, v)) for k, v in row.items()]
        wide = max(len(name) for name, _ in lines)
        title = f"{made.scenario_name}: {made.policy_name}, seed {made.seed}, {made.cpu_s:.2f} s of CPU"
        return "\n".join([title, "", *(f"{name:{wide}}  {value:>12}" for name, value in lines)]) + "\n"
    row = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [row.keys(), ["" if v is None else v for v in row.values()]]
        )
        return text.getvalue()
    more = {"totals": dict(made.totals), "notes": list(made.notes), "stopped": made.stopped}
    return json.dumps({"schema_version": 1, **row, **more}, indent=2) + "\n"


@click.command()
@scenario_options
@click.option(
    "--policy",
    "policies",
    metavar="POLICY",
    multiple=True,
    help="Stages joined by +, or none; give several, ratios refer to the first. Default: none, scenario's.",
)
@click.option("--seeds", type=IntRange(min=1), default=5, show_default=True, help="Seeds per policy.")
@click.option(
    "--until",
    metavar="ci:SHARE[:METRIC[:ratio]]",
    help="Add seeds until the 95 % interval is within ±SHARE, e.g. ci:2%:makespan_s; exit code 5 if it is not.",
)
@click.option("--max-seeds", type=IntRange(min=1), default=100, show_default=True, help="With --until.")
@click.option("--jobs", type=IntRange(min=1), default=1, show_default=True, help="Processes.")
@output_options
@record_options
@common
@click.pass_obj
def compare(
    state: State,
    scenario: str,
    policies: tuple[str, ...],
    seeds: int,
    until: str | None,
    max_seeds: int,
    jobs: int,
    trace: str | None,
    overrides: tuple[str, ...],
    out: str | None,
    form: str,
    timeline: bool,
    journal: bool,
) -> int:
    """Simulate SCENARIO under several policies: same arrivals, faults and noise for all of them."""
    from equipoise import api
    from equipoise.policies.registry import make_policy

    need_out(out, timeline=timeline, journal=journal)
    double = [policy for k, policy in enumerate(policies) if policy in policies[:k]]
    if double:
        raise click.UsageError(f"policy {double[0]!r} is named twice")
    ready, read, warnings = api.prepare(scenario, trace, overrides)
    note(False, *warnings)
    chosen = policies or tuple(dict.fromkeys(("none", make_policy(ready.policy).name)))
    for policy in chosen:
        make_policy(policy)
    writable(out, "comparison")
    with progress(state.quiet, ready.name) as update:

        def tell(done: int, total: int, label: str) -> None:
            if update is not None:
                update(done / total, f"{done} of {total} runs, {label}")

        result = api.compare(
            ready, chosen, seeds, trace=read, jobs=jobs, out=out, progress=tell, until=until, max_seeds=max_seeds,
            timeline=timeline, journal=journal,
        )  # fmt: skip
    if form == "table":
        width = shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 120
        sys.stdout.write(printable(result.as_table(width)))
    else:
        note(state.quiet, *(f"note: {text}" for text in result.notes))
        sys.stdout.write(result.as_json() if form == "json" else result.as_csv())
    note(False, *(f"equipoise: {text}" for text in result.failures))
    if result.failures:
        return SOME_FAILED
    return OUTSIDE if result.precision is not None and not result.precision.met else OK


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
@common
@click.pass_obj
def validate(state: State, files: tuple[str, ...]) -> int:
    """Check FILES: scenarios, sweeps, hardware profiles, price books; every mistake is one line on stderr."""
    from equipoise.sim.scenario.tree import InputError

    code = OK
    for name in files:
        try:
            kind, warnings = _validate(name)
            note(False, *warnings)
            click.echo(f"{name}: {kind} ok")
        except InputError as error:
            note(False, *error.lines)
            code = WRONG_INPUT
    return code


def _validate(name: str) -> tuple[str, tuple[str, ...]]:
    from equipoise.sim.hardware.profile import load_profile
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.tree import read_text, read_tree

    data = read_tree(read_text(Path(name)), name).data
    if isinstance(data, dict) and "accelerators" in data:
        load_profile(Path(name).resolve())
        return "hardware profile", ()
    if isinstance(data, dict) and "scenario" in data:
        from equipoise.study.runs.sweep_spec import read_sweep

        read_sweep(name)
        return "sweep", ()
    if isinstance(data, dict) and "cluster" not in data and {"gpu_hour", "tariff", "storage"} & set(data):
        from equipoise.sim.hardware.prices import load_book

        load_book(str(Path(name).resolve()))
        return "price book", ()
    file = read_scenario(name)
    if file.scenario.workload.trace is not None:
        file.trace()
    return "scenario", file.warnings


@click.command()
@common
def schema() -> None:
    """Print the JSON schema of scenario files.

    Save it and put `# yaml-language-server: $schema=FILE` on top of a scenario: editors then complete it.
    """
    from equipoise.sim.loading.file import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
