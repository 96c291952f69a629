"""Rates of the exchanges inside replicas, on the links that their placement crosses, all at once."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.sim.llm.hardware import GroupLinks
from equipoise.sim.llm.quantities import ALL_TO_ALL
from equipoise.sim.llm.shape import Layout
from equipoise.sim.network.topology import Topology


def group_links(gpu_nodes: Ints, layout: Layout, topology: Topology) -> GroupLinks:
    """Rates of a job whose GPUs are on `gpu_nodes` (GPUs held,), in rank order: stage by stage, then replicas,
    context and tensor ranks."""
    own = float(topology.fabric_bytes_per_s[gpu_nodes].min())
    stages = gpu_nodes.reshape(layout.pipeline, -1)
    tensor = gpu_nodes.reshape(-1, layout.tensor)
    context = gpu_nodes.reshape(-1, layout.context, layout.tensor).swapaxes(1, 2).reshape(-1, layout.context)
    expert = stages if stages.shape[1] % layout.expert else gpu_nodes.reshape(-1, layout.expert)
    ahead = [*pairwise(stages), (stages[-1], stages[0])] if layout.virtual > 1 else list(pairwise(stages))
    return GroupLinks(
        tensor=min(own, ring_bytes_per_s(tensor, topology)),
        context=min(own, ring_bytes_per_s(context, topology, alone=True)),
        expert=min(_all_to_all(expert, topology), ALL_TO_ALL * own * _inside(expert))
        if layout.expert > 1
        else ALL_TO_ALL * own,
        send=min(own, *(_sent(source, target, topology) for source, target in ahead)) if ahead else own,
    )


def ring_bytes_per_s(groups: Ints, topology: Topology, *, alone: bool = False) -> float:
    """Bytes/s that every GPU of the rings `groups` (rings, GPUs), given as their nodes, passes on at once.

    alone: a GPU sends its own data through its own NIC; else all of a ring that are on a node drive its NICs.
    """
    groups = groups[(groups != groups[:, :1]).any(axis=1)]
    if not groups.size:
        return math.inf
    target = np.roll(groups, -1, axis=1)
    rate = topology.rate_bytes_per_s(groups.ravel(), target.ravel(), np.ones(groups.size))
    if alone:
        return min(rate, float(topology.gpu_nic_bytes_per_s[groups[groups != target]].min()))
    place = (np.arange(len(groups))[:, None] * topology.nodes + groups).ravel()
    member, inverse, there = np.unique(place, return_inverse=True, return_counts=True)
    leave = np.bincount(inverse.reshape(-1), (groups != target).ravel())
    driven = there * topology.gpu_nic_bytes_per_s[member % topology.nodes]
    return min(rate, float((driven[leave > 0] / leave[leave > 0]).min()))


def _sent(source: Ints, target: Ints, topology: Topology) -> float:
    """Bytes/s that every GPU of a stage sends to the next one."""
    rate, apart = topology.rate_bytes_per_s(source, target, np.ones(source.size)), source != target
    return min(rate, float(topology.gpu_nic_bytes_per_s[source[apart]].min())) if apart.any() else rate


def _all_to_all(groups: Ints, topology: Topology) -> float:
    """Bytes/s that every GPU of `groups` (groups, GPUs) sends, as much to each other one of its group."""
    ranks = groups.shape[1]
    source, target, weight, least = [], [], [], math.inf
    for members, alike in zip(*np.unique(np.sort(groups, axis=1), axis=0, return_counts=True), strict=True):
        nodes, held = np.unique(members, return_counts=True)
        amount = alike * (np.outer(held, held) - np.diag(held)) / (ranks - 1)
        used = amount.ravel() > 0
        source.append(np.repeat(nodes, len(nodes))[used])
        target.append(np.tile(nodes, len(nodes))[used])
        weight.append(amount.ravel()[used])
        away = (ranks - held) / (ranks - 1)
        if len(nodes) > 1:
            least = min(least, float((topology.gpu_nic_bytes_per_s[nodes] / away).min()))
    rate = topology.rate_bytes_per_s(np.concatenate(source), np.concatenate(target), np.concatenate(weight))
    return min(least, rate)


def _inside(groups: Ints) -> float:
    """Bytes that a GPU of an all-to-all sends in all over those that it sends inside its node, at least."""
    ranks = groups.shape[1]
    most = max(int(np.unique(members, return_counts=True)[1].max()) for members in groups)
    return (ranks - 1) / (most - 1) if most > 1 else math.inf
