"""Shared code of the allocation baselines: starting jobs from a sorted queue, and the reasons of their plans."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from equipoise.policies.allocation.preemption import start_with_preemption
from equipoise.policies.baselines.sorted_queue import Columns, first_rows
from equipoise.policies.contract import UNCHANGED, Allocation, Memory, Plan, Reason
from equipoise.policies.kernels.gangs import NO_VALUES, frozen, request_columns, room_columns, start_in_order
from equipoise.policies.observation import Floats, Ints, Observation

FEW = 16  # jobs examined first


def start_from_queue(
    o: Observation, queue: Memory, columns: Columns, strict: bool, rule: int
) -> tuple[Allocation | None, Memory]:
    """Start jobs from a sorted queue; examines its first few, and more only when these leave room."""
    requests, room, limit = request_columns(o), room_columns(o), FEW
    while True:
        rows, _, queue = first_rows(queue, o, columns, limit)
        grants, more = start_in_order(frozen(rows), strict, rule, requests, room)
        if not more or len(rows) < limit:
            break
        limit *= 16
    if not len(grants[0]):
        return None, queue
    return Allocation(*grants), {**queue, "waiting": len(o.waiting) - len(grants[0])}


def preempt_from_queue(
    o: Observation, queue: Memory, columns: Columns, rule: int, running: Ints, bar: Floats
) -> tuple[Allocation, Ints, float, Memory]:
    """Start jobs from a sorted queue, with preemption of `running` ones.

    Also returns the stopped jobs, and a lower bound on the keys that still wait.
    """
    requests, room, limit = request_columns(o), room_columns(o), FEW
    while True:
        rows, key, queue = first_rows(queue, o, columns, limit)
        stopped, grants, more = start_with_preemption(
            o, frozen(rows), frozen(key), NO_VALUES, rule, running, bar, NO_VALUES, o.gpus.job, requests, room
        )
        if not more or len(rows) < limit:
            break
        limit *= 16
    job, offset, gpu, share = grants
    lowest = _first_left(rows, key, job, limit)
    if len(stopped):
        job = np.concatenate((stopped, job))
        offset = np.concatenate((np.zeros(len(stopped), dtype=np.int64), offset))
    queue = {**queue, "waiting": len(o.waiting) - len(grants[0]), "again": frozen(stopped)}
    return Allocation(job, offset, gpu, share), stopped, lowest, queue


def _first_left(rows: Ints, key: Floats, started: Ints, limit: int) -> float:
    """Key of the first job not started among a queue's first `limit` rows; started (rows,) is in queue order."""
    left = 0
    while left < len(started) and started[left] == rows[left]:
        left += 1
    if left < len(rows):
        return float(key[left])
    return float(key[-1]) if left and left == limit else math.inf


@lru_cache
def _only_reason(name: str, why: str) -> Plan:
    return UNCHANGED.because(name, why)


def unchanged(plan: Plan, name: str, why: str) -> Plan:
    """The unchanged plan with the reason; cheap, because most decisions end here."""
    return _only_reason(name, why) if plan is UNCHANGED else plan.because(name, why)


PLANNED = "an earlier stage has already allocated GPUs"
NONE_WAITS = "no job waits"
NONE_FREE = "nothing is free"
NONE_STARTS = "no waiting job may start now"


def with_allocation(
    plan: Plan,
    name: str,
    waiting: int,
    allocation: Allocation,
    stops: int = 0,
    revisit_s: float = math.inf,
    **values: Any,
) -> Plan:
    """The plan with this allocation, whose first `stops` jobs are stopped, the reason, and the next look (s)."""
    job = allocation.job
    if stops:
        values["stopped"] = job[:stops]
    text = f"started {len(job) - stops} of {waiting} waiting jobs" + (f", stopped {stops}" if stops else "")
    reason = Reason(name, text, {"started": job[stops:], **values})
    return Plan(
        plan.moves,
        plan.samples_per_step,
        plan.fetch_order,
        plan.sync_interval,
        plan.gpu_share,
        allocation,
        min(plan.revisit_s, revisit_s),
        (*plan.reasons, reason),
        plan.gradient_weight,
        plan.suspect,
        plan.global_batch,
        plan.far_every,
        plan.accumulation,
        plan.push_interval,
        plan.learning_rate,
        plan.power_cap_w,
    )
