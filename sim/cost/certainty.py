"""How sure the steps of a scenario's models are: of large models by published runs, of traced ones by the error of
their rates, of others by their kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from equipoise.sim.cost.transformer import plan_of, section, stack_in_force
from equipoise.sim.hardware.kinds import KINDS, LARGE_PRODUCTS
from equipoise.sim.hardware.profile import HardwareProfile, StepTime, load_profile
from equipoise.sim.llm.certainty import FEWEST, Spread, StepCertainty, certainty, together
from equipoise.sim.llm.quantities import ShardingPlan, quantities
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import stall, step_times
from equipoise.sim.network.topology import link_bytes_per_s
from equipoise.sim.scenario.model import JobSpec, Model, NodeGroup, Scenario
from equipoise.sim.scenario.models.model import StackSpec

LARGE = Spread.between(0.77 / 0.57, 0.77 / 0.38)
"""Of steps timed at the rate of large products, 0.77 of the peak: whole steps of large models reach 0.38 to 0.57."""


def certainty_of(model: Model, plan: ShardingPlan, accelerator: str) -> StepCertainty:
    """How sure the steps of a large model are on an accelerator of that name; a fitted file has its own interval."""
    spec = section(model)[0]
    name = spec.stack if isinstance(spec.stack, str) else ""
    own_step = spec.measured_step
    sure = certainty(plan, accelerator, name, measured_on="" if own_step is None else own_step.accelerator)
    sure = _with_stalls(sure, plan, stack_in_force(model))
    own = spec.stack.spread if isinstance(spec.stack, StackSpec) else None
    if own is None or own_step is not None:
        return sure
    text = "families left out of the fit to your steps"
    return replace(sure, spread=Spread.between(*own), rests_on=text, outside=())


def _with_stalls(sure: StepCertainty, plan: ShardingPlan, stack: Stack) -> StepCertainty:
    """Two-peaked, where pipelines of the stack stall at times."""
    q = quantities([plan])
    chance, longer_s = (float(part[0]) for part in stall(q, stack))
    if not chance:
        return sure
    longer = 1.0 + longer_s / float(np.asarray(step_times(q, stack).total)[0])
    text = f"{100 * chance:.0f} % of such pipelines stall and take {longer:.2g} times as long"
    return replace(sure, spread=sure.spread.with_stall(chance, longer), outside=(*sure.outside, text))


def how_sure(scenario: Scenario) -> Mapping[str, StepCertainty]:
    """By model that a job uses and whose step is predicted: its certainty on the least known GPUs that it may use.

    A model whose step or share of the peak was measured is not in it.
    """
    profile, used = load_profile(scenario.cluster.hardware), dict[str, list[JobSpec]]()
    for job in scenario.workload.jobs:
        if job.model is not None:
            used.setdefault(job.model, []).append(job)
    found = {}
    for name, jobs in used.items():
        model = scenario.workload.models[name]
        groups = [g for g in scenario.cluster.groups if g.gpus and any(_may_use(job, g) for job in jobs)]
        each = [one for g in groups if (one := _on(model, g, profile)) is not None]
        if each:
            found[name] = together(each)
    return found


def _may_use(job: JobSpec, group: NodeGroup) -> bool:
    return not job.gpu_types or bool({group.name, group.accelerator} & set(job.gpu_types))


def _on(model: Model, group: NodeGroup, profile: HardwareProfile) -> StepCertainty | None:
    if model.step is not None:
        return _of_step(profile.accelerator(group.accelerator).step(model.step, model.precision), group.accelerator)
    if model.transformer is None:
        return _of_kind(model, group.accelerator)
    if model.transformer.bound is None:
        return None
    bound = section(model)[1]
    passes = max(1, bound.global_batch // (bound.dp * bound.layout.micro_batch))
    accelerator = profile.accelerator(group.accelerator)
    plan = plan_of(model, accelerator, link_bytes_per_s(group, profile), passes=passes)
    return certainty_of(model, plan, group.accelerator)


def _of_step(step: StepTime, accelerator: str) -> StepCertainty | None:
    """Of a step in a hardware profile: its own interval where it was predicted; None where it was measured."""
    time_s = step.beta_s if step.beta_s.value > 0.0 else step.alpha_s
    if step.kind != "predicted" or time_s.low is None or time_s.high is None or not time_s.low > 0.0:
        return None
    spread = Spread.between(time_s.low / time_s.value, time_s.high / time_s.value)
    return StepCertainty(spread, step.source, model=step.workload, group=("traced", ""), gpu=accelerator)


def _of_kind(model: Model, accelerator: str) -> StepCertainty | None:
    """Of a model by its work: the measured range of its kind, of fewer than three families the widest of all kinds."""
    if model.efficiency is not None or model.flop_per_sample is None:
        return None
    name = model.kind or "convolutional"
    work = (name, model.flop_per_sample)
    if name == LARGE_PRODUCTS:
        text = "timed at the rate of large products, of which whole steps of large models take 1.4 to 2 times"
        return StepCertainty(LARGE, text, model=work, group=(name, ""), gpu=accelerator)
    kind = KINDS[name]
    if kind.families >= FEWEST:
        ends, text = (1.0 / kind.high, 1.0 / kind.low), f"measured models of kind {name}, {kind.families} families"
    else:
        ends = 1.0 / max(k.high for k in KINDS.values()), 1.0 / min(k.low for k in KINDS.values())
        few = "1 family" if kind.families == 1 else f"{kind.families} families"
        text = f"no more than {few} of kind {name} measured: the widest interval of all kinds"
    return StepCertainty(Spread.between(*ends), text, model=work, group=(name, ""), gpu=accelerator)
