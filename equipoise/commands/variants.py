"""Shared parts of the commands that run changed copies of one scenario: options, progress, result."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.base.files import write_whole
from equipoise.commands.types import IntRange
from equipoise.options import (
    CommandState,
    common,
    note,
    pass_state,
    progress,
    say,
    scenario_options,
    wide_option,
    writable,
)

if TYPE_CHECKING:
    from equipoise.study.findings import Findings
    from equipoise.study.runs.variants import RunOptions


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
    wide: bool
    quiet: bool

    @contextmanager
    def run_options(self) -> Iterator[RunOptions]:
        """The options of the runs, with a progress display."""
        from equipoise.study.runs.variants import RunOptions

        with progress(self.quiet, Path(self.scenario).stem) as tell:
            yield RunOptions(self.seeds, jobs=self.jobs, progress=tell)

    def tell(self, result: Mapping[str, Any], file: str, found: Findings, notes: Iterable[str]) -> None:
        """Print a result, as text or as JSON, keep it as `file` in the folder of --out, print notes to stderr."""
        text = json.dumps(result, indent=2) + "\n"
        say(text if self.form == "json" else "".join(f"{line}\n" for line in found.lines(self.wide)), nl=False)
        note(self.quiet, *(f"note: {text}" for text in notes))
        if self.out is not None:
            write_whole(Path(self.out) / file, text)


def variant_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives a command SCENARIO, --policy, --seeds, --set, --trace, --jobs, --out, --format, --wide and `common`.

    They are passed as its first argument, `Given`; the folder of --out is made before the command runs, so that no
    result is lost later. Raises click.BadParameter if it cannot be made.
    """

    @functools.wraps(command)
    def with_options(state: CommandState, **options: Any) -> int:
        """The command, with its shared options in one object."""
        names = [field.name for field in fields(Given) if field.name != "quiet"]
        given = Given(**{name: options.pop(name) for name in names}, quiet=state.quiet)
        writable(given.out)
        return command(given, **options)

    kinds = click.Choice(["table", "json"])
    options = (
        scenario_options,
        click.option("--policy", help="Stages joined by +, or none. Default: the scenario's."),
        click.option("--seeds", type=IntRange(1), default=5, show_default=True, help="Runs per change."),
        click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes."),
        click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for the result, as JSON."),
        click.option("--format", "form", type=kinds, default="table", show_default=True),
        wide_option,
        common,
    )
    wrapped: Callable[..., int] = pass_state(with_options)
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def until_options(command: Callable[..., int]) -> Callable[..., int]:
    """Adds --until and --max-seeds."""
    until = click.option(
        "--until",
        metavar="ci:SHARE[:METRIC[:ratio]]",
        help="Add seeds until every 95 % interval is within ±SHARE, e.g. ci:2%:makespan_s; exit code 5 if not.",
    )
    most = click.option(
        "--max-seeds", type=IntRange(min=1), default=100, show_default=True, help="Maximum seeds for --until."
    )
    return until(most(command))
