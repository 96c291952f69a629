"""Laws shared by stages, the simulator, the fits and a live training job.

Times in s, shares of a GPU 0..1, amounts in samples. Compiled; called from Python they take and return numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from equipoise.policies.kernels.arrays import heapify, sift_down
from equipoise.policies.kernels.jit import ZERO, jit, jit_in_place
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.rate_rules import LINEAR, SCRIPT, SQRT, UNSCALED

_NOISE = 2.0**-30  # a difference below this share of a unit is rounding, not a difference


# -- overlap ---------------------------------------------------------------------------------------------------


@jit_in_place
def exposed_s(work_s: float, exchange_s: float, gamma: float) -> float:
    """How much longer a step and its exchange take than the longer of the two: (L^g + X^g)^(1/g) - max(L, X).

    Qiao et al. 2021 (Pollux), equation 11. All of the shorter one at gamma = 1, where nothing overlaps.
    """
    longer, shorter = max(work_s, exchange_s), min(work_s, exchange_s)
    if gamma == 1.0 or shorter <= 0.0:
        return shorter
    return longer * math.expm1(math.log1p((shorter / longer) ** gamma) / gamma)


@jit_in_place
def hidden_s(work_s: float, exchange_s: float, gamma: float) -> float:
    """Part of the exchange that the step's work hides: L + X - (L^g + X^g)^(1/g)."""
    return min(work_s, exchange_s) - exposed_s(work_s, exchange_s, gamma)


@jit_in_place
def overlapped_s(work_s: float, exchange_s: float, gamma: float) -> float:
    """A step with its exchange: (L^g + X^g)^(1/g)."""
    return max(work_s, exchange_s) + exposed_s(work_s, exchange_s, gamma)


@jit_in_place
def _overlapped_each(work_s: Floats, exchange_s: Floats, gamma: float, both_s: Floats) -> None:
    for k in range(both_s.size):
        both_s[k] = overlapped_s(work_s[k], exchange_s[k], gamma)


def overlapped_each(work_s: npt.ArrayLike, exchange_s: npt.ArrayLike, gamma: float) -> Floats:
    """`overlapped_s` of arrays (or numbers), broadcast."""
    work, exchange = np.broadcast_arrays(np.asarray(work_s, np.float64), np.asarray(exchange_s, np.float64))
    both_s = np.empty(work.shape)
    _overlapped_each(work.flatten(), exchange.flatten(), gamma, both_s.reshape(-1))
    return both_s


# -- speed of a worker ------------------------------------------------------------------------------------------


def sustainable(*samples_per_s: Floats) -> Floats:
    """Samples/s that a worker can sustain: the minimum of computing, preprocessing and reading its data.

    (workers,) each; an unknown value (NaN) is no limit. NaN where all are unknown.
    """
    least: Floats = np.fmin.reduce(samples_per_s)
    return least


def response_s_per_sample(busy_s: Floats, stall_s: Floats, samples: Floats, keeps_up: Floats) -> Floats:
    """Mean seconds per sample, input waits included: computing and stalls of the window over its samples.

    (workers,) each. At least 1 / `keeps_up` (`sustainable`): reading ahead does not make a worker faster. NaN for a
    worker that did nothing. Waits for other workers are excluded: they do not depend on this one.
    """
    response_s = np.full(len(samples), np.nan)
    np.divide(busy_s + stall_s, samples, out=response_s, where=samples > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        longest: Floats = np.where(keeps_up * response_s < 1.0 - _NOISE, 1.0 / keeps_up, response_s)
    return longest


# -- shares of a GPU -------------------------------------------------------------------------------------------


@jit_in_place
def speed_at(share: float, kappa: float) -> float:
    """Speed on a fraction f of a GPU relative to all of it: (1 + kappa) f / (f + kappa), after Amdahl 1967.

    Proportional where kappa is infinite or not known (NaN).
    """
    if not math.isfinite(kappa):
        return share
    return (1.0 + kappa) * share / (share + kappa)


@jit_in_place
def share_for(speed: float, kappa: float) -> float:
    """The fraction at which `speed` is reached: the inverse of `speed_at`."""
    if not math.isfinite(kappa):
        return speed
    return kappa * speed / (1.0 + kappa - speed)


# -- learning --------------------------------------------------------------------------------------------------


@jit_in_place
def efficiency(batch: float, interval: float, noise_scale: float, reference: float, drift: float) -> float:
    """Statistical efficiency of one sample: (phi + M0) / (phi + M) / (1 + kappa_d (H - 1)), at most 1.

    McCandlish et al. 2018 and Qiao et al. 2021 (Pollux, section 3.1) for the batch, Stich 2019 for local
    steps. An unknown noise scale or drift (negative or NaN) costs nothing.
    """
    value = 1.0 / (1.0 + drift * (interval - 1)) if drift > 0.0 else 1.0
    if noise_scale >= 0.0 and noise_scale + batch > 0.0:
        value *= (noise_scale + reference) / (noise_scale + batch)
    return min(value, 1.0)


_LEAST_WORTH = 0.01  # of a step at a rate at which nothing is learnt, so that its job ends


@jit_in_place
def best_rate(batch: float, given: float, noise_scale: float, adaptive: bool) -> float:
    """The best learning rate at `batch` over the best one at `given`, for which the job's own was chosen.

    SGD: M (phi + M') / (M' (phi + M)), McCandlish et al. 2018, equation 2.6, which is the gain of AdaScale (Johnson
    et al. 2020); 1 where the noise scale is not known (negative or NaN). Adaptive optimizers: sqrt(M / M'),
    Malladi et al. 2022.
    """
    if adaptive:
        return math.sqrt(batch / given)
    if noise_scale >= 0.0 and noise_scale + batch > 0.0:
        return batch * (noise_scale + given) / (given * (noise_scale + batch))
    return 1.0


@jit_in_place
def ruled_rate(batch: float, given: float, noise_scale: float, rule: int) -> float:
    """Factor on a job's own learning rate at `batch`, by its rule."""
    if rule == LINEAR:
        return batch / given
    if rule in (UNSCALED, SCRIPT):
        return 1.0
    return best_rate(batch, given, noise_scale, rule == SQRT)


@jit_in_place
def rate_worth(rate: float, batch: float, given: float, noise_scale: float, rule: int) -> float:
    """Worth of a step at `rate` times a job's own learning rate, relative to one at the best rate: x (2 - x).

    x is the rate over the best one, where the loss is quadratic in the step: McCandlish et al. 2018, equation 2.5.
    At twice the best rate nothing is learnt; at least 0.01. 1 for a script that scales the rate itself, and for SGD
    with an unknown noise scale.
    """
    if rule == SCRIPT or (rule != SQRT and not noise_scale >= 0.0):
        return 1.0
    x = rate / best_rate(batch, given, noise_scale, rule == SQRT)
    return max(x * (2.0 - x), _LEAST_WORTH)


# -- whole samples ---------------------------------------------------------------------------------------------


@jit
def largest_remainder(ideal: Floats, units: int, low: int, cap: Ints) -> Ints:
    """Whole units that sum to `units`, as close to `ideal` as possible, each in low .. cap[i].

    Largest remainders are rounded up, among equal ones the larger share (a faster worker needs less time for
    a unit), then the lower index. Needs low * n <= units <= sum(cap).
    """
    dealt, worker = np.empty(ideal.size, dtype=np.int64), np.empty(ideal.size, dtype=np.int64)
    deal_remainders(ideal, units, low, cap, dealt, worker, np.empty(ideal.size))
    return dealt


@jit_in_place
def deal_remainders(ideal: Floats, units: int, low: int, cap: Ints, dealt: Ints, worker: Ints, key: Floats) -> None:
    """`largest_remainder` into `dealt`; `worker` and `key` are scratch, all as long as `ideal`."""
    left = units
    for i in range(ideal.size):
        dealt[i] = min(max(math.floor(ideal[i] + _NOISE), low), cap[i])
        left -= dealt[i]
    if left == 0:
        return
    step = 1 if left > 0 else -1
    for i in range(ideal.size):
        worker[i] = i
        key[i] = _excess(dealt[i], ideal[i], units, step, low, cap[i])
    heapify(key, worker, key.size)
    while left != 0:
        i = worker[0]
        dealt[i] += step
        left -= step
        key[0] = _excess(dealt[i], ideal[i], units, step, low, cap[i])
        sift_down(key, worker, key.size, ZERO)


@jit_in_place
def _excess(dealt: int, ideal: float, units: int, step: int, low: int, cap: int) -> float:
    """Distance of a worker beyond its ideal in the direction of `step`, in whole rounding steps.

    The fraction decides between equals; infinite where another step would leave the bounds.
    """
    if (dealt >= cap) if step > 0 else (dealt <= low):
        return np.inf
    return math.floor((dealt - ideal) * step / _NOISE) - step * ideal / (units + 1)


def deal(batch: int, weights: Sequence[int] | Sequence[float] | Ints | Floats, unit: int = 1) -> Ints:
    """Split `batch` samples in proportion to `weights`, in whole units, by `largest_remainder`.

    A worker without weight gets nothing; all weights zero: equal parts. A remainder below one unit goes to the first
    worker with any units, or with any weight if there is not one unit.
    """
    weight = np.asarray(weights, dtype=np.float64)
    if not weight.any():
        weight = np.ones_like(weight)
    units = batch // unit
    most = np.where(weight > 0.0, units, 0)
    dealt: Ints = largest_remainder(units * weight / weight.sum(), units, 0, most) * unit
    dealt[int(np.argmax((dealt if units else weight) > 0))] += batch - units * unit
    return dealt
