"""Asks a policy for a decision and survives whatever it does: training never waits longer than the budget.

The policy runs in a thread of its own. One that raises, returns nonsense or is late is ignored: its memory
stays what it was, the plan in force stays, and after each failure more decisions are skipped. A thread
cannot be stopped, so while a late policy is still busy it is not asked again. (Native code that never gives
the interpreter lock back cannot be contained inside a process.)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from equipoise.policies.contract import Decision, Memory, Policy, Refusal, World, decide, refine
from equipoise.policies.observation import Observation

_MOST_SKIPPED = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision, or why there is none; both None: the policy is backing off after failures."""

    decision: Decision | None = None
    problem: str | None = None
    refused: tuple[Refusal, ...] = ()  # of the decision's plan, at once


class _NoDecisionError(Exception):
    """The policy raised, or was late."""


class _Worker:
    """One daemon thread that refines one observation at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._asked: queue.SimpleQueue[tuple[Observation, Mapping[str, Memory]]] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.busy = False
        threading.Thread(target=self._run, name="equipoise-policy", daemon=True).start()

    def _run(self) -> None:
        while True:
            observation, memory = self._asked.get()
            try:
                answer = Answer(decision=refine(self._policy, observation, memory))
            except BaseException as error:  # a policy may even call sys.exit; training goes on
                answer = Answer(problem=str(error) or type(error).__name__)
            self._answered.put(answer)

    def ask(self, observation: Observation, memory: Mapping[str, Memory], budget_s: float) -> Answer:
        """The policy's answer within `budget_s`, or why there is none."""
        if self.busy and not self._finished_late():
            return Answer(problem="still busy with an earlier decision")
        self.busy = True
        self._asked.put((observation, memory))
        try:
            answer = self._answered.get(timeout=budget_s)
        except queue.Empty:
            return Answer(problem=f"no decision within {budget_s:g} s")
        self.busy = False
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

    def __init__(self, policy: Policy, budget_s: float, memory: Mapping[str, Memory] | None = None) -> None:
        self.policy, self.budget_s = policy, budget_s
        self.failures = 0  # in a row
        self._skip = 0
        self._worker = _Worker(policy)
        try:
            self.memory: dict[str, Memory] = dict(policy.initial() if memory is None else memory)
        except Exception as error:
            raise ValueError(f"policy {policy.name}: initial memory: {error}") from error

    def warm_up(self, observations: list[Observation], budget_s: float) -> str | None:
        """Let the policy compile its kernels on made-up observations in a row; nothing is remembered.

        Returns what went wrong, or None.
        """
        memory: Mapping[str, Memory] = self.memory
        for observation in observations:
            answer = self._worker.ask(observation, memory, budget_s)
            if answer.decision is None:
                return answer.problem
            memory = answer.decision.memory
        return None

    def decide(self, world: World) -> Answer:
        """Ask for a decision on what `world` shows now, and let it apply the plan."""
        if self._skip > 0:
            self._skip -= 1
            return Answer()
        try:
            decision, refused = decide(self.policy, world, self.memory, self._in_time)
        except _NoDecisionError as problem:
            self.failures += 1
            self._skip = min(2**self.failures - 1, _MOST_SKIPPED)
            return Answer(problem=str(problem))
        self.failures = 0
        self.memory = decision.memory
        return Answer(decision, refused=tuple(refused))

    def _in_time(self, policy: Policy, observation: Observation, memory: Mapping[str, Memory]) -> Decision:
        """`refine`, in the thread of the policy."""
        answer = self._worker.ask(observation, memory, self.budget_s)
        if answer.decision is None:
            raise _NoDecisionError(answer.problem)
        return answer.decision
