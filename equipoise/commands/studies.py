"""The commands of studies: sweep, merge, query, size."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.commands.types import IntRange
from equipoise.policies.numerals import is_index
from equipoise.study.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from equipoise.study.runs.sweep import Outcome

SOME_FAILED, OUTSIDE = 3, 5
LINE_EVERY_S = 30.0
_FAILURES_SHOWN = 10


def _shard(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """I/N as numbers."""
    if text is None:
        return None
    part, slash, parts = text.partition("/")
    if not (slash and is_index(part) and is_index(parts) and 1 <= int(part) <= int(parts)):
        raise click.BadParameter(f"{text!r}: write I/N with I from 1 to N, e.g. 3/16")
    return int(part), int(parts)


@click.command()
@click.argument("file", metavar="SWEEP.yaml", type=click.Path(dir_okay=False))
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Where results are kept.")
@click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes here.")
@click.option("--dask", metavar="ADDRESS", help="Use this Dask scheduler; 'local' starts one here.")
@click.option("--shard", metavar="I/N", callback=_shard, help="Make the I-th of N parts (then: merge).")
@click.option("--fresh", is_flag=True, help="Forget what is there; by default it is completed.")
@click.option("--retry", is_flag=True, help="Make failed runs again.")
@click.option("--keep", is_flag=True, help="Keep a run directory per run, in OUT/runs/ID/.")
@click.option("--timeline", is_flag=True, help="With --keep: keep timelines, too.")
@click.option(
    "--until",
    metavar="ci:SHARE[:METRIC[:ratio]]",
    help="Add seeds at each point until its 95 % interval is within ±SHARE, e.g. ci:2%:makespan_s.",
)
@click.option("--max-seeds", type=IntRange(1), default=100, show_default=True, help="With --until.")
@click.option("--launch", type=click.Choice(["slurm", "k8s"]), help="Print a launch file for --shards parts.")
@click.option("--shards", type=IntRange(1), default=16, show_default=True, help="With --launch.")
@click.option("--image", default="IMAGE", show_default=True, help="With --launch k8s: container image.")
@click.option("--claim", default="CLAIM", show_default=True, help="With --launch k8s: volume claim.")
@click.option("--dry-run", is_flag=True, help="Show how many runs there are, and make none.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and notes on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.pass_context
def sweep(
    ctx: click.Context,
    file: str,
    out: str,
    jobs: int,
    dask: str | None,
    shard: tuple[int, int] | None,
    fresh: bool,
    retry: bool,
    keep: bool,
    timeline: bool,
    until: str | None,
    max_seeds: int,
    launch: str | None,
    shards: int,
    image: str,
    claim: str,
    dry_run: bool,
    quiet: bool,
    debug: bool,
) -> int:
    """Make every run of SWEEP.yaml; a second start makes what is missing.

    Exit code 3 when some runs failed: they are listed, and made again with --retry. Exit code 5 when --until
    does not hold everywhere.
    """
    from equipoise.study.runs.launch import FORMS, Launch
    from equipoise.study.runs.sweep import Options, planned
    from equipoise.study.runs.sweep import sweep as make

    set_flags(ctx, quiet, debug)
    path = Path(file)
    if timeline and not keep:
        raise click.UsageError("--timeline needs --keep")
    options = Options(jobs, dask, shard, fresh, retry, keep, timeline, until, max_seeds)
    if launch is not None:
        planned(path, options)  # what is wrong with the sweep is said here, not by sixteen machines
        given = _kept_options(keep, timeline, retry, until, max_seeds)
        click.echo(FORMS[launch](Launch(file, out, shards, jobs, given, image, claim)), nl=False)
        return 0
    if dry_run:
        orders, _, notes, _ = planned(path, options)
        most = "" if until is None else "at most "
        click.echo(f"{most}{len(orders)} runs, {len({order.point for order in orders})} points")
        _say(quiet, *(f"note: {note}" for note in notes))
        return 0
    progress = None if quiet else shown_progress(path.stem)
    try:
        outcome = make(path, Path(out), options, progress=progress)
    except KeyboardInterrupt:
        _say(quiet, "interrupted; what was made is kept, start again to go on")
        raise
    _say(quiet, *(f"note: {note}" for note in outcome.notes))
    click.echo(printable(_summary(outcome, out)))
    if outcome.failed:
        return SOME_FAILED
    return OUTSIDE if outcome.unsure else 0


def _kept_options(
    keep: bool, timeline: bool, retry: bool, until: str | None, max_seeds: int
) -> tuple[str, ...]:
    """Options of the sweep that every shard must have, too."""
    flags = {"--keep": keep, "--timeline": timeline, "--retry": retry}
    chosen = [name for name, value in flags.items() if value]
    return (*chosen, *(("--until", until, "--max-seeds", str(max_seeds)) if until is not None else ()))


def set_flags(ctx: click.Context, quiet: bool, debug: bool) -> None:
    """Hand --quiet and --debug to the program around the command, when there is one."""
    for name, value in (("quiet", quiet), ("debug", debug)):
        if value and ctx.obj is not None:
            setattr(ctx.obj, name, True)


def _say(quiet: bool, *lines: str) -> None:
    if not quiet:
        for line in lines:
            print(printable(line), file=sys.stderr)


def _summary(outcome: Outcome, out: str) -> str:
    """How a sweep ended, in words."""
    lines = [
        f"{outcome.runs} runs in {out}: {outcome.made} made, {outcome.reused} there already, "
        f"{len(outcome.failed)} failed"
    ]
    for row in outcome.failed[:_FAILURES_SHOWN]:
        lines.append(
            f"failed: {row['id']} point {row['point']} {row['policy']} seed {row['seed']}: {row['error']}"
        )
    if len(outcome.failed) > _FAILURES_SHOWN:
        lines.append(
            f"failed: and {len(outcome.failed) - _FAILURES_SHOWN} more (table runs, status 'failed')"
        )
    return "\n".join(lines)


def shown_progress(label: str) -> Callable[[int, int, int], None]:
    """Progress on stderr with the time that is left: one line redrawn on a terminal, else one per 30 s."""
    terminal = sys.stderr.isatty()
    last_s = -math.inf if terminal else time.monotonic()
    first: tuple[float, int] | None = None  # the rate counts from the first run that ends here

    def progress(done: int, total: int, failed: int) -> None:
        nonlocal last_s, first
        now_s = time.monotonic()
        first = first or (now_s, done)
        if now_s - last_s < (0.2 if terminal else LINE_EVERY_S) and not (terminal and done == total):
            return
        last_s = now_s
        made = done - first[1]
        left = f", {_clock((now_s - first[0]) / made * (total - done))} left" if made else ""
        bad = f", {failed} failed" if failed else ""
        text = f"{label}: {done}/{total} runs{bad}{left}"
        end = "\n" if not terminal or done == total else ""
        print(f"\r\x1b[K{text}" if terminal else text, end=end, file=sys.stderr, flush=True)

    return progress


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


@click.command()
@click.argument("folders", metavar="OUT [DIR]...", nargs=-1, required=True, type=click.Path(file_okay=False))
@click.option("--quiet", "-q", is_flag=True, help="No notes on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.pass_context
def merge(ctx: click.Context, folders: tuple[str, ...], quiet: bool, debug: bool) -> int:
    """Put the shards in OUT and in each DIR together, into OUT/sweep.db.

    Exit code 3 when runs failed or shards are missing.
    """
    from equipoise.study.runs.shards import merge as join

    set_flags(ctx, quiet, debug)
    done, failed, notes = join(Path(folders[0]), [Path(folder) for folder in folders])
    click.echo(f"{done + failed} runs in {folders[0]}: {failed} failed")
    _say(quiet, *(f"note: {note}" for note in notes))
    return SOME_FAILED if failed or notes else 0


@click.command()
@click.argument("sql", required=False)
@click.option(
    "--identity", "run", metavar="RUN", help="Show what the identity of a run directory is made of."
)
@click.option(
    "--out", default=".", show_default=True, type=click.Path(file_okay=False),
    help="Folder of a sweep, a comparison or a run.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True
)
@click.option("--to", metavar="FILE", type=click.Path(dir_okay=False),
              help="Write a file instead: .csv, .json, .parquet or .xlsx (Excel).")  # fmt: skip
@click.option("--allow-files", is_flag=True, help="Any SQL, also what reads and writes other files.")
@click.option("--debug", is_flag=True, help="Show the traceback of a failure.")
@click.pass_context
def query(
    ctx: click.Context,
    sql: str | None,
    run: str | None,
    out: str,
    form: str,
    to: str | None,
    allow_files: bool,
    debug: bool,
) -> int:
    """Ask results in SQL (DuckDB): table `runs`; of kept run directories `jobs`, of kept timelines `segments`,
    `usage`, `links`, `events`, `holdings` and `gpus`.

    Varied keys are columns by their dotted name: SELECT policy, "noise.step_cov", avg(makespan_s) FROM runs
    GROUP BY ALL.
    """
    import duckdb

    from equipoise.study.folders import check_target
    from equipoise.study.runs.query import ask

    set_flags(ctx, False, debug)
    if (sql is None) == (run is None):
        raise click.UsageError("write either SQL or --identity RUN")
    if sql is None:
        click.echo(render(("of", "hash, version or value"), identity_of(Path(out), str(run)), form), nl=False)
        return 0
    if to is not None:
        check_target(to, (".csv", ".json", ".parquet", ".xlsx"))
    try:
        names, rows = ask(Path(out), sql, None if to is None else Path(to), allow_files=allow_files)
    except duckdb.Error as error:
        if debug:
            raise
        raise click.UsageError(f"SQL: {' '.join(str(error).split())}") from error
    if to is not None:
        return 0
    click.echo(render(names, rows, form), nl=False)
    return 0


def identity_of(out: Path, run: str) -> list[tuple[str, str]]:
    """(input, hash or version) of all that a run directory depends on: `run` itself, or below `out`, or a sweep's.

    Raises InputError when there is none.
    """
    from equipoise.sim.scenario.tree import InputError

    places = [folder / "manifest.json" for folder in (out / run, out / "runs" / run, Path(run))]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError([f"{run}: no run directory (no {', no '.join(map(str, places))})"])
    try:
        manifest = json.loads(found.read_text(encoding="utf-8"))
        rows = [("identity", str(manifest["identity"]))]
        return rows + [(str(name), str(value)) for name, value in manifest["inputs"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError([f"{found}: not the manifest of a run ({error})"]) from error


def render(names: Sequence[str], rows: Sequence[tuple[Any, ...]], form: str) -> str:
    """Rows of a query as text: an aligned table, a JSON list of objects, or CSV."""
    if form == "json":
        return json.dumps([dict(zip(names, map(_plain, row), strict=True)) for row in rows], indent=2) + "\n"
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([names, *(["" if _plain(v) is None else v for v in row] for row in rows)])
        return printable(text.getvalue()) if sys.stdout.isatty() else text.getvalue()
    return "".join(f"{line}\n" for line in _aligned(names, rows))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _aligned(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    def text(value: Any) -> str:
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return "-" if _plain(value) is None else printable(shown).replace("\n", "\\n")

    names = [text(name) for name in names]
    cells = [[text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    numeric = [all(isinstance(row[k], int | float | None) for row in rows) for k in range(len(names))]
    for line in (list(names), *cells):
        padded = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True)]
        yield "  ".join(padded).rstrip()
