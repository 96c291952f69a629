"""`multifactor` with a policy in front of it, which lets jobs of one partition and QOS exchange their priorities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Memory, Policy, refine
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.queues.ahead import order_of, with_order
from equipoise.policies.queues.multifactor import Multifactor
from equipoise.policies.queues.within import within_queues


@dataclass(frozen=True)
class Steered(Multifactor):
    """Slurm as `equipoise schedule --mode act` steers it.

    The jobs that the policy would start next get the highest priorities of their class, in its order; Slurm starts
    and backfills them. A class is a partition and a QOS, or with across_qos a partition.
    """

    name: ClassVar[str] = "steered"

    policy: Policy = None  # type: ignore[assignment]
    across_qos: bool = False

    def initial(self) -> Memory:
        """Memory of the policy in front."""
        return {"front": with_order(within_queues(self.policy)).initial()}

    def steered(self, o: Observation, rows: Ints, priority: Floats, memory: Memory) -> tuple[Floats, Memory]:
        """Exchange priorities within each class; a thousandth of a point tells equal ones apart."""
        decision = refine(with_order(within_queues(self.policy)), o, memory["front"])
        place = {row: k for k, row in enumerate(order_of(decision.plan))}
        asked = np.array([place.get(row, len(place)) for row in rows.tolist()], dtype=np.int64)
        kinds = ("partition",) if self.across_qos else ("partition", "qos")
        kind = np.array([o.queues.codes(o.jobs.claim[rows], name) for name in kinds]).T
        given = priority.copy()
        for one in np.unique(kind, axis=0):
            mine = np.flatnonzero((kind == one).all(axis=1))
            ranked = mine[np.lexsort((rows[mine], -priority[mine], asked[mine]))]
            given[ranked] = np.sort(priority[mine])[::-1] - 0.001 * np.arange(len(mine)) / len(mine)
        return given, {**memory, "front": decision.memory}
