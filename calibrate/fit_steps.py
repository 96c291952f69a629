"""Fits a software stack's constants to measured training steps.

A CSV file of steps has one row per measurement: `config` (path of a Hugging Face style config.json, from the CSV's
folder), `accelerator` (a name of `sim.llm.hardware`), `node_gpus`, `node_bytes_per_s`, `seconds`, optionally
`stack` and `sequence` (tokens), and any field of `sim.llm.layout.Layout` as a column of its name. An empty cell is
the default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from equipoise.base.numerals import is_index, strict_float
from equipoise.calibrate.fit.csv_rows import CsvRows
from equipoise.sim.llm.fit import FittedStack, fit, left_out_residuals, predict, spread
from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.hf_config import from_config
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.shape import Layout
from equipoise.sim.llm.stack import Floats
from equipoise.sim.scenario.tree import read_text

OWN = ("config", "accelerator", "node_gpus", "node_bytes_per_s", "seconds", "stack", "sequence")
TEXTS, FLAGS = ("schedule", "recompute", "precision"), ("sequence_parallel", "offload")
MOST, MOST_COUNT = 1e30, 10**15


@dataclass(frozen=True)
class TimedStep:
    """A plan and its measured step [s], with the file of its model as its family."""

    plan: ShardingPlan
    seconds: float
    family: str
    stack: str


@dataclass(frozen=True)
class StepFit:
    """Fitted constants, and the factors (low, high) that hold 90 % of the steps of models left out of the fit."""

    fitted: FittedStack
    spread: tuple[float, float]
    families: int


def read_steps(path: Path) -> list[TimedStep]:
    """The rows of a CSV of steps. Raises ValueError, `file:line: column: what is wrong`, on the first bad row."""
    rows = CsvRows(path)
    known = {*OWN, *(f.name for f in fields(Layout))}
    for name in rows.columns:
        if name not in known:
            raise ValueError(f"{path}:1: {name}: unknown column; allowed: {', '.join(sorted(known))}")
    return [_step(path, line, row) for line, row in rows]


def _step(path: Path, line: int, row: dict[str, str]) -> TimedStep:
    try:
        return _parse(path.parent, row)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}:{line}: {error}") from None


def _parse(folder: Path, row: dict[str, str]) -> TimedStep:
    for name in ("config", "accelerator", "node_gpus", "node_bytes_per_s", "seconds"):
        if not row.get(name):
            raise ValueError(f"{name}: missing")
    if row["accelerator"] not in ACCELERATORS:
        raise ValueError(f"accelerator: {row['accelerator']} is not known; allowed: {', '.join(ACCELERATORS)}")
    sequence = _count("sequence", row["sequence"]) if row.get("sequence") else None
    shape = from_config(read_text(folder / row["config"]), sequence)
    network = NetworkRates(_count("node_gpus", row["node_gpus"]), _number("node_bytes_per_s", row["node_bytes_per_s"]))
    plan = ShardingPlan(shape, _layout(row), ACCELERATORS[row["accelerator"]], network)
    plan.layout.check(shape)
    seconds = _number("seconds", row["seconds"])
    return TimedStep(plan, seconds, row["config"], row.get("stack") or "default")


def _number(name: str, text: str) -> float:
    try:
        value = strict_float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= MOST:
        raise ValueError(f"{name}: {text} is not a number above 0 and at most {MOST:g}")
    return value


def _count(name: str, text: str) -> int:
    if not (is_index(text) and 0 < (value := int(text)) <= MOST_COUNT):
        raise ValueError(f"{name}: {text} is not a whole number from 1 to {MOST_COUNT}")
    return value


def _layout(row: dict[str, str]) -> Layout:
    given: dict[str, object] = {}
    for name in (f.name for f in fields(Layout)):
        text = row.get(name)
        if not text:
            continue
        if name in FLAGS:
            if text not in ("true", "false"):
                raise ValueError(f"{name}: {text} is not true or false")
            given[name] = text == "true"
        elif name in TEXTS:
            given[name] = text
        elif is_index(text) and int(text) <= MOST_COUNT:
            given[name] = int(text)
        else:
            raise ValueError(f"{name}: {text} is not a whole number from 0 to {MOST_COUNT}")
    return Layout(**given)  # type: ignore[arg-type]  # Layout checks every value itself


def fit_steps(steps: list[TimedStep]) -> StepFit:
    """Fits measured steps of two models or more. Raises ValueError with fewer."""
    q, measured, labels = (quantities(s.plan for s in steps), np.array([s.seconds for s in steps]), _labels(steps))
    families = [s.family for s in steps]
    if len(set(families)) < 2:
        raise ValueError("config: steps of at least two models are needed, so that one can be left out of the fit")
    fitted = fit(q, measured, labels)
    left = left_out_residuals(q, measured, labels, families, fitted)
    return StepFit(fitted, spread(left, families), len(set(families)))


def predicted_steps(found: StepFit, steps: list[TimedStep]) -> Floats:
    """What the fit predicts for these steps, shape (rows,) [s]."""
    return predict(found.fitted, quantities(s.plan for s in steps), _labels(steps))


def _labels(steps: list[TimedStep]) -> dict[str, list[str]]:
    stacks = [s.stack for s in steps]
    accelerators = [s.plan.accelerator.name for s in steps]
    both = [f"{a}/{b}" for a, b in zip(stacks, accelerators, strict=True)]
    return {"stack": stacks, "accelerator": accelerators, "stack+accelerator": both}
