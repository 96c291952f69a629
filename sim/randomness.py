"""Randomness that does not depend on the order or the size of the time advance.

Step noise comes from a counter-based generator keyed by what the number is for (seed, job, worker, step), so
any step's noise can be computed at any time. Arrivals and faults use NumPy's Philox in named streams.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.kernels.jit import ZERO, jit_in_place, jit_in_place_for_both
from equipoise.policies.observation import Floats

Word = np.uint64
Words = NDArray[np.uint64]
Space = tuple[Words, Words, Words, Words, Floats, Floats, Floats]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_ONE = np.uint64(0x3FF0000000000000)  # bits of 1.0; with 52 random bits below: a number in [1, 2)
_12, _20 = np.uint64(12), np.uint64(20)
_MANTISSA = 0xFFFFFFFFFFFFF
_LOG2_E, _LN2 = 1.0 / math.log(2.0), math.log(2.0)
_LN2_HIGH = math.ldexp(math.floor(math.ldexp(_LN2, 32)), -32)  # exact when multiplied by a small integer
_LN2_LOW = float(Fraction("0.693147180559945309417232121458176568") - Fraction(_LN2_HIGH))
_TWO_52 = float(2**52)


@jit_in_place
def philox4x32(c0: Words, c1: Words, c2: Words, c3: Words, key0: Word, key1: Word) -> None:
    """Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3), in place.

    Counters are four (n,) arrays of words, key words and counters are uint64 below 2**32.
    """
    for p in range(c0.size):
        a, b, c, d, k0, k1 = c0[p], c1[p], c2[p], c3[p], key0, key1
        for _ in range(10):
            p0 = _M0 * (a & _LOW)
            p1 = _M1 * (c & _LOW)
            a = (p1 >> _32) ^ b ^ k0
            b = p1 & _LOW
            c = (p0 >> _32) ^ d ^ k1
            d = p0 & _LOW
            k0 = (k0 + _W0) & _LOW
            k1 = (k1 + _W1) & _LOW
        c0[p], c1[p], c2[p], c3[p] = a, b, c, d


# The functions below are written without branches and calls to the C library, so that the compiler works on
# several workers at once, and so that every machine gives the same bits.


@jit_in_place
def _log_mantissa(m: float) -> float:
    """ln(m) for m in [1/sqrt(2), sqrt(2)]: 2 artanh((m - 1) / (m + 1)) by its series, error below 1e-16."""
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    t = 1.0 / 21.0
    t = t * s + 1.0 / 19.0
    t = t * s + 1.0 / 17.0
    t = t * s + 1.0 / 15.0
    t = t * s + 1.0 / 13.0
    t = t * s + 1.0 / 11.0
    t = t * s + 1.0 / 9.0
    t = t * s + 1.0 / 7.0
    t = t * s + 1.0 / 5.0
    t = t * s + 1.0 / 3.0
    return 2.0 * f * (t * s + 1.0)


@jit_in_place
def _cos_sin_turn(v: float) -> tuple[float, float]:
    """(cos, sin) of v turns, v in [0, 1), by Taylor series within an eighth of a turn."""
    quarter = math.floor(4.0 * v + 0.5)
    a = (v - 0.25 * quarter) * (2.0 * math.pi)
    s = a * a
    sine = -1.0 / 1307674368000.0
    sine = sine * s + 1.0 / 6227020800.0
    sine = sine * s - 1.0 / 39916800.0
    sine = sine * s + 1.0 / 362880.0
    sine = sine * s - 1.0 / 5040.0
    sine = sine * s + 1.0 / 120.0
    sine = sine * s - 1.0 / 6.0
    sine = a + a * s * sine
    cosine = 1.0 / 20922789888000.0
    cosine = cosine * s - 1.0 / 87178291200.0
    cosine = cosine * s + 1.0 / 479001600.0
    cosine = cosine * s - 1.0 / 3628800.0
    cosine = cosine * s + 1.0 / 40320.0
    cosine = cosine * s - 1.0 / 720.0
    cosine = cosine * s + 1.0 / 24.0
    cosine = 1.0 + s * (cosine * s - 0.5)
    odd = (quarter == 1.0) or (quarter == 3.0)
    x = sine if odd else cosine
    y = cosine if odd else sine
    x = -x if (quarter == 1.0) or (quarter == 2.0) else x
    y = -y if (quarter == 2.0) or (quarter == 3.0) else y
    return x, y


@jit_in_place
def _exp_mantissa(x: float) -> tuple[float, float]:
    """exp(x) as (p, k) with p * 2**k, p in [1/sqrt(2), sqrt(2)], by Taylor series, for |x| < 700."""
    k = math.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    t = 1.0 / 6227020800.0
    t = t * r + 1.0 / 479001600.0
    t = t * r + 1.0 / 39916800.0
    t = t * r + 1.0 / 3628800.0
    t = t * r + 1.0 / 362880.0
    t = t * r + 1.0 / 40320.0
    t = t * r + 1.0 / 5040.0
    t = t * r + 1.0 / 720.0
    t = t * r + 1.0 / 120.0
    t = t * r + 1.0 / 24.0
    t = t * r + 1.0 / 6.0
    t = t * r + 0.5
    t = t * r + 1.0
    return t * r + 1.0, k


def noise_space(workers: int) -> Space:
    """Working space of `noise_row`: four words and a radius a pair, an exponent and another factor a worker."""
    pairs = (workers + 1) // 2
    a, b, c, d = np.zeros((4, pairs), np.uint64)
    return a, b, c, d, np.zeros(pairs), np.zeros(2 * pairs), np.zeros(2 * pairs)


@jit_in_place_for_both
def noise_row(key: int, step: int, first: int, mu: float, sigma: float, space: Space, factor: Floats) -> None:
    """Log-normal noise exp(mu + sigma*z) of workers 2*first, 2*first + 1, ... at local step `step`.

    Fills `factor` (2 * pairs,). One Philox block gives two 52-bit uniforms and by Box and Muller (1958) two
    normals, one for each worker of a pair.
    """
    a, b, c, d, radius, shifted, _ = space
    pairs = radius.size
    k, s = np.uint64(key), np.uint64(step)
    for p in range(pairs):
        a[p], b[p], c[p], d[p] = s & _LOW, s >> _32, np.uint64(np.uint32(first + p)), np.uint64(0)
    philox4x32(a, b, c, d, k & _LOW, k >> _32)
    for p in range(pairs):
        a[p] = (a[p] << _20) | (b[p] >> _12) | _ONE
        c[p] = (c[p] << _20) | (d[p] >> _12) | _ONE
    u, v = a.view(np.float64), c.view(np.float64)
    for p in range(pairs):
        radius[p] = 2.0 - u[p]  # in (0, 1]
    bits = radius.view(np.int64)
    for p in range(pairs):
        word = bits[p]
        factor[p] = np.float64(np.int32(word >> 52)) - 1023.0
        bits[p] = (word & _MANTISSA) | 0x3FF0000000000000
    for p in range(pairs):
        m, e = radius[p], factor[p]
        large = m > 1.4142135623730951
        m = m * 0.5 if large else m
        e = e + 1.0 if large else e
        radius[p] = sigma * math.sqrt(-2.0 * (e * _LN2 + _log_mantissa(m)))
    for p in range(pairs):
        x, y = _cos_sin_turn(v[p] - 1.0)
        shifted[2 * p] = mu + radius[p] * x
        shifted[2 * p + 1] = mu + radius[p] * y
    for w in range(2 * pairs):
        factor[w], exponent = _exp_mantissa(shifted[w])
        shifted[w] = exponent + 1023.0 + _TWO_52  # the exponent field, in the low bits
    scale = shifted.view(np.int64)
    for w in range(2 * pairs):
        scale[w] <<= 52
    for w in range(2 * pairs):
        factor[w] *= shifted[w]


class StepNoise(NamedTuple):
    """How the steps of a job vary, as spreads of logarithms that add up; see `step_noise`.

    sigma is drawn anew for every step and worker, lasting_sigma for every `lasting_steps` steps of a worker,
    common_sigma for every step of all workers. A draw above tail_level makes a step tail_factor times as long.
    """

    key: int
    mu: float
    sigma: float
    lasting_sigma: float
    lasting_steps: int
    common_sigma: float
    tail_level: float
    tail_factor: float
    varies: bool


@jit_in_place_for_both
def step_noise_row(noise: StepNoise, step: int, first: int, space: Space, factor: Floats) -> None:
    """Noise of workers 2*first, 2*first + 1, ... at local step `step` into `factor` (2 * pairs,)."""
    noise_row(noise.key, step, first, noise.mu, noise.sigma, space, factor)
    other = space[6]
    if noise.lasting_sigma != 0.0:
        block = step // noise.lasting_steps
        noise_row(noise.key ^ 1, block, first, 0.0, noise.lasting_sigma, space, other)
        for w in range(other.size):
            factor[w] *= other[w]
    if noise.common_sigma != 0.0:
        noise_row(noise.key ^ 2, step, ZERO, 0.0, noise.common_sigma, space, other)
        for w in range(other.size):
            factor[w] *= other[0]
    if noise.tail_factor != 1.0:
        noise_row(noise.key ^ 3, step, first, 0.0, 1.0, space, other)
        for w in range(other.size):
            factor[w] *= noise.tail_factor if other[w] > noise.tail_level else 1.0


def noise(noise: StepNoise, worker: int, step: int) -> float:
    """Noise of one worker at one local step; 1 when nothing varies."""
    if not noise.varies:
        return 1.0
    factor = np.empty(2)
    step_noise_row(noise, step, worker // 2, noise_space(2), factor)
    return float(factor[worker % 2])


def step_noise(
    key: int,
    cov: float,
    lasting_share: float = 0.0,
    lasting_steps: int = 1,
    common_share: float = 0.0,
    tail_chance: float = 0.0,
    tail_factor: float = 1.0,
) -> StepNoise:
    """The noise of a job: log-normal with mean 1 and coefficient of variation `cov`, and rare long steps.

    Of the variance of the logarithm, common_share is the same for all workers of a step, and lasting_share of the
    rest stays for lasting_steps steps. A step is tail_factor times as long with tail_chance, on top of the mean.
    """
    mu, sigma = lognormal_parameters(cov)
    tailed = tail_chance > 0.0 and tail_factor != 1.0
    return StepNoise(
        key,
        mu,
        sigma * math.sqrt((1.0 - common_share) * (1.0 - lasting_share)),
        sigma * math.sqrt((1.0 - common_share) * lasting_share),
        lasting_steps,
        sigma * math.sqrt(common_share),
        math.exp(-NormalDist().inv_cdf(min(tail_chance, 1.0 - 1e-12))) if tailed else math.inf,
        tail_factor if tailed else 1.0,
        sigma != 0.0 or tailed,
    )


def gpu_times(seed: int, nodes: Mapping[str, int], cov: float, slow: float = 0.0, slow_speed: float = 1.0) -> Floats:
    """Persistent time of each GPU over that of the typical one: log-normal, mean 1; nodes: GPUs by name.

    A share `slow` of the nodes has in addition `slow_speed`, drawn by node.
    """
    mu, sigma = lognormal_parameters(cov)
    times: Floats = np.ones(sum(nodes.values()))
    if cov:
        drawn = [stream(seed, f"gpu speed:{name}").standard_normal(gpus) for name, gpus in nodes.items()]
        times = np.exp(mu + sigma * np.concatenate(drawn))
    if slow:
        is_slow = [stream(seed, f"slow node:{name}").random() < slow for name in nodes]
        times[np.repeat(is_slow, list(nodes.values()))] /= slow_speed
    return times


def estimate_factors(seed: int, names: Sequence[str], spread: float) -> Floats:
    """Estimated over real duration of each job, (jobs,): log-normal with median 1, by the job's name."""
    factor, drawn, space = np.ones(len(names)), np.empty(2), noise_space(2)
    for k, name in enumerate(names if spread else ()):
        noise_row(noise_key(seed, f"estimate:{name}"), 0, 0, 0.0, spread, space, drawn)
        factor[k] = drawn[0]
    return factor


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
