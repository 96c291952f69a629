"""Cost of a training step and of its exchange, and its device memory: functions of the model and the hardware."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cost import transformer
from equipoise.sim.cost.transformer import plan_of, section, stack_in_force
from equipoise.sim.hardware.kinds import KINDS
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile
from equipoise.sim.llm.hardware import GroupLinks
from equipoise.sim.llm.quantities import quantities
from equipoise.sim.llm.step_time import exchange
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Model

PRECISION_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2, "mxfp8": 2, "nvfp4": 2}
"""Bytes of one weight, gradient or activation: fp8, mxfp8 and nvfp4 apply to matrix products only, the rest is bf16."""


def passes(samples: int, samples_per_pass: int | None) -> int:
    """Forward-backward passes for `samples` samples: ceil(b / m_max)."""
    return 0 if samples == 0 else -(-samples // (samples_per_pass or samples))


def single_gpu_cost_s(model: Model, accelerator: Accelerator, samples: int) -> tuple[float, float]:
    """(fixed, total) seconds of one step of `samples` samples on one whole GPU at speed 1.

    Fitted, by the scenario or in the hardware profile: a * alpha_c + beta_c * b. Roofline (Williams et al.
    2009) with size-dependent efficiency (Isaev et al. 2023): per pass, launch latency + max(flop / (peak *
    efficiency), bytes / memory bandwidth).
    """
    count = passes(samples, model.samples_per_pass)
    if count == 0:
        return 0.0, 0.0
    if model.step is not None:
        step = accelerator.step(model.step, model.precision)
        fixed_s = count * step.alpha_s.value
        return fixed_s, fixed_s + step.beta_s.value * samples
    if model.sample_time is not None:
        fixed_s = count * (model.fixed_time or 0.0)
        return fixed_s, fixed_s + model.sample_time * samples
    flop_per_sample = model.flop_per_sample or 0.0
    if model.memory.recompute:
        flop_per_sample *= 4.0 / 3.0  # the forward pass is a third of the work and runs twice
    per_pass = samples / count
    flop = flop_per_sample * per_pass
    launch = accelerator.launch_latency_s
    launch_s = model.fixed_time if model.fixed_time is not None else (launch.value if launch else 0.0)
    fixed_s = count * launch_s
    kind = KINDS.get(model.kind or "")
    if kind is not None:
        return fixed_s, fixed_s + count * kind.seconds(accelerator, model.precision, flop)
    rate = accelerator.peak_flop_per_s(model.precision) * (model.efficiency or accelerator.efficiency_at(flop))
    memory_s = model.bytes_per_sample * per_pass / accelerator.hbm_bytes_per_s.value
    return fixed_s, fixed_s + count * max(flop / rate, memory_s)


def replica_cost_s(
    model: Model, accelerator: Accelerator, samples: int, fabric_bytes_per_s: float, links: GroupLinks | None = None
) -> tuple[float, float]:
    """(fixed, total) seconds of one step of one replica of tensor x pipeline GPUs at speed 1.

    The work is divided; the pipeline adds its bubble (p - 1) / microbatches (Narayanan et al. 2021, section
    2.2.1); tensor parallelism adds ring all-reduces of `tensor_bytes_per_sample`, every stage those of its layers.
    links: of a large model that is placed.
    """
    if model.transformer is not None:
        return transformer.replica_cost_s(model, accelerator, samples, fabric_bytes_per_s, links)
    fixed_s, total_s = single_gpu_cost_s(model, accelerator, samples)
    p = model.parallel
    bubble = 1.0 + (p.pipeline - 1) / p.pipeline_microbatches
    stretch = bubble / (p.tensor * p.pipeline)
    reduce_bytes = 2.0 * (p.tensor - 1) / p.tensor * p.tensor_bytes_per_sample * samples
    return fixed_s * stretch, total_s * stretch + reduce_bytes * (bubble / p.pipeline) / fabric_bytes_per_s


def replica_shares(
    model: Model, accelerator: Accelerator, samples: int, fabric_bytes_per_s: float, links: GroupLinks | None = None
) -> tuple[float, float]:
    """Shares of `replica_cost_s` that a replica's GPUs do not compute: (pipeline bubble, exchanges inside it)."""
    if model.transformer is not None:
        return transformer.replica_shares(model, accelerator, samples, fabric_bytes_per_s, links)
    p = model.parallel
    if p.tensor * p.pipeline == 1 or samples == 0:
        return 0.0, 0.0
    bubble = (p.pipeline - 1) / p.pipeline_microbatches
    total_s = replica_cost_s(model, accelerator, samples, fabric_bytes_per_s)[1]
    reduce_bytes = 2.0 * (p.tensor - 1) / p.tensor * p.tensor_bytes_per_sample * samples
    reduce_s = reduce_bytes / p.pipeline / fabric_bytes_per_s
    return bubble / (1.0 + bubble), (reduce_s / total_s if total_s > 0.0 else 0.0)


def memory_need_bytes(model: Model, samples: int, workers: int) -> float:
    """Device memory per GPU: weights, gradients, optimiser state, activations of one pass.

    ZeRO stages 1, 2, 3 divide optimiser state, then gradients, then weights by the workers (Rajbhandari et al.
    2020, section 3.1). Recomputation keeps 1 / sqrt(layers) of the activations (Chen et al. 2016).
    """
    if model.transformer is not None:
        return transformer.memory_need_bytes(model, samples, workers)
    p, size = model.parallel, state_bytes(model)
    parameters = model.parameters / (p.tensor * p.pipeline)
    state = [parameters * model.memory.optimizer_bytes_per_parameter, parameters * size, parameters * size]
    held = math.fsum(part / workers if p.zero > k else part for k, part in enumerate(state))
    per_pass = min(samples, model.samples_per_pass or samples)
    activations = model.memory.activation_per_sample * per_pass / (p.tensor * p.pipeline)
    return held + activations / (math.sqrt(model.memory.layers) if model.memory.recompute else 1.0)


def state_bytes(model: Model) -> int:
    """Bytes of one weight or gradient."""
    return PRECISION_BYTES[model.precision]


def gradient_bytes(model: Model) -> float:
    """Bytes of gradient of one exchange, before any compression."""
    return model.gradient if model.gradient is not None else model.parameters * state_bytes(model)


def checkpoint_bytes(model: Model) -> float:
    """Bytes of a checkpoint: weights in fp32 and optimiser state."""
    return model.parameters * (4.0 + model.memory.optimizer_bytes_per_parameter)


@dataclass(frozen=True)
class Exchange:
    """One gradient exchange as one flow: a delay, then `volume_bytes` over `links` at most at `cap`."""

    delay_s: float
    volume_bytes: float
    cap_bytes_per_s: float
    links: Ints
    usage: Floats
    alone_s: float

    @property
    def rate_bytes_per_s(self) -> float:
        """Rate of the flow when nothing else is on its links; 0 when it takes no time beyond its delay."""
        flows_s = self.alone_s - self.delay_s
        return self.volume_bytes / flows_s if flows_s > 0.0 else 0.0

    @property
    def happens(self) -> bool:
        """Whether there is anything to exchange."""
        return self.alone_s > 0.0


NO_EXCHANGE = Exchange(0.0, 0.0, math.inf, np.empty(0, np.int64), np.empty(0), 0.0)


def make_exchange(
    model: Model, nodes: Sequence[int], topology: Topology, profile: HardwareProfile, accelerator: str
) -> Exchange:
    """The gradient exchange of workers on `nodes` (one entry per worker, in ring order).

    Ring all-reduce: 2 (n - 1) alpha + 2 (n - 1) / n * S / B (Thakur et al. 2005, Patarasuk and Yuan 2009). Tree:
    2 ceil(log2 n) alpha + 2 S / B with two trees of nodes, of which the busiest node sends 2 S, of two nodes S
    (Sanders et al. 2009, as NCCL does). A GPU reaches the network through one NIC. Nothing happens for one worker.
    """
    n, size = len(nodes), gradient_bytes(model)
    if n < 2 or (size == 0.0 and not model.exchange.alpha):
        return NO_EXCHANGE
    spec, gpus = model.exchange, model.parallel.tensor * model.parallel.pipeline
    size, packing_s = _compressed(model, size), model.exchange.compression_time
    alpha_s, cap = _constants(model, profile, "inter" if len(set(nodes)) > 1 else "intra", accelerator, size)
    if spec.algorithm == "tree":
        rounds, volume = 2 * math.ceil(math.log2(n)), 2.0 * size
        links, usage = topology.tree_usage(nodes)
        cap /= max(topology.sent(links, usage)[1], default=1.0)
    elif spec.algorithm in ("parameter-server", "async-parameter-server"):
        gradients = 2.0 * max(n / spec.servers, 1.0)
        rounds, volume = 2, gradients * size
        servers = [nodes[k * n // spec.servers] for k in range(spec.servers)]
        links, usage = topology.parameter_server_usage(nodes, servers)
        cap = min(cap, gradients * _pushed(nodes, servers, gpus, topology))
        return flow(rounds * alpha_s + packing_s, volume, cap, links, usage, topology)
    elif spec.algorithm == "hierarchical":
        return _hierarchical(model, nodes, topology, profile, accelerator, size, packing_s)
    else:
        rounds, volume = 2 * (n - 1), 2.0 * (n - 1) / n * size
        links, usage = topology.ring_usage(nodes)
    cap = min(cap, through_nics(nodes, gpus, links, usage, topology))
    return flow(rounds * alpha_s + packing_s, volume, cap, links, usage, topology)


def through_nics(nodes: Sequence[int] | Ints, gpus: int, links: Ints, usage: Floats, topology: Topology) -> float:
    """Highest rate (bytes/s) of a flow that the GPUs of workers on `nodes` can send through the NICs."""
    senders, sent = topology.sent(links, usage)
    if not len(senders):
        return math.inf
    there = gpus * np.bincount(nodes, minlength=topology.nodes)[senders]
    rate = float((there * topology.gpu_nic_bytes_per_s[senders] / sent).min())
    return min(rate, topology.out_of_racks(np.asarray(nodes), links, usage))


def _pushed(nodes: Sequence[int], servers: Sequence[int], gpus: int, topology: Topology) -> float:
    """Lowest rate (gradient bytes/s) between a worker of `gpus` GPUs and servers on these nodes."""
    away = [1.0 - servers.count(node) / len(servers) for node in nodes]
    rates = topology.gpu_nic_bytes_per_s[nodes].tolist()
    return min((gpus * rate / part for rate, part in zip(rates, away, strict=True) if part), default=math.inf)


def _compressed(model: Model, size: float) -> float:
    """Bytes of an all-reduce of equal traffic of a gradient of `size` bytes.

    ZeRO 3 gathers parameters twice: Rajbhandari et al. 2020, section 7.2.2.
    """
    zero = model.parallel.zero
    return size * (1.5 if zero == 3 else 1.0) * transformer.exchange_kept(zero, model.exchange.compression)


def make_near_exchange(
    model: Model, nodes: Ints, group: Ints, topology: Topology, profile: HardwareProfile, accelerator: str
) -> Exchange:
    """Exchanges inside all groups (workers,) of workers on `nodes` (workers,) at once, as one flow.

    It lasts as long as the slowest one would beside the others.
    """
    parts = [
        make_exchange(model, nodes[group == k].tolist(), topology, profile, accelerator)
        for k in range(int(group.max()) + 1)
    ]
    volume = max(part.volume_bytes for part in parts)
    if volume == 0.0:
        return max(parts, key=lambda part: part.alone_s)
    links, place = np.unique(np.concatenate([part.links for part in parts]), return_inverse=True)
    usage = np.zeros(len(links))
    np.add.at(usage, place, np.concatenate([part.usage * (part.volume_bytes / volume) for part in parts]))
    cap = min(part.cap_bytes_per_s * volume / part.volume_bytes for part in parts if part.volume_bytes)
    return flow(max(part.delay_s for part in parts), volume, cap, links, usage, topology)


def make_push(
    model: Model, node: int, servers: Sequence[int], topology: Topology, profile: HardwareProfile, accelerator: str
) -> Exchange:
    """Push of one asynchronous worker's gradient to the servers and pull of the parameters: 2 (alpha + S / B)."""
    size = gradient_bytes(model)
    if size == 0.0 and not model.exchange.alpha:
        return NO_EXCHANGE
    size, packing_s = _compressed(model, size), model.exchange.compression_time
    tier: Literal["intra", "inter"] = "intra" if set(servers) == {node} else "inter"
    alpha_s, cap = _constants(model, profile, tier, accelerator, size)
    links, usage = topology.parameter_server_usage([node], list(servers))
    gpus = model.parallel.tensor * model.parallel.pipeline
    cap = min(cap, 2.0 * _pushed([node], servers, gpus, topology))  # push and pull
    return flow(2.0 * alpha_s + packing_s, 2.0 * size, cap, links, usage, topology)


def _constants(
    model: Model, profile: HardwareProfile, tier: Literal["intra", "inter"], accelerator: str, size: float
) -> tuple[float, float]:
    """(alpha in s, rate in bytes/s) of the exchange: the scenario's, else the hardware profile's."""
    spec = model.exchange
    if spec.alpha is not None and spec.rate is not None:
        return spec.alpha, spec.rate
    fabric = profile.fabric(tier, "all_reduce", accelerator)
    if fabric is None:
        raise ValueError(f"hardware profile {profile.name!r} has no {tier}-node all_reduce fabric")
    alpha_s, rate = fabric.constants_at(size)
    return (alpha_s if spec.alpha is None else spec.alpha), (rate if spec.rate is None else spec.rate)


def flow(delay_s: float, volume: float, cap: float, links: Ints, usage: Floats, topology: Topology) -> Exchange:
    """`volume` bytes over links of which each carries `usage` of it, at most at `cap` bytes/s, after a delay."""
    capacity = topology.capacity_bytes_per_s[links]
    rate = min(cap, float((capacity / usage).min()) if len(links) else math.inf)
    return Exchange(delay_s, volume, cap, links, usage, delay_s + (volume / rate if volume else 0.0))


def _hierarchical(
    model: Model,
    nodes: Sequence[int],
    topology: Topology,
    profile: HardwareProfile,
    accelerator: str,
    size: float,
    packing_s: float,
) -> Exchange:
    """Reduce-scatter inside each node, g rings over the nodes on 1/g of the data each, all-gather inside."""
    places = list(dict.fromkeys(nodes))
    g, m = max(nodes.count(place) for place in places), len(places)
    if m == 1 or g == 1:
        flat = model.model_copy(update={"exchange": model.exchange.model_copy(update={"algorithm": "ring"})})
        return make_exchange(flat, nodes, topology, profile, accelerator)
    alpha_s, cap = _constants(model, profile, "inter", accelerator, size / g)
    inside = profile.fabric("intra", "all_reduce", accelerator)
    if inside is None:
        raise ValueError(f"hardware profile {profile.name!r} has no intra-node all_reduce fabric")
    inside_alpha_s, inside_rate = inside.constants_at(size)
    inside_s = 2.0 * (g - 1) * (inside_alpha_s + size / g / inside_rate)
    links, usage = topology.ring_usage(places)
    usage *= g
    cap = min(cap, through_nics(nodes, model.parallel.tensor * model.parallel.pipeline, links, usage, topology))
    delay_s = inside_s + 2.0 * (m - 1) * alpha_s + packing_s
    return flow(delay_s, 2.0 * (m - 1) / m * size / g, cap, links, usage, topology)


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


UNBOUNDED = 2**62
_ROUNDING = 1e-9


def least_bytes(model: Model, workers: int) -> float:
    """Least device memory per GPU of one worker: a pass of one sample."""
    return memory_need_bytes(model, 1, workers)


def samples_per_pass(model: Model, memory_bytes: float, workers: int) -> int:
    """Most samples of one pass, by the memory of the GPUs and the model's own limit.

    0 where not even one sample fits; `UNBOUNDED` where neither limits it.
    """
    held = memory_need_bytes(model, 0, workers)
    each = least_bytes(model, workers) - held
    limit = model.samples_per_pass or UNBOUNDED
    if memory_bytes * (1.0 + _ROUNDING) < held + each:
        return 0
    return limit if each <= 0.0 else min(limit, int((memory_bytes * (1.0 + _ROUNDING) - held) / each))


def fewest_workers(model: Model, workers: int, workers_min: int, memories: Iterable[float]) -> int:
    """The fewest workers, from `workers_min` on, that fit wherever a worker of `workers` fits.

    Where what is held is divided among workers (ZeRO), fewer of them hold more. `memories`: bytes of each kind
    of GPU. `workers_min` where none of them has room.
    """
    need = least_bytes(model, workers)
    enough = [memory for memory in memories if memory * (1.0 + _ROUNDING) >= need]
    if not enough:
        return workers_min
    fitting = (n for n in range(workers_min, workers) if samples_per_pass(model, min(enough), n))
    return next(fitting, max(workers, workers_min))
