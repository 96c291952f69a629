"""Steps of Pollux and Sia (data parallel, T4, RTX, Quadro, A100): several nodes from one node and a pair of GPUs.

A step is its compute, as on one node and interpolated over the local batch, and the exchange: that of the pair
(one GPU on each of two nodes) times 2 (N - 1) / N, the volume of a ring over N nodes (Patarasuk & Yuan 2009), and
what the GPUs of one node need among each other: the hierarchical exchange of the simulator. Of seven forms tried on
these rows it is the best; the others (ring over GPUs, logarithm, square root, ...) err by 8.0 to 11.6 %. Naive: no
exchange.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, judge, line, spread_of

FILE = "throughput/pollux_sia_profiles.csv.gz"


@dataclass(frozen=True, slots=True)
class PolluxStep:
    """One measured step and its part that is exchange [s]."""

    group: str
    key: str
    nodes: int
    gpus: int
    batch: float
    step_s: float
    exchange_s: float


def read(data: Path) -> list[PolluxStep]:
    """The rows within the machines that exist. Raises FileNotFoundError, KeyError."""
    return read_rows(data / FILE, _step)


def _step(text: Cells) -> PolluxStep | None:
    if text["beyond_physical"] == "1":
        return None
    group = " ".join(text[name] for name in ("model", "cluster_key", "profile_kind"))
    key = f"{group} {text['placement']} {text['num_nodes']} {text['num_gpus']} {text['local_bsz']}"
    return PolluxStep(
        group,
        key,
        text.whole("num_nodes"),
        text.whole("num_gpus"),
        text.number("local_bsz"),
        text.measured("step_time_s"),
        text.number("sync_time_s"),
    )


def _is_pair(step: PolluxStep) -> bool:
    return step.nodes == 2 and step.gpus == 2


class StepLaw:
    """What one node and pairs tell of a model on a cluster."""

    def __init__(self, known: list[PolluxStep]) -> None:
        self.compute = _by_batch((s.batch, s.step_s - s.exchange_s) for s in known)
        self.pair = _by_batch((s.batch, s.exchange_s) for s in known if _is_pair(s))
        inside = defaultdict(list)
        for s in known:
            if s.nodes == 1:
                inside[s.gpus].append(s.exchange_s)
        self.inside = {gpus: float(np.median(values)) for gpus, values in inside.items()}

    def compute_s(self, step: PolluxStep) -> float:
        """Seconds of a step without its exchange."""
        return float(np.interp(step.batch, *self.compute))

    def step_s(self, step: PolluxStep) -> float:
        """Seconds of a step over several nodes."""
        pair = float(np.interp(step.batch, *self.pair))
        inside = self.inside.get(math.ceil(step.gpus / step.nodes), 0.0)
        return self.compute_s(step) + pair * 2 * (step.nodes - 1) / step.nodes + inside


def _by_batch(pairs: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Batches, ascending, and the median at each."""
    found: dict[float, list[float]] = defaultdict(list)
    for batch, seconds in pairs:
        found[batch].append(seconds)
    batches = sorted(found)
    return batches, [float(np.median(found[b])) for b in batches]


def run(data: Path) -> list[Line]:
    """One node and pairs predict all other placements over several nodes."""
    groups: dict[str, list[PolluxStep]] = defaultdict(list)
    for step in read(data):
        groups[step.group].append(step)
    asked: list[PolluxStep] = []
    guess: list[float] = []
    naive: list[float] = []
    for steps in groups.values():
        known = [s for s in steps if s.nodes == 1 or _is_pair(s)]
        if not any(_is_pair(s) for s in known):
            continue
        law, rest = StepLaw(known), [s for s in steps if s.nodes > 1 and not _is_pair(s)]
        asked += rest
        guess += [law.step_s(s) for s in rest]
        naive += [law.compute_s(s) for s in rest]
    measured, predicted = np.array([s.step_s for s in asked]), np.array(guess)
    names, low, high = np.array([s.group for s in asked]), np.ones(len(asked)), np.ones(len(asked))
    residuals = np.log(measured / predicted)
    for name in sorted(set(names)):  # the interval of a group is that of the others' residuals
        own = names == name
        low[own], high[own] = spread_of(residuals[~own], names[~own].tolist())
    keys = [s.key for s in asked]
    score = judge(keys, predicted, np.array(naive), measured, (low, high))
    return [line("Pollux, Sia: one node and pairs -> several nodes", 0.10, [score])]
