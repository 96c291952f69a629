from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.demand import make_demand
from equipoise.sim.network.topology import Topology
from equipoise.sim.randomness import (
    _cos_sin_turn,
    _exp_mantissa,
    _log_mantissa,
    estimate_factors,
    gpu_times,
    lognormal_parameters,
    noise,
    noise_key,
    noise_space,
    philox4x32,
    step_noise,
    step_noise_row,
    stream,
)
from tests.oracles import philox as naive_philox
from tests.scenarios import scenario

# Known answers published with the generator (Random123, kat_vectors, philox4x32 10 rounds).
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert naive_philox.philox(counter, key) == answer
    words = [np.full(5, word, dtype=np.uint64) for word in counter]
    philox4x32(*words, *map(np.uint64, key))
    assert [word.tolist() for word in words] == [[word] * 5 for word in answer]


@pytest.mark.parametrize(("low", "high"), [(1.40, 1.4142), (0.7072, 0.714)])
def test_the_logarithm_is_right_to_the_last_bit_where_its_series_is_longest(low: float, high: float) -> None:
    """Rounding errors cancel over many values; a wrong last term (1e-16 here) would not."""
    plain = getattr(_log_mantissa, "py_func", _log_mantissa)
    errors = np.array([plain(m) - math.log(m) for m in np.linspace(low, high, 4001).tolist()])
    assert abs(errors).max() <= 2 * np.spacing(0.35)
    assert abs(errors.mean()) < 1e-17


def test_cosine_and_sine_are_right_to_the_last_bits() -> None:
    """Within an eighth of a turn; a quarter further they change places, to the bit."""
    plain = getattr(_cos_sin_turn, "py_func", _cos_sin_turn)
    errors = []
    for turns in np.arange(1, 1024) / 8192:
        x, y = plain(turns)
        angle = 2 * math.pi * turns
        errors.append((x - math.cos(angle), y - math.sin(angle)))
        assert [plain(turns + quarter / 4) for quarter in (1, 2, 3)] == [(-y, x), (-x, -y), (y, -x)]
    assert plain(0.0) == (1.0, 0.0)
    assert abs(np.array(errors)).max() <= 3e-16
    assert abs(np.mean(errors, axis=0)).max() < 2e-17


def test_the_exponential_is_right_to_the_last_bits() -> None:
    plain = getattr(_exp_mantissa, "py_func", _exp_mantissa)
    whole = [0.0, *np.linspace(-0.3465, 0.3465, 1001), *np.linspace(-690.0, 690.0, 1001)]
    errors = []
    for x in whole:
        part, power = plain(float(x))
        assert 0.7071 < part < 1.4143
        errors.append(math.ldexp(part, int(power)) / math.exp(x) - 1.0)
    assert abs(np.array(errors)).max() <= 5e-16
    assert abs(np.mean(errors)) < 2e-17


SHARES = st.floats(0, 1)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 5000),
    st.integers(0, 2**40),
    st.floats(0, 1),
    SHARES,
    st.integers(1, 99),
    SHARES,
    st.floats(0, 0.9),
    st.floats(1, 9),
)
def test_noise_equals_its_twin(
    key: int,
    worker: int,
    step: int,
    cov: float,
    lasting: float,
    steps: int,
    common: float,
    chance: float,
    factor: float,
) -> None:
    parts = (key, cov, lasting, steps, common, chance, factor)
    assert noise(step_noise(*parts), worker, step) == pytest.approx(
        naive_philox.step_noise(*parts, worker, step), rel=1e-9
    )


def drawn(*parts: float) -> np.ndarray:
    """Noise of 2,000 steps and 20 workers."""
    found = step_noise(noise_key(1, "job"), *parts)  # type: ignore[arg-type]
    return np.array([[noise(found, w, s) for w in range(20)] for s in range(2000)])


def test_noise_has_mean_one_and_the_given_variation() -> None:
    values = drawn(0.3)
    assert values.mean() == pytest.approx(1, abs=5 * 0.3 / np.sqrt(values.size))
    assert values.std() == pytest.approx(0.3, rel=0.03)


def test_lasting_common_and_tailed_noise_have_the_figures_that_were_asked_for() -> None:
    logs = np.log(drawn(0.1, 0.8, 10, 0.25))
    assert logs.std() == pytest.approx(np.sqrt(np.log1p(0.01)), rel=0.05)
    assert np.corrcoef(logs[:, 3], logs[:, 4])[0, 1] == pytest.approx(0.25, abs=0.08)
    own = logs - logs.mean(axis=1, keepdims=True)  # without what the workers share
    lagged = [np.mean([np.corrcoef(own[:-k, w], own[k:, w])[0, 1] for w in range(20)]) for k in (1, 5, 20)]
    assert lagged == pytest.approx([0.8 * 0.9, 0.8 * 0.5, 0.0], abs=0.05)
    assert (drawn(0.01, 0.0, 1, 0.0, 0.02, 5.0) > 4).mean() == pytest.approx(0.02, rel=0.1)


def test_gpus_have_persistent_speeds_of_the_given_spread() -> None:
    times = gpu_times(3, {"a": 10_000, "b": 10_000}, 0.02)
    assert (times.mean(), times.std()) == pytest.approx((1.0, 0.02), rel=0.02)
    slow = gpu_times(3, {f"n{k}": 8 for k in range(10_000)}, 0.0, 0.03, 0.8).reshape(-1, 8)
    assert sorted(set(slow.ravel().tolist())) == [1.0, 1.25]
    assert (slow == slow[:, :1]).all()
    assert (slow[:, 0] > 1.0).mean() == pytest.approx(0.03, abs=0.006)
    assert gpu_times(3, {"front": 2, "b": 5}, 0.02)[2:].tolist() == times[10_000:10_005].tolist()
    assert gpu_times(3, {"a": 9}, 0.0).tolist() == [1.0] * 9


def test_estimates_are_drawn_by_name() -> None:
    """Log-normal with median 1; a job in front, and another of the same name behind, change no other's."""
    names = [f"j{k}" for k in range(4000)]
    factors = estimate_factors(3, names, 0.5)
    assert (np.log(factors).mean(), np.log(factors).std()) == pytest.approx((0.0, 0.5), abs=0.03)
    assert estimate_factors(3, ["new", *names], 0.5)[1:].tolist() == factors.tolist()
    assert estimate_factors(3, names, 0.0).tolist() == [1.0] * 4000
    jobs = [{"name": name, "gpus": 1, "duration": 5.0} for name in ("a", "b", "a", "a")]
    case = scenario(workload={"jobs": jobs})
    profile = load_profile("catalogue")
    cluster = Cluster(case.cluster, profile, Topology(case.cluster, profile))
    assert make_demand(case, None, cluster).drawn_as == ["a", "b", "a#1", "a#2"]


def test_named_streams_are_independent_of_each_other() -> None:
    first, other, again = stream(1, "a"), stream(1, "b"), stream(1, "a")
    other.random(5)
    assert first.random(3).tolist() == again.random(3).tolist()
    assert stream(1, "b").random(3).tolist() != stream(1, "a").random(3).tolist()
    assert noise_key(1, "a") != noise_key(2, "a")


def test_named_streams_are_the_same_on_every_machine() -> None:
    assert noise_key(5, "job") == 245330980524937879
    assert stream(5, "arrivals").integers(0, 1000, 4).tolist() == [198, 221, 68, 997]


def test_a_row_of_noise_begins_with_the_pair_that_is_asked_for() -> None:
    """Every worker's own, whatever it is drawn with: of five workers from the seventh on, in three pairs."""
    drawn = step_noise(noise_key(5, "job"), 0.3, 0.6, 4, 0.3, 0.2, 3.0)
    space, factor = noise_space(5), np.empty(6)
    assert [len(part) for part in space] == [3, 3, 3, 3, 3, 6, 6]
    step_noise_row(drawn, 23, 3, space, factor)
    assert factor.tolist() == [noise(drawn, worker, 23) for worker in range(6, 12)]
    assert len(set(factor.tolist())) == 6


def test_spreads_of_logarithms_by_hand() -> None:
    mu, sigma = lognormal_parameters(0.5)
    assert (mu, sigma) == pytest.approx((-0.5 * math.log(1.25), math.sqrt(math.log(1.25))))
    drawn = step_noise(7, 0.5, 0.36, 9, 0.19, 0.5, 4.0)
    assert (drawn.key, drawn.mu, drawn.lasting_steps) == (7, mu, 9)
    assert drawn.sigma == pytest.approx(sigma * math.sqrt(0.81 * 0.64))
    assert drawn.lasting_sigma == pytest.approx(sigma * math.sqrt(0.81 * 0.36))
    assert drawn.common_sigma == pytest.approx(sigma * math.sqrt(0.19))
    assert (drawn.tail_level, drawn.tail_factor, drawn.varies) == (pytest.approx(1.0), 4.0, True)
    plain = step_noise(7, 0.5)
    assert plain == (7, mu, sigma, 0.0, 1, 0.0, math.inf, 1.0, True)
    for chance, factor in ((0.5, 1.0), (0.0, 4.0)):
        still = step_noise(7, 0.0, tail_chance=chance, tail_factor=factor)
        assert (still.tail_level, still.tail_factor, still.varies) == (math.inf, 1.0, False)
    assert step_noise(7, 0.0, tail_chance=1.0, tail_factor=4.0).varies
    assert noise(step_noise(7, 0.0, tail_chance=1.0, tail_factor=4.0), 3, 5) == 4.0
    assert noise(step_noise(7, 0.0), 3, 5) == 1.0
