"""Who holds which GPUs, what is free, and at what clocks nodes compute: by hand, with unequal nodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import FREE, SERVING, SHARED, Cluster, DoubleBookingError
from equipoise.sim.cluster.power import NodePower
from equipoise.sim.cluster.throttle import Throttle, clocks_vary
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")
NAN = math.nan


def cluster_of(*nodes: dict[str, Any]) -> Cluster:
    case = scenario(cluster={"nodes": [{"name": f"n{k}"} | node for k, node in enumerate(nodes)]})
    return Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))


def three() -> Cluster:
    """Nodes of 2, 3 and 1 GPUs, and one that only stores data."""
    return cluster_of({"gpus": 2}, {"gpus": 3}, {"gpus": 0}, {"gpus": 1})


def book(cluster: Cluster, job: int, gpu: list[int], share: list[float] | None = None) -> Any:
    return cluster.book(job, np.array(gpu), np.array(share or [1.0] * len(gpu)))


# --- GPUs ------------------------------------------------------------------------------------------------


def test_nodes_have_their_gpus_one_after_the_other() -> None:
    cluster = three()
    assert cluster.nodes.first_gpu.tolist() == [0, 2, 5, 5]
    assert cluster.gpus.node.tolist() == [0, 0, 1, 1, 1, 3]
    assert (cluster.free_gpus, cluster.node_gpus) == (6, 2.0)
    assert [cluster.group(node).name for node in range(4)] == ["n0", "n1", "n2", "n3"]
    assert cluster_of({"gpus": 3}).node_gpus == 3.0
    assert cluster.nodes_named(["n3", "n1-0"]) == [3, 1]


def test_what_groups_do_not_say_is_never_the_limit() -> None:
    cluster = cluster_of({"ingest": 70.0, "local_read": 5e8, "cores": 9, "speed": 0.75, "storage": 8e9}, {})
    assert cluster.nodes.ingest_samples_per_s.tolist() == [70.0, math.inf]
    assert cluster.local_read.tolist() == [5e8, math.inf]
    assert cluster.cores.tolist() == cluster.nodes.cores.tolist() == [9.0, 32.0]
    assert cluster.node_speed.tolist() == [0.75, 1.0]
    assert cluster.nodes.storage_free_bytes[0] == 8e9
    assert cluster.slow.tolist() == cluster.gpu_time.tolist() == cluster.corrupt.tolist() == [1.0, 1.0]
    assert cluster.workers.tolist() == [0, 0]


def test_gpus_are_cut_as_their_group_shares_them() -> None:
    cluster = cluster_of({"gpus": 2, "sharing": "mig"}, {"gpus": 1, "sharing": "time-slice"}, {"gpus": 2})
    assert cluster.gpus.share_quantum.tolist() == [1 / 7, 1 / 7, 1.0, 0.01, 0.01]
    assert cluster.gpus.mig.tolist() == [True, True, False, False, False]
    assert cluster.in_turns.tolist() == [False, False, True, False, False]
    assert (cluster.any_mig, three().any_mig) == (True, False)
    for job, share in enumerate((0.2, 0.3, 0.4)):
        book(cluster, job, [2, 3], [share, share])
    assert cluster.share_in_force(2, 0.3) == 1 / 3
    assert cluster.share_in_force(3, 0.3) == 0.3


def test_a_job_holds_its_gpus_in_any_order_and_its_nodes_in_theirs() -> None:
    cluster = three()
    held = book(cluster, 7, [5, 3, 0, 4])
    assert (held.nodes.tolist(), held.weight) == ([0, 1, 3], 4.0)
    assert cluster.nodes.gpus_free.tolist() == [1, 1, 0, 0]
    assert cluster.gpus.job.tolist() == [7, FREE, FREE, 7, 7, 7]
    assert cluster.gpus.share_free.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert cluster.free_gpus == 2
    assert cluster.held_gpus().tolist() == [1.0, 2.0, 0.0, 1.0]
    assert [cluster.jobs_on(node) for node in range(4)] == [[7], [7], [], [7]]
    assert book(cluster, 2, [2, 1]).nodes.tolist() == [0, 1]
    assert [cluster.jobs_on(node) for node in range(4)] == [[2, 7], [2, 7], [], [7]]
    assert cluster.release(7) is held
    assert cluster.nodes.gpus_free.tolist() == [1, 2, 0, 1]
    assert cluster.gpus.job.tolist() == [FREE, 2, 2, FREE, FREE, FREE]
    assert (cluster.free_gpus, sorted(cluster.holding)) == (4, [2])
    assert book(cluster, 4, [0, 5, 3]).nodes.tolist() == [0, 1, 3]


def test_parts_of_a_gpu_add_up_and_come_back_whole() -> None:
    cluster = three()
    assert book(cluster, 0, [2, 3], [0.1, 0.7]).weight == pytest.approx(0.8)
    assert cluster.free_gpus == 4
    book(cluster, 1, [2, 4], [0.2, 1.0])
    assert cluster.free_gpus == 3
    assert cluster.gpus.job.tolist() == [FREE, FREE, SHARED, SHARED, 1, FREE]
    assert cluster.gpus.share_free[[2, 3, 4]] == pytest.approx([0.7, 0.3, 0.0])
    cluster.release(0)
    assert (cluster.free_gpus, cluster.gpus.share_free[3]) == (4, 1.0)
    assert cluster.gpus.job[2] == SHARED
    cluster.release(1)
    assert cluster.gpus.share_free.tolist() == [1.0] * 6
    assert cluster.gpus.job.tolist() == [FREE] * 6
    assert (cluster.free_gpus, cluster.nodes.gpus_free.tolist()) == (6, [2, 3, 0, 1])


def test_a_part_that_is_left_but_for_rounding_is_given_and_no_more() -> None:
    cluster = three()
    book(cluster, 0, [1], [0.7])
    with pytest.raises(DoubleBookingError, match=r"job row 4 on GPUs \[0, 1\]"):
        book(cluster, 4, [0, 1], [1.0, 0.3001])
    assert (4 in cluster.holding, cluster.gpus.share_free[0], cluster.free_gpus) == (False, 1.0, 5)
    book(cluster, 4, [0, 1], [1.0, 0.3 + 5e-10])
    with pytest.raises(DoubleBookingError, match="job row 4"):
        book(cluster, 4, [3])
    assert cluster.free_gpus == 4


def test_replicas_are_told_from_jobs() -> None:
    cluster = three()
    book(cluster, -3, [2])
    book(cluster, 0, [3])
    assert cluster.gpus.job[[2, 3]].tolist() == [SERVING, 0]
    assert len({FREE, SHARED, SERVING}) == 3
    assert cluster.jobs_on(1) == [0]


def test_a_job_takes_another_part_of_its_gpus_where_others_leave_it() -> None:
    cluster = three()
    book(cluster, 0, [0, 3], [0.5, 0.25])
    book(cluster, 1, [0], [0.2])
    for share, fits in (([0.8, 1.0], True), ([0.8 + 1e-10, 1.0], True), ([0.8001, 0.1], False), ([0.1, 1.1], False)):
        assert cluster.has_room(0, np.array(share)) == fits
    told: list[list[int]] = []
    cluster.shares_changed = lambda gpu: told.append(gpu.tolist())
    cluster.set_share(0, np.array([0.625, 1.0]))
    assert cluster.gpus.share_free[[0, 3]] == pytest.approx([0.175, 0.0])
    assert cluster.gpus.job[[0, 3]].tolist() == [SHARED, 0]
    assert (cluster.holding[0].weight, cluster.holding[0].share.tolist()) == (1.625, [0.625, 1.0])
    assert told == [[0, 3]]
    assert (cluster.co_located(0, 0), cluster.co_located(0, 1), cluster.co_located(3, 1)) == (0.2, 0.625, 0.0)
    cluster.set_share(0, np.array([0.625, 0.5]))
    assert cluster.gpus.job[3] == SHARED


def test_mig_gpus_have_room_for_what_can_be_cut() -> None:
    cluster = cluster_of({"gpus": 2, "sharing": "mig"}, {"gpus": 1})
    book(cluster, 0, [0], [3 / 7])
    book(cluster, 1, [2], [0.25])
    assert cluster.can_be_cut(np.array([0]), np.array([3 / 7]))
    assert not cluster.can_be_cut(np.array([1, 0]), np.array([3 / 7, 4 / 7 + 1 / 7]))
    assert cluster.can_be_cut(np.array([0]), np.array([1.0]), beside=0)
    assert cluster.can_be_cut(np.array([2]), np.array([1.0]))  # no MIG: nothing to cut
    assert cluster.has_room(0, np.array([4 / 7]))
    assert cluster.has_room(1, np.array([1.0]))
    assert not cluster.has_room(1, np.array([1.01]))
    free = cluster.gpus.share_free[0]
    assert 0.0 < free < 1.0
    cluster.set_share(0, np.array([1 / 7]))
    assert cluster.gpus.share_free[0] > free
    cluster.release(0)
    assert cluster.gpus.share_free[0] == 1.0


def test_a_node_that_is_down_has_nothing_free_and_comes_back_empty() -> None:
    cluster = three()
    book(cluster, 0, [5])
    cluster.take_down(1)
    assert cluster.up.tolist() == [True, False, True, True]
    assert (cluster.free_gpus, cluster.nodes.gpus_free.tolist()) == (2, [2, 0, 0, 0])
    assert cluster.gpus.share_free.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    cluster.bring_up(1)
    assert cluster.up.tolist() == [True] * 4
    assert (cluster.free_gpus, cluster.nodes.gpus_free.tolist()) == (5, [2, 3, 0, 0])
    assert cluster.gpus.share_free.tolist() == [1.0] * 5 + [0.0]


def test_a_gang_goes_at_the_pace_of_its_slowest_node() -> None:
    cluster = cluster_of({"speed": 0.9}, {"speed": 0.8}, {"speed": 0.6})
    cluster.slow[:] = 1.5, 1.0, 4.0
    cluster.node_model[:] = 0, 1, 0
    pace = np.array([0.5, 0.25])
    found = [cluster.rigid_speed(np.array(nodes)) for nodes in ([0], [1], [0, 1], [0, 1, 2])]
    assert found == pytest.approx([0.6, 0.8, 0.6, 0.15])
    paced = [cluster.rigid_speed(np.array(nodes), pace) for nodes in ([0], [1], [0, 1], [2, 0])]
    assert paced == pytest.approx([0.3, 0.2, 0.2, 0.075])


# --- clocks ----------------------------------------------------------------------------------------------

POWER = NodePower(np.array([10.0, 20.0, 0.0]), np.array([110.0, 220.0, 0.0]), np.array([5.0, 0.0, 0.0]))


class Site:
    """Nodes of two, one and no GPUs; what their clocks are set to, and what is told."""

    def __init__(self, thermal: Any = None, **energy: Any) -> None:
        given = {"power_cap": None, "cluster_power_cap": None, "policy_caps": False, "ambient": 20.0}
        self.cluster = cluster_of({"gpus": 2}, {"gpus": 1}, {"gpus": 0})
        parts = {"thermal_c_per_w": 0.5, "tau_s": 20.0, "throttle_c": 60.0, "throttle_slope": 0.02}
        self.cluster.accelerators = [
            SimpleNamespace(**{k: SimpleNamespace(value=v) for k, v in parts.items()})  # type: ignore[list-item]
        ]
        case: Any = SimpleNamespace(energy=SimpleNamespace(**(given | energy)), thermal=thermal)
        self.clock, self.running, self.busy_w = Clock(), list[int](), np.array([100.0, 50.0, 0.0])
        self.set: list[list[float]] = []
        self.told: list[Any] = []
        self.busy = np.array([1.0, 1.5, 0.4])
        self.throttle = Throttle(case, self.clock, self.cluster, self.running, POWER, self, self)

    def set_clocks(self, clock: Any) -> None:
        self.set.append(clock.tolist())

    def utilisation(self, now_s: float) -> Any:
        return self.busy

    def happened(self, kind: str, node: int, value: float) -> None:
        self.told.append((kind, node, value))

    def event(self) -> None:
        self.told.append("event")


def thermal(every: float = 10.0, clock_min: float = 0.5) -> Any:
    return SimpleNamespace(every=every, clock_min=clock_min)


def test_clocks_change_only_where_something_is_said_that_changes_them() -> None:
    def varies(thermal: Any, **energy: Any) -> bool:
        given = {"cluster_power_cap": None, "policy_caps": False} | energy
        case: Any = SimpleNamespace(energy=SimpleNamespace(**given), thermal=thermal)
        return clocks_vary(case)

    assert [varies(None), varies(None, cluster_power_cap=9e3), varies(None, policy_caps=True), varies(thermal())] == [
        False,
        True,
        True,
        True,
    ]


def test_without_caps_all_compute_at_the_highest_clock() -> None:
    site = Site()
    site.running.append(1)
    site.throttle.changed()
    assert (site.set, site.clock.peek()) == ([[1.0, 1.0, 1.0]], math.inf)
    assert np.isnan(site.cluster.nodes.power_cap_w).all()


def test_a_cap_of_the_cluster_is_shared_out_once_an_instant() -> None:
    """35 + 20 W idling; of 100 and 200 W beyond that 120 W are left for one of two GPUs, and the other."""
    site = Site(cluster_power_cap=45.0 + 81.0)
    book(site.cluster, 0, [0, 2])
    site.throttle.changed()
    site.throttle.changed()
    site.clock.run(until=1.0)
    common = ((126.0 - 45.0) / 300.0) ** (1 / 3)
    assert site.set[0] == [1.0, 1.0, 1.0]
    assert len(site.set) == 2
    assert site.set[1] == pytest.approx([common, common, 1.0])
    site.cluster.release(0)
    site.throttle.changed()
    site.clock.run(until=2.0)
    assert site.set[2:] == [[1.0, 1.0, 1.0]]


def test_a_policy_caps_gpus_below_what_the_site_allows() -> None:
    site = Site(policy_caps=True, power_cap=90.0)
    nodes = site.cluster.nodes
    assert nodes.power_idle_w.tolist() == [10.0, 20.0, 0.0]
    for column in (nodes.power_max_w, nodes.power_cap_w):
        assert column[:2].tolist() == [90.0, 90.0]
        assert math.isnan(column[2])
    limit = [0.8 ** (1 / 3), 0.35 ** (1 / 3)]
    assert site.set[0][:2] == pytest.approx(limit)
    site.throttle.set_caps(np.array([60.0, NAN, NAN]))
    assert site.set[1][:2] == pytest.approx([0.5 ** (1 / 3), limit[1]])
    site.throttle.set_caps(np.array([60.0, 200.0, NAN]))
    assert site.set[2][:2] == pytest.approx([0.5 ** (1 / 3), limit[1]])
    site.throttle.set_caps(np.array([NAN, 45.0, NAN]))
    assert site.set[3][:2] == pytest.approx([limit[0], 0.125 ** (1 / 3)])
    assert site.told == [("power_cap", 0, 60.0), ("power_cap", 1, 200.0), ("power_cap", 1, 45.0)]
    assert nodes.power_cap_w[1] == 45.0
    free = Site(policy_caps=True)
    assert free.cluster.nodes.power_max_w[:2].tolist() == [110.0, 220.0]


def test_gpus_warm_while_they_work_and_the_hottest_slows_its_node() -> None:
    """Idle GPUs settle at 25 and 30 degrees; at work at 75, 75 (busy beyond all is all) and 40."""
    site = Site(thermal())
    throttle = site.throttle
    site.clock.run(until=4.0)
    throttle.changed()
    assert throttle.next_look_s == math.inf  # nothing is at work
    site.running.append(1)
    site.clock.run(until=5.0)
    throttle.changed()
    throttle.changed()
    cooled = 1 - math.exp(-5 / 20)
    assert throttle.temperature_c == pytest.approx([20 + 5 * cooled, 20 + 5 * cooled, 20 + 10 * cooled])
    assert throttle.next_look_s == 15.0
    throttle.temperature_c[:] = 65.0, 70.0, 20.0
    site.clock.run(until=15.5)
    left = math.exp(-10 / 20)
    warm = [75 - 10 * left, 75 - 5 * left, 40 - 20 * left]
    assert throttle.temperature_c == pytest.approx(warm)
    hot = 1 - 0.02 * (warm[1] - 60)
    assert site.set == [[1.0, 1.0, 1.0], [pytest.approx(hot), 1.0, 1.0]]
    assert site.told == [("throttle", 0, pytest.approx(hot)), "event"]
    assert throttle.next_look_s == 25.0
    site.running.clear()
    site.busy = np.zeros(3)
    throttle.temperature_c[:] = 30.0, 115.0, 90.0
    site.clock.run(until=99.0)
    cold = [25 + 5 * left, 25 + 90 * left, 30 + 60 * left]
    assert throttle.temperature_c == pytest.approx(cold)
    assert site.set[2] == pytest.approx([1 - 0.02 * (cold[1] - 60), 1 - 0.02 * (cold[2] - 60), 1.0])
    assert (throttle.next_look_s, len(site.set)) == (math.inf, 3)


def test_a_clock_that_moves_by_a_thousandth_is_left_as_it_is() -> None:
    seen: Any = SimpleNamespace(hot=np.array([0.0]))
    Throttle._set_hot(seen, np.array([1e-3]))  # nothing of the node is looked at
    assert seen.hot.tolist() == [0.0]


def test_no_heat_slows_a_node_below_the_least_clock_and_a_node_that_is_down_draws_nothing() -> None:
    site = Site(thermal(every=40.0, clock_min=0.625))
    site.running.append(1)
    site.throttle.changed()
    site.throttle.temperature_c[:] = 500.0, 90.0, 20.0
    site.cluster.take_down(1)
    site.clock.run(until=41.0)
    assert site.set[-1] == [0.625, 1.0, 1.0]
    assert site.throttle.temperature_c[2] == 20.0
    assert site.told == [("throttle", 0, 0.625), "event"]
    site.throttle.temperature_c[:] = 30.0, 40.0, 20.0
    site.busy = np.zeros(3)
    site.clock.run(until=81.0)
    assert site.set[-1] == [1.0, 1.0, 1.0]
    assert site.told[2:] == [("throttle_end", 0, 1.0), "event"]


@pytest.mark.parametrize(("replicas", "looks"), [(0, False), (2, True)])
def test_services_are_at_work_as_jobs_are(replicas: int, looks: bool) -> None:
    site = Site(thermal())
    beside: Any = SimpleNamespace(replicas=replicas)
    site.throttle.beside = beside
    site.throttle.changed()
    assert (site.throttle.next_look_s == 10.0) == looks
    site.clock.run(until=35.0)
    assert (site.throttle.next_look_s == 40.0) == looks


def test_heat_and_caps_hold_together() -> None:
    site = Site(thermal(), power_cap=60.0)
    limit = [0.5 ** (1 / 3), 0.2 ** (1 / 3)]
    site.throttle._set_hot(np.array([0.75, 0.5, 1.0]))
    assert site.set[-1][:2] == pytest.approx([0.75, 0.5])
    site.throttle._set_hot(np.array([0.95, 0.9, 1.0]))
    assert site.set[-1][:2] == pytest.approx(limit)
