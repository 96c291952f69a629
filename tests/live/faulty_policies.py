"""Policies that do everything a policy must not do."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation


@dataclass(frozen=True)
class Faulty(Stage):
    """Does `what` at every decision."""

    name: ClassVar[str] = "faulty"
    kind: ClassVar[Kind] = "tasks"

    what: str = "raises"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Any, Any]:
        return getattr(self, f"_{self.what}")(observation, plan, memory)

    def _raises(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        raise ZeroDivisionError("on purpose")

    def _exits(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        sys.exit(3)

    def _sleeps(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        time.sleep(600.0)  # longer than the runner of ranks waits
        return plan, memory

    def _nonsense(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return "a plan", 7

    def _nothing(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return None

    def _nan(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return plan.with_(samples_per_step=np.full(len(observation.workers), np.nan)), memory

    def _overdeals(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return plan.with_(samples_per_step=observation.workers.samples_per_step * 2), memory

    def _interval(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return plan.with_(sync_interval=np.array([10**9])), memory

    def _writes(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        observation.workers.samples_per_step[:] = 0
        return plan, memory

    def _unjournaled(self, observation: Observation, plan: Plan, memory: Memory) -> Any:
        return plan, {"what": object()}


KINDS = ("raises", "exits", "sleeps", "nonsense", "nothing", "nan", "overdeals", "interval", "writes", "unjournaled")


def faulty(what: str) -> Policy:
    """A policy of one such stage."""
    return Policy(what, (Faulty(what),))
