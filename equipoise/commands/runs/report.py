"""report, timeline: write results as a page, as figures, as a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from equipoise.options import CommandState, common, note, pass_state, say


@contextmanager
def _written(option: str) -> Iterator[None]:
    """Turn a write error into one line about the option."""
    try:
        yield
    except OSError as error:
        where = error.filename or "the result"
        raise click.BadParameter(f"{where}: {error.strerror or error}", param_hint=f"'{option}'") from error


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--out", metavar="FILE.html", type=click.Path(dir_okay=False), help="Default: DIR/report.html.")
@click.option(
    "--figures",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Write figures for papers into this folder instead of a page.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "pdf"]),
    default="svg",
    show_default=True,
    help="Format of the figures.",
)
@common
@pass_state
def report(state: CommandState, folder: str, out: str | None, figures: str | None, form: str) -> None:
    """Write the results in DIR (run, compare, sweep, size, tune) as one HTML file that opens offline.

    With --figures, draw its charts with matplotlib (pip install 'equipoise[report]').
    """
    if figures is not None:
        from equipoise.study.report.figures import write_figures

        with _written("--figures"):
            for path in write_figures(folder, figures, form):
                say(str(path))
        if out is None:
            return
    from equipoise.study.folders import check_target

    if out is not None:
        check_target(out, (".html", ".htm"))
    from equipoise.study.findings import screen
    from equipoise.study.report.answers import answer_report
    from equipoise.study.report.page import make_report

    with _written("--out"):
        made = answer_report(folder, out) or make_report(folder, out)
    note(state.quiet, *(f"note: {text}" for text in made.notes))
    say(screen([made.answer, f"The page is {made.path}, {made.size_bytes / 1e6:.2f} MB."]))


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--out", metavar="FILE.json.gz", type=click.Path(dir_okay=False), help="Default: DIR/trace.json.gz.")
@common
@pass_state
def timeline(state: CommandState, folder: str, out: str | None) -> None:
    """Write the timeline of the run in DIR as Chrome trace JSON, for Perfetto (ui.perfetto.dev) and others.

    A process is a node, a thread is a GPU, a slice is an interval of a job. The run must have been made with
    --timeline.
    """
    from equipoise.study.folders import check_target
    from equipoise.study.report.perfetto import MANY, write_trace

    if out is not None:
        check_target(out, (".json", ".json.gz"))
    with _written("--out"):
        written = write_trace(folder, Path(folder) / "trace.json.gz" if out is None else out)
    if written.slices > MANY:
        note(state.quiet, f"note: {written.slices:,} slices; viewers may fail above about {MANY:,}")
    say(f"{written.path}: {written.slices} slices, {written.counters} counters, {written.instants} instants")
