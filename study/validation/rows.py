"""The rows of a public data set: their cells, which of them can be used, and a measured step with its plan."""

from __future__ import annotations

import csv
import gzip
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from equipoise.base.numerals import strict_float
from equipoise.sim.llm.quantities import Quantities, ShardingPlan, quantities
from equipoise.sim.llm.stack import Floats


@dataclass(frozen=True, slots=True)
class Row:
    """A plan and its measured step [s]. `family` and `key` are what splits read; `configuration` is a plan without
    its scale, so that rows of one configuration differ in the number of accelerators only."""

    plan: ShardingPlan
    seconds: float
    family: str
    key: str
    stack: str
    configuration: str = ""
    memory_bytes: float = 0.0
    """Measured peak; 0: not measured."""


T = TypeVar("T")
REASONS = 3
"""Most reasons for leaving rows out that are listed; the others are counted together."""


class LeftOutWarning(UserWarning):
    """Rows or splits of a data set that could not be used, counted by reason."""


class Cells(dict[str, str]):
    """A row of a file: texts by column."""

    def number(self, name: str) -> float:
        """A number. Raises ValueError with the column's name, KeyError without such a column."""
        try:
            return strict_float(self[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}" if self[name] else f"{name}: empty") from None

    def whole(self, name: str) -> int:
        """A whole number, also one written with a point (16.0). Raises as `number`."""
        value = self.number(name)
        if not value.is_integer():
            raise ValueError(f"{name}: {self[name]!r} is not a whole number")
        return int(value)

    def measured(self, name: str) -> float:
        """A finite number above 0. Raises as `number`."""
        value = self.number(name)
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name}: {self[name]!r} is not above 0")
        return value


def read_csv(path: Path) -> list[Cells]:
    """The rows of a CSV file, gzipped or not. Raises OSError, ValueError without one."""
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            rows = [Cells(row) for row in csv.DictReader(file, restval="", restkey="")]
    except (csv.Error, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not a CSV file that can be read: {error}") from None
    if not rows:
        raise ValueError(f"{path.name}: has no rows")
    return rows


def read_rows(path: Path, make: Callable[[Cells], T | None]) -> list[T]:
    """Results of `make` for the rows of a CSV file; None marks an irrelevant row.

    A row that `make` cannot use (it raises ValueError) is left out, and a `LeftOutWarning` counts such rows by
    reason. Raises ValueError where no row can be used, KeyError for a missing column, OSError.
    """
    kept, reasons = [], Counter[str]()
    texts = read_csv(path)
    for text in texts:
        try:
            made = make(text)
        except ValueError as error:
            reasons[str(error)] += 1
            continue
        if made is not None:
            kept.append(made)
    if not kept:
        raise ValueError(f"{path.name}: no row can be used" + (f": {_told(reasons)}" if reasons else ""))
    if reasons:
        left = f"{reasons.total():,} of {len(texts):,} rows left out"
        warnings.warn(f"{path.name}: {left}: {_told(reasons)}", LeftOutWarning, stacklevel=2)
    return kept


def _told(reasons: Counter[str]) -> str:
    shown = reasons.most_common(REASONS)
    rest = reasons.total() - sum(count for _, count in shown)
    return "; ".join([f"{reason} ({count:,})" for reason, count in shown] + [f"others ({rest:,})"] * (rest > 0))


def labels(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The labels of rows for a fit."""
    kept = list(rows)
    stacks = [r.stack for r in kept]
    accelerators = [r.plan.accelerator.name for r in kept]
    both = [f"{stack}/{name}" for stack, name in zip(stacks, accelerators, strict=True)]
    return {"stack": stacks, "accelerator": accelerators, "stack+accelerator": both}


def stacked(rows: Sequence[Row]) -> Quantities:
    """The quantities of rows, in their order."""
    return quantities(r.plan for r in rows)


def seconds(rows: Sequence[Row]) -> Floats:
    """The measured steps of rows [s]."""
    return np.array([r.seconds for r in rows])


def partition(rows: Iterable[Row], chosen: Callable[[Row], bool]) -> tuple[list[Row], list[Row]]:
    """The rows for which `chosen` holds, and the others."""
    yes: list[Row] = []
    no: list[Row] = []
    for row in rows:
        (yes if chosen(row) else no).append(row)
    return yes, no


def divided(
    rows: Iterable[Row], split: int, fitted: Callable[[str, int], bool], by: str
) -> tuple[list[Row], list[Row]]:
    """The fitted and the held-out rows of a split, by a rule on each row's `family` or `key`."""
    return partition(rows, lambda row: fitted(getattr(row, by), split))


def left_out_groups(rows: Sequence[Row]) -> list[str]:
    """Group of a row that is left out together for an interval: its family, or its key if all are of one family."""
    families = [r.family for r in rows]
    return families if len(set(families)) > 1 else [r.key for r in rows]
