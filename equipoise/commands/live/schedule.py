"""schedule: an allocation policy orders the jobs of a running Slurm."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import click

from equipoise.commands.live.policies import policy_of
from equipoise.commands.types import FloatRange
from equipoise.exit_codes import FAILURE, OK
from equipoise.formats.text.errors import FormatError
from equipoise.live.queue.lease import Watchdog
from equipoise.live.queue.loop import Guard, Scheduler
from equipoise.live.queue.manager import ManagerError
from equipoise.live.queue.options import Mode, QueueOptions, read_estimates
from equipoise.live.queue.record import BusyError, Record, lock_scope
from equipoise.live.queue.slurm import Slurm
from equipoise.live.queue.world import whom
from equipoise.options import CommandState, WrongInputError, common, note, pass_state, say
from equipoise.policies.contract import Policy
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.queue import orders, read_queue, sentence

_above_zero = FloatRange(min=0.0, min_open=True)


@click.command()
@click.argument("policy")
@click.option("--partition", metavar="NAME", default="", help="Schedule the jobs of this partition.")
@click.option("--account", metavar="NAME", default="", help="Schedule the jobs of this account.")
@click.option(
    "--mode",
    type=click.Choice(["observe", "advise", "act"]),
    default="advise",
    show_default=True,
    help="observe: record the queue; advise: also record what the policy would do; act: do it.",
)
@click.option("--journal", metavar="DIR", default="queue-journal", show_default=True, help="Folder for the record.")
@click.option("--estimates", metavar="CSV", help="Durations by job name (name,duration_s), in place of time limits.")
@click.option("--requeue", is_flag=True, help="Running jobs may be stopped and queued again.")
@click.option(
    "--restart",
    type=FloatRange(min=0.0),
    metavar="S",
    help="With --requeue: seconds lost by a job that resumes from a checkpoint. Default: all its work so far.",
)
@click.option("--across-qos", is_flag=True, help="Also let jobs go before those of a higher QOS.")
@click.option(
    "--every",
    type=_above_zero,
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds between two readings of the queue.",
)
@click.option(
    "--budget",
    type=_above_zero,
    default=2.0,
    show_default=True,
    metavar="S",
    help="Time limit of one decision, in seconds.",
)
@click.option(
    "--changes", type=_above_zero, default=20.0, show_default=True, help="Maximum changes to the queue per second."
)
@click.option(
    "--timeout",
    type=_above_zero,
    default=10.0,
    show_default=True,
    metavar="S",
    help="Timeout of each Slurm command, in seconds.",
)
@click.option(
    "--judge-every",
    type=_above_zero,
    default=600.0,
    show_default=True,
    metavar="S",
    help="With act: seconds between two comparisons of the waits with those of Slurm's own order, simulated.",
)
@common
@pass_state
def schedule(
    state: CommandState,
    policy: str,
    partition: str,
    account: str,
    mode: str,
    journal: str,
    estimates: str | None,
    requeue: bool,
    restart: float | None,
    across_qos: bool,
    every: float,
    budget: float,
    changes: float,
    timeout: float,
    judge_every: float,
) -> int:
    """Let POLICY (an exported file, or stages such as sjf or s4) decide which waiting jobs of a Slurm start next.

    Runs until Ctrl-C or SIGTERM, then restores the queue. Prints what it does, or would do. `equipoise twin
    DIR` compares a record with its simulation.
    """
    if not partition and not account:
        raise click.UsageError("needs --partition NAME, --account NAME, or both")
    if missing := [name for name in ("squeue", "sinfo", "scontrol") if shutil.which(name) is None]:
        raise WrongInputError(f"{missing[0]} not found; run `schedule` on a host with Slurm's commands")
    options = QueueOptions(
        mode=cast("Mode", mode),
        requeue=requeue,
        restart_s=restart,
        across_qos=across_qos,
        every_s=every,
        budget_s=budget,
        changes_per_s=changes,
        estimates=_estimates(estimates),
    )
    chosen = policy_of(policy)
    _warn(state, chosen, options)
    return _run(state, chosen, options, Path(journal), partition, account, timeout, judge_every)


def _estimates(path: str | None) -> dict[str, float]:
    try:
        return {} if path is None else read_estimates(Path(path))
    except FormatError as error:
        raise WrongInputError(str(error)) from error
    except OSError as error:
        raise WrongInputError(f"{path}: {error.strerror}") from error


def _warn(state: CommandState, policy: Policy, options: QueueOptions) -> None:
    """Print options and stages that have no effect here."""
    for stage in policy.stages:
        if stage.kind != "allocation":
            note(state.quiet, f"{stage.name}: does not schedule jobs, has no effect here")
        elif not options.requeue and not getattr(stage, "preemption", "never").startswith("never"):
            note(state.quiet, f"{stage.name}: without --requeue, orders waiting jobs but stops no running job")
    if not options.estimates:
        note(state.quiet, "durations are the jobs' time limits; --estimates CSV allows better ones")


def _run(
    state: CommandState,
    policy: Policy,
    options: QueueOptions,
    folder: Path,
    partition: str,
    account: str,
    timeout_s: float,
    judge_every_s: float,
) -> int:
    try:
        manager, act = Slurm(partition, account, timeout_s), options.mode == "act"
        if why := manager.unusable(act=act):
            raise WrongInputError(why)
        scope = lock_scope(manager.cluster(), partition) if act else []
        record = Record(folder, None if state.quiet else _echo)
        record.site(manager.describe())
        for line in whom(manager.snapshot(), options) if act else ():
            note(state.quiet, line)
    except (BusyError, ManagerError, ValueError) as error:
        raise WrongInputError(str(error)) from error
    judge = [sys.executable, "-m", "equipoise.study.twin.queue", str(folder)]
    guard = Guard(judge, every_s=judge_every_s) if act and not options.requeue else None
    scheduler = Scheduler(manager, policy, options, record, guard)
    if problem := scheduler.warm_up():
        raise WrongInputError(f"{policy.name}: {problem}")
    record.event(
        "begun",
        policy=policy.name,
        mode=options.mode,
        partition=partition,
        account=account,
        requeue=options.requeue,
        across_qos=options.across_qos,
        every_s=options.every_s,
    )
    of = " and ".join(f"{kind} {name}" for kind, name in (("partition", partition), ("account", account)) if name)
    note(state.quiet, f"{policy.name} {_DOES[options.mode]} for jobs of {of}, until Ctrl-C; the record is {folder}")
    watchdog = Watchdog(folder, partition, account, scope) if act else None
    given_back = scheduler.run(_stopped())
    if watchdog is not None and given_back:
        watchdog.dismiss()
    record.close()
    note(state.quiet, f"{folder}: {scheduler.decisions} decisions")
    if options.mode == "observe":
        _say_change(state, folder, policy)
    if scheduler.problem:
        raise WrongInputError(scheduler.problem)
    return OK if given_back else FAILURE


def _say_change(state: CommandState, folder: Path, policy: Policy) -> None:
    """Print what the policy would have changed, where the record and the site allow to simulate it."""

    try:
        say(sentence(orders(read_queue(folder, policy), policy)))
    except (InputError, RunFailed) as error:
        note(state.quiet, f"what {policy.name} would have changed is not known: {str(error).splitlines()[0]}")


def _stopped() -> Callable[[], bool]:
    """A function that returns whether a signal asked to stop."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: asked.append(number))
    return lambda: bool(asked)


_DOES = {
    "observe": "is not asked, and nothing is changed: the queue is recorded",
    "advise": "is asked, and nothing is changed: what it would do is printed",
    "act": "puts waiting jobs in its order, restored at the end,",
}
_SHOWN = ("verb", "id", "value", "why")


def _echo(line: Mapping[str, Any]) -> None:
    """One event as one line."""
    at = time.strftime("%H:%M:%S", time.localtime(line["time_s"]))
    if line["event"] in ("job", "start", "end"):
        return
    parts = [f"{line[key]}" if key != "id" else f"job {line[key]}" for key in _SHOWN if line.get(key) not in (None, "")]
    say(" ".join([at, line["event"], *parts]))
