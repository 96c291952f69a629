"""Philox 4x32-10 written out in plain integers, the oracle of `sim.randomness`."""

from __future__ import annotations

import math
from statistics import NormalDist

MASK = 0xFFFFFFFF


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for round_ in range(10):
        if round_:
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
    return c


def noise(key: int, worker: int, step: int, mu: float, sigma: float) -> float:
    if sigma == 0:
        return 1.0
    a, b, c, d = philox([step & MASK, step >> 32, worker // 2, 0], [key & MASK, key >> 32])
    u = 1 - ((a << 20) | (b >> 12)) / 2**52
    v = ((c << 20) | (d >> 12)) / 2**52
    radius, angle = math.sqrt(-2 * math.log(u)), 2 * math.pi * v
    return math.exp(mu + sigma * radius * (math.sin(angle) if worker % 2 else math.cos(angle)))


def step_noise(
    key: int,
    cov: float,
    lasting: float,
    steps: int,
    common: float,
    chance: float,
    factor: float,
    worker: int,
    step: int,
) -> float:
    """The sum of a step's, a stretch's and all workers' logarithms, and a rare long step."""
    if cov == 0 and (chance == 0 or factor == 1):
        return 1.0
    variance = math.log1p(cov * cov)
    own, stays, shared = (
        math.sqrt(variance * part) for part in ((1 - common) * (1 - lasting), (1 - common) * lasting, common)
    )
    found = math.exp(-variance / 2) * noise(key, worker, step, 0.0, own)
    found *= noise(key ^ 1, worker, step // steps, 0.0, stays) * noise(key ^ 2, 0, step, 0.0, shared)
    rare = chance > 0 and math.log(noise(key ^ 3, worker, step, 0.0, 1.0)) > -NormalDist().inv_cdf(chance)
    return found * (factor if rare else 1.0)
