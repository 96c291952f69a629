"""The shared laws as their sources print them, in exact or in plain arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction


def overlapped(work: float, exchange: float, gamma: float) -> float:
    """Pollux, equation 11, scaled so that no power overflows."""
    scale = max(work, exchange)
    return scale * ((work / scale) ** gamma + (exchange / scale) ** gamma) ** (1 / gamma) if scale else 0.0


def speed_at(share: float, kappa: float) -> float:
    return share if not math.isfinite(kappa) else (1 + kappa) * share / (share + kappa)


def efficiency(batch: float, interval: int, phi: float, reference: float, drift: float) -> float:
    value = 1.0
    if phi >= 0 and phi + batch > 0:
        value = (phi + reference) / (phi + batch)
    return min(value / (1 + drift * (interval - 1)) if drift > 0 else value, 1.0)


def rate_worth(rate: float, batch: float, given: float, phi: float) -> float:
    """One step of a quadratic loss with noise, over the same at the best rate; McCandlish et al., 2.4 to 2.7.

    |G|^2 = G H G = 1 and B_noise = phi: the loss falls by e - e^2 (1 + phi / B) / 2, most at e = 1 / (1 + phi / B).
    The job's own rate is the best one at `given`.
    """

    def falls(e: float) -> float:
        return e - e * e * (1 + phi / batch) / 2

    own = 1 / (1 + phi / given)
    return falls(rate * own) / falls(1 / (1 + phi / batch))


def deal(batch: int, weights: list[int], unit: int) -> list[int]:
    """Largest remainder in fractions: ties to the larger weight, then to the first."""
    weights = weights if any(weights) else [1] * len(weights)
    units = batch // unit
    ideal = [Fraction(units * w, sum(weights)) for w in weights]
    dealt = [math.floor(x) for x in ideal]
    order = sorted(range(len(ideal)), key=lambda i: (dealt[i] - ideal[i], -weights[i], i))
    for i in order[: units - sum(dealt)]:
        dealt[i] += 1
    samples = [whole * unit for whole in dealt]
    holders = [i for i, n in enumerate(samples if units else weights) if n > 0]
    samples[holders[0]] += batch - units * unit
    return samples
