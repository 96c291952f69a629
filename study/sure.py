"""Intervals of results that rest on predicted steps, and the chance that a target is met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from equipoise.sim.cost.certainty import how_sure
from equipoise.sim.feature import features
from equipoise.sim.llm.certainty import Spread, StepCertainty, ratio_of, together
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.shown import all_shown
from equipoise.study.display import LABELS, digits, of_all, show

_AS_LONG = ("makespan_s", "done_s", "completion_", "cost_usd", "energy_j", "carbon_kg", "cost_per_", "energy_per_")
_SHORTER = ("mfu_ratio", "tokens_per_s")
_OF_FEATURES = {metric.name: metric.of_step for shown in all_shown() for metric in shown.metrics}
HIGHEST = {
    ("dense", "A100"): (0.642, "LLM Foundry, MPT 7B on 8"),
    ("dense", "H100"): (0.561, "NVIDIA dgxc-benchmarking, 7 layers of 405B on 32"),
    ("dense", "B200"): (0.442, "NVIDIA dgxc-benchmarking, 405B on 128 GB200"),
    ("experts", "H100"): (0.542, "NVIDIA dgxc-benchmarking, Grok-1 on 512"),
}
"""Highest MFU of a public run in 16 bits, by model and GPU."""
_LIKE = {"H200": "H100", "H800": "H100", "GB200": "B200"}


def certainty_of_times(scenario: Scenario) -> StepCertainty | None:
    """Of all times of a run; None where each step was measured. Waits, faults and restarts count as in proportion."""
    found = [*how_sure(scenario).values(), *(sure for f in features(scenario) for sure in f.certainty(scenario))]
    return together(found) if found else None


def scenario_of_config(config: Mapping[str, Any] | None) -> Scenario | None:
    """A stored scenario with its derived values; None where it cannot be read."""
    if config is None:
        return None
    try:
        return Scenario.model_validate(config)
    except (ValueError, OSError):  # stored by another version, or its hardware profile is elsewhere
        return None


def read_certainty(config: Mapping[str, Any] | None) -> StepCertainty | None:
    """How sure the times of a stored scenario are."""
    scenario = scenario_of_config(config)
    return None if scenario is None else certainty_of_times(scenario)


def power_of(metric: str) -> int:
    """1 for a result in proportion to the step, -1 for one in inverse proportion, 0 for others."""
    name = of_all(metric)
    if name in _OF_FEATURES:
        return _OF_FEATURES[name]
    return 1 if name.startswith(_AS_LONG) else -1 if name.startswith(_SHORTER) else 0


def ends(metric: str, value: float, spread: Spread) -> tuple[float, float] | None:
    """The 90 % interval of a result; None where it does not depend on the step, or is unknown or 0."""
    power = power_of(metric)
    if not power or not math.isfinite(value) or value == 0.0:
        return None
    low, high = spread.interval()
    return (value * low, value * high) if power > 0 else (value / high, value / low)


def chance(metric: str, at_most: bool, limit: float, value: float, spread: Spread, after: float = 0.0) -> float:
    """Chance that a result meets a limit; after: the part of it that no step changes. NaN for an unknown result."""
    power = power_of(metric)
    if not math.isfinite(value):
        return math.nan
    if not power or value <= after or limit <= 0.0:
        return float(value <= limit if at_most else value >= limit)
    ratio = (limit - after) / (value - after) if power > 0 else value / limit
    below = spread.chance_below(ratio)
    return below if at_most == (power > 0) else 1.0 - below


def between(metric: str, value: float, spread: Spread) -> str:
    """The interval as text, and on which side of the result it is where that is a bound; "" without one."""
    if (found := ends(metric, value, spread)) is None:
        return ""
    aside = ", above it" if value < found[0] else ", below it" if value > found[1] else ""
    return f"{show(metric, found[0])} .. {show(metric, found[1])}{aside}"


def above_public(scenario: Scenario, mfu: float) -> str:
    """That the MFU of a run is above that of every public run of the kind; "" where it is not, or none is known."""
    found, models = how_sure(scenario), scenario.workload.models
    if len(found) != 1:
        return ""
    ((name, sure),) = found.items()
    kind, gpu = sure.group[0], _LIKE.get(sure.gpu, sure.gpu)
    highest, source = HIGHEST.get((kind, gpu), (math.inf, ""))
    if models[name].precision not in ("bf16", "fp16") or not mfu > highest:
        return ""
    most = f"{show('mfu_ratio', highest)}, the highest of public runs of {kind} models on {gpu} in 16 bits"
    return f"MFU {show('mfu_ratio', mfu)} is above {most} ({source})"


def as_dict(sure: StepCertainty | None, row: Mapping[str, float]) -> dict[str, Any]:
    """The intervals of results and their reason as plain data; {} where nothing is predicted."""
    if sure is None:
        return {}
    found = {key: list(both) for key, value in row.items() if (both := ends(key, value, sure.spread)) is not None}
    return {"intervals": found, **reasons(sure)}


def reasons(sure: StepCertainty) -> dict[str, Any]:
    """What an interval of steps rests on, as plain data."""
    return {
        "rests_on": sure.rests_on,
        "outside_the_fit": list(sure.outside),
        "nearest_measurement": str(sure.nearest) if sure.nearest is not None else "",
        "step_factor_interval": list(sure.spread.interval()),
    }


def note_of(sure: StepCertainty | None, policy: str, row: Mapping[str, float]) -> str:
    """A note on the intervals of a policy's results; "" where no step is predicted."""
    if sure is None:
        return ""
    named = ("makespan_s", "completion_mean_s", "cost_usd")
    found = [f"{LABELS[k]} {text}" for k in named if k in row and (text := between(k, row[k], sure.spread))]
    text = f"90 % intervals of {policy}: {', '.join(found)}; all policies are off alike, their ratios are not"
    return f"{text} ({sure.rests_on})" if found else ""


Plan = tuple[str, Scenario, float]
"""Name, scenario and result of a plan."""


def _over(one: Plan, other: Plan) -> tuple[Spread, float] | None:
    """Spread and figure of the ratio of the second result to the first; None unless both rest on predicted steps."""
    a, b = certainty_of_times(one[1]), certainty_of_times(other[1])
    return None if a is None or b is None or not (one[2] > 0 and other[2] > 0) else (ratio_of(a, b), other[2] / one[2])


def _is_open(spread: Spread, ratio: float) -> bool:
    """Whether the 90 % interval of a ratio contains 1."""
    low, high = spread.interval()
    return ratio * low <= 1.0 <= ratio * high


def rival(first: Plan, others: Iterable[Plan]) -> str:
    """That it is not decided whether a plan has the least of a result, and which is likelier; "" where it is."""
    found = [
        (1.0 - over[0].chance_below(1.0 / over[1]), other[0], over) for other in others if (over := _over(first, other))
    ]
    less, name, over = min(found, default=(1.0, "", None), key=lambda f: f[0])
    if over is None or (less >= 0.5 and not _is_open(*over)):
        return ""
    if less >= 0.5:
        return f"not decided: {first[0]} is likelier than {name}, with {100 * less:.0f} %"
    return f"{'not decided: ' if _is_open(*over) else ''}{name} is likelier, with {100 * (1.0 - less):.0f} %"


def ratio_line(one: Plan, other: Plan, metric: str) -> str:
    """How two plans' results compare, and how sure that is; "" unless both rest on predicted steps.

    What both predictions are off by cancels in the ratio.
    """
    if (over := _over(one, other)) is None:
        return ""
    spread, ratio = over
    low, high = spread.interval()
    less = 1.0 - spread.chance_below(1.0 / ratio)  # chance that the first has less
    first, sure = (one[0], less) if less >= 0.5 else (other[0], 1.0 - less)
    said = f"{first} has the lower {LABELS[metric].strip()} with {100 * sure:.0f} %"
    ends_ = f"{digits(ratio * low)} .. {digits(ratio * high)}"
    of = f"{LABELS[metric].strip()} of {other[0]} over {one[0]}: x{digits(ratio)}"
    if digits(ratio * low) == digits(ratio * high):  # of one kind: nothing tells how much less alike they are
        return f"{of}, as steps of both are off alike"
    if _is_open(spread, ratio):
        said = f"not decided: {said}"
    return f"{of} (90 %: {ends_}); {said}"
