"""Finds slow ranks and the cause, for the log of a running job; `equipoise ranks` does it for a whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from equipoise.live.decide.window import LiveWindow
from equipoise.policies.growth import ALL_GROWS, Law
from equipoise.policies.observation import Floats

SLOW = 1.25  # times the others' time for the same work, in `LASTS` consecutive windows
LASTS = 2
_LEAST_S = 1e-3  # least extra time per round; less delays no rank
_SURE = 3.0  # least extra time in standard errors of the rounds' means
_HOST = 0.5  # least part of the extra time for which other programs had the processor
_LOW_CLOCK = 0.95  # of the others' clock


def _of_others(values: Floats, rank: int) -> float:
    """Median over the other ranks; NaN if unknown."""
    known = np.delete(values, rank)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else math.nan


def causes(window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS) -> dict[int, tuple[str, str]]:
    """(cause, evidence) of every rank that is slow: compute, thermal, input or host (a long update, no processor).

    `device`: `clock_ratio` and `queued_s` (waiting for a processor, per round) by rank. `law`: the part of a round
    that grows with its samples, by which ranks with unequal shares are compared. A rank is slow if it exceeds the
    others by the ratio SLOW, by a least time per round, and by more than the noise.
    """
    if not window.rounds or len(window.samples) < 2:
        return {}
    found: dict[int, tuple[str, str]] = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = window.each()
        work = np.where(samples > 0, law.work(samples), np.nan)
        unit_s = window.step_s / work
        error_s = unit_s * window.step_cov / math.sqrt(window.rounds)
        parts = {
            "compute": (window.step_s - window.stall_s - window.fixed_s) / work,
            "input": window.stall_s / work,
            "host": window.fixed_s / work,
        }
    for rank, mine_s in enumerate(unit_s.tolist()):
        others_s = _of_others(unit_s, rank)
        times, longer_s = mine_s / others_s, mine_s - others_s
        noise_s = math.hypot(float(error_s[rank]), _of_others(error_s, rank))
        if not (times > SLOW and longer_s * work[rank] >= _LEAST_S and longer_s > _SURE * noise_s):
            continue
        excess = {cause: float(of[rank]) - _of_others(of, rank) for cause, of in parts.items()}
        cause = max(excess, key=lambda name: excess[name])
        per, what = float(work[rank]), f"round of {samples[rank]:.3g} samples"
        if law.fixed_samples == 0.0:
            per, what = 1.0, "sample"
        own_s, theirs_s = float(parts[cause][rank]) * per, _of_others(parts[cause], rank) * per
        evidence = f"{times:.2f} times; {own_s * 1e3:.3g} ms per {what}, the others {theirs_s * 1e3:.3g} ms"
        unknown = np.full(len(samples), np.nan)
        clock, queued_s = device.get("clock_ratio", unknown), device.get("queued_s", unknown)
        if cause == "compute" and clock[rank] < _LOW_CLOCK * _of_others(clock, rank):
            cause = "thermal"
            evidence += f"; clock at {clock[rank]:.0%} of its highest"
        elif cause == "compute" and _is_taken(mine_s * work[rank], others_s * work[rank], queued_s, rank):
            cause = "host"
            evidence += f"; other programs had its processor for {queued_s[rank] * 1e3:.3g} ms per round"
        found[rank] = cause, evidence
    return found


def _is_taken(mine_s: float, others_s: float, queued_s: Floats, rank: int) -> bool:
    """Whether other programs on its processor explain a round of `mine_s`; longer computing waits longer, too."""
    others_queued_s = _of_others(queued_s, rank)
    computed = max(0.0, mine_s - queued_s[rank]) / max(others_s - others_queued_s, 1e-9)
    return bool(queued_s[rank] - others_queued_s * computed > _HOST * (mine_s - others_s))


class SlowRanks:
    """Reports each slow rank once, after it has lasted, and again when the cause changes."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, int]] = {}  # by rank: the cause, and windows in a row

    def news(
        self, window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS
    ) -> list[tuple[int, str, str]]:
        """(rank, cause, evidence) to report now; `law` as for `causes`."""
        found, before = causes(window, device, law), self._seen
        self._seen = {}
        for rank, (cause, _) in found.items():
            known, lasted = before.get(rank, (cause, 0))
            self._seen[rank] = cause, lasted + 1 if known == cause else 1
        return [(rank, *found[rank]) for rank, (_, lasted) in self._seen.items() if lasted == LASTS]
