"""S311: what a new deal of the work did to the update speed, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.kernels.deal import slowest_step
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.stages.groups import Groups
from equipoise.policies.stages.guard import guard_blocked, guard_empty, guard_review, guard_watch

_NONE: Ints = np.empty(0, dtype=np.int64)


def review_deals(
    observation: Observation, groups: Groups, plan: Plan, memory: Memory, noise: float, backoff_s: float
) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """`plan` without new deals of jobs that are backed off, and with the old ones of jobs that lost by theirs.

    A job is watched from its first new deal on, through those that follow, until its goodput was measured twice.
    The old deal comes back if by what is measured now its slowest step would be shorter: else something else is to
    blame. Returns (plan, what to remember, values).
    """
    o, workers, rows = observation, observation.workers, groups.rows
    goodput = o.jobs.goodput_samples_per_s[rows]
    now, dealt = workers.samples_per_step, plan.samples(o)
    verdict, record = guard_review(
        memory.get("deal_guard", guard_empty()), rows, goodput, o.time_s, noise=noise,
        settle_s=o.window_s, backoff_s=backoff_s,
    )  # fmt: skip
    old = _old_deals(o, groups, memory)
    undone = np.isin(rows, verdict.rollback)
    if undone.any():
        undone &= _slowest_s(o, groups, old) < _slowest_s(o, groups, now)
    watched = record["id"][record["watched"]]
    blocked = guard_blocked(record, rows, o.time_s) & ~np.isin(rows, watched)
    sound = np.logical_and.reduceat(now <= workers.samples_max, groups.first[:-1])
    sound &= np.logical_and.reduceat(plan.weights(o) > 0.0, groups.first[:-1])
    keep = groups.spread((blocked & sound) | undone)
    new = np.where(groups.spread(undone), old, np.where(keep, now, dealt))
    fresh = np.logical_or.reduceat(new != now, groups.first[:-1]) & ~undone & ~np.isin(rows, watched)
    record = guard_watch(record, rows[fresh], goodput[fresh], o.time_s, np.zeros(int(fresh.sum())))
    remembered = np.where(groups.spread(fresh), now, old)
    state = {"deal_guard": record, "deal_id": workers.id, "deal": remembered}
    if not np.array_equal(new, dealt):
        plan = plan.with_(samples_per_step=new)
    return plan, state, {"s311_undone": int(undone.sum()), "s311_backed_off": int(blocked.sum())}


def _old_deals(o: Observation, groups: Groups, memory: Memory) -> Ints:
    """Deal of each watched job before it changed; that in force where a worker was not there then."""
    now = o.workers.samples_per_step
    at = match_sorted(memory.get("deal_id", _NONE), o.workers.id)
    old = np.where(at >= 0, memory["deal"][at], now) if len(memory.get("deal", _NONE)) else now.copy()
    total = np.add.reduceat(old, groups.first[:-1]) == o.jobs.global_batch[groups.rows]
    fits = np.logical_and.reduceat(old <= o.workers.samples_max, groups.first[:-1])
    deals: Ints = np.where(groups.spread(total & fits), old, now)
    return deals


def _slowest_s(o: Observation, groups: Groups, deal: Ints) -> Floats:
    """Predicted time (s) of the slowest step of each job at a deal."""
    w = o.workers
    fixed_s = np.nan_to_num(w.fixed_s, nan=0.0)
    return slowest_step(groups.first, w.response_s_per_sample, fixed_s, w.samples_per_step, deal.copy())
