"""The fits: exact on clean data, right within their intervals on noisy data, clear about unusable data."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from equipoise.calibrate.fit import pieces as fit_pieces
from equipoise.calibrate.fit.fits import (
    fit_interference,
    fit_overlap,
    fit_share_curve,
    fit_step_time,
    leave_one_size_out,
)
from equipoise.calibrate.fit.gemm import fit_gemm_efficiency, leave_shapes_out
from equipoise.calibrate.fit.pieces import fit_collective
from equipoise.calibrate.fit.robust import fit_level
from equipoise.calibrate.fit.thermal import fit_thermal, fit_throttle

Floats = npt.NDArray[np.float64]
DRAWS = 100


def noisy(random: np.random.Generator, truth: Floats, noise: float = 0.1, outliers: float = 0.05) -> Floats:
    """10 % normal noise; 5 % of the samples 2 to 10 times too slow."""
    values = np.maximum(truth * (1.0 + noise * random.standard_normal(truth.shape)), 0.05 * truth)
    slow = random.random(truth.shape) < outliers
    return np.where(slow, truth * random.uniform(2.0, 10.0, truth.shape), values)


# -- intervals hold the truth ------------------------------------------------------------------------------


def step(random: np.random.Generator) -> list[bool]:
    batch = np.repeat([1, 2, 4, 8, 16, 32], 8)
    fit = fit_step_time(batch, noisy(random, 0.012 + 0.003 * batch))
    return [fit.fixed_s.contains(0.012), fit.per_unit_s.contains(0.003)]


def bandwidth(random: np.random.Generator) -> list[bool]:
    size = np.repeat(2.0 ** np.arange(12, 30, 2), 8)
    fit = fit_step_time(size, noisy(random, 5e-6 + size / 3e12))
    return [fit.fixed_s.contains(5e-6), fit.per_unit_s.contains(1 / 3e12)]


def share(random: np.random.Generator) -> list[bool]:
    f, kappa = np.repeat([0.125, 0.25, 0.5, 0.75, 1.0], 8), 0.4
    seconds = noisy(random, 1.0 / (100.0 * (1 + kappa) * f / (f + kappa)))
    return [fit_share_curve(f, 1.0 / seconds).kappa.contains(kappa)]


def interference(random: np.random.Generator) -> list[bool]:
    utilisation = np.repeat([0, 0.5, 1.0, 2.0], 8)
    return [fit_interference(utilisation, noisy(random, 1 + 0.3 * utilisation)).slope.contains(0.3)]


def one_piece(random: np.random.Generator) -> list[bool]:
    size = np.repeat(2.0 ** np.arange(10, 30), 8)
    pieces = fit_collective(size, noisy(random, 2e-5 + size / 1e11)).pieces
    return [pieces[0].alpha_s.contains(2e-5), pieces[-1].beta_s_per_byte.contains(1e-11), len(pieces) == 1]


def two_pieces(random: np.random.Generator) -> list[bool]:
    size = np.repeat(2.0 ** np.arange(10, 30), 8)
    truth = np.where(size < 1e6, 1e-5 + size / 2e10, 6e-5 + size / 2e11)
    pieces = fit_collective(size, noisy(random, truth)).pieces
    return [pieces[0].alpha_s.contains(1e-5), pieces[-1].beta_s_per_byte.contains(5e-12), len(pieces) == 2]


def link_floor(random: np.random.Generator) -> list[bool]:
    """One-sided noise at the 10 % quantile, which is the 10 / 95 one of the 95 % that are no outliers."""
    size = np.repeat(2.0 ** np.arange(10, 30), 20)
    seconds = (2e-5 + size / 1e11) * (1 + 0.1 * random.exponential(size=size.shape))
    seconds = np.where(random.random(size.shape) < 0.05, 4 * seconds, seconds)
    first = fit_collective(size, seconds, quantile=0.1).pieces[0]
    floor = 1 - 0.1 * np.log(1 - 0.1 / 0.95)
    return [first.alpha_s.contains(2e-5 * floor), first.beta_s_per_byte.contains(1e-11 * floor)]


def overlap(random: np.random.Generator) -> list[bool]:
    compute, exchange = np.repeat([0.05, 0.1, 0.2], 10), np.tile([0.02, 0.05, 0.1, 0.2, 0.3], 6)
    together = (compute**2.5 + exchange**2.5) ** 0.4
    return [fit_overlap(compute, exchange, noisy(random, together)).gamma.contains(2.5)]


def level(random: np.random.Generator) -> list[bool]:
    seconds, rounds = noisy(random, np.full(100, 1e-3)), np.repeat(np.arange(5), 20)
    return [fit_level(seconds, rounds).contains(1e-3), fit_level(seconds).contains(1e-3)]


@pytest.mark.long
@pytest.mark.parametrize(
    "one_draw",
    [step, bandwidth, share, interference, one_piece, two_pieces, link_floor, overlap, level],
    ids=lambda f: f.__name__,
)
def test_intervals_hold_the_truth_in_90_of_100_noisy_draws(
    one_draw: Callable[[np.random.Generator], list[bool]],
) -> None:
    hits = np.sum([one_draw(np.random.default_rng(seed)) for seed in range(DRAWS)], axis=0)
    assert (hits >= 90).all(), f"{one_draw.__name__}: {hits.tolist()} of {DRAWS}"


def heat(resistance: float, tau: float, ambient: float) -> tuple[Floats, Floats, Floats]:
    time = np.arange(0.0, 180.0)
    power = np.where((time > 20) & (time < 120), 600.0, 90.0)
    temperature = [35.0]
    for watts in power[:-1]:
        decay = np.exp(-1.0 / tau)
        temperature.append(temperature[-1] * decay + (1 - decay) * (ambient + resistance * watts))
    return time, power, np.array(temperature)


@pytest.mark.long
def test_thermal_intervals_hold_the_truth_in_90_of_100_noisy_draws() -> None:
    time, power, clean = heat(0.07, 15.0, 28.0)
    hits = np.zeros(3)
    for seed in range(DRAWS):
        random = np.random.default_rng(seed)
        readings = clean + 0.1 * (clean - 28.0).mean() * random.standard_normal(len(time))
        readings = np.where(random.random(len(time)) < 0.05, readings + 20.0, readings)
        fit = fit_thermal(time, power, readings, seed)
        hits += [fit.resistance_c_per_w.contains(0.07), fit.tau_s.contains(15.0), fit.ambient_c.contains(28.0)]
    assert (hits >= 90).all(), hits


# -- clean data --------------------------------------------------------------------------------------------


def test_speed_at_full_share_is_one_and_limits_are_met() -> None:
    shares = np.array([0.25, 0.5, 1.0])
    saturated = fit_share_curve(shares, np.ones(3))
    assert saturated.kappa.value == 0.0
    proportional = fit_share_curve(shares, shares)
    assert proportional.predict(shares) == pytest.approx(shares, rel=2e-3)
    assert proportional.predict([1.0])[0] == 1.0


def test_throttling_is_none_when_the_threshold_was_never_reached() -> None:
    assert fit_throttle([60.0, 70.0, 80.0], [1.0, 1.0, 1.0], 87.0) is None
    temperature = np.array([80.0, 88, 89, 90, 91, 92])
    fit = fit_throttle(temperature, 1.0 - 0.02 * np.maximum(temperature - 87.0, 0.0), 87.0)
    assert fit is not None
    assert fit.slope_per_c.value == pytest.approx(0.02)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_intervals_over_few_rounds_hold_the_truth_and_stay_of_use(count: int) -> None:
    held, widths = 0, []
    for seed in range(200):
        random = np.random.default_rng(seed)
        rounds = np.repeat(np.arange(count), 20)
        level = 1e-3 * random.normal(1.0, 0.02, count)[rounds]
        found = fit_level(level * random.normal(1.0, 0.01, len(rounds)), rounds)
        held += found.contains(1e-3)
        widths.append(found.high / found.low - 1.0)
    assert held >= 0.93 * 200
    assert max(widths) < 0.35, "two rounds that happen to differ do not make an interval of decades"


def test_a_level_with_rounds_widens_for_what_changes_between_rounds() -> None:
    random = np.random.default_rng(0)
    drift = np.repeat([1.0, 1.1, 0.9, 1.05], 50)
    values = drift * (1 + 0.001 * random.standard_normal(200))
    rounds = np.repeat(np.arange(4), 50)
    with_rounds, without = fit_level(values, rounds), fit_level(values)
    assert with_rounds.high - with_rounds.low > 3 * (without.high - without.low)
    assert with_rounds.contains(1.0)


# -- plain twins -------------------------------------------------------------------------------------------


def naive_squared_error(size: Floats, level: Floats) -> float:
    """Least squared relative error of alpha + beta * size, alpha and beta >= 0, by a general solver."""
    return float(nnls(np.stack([1.0 / level, size / level], axis=1), np.ones(len(size)))[1] ** 2)


def naive_segments(size: Floats, level: Floats, sigma: float) -> tuple[float, list[tuple[int, int]]]:
    """Every way to cut the sizes into pieces of at least two, the cheapest."""
    n, price = len(size), fit_pieces.PRICE_PER_PIECE * np.log(len(size))
    best: tuple[float, list[tuple[int, int]]] = (np.inf, [])
    for inner in itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n)):
        edges = [0, *inner, n]
        pieces = list(itertools.pairwise(edges))
        if any(j - i < 2 for i, j in pieces):
            continue
        cost = sum(naive_squared_error(size[i:j], level[i:j]) / sigma**2 + price for i, j in pieces)
        best = min(best, (cost, pieces))
    return best


@given(st.lists(st.floats(1e-6, 1e-2), min_size=4, max_size=6), st.floats(0.02, 0.3))
@settings(max_examples=15, deadline=None)
def test_the_cut_into_pieces_is_the_cheapest_of_all(times: list[float], sigma: float) -> None:
    size, level = 2.0 ** np.arange(10, 10 + len(times)), np.array(times)
    price = fit_pieces.PRICE_PER_PIECE * np.log(len(size))
    cuts = fit_pieces._segments(size, level, sigma)
    cost = sum(naive_squared_error(size[i:j], level[i:j]) / sigma**2 + price for i, j in cuts)
    assert cost <= naive_segments(size, level, sigma)[0] * (1 + 1e-6) + 1e-3


# -- held-out predictions ----------------------------------------------------------------------------------


def test_leave_one_size_out_never_sees_the_size() -> None:
    seen: list[Floats] = []

    class Recorder:
        def __init__(self, sizes: Floats) -> None:
            seen.append(np.unique(sizes))

        def predict(self, sizes: npt.ArrayLike, /) -> Floats:
            return np.ones(np.shape(sizes))

    held = leave_one_size_out([1.0, 2, 2, 4], [2.0, 1, 1, 1], lambda x, _: Recorder(x))
    assert [s.tolist() for s in seen] == [[2, 4], [1, 4], [1, 2]]
    assert held.relative_error.tolist() == [0.5, 0, 0, 0]
    assert held.median_error(from_size=2.0) == 0.0


def gemm_times(random: np.random.Generator, count: int, noise: float = 0.0) -> tuple[Floats, Floats]:
    """Shapes and times of a device of 400 TFLOP/s, 2 TB/s and 5 us."""
    shape = 2.0 ** random.integers(4, 14, (count, 3))
    m, n, k = shape.T
    roofline = np.maximum(2 * m * n * k / 400e12, 2 * (m * k + k * n + m * n) / 2e12)
    return shape, (5e-6 + roofline) * (1 + noise * random.standard_normal(count))


def test_gemm_fit_predicts_shapes_that_it_has_not_seen() -> None:
    random = np.random.default_rng(3)
    shape, seconds = gemm_times(random, 80, noise=0.02)
    fit = fit_gemm_efficiency(*shape.T, seconds, peak_flop_per_s=400e12)
    fresh, truth = gemm_times(np.random.default_rng(4), 200)
    assert np.median(np.abs(fit.predict(*fresh.T) / truth - 1)) < 0.06
    assert 0.0 < fit.efficiency(8192, 8192, 8192)[0] <= 1.05
    assert np.median(leave_shapes_out(*shape.T, seconds, 400e12)) < 0.06
    far = fit.predict(65536, 65536, 65536)[0] / (2 * 65536.0**3 / 400e12)
    assert far == pytest.approx(1.0, rel=0.15)


def test_gemm_residual_is_that_of_shapes_predicted_from_others() -> None:
    shape, seconds = gemm_times(np.random.default_rng(5), 60, noise=0.1)
    assert fit_gemm_efficiency(*shape.T, seconds, 400e12).residual_cov > 0.03


# -- unusable data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: fit_collective([1, 1, 2], [1, 1, 2]), "at least 3 distinct sizes"),
        (lambda: fit_step_time([4, 4, 4], [1, 1, 1]), "at least 2 distinct batch sizes"),
        (lambda: fit_step_time([1, 2, 3], [1, np.nan, 1]), "finite"),
        (lambda: fit_step_time([1, 2], [1, 2, 3]), "equal length"),
        (lambda: fit_share_curve([0.5, 0.25], [1, 0.5]), "share 1"),
        (lambda: fit_share_curve([0.5, 1.5], [1, 2]), "at most 1"),
        (lambda: fit_interference([0, 0], [1, 1]), "neighbour"),
        (lambda: fit_thermal(np.arange(9), np.full(9, 5.0), np.arange(9) + 30), "different power"),
        (lambda: fit_gemm_efficiency([2] * 8, [2] * 8, [2] * 8, [1] * 8, 1e12), "6 distinct shapes"),
    ],
)
def test_unusable_samples_are_one_clear_line(attempt: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        attempt()
    assert "\n" not in str(error.value)
