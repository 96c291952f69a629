"""Cost of a training job's step on its present workers: compute, input and exchange."""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np

from equipoise.policies.levels import far_ratio, near_groups
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.physics import deal, speed_at
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cost import measured
from equipoise.sim.cost.replica_links import group_links, ring_bytes_per_s
from equipoise.sim.cost.step import (
    NO_EXCHANGE,
    UNBOUNDED,
    Exchange,
    fewest_workers,
    make_exchange,
    make_near_exchange,
    make_push,
    make_transformer_exchange,
    memory_need_bytes,
    replica_cost_s,
    replica_shares,
    samples_per_pass,
)
from equipoise.sim.cost.transformer import section
from equipoise.sim.hardware.profile import Accelerator
from equipoise.sim.llm.hardware import GroupLinks
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import JobSpec, Model

SPEEDS = ("gpu_model", "gpus", "samples_per_s", "exchange_s", "apart_exchange_s")
"""Columns of `Configuration.speeds`."""


class Configuration:
    """Workers of a job, their work in a step, and its cost as last computed.

    gpu, nodes, share, weight, samples, compute_s, input_s (workers,): a worker's first GPU, its node, its share of
    each of its GPUs, the GPU-seconds it holds per second, its samples in a step, and their time in s before noise.
    share_kappa, interference (workers,): of its GPU, see `measured`.
    """

    def __init__(self, row: int, spec: JobSpec, model: Model, cluster: Cluster) -> None:
        self.row, self.spec, self.model, self.cluster = row, spec, model, cluster
        self.gpus_per_worker = model.parallel.tensor * model.parallel.pipeline
        self.asynchronous = model.exchange.algorithm == "async-parameter-server"  # workers go on without a barrier
        self.workers, self.batch = 0, spec.global_batch
        self.accumulation = 1  # passes of a step at least; memory may ask for more
        self.asked = max(1, spec.gpus // self.gpus_per_worker)  # workers that it asks for
        memories = [self.memory_bytes(kind) for kind in range(len(cluster.accelerators))]
        self.fewest = fewest_workers(model, self.asked, spec.workers_min or 1, memories)  # that memory allows
        self.nodes: Ints = np.zeros(1, dtype=np.int64)  # until it is placed, node 0 stands for any
        self.fabric_bytes_per_s = float(cluster.topology.fabric_bytes_per_s.min())
        self.links: GroupLinks | None = None
        self._cost = lru_cache(maxsize=4096)(self._cost_uncached)
        self.exchange_estimate_s = lru_cache(maxsize=4096)(self._exchange_estimate_s)
        self._in_passes = lru_cache(maxsize=256)(self._in_passes_uncached)
        self.speeds = lru_cache(maxsize=16)(self._speeds)
        self.sample_bytes = spec.data.sample_size if spec.data is not None else 0.0
        self.stale = True  # to be worked out before the next period
        self._fixed: Floats | None = None  # of a step at speed 1, since it was last worked out

    def place(self, holding: Holding) -> None:
        """Work on these GPUs, with equal parts of the batch."""
        per = self.gpus_per_worker
        self.workers = len(holding.gpu) // per
        self.gpu = holding.gpu[::per]
        self.gpus = holding.gpu.reshape(-1, per)
        self.gradient_weight = np.ones(self.workers)
        self.push_interval = np.ones(self.workers, dtype=np.int64)  # local steps of a worker that does not wait
        self.set_share(holding.share[::per].copy())
        self.gpu_nodes = self.cluster.gpus.node[holding.gpu]
        self.nodes = self.gpu_nodes[::per]
        self._groups = self._near_groups()
        self.far_ratio = 1.0 if self._groups is None else far_ratio(self._groups)
        on = [self.cluster.accelerators[k] for k in self.cluster.node_model[self.nodes].tolist()]
        kappa, iota = self.model.share_kappa, self.model.interference
        self.share_kappa = np.array([measured.share_kappa(kappa, accelerator) for accelerator in on])
        self.interference = np.array([measured.interference(iota, accelerator) for accelerator in on])
        self.fabric_bytes_per_s, self.links = self._replica_links(self.cluster.topology)
        self._forget_costs()
        self.set_samples(deal(self.batch, np.ones(self.workers, np.int64), self.spec.micro_batch))

    def _replica_links(self, topology: Topology) -> tuple[float, GroupLinks | None]:
        """Rate (bytes/s) between the GPUs of a worker; for a large model, by its groups."""
        model = self.model
        narrowest = float(topology.fabric_bytes_per_s[self.gpu_nodes].min())
        if model.transformer is not None:
            _, bound = section(model)
            layout = bound.layout.layout(self.workers, self.workers * bound.layout.micro_batch, model.precision)
            return narrowest, group_links(self.gpu_nodes, layout, topology)
        groups = self.gpu_nodes.reshape(-1, model.parallel.tensor)
        return min(narrowest, ring_bytes_per_s(groups, topology)), None

    def set_samples(self, samples: Ints) -> None:
        """Set the samples of each worker (workers,)."""
        self.samples, self.stale = samples, True

    def set_batch(self, batch: int) -> None:
        """Set another batch, split in the present proportions."""
        self.batch = batch
        self.set_samples(deal(batch, self.samples, self.spec.micro_batch))

    def set_accumulation(self, passes: int) -> None:
        """Set the least number of passes of a step."""
        self.accumulation, self.stale = passes, True
        self._forget_costs()

    def set_gradient_weight(self, weight: Floats) -> None:
        """Set the weight of each worker's gradient in the mean (workers,)."""
        self.gradient_weight, self.stale = weight, True

    def gradient_factor(self) -> Floats:
        """Factor on each worker's gradient by its GPUs: 1 correct, NaN or another factor corrupt; (workers,)."""
        factor: Floats = self.cluster.corrupt[self.gpus].prod(axis=1)
        return factor

    def _credit(self) -> float:
        """Share of a batch's samples that count: 0 with a corrupt gradient in the mean."""
        spoilt = (self.gradient_factor() != 1.0) & (self.gradient_weight > 0.0)
        if spoilt.any():
            return 0.0
        if (self.gradient_weight == 1.0).all():
            return 1.0
        return float(self.gradient_weight @ self.samples) / float(self.samples.sum())

    def set_share(self, share: Floats) -> None:
        """Set the shares of the GPUs (workers,)."""
        self.share, self.stale = share, True
        self.weight = share * self.gpus_per_worker

    def work_out(self) -> None:
        """Compute the present cost of a step from speeds, shares, neighbours and exchange."""
        cluster = self.cluster
        nodes = self.gpu_nodes.reshape(self.gpus.shape)
        of_gpu = cluster.node_speed[nodes] / cluster.slow[nodes] / cluster.gpu_time[self.gpus]
        speed: Floats = of_gpu.min(axis=1)  # a replica runs at its slowest GPU's pace
        for i in range(self.workers):
            if self.share[i] < 1.0:
                speed[i] *= speed_at(float(self.share[i]), float(self.share_kappa[i]))
            if self.interference[i]:
                speed[i] /= 1.0 + self.interference[i] * cluster.co_located(int(self.gpu[i]), self.row)
        links = self._links_now()
        self.scale = self._slowed(links) / speed
        per_node = np.bincount(self.nodes)
        ingest = cluster.nodes.ingest_samples_per_s[self.nodes] / per_node[self.nodes]
        self.ingest = np.minimum(ingest, self._own_input())
        self.exchange, self.near = self._exchange(), self._near()
        self.compute_s, self.input_s = self.step_s(self.samples)
        self._divide(*links)
        self.credit = self._credit()
        self.pushes = self._pushes() if self.asynchronous else []
        self.stale, self._fixed = False, None

    def _links_now(self) -> tuple[float, GroupLinks | None]:
        """`fabric_bytes_per_s` and `links` at the rates that NICs have now."""
        topology = self.cluster.links
        if topology is self.cluster.topology or (self.gpus_per_worker == 1 and not self._has_experts):
            return self.fabric_bytes_per_s, self.links
        return self._replica_links(topology)

    def _slowed(self, links: tuple[float, GroupLinks | None]) -> Floats:
        """Each worker's step over the one on the links as declared, (workers,)."""
        if links == (self.fabric_bytes_per_s, self.links):
            return np.ones(self.workers)
        whole_s, now_s = self._costs(self.samples, 1), self._costs(self.samples, 1, links)
        slowed: Floats = np.divide(now_s, whole_s, out=np.ones(self.workers), where=whole_s > 0.0)
        return slowed

    @property
    def _has_experts(self) -> bool:
        return self.model.transformer is not None and section(self.model)[1].layout.ep > 1

    def _divide(self, fabric_bytes_per_s: float, links: GroupLinks | None) -> None:
        """Of the GPU-seconds in which a worker computes: which its GPUs wait in a pipeline, or exchange inside it.

        bubble_weight, inside_weight, busy_weight (workers,) sum to `weight`; divided: the first two may not be 0.
        """
        self.busy_weight, self.divided = self.weight, self.gpus_per_worker > 1 or self._has_experts
        self.bubble_weight = self.inside_weight = np.zeros(self.workers)
        if not self.divided:
            return
        pairs = np.stack((self.cluster.node_model[self.nodes], self.samples))
        kinds, inverse = np.unique(pairs, axis=1, return_inverse=True)
        inverse = inverse.reshape(-1)  # NumPy 2.0.0 gives it a further axis
        shares = np.array(
            [
                replica_shares(
                    self._in_passes(int(m), self.workers),
                    self.cluster.accelerators[m],
                    int(b),
                    fabric_bytes_per_s,
                    links,
                )
                for m, b in kinds.T
            ]
        )[inverse]
        self.bubble_weight, self.inside_weight = self.weight * shares[:, 0], self.weight * shares[:, 1]
        self.busy_weight = self.weight - self.bubble_weight - self.inside_weight

    def _near_groups(self) -> Ints | None:
        """Fast-link group of each worker; None: one level, or no common gradient to average."""
        model = self.model
        if self.asynchronous or model.transformer is not None or model.parallel.zero:
            return None
        return near_groups(self.nodes, self.cluster.topology.rack)

    def _near(self) -> Exchange:
        """The exchange within all groups of near workers at once."""
        if self._groups is None:
            return NO_EXCHANGE
        topology, profile = self.cluster.links, self.cluster.profile
        return make_near_exchange(self.model, self.nodes, self._groups, topology, profile, self._accelerator)

    def _exchange(self) -> Exchange:
        """The exchange of all workers."""
        model, topology, profile = self.model, self.cluster.links, self.cluster.profile
        if model.transformer is None:
            return make_exchange(model, self.nodes.tolist(), topology, profile, self._accelerator)
        return make_transformer_exchange(
            model, self.gpu_nodes, int(self.samples.max()), topology, self.accelerator, self.fabric_bytes_per_s
        )

    @property
    def shares_input(self) -> bool:
        """Whether other jobs' workers on its nodes make its input slower."""
        reads = self.sample_bytes > 0.0 and bool(np.isfinite(self.cluster.local_read[self.nodes]).any())
        return reads or bool(self.model.preprocess_time)

    def _own_input(self) -> Floats:
        """Samples/s per worker that its node's cores prepare and its node's disk reads, (workers,).

        All workers of training jobs on a node have equal parts. What was fetched is read from the disk, too.
        """
        cluster, nodes = self.cluster, self.nodes
        each_s = np.maximum(
            (self.model.preprocess_time or 0.0) / cluster.cores[nodes], self.sample_bytes / cluster.local_read[nodes]
        )
        speed: Floats = np.full(self.workers, np.inf)
        np.divide(1.0, each_s * cluster.workers[nodes], out=speed, where=each_s > 0.0)
        return speed

    @property
    def accelerator(self) -> Accelerator:
        """Accelerator of the first worker."""
        return self.cluster.accelerators[int(self.cluster.node_model[self.nodes[0]])]

    @property
    def _accelerator(self) -> str:
        return self.cluster.gpu_models[int(self.cluster.node_model[self.nodes[0]])]

    def _pushes(self) -> list[Exchange]:
        """Push and pull of each worker."""
        nodes, topology = self.nodes.tolist(), self.cluster.links
        servers = [nodes[k * len(nodes) // self.model.exchange.servers] for k in range(self.model.exchange.servers)]
        return [
            make_push(self.model, node, servers, topology, self.cluster.profile, self._accelerator) for node in nodes
        ]

    def step_s(self, samples: Ints) -> tuple[Floats, Floats]:
        """(compute, input) seconds per worker of one local step, before noise."""
        return self._costs(samples, 1) * self.scale, samples / self.ingest

    def fixed_s(self) -> Floats:
        """The part of each worker's step that does not grow with its samples (s)."""
        return self._fixed_s() * self.scale

    def _fixed_s(self) -> Floats:
        if self.stale:
            return self._costs(self.samples, 0)
        if self._fixed is None:
            self._fixed = self._costs(self.samples, 0)
        return self._fixed

    def listed_s(self, samples: Floats) -> Floats:
        """Seconds of a step of each worker by the hardware profile alone, at its mean `samples` (workers,).

        NaN of workers without samples, with part of a GPU, or with new samples since the last period.
        """
        if self.stale:
            return np.full(self.workers, np.nan)
        fixed_s = self._fixed_s()
        grows = np.where((self.samples > 0) & (self.share >= 1.0), self.compute_s / self.scale - fixed_s, np.nan)
        listed_s: Floats = fixed_s + grows * samples / np.maximum(self.samples, 1)
        return listed_s

    def seconds_per_sample(self) -> Floats:
        """Work per sample and worker at the present shares; infinite for a worker without samples."""
        work = np.maximum(self.compute_s, self.input_s)
        infinite: Floats = np.full(self.workers, np.inf)
        np.divide(work, self.samples, out=infinite, where=self.samples > 0)
        return infinite

    def cost_s(self, gpu_model: int, samples: int, workers: int) -> tuple[float, float]:
        """(fixed, total) seconds of a step of one worker on a GPU model at speed 1, by the number of workers."""
        fixed_s, total_s = self._cost(gpu_model, samples, workers)
        return fixed_s, total_s

    def _forget_costs(self) -> None:
        self._cost.cache_clear()
        self.speeds.cache_clear()

    def _speeds(self, batch: int, fewest: int, most: int) -> Floats:
        """Estimates for each number of workers and GPU model (rows, `SPEEDS`)."""
        rows = []
        for workers in _counts(fewest, most):
            for model in range(len(self.cluster.gpu_models)):
                step_s = self.cost_s(model, -(-batch // workers), workers)[1]
                exchange_s = self.exchange_estimate_s(model, workers)
                apart_s = self.exchange_estimate_s(model, workers, apart=True)
                rows.append((model, workers * self.gpus_per_worker, batch / max(step_s, 1e-12), exchange_s, apart_s))
        return np.array(rows, dtype=np.float64).reshape(-1, len(SPEEDS))

    @property
    def data_bytes(self) -> float:
        """Bytes of the dataset; 0 without one."""
        return self.spec.data.sample_size * self.spec.data.samples if self.spec.data else 0.0

    def _exchange_estimate_s(self, gpu_model: int, workers: int, apart: bool = False) -> float:
        """One exchange (s) on links that nothing else uses, on the fewest nodes with that GPU model.

        Where these hold fewer workers, the nodes with other models help out; NaN where all hold fewer. `apart`:
        half of the workers are in the first of those nodes, the others elsewhere; NaN where there is no other.
        """
        cluster = self.cluster
        room = cluster.nodes.gpus // self.gpus_per_worker
        order = np.lexsort((np.arange(len(room)), -room, cluster.node_model != gpu_model))
        places = np.repeat(order, room[order])
        if apart:
            here = places == places[:1]
            places = np.concatenate((places[here][: workers // 2], places[~here][: workers - workers // 2]))
        if len(places) < workers or workers == 0:
            return math.nan
        places = places[:workers]
        if self.model.transformer is None:
            name = cluster.gpu_models[gpu_model]
            return make_exchange(self.model, places.tolist(), cluster.topology, cluster.profile, name).alone_s
        return make_transformer_exchange(
            self.model,
            np.repeat(places, self.gpus_per_worker),
            -(-self.batch // workers),
            cluster.topology,
            cluster.accelerators[gpu_model],
            self.fabric_bytes_per_s,
        ).alone_s

    def memory_bytes(self, gpu_model: int) -> float:
        """Memory of a GPU model that a worker may use: the share that the job requests."""
        return self.cluster.accelerators[gpu_model].memory_bytes.value * self.spec.gpu_share

    def pass_limits(self) -> tuple[Ints, Floats]:
        """(most samples of one pass, memory left with the present samples in bytes), (workers,) each."""
        model, kinds = self.cluster.node_model[self.nodes], len(self.cluster.accelerators)
        most = np.array([self._in_passes(k, self.workers).samples_per_pass or UNBOUNDED for k in range(kinds)])
        memory = np.array([self.memory_bytes(k) for k in range(kinds)])
        held = memory_need_bytes(self.model, 0, self.workers)
        each = memory_need_bytes(self.model, 1, self.workers) - held
        free = memory[model] - held - each * np.minimum(self.samples, most[model])
        return most[model], free

    def _costs(self, samples: Ints, which: int, links: tuple[float, GroupLinks | None] | None = None) -> Floats:
        """Fixed (0) or total (1) cost per worker at speed 1, on the links as declared or on these."""
        kinds, inverse = np.unique(
            np.stack((self.cluster.node_model[self.nodes], samples)), axis=1, return_inverse=True
        )
        cost = self._cost if links is None else partial(self._cost_uncached, links=links)
        costs = np.array([cost(int(m), int(b), self.workers)[which] for m, b in kinds.T])
        per_worker: Floats = costs[inverse.reshape(-1)]  # NumPy 2.0.0 gives it a further axis
        return per_worker

    def _cost_uncached(
        self, model: int, samples: int, workers: int, links: tuple[float, GroupLinks | None] | None = None
    ) -> tuple[float, float]:
        limited, accelerator = self._in_passes(model, workers), self.cluster.accelerators[model]
        if self.accumulation > 1:
            shorter = max(1, -(-samples // self.accumulation))
            limit = min(shorter, limited.samples_per_pass or shorter)
            limited = limited.model_copy(update={"samples_per_pass": limit})
        return replica_cost_s(limited, accelerator, samples, *(links or (self.fabric_bytes_per_s, self.links)))

    def _in_passes_uncached(self, gpu_model: int, workers: int) -> Model:
        """The model with passes that fit into the memory of a GPU model; one that holds none takes one each."""
        most = samples_per_pass(self.model, self.memory_bytes(gpu_model), workers)
        limit = None if most == UNBOUNDED else max(1, most)
        return (
            self.model
            if limit == self.model.samples_per_pass
            else self.model.model_copy(update={"samples_per_pass": limit})
        )


def _counts(fewest: int, most: int) -> list[int]:
    """Worker counts worth estimating: all when few, else powers of two and both ends."""
    if most - fewest < 16:
        return list(range(fewest, most + 1))
    powers = [2**k for k in range(most.bit_length()) if fewest < 2**k < most]
    return [fewest, *powers, most]
