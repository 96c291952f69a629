"""S222, the batch: the one of highest goodput, for jobs whose users let a policy change it.

Goodput = samples/s x statistical efficiency (Pollux, Qiao et al. 2021, section 3): a larger batch shares the fixed
part of a step and the exchange among more samples, each of lower worth. Samples that do not fit into one pass take
further ones (gradient accumulation), each with its own fixed part.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.learning import batch_worth
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.policies.physics import overlapped_each
from equipoise.policies.stages.groups import WorkersByJob

_BATCHES = 24
"""Batches tried between the smallest and the largest, in equal ratios."""
_MARGIN = 0.05
"""Least relative gain in goodput for which a batch changes."""
_ROUNDING = 1e-9
"""Tolerance in passes for rounding of a product of fractions."""


def batches(o: Observation, row: int) -> Ints:
    """Batches that a job may have: its own, and in equal ratios from its reference to its largest."""
    jobs = o.jobs
    now, low, high = int(jobs.global_batch[row]), int(jobs.batch_reference[row]), int(jobs.batch_max[row])
    if jobs.rigid[row] or high <= low or not jobs.noise_scale[row] >= 0:
        return np.array([now])
    unit = max(int(jobs.micro_batch[row]), 1)
    raw = np.geomspace(max(low, 1), high, _BATCHES)
    rounded = np.clip(-(-raw // unit) * unit, low, high).astype(np.int64)
    return np.unique(np.append(rounded, now))


def best_batches(o: Observation, groups: WorkersByJob) -> dict[int, tuple[int, float]]:
    """(batch, gain in goodput) of each training job, by row, for which another batch has a higher goodput."""
    found = {}
    for k in np.flatnonzero(o.jobs.batch_max[groups.rows] > o.jobs.batch_reference[groups.rows]).tolist():
        row, own = int(groups.rows[k]), slice(int(groups.first[k]), int(groups.first[k + 1]))
        tried = batches(o, row)
        goodput = _goodput(o, row, own, tried)
        now = float(goodput[np.searchsorted(tried, o.jobs.global_batch[row])])
        best = int(np.nan_to_num(goodput).argmax())
        if goodput[best] > (1.0 + _MARGIN) * now:
            found[row] = (int(tried[best]), float(goodput[best] / now - 1.0))
    return found


def _passes(o: Observation, row: int, own: slice, samples: Ints | Floats) -> Floats:
    """Passes for these samples per worker, by memory and plan; 1 where a layout sets them."""
    least = int(o.jobs.accumulation[row])
    if least == 0:
        return np.ones(np.shape(samples))
    found: Floats = np.maximum(np.ceil(samples / o.workers.samples_per_pass[own] - _ROUNDING), least)
    return found


def _goodput(o: Observation, row: int, own: slice, tried: Ints) -> Floats:
    """Goodput (samples/s) with each batch, split in the present proportions; NaN where speeds are unknown."""
    jobs, workers = o.jobs, o.workers
    samples, fixed_s = workers.samples_per_step[own], np.nan_to_num(workers.fixed_s[own])
    dealt = tried[:, None] * (samples / max(int(samples.sum()), 1))
    each_s = np.maximum(workers.response_s_per_sample[own] - fixed_s / np.maximum(samples, 1), 0.0)
    step_s = (fixed_s * _passes(o, row, own, dealt) / _passes(o, row, own, samples) + each_s * dealt).max(axis=1)
    interval = max(int(jobs.sync_interval[row]), 1)
    exchange_s = jobs.exchange_s[row] if jobs.exchange_s[row] >= 0 else jobs.exchange_alone_s[row]
    gamma = float(jobs.gamma[row]) if jobs.gamma[row] >= 1.0 else 1.0
    whole_s = overlapped_each(step_s, float(np.nan_to_num(exchange_s)) / interval, gamma)
    credit = batch_worth(o, row, tried, interval, float(jobs.drift[row]))
    fits = (dealt <= workers.samples_max[own]).all(axis=1)
    with np.errstate(divide="ignore"):
        found: Floats = np.where(fits & (whole_s > 0.0), tried * credit / whole_s, np.nan)
    return found
