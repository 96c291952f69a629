"""Least time and GPU time of each job by the formulas of the model, for the lower bounds.

All losses are left out: waiting for data, jitter, contention, restarts, neighbours. All choices of a policy are
optimal: accelerator, nodes, number of workers, batch split, interval, and for GPU-seconds the fraction of a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.physics import efficiency, overlapped_s
from equipoise.sim.cost.measured import share_kappa
from equipoise.sim.cost.step import make_exchange, replica_cost_s
from equipoise.sim.cost.transformer import section
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile
from equipoise.sim.job.paces import Paces
from equipoise.sim.job.progress import DONE_TOLERANCE
from equipoise.sim.llm.hardware import GroupLinks
from equipoise.sim.network.topology import Topology, link_bytes_per_s
from equipoise.sim.scenario.model import ClusterSpec, Explicit, JobSpec, Model

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LowerBound:
    """Lower bounds in s, the makespan from the first arrival on.

    `noise_free`: the bounds ignore the step noise of the scenario, so a lucky run can beat them.
    """

    makespan_s: float
    completion_mean_s: float
    noise_free: bool


@dataclass(frozen=True)
class EqualGpus:
    """A group of equal GPUs of a cluster."""

    gpus: int
    speed: float
    accelerator: Accelerator
    fabric_bytes_per_s: float
    ingest_samples_per_s: float


class Capacity:
    """A cluster's GPUs and network, and the least time of jobs on them."""

    def __init__(self, spec: ClusterSpec, profile: HardwareProfile) -> None:
        self.groups = [
            EqualGpus(
                gpus=group.count * group.gpus,
                speed=group.speed,
                accelerator=never_worse_when_larger(profile.accelerator(group.accelerator)),
                fabric_bytes_per_s=link_bytes_per_s(group, profile),
                ingest_samples_per_s=math.inf if group.ingest is None else group.ingest,
            )
            for group in spec.groups
        ]
        self.gpus = np.array([group.gpus for group in self.groups])
        self.speed = np.array([group.speed for group in self.groups])
        self.profile, self.topology = profile, Topology(spec, profile)
        self.topology.gpu_nic_bytes_per_s = np.full(self.topology.nodes, math.inf)  # however many GPUs send
        self.models = tuple(dict.fromkeys(group.accelerator for group in spec.groups))
        models = list(dict.fromkeys(group.accelerator for group in spec.groups if group.gpus))
        self.gpu_model = [models.index(g.accelerator) if g.gpus else 0 for g in spec.groups]  # as of the cluster
        sizes = np.sort(np.repeat([g.gpus for g in spec.groups], [g.count for g in spec.groups]))
        self.held_by_largest = np.cumsum(sizes[::-1])
        nic = np.sort(self.topology.nic_bytes_per_s)[::-1]
        self.nic_bytes_per_s = np.full_like(nic, np.inf) if isinstance(spec.topology, Explicit) else nic
        self._exchange_s: dict[tuple[int, int], float] = {}

    def rigid(
        self, gpus: Ints, share: Floats | float, duration_s: Floats, paces: Paces | None = None
    ) -> tuple[Floats, Floats]:
        """(shortest duration (jobs,), GPU-seconds by group (jobs, groups)) of jobs known by duration.

        A gang runs at the pace of its slowest node: at best the speed of its `gpus`-th fastest GPU. paces: of these
        jobs on each GPU model.
        """
        if paces is not None and not paces.alike:
            speed = self.speed * paces.speed[:, self.gpu_model]
            return self._rigid_by_model(gpus, share, duration_s, speed, paces.kind)
        order = np.argsort(-self.speed)
        held = np.cumsum(self.gpus[order])
        slowest = order[np.minimum(np.searchsorted(held, gpus), len(order) - 1)]
        gpu_s = (gpus * share * duration_s)[:, None] / self.speed
        return duration_s / self.speed[slowest], gpu_s

    def _rigid_by_model(
        self, gpus: Ints, share: Floats | float, duration_s: Floats, speed: Floats, kind: Ints
    ) -> tuple[Floats, Floats]:
        """The same; speed (kinds, groups), kind (jobs,)."""
        order = np.argsort(-speed, axis=1)
        held = np.cumsum(self.gpus[order], axis=1)
        place = np.minimum((held[kind] < gpus[:, None]).sum(axis=1), len(self.groups) - 1)
        slowest = speed[kind, order[kind, place]]
        return duration_s / slowest, (gpus * share * duration_s)[:, None] / speed[kind]

    def training(self, spec: JobSpec, model: Model) -> tuple[float, Floats]:
        """(shortest duration, GPU-seconds by group (groups,)) of one training job."""
        each = [self._with_batch(spec, model, low, high) for low, high in batch_cells(spec)]
        return min(duration_s for duration_s, _ in each), np.min([gpu_s for _, gpu_s in each], axis=0)

    def _with_batch(self, spec: JobSpec, model: Model, low: int, high: int) -> tuple[float, Floats]:
        """As `training` for any batch from `low` to `high`: steps as short as with `low`, as few as with `high`."""
        per = model.parallel.tensor * model.parallel.pipeline
        fixed_s, sample_s, best_s = self._costs(model, high)
        reference = spec.batch_reference or spec.global_batch
        small = spec.model_copy(update={"global_batch": low, "batch_reference": reference})
        samples = target_samples(spec) * (1.0 - DONE_TOLERANCE) / best_efficiency(small, model)
        fewest, most = worker_range(spec, model)
        step_s = math.inf
        for workers in range(fewest, max(fewest, min(most, int(self.gpus.sum()) // per)) + 1):
            work_s = self._shortest_work_s(low, workers, fixed_s, sample_s, best_s)
            exchange, drift = self._exchange(model, workers), model.drift or 0.0
            step_s = min(step_s, best_interval_s(work_s, exchange, model.overlap, drift))
        shares = np.array([_least_gpu_s_per_s(share_kappa(model.share_kappa, g.accelerator)) for g in self.groups])
        gpu_s = samples * best_s * per * shares
        if per > 1:  # a replica over unequal nodes runs at the pace of its first GPU
            gpu_s = np.full_like(gpu_s, gpu_s.min())
        return samples / high * step_s, gpu_s

    def _costs(self, model: Model, batch: int) -> tuple[Floats, Floats, Floats]:
        """By group: fixed seconds of a pass, further seconds per sample, least seconds per sample in all."""
        most = min(model.samples_per_pass or batch, batch)
        rates = [(g, g.fabric_bytes_per_s) for g in self.groups]
        cost = np.array([replica_cost_s(model, g.accelerator, most, own, self._widest(model, own)) for g, own in rates])
        fixed_s, total_s = cost.T / self.speed
        return fixed_s, (total_s - fixed_s) / most, total_s / most

    def _widest(self, model: Model, own: float) -> GroupLinks | None:
        """Highest send rate of the groups of a large model's replicas, for any placement."""
        if model.transformer is None:
            return None
        layout, nic = section(model)[1].layout, float(self.nic_bytes_per_s.max())
        held = int(self.held_by_largest[0])
        tensor, context, send = (
            own if ranks <= held else min(own, nic) for ranks in (layout.tp, layout.cp, layout.replica_gpus)
        )
        return GroupLinks(tensor, context, own if layout.ep <= held else nic, send)

    def _shortest_work_s(self, batch: int, workers: int, fixed_s: Floats, sample_s: Floats, best_s: Floats) -> float:
        """Least duration of one step of `batch` samples on the best `workers` of all GPUs.

        Worker i takes at least max(fixed_i + sample_i * b_i, best_i * b_i, b_i / ingest_i): with the batch split so
        that all end together, the step takes batch / sum(1 / best_i) at least, and at least the least (batch +
        sum(fixed_i / sample_i)) / sum(1 / sample_i) over the k workers with the least cost.
        """
        ingest_s = np.array([1.0 / group.ingest_samples_per_s for group in self.groups])
        best = self._best(np.maximum(best_s, ingest_s), workers)
        fixed, sample = self._best(fixed_s, workers), self._best(sample_s, workers)
        dealt_s = batch / (1.0 / best).sum()
        if not (sample > 0).all():
            return float(dealt_s)
        filled_s = (batch + np.cumsum(fixed / sample)) / np.cumsum(1.0 / sample)
        return float(max(dealt_s, filled_s.min()))

    def _best(self, by_group: Floats, workers: int) -> Floats:
        """The least `workers` values over all GPUs, ascending."""
        order = np.argsort(by_group, kind="stable")
        return np.repeat(by_group[order], np.minimum(self.gpus[order], workers))[:workers]

    def _exchange(self, model: Model, workers: int) -> float:
        """Least seconds of one exchange over this many workers, for any placement."""
        key = (id(model), workers)
        if key not in self._exchange_s:
            self._exchange_s[key] = self._shortest_exchange_s(model, workers)
        return self._exchange_s[key]

    def _shortest_exchange_s(self, model: Model, workers: int) -> float:
        """The closed form at the highest rate that the fabric and, for a ring, the network cards allow.

        Hierarchical exchanges and those of a `transformer` also depend on the placement; they count as free.
        """
        if (
            workers < 2
            or model.transformer is not None
            or model.exchange.algorithm in ("hierarchical", "async-parameter-server")
        ):
            return 0.0
        fewest_nodes = min(int(np.searchsorted(self.held_by_largest, workers)) + 1, self.topology.nodes)
        nic = self.nic_bytes_per_s[max(fewest_nodes, 2) - 1] if self.topology.nodes > 1 else math.inf
        apart_cap = nic if model.exchange.algorithm == "ring" else math.inf
        places = [([0] * workers, math.inf)] if fewest_nodes == 1 else []
        if self.topology.nodes > 1:
            places.append(([0] * (workers - 1) + [1], apart_cap))
        found = []
        for name, (nodes, cap) in product(self.models, places):
            try:
                exchange = make_exchange(model, nodes, self.topology, self.profile, name)
            except ValueError:  # the hardware profile lacks that fabric, so no run can use it
                continue
            rate = min(exchange.cap_bytes_per_s, cap)
            found.append(exchange.delay_s + exchange.volume_bytes / rate)
        return min(found, default=0.0)


def best_interval_s(work_s: float, exchange_s: float, overlap: float, drift: float) -> float:
    """Least seconds per step at full efficiency, over all intervals H >= 1.

    A period takes H W + (E - W), with E the last step and its exchange overlapped (`policies.physics`);
    per useful step that is (W + (E - W) / H) (1 + d (H - 1)), least at H^2 = (E - W) (1 - d) / (W d).
    """
    extra_s = overlapped_s(work_s, exchange_s, overlap) - work_s
    if drift == 0.0:
        return work_s  # as rarely as one likes
    best = math.sqrt(extra_s * (1.0 - drift) / (work_s * drift)) if work_s > 0.0 and drift < 1.0 else 1.0
    interval = max(best, 1.0)
    return (work_s + extra_s / interval) * (1.0 + drift * (interval - 1.0))


def never_worse_when_larger(accelerator: Accelerator) -> Accelerator:
    """The accelerator with its efficiency curve raised to its running maximum over the size of a pass.

    With it the seconds per sample fall with the size of a pass, so the largest pass bounds all.
    """
    points = accelerator.efficiency
    highest = accumulate((point.efficiency.value for point in points), max)
    raised = tuple(
        point.model_copy(update={"efficiency": point.efficiency.model_copy(update={"value": value})})
        for point, value in zip(points, highest, strict=True)
    )
    return accelerator.model_copy(update={"efficiency": raised})


def batch_cells(spec: JobSpec) -> list[tuple[int, int]]:
    """Possible batches of a job as (lowest, highest) of cells of 5 % width; one cell if it is fixed."""
    if spec.batch_max is None:
        return [(spec.global_batch, spec.global_batch)]
    cells, low = [], spec.batch_reference or spec.global_batch
    while low <= spec.batch_max:
        high = min(max(low, int(1.05 * low)), spec.batch_max)
        cells.append((low, high))
        low = high + 1
    return cells


def target_samples(spec: JobSpec) -> float:
    """Samples that a training job must train at efficiency 1."""
    if spec.steps is not None:
        return float(spec.steps * spec.global_batch)
    if spec.samples is not None:
        return float(spec.samples)
    if spec.epochs is None or spec.data is None:
        raise ValueError(f"job {spec.name!r} has no target")
    return spec.epochs * spec.data.samples


def worker_range(spec: JobSpec, model: Model) -> tuple[int, int]:
    """The fewest and the most data-parallel workers that a job may have."""
    asked = max(1, spec.gpus // (model.parallel.tensor * model.parallel.pipeline))
    return min(asked, spec.workers_min or asked), max(asked, spec.workers_max or asked)


def best_efficiency(spec: JobSpec, model: Model) -> float:
    """The highest mean statistical efficiency over an epoch, with an exchange after every step.

    With the largest noise scale; the last batch of an epoch can be smaller.
    """
    phi = -1.0 if model.noise_scale is None else model.noise_scale
    reference = float(spec.batch_reference or spec.global_batch)
    whole = efficiency(float(spec.global_batch), 1.0, phi, reference, 0.0)
    if spec.data is None:
        return whole
    rest = spec.data.samples % spec.global_batch
    last = efficiency(max(float(rest), reference), 1.0, phi, reference, 0.0)
    return whole + (last - whole) * rest / spec.data.samples


def _least_gpu_s_per_s(kappa: float) -> float:
    """Least GPU-seconds for one second of work of a whole GPU, over fractions f of it: f / speed_at(f).

    With speed_at(f) = (1 + kappa) f / (f + kappa) it falls towards kappa / (1 + kappa) as f does.
    """
    return kappa / (1.0 + kappa) if math.isfinite(kappa) else 1.0
