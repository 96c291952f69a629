"""Assumptions that a run takes from the hardware profile, as one note each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from equipoise.policies.observation import Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.power import host_w
from equipoise.sim.hardware.contracts import acting_faults, terms_of
from equipoise.sim.hardware.kinds import KINDS, LARGE_PRODUCTS, power_share
from equipoise.sim.hardware.profile import Accelerator, Measured, load_profile
from equipoise.sim.scenario.model import FaultsSpec, Scenario
from equipoise.sim.scenario.units import format_scaled, format_seconds, format_share

LARGE_PARAMETERS = 1e9
WEEK_S = 7 * 86400.0


def assumptions(scenario: Scenario, cluster: Cluster) -> Iterator[str]:
    """Lines on the power of hosts and GPUs, and on how much of their peak rate GPUs reach."""
    yield from _power(scenario, cluster)
    yield from assumed_draw(scenario)
    yield from _efficiency(scenario, cluster)
    yield from _contracts(scenario)
    yield from _contention(scenario)


def _power(scenario: Scenario, cluster: Cluster) -> Iterator[str]:
    groups, profile = scenario.cluster.groups, cluster.profile
    unknown = sorted({g.accelerator for g in groups if g.gpus and profile.accelerator(g.accelerator).max_w is None})
    if unknown:
        yield f"energy is not known: hardware profile {profile.name!r} does not state the power of {unknown[0]}"
    elif any(math.isnan(host_w(group, profile)) for group in groups):
        yield f"energy is not known: hardware profile {profile.name!r} lacks the power of hosts; give 'host_power'"
    elif typical := [group for group in groups if group.host_power is None]:
        drawn = format_scaled(host_w(typical[0], profile), "W")
        kind = profile.node_base_w.kind if profile.node_base_w is not None else "assumed"
        yield f"a host draws {drawn} in addition to its GPUs ({kind}, {profile.name}); give your own as 'host_power'"


def assumed_draw(scenario: Scenario) -> Iterator[str]:
    """A note on what capped jobs are assumed to draw, where their models do not state it."""
    energy, workload = scenario.energy, scenario.workload
    if energy.power_cap is None and energy.cluster_power_cap is None and not energy.policy_caps:
        return
    each = [
        f"model {name} {format_share(power_share(model))}" + (f" (kind {model.kind!r})" if model.kind in KINDS else "")
        for name, model in workload.models.items()
        if model.power_share is None
    ]
    if any(job.duration is not None for job in workload.jobs) or workload.trace or workload.generate:
        each.append("jobs given by their duration 100 %")
    if each:
        yield (
            f"power caps act from what jobs draw at full clock; assumed shares of the highest power beyond idling: "
            f"{', '.join(each)}; give 'power_share' of each model"
        )


def _contracts(scenario: Scenario) -> Iterator[str]:
    """Notes on spot GPUs that are never reclaimed, and on reclaims that a contract excludes."""
    declared, acting = scenario.faults.spot, acting_faults(scenario).spot
    for group in scenario.cluster.groups:
        kind, named = (terms_of(group, scenario.cost)[1].kind, declared is not None and declared.group == group.name)
        if kind == "spot" and not named:
            yield f"spot nodes of {group.name!r} are never reclaimed in this run; give 'faults.spot'"
        elif named and acting is None:
            yield f"'faults.spot' reclaims no node of {group.name!r}: its contract is {kind.replace('_', ' ')}"


def _contention(scenario: Scenario) -> Iterator[str]:
    """A note where jobs could slow each other by traffic inside replicas that cross nodes."""
    least = min(group.gpus for group in scenario.cluster.groups if group.gpus)
    crosses = set()
    for name, model in scenario.workload.models.items():
        experts = 1
        if model.transformer is not None and model.transformer.bound is not None:
            experts = model.transformer.bound.layout.ep
        if max(model.parallel.tensor * model.parallel.pipeline, experts) > least:
            crosses.add(name)
    if sum(job.count for job in scenario.workload.jobs if job.model is not None) > 1 and crosses:
        yield (
            f"model {min(crosses)}: its replicas cross nodes; what their GPUs send each other (tensor, context, expert "
            "and pipeline traffic) slows no other job on shared NICs and uplinks, and is slowed by none: where jobs "
            "share them at once, steps come out too short"
        )


def by_curve(scenario: Scenario) -> list[str]:
    """Models whose rate is that of an accelerator's large products."""
    return [
        name
        for name, m in scenario.workload.models.items()
        if m.flop_per_sample is not None and m.transformer is None and m.efficiency is None and m.kind == LARGE_PRODUCTS
    ]


def curve_origin(accelerator: Accelerator) -> str:
    """Origin of an accelerator's share of its peak rate; "" where it has none."""
    return accelerator.efficiency[-1].efficiency.kind if accelerator.efficiency else ""


def curve_origins(scenario: Scenario) -> dict[str, str]:
    """Origins of the peak shares that models of a scenario use, by accelerator."""
    profile = load_profile(scenario.cluster.hardware)
    names = {group.accelerator for group in scenario.cluster.groups if group.gpus} if by_curve(scenario) else ()
    return {name: curve_origin(profile.accelerator(name)) for name in names}


def unlike_curves(origins: Mapping[str, str]) -> Iterator[str]:
    """A note where compared accelerators have peak shares of different origins; origins: by accelerator."""
    if len(set(origins.values())) > 1:
        each = ", ".join(f"{name} {origin or 'none'}" for name, origin in sorted(origins.items()))
        yield f"shares of the peak rate have different origins ({each}): they do not show which GPU is faster"


def _efficiency(scenario: Scenario, cluster: Cluster) -> Iterator[str]:
    """Notes on models timed by a share of the peak rate: which share, and its origin."""
    models = scenario.workload.models
    for name, model in models.items():
        if (kind := KINDS.get(model.kind or "")) is not None:
            span = f"measured values were {kind.low:g} to {kind.high:g} times the assumed rate"
            yield f"model {name}: the rate of models of kind {model.kind!r}; {span} ({kind.origin})"
    named = by_curve(scenario)
    if not named:
        return
    origins = {}
    for gpu, accelerator in zip(cluster.gpu_models, cluster.accelerators, strict=True):
        if not accelerator.efficiency:
            continue
        origins[gpu] = curve_origin(accelerator)
        best = accelerator.efficiency[-1].efficiency
        share = f"{format_share(best.value)} of the peak rate of {gpu}{_between(best)}"
        reached = f"{share} ({best.kind}: {best.source})"
        for name in named:
            if models[name].parameters < LARGE_PARAMETERS:
                yield f"model {name}: its large passes reach {reached}: an upper bound, the rate of large products"
        if large := [name for name in named if models[name].parameters >= LARGE_PARAMETERS]:
            yield (
                f"model {large[0]}: {reached}; whole steps of large models reach 38 to 57 %: give 'transformer' "
                "or 'efficiency'"
            )
    yield from unlike_curves(origins)


def _between(number: Measured) -> str:
    if number.low is None or number.high is None:
        return ""
    return f", {format_share(number.low)} to {format_share(number.high)}"


def failures(faults: FaultsSpec, cluster: Cluster, gpus: Ints) -> Iterator[str]:
    """A note on crashes, by node and week and as the largest job experiences them; gpus (jobs,): of each."""
    if faults.crash is None:
        return
    node_s = faults.crash.node_mtbf_s(cluster.node_gpus)
    largest = int(gpus.max())
    nodes = max(1.0, largest / cluster.node_gpus)
    yield (
        f"a node crashes every {format_seconds(node_s)}: {WEEK_S / node_s:.3g} times a week, every "
        f"{node_s / 3600.0 * cluster.node_gpus:,.0f} GPU-hours; a job on {largest} GPUs meets a crash every "
        f"{format_seconds(node_s / nodes)}"
    )
