"""What goes wrong, when, and what is told of it: by the named streams, and by hand where it is planned."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.faults import Faults
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import Topology
from equipoise.sim.randomness import lognormal_parameters, stream
from equipoise.sim.scenario.faults import FaultsSpec as Spec
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")
SEED = 5
TREE = {"kind": "tree", "nodes_per_rack": 2}


class Site:
    """Notes what happens to a cluster, with the time."""

    def __init__(self, spec: dict[str, Any], nodes: list[dict[str, Any]] | None = None, saves: bool = False) -> None:
        groups = nodes or [{"name": "n", "count": 3, "gpus": 2, "nic": 8e9}]
        case = scenario(cluster={"nodes": groups, "topology": TREE}).cluster
        self.cluster = Cluster(case, PROFILE, Topology(case, PROFILE))
        self.clock, self.saves = Clock(), saves
        self.told: list[tuple[Any, ...]] = []
        self.asked: list[tuple[int, float]] = []
        self.faults = Faults(Spec.model_validate(spec), self.clock, self.cluster, self, SEED)

    def _tell(self, *what: Any) -> None:
        self.told.append((self.clock.now, *what))

    def node_down(self, node: int, *, saved: bool) -> None:
        self._tell("down", node, saved)

    def node_up(self, node: int) -> None:
        self._tell("up", node)

    def reclaimed(self, node: int) -> None:
        self._tell("reclaimed", node)

    def returned(self, node: int) -> None:
        self._tell("returned", node)

    def set_slow(self, node: int, factor: float) -> None:
        self._tell("slow", node, factor)

    def set_nics(self, node: int, share: float) -> None:
        self._tell("nics", node, share)

    def set_corrupt(self, gpu: int, factor: float) -> None:
        self._tell("gpu", gpu, factor)

    def can_save(self, node: int, notice_s: float) -> bool:
        self.asked.append((node, notice_s))
        return self.saves

    def happened(self, kind: str, node: int, value: float) -> None:
        self._tell(kind, node, value)

    def until(self, time_s: float) -> list[tuple[Any, ...]]:
        """What was told up to a time."""
        self.clock.run(until=time_s)
        return self.told

    def of(self, node: int, *kinds: str) -> list[tuple[Any, ...]]:
        """What was told of a node."""
        return [what for what in self.told if what[1] in kinds and what[2] == node]


def planned(kind: str, at: float, duration: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "node": "n-1", "at": at, "duration": duration} | more


# --- planned ---------------------------------------------------------------------------------------------


def test_a_node_that_fails_twice_comes_back_once_both_are_over() -> None:
    site = Site({"events": [planned("crash", 10.0, 20.0), planned("crash", 15.0, 40.0), planned("crash", 90.0, 2.0)]})
    assert site.until(100.0) == [
        (10.0, "crash", 1, 0.0),
        (10.0, "down", 1, False),
        (15.0, "down", 1, False),
        (55.0, "repair", 1, 0.0),
        (55.0, "up", 1),
        (90.0, "crash", 1, 0.0),
        (90.0, "down", 1, False),
        (92.0, "repair", 1, 0.0),
        (92.0, "up", 1),
    ]


def test_slow_spells_of_a_node_multiply_and_end_one_by_one() -> None:
    site = Site({"events": [planned("slow", 5.0, 10.0, factor=3.0), planned("slow", 7.0, 20.0, factor=1.5)]})
    assert site.until(99.0) == [
        (5.0, "fail_slow", 1, 3.0),
        (5.0, "slow", 1, 3.0),
        (7.0, "fail_slow", 1, 1.5),
        (7.0, "slow", 1, 4.5),
        (15.0, "fail_slow_end", 1, 3.0),
        (15.0, "slow", 1, 1.5),
        (27.0, "fail_slow_end", 1, 1.5),
        (27.0, "slow", 1, 1.0),
    ]


def test_shares_of_a_degraded_link_multiply_and_it_comes_back_whole() -> None:
    site = Site({"events": [planned("link", 5.0, 10.0, factor=0.25), planned("link", 7.0, 20.0, factor=0.5)]})
    assert site.until(99.0) == [
        (5.0, "link_degraded", 1, 0.25),
        (5.0, "nics", 1, 0.25),
        (7.0, "link_degraded", 1, 0.5),
        (7.0, "nics", 1, 0.125),
        (15.0, "link_restored", 1, 0.25),
        (15.0, "nics", 1, 0.5),
        (27.0, "link_restored", 1, 0.5),
        (27.0, "nics", 1, 1.0),
    ]


def test_the_first_gpu_of_a_node_is_corrupt_and_sound_again() -> None:
    site = Site({"events": [planned("corrupt", 3.0, 4.0, factor=7.0), planned("corrupt", 20.0, 6.0)]})
    told = site.until(99.0)
    assert told[:4] == [
        (3.0, "corrupt_gradient", 1, 7.0),
        (3.0, "gpu", 2, 7.0),
        (7.0, "corrupt_gradient_end", 1, 1.0),
        (7.0, "gpu", 2, 1.0),
    ]
    assert [what[:3] for what in told[4:6]] == [(20.0, "corrupt_gradient", 1), (20.0, "gpu", 2)]
    assert math.isnan(told[4][3])
    assert math.isnan(told[5][3])
    assert told[6:] == [(26.0, "corrupt_gradient_end", 1, 1.0), (26.0, "gpu", 2, 1.0)]


def drawn(site: Site, kind: str, node: int, place: str = "") -> Any:
    """The stream of a kind of fault on a node."""
    return stream(SEED, f"fault:{kind}:{site.cluster.topology.node_names[node]}{place}")


# --- drawn -----------------------------------------------------------------------------------------------


def test_each_node_crashes_by_a_stream_of_its_own_and_again_once_it_is_repaired() -> None:
    """Of shape 2 the scale is the mean over half the root of pi; the mean, of nodes of two GPUs each, 1,800 s."""
    crash = {"gpu_hours": 1.0, "shape": 2.0, "repair": 300.0, "repair_cov": 0.25}
    site = Site({"crash": crash})
    site.until(9000.0)
    mu, sigma = lognormal_parameters(0.25)
    for node in range(3):
        random, now_s, expected = drawn(site, "crash", node), 0.0, []
        while True:
            begin_s = now_s + 1800.0 / (math.sqrt(math.pi) / 2) * float(random.weibull(2.0))
            now_s = begin_s + 300.0 * math.exp(mu + sigma * float(random.standard_normal()))
            expected += [(begin_s, "down", node, False), (now_s, "up", node)]
            if now_s > 9000.0:
                break
        expected = [what for what in expected if what[0] < 9000.0]
        found = site.of(node, "down", "up")
        assert [what[1:] for what in found] == [what[1:] for what in expected]
        assert [what[0] for what in found] == pytest.approx([what[0] for what in expected], rel=1e-12)
        assert len(found) >= 3


@pytest.mark.parametrize(
    ("key", "name", "kinds", "factor"),
    [
        ("fail_slow", "slow", ("fail_slow", "fail_slow_end"), 3.0),
        ("link", "link", ("link_degraded", "link_restored"), 0.4),
    ],
)
def test_spells_begin_and_last_as_drawn(key: str, name: str, kinds: tuple[str, str], factor: float) -> None:
    site = Site({key: {"mtbf": 700.0, "duration": 90.0, "factor": factor}})
    site.until(4000.0)
    for node in range(3):
        random, now_s = drawn(site, name, node), 0.0
        found = site.of(node, *kinds)
        assert len(found) >= 2
        for k in range(len(found) // 2):
            begin_s = now_s + float(random.exponential(700.0))
            now_s = begin_s + float(random.exponential(90.0))
            assert [what[1:] for what in found[2 * k : 2 * k + 2]] == [(kind, node, factor) for kind in kinds]
            assert [what[0] for what in found[2 * k : 2 * k + 2]] == pytest.approx([begin_s, now_s], rel=1e-12)


@pytest.mark.parametrize("factor", [None, 6.0])
def test_a_gpu_spoils_gradients_for_a_fixed_time_as_often_as_the_rate_says(factor: float | None) -> None:
    site = Site({"corrupt_gradient": {"per_gpu_hour": 4.0, "duration": 50.0, "factor": factor}})
    told = site.until(8000.0)
    for gpu in range(6):
        random, now_s = drawn(site, "corrupt", gpu // 2, f":{gpu % 2}"), 0.0
        found = [what for what in told if what[1] == "gpu" and what[2] == gpu]
        assert len(found) >= 4
        for k in range(len(found) // 2):
            begin_s = now_s + float(random.exponential(900.0))
            now_s = begin_s + 50.0
            assert [what[0] for what in found[2 * k : 2 * k + 2]] == pytest.approx([begin_s, now_s], rel=1e-12)
            assert found[2 * k][3] == factor if factor else math.isnan(found[2 * k][3])
            assert found[2 * k + 1][3] == 1.0
    kinds = {what[1:3] for what in told if what[1] != "gpu"}
    assert kinds == {(kind, node) for kind in ("corrupt_gradient", "corrupt_gradient_end") for node in range(3)}


def test_a_rack_fails_with_all_its_nodes_and_no_other() -> None:
    site = Site({"rack": {"mtbf": 2000.0, "repair": 60.0}})
    site.until(30_000.0)
    for nodes in ((0, 1), (2,)):
        random, now_s = drawn(site, "rack", nodes[0]), 0.0
        for k in range(4):
            begin_s = now_s + float(random.exponential(2000.0))
            now_s = begin_s + 60.0
            for node in nodes:
                down, up = site.of(node, "down", "up")[2 * k : 2 * k + 2]
                assert (down[1:], up[1:]) == (("down", node, False), ("up", node))
                assert (down[0], up[0]) == pytest.approx((begin_s, now_s), rel=1e-12)


@pytest.mark.parametrize("saves", [False, True])
def test_a_spot_node_goes_after_its_notice_and_comes_back(saves: bool) -> None:
    groups = [{"name": "own", "count": 1}, {"name": "spot", "count": 2}]
    site = Site({"spot": {"group": "spot", "mtbf": 900.0, "notice": 45.0, "away": 70.0}}, groups, saves)
    site.until(12_000.0)
    assert site.of(0, "down", "up", "reclaimed") == []
    assert set(site.asked) == {(1, 45.0), (2, 45.0)}
    for node in (1, 2):
        random, now_s = drawn(site, "spot", node), 0.0
        kinds = ("reclaim", "crash", "down", "reclaimed", "returned", "repair", "up")
        found = site.of(node, *kinds)
        for k in range(3):
            begin_s = now_s + float(random.exponential(900.0)) + 45.0
            now_s = begin_s + 70.0
            six = found[6 * k : 6 * k + 6]
            assert [what[1:] for what in six] == [
                ("reclaim" if saves else "crash", node, 0.0),
                ("down", node, saves),
                ("reclaimed", node),
                ("returned", node),
                ("repair", node, 0.0),
                ("up", node),
            ]
            assert [what[0] for what in six] == pytest.approx([begin_s] * 3 + [now_s] * 3, rel=1e-12)


def test_nodes_go_and_come_as_a_series_of_counts_says() -> None:
    """Of four nodes three can be had at first, from 10 s on one, from 30 s on all, from 50 s on two, for good."""
    supply = [{"at": at, "nodes": n} for at, n in ((0.0, 3), (10.0, 1), (30.0, 4), (50.0, 2))]
    groups = [
        {"name": "own", "count": 2},
        {"name": "spot", "count": 4, "available": {"supply": supply, "notice": 25.0}},
    ]
    site = Site({}, groups)
    order = [2 + k for k in stream(SEED, "supply:spot").permutation(4).tolist()]
    assert site.told == [(0.0, "down", order[3], True), (0.0, "reclaimed", order[3])]
    assert site.faults.gone == set()

    def goes(at_s: float, *places: int) -> list[tuple[Any, ...]]:
        return [
            (at_s, *what)
            for node in (order[k] for k in places)
            for what in (("crash", node, 0.0), ("down", node, False), ("reclaimed", node))
        ]

    def comes(at_s: float, *places: int) -> list[tuple[Any, ...]]:
        return [
            (at_s, *what)
            for node in (order[k] for k in places)
            for what in (("returned", node), ("repair", node, 0.0), ("up", node))
        ]

    assert site.until(49.0)[2:] == goes(10.0, 1, 2) + comes(30.0, 1, 2, 3)
    assert site.faults.gone == set()
    assert site.until(99.0)[2 + 6 + 9 :] == goes(50.0, 2, 3)
    assert site.faults.gone == {order[2], order[3]}
    assert site.asked == [(order[k], 25.0) for k in (1, 2, 2, 3)]


def test_a_node_that_cannot_be_had_and_crashes_stays_away_until_both_are_over() -> None:
    supply = [{"at": 0.0, "nodes": 0}, {"at": 30.0, "nodes": 1}]
    groups = [{"name": "n", "count": 1, "available": {"supply": supply}}]
    site = Site({"events": [{"kind": "crash", "node": "n-0", "at": 20.0, "duration": 25.0}]}, groups)
    assert site.until(99.0) == [
        (0.0, "down", 0, True),
        (0.0, "reclaimed", 0),
        (20.0, "down", 0, False),
        (30.0, "returned", 0),
        (45.0, "repair", 0, 0.0),
        (45.0, "up", 0),
    ]


def test_where_nothing_goes_wrong_nothing_is_planned() -> None:
    site = Site({})
    assert site.clock.peek() == math.inf
