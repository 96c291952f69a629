"""Time factor of a measured step, and the overlap exponent, of a model given by its shape."""

from __future__ import annotations

import math

import numpy as np

from equipoise.policies.physics import overlapped_s
from equipoise.sim.cost.transformer import capped, exchange_s, plan_of, replica_cost_s, section, stack_in_force
from equipoise.sim.hardware.profile import HardwareProfile, link_bytes_per_s
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import step_time
from equipoise.sim.scenario.model import Model, NodeGroup
from equipoise.sim.scenario.tree import KeyPath, WrongValueError
from equipoise.sim.scenario.units import format_seconds

LEAST_FACTOR = 1e-4


def with_factor(model: Model, profile: HardwareProfile, group: NodeGroup, path: KeyPath) -> Model:
    """With the factor that the measured step sets."""
    spec, bound = section(model)
    if spec.measured_step is None:
        return model
    own, layout = spec.measured_step, bound.layout
    if own.gpus % layout.replica_gpus:
        raise WrongValueError(
            (*path, "measured_step", "gpus"), f"{own.gpus} is not a multiple of {layout.replica_gpus}"
        )
    dp = own.gpus // layout.replica_gpus
    passes, rest = divmod(own.global_batch, dp * layout.micro_batch)
    if rest or not passes:
        text = f"{own.global_batch} is not a multiple of dp x micro_batch ({dp} x {layout.micro_batch})"
        raise WrongValueError((*path, "measured_step", "global_batch"), text)
    accelerator = profile.accelerator(group.accelerator)
    plan = plan_of(model, accelerator, link_bytes_per_s(group, profile), dp, passes)
    factor = _factor(plan, spec.constants(), own.time, path)
    scaled = bound.model_copy(update={"factor": factor})
    return model.model_copy(update={"transformer": spec.model_copy(update={"bound": scaled})})


def _factor(plan: ShardingPlan, stack: Stack, measured_s: float, path: KeyPath) -> float:
    """Factor on the predicted step that gives the measured one; the exchange never exceeds its links' rate."""
    from scipy.optimize import brentq  # slow to import, and few scenarios name a measured step

    def off(factor: float) -> float:
        """Predicted over measured, less 1."""
        return factor * float(step_time(plan, capped(stack, factor)).total) / measured_s - 1.0

    efficiency = float(np.asarray(stack.exchange_efficiency))
    factor = 1.0 / (off(1.0) + 1.0)
    if factor >= efficiency:  # the step is in proportion to it
        return factor
    least = off(LEAST_FACTOR)
    if least > 0.0:
        least_s = format_seconds((least + 1.0) * measured_s)
        raise WrongValueError(
            (*path, "measured_step", "time"),
            f"{format_seconds(measured_s)} is less than the exchange takes at its links' rate, {least_s}; "
            "check the nodes' nic and nics, or the stack",
        )
    return float(brentq(off, LEAST_FACTOR, efficiency, xtol=1e-12))


def overlap_of(model: Model, profile: HardwareProfile, group: NodeGroup) -> float:
    """The exponent with which a whole step hides its exchange as much as `sim.llm` says; 1 without an exchange.

    `sim.llm` lets gradients run beside the last backward pass only, the simulator beside the whole step.
    """
    _, bound = section(model)
    stack = stack_in_force(model)
    accelerator = profile.accelerator(group.accelerator)
    passes = max(1, math.ceil(bound.global_batch / (bound.dp * bound.layout.micro_batch)))
    link = link_bytes_per_s(group, profile)
    plan = plan_of(model, accelerator, link, passes=passes)
    work_s = replica_cost_s(model, accelerator, passes * bound.layout.micro_batch, link)[1]
    beside_s = bound.factor * exchange_s(plan, stack)
    shown_s = bound.factor * float(step_time(plan, stack).exchange)
    if beside_s <= 0.0 or shown_s >= beside_s * (1 - 1e-9):
        return 1.0
    low, high = 1.0, 64.0
    for _ in range(60):  # what shows falls with the exponent
        middle = (low + high) / 2
        shows_more = overlapped_s(work_s, beside_s, middle) - work_s > shown_s
        low, high = (middle, high) if shows_more else (low, middle)
    return high
