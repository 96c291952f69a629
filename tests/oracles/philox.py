"""Philox 4x32-10 written out in plain integers, the oracle of `sim.randomness`."""

from __future__ import annotations

import math

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
