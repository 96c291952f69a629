"""One measured step of a public data set: the plan, what was measured, and the labels that fits and splits use."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.sim.llm.quantities import Plan, Quantities, quantities
from equipoise.sim.llm.stack import Floats


@dataclass(frozen=True, slots=True)
class Row:
    """A plan and its measured step [s]. `family` and `key` are what splits read; `configuration` is a plan without
    its scale, so that rows of one configuration differ in the number of accelerators only."""

    plan: Plan
    seconds: float
    family: str
    key: str
    stack: str
    configuration: str = ""
    memory_bytes: float = 0.0
    """Measured peak; 0: not measured."""


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, gzipped or not, as texts by column. Raises OSError, ValueError without one."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError(f"{path.name}: has no rows")
    return rows


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
    """What is left out together for an interval: the family of a row, or its key where all are of one family."""
    families = [r.family for r in rows]
    return families if len(set(families)) > 1 else [r.key for r in rows]
