"""Sizes of elastic jobs at the borders of their rules: which are tried, and which are quickest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.contention import Exchanges
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import (
    _busy,
    _efficiency,
    _free_by,
    chosen,
    elastic_columns,
    elastic_rows,
    in_nobodys_way,
    lost_there_s,
    on_living_nodes,
    scaling_columns,
    table_columns,
    without_shunned,
)
from equipoise.policies.allocation.gangs import NO_ROWS
from equipoise.policies.allocation.growing import grow_jobs, in_one_rack_and_dear
from equipoise.policies.allocation.near import frees_by_rack
from equipoise.policies.allocation.sizes import choices, one_model, sizes_up_to
from equipoise.policies.allocation.widths import narrow_jobs, quickest, sizes_between, start_widths
from equipoise.policies.observation import Jobs, Observation, Speeds
from tests.policies.allocation.test_borders import TRAIN, racks, ranks, seen, state
from tests.policies.stages.test_s4 import cluster

NAN, INF = math.nan, math.inf


def test_sizes_that_are_looked_at() -> None:
    assert sizes_between(1, 16) == list(range(1, 17))
    assert sizes_between(1, 17) == [1, 2, 4, 8, 16, 17]
    assert sizes_between(3, 40) == [3, 4, 8, 16, 32, 40]
    assert sizes_between(4, 64) == [4, 8, 16, 32, 64]
    assert sizes_between(5, 5) == [5]

    def up_to(fewest: int, most: int, batch: int, micro: int) -> list[int]:
        jobs = Jobs.of(workers_min=[fewest], workers_max=[most], global_batch=[batch], micro_batch=[micro])
        return sizes_up_to(Observation.of(jobs=jobs), 0)

    assert up_to(1, 64, 64, 2) == [*range(1, 9), 12, 16, 24, 32]
    assert up_to(5, 7, 64, 0) == [5, 6, 7]
    assert up_to(5, 7, 3, 1) == [5]
    assert up_to(9, 50, 99, 1) == [9, 12, 16, 24, 32, 48, 50]


def test_which_jobs_are_elastic_and_whole() -> None:
    jobs = [
        {**TRAIN, "holds": [0, 2]}, {**TRAIN, "holds": [1, 4], "workers_max": 1},
        {**TRAIN, "gpu_share_requested": 0.5},
        {"holds": [3]}, {**TRAIN, "holds": [5, 6, 7], "gpus_per_worker": 2}, TRAIN,
    ]  # fmt: skip
    jobs = [{"gpus_per_worker": 1, "gpu_share_requested": 1.0, **job} for job in jobs]
    o = cluster([2] * 4, jobs, up=[True, True, False, True], models=[0, 1, 0, 0])
    assert elastic_rows(o, np.arange(6)).tolist() == [0, 4, 5]
    columns = elastic_columns(Draft(o), state(o, [1.0, 2.0, 1.0, 1.0]), np.array([0, 1, 4, 5]))
    rows, offset, gpu, model, cost_s, requested = columns
    assert (offset.tolist(), gpu.tolist()) == (
        [0, 2, 4, 7, 7],
        [2, 0, 1, 4, 6, 7, 5],
    )  # the fastest first, then most
    assert (cost_s.tolist(), requested.tolist()) == ([30.0, 30.0, 30.0, 0.0], [1, 1, 1, 1])
    assert on_living_nodes(o, columns).tolist() == [True, False, False, False]
    assert one_model(Draft(o), columns).tolist() == [False, True, True, True]
    some = chosen(columns, np.array([2, 0]))
    assert (some[0].tolist(), some[1].tolist(), some[2].tolist()) == ([4, 0], [0, 3, 5], [6, 7, 5, 2, 0])
    away = Draft(o, shunned=np.arange(8) == 2)
    assert elastic_columns(away, state(o), np.array([0, 1]))[2].tolist() == [0, 2, 1, 4]
    assert without_shunned(away, columns).tolist() == [False, True, True, True]
    assert without_shunned(Draft(o), columns).all()
    assert len(rows) == len(model) == 4


def test_when_gpus_are_free_and_how_busy_jobs_keep_theirs() -> None:
    o = cluster([2, 2, 1], [{"holds": [0]}, {"holds": [1, 2]}], up=[True, True, False])
    left_s = np.array([50.0, 20.0])
    assert [_free_by(Draft(o), left_s, n) for n in range(1, 7)] == [0.0, 20.0, 20.0, 50.0, INF, INF]
    assert _free_by(Draft(o, shunned=np.arange(5) == 3), left_s, 1) == 20.0
    assert _busy(np.array([0, 2, 3]), np.array([0.5, NAN, 0.2])).tolist() == pytest.approx(
        [0.75 / 0.475, 0.2 / 0.475]
    )
    assert _busy(np.array([0, 1, 2]), np.array([0.0, 0.5])).tolist() == pytest.approx([0.1 / 0.3, 0.5 / 0.3])
    assert _busy(np.array([0]), np.empty(0)).tolist() == []
    assert _efficiency(np.array([1.5, 2.0]), np.array([2, 2])) == 0.875
    assert math.isnan(_efficiency(np.empty(0), np.empty(0, dtype=np.int64)))


def test_a_gpu_of_a_service_is_never_free_however_few_jobs_there_are() -> None:
    o = cluster([3], [{"holds": [0]}])
    o = replace(o, gpus=o.gpus.replaced(job=np.array([0, -3, -1])))
    assert [_free_by(Draft(o), np.array([50.0]), n) for n in (1, 2, 3)] == [0.0, 50.0, INF]
    assert frees_by_rack(Draft(o))[0].tolist() == [0.0, 600.0, INF]


def test_what_a_job_loses_on_these_gpus() -> None:
    o = racks(0.5, 1.5)
    fast = state(o, [1.0, 0.5, 2.0, 2.0])
    assert lost_there_s(o, fast, 0, np.array([4, 5]), 1, 600.0) == 0.0
    assert lost_there_s(o, fast, 0, np.array([0, 4]), 1, 600.0) == 600.0  # at half of the speed
    assert (
        lost_there_s(o, fast, 0, np.array([2, 4]), 1, 600.0) == 1800.0
    )  # in two racks, but nothing is listed
    apart = racks(0.5, 1.5)
    four, whole = np.array([0, 2, 4, 6]), state(o)
    assert lost_there_s(apart, whole, 0, four, 1, 600.0) == pytest.approx(400.0)
    assert lost_there_s(apart, whole, 0, np.array([0, 1, 4, 5]), 1, 600.0) == 0.0
    assert lost_there_s(seen(apart, rack=[0, 1, 2, 3]), whole, 0, four, 1, 600.0) == 0.0  # no rack has four
    dead = seen(o, up=[True, True, False, False])
    assert lost_there_s(dead, fast, 0, np.array([0, 1]), 1, 600.0) == 0.0


def test_jobs_in_one_rack_whose_exchanges_across_racks_take_longer() -> None:
    jobs = [{**TRAIN, "holds": [0, 4]}, {**TRAIN, "holds": [1, 2]}, {**TRAIN, "holds": [5]}]
    speeds = Speeds.of(
        job=[0, 1, 2],
        gpu_model=[0] * 3,
        gpus=[2, 2, 1],
        exchange_s=[0.1, 0.1, 0.1],
        apart_exchange_s=[0.2, 0.2, 0.1],
    )
    o = seen(cluster([2] * 4, jobs, speeds=speeds), rack=[0, 1, 0, 1])
    columns = elastic_columns(Draft(o), state(o), np.arange(3))
    assert in_one_rack_and_dear(o, columns).tolist() == [0]
    assert in_one_rack_and_dear(seen(o, rack=[3] * 4), columns).tolist() == []


WIDE = Speeds.of(
    job=[0] * 4 + [1] * 4, gpu_model=[0] * 8, gpus=[1, 2, 3, 4, 2, 4, 6, 8],
    samples_per_s=[64.0, 128.0, 64 / 0.34, 256.0] * 2, exchange_s=[0.0, 0.05, 0.3, 0.6] * 2,
)  # fmt: skip
"""Steps of one to four workers take 1, 0.55, 0.64 and 0.85 s; those of the second job have two GPUs each."""


def wide(**job: Any) -> tuple[Observation, Any, Any]:
    """Both jobs hold four workers; with the parts of `Scaling` and `Table`."""
    one = {**TRAIN, "gpus_requested": 4, "gpus_per_worker": 1, "service_s": 600.0} | job
    two = {**one, "gpus_requested": 8, "gpus_per_worker": 2, "restart_s": 1e6}
    o = cluster([4, 8], [{**one, "holds": [0, 1, 2, 3]}, {**two, "holds": list(range(4, 12))}], speeds=WIDE)
    return o, scaling_columns(o, o.jobs.sync_interval), table_columns(o, state(o))


@pytest.mark.parametrize(
    ("job", "horizon_s", "margin", "narrowed"),
    [
        ({}, 1e9, 0.05, True),  # 600 s times 1 - 0.55 / 0.85 is 212 s
        ({"restart_s": 211.0}, 1e9, 0.05, True), ({"restart_s": 212.0}, 1e9, 0.05, False),
        ({}, 1e9, 0.352, True), ({}, 1e9, 0.354, False), ({}, 86.0, 0.05, True), ({}, 84.0, 0.05, False),
        ({"service_s": NAN}, 86.0, 0.05, True), ({"service_s": NAN}, 84.0, 0.05, False),
        # At the two GPUs that it asks for, 600 s are 927 at four.
        ({"gpus_requested": 2, "restart_s": 327.0}, 1e9, 0.05, True),
        ({"gpus_requested": 2, "restart_s": 328.0}, 1e9, 0.05, False), ({"workers_min": 4}, 1e9, 0.05, False),
    ],
)  # fmt: skip
def test_who_gives_up_workers_without_which_it_is_quicker(
    job: dict[str, Any], horizon_s: float, margin: float, narrowed: bool
) -> None:
    o, scaling, table = wide(**job)
    draft = Draft(o)
    found = narrow_jobs(draft, state(o), np.arange(2), scaling, table, horizon_s, margin)
    assert found.tolist() == ([0] if narrowed else [])
    assert {row: gpu.tolist() for row, (gpu, _) in draft.given.items()} == ({0: [0, 1]} if narrowed else {})


def test_elastic_jobs_grow_to_where_they_gain() -> None:
    """Of 600 s at four workers 706 are left at one, and 388 at two: 318 s less the restart."""
    one = {**TRAIN, "gpus_requested": 4, "gpus_per_worker": 1, "service_s": 600.0, "holds": [0]}
    two = {**one, "gpus_requested": 8, "gpus_per_worker": 2, "holds": [4, 5]}
    full = cluster([4, 8], [one, two], speeds=WIDE)
    order, weight = np.arange(2), np.ones(2)
    for horizon_s, margin, grows in ((1e9, 0.05, True), (1e9, 0.46, False), (60.0, 0.05, False)):
        draft = Draft(full, weight, order=order)
        scaling, table = scaling_columns(full, full.jobs.sync_interval), table_columns(full, state(full))
        ranking = ranks(full, [1.0, 1.0], [])
        rows, gain_s = grow_jobs(draft, state(full), ranking, scaling, table, np.arange(2), horizon_s, margin)
        assert sorted(rows.tolist()) == ([0, 1] if grows else [])
        assert gain_s == pytest.approx([600 * (1 - 0.55) / 0.85 - 30.0] * len(rows))
        given = {row: sorted(gpu.tolist()) for row, (gpu, _) in draft.given.items()}
        assert given == ({0: [0, 1], 1: [2, 3, 4, 5]} if grows else {})  # what is free of node 0 first


def test_no_job_grows_beyond_a_micro_batch_for_each_worker() -> None:
    """Without exchanges four workers are quickest; of a batch of 64 in micro-batches of 32 two have some."""
    speeds = Speeds.of(
        job=[0] * 4, gpu_model=[0] * 4, gpus=[1, 2, 3, 4], samples_per_s=[64.0, 128.0, 192.0, 256.0],
        exchange_s=[0.0] * 4,
    )  # fmt: skip
    for micro, expected in ((32, [0, 1]), (16, [0, 1, 2, 3])):
        job = {**TRAIN, "gpus_requested": 4, "micro_batch": micro, "service_s": 9e3, "holds": [0]}
        o = cluster([4], [job], speeds=speeds)
        draft, scaling = Draft(o, np.ones(1), order=np.arange(1)), scaling_columns(o, o.jobs.sync_interval)
        table = table_columns(o, state(o))
        rows, _ = grow_jobs(draft, state(o), ranks(o, [1.0], []), scaling, table, np.arange(1), 1e9, 0.05)
        assert rows.tolist() == [0]
        assert sorted(draft.given[0][0].tolist()) == expected


def test_the_quickest_size_and_the_gpus_that_a_job_asks_for() -> None:
    o, scaling, table = wide()
    rows, now, zero = np.arange(2), np.full(2, 4), np.zeros(2, dtype=np.int64)
    for fewest, most, best, least_s in ((1, 4, 2, 0.55), (3, 4, 3, 0.64), (1, 1, 1, 1.0), (4, 4, 4, 0.85)):
        workers, step_s = quickest(rows, zero + fewest, zero + most, now, zero, scaling, table)
        assert (workers.tolist(), step_s.tolist()) == ([best, best], pytest.approx([least_s] * 2))
    assert start_widths(Draft(o), state(o), rows, scaling, table).tolist() == [2, 4]
    assert start_widths(Draft(o), state(o), rows[:0], scaling, table) is o.jobs.gpus_requested
    both, scaling, table = wide(restart_s=0.0)
    draft = Draft(replace(both, jobs=both.jobs.replaced(restart_s=np.zeros(2))))
    assert narrow_jobs(draft, state(both), np.arange(2), scaling, table, 1e9, 0.05).tolist() == [0, 1]
    assert {row: gpu.tolist() for row, (gpu, _) in draft.given.items()} == {0: [0, 1], 1: [4, 5, 6, 7]}


def test_what_exchanges_of_others_keep_links_busy() -> None:
    """Job 1 exchanges for half of its time over both nodes; job 0 would for a sixth of its own."""
    speeds = Speeds.of(
        job=[0, 0, 1, 1], gpu_model=[0] * 4, gpus=[1, 2, 1, 2], samples_per_s=[64.0, 128.0, 64.0, 128.0],
        exchange_s=[0.0, 0.1, 0.0, 0.5],
    )  # fmt: skip
    o = cluster(
        [2, 2, 1], [{**TRAIN, "holds": [0]}, {**TRAIN, "holds": [1, 3]}, {"holds": [2, 4]}], speeds=speeds
    )
    links = Exchanges(
        Draft(o), state(o), scaling_columns(o, o.jobs.sync_interval), table_columns(o, state(o))
    )
    one, two, both = np.array([0]), np.array([0, 2]), np.array([1, 3])
    assert links._busy.tolist() == [0.5, 0.5, 0.0]
    assert [links.longer(gpus) for gpus in (one, two, np.array([0, 1]), np.array([2, 4]))] == [
        1.0,
        1.5,
        1.0,
        1.5,
    ]
    assert links.crossed(one).tolist() == [False, True, False]
    assert links.gain_s(0, one, np.array([0, 1]), 10.0, 30.0, 0.0) == 30.0  # on one node
    links.beside(0, two)
    assert links._busy.tolist() == pytest.approx([0.5 + 1 / 6] * 2 + [0.0])
    links.without(0, two)
    links.without(1, both)
    assert links._busy.tolist() == pytest.approx([0.0] * 3)
    assert not links.crossed(one).any()


def test_who_is_in_nobodys_way() -> None:
    """Job 0 ends after 100 s, job 1 after 150 s; a GPU is free now, three are after 150 s."""
    train = {**TRAIN, "gpus_requested": 1, "gpus_per_worker": 1}
    wait = {**train, "service_s": 9.0, "workers_min": 1, "workers_max": 8}
    for wanted, expected in (({}, []), ({"workers_min": 2}, [0]), ({"workers_min": 2, "gpus_per_worker": 2}, [0]),
                             ({"workers_min": 9}, [0]), ({"rigid": True, "gpus_requested": 1}, []),
                             ({"rigid": True, "gpus_requested": 2}, [0])):  # fmt: skip
        jobs = [
            {**train, "holds": [0], "service_s": 100.0},
            {**train, "rigid": True, "holds": [1, 2], "service_s": 150.0},
        ]
        o = cluster([4], [*jobs, {**wait, **wanted}])
        scaling, table = scaling_columns(o, o.jobs.sync_interval), table_columns(o, state(o))
        found = in_nobodys_way(Draft(o), state(o), np.array([0]), np.array([2]), scaling, table)
        assert found.tolist() == expected, wanted
    full = cluster([3], [*jobs, wait])
    assert (
        in_nobodys_way(Draft(full), state(full), np.array([0]), np.array([2]), scaling, table).tolist() == []
    )


def test_configurations_that_the_integer_programme_chooses_among() -> None:
    """Of 1000 s ahead a restart of 30 s takes 0.03; worth is by the step at the size asked for, 0.85 s."""
    o, scaling, table = wide(service_s=9e3)
    ranking = ranks(o, [1.0, 2.0], [])
    elastic = elastic_columns(Draft(o), state(o), np.arange(2))
    found = choices(Draft(o), state(o), ranking, scaling, table, elastic, NO_ROWS, 1000.0, 2.0)
    assert found.row.tolist() == [0, 1]
    assert (found.index.tolist(), found.workers.tolist()) == ([0] * 4 + [1] * 4, [1, 2, 3, 4] * 2)
    assert (found.gpus.tolist(), found.model.tolist()) == ([1, 2, 3, 4, 2, 4, 6, 8], [0] * 8)
    assert found.stays.tolist() == [False, False, False, True] * 2
    worth = [0.97 * 0.85, 0.97 * 0.85 / 0.55, 0.97 * 0.85 / 0.64, 1.0]
    assert found.worth == pytest.approx([*worth, 0.0, 0.0, 0.0, 2.0])  # the other's restart would take 1e6 s
    rigid = [{"holds": [0], "restart_s": 30.0, "service_s": 200.0}, {"gpus_requested": 2, "service_s": 500.0}]
    o = cluster([2, 2], rigid, models=[0, 1])
    nodes, scaling, table = (
        state(o, model=[0, 1]),
        scaling_columns(o, o.jobs.sync_interval),
        table_columns(o, state(o)),
    )
    fixed = elastic_columns(Draft(o), nodes, np.array([0]))
    ranking = replace(ranks(o, [3.0], [5.0]), wanted=np.array([2]))
    found = choices(Draft(o), nodes, ranking, scaling, table, fixed, np.array([0]), 1000.0, 2.0)
    assert (found.row.tolist(), found.index.tolist(), found.gpus.tolist()) == (
        [0, 1],
        [0, 0, 1, 1],
        [1, 1, 2, 2],
    )
    assert found.stays.tolist() == [True, False, False, False]
    assert found.worth == pytest.approx(
        [3.0, 3.0 * (1 - 60 / 200), 5.0, 5.0]
    )  # two restarts of the 200 s left
