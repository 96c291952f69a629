"""Fits a software stack's constants to measured training steps.

A CSV file of steps has one row per measurement: `config` (path of a Hugging Face style config.json, from the CSV's
folder), `accelerator` (a name of `sim.llm.hardware`), `node_gpus`, `node_bytes_per_s`, `seconds`, optionally
`stack` and `sequence` (tokens), and any field of `sim.llm.layout.Layout` as a column of its name. An empty cell is
the default.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from equipoise.policies.files import check_regular
from equipoise.sim.llm.fit import FittedStack, fit, predict
from equipoise.sim.llm.hardware import ACCELERATORS, Network
from equipoise.sim.llm.hf_config import from_config
from equipoise.sim.llm.interval import left_out_residuals, spread
from equipoise.sim.llm.layout import Layout
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.stack import Floats

OWN = ("config", "accelerator", "node_gpus", "node_bytes_per_s", "seconds", "stack", "sequence")
TEXTS, FLAGS = ("schedule", "recompute", "precision"), ("sequence_parallel", "offload")


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
    check_regular(path)
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        known = {*OWN, *(f.name for f in fields(Layout))}
        for name in reader.fieldnames or ():
            if name not in known:
                raise ValueError(f"{path}:1: {name}: unknown column; allowed: {', '.join(sorted(known))}")
        return [_step(path, reader.line_num, row) for row in reader]


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
        raise ValueError(
            f"accelerator: {row['accelerator']} is not known; allowed: {', '.join(ACCELERATORS)}"
        )
    sequence = int(_number("sequence", row["sequence"])) if row.get("sequence") else None
    shape = from_config((folder / row["config"]).read_text(), sequence)
    network = Network(
        int(_number("node_gpus", row["node_gpus"])), _number("node_bytes_per_s", row["node_bytes_per_s"])
    )
    plan = ShardingPlan(shape, _layout(row), ACCELERATORS[row["accelerator"]], network)
    plan.layout.check(shape)
    seconds = _number("seconds", row["seconds"])
    return TimedStep(plan, seconds, row["config"], row.get("stack") or "default")


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name}: {text} is not a number above 0")
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
        elif text.isdigit():
            given[name] = int(text)
        else:
            raise ValueError(f"{name}: {text} is not a whole number >= 0")
    return Layout(**given)  # type: ignore[arg-type]  # Layout checks every value itself


def fit_steps(steps: list[TimedStep]) -> StepFit:
    """Fits measured steps of two models or more. Raises ValueError with fewer."""
    q, measured, labels = (
        quantities(s.plan for s in steps),
        np.array([s.seconds for s in steps]),
        _labels(steps),
    )
    families = [s.family for s in steps]
    if len(set(families)) < 2:
        raise ValueError(
            "config: steps of at least two models are needed, so that one can be left out of the fit"
        )
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
