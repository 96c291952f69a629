"""Replay of recorded operations (ByteDance): step times with host time from other steps, and straggler-free times.

Naive: the busiest rank's computing alone. The published straggler-free times come from the same traces by the
authors' own analysis.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.formats.operations import read_operations
from equipoise.study.replay.graph import StepGraph, graphs
from equipoise.study.replay.replay import NOTHING, STRAGGLER_FREE, host_times, step_times, typical
from equipoise.study.validation.score import Line, judge, line

PATTERN = "straggler/bytedance_trace_*.parquet"


def run(data: Path) -> list[Line]:
    """Two lines over all traces of the form. Raises FileNotFoundError where there are none."""
    files = sorted(data.glob(PATTERN))
    if not files:
        raise FileNotFoundError(2, "no such file", str(data / PATTERN))
    steps, free, inner = [], [], []
    for file in files:
        recorded = graphs(read_operations([file]))
        name, half = file.stem.rpartition("_")[2], len(recorded) // 2
        inner += [guess / truth - 1 for _, guess, _, truth in _halves(recorded[:half], name)]
        steps += _halves(recorded, name)
        published = file.with_name(f"bytedance_ms-{name}.json")
        if published.is_file():
            mine = float(step_times(recorded, [STRAGGLER_FREE], typical(recorded)).mean())
            naive = float(np.mean([graph.measured_s for graph in recorded]))
            free.append((name, mine, naive, float(json.loads(published.read_text())["tideal"])))
    widest = 1 + np.quantile(inner, [0.05, 0.95])  # residuals within the fitted half
    lines = [_line("ByteDance: step, host time from the first half -> second", 0.02, steps, (widest[0], widest[1]))]
    if free:
        lines.append(_line("ByteDance: straggler-free step, as published", 0.05, free, (np.nan, np.nan)))
    return lines


TraceColumns = tuple[str, float, float, float]
"""A row: its key, the prediction, the naive model's, the measurement."""


def _halves(recorded: Sequence[StepGraph], name: str) -> list[TraceColumns]:
    """Steps of the second half, replayed with the host time of the first."""
    half = len(recorded) // 2
    later = recorded[half:]
    guess = step_times(later, [NOTHING], typical(recorded), host_times(recorded[:half]))[:, 0]
    return [
        (f"{name} step {half + k}", float(guess[k]), _busiest_s(graph), graph.measured_s)
        for k, graph in enumerate(later)
    ]


def _line(what: str, target: float, rows: Sequence[TraceColumns], spread: tuple[float, float]) -> Line:
    keys = [row[0] for row in rows]
    guess, naive, truth = np.array([row[1:] for row in rows]).T
    return line(what, target, [judge(keys, guess, naive, truth, spread)])


def _busiest_s(graph: StepGraph) -> float:
    by_rank: dict[int, float] = defaultdict(float)
    for operation in graph.operations:
        if operation.kind.endswith("compute"):
            by_rank[operation.rank] += operation.duration_s
    return max(by_rank.values())
