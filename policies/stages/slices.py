"""S323 on GPUs cut by MIG: shares are slices, and another slice must be worth the restart that it costs."""

from __future__ import annotations

import numpy as np

from equipoise.policies.kernels.slices import EIGHTHS, SEVENTHS, nearest_slices, slices_of
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.stages.virtual import speeds_at, whole_period_s

_SAME = 0.005  # of a GPU: shares that are that near are the same slice


def slice_gpus(
    observation: Observation, rows: Ints, first: Ints, share: Floats, room: Floats, proposal: Floats,
    new: Floats, changed: Bools,
) -> tuple[Floats, Bools]:  # fmt: skip
    """Shares and whether each GPU changes, with slices on GPUs cut by MIG; as they are given on all others.

    rows: workers by GPU k from first[k] on; room (GPUs,): what they may hold together; proposal, new (rows,): the
    shares that they should have, and these in quanta.
    """
    gpus = observation.gpus
    mig = gpus.mig[observation.workers.gpu[rows[first[:-1]]]]
    if not mig.any():
        return new, changed
    new, changed = new.copy(), changed.copy()
    for k in np.flatnonzero(mig & changed).tolist():
        part = slice(int(first[k]), int(first[k + 1]))
        here = rows[part]
        profile = nearest_slices(
            proposal[part], _least_memory(observation, here), *_room(share[here], room[k]), SEVENTHS, EIGHTHS
        )
        cut = SEVENTHS[profile] / 7.0
        gives_back = share[here].sum() > room[k] + _SAME  # somebody waits for it
        changed[k] = bool((profile >= 0).all()) and (gives_back or _pays(observation, here, share[here], cut))
        new[part] = cut if changed[k] else share[here]
    return new, changed


def _room(share: Floats, room: float) -> tuple[int, int]:
    """(compute, memory) slices of one GPU that its workers may hold together, who have `share` of it now.

    As much memory as there surely is: what they hold, or what others leave who hold as many slices of both.
    """
    compute = int(7.0 * room + 0.05)
    if compute == 7:
        return 7, 8
    held_compute, held_memory = slices_of(share)
    return compute, max(held_memory if compute >= held_compute else 0, 4 if compute == 3 else compute)


def _least_memory(observation: Observation, rows: Ints) -> Floats:
    """Part of its GPU's memory that each worker holds: of what it asked for, less what is free of that."""
    workers, jobs = observation.workers, observation.jobs
    asked, whole = (
        jobs.gpu_share_requested[workers.job[rows]],
        observation.gpus.memory_bytes[workers.gpu[rows]],
    )
    return np.nan_to_num(np.maximum(asked - workers.memory_free_bytes[rows] / whole, 0.0), nan=0.0)


def _pays(observation: Observation, rows: Ints, share: Floats, new: Floats) -> bool:
    """Whether the time that the jobs save on what they have left is more than the restarts of those that change.

    A step grows and shrinks as the speed on the share does; what it waits for others or input takes up the growth,
    and lets nothing be won.
    """
    workers, jobs = observation.workers, observation.jobs
    job, step_s = workers.job[rows], workers.step_s[rows]
    kappa = workers.share_kappa[rows]
    waits_s = np.nan_to_num(workers.wait_s[rows]) + np.nan_to_num(workers.input_stall_s[rows])
    other_s = step_s * (speeds_at(share, kappa) / speeds_at(new, kappa) - 1.0)
    change_s = np.where(other_s > 0.0, np.maximum(other_s - waits_s, 0.0), np.minimum(other_s + waits_s, 0.0))
    left_s = jobs.service_s[job]
    saved_s = -(left_s * change_s / whole_period_s(observation)[rows]).sum()
    moved = np.abs(new - share) >= _SAME
    return bool(moved.any() and saved_s > np.nan_to_num(jobs.restart_s[job[moved]]).sum())
