"""Asks a policy for a decision and tolerates its failures: training never waits longer than the budget.

The policy runs in a separate thread. If it raises, returns an invalid plan or is late, it is ignored: its memory
and the plan in force stay unchanged, and after each failure more decisions are skipped. A thread
cannot be stopped, so a late policy is not asked again while it is busy. (Native code that never releases
the interpreter lock cannot be contained inside a process.)
"""

from __future__ import annotations

import math
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.policies.contract import Decision, Memory, Policy, Refusal, World, decide, refine
from equipoise.policies.observation import Floats, Observation

_MOST_SKIPPED = 64


@dataclass(frozen=True, slots=True)
class DecisionAnswer:
    """A decision, or why there is none; both None: skipped after failures."""

    decision: Decision | None = None
    problem: str | None = None
    refused: tuple[Refusal, ...] = ()  # parts of the plan that were refused at once


class NoDecision(Exception):
    """The policy raised an exception or was late."""


class _Worker:
    """One daemon thread that refines one observation at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._asked: queue.SimpleQueue[tuple[Observation, Mapping[str, Memory]]] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[Decision | NoDecision] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._run, name="equipoise-policy", daemon=True).start()

    def _run(self) -> None:
        while True:
            observation, memory = self._asked.get()
            try:
                self._answered.put(refine(self._policy, observation, memory))
            except BaseException as error:  # a policy may even call sys.exit; training goes on
                self._answered.put(NoDecision(str(error) or type(error).__name__))

    def begin(self, observation: Observation, memory: Mapping[str, Memory]) -> bool:
        """Start a decision; False: the policy is still busy with an earlier one."""
        if self.busy and not self._finished_late():
            return False
        self.busy = True
        self._asked.put((observation, memory))
        return True

    def answer(self, budget_s: float, since_s: float) -> Decision:
        """The decision, if made within `budget_s` of `since_s`. Raises NoDecision."""
        try:
            answer = self._answered.get(timeout=max(0.0, since_s + budget_s - time.monotonic()))
        except queue.Empty:
            raise NoDecision(f"no decision within {budget_s:g} s") from None
        self.busy = False
        if isinstance(answer, NoDecision):
            raise answer
        return answer

    def _finished_late(self) -> bool:
        try:
            self._answered.get_nowait()
        except queue.Empty:
            return False
        self.busy = False
        return True


class Decider:
    """A policy, its memory, and its record of failures."""

    def __init__(self, policy: Policy, budget_s: float) -> None:
        self.policy, self.budget_s = policy, budget_s
        self.failures = 0  # in a row
        self._skip = 0
        self._begun: tuple[Observation, float, bool] | None = None  # observation, time, whether the policy was idle
        self._worker = _Worker(policy)
        try:
            self.memory: dict[str, Memory] = dict(policy.initial())
        except Exception as error:
            raise ValueError(f"policy {policy.name}: initial memory: {error}") from error

    def warm_up(self, observations: list[Observation], budget_s: float) -> str | None:
        """Let the policy compile its kernels on made-up observations; its memory is discarded.

        Returns what went wrong, or None.
        """
        memory: Mapping[str, Memory] = self.memory
        for observation in observations:
            self._worker.begin(observation, memory)
            try:
                memory = self._worker.answer(budget_s, time.monotonic()).memory
            except NoDecision as problem:
                return str(problem)
        return None

    def begin(self, world: World) -> None:
        """Start the policy on the present observation of `world`, without waiting."""
        self._begun = None
        if self._skip > 0:
            self._skip -= 1
        else:
            seen = world.observe()
            since_s = time.monotonic()
            self._begun = seen, since_s, self._worker.begin(seen, self.memory)

    def pass_over(self) -> None:
        """Ask for no decision this time."""
        self._begun = None

    def answer(self, world: World) -> DecisionAnswer:
        """Let `world` apply the plan of the decision that was begun, if it is ready in time."""
        if self._begun is None:
            return DecisionAnswer()
        (seen, since_s, free), self._begun = self._begun, None

        def thought(*_: object) -> Decision:
            """The policy's decision; raises NoDecision if it is late."""
            if not free:
                raise NoDecision("still busy with an earlier decision")
            decision = self._worker.answer(self.budget_s, since_s)
            self.failures, self.memory = 0, decision.memory
            return decision

        try:
            decision, refused = decide(self.policy, world, self.memory, thought, seen)
        except NoDecision as problem:
            self.failures += 1
            self._skip = min(2**self.failures - 1, _MOST_SKIPPED)
            return DecisionAnswer(problem=str(problem))
        return DecisionAnswer(decision, refused=tuple(refused))


_FIRST = 10  # decisions that are always asked for
_WANTED = 0.002  # share of training time
_LONGEST = 64  # windows between two
_JUMP, _SURE = 0.1, 4.0  # relative change of a rank's time per sample, at least, and in standard errors


class Cadence:
    """Decides window by window, from what earlier decisions took, whether to ask the policy."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=_FIRST)  # of training time, of the last decisions
        self._windows = self._asked = 0  # windows since the last decision; decisions
        self._seen: Floats = np.empty(0)  # time per sample of each rank at the last decision

    def took(self, took_s: float, trained_s: float) -> None:
        """A decision took `took_s`, after `trained_s` of rounds."""
        if trained_s > 0.0:
            self._shares.append(took_s / trained_s)

    def is_due(self, each_s: Floats, error: Floats, changed: bool) -> bool:
        """Whether to ask now.

        `each_s`: time per sample of each rank, `error`: relative standard error of it; `changed`: the last decision
        changed something.
        """
        self._windows += 1
        # The median ignores decisions next to a pause.
        usual = statistics.median(self._shares) if self._shares else 0.0
        wait = min(_LONGEST, math.ceil(usual / _WANTED))
        with np.errstate(invalid="ignore", divide="ignore"):
            known = len(self._seen) == len(each_s)
            jumped = not known or bool((np.abs(each_s / self._seen - 1.0) > np.fmax(_JUMP, _SURE * error)).any())
        if self._asked >= _FIRST and self._windows < wait and not changed and not jumped:
            return False
        self._windows, self._asked, self._seen = 0, self._asked + 1, each_s.copy()
        return True
