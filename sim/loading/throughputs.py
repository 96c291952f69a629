"""Throughput tables: read from their file into the scenario, and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.throughputs import Rate
from equipoise.sim.scenario.tree import KeyPath, WrongValueError
from equipoise.sim.traces.table import TextTable

_AT: KeyPath = ("workload", "throughputs")
COLUMNS = ("job_type", "gpu_model", "gpus", "rate")


def with_rates(scenario: Scenario, base: Path | None) -> Scenario:
    """The scenario with the rows of its throughput file in it. Raises InputError, WrongValueError."""
    table = scenario.workload.throughputs
    if table is None or table.file is None:
        return scenario
    path = Path(os.path.normpath((base or Path()) / table.file))
    if not path.is_file():
        text = f"{table.file}: no such file in {base or Path()}"
        raise WrongValueError(("workload", "throughputs", "file"), text)
    filled = table.model_copy(update={"file": None, "rates": (*table.rates, *_rows(path))})
    workload = scenario.workload.model_copy(update={"throughputs": filled})
    return scenario.model_copy(update={"workload": workload})


def _rows(path: Path) -> Iterator[Rate]:
    table = TextTable(path)
    table.need(COLUMNS)
    gpus, rate = table.ints("gpus", low=1), table.floats("rate")
    table.refuse(rate <= 0, "rate", lambda k: f"{rate[k]:g} is not allowed, must be above 0")
    kinds, models = table.text("job_type"), table.text("gpu_model")
    for k in range(len(table)):
        yield Rate(job_type=kinds[k], gpu_model=models[k], gpus=int(gpus[k]), rate=float(rate[k]))


def throughput_problems(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Problems with unknown names, repeated rates, and types without a rate."""
    table = scenario.workload.throughputs
    if table is None:
        for k, job in enumerate(scenario.workload.jobs):
            if job.job_type:
                yield ("workload", "jobs", k, "job_type"), "has no effect without 'workload.throughputs'"
        return
    models = {group.accelerator for group in scenario.cluster.groups if group.gpus}
    if table.reference is not None and table.reference not in models:
        known = ", ".join(sorted(models))
        yield (*_AT, "reference"), f"{table.reference!r} is not an accelerator of the cluster; allowed: {known}"
    seen: set[tuple[str, str, int]] = set()
    for k, rate in enumerate(table.rates):
        key = (rate.job_type, rate.gpu_model, rate.gpus)
        if key in seen:
            yield (*_AT, "rates", k), f"{rate.job_type!r} on {rate.gpus} {rate.gpu_model} already has a rate"
        seen.add(key)
    types, named = {rate.job_type for rate in table.rates}, sorted(scenario.workload.models)
    for k, row in enumerate(table.models):
        if row.job_type in types:
            yield (*_AT, "models", k), f"{row.job_type!r} already has rates"
        types.add(row.job_type)
        if row.model not in named:
            yield (*_AT, "models", k, "model"), unknown("model", row.model, named)
    sizes = {
        row.job_type: (row.model, scenario.workload.models[row.model].parallel)
        for row in table.models
        if row.model in named
    }
    for k, job in enumerate(scenario.workload.jobs):
        if job.job_type and job.job_type not in types:
            known = ", ".join(sorted(types)) or "none"
            yield (("workload", "jobs", k, "job_type"), f"{job.job_type!r} has no rates; those with: {known}")
        elif job.job_type in sizes:
            name, parallel = sizes[job.job_type]
            if job.gpus % (each := parallel.tensor * parallel.pipeline):
                text = f"{job.gpus} GPUs are not a whole number of replicas of model {name!r}, which need {each} each"
                yield ("workload", "jobs", k, "gpus"), text
