"""What jobs and sessions are drawn from, in numbers that can be worked out: rates, quantiles, orders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.formats.text.columns import Text
from equipoise.sim.scenario.generate import Arrivals, Durations, Generate, JobClass
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.generate import (
    _arrivals,
    _cumulative,
    _just,
    generate,
    mean_s,
    quantile_s,
    rate_per_s,
    relative_rate,
    step_s,
)
from equipoise.sim.traces.redraw import _among_alike, _begins, _between, _copy, _rows, _taken, sessions
from equipoise.sim.traces.trace import make_trace

HOUR, DAY = 3600.0, 86_400.0


def drawing(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Ordered:
    """Permutations that change nothing."""

    def permutation(self, what: Any) -> np.ndarray:
        return np.arange(what) if isinstance(what, int) else np.array(what)


UNCHANGED: Any = Ordered()


def test_durations_at_their_quantiles() -> None:
    """A standard normal is below 1 with 0.8413447461; a Pareto of alpha 2 is above twice its least with 1/4."""
    shares = np.array([0.5, 0.841344746068543, 1e-12, 1 - 1e-12])
    normal = Durations(kind="lognormal", median=100.0, sigma=2.0, low=1.0, high=2000.0)
    assert quantile_s(normal, shares) == pytest.approx([100, 100 * math.exp(2), 1, 2000])
    pareto = Durations(kind="pareto", alpha=2.0, low=10.0, high=1000.0)
    assert quantile_s(pareto, np.array([0.0, 0.75, 0.99, 1 - 1e-9])) == pytest.approx([10, 20, 100, 1000])
    told = Durations(kind="quantiles", values=(10.0, 1000.0, 1000.0))
    assert quantile_s(told, np.array([0.0, 0.25, 0.5, 1.0])) == pytest.approx([10, 100, 1000, 1000])


def test_means_and_rates() -> None:
    """Uniform in the logarithm from 1 to e: mean e - 1. A load of 1/2 on 40 GPUs by jobs of 2 GPUs and 10 s."""
    assert mean_s(Durations(kind="quantiles", values=(1.0, math.e))) == pytest.approx(math.e - 1, rel=1e-9)
    fixed = Durations(kind="quantiles", values=(10.0, 10.0))
    assert rate_per_s(JobClass(rate=3.0, duration=fixed), 40) == 3.0
    assert rate_per_s(JobClass(load=0.5, duration=fixed, gpus={1: 3, 5: 1}), 40) == pytest.approx(1.0)


def test_rates_over_days_and_profiles() -> None:
    """The sixth and seventh day are a weekend; the rate is highest at the peak and lowest half a day from it."""
    day = Arrivals(kind="diurnal", swing=0.5, peak=6 * HOUR, weekend=0.2)
    at = np.array(
        [6 * HOUR, 18 * HOUR, 5 * DAY - 1, 5 * DAY + 6 * HOUR, 6 * DAY + 18 * HOUR, 7 * DAY + 6 * HOUR]
    )
    expected = [1.5, 0.5, 1 + 0.5 * math.cos(-2 * math.pi / 4 - 2 * math.pi / DAY), 0.3, 0.1, 1.5]
    assert relative_rate(day, at) == pytest.approx(expected)
    profile = Arrivals(kind="profile", every=HOUR, weights=(1.0, 5.0, 0.0, 2.0))
    moments = np.array([0.0, HOUR - 1, HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR])
    assert relative_rate(profile, moments).tolist() == [1, 1, 5, 2, 1, 5]
    assert relative_rate(Arrivals(), moments).tolist() == [1] * 6
    assert [step_s(kind) for kind in (day, profile, Arrivals())] == [900, HOUR, math.inf]
    edges, cumulative = _cumulative(profile, 2.5 * HOUR)
    assert edges.tolist() == [0, HOUR, 2 * HOUR, 2.5 * HOUR]
    assert cumulative.tolist() == [0, HOUR, 6 * HOUR, 6 * HOUR]
    assert [part.tolist() for part in _cumulative(Arrivals(), 7.0)] == [[0, 7], [0, 1]]


def test_as_many_bursts_are_taken_as_hold_the_jobs() -> None:
    sizes, begin_s = np.array([3, 3, 3]), np.array([5.0, 6.0, 7.0])
    found = {}
    for jobs in (0, 1, 3, 4, 7, 9):
        kept, begins = _just(sizes, begin_s, jobs, UNCHANGED)
        found[jobs] = kept.tolist()
        assert begins.tolist() == begin_s[: len(kept)].tolist()
    assert found == {0: [], 1: [1], 3: [3], 4: [3, 1], 7: [3, 3, 1], 9: [3, 3, 3]}


@pytest.mark.parametrize("burst", [1.0, 4.0])
def test_an_exact_number_of_jobs_comes_and_bursts_come_together(burst: float) -> None:
    spec = Arrivals(burst=burst, within=0.0)
    came = _arrivals(spec, 200.4, 1000.0, drawing(), exact=True)
    assert len(came) == 200
    assert came.min() >= 0.0
    assert came.max() <= 1000.0
    assert (len(set(came.tolist())) < 100) == (burst > 1)  # those of a burst come at one time
    apart = _arrivals(spec.model_copy(update={"within": 5.0}), 200.4, 1000.0, drawing(), exact=True)
    assert (
        apart.mean() < 700.0
    )  # of a burst some 5 s each later than the one before, and no burst than another
    many = [len(_arrivals(spec, 200.0, 1000.0, drawing(k), exact=False)) for k in range(200)]
    spread = math.sqrt(200.0 * (2 * burst - 1))  # of a geometric size the second moment is b (2 b - 1)
    assert np.mean(many) == pytest.approx(200.0, abs=4 * spread / math.sqrt(200))
    assert np.std(many) == pytest.approx(spread, rel=0.2)


def test_jobs_of_classes_are_named_and_too_many_or_none_are_refused() -> None:
    fixed = Durations(kind="quantiles", values=(10.0, 20.0))
    kind = JobClass(name="a", rate=0.5, exact=True, duration=fixed, gpus={2: 1})
    jobs = generate(
        Generate(
            length=8.0, scale=2.0, classes=(kind, kind.model_copy(update={"name": "b", "priority": 3.0}))
        ),
        4,
        1,
    )
    assert sorted(jobs.name) == sorted(f"{name}-{k}" for name in "ab" for k in range(8))
    assert sorted(jobs.priority.tolist()) == [1.0] * 8 + [3.0] * 8
    assert set(jobs.gpus.tolist()) == {2}
    parts = np.sort(
        np.log2(jobs.duration_s[jobs.priority == 1] / 10)
    )  # one from every eighth of the distribution
    assert np.floor(parts * 8).tolist() == list(range(8))
    with pytest.raises(InputError, match=r"no job comes within 0\.1 s on seed 1"):
        generate(Generate(length=0.1, classes=(kind,)), 4, 1)
    with pytest.raises(InputError, match="5000001 jobs of class 'a'; at most 5000000"):
        generate(Generate(length=2.0 * 5_000_001, classes=(kind,)), 4, 1)


def trace_of(rows: list[tuple[float, int, str]]) -> Any:
    arrival, gpus, user = zip(*rows, strict=True)
    n = len(rows)
    names = tuple(sorted(set(user)))
    users = Text(np.array([names.index(u) for u in user], dtype=np.int32), names)
    return make_trace(
        np.arange(n), np.array(arrival), np.array(gpus), np.ones(n), priority=np.ones(n), columns={"user": users},
        source="x", told=False,
    )  # fmt: skip


def test_a_session_is_one_users_jobs_of_one_size_that_follow_each_other_soon() -> None:
    trace = trace_of(
        [(0, 1, "a"), (5, 1, "b"), (10, 1, "a"), (12, 2, "a"), (20, 1, "a"), (31, 1, "a"), (40, 1, "a")]
    )
    session, first = sessions(trace, 10.0)
    assert session.tolist() == [0, 1, 0, 2, 0, 3, 3]
    assert first.tolist() == [0, 1, 3, 5]
    rows, of = _rows(session, np.array([0, 0, 2, 3]))
    assert rows.tolist() == [0, 2, 4, 0, 2, 4, 3, 5, 6]
    assert of.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 3]
    assert _copy(np.array([0, 0, 1, 2, 2, 2])).tolist() == [0, 1, 0, 0, 1, 2]


def test_sessions_are_taken_as_often_as_asked() -> None:
    for scale, total, least in ((1.0, 4, 1), (1.5, 6, 1), (2.0, 8, 2), (0.5, 2, 0), (0.01, 1, 0)):
        taken = _taken(4, scale, drawing())
        assert (int(taken.sum()), int(taken.min())) == (total, least), scale
        assert taken.max() - taken.min() <= 1


def test_begins_are_those_of_the_window_and_further_ones_lie_between_them() -> None:
    places = np.array([10.0, 20.0, 40.0])
    assert _begins(places, 2, UNCHANGED).tolist() == [10, 20]
    more = _begins(places, 500, drawing())
    assert more[:3].tolist() == [10, 20, 40]
    assert (more.min(), more.max()) == (10, 40)
    assert 0.2 < np.mean((more[3:] > 10) & (more[3:] < 20)) < 0.5
    assert 0.2 < np.mean((more[3:] > 20) & (more[3:] < 40)) < 0.5
    assert 0.2 < np.mean(more[3:] == 40) < 0.5  # behind the last there is none
    assert _between(places[:1], 3, drawing()).tolist() == [10, 10, 10]


def test_only_neighbours_in_work_change_places() -> None:
    work = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 6.0])
    assert _among_alike(work, 1, drawing()).tolist() == list(range(6))
    rank = np.argsort(np.argsort(work))
    cuts = set()
    for seed in range(40):
        taken = _among_alike(work, 3, drawing(seed))
        assert sorted(taken.tolist()) == list(range(6))
        moved = np.abs(rank[taken] - rank)
        assert moved.max() <= 2
        cuts |= {int(k) for k in rank[moved == 2]}
    assert cuts == set(range(6))  # groups begin at any place
