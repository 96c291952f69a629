"""The least that each job can need, from the model's own formulas: what the lower bounds are made of.

Everything that can only cost time is left out: waiting for data, exchanges, barriers, restarts, neighbours.
Everything that a policy may choose is chosen best: accelerator, number of workers, deal of the batch,
interval, and for GPU-seconds the fraction of a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sim.hardware import Accelerator, HardwareProfile
from sim.job import DONE_TOLERANCE
from sim.scenario import Cluster, Model
from sim.scenario import Job as JobSpec
from sim.workload import efficiency, replica_cost_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Equal GPUs of a cluster."""

    gpus: int
    speed: float
    accelerator: Accelerator
    fabric_bytes_per_s: float
    ingest_samples_per_s: float


class Capacity:
    """A cluster's GPUs, and the least that jobs need on them."""

    def __init__(self, cluster: Cluster, profile: HardwareProfile) -> None:
        self.groups = [
            Group(
                gpus=group.count * group.gpus,
                speed=group.speed,
                accelerator=never_worse_when_larger(profile.accelerator(group.accelerator)),
                fabric_bytes_per_s=group.fabric,
                ingest_samples_per_s=np.inf if group.ingest is None else group.ingest,
            )
            for group in cluster.groups
        ]
        self.gpus = np.array([group.gpus for group in self.groups])
        self.speed = np.array([group.speed for group in self.groups])

    def rigid(self, gpus: Ints, share: Floats | float, duration_s: Floats) -> tuple[Floats, Floats]:
        """(shortest duration (jobs,), GPU-seconds by group (jobs, groups)) of jobs known by duration.

        A gang runs at the pace of its slowest node: at best the speed of its `gpus`-th fastest GPU.
        """
        order = np.argsort(-self.speed)
        held = np.cumsum(self.gpus[order])
        slowest = order[np.minimum(np.searchsorted(held, gpus), len(order) - 1)]
        gpu_s = (gpus * share * duration_s)[:, None] / self.speed
        return duration_s / self.speed[slowest], gpu_s

    def training(self, spec: JobSpec, model: Model) -> tuple[float, Floats]:
        """(shortest duration, GPU-seconds by group (groups,)) of one training job."""
        per = model.parallel.tensor * model.parallel.pipeline
        fixed_s, sample_s, best_s = self._costs(model, spec.global_batch)
        samples = target_samples(spec) * (1.0 - DONE_TOLERANCE) / best_efficiency(spec, model)
        workers = min(most_workers(spec, model), int(self.gpus.sum()) // per)
        step_s = self._shortest_step_s(spec.global_batch, workers, fixed_s, sample_s, best_s)
        gpu_s = samples * best_s * per * _least_gpu_s_per_s(model)
        if per > 1:  # a replica over unequal nodes runs at the pace of its first GPU
            gpu_s = np.full_like(gpu_s, gpu_s.min())
        return samples / spec.global_batch * step_s, gpu_s

    def _costs(self, model: Model, batch: int) -> tuple[Floats, Floats, Floats]:
        """By group: fixed seconds of a pass, further seconds per sample, least seconds per sample in all."""
        most = min(model.samples_per_pass or batch, batch)
        cost = np.array(
            [replica_cost_s(model, g.accelerator, most, g.fabric_bytes_per_s) for g in self.groups]
        )
        fixed_s, total_s = cost.T / self.speed
        return fixed_s, (total_s - fixed_s) / most, total_s / most

    def _shortest_step_s(
        self, batch: int, workers: int, fixed_s: Floats, sample_s: Floats, best_s: Floats
    ) -> float:
        """Least duration of one step of `batch` samples on the best `workers` of all GPUs.

        Worker i takes at least max(fixed_i + sample_i * b_i, best_i * b_i, b_i / ingest_i): with the batch
        dealt so that all end together, the step takes batch / sum(1 / best_i) at least, and at least the
        least (batch + sum(fixed_i / sample_i)) / sum(1 / sample_i) over the k workers with the least cost.
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


def never_worse_when_larger(accelerator: Accelerator) -> Accelerator:
    """The accelerator with its efficiency curve raised to its running maximum over the size of a pass.

    With it the seconds per sample fall with the size of a pass, so that the largest pass bounds all.
    """
    points = accelerator.efficiency
    highest = accumulate((point.efficiency.value for point in points), max)
    raised = tuple(
        point.model_copy(update={"efficiency": point.efficiency.model_copy(update={"value": value})})
        for point, value in zip(points, highest, strict=True)
    )
    return accelerator.model_copy(update={"efficiency": raised})


def target_samples(spec: JobSpec) -> float:
    """Samples that a training job must train at efficiency 1."""
    if spec.steps is not None:
        return float(spec.steps * spec.global_batch)
    if spec.samples is not None:
        return float(spec.samples)
    if spec.epochs is None or spec.data is None:
        raise ValueError(f"job {spec.name!r} has no target")
    return spec.epochs * spec.data.samples


def most_workers(spec: JobSpec, model: Model) -> int:
    """The most data-parallel workers that a job may have."""
    asked = spec.gpus // (model.parallel.tensor * model.parallel.pipeline)
    return max(asked, spec.workers_max or 0, spec.workers_min or 0, 1)


def best_efficiency(spec: JobSpec, model: Model) -> float:
    """The highest mean statistical efficiency over an epoch, with an exchange after every step.

    The noise scale at its largest; the last batch of an epoch deals what is left and can be smaller.
    """
    phi = -1.0 if model.noise_scale is None else model.noise_scale * (1.0 + model.noise_scale_growth)
    reference = float(spec.batch_reference or spec.global_batch)
    whole = efficiency(float(spec.global_batch), 1, phi, reference, 0.0)
    if spec.data is None:
        return whole
    rest = spec.data.samples % spec.global_batch
    last = efficiency(max(float(rest), reference), 1, phi, reference, 0.0)
    return whole + (last - whole) * rest / spec.data.samples


def _least_gpu_s_per_s(model: Model) -> float:
    """Least GPU-seconds for what takes a whole GPU one second, over fractions f of it: f / speed_at(f).

    With speed_at(f) = (1 + kappa) f / (f + kappa) it falls towards kappa / (1 + kappa) as f does.
    """
    kappa = model.share_kappa
    return 1.0 if kappa is None else kappa / (1.0 + kappa)
