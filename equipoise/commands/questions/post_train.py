"""The command `post-train`: how many GPUs should roll out, and how many should train."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, note, pass_state, say, wide_option

if TYPE_CHECKING:
    from equipoise.sim.shown import Answered
    from equipoise.study.report.chart import Chart


@click.command("post-train")
@click.argument("scenario", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a value of the scenario.")
@click.option("--loop", help="Name of the loop, where the scenario has several.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--out", type=click.Path(dir_okay=False), help="Also write the page (.html) or its picture (.svg, .pdf).")
@wide_option
@common
@pass_state
def post_train(
    state: CommandState,
    scenario: str,
    overrides: tuple[str, ...],
    loop: str | None,
    form: str,
    out: str | None,
    wide: bool,
) -> int:
    """Compare every split of a loop's GPUs between rollouts and training.

    SCENARIO has a section `post_training`. Each split's step is predicted by phase; the best comes first, with the 90 %
    interval of its step and the chance that it is the best, over the errors of predicted phases.
    """
    from equipoise.base.json_values import plain
    from equipoise.sim.discover import parts
    from equipoise.sim.loading.file import read_scenario
    from equipoise.sim.scenario.tree import InputError
    from equipoise.study.findings import Findings, FindingsTable

    file = read_scenario(scenario, overrides)
    note(state.quiet, *file.warnings)
    modules = parts("answer")
    if not modules:
        raise InputError(["post-train: the feature that answers it was removed"])
    found: Answered = modules[0].answer(file.scenario, loop)
    table = FindingsTable("", found.rows, [False] + [True] * (len(found.rows[0]) - 1))
    charts = (chart_of(found),) if found.along and len(found.rows) > 3 else ()
    findings = Findings(found.title, found.sentences, (table,), found.remarks, (), tuple(c.plain() for c in charts))
    if form == "json":
        say(json.dumps(plain({"schema_version": 1, "answer": " ".join(found.sentences), **found.data}), indent=2))
    else:
        say("\n".join(findings.lines(wide)))
    if out is not None:
        _write(Path(out), findings.plain(), charts)
    return OK


def chart_of(found: Answered) -> Chart:
    """The picture of the answer: seconds of a step and of its sides by GPUs."""
    from equipoise.study.report.chart import Axis, Chart, ChartSeries

    high = max(y for line in found.lines.values() for y in line.values())
    unit, scale = ("min", 60.0) if high >= 600.0 else ("s", 1.0)
    series = tuple(
        ChartSeries(name, [*map(float, sorted(line))], [line[x] / scale for x in sorted(line)], number)
        for number, (name, line) in enumerate(found.lines.items())
    )
    least = math.ceil(max(min(line.values()) for line in found.lines.values()) / scale)
    text = f"{found.sentences[0]} Above about {least} {unit} one side waits for the other."
    y = Axis(f"step [{unit}]", high=min(high, 3.0 * min(found.lines["step"].values())) / scale)
    return Chart("split", "line", found.title, text, Axis(found.along), y, series, (), (), found.sentences[0])


def _write(path: Path, page: dict[str, Any], charts: tuple[Chart, ...]) -> None:
    from equipoise.base.files import write_whole
    from equipoise.study.report.answers import answer_page
    from equipoise.study.report.figures import write_chart

    if path.suffix == ".html":
        write_whole(path, answer_page(page).encode())
    elif charts:
        write_chart(charts[0], path)
