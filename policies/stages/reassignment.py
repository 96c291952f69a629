"""S311: effect of a new batch split on the update speed, and its rollback."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan
from equipoise.policies.kernels.batch_split import slowest_step
from equipoise.policies.kernels.dataflow import match_sorted
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob, measurement_noise, or_else
from equipoise.policies.stages.guard import guard_acquit, guard_blocked, guard_empty, guard_review, guard_watch

_NONE: Ints = np.empty(0, dtype=np.int64)
_SIGMAS = 3.0  # of the measurement, beyond which a speed has changed


def review_splits(
    observation: Observation, groups: WorkersByJob, plan: Plan, memory: Memory, noise: float, backoff_s: float
) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """`plan` without new splits of jobs in back-off, and with the old splits of jobs whose speed fell.

    A job is watched from its first new split on, through later ones, until its goodput was measured twice. The old
    split is restored if its predicted slowest step is shorter now: else the cause is another one. It is kept until
    the back-off ends, or the speed of a worker has changed for another reason. Returns (plan, new memory, values).
    """
    o, workers, rows = observation, observation.workers, groups.rows
    goodput = o.jobs.goodput_samples_per_s[rows]
    now, dealt = workers.samples_per_step, plan.samples(o)
    verdict, record = guard_review(
        memory.get("deal_guard", guard_empty()),
        rows,
        goodput,
        o.time_s,
        noise=noise,
        settle_s=o.window_s,
        backoff_s=backoff_s,
    )
    old, old_s = _old_splits(o, groups, memory)
    sound = np.logical_and.reduceat(now <= workers.samples_max, groups.first[:-1])
    sound &= np.logical_and.reduceat(plan.weights(o) > 0.0, groups.first[:-1])
    undone = match_sorted(verdict.rollback, rows) >= 0
    if undone.any():
        undone &= sound & (_slowest_s(o, groups, old) < _slowest_s(o, groups, now))
        record = guard_acquit(record, np.setdiff1d(verdict.rollback, rows[undone]))
    watched = record["id"][record["watched"]]
    blocked = guard_blocked(record, rows, o.time_s) & (match_sorted(watched, rows) < 0)
    if blocked.any():
        lifted = blocked & _changed(o, groups, memory, old, old_s, noise)
        record, blocked = guard_acquit(record, rows[lifted]), blocked & ~lifted
    keep = groups.spread(blocked & sound)
    new = np.where(groups.spread(undone), old, np.where(keep, now, dealt))
    fresh = np.logical_or.reduceat(new != now, groups.first[:-1]) & ~undone & (match_sorted(watched, rows) < 0)
    record = guard_watch(record, rows[fresh], goodput[fresh], o.time_s, np.zeros(int(fresh.sum())))
    new_here = groups.spread(fresh)
    state = {"deal_guard": record, "deal_id": workers.id, "deal": np.where(new_here, now, old)}
    state["deal_seen"] = now.copy()
    state["deal_s"] = np.where(new_here, workers.response_s_per_sample, old_s)
    if not np.array_equal(new, dealt):
        plan = plan.with_(samples_per_step=new)
    return plan, state, {"s311_undone": int(undone.sum()), "s311_backed_off": int(blocked.sum())}


def _old_splits(o: Observation, groups: WorkersByJob, memory: Memory) -> tuple[Ints, Floats]:
    """Split of each watched job before its change, and seconds per sample then.

    The present values for a worker that did not exist then.
    """
    now, now_s = o.workers.samples_per_step, o.workers.response_s_per_sample
    at = match_sorted(memory.get("deal_id", _NONE), o.workers.id)
    if not len(memory.get("deal", _NONE)):
        return now.copy(), now_s.copy()
    old, old_s = np.where(at >= 0, memory["deal"][at], now), np.where(at >= 0, memory["deal_s"][at], now_s)
    total = np.add.reduceat(old, groups.first[:-1]) == o.jobs.global_batch[groups.rows]
    fits = groups.spread(total & np.logical_and.reduceat(old <= o.workers.samples_max, groups.first[:-1]))
    return np.where(fits, old, now), np.where(fits, old_s, now_s)


def _changed(o: Observation, groups: WorkersByJob, memory: Memory, old: Ints, old_s: Floats, noise: float) -> Bools:
    """Whether a worker of each job has another time per sample at its old split than before the new one.

    Known once the old split has been applied for a whole window.
    """
    now, at = o.workers.samples_per_step, match_sorted(memory.get("deal_id", _NONE), o.workers.id)
    seen = np.where(at >= 0, memory["deal_seen"][at], -1) if len(memory.get("deal_seen", _NONE)) else now - 1
    back = np.logical_and.reduceat((now == old) & (seen == old), groups.first[:-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(o.workers.response_s_per_sample / old_s - 1.0)
        other = off > groups.spread(noise + _SIGMAS * measurement_noise(o, groups))
    changed: Bools = back & np.logical_or.reduceat(other, groups.first[:-1])
    return changed


def _slowest_s(o: Observation, groups: WorkersByJob, deal: Ints) -> Floats:
    """Predicted time (s) of the slowest step of each job at a split."""
    w = o.workers
    fixed_s = or_else(w.fixed_s)
    return slowest_step(groups.first, w.response_s_per_sample, fixed_s, w.samples_per_step, deal.copy())
