import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.study.bounds import Needs, srpt_total_completion_s
from tests.oracles.bounds import list_schedule, srpt_total_completion

TIMES = st.integers(0, 50).map(lambda k: k / 4)
JOBS = st.lists(st.tuples(TIMES, st.integers(1, 4), st.integers(1, 40).map(lambda k: k / 4)), min_size=1, max_size=9)


def columns(jobs):
    ordered = sorted(jobs)
    return [np.array([job[k] for job in ordered], dtype=float) for k in range(3)]


@settings(deadline=None)
@given(JOBS)
def test_srpt_kernel_equals_its_exact_twin(jobs):
    arrival, _, size = columns(jobs)
    assert srpt_total_completion_s(arrival, size) == pytest.approx(
        float(srpt_total_completion(arrival, size)), rel=1e-12
    )


def test_srpt_by_hand():
    # The long job (10) starts at 0, gives way to the short one (1) at 2, and ends at 11: 11 + 1.
    assert srpt_total_completion_s(np.array([0.0, 2.0]), np.array([10.0, 1.0])) == 12.0
    # An idle gap, and a tie kept by the job that came first.
    assert srpt_total_completion_s(np.array([0.0, 5.0, 5.0]), np.array([1.0, 2.0, 2.0])) == 1 + 2 + 4


def test_needs_by_hand():
    # 4 GPUs; at 10 s eight GPU-seconds arrive in two jobs of 1 s each on 4 GPUs: not done before 12 s.
    needs = Needs(
        arrival_s=np.array([0.0, 10.0, 10.0]),
        fastest_s=np.array([3.0, 1.0, 1.0]),
        gpu_s=np.array([3.0, 4.0, 4.0]),
        gpus=4.0,
    )
    assert needs.makespan_s() == 12.0
    # Shared machine: 0.75, then 1 and 2 -> 1.25; shortest durations: 3, 1, 1 -> 5/3.
    assert needs.completion_mean_s() == pytest.approx(5 / 3)


@settings(max_examples=150, deadline=None)
@given(JOBS, st.integers(4, 7), st.randoms(use_true_random=False))
def test_no_schedule_beats_the_bound(jobs, pool, random):
    arrival, gpus, duration = columns(jobs)
    order = list(range(len(jobs)))
    random.shuffle(order)
    completion = np.array(list_schedule(arrival, gpus.astype(int), duration, pool, order))
    needs = Needs(arrival, duration, gpus * duration, float(pool))
    assert completion.max() >= needs.makespan_s() * (1 - 1e-12)
    assert (completion - arrival).mean() >= needs.completion_mean_s() * (1 - 1e-12)


def test_bound_is_tight_where_everything_fits_exactly():
    needs = Needs(np.zeros(3), np.array([2.0, 2.0, 4.0]), np.array([2.0, 2.0, 4.0]) * 2, 4.0)
    assert needs.makespan_s() == 4.0
    assert max(list_schedule([0, 0, 0], [2, 2, 2], [2, 2, 4], 4, [2, 0, 1])) == 4.0
