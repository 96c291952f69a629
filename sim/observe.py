"""Fills the tables that policies observe, and hands their plans to the jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policies.contract import Plan
from policies.observation import (
    Floats,
    Observation,
    Paths,
    Shards,
    Speeds,
    Table,
    Workers,
    resize,
    writable,
)
from sim.job import TrainingJob, Window
from sim.rigid import refresh
from sim.topology import NIC_IN, NIC_OUT, NODE_LINKS
from sim.transfer import Transfer
from sim.workload import deal, memory_need_bytes

if TYPE_CHECKING:
    from sim.world import SimWorld

UNBOUNDED = 2**62


class Observer:
    """Keeps the observation's tables up to date, each only when some stage of the policy reads it."""

    def __init__(self, world: SimWorld) -> None:
        self.world = world
        self.workers, self.shards, self.paths, self.speeds = Workers(), Shards(), Paths(), Speeds()
        self._needs = frozenset().union(*(stage.needs for stage in world.policy.stages))
        self._members: tuple[tuple[int, int], ...] = ()  # (job row, generation) behind the workers table
        self._measured: dict[int, dict[str, Floats]] = {}
        self._job_columns = {name: writable(world.jobs, name) for name in world.jobs.columns}
        self._last_s = 0.0
        self._carried_bytes = np.zeros(len(world.cluster.topology.capacity_bytes_per_s))
        self._carried_since_s = 0.0

    # -- job rows as they change ---------------------------------------------------------------------------

    def arrived(self, job: TrainingJob) -> None:
        """Fill a training job's row."""
        row, spec, model, columns = job.row, job.spec, job.model, self._job_columns
        per, gpus = job.gpus_per_worker, spec.gpus
        workers = max(1, gpus // per)
        parts = deal(spec.global_batch, np.ones(workers, np.int64), spec.micro_batch)
        step_s = job.cost_s(0, int(parts.max()))[1]
        duration_s = job.steps_to_target() * step_s * float(self.world.estimate_factor[row])
        size = spec.data.sample_size * spec.data.samples if spec.data else 0.0
        for name, value in (
            ("gpus_per_worker", per),
            ("workers_min", spec.workers_min or workers),
            ("workers_max", spec.workers_max or workers),
            ("global_batch", spec.global_batch),
            ("batch_reference", job.reference),
            ("micro_batch", spec.micro_batch),
            ("sync_interval", spec.sync_interval),
            ("gamma", model.overlap),
            ("drift", model.drift),
            ("share_kappa", math.nan if model.share_kappa is None else model.share_kappa),
            ("noise_scale", math.nan if model.noise_scale is None else model.noise_scale),
            ("remaining_samples", job.target),
            ("duration_s", duration_s),
            ("service_s", duration_s),
            ("data_demand_bytes", size),
            ("compute_demand_flops", (model.flop_per_sample or 0.0) * job.target),
            ("memory_bytes", memory_need_bytes(model, int(parts.max()), workers)),
            ("checkpoint_bytes", job.size_bytes),
            ("restart_s", self.world.scenario.restart.initialisation + 2.0 * job.save_s),
        ):
            columns[name][row] = value

    def started(self, row: int, now_s: float) -> None:
        """A job leaves the queue."""
        columns = self._job_columns
        columns["waited_s"][row] += now_s - columns["queued_since_s"][row]
        columns["queued_since_s"][row] = now_s
        columns["started_s"][row] = now_s
        if row not in self.world.training:  # what a crash has cost it more is paid now
            columns["restart_s"][row] = self.world.scenario.restart.initialisation

    def regrouped(self, row: int, now_s: float) -> None:
        """A job goes on with fewer GPUs; it has not been in the queue."""
        self._job_columns["queued_since_s"][row] = now_s
        self._job_columns["started_s"][row] = now_s

    def stopped(self, row: int, now_s: float) -> None:
        """A job is back in the queue."""
        columns = self._job_columns
        columns["queued_since_s"][row] = now_s
        columns["restart_s"][row] = self.world.restart_s[row]
        self._settle(row, now_s)

    def finished(self, row: int, now_s: float) -> None:
        """A job is done."""
        self._settle(row, now_s)
        self._job_columns["progress"][row] = 1.0
        self._measured.pop(row, None)

    def job_columns(self) -> dict[str, NDArray[Any]]:
        """Backing arrays of the jobs table, over all jobs that will ever arrive."""
        return self._job_columns

    def _settle(self, row: int, now_s: float) -> None:
        columns, rigid = self._job_columns, self.world.rigid
        job = self.world.training.get(row)
        if job is None:
            columns["attained_gpu_s"][row] = rigid.attained_base[row]
            columns["service_s"][row] = rigid.left_s[row] * self.world.estimate_factor[row]
        else:
            self.traffic(job)
            self._progress(job)

    # -- the observation -----------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """All tables, as of now."""
        world = self.world
        now, waiting, running = world.clock._now, world.waiting.rows, world.running.rows
        columns, rigid = self._job_columns, world.rigid
        refresh(
            now, running, rigid.begin_s, rigid.rate, rigid.weight, rigid.attained_base, rigid.left_s,
            world.estimate_factor, columns["attained_gpu_s"], columns["service_s"],
        )  # fmt: skip
        if world.training:
            self._observe_training(now)
        window_s = now - self._last_s
        self._last_s = now
        return Observation(
            now, window_s, world.cluster.nodes, world.cluster.gpus, world.jobs,
            self.workers, self.shards, self.paths, self.speeds, waiting, running, world.cluster.gpu_models,
        )  # fmt: skip

    def _observe_training(self, now: float) -> None:
        world = self.world
        jobs = [job for row, job in world.training.items() if job.holding is not None and not job.done]
        jobs.sort(key=lambda job: job.row)
        for job in jobs:
            world.engine.settle(job)
            self._progress(job)
            self._measure(job, now)
        if "workers" in self._needs:
            self._fill_workers(jobs)
        if "shards" in self._needs:
            self._fill_shards(jobs)
        if "paths" in self._needs:
            self._fill_paths(jobs)
        if "speeds" in self._needs:
            self._fill_speeds(now)
        if "nodes" in self._needs and now > self._carried_since_s:
            self._fill_traffic(jobs, now)

    def traffic(self, job: TrainingJob) -> None:
        """Count the exchanges of a job; asked before its exchange changes."""
        exchange, volume = job.exchange, job.take_traffic()
        if volume:
            np.add.at(self._carried_bytes, exchange.links, volume * exchange.usage)

    def transferred(self, transfer: Transfer) -> None:
        """Count a transfer that has ended."""
        self._carried_bytes[transfer.links] += transfer.size_bytes
        if self.world.timeline is not None:
            self.world.timeline.transferred(transfer)

    def _fill_traffic(self, jobs: list[TrainingJob], now: float) -> None:
        """Share of each NIC's capacity used by what ended since the last observation."""
        for job in jobs:
            self.traffic(job)
        capacity, nodes = self.world.cluster.topology.capacity_bytes_per_s, self.world.cluster.nodes
        ratio = self._carried_bytes / (capacity * (now - self._carried_since_s))
        per_node = ratio[: len(nodes) * len(NODE_LINKS)].reshape(len(nodes), len(NODE_LINKS))
        busiest = per_node[:, [NIC_OUT, NIC_IN]].max(axis=1)
        writable(nodes, "nic_busy_ratio")[:] = np.minimum(1.0, busiest)
        self._carried_bytes[:] = 0.0
        self._carried_since_s = now

    def _progress(self, job: TrainingJob) -> None:
        row, columns = job.row, self._job_columns
        columns["progress"][row] = job.progress
        left = max(0.0, job.target - job.account.useful_samples)
        columns["remaining_samples"][row] = left
        columns["service_s"][row] = columns["duration_s"][row] * left / job.target
        columns["sync_interval"][row] = job.interval
        columns["attained_gpu_s"][row] = float(job.account.gpu_s[:6].sum())
        columns["compute_demand_flops"][row] = (job.model.flop_per_sample or 0.0) * left
        phi = job.noise_scale
        columns["noise_scale"][row] = math.nan if phi < 0 else phi

    def _measure(self, job: TrainingJob, now: float) -> None:
        """Turn the window of a job into its measured columns; without a new period the last ones stay."""
        window, row, columns = job.window, job.row, self._job_columns
        columns["exchange_alone_s"][row] = job.exchange.alone_s
        columns["restart_s"][row] = self.world.scenario.restart.initialisation + 2.0 * job.save_s
        if window.periods == 0:
            if row not in self._measured or len(self._measured[row]["step_s"]) != job.workers:
                nothing = np.full(job.workers, np.nan)
                self._measured[row] = dict.fromkeys(_MEASURED, nothing)
            return
        self._measured[row] = _worker_columns(job, window)
        work_s = float(self._measured[row]["step_s"].mean())
        span_s = max(job.period_start_s - window.since_s, math.ulp(job.period_start_s))
        columns["work_s"][row] = work_s
        columns["exchange_s"][row] = window.exchange_s / window.periods
        columns["throughput_samples_per_s"][row] = float(window.samples.sum()) / span_s
        columns["goodput_samples_per_s"][row] = window.useful_samples / span_s
        self.world.meter.training(job)
        if self.world.timeline is not None:
            self.world.timeline.looked_at(job)
        job.open_window(job.period_start_s)

    def _fill_workers(self, jobs: list[TrainingJob]) -> None:
        members = tuple((job.row, job.generation) for job in jobs)
        if members != self._members:
            self._members = members
            resize(self.workers, sum(job.workers for job in jobs))
            self._first_row = dict(
                zip((job.row for job in jobs), _starts([j.workers for j in jobs]), strict=True)
            )
        first = 0
        memory = self.world.cluster.gpus.memory_bytes
        need = self._job_columns["memory_bytes"]
        for job in jobs:
            part = slice(first, first + job.workers)
            first += job.workers
            owned = job.data.owned if job.data is not None else np.nan
            for name, values in (
                ("job", job.row), ("index", np.arange(job.workers)), ("gpu", job.gpu), ("node", job.nodes),
                ("gpu_share", job.share), ("samples_per_step", job.samples), ("samples_owned", owned),
                ("samples_max", UNBOUNDED), ("memory_free_bytes", memory[job.gpu] - need[job.row]),
                ("fixed_s", job.fixed_s()), *self._measured[job.row].items(),
            ):  # fmt: skip
                writable(self.workers, name)[part] = values

    def _fill_shards(self, jobs: list[TrainingJob]) -> None:
        rows: dict[str, list[float]] = {name: [] for name in Shards.columns}
        for job in jobs:
            if job.data is None:
                continue
            seconds, up = job.seconds_per_sample(), self.world.cluster.up
            for worker, queue in enumerate(job.data.queues):
                ahead = 0
                for piece in queue:
                    homes = job.data.homes[piece.shard]
                    for name, value in (
                        ("id", (job.row << 32) + piece.id),
                        ("job", job.row),
                        ("worker", self._first_row[job.row] + worker),
                        ("node", next((h for h in homes if up[h]), -1)),
                        ("bytes", piece.left * job.data.bytes_per_sample),
                        ("samples", piece.left),
                        ("started", piece.started or piece.transfer is not None),
                        ("local", job.data.is_ready(worker, piece)),
                        ("needed_in_s", ahead * seconds[worker] if ahead else 0.0),
                    ):
                        rows[name].append(value)
                    ahead += piece.left
        _refill(self.shards, rows)

    def _fill_paths(self, jobs: list[TrainingJob]) -> None:
        topology, network = self.world.cluster.topology, self.world.network
        pairs = set()
        for job in jobs:
            if job.data is not None and job.data.bytes_per_sample > 0.0:
                homes = {home for shard in job.data.homes for home in shard}
                pairs |= {(home, node) for home in homes for node in job.nodes.tolist() if home != node}
        rows: dict[str, list[float]] = {name: [] for name in Paths.columns}
        users = {link: max(1, network.count_on(link)) for link in self._links_of(pairs)}
        for source, target in sorted(pairs):
            links, latency_s = topology.read_route(source, target)
            rate = min(topology.capacity_bytes_per_s[link] / users[link] for link in links.tolist())
            for name, value in (
                ("source", source), ("target", target), ("bytes_per_s", rate), ("latency_s", latency_s),
            ):  # fmt: skip
                rows[name].append(value)
        _refill(self.paths, rows)

    def _links_of(self, pairs: set[tuple[int, int]]) -> set[int]:
        topology = self.world.cluster.topology
        return {link for pair in pairs for link in topology.read_route(*pair)[0].tolist()}

    def _fill_speeds(self, now: float) -> None:
        world = self.world
        rows: dict[str, list[float]] = {name: [] for name in Speeds.columns}
        for row, job in sorted(world.training.items()):
            if job.done or world.demand.arrival_s[row] > now:
                continue
            columns = self._job_columns
            for workers in _counts(int(columns["workers_min"][row]), int(columns["workers_max"][row])):
                for model in range(len(world.cluster.gpu_models)):
                    part = -(-job.global_batch // workers)
                    rows["job"].append(row)
                    rows["gpu_model"].append(model)
                    rows["gpus"].append(workers * job.gpus_per_worker)
                    rows["samples_per_s"].append(job.global_batch / max(job.cost_s(model, part)[1], 1e-12))
        _refill(self.speeds, rows)

    # -- plans ---------------------------------------------------------------------------------------------

    def hand_over(self, plan: Plan, replaced: set[int]) -> None:
        """Note what a plan asks of each running training job, for when its period ends."""
        if not self.world.training:
            return
        first = 0
        for row, _ in self._members:
            job = self.world.training[row]
            part = slice(first, first + len(self._measured.get(row, _NOTHING)["step_s"]))
            first = part.stop
            if row in replaced or job.holding is None:
                continue
            pending = job.pending
            if plan.samples_per_step is not None and (plan.samples_per_step[part] != job.samples).any():
                pending.samples = plan.samples_per_step[part].copy()
            if plan.gpu_share is not None and (plan.gpu_share[part] != job.share).any():
                pending.share = plan.gpu_share[part].copy()
        if plan.sync_interval is not None:
            for row, job in self.world.training.items():
                if row < len(plan.sync_interval) and plan.sync_interval[row] != job.interval:
                    job.pending.interval = int(plan.sync_interval[row])
        if plan.moves is not None:
            for shard, worker in zip(plan.moves.shard.tolist(), plan.moves.worker.tolist(), strict=True):
                row, piece = divmod(int(self.shards.id[shard]), 1 << 32)
                if row not in replaced:
                    target = int(self.workers.index[worker])
                    self.world.training[row].pending.moves.append((piece, target))
        if plan.fetch_order is not None:
            self._order_fetches(plan.fetch_order.tolist())
        for row, _ in self._members:
            if self.world.training[row].pending.asked:
                self.world.engine.plan_changed(self.world.training[row])

    def _order_fetches(self, order: list[int]) -> None:
        ranks: dict[int, dict[int, int]] = {}
        for rank, shard in enumerate(order):
            row, piece = divmod(int(self.shards.id[shard]), 1 << 32)
            ranks.setdefault(row, {})[piece] = rank
        for row, by_piece in ranks.items():
            self.world.training[row].pending.order = by_piece


_MEASURED = (
    "capacity_samples_per_s", "step_s", "step_cov", "wait_s", "input_stall_s", "response_s_per_sample",
    "gradient_rate_per_s", "gradient_norm",
)  # fmt: skip
_NOTHING: dict[str, Floats] = {name: np.empty(0) for name in _MEASURED}


def _worker_columns(job: TrainingJob, window: Window) -> dict[str, Floats]:
    """Measured columns of a job's workers; NaN for a worker that did nothing.

    The gradient norm is G * sqrt(1 + phi / b) with G = exp(-progress): it falls as training goes on and its
    noise falls with the samples (McCandlish et al. 2018, section 2.2).
    """
    steps, samples = window.steps, window.samples
    idle = samples == 0
    busy_s = np.where(idle, np.nan, window.busy_s)
    step_s = busy_s / steps
    variance = np.maximum(0.0, window.busy_square / steps - step_s**2)
    phi = max(0.0, job.noise_scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "capacity_samples_per_s": samples / busy_s,
            "step_s": step_s,
            "step_cov": np.sqrt(variance) / step_s,
            "wait_s": window.wait_s / steps,
            "input_stall_s": window.stall_s / steps,
            "response_s_per_sample": busy_s / samples,
            "gradient_rate_per_s": steps / busy_s,
            "gradient_norm": math.exp(-job.progress) * np.sqrt(1.0 + phi * steps / samples),
        }


def _counts(fewest: int, most: int) -> list[int]:
    """Worker counts worth estimating: all when few, else powers of two and both ends."""
    if most - fewest < 16:
        return list(range(fewest, most + 1))
    powers = [2**k for k in range(most.bit_length()) if fewest < 2**k < most]
    return [fewest, *powers, most]


def _starts(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()][: len(lengths)]


def _refill(table: Table, rows: dict[str, list[float]]) -> None:
    resize(table, len(next(iter(rows.values()))))
    for name, values in rows.items():
        writable(table, name)[: len(values)] = values
