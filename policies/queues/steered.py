"""`multifactor` with a policy in front of it, which lets jobs of one partition and QOS exchange their priorities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Memory, Policy, refine
from equipoise.policies.observation import HELD, Bools, Floats, Ints, Observation
from equipoise.policies.queues.ahead import order_of, with_order
from equipoise.policies.queues.multifactor import Multifactor
from equipoise.policies.queues.within import within_queues
from equipoise.policies.quotas.limits import Quota, may_start


@dataclass(frozen=True)
class Steered(Multifactor):
    """Slurm as `equipoise schedule --mode act` steers it.

    The jobs that the policy would start next get the highest priorities of their class, in its order; Slurm starts
    and backfills them. A class is a partition and a QOS, or with across_qos a partition. Jobs at a limit, and those
    outside of `scope` (partition and account, "" for all), keep their priorities.
    """

    name: ClassVar[str] = "steered"

    policy: Policy = None  # type: ignore[assignment]
    across_qos: bool = False
    scope: tuple[str, str] = ("", "")

    def initial(self) -> Memory:
        """Memory of the policy in front."""
        return {"front": with_order(within_queues(self.policy)).initial()}

    def steered(self, o: Observation, rows: Ints, priority: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Exchange priorities within each class; a thousandth of a point tells equal ones apart."""
        free = self._free(o, rows)
        state = o.jobs.state.copy()
        state[rows[~free]] = HELD
        seen = replace(o, jobs=o.jobs.replaced(state=state), waiting=rows[free])
        decision = refine(with_order(within_queues(self.policy)), seen, memory["front"])
        place = {row: k for k, row in enumerate(order_of(decision.plan))}
        asked = np.array([place.get(row, len(place)) for row in rows.tolist()], dtype=np.int64)
        kinds = ("partition",) if self.across_qos else ("partition", "qos")
        kind = np.array([o.queues.codes(o.jobs.claim[rows], name) for name in kinds]).T
        given = priority.copy()
        for one in np.unique(kind, axis=0):
            mine = np.flatnonzero((kind == one).all(axis=1) & free)
            ranked = mine[np.lexsort((rows[mine], -priority[mine], asked[mine]))]
            given[ranked] = np.sort(priority[mine])[::-1] - 0.001 * np.arange(len(mine)) / max(len(mine), 1)
        return given, {**memory, "front": decision.memory}

    def _free(self, o: Observation, rows: Ints) -> Bools:
        """Which waiting jobs may be moved."""
        need = np.where(o.jobs.rigid[rows], o.jobs.gpus_requested[rows], 1)
        free = may_start(o, Quota.now(o), rows, need)
        for kind, wanted in zip(("partition", "account"), self.scope, strict=True):
            if wanted:
                codes = o.queues.codes(o.jobs.claim[rows], kind).tolist()
                free &= np.array([o.queues.name(kind, code) == wanted for code in codes], dtype=np.bool_)
        return free
