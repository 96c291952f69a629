"""Options of the commands that run changed copies of one scenario."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def variant_options(command: F) -> F:
    """Adds SCENARIO, --policy, --seeds, --set, --trace, --jobs, --out, --format, --quiet and --debug."""
    flag = partial(click.option, is_flag=True)
    options = (
        click.argument("scenario", type=click.Path(dir_okay=False)),
        click.option("--policy", help="Stages joined by +, or none. Default: the scenario's."),
        click.option(
            "--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs per change."
        ),
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change the base itself."
        ),
        click.option("--trace", metavar="FILE", help="Job trace in place of the scenario's."),
        click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes."),
        click.option(
            "--out", metavar="DIR", type=click.Path(file_okay=False), help="Keep the result here as JSON."
        ),
        click.option(
            "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
        ),
        flag("--quiet", "-q", help="No progress and notes on stderr."),
        flag("--debug", help="Show the traceback of a failure."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def shown_progress(quiet: bool) -> Callable[[int, int, str], None] | None:
    """A line on stderr for each tenth of the runs."""
    if quiet:
        return None

    def progress(done: int, total: int, name: str) -> None:
        if done * 10 // total > (done - 1) * 10 // total:
            print(f"{done}/{total} runs, {name}", file=sys.stderr, flush=True)

    return progress
