"""Table of the sizes that were run: values, results and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.sim.cost.step import memory_need_bytes
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.search import describe
from equipoise.sim.scenario.model import Scenario
from equipoise.study.display import LABELS, MAIN_OF_FEATURES
from equipoise.study.questions.targets import Target
from equipoise.study.questions.trials import Objective, Question, Trial
from equipoise.study.sure import between, ends, ratio_line, reasons

TITLES = {
    "rank": "",
    "values": "size",
    "meets": "meets",
    "chance": "chance",
    "gpus": "all GPUs",
    "makespan_s": "time",
    "makespan_between": "90 %",
    "cost_usd": "cost",
    "mfu_ratio": "MFU",
    "memory_ratio": "memory",
    **{key: LABELS[key] for key in MAIN_OF_FEATURES},
    "cost_between": "of cost, 90 %",
    "price_usd_per_h": "an hour",
    "committed_usd": "committed",
    "power_mean_w": "mean power",
    "carbon_kg": "CO2",
    "layout": "layout",
}
"""Columns of the table with their titles, the most important first."""


def ranked(trials: Sequence[Trial], question: Question, needed: int) -> list[dict[str, Any]]:
    """A row for each size: those that meet the targets first, by the objective. Numbers are means.

    Keys: TITLES, and those of the targets' results; `results`: these of each run.
    power_mean_w: of the site while it runs. Not known: NaN.
    """
    key = {"cost": "cost_usd", "price": "price_usd_per_h", "nodes": "gpus"}[question.objective]
    asked = [target.measure.key for target in question.targets]
    rows = [_row(trial, trial.met >= needed, asked) | _sure(trial, question.targets) for trial in trials]
    rows.sort(key=lambda row: (not row["meets"], math.isnan(row[key]), row[key], row["cost_usd"], row["makespan_s"]))
    return [{"rank": place + 1, **row} for place, row in enumerate(rows)]


def _row(trial: Trial, meets: bool, asked: Sequence[str]) -> dict[str, Any]:
    scenario = trial.candidate.scenario
    layout, memory = next(_layouts(scenario), ("", math.nan))
    names = ("mfu_ratio", "makespan_s", "cost_usd", "committed_usd", "energy_j", "carbon_kg", *MAIN_OF_FEATURES)
    means = {name: trial.mean(name) if name in trial.results[0] else math.nan for name in names}
    power_w = means["energy_j"] / means["makespan_s"] if means["makespan_s"] > 0.0 else math.nan
    return {key: trial.mean(key) for key in asked} | {
        "values": _values(trial),
        "meets": meets,
        "gpus": int(trial.mean("gpus")),
        "layout": layout,
        "mfu_ratio": means["mfu_ratio"],
        "memory_ratio": memory,
        "makespan_s": means["makespan_s"],
        "cost_usd": means["cost_usd"],
        "price_usd_per_h": means["cost_usd"] / (means["makespan_s"] / 3600.0),
        "committed_usd": means["committed_usd"],
        "power_mean_w": power_w,
        "carbon_kg": means["carbon_kg"],
        **{key: means[key] for key in MAIN_OF_FEATURES},
        "results": {key: [result[key] for result in trial.results] for key in asked},
    }


def _sure(trial: Trial, targets: Sequence[Target]) -> dict[str, Any]:
    """The chance of the targets and the intervals of time and cost, where steps are predicted."""
    sure, time_s, usd = trial.certainty, trial.mean("makespan_s"), trial.mean("cost_usd")
    if sure is None:
        return {"chance": None, "makespan_between": "", "cost_between": ""}
    return {
        "chance": trial.chance(targets),
        "makespan_between": between("makespan_s", time_s, sure.spread),
        "cost_between": between("cost_usd", usd, sure.spread),
        "makespan_interval_s": ends("makespan_s", time_s, sure.spread),
        "cost_interval_usd": ends("cost_usd", usd, sure.spread),
        **reasons(sure),
    }


def undecided(trials: Sequence[Trial], rows: Sequence[dict[str, Any]], objective: Objective) -> list[str]:
    """How sure it is that the first size has less of the objective than each other that meets the targets."""
    metric = {"cost": "cost_usd", "price": "", "nodes": ""}[objective]
    by = {_values(trial): trial for trial in trials}
    meeting = [row["values"] for row in rows if row["meets"]]
    if not metric or len(meeting) < 2:
        return []
    first, *others = ((name, by[name].candidate.scenario, by[name].mean(metric)) for name in meeting)
    return [line for other in others if (line := ratio_line(first, other, metric))]


def _values(trial: Trial) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in trial.candidate.values.items())


def _layouts(scenario: Scenario) -> Iterator[tuple[str, float]]:
    """(layout, share of the memory that the fullest GPU needs) of each model that is trained."""
    profile, names = load_profile(scenario.cluster.hardware), {g.accelerator for g in scenario.cluster.groups if g.gpus}
    room = min(profile.accelerator(name).memory_bytes.value for name in names)
    for job in scenario.workload.jobs:
        if job.model is None:
            continue
        model = scenario.workload.models[job.model]
        workers = max(1, job.gpus // (model.parallel.tensor * model.parallel.pipeline))
        need = memory_need_bytes(model, -(-job.global_batch // workers), workers)
        bound = model.transformer.bound if model.transformer is not None else None
        name = f"tp {model.parallel.tensor} pp {model.parallel.pipeline}"
        if bound is not None:
            name = describe(bound.layout.layout(workers, job.global_batch, model.precision))
        yield name, need / room


def changes(rows: Sequence[dict[str, Any]], objective: Objective) -> list[dict[str, Any]]:
    """Change that would rank each other size that meets the targets first, smallest first: {values, price, rate}.

    price: factor on its price per hour; rate: factor on its speed. Either alone makes its cost equal to that of the
    first, since a run costs its hours times their price. Only for the objectives cost and price (per hour), if the
    first is known; a rate does not affect the price per hour (NaN).
    """
    key = {"cost": "cost_usd", "price": "price_usd_per_h"}.get(objective, "")
    meeting = [row for row in rows if row["meets"] and key and row[key] > 0.0]
    found = [
        {
            "values": row["values"],
            "price": meeting[0][key] / row[key],
            "rate": row[key] / meeting[0][key] if key == "cost_usd" else math.nan,
            "price_usd_per_gpu_h": row["price_usd_per_h"] * meeting[0][key] / row[key] / row["gpus"],
            "mfu_ratio": row["mfu_ratio"] * row[key] / meeting[0][key] if key == "cost_usd" else math.nan,
        }
        for row in meeting[1:]
    ]
    return sorted(found, key=lambda change: -change["price"])
