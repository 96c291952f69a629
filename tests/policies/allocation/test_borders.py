"""S4's parts at the borders of their rules, each figure worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation import near, preemption, ranking, shunned
from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import elastic_columns
from equipoise.policies.allocation.gangs import (
    NO_VALUES,
    frozen,
    holdings,
    reordered,
    request_columns,
    room_columns,
    start_in_order,
)
from equipoise.policies.allocation.kinds import candidates, movable, worth_by_model
from equipoise.policies.allocation.ranking import NodeState, Ranking, node_state, paces
from equipoise.policies.allocation.schedules import Busy, Option, best_schedule, earliest_s, useful
from equipoise.policies.kernels.placement import ANY, PACKED
from equipoise.policies.observation import Nodes, Observation, Speeds, Stores, Workers
from tests.policies.stages.test_s4 import cluster

NAN, INF = math.nan, math.inf
TRAIN = {"rigid": False, "workers_max": 4, "workers_min": 1}


def seen(o: Observation, **nodes: Any) -> Observation:
    """The same with other columns of its nodes."""
    return replace(o, nodes=Nodes.of(**o.nodes.as_dict() | nodes))


def state(o: Observation, speed: list[float] | None = None, model: list[int] | None = None) -> NodeState:
    one = np.ones(len(o.nodes))
    return NodeState(
        np.zeros(len(o.nodes), dtype=np.int64) if model is None else np.array(model), one,
        one if speed is None else np.array(speed), np.ones(len(o.gpu_models)),
    )  # fmt: skip


def ranks(o: Observation, a: list[float], waiting_a: list[float]) -> Ranking:
    """Of all jobs that wait or run, with these priorities."""
    none = np.zeros(len(o.waiting))
    return Ranking(
        o.waiting, np.array(waiting_a), none, np.ones(len(o.waiting), dtype=np.int64), o.running, np.array(a),
        o.waiting[:0], np.ones(len(o.nodes)),
    )  # fmt: skip


# -- near to data and to each other ----------------------------------------------------------------------------

STORES = Stores.of(job=[0, 0, 2], node=[0, 1, 2], ratio=[0.5, 0.5, 1.0])


def test_what_waiting_for_data_from_elsewhere_costs() -> None:
    """Half of 1 TB lies on node 0, half on node 1; 1 GB/s are free on both, and no limit is known on node 2."""
    o = seen(
        cluster([4, 4, 8], [{"input_bytes": b, "service_s": 100.0} for b in (1e12, 1e12, 0.0)], stores=STORES),
        gpus_free=[1, 3, 8], nic_bytes_per_s=[1e9, 2e9, NAN], nic_busy_ratio=[NAN, 0.5, NAN],
    )  # fmt: skip
    assert near.with_data(o, np.arange(3)).tolist() == [True, False, False]
    assert near.with_data(cluster([1], [{"input_bytes": 1.0}]), np.arange(1)).tolist() == [False]
    assert near._free_rate(o).tolist() == [1e9, 1e9, INF]
    assert near._free_rate(seen(o, nic_busy_ratio=[1.0, 0.0, 0.0]))[:2] == pytest.approx([1e7, 2e9])
    # 1, 3 and 4 of its 4 GPUs: a quarter of the data is there; a quarter comes over the interface; half of it
    # from each of the others, which send at once.
    every = np.arange(3)
    assert near.delays(o, 0, 4, every) == pytest.approx([0.0, 2.5, 5.0])
    assert near.delays(seen(o, gpus_free=[0, 3, 8]), 0, 4, every) == pytest.approx([0.0, 2.5, 5.0])
    assert near.delays(seen(o, nic_bytes_per_s=[1e9, 2e9, 0.25e9]), 0, 4, every)[2] == pytest.approx(40.0)
    assert near.delays(seen(o, nic_bytes_per_s=[0.1e9, 9e9, NAN]), 0, 4, every)[1:] == pytest.approx(
        [50 / 3, 50.0]
    )
    unknown = replace(o, jobs=o.jobs.replaced(service_s=np.full(3, NAN)))
    assert near.delays(unknown, 0, 4, every) == pytest.approx([0.0, 250.0, 500.0])


def test_nodes_that_store_the_data_and_the_first_others_are_looked_at() -> None:
    job = {"input_bytes": 1e12, "service_s": 100.0, "gpus_requested": 2}
    o = seen(cluster([2] * 6, [job], stores=STORES), nic_bytes_per_s=[1e9] * 6)
    draft = Draft(o, weight=np.array([1.0, 1.0, 1.0, 2.0, 3.0, 4.0]), order=np.array([5, 4, 3, 2, 1, 0]))
    own = near.own_room(draft, 0, 2)
    # Nodes 0 and 1 wait for the other half for 500 of 100 s, those without any of it for 1000.
    assert own.order.tolist() == [5, 4, 1, 0]
    assert own.weight.tolist() == pytest.approx([1 / 6, 1 / 6, 1.0, 2.0, 3 / 11, 4 / 11])
    assert near.own_room(draft, 0, 1).order.tolist() == [5, 1, 0]


RACKED = {
    "gpus_requested": 4, "workers_min": 4, "workers_max": 4, "rigid": False, "service_s": 600.0, "global_batch": 64,
}  # fmt: skip


def racks(exchange_s: float = 0.05, apart_s: float = NAN, rate: float = 64.0, **job: Any) -> Observation:
    """A gang of 4, four nodes of 2 GPUs in two racks; a step's work takes 1 s."""
    speeds = Speeds.of(
        job=[0],
        gpu_model=[0],
        gpus=[4],
        samples_per_s=[rate],
        exchange_s=[exchange_s],
        apart_exchange_s=[apart_s],
    )
    return seen(cluster([2] * 4, [RACKED | job], speeds=speeds), rack=[0, 1, 0, 1])


def test_gangs_that_exchange_for_long_want_one_rack() -> None:
    def found(o: Observation) -> bool:
        return bool(near.exchanging(o, np.array([0]), request_columns(o))[0])

    assert found(racks())
    assert not found(racks(0.0499))
    assert found(racks(0.1, sync_interval=2))
    assert not found(racks(0.099, sync_interval=2))
    assert not found(racks(gpus_requested=3))  # nothing is listed for as many
    assert not found(seen(racks(), rack=[1, 1, 1, 1]))
    assert not found(seen(racks(), gpus=[2, 2, 2, 4]))  # one node is enough
    assert found(seen(racks(), gpus=[2, 2, 2, 3]))
    assert not found(cluster([2] * 4, [RACKED]))


def test_the_rack_worth_most_of_those_with_enough() -> None:
    o = seen(cluster([3] * 4, [RACKED]), rack=[0, 1, 0, 1])

    def found(gpus: int, weight: list[float], free: list[int]) -> list[int] | None:
        columns = Draft(seen(o, gpus_free=free), np.array(weight), order=np.arange(4)).columns
        room = near.in_one_rack(o, columns, gpus)
        return None if room is None else room.order.tolist()

    assert found(3, [1.0, 0.5, 1.0, 0.5], [1, 3, 2, 1]) == [0, 2]
    assert found(4, [1.0, 0.5, 1.0, 0.5], [1, 3, 2, 1]) == [1, 3]
    assert found(5, [1.0, 0.5, 1.0, 0.5], [1, 3, 2, 1]) is None
    assert found(3, [1.0] * 4, [1, 1, 2, 2]) == [0, 2]  # the first of equals
    assert found(2, [1.0, 1.5, 9.0, 1.0], [2, 3, 3, 3]) == [
        1,
        3,
    ]  # its first two; what else is there does not count
    assert found(3, [0.5, 1.0, 0.5, 0.1], [3, 2, 3, 3]) == [1, 3]  # 2 x 1 + 0.1


def test_how_much_longer_a_job_takes_apart() -> None:
    def lost(o: Observation, interval: int = 2, gpus: int = 4) -> float:
        return near.lost_apart_s(o, 0, gpus, interval)

    assert lost(racks(0.5, 1.5)) == pytest.approx(240.0)  # periods of 1 + 1.5 and 1 + 2.5 s
    assert lost(racks(0.5, 1.5), 1) == pytest.approx(600 * (2.5 / 1.5 - 1))
    assert lost(racks(0.5, 1.5, gamma=NAN)) == pytest.approx(240.0)
    assert lost(racks(0.5, 1.5, gamma=2.0), 1) == pytest.approx(
        600 * (math.hypot(1, 1.5) / math.hypot(1, 0.5) - 1)
    )
    assert [lost(racks(0.5)), lost(racks(0.5, 1.5), 2, 3), lost(racks(0.5, 0.4)), lost(racks(0.5, 0.0))] == [
        0.0
    ] * 4
    assert lost(racks(0.5, 1.5, service_s=NAN)) == 0.0
    two = racks()
    two.speeds = Speeds.of(
        job=[0, 0], gpu_model=[0, 0], gpus=[4, 4], samples_per_s=[64.0, 128.0], exchange_s=[0.5, 0.5],
        apart_exchange_s=[1.5, 1.0],
    )  # fmt: skip
    assert lost(two, 1) == pytest.approx(600 * (1.5 / 1.0 - 1))  # on the faster ones


def test_how_much_longer_a_job_takes_in_one_rack() -> None:
    o = seen(cluster([3] * 4, [{"service_s": 600.0}]), gpus_free=[2, 3, 1, 3])
    draft = Draft(o, np.ones(4), order=np.arange(4))
    draft.speed = np.array([1.0, 0.5, 2.0, 0.25])
    of = {
        n: draft.columns._replace(order=np.array(nodes)) for n, nodes in ((1, [1]), (2, [0, 1]), (3, [3, 2]))
    }
    assert near.lost_in_rack_s(draft, 0, 3, of[1], of[2]) == pytest.approx(600 * (2.5 / 1.5 - 1))
    assert near.lost_in_rack_s(draft, 0, 3, of[2], of[1]) == 0.0
    assert near.lost_in_rack_s(draft, 0, 2, of[3], of[2]) == pytest.approx(600 * (2.0 / 0.5 - 1))


def test_when_racks_are_free() -> None:
    jobs = [{"holds": [1, 6], "service_s": 100.0}, {"holds": [2], "service_s": NAN}]
    o = seen(cluster([2] * 4, jobs, up=[True, True, True, False]), rack=[0, 1, 0, 1])
    ends_s, first = near.frees_by_rack(Draft(o))
    assert (ends_s.tolist(), first.tolist()) == ([0.0, 0.0, 0.0, 100.0, 0.0, INF, INF, INF], [0, 4, 8])
    ends_s, first = np.array([0.0, 100.0, 5.0, 6.0, 7.0]), np.array([0, 2, 5])
    assert [near.rack_frees_in_s(ends_s, first, n) for n in (1, 2, 3, 4)] == [0.0, 6.0, 7.0, INF]


# -- nodes that are left alone ---------------------------------------------------------------------------------


def test_what_a_trial_cost_and_for_how_long_its_nodes_are_left_alone() -> None:
    job = {"holds": [0, 2], "goodput_samples_per_s": 5.0, "restart_s": 30.0}
    o = cluster([2, 2], [job])
    before = {"id": np.array([0]), "since_s": np.array([900.0]), "before": np.array([10.0])}
    assert shunned.trial_s(o, before, 0) == 110.0  # half of 100 s, and two restarts
    assert shunned.trial_s(o, before | {"before": np.array([4.0])}, 0) == 60.0
    memory: dict[str, Any] = {
        "guard": {"id": np.array([0]), "blocked_until_s": np.array([1400.0]), "failures": np.array([2])},
        "undo_id": np.array([0]), "undo_offset": np.array([0, 1]), "undo_gpu": np.array([0]),
        "shunned": np.array([5, 1]), "shunned_until_s": np.array([0.0, 0.0]),
    }  # fmt: skip
    draft, none, it = Draft(o), np.empty(0, dtype=np.int64), np.array([0])
    assert shunned.remember_nodes(draft, memory, before, none, none, 0.05) is memory
    for noise, blocked_s in ((0.5, 1400.0), (0.05, 3200.0), (0.0, 1400.0)):
        after = shunned.remember_nodes(draft, memory, before, none, it, noise)
        # Of 400 s after two failures the first was 200 s; on node 1, which failed before, it is twice as long.
        assert after["shunned_until_s"].tolist() == [0.0, max(1400.0, blocked_s)]
        assert after["guard"]["blocked_until_s"].tolist() == [blocked_s]
        assert after["shunned"].tolist() == [5, 2]
    assert shunned.remember_nodes(draft, memory, before, it, none, 0.5)["shunned"].tolist() == [5, 0]
    assert shunned.shunned(o, memory | {"shunned_until_s": np.array([1000.0, 1000.5])}).tolist() == [
        False,
        True,
    ]
    assert (
        shunned.shunned(o, {"shunned": np.array([1]), "shunned_until_s": np.array([9e9])}).tolist()
        == [False] * 2
    )
    other = {**memory, "undo_id": np.array([1])}
    assert shunned._taken(draft, other, 0).tolist() == shunned._taken(draft, other, 2).tolist() == []


# -- who comes first -------------------------------------------------------------------------------------------


def test_what_of_a_priority_does_not_change_while_a_job_waits() -> None:
    o = cluster([1, 1], [{"priority": NAN}, {"priority": 3.0}, {}], gpu={"memory_bytes": [60e9, 20e9]})
    rows, fit = np.arange(3), np.array([True, True, False])
    assert ranking._worth(o, rows, fit, 0.5).tolist() == [1.0, 3.0, 0.0]
    needs = replace(o, jobs=o.jobs.replaced(memory_bytes=np.array([40e9, 0.0, NAN])))
    assert ranking._worth(needs, rows, fit, 0.5).tolist() == [0.5, 3.0, 0.0]  # 40 of 40 + 40 GB
    data = replace(o, jobs=o.jobs.replaced(data_demand_bytes=np.array([1.0, 16.0, 0.0])))
    assert ranking._worth(data, rows, fit, 0.5).tolist() == pytest.approx([0.5, 6.0, 0.0])
    both = replace(data, jobs=data.jobs.replaced(compute_demand_flops=np.array([4.0, 0.0, 1.0])))
    assert ranking._worth(both, rows, fit, 1.0).tolist() == pytest.approx([0.5, 12.0, 0.0])
    assert ranking._over_mean(np.array([1.0, 4.0, 0.0, NAN])).tolist() == pytest.approx([0.5, 2.0, 1.0, 1.0])
    assert ranking._over_mean(np.zeros(2)).tolist() == [1.0, 1.0]


def test_how_many_gpus_have_memory_enough() -> None:
    o = cluster([2, 2, 1], [{}], gpu={"memory_bytes": [4.0, 8.0, NAN, 8.0, 8.0]}, up=[True, True, False])
    assert ranking._gpus_enough(o, np.array([4.0, 0.0])).tolist() == [4, 4]
    assert ranking._gpus_enough(o, np.array([4.5, 8.0, 9.0, 4.0])).tolist() == [3, 3, 1, 4]


def test_the_first_jobs_by_ratio_then_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    ratio, a = np.array([1.0, 2.0, 2.0, 9.0, 1.0]), np.array([5.0, 1.0, 3.0, 0.0, 5.0])
    rows = np.array([7, 6, 5, 4, 3])
    assert ranking._first(ratio, a, rows).tolist() == [2, 1, 4, 0]
    monkeypatch.setattr(ranking, "RANKED", 2)
    assert ranking._first(ratio, a, rows).tolist() == [2, 1]
    assert sorted(ranking._first(0 * ratio, a, rows).tolist()) == [0, 4]
    monkeypatch.setattr(ranking, "RANKED", 4)
    assert ranking._first(ratio, a, rows).tolist() == [2, 1, 4, 0]
    o = cluster([1], [{"holds": [0]}, {}, {}])
    assert ranks(o, [7.0], [5.0, 6.0]).priority(np.array([2, 0, 1])).tolist() == [6.0, 7.0, 5.0]


def test_paces_on_each_model() -> None:
    """Job 0: 10 samples/s on model 0, 40 on model 1; job 1 also exchanges 6.4 s after 64; job 2 is rigid."""
    jobs = [TRAIN, {**TRAIN, "sync_interval": 1}, {"memory_bytes": 5.0}, {"gpu_types": 0b10}]
    jobs = [{"gpu_types": -1, "sync_interval": 1, **job} for job in jobs]
    speeds = Speeds.of(
        job=[0, 0, 1, 1, 2, 2, 0], gpu_model=[0, 1, 0, 1, 0, 1, 0], gpus=[1, 1, 1, 1, 1, 1, 2],
        samples_per_s=[10.0, 40.0, 10.0, 40.0, 0.5, 3.0, 99.0], exchange_s=[0.0, NAN, 6.4, 6.4, 9.0, 9.0, 0.0],
    )  # fmt: skip
    o = cluster([1, 1], jobs, models=[0, 1], speeds=speeds, gpu={"memory_bytes": [4.0, 8.0]})
    found = paces(o, np.array([1.0, NAN]), np.array([0, 1, 2, 3]))
    # Job 1: 0.1 + 0.1 s a sample against 0.025 + 0.1 s; job 2 finds no memory on model 0, job 3 may not run there.
    assert found == pytest.approx(np.array([[1.0, 4.0], [1.0, 1.6], [0.0, 3.0], [0.0, 1.0]]))
    assert ranking._own_service_s(o, np.ones(2), np.arange(3)).tolist() == pytest.approx(
        [150.0, 375.0, 200.0, 600.0]
    )
    assert paces(o, np.array([1.0, NAN]), np.array([1])).tolist() == [pytest.approx([1.0, 1.6])]
    only = Speeds.of(job=[0], gpu_model=[1], gpus=[1], samples_per_s=[40.0], exchange_s=[0.0])
    assert paces(replace(o, speeds=only), np.ones(2), np.array([0])).tolist() == [[0.0, 1.0]]
    held = cluster([1, 1], [{**jobs[0], "holds": [0]}, *jobs[1:]], models=[0, 1], speeds=speeds)
    assert ranking.held_models(held, np.array([0])).tolist() == [0]
    assert ranking._own_service_s(held, np.ones(2), np.arange(1))[:2].tolist() == [600.0, 600.0]


def test_paces_of_workers_are_taken_at_an_even_share() -> None:
    """Expected: 64 samples in 0.64 s of two GPUs, and in 3.2 s of one. An even share of the first is 32 samples."""
    jobs = [{**TRAIN, "holds": [0, 1]}, {**TRAIN, "holds": [2]}]
    speeds = Speeds.of(
        job=[0, 0, 1, 1], gpu_model=[0, 1, 1, 1], gpus=[2, 2, 1, 2], samples_per_s=[100.0, 50.0, 20.0, 999.0]
    )
    o = cluster([2, 1], jobs, models=[0, 1], speeds=speeds)
    timed = o.workers.as_dict() | {
        "samples_per_step": [40, 24, 64], "step_s": [1.0, 0.5, 4.0], "fixed_s": [0.1, 0.1, 0.5],
    }  # fmt: skip
    o.workers = Workers.of(**timed)
    expected = [0.64 / (0.9 * 32 / 40 + 0.1), 0.64 / (0.4 * 32 / 24 + 0.1), 0.8]
    assert ranking._paces(o).tolist() == pytest.approx(expected)
    o.workers = Workers.of(**timed | {"gpu_share": [1.0, 0.5, 1.0], "step_s": [1.0, 0.5, NAN]})
    assert np.isnan(ranking._paces(o)).tolist() == [False, True, True]
    none = replace(o, speeds=Speeds.of(job=[0], gpu_model=[0], gpus=[1], samples_per_s=[1.0]))
    assert np.isnan(ranking._paces(none)).all()


def test_a_node_of_a_slow_model_that_is_slower_than_estimated_is_both() -> None:
    """Model 1 is half as fast, and its worker takes 4 s in place of 3.2."""
    speeds = Speeds.of(
        job=[0, 0, 1, 1], gpu_model=[0, 1] * 2, gpus=[1] * 4, samples_per_s=[40.0, 20.0, 40.0, 20.0]
    )
    o = cluster([1, 1], [{**TRAIN, "holds": [0]}, {**TRAIN, "holds": [1]}], models=[0, 1], speeds=speeds)
    o.workers = Workers.of(**o.workers.as_dict() | {"samples_per_step": [64, 64], "step_s": [1.6, 4.0]})
    assert node_state(o, {}, 600.0).speed.tolist() == pytest.approx([1.0, 0.4])


def test_who_is_ranked_and_how_much_each_node_is_worth() -> None:
    ageing = ranking.Ageing(1.0, 0.5, 60.0, 600.0, 100.0, 1.0, 500.0, 3600.0)
    elastic = {**TRAIN, "workers_min": 2, "gpus_per_worker": 2, "gpus_requested": 4, "memory_bytes": 5.0}
    jobs = [
        {**elastic, "arrival_s": 400.0},
        {**elastic, "memory_bytes": 3.0, "rigid": True, "arrival_s": 990.0},
    ]
    for last, expected in ((4.0, [1]), (6.0, [0, 1])):
        gpu = {"memory_bytes": [6.0, 6.0, 6.0, last]}
        o = cluster([2, 2], jobs, gpu=gpu)
        found = ranking.rank(o, state(o, [1.0, 0.5]), ageing, arrival_order=True, use=False)
        assert sorted(found.waiting.tolist()) == expected
        assert found.weight.tolist() == [1.0, 0.5]
        assert found.priority(np.array([1])).tolist() == [11.0]  # it came 10 s ago
    dead = seen(o, up=[True, False], gpus_free=[2, 0])
    assert ranking.rank(dead, state(o), ageing, use=False).weight.tolist() == [1.0, 0.0]


def test_the_speed_of_a_node_fades_to_its_models() -> None:
    o = cluster([1, 1], [{}], time_s=1600.0)
    old = {"node_speed": np.array([0.5, 1.0]), "time_s": 1000.0}
    assert node_state(o, old, 600.0).speed.tolist() == [0.75, 1.0]  # half of the difference in 600 s
    assert node_state(o, old, 600.0, measured=False).speed.tolist() == [1.0, 1.0]
    assert node_state(o, {**old, "time_s": 9999.0}, 600.0).speed.tolist() == [0.5, 1.0]
    assert node_state(o, {**old, "node_speed": np.array([0.5])}, 600.0).speed.tolist() == [1.0, 1.0]
    values = NodeState(np.zeros(2), np.array([0.5, NAN]), np.array([1.0, 0.25]), np.ones(1)).values()
    assert values == {"s411_efficiency": 0.5, "s411_slowest_node": 1, "s411_slowest_speed": 0.25}
    none = NodeState(np.zeros(0), np.full(0, NAN), np.ones(0), np.ones(1)).values()
    assert (none["s411_slowest_node"], math.isnan(none["s411_efficiency"])) == (-1, True)


# -- who may move or stop --------------------------------------------------------------------------------------


def test_running_jobs_that_may_move() -> None:
    run = {"started_s": 0.0, "restart_s": 100.0, "gpus_per_worker": 1, "gpu_share_requested": 1.0}
    jobs = [
        {**run, "holds": [0], "started_s": 700.0}, {**run, "holds": [1], "started_s": 700.1},
        {**run, "holds": [2], "rigid": False, "workers_max": 2}, {**run, "holds": [3], "rigid": False},
        {**run, "holds": [4, 6]}, {**run, "holds": [5]}, {**run, "holds": [7, 8]}, {**run, "holds": [9]},
        {**run, "restart_s": NAN, "started_s": 999.0, "holds": [10]},
        {**run, "holds": [11], "gpu_share_requested": 0.5}, {**run}, {**run, "gpu_share_requested": 0.5},
    ]  # fmt: skip
    o = cluster([6, 4, 2], jobs, models=[0, 1, 0], up=[True, True, True])
    rank, blocked = ranks(o, [1.0] * 10, [1.0, 1.0]), np.zeros(10, dtype=np.bool_)
    draft = Draft(o)
    draft.leave(np.array([5]))
    blocked[7] = True
    # Job 0 has worked for two restarts since its start, job 1 for less; 2 has its own rules, 4 is on two models.
    assert movable(draft, rank, blocked, 2.0).tolist() == [0, 3, 6, 8]
    down = seen(o, up=[False, True, True])
    assert movable(Draft(down), rank, blocked, 2.0).tolist() == [6, 8]
    assert candidates(Draft(o), rank).tolist() == [10]


def test_the_worth_of_each_model_to_a_job() -> None:
    """Best speed 2: 100 s are 50 s there; two restarts of 10 s are 0.4 of that; sqrt(4 x 9) = 6."""
    jobs = [
        {"holds": [0], "service_s": 100.0, "restart_s": 10.0, "priority": 4.0},
        {"service_s": NAN, "priority": NAN},
    ]
    o = cluster([1, 1], jobs, models=[1, 0])
    rank, pace = ranks(o, [9.0], [1.0]), np.array([[2.0, 1.0], [1.0, 0.0]])

    def found(
        stoppable: bool = False, reluctance: float = 2.0, horizon_s: float = 1000.0
    ) -> list[list[float]]:
        may, now = np.array([stoppable, False]), np.array([1, -1])
        return worth_by_model(  # type: ignore[no-any-return]
            o, rank, pace, np.array([0, 1]), now, may, reluctance, horizon_s
        ).tolist()

    assert found() == [pytest.approx([3.6, 3.0]), [1.0, -1.0]]
    assert found(True) == [pytest.approx([6.0, 5.4]), [1.0, -1.0]]
    assert found(False, 5.0) == [[-1.0, 3.0], [1.0, -1.0]]  # a move would cost all that is left
    assert found(True, 9.0) == [[6.0, 9.0], [1.0, -1.0]]
    assert found(False, 2.0, 25.0) == [pytest.approx([1.2, 3.0]), [1.0, -1.0]]


@pytest.mark.parametrize(
    ("ratio", "reluctance", "run_s", "growth", "expected"),
    [
        (0.5, 2.0, 70.0, 1.0, [240.0, INF, 300.0]), (0.5, 2.0, 70.1, 1.0, [-INF, INF, 300.0]),
        (0.5, 2.0, 0.0, 140 / 60, [240.0, INF, 300.0]), (0.5, 2.0, 0.0, 2.4, [-INF, INF, 300.0]),
        (1.0, 0.0, 0.0, 0.0, [600.0, INF, 600.0]),
    ],
)  # fmt: skip
def test_the_bar_below_which_a_job_is_not_stopped(
    ratio: float, reluctance: float, run_s: float, growth: float, expected: list[float]
) -> None:
    """Job 0 has worked for 70 of its 100 s on two GPUs since its last start, and 60 GPU-s before."""
    jobs = [
        {"holds": [0, 1], "started_s": 900.0, "restart_s": 30.0, "attained_gpu_s": 200.0},
        {"holds": [2], "started_s": NAN, "service_s": NAN}, {"holds": [3], "started_s": NAN, "restart_s": NAN},
    ]  # fmt: skip
    o = cluster([4], jobs)
    assert preemption.patient_bars(o, np.arange(3), ratio, reluctance, run_s, growth).tolist() == expected
    service_s, restart_s = np.array([9.0, 50.0, NAN]), np.array([1.0, 20.0, 0.0])
    assert preemption.remaining_bars(np.array([1, 2]), service_s, restart_s).tolist() == [30.0, INF]
    assert preemption._by_bar(np.array([1.0, 3.0, 1.0, 3.0])).tolist() == [3, 1, 2, 0]


# -- whole schedules -------------------------------------------------------------------------------------------


def test_options_worth_a_look_and_when_their_gpus_are_free() -> None:
    small, large, slow = Option(1, 1, 0, 9.0), Option(2, 2, 0, 5.0), Option(2, 2, 0, 9.0)
    stays, other = Option(4, 4, 0, 20.0, stays=True), Option(1, 1, 1, 99.0)
    assert useful([small, large, slow, stays, other]) == [large, small, stays, other]
    assert useful([slow, Option(2, 2, 0, 9.0, stays=True)]) == [Option(2, 2, 0, 9.0, stays=True), slow]
    busy = [Busy(10.0, 2, 0), Busy(20.0, 1, 0), Busy(5.0, 9, 1), Busy(INF, 1, 0)]
    for gpus, expected in ((0, 0.0), (1, 10.0), (2, 10.0), (3, 20.0), (4, INF)):
        assert earliest_s(busy, Option(gpus, gpus, 0, 1.0), 4, 0.0) == expected
    assert earliest_s(busy, Option(2, 2, 0, 1.0), 4, 10.0) == 10.0
    assert earliest_s(busy, Option(3, 3, 0, 1.0), 4, 15.0) == 20.0
    assert earliest_s(busy, Option(9, 9, 1, 1.0), 9, 0.0) == 5.0


def test_the_best_schedule_of_two_jobs_on_one_gpu() -> None:
    """Of 4 s and 6 s, the second counting for more by its weight: 6 x w + 10 against 4 + 10 x w."""
    options = [[Option(1, 1, 0, 4.0)], [Option(1, 1, 0, 6.0)]]
    for weight, cost, begin_s in ((1.4, 4 + 14.0, (0.0, 4.0)), (1.6, 9.6 + 10.0, (6.0, 0.0))):
        best = best_schedule(options, np.array([1.0, weight]), [], [1], 99)
        assert (best.cost, best.chosen, best.begin_s) == (pytest.approx(cost), (0, 0), begin_s)
    stays = [[Option(1, 1, 0, 4.0)], [Option(1, 1, 0, 6.0, stays=True)]]
    assert best_schedule(stays, np.ones(2), [], [1], 99).begin_s == (6.0, 0.0)
    at_once = [[Option(1, 1, 0, 4.0)], [Option(1, 1, 0, 6.0, at_once=True)]]
    assert best_schedule(at_once, np.ones(2), [], [1], 99).begin_s == (6.0, 0.0)
    assert best_schedule(options, np.ones(2), [Busy(3.0, 1, 0)], [1], 99).begin_s == (3.0, 7.0)
    assert best_schedule(options, np.ones(2), [], [1], 4).cost == 14.0
    with pytest.raises(TimeoutError, match="too many schedules"):
        best_schedule(options, np.ones(2), [], [1], 1)
    with pytest.raises(ValueError, match="some job never fits"):
        best_schedule(options, np.ones(2), [], [0], 99)


def test_what_jobs_hold_in_any_order() -> None:
    holder = np.array([4, 4, -1, 2, 4, -2, 9])
    offset, gpu = holdings(np.array([2, 4, 7]), holder)
    assert (offset.tolist(), gpu.tolist()) == ([0, 1, 4, 4], [3, 0, 1, 4])
    offset, gpu = holdings(np.array([2, 4, 7]), holder, np.array([2, 1, 0]))
    assert (offset.tolist(), gpu.tolist()) == ([0, 0, 3, 4], [0, 1, 4, 3])
    offset, gpu = reordered(np.array([0, 1, 4]), np.array([3, 0, 1, 4]), np.array([1, 0]))
    assert (offset.tolist(), gpu.tolist()) == ([0, 3, 4], [0, 1, 4, 3])


def test_gpus_are_kept_in_order_of_speed_then_of_company() -> None:
    """Node 2 is the fastest; of the others node 0 has two of the job's GPUs."""
    o = cluster([2] * 4, [{**TRAIN, "holds": [0, 1, 2, 4, 6]}])
    assert elastic_columns(Draft(o), state(o, [1.0, 1.0, 2.0, 1.0]), np.array([0]))[2].tolist() == [
        4,
        0,
        1,
        2,
        6,
    ]


def test_a_draft_keeps_shunned_gpus_back() -> None:
    """Of three free ones one is shunned, and so is one that job 0 holds: when it stops, the other is free."""
    o = cluster([3, 2], [{"holds": [0, 1]}], up=[True, True])
    draft = Draft(o, shunned=np.array([True, False, True, False, False]))
    assert (draft.columns.free.tolist(), draft.columns.room.tolist()) == ([0, 2], [0.0, 0.0, 0.0, 1.0, 1.0])
    draft.stop([0])
    assert (draft.columns.free.tolist(), draft.columns.room.tolist()) == ([1, 2], [0.0, 1.0, 0.0, 1.0, 1.0])
    assert (draft.free, Draft(o).free) == (3, 3)
    down = Draft(cluster([3, 2], [{}], up=[True, False]), shunned=np.array([False] * 3 + [True] * 2))
    assert down.columns.free.tolist() == [3, 0]


def test_packed_gangs_take_whole_nodes_and_the_rest_of_one() -> None:
    """Six GPUs are a node of four and two of another, of which one is free."""
    o = cluster([4, 4], [{"holds": [5, 6, 7]}, {"gpus_requested": 6}, {"gpus_requested": 5}])
    for row, expected in ((1, []), (2, [0, 1, 2, 3, 4])):
        grants, _ = start_in_order(np.array([row]), False, PACKED, request_columns(o), Draft(o).columns)
        assert grants[2].tolist() == expected


@pytest.mark.parametrize(
    ("gpus", "key", "bar", "stopped"),
    [
        (2, 0.0, [(7 * k) % 20 + 1.0 for k in range(20)], [14, 17]),  # bars of 19 and 20
        (2, 0.0, [5.0] * 20, [18, 19]),  # of equals the last
        (17, 0.0, [float(k + 1) for k in range(20)], list(range(3, 20))),
        (18, 2.5, [float(k + 1) for k in range(20)], list(range(2, 20))),
        (19, 2.5, [float(k + 1) for k in range(20)], []),  # 18 of them have a higher bar
        (1, 20.0, [float(k + 1) for k in range(20)], []),
    ],
)  # fmt: skip
def test_those_with_the_highest_bars_are_stopped(
    gpus: int, key: float, bar: list[float], stopped: list[int]
) -> None:
    o = cluster([20], [*({"holds": [k]} for k in range(20)), {"gpus_requested": gpus}])
    found, grants, _ = preemption.start_with_preemption(
        o, frozen(np.array([20])), frozen(np.array([key])), NO_VALUES, ANY, o.running, np.array(bar), NO_VALUES,
        o.gpus.job, request_columns(o), room_columns(o),
    )  # fmt: skip
    assert (found.tolist(), grants[0].tolist()) == (stopped, [20] if stopped else [])
