"""Which rank is slow, and why, for one line in the log; `equipoise ranks` says it of a whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from equipoise.live.decide.window import LiveWindow
from equipoise.policies.growth import ALL_GROWS, Law
from equipoise.policies.observation import Floats

SLOW = 1.25  # times what the others take for as much, in `LASTS` windows in a row
LASTS = 2
_LEAST_S = 1e-3  # of a round that it takes longer; less holds nobody up
_SURE = 3.0  # standard errors of the rounds' means that it takes longer
_LOW_CLOCK = 0.95  # of the others' clock


def _of_others(values: Floats, rank: int) -> float:
    """Median over the other ranks; NaN where nothing is known."""
    known = np.delete(values, rank)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else math.nan


def causes(window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS) -> dict[int, tuple[str, str]]:
    """(cause, evidence) of every rank that is slow: compute, thermal, input or host (a long update).

    `law`: what of a round grows with its samples, so that ranks are compared which are dealt unequally many. A rank
    is slow that takes longer than the others in proportion, by enough of a round, and by more than rounds vary.
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
        clock = device.get("clock_ratio", np.full(len(samples), np.nan))
        if cause == "compute" and clock[rank] < _LOW_CLOCK * _of_others(clock, rank):
            cause = "thermal"
            evidence += f"; clock at {clock[rank]:.0%} of its highest"
        found[rank] = cause, evidence
    return found


class SlowRanks:
    """Tells of each slow rank once, when it has lasted, and again when the cause is another."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, int]] = {}  # by rank: the cause, and windows in a row

    def news(
        self, window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS
    ) -> list[tuple[int, str, str]]:
        """(rank, cause, evidence) of what is to be told now; `law` as for `causes`."""
        found, before = causes(window, device, law), self._seen
        self._seen = {}
        for rank, (cause, _) in found.items():
            known, lasted = before.get(rank, (cause, 0))
            self._seen[rank] = cause, lasted + 1 if known == cause else 1
        return [(rank, *found[rank]) for rank, (_, lasted) in self._seen.items() if lasted == LASTS]
