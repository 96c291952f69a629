"""Fills the tables of an observation that are about running training jobs; jobs come in order of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Bools, Floats, Ints, Shards, Speeds, Stores, Table, Workers, resize, writable
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.cost.configuration import SPEEDS
from equipoise.sim.cost.step import UNBOUNDED
from equipoise.sim.job.paces import Paces
from equipoise.sim.job.training import TrainingJob

Member = tuple[TrainingJob, slice]
"""A job and its rows in the table of workers."""

PIECE_BITS = 32
"""A shard's identity is its job's row shifted by this, and its number in the job."""


def fill_workers(table: Workers, jobs: Sequence[TrainingJob]) -> list[Member]:
    """One row per worker; returns whose rows are which."""
    rows = sum(job.config.workers for job in jobs)
    if rows != len(table):
        resize(table, rows)
    members, first = [], 0
    for job in jobs:
        config = job.config
        part = slice(first, first + config.workers)
        first = part.stop
        members.append((job, part))
        most, memory_free_bytes = config.pass_limits()
        owned = job.data.owned if job.data is not None else np.nan
        for name, values in (
            ("job", job.row),
            ("index", np.arange(config.workers)),
            ("gpu", config.gpu),
            ("node", config.nodes),
            ("gpu_share", config.share),
            ("share_kappa", config.share_kappa),
            ("gradient_weight", config.gradient_weight),
            ("push_interval", config.push_interval),
            ("samples_per_step", config.samples),
            ("samples_owned", owned),
            ("samples_max", UNBOUNDED),
            ("samples_per_pass", most),
            ("memory_free_bytes", memory_free_bytes),
            ("fixed_s", _fixed_s(job)),
            *job.measured.columns.items(),
        ):
            writable(table, name)[part] = values
    return members


def fill_active(cluster: Cluster, jobs: Sequence[TrainingJob]) -> None:
    """Busy share of each GPU over the last window of the training jobs on it; unknown of those that none holds."""
    active = writable(cluster.gpus, "sm_active_ratio")
    active[:] = np.nan
    for job in jobs:
        assert job.holding is not None
        active[job.holding.gpu] = 0.0
    for job in jobs:
        assert job.holding is not None
        share = np.repeat(job.measured.active, job.config.gpus_per_worker) * job.holding.share
        np.add.at(active, job.holding.gpu, share)


def fill_speed_ratio(cluster: Cluster, paces: Sequence[tuple[Ints, Floats]]) -> None:
    """Mean pace of the GPUs on each node, from (node, pace) of each job; other nodes keep their last value."""
    node, pace = (np.concatenate(part) for part in zip(*paces, strict=True))
    known = np.isfinite(pace)
    found, place, count = np.unique(node[known], return_inverse=True, return_counts=True)
    writable(cluster.nodes, "speed_ratio")[found] = np.bincount(place, weights=pace[known]) / count


def fill_power(cluster: Cluster, meter: Meter) -> None:
    """Mean power of each GPU that training jobs hold, over the last window, at the present clocks.

    A GPU that several share is taken to draw at most what the most demanding of them does.
    """
    node, share = cluster.gpus.node, np.zeros(len(cluster.gpus))
    for row, held in cluster.holding.items():
        share[held.gpu] = np.maximum(share[held.gpu], meter.share[row] if row >= 0 else 1.0)
    drawn_w = (
        meter.power.idle_w[node] + meter.busy_w[node] * np.where(share > 0.0, share, 1.0) * cluster.gpus.sm_active_ratio
    )
    writable(cluster.gpus, "power_w")[:] = drawn_w


def _fixed_s(job: TrainingJob) -> Floats:
    """The part of each worker's step that does not grow with samples: none where its input is what it waits for."""
    measured = job.measured.columns
    with np.errstate(invalid="ignore"):
        starved = measured["input_samples_per_s"] * measured["step_s"] < job.config.samples
    return np.where(starved, 0.0, job.config.fixed_s())


_SHARD_COLUMNS = ("id", "job", "worker", "node", "bytes", "samples", "started", "local", "needed_in_s")


def fill_shards(table: Shards, jobs: Sequence[TrainingJob], up: Bools) -> None:
    """One row per shard, or unread rest of one; up (nodes,)."""
    rows: list[tuple[float, ...]] = []  # this runs for every shard at every decision
    first, is_up = 0, up.tolist()
    for job in jobs:
        if (data := job.data) is not None:
            seconds = job.config.seconds_per_sample().tolist()
            row, own, size = job.row, job.row << PIECE_BITS, data.bytes_per_sample
            for worker, queue in enumerate(data.queues):
                ahead, number = 0, first + worker
                for piece in queue:
                    homes, left = data.homes[piece.shard], piece.end - piece.cursor
                    node = homes[0] if homes and is_up[homes[0]] else next((h for h in homes if is_up[h]), -1)
                    started = piece.started or piece.transfer is not None
                    needed_in_s = ahead * seconds[worker] if ahead else 0.0
                    at_hand = data.at_hand(worker, piece)
                    rows.append((own + piece.id, row, number, node, left * size, left, started, at_hand, needed_in_s))
                    ahead += left
        first += job.config.workers
    resize(table, len(rows))
    for name, values in zip(_SHARD_COLUMNS, zip(*rows, strict=True), strict=False):  # no rows: no columns
        writable(table, name)[: len(rows)] = values


def fill_speeds(
    table: Speeds,
    jobs: Sequence[TrainingJob],
    columns: Mapping[str, NDArray[Any]],
    gpu_models: int,
    rigid: Ints,
    paces: Paces,
) -> None:
    """One row per job, number of workers it may have, and GPU model; columns of the jobs table.

    rigid: rows of rigid jobs that wait or run; listed on several GPU models only.
    """
    row = np.array([job.row for job in jobs], dtype=np.int64)
    most = zip(jobs, columns["workers_min"][row].tolist(), columns["workers_max"][row].tolist(), strict=True)
    parts = [job.config.speeds(job.progress.global_batch, fewest, many) for job, fewest, many in most]
    values = np.concatenate((np.zeros((0, len(SPEEDS))), *parts))
    resize(table, len(values))
    writable(table, "job")[: len(values)] = np.repeat(row, [len(part) for part in parts])
    for name, column in zip(SPEEDS, values.T, strict=True):
        writable(table, name)[: len(values)] = column
    if gpu_models > 1 and len(rigid):
        _add_rigid(table, rigid, columns["gpus_requested"], paces.speed[paces.kind[rigid]])


def _add_rigid(table: Speeds, rows: Ints, gpus: Ints, speed: Floats) -> None:
    """Merge rigid jobs in, by ascending job; gpus of the jobs table, speed (rows, GPU models)."""
    models = speed.shape[1]
    job = np.repeat(rows, models)
    values = {
        "job": job,
        "gpu_model": np.tile(np.arange(models), len(rows)),
        "gpus": gpus[job],
        "samples_per_s": speed.ravel(),
        "exchange_s": np.full(len(job), np.nan),
        "apart_exchange_s": np.full(len(job), np.nan),
    }
    order = np.argsort(np.concatenate((table.job, job)), kind="stable")
    merged = {name: np.concatenate((getattr(table, name), new))[order] for name, new in values.items()}
    resize(table, len(order))
    for name, column in merged.items():
        writable(table, name)[: len(order)] = column


def fill_stores(table: Stores, jobs: Sequence[TrainingJob], cluster: Cluster) -> None:
    """One row per job that waits or runs and node that stores some of its data, where that is known."""
    job_rows, nodes, ratios = [], [], []
    for job in jobs:
        homes = job.data.homes if job.data is not None else job.homes_before_start
        if homes is None or job.config.data_bytes == 0.0:
            continue
        held = np.array([home for shard in homes for home in shard], dtype=np.int64)
        ratio = np.bincount(held, minlength=len(cluster.nodes)) / len(homes)
        stored = np.flatnonzero(ratio)
        job_rows.append(np.full(len(stored), job.row))
        nodes.append(stored)
        ratios.append(ratio[stored])
    resize(table, sum(map(len, nodes)))
    if nodes:
        for name, parts in (("job", job_rows), ("node", nodes), ("ratio", ratios)):
            writable(table, name)[: len(table)] = np.concatenate(parts)


def refill(table: Table, rows: dict[str, list[float]]) -> None:
    """Let a table have these rows, given by column."""
    resize(table, len(next(iter(rows.values()))))
    for name, values in rows.items():
        writable(table, name)[: len(values)] = values
