"""The only check of plans, with its messages, for the simulator, live runs and tests."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import numpy as np

from equipoise.policies.kernels.placement import allocation_fault
from equipoise.policies.observation import DONE, Floats, Ints, Observation
from equipoise.policies.plan import CHANGES, UNCHANGED, Allocation, Moves, Plan
from equipoise.policies.quotas.limits import breaches
from equipoise.policies.rate_rules import SCRIPT


def check(plan: Plan, observation: Observation, before: Plan = UNCHANGED) -> str | None:
    """The first problem of `plan`, or None.

    Fields that are the same objects as in `before` have been checked already and are skipped.
    """
    for name, value, checked in zip(CHANGES, _parts(plan), _parts(before), strict=True):
        if value is None or value is checked:
            continue
        problem = _dense(value, observation, *_DENSE[name]) if name in _DENSE else None
        problem = problem or (_RULES[name](value, observation) if name in _RULES else None)
        if problem:
            return f"{name}: {problem}"
    if math.isnan(plan.revisit_s) or plan.revisit_s <= observation.time_s:
        return f"revisit_s: {plan.revisit_s} is not after now ({observation.time_s})"
    return None


_parts = attrgetter(*CHANGES)
_DENSE = {
    "samples_per_step": ("workers", "i"),
    "sync_interval": ("jobs", "i"),
    "gpu_share": ("workers", "f"),
    "gradient_weight": ("workers", "f"),
    "suspect": ("gpus", "b"),
    "global_batch": ("jobs", "i"),
    "learning_rate": ("jobs", "f"),
    "far_every": ("jobs", "i"),
    "accumulation": ("jobs", "i"),
    "push_interval": ("workers", "i"),
    "power_cap_w": ("nodes", "f"),
}
"""Fields with one value per row of a table, and the kind of their dtype."""


def _dense(values: Any, observation: Observation, table: str, kind: str) -> str | None:
    rows = len(getattr(observation, table))
    if not isinstance(values, np.ndarray) or values.shape != (rows,):
        return f"needs one value per row of {table} ({rows})"
    return None if values.dtype.kind == kind else f"has dtype {values.dtype}"


def _worker(observation: Observation, worker: int) -> str:
    """A row of workers by its job: `worker 3 of job row 0`."""
    return f"worker {worker} of job row {observation.workers.job[worker]}"


def _check_samples(samples: Ints, observation: Observation) -> str | None:
    workers, jobs = observation.workers, observation.jobs
    if (samples < 0).any():
        return f"{_worker(observation, int(np.argmin(samples)))} gets {int(samples.min())} samples"
    over = (samples > workers.samples_max) & (samples != workers.samples_per_step)
    if over.any():
        worker = int(np.argmax(over))
        named, most = _worker(observation, worker), workers.samples_max[worker]
        return f"{named} gets {samples[worker]} samples, memory holds {most}"
    dealt = np.bincount(workers.job, weights=samples, minlength=len(jobs))
    changed = workers.job[samples != workers.samples_per_step]
    touched = np.flatnonzero(np.bincount(changed, minlength=len(jobs)))
    wrong = touched[dealt[touched] != jobs.global_batch[touched]]
    if len(wrong):
        job = int(wrong[0])
        return f"job row {job} splits {int(dealt[job])} samples, its global batch is {jobs.global_batch[job]}"
    few = touched[dealt[touched] < jobs.batch_reference[touched]]
    if len(few):
        return f"job row {few[0]} splits {int(dealt[few[0]])} samples, fewer than its reference batch"
    return None


def _check_interval(interval: Ints, observation: Observation) -> str | None:
    if (interval < 1).any():
        return f"job row {int(np.argmin(interval))} has interval {int(interval.min())}, at least 1 is needed"
    return None


def _check_far(every: Ints, observation: Observation) -> str | None:
    jobs = observation.jobs
    wrong = (every < 1) | ((every > 1) & (every != jobs.far_every) & np.isnan(jobs.near_exchange_s))
    if wrong.any():
        job = int(np.argmax(wrong))
        return f"job row {job} has {every[job]} exchanges per exchange of all workers; 1, or more with near workers"
    return None


def _check_accumulation(passes: Ints, observation: Observation) -> str | None:
    jobs = observation.jobs
    most = jobs.global_batch // np.maximum(jobs.micro_batch, 1)
    wrong = (passes != jobs.accumulation) & ((passes < 1) | (passes > most) | (jobs.accumulation == 0))
    if wrong.any():
        job = int(np.argmax(wrong))
        allowed = f"1 to {most[job]}" if jobs.accumulation[job] else "0, its layout sets them"
        return f"job row {job} gets {passes[job]} passes a step, allowed: {allowed}"
    return None


def _check_push(interval: Ints, observation: Observation) -> str | None:
    workers = observation.workers
    wrong = (interval < 1) | ((interval != workers.push_interval) & np.isnan(workers.push_s))
    if wrong.any():
        worker = int(np.argmax(wrong))
        named = _worker(observation, worker)
        return f"{named} pushes every {interval[worker]} steps; allowed: at least 1, and only where workers do not wait"
    return None


def _check_cap(cap_w: Floats, observation: Observation) -> str | None:
    nodes = observation.nodes
    same = (cap_w == nodes.power_cap_w) | (np.isnan(cap_w) & np.isnan(nodes.power_cap_w))
    wrong = ~same & ~((cap_w > nodes.power_idle_w) & (cap_w <= nodes.power_max_w))
    if wrong.any():
        node = int(np.argmax(wrong))
        idle_w, most_w = nodes.power_idle_w[node], nodes.power_max_w[node]
        allowed = "none, a plan cannot cap its GPUs" if np.isnan(most_w) else f"above {idle_w:g} to {most_w:g}"
        return f"node {node} gets a cap of {cap_w[node]:g} W, allowed: {allowed}"
    return None


def _check_share(share: Floats, observation: Observation) -> str | None:
    workers = observation.workers
    bad = ~((share > 0) & (share <= 1))
    if bad.any():
        worker = int(np.argmax(bad))
        return f"{_worker(observation, worker)} has share {share[worker]}, allowed is 0 < share <= 1"
    used = np.bincount(workers.gpu, weights=share, minlength=len(observation.gpus))
    held = np.bincount(workers.gpu, weights=workers.gpu_share, minlength=len(observation.gpus))
    room = np.maximum(held, held + observation.gpus.share_free)
    over = used > room + 1e-9
    if over.any():
        gpu = int(np.argmax(over))
        return f"GPU {gpu} has shares of {used[gpu]:.4f} in all, {room[gpu]:.4f} is available"
    return None


def _check_weight(weight: Floats, observation: Observation) -> str | None:
    workers = observation.workers
    bad = ~((weight >= 0) & (weight <= 1))
    if bad.any():
        worker = int(np.argmax(bad))
        return f"{_worker(observation, worker)} has weight {weight[worker]}, allowed is 0 <= weight <= 1"
    counted = np.bincount(workers.job, weights=weight)
    silent = np.setdiff1d(workers.job, np.flatnonzero(counted))
    if len(silent):
        return f"job row {int(silent[0])} is left without any gradient"
    return None


def _check_batch(batch: Ints, observation: Observation) -> str | None:
    jobs = observation.jobs
    wrong = (batch != jobs.global_batch) & ((batch < jobs.batch_reference) | (batch > jobs.batch_max))
    if wrong.any():
        job = int(np.argmax(wrong))
        return f"job row {job} gets a batch of {batch[job]}, allowed: {_allowed_batches(observation, job)}"
    return None


def _check_rate(rate: Floats, observation: Observation) -> str | None:
    jobs = observation.jobs
    fixed = (jobs.batch_max <= jobs.batch_reference) | (jobs.rate_rule == SCRIPT)
    most = 2.0 * np.maximum(jobs.batch_max, 1) / np.maximum(jobs.batch_given, 1)
    wrong = (rate != jobs.learning_rate) & (fixed | ~((rate > 0) & (rate <= most)))
    if wrong.any():
        job = int(np.argmax(wrong))
        if jobs.rate_rule[job] == SCRIPT:
            allowed = "its script sets it"
        elif fixed[job]:
            allowed = "the present one: it has no batch_max"
        else:
            allowed = f"above 0, at most {most[job]:.6g}"
        return f"job row {job} gets {rate[job]:.6g} times its learning rate, allowed: {allowed}"
    return None


def _allowed_batches(observation: Observation, job: int) -> str:
    jobs = observation.jobs
    if jobs.batch_max[job] <= jobs.batch_reference[job]:
        return f"its own, {jobs.global_batch[job]}: it has no batch_max"
    return f"{jobs.batch_reference[job]} to {jobs.batch_max[job]}"


def _all_different(rows: Ints, count: int) -> bool:
    """Whether no row (0 .. count - 1) is listed twice."""
    listed = np.zeros(count, dtype=np.bool_)
    listed[rows] = True
    return int(np.count_nonzero(listed)) == len(rows)


def _check_moves(moves: Moves, observation: Observation) -> str | None:
    shards, workers, nodes = observation.shards, observation.workers, observation.nodes
    for name, rows, size in (
        ("shard", moves.shard, len(shards)),
        ("worker", moves.worker, len(workers)),
        ("target", moves.target, len(nodes)),
    ):
        if len(rows) != len(moves.shard) or ((rows < 0) | (rows >= size)).any():
            return f"{name} rows must be {len(moves.shard)} values in 0..{size - 1}"
    if not _all_different(moves.shard, len(shards)):
        return "a shard is moved twice"
    if shards.started[moves.shard].any():
        return f"shard row {int(moves.shard[np.argmax(shards.started[moves.shard])])} has been started"
    if (moves.source != shards.node[moves.shard]).any():
        return "source is not the node that stores the shard"
    if (workers.node[moves.worker] != moves.target).any():
        return "target is not the node of the new owner"
    if (workers.job[moves.worker] != shards.job[moves.shard]).any():
        return "the new owner belongs to another job"
    if not nodes.up[moves.target].all():
        return f"node {int(moves.target[np.argmin(nodes.up[moves.target])])} is down"
    away = moves.source != moves.target
    load = np.bincount(moves.target[away], weights=shards.bytes[moves.shard[away]], minlength=len(nodes))
    full = load > np.where(np.isnan(nodes.storage_free_bytes), np.inf, nodes.storage_free_bytes)
    if full.any():
        return f"node {int(np.argmax(full))} has no room for the shards moved to it"
    return None


def _check_fetch_order(order: Ints, observation: Observation) -> str | None:
    rows = len(observation.shards)
    if ((order < 0) | (order >= rows)).any() or not _all_different(order, rows):
        return f"needs distinct rows of shards (0..{len(observation.shards) - 1})"
    return None


_ALLOCATION_FAULTS = {
    1: "job row {0} does not exist or is listed twice",
    2: "job row {0} is done",
    3: "GPU {1} for job row {0} does not exist: there are {gpus}, from 0",
    4: "GPU {1} for job row {0} is on a node that is down",
    5: "GPU {1} for job row {0} is booked beyond its free share",
    6: "job row {0} gets {got} GPUs of the {gpus} there are, allowed: {allowed}, or none: it is rigid",
    7: "job row {0} gets {got} GPUs of the {gpus} there are, allowed: {allowed}, or none",
    8: "GPU {1} has too little memory for job row {0}",
    9: "GPU {1} is listed twice for job row {0}",
    10: "share on GPU {1} for job row {0} must be above 0 and at most 1",
    11: "offsets do not match the listed jobs and GPUs",
    13: "GPU {1} is held by a feature beside the jobs until it releases it; job row {0} cannot have it",
    12: "GPU {1} is of another model than the first of job row {0}, whose gang must not mix GPU models",
}


_FIRST = np.zeros(1, dtype=np.int64)


def _check_allocation(allocation: Allocation, observation: Observation) -> str | None:
    jobs, gpus, workers = observation.jobs, observation.gpus, observation.workers
    listed, order = allocation.job, _FIRST
    if listed.size > 1:
        listed = np.sort(listed)
    if allocation.gpu.size != 1:
        order = allocation.gpu.argsort()
    code, job, gpu = allocation_fault(
        allocation.job,
        allocation.offset,
        allocation.gpu,
        allocation.share,
        listed,
        order,
        jobs.state,
        jobs.rigid,
        jobs.gpus_requested,
        jobs.gpus_per_worker,
        jobs.workers_min,
        jobs.workers_max,
        jobs.memory_bytes,
        jobs.one_gpu_model,
        gpus.model,
        gpus.node,
        gpus.job,
        gpus.share_free,
        gpus.memory_bytes,
        observation.nodes.up,
        workers.job,
        workers.gpu,
        workers.gpu_share,
        DONE,
    )
    if not code and observation.queues.restricts:
        given = (allocation.job, allocation.offset, allocation.gpu, allocation.share)
        return next((f"job row {row} {why}" for row, why in breaches(observation, *given, first=True).items()), None)
    if not code:
        return None
    got = int(np.diff(allocation.offset)[allocation.job == job].sum()) if code in (6, 7) else 0
    allowed = _allowed_gpus(observation, job) if code in (6, 7) else ""
    return _ALLOCATION_FAULTS[code].format(job, gpu, got=got, gpus=len(gpus), allowed=allowed)


def _allowed_gpus(observation: Observation, job: int) -> str:
    """Allowed numbers of GPUs of a job that starts or keeps running, as text."""
    jobs = observation.jobs
    per, fewest, most = (int(column[job]) for column in (jobs.gpus_per_worker, jobs.workers_min, jobs.workers_max))
    if jobs.rigid[job]:
        asked = int(jobs.gpus_requested[job])
        if most <= fewest or per * fewest >= asked:
            return str(asked)
        return f"{per * fewest} to {asked} in steps of {per}" if per > 1 else f"{fewest} to {asked}"
    if most <= fewest:
        return str(per * most)
    return f"{per * fewest} to {per * most}" + (f" in steps of {per}" if per > 1 else "")


_RULES: dict[str, Any] = {
    "moves": _check_moves,
    "samples_per_step": _check_samples,
    "fetch_order": _check_fetch_order,
    "sync_interval": _check_interval,
    "gpu_share": _check_share,
    "gradient_weight": _check_weight,
    "learning_rate": _check_rate,
    "global_batch": _check_batch,
    "far_every": _check_far,
    "accumulation": _check_accumulation,
    "push_interval": _check_push,
    "power_cap_w": _check_cap,
    "allocation": _check_allocation,
}
