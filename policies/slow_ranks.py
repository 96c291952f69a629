"""Which ranks of a training job are slow, and why: the same for a running job's log and for its record.

A rank is slow when it takes longer than the median of the others for equal work. The part of its time that exceeds the
others' most is the cause: computing (also after the gradients' exchange: the optimizer, the script's own code), or
waiting for data (input). Slow computing is attributed to heat when the clock is lower than the others', and to the host
when the rank waited for a processor for at least half of the extra time, beyond what its longer computing explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from equipoise.policies.growth import Law
from equipoise.policies.observation import Floats

PARTS = {"compute": "compute", "input": "input", "update": "compute"}  # of a rank's time, with the cause
AFTER = " after the gradients' exchange (optimizer, the script's own code)"
_SURE = 3.0  # least extra time in standard errors
_HOST = 0.5  # least part of the extra time for which other programs had the processor
_LOW_CLOCK = 0.95  # of the others' clock


@dataclass(frozen=True, slots=True)
class SlowRank:
    """Why a rank is slow."""

    times: float  # the others' time for equal work
    cause: str  # compute, input, host or thermal
    evidence: str


def of_others(values: Floats, rank: int) -> float:
    """Median over the other ranks; NaN if unknown."""
    known = np.delete(values, rank)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else math.nan


def slow_ranks(
    samples: Floats,
    parts_s: Mapping[str, Floats],
    device: Mapping[str, Floats],
    law: Law,
    ratio: float,
    *,
    least_s: float = 0.0,
    error_s: Floats | None = None,
) -> dict[int, SlowRank]:
    """The ranks that take more than `ratio` times the others' time for equal work; arrays by rank, NaN: unknown.

    samples: per round. parts_s: seconds per unit of work (`law`) by part. device: `clock_ratio`, `queued_s` (waiting
    for a processor, per round). least_s: least extra time per round; error_s: standard errors of the sum of the parts.
    """
    found: dict[int, SlowRank] = {}
    unit_s = np.asarray(sum(parts_s[part] for part in PARTS))
    if not np.fmax.reduce(unit_s) > ratio * np.fmin.reduce(unit_s):
        return found
    work = np.where(samples > 0, law.work(samples), np.nan)
    unknown = np.full(len(samples), np.nan)
    clock, queued_s = device.get("clock_ratio", unknown), device.get("queued_s", unknown)
    errors_s = np.zeros(len(samples)) if error_s is None else error_s
    for rank, mine_s in enumerate(unit_s.tolist()):
        others_s = of_others(unit_s, rank)
        longer_s, noise_s = mine_s - others_s, math.hypot(float(errors_s[rank]), of_others(errors_s, rank))
        if not (mine_s > ratio * others_s and longer_s * work[rank] >= least_s and longer_s > _SURE * noise_s):
            continue
        excess_s = {part: float(of[rank]) - of_others(of, rank) for part, of in parts_s.items()}
        part = max(excess_s, key=lambda name: excess_s[name])
        cause = PARTS[part]
        per, what = float(work[rank]), f"round of {samples[rank]:.3g} samples"
        if law.fixed_samples == 0.0:
            per, what = 1.0, "sample"
        own_ms, theirs_ms = (1e3 * per * s for s in (float(parts_s[part][rank]), of_others(parts_s[part], rank)))
        evidence = f"{own_ms:.3g} ms per {what}, the others {theirs_ms:.3g} ms{AFTER if part == 'update' else ''}"
        if cause == "compute" and clock[rank] < _LOW_CLOCK * of_others(clock, rank):
            cause = "thermal"
            evidence += f"; clock at {clock[rank]:.0%} of its highest, the others {of_others(clock, rank):.0%}"
        elif cause == "compute" and _is_taken(mine_s * work[rank], others_s * work[rank], queued_s, rank):
            cause = "host"
            evidence += f"; other programs had its processor for {queued_s[rank] * 1e3:.3g} ms per round"
        found[rank] = SlowRank(mine_s / others_s, cause, evidence)
    return found


def _is_taken(mine_s: float, others_s: float, queued_s: Floats, rank: int) -> bool:
    """Whether other programs on its processor explain a round of `mine_s`; longer computing waits longer, too."""
    theirs_s = of_others(queued_s, rank)
    computed = max(0.0, mine_s - queued_s[rank]) / max(others_s - theirs_s, 1e-9)
    return bool(queued_s[rank] - theirs_s * computed > _HOST * (mine_s - others_s))
