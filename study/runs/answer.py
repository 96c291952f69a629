"""The answers of a run and of a comparison in a few sentences, made of their figures by rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from equipoise.sim.llm.certainty import StepCertainty
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.units import format_seconds
from equipoise.sim.seeds import is_random
from equipoise.study.display import digits, show
from equipoise.study.statistics import Interval
from equipoise.study.sure import above_public, between, certainty_of_times
from equipoise.study.table import COST, Cell

TIMES = (("completion_mean_s", "mean completion"), ("makespan_s", "makespan"))
LOSSES = {
    "idle_ratio": "idle GPUs",
    "input_stall_ratio": "waiting for training data",
    "barrier_wait_ratio": "waiting for slower workers",
    "exposed_communication_ratio": "exposed communication",
    "pipeline_bubble_ratio": "pipeline bubble",
    "tensor_exchange_ratio": "tensor exchange",
    "restart_ratio": "restarts and checkpoints",
    "lost_to_faults_ratio": "work lost to faults",
}


def of_run(row: Mapping[str, float], policy: str, scenario: Scenario | None) -> tuple[str, ...]:
    """What a run came to, what that rests on, and where most GPU time is lost.

    scenario: with its derived values; None where it is not known.
    """
    sure = certainty_of_times(scenario) if scenario is not None else None
    told = [_result(row, policy, sure)]
    if sure is not None:
        low, high = sure.spread.interval()
        outside = f"; outside the fit: {'; '.join(sure.outside)}" if sure.outside else ""
        above = above_public(scenario, row.get("mfu_ratio", math.nan)) if scenario is not None else ""
        doubt = f"{outside}; {above}" if above else outside
        told.append(f"Steps are predicted, {low:.2f} to {high:.2f} times the figure: {sure.rests_on}{doubt}.")
    elif scenario is not None and is_random(scenario):
        told.append("It is one run of a scenario with chance in it: compare shows the spread over seeds.")
    found = losses(row)
    return (*told, f"Most GPU time is lost to {found}: limits shows what would help.") if found else tuple(told)


def losses(row: Mapping[str, float], most: int = 2) -> str:
    """The uses of GPU time that train nothing, the largest first; "" without any."""
    known = sorted((m for m in LOSSES if row.get(m, 0.0) > 5e-4), key=lambda m: -row[m])[:most]
    return " and ".join(f"{LOSSES[m]} ({show(m, row[m])}{_late(row) if m == 'idle_ratio' else ''})" for m in known)


def _late(row: Mapping[str, float]) -> str:
    """The part of idle time after the last arrival."""
    late = row.get("idle_late_ratio", math.nan)
    return f", {show('x_ratio', late)} after the last arrival" if late > 5e-4 else ""


def _result(row: Mapping[str, float], policy: str, sure: StepCertainty | None) -> str:
    """Times and cost, with their intervals where steps are predicted."""

    def shown(metric: str) -> str:
        """A result with its interval."""
        ends = between(metric, row[metric], sure.spread) if sure is not None else ""
        return show(metric, row[metric]) + (f" (90 %: {ends})" if ends else "")

    jobs, done = row["jobs"], row["completed"]
    if not done:
        return f"No job was completed under {policy}."
    cost = f", for {shown(COST)}" if math.isfinite(row.get(COST, math.nan)) else ""
    if jobs == 1:
        return f"The job takes {shown('makespan_s')} under {policy}{cost}."
    which = f"All {jobs:,.0f} jobs are" if done == jobs else f"{done:,.0f} of {jobs:,.0f} jobs are"
    waits = f", {show('queueing_mean_s', row['queueing_mean_s'])} of it waiting" if row["queueing_mean_s"] > 0 else ""
    mean = f"{which} done {shown('completion_mean_s')} after they came on average under {policy}{waits}"
    return f"{mean}; the last ends after {shown('makespan_s')}{cost}."


def answer(cells: Sequence[Cell], policies: Sequence[str], jobs: int, undone: Mapping[str, int]) -> str:
    """Which policy is fastest, by how much, whether that is certain, what it costs, and what no policy can beat.

    "" where none can be said. jobs: of a run; one is judged by its makespan, several by their mean completion.
    undone: jobs left, by policy.
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
    return f"{'; '.join([text, *left])}.{_room(found)}"


def _room(cell: Cell) -> str:
    """How much any policy could win at most."""
    if not cell.over_bound >= 1.0:
        return ""
    return f" By the lower bound no policy can take less than {digits(1.0 / cell.over_bound, 2)} times that."


def _certain(ratio: Interval) -> bool:
    """Whether a ratio differs from 1; of one value only when it is not 1 itself."""
    return ratio.mean != 1.0 if math.isnan(ratio.low) else not ratio.low <= 1.0 <= ratio.high


def _times(ratio: Interval) -> str:
    half = ratio.half_width
    return f"{ratio.mean:.3g} times" if math.isnan(half) else f"{ratio.mean:.3g} ±{half:.2g} times"
