"""What the commands that run changed copies of one scenario have in common: options, progress, result."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.commands.types import IntRange
from equipoise.study.terminal import printable

if TYPE_CHECKING:
    from equipoise.study.runs.variants import Means


@dataclass(frozen=True)
class Given:
    """The common options of one call."""

    scenario: str
    policy: str | None
    seeds: int
    overrides: tuple[str, ...]
    trace: str | None
    jobs: int
    out: str | None
    form: str
    quiet: bool
    debug: bool

    def means(self) -> Means:
        """How the runs are made."""
        from equipoise.study.runs.variants import Means

        return Means(self.seeds, jobs=self.jobs, progress=None if self.quiet else _progress)

    def tell(self, result: Mapping[str, Any], file: str, lines: Iterable[str], notes: Iterable[str]) -> None:
        """Print a result, as text or as JSON, keep it as `file` in the folder of --out, print notes to stderr."""
        text = json.dumps(result, indent=2) + "\n"
        shown = text if self.form == "json" else printable("".join(f"{line}\n" for line in lines))
        click.echo(shown, nl=False)
        if not self.quiet:
            for note in notes:
                print(printable(f"note: {note}"), file=sys.stderr)
        if self.out is not None:
            _write(Path(self.out) / file, text)


def variant_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command SCENARIO, --policy, --seeds, --set, --trace, --jobs, --out, --format, --quiet and --debug.

    They reach it as its first argument, `Given`; before that the folder of --out is made, so that nothing is
    lost to it later. Raises click.BadParameter where it cannot be made.
    """

    @functools.wraps(command)
    def with_options(**options: Any) -> int:
        from equipoise.commands.studies import set_flags

        given = Given(**{field.name: options.pop(field.name) for field in fields(Given)})
        set_flags(click.get_current_context(), given.quiet, given.debug)
        if given.out is not None:
            try:
                os.makedirs(given.out, exist_ok=True)
            except OSError as error:
                why = f"{given.out!r}: {error.strerror or error}"
                raise click.BadParameter(why, param_hint="'--out'") from error
        return command(given, **options)

    flag = partial(click.option, is_flag=True)
    options = (
        click.argument("scenario", type=click.Path(dir_okay=False)),
        click.option("--policy", help="Stages joined by +, or none. Default: the scenario's."),
        click.option("--seeds", type=IntRange(1), default=5, show_default=True, help="Runs per change."),
        click.option(
            "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change the base itself."
        ),
        click.option("--trace", metavar="FILE", help="Job trace in place of the scenario's."),
        click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes."),
        click.option(
            "--out", metavar="DIR", type=click.Path(file_okay=False), help="Keep the result here as JSON."
        ),
        click.option(
            "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
        ),
        flag("--quiet", "-q", help="No progress and notes on stderr."),
        flag("--debug", help="Show the traceback of a failure."),
    )
    wrapped: Callable[..., int] = with_options
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _write(path: Path, text: str) -> None:
    """Write a file whole, through a temporary one."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def _progress(done: int, total: int, name: str) -> None:
    """A line on stderr for each tenth of the runs."""
    if done * 10 // total > (done - 1) * 10 // total:
        print(f"{done}/{total} runs, {name}", file=sys.stderr, flush=True)
