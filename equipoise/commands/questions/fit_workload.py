"""The command `fit-workload`: describe a trace, and compare jobs drawn from the description with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from equipoise.base.files import write_whole
from equipoise.base.tables import aligned
from equipoise.commands.types import FloatRange, IntRange
from equipoise.exit_codes import OK
from equipoise.options import CommandState, common, note, pass_state, say

NODE_GPUS = 8
"""GPUs per node in the written scenario, if that divides the number needed."""


@click.command()
@click.argument("trace", type=click.Path())
@click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="Only jobs of this virtual cluster.")
@click.option(
    "--gpus",
    type=IntRange(1),
    help="GPUs of the cluster for the comparison. Default: as many as its jobs keep busy 80 % of the time.",
)
@click.option(
    "--policy",
    multiple=True,
    default=("fifo", "easy", "sjf"),
    show_default=True,
    help="Policies under which waits are compared; may be repeated.",
)
@click.option(
    "--model",
    "kind",
    type=click.Choice(["sessions", "classes"]),
    default="sessions",
    show_default=True,
    help="sessions: those of the trace in another order; classes: distributions only, needs no trace.",
)
@click.option(
    "--alike",
    metavar="SESSIONS",
    type=IntRange(2),
    help="Exchange only sessions of similar GPU time, in groups of this size. Default: any of the same day.",
)
@click.option(
    "--scale",
    type=FloatRange(0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Number of jobs, as a multiple of the trace's, in --out.",
)
@click.option("--seeds", type=IntRange(1), default=5, show_default=True, help="Number of workloads to draw.")
@click.option(
    "--calibrate",
    metavar="DRAWS",
    type=IntRange(0),
    default=0,
    show_default=True,
    help="Draw this many workloads, and keep the --seeds ones whose waits are nearest to the trace's.",
)
@click.option(
    "--calibrate-on",
    metavar="POLICY",
    multiple=True,
    default=("fifo", "easy", "sjf"),
    show_default=True,
    help="Policies under which --calibrate compares waits; the other policies of --policy test the choice.",
)
@click.option("--out", type=click.Path(dir_okay=False), help="Write a scenario with the description.")
@common
@pass_state
def fit_workload(
    state: CommandState,
    trace: str,
    clusters: tuple[str, ...],
    gpus: int | None,
    policy: tuple[str, ...],
    kind: str,
    alike: int | None,
    scale: float,
    seeds: int,
    calibrate: int,
    calibrate_on: tuple[str, ...],
    out: str | None,
) -> int:
    """Write a workload like that of TRACE, with different jobs for each seed, and compare waits with the trace's.

    A session is a series of jobs of one user with the same number of GPUs. `--model sessions` keeps all sessions and
    permutes them within each day; batches, the load over days and weeks, and sizes with their durations
    are kept. `--model classes` keeps only arrivals over time, and durations for each number of GPUs: the workload then
    needs no trace, but its jobs wait less. The comparison shows by how much.

    If a few long jobs determine the waits, two weeks of the same users differ much. --calibrate keeps workloads
    whose waits are like the trace's; without it, the workloads show how much waits may vary.
    """
    import numpy as np

    from equipoise.sim.loading.file import from_mapping
    from equipoise.sim.scenario.tree import write_tree
    from equipoise.sim.traces.read import read_trace
    from equipoise.sim.traces.redraw import sessions
    from equipoise.study.questions.workload import compared, fitted, likest, moved

    if calibrate and (kind != "sessions" or calibrate < seeds):
        raise click.UsageError("--calibrate: needs --model sessions, and at least as many draws as --seeds")
    if alike and kind != "sessions":
        raise click.UsageError("--alike: needs --model sessions")

    read = read_trace(trace, clusters=clusters)
    busy = float((read.gpus * read.duration_s).sum()) / max(float(read.arrival_s.max()), 1.0)
    pool = gpus or max(math.ceil(busy / 0.8), int(np.max(read.gpus)))
    if kind == "sessions":
        drawn: dict[str, Any] = {"window": "1 d", "together": "10 min"} | ({"alike": alike} if alike else {})
        spec = {"file": str(Path(trace).resolve()), "redraw": drawn}
        workload: dict[str, Any] = {"trace": spec | ({"clusters": list(clusters)} if clusters else {})}
        told = f"{len(sessions(read, 600.0)[1])} sessions"
    else:
        drawn = fitted(read)
        workload = {"generate": drawn}
        told = f"{len(drawn['classes'])} classes"
    held = math.gcd(pool, NODE_GPUS)  # nodes, so that `size` can vary their number
    nodes = [{"count": pool // held, "gpus": held}]
    content: dict[str, Any] = {
        "schema_version": 1,
        "name": Path(trace).name.partition(".")[0],
        "why": f"Jobs like those of {trace}.",
        "cluster": {"nodes": nodes},
        "workload": workload,
        "policy": policy[0],
    }
    scenario = from_mapping(content)
    if calibrate:
        drawn["draws"] = likest(scenario, read, calibrate_on, calibrate, seeds)
        scenario = from_mapping(content)
        told += f" ({seeds} most similar orders of {calibrate})"
    if kind == "sessions":
        told += f", {100 * moved(scenario, read, seeds):.0f} % of them at a different time than in the trace"
    if out is not None:
        if scale != 1.0:
            drawn["scale"] = scale
        write_whole(Path(out), write_tree(content))
    note(state.quiet, *read.notes)
    say(f"{len(read)} jobs in {told}; compared on {pool} GPUs, {seeds} seeds")
    say(_table(compared(scenario, read, policy, seeds)))
    return OK


def _table(found: list) -> str:  # type: ignore[type-arg]  # of Likeness, which is not loaded for the help
    from equipoise.sim.scenario.units import format_seconds

    rows = [["", "trace", "drawn", "ratio", "spread of seeds"]]
    for one in found:
        ratio = f"{one.drawn / one.trace:.2f}" if one.trace else "-"
        spread = f"{one.spread / one.trace:.2f}" if one.trace and not math.isnan(one.spread) else "-"
        times = map(format_seconds, (one.trace, one.drawn))
        rows.append([f"{one.quantity} p{one.percentile}", *times, ratio, spread])
    return "\n".join(aligned(rows, (False, True, True, True, True)))
