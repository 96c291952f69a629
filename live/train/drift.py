"""Drift of replicas in local steps: measured at an exchange of all ranks, from a sample of parameters.

D_H = mean|delta_i|^2 / |mean delta|^2 - 1 over the movements delta_i of the replicas in H local steps, weighted as
their mean is. Gradient noise alone contributes (R - 1) q / (H + q), with q = phi / B (phi the noise
scale, B the global batch, R the ranks): R sums of H independent noises against their mean. What is left is drift,
kappa_d = (D_H - noise) / (H - 1). With two levels (`policies.levels`) a fraction `ratio` of it grows over all t steps
since all met, the rest over the last H: noise is (R - 1) q h / (t^2 + t q) with h = ratio t + (1 - ratio) H, and
kappa_d is taken over h - 1. The noise is that of plain SGD; momentum averages noise over fewer independent steps,
so that with it (and with Adam) drift is overestimated and intervals are too short. The same holds if ranks have
different data distributions: their disagreement counts in full, though part of it averages out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from equipoise.live.train.gradients import mean_of_pairs
from equipoise.policies.levels import mean_interval

_SAMPLED = 2**20  # about the largest number of parameters in the sample


class Movement:
    """Squares of one replica's movements between exchanges of all ranks, since they were last taken."""

    def __init__(self) -> None:
        self._start: torch.Tensor | None = None
        self._sums: list[torch.Tensor] = []  # own squared distance from the mean, and the mean's square

    def begin(self, parameters: Sequence[torch.Tensor]) -> None:
        """Start a period: all replicas are equal now."""
        self._start = _sample(parameters)

    def forget(self) -> None:
        """Discard the measurements."""
        self._start, self._sums = None, []

    def own(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """This replica's movement right before the exchange; None if no period was started."""
        return None if self._start is None else _sample(parameters)

    def add(self, own: torch.Tensor, mean: Sequence[torch.Tensor], weight: float) -> None:
        """Add an exchange: `mean` is the averaged parameters, `weight` is this replica's weight."""
        assert self._start is not None
        met = _sample(mean)
        apart = (own - met).double().square().sum() * weight if weight > 0.0 else torch.zeros(())
        found = torch.stack((apart.to(met.device, torch.float64), (met - self._start).double().square().sum()))
        self._sums = [self._sums[0] + found] if self._sums else [found]

    def take(self) -> tuple[float, float]:
        """(own part of sum_i w_i |delta_i - mean|^2, |mean|^2) over the exchanges since the last call; or NaN."""
        sums, self._sums = self._sums, []
        return (math.nan, math.nan) if not sums else (float(sums[0][0]), float(sums[0][1]))


def _sample(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    every = max(1, math.ceil(sum(p.numel() for p in parameters) / _SAMPLED))
    parts = [p.detach().reshape(-1)[::every] for p in parameters]
    halves = (torch.float16, torch.bfloat16)
    return torch.cat([p.float() if p.dtype in halves else p.clone() for p in parts])


class Drift:
    """kappa_d from the reports of all ranks, smoothed over windows; `assumed` until the first measurement."""

    def __init__(self, assumed: float, least: float, keep: float = 0.8) -> None:
        """`least`: lower bound of the drift."""
        self.assumed, self.least, self.keep = assumed, least, keep
        self.parts: tuple[float, float] = (math.nan, math.nan)  # smoothed D_H less noise, and H - 1

    def add(
        self, apart: float, mean_square: float, ranks: int, noise_ratio: float, interval: int, every: int, ratio: float
    ) -> None:
        """Take one window: squares summed over its exchanges of `ranks` replicas that trained.

        `noise_ratio`: noise scale over global batch (NaN: unknown, nothing is subtracted); `interval` and `every`:
        local steps per exchange, and exchanges per exchange of all; `ratio`: as `policies.levels.far_ratio`.
        """
        reach, steps = mean_interval(interval, every, ratio), interval * every
        if not (math.isfinite(apart) and 0.0 < mean_square < math.inf) or steps < 2 or ranks < 2:
            return
        q = max(noise_ratio, 0.0) if math.isfinite(noise_ratio) else 0.0
        noise = (ranks - 1) * q * reach / (steps * (steps + q))
        new = (apart / mean_square - noise, reach - 1.0)
        self.parts = mean_of_pairs(self.parts, new, self.keep)

    @property
    def value(self) -> float:
        """kappa_d, efficiency lost per extra local step."""
        above, steps = self.parts
        return self.assumed if math.isnan(above) else max(above / steps, self.least)
