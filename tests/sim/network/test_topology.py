"""Nodes, links and routes: capacities, names, paths, and what collectives use."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.sim.network.topology import NIC_IN, NIC_OUT, Topology, TopologyError
from equipoise.sim.scenario.model import ClusterSpec, Explicit, LinkSpec, NodeGroup, Star, TreeTopology

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


@pytest.mark.parametrize(
    ("name", "hint"), [("a-2", "did you mean 'a-"), ("zz", "named like 'a-0'"), ("a", "unknown node 'a'")]
)
def test_an_unknown_name_is_refused_with_a_suggestion(name, hint):
    with pytest.raises(TopologyError, match=hint):
        star(group("a", 2)).node_index(name)


def test_nodes_of_a_rack_exchange_over_nvlink_and_racks_over_their_nics():
    """8 GPUs of 20 bytes/s in a node of 10: what leaves a rack of 4 nodes is sent by those of them that take part."""
    topology, one = tree(nvlink=20.0), np.ones(1)
    assert topology.rate_bytes_per_s(np.array([0]), np.array([1]), one) == 160.0
    assert topology.rate_bytes_per_s(np.array([0]), np.array([4]), one) == 10.0
    ring = np.arange(8)
    assert topology.rate_bytes_per_s(ring, np.roll(ring, -1), np.ones(8)) == 40.0
    links = topology.route(0, 4)[0]
    assert topology.capacity_bytes_per_s[links].tolist() == [160.0, 10.0, 40.0, 40.0, 10.0, 160.0]
    slow = topology.degraded(np.array([0.5, *np.ones(7)]))
    assert slow.capacity_bytes_per_s[links].tolist() == [160.0, 5.0, 40.0, 40.0, 10.0, 160.0]
    assert set(topology.gpu_nic_bytes_per_s.tolist()) == {20.0}
    assert tree().rate_bytes_per_s(np.array([0]), np.array([1]), one) == 10.0


def test_a_hundred_thousand_gpus():
    """All names, links and capacities of 12,500 nodes; routes only when asked for."""
    topology = tree(nodes=12_500, per_rack=32, oversubscription=2.0)
    assert topology.links == 4 * 12_500 + 2 * 391
    assert topology.capacity_bytes_per_s[-2:].tolist() == [20 * 10.0 / 2.0] * 2
    assert topology.node_index("node-12499") == 12_499
    assert names(topology, topology.route(0, 12_499)[0])[1:3] == ["rack-0.up", "rack-390.down"]


# --- routes ----------------------------------------------------------------------------------------------


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


# --- borders, by hand ------------------------------------------------------------------------------------


def mesh(nodes):
    """A link of its own between any two nodes, so that every edge of a collective has a name."""
    pairs = itertools.combinations([f"n-{k}" for k in range(nodes)], 2)
    return explicit([(a, b, 1.0) for a, b in pairs], group("n", nodes))


def edges(topology, pair):
    found = named_usage(topology, pair)
    return {tuple(name.replace("n-", "").split("->")): used for name, used in found.items() if "->" in name}


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
