"""Whether a large model fits: peak memory of every stage, predicted step, and changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from equipoise.policies.physics import overlapped_s
from equipoise.sim.cost.step import replica_teacher_s
from equipoise.sim.cost.transformer import exchange_s, memory_stack, plan_of, reached_share, section, stack_in_force
from equipoise.sim.hardware.profile import Accelerator, link_bytes_per_s, load_profile
from equipoise.sim.llm.layout import Layout
from equipoise.sim.llm.memory import MemoryEstimate, memory, smallest_change
from equipoise.sim.llm.memory_stacks import GENERAL
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.search import Search, search
from equipoise.sim.llm.step_time import StepEstimate, step_time
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.scenario.model import JobSpec, Model, Scenario
from equipoise.sim.scenario.models.transformer import NAMES, StackSpec, precision_of
from equipoise.sim.scenario.tree import InputError


@dataclass(frozen=True)
class Fits:
    """One job of one model: its plan, peak memory and step; `change` holds the keys that would make it fit.

    `change` is empty when it fits, None when no single change is enough; `other` are the fastest fitting layouts.
    """

    job: str
    model: str
    plan: ShardingPlan
    memory: MemoryEstimate
    measured: bool
    parts_s: Mapping[str, float]  # the step by what takes the time
    factor: float
    change: Mapping[str, tuple[Any, Any]] | None
    other: Search | None
    reached: float = 1.0  # of the peak rate, see `reached_share`
    stage_measured: bool = True  # peaks of the fullest stage were
    spread: tuple[float, float] | None = None  # measured / predicted step of 90 % of unseen models

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return math.fsum(self.parts_s.values())

    @property
    def utilisation(self) -> float:
        """Model FLOP over the FLOP of the GPUs in a step at their dense 16-bit peak rate."""
        la, shape = self.plan.layout, self.plan.shape
        flop = shape.train_flop_per_token() * la.global_batch * shape.sequence / la.gpus
        return flop * self.reached / (self.step_s * self.plan.accelerator.flop_per_s)


def fits(path: Path, overrides: tuple[str, ...] = (), plans: int = 0) -> list[Fits]:
    """Every job of the scenario in `path` whose model is a `transformer`; `plans` > 0: with the fastest layouts.

    Raises InputError, one line per mistake, also when no job is of such a model.
    """
    scenario = read_scenario(path, overrides, fits=False).scenario
    found = list(_each(scenario, plans))
    if not found:
        raise InputError([f"{path}: no job of a model with 'transformer' in it"])
    return found


def _each(scenario: Scenario, plans: int) -> Iterator[Fits]:
    profile, group = load_profile(scenario.cluster.hardware), scenario.cluster.groups[0]
    for job in scenario.workload.jobs:
        model = scenario.workload.models.get(job.model or "")
        if model is None or model.transformer is None:
            continue
        spec, bound = section(model)
        plan = _plan(plan_of(model, profile.accelerator(group.accelerator), link_bytes_per_s(group, profile)), job)
        stack, keeps = stack_in_force(model), memory_stack(spec, model)
        estimate = memory(plan, keeps, spec.memory_spread())
        of_stage = spec.memory_stage in (None, estimate.fullest)
        if not of_stage:
            estimate = memory(plan, keeps, GENERAL[1])
        speed = _speed(scenario, job)
        changed = None if estimate.fits else smallest_change(plan, keeps)
        change = {} if estimate.fits else None if changed is None else _difference(plan.layout, changed.layout)
        machines = (plan.shape, plan.accelerator, plan.network)
        precision = precision_of(model.precision)
        other = (
            search(*machines, job.gpus, job.global_batch, stack, keeps, precision, plan.frozen_parameters, speed)
            if plans
            else None
        )
        yield Fits(
            job.name,
            job.model or "",
            plan,
            estimate,
            spec.memory_measured,
            _parts_s(model, plan, profile.accelerator(group.accelerator), speed),
            bound.factor,
            change,
            other,
            reached_share(profile.accelerator(group.accelerator)),
            of_stage,
            spec.stack.spread if isinstance(spec.stack, StackSpec) else None,
        )


def _speed(scenario: Scenario, job: JobSpec) -> float:
    """Speed of the slowest node that the job needs if it takes the nodes that it may use in their order."""
    named = set(job.gpu_types)
    groups = [g for g in scenario.cluster.groups if not named or named & {g.name, g.accelerator}]
    before = accumulate((g.count * g.gpus for g in groups), initial=0)
    return min((g.speed for g, gpus in zip(groups, before, strict=False) if gpus < job.gpus), default=1.0)


def _parts_s(model: Model, plan: ShardingPlan, accelerator: Accelerator, speed: float) -> dict[str, float]:
    """Parts of a step [s] on nodes of this speed, with the exchange overlapped as in the simulator."""
    stack, factor = stack_in_force(model), section(model)[1].factor
    step, samples = step_time(plan, stack), -(-plan.layout.global_batch // plan.layout.data)
    parts = {f.name: factor * float(getattr(step, f.name)) / speed for f in fields(StepEstimate)}
    if model.lighter.teacher_flop_per_sample:
        parts["teacher"] = replica_teacher_s(model, accelerator, samples) / speed
    work_s = math.fsum(part for name, part in parts.items() if name != "exchange")
    parts["exchange"] = overlapped_s(work_s, factor * exchange_s(plan, stack), model.overlap) - work_s
    return parts


def _plan(plan: ShardingPlan, job: JobSpec) -> ShardingPlan:
    la = plan.layout
    values = {f.name: getattr(la, f.name) for f in fields(la)}
    values |= {"data": job.gpus // la.replica_gpus, "global_batch": job.global_batch}
    return replace(plan, layout=Layout(**values))


def _difference(before: Layout, after: Layout) -> dict[str, tuple[Any, Any]]:
    """Keys of the scenario whose values differ, with both."""
    pairs = {f.name: (getattr(before, f.name), getattr(after, f.name)) for f in fields(before)}
    return {NAMES.get(name, name): pair for name, pair in pairs.items() if pair[0] != pair[1]}


def as_dict(found: Fits) -> dict[str, Any]:
    """The answer as plain data, in base units."""
    estimate = found.memory
    return {
        "job": found.job,
        "model": found.model,
        "fits": estimate.fits,
        "layout": asdict(found.plan.layout),
        "peak_bytes": estimate.peak,
        "peak_low_bytes": estimate.low,
        "peak_high_bytes": estimate.high,
        "usable_bytes": estimate.capacity,
        "memory_measured_on_this_stack": found.measured,
        "stages": [{**asdict(stage), "total": stage.total} for stage in estimate.stages],
        "change": None if found.change is None else {k: list(v) for k, v in found.change.items()},
        "step_s": found.step_s,
        "step_interval_s": [found.step_s * end for end in found.spread] if found.spread else None,
        "step_parts_s": dict(found.parts_s),
        "utilisation": found.utilisation,
    }
