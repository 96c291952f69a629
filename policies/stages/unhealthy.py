"""S111, handling of unsound gradients: they are left out, and their GPUs are suspect and replaced."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import Memory, Plan
from equipoise.policies.observation import Bools, Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob

NO_ROWS: Ints = np.empty(0, dtype=np.int64)


def leave_out(observation: Observation, groups: WorkersByJob, plan: Plan, healthy: Bools) -> Plan:
    """`plan` with weight 0 for the gradients of workers that are not `healthy`, 1 for the others.

    A job without any sound gradient keeps its weights, because its workers cannot be compared.
    """
    some = groups.spread(np.logical_or.reduceat(healthy, groups.first[:-1]))
    before = observation.workers.gradient_weight
    weight = np.where(some, healthy.astype(np.float64), before)
    return plan if np.array_equal(weight, before) else plan.with_(gradient_weight=weight)


def suspect_gpus(
    observation: Observation, plan: Plan, memory: Memory, sick: Ints, lasts_s: float
) -> tuple[Plan, dict[str, Any]]:
    """`plan` with the GPUs of the worker rows `sick` suspect, and the memory of suspect GPUs with end times.

    A suspicion ends when the GPU is repaired, or after `lasts_s`, since it may be wrong.
    """
    if not len(sick) and not len(memory.get("suspect_gpu", NO_ROWS)) and not observation.gpus.suspect.any():
        return plan, {"suspect_gpu": NO_ROWS, "suspect_until_s": np.empty(0)}
    o, suspect = observation, observation.gpus.suspect.copy()
    until_s = np.full(len(suspect), -np.inf)
    if "suspect_gpu" in memory:
        until_s[memory["suspect_gpu"]] = memory["suspect_until_s"]
    suspect &= until_s > o.time_s
    for row in sick.tolist():
        job, gpu = int(o.workers.job[row]), int(o.workers.gpu[row])
        mine = np.arange(gpu, min(gpu + int(o.jobs.gpus_per_worker[job]), len(suspect)))
        mine = mine[(o.gpus.job[mine] == job) | (mine == gpu)]
        until_s[mine[~suspect[mine]]] = o.time_s + lasts_s
        suspect[mine] = True
    rows = np.flatnonzero(suspect)
    if not np.array_equal(suspect, o.gpus.suspect):
        plan = plan.with_(suspect=suspect)
    return plan, {"suspect_gpu": rows, "suspect_until_s": until_s[rows]}


def samples_bound(observation: Observation, groups: WorkersByJob, plan: Plan) -> Ints:
    """Most samples of each worker in a step, (workers,): bound by memory.

    One micro-batch where its gradient is left out, so that it is still monitored, if the batch has one for each worker.
    """
    workers, jobs = observation.workers, observation.jobs
    micro = np.maximum(jobs.micro_batch[groups.rows], 1)
    enough = jobs.global_batch[groups.rows] // micro >= np.diff(groups.first)
    out = (plan.weights(observation) == 0.0) & groups.spread(enough)
    if not out.any():
        return workers.samples_max
    bound: Ints = np.where(out, np.minimum(groups.spread(micro), workers.samples_max), workers.samples_max)
    return bound


def avoided_gpus(observation: Observation, plan: Plan) -> Bools | None:
    """GPUs to avoid: the suspect ones, or none if no job could run otherwise."""
    suspect = observation.gpus.suspect if plan.suspect is None else plan.suspect
    return suspect if suspect.any() and len(observation.running) else None


def replace_suspects(proposal: Proposal) -> Ints:
    """Replace the suspect whole GPUs of jobs by sound free ones; returns the rows of these jobs.

    Only where enough of the same model are free, and the loss on the remaining time exceeds the restart. On the
    job's present nodes if possible.
    """
    o, replaced = proposal.observation, []
    if proposal.avoided is None:
        return NO_ROWS
    holders = np.unique(o.gpus.job[proposal.avoided])
    for row in holders[holders >= 0].tolist():
        held, _ = proposal.gpus_of(row)
        bad = np.flatnonzero(proposal.avoided[held])
        lost_s = o.jobs.service_s[row] * len(bad) / len(held)
        if o.jobs.rigid[row] or proposal.touched(np.array([row]))[0] or not lost_s > o.jobs.restart_s[row]:
            continue
        free = (proposal.holder == -1) & ~proposal.avoided & o.nodes.up[o.gpus.node]
        free &= (o.gpus.model == o.gpus.model[held[bad[0]]]) & ~(o.gpus.memory_bytes < o.jobs.memory_bytes[row])
        choice = np.flatnonzero(free)
        choice = choice[np.argsort(~np.isin(o.gpus.node[choice], o.gpus.node[held]), kind="stable")]
        if len(choice) >= len(bad):
            gpus = held.copy()
            gpus[bad] = choice[: len(bad)]
            proposal.resize(row, held, gpus)
            replaced.append(row)
    return np.array(replaced, dtype=np.int64)
