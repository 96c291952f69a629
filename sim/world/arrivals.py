"""Arrivals of jobs in the order of their rows, with training jobs created and their data placed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from simpy.events import Event

from equipoise.policies.observation import Ints, resize, writable
from equipoise.policies.physics import deal, overlapped_s
from equipoise.sim.cells import cells
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cost.step import least_bytes
from equipoise.sim.job.dataset import JobData, place_shards
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.transfers import Transfers
from equipoise.sim.randomness import lognormal_parameters
from equipoise.sim.scenario.model import Data, OnNodes, Skewed
from equipoise.sim.world.roster import Roster


class JobArrivals:
    """Puts jobs into the queue at their time. make(row): a training job; arrived(): called after each instant.

    unasked_until_s(): the queue is not read before this time, so arrivals until then join at once.
    """

    def __init__(
        self,
        clock: Clock,
        roster: Roster,
        make: Callable[[int], TrainingJob],
        arrived: Callable[[], None],
        unasked_until_s: Callable[[], float],
    ) -> None:
        self.clock, self.roster, self.make = clock, roster, make
        self.arrived, self.unasked_until_s = arrived, unasked_until_s
        self._arrival_s = cells(roster.demand.arrival_s)
        self._training = sorted(roster.demand.training)
        self._next = 0

    @property
    def all_here(self) -> bool:
        """Whether all jobs have arrived."""
        return self._next == len(self._arrival_s)

    def plan_next(self) -> None:
        """Plan the next arrival, when there is one."""
        if self._next < len(self._arrival_s):
            self.clock.at(self._arrival_s[self._next], self._on_arrival)

    def _on_arrival(self, _: Event) -> None:
        roster, arrival_s, first = self.roster, self._arrival_s, self._next
        end = _first_after(self.clock._now, arrival_s, first)
        until_s = self.unasked_until_s()
        if until_s > self.clock._now:
            end = max(end, _first_after(math.nextafter(until_s, -math.inf), arrival_s, end))
        self._next = end
        resize(roster.table, end)
        for row in self._training[bisect_left(self._training, first) : bisect_left(self._training, end)]:
            job = roster.training[row] = self.make(row)
            if job.spec.data is not None:
                job.homes_before_start = known_homes(job.spec.data, job.cluster)
            _fill_row(job, roster)
        for row in range(first, end):
            roster.waiting.add(row)
        self.plan_next()
        self.arrived()


def _first_after(time_s: float, arrival_s: Any, first: int) -> int:
    """The first row from `first` on that arrives after `time_s`."""
    while first < len(arrival_s) and arrival_s[first] <= time_s:
        first += 1
    return first


def _fill_row(job: TrainingJob, roster: Roster) -> None:
    """Fill a training job's row in the jobs table."""
    row, spec, model, config = job.row, job.spec, job.model, job.config
    per, progress = config.gpus_per_worker, job.progress
    workers = config.asked
    part = int(deal(spec.global_batch, np.ones(workers, np.int64), spec.micro_batch).max())
    duration_s = progress.steps_to_target() * _step_s(job, workers, part) * float(roster.factor[row])
    size = spec.data.sample_size * spec.data.samples if spec.data else 0.0
    allowed = roster.demand.claims.smaller.get(row)
    most = (spec.workers_max or workers) if allowed is None else allowed // per
    for name, value in (
        ("gpus_per_worker", per),
        ("workers_min", max(config.fewest, spec.workers_min or workers)),
        ("workers_max", most),
        ("global_batch", spec.global_batch),
        ("batch_max", spec.batch_max or 0),
        ("batch_given", spec.global_batch),
        ("rate_rule", progress.rate_rule),
        ("batch_reference", progress.reference),
        ("micro_batch", spec.micro_batch),
        ("accumulation", progress.accumulation),
        ("sync_interval", spec.sync_interval),
        ("gamma", model.overlap),
        ("drift", math.nan if model.drift is None else model.drift),
        ("noise_scale", math.nan if model.noise_scale is None else model.noise_scale),
        ("remaining_samples", progress.target),
        ("duration_s", duration_s),
        ("service_s", duration_s),
        ("data_demand_bytes", size),
        ("input_bytes", progress.target * (spec.data.sample_size if spec.data else 0.0)),
        ("prepare_core_s", model.preprocess_time or 0.0),
        ("compute_demand_flops", (model.flop_per_sample or 0.0) * progress.target),
        ("memory_bytes", least_bytes(model, workers) / spec.gpu_share),
        ("checkpoint_bytes", job.checkpoints.size_bytes),
        ("restart_s", roster.initialisation_s + 2.0 * job.save_s),
    ):
        roster.columns[name][row] = value


def _shard_sizes(spec: Data, shards: int, random: Generator) -> Ints:
    """Samples of each shard, (shards,)."""
    given = spec.shard_sizes
    if given is None or shards < spec.shards:  # a sample each
        return deal(spec.samples, np.ones(shards))
    if isinstance(given, tuple):
        return deal(spec.samples, given)
    mu, sigma = lognormal_parameters(given.cov)
    return deal(spec.samples, np.exp(mu + sigma * random.standard_normal(shards)))


def _step_s(job: TrainingJob, workers: int, samples: int) -> float:
    """Estimated time (s) of a step for a number of workers and samples per worker, exchanges included."""
    work_s, exchange_s = job.config.cost_s(0, samples, workers)[1], job.config.exchange_estimate_s(0, workers)
    if math.isnan(exchange_s):
        return work_s
    interval = job.progress.interval
    return ((interval - 1) * work_s + overlapped_s(work_s, exchange_s, job.model.overlap)) / interval


def known_homes(spec: Data, cluster: Cluster) -> list[list[int]] | None:
    """Nodes that store each shard before the job has started; None where the job's own nodes decide."""
    place = spec.placement
    return None if not isinstance(place, OnNodes) and place.over == "job" else _homes(spec, [], cluster)


def _homes(spec: Data, worker_nodes: list[int], cluster: Cluster) -> list[list[int]]:
    """Nodes that store each shard; worker_nodes: distinct nodes of the job."""
    place = spec.placement
    if isinstance(place, OnNodes):
        nodes = cluster.nodes_named(place.nodes)
    else:
        nodes = worker_nodes if place.over == "job" else list(range(len(cluster.nodes)))
    exponent = place.exponent if isinstance(place, Skewed) else 0.0
    weights = np.arange(1.0, len(nodes) + 1.0) ** -exponent
    return place_shards(min(spec.shards, spec.samples), nodes, weights, spec.replicas)


def place_data(
    spec: Data, worker_nodes: list[int], cluster: Cluster, transfers: Transfers, row: int, random: Generator
) -> JobData:
    """The dataset of the job in a row, stored as its placement says; worker_nodes: distinct nodes of the job."""
    shards = min(spec.shards, spec.samples)
    homes = _homes(spec, worker_nodes, cluster)
    sizes = _shard_sizes(spec, shards, random)
    free = writable(cluster.nodes, "storage_free_bytes")
    for shard, home in enumerate(homes):
        for node in home:
            free[node] -= sizes[shard] * spec.sample_size
    return JobData(sizes, spec.sample_size, homes, transfers, free, row, cluster.caches, spec.prefetch)
