"""report, timeline: write results as a page, as figures, as a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from equipoise.commands.types import FloatRange
from equipoise.options import CommandState, common, note, pass_state, say


@contextmanager
def _written(option: str) -> Iterator[None]:
    """Turn a write error into one line about the option."""
    try:
        yield
    except OSError as error:
        where = error.filename or "the result"
        raise click.BadParameter(f"{where}: {error.strerror or error}", param_hint=f"'{option}'") from error


def _live(folder: str) -> Path | None:
    """The live run that DIR names, if any."""
    from equipoise.study.live.account import is_live
    from equipoise.study.twin.record import the_run_in

    return the_run_in(Path(folder)) if is_live(Path(folder)) else None


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
@click.option("--gpu-hour-usd", type=FloatRange(min=0.0), help="Price of a GPU-hour, for the report of a live run.")
@common
@pass_state
def report(
    state: CommandState, folder: str, out: str | None, figures: str | None, form: str, gpu_hour_usd: float | None
) -> None:
    """Write the results in DIR (run, compare, sweep, size, tune, live run) as one HTML file that opens offline.

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
    live = _live(folder)
    if live is not None:
        from equipoise.study.live.page import live_report

        target = live / "report.html" if out is None else Path(out)
        with _written("--out"):
            size_bytes, notes = live_report(live, target, gpu_hour_usd)
        note(state.quiet, *(f"note: {text}" for text in notes))
        say(f"{target}: {size_bytes / 1e6:.2f} MB")
        return
    if gpu_hour_usd is not None:
        raise click.BadParameter(
            f"{folder}: not a live run; prices of a simulated run are set in its scenario",
            param_hint="'--gpu-hour-usd'",
        )
    from equipoise.study.report.answers.page import answer_report
    from equipoise.study.report.page import make_report

    with _written("--out"):
        made = answer_report(folder, out) or make_report(folder, out)
    note(state.quiet, *(f"note: {text}" for text in made.notes))
    say(f"{made.path}: {made.size_bytes / 1e6:.2f} MB")


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--out", metavar="FILE.json.gz", type=click.Path(dir_okay=False), help="Default: DIR/trace.json.gz.")
@common
@pass_state
def timeline(state: CommandState, folder: str, out: str | None) -> None:
    """Write the timeline of the run in DIR as Chrome trace JSON, for Perfetto (ui.perfetto.dev) and others.

    A process is a node, a thread is a GPU, a slice is an interval of a job; for a live run, a thread is a rank, and a
    slice is a part of its round. A simulated run must have been made with --timeline.
    """
    from equipoise.study.folders import check_target
    from equipoise.study.report.perfetto import MANY, write_trace

    if out is not None:
        check_target(out, (".json", ".json.gz"))
    live = _live(folder)
    if live is not None:
        from equipoise.study.live.trace import write_live_trace

        target = live / "trace.json.gz" if out is None else Path(out)
        with _written("--out"):
            slices, instants = write_live_trace(live, target)
        say(f"{target}: {slices} slices, {instants} instants")
        return
    with _written("--out"):
        written = write_trace(folder, Path(folder) / "trace.json.gz" if out is None else out)
    if written.slices > MANY:
        note(state.quiet, f"note: {written.slices:,} slices; viewers may fail above about {MANY:,}")
    say(f"{written.path}: {written.slices} slices, {written.counters} counters, {written.instants} instants")
