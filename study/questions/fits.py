"""Whether a large model fits: peak memory of every stage, predicted step, and changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.physics import overlapped_s
from equipoise.sim.assumptions import assumed_draw
from equipoise.sim.cost.certainty import certainty_of
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.cost.transformer import (
    INSIDE,
    fitted_gpu,
    memory_stack,
    plan_of,
    reached_share,
    section,
    stack_in_force,
)
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.certainty import Spread, StepCertainty
from equipoise.sim.llm.memory import MemoryEstimate, memory, peak_spread, smallest_change
from equipoise.sim.llm.memory_stack import GENERAL
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.search import Search, describe, search, why
from equipoise.sim.llm.shape import NARROW, Layout
from equipoise.sim.llm.step_time import StepEstimate, step_time
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.run import placed_alone
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.models.model import NAMES, precision_of
from equipoise.sim.scenario.tree import InputError
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.sure import above_public

_COLUMNS = ("total", "weights", "gradients", "optimizer", "activations", "logits", "base")


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


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
    certainty: StepCertainty | None = None  # of the step
    notes: tuple[str, ...] = ()  # what was assumed

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return math.fsum(self.parts_s.values())

    @property
    def step_interval_s(self) -> tuple[float, float] | None:
        """The 90 % interval of the step [s]."""
        sure = self.certainty
        return None if sure is None else (self.step_s * sure.low, self.step_s * sure.high)

    @property
    def memory_rests_on(self) -> str:
        """What the interval of the peak is, in words."""
        if not self.measured:
            return "that of another stack: no peaks of this one were measured"
        if not self.stage_measured:
            return "that of another stack: no peaks of the fullest stage were measured"
        low, high = self.memory.low / self.memory.peak, self.memory.high / self.memory.peak
        if math.isclose(high, GENERAL[1][1]) or math.isclose(low, GENERAL[1][0]):
            return "that of another stack: fewer than three models, or no such layouts, were measured"
        return "that of families left out of the fit"

    @property
    def fits_chance(self) -> float:
        """Chance that the peak is within the usable memory."""
        estimate = self.memory
        spread = Spread.between(estimate.low / estimate.peak, estimate.high / estimate.peak)
        return spread.chance_below(estimate.capacity / estimate.peak)

    @property
    def answer(self) -> tuple[str, ...]:
        """Whether it fits, how long a step takes, and what would change that."""
        estimate, la = self.memory, self.plan.layout
        interval = f"{_gb(estimate.low)} .. {_gb(estimate.high)}"
        verb = "does not fit" if not estimate.fits else "fits" if self.fits_chance >= 0.5 else "may not fit"
        told = f"{self.model} {verb} on {la.gpus:,} GPUs: {_gb(estimate.peak)} (90 %: {interval}) of "
        told += f"{_gb(estimate.capacity)} usable; the interval is {self.memory_rests_on}."
        if estimate.fits and estimate.high > estimate.capacity:
            told += f" It is not certain: it fits with {100 * self.fits_chance:.0f} %."
        if self.change is None:
            told += " No single change makes it fit."
        elif self.change:
            listed = ", ".join(f"{key} {a} -> {b}" for key, (a, b) in self.change.items())
            told += f" The smallest change that makes it fit: {listed}."
        ends = self.step_interval_s
        between = f" (90 %: {ends[0]:.4g} .. {ends[1]:.4g} s)" if ends is not None else ""
        shares = {name: part_s / self.step_s for name, part_s in self.parts_s.items()}
        most = sorted(((s, name) for name, s in shares.items() if s >= 0.005), reverse=True)
        parts = ", ".join(f"{name} {100 * share:.0f} %" for share, name in most)
        of = "16-bit peak rate" if la.precision in NARROW else "peak rate"
        step = f"A step takes {self.step_s:.4g} s{between}, {100 * self.utilisation:.1f} % of the {of}: {parts}."
        if self.other is not None and self.other.found:
            return told, step, f"The fastest layout is {why(self.other)}."
        return told, step

    def findings(self, plans: int = 0) -> Findings:
        """The answer, the memory of each stage, and the fastest layouts that fit."""
        la = self.plan.layout
        remarks = [f"{self.job}: {la.global_batch:,} sequences a step, {describe(la)}"]
        remarks += self.certainty.lines() if self.certainty is not None else ()
        remarks += [f"note: {note}" for note in self.notes]
        tables = [FindingsTable("", self._stages(), [False, *(True for _ in _COLUMNS)])]
        other = self.other
        if other is not None and not other.found:
            remarks.append(f"none of {other.tried} layouts fits: the smallest needs {_gb(other.smallest_bytes)}")
        elif other is not None:
            found = other.found[:plans]
            rows = [(f"{self.factor * f.seconds:.4g} s", _gb(f.peak_bytes), describe(f.plan.layout)) for f in found]
            tables.append(
                FindingsTable("fastest layouts", [("a step", "memory", "layout"), *rows], [True, True, False])
            )
        return Findings(f"Fit: {self.job}", self.answer, tuple(tables), tuple(remarks))

    def _stages(self) -> list[list[str]]:
        """A row per stage; equal neighbouring stages share one."""
        found: list[tuple[int, int, list[str]]] = []
        for index, stage in enumerate(self.memory.stages):
            cells = [f"{getattr(stage, name) / 1e9:.2f}" for name in _COLUMNS]
            first = found.pop()[0] if found and found[-1][2] == cells else index
            found.append((first, index, cells))
        rows = [[str(first) if first == last else f"{first}-{last}", *cells] for first, last, cells in found]
        return [["stage [GB]", *_COLUMNS], *rows]

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
    for job in scenario.workload.jobs:
        model = scenario.workload.models.get(job.model or "")
        if model is None or model.transformer is None:
            continue
        (spec, bound), config = section(model), placed_alone(scenario, job)
        profile = load_profile(scenario.cluster.hardware)
        names = [config.cluster.gpu_models[k] for k in np.unique(config.cluster.node_model[config.nodes])]
        accelerator = min(map(profile.accelerator, names), key=lambda a: a.memory_bytes.value)
        plan = _plan(plan_of(model, accelerator, config.fabric_bytes_per_s), job)
        stack, keeps = stack_in_force(model), memory_stack(spec, model)
        estimate = memory(plan, keeps, peak_spread(plan, spec.memory_spread))
        of_stage = spec.memory_stage in (None, estimate.fullest)
        if not of_stage:
            estimate = memory(plan, keeps, GENERAL[1])
        changed = None if estimate.fits else smallest_change(plan, keeps)
        change = {} if estimate.fits else None if changed is None else _difference(plan.layout, changed.layout)
        other = None
        if plans:
            other = search(
                plan.shape,
                plan.accelerator,
                plan.network,
                job.gpus,
                job.global_batch,
                stack,
                keeps,
                precision_of(model.precision),
                speed=1.0 / float(config.scale.max()),
                spread=spec.memory_spread,
            )
        made = Fits(
            job.name,
            job.model or "",
            plan,
            estimate,
            spec.memory_measured,
            _parts_s(config),
            bound.factor,
            change,
            other,
            reached_share(accelerator, fitted_gpu(spec)),
            of_stage,
            certainty_of(model, plan, names[0]),
            tuple(assumed_draw(scenario)),
        )
        above = above_public(scenario, made.utilisation)
        yield replace(made, notes=(*made.notes, above)) if above else made


def _parts_s(config: Configuration) -> dict[str, float]:
    """Parts of a mean step [s] of the slowest worker, with the exchange overlapped as in a run."""
    model = config.model
    slowest = int(np.maximum(config.compute_s, config.input_s).argmax())
    samples, rate = int(config.samples[slowest]), config.fabric_bytes_per_s
    accelerator = config.cluster.accelerators[int(config.cluster.node_model[config.nodes[slowest]])]
    spec, bound = section(model)
    passes = -(-samples // bound.layout.micro_batch)
    plan = plan_of(model, accelerator, rate, config.workers, passes, config.links)
    step = step_time(plan, stack_in_force(model))
    parts = {f.name: float(getattr(step, f.name)) for f in fields(StepEstimate) if f.name != "exchange"}
    parts |= {name: parts[name] / spec.replica_links for name in INSIDE}
    work_s = float(config.compute_s[slowest])
    scale = work_s / math.fsum(parts.values())
    parts = {name: scale * part for name, part in parts.items()}
    if (waits_s := float(config.input_s[slowest]) - work_s) > 0.0:
        parts["input"] = waits_s
        work_s += waits_s
    parts["exchange"] = overlapped_s(work_s, config.exchange.alone_s, model.overlap) - work_s
    parts["exchange"] /= config.spec.sync_interval
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
        "answer": " ".join(found.answer),
        "job": found.job,
        "model": found.model,
        "fits": estimate.fits,
        "layout": asdict(found.plan.layout),
        "peak_bytes": estimate.peak,
        "peak_low_bytes": estimate.low,
        "peak_high_bytes": estimate.high,
        "usable_bytes": estimate.capacity,
        "fits_chance": found.fits_chance,
        "memory_measured_on_this_stack": found.measured,
        "memory_rests_on": found.memory_rests_on,
        "stages": [{**asdict(stage), "total": stage.total} for stage in estimate.stages],
        "change": None if found.change is None else {k: list(v) for k, v in found.change.items()},
        "step_s": found.step_s,
        "step_interval_s": found.step_interval_s,
        "step_rests_on": found.certainty.rests_on if found.certainty else "",
        "step_outside_the_fit": list(found.certainty.outside) if found.certainty else [],
        "nearest_measurement": str(found.certainty.nearest) if found.certainty else "",
        "step_parts_s": dict(found.parts_s),
        "utilisation": found.utilisation,
        "notes": list(found.notes),
    }
