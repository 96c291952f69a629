"""Parts of GPUs placed by what they leave behind: best fit, and least growth of fragmentation (FGD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import request_columns, some_room, start_in_order
from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import (
    NONE_FREE,
    NONE_STARTS,
    NONE_WAITS,
    PLANNED,
    unchanged,
    with_allocation,
)
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import ANY, WHOLE
from equipoise.policies.observation import Bools, Floats, Ints, Observation

_TASKS = 32
"""Kinds of jobs that fragmentation is counted for, the most frequent ones."""


@dataclass(frozen=True)
class BestFit(AllocationStage):
    """Best fit (as in Protean, Hadary et al., OSDI 2020): the node with the least GPU left once a job is on it.

    On that node a part of a GPU goes to the GPU with the least room. Gangs of parts, and those larger than any node
    has room for, go where the rule `any` puts them.
    """

    name: ClassVar[str] = "best-fit"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs arrive"
    preemption: ClassVar[str] = "never"
    places: ClassVar[str] = "the node with the least room left after it"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})
    starts_only: ClassVar[bool] = True

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in order of arrival, each where it leaves least behind."""
        o = observation
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(o.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        if not some_room(o.nodes.gpus_free, o.gpus.share_free):
            return unchanged(plan, self.name, NONE_FREE), memory
        draft, requests, failed = Draft(o), request_columns(o), set[tuple[float, ...]]()
        gpus, share = gpus_wanted(o, o.waiting), np.minimum(o.jobs.gpu_share_requested[o.waiting], 1.0)
        tasks, (out, tried) = self._tasks(o), np.empty((2, max(int(gpus.max()), 1)), dtype=np.int64)
        for row, count, part in zip(o.waiting.tolist(), gpus.tolist(), share.tolist(), strict=True):
            need = float(np.nan_to_num(o.jobs.memory_bytes[row]))
            demand = (count, part, need, float(o.jobs.one_gpu_model[row]))
            if demand in failed or count < 1:
                continue
            if not some_room(draft.columns.free, draft.columns.room):
                break
            now = draft.columns
            room = (now.first_gpu, now.size, now.up, now.memory_bytes, now.room.copy())
            one_place = count == 1 or part >= WHOLE
            if one_place and _place(*room, count, part, need, *tasks, out, tried):
                draft.start((np.array([row]), np.array([0, count]), out[:count].copy(), np.full(count, part)))
            elif (
                len(draft.start(start_in_order(np.array([row]), False, ANY, requests, draft.columns)[0])) == 0
            ):
                failed.add(demand)
        allocation = draft.allocation()
        if allocation is None:
            return unchanged(plan, self.name, NONE_STARTS), memory
        return with_allocation(plan, self.name, len(o.waiting), allocation), memory

    def _tasks(self, o: Observation) -> tuple[Ints, Floats, Floats]:
        """Kinds of jobs to keep room for: GPUs, share of each, how many of all jobs; none: by room left only."""
        return np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)


@dataclass(frozen=True)
class Fgd(BestFit):
    """FGD (Weng et al., ATC 2023): where fragmentation grows least.

    Section 3: a node's fragmentation is the GPU that a task drawn from the workload could not use there: all that
    is left where the task does not fit, else what is left of GPUs with too little for it. The workload is that of
    all jobs seen so far, by GPUs and share; cores and host memory do not limit jobs here. A job goes where the
    expected fragmentation grows least by it (algorithm 1), the lowest-numbered GPU on ties. The published gain over
    best fit was not reproduced here.
    """

    name: ClassVar[str] = "fgd"
    places: ClassVar[str] = "where the expected fragmentation grows least"

    def _tasks(self, o: Observation) -> tuple[Ints, Floats, Floats]:
        """What jobs have asked for so far, the most frequent first."""
        asked = np.column_stack((o.jobs.gpus_requested, np.minimum(o.jobs.gpu_share_requested, 1.0)))
        kinds, count = np.unique(asked, axis=0, return_counts=True)
        first = np.argsort(-count, kind="stable")[:_TASKS]
        return kinds[first, 0].astype(np.int64), kinds[first, 1].copy(), count[first] / count.sum()


@jit_in_place
def fragmentation(first: int, end: int, room: Floats, gpus: Ints, share: Floats, weight: Floats) -> float:
    """Expected GPU of a node (rows first to end of room) that a job drawn from kinds (gpus, share) cannot use."""
    found = 0.0
    for m in range(gpus.size):
        left, small, able = 0.0, 0.0, 0
        for g in range(first, end):
            left += room[g]
            if room[g] >= min(share[m], WHOLE) - 1e-9:
                able += 1
            else:
                small += room[g]
        found += weight[m] * (small if able >= min(gpus[m], end - first) else left)
    return found


@jit_in_place
def _place(
    first_gpu: Ints, size: Ints, up: Bools, memory_bytes: Floats, room: Floats, count: int, part: float,
    need: float, task_gpus: Ints, task_share: Floats, task_weight: Floats, out: Ints, tried: Ints,
) -> bool:  # fmt: skip
    """Write the GPUs (one node's) for `part` of a GPU, or `count` whole ones, to out; False: there is no place.

    Where fragmentation grows least, without tasks where the node has least left, then the GPU. room is scratch.
    """
    best = np.inf
    for n in range(size.size):
        first, end, left = first_gpu[n], first_gpu[n] + size[n], 0.0
        if not up[n]:
            continue
        for g in range(first, end):
            left += room[g]
        before = fragmentation(first, end, room, task_gpus, task_share, task_weight)
        taken = 0
        for g in range(first, end):
            if memory_bytes[g] < need or room[g] < min(part, WHOLE) - 1e-9:
                continue
            kept = room[g]
            room[g] = max(kept - part, 0.0)
            tried[taken] = g
            taken += 1
            if taken == count:
                worth = fragmentation(first, end, room, task_gpus, task_share, task_weight) - before
                if task_gpus.size == 0:
                    worth = left + 1e-3 * kept
                if worth < best - 1e-12:
                    best = worth
                    for k in range(count):
                        out[k] = tried[k]
                if part >= WHOLE:
                    break
                taken = 0
                room[g] = kept
        for k in range(taken):
            room[tried[k]] = 1.0
    return best < np.inf
