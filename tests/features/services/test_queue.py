"""Requests in batches: as the plain twin does it, as textbooks have it, and as it was before any split of time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.features.services.queue import PER_OCTAVE, RequestQueue
from tests.features.services.oracle import answer

REQUESTS = 400_000


def queue_of(times, within_s=1.0, cov=0.0, replicas=((0.0, 1.0),), seed=5):
    random = np.random.default_rng(1000 + seed)
    queue = RequestQueue(np.array([0.0, *times]), within_s, cov, random)
    for ready_s, factor in replicas:
        queue.add(ready_s, factor)
    return queue


def poisson(rate, count=REQUESTS, seed=1):
    return np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))


def mean_and_error(rate, times, parts=20, **keys):
    """Mean latency over independent parts, and three standard errors of it."""
    means = []
    for part in range(parts):
        queue = queue_of(times, seed=part, **keys)
        queue.open(poisson(rate, REQUESTS // parts, seed=part))
        queue.advance(math.inf)
        tally = queue.take()
        means.append(tally.latency_s / tally.served)
    return float(np.mean(means)), 3.0 * float(np.std(means, ddof=1)) / math.sqrt(parts)


@st.composite
def cases(draw):
    gaps = draw(st.lists(st.floats(0.0, 2.0), min_size=0, max_size=60))
    steps = draw(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=5))
    replicas = draw(st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from([1.0, 0.5, 2.0])), min_size=1, max_size=4))
    return np.cumsum(gaps), np.cumsum(steps), replicas, draw(st.floats(0.0, 60.0))


@given(cases(), st.lists(st.floats(0.0, 60.0), max_size=5))
def test_the_kernel_does_as_its_plain_twin_wherever_time_is_cut(case, cuts):
    arrivals, times, replicas, until = case
    ready, factors = [r for r, _ in replicas], [f for _, f in replicas]
    latencies, batches, left = answer(arrivals.tolist(), [0.0, *times.tolist()], ready, factors, until=until)
    queue = queue_of(times, replicas=replicas)
    queue.open(arrivals)
    for cut in sorted(c for c in cuts if c < until):
        queue.advance(cut)
    queue.advance(until)
    tally = queue.take()
    assert tally.served == len(latencies)
    assert queue.unanswered(until)[0] == left
    assert tally.within == sum(latency <= 1.0 for latency in latencies)
    summed = 0.0
    for latency in latencies:
        summed += latency
    assert tally.latency_s == summed
    busy = np.zeros(len(replicas))
    for begin, slot, size in batches:
        busy[slot] += min(begin + times[size - 1] * factors[slot], until) - begin
    assert queue.busy_s[: len(replicas)] == pytest.approx(busy, abs=1e-9)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_batches_of_one_of_equal_time_are_the_queue_m_d_1(load):
    """Pollaczek and Khinchine: a wait of load / (2 (1 - load)) services (Kleinrock 1975, volume 1, 5.7)."""
    mean, error = mean_and_error(load, [1.0])
    assert mean == pytest.approx(1.0 + load / (2.0 * (1.0 - load)), abs=error)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_batches_of_one_of_exponential_time_are_the_queue_m_m_1(load):
    mean, error = mean_and_error(load, [1.0], cov=1.0)
    assert mean == pytest.approx(1.0 / (1.0 - load), abs=error)
    queue = queue_of([1.0], cov=1.0)
    queue.open(poisson(load))
    queue.advance(math.inf)
    for share, found in zip((0.5, 0.95, 0.99), queue.take().percentiles_s(0.5, 0.95, 0.99), strict=True):
        assert found == pytest.approx(-math.log(1.0 - share) / (1.0 - load), rel=0.06)


def test_two_replicas_are_the_queue_m_m_2():
    """Erlang's C formula (Kleinrock 1975, volume 1, 3.5): 1 / (1 - load^2) services."""
    mean, error = mean_and_error(2 * 0.7, [1.0], cov=1.0, replicas=((0.0, 1.0), (0.0, 1.0)))
    assert mean == pytest.approx(1.0 / (1.0 - 0.7**2), abs=error)


def test_exponential_batches_of_two_are_the_bulk_service_queue():
    """Chaudhry and Templeton 1983, 4.2: for M/M[1,2]/1 the ends of batches find k waiting with the weight r^k.

    r in (0, 1) solves mu r^3 - (lambda + mu) r + lambda = 0 divided by (r - 1): mu r^2 + mu r - lambda = 0. With an
    idle state as well, the mean number present and Little's law give the latency.
    """
    lam, mu = 1.2, 1.0
    r = (-mu + math.sqrt(mu * mu + 4 * mu * lam)) / (2 * mu)
    # States: 0 idle; (n) busy with n waiting. Balance gives p_n = p_0' r^n, idle p = mu p_0' / lambda.
    busy = [r**n for n in range(2000)]
    idle = mu * busy[0] / lam
    total = idle + sum(busy)
    waiting = sum(n * p for n, p in enumerate(busy)) / total
    mean, error = mean_and_error(lam, [1.0, 1.0], cov=1.0)
    assert mean == pytest.approx(waiting / lam + 1.0 / mu, abs=error)


def test_percentiles_are_those_of_the_latencies_within_a_class():
    arrivals = poisson(40.0, 3000)
    times = np.linspace(0.05, 0.4, 16)
    latencies, *_ = answer(arrivals.tolist(), [0.0, *times.tolist()], [0.0], [1.0])
    queue = queue_of(times)
    queue.open(arrivals)
    queue.advance(math.inf)
    shares = (0.01, 0.5, 0.95, 0.99, 1.0)
    exact = np.quantile(latencies, shares, method="inverted_cdf")
    assert queue.take().percentiles_s(*shares) == pytest.approx(exact, rel=1.0 / PER_OCTAVE)


def test_a_lost_replica_puts_its_batch_back_and_a_leaving_one_ends_it():
    queue = queue_of([1.0, 1.5], within_s=1.2, replicas=((0.0, 1.0), (0.0, 1.0)))
    queue.open(np.array([0.1, 0.2, 0.3]))
    queue.advance(0.5)
    assert queue.waiting == 1
    queue.gone(0, 0.5)
    assert queue.waiting == 2
    assert queue.leave(1, 0.5) == 1.2
    queue.advance(5.0)
    assert queue.take().served == 1
    queue.gone(1, 5.0)
    slot = queue.add(6.0, 1.0)
    assert slot == 0
    queue.advance(10.0)
    tally = queue.take()
    assert (tally.served, tally.within, tally.latency_s) == (2, 0, pytest.approx(2 * 7.5 - 0.1 - 0.3))
    assert queue.unanswered(10.0) == (0, 0)


def test_requests_are_late_once_they_have_waited_for_longer_than_the_target():
    queue = queue_of([10.0], within_s=2.0)
    queue.open(np.array([0.0, 1.0, 2.0]))
    queue.advance(3.0)
    assert [queue.unanswered(at) for at in (2.0, 3.0, 3.5)] == [(3, 0), (3, 1), (3, 2)]
    queue.advance(4.0)
    assert queue.waiting == 2
    assert queue.busy_s[0] == 4.0
    queue.advance(10.0)
    assert queue.take().served == 0  # answers of the instant come after it
    queue.advance(10.5)
    assert (queue.take().served, queue.waiting) == (1, 1)
