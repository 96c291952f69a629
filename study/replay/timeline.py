"""A replayed step as Chrome trace JSON for Perfetto: as recorded, as replayed, and without stragglers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.files import write_whole
from equipoise.study.replay.graph import StepGraph
from equipoise.study.replay.replay import Slots, Typical, least_host_times, replay, typical


def write_timeline(graphs: Sequence[StepGraph], path: Path) -> None:
    """Writes the first step; process = version and rank, thread = lane. Raises OSError."""
    events = list(_events(graphs[0], typical(graphs), least_host_times(graphs)))
    content = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
    write_whole(path, gzip.compress(content.encode(), mtime=0))


def _events(graph: StepGraph, usual: Typical, least_s: Slots) -> Iterator[dict[str, Any]]:
    durations = np.array([[op.duration_s, usual.compute_s.get(op.like, op.duration_s)] for op in graph.operations])
    likes = [graph.operations[members[0]].like for members in graph.groups]
    groups = np.array(
        [
            [took, usual.group_s.get(like.removesuffix("-send").removesuffix("-recv"), took)]
            for took, like in zip(graph.group_s, likes, strict=True)
        ]
    ).reshape(-1, 2)
    host = np.array([[gap, least_s[graph.key(k)]] for k, gap in enumerate(graph.host_s)])
    times = replay(graph, durations, groups, host)
    ranks = sorted({op.rank for op in graph.operations})
    for version, name in enumerate(("recorded", "straggler-free")):
        for rank in ranks:
            pid = 1 + ranks.index(rank) + version * len(ranks)
            yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{name}: rank {rank}"}}
    ends = np.full((len(graph.groups), 2), -np.inf)
    for number, slot in enumerate(graph.slots):
        for k in slot.operations:
            if (g := graph.group_of[k]) >= 0:
                ends[g] = np.maximum(ends[g], times.starts_s[number])
    ends += groups
    for number, slot in enumerate(graph.slots):
        for k in slot.operations:
            operation, group = graph.operations[k], graph.group_of[k]
            for version in range(2):
                begin = float(times.starts_s[number, version])
                end = float(ends[group, version]) if group >= 0 else begin + float(durations[k, version])
                yield {
                    "ph": "X",
                    "pid": 1 + ranks.index(slot.rank) + version * len(ranks),
                    "tid": slot.lane,
                    "name": operation.kind,
                    "ts": round(begin * 1e6, 3),
                    "dur": round((end - begin) * 1e6, 3),
                }
