"""Usage of each limit and what is left, for every policy that starts jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from equipoise.policies.declared_queues import (
    NO_PLACE,
    NODE_PREFERRED,
    NODE_REQUIRED,
    RACK_PREFERRED,
    RACK_REQUIRED,
    Queues,
)
from equipoise.policies.observation import RUNNING, Bools, Floats, Ints, Observation

ROUNDING = 1e-9
Amounts = Mapping[int, float]
"""GPUs by GPU model."""


def held_by_claim(o: Observation) -> Floats:
    """GPUs that the running jobs of each claim hold, by GPU model, (claims, models).

    A shared GPU counts by the requested share; its model is unknown, so it counts as the first model.
    """
    claims, models, jobs = len(o.queues.claims), len(o.gpu_models), o.jobs
    owner = o.gpus.job
    whole = np.flatnonzero(owner >= 0)
    claim = jobs.claim[owner[whole]]
    key = (claim * models + o.gpus.model[whole])[claim >= 0]
    held = np.bincount(key, minlength=claims * models).astype(np.float64).reshape(claims, models)
    shared = o.running[jobs.gpu_share_requested[o.running] < 1.0]
    shared = shared[jobs.claim[shared] >= 0]
    np.add.at(held[:, 0], jobs.claim[shared], (jobs.gpus_held * jobs.gpu_share_requested)[shared])
    return held


class Quota:
    """Usage of every limit, updated while one decision allocates GPUs. gpus, jobs: (limits,)."""

    def __init__(self, queues: Queues, models: int, gpus: list[float], jobs: list[float]) -> None:
        self.queues, self.models, self.gpus, self.jobs = queues, models, gpus, jobs
        self._parent: list[int] = queues.parent.tolist()
        self._kept: list[float] = queues.gpus_kept.tolist()
        self._most: list[float] = queues.gpus_max.tolist()
        self._most_jobs: list[float] = queues.jobs_max.tolist()
        self._resource: list[int] = queues.resource.tolist() or [-1] * len(queues.parent)

    @classmethod
    def unused(cls, queues: Queues, models: int) -> Quota:
        """Quota of a cluster without running jobs."""
        none = [0.0] * len(queues.parent)
        return cls(queues, models, none, none.copy())

    @classmethod
    def now(cls, o: Observation) -> Quota:
        """Quota as observed."""
        q, running = o.queues, o.running[o.jobs.claim[o.running] >= 0]
        jobs = np.bincount(o.jobs.claim[running], minlength=len(q.claims)).astype(np.float64)
        held = held_by_claim(o)
        gpus_of, jobs_of = np.zeros(len(q.parent)), np.zeros(len(q.parent))
        claim, place = np.nonzero(q.leaf >= 0)
        leaf = q.leaf[claim, place]
        for model in range(len(o.gpu_models)):
            np.add.at(gpus_of, leaf, held[claim, model] * ((q.models[leaf] >> model) & 1))
        if len(q.tres):
            of = q.resource[leaf]
            gpus_of[q.resource >= 0] = 0.0
            np.add.at(gpus_of, leaf[of >= 0], (jobs[claim] * q.tres[claim, of])[of >= 0])
        np.add.at(jobs_of, leaf, jobs[claim])
        for limit in np.flatnonzero(q.parent >= 0)[::-1].tolist():  # children stand behind their parents
            gpus_of[q.parent[limit]] += max(0.0, gpus_of[limit] - q.gpus_kept[limit])
            jobs_of[q.parent[limit]] += jobs_of[limit]
        return cls(q, len(o.gpu_models), gpus_of.tolist(), jobs_of.tolist())

    def leaves(self, claim: int) -> list[int]:
        """The limits that apply to a claim directly."""
        return [limit for limit in self.queues.leaf[claim].tolist() if limit >= 0]

    def chain(self, limit: int) -> Iterable[int]:
        """A limit and those above it."""
        while limit >= 0:
            yield limit
            limit = self._parent[limit]

    def left(self, limit: int) -> float:
        """GPUs that a limit and all above it still allow (`available` in Kueue's resource_node.go)."""
        used, parent = self.gpus[limit], self._parent[limit]
        if parent < 0:
            return self._most[limit] - used
        kept = self._kept[limit]
        above = self._most[limit] - kept - max(0.0, used - kept)
        return max(0.0, kept - used) + min(above, self.left(parent))

    def left_jobs(self, limit: int) -> float:
        """Jobs that a limit and all above it still allow to run."""
        return min(self._most_jobs[k] - self.jobs[k] for k in self.chain(limit))

    def room(self, claim: int, more_jobs: int = 1) -> list[float]:
        """GPUs that a claim may take, by GPU model; 0 if it may not have `more_jobs` more jobs."""
        room = [math.inf] * self.models
        for limit in self.leaves(claim):
            left = self.left(limit) if self.left_jobs(limit) >= more_jobs else 0.0
            if self._resource[limit] >= 0:
                left = math.inf if self.allows(limit, claim, 0.0, more_jobs) else 0.0
            for model in range(self.models):
                if int(self.queues.models[limit]) >> model & 1:
                    room[model] = min(room[model], left)
        return room

    def allows(self, limit: int, claim: int, gpus: float, jobs: int = 1) -> bool:
        """Whether a limit allows a claim this many more jobs and counted GPUs."""
        wanted = gpus if self._resource[limit] < 0 else self._counted(limit, claim, {}, jobs)
        return (wanted <= 0 or wanted <= self.left(limit) + ROUNDING) and self.left_jobs(limit) >= jobs

    def _counted(self, limit: int, claim: int, amounts: Amounts, jobs: int) -> float:
        """The part of additional GPUs and jobs of a claim that a limit counts."""
        if self._resource[limit] >= 0:
            return jobs * float(self.queues.tres[claim, self._resource[limit]])
        bits = int(self.queues.models[limit])
        return math.fsum(gpus for model, gpus in amounts.items() if bits >> model & 1)

    def broken(self, claim: int, amounts: Amounts, jobs: int = 1) -> int:
        """The first limit (the lowest in its tree) that these additional GPUs would break, -1 for none."""
        if claim < 0:
            return -1
        for limit in self.leaves(claim):
            wanted = self._counted(limit, claim, amounts, jobs)
            if not self.allows(limit, claim, wanted, jobs):
                return self.tightest(limit, wanted, jobs)
        return -1

    def first(self, claim: int, gpus: float) -> int:
        """The first limit that blocks a job of a claim with this many GPUs of any model; -1: none."""
        for leaf in self.leaves(claim):
            if not self.allows(leaf, claim, gpus):
                wanted = self._counted(leaf, claim, {}, 1) if self._resource[leaf] >= 0 else gpus
                return self.tightest(leaf, wanted)
        return -1

    def tightest(self, limit: int, wanted: float, jobs: int = 1) -> int:
        """The limit of a chain that does not allow `wanted` more."""
        for k in self.chain(limit):
            if self.gpus[k] + wanted > self._most[k] + ROUNDING or self.jobs[k] + jobs > self._most_jobs[k]:
                return k
            wanted = max(0.0, self.gpus[k] + wanted - self._kept[k]) - max(0.0, self.gpus[k] - self._kept[k])
        return limit

    def book(self, claim: int, amounts: Amounts, jobs: int = 1) -> None:
        """Add GPUs and jobs of a claim (negative: remove)."""
        for leaf in self.leaves(claim) if claim >= 0 else ():
            wanted = self._counted(leaf, claim, amounts, jobs)
            for k in self.chain(leaf):
                before = max(0.0, self.gpus[k] - self._kept[k])
                self.gpus[k] += wanted
                self.jobs[k] += jobs
                wanted = max(0.0, self.gpus[k] - self._kept[k]) - before


def amounts_of(o: Observation, gpus: Ints, share: Floats | float = 1.0) -> dict[int, float]:
    """GPUs (rows) by GPU model, each by its share."""
    found: dict[int, float] = {}
    shares = np.broadcast_to(np.asarray(share, dtype=np.float64), (len(gpus),)).tolist()
    for model, part in zip(o.gpus.model[gpus].tolist(), shares, strict=True):
        found[model] = found.get(model, 0.0) + part
    return found


def held_amounts(o: Observation, row: int) -> dict[int, float]:
    """GPUs of a running job by GPU model, as `held_by_claim` counts them."""
    share = float(o.jobs.gpu_share_requested[row])
    if share < 1.0:
        return {0: float(o.jobs.gpus_held[row]) * share}
    return amounts_of(o, np.flatnonzero(o.gpus.job == row))


def node_model(o: Observation) -> Ints:
    """The GPU model of each node, -1 for a node without GPUs."""
    has = o.nodes.gpus > 0
    model = np.full(len(o.nodes), -1)
    model[has] = o.gpus.model[o.nodes.first_gpu[has]]
    return model


def allowed_nodes(o: Observation, row: int) -> Bools:
    """Nodes that a job may use: those of its partition that have GPUs of a type it asks for."""
    q, claim, types = o.queues, int(o.jobs.claim[row]), int(o.jobs.gpu_types[row])
    allowed: Bools = np.ones(len(o.nodes), dtype=np.bool_)
    if claim >= 0 and q.nodes.shape[1]:
        allowed &= q.nodes[claim]
    if types != -1:
        allowed &= (types >> np.maximum(node_model(o), 0)) & 1 == 1
    return allowed


def node_sets(o: Observation, row: int, allowed: Bools) -> Iterator[Bools]:
    """The sets of nodes to try for a job, best first."""
    together = int(o.jobs.together[row])
    if together != NO_PLACE:
        own = np.arange(len(o.nodes)) if together in (NODE_PREFERRED, NODE_REQUIRED) else o.nodes.rack
        for place in np.unique(own[allowed]).tolist():
            yield allowed & (own == place)
    if together in (NO_PLACE, RACK_PREFERRED, NODE_PREFERRED):
        yield allowed


def restricted(o: Observation, rows: Ints) -> Bools:
    """Whether each job may not use every node, or must have racks or nodes to itself or its parts."""
    jobs, q = o.jobs, o.queues
    found: Bools = (jobs.segment[rows] > 0) | (jobs.gpu_types[rows] != -1) | (jobs.together[rows] == RACK_REQUIRED)
    found |= jobs.together[rows] == NODE_REQUIRED
    if q.nodes.shape[1]:
        some: Bools = np.asarray(~q.nodes.all(axis=1))
        claim = jobs.claim[rows]
        found |= (claim >= 0) & some[claim]
    return found


def stands_well(o: Observation, row: int, gpus: Ints) -> bool:
    """Whether a job may have exactly these GPUs (rows): on allowed nodes, and together as requested."""
    nodes = o.gpus.node[gpus]
    together = int(o.jobs.together[row])
    if together == RACK_REQUIRED and len(set(o.nodes.rack[nodes].tolist())) > 1:
        return False
    if together == NODE_REQUIRED and len(set(nodes.tolist())) > 1:
        return False
    if segment := int(o.jobs.segment[row]):
        parts = np.bincount(o.nodes.rack[nodes]) % segment
        if int((parts > 0).sum()) > 1 or parts.max() != len(gpus) % segment:
            return False
    return bool(allowed_nodes(o, row)[nodes].all())


def describe(q: Queues, limit: int) -> str:
    """A limit's name."""
    return q.names["limit"][limit]


def bound(q: Queues, limit: int) -> str:
    """The bound of a limit, in words."""
    most = float(q.gpus_max[limit])
    if not math.isfinite(most):
        return f"{q.jobs_max[limit]:g} jobs"
    resource = int(q.resource[limit]) if len(q.resource) else -1
    if resource < 0:
        return f"{most:g} GPUs"
    return f"{most / 2**30:g} GiB of memory" if resource == 1 else f"{most:g} {('CPUs', '', 'nodes')[resource]}"


def breaches(
    o: Observation,
    job: Ints,
    offset: Ints,
    gpu: Ints,
    share: Floats,
    *,
    first: bool = False,
    quota: Quota | None = None,
) -> dict[int, str]:
    """Reasons, by row, for which jobs of an allocation (in compressed rows) may not have their GPUs.

    Releases count before new allocations. A job that would break a limit gets nothing, so later ones may fit. first:
    only the first such job. quota: as observed; updated to the usage after the allocation.
    """
    quota, found = quota or Quota.now(o), dict[int, str]()
    rows, running = job.tolist(), o.jobs.state[job] == RUNNING
    for row in job[running].tolist():
        quota.book(int(o.jobs.claim[row]), {m: -n for m, n in held_amounts(o, row).items()}, -1)
    for k, row in enumerate(rows):
        begin, end = int(offset[k]), int(offset[k + 1])
        if begin == end:
            continue
        claim, gpus = int(o.jobs.claim[row]), gpu[begin:end]
        amounts = amounts_of(o, gpus, share[begin:end])
        before = held_amounts(o, row) if running[k] else {}
        grows = any(n > before.get(m, 0.0) + 1e-9 for m, n in amounts.items())
        broken = quota.broken(claim, amounts) if grows else -1
        if broken >= 0:
            found[row] = f"breaks the limit {describe(o.queues, broken)}"
        elif (grows or not running[k]) and not stands_well(o, row, gpus):
            found[row] = "gets GPUs that it is not allowed to use"
        if first and found:
            break
        taken = before if row in found else amounts
        if taken:
            quota.book(claim, taken)
    return found


def may_start(o: Observation, quota: Quota, rows: Ints, need: Ints) -> Bools:
    """Whether each waiting job (rows), with its fewest GPUs, breaks no limit alone."""
    share = np.minimum(o.jobs.gpu_share_requested[rows], 1.0)
    claim, types = o.jobs.claim[rows], o.jobs.gpu_types[rows]
    allowed = np.ones(len(rows), dtype=np.bool_)
    models = np.arange(len(o.gpu_models))
    for one in np.unique(claim[claim >= 0]).tolist():
        mine = np.flatnonzero(claim == one)
        room = np.array(quota.room(one))
        fits = need[mine, None] * share[mine, None] <= room[None, :] + 1e-9
        fits &= (types[mine, None] >> models[None, :]) & 1 == 1
        allowed[mine] = fits.any(axis=1)
    return allowed
