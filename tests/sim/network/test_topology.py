"""Nodes, links and routes: capacities, names, paths, and what collectives use."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.sim.network.topology import DISK, FABRIC, NIC_IN, NIC_OUT, Topology, TopologyError
from equipoise.sim.scenario.model import ClusterSpec, Explicit, LinkSpec, NodeGroup, SlowLink, Star, TreeTopology

MANY = settings(max_examples=60, deadline=None)
RATES = {"nic": 10.0, "fabric": 100.0, "storage_rate": 3.0}


def group(name="node", count=1, gpus=8, **keys):
    return NodeGroup(name=name, count=count, gpus=gpus, **(RATES | keys))


def star(*groups, **keys):
    return Topology(ClusterSpec(nodes=groups or (group(count=4),), topology=Star(**keys)))


def tree(nodes=8, per_rack=4, **keys):
    kind = TreeTopology(kind="tree", nodes_per_rack=per_rack, **keys)
    return Topology(ClusterSpec(nodes=(group(count=nodes),), topology=kind))


def explicit(links, *groups, **keys):
    specs = tuple(LinkSpec(source=a, target=b, rate=rate, **keys) for a, b, rate in links)
    return Topology(ClusterSpec(nodes=groups, topology=Explicit(kind="explicit", links=specs)))


def names(topology, links):
    return [topology.link_name(link) for link in np.asarray(links).tolist()]


def named_usage(topology, pair):
    return dict(zip(names(topology, pair[0]), pair[1].tolist(), strict=True))


# --- nodes and links -------------------------------------------------------------------------------------


def test_every_node_has_four_links_with_its_groups_capacities():
    topology = star(group("fast", 2), group("slow", 1, gpus=4, nic=1.0))
    assert topology.node_names == ["fast-0", "fast-1", "slow-0"]
    per_node = topology.capacity_bytes_per_s.reshape(3, 4)
    assert per_node[:, DISK].tolist() == [3.0, 3.0, 3.0]
    assert per_node[:, NIC_OUT].tolist() == per_node[:, NIC_IN].tolist() == [10.0, 10.0, 1.0]
    assert per_node[:, FABRIC].tolist() == [800.0, 800.0, 400.0]
    assert topology.fabric_bytes_per_s.tolist() == [100.0] * 3
    assert topology.nic_bytes_per_s.tolist() == [10.0, 10.0, 1.0]
    assert topology.rack.tolist() == [0, 0, 0]


def test_a_counted_pool_is_one_node():
    topology = Topology(ClusterSpec(gpus=48))
    assert (topology.nodes, topology.node_names) == (1, ["pool-0"])


def test_link_names_differ():
    for topology in (star(), tree(), explicit([("a", "b", 1.0)], group("a"), group("b"))):
        different = set(names(topology, range(topology.links)))
        assert len(different) == topology.links == len(topology.latency_s)


def test_a_slow_link_is_slow_both_ways_and_leaves_the_uplink_as_built():
    kind = TreeTopology(kind="tree", nodes_per_rack=2)
    slow = (SlowLink(node="node-1", rate=2.0),)
    topology = Topology(ClusterSpec(nodes=(group(count=2),), topology=kind, slow_links=slow))
    assert topology.nic_bytes_per_s.tolist() == [10.0, 2.0]
    assert named_usage(topology, (np.arange(topology.links), topology.capacity_bytes_per_s)) == {
        "node-0.disk": 3.0,
        "node-0.nic_out": 10.0,
        "node-0.nic_in": 10.0,
        "node-0.fabric": 800.0,
        "node-1.disk": 3.0,
        "node-1.nic_out": 2.0,
        "node-1.nic_in": 2.0,
        "node-1.fabric": 800.0,
        "rack-0.up": 20.0,
        "rack-0.down": 20.0,
    }


def test_uplinks_carry_the_nics_of_their_rack_over_the_oversubscription():
    topology = tree(nodes=6, per_rack=4, oversubscription=4.0)
    assert topology.rack.tolist() == [0, 0, 0, 0, 1, 1]
    assert topology.capacity_bytes_per_s[24:].tolist() == [10.0, 10.0, 5.0, 5.0]


def test_nodes_are_found_by_number_and_a_single_one_by_its_bare_name():
    topology = star(group("a", 2), group("b", 1))
    assert [topology.node_index(name) for name in ("a-1", "b", "b-0")] == [1, 2, 2]


@pytest.mark.parametrize(
    ("name", "hint"), [("a-2", "did you mean 'a-"), ("zz", "named like 'a-0'"), ("a", "unknown node 'a'")]
)
def test_an_unknown_name_is_refused_with_a_suggestion(name, hint):
    with pytest.raises(TopologyError, match=hint):
        star(group("a", 2)).node_index(name)


def test_names_that_mean_two_things_are_refused():
    with pytest.raises(TopologyError, match="two groups are named 'a'"):
        star(group("a"), group("a"))
    with pytest.raises(TopologyError, match="'a-0' names both"):
        star(group("a"), group("a-0"))


def test_a_hundred_thousand_gpus():
    """All names, links and capacities of 12,500 nodes; routes only when asked for."""
    topology = tree(nodes=12_500, per_rack=32, oversubscription=2.0)
    assert topology.links == 4 * 12_500 + 2 * 391
    assert topology.capacity_bytes_per_s[-2:].tolist() == [20 * 10.0 / 2.0] * 2
    assert topology.node_index("node-12499") == 12_499
    assert names(topology, topology.route(0, 12_499)[0])[1:3] == ["rack-0.up", "rack-390.down"]


# --- routes ----------------------------------------------------------------------------------------------


def test_routes_of_a_star():
    topology = star(group(count=3), latency=2e-6)
    links, latency_s = topology.route(0, 2)
    assert (names(topology, links), latency_s) == (["node-0.nic_out", "node-2.nic_in"], 2e-6)
    assert topology.route(0, 2)[0] is links
    links, latency_s = topology.route(1, 1)
    assert (names(topology, links), latency_s) == (["node-1.fabric"], 0.0)


def test_routes_of_a_tree_cross_the_core_only_between_racks():
    topology = tree(latency=3e-6, core_latency=5e-6)
    assert names(topology, topology.route(0, 3)[0]) == ["node-0.nic_out", "node-3.nic_in"]
    assert topology.route(0, 3)[1] == 3e-6
    links, latency_s = topology.route(5, 1)
    assert names(topology, links) == ["node-5.nic_out", "rack-1.up", "rack-0.down", "node-1.nic_in"]
    assert latency_s == pytest.approx(8e-6, rel=1e-15)


def test_reading_begins_at_the_disk_and_stays_in_the_node_if_it_can():
    topology = star(latency=1e-6)
    links, latency_s = topology.read_route(0, 1)
    assert (names(topology, links), latency_s) == (["node-0.disk", "node-0.nic_out", "node-1.nic_in"], 1e-6)
    links, latency_s = topology.read_route(2, 2)
    assert (names(topology, links), latency_s) == (["node-2.disk"], 0.0)


SQUARE = [
    ("a", "left", 1.0),
    ("a", "right", 2.0),
    ("left", "b", 3.0),
    ("right", "b", 4.0),
    ("left", "far", 5.0),
    ("far", "b", 6.0),
]


def test_explicit_links_stand_behind_the_nics_and_the_first_of_equal_paths_is_taken():
    topology = explicit(SQUARE, group("a"), group("b"))
    links, _ = topology.route(0, 1)
    assert names(topology, links) == ["a-0.nic_out", "a->left", "left->b", "b-0.nic_in"]
    assert topology.capacity_bytes_per_s[links].tolist() == [10.0, 1.0, 3.0, 10.0]
    assert names(topology, topology.route(1, 0)[0]) == ["b-0.nic_out", "b->left", "left->a", "a-0.nic_in"]


def test_the_quicker_of_paths_of_one_length_is_taken():
    slow = [LinkSpec(source="a", target="x", rate=1.0, latency=2e-6), LinkSpec(source="x", target="b", rate=1.0)]
    quick = [LinkSpec(source="a", target="y", rate=1.0, latency=1e-6), LinkSpec(source="y", target="b", rate=1.0)]
    kind = Explicit(kind="explicit", links=tuple(slow + quick))
    topology = Topology(ClusterSpec(nodes=(group("a"), group("b")), topology=kind))
    links, latency_s = topology.route(0, 1)
    assert (names(topology, links)[1:3], latency_s) == (["a->y", "y->b"], 1e-6)


def test_nodes_do_not_pass_on_what_is_not_for_them():
    links = [("a", "b", 1.0), ("b", "c", 1.0), ("a", "x", 1.0), ("x", "y", 1.0), ("y", "c", 1.0)]
    topology = explicit(links, group("a"), group("b"), group("c"))
    assert names(topology, topology.route(0, 2)[0])[1:-1] == ["a->x", "x->y", "y->c"]


def test_nodes_that_cannot_reach_each_other_are_refused():
    with pytest.raises(TopologyError, match="no path from a-0 to c-0"):
        explicit([("a", "b", 1.0), ("c", "x", 1.0)], group("a"), group("b"), group("c"))
    with pytest.raises(TopologyError, match=r"no path from a-0 to a-1: no link names a-1; .*\{kind: star\}"):
        explicit([("a-0", "b", 1.0)], group("a", 2), group("b"))
    one_way = (LinkSpec(source="a", target="b", rate=1.0, both=False),)
    with pytest.raises(TopologyError, match="no path from b-0 to a-0"):
        Topology(ClusterSpec(nodes=(group("a"), group("b")), topology=Explicit(kind="explicit", links=one_way)))


def test_nodes_behind_one_switch_share_a_rack():
    links = [("n-0", "s", 1.0), ("n-1", "s", 1.0), ("n-2", "t", 1.0), ("s", "t", 1.0)]
    assert explicit(links, group("n", 3)).rack.tolist() == [0, 0, 1]


@MANY
@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_paths_are_shortest(nodes, switches, data):
    """Against all simple paths, on random graphs."""
    places = [f"n-{k}" for k in range(nodes)] + [f"s{k}" for k in range(switches)]
    pairs = data.draw(st.lists(st.sampled_from(list(itertools.combinations(places, 2))), min_size=1, unique=True))
    latency = {pair: data.draw(st.sampled_from([0.0, 1.0, 2.0])) for pair in pairs}
    specs = tuple(LinkSpec(source=a, target=b, rate=1.0, latency=latency[a, b]) for a, b in pairs)
    cost = {pair: (1, seconds) for pair, seconds in latency.items()}
    cost |= {(b, a): c for (a, b), c in cost.items()}

    def best(source, target):
        found = (math.inf, math.inf)
        inner = [p for p in places if p.startswith("s")]
        for length in range(len(inner) + 1):
            for via in itertools.permutations(inner, length):
                hops = list(itertools.pairwise((source, *via, target)))
                if all(hop in cost for hop in hops):
                    found = min(found, (len(hops), sum(cost[hop][1] for hop in hops)))
        return found

    cluster = ClusterSpec(nodes=(group("n", nodes),), topology=Explicit(kind="explicit", links=specs))
    expected = {(a, b): best(f"n-{a}", f"n-{b}") for a in range(nodes) for b in range(nodes) if a != b}
    if any(length == math.inf for length, _ in expected.values()):
        with pytest.raises(TopologyError, match="no path"):
            Topology(cluster)
        return
    topology = Topology(cluster)
    for (a, b), (length, latency_s) in expected.items():
        links, seconds = topology.route(a, b)
        assert (len(links) - 2, seconds) == (length, latency_s)


# --- collectives -----------------------------------------------------------------------------------------


def test_a_ring_uses_each_link_as_often_as_its_edges_cross_it():
    topology = tree(nodes=4, per_rack=2)
    assert named_usage(topology, topology.ring_usage([0, 0, 1, 2])) == {
        "node-0.fabric": 1.0,
        "node-0.nic_out": 1.0,
        "node-0.nic_in": 1.0,
        "node-1.nic_out": 1.0,
        "node-1.nic_in": 1.0,
        "node-2.nic_out": 1.0,
        "node-2.nic_in": 1.0,
        "rack-0.up": 1.0,
        "rack-0.down": 1.0,
        "rack-1.up": 1.0,
        "rack-1.down": 1.0,
    }


def test_a_ring_in_one_node_is_as_fast_as_its_fabric():
    topology = star(group(count=1, gpus=8))
    links, usage = topology.ring_usage([0] * 8)
    assert (names(topology, links), usage.tolist()) == (["node-0.fabric"], [8.0])
    assert topology.capacity_bytes_per_s[links[0]] / usage[0] == topology.fabric_bytes_per_s[0]


@pytest.mark.parametrize("usage", ["ring_usage", "tree_usage"])
def test_one_worker_exchanges_nothing(usage):
    links, share = getattr(star(), usage)([2])
    assert len(links) == len(share) == 0


@pytest.mark.parametrize("workers", [*range(2, 40), 63, 64, 65])
def test_both_trees_together_load_no_node_more_than_a_ring_does(workers):
    """The double binary tree reaches everybody, and no NIC carries more than one byte per byte of volume."""
    topology = star(group(count=workers))
    links, usage = topology.tree_usage(np.arange(workers))
    assert usage.max() <= 1.0
    assert usage.sum() == pytest.approx(2 * 4 * 0.25 * (workers - 1))  # 2 trees, both ways, out and in
    out, into = links % 4 == NIC_OUT, links % 4 == NIC_IN
    assert out.sum() == into.sum() == workers
    np.testing.assert_array_equal(usage[out], usage[into])  # what goes up in one comes down in it


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (4, 4), (2, 4), (6, 4)])
def test_parameter_servers_are_loaded_as_the_closed_form_says(workers, servers):
    """The busier end sends and receives all of its gradients in half of the volume each."""
    topology = star(group("w", workers), group("s", servers))
    links, usage = topology.parameter_server_usage(np.arange(workers), workers + np.arange(servers))
    used = named_usage(topology, (links, usage))
    volume = 2 * max(workers / servers, 1.0)  # gradients
    for k in range(workers):
        assert used[f"w-{k}.nic_out"] * volume == pytest.approx(1.0)
        assert used[f"w-{k}.nic_in"] * volume == pytest.approx(1.0)
    for k in range(servers):
        assert used[f"s-{k}.nic_in"] * volume == pytest.approx(workers / servers)
        assert used[f"s-{k}.nic_out"] * volume == pytest.approx(workers / servers)
    assert usage.max() <= 0.5 + 1e-15


def test_a_number_of_servers_is_spread_over_the_workers_nodes():
    topology = star(group(count=4))
    counted = topology.parameter_server_usage([0, 1, 2, 3], 2)
    placed = topology.parameter_server_usage([0, 1, 2, 3], [0, 2])
    assert named_usage(topology, counted) == named_usage(topology, placed)


@MANY
@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 7), min_size=2, max_size=12))
def test_usage_is_the_sum_over_the_routes(per_rack, oversubscription, ring):
    """Counted at once over all edges, or edge by edge along their routes."""
    topology = tree(nodes=8, per_rack=per_rack, oversubscription=float(oversubscription))
    expected = np.zeros(topology.links)
    for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
        expected[topology.route(a, b)[0]] += 1.0
    links, usage = topology.ring_usage(ring)
    np.testing.assert_array_equal(links, np.flatnonzero(expected))
    np.testing.assert_array_equal(usage, expected[links])


def test_usage_over_explicit_links():
    topology = explicit(SQUARE, group("a"), group("b"))
    assert named_usage(topology, topology.ring_usage([0, 1])) == {
        "a-0.nic_out": 1.0,
        "a-0.nic_in": 1.0,
        "b-0.nic_out": 1.0,
        "b-0.nic_in": 1.0,
        "a->left": 1.0,
        "left->b": 1.0,
        "b->left": 1.0,
        "left->a": 1.0,
    }


# --- borders, by hand ------------------------------------------------------------------------------------


def mesh(nodes):
    """A link of its own between any two nodes, so that every edge of a collective has a name."""
    pairs = itertools.combinations([f"n-{k}" for k in range(nodes)], 2)
    return explicit([(a, b, 1.0) for a, b in pairs], group("n", nodes))


def edges(topology, pair):
    found = named_usage(topology, pair)
    return {tuple(name.replace("n-", "").split("->")): used for name, used in found.items() if "->" in name}


def test_the_fabric_of_a_node_carries_all_its_gpus_and_at_least_one():
    topology = star(group("a", gpus=0), group("b", gpus=1), group("c", gpus=3))
    assert topology.capacity_bytes_per_s.reshape(3, 4)[:, FABRIC].tolist() == [100.0, 100.0, 300.0]


def test_a_bare_name_stands_for_its_groups_node_whatever_comes_before_it():
    topology = star(group("a", 3), group("b"), group("c", 2), group("d"))
    assert [topology.node_index(name) for name in ("b", "c-1", "d")] == [3, 5, 6]
    with pytest.raises(TopologyError, match="'c-1' names both a group and a node of another group"):
        star(group("c-1"), group("c", 2))


def test_one_name_is_suggested_for_one_that_is_unknown():
    with pytest.raises(TopologyError) as told:
        star(group("alpha", 3), group("beta", 5)).node_index("alpha-7")
    assert str(told.value) in {f"unknown node 'alpha-7'; did you mean 'alpha-{k}'?" for k in range(3)}
    with pytest.raises(TopologyError) as told:
        star(group("alpha", 3), group("beta", 5)).node_index("zz")
    assert str(told.value) == "unknown node 'zz'; nodes are named like 'alpha-0'"


def test_no_path_is_told_with_the_node_that_no_link_names():
    def told(links, *groups, **keys):
        with pytest.raises(TopologyError) as error:
            explicit(links, *groups, **keys)
        return str(error.value)

    end = "; where nodes are added, use {kind: star} or {kind: tree, ...}"
    none = told([("c", "x", 1.0)], group("a"), group("b"), group("c"))
    assert none == "topology.links: no path from a-0 to b-0: no link names a-0" + end
    source = told([("b", "x", 1.0), ("b", "y", 1.0)], group("a"), group("b"))
    assert source == "topology.links: no path from a-0 to b-0: no link names a-0" + end
    target = told([("a", "x", 1.0)], group("a"), group("b"))
    assert target == "topology.links: no path from a-0 to b-0: no link names b-0" + end
    both = told([("a", "x", 1.0), ("b", "y", 1.0)], group("a"), group("b"))
    assert both == "topology.links: no path from a-0 to b-0"


def test_a_long_chain_of_switches_is_crossed_in_order():
    places = ["a", *(f"s{k}" for k in range(1, 12)), "b", "c"]
    pairs = [*itertools.pairwise(places[:-1]), ("s3", "c")]
    links = [(a, b, 2.0 + k) for k, (a, b) in enumerate(pairs)]
    topology = explicit(links, group("a"), group("b"), group("c"), latency=3.0)
    there, seconds = topology.route(0, 1)
    assert names(topology, there)[1:-1] == [f"{a}->{b}" for a, b in pairs[:-1]]
    assert topology.capacity_bytes_per_s[there[1:-1]].tolist() == [2.0 + k for k in range(12)]
    assert seconds == 12 * 3.0
    assert names(topology, topology.route(2, 0)[0])[1:-1] == ["c->s3", "s3->s2", "s2->s1", "s1->a"]
    assert topology.route(2, 0)[1] == 12.0


def test_reading_from_another_node_waits_for_the_way_and_from_ones_own_for_nothing():
    topology = tree(latency=3.0, core_latency=5.0)
    links, seconds = topology.read_route(6, 1)
    assert names(topology, links) == ["node-6.disk", "node-6.nic_out", "rack-1.up", "rack-0.down", "node-1.nic_in"]
    assert seconds == 8.0
    assert topology.read_route(6, 6)[1] == 0.0
    assert topology.read_route(6, 1)[0] is links


@pytest.mark.parametrize(
    ("workers", "pairs"),
    [
        (2, [(1, 0), (0, 1)]),
        (4, [(1, 2), (2, 0), (3, 2), (2, 1), (1, 3), (0, 1)]),
        (5, [(1, 2), (2, 4), (3, 2), (4, 0), (2, 3), (3, 0), (4, 3), (0, 1)]),
    ],
)
def test_a_tree_all_reduce_goes_along_the_edges_of_two_in_order_trees(workers, pairs):
    topology = mesh(workers)
    expected = dict.fromkeys(((str(a), str(b)) for a, b in itertools.permutations(range(workers), 2)), 0.0)
    for child, parent in pairs:
        expected[str(child), str(parent)] += 0.25
        expected[str(parent), str(child)] += 0.25
    found = edges(topology, topology.tree_usage(np.arange(workers)))
    assert found == {edge: used for edge, used in expected.items() if used}


def test_workers_of_one_node_are_a_chain_and_two_nodes_send_half_of_the_volume():
    """The volume is 2 S: each of two nodes sends S/2 up in one tree and S/2 down in the other, S in all."""
    topology = star(group(count=3))
    sends = dict.fromkeys((f"node-{k}.nic_{way}" for k in (2, 0) for way in ("out", "in")), 0.5)
    assert named_usage(topology, topology.tree_usage([2, 2, 0, 2])) == {"node-2.fabric": 2.0} | sends


def test_parameter_servers_by_number_are_spread_over_workers_that_are_not():
    topology = star(group(count=2))
    assert named_usage(topology, topology.parameter_server_usage([0, 0, 1], 4)) == {
        "node-0.fabric": 12 / 8,
        "node-1.fabric": 2 / 8,
        "node-0.nic_out": 5 / 8,
        "node-1.nic_in": 5 / 8,
        "node-1.nic_out": 5 / 8,
        "node-0.nic_in": 5 / 8,
    }
    fewer = named_usage(topology, topology.parameter_server_usage([0, 0, 1], 2))
    assert fewer == pytest.approx(
        {"node-0.fabric": 4 / 3}
        | dict.fromkeys(("node-0.nic_out", "node-0.nic_in"), 1 / 3)
        | dict.fromkeys(("node-1.nic_out", "node-1.nic_in"), 1 / 3)
    )
