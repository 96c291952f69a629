"""Columns of a run's timeline in `timeline/*.parquet`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.job.account import HELD, HELD_USES
from equipoise.sim.job.demand import Demand
from equipoise.sim.ledger.buckets import Buckets

USE_NAMES = tuple(use.column for use in HELD_USES)

RUNNING, QUEUED, DOWN_GPU_S, DOWN_J, DYNAMIC_J, NETWORK_BYTES = range(HELD, HELD + 6)
USAGE_COLUMNS = (*USE_NAMES, "running_s", "queued_s", "down_gpu_s", "down_j", "dynamic_j", "network_bytes")
"""Columns of the usage buckets; the uses come first, those of features last."""

STATES = ("queued", "running")
REASONS = ("started", "completed", "preempted", "resized", "fault", "open", "timeout")
_FIRST = ("job_id", "segment", "state", "start_s", "end_s", "gpus", "nodes", "first_gpu", "end_reason")
ROW_FIELDS = len(_FIRST) + HELD
"""Numbers per segment, in the order of the columns."""

Columns = dict[str, NDArray[Any]]


class Holdings:
    """Which GPUs jobs held in their segments; flat, because there are very many."""

    def __init__(self) -> None:
        self._of = array("q")
        self._gpu: list[Ints] = []
        self._share: list[Floats] = []

    def add(self, row: int, segment: int, gpu: Ints, share: Floats) -> None:
        """A job (by row) held GPUs (n,) with shares (n,) in one of its segments."""
        self._of.extend((row, segment))
        self._gpu.append(gpu)
        self._share.append(share)

    def columns(self) -> tuple[Ints, Ints, Ints, Floats]:
        """(row, segment, gpu, share) of every GPU held, in order of row and segment."""
        of = np.array(self._of, dtype=np.int64).reshape(-1, 2)
        order = np.lexsort((of[:, 1], of[:, 0])).tolist()
        count = np.array([self._gpu[k].size for k in order], dtype=np.int64)
        which = np.repeat(of[order].reshape(-1, 2), count, axis=0)
        gpu = np.concatenate([self._gpu[k] for k in order]) if order else np.empty(0, np.int64)
        share = np.concatenate([self._share[k] for k in order]) if order else np.empty(0)
        return which[:, 0], which[:, 1], gpu, share


@dataclass(frozen=True)
class Records:
    """The records of a timeline; segments (n, ROW_FIELDS) name jobs by row."""

    segments: Floats
    holdings: Holdings
    usage: Buckets
    network: Buckets
    link_column: Mapping[int, int]
    events: Sequence[tuple[float, str, str, float]]
    end_s: float
    beside: Mapping[str, int]  # columns of the usage by uses of features


def build(demand: Demand, cluster: Cluster, idling_w: float, pue: float, records: Records) -> dict[str, Columns]:
    """Tables by file name; idling_w: idle power of all nodes."""
    return {
        "segments": _segments(demand, records.segments),
        "holdings": _holdings(demand, cluster, records.holdings),
        "usage": _usage(len(cluster.gpus), idling_w, pue, records.usage, records.end_s, records.beside),
        "links": _links(cluster, records.network, records.link_column, records.end_s),
        "events": _events(records.events),
        "gpus": _gpus(cluster),
    }


def _segments(demand: Demand, segments: Floats) -> Columns:
    segments = segments[np.lexsort((segments[:, 1], segments[:, 0]))]
    columns: Columns = {}
    for k, name in enumerate((*_FIRST, *USE_NAMES)):
        columns[name] = segments[:, k].copy()
    for name in ("segment", "gpus", "nodes", "first_gpu"):
        columns[name] = columns[name].astype(np.int32)
    columns["job_id"] = demand.id[columns["job_id"].astype(np.int64)]
    columns["state"] = _named(columns["state"], STATES)
    columns["end_reason"] = _named(columns["end_reason"], REASONS)
    return columns


def _named(codes: Floats, names: Sequence[str]) -> NDArray[Any]:
    return np.array(names, dtype=object)[codes.astype(np.int64)]


def _holdings(demand: Demand, cluster: Cluster, holdings: Holdings) -> Columns:
    row, segment, gpu, share = holdings.columns()
    return {
        "job_id": demand.id[row],
        "segment": segment.astype(np.int32),
        "gpu": gpu.astype(np.int32),
        "node": cluster.gpus.node[gpu].astype(np.int32),
        "share": share,
    }


def _usage(gpus: int, idling_w: float, pue: float, usage: Buckets, end_s: float, beside: Mapping[str, int]) -> Columns:
    start_s, stop_s = usage.edges_s(end_s)
    length_s = stop_s - start_s
    totals = usage.totals[: len(start_s)]
    of = {name: totals[:, k].copy() for k, name in enumerate(USAGE_COLUMNS)}
    others = {f"{use}_gpu_s": totals[:, column].copy() for use, column in beside.items()}
    held = totals[:, :HELD].sum(axis=1) + sum(others.values())
    safe_s = np.where(length_s > 0.0, length_s, 1.0)
    return {
        "start_s": start_s,
        "end_s": stop_s,
        **{name: of[name] for name in USE_NAMES},
        **others,
        "idle_gpu_s": gpus * length_s - held - of["down_gpu_s"],
        "down_gpu_s": of["down_gpu_s"],
        "jobs_waiting": of["queued_s"] / safe_s,
        "jobs_running": of["running_s"] / safe_s,
        "network_bytes": of["network_bytes"],
        "energy_j": pue * (idling_w * length_s - of["down_j"] + of["dynamic_j"]),
    }


def _links(cluster: Cluster, network: Buckets, link_column: Mapping[int, int], end_s: float) -> Columns:
    topology = cluster.topology
    start_s, stop_s = network.edges_s(end_s)
    links = sorted(link_column)
    names = np.array([topology.link_name(link) for link in links], dtype=object)
    amounts = network.totals[: len(start_s), [link_column[link] for link in links]].T
    which, bucket = np.nonzero(amounts)
    return {
        "link": names[which],
        "capacity_bytes_per_s": topology.capacity_bytes_per_s[np.array(links, dtype=np.int64)[which]],
        "start_s": start_s[bucket],
        "end_s": stop_s[bucket],
        "bytes": amounts[which, bucket],
    }


def _events(events: Sequence[tuple[float, str, str, float]]) -> Columns:
    return {
        "time_s": np.array([event[0] for event in events], dtype=np.float64),
        "kind": np.array([event[1] for event in events], dtype=object),
        "subject": np.array([event[2] for event in events], dtype=object),
        "value": np.array([event[3] for event in events], dtype=np.float64),
    }


def _gpus(cluster: Cluster) -> Columns:
    node, names = cluster.gpus.node, np.array(cluster.topology.node_names, dtype=object)
    return {
        "gpu": np.arange(len(node), dtype=np.int32),
        "node": node.astype(np.int32),
        "node_name": names[node],
        "model": np.array(cluster.gpu_models, dtype=object)[cluster.gpus.model],
    }
