"""The command `fit-workload`: a description of a trace, and how like it jobs are that are drawn from it."""

from __future__ import annotations

import math
from pathlib import Path

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK
from equipoise.options import State, common, note, pass_state


@click.command()
@click.argument("trace", type=click.Path(dir_okay=False))
@click.option(
    "--cluster", "clusters", multiple=True, metavar="NAME", help="Only jobs of this virtual cluster."
)
@click.option("--gpus", type=IntRange(1), help="GPUs to compare waits on. Default: busy 80 % of the time.")
@click.option("--policy", multiple=True, default=("fifo", "easy", "sjf"), show_default=True)
@click.option("--seeds", type=IntRange(1), default=5, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False), help="Write a scenario with the description.")
@common
@pass_state
def fit_workload(
    state: State, trace: str, clusters: tuple[str, ...], gpus: int | None, policy: tuple[str, ...], seeds: int,
    out: str | None,
) -> int:  # fmt: skip
    """Describe the jobs of TRACE as a section `workload.generate`, and compare jobs drawn from it with the trace.

    The description holds, for each number of GPUs, the arrivals over time and the durations. What it leaves out is
    which jobs come together and who sent them: how much that matters is what the comparison shows.
    """
    import numpy as np

    from equipoise.policies.files import write_whole
    from equipoise.sim.loading.file import from_mapping
    from equipoise.sim.scenario.tree import write_tree
    from equipoise.sim.traces.read import read_trace
    from equipoise.study.questions.workload import compared, fitted

    read = read_trace(trace, clusters=clusters)
    section = fitted(read)
    busy = float((read.gpus * read.duration_s).sum()) / section["length"]
    pool = gpus or max(math.ceil(busy / 0.8), int(np.max(read.gpus)))
    content = {
        "schema_version": 1, "name": Path(trace).name.partition(".")[0], "why": f"Jobs like those of {trace}.",
        "cluster": {"gpus": pool}, "workload": {"generate": section}, "policy": policy[0],
    }  # fmt: skip
    if out is not None:
        write_whole(Path(out), write_tree(content))
    note(state.quiet, *read.notes)
    click.echo(
        f"{len(read)} jobs in {len(section['classes'])} classes; compared on {pool} GPUs, {seeds} seeds"
    )
    click.echo(_table(compared(from_mapping(content), read, policy, seeds)))
    return OK


def _table(found: list) -> str:  # type: ignore[type-arg]  # of Likeness, which is not loaded for the help
    from equipoise.commands.tables import aligned
    from equipoise.sim.scenario.units import format_seconds

    rows = [["", "trace", "drawn", "ratio"]]
    for one in found:
        ratio = f"{one.drawn / one.trace:.2f}" if one.trace else "-"
        rows.append(
            [f"{one.quantity} p{one.percentile}", *map(format_seconds, (one.trace, one.drawn)), ratio]
        )
    return "\n".join(aligned(rows, (False, True, True, True)))
