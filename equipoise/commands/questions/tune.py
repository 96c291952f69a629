"""The command `tune`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.tables import aligned
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, pass_state, progress, say

if TYPE_CHECKING:
    from equipoise.study.questions.tune import Choice, FoundParameters, ParameterSearch


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
@click.option("--no-prune", is_flag=True, help="Run every trial on all seeds, even when it is already clearly worse.")
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
    no_prune: bool,
    overrides: tuple[str, ...],
    jobs: int,
    out: Path | None,
    picture: Path | None,
    form: str,
) -> int:
    """Search for the values of SCENARIO and parameters of its stages that give the best result.

    The best point (with several metrics, each point of the Pareto front) is compared with the unchanged scenario on
    fresh seeds; a point counts as found if it is better there with p < 0.01.
    """
    from equipoise.study.questions.tune import ParameterSearch, read_range
    from equipoise.study.questions.tune import tune as find

    if picture is not None and len(metrics) < 2:
        raise click.UsageError("--picture plots objectives against each other: needs --metric twice or more")
    ranges = dict(map(read_range, vary))
    search = ParameterSearch(
        Path(scenario), ranges, policy, metrics, trials, seeds, fresh, overrides, jobs, out, not no_prune
    )
    with progress(state.quiet, Path(scenario).stem, "trials") as tell:
        found = find(search, tell)
    for note in found.notes:
        say(f"note: {note}", err=True)
    if form == "json":
        click.echo(found.as_json(), nl=False)
    else:
        for line in _lines(found, search):
            say(line)
    if picture is not None:
        from equipoise.study.report.charts.tune import objectives
        from equipoise.study.report.figures import write_chart

        write_chart(objectives(json.loads(found.as_json()), metrics), picture)
    return OK


def _lines(found: FoundParameters, search: ParameterSearch) -> Iterator[str]:
    """The result as a table: the unchanged scenario and each choice, on the trials' seeds and on fresh ones."""
    from equipoise.study.display import LABELS, show

    metrics, start, early = search.metrics, found.trials[0], sum(trial.pruned for trial in found.trials)
    told = f", {early} of them stopped early" if early else ""
    what = " and ".join(LABELS.get(metric, metric).strip() for metric in metrics)
    yield found.answer()
    yield ""
    yield f"{what} under {found.policy}, {len(found.trials)} trials of {start.seeds} seeds{told}"
    names = [LABELS.get(metric, metric).strip() for metric in metrics]
    rows = [("", *names, *(f"{name}, fresh seeds" for name in names))]
    rows.append(("unchanged", *(show(m, start.means[m]) for m in metrics), *("" for _ in metrics)))
    for choice in found.choices:
        if choice.trial is start:
            continue
        fresh = [_ratio(choice, metric) for metric in metrics]
        rows.append((_values(choice.trial.values), *(show(m, choice.trial.means[m]) for m in metrics), *fresh))
    yield from aligned(rows)


def _ratio(choice: Choice, metric: str) -> str:
    ratio, p = choice.ratios[metric], choice.p[metric]
    if ratio.n < 2:
        return f"x{ratio.mean:.3f}"
    return f"x{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), p {p:.2g}"


def _values(values: dict[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "(unchanged)"
