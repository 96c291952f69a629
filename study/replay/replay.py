"""Replay of recorded steps under changes: times of each operation, and duration of a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan

import numpy as np

from equipoise.formats.operations import Operation
from equipoise.study.replay.graph import Floats, StepGraph

Slots = Mapping[tuple[int, int, int], float]


@dataclass(frozen=True)
class Times:
    """A replayed step under several alternatives. starts_s: (slots, alternatives); step_s: (alternatives,)."""

    starts_s: Floats
    step_s: Floats


def replay(graph: StepGraph, durations_s: Floats, group_s: Floats, host_s: Floats) -> Times:
    """Times of a step.

    durations_s: (operations, alternatives) of those in no group; group_s: (groups, alternatives); host_s:
    (slots, alternatives).
    """
    n = durations_s.shape[1]
    starts = np.zeros((len(graph.slots), n))
    ends = np.zeros((len(graph.groups), n))
    posted = np.full((len(graph.groups), n), -np.inf)
    last = np.zeros(n)

    def end(number: int) -> Floats:
        """When the last operation of a slot ends, (alternatives,)."""
        parts: list[Floats] = [
            ends[g] if (g := graph.group_of[k]) >= 0 else starts[number] + durations_s[k]
            for k in graph.slots[number].operations
        ]
        return parts[0] if len(parts) == 1 else np.asarray(np.max(parts, axis=0))

    for node in graph.order:
        if node >= 0:
            slot = graph.slots[node]
            before = [end(number) for number in slot.after]
            begin = before[0] if len(before) == 1 else np.max(before, axis=0) if before else np.zeros(n)
            starts[node] = begin + host_s[node]
            for k in slot.operations:
                if graph.group_of[k] >= 0:
                    np.maximum(posted[graph.group_of[k]], starts[node], out=posted[graph.group_of[k]])
        else:
            ends[-1 - node] = posted[-1 - node] + group_s[-1 - node]
    for number in range(len(graph.slots)):
        np.maximum(last, end(number), out=last)
    return Times(starts, last - starts.min(axis=0))


def host_times(graphs: Sequence[StepGraph]) -> Slots:
    """Host time of each slot: the least idle gap before it in any step, since any excess was waiting."""
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for graph in graphs:
        for number, gap in enumerate(graph.host_s):
            found[graph.key(number)].append(float(gap))
    return {key: max(0.0, min(gaps)) for key, gaps in found.items()}


def least_host_times(graphs: Sequence[StepGraph]) -> Slots:
    """Host time of each slot without slow ranks: the least gap at its place, of any step and rank."""
    least: dict[tuple[int, int], float] = defaultdict(lambda: inf)
    own = host_times(graphs)
    for (_, lane, place), gap in own.items():
        least[lane, place] = min(least[lane, place], gap)
    return {key: least[key[1:]] for key in own}


@dataclass(frozen=True)
class Typical:
    """Typical durations of operations of one class without stragglers.

    The mean of computing and the median of a group's shortest duration, over all steps and ranks (Lin et al. 2025,
    section 3).
    """

    compute_s: Mapping[str, float]
    group_s: Mapping[str, float]


def typical(graphs: Sequence[StepGraph]) -> Typical:
    """Typical durations over all steps and ranks, by class."""
    compute: dict[str, list[float]] = defaultdict(list)
    groups: dict[str, list[float]] = defaultdict(list)
    for graph in graphs:
        for k, operation in enumerate(graph.operations):
            if graph.group_of[k] < 0:
                compute[operation.like].append(operation.duration_s)
        for members, took in zip(graph.groups, graph.group_s, strict=True):
            groups[group_like(graph.operations[members[0]])].append(float(took))
    return Typical(
        {kind: float(np.mean(values)) for kind, values in compute.items()},
        {kind: float(np.median(values)) for kind, values in groups.items()},
    )


def group_class(operation: Operation) -> str:
    """The class of a group: a send and its receive are one."""
    return operation.kind.removesuffix("-send").removesuffix("-recv")


def group_like(operation: Operation) -> str:
    """The likeness key of a group: a send and its receive are one."""
    return operation.like.removesuffix("-send").removesuffix("-recv")


@dataclass(frozen=True)
class ReplayChange:
    """A what-if change: operations (by class and rank) that take their typical duration, or a multiple of their own.

    name: in words. kinds: the classes; None for all. rank: None for all. factor: NaN for the typical duration.
    host: factor on the host time.
    """

    name: str
    kinds: tuple[str, ...] | None = None
    rank: int | None = None
    factor: float = nan
    host: float = 1.0

    def touches(self, kind: str, ranks: Sequence[int]) -> bool:
        """Whether an operation of that class on those ranks is changed."""
        return (self.kinds is None or kind in self.kinds) and (self.rank is None or self.rank in ranks)


NOTHING = ReplayChange("as recorded", kinds=())
STRAGGLER_FREE = ReplayChange("straggler-free", host=0.0)


def step_times(
    graphs: Sequence[StepGraph],
    changes: Sequence[ReplayChange],
    usual: Typical,
    host: Slots | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> Floats:
    """Step times (steps, changes) in s.

    host: by slot; None: each step's own. A slot that other steps lack keeps its own gap.
    """
    rows = []
    for number, graph in enumerate(graphs):
        own = [float(gap) if host is None else host.get(graph.key(k), float(gap)) for k, gap in enumerate(graph.host_s)]
        durations = np.array([[_of(graph, k, c, usual) for c in changes] for k in range(len(graph.operations))])
        groups = np.array([[_of_group(graph, g, c, usual) for c in changes] for g in range(len(graph.groups))])
        idle = np.outer(own, [change.host for change in changes])
        rows.append(replay(graph, durations, groups.reshape(-1, len(changes)), idle).step_s)
        told(number + 1)
    return np.array(rows)


def _of(graph: StepGraph, k: int, change: ReplayChange, usual: Typical) -> float:
    operation = graph.operations[k]
    if graph.group_of[k] >= 0 or not change.touches(operation.kind, (operation.rank,)):
        return operation.duration_s
    return usual.compute_s[operation.like] if isnan(change.factor) else operation.duration_s * change.factor


def _of_group(graph: StepGraph, group: int, change: ReplayChange, usual: Typical) -> float:
    members = [graph.operations[k] for k in graph.groups[group]]
    kind, took = group_class(members[0]), float(graph.group_s[group])
    if not change.touches(kind, [member.rank for member in members]):
        return took
    return usual.group_s[group_like(members[0])] if isnan(change.factor) else took * change.factor
