"""S2, data priority and task reassignment.

S211 transfer speed and delay, S212 priority of shards, S213 distribution of critical shards; S221 speed of workers,
S222 their share of the work, S223 the split in whole micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.kernels.batch_split import deal_by_share, deal_exactly, resource_shares, slowest_step
from equipoise.policies.kernels.dataflow import LinkArrays
from equipoise.policies.kernels.fetching import (
    distribute_late,
    fetch_queues,
    fetch_times,
    lateness_elsewhere,
    shard_priority,
)
from equipoise.policies.learning import with_rates
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.batches import best_batches
from equipoise.policies.stages.frozen import check_frozen
from equipoise.policies.stages.groups import (
    WorkersByJob,
    append_moves,
    carry,
    free_shards,
    group_workers,
    links_of,
    measurement_noise,
    or_else,
    owned_after,
    room_bytes,
)
from equipoise.policies.stages.optimal import least_cost_assignment
from equipoise.policies.stages.power import at_full_clock
from equipoise.policies.stages.unhealthy import samples_bound

_SHARE_ERROR = 1e-6  # shares of one job that sum to 1 but for this belong together
_OVERLOAD = 0.5  # of the shards come late: an order by path would leave other paths idle
_ALIKE = 0.05  # paths whose speeds differ by less
_LATE_MOST = 256  # most late shards handled in one decision
_PRIORITY_STEP = 0.01  # priorities are compared in these steps, so that rounding reorders nothing


@dataclass(frozen=True)
class Tasks(Stage):
    """Fetches critical shards first, moves late ones to workers that get them in time, splits work by speed.

    `formula`: P = priority_alpha * U + (1 - priority_alpha) * S orders the fetches; late shards go one by one
    to the least late worker; shares move towards R_i = rate_alpha * C_i / sum(C) + (1 - rate_alpha) * (1/T_i)
    / sum(1/T) with `damping` and are rounded by largest remainder. `optimal`: late shards by linear assignment,
    and the integers that minimise max_i(fixed_i + b_i * t_i). A new split is adopted only if it shortens the
    predicted step by more than `epsilon` and by more than the measurement noise, so equal workers keep theirs; so
    does a job with a worker of unknown speed. Where a user lets the batch change (`batch_max`) it is set to the one
    of highest goodput. The source's formula images are lost: the forms are ours, with its variables and directions.
    """

    name: ClassVar[str] = "s2"
    kind: ClassVar[Kind] = "tasks"
    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "jobs", "workers", "shards", "paths"})

    mode: str = "formula"
    priority_alpha: float = 0.7  # weight of urgency; the rest is the weight of small size
    rate_alpha: float = 0.8  # weight of the processing rate; the rest is the weight of the response time
    damping: float = 0.5  # fraction of the step to R per decision
    epsilon: float = 0.005  # relative gain below which a split is kept
    frozen: str = ""  # a sub-step to replace by a simple default: see `policies.stages.frozen`

    def __post_init__(self) -> None:
        if self.mode not in ("formula", "optimal"):
            raise ValueError(f"mode: {self.mode!r} is not one of formula, optimal")
        check_frozen("s2", self.frozen)
        if not (0 <= self.priority_alpha <= 1 and 0 <= self.rate_alpha <= 1):
            raise ValueError("priority_alpha and rate_alpha must be in [0, 1]")
        if not (0 < self.damping <= 1 and self.epsilon > 0):
            raise ValueError("damping must be in (0, 1], epsilon above 0")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Set fetch_order, moves of late shards and samples_per_step; memory holds the smoothed shares."""
        observation = at_full_clock(observation)
        if not len(observation.workers):
            return plan.because("s2", "no training job runs"), memory
        groups = group_workers(observation)
        rate, target = self._shares(observation, groups)
        plan, data = self._place_data(observation, groups, plan, target)
        samples, state, tasks = self._deal(observation, groups, plan, memory, rate, target)
        other = self._other_batches(observation, groups, plan)
        done = [
            what
            for what, is_done in (
                ("orders fetches", data["s212_reordered"]),
                ("moves late shards", data["s213_moved"]),
                ("splits batches anew", samples is not None),
                ("changes the batch", other),
            )
            if is_done
        ]
        if samples is not None:
            plan = plan.with_(samples_per_step=samples)
        if other:
            batch = observation.jobs.global_batch.copy()
            batch[list(other)] = [found for found, _ in other.values()]
            plan = plan.with_(global_batch=batch)
            tasks |= {"s222_batch": batch[list(other)], "s222_gain": [gain for _, gain in other.values()]}
        if self.frozen not in ("S221", "S222"):
            plan = with_rates(observation, plan)
        idle = "the present split is as good" if tasks["s221_known_jobs"] else "no job has known speeds of all workers"
        return plan.because("s2", ", ".join(done) or idle, **data, **tasks), state

    def _other_batches(
        self, observation: Observation, groups: WorkersByJob, plan: Plan
    ) -> dict[int, tuple[int, float]]:
        """S222: new batches of jobs that may change theirs, by row, with their gain; none where one is planned."""
        if plan.global_batch is not None or self.frozen in ("S221", "S222"):
            return {}
        return best_batches(observation, groups)

    def _place_data(
        self, observation: Observation, groups: WorkersByJob, plan: Plan, target: Floats
    ) -> tuple[Plan, dict[str, Any]]:
        """S211-S213: fetch order and moves of late shards, and the values; target: shares that S222 moves towards."""
        shards, workers = observation.shards, observation.workers
        known = ~np.isnan(shards.needed_in_s)  # one whose need is not known keeps its place
        rows = np.flatnonzero(free_shards(observation, plan) & ~shards.local & known)
        if not len(rows):
            nothing = {"s212_waiting": 0, "s212_reordered": False, "s213_late": 0, "s213_moved": 0}
            return plan, {"s211_fetch_s": 0.0, **nothing}
        links, owner = links_of(observation, measured=self.frozen != "S211"), shards.worker[rows]
        fetch_s = fetch_times(rows, shards.bytes, shards.node, workers.node[owner], links)
        need_s = _needs(observation, groups, target if self.frozen not in ("S221", "S222", "S223") else None)
        needed_s = need_s[rows]
        job = groups.spread(np.arange(len(groups.rows)))[owner]
        priority = shard_priority(
            fetch_s, needed_s, shards.bytes[rows], job, len(groups.rows), self.priority_alpha, 1 - self.priority_alpha
        )
        level = np.round(priority / _PRIORITY_STEP)
        ranked = np.lexsort((rows, needed_s, -level))
        late, late_s, before, part = _late_ones(observation, groups, rows[ranked], need_s, links)
        with np.errstate(divide="ignore", invalid="ignore"):  # what takes no time is as fast as can be
            speed = shards.bytes[rows] / fetch_s
        acts = self.frozen != "S212" and (part <= _OVERLOAD or _one_path_each(speed, shards.node[rows], owner))
        order = _order_by_rank(observation, rows[ranked]) if acts else None
        values: dict[str, Any] = {
            "s211_fetch_s": float(fetch_s.mean()),
            "s212_waiting": len(rows),
            "s212_critical": int(shards.id[rows[ranked[0]]]),
            "s212_priority": float(priority[ranked[0]]),
            "s212_reordered": order is not None,
            "s213_late": len(late),
            "s213_moved": 0,
        }
        if order is not None:
            plan = plan.with_(fetch_order=order)
        if len(late) and self.frozen != "S213":
            to = self._new_owners(observation, groups, plan, late, need_s[late], late_s, before, links)
            moved = to >= 0
            values["s213_moved"] = int(moved.sum())
            plan = append_moves(plan, observation, late[moved], to[moved])
        return plan, values

    def _new_owners(
        self,
        observation: Observation,
        groups: WorkersByJob,
        plan: Plan,
        rows: Ints,
        needed_s: Floats,
        late_s: Floats,
        before: Floats,
        links: LinkArrays,
    ) -> Ints:
        """S213: new owner of each late shard, most critical first, or -1."""
        shards, workers = observation.shards, observation.workers
        owner = shards.worker[rows]
        k = groups.spread(np.arange(len(groups.rows)))[owner]
        # An unknown capacity makes every comparison false, so nothing moves to or from such a worker.
        capacity = np.where(groups.spread(groups.sound), workers.capacity_samples_per_s, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            computing = workers.samples_per_step / workers.step_s
        room, owned = room_bytes(observation, plan), owned_after(observation, plan)
        size, samples = shards.bytes[rows], shards.samples[rows].astype(np.float64)
        source = shards.node[rows]
        if self.mode == "formula":
            return distribute_late(
                rows,
                size,
                samples,
                source,
                needed_s,
                late_s,
                owner,
                groups.first[k],
                groups.first[k + 1],
                before,
                workers.node,
                capacity,
                computing,
                owned,
                room,
                links,
            )
        chosen = np.full(len(rows), -1, dtype=np.int64)
        for job in np.unique(k):
            mine = np.flatnonzero(k == job)
            here = range(groups.first[job], groups.first[job + 1])
            saved = np.array(
                [
                    [
                        late_s[n]
                        - lateness_elsewhere(
                            size[n],
                            samples[n],
                            source[n],
                            needed_s[n],
                            late_s[n],
                            owner[n],
                            w,
                            before[n, w - groups.first[job]],
                            workers.node,
                            capacity,
                            computing,
                            owned,
                            room,
                            links,
                        )
                        for w in here
                    ]
                    for n in mine
                ]
            )
            worker = least_cost_assignment(np.where(saved > 0, -saved, np.inf))
            for n, w in zip(mine[worker >= 0], worker[worker >= 0] + groups.first[job], strict=True):
                if source[n] == workers.node[w] or size[n] <= room[workers.node[w]]:
                    room[workers.node[w]] -= size[n] if source[n] != workers.node[w] else 0.0
                    chosen[n] = w
        return chosen

    def _shares(self, observation: Observation, groups: WorkersByJob) -> tuple[Floats, Floats]:
        """S221, S222: (samples a second that each worker can sustain, its share R of the batch)."""
        workers = observation.workers
        response_s, fixed_s = workers.response_s_per_sample, or_else(workers.fixed_s)
        rate = np.where(workers.capacity_samples_per_s > 0, workers.capacity_samples_per_s, 1 / response_s)
        rate = np.fmin(rate, workers.input_samples_per_s)
        alpha, samples = self.rate_alpha, workers.samples_per_step
        return rate, resource_shares(groups.first, rate, response_s, fixed_s, samples, alpha, 1 - alpha)

    def _deal(
        self, observation: Observation, groups: WorkersByJob, plan: Plan, memory: Memory, rate: Floats, target: Floats
    ) -> tuple[Ints | None, dict[str, Any], dict[str, Any]]:
        """S221-S223: (new samples per step or None, smoothed shares by worker, values)."""
        workers, jobs = observation.workers, observation.jobs
        measured = workers.samples_per_step
        response_s = workers.response_s_per_sample
        fixed_s = or_else(workers.fixed_s)
        batch = jobs.global_batch[groups.rows]
        known = groups.sound & ~np.isnan(target[groups.first[:-1]]) & (batch > 0)
        known &= self.frozen not in ("S221", "S222", "S223")
        state = self._move_shares(observation, groups, target, memory)
        if not known.any():
            return None, state, {"s221_known_jobs": 0, "s222_largest_share": np.nan, "s223_jobs": 0}
        most = samples_bound(observation, groups, plan)
        limits = (measured, most, batch, jobs.micro_batch[groups.rows])
        if self.mode == "optimal":
            dealt, done = deal_exactly(groups.first, known, response_s, fixed_s, *limits)
        else:
            dealt, done = deal_by_share(groups.first, known, state["share"], response_s, fixed_s, *limits)
        # A writable copy, so that one compiled version serves both calls.
        now_s = slowest_step(groups.first, response_s, fixed_s, measured, measured.copy())
        new_s = slowest_step(groups.first, response_s, fixed_s, measured, dealt)
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = np.where(known & done, 1 - new_s / now_s, 0.0)
        broken = known & done & ~_deal_holds(groups, measured, most, batch)
        adopt = broken | (gain > np.maximum(self.epsilon, measurement_noise(observation, groups)))
        best = int(np.argmax(gain))
        values = {
            "s221_known_jobs": int(known.sum()),
            "s221_fastest_samples_per_s": float(np.nanmax(rate)),
            "s222_job": int(groups.rows[best]),
            "s222_largest_share": float(target[groups.first[best] : groups.first[best + 1]].max()),
            "s223_gain": float(gain[best]),
            "s223_step_s": float(new_s[best]),
            "s223_jobs": int(adopt.sum()),
        }
        if not adopt.any():
            return None, state, values
        return np.where(groups.spread(adopt), dealt, plan.samples(observation)), state, values

    def _move_shares(
        self, observation: Observation, groups: WorkersByJob, target: Floats, memory: Memory
    ) -> dict[str, Any]:
        """S222: shares move towards R by `damping`, and equal R once the change is below `epsilon`.

        A job whose workers differ from memory starts from its present split.
        """
        state = carry(memory, observation, {"share": np.nan})
        samples = observation.workers.samples_per_step
        total = np.add.reduceat(samples, groups.first[:-1])
        remembered = np.add.reduceat(state["share"], groups.first[:-1])
        new = ~(np.abs(remembered - 1) < _SHARE_ERROR)
        in_force = samples / np.maximum(groups.spread(total), 1)
        share = np.where(groups.spread(new), in_force, state["share"])
        near = np.abs(target - share) < self.epsilon * target
        all_near = groups.spread(np.logical_and.reduceat(near, groups.first[:-1]))
        moved = np.where(all_near, target, share + self.damping * (target - share))
        state["share"] = np.where(np.isnan(target), share, moved)
        return state


def _needs(observation: Observation, groups: WorkersByJob, target: Floats | None) -> Floats:
    """Seconds until each shard is needed when workers of a job step together, at the pace of the slowest.

    `needed_in_s` excludes waits for others. Input waits are not counted: they end once data arrives in time. target:
    shares of the batch that are to come, so that a worker that gets fewer samples for its slow path keeps the shards
    that it will then need later.
    """
    workers, owner = observation.workers, observation.shards.worker
    step_s, samples = workers.step_s, workers.samples_per_step
    total = groups.spread(np.add.reduceat(samples, groups.first[:-1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        fewer = np.ones(len(step_s)) if target is None else samples / (target * total)
        fewer = np.where(fewer > 1.0, fewer, 1.0)
        stretch = fewer * groups.spread(np.fmax.reduceat(step_s, groups.first[:-1])) / step_s
    stretch = np.append(np.where(stretch < np.inf, stretch, 1.0), 1.0)  # the last is for shards without an owner
    needed_s: Floats = observation.shards.needed_in_s * stretch[owner]
    return needed_s


def _late_ones(
    observation: Observation, groups: WorkersByJob, rows: Ints, need_s: Floats, links: LinkArrays
) -> tuple[Ints, Floats, Floats, float]:
    """Shards that are late if fetched in the order `rows`: (rows, seconds late, bytes before them).

    The bytes are by worker of its job. Only the first `_LATE_MOST`: later ones are handled by later decisions. The
    last value is the share of all shards that are late.
    """
    shards, node = observation.shards, observation.workers.node
    owner = shards.worker[rows]
    k = groups.spread(np.arange(len(groups.rows)))[owner]
    arrives_s, late, before = fetch_queues(
        shards.bytes[rows],
        shards.node[rows],
        owner,
        need_s[rows],
        groups.first[k],
        groups.first[k + 1],
        _LATE_MOST,
        node,
        observation.nodes.rack,
        links,
    )
    late_s = arrives_s - need_s[rows]
    return rows[late], late_s[late], before, float((late_s > 0.0).mean())


def _one_path_each(bytes_per_s: Floats, source: Ints, owner: Ints) -> bool:
    """Per worker, whether all its fetches come from one node, or equally fast; columns by shard.

    Fetches of other workers do not matter: each worker orders its own queue.
    """
    by_owner = np.lexsort((bytes_per_s, owner))
    first = np.flatnonzero(np.diff(owner[by_owner], prepend=-1))
    last = np.append(first[1:], len(owner)) - 1
    alike = bytes_per_s[by_owner[last]] <= (1.0 + _ALIKE) * bytes_per_s[by_owner[first]]
    one = np.minimum.reduceat(source[by_owner], first) == np.maximum.reduceat(source[by_owner], first)
    return bool((alike | one).all())


def _order_by_rank(observation: Observation, ranked: Ints) -> Ints | None:
    """Order of fetching when each worker's remote shards follow `ranked`; None when that changes nothing.

    In each queue (by need) only remote shards change places: started or local shards keep theirs, so no ready shard
    waits for one that is not.
    """
    shards = observation.shards
    soon_s = np.nan_to_num(shards.needed_in_s, nan=np.inf)
    by_rank = ranked[np.argsort(shards.worker[ranked], kind="stable")]
    by_need = ranked[np.lexsort((ranked, soon_s[ranked], shards.worker[ranked]))]
    if np.array_equal(by_rank, by_need):
        return None
    fetches = np.zeros(len(observation.workers) + 1, dtype=np.bool_)
    fetches[shards.worker[ranked]] = True
    queued = np.flatnonzero(fetches[shards.worker])  # unowned shards look at the last entry, which is False
    queued = queued[np.lexsort((queued, soon_s[queued], shards.worker[queued]))]
    trades = np.zeros(len(shards), dtype=np.bool_)
    trades[ranked] = True
    order = queued.copy()
    order[trades[queued]] = by_rank
    return order[np.argsort(soon_s[queued], kind="stable")]


def _deal_holds(groups: WorkersByJob, samples: Ints, samples_max: Ints, batch: Ints) -> Bools:
    """Whether each job's split sums to its batch within the memory bounds."""
    over = np.logical_or.reduceat(samples > samples_max, groups.first[:-1])
    holds: Bools = (np.add.reduceat(samples, groups.first[:-1]) == batch) & ~over
    return holds
