"""compare: several policies on the same seeds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import partial

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK, OUTSIDE, SOME_FAILED
from equipoise.options import (
    KEPT,
    State,
    common,
    mlflow_option,
    need_out,
    note,
    output_options,
    pass_state,
    progress,
    record_options,
    scenario_options,
    to_mlflow,
    writable,
)
from equipoise.study.terminal import printable


def until_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds --until and --max-seeds."""
    until = click.option(
        "--until",
        metavar="ci:SHARE[:METRIC[:ratio]]",
        help="Add seeds until every 95 % interval is within ±SHARE, e.g. ci:2%:makespan_s; exit code 5 if not.",
    )
    most = click.option(
        "--max-seeds", type=IntRange(min=1), default=100, show_default=True, help="With --until."
    )
    return until(most(command))


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
@until_options
@click.option("--jobs", type=IntRange(min=1), default=1, show_default=True, help="Processes.")
@partial(output_options, more=("latex",))
@record_options
@mlflow_option
@common
@pass_state
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
    mlflow: str | None,
) -> int:
    """Simulate SCENARIO under several policies: same arrivals, faults and noise for all of them."""
    from equipoise import api
    from equipoise.policies.registry import make_policy

    need_out(out, timeline=timeline, journal=journal, mlflow=mlflow is not None)
    double = [policy for k, policy in enumerate(policies) if policy in policies[:k]]
    if double:
        raise click.UsageError(f"policy {double[0]!r} is named twice")
    ready, read, warnings = api.prepare(scenario, trace, overrides)
    note(False, *warnings)
    chosen = policies or tuple(dict.fromkeys(("none", make_policy(ready.policy).name)))
    for policy in chosen:
        make_policy(policy)
    writable(out, "comparison")
    try:
        with progress(state.quiet, ready.name) as tell:
            result = api.compare(
                ready, chosen, seeds, trace=read, jobs=jobs, out=out, progress=tell, until=until,
                max_seeds=max_seeds, timeline=timeline, journal=journal,
            )  # fmt: skip
    except KeyboardInterrupt:
        note(state.quiet or out is None, KEPT)
        raise
    if form == "table":
        width = shutil.get_terminal_size((120, 40)).columns if sys.stdout.isatty() else 120
        sys.stdout.write(printable(result.as_table(width)))
    else:
        note(state.quiet, *(f"note: {text}" for text in result.notes))
        texts = {"json": result.as_json, "csv": result.as_csv, "latex": result.as_latex}
        sys.stdout.write(texts[form]())
    note(False, *(f"equipoise: {text}" for text in result.failures))
    if out is not None:
        to_mlflow(out, mlflow)
    if result.failures:
        return SOME_FAILED
    return OUTSIDE if result.precision is not None and not result.precision.met else OK
