"""Check of an allocation against a site's declared limits, and the jobs that break them."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import RUNNING, Bools, Floats, Ints, Observation
from equipoise.policies.quotas.limits import Quota, amounts_of, describe, held_amounts, stands_well


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
