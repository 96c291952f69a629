"""The command `tune`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from equipoise.base.files import write_whole
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, pass_state, progress, say, wide_option


@click.command()
@click.argument("scenario")
@click.option("--policy", help="Stages joined by +. Default: the scenario's.")
@click.option(
    "--vary",
    multiple=True,
    required=True,
    metavar="KEY=LOW:HIGH[:log]|A,B,C",
    help="Key of the scenario, or policy.STAGE.PARAMETER, with its range or values.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    default=("completion_mean_s",),
    show_default=True,
    help="Metric to minimise (goodput, fairness and similar: maximise). Several: their Pareto front.",
)
@click.option(
    "--trials",
    type=IntRange(1),
    default=30,
    show_default=True,
    help="Points to try; the first is the unchanged scenario.",
)
@click.option("--seeds", type=IntRange(1), default=3, show_default=True, help="Seeds of each trial.")
@click.option("--fresh", type=IntRange(1), default=10, show_default=True, help="Unseen seeds for the final comparison.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change the scenario first.")
@click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for all runs; a second start continues there.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw all points as SVG or PDF; needs two metrics or more."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="Format of the output.",
)
@wide_option
@common
@pass_state
def tune(
    state: CommandState,
    scenario: str,
    policy: str | None,
    vary: tuple[str, ...],
    metrics: tuple[str, ...],
    trials: int,
    seeds: int,
    fresh: int,
    overrides: tuple[str, ...],
    jobs: int,
    out: Path | None,
    picture: Path | None,
    form: str,
    wide: bool,
) -> int:
    """Search for the values of SCENARIO and parameters of its stages that give the best result.

    The best point (with several metrics, each point of the Pareto front) is compared with the unchanged scenario on
    fresh seeds; a point counts as found if it is better there with p < 0.01.
    """
    from equipoise.study.folders import TUNE
    from equipoise.study.questions.tune import ParameterSearch, read_range
    from equipoise.study.questions.tune import tune as find

    if picture is not None and len(metrics) < 2:
        raise click.UsageError("--picture plots objectives against each other: needs --metric twice or more")
    ranges = dict(map(read_range, vary))
    search = ParameterSearch(Path(scenario), ranges, policy, metrics, trials, seeds, fresh, overrides, jobs, out)
    with progress(state.quiet, Path(scenario).stem, "trials") as tell:
        found = find(search, tell)
    if out is not None or picture is not None:
        from equipoise.study.report.charts.tune import tune_charts
        from equipoise.study.report.figures import write_chart

        charts = tune_charts(found)
        if picture is not None:
            write_chart(charts[0], picture)
        if out is not None:
            page = replace(found.findings(), charts=tuple(chart.plain() for chart in charts))
            write_whole(out / TUNE, _as_json(found.as_dict() | {"page": page.plain()}))
    if form == "json":
        say(_as_json(found.as_dict()), nl=False)
    else:
        say("\n".join(found.findings().lines(wide)))
    return OK


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
