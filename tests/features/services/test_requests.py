"""When requests come: as many as the rate says, at times that nothing else changes."""

import math

import numpy as np
import pytest

from equipoise.sim.features.services.section import Requests
from equipoise.sim.features.services.state import RequestTimes
from equipoise.sim.randomness import stream

DAY = 86400.0


def drawn(spec, window_s=600.0, length_s=DAY, seed=0, begin_s=0.0):
    times = RequestTimes(Requests.model_validate(spec), seed, "chat", begin_s)
    ends = begin_s + window_s * np.arange(1, round(length_s / window_s) + 1)
    found = []
    for start, end in zip([begin_s, *ends], ends, strict=False):
        window = times.window(float(end))
        assert (np.diff(window) >= 0).all()
        assert not window.size or start <= window[0] <= window[-1] < end
        found.append(window)
    return np.concatenate(found)


@pytest.mark.parametrize(
    "spec",
    [
        {"rate": "2/s"},
        {"rate": "2/s", "kind": "diurnal", "swing": 0.9},
        {"rate": "2/s", "kind": "profile", "every": "1 h", "weights": [1, 5, 0, 2]},
        {"rate": "2/s", "burst": 5, "within": "1 s"},
    ],
)
def test_as_many_come_as_the_rate_says(spec):
    burst = spec.get("burst", 1.0)
    expected, spread = 2.0 * DAY, math.sqrt(2.0 * DAY * 2.0 * burst)
    assert len(drawn(spec)) == pytest.approx(expected, abs=4.0 * spread)


def test_a_weekend_counts_in_the_mean():
    spec = {"rate": "0.2/s", "kind": "diurnal", "weekend": 0.1}
    found = drawn(spec, 3600.0, 7 * DAY)
    assert len(found) == pytest.approx(0.2 * 7 * DAY, abs=4 * math.sqrt(0.2 * 7 * DAY))
    workday, sunday = np.count_nonzero(found < DAY), np.count_nonzero(found >= 6 * DAY)
    assert sunday / workday == pytest.approx(0.1, rel=0.1)


def test_the_day_has_its_peak_where_it_is_said():
    found = drawn({"rate": "2/s", "kind": "diurnal", "swing": 0.8, "peak": "14 h"})
    by_hour = np.bincount((found // 3600).astype(int), minlength=24)
    assert by_hour[13:15].mean() / by_hour[1:3].mean() == pytest.approx(1.8 / 0.2, rel=0.1)


def test_gaps_of_a_poisson_process_are_exponential():
    gaps = np.diff(drawn({"rate": "3/s"}, 10.0))
    assert gaps.mean() == pytest.approx(1 / 3, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.02)


def test_bursts_spill_over_into_later_windows_and_none_is_lost():
    assert len(drawn({"rate": "5/s", "burst": 50, "within": "4 s"}, 2.0, 40_000.0)) == pytest.approx(2e5, rel=0.05)


def test_other_seeds_draw_others_and_the_same_seed_the_same():
    spec = {"rate": "1/s", "kind": "diurnal"}
    assert drawn(spec).tolist() == drawn(spec).tolist()
    assert drawn(spec, seed=1).tolist() != drawn(spec).tolist()


def test_requests_are_drawn_as_said_and_no_others():
    """A number by Poisson, places in the expected number that has come, uniform; once more in the next window."""
    spec = Requests(rate=2.0, kind="profile", every=10.0, weights=(1.0, 3.0))
    drawn_by = stream(4, "service:chat:requests")
    times = RequestTimes(spec, 4, "chat", 0.0)
    for begin_s in (0.0, 40.0):
        count = drawn_by.poisson(80.0)
        came = np.sort(drawn_by.random(count)) * 80.0
        edges = begin_s + 10.0 * np.arange(5)
        expected = np.interp(came, [0, 10, 40, 50, 80], edges)
        assert times.window(begin_s + 40.0) == pytest.approx(expected, abs=1e-9)


def test_bursts_follow_their_begin():
    """Half of the requests begin a burst; the others come 0.1 s after the one before in the mean."""
    spec = Requests(rate=5.0, burst=2.0, within=0.1)
    found = RequestTimes(spec, 0, "chat", 0.0).window(2000.0)
    gaps = np.diff(found)
    assert len(found) == pytest.approx(10_000, rel=0.1)
    neither = (1 - 0.5 * (1 - np.exp(-0.2))) * np.exp(-0.1)  # its follower within 20 ms, or any other at 5/s
    assert np.mean(gaps < 0.02) == pytest.approx(1 - neither, abs=0.01)
