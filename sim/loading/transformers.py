"""Derives the simulator's model values from each `transformer` section, its jobs and the cluster.

`read_files` puts the content of files in their place, so that a scenario means the same wherever it runs; `bind`
derives degrees of parallelism, overlap and the factor of a measured step. Both give problems as (key path, text).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.physics import overlapped_s
from equipoise.sim.cost.certainty import how_sure
from equipoise.sim.cost.transformer import (
    accelerator_of,
    capped,
    exchange_s,
    memory_stack,
    plan_of,
    replica_cost_s,
    section,
    stack_in_force,
)
from equipoise.sim.hardware.profile import HardwareProfile, load_profile
from equipoise.sim.llm import search as llm
from equipoise.sim.llm.hardware import AcceleratorRates, NetworkRates
from equipoise.sim.llm.hf_config import from_config
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import NARROW, Layout, Transformer
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import step_time
from equipoise.sim.network.topology import gpu_nic_bytes_per_s, link_bytes_per_s
from equipoise.sim.scenario.errors import read_model
from equipoise.sim.scenario.model import (
    ClusterSpec,
    JobSpec,
    MemorySpec,
    Model,
    NodeGroup,
    Parallel,
    Scenario,
    TreeTopology,
)
from equipoise.sim.scenario.models.model import (
    LAYOUT,
    NAMES,
    Bound,
    LayoutSpec,
    StackSpec,
    TransformerSpec,
    is_file,
    precision_of,
)
from equipoise.sim.scenario.tree import InputError, KeyPath, WrongValueError, read_text
from equipoise.sim.scenario.units import format_seconds

LEAST_FACTOR = 1e-4


def with_factor(model: Model, profile: HardwareProfile, group: NodeGroup, path: KeyPath) -> Model:
    """With the factor that the measured step sets, on its accelerator and over the links of `group`."""
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
    try:
        accelerator = profile.accelerator(own.accelerator)
    except ValueError as error:
        raise WrongValueError((*path, "measured_step", "accelerator"), str(error)) from None
    there = group.model_copy(update={"accelerator": own.accelerator})
    plan = plan_of(model, accelerator, link_bytes_per_s(there, profile), dp, passes)
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


Problem = tuple[KeyPath, str]
CHECKPOINT_BYTES = 10.0
"""Bytes per parameter in a checkpoint beside four of a 32-bit copy: Adam's two moments and the 16-bit weights."""


def has_transformers(scenario: Scenario) -> bool:
    """Whether any model is given by its shape."""
    return any(m.transformer for m in scenario.workload.models.values())


def read_files(scenario: Scenario, base: Path | None) -> tuple[Scenario, list[Problem]]:
    """With the shapes and stacks that the scenario names by their files, looked up in `base`."""
    models, problems = dict(scenario.workload.models), list[Problem]()
    for name, model in models.items():
        if model.transformer is None:
            continue
        path: KeyPath = ("workload", "models", name, "transformer")
        try:
            spec = _with_files(model.transformer, base or Path(), path)
            models[name] = model.model_copy(update={"transformer": spec})
        except WrongValueError as error:
            problems.append((error.path, str(error)))
    return _with_models(scenario, models), problems


def with_samples(scenario: Scenario) -> tuple[Scenario, list[Problem]]:
    """With the targets of jobs in samples where they were given in tokens, rounded up."""
    jobs, problems = list(scenario.workload.jobs), list[Problem]()
    for k, job in enumerate(jobs):
        if job.tokens is None or job.model is None:
            continue
        each = scenario.workload.models[job.model].tokens
        if each:
            jobs[k] = job.model_copy(update={"samples": -(-job.tokens // each), "tokens": None})
        else:
            wanted = f"model {job.model!r} has no 'tokens_per_sample'and no 'transformer'"
            problems.append((("workload", "jobs", k, "tokens"), wanted))
    workload = scenario.workload.model_copy(update={"jobs": tuple(jobs)})
    return scenario.model_copy(update={"workload": workload}), problems


def _found(base: Path, name: str) -> Path:
    """A file beside the scenario; else one in the working folder, such as `--set` may name."""
    return base / name if (base / name).exists() or not Path(name).exists() else Path(name)


def _with_files(spec: TransformerSpec, base: Path, path: KeyPath) -> TransformerSpec:
    if spec.config is not None and is_file(spec.config):
        try:
            spec = spec.with_shape(from_config(read_text(_found(base, spec.config)), spec.sequence or None))
        except InputError as error:
            raise WrongValueError((*path, "config"), error.lines[0]) from None
        except ValueError as error:
            raise WrongValueError((*path, "config"), f"{spec.config}: {error}") from None
    if isinstance(spec.stack, str) and is_file(spec.stack):
        try:
            spec = spec.model_copy(update={"stack": read_model(_found(base, spec.stack), StackSpec)})
        except InputError as error:
            raise WrongValueError((*path, "stack"), error.lines[0]) from None
    try:
        TransformerSpec.model_validate(spec.model_dump())  # the layout against a shape that was read
    except ValueError as error:
        raise WrongValueError(path, _first(error)) from None
    return spec


def _first(error: ValueError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Value error, " in line]
    return lines[0].split("Value error, ")[1].split(" [type=")[0] if lines else str(error)


def bind(scenario: Scenario, profile: HardwareProfile) -> tuple[Scenario, list[Problem]]:
    """The scenario with the values derived for these models, and the micro-batches of their jobs."""
    models, jobs = dict(scenario.workload.models), list(scenario.workload.jobs)
    problems: list[Problem] = []
    for name, model in models.items():
        if model.transformer is None:
            continue
        path: KeyPath = ("workload", "models", name)
        mine = [k for k, job in enumerate(jobs) if job.model == name]
        try:
            models[name] = _bound(scenario, profile, model, [jobs[k] for k in mine], path)
        except WrongValueError as error:
            problems.append((error.path, str(error)))
            continue
        for k in mine:
            try:
                jobs[k] = _job(jobs[k], models[name], ("workload", "jobs", k))
            except WrongValueError as error:
                problems.append((error.path, str(error)))
    workload = scenario.workload.model_copy(update={"models": models, "jobs": tuple(jobs)})
    return scenario.model_copy(update={"workload": workload}), problems


def bound_scenario(scenario: Scenario) -> Scenario:
    """As `bind`, for a scenario that may have changed since it was loaded. Raises InputError."""
    if not has_transformers(scenario):
        return scenario
    made, problems = bind(scenario, load_profile(scenario.cluster.hardware))
    if problems:
        raise InputError([f"{scenario.name}: {'.'.join(map(str, path))}: {text}" for path, text in problems])
    return made


def plan_notes(scenario: Scenario) -> Iterator[str]:
    """Notes that explain the layouts found by search, and on how sure the steps are."""
    sure = how_sure(scenario)
    for name, model in scenario.workload.models.items():
        if name in sure:
            yield f"model {name}: steps take, for 90 % of such runs, {'; '.join(sure[name].lines())}"
        if model.transformer is not None and model.transformer.bound is not None and model.transformer.bound.why:
            yield f"model {name}: {model.transformer.bound.why}"
        if model.precision in NARROW:
            yield f"model {name}: MFU is of the dense 16-bit peak rate, though it computes in {model.precision}"


def _with_models(scenario: Scenario, models: dict[str, Model]) -> Scenario:
    workload = scenario.workload.model_copy(update={"models": models})
    return scenario.model_copy(update={"workload": workload})


def _network(cluster: ClusterSpec, profile: HardwareProfile) -> NetworkRates:
    """Network rates of consecutively placed ranks, as the minimum over the node groups."""
    groups, kind = [g for g in cluster.groups if g.gpus], cluster.topology
    gpus, nic = min(g.gpus for g in groups), min(g.network for g in groups)
    driven = min(gpu_nic_bytes_per_s(g, profile) for g in groups)
    if not isinstance(kind, TreeTopology):
        return NetworkRates(gpus, nic, driven)
    rack, uplink = kind.nodes_per_rack, kind.nodes_per_rack * nic / kind.oversubscription
    if kind.nvlink is not None:
        nic, driven = gpus * kind.nvlink, kind.nvlink
    return NetworkRates(gpus, nic, driven, rack * gpus, uplink)


def _links(network: NetworkRates) -> dict[str, Any]:
    """The keys of a bound layout for these rates."""
    return {
        "node_gpus": network.node_gpus,
        "nic": network.node_bytes_per_s,
        "gpu_nic": network.gpu_bytes_per_s,
        "rack_gpus": network.rack_gpus,
        "rack": network.rack_bytes_per_s,
    }


def _bound(scenario: Scenario, profile: HardwareProfile, model: Model, jobs: list[JobSpec], path: KeyPath) -> Model:
    """The model with what follows from its section, its jobs and the cluster. Raises WrongValueError."""
    spec, inner = model.transformer, (*path, "transformer")
    assert spec is not None
    if scenario.cluster.gpus is not None:
        raise WrongValueError(inner, "needs 'cluster.nodes': a counted pool of GPUs has neither nodes nor NICs")
    groups = [g for g in scenario.cluster.groups if g.gpus]  # others only store data
    network = _network(scenario.cluster, profile)
    try:
        precision_of(model.precision)
        machine = accelerator_of(
            profile.accelerator(groups[0].accelerator), model.precision, link_bytes_per_s(groups[0], profile), spec
        )
    except ValueError as error:
        raise WrongValueError((*path, "precision"), str(error).removeprefix("precision: ")) from None
    layout, why = _layout(spec, model, jobs, machine, network, groups[0].speed, inner)
    first = jobs[0] if jobs else None
    fewest = layout.ep * max(1, layout.shard)  # whole groups of any kind
    bound = Bound(
        layout=layout,
        dp=max(1, first.gpus // layout.replica_gpus) if first else fewest,
        global_batch=first.global_batch if first else fewest * layout.micro_batch,
        **_links(network),
        why=why,
    )
    shape = spec.shape()
    made = model.model_copy(
        update={
            "transformer": spec.model_copy(update={"bound": bound}),
            "parameters": float(shape.parameters),
            "flop_per_sample": shape.train_flop_per_token() * shape.sequence,
            "gradient": shape.parameters * (4.0 if model.precision == "fp32" else 2.0),
            "parallel": Parallel(tensor=layout.tp * layout.cp, pipeline=layout.pp, zero=layout.zero),
            "memory": MemorySpec(optimizer_bytes_per_parameter=CHECKPOINT_BYTES),
        }
    )
    for job in jobs:
        _possible(job, layout, model, shape, path)
    if spec.measured_step is not None:  # over the links of its own nodes, where they are there
        own = [g for g in groups if g.accelerator == spec.measured_step.accelerator] or groups
        links = _network(scenario.cluster.model_copy(update={"nodes": tuple(own)}), profile)
        there = bound.model_copy(update=_links(links))
        spec = spec.model_copy(update={"bound": there})
        scaled = section(with_factor(made.model_copy(update={"transformer": spec}), profile, own[0], inner))[1]
        bound = bound.model_copy(update={"factor": scaled.factor})
        made = made.model_copy(update={"transformer": spec.model_copy(update={"bound": bound})})
    return made.model_copy(update={"overlap": overlap_of(made, profile, groups[0])})


def _layout(
    spec: TransformerSpec,
    model: Model,
    jobs: list[JobSpec],
    machine: AcceleratorRates,
    network: NetworkRates,
    speed: float,
    path: KeyPath,
) -> tuple[LayoutSpec, str]:
    """The given layout, or the fastest that fits with its explanation."""
    if spec.layout is not None:
        return spec.layout, ""
    sizes = {(job.gpus, job.global_batch) for job in jobs}
    if len(sizes) != 1:
        given = "no job uses this model; give its 'layout'" if not sizes else f"jobs of {len(sizes)} sizes use it"
        raise WrongValueError((*path, "plan"), f"auto needs jobs of a single size (gpus, global_batch); {given}")
    gpus, batch = sizes.pop()
    try:
        found = _search(
            spec.shape(),
            machine,
            network,
            gpus,
            batch,
            spec.constants(),
            memory_stack(spec, model),
            precision_of(model.precision),
            speed,
            spec.memory_spread,
        )
    except ValueError as error:
        raise WrongValueError((*path, "plan"), error) from None
    if not found.found:
        least = found.smallest_bytes
        raise WrongValueError(
            (*path, "plan"), f"none of {found.tried} layouts fits: the least needs {least:.4g} bytes on a GPU"
        )
    why = llm.why(found)
    if model.exchange.compression < 1.0:
        why += "; searched with gradients as they are, not compressed"
    return layout_spec(found.found[0].plan.layout), why


_search = lru_cache(maxsize=64)(llm.search)


def layout_spec(layout: Layout) -> LayoutSpec:
    """A layout as a scenario writes it."""
    values = {NAMES.get(name, name): getattr(layout, name) for name in LAYOUT}
    return LayoutSpec(**values | {"etp": layout.expert_tensor_ranks or None})


def _possible(job: JobSpec, layout: LayoutSpec, model: Model, shape: Transformer, path: KeyPath) -> None:
    """Check for whole replicas and whole micro-batches. Raises WrongValueError."""
    size = layout.replica_gpus
    if job.gpus % size:
        text = f"{job.gpus} GPUs of job {job.name!r} are not a multiple of {size} (tp x cp x pp)"
        raise WrongValueError((*path, "transformer", "layout"), text)
    try:
        made = layout.layout(job.gpus // size, job.global_batch, model.precision)
        made.check(shape)
    except ValueError as error:
        text = str(error).replace("data x micro_batch", "dp x micro_batch").replace("expert: ", "ep: ")
        text = text.replace("expert_tensor_ranks: ", "etp: ")
        raise WrongValueError((*path, "transformer", "layout"), f"job {job.name!r}: {text}") from None


def _job(job: JobSpec, model: Model, path: KeyPath) -> JobSpec:
    spec, bound = section(model)
    micro = bound.layout.micro_batch
    if job.micro_batch not in (1, micro) and spec.plan is None:
        raise WrongValueError(
            (*path, "micro_batch"), f"{job.micro_batch} is not the layout's micro_batch, {micro}; leave it out"
        )
    return job.model_copy(update={"micro_batch": micro})
