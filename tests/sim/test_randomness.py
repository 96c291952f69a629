from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.randomness import lognormal_parameters, noise, noise_key, philox4x32, stream
from tests.oracles import philox as naive_philox

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


@given(st.integers(0, 2**63 - 1), st.integers(0, 5000), st.integers(0, 2**40), st.floats(0, 1))
def test_noise_equals_its_twin(key: int, worker: int, step: int, cov: float) -> None:
    mu, sigma = lognormal_parameters(cov)
    assert noise(key, worker, step, mu, sigma) == pytest.approx(
        naive_philox.noise(key, worker, step, mu, sigma), rel=1e-12
    )


def test_noise_has_mean_one_and_the_given_variation() -> None:
    mu, sigma = lognormal_parameters(0.3)
    key = noise_key(1, "job")
    values = np.array([noise(key, w, s, mu, sigma) for w in range(20) for s in range(2000)])
    assert values.mean() == pytest.approx(1, abs=5 * 0.3 / np.sqrt(values.size))
    assert values.std() == pytest.approx(0.3, rel=0.03)


def test_named_streams_are_independent_of_each_other() -> None:
    first, other, again = stream(1, "a"), stream(1, "b"), stream(1, "a")
    other.random(5)
    assert first.random(3).tolist() == again.random(3).tolist()
    assert stream(1, "b").random(3).tolist() != stream(1, "a").random(3).tolist()
    assert noise_key(1, "a") != noise_key(2, "a")
