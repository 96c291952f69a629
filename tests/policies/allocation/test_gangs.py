"""Handing out GPUs to gangs at its borders: what is free, what a job needs, who starts, where space runs out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import gangs
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import (
    NO_GRANTS,
    NO_ROWS,
    NO_VALUES,
    GrantColumns,
    asking_for,
    fill_in_parts,
    frozen,
    holdings,
    joined,
    new_failures,
    new_grants,
    node_models,
    partly_free,
    reordered,
    request_columns,
    room_columns,
    some_room,
    start_in_order,
    total,
    trimmed,
    working,
)
from equipoise.policies.kernels.placement import ANY, PACKED, WEIGHTED
from equipoise.policies.observation import Gpus, Nodes, Observation
from tests.policies.stages.test_s4 import cluster


def gpus(*counts: int, **more: Any) -> list[dict[str, Any]]:
    return [{"gpus_requested": n, **more} for n in counts]


def jobs(*each: dict[str, Any]) -> list[dict[str, Any]]:
    """Jobs with the same columns."""
    usual = {
        "gpus_requested": 1, "gpu_share_requested": 1.0, "gpus_per_worker": 1, "one_gpu_model": False,
        "memory_bytes": 0.0, "workers_min": 1, "workers_max": 9,
    }  # fmt: skip
    return [usual | job for job in each]


def by_job(grants: GrantColumns) -> dict[int, list[int]]:
    job, offset, gpu, _ = grants
    return {row: gpu[offset[k] : offset[k + 1]].tolist() for k, row in enumerate(job.tolist())}


def started(o: Observation, strict: bool = False, rule: int = ANY) -> tuple[dict[int, list[int]], bool]:
    """(GPUs of each job that starts, whether more of them might)."""
    grants, more = start_in_order(o.waiting, strict, rule, request_columns(o), room_columns(o))
    return by_job(grants), bool(more)


# -- columns ---------------------------------------------------------------------------------------------------


def test_read_only_views_share_memory_and_sorted_rows_do_not() -> None:
    rows = np.array([7, 3, 5])
    view = frozen(rows)
    assert (view.flags.writeable, rows.flags.writeable) == (False, True)
    assert np.shares_memory(view, rows)
    assert frozen(view) is view
    ordered = gangs.ascending(rows)
    assert (ordered.tolist(), rows.tolist(), ordered.flags.writeable) == ([3, 5, 7], [7, 3, 5], False)
    assert [part.tolist() for part in NO_GRANTS] == [[], [0], [], []]


def test_other_numbers_of_gpus_are_asked_for_and_all_else_is_kept() -> None:
    o = cluster([4], jobs({"rigid": False, "gpus_requested": 6, "memory_bytes": 3.0, "workers_max": 8}))
    before, after = request_columns(o), asking_for(o, np.array([5]))
    assert [column.tolist() for column in before] == [
        [False], [6], [1], [1], [8], [1.0], [3.0], [False]
    ]  # fmt: skip
    assert after[1].tolist() == [5]
    assert not after[1].flags.writeable
    assert all(a is b for k, (a, b) in enumerate(zip(before, after, strict=True)) if k != 1)


def test_the_model_of_a_node_is_that_of_its_first_gpu() -> None:
    o = cluster([1, 2, 0], gpus(1), models=[0, 1, 0])
    assert node_models(o).tolist() == [0, 1, 1]  # a node without any stands behind the last
    assert node_models(cluster([2, 3], gpus(1), models=[1, 1])).tolist() == [1, 1]
    assert node_models(cluster([2, 3], gpus(1))) is NO_ROWS
    assert node_models(cluster([0, 0], gpus(1), models=[0, 1])) is NO_ROWS
    shifted = Nodes.of(**o.nodes.as_dict() | {"first_gpu": [-1, 1, 3]})
    o.nodes = shifted
    assert node_models(o).tolist() == [0, 1, 1]


def test_what_kernels_change_is_copied() -> None:
    o = cluster([2, 3], [{"holds": [1]}])
    columns = room_columns(o)
    first_gpu, up, memory_bytes, weight, group, order, room, by_node = working(columns)
    assert (first_gpu.tolist(), up.tolist(), weight.tolist()) == ([0, 2], [True, True], [])
    assert (group.tolist(), order.tolist(), memory_bytes[0]) == ([], [], 80e9)
    assert room.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert not np.shares_memory(room, columns.room)
    assert by_node.shape == (7, 2)
    assert by_node[:3].tolist() == [[2, 3], [1, 3], [2**62, 2**62]]


def test_a_gpu_with_some_room_is_neither_full_nor_free() -> None:
    def partly(*room: float) -> bool:
        return bool(partly_free(frozen(np.array(room))))

    assert not partly(0.0, 1.0)
    assert not partly(1e-9, 1.0 - 1e-9)
    assert partly(0.0, 1.1e-9)
    assert partly(1.0, 1.0 - 1.1e-9)
    assert not partly(-0.5, 1.5)
    none, some = frozen(np.zeros(2, dtype=np.int64)), frozen(np.array([0, 3]))
    full, part = frozen(np.array([0.0, 1.0])), frozen(np.array([0.0, 0.25]))
    assert [bool(some_room(*each)) for each in ((none, full), (none, part), (some, full))] == [
        False,
        True,
        True,
    ]
    assert (total(frozen(np.array([3, 5, 9]))), total(none)) == (17, 0)


# -- grants ----------------------------------------------------------------------------------------------------


def test_grants_without_spare_space_and_as_one() -> None:
    job, offset, gpu, share = new_grants(3, 5)
    assert (len(job), offset.tolist(), len(gpu), len(share)) == (3, [0] * 4, 5, 5)
    job[:], offset[:], gpu[:], share[:] = (
        [7, 4, 9],
        [0, 2, 3, 5],
        [6, 8, 2, 3, 1],
        [0.5, 0.25, 1.0, 0.75, 0.125],
    )
    one = trimmed((job, offset, gpu, share), 2)
    assert [part.tolist() for part in one] == [[7, 4], [0, 2, 3], [6, 8, 2], [0.5, 0.25, 1.0]]
    other = (np.array([5, 3]), np.array([0, 3, 4]), np.array([9, 7, 5, 4]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert joined([one]) is one
    assert [part.tolist() for part in joined([one, other])] == [
        [7, 4, 5, 3], [0, 2, 3, 6, 7], [6, 8, 2, 9, 7, 5, 4], [0.5, 0.25, 1.0, 0.1, 0.2, 0.3, 0.4],
    ]  # fmt: skip


def test_space_for_grants_grows_fourfold_until_it_is_enough() -> None:
    seen: list[tuple[int, str, int, int]] = []

    def fill(at: int, last: str, grants: GrantColumns) -> tuple[int, int, str]:
        job, offset, gpu, share = grants
        seen.append((at, last, len(job), len(gpu)))
        job[0], offset[1], gpu[0], share[0] = 20 + at, 1, 30 + at, 0.5
        return 1, {0: 2, 2: 5, 5: -1}[at], last + "x"

    grants, last = fill_in_parts(fill, "a", 7, 3)
    assert seen == [(0, "a", 3, 3), (2, "ax", 5, 12), (5, "axx", 2, 48)]
    assert (last, by_job(grants)) == ("axxx", {20: [30], 22: [32], 25: [35]})


def test_what_other_jobs_hold_is_left_out_wherever_they_stand() -> None:
    holder = np.array([5, 4, -1, 1, 7, 7, -2, 5, 2, 9])
    offset, gpu = holdings(np.array([2, 4, 7]), holder)
    assert (offset.tolist(), gpu.tolist()) == ([0, 1, 2, 4], [8, 1, 4, 5])
    offset, gpu = holdings(np.array([2, 4, 7]), holder, np.array([2, 0, 1]))
    assert (offset.tolist(), gpu.tolist()) == ([0, 2, 3, 4], [4, 5, 8, 1])
    offset, gpu = reordered(np.array([0, 1, 2, 4]), np.array([8, 1, 4, 5]), np.array([2, 0]))
    assert (offset.tolist(), gpu.tolist()) == ([0, 2, 3], [4, 5, 8])


# -- who starts ------------------------------------------------------------------------------------------------


def test_a_gang_that_needs_all_that_is_free_starts() -> None:
    assert started(cluster([5], gpus(5))) == ({0: [0, 1, 2, 3, 4]}, False)
    assert started(cluster([5], gpus(3, 2)), True) == ({0: [0, 1, 2], 1: [3, 4]}, False)
    assert started(cluster([5], gpus(3, 1)), True) == ({0: [0, 1, 2], 1: [3]}, True)
    assert started(cluster([5], gpus(6))) == ({}, True)
    assert started(cluster([5], gpus(6)), True) == ({}, False)
    nobody = cluster([5], [{"holds": [0]}])
    assert started(nobody) == started(nobody, True) == ({}, True)
    full = cluster([2], [{"holds": [0, 1]}, *gpus(1)])
    assert started(full) == started(full, True) == ({}, False)
    assert started(cluster([2], [{"holds": [0, 1]}])) == ({}, False)


def test_what_does_not_fit_is_passed_over_unless_the_order_is_strict() -> None:
    o = cluster([5], gpus(6, 2, 4, 3))
    assert started(o) == ({1: [0, 1], 3: [2, 3, 4]}, False)
    assert started(o, True) == ({}, False)
    later = cluster([5], gpus(2, 4, 3))
    assert started(later) == ({0: [0, 1], 2: [2, 3, 4]}, False)
    assert started(later, True) == ({0: [0, 1]}, False)
    # Three and four of two nodes of four: the second would fit only apart.
    apart = cluster([4, 4], gpus(3, 4, 2, 2))
    assert started(apart, True, PACKED)[0] == {0: [0, 1, 2], 1: [4, 5, 6, 7]}
    full = cluster([4, 3], [{"holds": [6]}, *gpus(4, 3, 2)])
    assert started(full, True, PACKED) == ({1: [0, 1, 2, 3]}, False)
    assert started(full, False, PACKED) == ({1: [0, 1, 2, 3], 3: [4, 5]}, False)


def test_a_job_that_trains_gets_the_nearest_whole_workers() -> None:
    train = {"rigid": False, "gpus_per_worker": 2, "workers_min": 2, "workers_max": 3}
    for asked, held in ((7, 6), (5, 4), (3, 4), (9, 6), (6, 6)):
        o = cluster([11], jobs({**train, "gpus_requested": asked}))
        assert started(o)[0] == {0: list(range(held))}
    assert started(cluster([11], jobs({"gpus_per_worker": 2, "gpus_requested": 7})))[0] == {0: list(range(7))}


def test_a_share_of_a_gpu_is_at_most_the_whole() -> None:
    o = cluster([3], jobs({"gpu_share_requested": 2.5, "gpus_requested": 2}, {"gpu_share_requested": 0.25}))
    grants, more = start_in_order(o.waiting, False, ANY, request_columns(o), room_columns(o))
    assert (by_job(grants), grants[3].tolist(), bool(more)) == ({0: [0, 1], 1: [2]}, [1.0, 1.0, 0.25], True)


def test_jobs_with_a_share_start_beside_each_other_when_no_gpu_is_free() -> None:
    shares = [0.5, 0.75, 0.5, 0.25]
    o = cluster([1], jobs(*({"gpu_share_requested": share} for share in shares)))
    assert started(o) == ({0: [0], 2: [0]}, True)
    assert started(o, True) == ({0: [0]}, False)
    held = cluster(
        [1], [{"holds": [0]}, *jobs(*({"gpu_share_requested": share} for share in (0.75, 0.5)))][1:]
    )
    assert started(held) == ({0: [0]}, True)
    part = cluster([2], jobs({"gpu_share_requested": 0.5}, {}, {"gpu_share_requested": 0.5}, {}))
    assert started(part) == ({0: [0], 1: [1], 2: [0]}, True)
    three = cluster([2], jobs({"gpu_share_requested": 0.25}, {"gpu_share_requested": 0.5}, {}))
    assert started(three) == ({0: [0], 1: [0], 2: [1]}, True)
    # 0.25 of GPU 0 is left, and nothing else.
    o = quarter({}, {"gpu_share_requested": 0.25})
    assert started(o) == ({1: [0]}, True)
    assert started(o, True) == ({}, False)
    assert started(quarter({})) == ({}, True)


def quarter(*each: dict[str, Any]) -> Observation:
    """A quarter of the first of two GPUs is free."""
    o = cluster([2], jobs(*each))
    o.nodes = Nodes.of(**o.nodes.as_dict() | {"gpus_free": [0]})
    o.gpus = Gpus.of(**o.gpus.as_dict() | {"share_free": [0.25, 0.0]})
    return o


@pytest.mark.parametrize(
    ("first", "second", "gpu"),
    [
        ({"gpus_requested": 5}, {"gpus_requested": 4}, [0, 1, 2, 3]),
        ({"memory_bytes": 50.0}, {"memory_bytes": 40.0}, [0]),
        ({"gpus_requested": 3, "one_gpu_model": True}, {"gpus_requested": 3}, [0, 1, 2]),
        ({"gpus_requested": 3, "memory_bytes": 40.0}, {"gpus_requested": 3, "memory_bytes": 20.0}, [0, 1, 2]),
        ({"memory_bytes": 50.0, "gpu_share_requested": 0.5}, {"gpu_share_requested": 0.5}, [0]),
    ],
)
def test_who_asks_for_less_than_what_failed_may_start(
    first: dict[str, Any], second: dict[str, Any], gpu: list[int]
) -> None:
    """Two nodes of two GPUs of different models, of 40 and of 20 bytes."""
    o = cluster(
        [2, 2], jobs(first, first, second), models=[0, 1], gpu={"memory_bytes": [40.0, 40.0, 20.0, 20.0]}
    )
    assert started(o)[0] == {2: gpu}


def test_a_smaller_share_than_what_failed_may_start() -> None:
    o = cluster([1], jobs(*({"gpu_share_requested": share} for share in (0.625, 0.5, 0.5, 0.375))))
    assert started(o)[0] == {0: [0], 3: [0]}


@pytest.mark.parametrize("alike", [False, True])
def test_gangs_by_worth_find_the_nodes_with_memory_for_them(alike: bool) -> None:
    """Nodes of 4, 5 and 3 GPUs, each of its own model; the last two have memory, and the last is worth more."""
    job = {"gpus_requested": 3, "memory_bytes": 30.0, "one_gpu_model": alike}
    memory = [20.0] * 4 + [30.0] * 5 + [60.0] * 3
    o = cluster([4, 5, 3], jobs(job, job, job), models=[0, 1, 2], gpu={"memory_bytes": memory})
    draft = Draft(o, weight=np.array([9.0, 2.0, 4.0]), order=np.array([0, 2, 1]))
    grants, more = start_in_order(o.waiting, False, WEIGHTED, request_columns(o), draft.columns)
    assert (by_job(grants), bool(more)) == ({0: [9, 10, 11], 1: [4, 5, 6]}, True)


# -- where space for answers runs out --------------------------------------------------------------------------


def part(
    o: Observation, first: int, strict: bool, space: tuple[int, int], rule: int = ANY
) -> tuple[tuple[int, int, bool], list[int], list[list[float]], int]:
    """((started, where space ran out, more), GPUs, demands that failed, most that a node was seen to have left)."""
    grants, failures, room = new_grants(*space), new_failures(), working(room_columns(o))
    n, at, more = gangs._start(
        frozen(o.waiting), first, strict, rule, request_columns(o), room, grants, failures
    )
    failed = failures[0][: failures[1][0]].tolist()
    return (int(n), int(at), bool(more)), grants[2][: grants[1][n]].tolist(), failed, int(room[7][2, 0])


def test_it_stops_where_space_runs_out_and_goes_on_from_there() -> None:
    o = cluster([9], gpus(3, 2, 4))
    assert part(o, 0, False, (3, 9)) == ((3, -1, False), [0, 1, 2, 3, 4, 5, 6, 7, 8], [], 9)
    assert part(o, 0, False, (3, 8))[:2] == ((2, 2, True), [0, 1, 2, 3, 4])
    assert part(o, 0, False, (3, 5))[:2] == ((2, 2, True), [0, 1, 2, 3, 4])
    assert part(o, 0, True, (3, 4))[:2] == ((1, 1, True), [0, 1, 2])
    assert part(o, 0, False, (2, 9))[:2] == ((2, 2, True), [0, 1, 2, 3, 4])
    assert part(o, 2, False, (1, 9))[:2] == ((1, -1, True), [0, 1, 2, 3])
    assert part(o, 1, True, (2, 9))[:2] == ((2, -1, True), [0, 1, 2, 3, 4, 5])
    assert part(cluster([9], gpus(12, 3)), 0, False, (1, 2))[0] == (0, 1, True)  # the first needs no space


def test_a_demand_that_failed_is_noted_once_and_sixteen_at_most() -> None:
    wants = [{"gpus_requested": 2, "memory_bytes": 90e9 + k} for k in (3.0, 5.0, 3.0)]
    wants.append({**wants[0], "one_gpu_model": True})
    failed = part(cluster([2], jobs(*wants)), 0, False, (4, 8))[2]
    assert failed == [
        [2.0, 1.0, 90e9 + 3.0, 0.0, 0.0], [2.0, 1.0, 90e9 + 5.0, 0.0, 0.0], [2.0, 1.0, 90e9 + 3.0, 0.0, 1.0],
    ]  # fmt: skip
    many = cluster([2], jobs(*({"memory_bytes": 90e9 + k} for k in range(18))))
    assert [row[2] - 90e9 for row in part(many, 0, False, (4, 8))[2]] == list(map(float, range(16)))


@pytest.mark.parametrize(("count", "most"), [(9, 60), (15, 60), (16, 44), (31, 44), (32, 28), (40, 28)])
def test_what_nodes_have_left_is_looked_at_anew_after_each_sixteen(count: int, most: int) -> None:
    assert part(cluster([60], gpus(*([1] * count))), 0, False, (50, 60))[3] == most


def test_no_values_are_weights() -> None:
    assert room_columns(cluster([2], gpus(1))).weight is NO_VALUES
