"""S223, the passes: how many batches a step is computed in, where memory does not hold a worker's part at once.

All workers of a job make as many passes, as in PyTorch. Each costs what does not grow with its samples (`pass_s`)
once more: another worker that has room may be the better one, also where it computes more slowly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.policies.kernels.deal import slowest_step
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.groups import WorkersByJob

_PASSES_MOST = 64
"""Passes tried; a job that needs more is dealt as if they cost nothing."""
_SAME = 1e-9
"""A relative difference below this is rounding: the fewest of equal passes."""

_MANY = 2**40
"""Samples, more than a step has: so many times the passes is still a whole number."""

Dealing = Callable[[Floats, Floats, Ints, Bools], tuple[Ints, Bools]]
"""Deals at (response in s/sample, fixed s, most samples) by worker the jobs wanted: (samples, job was dealt)."""


def is_bounded(o: Observation, groups: WorkersByJob) -> Bools:
    """Jobs (rows of `groups`) with a worker that may need several passes, and whose passes a plan may set."""
    over = o.workers.samples_per_pass < groups.spread(o.jobs.global_batch[groups.rows])
    bounded: Bools = np.logical_or.reduceat(over, groups.first[:-1]) & (o.jobs.accumulation[groups.rows] > 0)
    return bounded


def passes_needed(o: Observation, groups: WorkersByJob, samples: Ints) -> Ints:
    """Passes that the memory of some worker asks for, by job, where they have so many samples; at least 1."""
    most = np.maximum(o.workers.samples_per_pass, 1)
    needed: Ints = np.maximum.reduceat(np.maximum(-(-samples // most), 1), groups.first[:-1])
    return needed


def once_s(o: Observation) -> Floats:
    """What of each worker's step comes once, however many passes and samples it has (s); see `pass_s`."""
    w, asked = o.workers, np.maximum(o.jobs.accumulation[o.workers.job], 1)
    size = np.minimum(np.maximum(-(-w.samples_per_step // asked), 1), np.maximum(w.samples_per_pass, 1))
    fixed: Floats = np.maximum(np.nan_to_num(w.fixed_s) - -(-w.samples_per_step // size) * w.pass_s, 0.0)
    return fixed


def deal_in_passes(
    o: Observation,
    groups: WorkersByJob,
    wanted: Bools,
    sample_s: Floats,
    most: Ints,
    dealing: Dealing,
    free: Ints,
) -> tuple[Ints, Bools, Ints, Floats]:
    """The passes and the deal of shortest step of the jobs `wanted`: (samples, job was dealt, passes, step in s).

    `sample_s`: seconds per further sample by worker; `free`: the deal that costs no passes, which says how many are
    worth trying. Other jobs: `free`, False, 1 and infinity.
    """
    w, first = o.workers, groups.first
    measured, own_s = np.maximum(w.samples_per_step, 1), once_s(o)
    best, done = free.copy(), np.zeros(len(groups.rows), dtype=np.bool_)
    passes, step_s = np.ones(len(groups.rows), dtype=np.int64), np.full(len(groups.rows), np.inf)
    tried = np.where(wanted, np.minimum(passes_needed(o, groups, free), _PASSES_MOST), 0)
    for number in range(1, int(tried.max()) + 1):
        fixed_s = own_s + number * w.pass_s
        response_s = sample_s + fixed_s / measured
        room = np.minimum(most, np.minimum(w.samples_per_pass, _MANY) * number)
        for column in (response_s, room):  # as those of a table: one compiled version serves all calls
            column.setflags(write=False)
        dealt, fits = dealing(response_s, fixed_s, room, wanted & (tried >= number))
        took_s = slowest_step(first, response_s, fixed_s, w.samples_per_step, dealt)
        better = fits & (tried >= number) & (took_s < step_s * (1.0 - _SAME))
        best = np.where(groups.spread(better), dealt, best)
        passes, step_s = np.where(better, number, passes), np.where(better, took_s, step_s)
        done |= better
    return best, done, passes, step_s
