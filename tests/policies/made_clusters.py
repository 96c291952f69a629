"""Builders of observations: one training job with known speeds, and random but consistent clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Paths, Shards, Speeds, Workers

FREE, SHARED = -1, -2


def even_deal(batch: Any, workers: Any) -> Any:
    """`batch` samples over `workers`, lower ranks get the remainder."""
    return np.array([batch // workers + (rank < batch % workers) for rank in range(workers)])


def one_job(
    speeds: Any,
    *,
    batch: Any = 96,
    samples: Any = None,
    fixed_s: Any = 0.0,
    micro: Any = 1,
    samples_max: Any = 2**40,
    shards_each: Any = 4,
    shard_samples: Any = None,
    shard_bytes: Any = 1e6,
    stored_on: Any = None,
    nic_bytes_per_s: Any = 1e9,
    nic_busy: Any = 0.0,
    time_s: Any = 100.0,
    window_s: Any = 10.0,
    stall_s: Any = 0.0,
    step_cov: Any = 0.0,
    norm: Any = 1.0,
    job: Any = None,
    rates: Any = True,
) -> Any:
    """One job, worker i on node i with one GPU, training `speeds[i]` samples/s once its `fixed_s` is over.

    `shard_samples[i]` are the samples of worker i's shards; they are stored on node i unless `stored_on`
    names a node for each shard.
    """
    speeds = np.asarray(speeds, dtype=float)
    n = len(speeds)
    samples = even_deal(batch, n) if samples is None else np.asarray(samples)
    fixed = np.broadcast_to(np.asarray(fixed_s, dtype=float), n)
    busy_s = np.where(samples > 0, fixed + samples / speeds, np.nan)
    if not rates:
        busy_s = np.full(n, np.nan)
    worker = np.repeat(np.arange(n), shards_each)
    size = np.broadcast_to(100 if shard_samples is None else shard_samples, n)[worker]
    position = np.tile(np.arange(shards_each), n)
    tables: dict[str, Any] = {
        "nodes": Nodes.of(
            gpus=np.ones(n),
            first_gpu=np.arange(n),
            gpus_free=np.zeros(n),
            up=np.ones(n),
            rack=np.zeros(n),
            cores=np.full(n, 16.0),
            memory_bytes=np.full(n, 64e9),
            storage_free_bytes=np.full(n, 1e12),
            nic_bytes_per_s=np.broadcast_to(nic_bytes_per_s, n),
            nic_busy_ratio=np.broadcast_to(nic_busy, n),
            ingest_samples_per_s=np.full(n, np.inf),
        ),
        "gpus": Gpus.of(
            node=np.arange(n), model=np.zeros(n), job=np.zeros(n), memory_bytes=np.full(n, 80e9), share_free=np.zeros(n)
        ),
        "jobs": Jobs.of(
            **{
                "id": [0],
                "arrival_s": [0.0],
                "state": [JobState.RUNNING],
                "gpus_requested": [n],
                "gpus_held": [n],
                "workers_min": [n],
                "workers_max": [n],
                "global_batch": [batch],
                "batch_reference": [batch],
                "micro_batch": [micro],
                "work_s": [busy_s.mean()],
                "exchange_s": [0.01],
                "exchange_alone_s": [0.01],
                "noise_scale": [1000.0],
                "memory_bytes": [1e9],
                "throughput_samples_per_s": [batch / busy_s.max()],
                "goodput_samples_per_s": [batch / busy_s.max()],
                "remaining_samples": [1e6],
                "service_s": [1e4],
                "duration_s": [2e4],
                **{name: [value] for name, value in (job or {}).items()},
            }
        ),
        "workers": Workers.of(
            job=np.zeros(n),
            index=np.arange(n),
            gpu=np.arange(n),
            node=np.arange(n),
            samples_per_step=samples,
            samples_max=np.broadcast_to(samples_max, n),
            samples_owned=np.bincount(worker, weights=size, minlength=n),
            capacity_samples_per_s=samples / busy_s,
            fixed_s=fixed,
            step_s=busy_s,
            step_cov=np.full(n, step_cov),
            wait_s=busy_s.max() - busy_s,
            input_stall_s=np.broadcast_to(stall_s, n),
            response_s_per_sample=busy_s / np.maximum(samples, 1),
            gradient_rate_per_s=1 / busy_s,
            gradient_norm=np.broadcast_to(norm, n),
            memory_free_bytes=np.full(n, 70e9),
            load_ratio=np.broadcast_to(nic_busy, n),
        ),
        "shards": Shards.of(
            id=np.arange(len(worker)),
            job=np.zeros(len(worker)),
            worker=worker,
            node=worker if stored_on is None else np.broadcast_to(stored_on, len(worker)),
            bytes=np.broadcast_to(shard_bytes, len(worker)),
            samples=size,
            started=position == 0,
            local=worker == (worker if stored_on is None else np.broadcast_to(stored_on, len(worker))),
            needed_in_s=position * size / speeds[worker],
        ),
    }
    return Observation.of(time_s, window_s, **tables)


class MadeCluster:
    """A random but consistent cluster, built job by job. Sizes are set by the caller, details drawn from `rng`."""

    def __init__(self, rng: Any, gpus_of_node: Any, up: Any, gpu_models: Any = 2) -> None:
        self.rng, self.up = rng, np.array(up, dtype=bool)
        self.gpus_of_node = np.array(gpus_of_node, dtype=np.int64)
        self.node_of = np.repeat(np.arange(len(gpus_of_node)), gpus_of_node)
        self.free = np.ones(len(self.node_of))
        self.holder = np.full(len(self.node_of), FREE)
        self.gpu_models = gpu_models
        self.jobs: list[Any] = []
        self.workers: list[Any] = []
        self.shards: list[Any] = []
        self.speeds: list[Any] = []

    def usable(self, share: Any = 1.0) -> Any:
        """GPUs with at least `share` free on nodes that are up."""
        return np.flatnonzero((self.free >= share - 1e-12) & self.up[self.node_of])

    def add(
        self, state: Any, *, rigid: Any, gpus: Any, share: Any = 1.0, per_worker: Any = 1, elastic: Any = False
    ) -> Any:
        """Add a job; a running one that finds no GPUs waits instead."""
        rng, row = self.rng, len(self.jobs)
        gpus = max(per_worker, gpus - gpus % per_worker)
        share = share if gpus == 1 and per_worker == 1 else 1.0
        usable = self.usable(share)
        if state == JobState.RUNNING and len(usable) < gpus:
            state = JobState.WAITING
        workers = gpus // per_worker
        micro = int(rng.integers(1, 4))
        batch = micro * workers * int(rng.integers(1, 9)) + int(rng.integers(0, 3)) * (not rigid)
        duration = float(rng.integers(1, 5000))
        job = {
            "id": row,
            "arrival_s": float(row // 2),
            "state": state,
            "rigid": rigid,
            "priority": float(rng.choice([0.5, 1.0, 2.0])),
            "gpus_requested": gpus,
            "gpu_share_requested": share,
            "gpus_per_worker": per_worker,
            "workers_min": 1 if elastic else workers,
            "workers_max": 2 * workers if elastic else workers,
            "duration_s": duration,
            "service_s": duration * float(rng.uniform(0.01, 1)),
            "attained_gpu_s": float(rng.integers(0, 20000)),
            "queued_since_s": float(row // 2),
            "started_s": 50.0 if state == JobState.RUNNING else np.nan,
            "one_gpu_model": rigid and bool(rng.integers(0, 2)),
            "memory_bytes": float(rng.choice([0.0, 10e9, 60e9])),
            "checkpoint_bytes": 1e9,
            "restart_s": float(rng.uniform(0, 60)),
        }
        if not rigid:
            job |= {
                "global_batch": batch,
                "batch_reference": batch,
                "micro_batch": micro,
                "batch_given": batch,
                "batch_max": 4 * batch * (row % 3 == 1),
                "rate_rule": row % 5,
                "sync_interval": int(rng.integers(1, 4)),
                "drift": float(rng.choice([0.0, 0.01])),
                "noise_scale": float(rng.choice([np.nan, 50.0, 5000.0])),
                "remaining_samples": float(rng.integers(1, 10**6)),
                "data_demand_bytes": 1e9,
                "compute_demand_flops": float(rng.uniform(1e12, 1e15)),
                "progress": float(rng.uniform(0, 1)),
            }
            for count in range(1, 2 * workers + 1):
                for model in range(self.gpu_models):
                    rate = batch * count**0.9 * (1 + model)
                    self.speeds.append((row, model, count * per_worker, rate))
        self.jobs.append(job)
        if state == JobState.RUNNING:
            held = rng.permutation(usable)[:gpus]
            job["gpus_held"] = gpus
            self.free[held] -= share
            self.holder[held] = row if share == 1.0 else SHARED
            if not rigid:
                self._train(row, job, held, share, batch, per_worker)
        return row

    def _train(self, row: Any, job: Any, held: Any, share: Any, batch: Any, per_worker: Any) -> Any:
        rng = self.rng
        n = len(held) // per_worker
        samples = even_deal(batch, n)
        rate = rng.uniform(10, 100, n)
        fixed = rng.choice([0.0, 0.01], n)
        busy = fixed + samples / rate
        kappa = float(rng.uniform(0.1, 5))
        for rank in range(n):
            gpu = held[rank * per_worker]
            self.workers.append(
                {
                    "job": row,
                    "index": rank,
                    "gpu": gpu,
                    "node": self.node_of[gpu],
                    "gpu_share": share,
                    "share_kappa": kappa,
                    "samples_per_step": samples[rank],
                    "samples_max": int(rng.choice([2**40, samples.max() + 2])),
                    "capacity_samples_per_s": samples[rank] / busy[rank],
                    "fixed_s": fixed[rank],
                    "step_s": busy[rank],
                    "step_cov": float(rng.choice([0.0, 0.1])),
                    "wait_s": busy.max() - busy[rank],
                    "input_stall_s": float(rng.choice([0.0, 0.02])),
                    "response_s_per_sample": busy[rank] / samples[rank],
                    "gradient_rate_per_s": 1 / busy[rank],
                    "gradient_norm": float(rng.uniform(0.9, 1.1)),
                    "memory_free_bytes": 1e9,
                    "samples_owned": 0.0,
                    "push_s": 0.02 * (1 + rank) if row % 3 == 2 else np.nan,  # of every third job they do not wait
                }
            )
        job["work_s"], job["exchange_s"] = busy.mean(), float(rng.choice([0.0, 0.05, 1.0]))
        job["exchange_alone_s"], job["gamma"] = job["exchange_s"], float(rng.choice([1.0, 2.0]))
        job["throughput_samples_per_s"] = batch / (busy.max() + job["exchange_s"])
        job["goodput_samples_per_s"] = job["throughput_samples_per_s"]
        for _ in range(int(rng.integers(0, 3 * n + 1))):
            rank, left = int(rng.integers(n)), int(rng.integers(1, 200))
            worker = len(self.workers) - n + rank
            node = int(rng.integers(len(self.up))) if rng.random() < 0.5 else self.workers[worker]["node"]
            self.workers[worker]["samples_owned"] += left
            self.shards.append(
                {
                    "id": len(self.shards),
                    "job": row,
                    "worker": worker,
                    "node": node,
                    "bytes": left * 1e5,
                    "samples": left,
                    "started": rng.random() < 0.2,
                    "local": node == self.workers[worker]["node"],
                    "needed_in_s": float(rng.uniform(0, 20)),
                }
            )

    def observe(self, time_s: Any = 100.0, window_s: Any = 10.0) -> Any:
        """The observation. Workers are in order of (job, rank) because jobs were added in order of rows."""
        rng, nodes, gpus = self.rng, len(self.up), len(self.node_of)
        up = self.up[self.node_of]
        idle = (self.holder == FREE) & up
        first = np.concatenate(([0], np.cumsum(self.gpus_of_node)[:-1])) if nodes else np.empty(0)
        pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b and rng.random() < 0.5]
        return Observation.of(
            time_s,
            window_s,
            nodes=Nodes.of(
                gpus=self.gpus_of_node,
                first_gpu=first,
                up=self.up,
                rack=np.arange(nodes) // 2,
                gpus_free=np.bincount(self.node_of, weights=idle, minlength=nodes),
                cores=np.full(nodes, 16.0),
                memory_bytes=np.full(nodes, 64e9),
                storage_free_bytes=rng.choice([1e12, 2e7], nodes),
                nic_bytes_per_s=rng.choice([1e9, 1e7], nodes),
                nic_busy_ratio=rng.uniform(0, 1, nodes),
                ingest_samples_per_s=np.full(nodes, 1e4),
                speed_ratio=np.resize([np.nan, 1.02, 0.5], nodes),
                power_idle_w=np.resize([50.0, 50.0, np.nan], nodes),
                power_max_w=np.resize([300.0, 300.0, np.nan], nodes),
                power_cap_w=np.resize([300.0, 150.0, np.nan], nodes),
            ),
            gpus=Gpus.of(
                node=self.node_of,
                model=self.node_of % self.gpu_models,
                job=self.holder,
                memory_bytes=np.full(gpus, 80e9),
                share_free=np.where(up, np.maximum(self.free, 0), 0.0),
                sm_active_ratio=rng.uniform(0, 1, gpus),
                dram_active_ratio=rng.uniform(0, 1, gpus),
                power_w=np.full(gpus, 300.0),
                temperature_c=np.full(gpus, 50.0),
            ),
            jobs=_table(Jobs, self.jobs),
            workers=_table(Workers, self.workers),
            shards=_table(Shards, self.shards),
            paths=_table(
                Paths,
                [
                    {"source": a, "target": b, "latency_s": 1e-3, "bytes_per_s": float(rng.choice([np.nan, 1e6, 1e8]))}
                    for a, b in pairs
                ],
            ),
            speeds=_table(
                Speeds,
                [dict(zip(("job", "gpu_model", "gpus", "samples_per_s"), row, strict=True)) for row in self.speeds],
            ),
            gpu_models=tuple(f"gpu{k}" for k in range(self.gpu_models)),
        )


def _table(kind: Any, rows: Any) -> Any:
    """A table from dicts; missing keys take the column's default."""
    names = sorted({name for row in rows for name in row})
    return kind.of(**{name: [row.get(name, kind.columns[name].default) for row in rows] for name in names})
