"""The command `tune`."""

from __future__ import annotations

from pathlib import Path

import click

from equipoise.exit_codes import OK
from equipoise.options import common, say


@click.command()
@click.argument("scenario")
@click.option("--policy", help="Stages joined by +. Default: the scenario's.")
@click.option(
    "--vary", multiple=True, required=True, metavar="KEY=LOW:HIGH[:log]|A,B,C",
    help="A key of the scenario, or policy.STAGE.PARAMETER.",
)  # fmt: skip
@click.option("--metric", default="completion_mean_s", show_default=True, help="Result to make small.")
@click.option(
    "--trials", default=30, show_default=True, help="Points to try; the first is the scenario as it is."
)
@click.option("--seeds", default=3, show_default=True, help="Seeds of each trial.")
@click.option(
    "--fresh", default=10, show_default=True, help="Seeds of the final figure, that no trial has seen."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change the scenario first.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder that keeps all runs; resumes by itself.")
@common
def tune(
    scenario: str, policy: str | None, vary: tuple[str, ...], metric: str, trials: int, seeds: int, fresh: int,
    overrides: tuple[str, ...], jobs: int, out: Path | None,
) -> int:  # fmt: skip
    """Search the values of SCENARIO and parameters of its stages that make a result smallest.

    The best point is held against the scenario as it is on fresh seeds; if it is not better there with p < 0.01,
    nothing was found.
    """
    from equipoise.study.display import LABELS, show
    from equipoise.study.questions.tune import Search, read_range
    from equipoise.study.questions.tune import tune as find

    ranges = dict(map(read_range, vary))
    search = Search(Path(scenario), ranges, policy, metric, trials, seeds, fresh, overrides, jobs, out)
    found = find(search, lambda done, total, what: None)
    for note in found.notes:
        say(f"note: {note}", err=True)
    start = found.trials[0]
    say(f"{LABELS.get(metric, metric)} under {found.policy}, {len(found.trials)} trials of {seeds} seeds")
    say(f"as it is  {show(metric, start.mean, 0.0)}")
    say(f"best      {show(metric, found.best.mean, 0.0)}  {_values(found.best.values)}")
    ratio = f"x{found.ratio.mean:.3f}"
    if found.ratio.n > 1:
        ratio += f" ({found.ratio.low:.3f} to {found.ratio.high:.3f}), p {found.p:.2g}, {found.ratio.n} fresh seeds"
    say(f"found     {ratio}" if found.better else f"found nothing: {ratio}")
    return OK


def _values(values: dict[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "(as it is)"
