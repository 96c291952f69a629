"""twin: compare a live run with its simulation, decision by decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.commands.types import FloatRange, IntRange
from equipoise.exit_codes import OK, OUTSIDE
from equipoise.options import WrongInputError, common, say
from equipoise.policies.registry import make_policy

if TYPE_CHECKING:
    from equipoise.policies.contract import Policy


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
    "queue, when more than this share of jobs starts over 5 s from the time given by its recorded decisions.",
)
@common
def twin(run_dir: str, form: str, policy: str | None, seed: int, scenario: str | None, tolerance: float | None) -> int:
    """Simulate the live run recorded in RUN_DIR under its own policy and compare, decision by decision.

    RUN_DIR is the folder of one run, or the `run_dir` given to `attach`, if it holds a single
    run. Shows predicted and measured step times, the first decision that differs and the observation
    column that caused it, and whether every recorded decision replays from the recorded observations.

    For the journal of `equipoise schedule` it shows waiting and start times job by job.
    """
    from equipoise.study.twin.queue_record import is_queue
    from equipoise.study.twin.record import read_run
    from equipoise.study.twin.text import as_data, render
    from equipoise.study.twin.twin import twin as compare

    chosen = None if policy is None else policy_of(policy)
    if is_queue(Path(run_dir)):
        return _queue(run_dir, form, chosen, seed, scenario, tolerance)
    found = compare(read_run(Path(run_dir), chosen), seed)
    if scenario is not None:
        from equipoise.base.files import write_whole
        from equipoise.sim.loading.file import dump

        try:
            write_whole(Path(scenario), dump(found.scenario))
        except OSError as error:
            raise WrongInputError(f"{scenario}: {error.strerror}") from error
    say(json.dumps(as_data(found)) if form == "json" else render(found), nl=form == "json")
    if tolerance is None:
        return OK
    return OK if found.step_error_median <= tolerance and not found.replay_differences else OUTSIDE


def _queue(
    folder: str, form: str, policy: Policy | None, seed: int, scenario: str | None, tolerance: float | None
) -> int:
    """The twin of a queue: waiting and starts job by job."""
    from equipoise.study.twin.queue import as_data, render
    from equipoise.study.twin.queue import twin as compare
    from equipoise.study.twin.queue_record import read_queue

    if scenario is not None:
        raise click.UsageError("--scenario: allowed for the record of a training job only")
    found = compare(read_queue(Path(folder), policy), seed)
    say(json.dumps(as_data(found)) if form == "json" else render(found), nl=form == "json")
    return OK if tolerance is None or 1.0 - found.near_ratio(found.replayed_s) <= tolerance else OUTSIDE


def policy_of(text: str) -> Policy:
    """An exported file, or stages joined by +."""
    from equipoise.policies.record.export import ExportError, load_policy

    if not text.endswith((".yaml", ".yml")):
        return make_policy(text)
    try:
        return load_policy(Path(text)).policy
    except ExportError as error:
        raise WrongInputError(str(error)) from error
    except OSError as error:
        raise WrongInputError(f"{text}: {error.strerror}") from error
