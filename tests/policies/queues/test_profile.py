"""The profile of free GPUs, against its plain twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.queues.profile import first_fit, take_between
from tests.oracles import queues as oracle

PLANS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 12), st.booleans(), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4), st.integers(0, 4)), max_size=6), PLANS)
def test_planning_equals_the_plain_twin(
    ends: list[tuple[int, int, int]], plans: list[tuple[int, int, bool, bool]]
) -> None:
    free = {0.0: [2, 1]}
    for end_s, one, two in sorted(ends):
        last = free[max(free)]
        free[float(end_s)] = [last[0] + one, last[1] + two]
    used, space = len(free), len(free) + 2 * len(plans)
    times_s, table = np.empty(space), np.empty((space, 2), dtype=np.int64)
    times_s[:used], table[:used] = sorted(free), [free[t] for t in sorted(free)]
    for wanted, takes, one, two in plans:
        allowed, takes_s = np.array([one, two]), float(takes) if takes < 12 else np.inf
        least = np.empty(2, dtype=np.int64)
        k = first_fit(times_s, table, used, allowed, wanted, takes_s, np.inf, least)
        expected = oracle.first_fit(free, [one, two], wanted, takes_s)
        assert (None if k < 0 else (times_s[k], least.tolist())) == expected
        if expected is None:
            continue
        begin_s, there = expected
        taken = [min(there[0], wanted), wanted - min(there[0], wanted)]
        used = take_between(times_s, table, used, np.array(taken), begin_s, begin_s + takes_s)
        for time_s in (begin_s, begin_s + takes_s):
            if np.isfinite(time_s):
                free.setdefault(time_s, list(free[max(t for t in free if t <= time_s)]))
        for time_s in free:
            if begin_s <= time_s < begin_s + takes_s:
                free[time_s] = [a - b for a, b in zip(free[time_s], taken, strict=True)]
        assert times_s[:used].tolist() == sorted(free)
        assert table[:used].tolist() == [free[t] for t in sorted(free)]
    assert (table[:used] >= 0).all()
