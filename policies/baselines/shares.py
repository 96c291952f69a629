"""Placement of GPU shares by the room that is left: best fit, and least growth of fragmentation (FGD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
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
from equipoise.policies.kernels.gangs import request_columns, some_room, start_in_order
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import ANY, WHOLE
from equipoise.policies.observation import RUNNING, Bools, Floats, Ints, Observation

_TASKS = 64
"""Number of most frequent kinds of jobs for which fragmentation is computed."""
Kinds = tuple[Ints, Floats, Floats, Floats]
"""Kinds of jobs: GPUs, share of each, cores, how many of all jobs."""


@dataclass(frozen=True)
class BestFit(AllocationStage):
    """Best fit (as in Protean, Hadary et al., OSDI 2020): the node with the least room left after placement.

    With `cores=count`, if a trace gives the cores of each job (`cpus`), cores count too: a job starts only where
    they are free, and the room left is that of GPUs and cores, each over the most of a node. Within the node a share
    goes to the GPU with the least room. Gangs of shares, and jobs too large for any node, are placed by the rule
    `any`.
    """

    name: ClassVar[str] = "best-fit"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "greedy: passes over what does not fit"
    starvation: ClassVar[str] = "a gang may wait for as long as smaller jobs arrive"
    preemption: ClassVar[str] = "never"
    places: ClassVar[str] = "the node with the least free capacity left"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs"})
    starts_only: ClassVar[bool] = True

    cores: str = "ignore"  # whether the cores that jobs ask for limit them: ignore, count

    def __post_init__(self) -> None:
        if self.cores not in ("ignore", "count"):
            raise ValueError(f"cores: {self.cores!r} is not one of ignore, count")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Start waiting jobs in order of arrival, each where it leaves the least room."""
        o = observation
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(o.waiting):
            return unchanged(plan, self.name, NONE_WAITS), memory
        if not some_room(o.nodes.gpus_free, o.gpus.share_free):
            return unchanged(plan, self.name, NONE_FREE), memory
        proposal, requests, failed = Proposal(o), request_columns(o), set[tuple[float, ...]]()
        gpus, share = gpus_wanted(o, o.waiting), np.minimum(o.jobs.gpu_share_requested[o.waiting], 1.0)
        asked, cores, held = _cores(o, memory, count=self.cores == "count")
        per_core = _per_core(o) if np.isfinite(cores).any() else 0.0
        most = int(o.nodes.gpus.max()), float(np.nan_to_num(o.nodes.cores, nan=np.inf).max())
        kinds, (out, tried) = self._kinds(o, asked), np.empty((2, max(int(gpus.max()), 1)), dtype=np.int64)
        for row, count, part in zip(o.waiting.tolist(), gpus.tolist(), share.tolist(), strict=True):
            need, wants = float(np.nan_to_num(o.jobs.memory_bytes[row])), float(asked[row])
            demand = (count, part, need, float(o.jobs.one_gpu_model[row]), wants)
            if demand in failed or count < 1:
                continue
            if not some_room(proposal.columns.free, proposal.columns.room):
                break
            now, node = proposal.columns, -1
            if count == 1 or part >= WHOLE:
                room = (now.first_gpu, now.size, now.up, now.memory_bytes, now.room.copy(), cores, per_core)
                node = place(*room, count, part, need, wants, *kinds, out, tried)
            if node >= 0:
                cores[node] -= wants
                held.append((row, node, wants))
                proposal.start((np.array([row]), np.array([0, count]), out[:count].copy(), np.full(count, part)))
                continue
            waits = wants > 0.0 and (count == 1 or part >= WHOLE) and count <= most[0] and wants <= most[1]
            if waits or not len(
                proposal.start(start_in_order(np.array([row]), False, ANY, requests, proposal.columns)[0])
            ):
                failed.add(demand)
        memory = {"cores": tuple(held)} if held else {}
        allocation = proposal.allocation()
        if allocation is None:
            return unchanged(plan, self.name, NONE_STARTS), memory
        return with_allocation(plan, self.name, len(o.waiting), allocation), memory

    def _kinds(self, o: Observation, cores: Floats) -> Kinds:
        """Kinds of jobs to keep room for, by their requests; none: by room left only."""
        return np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), np.empty(0)


def _cores(o: Observation, memory: Memory, *, count: bool) -> tuple[Floats, Floats, list[tuple[int, int, float]]]:
    """Cores that each job asks for (0 where not given), those free on each node, and (job, node, cores) in use.

    Observations have no core usage per job, so the policy remembers where it placed the running jobs.
    """
    told = o.told.get("cpus") if count else None
    if not isinstance(told, np.ndarray):
        return np.zeros(len(o.jobs)), np.full(len(o.nodes), np.inf), []
    asked, free = np.maximum(np.nan_to_num(told), 0.0), np.nan_to_num(o.nodes.cores, nan=np.inf).copy()
    held = [entry for entry in memory.get("cores", ()) if o.jobs.state[entry[0]] == RUNNING]
    for _, node, cores in held:
        free[node] -= cores
    return asked, free, held


def _per_core(o: Observation) -> float:
    """Weight of a core in GPUs, such that the most cores of a node equal its most GPUs; 0: unknown."""
    most = float(np.nan_to_num(o.nodes.cores).max(initial=0.0))
    return float(o.nodes.gpus.max(initial=0)) / most if most > 0.0 else 0.0


@dataclass(frozen=True)
class Fgd(BestFit):
    """FGD (Weng et al., ATC 2023): where fragmentation grows least.

    Section 3: a node's fragmentation is the GPU capacity that a task drawn from the workload could not use there:
    all free capacity if the task finds too few GPUs or cores, or asks for no GPU; else that of GPUs with too little
    for it. The workload is that of all jobs seen so far, by GPUs, share and, with `cores=count`, cores; host memory
    does not limit jobs here. A job goes where it increases the expected fragmentation least (algorithm 1), the
    lowest-numbered GPU on ties.
    """

    name: ClassVar[str] = "fgd"
    places: ClassVar[str] = "where the expected fragmentation grows least"

    def _kinds(self, o: Observation, cores: Floats) -> Kinds:
        """Requests of the jobs seen so far, the most frequent first."""
        asked = (o.jobs.gpus_requested, np.minimum(o.jobs.gpu_share_requested, 1.0), cores)
        return frequent(np.column_stack(asked))


def frequent(asked: Floats) -> Kinds:
    """The most frequent kinds of jobs: asked (jobs, 3) are GPUs, share of each, cores."""
    kinds, count = np.unique(asked, axis=0, return_counts=True)
    first = np.argsort(-count, kind="stable")[:_TASKS]
    gpus, share, cores = kinds[first].T
    return gpus.astype(np.int64), share.copy(), cores.copy(), count[first] / count.sum()


@jit_in_place
def fragmentation(
    first: int, end: int, room: Floats, cores: float, gpus: Ints, share: Floats, asks: Floats, weight: Floats
) -> float:
    """Expected GPU of a node (rows first to end of room, and free cores) that a job of some kind cannot use.

    Kinds are (gpus, share, cores asked for), drawn by weight.
    """
    found = 0.0
    for m in range(gpus.size):
        left, small, able = 0.0, 0.0, 0
        for g in range(first, end):
            left += room[g]
            if room[g] >= min(share[m], WHOLE) - 1e-9:
                able += 1
            else:
                small += room[g]
        fits = gpus[m] > 0 and able >= min(gpus[m], end - first) and cores >= asks[m] - 1e-9
        found += weight[m] * (small if fits else left)
    return found


@jit_in_place
def place(
    first_gpu: Ints,
    size: Ints,
    up: Bools,
    memory_bytes: Floats,
    room: Floats,
    cores: Floats,
    per_core: float,
    count: int,
    part: float,
    need: float,
    wants: float,
    kind_gpus: Ints,
    kind_share: Floats,
    kind_cores: Floats,
    kind_weight: Floats,
    out: Ints,
    tried: Ints,
) -> int:
    """Write the GPUs (one node's) for `part` of a GPU, or `count` whole ones, to out; returns the node, -1: none.

    By least growth of fragmentation; without kinds by least room of the node, a core counting as `per_core` GPUs,
    then of the GPU. A job asks for `wants` of a node's free cores, and for `need` bytes of memory on each GPU; count
    0: cores only. room is scratch.
    """
    best, found = np.inf, -1
    for n in range(size.size):
        first, end, left = first_gpu[n], first_gpu[n] + size[n], 0.0
        if not up[n] or cores[n] < wants - 1e-9:
            continue
        for g in range(first, end):
            left += room[g]
        if per_core > 0.0:
            left += per_core * cores[n]
        kinds = (kind_gpus, kind_share, kind_cores, kind_weight)
        before = fragmentation(first, end, room, cores[n], *kinds)
        if count == 0:
            worth = fragmentation(first, end, room, cores[n] - wants, *kinds) - before
            if kind_gpus.size == 0:
                worth = left
            if worth < best - 1e-12:
                best, found = worth, n
            continue
        taken = 0
        for g in range(first, end):
            if memory_bytes[g] < need or room[g] < min(part, WHOLE) - 1e-9:
                continue
            kept = room[g]
            room[g] = max(kept - part, 0.0)
            tried[taken] = g
            taken += 1
            if taken == count:
                worth = fragmentation(first, end, room, cores[n] - wants, *kinds) - before
                if kind_gpus.size == 0:
                    worth = left + 1e-3 * kept
                if worth < best - 1e-12:
                    best, found = worth, n
                    for k in range(count):
                        out[k] = tried[k]
                if part >= WHOLE:
                    break
                taken = 0
                room[g] = kept
        for k in range(taken):
            room[tried[k]] = 1.0
    return found
