"""The command `size`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from equipoise.base.files import write_whole
from equipoise.base.json_values import plain
from equipoise.commands.types import FloatRange, IntRange
from equipoise.exit_codes import IMPOSSIBLE, OK
from equipoise.options import CommandState, common, note, pass_state, progress, say, scenario_options, wide_option


@click.command()
@scenario_options
@click.option(
    "--vary",
    required=True,
    multiple=True,
    metavar="KEY=LOW:HIGH",
    help="Values to choose from: cluster.nodes.0.count=2:8, or KEY=A,B,C; may be repeated.",
)
@click.option(
    "--target",
    required=True,
    multiple=True,
    metavar="NAME<=VALUE",
    help="Target to meet, e.g. makespan<=24h; may be repeated.",
)
@click.option(
    "--objective",
    type=click.Choice(["nodes", "price", "cost"]),
    default="nodes",
    show_default=True,
    help="What to minimise: nodes, the price per hour, or the cost of the run.",
)
@click.option("--grow", is_flag=True, help="Training jobs grow and shrink with the cluster.")
@click.option("--rank", is_flag=True, help="Run every size, and list all of them, best first.")
@click.option(
    "--available",
    multiple=True,
    metavar="ACCELERATOR=GPUS [in TIME]",
    help="Available GPUs, and when: mi300x=128, 'h100_sxm=in 25 d'.",
)
@click.option("--policy", help="Stages joined by +, or none. Default: the scenario's.")
@click.option("--seeds", type=IntRange(1), default=5, show_default=True, help="Runs per size.")
@click.option(
    "--confidence",
    type=FloatRange(0.0, 1.0, min_open=True),
    default=0.95,
    show_default=True,
    help="Fraction of the runs that must meet the targets.",
)
@click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the result; `equipoise report` makes a page of it.",
)
@wide_option
@common
@pass_state
def size(
    state: CommandState,
    scenario: str,
    vary: tuple[str, ...],
    target: tuple[str, ...],
    objective: Any,
    grow: bool,
    rank: bool,
    available: tuple[str, ...],
    policy: str | None,
    seeds: int,
    confidence: float,
    overrides: tuple[str, ...],
    trace: str | None,
    jobs: int,
    form: str,
    out: Path | None,
    wide: bool,
) -> int:
    """Find the fewest or cheapest nodes with which SCENARIO meets every target.

    Targets: makespan, done (makespan after the delivery), completion_mean, completion_p50, completion_p95,
    completion_p99, wait_mean, wait_p50, wait_p95, wait_p99 (times; percentiles also of a class of jobs, such as
    wait_p95[8 GPUs] or of `workload.generate`), goodput, gpu_busy (shares), cost and energy (of the run), committed
    (sum committed by contracts), price (per hour), power (peak of the site). Exit code 4 if no size meets them.
    """
    from equipoise.study.folders import SIZE, check_free
    from equipoise.study.questions.ranking import changes, ranked, undecided
    from equipoise.study.questions.size import doubts, read_vary
    from equipoise.study.questions.size import size as find
    from equipoise.study.questions.size_findings import content, findings
    from equipoise.study.questions.targets import read_supply, read_target
    from equipoise.study.questions.trials import Question, needed

    if math.isnan(confidence):
        raise click.UsageError("--confidence: nan is not in the range 0<x<=1")
    varied = list(map(read_vary, vary))
    if double := {key for key, _ in varied if [k for k, _ in varied].count(key) > 1}:
        raise click.UsageError(f"--vary: {min(double)!r} is varied twice; give all its values at once")
    question = Question(
        Path(scenario),
        dict(varied),
        tuple(map(read_target, target)),
        policy,
        seeds,
        confidence,
        objective,
        overrides,
        trace,
        jobs,
        grow,
        rank,
        dict(map(read_supply, available)),
    )
    if out is not None:
        check_free(out, "size")
        out.mkdir(parents=True, exist_ok=True)
    note(False, *(f"warning: {doubt}" for doubt in doubts(question)))
    with progress(state.quiet, Path(scenario).stem, "sizes") as tell:
        answer = find(question, tell)
    most = needed(confidence, max((trial.runs for trial in answer.trials), default=1))
    rows = ranked(answer.trials, question, most) if rank or out is not None else []
    of_all = (rows, changes(rows, objective), undecided(answer.trials, rows, objective))
    if out is not None:
        from equipoise.study.report.charts.size import size_charts

        charts = tuple(chart.plain() for chart in size_charts(rows, question))
        page = replace(findings(question, answer, *of_all), charts=charts)
        write_whole(out / SIZE, _as_json(content(question, answer, *of_all) | {"page": page.plain()}))
    shown = of_all if rank else ([], [], [])
    if form == "json":
        say(_as_json(content(question, answer, *shown)), nl=False)
    else:
        say("\n".join(findings(question, answer, *shown).lines(wide)))
    return OK if answer.best is not None else IMPOSSIBLE


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(plain(data), indent=2, allow_nan=False) + "\n"
