"""Which job runs on which GPU model: each step of the search, and what of it is carried out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import kinds
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import NO_ROWS, frozen
from equipoise.policies.observation import Observation, Speeds
from tests.policies.allocation.test_borders import ranks, state
from tests.policies.stages.test_s4 import cluster


def improved(
    worth: list[list[float]],
    gpus: list[int],
    now: list[int],
    room: list[int],
    stoppable: list[int] | None = None,
) -> tuple[bool, list[int], list[int]]:
    """(whether anything is gained, model of each job, room of each model) after one pass."""
    then, left, may = np.array(now), np.array(room), np.zeros(len(gpus), dtype=np.bool_)
    may[stoppable or []] = True
    changed = kinds._improve(frozen(np.array(worth)), frozen(np.array(gpus)), frozen(may), then, left)
    return bool(changed), then.tolist(), left.tolist()


def test_a_job_goes_where_it_is_worth_most_and_there_is_room() -> None:
    assert improved([[3.0, 5.0]], [2], [-1], [7, 2]) == (True, [1], [7, 0])
    assert improved([[3.0, 5.0]], [2], [-1], [7, 1]) == (True, [0], [5, 1])
    assert improved([[3.0, 5.0]], [2], [0], [7, 2]) == (True, [1], [9, 0])
    assert improved([[5.0, 3.0]], [2], [0], [7, 2]) == (False, [0], [7, 2])
    assert improved([[5.0, 5.0]], [2], [1], [7, 2]) == (False, [1], [7, 2])
    assert improved([[5.0, 5.0 + 4e-9]], [2], [0], [7, 2]) == (False, [0], [7, 2])  # rounding
    assert improved([[5.0, 5.0 + 6e-9]], [2], [0], [7, 2]) == (True, [1], [9, 0])
    assert improved([[-1.0, 0.0]], [2], [-1], [7, 2]) == (False, [-1], [7, 2])
    assert improved([[3.0, 5.0, 4.0], [6.0, 8.0, 2.0]], [2, 3], [-1, -1], [4, 2, 3]) == (
        True,
        [1, 0],
        [1, 0, 3],
    )


@pytest.mark.parametrize(
    ("other", "stoppable", "stops"), [(3.0, [1], True), (3.0, [], False), (4.9, [1], True), (5.0, [1], False)]
)
def test_a_job_takes_the_place_of_one_that_may_stop_and_is_worth_less(
    other: float, stoppable: list[int], stops: bool
) -> None:
    """The first of 3 GPUs waits; the second holds 2, and one is free."""
    found = improved([[5.0], [other]], [3, 2], [-1, 0], [1], stoppable)
    assert found == ((True, [0, -1], [0]) if stops else (False, [-1, 0], [1]))
    assert improved([[5.0], [other]], [3, 2], [-1, 0], [0], stoppable)[0] is False
    more = improved([[5.0], [4.0], [2.0], [3.0]], [3, 3, 3, 3], [-1, 0, 0, 0], [0], [1, 2, 3])
    assert more == (True, [0, 0, -1, 0], [0])  # of those the one that is worth least


def test_two_jobs_change_places_where_that_gains() -> None:
    """The first gains 3 on the other model, the second loses 0.5 on this."""
    worth = [[1.0, 4.0], [2.5, 3.0]]
    assert improved(worth, [2, 2], [0, 1], [0, 0]) == (True, [1, 0], [0, 0])
    assert improved(worth, [2, 3], [0, 1], [1, 0]) == (True, [1, 0], [0, 1])
    assert improved(worth, [2, 3], [0, 1], [0, 0]) == (False, [0, 1], [0, 0])
    assert improved(worth, [3, 2], [0, 1], [0, 1]) == (True, [1, 0], [1, 0])
    assert improved([[1.0, 4.0], [0.0, 3.0]], [2, 2], [0, 1], [0, 0]) == (False, [0, 1], [0, 0])  # as much
    assert improved([[1.0, 4.0], [-1.0, 1.5]], [2, 2], [0, 1], [0, 0]) == (False, [0, 1], [0, 0])  # not there
    third = [[1.0, 4.0, 0.0], [2.5, 3.0, 2.75]]
    assert improved(third, [2, 4], [0, 1], [0, 0, 5]) == (True, [1, 2], [2, 2, 1])
    waits = [[0.0, 4.0], [2.5, 3.0]]
    assert improved(waits, [2, 3], [-1, 1], [3, 0]) == (True, [1, 0], [0, 1])
    assert improved(waits, [2, 3], [-1, 1], [2, 0])[:2] == (False, [-1, 1])
    # To move the second gains more than to stop it.
    assert improved(waits, [2, 3], [-1, 1], [3, 0], [1]) == (True, [1, 0], [0, 1])


JOB: dict[str, Any] = {"gpus_requested": 2, "gpu_share_requested": 1.0, "service_s": 6000.0, "gpu_types": -1}


def dealt(
    o: Observation, a: list[float], waiting_a: list[float], running: list[int], patient: list[int]
) -> tuple[list[int], dict[int, list[int]], list[int]]:
    """(who moved, {job: GPUs}, who is stopped)."""
    draft = Draft(o, np.ones(2), order=np.arange(2))
    moved = kinds.assign(
        draft, state(o, model=[0, 1]), ranks(o, a, waiting_a), o.jobs.gpus_requested,
        np.array(running, dtype=np.int64), np.array(patient, dtype=np.int64), 2.0, 9000.0,
    )  # fmt: skip
    return moved.tolist(), {row: gpu.tolist() for row, (gpu, _) in draft.given.items()}, draft.stopped


def listed(*rates: tuple[int, float, float]) -> Speeds:
    """(job, speed on the first model, and on the second) with two GPUs."""
    job = [k for k, _, _ in rates for _ in range(2)]
    speed = [value for _, one, two in rates for value in (one, two)]
    return Speeds.of(job=job, gpu_model=[0, 1] * len(rates), gpus=[2] * len(job), samples_per_s=speed)


def test_a_model_goes_to_the_job_that_gains_most_by_it() -> None:
    """Two GPUs of each model; the running job is as quick on both, the other four times as quick on the first."""
    o = cluster(
        [2, 2], [{**JOB, "holds": [0, 1]}, JOB], models=[0, 1], speeds=listed((0, 1.0, 1.0), (1, 4.0, 1.0))
    )
    assert dealt(o, [1.0], [1.0], [0], []) == ([0], {0: [2, 3], 1: [0, 1]}, [])
    assert dealt(o, [1.0], [1.0], [], []) == ([], {1: [2, 3]}, [])
    slow = cluster(
        [2, 2], [{**JOB, "holds": [0, 1]}, JOB], models=[0, 1], speeds=listed((0, 4.0, 1.0), (1, 4.0, 1.0))
    )
    assert dealt(slow, [1.0], [1.0], [0], []) == ([], {1: [2, 3]}, [])
    one = cluster(
        [2, 1], [{**JOB, "holds": [0, 1]}, JOB], models=[0, 1], speeds=listed((0, 1.0, 1.0), (1, 4.0, 1.0))
    )
    assert dealt(one, [1.0], [9.0], [0], [0]) == ([], {1: [0, 1]}, [0])
    assert dealt(one, [1.0], [9.0], [0], []) == ([], {}, [])
    assert dealt(one, [9.0], [1.0], [0], [0]) == ([], {}, [])
    alone = cluster([2, 2], [{**JOB, "holds": [0, 1]}], models=[0, 1], speeds=listed((0, 1.0, 4.0)))
    assert dealt(alone, [1.0], [], [0], []) == ([0], {0: [2, 3]}, [])
    nodes, ranking = state(alone, model=[0, 1]), ranks(alone, [1.0], [])
    none = kinds.assign(
        Draft(alone), nodes, ranking, alone.jobs.gpus_requested, NO_ROWS, NO_ROWS, 2.0, 9e3
    )  # fmt: skip
    assert none is NO_ROWS


def test_who_cannot_be_placed_where_it_should_go_is_left_or_stops() -> None:
    """GPU 3 has not the memory for the first job, which is noticed when it is placed."""
    jobs = [{**JOB, "holds": [0, 1], "memory_bytes": 50.0}, {**JOB, "memory_bytes": 0.0}]
    o = cluster([4, 2], jobs, models=[0, 1], gpu={"memory_bytes": [60.0] * 5 + [40.0]})
    draft = Draft(o, np.ones(2), order=np.arange(2))
    rows, now = np.array([0, 1]), np.array([0, -1])
    moved = kinds._carry_out(draft, state(o, model=[0, 1]), rows, now, np.array([1, 0]), np.array([2, 2]))
    assert (moved.tolist(), draft.stopped) == ([], [0])
    assert {row: gpu.tolist() for row, (gpu, _) in draft.given.items()} == {1: [0, 1]}
    draft = Draft(o, np.ones(2), order=np.arange(2))
    moved = kinds._carry_out(draft, state(o, model=[0, 1]), rows, now, np.array([-1, 1]), np.array([2, 2]))
    assert (moved.tolist(), draft.stopped) == ([], [0])
    assert {row: gpu.tolist() for row, (gpu, _) in draft.given.items()} == {1: [4, 5]}
    draft = Draft(o, np.ones(2), order=np.arange(2))
    assert kinds._carry_out(draft, state(o, model=[0, 1]), rows, now, now, np.array([2, 2])).tolist() == []
    assert draft.allocation() is None
