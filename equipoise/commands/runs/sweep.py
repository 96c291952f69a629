"""sweep: run a sweep file, here or in shards on many machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.numerals import is_index
from equipoise.commands.types import IntRange
from equipoise.commands.variants import until_options
from equipoise.exit_codes import OK, OUTSIDE, SOME_FAILED
from equipoise.options import KEPT, CommandState, common, note, pass_state, progress, say

if TYPE_CHECKING:
    from equipoise.study.runs.sweep import SweepOutcome

_FAILURES_SHOWN = 10


def _shard(ctx: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """Parse I/N."""
    if text is None:
        return None
    part, slash, parts = text.partition("/")
    if not (slash and is_index(part) and is_index(parts) and 1 <= int(part) <= int(parts)):
        raise click.BadParameter(f"{text!r}: write I/N with I from 1 to N, e.g. 3/16")
    return int(part), int(parts)


@click.command()
@click.argument("file", metavar="SWEEP.yaml", type=click.Path(dir_okay=False))
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Folder for the results.")
@click.option("--jobs", type=IntRange(1), default=1, show_default=True, help="Processes here.")
@click.option("--dask", metavar="ADDRESS", help="Use this Dask scheduler.")
@click.option("--shard", metavar="I/N", callback=_shard, help="Run only the I-th of N parts.")
@click.option("--fresh", is_flag=True, help="Discard the runs in OUT and start anew. Default: keep them.")
@click.option("--retry", is_flag=True, help="Run failed runs again.")
@click.option("--keep", is_flag=True, help="Keep a run directory per run, in OUT/runs/ID/.")
@click.option("--timeline", is_flag=True, help="With --keep: keep timelines as well.")
@until_options
@click.option("--dry-run", is_flag=True, help="Only show how many runs there are.")
@common
@pass_state
def sweep(
    state: CommandState,
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
    dry_run: bool,
) -> int:
    """Run every point of SWEEP.yaml; a second start runs only what it and its shards have not made.

    Exit code 3 when some runs failed: they are listed, and rerun with
    --retry. Exit code 5 when --until is not reached at every point.
    """
    from equipoise.study.findings import screen
    from equipoise.study.report.read import read_study
    from equipoise.study.report.words import headline
    from equipoise.study.runs.sweep import SweepOptions, planned
    from equipoise.study.runs.sweep import sweep as make

    path = Path(file)
    if timeline and not keep:
        raise click.UsageError("--timeline needs --keep")
    options = SweepOptions(jobs, dask, shard, fresh, retry, keep, timeline, until, max_seeds)
    if dry_run:
        orders, _, notes, _ = planned(path, options)
        most = "" if until is None else "at most "
        say(f"{most}{len(orders)} runs, {len({order.point for order in orders})} points")
        note(state.quiet, *(f"note: {text}" for text in notes))
        return OK
    try:
        with progress(state.quiet, path.stem) as tell:
            outcome = make(path, Path(out), options, progress=tell)
    except KeyboardInterrupt:
        note(state.quiet, KEPT)
        raise
    note(state.quiet, *(f"note: {text}" for text in outcome.notes))
    known = shard is None and outcome.runs > len(outcome.failed)  # a shard alone answers nothing
    told = headline(read_study(out)) if known else []
    say(screen([sentence.text for sentence in told[:3]], _summary(outcome, out)))
    if outcome.failed:
        return SOME_FAILED
    return OUTSIDE if outcome.unsure else OK


def _summary(outcome: SweepOutcome, out: str) -> list[str]:
    """Runs of a finished sweep, and which of them failed."""
    lines = [f"{outcome.runs} runs in {out}: {outcome.made} run, {outcome.reused} cached, {len(outcome.failed)} failed"]
    for row in outcome.failed[:_FAILURES_SHOWN]:
        lines.append(f"failed: {row['id']} point {row['point']} {row['policy']} seed {row['seed']}: {row['error']}")
    if len(outcome.failed) > _FAILURES_SHOWN:
        lines.append(f"failed: and {len(outcome.failed) - _FAILURES_SHOWN} more (table runs, status 'failed')")
    return lines
