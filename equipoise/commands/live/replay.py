"""The command `replay`."""

from __future__ import annotations

from pathlib import Path

import click

from equipoise.formats.operations import read_operations
from equipoise.formats.text.errors import FormatError
from equipoise.options import CommandState, common, pass_state, progress, say
from equipoise.sim.scenario.tree import InputError
from equipoise.study.replay.graph import graphs
from equipoise.study.replay.summary import parse_change, summarise


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option(
    "--what-if", "asked", metavar="CLASS[@RANK]=FACTOR", multiple=True, help="E.g. backward-compute@3=typical."
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
@pass_state
def replay(state: CommandState, files: tuple[str, ...], asked: tuple[str, ...], form: str) -> None:
    """Replay recorded training steps operation by operation: cost and causes of stragglers, what-if analysis.

    FILEs are PyTorch profiler traces, one per rank, or one table (CSV, Parquet) with columns step, rank,
    dp_rank, stage, optype, start_ts, duration, seq_id.
    """

    try:
        operations = read_operations([Path(name) for name in files])
        found = graphs(operations)
    except (FormatError, ValueError) as error:
        raise InputError([str(error)]) from error
    except OSError as error:
        raise InputError([f"{error.filename}: cannot be read: {error.strerror}"]) from error
    changes = [parse_change(text, found) for text in asked]
    with progress(state.quiet, "replay", "steps") as tell:
        summary = summarise(found, changes, told=lambda done: tell(done, len(found), f"step {done}"))
    say(summary.as_json() if form == "json" else summary.as_text())
