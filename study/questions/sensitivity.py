"""Sensitivity of the result to a scenario's values: one key at a time, low and high, on the same seeds.

The tornado of decision analysis (Howard 1988, Management Science 34(6)): bars from the result at the low value
to that at the high value, the longest first. Common random numbers make the ratios to the base far more precise than
the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from equipoise.base.json_values import plain
from equipoise.sim.loading.file import ScenarioFile, read_scenario
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import LABELS, UNKNOWN, digits, show
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.questions.sensitivity_keys import KeyRange, default_ranges, read_range
from equipoise.study.runs.orders import policy_text
from equipoise.study.runs.variants import DEFAULT, RunOptions, Variant, VariantOutcome, run_all
from equipoise.study.statistics import CONFIDENCE, Interval, mean_interval, paired_ratio

FILE = "sensitivity.json"
_HALF = 14  # characters of the bar on each side of the base
SMALL = 0.01  # of the result: what changes it by less is counted, not named


@dataclass(frozen=True)
class End:
    """One end of a bar: the value of the key, the metric there, and its paired ratio to the base.

    `problem` says why there is no result; the intervals are then NaN.
    """

    shown: str
    value: Interval
    ratio: Interval
    problem: str | None = None

    @property
    def log(self) -> float:
        """Logarithm of the ratio; 0 when unknown."""
        return math.log(self.ratio.mean) if self.ratio.mean > 0 else 0.0

    @property
    def away(self) -> float:
        """Distance of the result from the base, as |log ratio|; 0 when unknown."""
        return abs(self.log)

    @property
    def text(self) -> str:
        """The ratio with its interval."""
        if not math.isfinite(self.ratio.mean):
            return UNKNOWN
        half = self.ratio.half_width
        return f"x{digits(self.ratio.mean)}" + (f" ±{digits(half, 2)}" if half >= 5e-4 else "")


@dataclass(frozen=True)
class Bar:
    """One key with both ends."""

    key: str
    low: End
    high: End

    @property
    def length(self) -> float:
        """Distance of the two results, in multiples of the base's (1 where an end is unknown)."""
        low, high = (end.ratio.mean if end.ratio.mean > 0 else 1.0 for end in (self.low, self.high))
        return abs(high - low)


@dataclass(frozen=True)
class Sensitivity:
    """All bars, the longest first, around the result of the base."""

    scenario: str
    policy: str
    metric: str
    seeds: int
    base: Interval
    bars: tuple[Bar, ...]
    notes: tuple[str, ...]

    def findings(self) -> Findings:
        """The answer, and the tornado chart as text: key, low and high values, ratios, and a bar around the base."""
        reach = max((end.away for bar in self.bars for end in (bar.low, bar.high)), default=0.0)
        rows = [("", "low", "high", "at low", "at high", f"{'less':>{_HALF}} | more")]
        rows += [
            (bar.key, bar.low.shown, bar.high.shown, bar.low.text, bar.high.text, _drawn(bar, reach))
            for bar in self.bars
        ]
        seeds = "one seed" if self.seeds == 1 else f"{self.seeds} seeds"
        table = FindingsTable(f"ratios to the unchanged scenario, {seeds}", rows, [False, *[True] * 4, False])
        return Findings(f"Sensitivity: {self.scenario}", (answer(self),), (table,))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as in `sensitivity.json`; unknown values are None."""
        data = {
            "schema_version": 1,
            "answer": answer(self),
            "scenario": self.scenario,
            "policy": self.policy,
            "metric": self.metric,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "base": self.base.mean,
            "base_low": self.base.low,
            "base_high": self.base.high,
            "rows": [_row(bar) for bar in self.bars],
            "notes": self.notes,
        }
        found: dict[str, Any] = plain(data)
        return found


def _drawn(bar: Bar, reach: float) -> str:
    """The bar: `L` cells up to the result at the low value, `H` cells up to that at the high value, log scale."""
    cells = [" "] * (2 * _HALF + 1)
    cells[_HALF] = "|"
    ends = sorted((("L", bar.low.log), ("H", bar.high.log)), key=lambda end: -abs(end[1]))
    for letter, log in ends:  # the shorter one last, so that both can be seen on one side
        length = round(_HALF * abs(log) / reach) if reach > 0 else 0
        for k in range(1, length + 1):
            cells[_HALF + (k if log > 0 else -k)] = letter
    return "".join(cells)


def answer(found: Sensitivity) -> str:
    """What the result depends on most, and on how many values it does not depend, in a sentence or two."""
    what = f"{LABELS.get(found.metric, found.metric).strip()} of {found.scenario} under {found.policy}"
    base = show(found.metric, found.base.mean, found.base.half_width)
    bars = [bar for bar in found.bars if bar.length >= SMALL]
    if not bars:
        return f"{what} ({base}) changes by less than {100 * SMALL:.0f} % with each of the {len(found.bars)} values."
    first, *others = bars
    ends = [
        f"{end.ratio.mean:.3g} times at {end.shown}" for end in (first.low, first.high) if math.isfinite(end.ratio.mean)
    ]
    text = f"{what} ({base}) depends most on {first.key}: {', '.join(ends)}"
    if others:
        text += f"; then on {' and '.join(bar.key for bar in others[:2])}"
    small = len(found.bars) - len(bars)
    return f"{text}." + (
        f" {small} of {len(found.bars)} values change it by less than {100 * SMALL:.0f} %." if small else ""
    )


def _row(bar: Bar) -> dict[str, Any]:
    row: dict[str, Any] = {"key": bar.key, "low_value": bar.low.shown, "high_value": bar.high.shown}
    row |= {"low": bar.low.value.mean, "high": bar.high.value.mean}
    for name, end in (("low", bar.low), ("high", bar.high)):
        ratio = end.ratio
        row |= {f"{name}_ratio": ratio.mean}
        row |= {f"{name}_ratio_low": ratio.low, f"{name}_ratio_high": ratio.high}
    return row


def sensitivity(
    path: Path,
    metric: str,
    *,
    vary: Sequence[str] = (),
    defaults: bool = True,
    policy: str | None = None,
    overrides: Sequence[str] = (),
    trace: str | None = None,
    options: RunOptions = DEFAULT,
) -> Sensitivity:
    """Run the scenario in `path` with one key changed at a time.

    metric: a name of `Run.summary`. vary: `KEY=LOW..HIGH` texts. defaults: vary the default set as well.
    `options` says with how many seeds and processes; its trace and folders are found here.

    Raises InputError for a wrong scenario, key, value or metric, PolicyError for an unknown stage, RuntimeError
    when the base itself fails.
    """
    file = read_scenario(path, overrides, trace)
    read = file.trace()
    name = policy_text(file.scenario, policy)
    asked = [read_range(text, file.scenario) for text in vary]
    chosen = asked + [
        found for found in (default_ranges(file.scenario) if defaults else []) if found.key not in _keys(asked)
    ]
    if not chosen:
        raise InputError([f"{path}: nothing to vary; give --vary KEY=LOW..HIGH"])
    variants, ends, notes = _variants(file, chosen, overrides, trace, name)
    settings = _with(options, file, read)
    if metric not in LABELS:  # nothing else is run for a metric that does not exist
        _values(run_all(variants[:1], replace(settings, seeds=1))[0], metric)
    outcomes = run_all(variants, settings)
    return _result(file.scenario, name, metric, chosen, outcomes, ends, notes)


def _keys(ranges: Sequence[KeyRange]) -> set[str]:
    return {found.key for found in ranges}


def _with(options: RunOptions, file: ScenarioFile, trace: Any) -> RunOptions:
    return RunOptions(options.seeds, trace, file.folders, options.jobs, options.runner, options.progress)


Ends = dict[tuple[int, str], int | str]
"""By (number of the range, low or high): the number of the variant, or the reason why there is none."""


def _variants(
    file: ScenarioFile, chosen: Sequence[KeyRange], overrides: Sequence[str], trace: str | None, policy: str
) -> tuple[list[Variant], Ends, list[str]]:
    """The base and every end that is allowed. Raises InputError for one that the user asked for."""
    variants, notes = [Variant("base", file.scenario, policy)], []
    ends: Ends = {}
    for k, found in enumerate(chosen):
        for side in ("low", "high"):
            changes, shown = getattr(found, side), getattr(found, f"{side}_shown")
            try:
                scenario = _changed(file, overrides, changes, trace)
            except InputError as error:
                if found.asked:
                    raise InputError(line.replace("--set ", "--vary ", 1) for line in error.lines) from error
                ends[k, side] = error.lines[0].partition(": ")[2]
                notes.append(f"{found.key}={shown} is not possible: {ends[k, side]}")
                continue
            ends[k, side] = len(variants)
            variants.append(Variant(f"{found.key}={shown}", scenario, policy))
    return variants, ends, notes


def _changed(file: ScenarioFile, overrides: Sequence[str], changes: Sequence[str], trace: str | None) -> Scenario:
    changed = read_scenario(file.path, [*overrides, *changes], trace)
    changed.trace()
    return changed.scenario


def _values(base: VariantOutcome, metric: str) -> list[float]:
    """The metric of the base. Raises RuntimeError when it fails, InputError when it has no such metric."""
    if base.failed is not None:
        raise RuntimeError(f"{base.variant.scenario.name}: {base.failed}")
    row = base.rows[0]
    if metric not in row:
        numbers = [name for name, value in row.items() if isinstance(value, float) and name in LABELS]
        raise InputError([f"--metric: this scenario has no {metric!r}; it has {', '.join(numbers)}"])
    values = base.values(metric)
    if all(math.isnan(value) for value in values):
        raise InputError([f"--metric: {metric!r} is not known in this scenario (no price, or no job completed)"])
    return values


def _result(
    scenario: Scenario,
    policy: str,
    metric: str,
    chosen: Sequence[KeyRange],
    outcomes: Sequence[VariantOutcome],
    ends: Ends,
    notes: list[str],
) -> Sensitivity:
    reference = _values(outcomes[0], metric)

    def end(k: int, side: str) -> End:
        """One end of a bar."""
        shown = getattr(chosen[k], f"{side}_shown")
        number = ends[k, side]
        problem = number if isinstance(number, str) else outcomes[number].failed
        if problem is not None:
            unknown = Interval(math.nan, math.nan, math.nan, 0)
            return End(shown, unknown, unknown, problem)
        assert isinstance(number, int)
        values = outcomes[number].values(metric)
        return End(shown, mean_interval(values), paired_ratio(values, reference))

    bars = [Bar(found.key, end(k, "low"), end(k, "high")) for k, found in enumerate(chosen)]
    for bar in bars:
        notes += [
            f"{bar.key}={side.shown}: {side.problem}"
            for side in (bar.low, bar.high)
            if side.problem is not None and not any(side.problem in note for note in notes)
        ]
    bars.sort(key=lambda bar: -bar.length)  # stable: equal bars stay in the order of the keys
    return Sensitivity(
        scenario.name, policy, metric, len(reference), mean_interval(reference), tuple(bars), tuple(notes)
    )
