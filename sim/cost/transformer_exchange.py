"""The gradient exchange of a large model: every GPU of a replica sends its part through its own node's NICs."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.sim.cost.step import NO_EXCHANGE, Exchange, flow, through_nics
from equipoise.sim.cost.transformer import plan_of, section, stack_in_force
from equipoise.sim.hardware.profile import Accelerator
from equipoise.sim.llm.quantities import quantities
from equipoise.sim.llm.step_time import exchange
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Model


def make_transformer_exchange(
    model: Model, gpu_nodes: Ints, samples: int, topology: Topology, accelerator: Accelerator, fabric_bytes_per_s: float
) -> Exchange:
    """The exchange of a step in which a replica takes at most `samples`; `gpu_nodes` (GPUs held,) in rank order.

    The GPUs of a pipeline stage follow each other; the stages' rings run beside each other, as many in a node as a
    tensor group has ranks there (Narayanan et al. 2021). Sharded parameters are exchanged in every micro-batch.
    """
    _, bound = section(model)
    replicas = len(gpu_nodes) // bound.layout.replica_gpus
    passes = -(-samples // bound.layout.micro_batch)
    plan = plan_of(model, accelerator, fabric_bytes_per_s, replicas, passes)
    q, stack = quantities([plan]), stack_in_force(model)
    bytes_, latency_s = (float(part[0]) for part in exchange(q, stack))
    if bytes_ == 0.0:
        return NO_EXCHANGE
    times = passes if q.sharded_passes[0] > 0 else 1
    efficiency = float(np.asarray(stack.exchange_efficiency)) / bound.factor
    bytes_ *= times
    delay_s = times * latency_s * bound.factor
    if q.sharded_passes[0] > 0 and q.replica_bytes[0] > 0:  # groups that each hold all parameters
        if plan.layout.shard_ranks * plan.layout.tensor <= plan.network.node_gpus:
            delay_s += bytes_ / (efficiency * fabric_bytes_per_s)
            bytes_ = 0.0
        bytes_ += float(q.replica_bytes[0])
    stages = gpu_nodes.reshape(plan.layout.pipeline, -1)
    places = [list(dict.fromkeys(stage.tolist())) for stage in stages]
    if max(len(nodes) for nodes in places) == 1:
        return flow(delay_s + bytes_ / (efficiency * fabric_bytes_per_s), 0.0, np.inf, *_no_links(), topology)
    rings = min(plan.layout.tensor, max(int(np.bincount(stage).max()) for stage in stages))
    nic = float(topology.nic_bytes_per_s[np.unique(gpu_nodes)].min())
    for stage, nodes in zip(stages, places, strict=True):
        nic = min(nic, through_nics(stage, 1, *topology.ring_usage(nodes), topology))
    volume = bytes_ * rings
    slower_s = max(0.0, bytes_ / (efficiency * fabric_bytes_per_s) - volume / (efficiency * nic))
    links, usage = _usage(places, topology)
    return flow(delay_s + slower_s, volume, efficiency * nic, links, usage, topology)


def _no_links() -> tuple[Ints, np.ndarray]:
    return np.empty(0, np.int64), np.empty(0)


def _usage(places: list[list[int]], topology: Topology) -> tuple[Ints, np.ndarray]:
    """(links, bytes on each per byte of a node's volume) of the rings of all stages together."""
    found = [topology.ring_usage(nodes) for nodes in places]
    links, place = np.unique(np.concatenate([links for links, _ in found]), return_inverse=True)
    usage = np.zeros(len(links))
    np.add.at(usage, place, np.concatenate([usage for _, usage in found]))
    return links, usage
