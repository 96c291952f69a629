"""Randomness that does not depend on the order or the size of the time advance.

Step noise comes from a counter-based generator keyed by what the number is for (seed, job, worker, step), so
any step's noise can be computed at any time. Arrivals and faults use NumPy's Philox in named streams.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from policies.jit import jit

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_TWO_PI = 2.0 * math.pi


@jit
def philox4x32(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3).

    Counter and key words are given and returned as uint64 below 2**32.
    """
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@jit
def noise_pair(key: int, pair: int, step: int, mu: float, sigma: float) -> tuple[float, float]:
    """Log-normal noise exp(mu + sigma*z) of workers 2*pair and 2*pair+1 at local step `step`.

    One Philox block gives two 53-bit uniforms and by Box and Muller (1958) two normals.
    """
    k, s = np.uint64(key), np.uint64(step)
    a, b, c, d = philox4x32(s & _LOW, s >> _32, np.uint64(pair), np.uint64(0), k & _LOW, k >> _32)
    u = ((a >> np.uint64(5)) * 67108864.0 + (b >> np.uint64(6)) + 1.0) * (1.0 / 9007199254740992.0)
    v = ((c >> np.uint64(5)) * 67108864.0 + (d >> np.uint64(6))) * (1.0 / 9007199254740992.0)
    radius, angle = sigma * math.sqrt(-2.0 * math.log(u)), _TWO_PI * v
    return math.exp(mu + radius * math.cos(angle)), math.exp(mu + radius * math.sin(angle))


@jit
def noise(key: int, worker: int, step: int, mu: float, sigma: float) -> float:
    """Noise of one worker at one local step; 1 when sigma is 0."""
    if sigma == 0.0:
        return 1.0
    even, odd = noise_pair(key, worker // 2, step, mu, sigma)
    return odd if worker % 2 else even


def lognormal_parameters(cov: float) -> tuple[float, float]:
    """(mu, sigma) of a log-normal with mean 1 and coefficient of variation `cov`."""
    variance = math.log1p(cov * cov)
    return -0.5 * variance, math.sqrt(variance)


def _digest(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def noise_key(seed: int, name: str) -> int:
    """The generator key (63 bits) of a job's noise."""
    return int.from_bytes(_digest(seed, name)[:8], "little") >> 1


def stream(seed: int, name: str) -> np.random.Generator:
    """NumPy generator (Philox 4x64) of a named stream; streams do not depend on each other's use."""
    words = np.frombuffer(_digest(seed, name), dtype=np.uint32).tolist()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
