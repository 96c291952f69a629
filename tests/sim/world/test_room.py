"""Where replicas have room, whom they displace, and the queue of rows: by hand and by a plain list."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.services import Service
from equipoise.sim.world.queue import RowQueue
from equipoise.sim.world.room import cheapest_victims, free_room, room_on
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")


def cluster_of(*gpus: int) -> Cluster:
    nodes = [{"name": f"n{k}", "gpus": each, "accelerator": "generic"} for k, each in enumerate(gpus)]
    case = scenario(cluster={"nodes": nodes})
    return Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))


def service(gpus: int, share: float | None = None) -> Service:
    placement = {"kind": "lent"} if share is None else {"kind": "shared", "share": share}
    return Service.model_validate(
        {
            "batch_latency": {"fixed": 1.0, "most": 1},
            "requests": {"rate": 1.0},
            "latency": {"p50": 2.0},
            "replicas": {"gpus": gpus},
            "placement": placement,
        }
    )


def hold(cluster: Cluster, row: int, gpu: list[int], share: float = 1.0) -> None:
    cluster.book(row, np.array(gpu), np.full(len(gpu), share))


def told(found: Any) -> Any:
    return None if found is None else found.tolist()


def test_a_replica_goes_where_least_stays_free() -> None:
    """Nodes of 4, 3 and 2 GPUs, from number 0, 4 and 7."""
    cluster = cluster_of(4, 3, 2)
    everywhere = np.ones(9, dtype=np.bool_)
    assert told(free_room(service(2), everywhere, cluster)) == [7, 8]
    assert told(free_room(service(3), everywhere, cluster)) == [4, 5, 6]
    assert told(free_room(service(4), everywhere, cluster)) == [0, 1, 2, 3]
    assert told(free_room(service(5), everywhere, cluster)) is None
    hold(cluster, 0, [7])
    assert told(free_room(service(2), everywhere, cluster)) == [4, 5]
    elsewhere = everywhere.copy()
    elsewhere[4:7] = False
    assert told(free_room(service(2), elsewhere, cluster)) == [0, 1]
    assert told(room_on(1, service(3), everywhere, cluster)) == [4, 5, 6]
    assert told(room_on(1, service(3), elsewhere, cluster)) is None
    assert told(room_on(2, service(2), everywhere, cluster)) is None
    assert told(room_on(2, service(1), everywhere, cluster)) == [8]
    hold(cluster, 1, [2], 0.6)
    assert told(room_on(0, service(1, 0.4), everywhere, cluster)) == [2]  # the part that is left
    assert told(room_on(0, service(1, 0.5), everywhere, cluster)) == [0]
    assert told(free_room(service(1, 0.4), everywhere, cluster)) == [2]


def test_the_jobs_that_matter_least_make_room() -> None:
    """Jobs 0 and 1 on the first node, 2 on the second, 3 on both."""
    cluster = cluster_of(4, 4)
    for row, gpu in enumerate(([0], [1, 2], [4, 5, 6], [3, 7])):
        hold(cluster, row, gpu)
    everywhere = np.ones(8, dtype=np.bool_)

    def victims(gpus: int, priority: list[float], started_s: list[float], allowed: Any = everywhere) -> Any:
        return cheapest_victims(service(gpus), allowed, cluster, np.array(priority), np.array(started_s))

    equal, late = [1.0] * 4, [0.0, 10.0, 5.0, 1.0]
    assert victims(1, equal, late) == (0, [1])  # fewest GPUs: of the first node the one started last
    assert victims(1, equal, [20.0, 10.0, 5.0, 1.0]) == (0, [0])
    assert victims(2, equal, late) == (0, [1])
    assert victims(3, equal, late) == (1, [2])  # three GPUs of one job, or four of three
    assert victims(4, equal, late) == (0, [1, 3, 0])
    assert victims(5, equal, late) is None
    assert victims(1, [3.0, 3.0, 2.0, 4.0], late) == (1, [2])  # of lower priority
    assert victims(1, equal, [0.0, 0.0, 0.0, 0.0]) == (0, [3])  # of two that began alike the later one
    second = everywhere.copy()
    second[:4] = False
    assert victims(1, equal, late, second) == (1, [2])
    cluster.up[0] = False
    assert victims(2, equal, late) == (1, [2])
    cluster.release(2)
    cluster.release(3)
    assert victims(1, equal, late) is None


def test_so_many_jobs_stop_that_their_shares_make_room() -> None:
    cluster = cluster_of(1)
    hold(cluster, 0, [0], 0.3)
    hold(cluster, 1, [0], 0.7)
    everywhere, equal = np.ones(1, dtype=np.bool_), np.ones(2)
    for started_s, rows in (([5.0, 1.0], [0, 1]), ([1.0, 5.0], [1])):
        found = cheapest_victims(service(1, 0.5), everywhere, cluster, equal, np.array(started_s))
        assert found == (0, rows)


def test_shares_that_others_hold_of_a_gpu() -> None:
    cluster = cluster_of(2)
    for row, share in enumerate((0.5, 0.25, 0.125)):
        hold(cluster, row, [0], share)
    assert cluster._shares_on(0).tolist() == [0.5, 0.25, 0.125]
    assert cluster._shares_on(0, 1).tolist() == [0.5, 0.125]
    assert cluster._shares_on(1).tolist() == []
    assert cluster.co_located(0, 1) == 0.625
    assert cluster.co_located(1, 1) == 0.0
    assert cluster.share_in_force(0, 0.25) == 0.25
    cluster.in_turns[:] = True
    assert cluster.share_in_force(0, 0.25) == 1 / 3
    assert (cluster.jobs_on(0), cluster.free_gpus, cluster.held_gpus().tolist()) == ([0, 1, 2], 1, [1.0])


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_of_rows_is_a_sorted_list(seed: int) -> None:
    drawn, queue, plain = random.Random(seed), RowQueue(), list[int]()
    ways = [lambda k: k, lambda k: 10_000 - k, lambda k: drawn.randrange(10_000)]  # at the end, the head, anywhere
    for k in range(600):
        if plain and drawn.random() < 0.4:
            row = drawn.choice([plain[0], plain[-1], drawn.choice(plain)])
            plain.remove(row)
            queue.remove(row)
        elif (row := ways[seed % 3](k)) not in plain:
            plain = sorted([*plain, row])
            queue.add(row)
        assert queue.rows.tolist() == plain
        assert len(queue) == len(plain)
    for absent in (-1, 20_000):
        with pytest.raises(KeyError):
            queue.remove(absent)
    with pytest.raises(ValueError, match="read-only"):
        queue.rows[:] = 0
