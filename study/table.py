"""A comparison as a table of metrics by policies: plain text for terminals, LaTeX for papers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import Any

from equipoise.sim.scenario.units import format_share
from equipoise.study.display import (
    IN_DETAIL,
    LABELS,
    MAIN_OF_FEATURES,
    PER_JOB,
    UNKNOWN,
    digits,
    folded,
    label,
    of_all,
    plus_minus,
    show,
)
from equipoise.study.statistics import Interval
from equipoise.study.terminal import printable

_GAP = 2
COST = "cost_usd"
_OF_GROUPS = ("completion_mean_s", "queueing_p95_s")
MAIN = (
    "completion_mean_s",
    "completion_p95_s",
    "makespan_s",
    "queueing_mean_s",
    "queueing_p95_s",
    "goodput_ratio",
    "idle_ratio",
    "energy_j",
    "cost_usd",
    "mfu_ratio",
    "tokens_per_s",
    "cost_per_million_tokens_usd",
    *MAIN_OF_FEATURES,
)
"""Metrics of the first screen."""
_TOLD_AT_0 = ("jobs", "completed", "makespan_s", "cost_usd")


@dataclass(frozen=True)
class Cell:
    """One metric under one policy: mean over seeds, ratio to the first policy, multiple of the bound."""

    metric: str
    policy: str
    value: Interval
    ratio: Interval
    bound: float  # NaN: there is none for this metric
    over_bound: float
    difference: Interval  # to the first policy, paired by seed
    p: float = math.nan  # p value of a difference: paired t-test on log ratios, after Holm over the policies
    effect: float = math.nan  # Cohen's d of the pairs, on log ratios

    def row(self) -> dict[str, Any]:
        """The cell as one flat row; unknown values are NaN."""
        return {
            "metric": self.metric,
            "policy": self.policy,
            "seeds": self.value.n,
            "mean": self.value.mean,
            "low": self.value.low,
            "high": self.value.high,
            "ratio": self.ratio.mean,
            "ratio_low": self.ratio.low,
            "ratio_high": self.ratio.high,
            "difference": self.difference.mean,
            "difference_low": self.difference.low,
            "difference_high": self.difference.high,
            "bound": self.bound,
            "over_bound": self.over_bound,
            "p": self.p,
            "effect": self.effect,
        }


@dataclass(frozen=True)
class Precision:
    """Requested and reached precision of the intervals: relative half widths."""

    metric: str
    of_ratio: bool
    wanted: float
    reached: float

    @property
    def met(self) -> bool:
        """Whether the requested precision is reached."""
        return self.reached <= self.wanted

    def text(self, first: str) -> str:
        """The precision in words; `first` is the policy that ratios refer to."""
        ratio = f" ratio to {first}" if self.of_ratio else ""
        end = "reached" if self.met else f"not reached, {format_share(self.wanted)} was asked for"
        half = format_share(self.reached) if math.isfinite(self.reached) else "unknown"
        return f"{LABELS.get(self.metric, self.metric)}{ratio} within ±{half}: {end}"


def as_text(title: str, cells: Sequence[Cell], notes: Sequence[str], noise_free: bool, width: int, wide: bool) -> str:
    """The table; policies that do not fit into `width` characters follow below.

    cells: by metric, and of each metric the policies in order. noise_free: whether the bound ignores noise. wide: all
    metrics, not only `MAIN`.
    """
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    grouped = any("[" in cell.metric for cell in cells)
    shown = [found for found in _shown(cells) if wide or is_main(found[0].metric, found, grouped)]
    nothing = [found[0].metric for found in shown if found[0].metric not in _TOLD_AT_0 and _all_0(found)]
    lines = [line for found in shown if found[0].metric not in nothing for line in _lines(found, noise_free)]
    header = ["", *policies]
    widths = [max(len(line[k]) for line in [header, *lines]) for k in range(len(header))]
    text = [title]
    for block in _blocks(widths[1:], width - widths[0]):
        text.append("")
        for line in [header, *lines]:
            values = "".join(" " * _GAP + line[k + 1].rjust(widths[k + 1]) for k in block)
            text.append((line[0].ljust(widths[0]) + values).rstrip())
    if nothing:
        named = ", ".join(LABELS.get(metric, metric).strip() for metric in nothing)
        text += wrap(f"these are 0: {named}", width, subsequent_indent="   ")
    text += ["", *(f"note: {note}" for note in notes)] if notes else []
    return "\n".join(text) + "\n"


def is_main(metric: str, cells: Sequence[Cell] = (), grouped: bool = False) -> bool:
    """Whether a metric is on the first screen; jobs completed are where some policy leaves jobs undone.

    grouped: the table is also by group of jobs, and has fewer metrics in return.
    """
    if grouped:
        return metric in ("completion_mean_s", "makespan_s", COST) or ("[" in metric and of_all(metric) in _OF_GROUPS)
    return metric in MAIN or (metric == "completed" and len({cell.value.mean for cell in cells}) > 1)


def _all_0(cells: Sequence[Cell]) -> bool:
    return all(cell.value.mean == 0.0 for cell in cells)


def _shown(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The metrics of a table, without details and metrics unknown for all policies."""
    one_job = all(cell.value.mean == 1 for cell in cells if cell.metric == "jobs")
    for metric, group in groupby(cells, key=lambda cell: cell.metric):
        found = list(group)
        detail = metric in IN_DETAIL or (one_job and metric in (*PER_JOB, "completion_mean_s"))  # the one job's time
        if not detail and not folded(metric, *(cell.value.mean for cell in found)):
            yield found


def _lines(cells: Sequence[Cell], noise_free: bool) -> Iterator[list[str]]:
    """Rows of text of one metric: value, ratio to the first policy, multiple of the bound."""
    metric = cells[0].metric
    yield [label(metric), *(show(metric, c.value.mean, c.value.half_width) for c in cells)]
    compared = of_all(metric).endswith("_s") or metric in ("goodput_ratio", "cost_usd")
    if compared and len(cells) > 1 and math.isfinite(cells[0].ratio.mean):
        yield [f"  ratio to {cells[0].policy}", *map(_ratio, cells)]
    if any(math.isfinite(c.over_bound) for c in cells):
        kind = "  of noise-free bound" if noise_free else "  of lower bound"
        yield [kind, *(f"{digits(c.over_bound)}x" if c.over_bound > 0 else UNKNOWN for c in cells)]


def _ratio(cell: Cell) -> str:
    if not math.isfinite(cell.ratio.mean):
        return UNKNOWN
    return digits(cell.ratio.mean) + plus_minus(cell.ratio.half_width)


def _blocks(columns: Sequence[int], room: int) -> Iterator[list[int]]:
    """Columns (by index) in groups that fit into `room` characters, at least one a group."""
    block: list[int] = []
    for k, width in enumerate(columns):
        if block and sum(columns[i] + _GAP for i in block) + width + _GAP > room:
            yield block
            block = []
        block.append(k)
    if block:
        yield block


def as_latex(title: str, cells: Sequence[Cell]) -> str:
    """The table for a paper (booktabs): rows of metrics, columns of policies; stars mark significance.

    Each metric is a mean with the half width of its 95 % interval; *: p < 0.05, **: p < 0.01 against the first policy.
    """
    shown, policies = list(_shown(cells)), list(dict.fromkeys(cell.policy for cell in cells))
    rows = [["metric", *policies]]
    for found in shown:
        marks = ["".join("*" for level in (0.05, 0.01) if c.p < level) for c in found]
        texts = [show(c.metric, c.value.mean, c.value.half_width) for c in found]
        rows.append([label(found[0].metric), *(text + mark for text, mark in zip(texts, marks, strict=True))])
    return latex_table(title, rows)


def latex_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A table of texts (booktabs), the first row its head; stars are raised."""
    body = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escaped(title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            body[0],
            r"\midrule",
            *body[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    """Text with LaTeX special characters escaped."""
    marked = "".join(_LATEX.get(character, character) for character in printable(text))
    inset = r"\quad " if marked.startswith("  ") else ""  # a part of what stands above it
    return inset + re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", marked.lstrip())


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\n": " ",
}
