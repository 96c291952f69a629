"""Loss of a recorded job to stragglers, by operations and ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.base.json_values import plain
from equipoise.base.numerals import is_index, strict_float
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import digits, show
from equipoise.study.replay.graph import StepGraph
from equipoise.study.replay.replay import NOTHING, ReplayChange, group_class, least_host_times, step_times, typical

RANKS_TRIED = 256


@dataclass(frozen=True)
class ReplayEffect:
    """One change: the mean step time under it, and the share of the recorded step time that it saves."""

    name: str
    step_s: float
    saved: float


@dataclass(frozen=True)
class Summary:
    """Means over steps.

    measured_s, replayed_s: the step as recorded and as replayed; error: median of their relative distance.
    free_s: the step without stragglers. classes, slow_ranks, asked: effects of making one class of operations or one
    rank typical, and of the requested changes; the largest first.
    """

    steps: int
    ranks: int
    measured_s: float
    replayed_s: float
    error: float
    free_s: float
    classes: tuple[ReplayEffect, ...]
    slow_ranks: tuple[ReplayEffect, ...]
    asked: tuple[ReplayEffect, ...]

    def as_json(self) -> str:
        """Everything, for programs."""
        parts = {k: [vars(e) for e in v] if isinstance(v, tuple) else v for k, v in vars(self).items()}
        return json.dumps(plain(parts), indent=2, allow_nan=False)

    def as_text(self, most: int = 8) -> str:
        """The summary as text: a few lines and tables."""
        lost = 1 - self.free_s / self.measured_s
        lines = [
            f"{self.steps} steps of {self.ranks} ranks: {show('x_s', self.measured_s)} a step; replayed "
            f"{show('x_s', self.replayed_s)} (median error {show('x_ratio', self.error)})",
            f"straggler-free {show('x_s', self.free_s)}: stragglers cost {show('x_ratio', max(0.0, lost))} "
            f"of the step, {digits(self.measured_s / self.free_s)}x",
        ]
        if self.ranks == 1:
            lines[1] = "one rank: there are no others to compare it with"
            if self.steps > 1:
                lines[1] += f"; if all its steps had the least gaps of any, one would take {show('x_s', self.free_s)}"
        for title, effects in (
            ("what if one class of operations took its typical time", self.classes),
            ("what if one rank were as fast as the others", self.slow_ranks),
            ("what was asked", self.asked),
        ):
            if effects:
                lines += ["", f"{title}:"]
                lines += [
                    f"  {show('x_ratio', e.saved):>8} saved  {show('x_s', e.step_s):>9}  {e.name}"
                    for e in effects[:most]
                ]
                if len(effects) > most:
                    lines.append(f"  and {len(effects) - most} more that save less (--format json)")
        return "\n".join(lines)


def summarise(
    graphs: Sequence[StepGraph], asked: Sequence[ReplayChange] = (), *, told: Callable[[int], None] = lambda done: None
) -> Summary:
    """Replays every step as recorded, without stragglers, and under each change.

    Without stragglers all operations take their typical time, and host time is the least of any rank and step.
    """
    usual = typical(graphs)
    kinds = sorted({_kind(graph, k) for graph in graphs for k in range(len(graph.operations))})
    ranks = sorted({op.rank for graph in graphs for op in graph.operations})
    by_rank = [ReplayChange(f"rank {rank}", rank=rank) for rank in ranks[:RANKS_TRIED]] if len(ranks) > 1 else []
    grouped = {group_class(g.operations[members[0]]) for g in graphs for members in g.groups}
    by_class = [
        *(ReplayChange(kind, kinds=(kind,)) for kind in kinds),
        ReplayChange("all computing", kinds=tuple(kind for kind in kinds if kind not in grouped)),
        ReplayChange("all communication", kinds=tuple(sorted(grouped))),
        ReplayChange("no host time", kinds=(), host=0.0),
    ]
    changes = [NOTHING, *by_class, *by_rank, *asked]
    times = step_times(graphs, changes, usual, told=told)
    measured = np.array([graph.measured_s for graph in graphs])
    means = times.mean(axis=0)
    calm = ReplayChange("straggler-free")
    free_s = float(step_times(graphs, [calm], usual, least_host_times(graphs)).mean())
    effects = [
        ReplayEffect(change.name, float(mean), 1 - float(mean) / float(means[0]))
        for change, mean in zip(changes, means, strict=True)
    ]
    first, second = 1 + len(by_class), 1 + len(by_class) + len(by_rank)
    return Summary(
        len(graphs),
        len(ranks),
        float(measured.mean()),
        float(means[0]),
        float(np.median(np.abs(times[:, 0] / measured - 1))),
        free_s,
        _ranked(effects[1:first]),
        _ranked(effects[first:second]),
        tuple(effects[second:]),
    )


def _ranked(effects: Sequence[ReplayEffect]) -> tuple[ReplayEffect, ...]:
    return tuple(sorted(effects, key=lambda effect: (-effect.saved, effect.name)))


def _kind(graph: StepGraph, k: int) -> str:
    operation = graph.operations[k]
    return group_class(operation) if graph.group_of[k] >= 0 else operation.kind


def parse_change(text: str, graphs: Sequence[StepGraph]) -> ReplayChange:
    """`CLASS=FACTOR`, `CLASS@RANK=FACTOR`, `@RANK=FACTOR`; `typical` in place of a factor.

    Raises InputError for a class or rank that the operations do not have, or a bad factor.
    """
    where, sign, value = text.partition("=")
    kind, at, rank_text = where.partition("@")
    if not sign or not where:
        raise InputError([f"--what-if {text}: write CLASS=FACTOR, CLASS@RANK=FACTOR or @RANK=typical"])
    kinds = {_kind(graph, k) for graph in graphs for k in range(len(graph.operations))}
    ranks = {op.rank for graph in graphs for op in graph.operations}
    if kind and kind not in kinds:
        raise InputError([f"--what-if {text}: no class {kind!r}; there are {', '.join(sorted(kinds)[:20])}"])
    if at and (not is_index(rank_text) or int(rank_text) not in ranks):
        raise InputError([f"--what-if {text}: no rank {rank_text!r}; there are {len(ranks)}, from {min(ranks)}"])
    try:
        factor = float("nan") if value == "typical" else strict_float(value)
    except ValueError as error:
        raise InputError([f"--what-if {text}: {value!r} is neither a factor nor 'typical'"]) from error
    if factor < 0:
        raise InputError([f"--what-if {text}: a factor must be at least 0"])
    return ReplayChange(text, (kind,) if kind else None, int(rank_text) if at else None, factor)
