"""Nodes, the links between them, and which links a transfer or a collective uses.

Every node has four links: `disk` (reading), `nic_out`, `nic_in`, and `fabric` between its own GPUs. The
fabric is non-blocking: one link with the capacity of all its ports, `gpus * fabric`; what a single GPU gets
at most (`fabric_bytes_per_s`) is a cap on the flow, as is every other end-point limit. Beyond the NICs:

- star: nothing, one non-blocking switch;
- tree: per rack `rack_up` and `rack_down`, the NICs of its nodes over the oversubscription; with `nvlink` the NICs
  stand between a node and these, and `nic_out` and `nic_in` are what its GPUs send over NVLink inside the rack;
- explicit: the links given, in front of them still the NICs.

Routes and usages are computed when asked for, so that building costs one pass over the nodes.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.sim.hardware.profile import HardwareProfile, load_profile
from equipoise.sim.network.paths import Graph
from equipoise.sim.scenario.model import ClusterSpec, Explicit, NodeGroup, Star

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NODE_LINKS = ("disk", "nic_out", "nic_in", "fabric")
DISK, NIC_OUT, NIC_IN, FABRIC = range(4)


class TopologyError(ValueError):
    """The cluster cannot be built, or two nodes are not connected; the message is one clear line."""


class Topology:
    """Nodes and directed links of a cluster.

    `capacity_bytes_per_s`, `latency_s` (links,) float64; `rack` (nodes,) int64; `nic_bytes_per_s` (nodes,)
    with slow links; `fabric_bytes_per_s` (nodes,) what one GPU can send inside its node, `gpu_nic_bytes_per_s`
    (nodes,) what it can send to others. Link `4 * node + k` is the node's k-th of NODE_LINKS; the links between
    nodes follow. Raises TopologyError for names used twice, unknown names, and nodes that cannot reach each
    other. `profile`: the cluster's own where it is None.
    """

    def __init__(self, cluster: ClusterSpec, profile: HardwareProfile | None = None) -> None:
        groups, self.kind = cluster.groups, cluster.topology
        profile = profile if profile is not None else load_profile(cluster.hardware)
        count = np.array([group.count for group in groups])
        self.node_names = _names(groups)
        self._node = {name: k for k, name in enumerate(self.node_names)}
        _add_bare_names(self._node, groups)
        nic = _per_node(groups, count, "network")
        self.fabric_bytes_per_s = np.repeat([link_bytes_per_s(group, profile) for group in groups], count)
        self.gpu_nic_bytes_per_s = np.repeat([gpu_nic_bytes_per_s(group, profile) for group in groups], count)
        capacity = np.empty((self.nodes, len(NODE_LINKS)))
        capacity[:, DISK] = _per_node(groups, count, "storage_rate")
        capacity[:, FABRIC] = self.fabric_bytes_per_s * np.maximum(1.0, _per_node(groups, count, "gpus"))
        capacity[:, NIC_OUT] = capacity[:, NIC_IN] = nic
        nics = _per_node(groups, count, "nics")
        for slow in cluster.slow_links:
            node = self.node_index(slow.node)
            capacity[node, [NIC_OUT, NIC_IN]] = slow.rate
            self.gpu_nic_bytes_per_s[node] = min(self.gpu_nic_bytes_per_s[node], slow.rate / nics[node])
        self._core_bytes_per_s = capacity[:, NIC_OUT].copy()  # of NICs that only racks of NVLink have behind them
        self.nvlink = getattr(self.kind, "nvlink", None)
        if self.nvlink is not None:
            capacity[:, [NIC_OUT, NIC_IN]] = self.nvlink * _per_node(groups, count, "gpus")[:, None]
            self.gpu_nic_bytes_per_s[:] = self.nvlink
        self.nic_bytes_per_s = capacity[:, NIC_OUT].copy()
        self._shared_names: list[str] = []
        self._graph: Graph | None = None
        shared, latency = self._between(nic)
        self.capacity_bytes_per_s = np.concatenate((capacity.ravel(), shared))
        self.latency_s = latency
        self._routes: dict[tuple[int, int], tuple[Ints, float]] = {}
        self._read_routes: dict[tuple[int, int], tuple[Ints, float]] = {}

    def degraded(self, factor: Floats) -> Topology:
        """This topology with all NICs of each node at a share of their rates; factor (nodes,)."""
        other = copy.copy(self)
        other.capacity_bytes_per_s = self.capacity_bytes_per_s.copy()
        for node in range(self.nodes):
            other.capacity_bytes_per_s[list(self.nics(node))] *= factor[node]
        other._core_bytes_per_s = self._core_bytes_per_s * factor
        if self.nvlink is None:
            other.nic_bytes_per_s = self.nic_bytes_per_s * factor
            other.gpu_nic_bytes_per_s = self.gpu_nic_bytes_per_s * factor
        return other

    # --- names -------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_names)

    @property
    def links(self) -> int:
        """Number of links."""
        return len(self.capacity_bytes_per_s)

    def node_index(self, name: str) -> int:
        """Number of the node called `NAME-k`, or `NAME` alone where its group has one node."""
        found = self._node.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._node, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"nodes are named like {self.node_names[0]!r}"
            raise TopologyError(f"unknown node {name!r}; {hint}")
        return found

    def link(self, node: int, which: int) -> int:
        """Number of a node's DISK, NIC_OUT, NIC_IN or FABRIC link."""
        return node * len(NODE_LINKS) + which

    def nics(self, node: int) -> tuple[int, int]:
        """Numbers of the links that a node's NICs are, out and in."""
        if self.nvlink is None:
            return self.link(node, NIC_OUT), self.link(node, NIC_IN)
        first = self._rack_up(int(self.rack[-1]) + 1) + 2 * node
        return first, first + 1

    def link_name(self, link: int) -> str:
        """Name of a link: `node-3.nic_out`, `rack-0.up`, `leaf->spine`."""
        own = self.nodes * len(NODE_LINKS)
        if link < own:
            return f"{self.node_names[link // 4]}.{NODE_LINKS[link % 4]}"
        return self._shared_names[link - own]

    # --- routes ------------------------------------------------------------------------------------------

    def route(self, source: int, target: int) -> tuple[Ints, float]:
        """Links (n,) from one node's memory to another's, and their latency (s); one node: its fabric.

        The array is kept for the next call: do not write to it.
        """
        key = (source, target)
        found = self._routes.get(key)
        if found is None:
            links = np.array(self._find(source, target), dtype=np.int64)
            found = self._routes[key] = (links, float(self.latency_s[links].sum()))
        return found

    def read_route(self, source: int, target: int) -> tuple[Ints, float]:
        """As `route`, from one node's disk to another's memory."""
        found = self._read_routes.get((source, target))
        if found is None:
            rest: tuple[Ints, float] = np.empty(0, dtype=np.int64), 0.0
            links, latency_s = self.route(source, target) if source != target else rest
            found = np.concatenate(([self.link(source, DISK)], links)), latency_s
            self._read_routes[source, target] = found
        return found

    def _find(self, source: int, target: int) -> list[int]:
        if source == target:
            return [self.link(source, FABRIC)]
        out, into = self.link(source, NIC_OUT), self.link(target, NIC_IN)
        if self._graph is not None:
            path = self._graph.shortest(source, target)
            if path is None:
                raise TopologyError(self._no_path(source, target))
            return [out, *(self.nodes * len(NODE_LINKS) + k for k in path), into]
        rack, other = int(self.rack[source]), int(self.rack[target])
        if rack == other:
            return [out, into]
        between = [self._rack_up(rack), self._rack_up(other) + 1]
        if self.nvlink is not None:
            between = [self.nics(source)[0], *between, self.nics(target)[1]]
        return [out, *between, into]

    def _no_path(self, source: int, target: int) -> str:
        told = f"no path from {self.node_names[source]} to {self.node_names[target]}"
        bare = [place for place in (source, target) if self._graph is not None and not self._graph.named(place)]
        if not bare:
            return told
        name = self.node_names[bare[0]]
        return f"{told}: no link names {name}; where nodes are added, use {{kind: star}} or {{kind: tree, ...}}"

    def _rack_up(self, rack: int) -> int:
        return self.nodes * len(NODE_LINKS) + 2 * rack

    # --- collectives -------------------------------------------------------------------------------------

    def usage(self, source: Ints, target: Ints, weight: Floats) -> tuple[Ints, Floats]:
        """Links (n,) that transfers from `source` to `target` nodes (edges,) use, and how much of each, (n,).

        `weight` (edges,) is the bytes that an edge carries per byte of volume.
        """
        inside = source == target
        out = source[~inside], target[~inside], weight[~inside]
        crossed = [(source[inside] * len(NODE_LINKS) + FABRIC, weight[inside]), *self._crossed(*out)]
        link, weights = (np.concatenate(parts) for parts in zip(*crossed, strict=True))
        if len(self.capacity_bytes_per_s) < 32 * len(link):  # a sort would take longer
            links = np.flatnonzero(np.bincount(link))
            return links, np.asarray(np.bincount(link, weights), dtype=np.float64)[links]
        links, place = np.unique(link, return_inverse=True)
        usage = np.zeros(len(links))
        np.add.at(usage, place, weights)
        return links, usage

    def _crossed(self, source: Ints, target: Ints, weight: Floats) -> Iterator[tuple[Ints, Floats]]:
        """Links that transfers between nodes cross, with their weights, in any order."""
        if self._graph is not None:
            for s, t, w in zip(source.tolist(), target.tolist(), weight.tolist(), strict=True):
                links = self.route(s, t)[0]
                yield links, np.full(len(links), w)
            return
        yield source * len(NODE_LINKS) + NIC_OUT, weight
        yield target * len(NODE_LINKS) + NIC_IN, weight
        apart = self.rack[source] != self.rack[target]
        core = self.nodes * len(NODE_LINKS)
        yield core + 2 * self.rack[source[apart]], weight[apart]
        yield core + 2 * self.rack[target[apart]] + 1, weight[apart]

    def ring_usage(self, nodes: Sequence[int] | Ints) -> tuple[Ints, Floats]:
        """Usage of a ring all-reduce over workers on `nodes` (workers,) in ring order.

        Per byte of volume every edge carries one byte: the volume is 2(n-1)/n times the gradient.
        """
        ring = np.asarray(nodes, dtype=np.int64)
        if len(ring) < 2:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        return self.usage(ring, np.roll(ring, -1), np.ones(len(ring)))

    def tree_usage(self, nodes: Sequence[int] | Ints) -> tuple[Ints, Floats]:
        """Usage of a double-binary-tree all-reduce over workers on `nodes` (workers,) in rank order.

        The workers of a node form a chain, and the nodes two trees, each of which reduces and broadcasts one half;
        every node is a leaf in one of them (Sanders, Speck & Träff, Parallel Computing 35(12), 2009; NCCL 2.4), so
        none sends or receives more than the volume, and each of two nodes only half of it. The volume is twice
        the gradient; an edge of a tree carries a quarter of it each way, of a chain a half.
        """
        if len(nodes) < 2:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        ranks = np.array(list(dict.fromkeys(np.asarray(nodes).tolist())), dtype=np.int64)
        chained = np.repeat(ranks, [np.count_nonzero(np.asarray(nodes) == rank) - 1 for rank in ranks])
        n = len(ranks)
        child, parent = np.arange(1, n), _tree_parents(n)
        low = ranks[np.concatenate((child, _other_tree(child, n)))]
        high = ranks[np.concatenate((parent, _other_tree(parent, n)))]
        source, target = np.concatenate((low, high, chained)), np.concatenate((high, low, chained))
        weight = np.repeat([0.25, 1.0], [2 * len(low), len(chained)])  # a chain's two ways are one fabric
        return self.usage(source, target, weight)

    def rate_bytes_per_s(self, source: Ints, target: Ints, weight: Floats) -> float:
        """Highest rate of transfers from `source` to `target` nodes (edges,) at once, each of `weight` times it."""
        links, usage = self.usage(source, target, weight)
        rate = float((self.capacity_bytes_per_s[links] / usage).min())
        return min(rate, self.out_of_racks(np.concatenate((source, target)), links, usage))

    def out_of_racks(self, nodes: Ints, links: Ints, usage: Floats) -> float:
        """Highest rate (bytes/s) of a collective of `nodes` between racks of NVLink.

        It leaves a rack through the NICs of all of its nodes that take part, as NCCL does (2.21, multi-node NVLink).
        """
        core = self.nodes * len(NODE_LINKS)
        if self.nvlink is None or not (links >= core).any():
            return math.inf
        rack, crossing = (links[links >= core] - core) // 2, usage[links >= core]
        members = np.unique(nodes)
        there = np.bincount(self.rack[members], self._core_bytes_per_s[members], int(rack.max()) + 1)
        return float((there[rack] / crossing).min())

    def sent(self, links: Ints, usage: Floats) -> tuple[Ints, Floats]:
        """(nodes, bytes that each of them sends to others per byte of volume) of a usage, in ascending order."""
        out = (links < self.nodes * len(NODE_LINKS)) & (links % len(NODE_LINKS) == NIC_OUT)
        return links[out] // len(NODE_LINKS), usage[out]

    def parameter_server_usage(
        self, workers: Sequence[int] | Ints, servers: int | Sequence[int] | Ints
    ) -> tuple[Ints, Floats]:
        """Usage of one push and pull between `workers` and `servers` (nodes of each, one entry per process).

        If `servers` is a number, that many are spread evenly over the workers' nodes. The gradient is cut
        evenly over the servers. The volume is 2 * max(workers / servers, 1) gradients, so that at one rate
        it takes as long as the busiest end needs to push and then to pull.
        """
        w = np.asarray(workers, dtype=np.int64)
        s = w[np.arange(servers) * len(w) // servers] if isinstance(servers, int) else np.asarray(servers)
        w_node, w_count = np.unique(w, return_counts=True)
        s_node, s_count = np.unique(s, return_counts=True)
        push, to = np.repeat(w_node, len(s_node)), np.tile(s_node, len(w_node))
        weight = np.outer(w_count, s_count).ravel() / (2.0 * max(len(w), len(s)))
        return self.usage(np.concatenate((push, to)), np.concatenate((to, push)), np.tile(weight, 2))

    # --- building ----------------------------------------------------------------------------------------

    def _between(self, nic: Floats) -> tuple[Floats, Floats]:
        """Capacities of the links between nodes, and latencies of all links."""
        kind, latency = self.kind, np.zeros((self.nodes, len(NODE_LINKS)))
        if isinstance(kind, Explicit):
            return self._explicit(kind, latency)
        # Half of a latency on the way out and half on the way in: their sum is exact.
        latency[:, [NIC_OUT, NIC_IN]] = kind.latency / 2
        if isinstance(kind, Star):
            self.rack = np.zeros(self.nodes, dtype=np.int64)
            return np.zeros(0), latency.ravel()
        self.rack = np.arange(self.nodes) // kind.nodes_per_rack
        uplink = np.bincount(self.rack, weights=nic) / kind.oversubscription
        self._shared_names = [f"rack-{r}.{way}" for r in range(len(uplink)) for way in ("up", "down")]
        core = np.full(2 * len(uplink), kind.core_latency / 2)
        if self.nvlink is not None:
            self._shared_names += [f"{name}.{way}" for name in self.node_names for way in ("core_out", "core_in")]
            core = np.concatenate((core, np.zeros(2 * self.nodes)))
            return np.repeat(np.concatenate((uplink, self._core_bytes_per_s)), 2), np.concatenate(
                (latency.ravel(), core)
            )
        return np.repeat(uplink, 2), np.concatenate((latency.ravel(), core))

    def _explicit(self, kind: Explicit, latency: Floats) -> tuple[Floats, Floats]:
        number = dict(self._node)
        ends, capacity, seconds = [], [], []
        for link in kind.links:
            pairs = [(link.source, link.target)] + ([(link.target, link.source)] if link.both else [])
            for source, target in pairs:
                a = number.setdefault(source, self.nodes + len(number))
                b = number.setdefault(target, self.nodes + len(number))
                ends.append((a, b))
                capacity.append(link.rate)
                seconds.append(link.latency)
                self._shared_names.append(f"{source}->{target}")
        self._graph = Graph(ends, seconds, self.nodes)
        self.rack = self._graph.racks()
        lost = self._graph.disconnected()
        if lost is not None:
            raise TopologyError(f"topology.links: {self._no_path(*lost)}")
        return np.array(capacity), np.concatenate((latency.ravel(), seconds))


def _names(groups: Sequence[NodeGroup]) -> list[str]:
    seen: set[str] = set()
    for group in groups:
        if group.name in seen:
            raise TopologyError(f"nodes: two groups are named {group.name!r}; give each its own name")
        seen.add(group.name)
    return [f"{group.name}-{k}" for group in groups for k in range(group.count)]


def _add_bare_names(node: dict[str, int], groups: Iterable[NodeGroup]) -> None:
    first = 0
    for group in groups:
        if group.count == 1 and node.setdefault(group.name, first) != first:
            raise TopologyError(f"nodes: {group.name!r} names both a group and a node of another group")
        first += group.count


def _per_node(groups: Sequence[NodeGroup], count: Ints, key: str) -> Floats:
    return np.repeat(np.array([float(getattr(group, key)) for group in groups]), count)


def _tree_parents(n: int) -> Ints:
    """Parents (n - 1,) of ranks 1..n-1 in the in-order binary tree whose root is rank 0."""
    rank = np.arange(1, n)
    low = rank & -rank
    up = (rank ^ low) | (low << 1)
    return np.where(up < n, up, rank ^ low)


def _other_tree(rank: Ints, n: int) -> Ints:
    """Ranks that stand in the second tree where `rank` stands in the first: inner workers become leaves."""
    return n - 1 - rank if n % 2 == 0 else (rank + 1) % n


UNKNOWN_LINK_BYTES_PER_S = 32e9
"""Assumed between the accelerators of a node where nothing says it: PCI Express 4.0 x16, one direction."""


def link_bytes_per_s(group: NodeGroup, profile: HardwareProfile) -> float:
    """Rate (bytes/s) at which a GPU of a node group reaches the others of its node, one direction.

    In order: the group's `fabric`, the accelerator's own link, the fabric that was measured for it, PCI Express.
    """
    known = link_known(group, profile)
    return UNKNOWN_LINK_BYTES_PER_S if known is None else known


def link_known(group: NodeGroup, profile: HardwareProfile) -> float | None:
    """As `link_bytes_per_s`; None where neither group nor profile gives a rate."""
    if group.fabric is not None:
        return group.fabric
    accelerator = profile.accelerators.get(group.accelerator)
    if accelerator is not None and accelerator.link_bytes_per_s is not None:
        return accelerator.link_bytes_per_s.value
    fabric = profile.fabric("intra", accelerator=group.accelerator)
    return None if fabric is None else fabric.bytes_per_s.value


def gpu_nic_bytes_per_s(group: NodeGroup, profile: HardwareProfile) -> float:
    """Rate (bytes/s) at which one GPU of a node group reaches the network: of one NIC, behind its PCI Express.

    However many NICs a node has, collectives send a GPU's data through the nearest one: one GPU a node with four
    NICs of 50 GB/s was measured at 41 to 50 GB/s (NVIDIA/nccl issue 1357).
    """
    accelerator = profile.accelerators.get(group.accelerator)
    if accelerator is None or accelerator.pcie_bytes_per_s is None:
        return group.nic
    return min(group.nic, accelerator.pcie_bytes_per_s.value)
