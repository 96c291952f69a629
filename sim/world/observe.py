"""The observation of policies: the current tables, each filled only when a stage reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.contract import Policy
from equipoise.policies.kernels.jit import ZERO
from equipoise.policies.observation import (
    Floats,
    Ints,
    Labels,
    Observation,
    Paths,
    Refusal,
    Shards,
    Speeds,
    Stores,
    Workers,
    writable,
)
from equipoise.policies.paths import PathSpeeds
from equipoise.policies.physics import response_s_per_sample, sustainable
from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.job.listener import Listener, Listeners
from equipoise.sim.job.measurements import JobWindow
from equipoise.sim.job.rigid import RigidJobs
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.topology import NIC_IN, NIC_OUT, NODE_LINKS, Topology
from equipoise.sim.network.transfers import Transfer
from equipoise.sim.randomness import noise_row, noise_space
from equipoise.sim.world.roster import Roster
from equipoise.sim.world.tables import (
    Member,
    fill_active,
    fill_power,
    fill_shards,
    fill_speed_ratio,
    fill_speeds,
    fill_stores,
    fill_workers,
    refill,
)


class PathWatch(Listener):
    """Watches transfers end, and fills the table of paths. Both time advances let them end at the same times."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.speeds = topology, PathSpeeds()

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """A transfer of data has arrived."""
        waited_s = transfer.begin_s - transfer.asked_s
        self.speeds.finished(transfer.source, transfer.target, transfer.size_bytes, transfer.alone_s, waited_s)

    def path(self, source: int, target: int) -> tuple[float, float]:
        """Recent (bytes/s, delay in s) from a node's disk to another node."""
        links, latency_s = self.topology.read_route(source, target)
        promised = float(self.topology.capacity_bytes_per_s[links].min())
        return self.speeds.at(source, target, promised, latency_s)

    def bytes_per_s(self, source: int, target: int) -> float:
        """The rate of `path`."""
        return self.path(source, target)[0]

    def fill(self, table: Paths, jobs: Sequence[TrainingJob]) -> None:
        """One row per pair of a node that stores data and another one that reads it."""
        pairs = set()
        for job in jobs:
            if job.data is not None and job.data.bytes_per_sample > 0.0:
                homes = {home for shard in job.data.homes for home in shard}
                nodes = set(job.config.nodes.tolist())
                pairs |= {(home, node) for home in homes for node in nodes if home != node}
        rows: dict[str, list[float]] = {name: [] for name in Paths.columns}
        for source, target in sorted(pairs):
            rate, delay_s = self.path(source, target)
            for name, value in (("source", source), ("target", target), ("bytes_per_s", rate), ("latency_s", delay_s)):
                rows[name].append(value)
        refill(table, rows)


class TraceColumns(Mapping[str, Labels | Floats]):
    """The columns of the first `rows` jobs, each coded when it is first read; `coded` keeps that."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], rows: int, coded: dict[str, Labels | Floats]) -> None:
        self._columns, self._rows, self._coded = columns, rows, coded

    def __getitem__(self, name: str) -> Labels | Floats:
        whole = self._coded.get(name)
        if whole is None:
            whole = self._coded[name] = _coded(self._columns[name])
        if isinstance(whole, Labels):
            return Labels(whole.codes[: self._rows], whole.names)
        return whole[: self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _coded(column: NDArray[Any]) -> Labels | Floats:
    if column.dtype.kind not in "OU":
        numbers = column.astype(np.float64)
        numbers.flags.writeable = False
        return numbers
    names, codes = np.unique(column.astype(np.str_), return_inverse=True)
    codes = codes.astype(np.int64)
    codes.flags.writeable = False
    return Labels(codes, tuple(names.tolist()))


class Traffic(Listener):
    """Traffic of the links since the nodes' table was last filled."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._carried_bytes = np.zeros(len(cluster.topology.capacity_bytes_per_s))
        self._since_s = 0.0
        self.by_job = False  # whether somebody asks what a job has of it
        self._parts: dict[int, list[tuple[Ints, Floats]]] = {}  # by job row: links, bytes on each
        self._told = self._parts  # those of the window that was last written
        self._busy, self._room_bytes = self._carried_bytes.copy(), self._carried_bytes.copy()  # in that one

    def carried(self, row: int, links: Ints, amounts: Floats) -> None:
        """Add the bytes that exchanges of a job (by row) sent over each of these links."""
        np.add.at(self._carried_bytes, links, amounts)
        if self.by_job:
            self._parts.setdefault(row, []).append((links, amounts))

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """A transfer of data has arrived."""
        self._carried_bytes[transfer.links] += transfer.size_bytes
        if self.by_job:
            amounts = np.full(len(transfer.links), transfer.size_bytes)
            self._parts.setdefault(transfer.owner, []).append((transfer.links, amounts))

    def fill(self, now_s: float) -> None:
        """Write which share of each NIC's capacity was used, and count anew."""
        capacity, nodes = self.cluster.topology.capacity_bytes_per_s, self.cluster.nodes
        self._room_bytes = capacity * (now_s - self._since_s)
        self._busy, self._told, self._parts = self._carried_bytes.copy(), self._parts, {}
        ratio = self._carried_bytes / self._room_bytes
        per_node = ratio[: len(nodes) * len(NODE_LINKS)].reshape(len(nodes), len(NODE_LINKS))
        busiest = per_node[:, [NIC_OUT, NIC_IN]].max(axis=1)
        writable(nodes, "nic_busy_ratio")[:] = np.minimum(1.0, busiest)
        self._carried_bytes[:] = 0.0
        self._since_s = now_s

    def by_others(self, row: int, node: Ints) -> Floats:
        """Share of the NIC of each `node` that others than the job in a row used, as last written."""
        links = node[:, None] * len(NODE_LINKS) + np.array([NIC_OUT, NIC_IN])
        rest, room = self._busy[links], self._room_bytes[links]
        if row in self._told:
            used, amounts = (np.concatenate(part) for part in zip(*self._told[row], strict=True))
            looked_at, place = np.unique(links, return_inverse=True)
            at = np.minimum(np.searchsorted(looked_at, used), len(looked_at) - 1)
            amounts = np.where(looked_at[at] == used, amounts, 0.0)
            rest = rest - np.bincount(at, weights=amounts, minlength=len(looked_at))[place.reshape(rest.shape)]
        share: Floats = np.clip(rest / np.where(room > 0.0, room, np.inf), 0.0, 1.0).max(axis=1)
        return share

    def due(self, now_s: float) -> bool:
        """Whether time has passed since it was last written."""
        return now_s > self._since_s


_NOTHING_TOLD: Mapping[str, Labels | Floats] = {}


class Observer:
    """Keeps the observation's tables up to date."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        roster: Roster,
        rigid: RigidJobs,
        policy: Policy,
        listeners: Listeners,
        traffic: Traffic,
        watch: PathWatch,
    ) -> None:
        self.clock, self.cluster, self.roster, self.rigid = clock, cluster, roster, rigid
        self.listeners, self.traffic, self.watch = listeners, traffic, watch
        self.workers, self.shards, self.paths, self.speeds = Workers(), Shards(), Paths(), Speeds()
        self.stores = Stores()
        self._listed: Ints = np.empty(0, dtype=np.int64)  # rigid jobs in the table of speeds
        self.members: list[Member] = []  # the jobs behind the table of workers
        self.refused: list[Refusal] = []  # since the last observation
        self._needs = frozenset().union(*(stage.needs for stage in policy.stages))
        self.traffic.by_job = {"nodes", "workers"} <= self._needs
        self._last_s = 0.0
        self.draws: Meter | None = None  # where policies cap power
        self._coded: dict[str, Labels | Floats] = {}
        self._paces: list[tuple[Ints, Floats]] = []  # of jobs just measured: node and pace of each worker

    def observe(self) -> Observation:
        """Return all current tables."""
        now_s, roster, columns = self.clock._now, self.roster, self.roster.columns
        booked = (columns[name] for name in ("attained_gpu_s", "service_s", "limit_left_s"))
        self.rigid.refresh(now_s, roster.running.rows, roster.factor, *booked)
        if roster.training:
            self._observe_training(now_s)
        if "speeds" in self._needs and (roster.training or len(self.cluster.gpu_models) > 1):
            open_rows = np.sort(np.concatenate((roster.waiting.rows, roster.running.rows)))
            by_duration = columns["rigid"][open_rows]
            jobs = [roster.training[row] for row in open_rows[~by_duration].tolist()]
            rigid = open_rows[by_duration]
            if roster.training or not np.array_equal(rigid, self._listed):  # a rigid job's speeds stay
                self._listed = rigid
                fill_speeds(self.speeds, jobs, columns, len(self.cluster.gpu_models), rigid, roster.demand.paces)
        window_s, self._last_s = now_s - self._last_s, now_s
        refused = tuple(self.refused)
        self.refused.clear()
        return Observation(
            now_s,
            window_s,
            self.cluster.nodes,
            self.cluster.gpus,
            roster.table,
            self.workers,
            self.shards,
            self.paths,
            self.speeds,
            self.stores,
            roster.waiting.rows,
            roster.running.rows,
            self.cluster.gpu_models,
            refused,
            roster.demand.claims.queues,
            told=self._told(),
        )

    def _told(self) -> Mapping[str, Labels | Floats]:
        columns = self.roster.demand.columns
        return TraceColumns(columns, len(self.roster.table), self._coded) if columns else _NOTHING_TOLD

    def _observe_training(self, now_s: float) -> None:
        roster, needs, cluster = self.roster, self._needs, self.cluster
        jobs = [job for _, job in sorted(roster.training.items()) if job.runs]
        self.watch.speeds.close()
        self._paces.clear()
        for job in jobs:
            job.advance.settle(job)
            job.fill_row(roster.cells, roster.factor.item(job.row))
            self._measure(job, now_s)
        if self._paces:
            fill_speed_ratio(cluster, self._paces)
        if "nodes" in needs and self.traffic.due(now_s):
            for job in jobs:
                job.report_traffic()
            self.traffic.fill(now_s)
        if "workers" in needs:
            self.members = fill_workers(self.workers, jobs)
            for job, part in self.members if self.traffic.by_job else ():
                writable(self.workers, "load_ratio")[part] = self.traffic.by_others(job.row, job.config.nodes)
        if "shards" in needs:
            fill_shards(self.shards, jobs, cluster.up)
        if "paths" in needs:
            self.watch.fill(self.paths, jobs)
        open_jobs = [
            job
            for row, job in sorted(roster.training.items())
            if not job.progress.done and roster.demand.arrival_s[row] <= now_s
        ]
        if "stores" in needs:
            fill_stores(self.stores, open_jobs, cluster)
        if "gpus" in needs:
            fill_active(cluster, jobs)
            if self.draws is not None:
                fill_power(cluster, self.draws)

    def _measure(self, job: TrainingJob, now_s: float) -> None:
        """Turn the window of a job into its measured columns; without a new period the last ones stay."""
        window, row, columns = job.measured.window, job.row, self.roster.columns
        columns["exchange_alone_s"][row] = job.config.exchange.alone_s
        near = job.config.near
        columns["near_exchange_s"][row] = near.alone_s if near.happens else math.nan
        columns["restart_s"][row] = self.roster.initialisation_s + 2.0 * job.save_s
        if window.periods == 0:
            job.measured.fit_columns()
            return
        measured = job.measured.columns = worker_columns(job, window, self.watch.bytes_per_s)
        start_s = job.ends.start_s
        span_s = max(start_s - window.since_s, math.ulp(start_s))
        job.measured.active = np.minimum(window.busy_s / span_s, 1.0)
        if "nodes" in self._needs:
            pace = np.repeat(pace_of(job, window), job.config.gpus_per_worker)
            self._paces.append((job.config.gpu_nodes, pace))
        columns["work_s"][row] = float(measured["step_s"].mean())
        columns["exchange_s"][row] = window.exchange_s / window.periods
        columns["far_exchange_s"][row], near_s = window.exchanges_s(
            (columns["far_exchange_s"][row], columns["near_exchange_s"][row])
        )
        if near.happens:
            columns["near_exchange_s"][row] = near_s
        columns["throughput_samples_per_s"][row] = float(window.samples.sum()) / span_s
        columns["goodput_samples_per_s"][row] = window.useful_samples / span_s
        job.meter_booked()
        for tell in self.listeners.looked_at:
            tell(job, now_s)
        job.measured.open_window(start_s)


def pace_of(job: TrainingJob, window: JobWindow) -> Floats:
    """Step that the hardware profile has each worker take over the measured one (workers,); NaN where unknown."""
    step_s = job.measured.columns["step_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        pace: Floats = job.config.listed_s(window.samples * step_s / window.busy_s) / step_s
    return pace


def worker_columns(job: TrainingJob, window: JobWindow, bytes_per_s: Callable[[int, int], float]) -> dict[str, Floats]:
    """Measured columns of a job's workers; NaN for a worker that did nothing."""
    samples = window.samples
    idle = samples == 0
    steps = window.steps if window.own_steps is None else np.where(idle, window.steps, window.own_steps)
    busy_s = np.where(idle, np.nan, window.busy_s)
    step_s = busy_s / steps
    variance = np.maximum(0.0, window.busy_square / steps - step_s**2)
    phi = max(0.0, job.progress.noise_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = phi * steps / samples
        norm = mean_norm(job.progress.ratio, ratio)
        if phi > 0.0:
            norm *= norm_noise(job.norm_key, job.exchanges, ratio, window.steps)
        supply = job.config.ingest
        if job.data is not None:
            supply = sustainable(supply, job.data.reading_samples_per_s(bytes_per_s))
        keeps_up = np.where(idle, np.nan, sustainable(samples / busy_s, supply))
        return {
            "capacity_samples_per_s": keeps_up,
            "input_samples_per_s": supply,
            "step_s": step_s,
            "step_cov": np.sqrt(variance) / step_s,
            "wait_s": window.wait_s / steps,
            "input_stall_s": window.stall_s / steps,
            "response_s_per_sample": response_s_per_sample(window.busy_s, window.stall_s, samples, keeps_up),
            "gradient_rate_per_s": steps / busy_s,
            "gradient_norm": norm * job.config.gradient_factor(),
            "push_s": window.each_push_s(job.measured.columns["push_s"]),
        }


DIMENSIONS = 100
"""Assumed number of independent parts of a gradient's noise: of the many parameters few directions vary."""


def mean_norm(progress: float, noise_ratio: Floats) -> Floats:
    """G * sqrt(1 + r) with G = exp(-progress) and r = phi / b (`noise_ratio`), (workers,).

    It falls as training goes on, its noise with the samples (McCandlish et al. 2018, section 2.2).
    """
    norm: Floats = math.exp(-progress) * np.sqrt(1.0 + noise_ratio)
    return norm


def norm_noise(key: int, exchanges: int, noise_ratio: Floats, steps: int) -> Floats:
    """Random factor of the gradient norm averaged over a number of steps, (workers,), with mean 1.

    The part r / (1 + r) of the squared norm is noise. Like that of a vector with `DIMENSIONS` independent parts it
    varies by sqrt(2 / DIMENSIONS), its root by half of that. The draw depends only on the number of exchanges.
    """
    part = np.nan_to_num(noise_ratio / (1.0 + noise_ratio), nan=1.0)
    n = len(part)
    row = np.empty(n + n % 2)
    noise_row(key, exchanges, ZERO, 0.0, 1.0, noise_space(n), row)
    variance = np.log1p((0.5 * part) ** 2 * 2.0 / DIMENSIONS / max(1, steps))
    factor: Floats = np.exp(np.sqrt(variance) * np.log(row[:n]) - 0.5 * variance)
    return factor
