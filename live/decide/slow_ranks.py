"""Reports slow ranks of a running job to its log; `equipoise ranks` diagnoses a whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from equipoise.live.decide.window import LiveWindow
from equipoise.policies.growth import ALL_GROWS, Law
from equipoise.policies.observation import Floats
from equipoise.policies.slow_ranks import SlowRank, slow_ranks

SLOW = 1.25  # times the others' time for the same work, in `LASTS` consecutive windows
LASTS = 2
_LEAST_S = 1e-3  # least extra time per round; less delays no rank


def causes(window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS) -> dict[int, SlowRank]:
    """The slow ranks of a window, with the cause; `device` and `law` as for `policies.slow_ranks`."""
    if not window.rounds or len(window.samples) < 2:
        return {}
    samples = window.each()
    with np.errstate(divide="ignore", invalid="ignore"):
        work = np.where(samples > 0, law.work(samples), np.nan)
        parts = {
            "compute": (window.step_s - window.stall_s - window.fixed_s) / work,
            "input": window.stall_s / work,
            "update": window.fixed_s / work,
        }
        error_s = window.step_s / work * window.step_cov / math.sqrt(window.rounds)
    return slow_ranks(samples, parts, device, law, SLOW, least_s=_LEAST_S, error_s=error_s)


class SlowRanks:
    """Reports each slow rank once, after it has lasted, and again when the cause changes."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, int]] = {}  # by rank: the cause, and windows in a row

    def news(
        self, window: LiveWindow, device: Mapping[str, Floats], law: Law = ALL_GROWS
    ) -> list[tuple[int, SlowRank]]:
        """(rank, why) to report now; `law` as for `causes`."""
        found, before = causes(window, device, law), self._seen
        self._seen = {}
        for rank, slow in found.items():
            known, lasted = before.get(rank, (slow.cause, 0))
            self._seen[rank] = slow.cause, lasted + 1 if known == slow.cause else 1
        return [(rank, found[rank]) for rank, (_, lasted) in self._seen.items() if lasted == LASTS]
