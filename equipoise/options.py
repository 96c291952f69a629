"""Shared options of the commands, and their notes and progress on stderr."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import click

from equipoise.exit_codes import WRONG_INPUT
from equipoise.study.terminal import printable

F = TypeVar("F", bound=Callable[..., Any])
LINE_EVERY_S = 30.0
KEPT = "interrupted; results so far are kept, the same command continues"

Tell = Callable[[float, float, str], None]
"""Called as tell(done, total, label)."""


@dataclass
class CommandState:
    """Values of the options that every command has."""

    debug: bool = False
    quiet: bool = False


pass_state = click.make_pass_decorator(CommandState, ensure=True)


class WrongInputError(click.ClickException):
    """A one-line error about an input, without the command's usage."""

    exit_code = WRONG_INPUT


def _set(name: str, ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        setattr(ctx.ensure_object(CommandState), name, True)


def common(command: F) -> F:
    """Adds --debug and --quiet."""
    flag = partial(click.option, is_flag=True, expose_value=False)
    command = flag("--debug", callback=partial(_set, "debug"), help="Show the traceback of a failure.")(command)
    return flag("--quiet", "-q", callback=partial(_set, "quiet"), help="No progress or notes on stderr.")(command)


def scenario_options(command: F, several: bool = False) -> F:
    """Adds the scenario file, --trace and --set. several: accept more than one scenario and trace."""
    file = click.Path(dir_okay=False)
    if several:
        command = click.argument("scenarios", metavar="SCENARIO...", type=file, nargs=-1, required=True)(command)
    else:
        command = click.argument("scenario", type=file)(command)
    trace = click.option(
        "--trace",
        metavar="FILE",
        multiple=several,
        help="Use this job trace instead of the scenario's (any known format, gzip or not)."
        + " Several: a table for each, and one over all." * several,
    )
    changes = click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_with_trace_changes,
        help="Change a value, e.g. cluster.nodes.0.count=4.",
    )
    return trace(trace_options(changes(command)))


def trace_options(command: F) -> F:
    """Adds the options for reading a trace; each is short for a `--set workload.trace...`."""
    of_trace = partial(click.option, expose_value=False, is_eager=True, callback=_trace_change)
    command = of_trace(
        "--keep", metavar="COLUMN=VALUE", multiple=True, help="Keep only these jobs, e.g. state=COMPLETED."
    )(command)
    command = of_trace("--zone", metavar="ZONE", help="Time zone of the trace, e.g. Europe/Berlin.")(command)
    command = of_trace("--columns", metavar="arrival=NAME,gpus=NAME,...", help="Names of the columns of a CSV trace.")(
        command
    )
    return of_trace("--trace-format", metavar="FORMAT", help="Format of the trace, if it is not recognised.")(command)


_TRACE_KEYS = {"trace_format": "format", "columns": "columns", "zone": "zone", "keep": "keep"}


def _trace_change(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if not value:
        return
    name = parameter.name or ""
    if name == "columns":
        pairs = [part.partition("=") for part in value.split(",")]
        if not all(target.strip() and column.strip() for target, _, column in pairs):
            raise click.BadParameter(f"{value!r}: write arrival=COLUMN,gpus=COLUMN,duration=COLUMN", ctx, parameter)
        value = {target.strip(): column.strip() for target, _, column in pairs}
    ctx.meta.setdefault(__name__, []).append(f"workload.trace.{_TRACE_KEYS[name]}={json.dumps(value)}")


def trace_changes(ctx: click.Context) -> dict[str, Any]:
    """Values of the options of `trace_options`, by key of `workload.trace`."""
    pairs = [text.removeprefix("workload.trace.").partition("=") for text in ctx.meta.get(__name__, ())]
    return {key: json.loads(value) for key, _, value in pairs}


def _with_trace_changes(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The values of --set, preceded by those of the trace options."""
    return (*ctx.meta.get(__name__, ()), *value)


def output_options(command: F, more: Sequence[str] = ()) -> F:
    """Adds --out and --format; more: further formats."""
    out = click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for the results.")
    kinds = click.Choice(["table", "json", "csv", *more])
    form = click.option("--format", "form", type=kinds, default="table", show_default=True)
    return out(form(command))


def wide_option(command: F) -> F:
    """Adds --wide."""
    return click.option("--wide", is_flag=True, help="Print all lines and columns, not the first screen only.")(command)


def record_options(command: F) -> F:
    """Adds --timeline and --journal, which are kept with each run; `need_out` checks them."""
    flag = partial(click.option, is_flag=True)
    timeline = flag("--timeline", help="Also record a timeline (DIR/timeline/).")
    journal = flag("--journal", help="Also record every decision with its reasons (DIR/journal.jsonl).")
    return timeline(journal(command))


def need_out(out: str | None, **asked: bool) -> None:
    """Raise click.UsageError for an option that needs --out when --out is missing."""
    for name, value in asked.items():
        if value and out is None:
            raise click.UsageError(f"--{name} needs --out DIR, the folder to write it to")


def writable(out: str | None, kind: Literal["run", "comparison"] | None = None) -> None:
    """Make the folder of --out before the run, so that no finished run is lost.

    kind: the type of study, if that needs a separate folder. Raises click.BadParameter when it cannot be
    written, InputError when it holds a study of another kind.
    """
    if out is None:
        return
    if kind is not None:
        from equipoise.study.folders import check_free

        check_free(out, kind)
    try:
        os.makedirs(out, exist_ok=True)
        allowed = os.access(out, os.W_OK | os.X_OK)
        problem = "" if allowed else "no write permission"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise click.BadParameter(f"{out!r}: {problem}", param_hint="'--out'")


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns true after Ctrl-C. A second Ctrl-C stops at once."""
    asked = False

    def on_signal(number: int, frame: object) -> None:
        """The first signal asks the run to end, the second ends the command."""
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread can handle signals
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress(quiet: bool, label: str, unit: str = "runs") -> Iterator[Tell]:
    """Show progress on stderr: a bar on a terminal, a line every 30 s elsewhere, nothing if quiet."""
    if quiet:
        yield lambda done, total, text: None
    elif not sys.stderr.isatty():
        yield _lines(label, unit)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(
            *columns,
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=2,
        ) as bar:
            task = bar.add_task(label, total=None, text="")
            yield lambda done, total, text: bar.update(task, completed=done, total=total, text=printable(text))


def _lines(label: str, unit: str) -> Tell:
    last_s = time.monotonic()
    first: tuple[float, float] | None = None  # the rate is measured from the first that ends here

    def tell(done: float, total: float, text: str) -> None:
        """Print a line from time to time, with the remaining time."""
        nonlocal last_s, first
        now_s = time.monotonic()
        first = first or (now_s, done)
        if now_s - last_s < LINE_EVERY_S:
            return
        last_s, made = now_s, done - first[1]
        left = f", {_clock((now_s - first[0]) / made * (total - done))} left" if made else ""
        print(printable(f"{label}: {done}/{total} {unit}{left}, {text}"), file=sys.stderr, flush=True)

    return tell


def _clock(seconds: float) -> str:
    minutes, whole = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{whole:02}"


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text; control characters in names, values and paths are escaped."""
    click.echo(printable(text), err=err, nl=nl)


def note(quiet: bool, *lines: str) -> None:
    """Print notes on stderr, unless quiet."""
    if not quiet:
        for line in lines:
            print(printable(line), file=sys.stderr)
