"""How the measured norm of a worker's gradient varies."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.kernels.jit import ZERO
from equipoise.policies.observation import Floats
from equipoise.sim.randomness import noise_row, noise_space

DIMENSIONS = 100
"""Assumed number of independent parts of a gradient's noise: of the many parameters few directions vary."""


def mean_norm(progress: float, noise_ratio: Floats) -> Floats:
    """G * sqrt(1 + r) with G = exp(-progress) and r = phi / b (`noise_ratio`), (workers,).

    It falls as training goes on, its noise with the samples (McCandlish et al. 2018, section 2.2).
    """
    norm: Floats = math.exp(-progress) * np.sqrt(1.0 + noise_ratio)
    return norm


def norm_noise(key: int, exchanges: int, noise_ratio: Floats, steps: int) -> Floats:
    """Random factor of the gradient norm averaged over a number of steps, (workers,), with mean 1.

    The part r / (1 + r) of the squared norm is noise. Like that of a vector with `DIMENSIONS` independent parts it
    varies by sqrt(2 / DIMENSIONS), its root by half of that. The draw depends only on the number of exchanges.
    """
    part = np.nan_to_num(noise_ratio / (1.0 + noise_ratio), nan=1.0)
    n = len(part)
    row = np.empty(n + n % 2)
    noise_row(key, exchanges, ZERO, 0.0, 1.0, noise_space(n), row)
    variance = np.log1p((0.5 * part) ** 2 * 2.0 / DIMENSIONS / max(1, steps))
    factor: Floats = np.exp(np.sqrt(variance) * np.log(row[:n]) - 0.5 * variance)
    return factor
