"""bench: rank policies on the public benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from equipoise.base.tables import aligned, as_csv
from equipoise.commands.live.policies import named
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK, SOME_FAILED
from equipoise.options import KEPT, CommandState, common, note, pass_state, progress, say


@click.command()
@click.argument("policies", metavar="[POLICY]...", nargs=-1)
@click.option("--draw", metavar="NAME", help="Seeds of this name instead of the public ones; fifo is run as well.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for the runs; a second start continues.")
@click.option("--jobs", type=IntRange(1), default=2, show_default=True, help="Processes here.")
@click.option("--dask", metavar="ADDRESS", help="Use this Dask scheduler.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "markdown"]), default="table", show_default=True)
@common
@pass_state
def bench(
    state: CommandState,
    policies: tuple[str, ...],
    draw: str | None,
    out: str | None,
    jobs: int,
    dask: str | None,
    form: str,
) -> int:
    """Rank POLICY on ten fixed cases and five seeds, among the policies that come with the software.

    Without POLICY: the published table. docs/benchmark.md describes the cases and the score; csv has the mean
    completion time of every run made now.
    """
    from equipoise.study import benchmark
    from equipoise.study.findings import screen
    from equipoise.study.runs.make import How

    policies = tuple(map(named, policies))
    given = benchmark.cases(draw or "")
    chosen = list(dict.fromkeys([*([benchmark.REFERENCE] if draw else []), *policies]))
    rows: Sequence[dict[str, Any]] = ()
    times = {} if draw or form == "csv" else benchmark.published()
    if chosen:
        try:
            with progress(state.quiet, "bench") as tell:
                how = How(jobs, dask, True, tell, lambda row: f"{row['policy']} in {row['case']}, seed {row['seed']}")
                rows = benchmark.measure(given, chosen, None if out is None else Path(out), how)
        except KeyboardInterrupt:
            note(state.quiet or out is None, KEPT)
            raise
    times |= benchmark.times_of(rows)
    failed = [row for row in rows if row["status"] == "failed"]
    if form == "csv":
        names = ("policy", "case", "seed", benchmark.METRIC)
        cells = [[policy, case, seed, s] for (policy, case), own in times.items() for seed, s in own.items()]
        say(as_csv(names, cells).rstrip("\n"))
    else:
        ranked = benchmark.table(times, list(given))
        text = list(benchmark.as_rows(ranked, benchmark.bounds(given, times)))
        if form == "markdown":
            text.insert(1, ["---"] * len(text[0]))
            say("\n".join(f"| {' | '.join(row)} |" for row in text))
        else:
            lines = aligned(text, [True, False, True, False, *[True] * len(given)])
            say(screen(benchmark.answer(ranked, {row["policy"] for row in rows}), ["", *lines], wide=True))
    note(False, *(f"equipoise: {row['policy']} in {row['case']}, seed {row['seed']}: {row['error']}" for row in failed))
    return SOME_FAILED if failed else OK
