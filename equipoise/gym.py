"""A scenario as a Gymnasium environment: an episode is a run, an action starts a waiting job.

The simulator runs in a thread of its own and asks the environment where it would ask a policy: the seam is that of
all policies (`policies.contract.decide`). Many environments in processes: `gymnasium.vector.AsyncVectorEnv`. Needs
the extra `gym`. docs/learning.md trains a policy.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from equipoise.api import AnyScenario, prepare
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.baselines.linear import FEATURES, features
from equipoise.policies.contract import AllocationStage, Memory, Plan, Policy
from equipoise.policies.kernels.gangs import request_columns, start_in_order
from equipoise.policies.kernels.placement import PLACEMENTS
from equipoise.policies.observation import Observation
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run

Seen = dict[str, NDArray[Any]]
_HOUR_S = 3600.0


class _Closed(BaseException):
    """The episode is given up."""


@dataclass(frozen=True)
class _Asks(AllocationStage):
    """Asks an environment."""

    name: ClassVar[str] = "gym"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})

    env: ClassVar[SchedulingEnv]

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The allocation of the environment's actions."""
        allocation = self.env.allocate(observation)
        return plan if allocation is None else plan.with_(allocation=allocation), memory


class SchedulingEnv(gymnasium.Env):  # type: ignore[misc]  # it is skipped by mypy
    """Order of starts: action k starts the k-th of the jobs that have waited longest, the last action none of them.

    Observation: `jobs` (jobs, features of `policies.baselines.linear`), zero where fewer wait, and `mask`, 1 for the
    actions that are possible. `seen` has all that a policy sees, not copied: it is valid until the next step. Where no
    job fits the simulation goes on without a question. The rewards of an episode sum up to the completion times of all
    jobs (hours), negative. `reset(seed=...)` sets the seed of the run.
    """

    def __init__(self, scenario: AnyScenario, jobs: int = 32) -> None:
        self.scenario, self.trace, _ = prepare(scenario)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "jobs": gymnasium.spaces.Box(-10.0, 10.0, (jobs, len(FEATURES))),
                "mask": gymnasium.spaces.MultiBinary(jobs + 1),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(jobs + 1)
        self.seen: Observation | None = None
        self.result: Run | None = None
        self._now: Seen = {"jobs": np.zeros((jobs, len(FEATURES)), np.float32), "mask": np.zeros(jobs + 1, np.int8)}
        self._thread: threading.Thread | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Start a run; without a seed, the next of the environment's own."""
        super().reset(seed=seed)
        self.close()
        self._asked, self._answer = SimpleQueue[bool](), SimpleQueue[int]()
        self._cost_h, self._told_h, self._time_s, self._inside = 0.0, 0.0, 0.0, 0
        own = int(self.np_random.integers(2**31)) if seed is None else seed
        self.result = None
        self._thread = threading.Thread(target=self._simulate, args=(own,), daemon=True)
        self._thread.start()
        self._asked.get()
        return self._now, {}

    def step(self, action: int) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Act, and go on to the next question or the end."""
        self._answer.put(int(action))
        goes_on = self._asked.get()
        reward, self._told_h = self._told_h - self._cost_h, self._cost_h
        return self._now, reward, not goes_on, not goes_on and self.result is None, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are possible now."""
        return self._now["mask"].astype(np.bool_)

    def close(self) -> None:
        """Give the episode up."""
        if self._thread is not None and self._thread.is_alive():
            self._answer.put(-1)
            self._thread.join()

    def _simulate(self, seed: int) -> None:
        stage = type("Asks", (_Asks,), {"env": self})()
        try:
            self.result = run(self.scenario, policy=Policy("gym", (stage,)), seed=seed, trace=self.trace)
            done = self.result.jobs
            self._cost_h = float((done["completion_s"] - done["arrival_s"]).sum()) / _HOUR_S
        except (_Closed, RunFailed):
            pass
        self._now = {name: np.zeros_like(values) for name, values in self._now.items()}
        self._asked.put(False)

    def allocate(self, o: Observation) -> Any:
        """Called by the simulation: the allocation that the actions give, None without any."""
        self._cost_h += self._inside * (o.time_s - self._time_s) / _HOUR_S
        self._inside, self._time_s = len(o.waiting) + len(o.running) + len(o.held), o.time_s
        first = o.waiting[: self.action_space.n - 1]
        if not len(first):
            return None
        proposal, requests, known = Proposal(o), request_columns(o), np.clip(features(o, first), -10.0, 10.0)
        possible = np.ones(len(first), np.bool_)
        while True:
            possible &= requests[1][first] <= max(proposal.free, int((o.gpus.share_free > 0.0).sum() > 0))
            if not possible.any():
                break
            self._now = {name: np.zeros_like(values) for name, values in self._now.items()}
            self._now["jobs"][: len(first)], self._now["mask"][: len(first)] = known, possible
            self._now["mask"][-1] = len(o.running) > 0 or len(proposal.given) > 0  # else nothing would ever happen
            self.seen = o
            self._asked.put(True)
            action = self._answer.get()
            if action < 0:
                raise _Closed
            if action >= len(first):
                break
            grants, _ = start_in_order(first[[action]], True, PLACEMENTS["packed"], requests, proposal.columns)
            possible[action] = False
            proposal.start(grants)
        return proposal.allocation()
