"""twin: compare a live run with its simulation, decision by decision."""

from __future__ import annotations

import json
from pathlib import Path

import click

from equipoise.base.files import write_whole
from equipoise.commands.live.policies import policy_of
from equipoise.commands.types import FloatRange, IntRange
from equipoise.exit_codes import OK, OUTSIDE
from equipoise.options import WrongInputError, common, say, wide_option
from equipoise.policies.contract import Policy
from equipoise.sim.loading.file import dump
from equipoise.sim.run import RunFailed
from equipoise.study.twin import queue, text
from equipoise.study.twin.queue import is_queue, read_queue
from equipoise.study.twin.record import read_run
from equipoise.study.twin.twin import twin as compare_run


@click.command()
@click.argument("run_dir", metavar="RUN_DIR", type=click.Path(file_okay=False))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--policy", metavar="POLICY", help="Exported file or stages, if the record does not name them.")
@click.option("--seed", type=IntRange(min=0), default=0, show_default=True, help="Seed of the simulated noise.")
@click.option("--scenario", metavar="FILE", help="Also write the scenario made from the record.")
@click.option(
    "--tolerance",
    type=FloatRange(min=0.0, min_open=True),
    metavar="RATIO",
    help="Exit with 5 when the median error of step times is larger, or a recorded decision does not replay; for a "
    "queue, when the simulated mean wait under the order in force is off by more.",
)
@wide_option
@common
def twin(
    run_dir: str, form: str, policy: str | None, seed: int, scenario: str | None, tolerance: float | None, wide: bool
) -> int:
    """Simulate the live run recorded in RUN_DIR under its own policy and compare, decision by decision.

    RUN_DIR is the folder of one run, or the `run_dir` given to `attach`, if it holds a single
    run. Shows predicted and measured step times, the first decision that differs and the observation
    column that caused it, and whether every recorded decision replays from the recorded observations.

    For the journal of `equipoise schedule`: the waiting time of each job on record, under the queue's own order, and
    under the policy.
    """
    chosen = None if policy is None else policy_of(policy)
    if is_queue(Path(run_dir)):
        return _queue(run_dir, form, chosen, scenario, tolerance, wide)
    found = compare_run(read_run(Path(run_dir), chosen), seed)
    if scenario is not None:
        try:
            write_whole(Path(scenario), dump(found.scenario))
        except OSError as error:
            raise WrongInputError(f"{scenario}: {error.strerror}") from error
    say(json.dumps(text.as_data(found)) if form == "json" else text.render(found, wide), nl=form == "json")
    if tolerance is None:
        return OK
    return OK if found.step_error_median <= tolerance and not found.replay_differences else OUTSIDE


def _queue(
    folder: str, form: str, policy: Policy | None, scenario: str | None, tolerance: float | None, wide: bool
) -> int:
    """The twin of a queue: waiting job by job."""
    if scenario is not None:
        raise click.UsageError("--scenario: allowed for the record of a training job only")
    run = read_queue(Path(folder), policy)
    try:
        found = queue.orders(run, run.policy)
    except RunFailed as error:
        raise WrongInputError(f"{folder}: {error}") from error
    say(json.dumps(queue.as_data(found)) if form == "json" else queue.render(found, wide), nl=form == "json")
    return OK if tolerance is None or found.error <= tolerance else OUTSIDE
