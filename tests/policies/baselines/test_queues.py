"""The sorted queue, its service levels, and the placing of parts of GPUs, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.gangs import NO_ROWS, frozen
from equipoise.policies.baselines.queueing import with_allocation
from equipoise.policies.baselines.service_levels import next_demotion_s, next_promotion, promoted
from equipoise.policies.baselines.shares import place
from equipoise.policies.baselines.shockwave import Shockwave, market
from equipoise.policies.baselines.sorted_queue import first_rows, key_columns, keys_of, queue_now
from equipoise.policies.contract import UNCHANGED, Allocation
from equipoise.policies.observation import Jobs, JobState, Observation

W, R, DONE = JobState.WAITING, JobState.RUNNING, JobState.DONE
INF = math.inf


def seen(time_s: float = 1000.0, **columns: Any) -> Observation:
    return Observation.of(time_s, jobs=Jobs.of(**columns))


# -- the queue -------------------------------------------------------------------------------------------------


def shortest(o: Observation) -> Any:
    return key_columns(o, o.jobs.service_s, o.jobs.id)


def test_a_queue_is_sorted_by_key_then_id_and_goes_on() -> None:
    columns = {"id": [0, 2, 1, 3], "service_s": [5.0, 3.0, 3.0, np.nan], "state": [W] * 4}
    o = seen(**columns)
    queue = queue_now({}, o, shortest(o))
    rows, key, queue = first_rows(queue, o, shortest(o), 9)
    assert (rows.tolist(), key.tolist()) == ([2, 1, 0, 3], [3.0, 3.0, 5.0, INF])
    rows, key, queue = first_rows(queue, o, shortest(o), 2)
    assert (rows.tolist(), queue["head"], queue["wasted"]) == ([2, 1], 0, 0)
    # Job 2 has started, and one of 4 s has come.
    o = seen(1001.0, id=[0, 2, 1, 3, 4], service_s=[5.0, 3.0, 3.0, np.nan, 4.0], state=[W, W, R, W, W],
             queued_since_s=[0.0] * 4 + [1001.0])  # fmt: skip
    queue = queue_now(queue, o, shortest(o))
    assert (queue["new_row"].tolist(), queue["new_key"].tolist(), queue["jobs"]) == ([4], [4.0], 5)
    rows, key, queue = first_rows(queue, o, shortest(o), 3)
    assert (rows.tolist(), key.tolist(), queue["head"]) == ([1, 4, 0], [3.0, 4.0, 5.0], 1)
    # It was stopped and is back with 1 s; job 1 has ended.
    o = seen(1002.0, id=[0, 2, 1, 3, 4], service_s=[5.0, 3.0, 1.0, np.nan, 4.0], state=[W, DONE, W, W, W],
             queued_since_s=[0.0, 0.0, 1002.0, 0.0, 1001.0])  # fmt: skip
    queue = queue_now({**queue, "waiting": 3}, o, shortest(o), frozen(np.array([2])))
    assert queue["new_row"].tolist() == [2, 4]
    rows, _, queue = first_rows(queue, o, shortest(o), 4)
    assert (rows.tolist(), queue["head"]) == ([2, 4, 0, 3], 1)
    # A clock that was set back, fewer jobs, or others at a limit: all is sorted anew.
    for now in (seen(900.0, **o.jobs.as_dict()), seen(**columns)):
        assert len(queue_now(queue, now, shortest(now))["new_row"]) == 0
    assert queue_now(queue, o, shortest(o)) is queue


def test_an_estimate_that_changed_is_found_when_its_place_is_reached() -> None:
    o = seen(id=range(3), service_s=[1.0, 2.0, 3.0], state=[W] * 3)
    queue = queue_now({}, o, shortest(o))
    o = seen(id=range(3), service_s=[9.0, 2.0, 3.0], state=[W] * 3)
    rows, key, queue = first_rows(queue, o, shortest(o), 1)
    assert (rows.tolist(), key.tolist(), queue["row"].tolist()) == ([1], [2.0], [1, 2, 0])


# -- service levels --------------------------------------------------------------------------------------------

LEVELS = {
    "id": range(6), "state": [W, W, R, R, W, W], "gpus_requested": [2, 1, 2, 1, 4, 1],
    "gpus_held": [0, 0, 2, 1, 0, 0],
    "attained_gpu_s": [150.0, 1150.0, 40.0, 500.0, 0.0, np.nan],
    "queued_since_s": [900.0, 1000.0, 0.0, 0.0, 1000.0, 0.0],
    "waited_s": [20.0, 0.0, 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip


def levels(o: Observation, relief: float = 0.25) -> Any:
    return key_columns(o, o.jobs.attained_gpu_s, NO_ROWS, frozen(np.array([100.0, 1000.0])), relief)


def test_the_level_of_a_job_by_its_service_and_waiting() -> None:
    o = seen(**LEVELS)
    assert keys_of(np.arange(6), levels(o)).tolist() == [1.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    # On 2 GPUs 200 s of waiting take 100 off; after 199.9 s still nothing, as quanta are whole.
    for time_s, level in ((1079.9, 1.0), (1080.0, 0.0)):
        later = seen(time_s, **LEVELS)
        assert keys_of(np.array([0]), levels(later)).tolist() == [level]
    assert keys_of(np.array([0]), levels(seen(1e9, **LEVELS), 0.0)).tolist() == [1.0]
    for service, level in ((99.9999, 0.0), (100.0 - 1e-7, 1.0), (100.0, 1.0), (999.9, 1.0), (1000.0, 2.0)):
        o = seen(**LEVELS | {"attained_gpu_s": [service] * 6})
        assert keys_of(np.array([4]), levels(o)).tolist() == [level]


def test_when_the_next_job_is_promoted() -> None:
    """Job 0 gains a quantum each 200 s of waiting and has waited for 120; job 1 needs two of 400 s."""
    o = seen(**LEVELS)
    assert next_promotion(np.array([0]), levels(o)) == (pytest.approx(1080.0), 0)
    assert next_promotion(np.array([1]), levels(o)) == (pytest.approx(1800.0), 1)
    assert next_promotion(np.array([1, 0]), levels(o)) == (pytest.approx(1080.0), 0)
    assert next_promotion(np.array([4]), levels(o)) == next_promotion(NO_ROWS, levels(o)) == (INF, -1)
    assert next_promotion(np.array([0]), levels(o, 0.0)) == (INF, -1)
    past = seen(5000.0, **LEVELS | {"waited_s": [1e6] + [0.0] * 5, "attained_gpu_s": [2e6] + [0.0] * 5})
    assert next_promotion(np.array([0]), levels(past))[0] > 5000.0
    assert promoted(o, {}, levels(o))[1] == (pytest.approx(1080.0), 0)
    memory = {"again": NO_ROWS, "jobs": 6, "waiting": 4, "promotion": (1080.0, 0), "time_s": 990.0}
    assert promoted(o, memory, levels(o)) == (NO_ROWS, (1080.0, 0))
    later = seen(1080.5, **LEVELS)
    rows, following = promoted(later, memory, levels(later))
    assert (rows.tolist(), following) == ([0], (pytest.approx(1800.0), 1))
    missing = {**memory, "waiting": 3}  # somebody came back of whom nothing was said
    assert promoted(o, missing, levels(o))[1] == (pytest.approx(1080.0), 0)
    back = {**memory, "waiting": 3, "again": np.array([1])}
    rows, following = promoted(o, back, levels(o))
    assert (rows.tolist(), following) == ([1], (pytest.approx(1080.0), 0))
    gone = {**back, "promotion": (1700.0, 3)}  # job 3 runs now
    assert promoted(o, gone, levels(o))[1] == (pytest.approx(1080.0), 0)


@pytest.mark.parametrize(
    ("running", "planned", "stops", "lowest", "room", "part", "expected"),
    [
        ([2], [], 0, 0.0, 0, 1.0, 1030.0),  # 60 GPU-seconds on two GPUs
        ([2], [], 0, 1.0, 0, 1.0, 1480.0),  # only a later queue than 1 gives way
        ([2], [], 0, INF, 0, 1.0, INF), ([2], [], 0, 0.0, 0, 0.5, 1060.0), ([2], [], 0, 7.0, 0, 1.0, INF),
        ([2, 3], [], 0, 0.0, 0, 1.0, 1030.0), ([3], [], 0, 0.0, 0, 1.0, 1500.0),
        ([2], [4], 0, 0.0, 0, 1.0, 1025.0),  # one that starts on four GPUs
        # Job 3 of queue 1 is stopped: where its GPU is left over, any change of queue counts.
        ([2, 3], [3], 1, INF, 0, 1.0, 1030.0), ([2, 3], [3], 1, INF, -1, 1.0, 1480.0),
        ([2, 3], [3], 1, INF, -1, 0.5, 1060.0), ([2, 3], [3], 1, 0.0, -1, 1.0, 1030.0),
        ([2, 3], [2], 1, INF, -2, 1.0, 1500.0),  # one that runs is in a later queue than one that is stopped
        ([2, 3], [3, 4], 1, INF, -1, 1.0, 1250.0),
        ([2], [], 0, 1.0, 1, 1.0, 1480.0),  # what is free is for nobody, where nobody is stopped
        ([0, 2, 3], [3], 1, INF, -1, 1.0, 1480.0),  # nobody is in a later queue than who is stopped
    ],
)  # fmt: skip
def test_when_a_running_job_could_first_give_way(
    running: list[int], planned: list[int], stops: int, lowest: float, room: int, part: float, expected: float
) -> None:
    o = seen(**LEVELS | {"gpu_share_requested": [part] * 6})
    found = next_demotion_s(
        frozen(np.array(running, dtype=np.int64)), o.jobs.gpus_held,
        frozen(np.array(planned, dtype=np.int64)), stops,
        o.jobs.gpus_requested, o.jobs.gpu_share_requested, lowest, room, levels(o),
    )  # fmt: skip
    assert found == pytest.approx(expected)


# -- parts of GPUs ---------------------------------------------------------------------------------------------

NONE = (np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), np.empty(0))


def fitted(
    rooms: list[list[float]], count: int, part: float, *, cores: Any = (INF, INF), per_core: float = 0.0,
    wants: float = 0.0, need: float = 0.0, up: Any = (True, True), memory: Any = None, kinds: Any = NONE,
) -> list[int]:  # fmt: skip
    """The GPUs that a job gets on the best of two nodes; nothing is taken."""
    room = np.array([each for node in rooms for each in node])
    size = np.array([len(node) for node in rooms])
    first, before = np.array([0, size[0]]), room.copy()
    out, tried = np.empty((2, max(count, 1)), dtype=np.int64)
    memory_bytes = np.full(len(room), 8.0) if memory is None else np.array(memory)
    node = place(
        frozen(first), frozen(size), frozen(np.array(up)), frozen(memory_bytes), room, np.array(cores), per_core,
        count, part, need, wants, *kinds, out, tried,
    )  # fmt: skip
    assert room.tolist() == before.tolist()
    if node < 0:
        assert node == -1
        return []
    assert count == 0 or (first[node] <= out[:count]).all()
    return out[:count].tolist() if count else [node]


def test_best_fit_leaves_least_behind() -> None:
    assert fitted([[0.6], [0.3, 1.0]], 1, 0.3) == [0]
    assert fitted([[0.6], [0.3, 0.2]], 1, 0.3) == [1]  # 0.5 left before against 0.6
    assert fitted([[0.7, 0.5], [0.6, 0.6]], 1, 0.4) == [1]  # equal nodes: the GPU with the least room
    assert fitted([[0.5, 0.5], [0.5, 0.5]], 1, 0.5) == [0]
    assert fitted([[1.0, 1.0, 1.0], [1.0, 1.0]], 2, 1.0) == [3, 4]
    assert fitted([[1.0, 0.9, 1.0], [1.0, 0.0]], 2, 1.0) == [0, 2]
    assert fitted([[1.0, 0.9], [1.0, 0.0]], 2, 1.0) == []
    assert fitted([[1.0], [1.0]], 1, 1.0, up=(False, True)) == [1]
    assert fitted([[1.0], [1.0]], 1, 1.0, need=9.0, memory=[8.0, 9.0]) == [1]
    assert fitted([[1.0], [1.0]], 1, 1.0, cores=(3.9, 8.0), wants=4.0) == [1]
    assert fitted([[1.0], [1.0]], 1, 1.0, cores=(4.0, 8.0), wants=4.0) == [0]
    assert fitted([[1.0], [0.9]], 1, 0.5, cores=(4.0, 8.0)) == [1]
    assert fitted([[1.0], [0.9]], 1, 0.5, cores=(4.0, 8.0), per_core=0.125) == [0]  # 1.5 against 1.9
    assert fitted([[1.0], [0.9]], 0, 0.0, cores=(4.0, 8.0), per_core=0.125, wants=1.0) == [0]
    assert fitted([[1.0], [0.9]], 0, 0.0, cores=(4.0, 8.0), wants=5.0) == [1]


def test_fgd_goes_where_fragmentation_grows_least() -> None:
    """Most jobs ask for 0.6: of 0.6 nothing would be left for them, of 0.3 nobody has any use."""
    kinds = np.array([1]), np.array([0.6]), np.zeros(1), np.ones(1)
    assert fitted([[0.6], [0.3, 1.0]], 1, 0.3, kinds=kinds) == [1]
    assert fitted([[0.9], [0.6, 0.6]], 1, 0.3, kinds=kinds) == [0]  # 0.6 stay of use
    # Tasks of a GPU and 8 cores: with 16 of its 20 cores gone, the first node's GPU is of no use.
    cores = np.array([1]), np.array([1.0]), np.array([8.0]), np.ones(1)
    assert fitted([[1.0], [1.0]], 0, 0.0, cores=(20.0, 100.0), wants=16.0, kinds=cores) == [1]
    assert fitted([[1.0], [1.0]], 0, 0.0, cores=(20.0, 100.0), wants=12.0, kinds=cores) == [0]


def test_nobody_buys_more_rounds_than_it_needs_or_there_are() -> None:
    """Of 8 rounds one job needs 2.5, the other more than a window has."""
    one, rounds = np.ones(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    market(np.zeros(2), np.array([2.5, 9.0]), one, np.array([0.5, 0.5]), 0.0, 4, 2, rounds)
    assert rounds.tolist() == [3, 4]
    rounds[:] = 0
    # log(1 + 0.5 / 3) of the third round against log(1 + 1 / 3): with 5 rounds the other job has it.
    market(np.zeros(2), np.array([2.5, 9.0]), one, np.array([0.5, 0.5]), 0.0, 5, 1, rounds)
    assert rounds.tolist() == [2, 3]
    rounds[:] = 0
    market(np.zeros(2), np.array([9.0, 9.0]), np.array([3, 1]), np.array([0.8, 0.2]), 0.0, 1, 2, rounds)
    assert rounds.tolist() == [0, 1]  # a gang of three does not fit
    for wrong, said in (
        ({"window": 0}, "window"),
        ({"power": -1.0}, "power and"),
        ({"makespan": -0.1}, "power and"),
    ):
        with pytest.raises(ValueError, match=said):
            Shockwave(**wrong)  # type: ignore[arg-type]
    assert Shockwave(makespan=0.0, power=0.0, window=1).window == 1


def test_what_a_plan_says_of_its_allocation() -> None:
    given = Allocation.of([(1, []), (2, []), (5, [0]), (7, [1]), (8, [2])])
    plan = with_allocation(UNCHANGED.with_(revisit_s=50.0), "x", 9, given, 2, 40.0, more=1)
    assert (plan.reasons[-1].text, plan.revisit_s) == ("started 3 of 9 waiting jobs, stopped 2", 40.0)
    values = plan.reasons[-1].values
    assert (values["started"].tolist(), values["stopped"].tolist(), values["more"]) == ([5, 7, 8], [1, 2], 1)
    plan = with_allocation(UNCHANGED.with_(revisit_s=30.0), "x", 9, given)
    assert (plan.reasons[-1].text, plan.revisit_s) == ("started 5 of 9 waiting jobs", 30.0)
