"""The answer of a comparison in one sentence, made of its figures by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from equipoise.sim.scenario.units import format_seconds
from equipoise.study.statistics import Interval
from equipoise.study.table import Cell

TIMES = (("completion_mean_s", "mean completion"), ("makespan_s", "makespan"))
COST = "cost_usd"


def answer(cells: Sequence[Cell], policies: Sequence[str], jobs: int, undone: Mapping[str, int]) -> str:
    """Which policy is fastest, by how much, whether that is certain, and what it costs; "" where none can be said.

    jobs: of a run; one is judged by its makespan, several by their mean completion. undone: jobs left, by policy.
    """
    key, words = TIMES[1] if jobs == 1 else TIMES[0]
    by = {(cell.metric, cell.policy): cell for cell in cells}
    able = [p for p in policies if not undone.get(p) and not math.isnan(by[key, p].value.mean)]
    first = policies[0]
    if len(able) < 2 or first not in able:
        return ""
    fastest, second = sorted(able, key=lambda p: by[key, p].value.mean)[:2]
    found, next_one = by[key, fastest], by[key, second]
    time = f"{words} {format_seconds(found.value.mean)}"
    if fastest == first:
        text = f"No policy is faster than {first}: {time}; next is {second}, {_times(next_one.ratio)} as long"
    elif not _certain(found.ratio):
        text = f"No policy is certainly faster than {first}: {fastest} has {time}, {_times(found.ratio)} as long"
    else:
        text = f"{fastest} is the fastest of {len(able)} policies: {time}, {_times(found.ratio)} that of {first}"
        cost = by.get((COST, fastest))
        if cost is not None and not math.isnan(cost.ratio.mean):
            text += f", at {_times(cost.ratio)} its cost"
    left = [f"{p} leaves {n} jobs undone" for p, n in undone.items() if n]
    return "; ".join([text, *left]) + "."


def _certain(ratio: Interval) -> bool:
    """Whether a ratio differs from 1; of one value only when it is not 1 itself."""
    return ratio.mean != 1.0 if math.isnan(ratio.low) else not ratio.low <= 1.0 <= ratio.high


def _times(ratio: Interval) -> str:
    half = ratio.half_width
    return f"{ratio.mean:.3g} times" if math.isnan(half) else f"{ratio.mean:.3g} ±{half:.2g} times"
