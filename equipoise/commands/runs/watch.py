"""The command `watch`."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click

from equipoise.commands.types import FloatRange
from equipoise.exit_codes import OK, SOME_FAILED
from equipoise.options import CommandState, common, note, pass_state, say


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--every", type=FloatRange(0.1, 3600), default=5.0, show_default=True, help="Seconds between updates.")
@click.option("--once", is_flag=True, help="Show the state once and exit.")
@click.option("--page", metavar="FILE.html", type=click.Path(dir_okay=False), help="Also keep a report up to date.")
@common
@pass_state
def watch(state: CommandState, folder: str, every: float, once: bool, page: str | None) -> int:
    """Show how far the sweep or comparison in DIR has come, and its first results, until it ends.

    Read-only; run it next to the sweep, or on another machine that sees DIR. Exit code 3 when runs failed.
    """
    from equipoise.sim.scenario.tree import InputError
    from equipoise.study.report.page import make_report
    from equipoise.study.runs.watch import standing

    first: tuple[float, int] | None = None
    while True:
        now = standing(Path(folder))
        ended, at_s = now.done + now.failed, time.monotonic()
        first = first or (at_s, ended)
        rate = (ended - first[1]) / (at_s - first[0]) if at_s > first[0] else math.nan
        say(now.text(rate))
        if page is not None and now.done:
            try:
                make_report(folder, page, refresh_s=None if once or now.ended else every)
            except InputError as error:
                note(state.quiet, *error.lines)
        if once or now.ended:
            return SOME_FAILED if now.failed else OK
        time.sleep(every)
