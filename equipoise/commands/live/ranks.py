"""ranks: which rank of a live run is slow, and why."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, pass_state, say, wide_option
from equipoise.study.twin.ranks import as_data, diagnose, render


@click.command()
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(file_okay=False))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--last", type=IntRange(min=8), metavar="ROUNDS", help="Use only the last ROUNDS rounds.")
@wide_option
@common
@pass_state
def ranks(state: CommandState, run_dir: str, form: str, last: int | None, wide: bool) -> int:
    """Show which ranks of the live run recorded in RUN_DIR are slow, and why, with the evidence.

    RUN_DIR is the folder of one run, or the `run_dir` given to `attach`, if it holds a single
    run. A run with `mode="observe"` is enough.
    """
    found = diagnose(Path(run_dir), last)
    say(json.dumps(as_data(found)) if form == "json" else render(found, wide), nl=form == "json")
    return OK
