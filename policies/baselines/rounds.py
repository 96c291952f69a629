"""What the baselines that plan whole rounds share: speeds of jobs, and GPUs of one model handed to many jobs.

They hand out whole GPUs: a job that asks for a part of one gets all of it, unless it shares one already.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import holdings, request_columns, some_room, start_in_order
from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import ANY, WHOLE
from equipoise.policies.observation import WAITING, Bools, Floats, Ints, Observation

Grant = tuple[int, int, int]
"""(job row, GPU model, GPUs)."""


@dataclass(frozen=True)
class RoundBased(AllocationStage):
    """Decides about all GPUs every `round_s`, and once before when jobs wait and no round has begun."""

    round_s: float = 360.0

    needs: ClassVar[frozenset[str]] = frozenset({"nodes", "gpus", "jobs", "workers", "speeds"})
    blocking: ClassVar[str] = "passes over what does not fit"
    preemption: ClassVar[str] = "at the end of each round, without regard to the cost of a restart"
    places: ClassVar[str] = "GPUs of one model, the tightest node that holds the gang or else the emptiest"

    def __post_init__(self) -> None:
        if not self.round_s > 0:
            raise ValueError("round_s must be above 0")

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Decide at the end of a round."""
        o = observation
        if plan.allocation is not None:
            return unchanged(plan, self.name, PLANNED), memory
        if not len(o.waiting) and not len(o.running):
            return unchanged(plan, self.name, NONE_WAITS), memory
        next_s = float(memory.get("next_s", -np.inf))
        if o.time_s < next_s <= o.time_s + self.round_s:
            return plan.because(self.name, "the round is not over").with_(revisit_s=next_s), memory
        plan, memory = self.decide(o, plan, memory)
        next_s = o.time_s + self.round_s
        return plan.with_(revisit_s=min(plan.revisit_s, next_s)), {**memory, "next_s": next_s}

    @abstractmethod
    def decide(self, o: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """What the next round is like."""


def open_jobs(o: Observation) -> Ints:
    """Rows of all jobs that wait or run, ascending, but those that share a GPU now."""
    rows = np.sort(np.concatenate((o.waiting, o.running))).astype(np.int64)
    whole = (o.jobs.state[rows] == WAITING) | (whole_held(o, rows) == o.jobs.gpus_held[rows])
    found: Ints = rows[whole]
    return found


def whole_held(o: Observation, rows: Ints) -> Ints:
    """GPUs that each job row holds alone."""
    held = o.gpus.job[o.gpus.job >= 0]
    count: Ints = np.bincount(held, minlength=len(o.jobs))[rows]
    return count


def model_counts(o: Observation, rows: Ints) -> Ints:
    """GPUs of each model that are up and that nobody holds, or one of these job rows alone."""
    free = ((o.gpus.job == -1) & (o.gpus.share_free >= WHOLE)) | np.isin(o.gpus.job, rows)
    usable = free & o.nodes.up[o.gpus.node]
    return np.bincount(o.gpus.model[usable], minlength=len(o.gpu_models)).astype(np.int64)


def job_speeds(o: Observation, rows: Ints) -> Floats:
    """Speed of each job on each GPU model with the GPUs it asks for: (rows, models), in its own unit; NaN unknown.

    A training job counts in samples/s, a rigid one in seconds of its duration per second (1 where not listed).
    """
    speeds, jobs = o.speeds, o.jobs
    place = np.full(len(jobs), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found = np.full((len(rows), len(o.gpu_models)), np.nan)
    wanted = np.zeros(len(jobs), dtype=np.int64)
    wanted[rows] = gpus_wanted(o, rows)
    here = (place[speeds.job] >= 0) & (speeds.gpus == wanted[speeds.job]) & (speeds.samples_per_s > 0)
    found[place[speeds.job[here]], speeds.gpu_model[here]] = speeds.samples_per_s[here]
    unknown = np.isnan(found).all(axis=1)
    found[unknown] = 1.0
    lowest: Floats = np.nan_to_num(found, nan=0.0)
    return lowest * fits_memory(o, rows)


def fits_memory(o: Observation, rows: Ints) -> Bools:
    """Whether each job row's need fits into the memory of each GPU model: (rows, models); unknown fits."""
    least = np.full(len(o.gpu_models), np.inf)
    np.fmin.at(least, o.gpus.model, np.nan_to_num(o.gpus.memory_bytes, nan=np.inf))
    need = np.nan_to_num(o.jobs.memory_bytes[rows])
    fits: Bools = ~(least[None, :] < need[:, None])
    return fits


def work_left(o: Observation, rows: Ints, speed: Floats) -> Floats:
    """What is left to do in the unit of `job_speeds`: at its best speed for the time left (unknown: 1 h)."""
    jobs = o.jobs
    time_s = np.nan_to_num(jobs.service_s[rows], nan=3600.0)
    samples = np.where(jobs.remaining_samples[rows] > 0, jobs.remaining_samples[rows], np.nan)
    left = np.where(jobs.rigid[rows] | np.isnan(samples), time_s, samples)
    scale = np.where(~jobs.rigid[rows] & np.isnan(samples), speed.max(axis=1, initial=0.0), 1.0)
    result: Floats = np.maximum(left * scale, 1e-9)
    return result


def hand_out(o: Observation, plan: Plan, name: str, grants: Iterable[Grant], **values: object) -> Plan:
    """The plan in which exactly these jobs run, with so many GPUs of one model each, first come first placed.

    Who holds that already keeps its GPUs; who is not among them, or finds no place, stops. Jobs that share GPUs
    stay as they are, and waiting ones that ask for a part of a GPU take what is left.
    """
    draft, wanted = Draft(o), {row: (model, gpus) for row, model, gpus in grants}
    mine = open_jobs(o)
    running = mine[o.jobs.state[mine] != WAITING]
    offset, own = holdings(running, o.gpus.job)
    kept, keep = _kept(o, running, offset, own, wanted), set[int]()
    keep.update(running[kept].tolist())
    held = set(running.tolist())
    draft.stop_whole(running[~kept], own[np.repeat(~kept, np.diff(offset))])
    resized = 0
    for row, (model, gpus) in wanted.items():
        if row in keep:
            continue
        gpu = pick(draft, model, gpus, float(o.jobs.memory_bytes[row]))
        if not len(gpu):
            continue
        if row in held:
            draft.stopped.remove(row)
            resized += 1
        draft.start((np.array([row]), np.array([0, len(gpu)]), gpu, np.ones(len(gpu))))
    part = o.waiting[o.jobs.gpu_share_requested[o.waiting] < WHOLE]
    part = part[~draft.touched(part)]
    if len(part) and some_room(draft.columns.free, draft.columns.room):
        draft.start(start_in_order(part, False, ANY, request_columns(o), draft.columns)[0])
    allocation = draft.allocation()
    started = len(draft.started())
    if allocation is None:
        return plan.because(name, "all stays as it is", **values)
    text = f"starts {started}, stops {len(draft.stopped)}, moves or resizes {resized}"
    return plan.with_(allocation=allocation).because(name, text, **values)


def _kept(
    o: Observation, running: Ints, offset: Ints, gpu: Ints, wanted: Mapping[int, tuple[int, int]]
) -> Bools:
    """Whether each running job holds what it shall have: so many GPUs of one model, all of them up."""
    nothing = (-1, -1)
    model, gpus = (
        np.array([wanted.get(row, nothing) for row in running.tolist()], dtype=np.int64).reshape(-1, 2).T
    )
    job = np.repeat(np.arange(len(running)), np.diff(offset))
    bad = (o.gpus.model[gpu] != model[job]) | ~o.nodes.up[o.gpus.node[gpu]]
    found: Bools = (np.diff(offset) == gpus) & (np.bincount(job, weights=bad, minlength=len(running)) == 0)
    return found


def pick(draft: Draft, model: int, gpus: int, need_bytes: float) -> Ints:
    """So many free GPUs of a model, on the tightest node that holds them or else on the emptiest; none: too few."""
    o, out = draft.observation, np.empty(max(gpus, 0), dtype=np.int64)
    free, count = np.empty(len(o.gpus), dtype=np.bool_), np.empty(len(o.nodes), dtype=np.int64)
    taken = _pick(
        draft.holder, draft.columns.room, o.gpus.model, o.gpus.node, o.nodes.up, o.gpus.memory_bytes, model,
        need_bytes, free, count, out,
    )  # fmt: skip
    return np.sort(out) if taken else out[:0]


@jit_in_place
def _pick(
    holder: Ints, room: Floats, gpu_model: Ints, gpu_node: Ints, up: Bools, memory_bytes: Floats, model: int,
    need_bytes: float, free: Bools, count: Ints, out: Ints,
) -> bool:  # fmt: skip
    """Write rows of free GPUs; free (GPUs,) and count (nodes,) are scratch."""
    total, n = 0, 0
    for k in range(count.size):
        count[k] = 0
    for g in range(free.size):
        able = holder[g] == -1 and room[g] >= WHOLE and gpu_model[g] == model and up[gpu_node[g]]
        free[g] = able and not memory_bytes[g] < need_bytes
        if free[g]:
            count[gpu_node[g]] += 1
            total += 1
    if out.size < 1 or total < out.size:
        return False
    while n < out.size:
        best = -1
        for k in range(count.size):
            if n == 0 and count[k] >= out.size and (best < 0 or count[k] < count[best]):
                best = k
        if best < 0:
            for k in range(count.size):
                if best < 0 or count[k] > count[best]:
                    best = k
        for g in range(free.size):
            if free[g] and gpu_node[g] == best and n < out.size:
                out[n] = g
                n += 1
        count[best] = 0
    return True
