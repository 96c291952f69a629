"""Shared code of the round-based baselines: speeds of jobs, and allocation of GPUs of one model.

They allocate whole GPUs: a job that asks for a part of one gets all of it, unless it shares one already.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import gpus_wanted
from equipoise.policies.baselines.queueing import NONE_WAITS, PLANNED, unchanged
from equipoise.policies.contract import AllocationStage, Memory, Plan
from equipoise.policies.kernels.gangs import GrantColumns, holdings, request_columns, some_room, start_in_order
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.placement import ANY, WHOLE
from equipoise.policies.observation import WAITING, Bools, Floats, Ints, Observation

Grant = tuple[int, int, int]
"""(job row, GPU model, GPUs)."""


@dataclass(frozen=True)
class RoundBased(AllocationStage):
    """Allocates all GPUs every `round_s`, and as soon as jobs wait before the first round."""

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
        """Returns the plan of the next round."""


def open_jobs(o: Observation) -> Ints:
    """Rows of all waiting or running jobs, ascending, except those that share a GPU now."""
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
    """GPUs of each model that are up and either free or held whole by one of these job rows."""
    mine = np.zeros(len(o.jobs) + 1, dtype=np.bool_)  # the last for GPUs that no job holds alone
    mine[rows] = True
    free = ((o.gpus.job == -1) & (o.gpus.share_free >= WHOLE)) | mine[np.maximum(o.gpus.job, -1)]
    usable = free & o.nodes.up[o.gpus.node]
    return np.bincount(o.gpus.model[usable], minlength=len(o.gpu_models)).astype(np.int64)


def job_speeds(o: Observation, rows: Ints) -> Floats:
    """Speed of each job on each GPU model with the GPUs it asks for: (rows, models), in its own unit; NaN unknown.

    A training job counts in samples/s, a rigid one in seconds of its duration per second (1 where not listed).
    """
    speeds, place = o.speeds, np.full(len(o.jobs), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found = np.zeros((len(rows), len(o.gpu_models)))
    _own_speeds(
        place,
        gpus_wanted(o, rows),
        speeds.job,
        speeds.gpu_model,
        speeds.gpus,
        speeds.samples_per_s,
        np.zeros(len(rows), dtype=np.bool_),
        found,
    )
    return found * fits_memory(o, rows)


@jit_in_place
def _own_speeds(
    place: Ints, wanted: Ints, job: Ints, model: Ints, gpus: Ints, samples_per_s: Floats, known: Bools, out: Floats
) -> None:
    """Write the speeds listed for as many GPUs as wanted (rows,), else 1; place: row of each job, or -1."""
    for k in range(job.size):
        at = place[job[k]]
        if at >= 0 and gpus[k] == wanted[at] and samples_per_s[k] > 0.0:
            out[at, model[k]] = samples_per_s[k]
            known[at] = True
    for at in range(known.size):
        if not known[at]:
            for m in range(out.shape[1]):
                out[at, m] = 1.0


def fits_memory(o: Observation, rows: Ints) -> Bools:
    """Whether each job row's need fits into the memory of each GPU model: (rows, models); unknown fits."""
    need = o.jobs.memory_bytes[rows]
    if not (need > 0.0).any():
        return np.ones((len(rows), len(o.gpu_models)), dtype=np.bool_)
    least = np.full(len(o.gpu_models), np.inf)
    np.fmin.at(least, o.gpus.model, np.nan_to_num(o.gpus.memory_bytes, nan=np.inf))
    fits: Bools = ~(least[None, :] < need[:, None])
    return fits


def work_left(o: Observation, rows: Ints, speed: Floats) -> Floats:
    """Work left in the unit of `job_speeds`: best speed times the time left (unknown: 1 h)."""
    jobs = o.jobs
    time_s = np.nan_to_num(jobs.service_s[rows], nan=3600.0)
    samples = np.where(jobs.remaining_samples[rows] > 0, jobs.remaining_samples[rows], np.nan)
    left = np.where(jobs.rigid[rows] | np.isnan(samples), time_s, samples)
    scale = np.where(~jobs.rigid[rows] & np.isnan(samples), speed.max(axis=1, initial=0.0), 1.0)
    result: Floats = np.maximum(left * scale, 1e-9)
    return result


def hand_out(o: Observation, plan: Plan, name: str, grants: Iterable[Grant] | Ints, **values: object) -> Plan:
    """The plan in which exactly these jobs run, each on its GPUs of one model, placed in order.

    A job that already holds its grant keeps its GPUs; a job without a grant or a placement stops. Jobs that share
    GPUs are unchanged, and waiting ones that ask for a part of a GPU use what is left.
    """
    proposal = Proposal(o)
    asked = np.array(grants if isinstance(grants, np.ndarray) else list(grants), dtype=np.int64).reshape(-1, 3)
    running = np.sort(o.running).astype(np.int64)
    running = running[whole_held(o, running) == o.jobs.gpus_held[running]]
    offset, own = holdings(running, o.gpus.job)
    kept = _kept(o, running, offset, own, asked)
    stays = np.zeros(len(o.jobs), dtype=np.bool_)
    stays[running[kept]] = True
    new = asked[~stays[asked[:, 0]]]
    freed = np.repeat(~kept, np.diff(offset))
    proposal.stop_whole(running[~kept], own[freed])
    placed = place_gangs(proposal, new)
    resized = set(placed[0].tolist()).intersection(running.tolist())
    if resized:
        proposal.stopped = [row for row in proposal.stopped if row not in resized]
    proposal.start(placed)
    part = o.waiting[o.jobs.gpu_share_requested[o.waiting] < WHOLE]
    part = part[~proposal.touched(part)]
    if len(part) and some_room(proposal.columns.free, proposal.columns.room):
        proposal.start(start_in_order(part, False, ANY, request_columns(o), proposal.columns)[0])
    allocation = proposal.allocation()
    if allocation is None:
        return plan.because(name, "no change", **values)
    text = f"starts {len(proposal.started())}, stops {len(proposal.stopped)}, moves or resizes {len(resized)}"
    return plan.with_(allocation=allocation).because(name, text, **values)


def _kept(o: Observation, running: Ints, offset: Ints, gpu: Ints, asked: Ints) -> Bools:
    """Whether each running job already holds its grant: this many GPUs of one model, all up."""
    wanted = np.full((len(o.jobs), 2), -1, dtype=np.int64)
    wanted[asked[:, 0]] = asked[:, 1:]
    model, gpus = wanted[running].T
    job = np.repeat(np.arange(len(running)), np.diff(offset))
    bad = (o.gpus.model[gpu] != model[job]) | ~o.nodes.up[o.gpus.node[gpu]]
    found: Bools = (np.diff(offset) == gpus) & (np.bincount(job, weights=bad, minlength=len(running)) == 0)
    return found


def place_gangs(proposal: Proposal, asked: Ints) -> GrantColumns:
    """Free GPUs for each (job row, model, GPUs) that can be placed, in order.

    Each goes to the tightest node that holds it, or else to the emptiest ones.
    """
    o, n = proposal.observation, len(asked)
    job, offset, gpu = (np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64), np.empty_like(o.gpus.node))
    able = (proposal.holder == -1) & (proposal.columns.room >= WHOLE) & o.nodes.up[o.gpus.node]
    placed = _place_gangs(
        asked,
        o.jobs.memory_bytes[asked[:, 0]],
        o.gpus.model,
        o.gpus.node,
        o.gpus.memory_bytes,
        able,
        np.empty(len(o.gpus), dtype=np.bool_),
        np.empty(len(o.nodes), dtype=np.int64),
        job,
        offset,
        gpu,
    )
    end = int(offset[placed])
    return job[:placed], offset[: placed + 1], gpu[:end], np.ones(end)


@jit_in_place
def _place_gangs(
    asked: Ints,
    need_bytes: Floats,
    gpu_model: Ints,
    gpu_node: Ints,
    memory_bytes: Floats,
    able: Bools,
    free: Bools,
    count: Ints,
    job: Ints,
    offset: Ints,
    gpu: Ints,
) -> int:
    """Write the placements and their number; able GPUs are consumed; free (GPUs,), count (nodes,) are scratch."""
    n = 0
    for k in range(asked.shape[0]):
        row, model, gpus = asked[k]
        first = offset[n]
        if not _pick(gpu_model, gpu_node, memory_bytes, able, model, need_bytes[k], free, count, gpu, first, gpus):
            continue
        for e in range(first, first + gpus):
            able[gpu[e]] = False
        job[n], offset[n + 1] = row, first + gpus
        n += 1
    return n


@jit_in_place
def _pick(
    gpu_model: Ints,
    gpu_node: Ints,
    memory_bytes: Floats,
    able: Bools,
    model: int,
    need_bytes: float,
    free: Bools,
    count: Ints,
    out: Ints,
    first: int,
    gpus: int,
) -> bool:
    """Write rows of that many able GPUs to out[first:], ascending; False if there are too few."""
    total, n = 0, 0
    for k in range(count.size):
        count[k] = 0
    for g in range(free.size):
        free[g] = able[g] and gpu_model[g] == model and not memory_bytes[g] < need_bytes
        if free[g]:
            count[gpu_node[g]] += 1
            total += 1
    if gpus < 1 or total < gpus:
        return False
    while n < gpus:
        best = -1
        for k in range(count.size):
            if n == 0 and count[k] >= gpus and (best < 0 or count[k] < count[best]):
                best = k
        if best < 0:
            for k in range(count.size):
                if best < 0 or count[k] > count[best]:
                    best = k
        for g in range(free.size):
            if free[g] and gpu_node[g] == best and n < gpus:
                at = first + n
                while at > first and out[at - 1] > g:
                    out[at] = out[at - 1]
                    at -= 1
                out[at] = g
                n += 1
        count[best] = 0
    return True
