"""Who grows onto free GPUs first, and where a job in one rack may grow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import growing
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import elastic_columns, scaling_columns, table_columns
from equipoise.policies.allocation.gangs import NO_ROWS, NO_VALUES
from equipoise.policies.allocation.growing import grow_jobs, in_one_rack_and_dear
from equipoise.policies.observation import Observation, Speeds
from tests.policies.allocation.test_borders import TRAIN, ranks, seen, state
from tests.policies.stages.test_s4 import cluster

NAN = math.nan


def listed(jobs: int, *, exchange_s: float = 0.0, apart_s: float = NAN, sizes: int = 4) -> Speeds:
    """Steps of 64 samples that take 1 s on one GPU, and in proportion, and exchanges with more than one."""
    count = [n + 1 for _ in range(jobs) for n in range(sizes)]
    many = [n > 1 for n in count]
    return Speeds.of(
        job=np.repeat(np.arange(jobs), sizes), gpu_model=[0] * len(count), gpus=count,
        samples_per_s=[64.0 * n for n in count], exchange_s=[exchange_s if more else 0.0 for more in many],
        apart_exchange_s=[apart_s if more else 0.0 for more in many],
    )  # fmt: skip


def grown(
    o: Observation, a: list[float], weight: list[float] | None = None, draft: Draft | None = None,
    rows: list[int] | None = None, model: list[int] | None = None,
) -> tuple[dict[int, list[int]], list[int]]:  # fmt: skip
    """({job: GPUs}, rows in the order in which they grew)."""
    draft = draft or Draft(o, np.ones(len(o.nodes)), order=np.arange(len(o.nodes)))
    nodes = state(o, model=model)
    ranking = ranks(o, a, [])
    ranking = replace(ranking, weight=np.array(weight)) if weight else ranking
    of = np.arange(len(o.running)) if rows is None else np.array(rows)
    found, gain_s = grow_jobs(
        draft,
        nodes,
        ranking,
        scaling_columns(o, o.jobs.sync_interval),
        table_columns(o, nodes),
        of,
        1e9,
        0.05,
    )
    assert len(found) == len(gain_s)
    return {row: sorted(gpu.tolist()) for row, (gpu, _) in draft.given.items()}, found.tolist()


JOB = {**TRAIN, "gpus_requested": 1, "gpus_per_worker": 1, "service_s": 9000.0, "workers_max": 2}


def test_who_holds_less_than_it_asks_for_comes_first() -> None:
    """One GPU is free: for the job worth less, as long as it asks for more than it holds."""
    for asks, first in ((2, 1), (1, 0)):
        o = cluster(
            [3], [{**JOB, "holds": [0]}, {**JOB, "holds": [1], "gpus_requested": asks}], speeds=listed(2)
        )
        assert grown(o, [9.0, 2.0]) == ({first: [first, 2]}, [first])


def test_who_is_worth_more_for_each_gpu_comes_first() -> None:
    jobs = [{**JOB, "workers_max": 3, "holds": gpus} for gpus in ([0, 1], [2], [4])]
    o = cluster([4, 2], jobs, speeds=listed(3))  # GPUs 3 and 5 are free
    limit = [{**job, "workers_max": n} for job, n in zip(jobs, (3, 2, 2), strict=True)]
    o = cluster([4, 2], limit, speeds=listed(3))
    assert grown(o, [3.0, 2.0, 1.0])[1] == [0, 1]
    assert grown(o, [3.0, 4.0, 1.0])[1] == [1, 0]
    assert grown(o, [3.0, 4.0, 1.0], [0.5, 6.0])[1] == [2, 1]  # by the nodes on which they are
    assert grown(o, [2.0, 2.0, 2.0])[1] == [0, 1]  # by row
    # Two of 0.5 and one of 1 are as much for each GPU as 0.75.
    spread = [{**limit[0], "holds": [0, 4]}, {**limit[1], "holds": [1]}, {**limit[2], "holds": [2]}]
    o = cluster([4, 2], spread, speeds=listed(3))
    assert grown(o, [4.0, 3.9, 1.0], [1.0, 0.5])[1] == [1, 0]
    assert grown(o, [4.0, 2.9, 1.0], [1.0, 0.5])[1] == [0, 1]


def test_nobody_grows_where_nothing_is_free_or_nobody_may() -> None:
    full = cluster([2], [{**JOB, "holds": [0]}, {**JOB, "holds": [1]}], speeds=listed(2))
    assert grown(full, [1.0, 2.0]) == ({}, [])
    some = cluster([3], [{**JOB, "holds": [0]}], speeds=listed(1))
    nodes = state(some)
    none = grow_jobs(
        Draft(some), nodes, ranks(some, [1.0], []), scaling_columns(some, some.jobs.sync_interval),
        table_columns(some, nodes), NO_ROWS, 1e9, 0.05,
    )  # fmt: skip
    assert none[0] is NO_ROWS
    assert none[1] is NO_VALUES
    away = Draft(some, np.ones(1), order=np.arange(1))
    away.away[0] = True
    assert grown(some, [1.0], draft=away) == ({}, [])


def test_who_is_on_a_node_that_is_down_does_not_grow() -> None:
    jobs = [{**JOB, "holds": [0]}, {**JOB, "holds": [3]}]
    o = cluster([3, 3], jobs, speeds=listed(2), up=[False, True])
    assert grown(o, [9.0, 1.0]) == ({1: [3, 4]}, [1])


def test_who_holds_shunned_gpus_grows_on_its_model_only_where_there_is_one() -> None:
    jobs, shunned = [{**JOB, "holds": [0]}], np.array([True, False, False])
    one = cluster([3], jobs, speeds=listed(1))
    draft = Draft(one, np.ones(1), order=np.arange(1), shunned=shunned)
    assert grown(one, [1.0], draft=draft) == ({0: [0, 1]}, [0])
    two = cluster([2, 1], jobs, models=[0, 1], speeds=listed(1))
    draft = Draft(two, np.ones(2), order=np.arange(2), shunned=shunned)
    assert grown(two, [1.0], draft=draft, model=[0, 1]) == ({}, [])


# -- racks -----------------------------------------------------------------------------------------------------


def racked(*holds: list[int], apart_s: float, exchange_s: float = 0.1, workers: int = 4) -> Observation:
    """Four nodes of two GPUs: the first and third are one rack, the others another."""
    jobs = [{**JOB, "workers_max": workers, "holds": gpus} for gpus in holds]
    o = cluster([2] * 4, jobs, speeds=listed(len(holds), exchange_s=exchange_s, apart_s=apart_s))
    return seen(o, rack=[5, 7, 5, 7])


def test_a_job_grows_in_its_rack_and_beyond_where_it_gains_there_too() -> None:
    """In the rack of its two GPUs two are free: four take 0.25 + 0.1 s in place of 0.5 + 0.1 s."""
    assert grown(racked([0, 4], apart_s=9.0), [1.0]) == ({0: [0, 1, 4, 5]}, [0])
    assert grown(racked([2, 6], apart_s=9.0), [1.0]) == ({0: [2, 3, 6, 7]}, [0])
    other = racked([0, 4], [1, 5], apart_s=9.0, workers=2)  # no GPU is left in their rack
    wants = other.jobs.as_dict() | {"workers_max": [4, 2]}
    more = replace(other, jobs=other.jobs.replaced(workers_max=np.array(wants["workers_max"])))
    assert grown(more, [1.0, 1.0], rows=[0]) == ({}, [])
    near = racked([0, 4], [1, 5], apart_s=0.2)
    found = replace(near, jobs=near.jobs.replaced(workers_max=np.array([4, 2])))
    # Across racks they take 0.25 + 0.2 s, which is still less than the 0.6 s that are measured.
    assert grown(found, [1.0, 1.0], rows=[0]) == ({0: [0, 2, 3, 4]}, [0])


def test_the_ways_in_which_a_job_may_grow() -> None:
    o = racked([0, 4], [2, 3], apart_s=0.3)
    nodes = state(o)
    columns, table = elastic_columns(Draft(o), nodes, np.array([0, 1])), table_columns(o, nodes)
    bound = in_one_rack_and_dear(o, columns)
    assert bound.tolist() == [0, 1]

    def ways(part: list[int], bound: list[int]) -> list[tuple[list[int], int, list[float]]]:
        found = growing._ways(o, np.array(part), np.array(bound), columns, table)
        return [(place.tolist(), rack, estimates[4].tolist()) for place, rack, estimates in found]

    measured = [0.0, 0.1, 0.1, 0.1] * 2
    across = [0.0, 0.1, 0.3, 0.3] * 2  # both hold two GPUs, for which they are measured in one rack
    assert ways([0, 1], [0, 1]) == [([0, 1], -1, measured)]
    assert ways([1], [0]) == [([1], -1, measured)]
    assert ways([0], [0]) == [([0], 5, measured), ([0], -1, across)]
    assert ways([1], [0, 1]) == [([1], 7, measured), ([1], -1, across)]
    held = growing._held(columns, 1)
    assert held.tolist() == [2, 3]


def test_estimates_across_racks_belong_to_their_job_in_whatever_order_they_are_listed() -> None:
    o = racked([0, 4], [2, 3], apart_s=0.3)
    apart = Speeds.of(
        job=[1, 0, 1, 0], gpu_model=[0] * 4, gpus=[3, 3, 4, 4], samples_per_s=[192.0, 192.0, 256.0, 256.0],
        exchange_s=[0.1, 0.2, 0.3, 0.4], apart_exchange_s=[0.5, 0.7, 0.2, NAN],
    )  # fmt: skip
    o = replace(o, speeds=apart)
    nodes = state(o)
    columns, table = elastic_columns(Draft(o), nodes, np.array([0, 1])), table_columns(o, nodes)
    _, (_, _, across) = growing._ways(o, np.array([0]), np.array([0]), columns, table)
    assert (across[0].tolist(), across[4].tolist()) == ([0, 0, 1, 1], [0.7, 0.4, 0.5, 0.3])


@pytest.mark.parametrize(("racks", "bound"), [([5, 7, 5, 7], [0]), ([5, 5, 5, 5], []), ([5, 7, 7, 7], [])])
def test_who_is_in_one_rack_and_exchanges_longer_across_racks(racks: list[int], bound: list[int]) -> None:
    o = seen(racked([0, 4], [1, 2], apart_s=0.3), rack=racks)
    columns: Any = elastic_columns(Draft(o), state(o), np.array([0, 1]))
    assert in_one_rack_and_dear(o, columns).tolist() == bound
    same = replace(o, speeds=listed(2, exchange_s=0.1, apart_s=0.1))
    assert (
        in_one_rack_and_dear(same, columns) is NO_ROWS or in_one_rack_and_dear(same, columns).tolist() == []
    )
