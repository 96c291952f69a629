"""Tables that policies see, from jobs that are only what the tables ask of them: by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.policies.observation import Shards, Speeds, Stores
from equipoise.sim.job.dataset import JobData
from equipoise.sim.job.paces import Paces
from equipoise.sim.network.topology import NIC_IN, NIC_OUT
from equipoise.sim.world.observe import Traffic
from equipoise.sim.world.tables import (
    _counts,
    fill_active,
    fill_power,
    fill_shards,
    fill_speed_ratio,
    fill_speeds,
    fill_stores,
    refill,
)
from tests.sim.world.small import world_of

THREE = [{"name": "n", "count": 3, "gpus": 2, "nic": 1000.0}]


def cluster() -> Any:
    return world_of({"gpus": 1, "duration": 5.0}, nodes=THREE).cluster


class Transfers:
    """Notes nothing."""

    def start(self, *_: Any) -> Any:
        return SimpleNamespace(size_bytes=0.0)

    def cancel(self, _: Any) -> None:
        return None


def data(sizes: list[int], homes: list[list[int]], workers: list[int]) -> JobData:
    made = JobData(np.array(sizes), 10.0, homes, Transfers(), np.full(3, 1e6))  # type: ignore[arg-type]
    made.assign(workers)
    return made


def job(row: int, workers: int, **keys: Any) -> Any:
    config = SimpleNamespace(workers=workers, gpus_per_worker=2, data_bytes=keys.pop("data_bytes", 50.0))
    return SimpleNamespace(row=row, config=config, **keys)


def columns_of(table: Any, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))


def test_shards_of_two_jobs_with_where_they_are_and_when_they_are_needed() -> None:
    """The workers of the first take 0.5 and 2 s a sample; node 2 is down."""
    first = job(3, 2, data=data([4, 6, 5, 7], [[0], [0], [1], [2, 1]], [0, 1]))
    none = job(4, 3, data=None)
    last = job(5, 1, data=data([3], [[2]], [1]))
    first.config.seconds_per_sample = lambda: np.array([0.5, 2.0])
    last.config.seconds_per_sample = lambda: np.array([3.0])
    first.data.mark_started(np.array([4, 0]))
    first.data.consume(np.array([1, 0]))
    table = Shards()
    fill_shards(table, [first, none, last], np.array([True, True, False]))
    assert columns_of(table, "id", "job", "worker", "node", "bytes", "samples", "started", "local", "needed_in_s") == [
        ((3 << 32) + 0, 3, 0, 0, 30.0, 3, True, True, 0.0),
        ((3 << 32) + 1, 3, 0, 0, 60.0, 6, False, True, 1.5),
        ((3 << 32) + 2, 3, 1, 1, 50.0, 5, False, True, 0.0),
        ((3 << 32) + 3, 3, 1, 1, 70.0, 7, False, True, 10.0),
        ((5 << 32) + 0, 5, 5, -1, 30.0, 3, False, False, 0.0),
    ]
    first.data.queues[1][1].transfer = SimpleNamespace()
    first.data.homes[3] = [2]
    fill_shards(table, [first], np.array([True, True, True]))
    assert columns_of(table, "started", "local", "node")[3] == (True, False, 2)
    fill_shards(table, [none], np.array([True, True, True]))
    assert len(table) == 0


def test_where_the_data_of_jobs_lies() -> None:
    table = Stores()
    jobs = [
        job(2, 1, data=data([4, 6], [[2, 0], [2]], [0])),
        job(3, 1, data=None, homes_before_start=None),
        job(4, 1, data=None, homes_before_start=[[1], [0], [1], [1]]),
        job(5, 1, data=None, homes_before_start=[[1]], data_bytes=0.0),
    ]
    fill_stores(table, jobs, cluster())
    assert columns_of(table, "job", "node", "ratio") == [(2, 0, 0.5), (2, 2, 1.0), (4, 0, 0.25), (4, 1, 0.75)]
    fill_stores(table, [], cluster())
    assert len(table) == 0


def test_counts_of_workers_that_are_worth_an_estimate() -> None:
    assert _counts(3, 5) == [3, 4, 5]
    assert _counts(2, 17) == list(range(2, 18))
    assert _counts(2, 18) == [2, 4, 8, 16, 18]
    assert _counts(4, 64) == [4, 8, 16, 32, 64]
    assert _counts(7, 7) == [7]


def estimates(row: int, batch: int, per: int = 2) -> Any:
    """A step takes 2 s on model 0 and 5 s on model 1, and as much longer as a worker has samples."""
    config = SimpleNamespace(
        gpus_per_worker=per,
        cost_s=lambda model, samples, workers: (0.0, (2.0, 5.0)[model] + samples),
        exchange_estimate_s=lambda model, workers, apart=False: 100.0 * model + workers + (0.5 if apart else 0.0),
    )
    return SimpleNamespace(row=row, progress=SimpleNamespace(global_batch=batch), config=config)


def test_estimated_speeds_of_jobs_on_each_gpu_model_and_count() -> None:
    table, columns = (
        Speeds(),
        {
            "workers_min": np.array([0, 2, 0, 3]),
            "workers_max": np.array([0, 3, 0, 3]),
            "gpus_requested": np.array([4, 0, 7, 0]),
        },
    )
    paces = Paces(np.array([[1.0, 2.5], [1.0, 0.25]]), np.array([0, 0, 1, 0]))
    fill_speeds(table, [estimates(1, 10), estimates(3, 9)], columns, 2, np.array([0, 2]), paces)
    names = ("job", "gpu_model", "gpus", "samples_per_s", "exchange_s", "apart_exchange_s")
    assert columns_of(table, *names[:4]) == [
        (0, 0, 4, 1.0),
        (0, 1, 4, 2.5),
        (1, 0, 4, 10 / 7),
        (1, 1, 4, 1.0),
        (1, 0, 6, 10 / 6),
        (1, 1, 6, 10 / 9),
        (2, 0, 7, 1.0),
        (2, 1, 7, 0.25),
        (3, 0, 6, 9 / 5),
        (3, 1, 6, 9 / 8),
    ]
    assert columns_of(table, *names[4:])[2:6] == [(2, 2.5), (102, 102.5), (3, 3.5), (103, 103.5)]
    assert np.isnan(table.exchange_s[[0, 1, 6, 7]]).all()
    assert np.isnan(table.apart_exchange_s[[0, 1, 6, 7]]).all()
    fill_speeds(table, [estimates(1, 10)], columns, 1, np.array([0, 2]), paces)
    assert columns_of(table, "job", "gpu_model", "gpus") == [(1, 0, 4), (1, 0, 6)]
    fill_speeds(table, [], columns, 2, np.array([], dtype=np.int64), paces)
    assert len(table) == 0


def test_a_table_is_filled_anew() -> None:
    table = Stores()
    refill(table, {"job": [4.0, 7.0], "node": [2.0, 1.0], "ratio": [0.25, 0.5]})
    assert columns_of(table, "job", "node", "ratio") == [(4, 2, 0.25), (7, 1, 0.5)]
    refill(table, {"job": [3.0], "node": [0.0], "ratio": [0.75]})
    assert columns_of(table, "job", "node", "ratio") == [(3, 0, 0.75)]


def holder(gpu: list[int], share: float, active: list[float], per: int) -> Any:
    return SimpleNamespace(
        holding=SimpleNamespace(gpu=np.array(gpu), share=np.full(len(gpu), share)),
        measured=SimpleNamespace(active=np.array(active)),
        config=SimpleNamespace(gpus_per_worker=per),
    )


def test_the_busy_share_of_gpus_adds_up_over_the_jobs_on_them() -> None:
    made = cluster()
    fill_active(made, [holder([0, 1, 4, 5], 0.5, [0.8, 0.4], 2), holder([1, 2], 0.25, [0.6, 1.0], 1)])
    active = made.gpus.sm_active_ratio
    assert active[[0, 1, 2, 4, 5]].tolist() == pytest.approx([0.4, 0.4 + 0.15, 0.25, 0.2, 0.2])
    assert np.isnan(active[3])
    meter: Any = SimpleNamespace(
        power=SimpleNamespace(idle_w=np.array([50.0, 60.0, 70.0])), busy_w=np.array([100.0, 200.0, 300.0])
    )
    fill_power(made, meter)
    assert made.gpus.power_w[[0, 1, 2, 4]].tolist() == pytest.approx([90.0, 105.0, 110.0, 130.0])


def test_the_pace_of_a_node_is_the_mean_of_its_workers() -> None:
    made = cluster()
    paces = [(np.array([0, 0, 2]), np.array([0.5, 0.7, np.nan])), (np.array([0, 2]), np.array([0.9, np.inf]))]
    before = made.nodes.speed_ratio.tolist()
    fill_speed_ratio(made, paces)
    assert made.nodes.speed_ratio.tolist() == pytest.approx([0.7, *before[1:]], nan_ok=True)
    fill_speed_ratio(made, [(np.array([2, 0]), np.array([0.25, 0.5]))])
    assert made.nodes.speed_ratio.tolist() == pytest.approx([0.5, before[1], 0.25], nan_ok=True)


def test_a_nodes_interface_is_as_busy_as_its_busier_direction_and_others_have_the_rest() -> None:
    """Four seconds at 1000 bytes/s; jobs 1 and 2 send from node 0, and job 1 receives there twice."""
    made = cluster()
    traffic, link = Traffic(made), made.topology.link
    traffic.by_job = True
    assert (traffic.due(0.0), traffic.due(0.5)) == (False, True)
    out, into, far = link(0, NIC_OUT), link(0, NIC_IN), link(2, NIC_IN)
    traffic.carried(1, np.array([out, far]), np.array([400.0, 800.0]))
    traffic.carried(2, np.array([out]), np.array([1200.0]))
    transfer: Any = SimpleNamespace(links=[into, far], size_bytes=300.0, owner=1)
    traffic.transferred(transfer, 2.0)
    traffic.transferred(transfer, 3.0)
    traffic.fill(4.0)
    assert made.nodes.nic_busy_ratio.tolist() == pytest.approx([0.4, 0.0, 0.35])
    nodes = np.array([2, 0, 1])
    assert traffic.by_others(1, nodes).tolist() == pytest.approx([0.0, 0.3, 0.0])
    assert traffic.by_others(2, nodes).tolist() == pytest.approx([0.35, 0.15, 0.0])
    assert traffic.by_others(9, nodes).tolist() == pytest.approx([0.35, 0.4, 0.0])
    assert (traffic.due(4.0), traffic.due(4.5)) == (False, True)
    traffic.carried(2, np.array([out]), np.array([9000.0]))
    traffic.fill(6.0)
    assert made.nodes.nic_busy_ratio.tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert traffic.by_others(1, nodes).tolist() == pytest.approx([0.0, 1.0, 0.0])
    unasked = Traffic(made)
    unasked.carried(1, np.array([out]), np.array([400.0]))
    unasked.transferred(transfer, 2.0)
    unasked.fill(2.0)
    assert unasked.by_others(1, nodes).tolist() == pytest.approx([0.15, 0.2, 0.0])
