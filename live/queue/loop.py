"""Reads a queue, asks the policy when something has changed, and tolerates failures."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence

import numpy as np

from equipoise.base.sources import environment
from equipoise.live.decide.decider import Decider
from equipoise.live.queue.lease import to_give_back
from equipoise.live.queue.manager import ManagerError, NotAllowedError, QueueManager
from equipoise.live.queue.options import QueueOptions
from equipoise.live.queue.record import Record
from equipoise.live.queue.world import QueueWorld
from equipoise.policies.contract import Policy
from equipoise.policies.observation import RUNNING, WAITING, Gpus, Jobs, Nodes, Observation
from equipoise.policies.queues.ahead import with_order


class Guard:
    """Runs `command`, which prints JSON with a key `why`: "" while the policy may go on.

    It runs when `least` more jobs have ended, but not more often than every `every_s`. A command that fails says
    nothing.
    """

    def __init__(self, command: Sequence[str], least: int = 20, every_s: float = 600.0) -> None:
        self.command, self.least, self.every_s = list(command), least, every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ended, self._asked_s = 0, time.monotonic()

    def ask(self, ended: int) -> str:
        """Why to step back, as far as is known, or "". ended: jobs so far."""
        if self._process is None:
            if ended >= self._ended + self.least and time.monotonic() >= self._asked_s + self.every_s:
                self._ended, self._asked_s = ended, time.monotonic()
                none, pipe = subprocess.DEVNULL, subprocess.PIPE
                env = environment()
                self._process = subprocess.Popen(self.command, stdin=none, stdout=pipe, stderr=none, env=env)
            return ""
        if self._process.poll() is None:
            return ""
        said, self._process = self._process.communicate()[0], None
        try:
            return str(json.loads(said)["why"])
        except (ValueError, KeyError, TypeError):
            return ""

    def close(self) -> None:
        """End a command that still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


_COMPILE_S = 300.0  # for the first decision, whose kernels have to be compiled
_FAILURES = 3  # in a row: then the queue is given back until a decision succeeds
_LONGEST_WAIT_S = 30.0


class Scheduler:
    """A policy in front of a queue.

        Scheduler(Slurm("gpu"), make_policy("sjf"), QueueOptions(mode="act"), Record(folder)).run(stopped)

    stopped(): asked about ten times a second; true ends the run, after everything has been given back.
    """

    def __init__(
        self, manager: QueueManager, policy: Policy, options: QueueOptions, record: Record, guard: Guard | None = None
    ) -> None:
        """`guard`: ends a mode `act` that does worse than the manager's own order; the queue is observed then."""
        self.guard, self.stepped_back = guard, False
        self.manager, self.options, self.record = manager, options, record
        self.world = QueueWorld(manager, options, record)
        self.decider = Decider(with_order(policy), options.budget_s)
        self.decisions = 0
        self.problem = ""  # why it cannot go on
        self._lost = 0  # looks in a row that failed
        self._revisit_s, self._decided_s = math.inf, -math.inf

    def warm_up(self) -> str | None:
        """Compile what the policy needs on a made-up queue; returns what went wrong."""
        return self.decider.warm_up([_made_up()], _COMPILE_S) if self.options.mode != "observe" else None

    def run(self, stopped: Callable[[], bool]) -> bool:
        """Run until `stopped`; returns whether the queue was restored."""
        while not stopped() and not self.problem:
            begun_s = time.monotonic()
            self.step()
            wait_s = min(self.options.every_s * 2.0 ** min(self._lost, 6), max(_LONGEST_WAIT_S, self.options.every_s))
            while not stopped() and time.monotonic() < begun_s + wait_s:
                time.sleep(0.1)
        if self.guard is not None:
            self.guard.close()
        return self.give_back("stopped")

    def step(self) -> None:
        """Read the queue once, and decide if due. Requests that Slurm does not answer are repeated."""
        try:
            changed = self.world.look()
            if self._lost:
                self.record.event("found again", why=f"after {self._lost} failed looks")
                self._lost = 0
            if self.world.needs_new_tables():
                self.world.make_new_tables()
                self.decider.memory = dict(self.decider.policy.initial())
                changed = True
            self.world.forget_ended()
            if self.guard is not None and (why := self.guard.ask(self.world.rows.ended)):
                self.stepped_back |= self.give_back(why)
                self.record.event("stepped back", why=why)
                self.guard = None
            if self.options.mode == "observe" or self.stepped_back:
                return
            if changed or self.world.behind or self._due():
                self._decide()
        except NotAllowedError as error:
            self.problem = str(error)
            self.record.event("refused", why=self.problem)
        except ManagerError as error:
            self._lost += 1
            self.record.event("lost", why=str(error))

    def _due(self) -> bool:
        now_s = self.world.snapshot.time_s
        return now_s >= self._revisit_s or now_s >= self._decided_s + self.options.decide_s

    def _decide(self) -> None:
        self.decider.begin(self.world)
        answer = self.decider.answer(self.world)
        self._decided_s = self.world.snapshot.time_s
        if answer.problem is not None:
            self.record.event("failed", why=answer.problem)
            if self.decider.failures == _FAILURES:
                self.give_back(f"the policy failed {_FAILURES} times in a row")
                return
        if answer.decision is None:
            return
        self.decisions += 1
        self._revisit_s = answer.decision.plan.revisit_s
        try:
            self.record.decision(answer.decision, answer.refused)
        except TypeError as error:
            self.record.event("not recorded", why=str(error))

    def give_back(self, why: str) -> bool:
        """Restore the manager's own order of the queue; returns whether that succeeded."""
        if self.options.mode != "act":
            return True
        for _ in range(3):
            try:
                changes = to_give_back(self.manager, self.record.touched)
                said = self.manager.carry_out(changes)
                break
            except ManagerError as error:
                self.record.event("lost", why=str(error))
                time.sleep(1.0)
        else:
            return False
        self.record.event("given back", why=why, said=said)
        self.record.actions(changes, "did")
        self.world.forget_touched()
        return True


def _made_up() -> Observation:
    """A made-up queue with all kinds of decisions."""
    jobs = Jobs.of(
        id=np.arange(4),
        arrival_s=np.arange(4.0),
        queued_since_s=np.arange(4.0),
        rigid=np.ones(4, dtype=np.bool_),
        state=np.array([RUNNING, WAITING, WAITING, WAITING]),
        gpus_requested=np.array([1, 2, 1, 1]),
        gpus_held=np.array([1, 0, 0, 0]),
        duration_s=np.full(4, 60.0),
        service_s=np.full(4, 60.0),
        started_s=np.array([0.0, *[np.nan] * 3]),
        restart_s=np.array([np.inf, 0.0, 0.0, 0.0]),
    )
    gpus = Gpus.of(node=np.zeros(2), job=np.array([0, -1]), share_free=np.array([0.0, 1.0]))
    nodes = Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[1], cores=[8.0], memory_bytes=[2.0**34])
    return Observation.of(10.0, nodes=nodes, gpus=gpus, jobs=jobs)
