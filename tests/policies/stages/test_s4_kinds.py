"""S4 where jobs differ in their speed on each GPU model: who runs where, who moves, who gives way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.allocation.kinds import _improve
from equipoise.policies.allocation.sizes import best_sizes
from equipoise.policies.observation import Speeds
from tests.policies.kernels.arguments import as_used
from tests.policies.stages.test_s4 import cluster, decide

MODES = pytest.mark.parametrize("mode", ["formula", "optimal"])
FAST, SLOW = 0, 1


def mixed(jobs, paces, sizes=(1, 1), time_s=10_000.0):
    """A node of model 0, one of model 1, and jobs with their speed on both."""
    rows = [(k, m, job.get("gpus_requested", 1), pace[m])
            for k, (job, pace) in enumerate(zip(jobs, paces, strict=True)) for m in (0, 1)]  # fmt: skip
    job, model, gpus, rate = zip(*rows, strict=True)
    speeds = Speeds.of(job=job, gpu_model=model, gpus=gpus, samples_per_s=rate)
    jobs = [{"started_s": 0.0, "service_s": 3600.0, "duration_s": 3600.0, **job} for job in jobs]
    return cluster(list(sizes), jobs, models=[0, 1], speeds=speeds, time_s=time_s)


@MODES
@pytest.mark.parametrize("first", [0, 1])
def test_a_model_goes_to_the_job_that_gains_most_by_it(mode, first):
    paces = [(4.0, 1.0), (1.2, 1.0)]
    given, _, _ = decide(mixed([{}, {}], [paces[first], paces[1 - first]]), mode=mode)
    assert given == {first: [FAST], 1 - first: [SLOW]}


@MODES
def test_alone_it_takes_the_model_on_which_it_is_fastest_itself(mode):
    for pace, gpu in (((2.0, 1.0), FAST), ((1.0, 2.0), SLOW)):
        others = [{"state": 2}] * 3  # done, and fast on model 0: the mean over jobs says so
        given, _, _ = decide(mixed([{}, *others], [pace, *[(9.0, 1.0)] * 3]), mode=mode)
        assert given == {0: [gpu]}


@MODES
def test_a_running_job_gives_way_to_one_that_gains_more(mode):
    jobs = [{"holds": [FAST]}, {}]
    given, _, _ = decide(mixed(jobs, [(1.2, 1.0), (4.0, 1.0)]), mode=mode)
    assert given == {0: [SLOW], 1: [FAST]}
    jobs = [{"holds": [FAST]}, {"holds": [SLOW]}]
    given, _, _ = decide(mixed(jobs, [(1.2, 1.0), (4.0, 1.0)]), mode=mode)
    assert given == {0: [SLOW], 1: [FAST]}
    assert decide(mixed(jobs, [(4.0, 1.0), (1.2, 1.0)]), mode=mode)[0] == {}


@MODES
def test_a_move_must_pay_its_restart(mode):
    """What is left, the cost of a restart, and the time worked since the last one decide."""
    dear, brief, fresh = {"restart_s": 3000.0}, {"service_s": 30.0}, {"started_s": 9_950.0}
    for change, moves in (({}, True), (dear, False), (brief, False), (fresh, False)):
        seen = mixed([{"holds": [SLOW], **change}], [(2.0, 1.0)])
        assert decide(seen, mode=mode)[0] == ({0: [FAST]} if moves else {}), change


@MODES
def test_a_job_that_runs_nowhere_else_keeps_its_model(mode):
    seen = mixed([{"holds": [FAST]}, {}], [(1.0, 0.0), (4.0, 1.0)])
    given, _, _ = decide(seen, mode=mode)
    assert 0 not in given or given[0] == []
    assert given.get(1) in ([SLOW], [FAST])


def test_time_left_counts_where_the_job_would_run():
    """The same estimate on the reference, one job ten times as fast on what there is: it comes first."""
    given, _, _ = decide(mixed([{}, {}], [(1.0, 1.0), (10.0, 10.0)], sizes=(1, 0)))
    assert given == {1: [0]}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 3), st.integers(1, 2))
def test_local_search_against_the_integer_programme(seed, jobs, models, largest):
    """Never more GPUs than there are, never less worth than before, of single GPUs at least half of the best."""
    rng = np.random.default_rng(seed)
    worth, gpus = rng.random((jobs, models)), rng.integers(1, largest + 1, jobs)
    room, now = rng.integers(0, 4, models), np.full(jobs, -1)
    left = room.copy()
    total, steps = 0.0, 0
    while _improve(*as_used("RRRww", worth, gpus, np.ones(jobs, dtype=bool), now, left)):
        reached = worth[np.arange(jobs), now][now >= 0].sum()
        assert reached > total
        total, steps = reached, steps + 1
        assert steps < 50
    used = np.bincount(now[now >= 0], weights=gpus[now >= 0], minlength=models)
    assert (left == room - used).all()
    assert (left >= 0).all()
    index, model = (part.ravel() for part in np.indices(worth.shape))
    best = best_sizes(gpus[index], model, worth.ravel(), index, np.zeros(jobs, dtype=bool), room, 1000, 5.0)
    assert largest > 1 or total >= 0.5 * worth.ravel()[best].sum()


@pytest.mark.parametrize(
    ("worth", "now", "room", "stoppable", "then", "left"),
    [
        ([[1.0, 3.0, 2.0]], [-1], [1, 1, 1], False, [1], [1, 0, 1]),  # where it is worth most
        ([[1.0, 3.0, 2.0]], [0], [0, 0, 1], False, [2], [1, 0, 0]),
        ([[1.0, -1.0, -1.0]], [-1], [0, 9, 9], False, None, None),
        # The other gives its place for one that is free, or for that of the first, or for none.
        ([[-1.0, 5.0, 1.0], [4.0, 3.0, -1.0]], [2, 1], [0, 0, 0], False, None, None),
        ([[-1.0, 5.0, 1.0], [4.0, 3.0, -1.0]], [2, 1], [1, 0, 0], False, [1, 0], [0, 0, 1]),
        ([[-1.0, 5.0, 1.0], [-1.0, 3.0, 2.0]], [2, 1], [0, 0, 0], False, [1, 2], [0, 0, 0]),
        ([[-1.0, 5.0, 1.0], [-1.0, 3.0, -1.0]], [2, 1], [0, 0, 0], True, [1, -1], [0, 0, 1]),
        ([[-1.0, 5.0, 1.0], [-1.0, 4.0, -1.0]], [2, 1], [0, 0, 0], True, None, None),  # nothing is gained
    ],
)  # fmt: skip
def test_a_pass_of_the_local_search(worth, now, room, stoppable, then, left):
    """Jobs of one GPU each; the model that each is on, -1 none, and the GPUs of each that are free."""
    n, at, free = len(now), np.array(now), np.array(room)
    may = np.full(n, stoppable)
    changed = _improve(*as_used("RRRww", np.array(worth), np.ones(n, dtype=np.int64), may, at, free))
    assert changed == (then is not None)
    assert (at.tolist(), free.tolist()) == (then or now, left or room)


def test_a_job_that_is_nearly_done_leaves_the_fast_model_to_one_that_gains_more():
    """A_i of the short one is some twenty times as large; it gains a sixth there, the long one nine tenths."""
    jobs, paces = [{"service_s": 1800.0}, {"service_s": 360_000.0}], [(1.2, 1.0), (10.0, 1.0)]
    assert decide(mixed(jobs, paces))[0] == {0: [SLOW], 1: [FAST]}
    assert decide(mixed([jobs[0]], [paces[0]], sizes=(1, 0)))[0] == {0: [FAST]}, (
        "alone it takes what there is"
    )
    both = mixed([{**jobs[0], "priority": 16.0}, jobs[1]], paces)
    assert decide(both)[0] == {0: [FAST], 1: [SLOW]}, "what a user's priority weighs it weighs in full"


@MODES
def test_a_long_job_gives_way_to_a_short_one_on_equal_gpus_too(mode):
    long = {"holds": [0], "started_s": 0.0, "service_s": 36_000.0, "duration_s": 50_000.0}
    jobs = [{**long, "holds": [k]} for k in range(7)]  # more than a whole schedule is made of
    short = {"service_s": 600.0, "duration_s": 600.0}
    given, _, _ = decide(cluster([7], [*jobs, short], time_s=10_000.0), mode=mode)
    assert sorted(map(len, given.values())) == [0, 1], "one stops, the short one starts"
    assert len(given[7]) == 1
