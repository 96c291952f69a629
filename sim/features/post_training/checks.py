"""Checks of a scenario's post-training loops on its cluster."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.sim.cost.transformer import memory_need_bytes, section
from equipoise.sim.features.post_training.certainty import certainty_of
from equipoise.sim.features.post_training.phases import decode_for, parts, phases
from equipoise.sim.features.post_training.section import Loop, loops_of, nodes_of
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.scenario.model import JobSpec, Scenario
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.tree import KeyPath
from equipoise.sim.scenario.units import format_bytes

Problem = tuple[KeyPath, str]


def problems(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    """Models that are not there or have no shape, GPUs that layouts cannot use, and weights that do not fit."""
    seen: set[str] = set()
    for k, loop in enumerate(loops_of(scenario)):
        path: KeyPath = ("post_training", k)
        if loop.name in seen:
            yield (*path, "name"), f"{loop.name!r} is the name of two loops"
        seen.add(loop.name)
        found = list(_models(loop, scenario, path)) or list(_room(loop, scenario, path))
        yield from found
        jobs = [job for job in scenario.workload.jobs if job.name == loop.name]
        if jobs and (found or jobs != [job_of(loop, scenario, scenario.seed)]):  # a stored scenario has the loop's own
            yield (*path, "name"), f"{loop.name!r} is the name of a job in workload.jobs, too"


def job_of(loop: Loop, scenario: Scenario, seed: int) -> JobSpec:
    """The job that a loop is, as long as all its steps."""
    total_s = parts(loop, phases(loop, scenario, seed)).total_s
    return JobSpec(name=loop.name, arrival=loop.arrival, priority=loop.priority, gpus=loop.gpus, duration=total_s)


def _models(loop: Loop, scenario: Scenario, path: KeyPath) -> Iterator[Problem]:
    models = scenario.workload.models
    for key in ("model", "reward", "critic"):
        name = getattr(loop, key)
        if name is not None and name not in models:
            yield (*path, key), unknown("model", name, sorted(models))
        elif name is not None and models[name].transformer is None:
            yield (*path, key), f"model {name!r} has no 'transformer' section, from which its phases are predicted"


def _room(loop: Loop, scenario: Scenario, path: KeyPath) -> Iterator[Problem]:
    groups = scenario.cluster.groups
    total = sum(group.count * group.gpus for group in groups)
    if loop.gpus > total:
        yield (*path, "gpus"), f"{loop.gpus} GPUs, the cluster has {total}"
    elif len({(group.accelerator, group.speed, group.gpus) for group in groups if group.gpus}) > 1:
        yield (*path, "gpus"), "the cluster has several kinds of nodes; a loop needs one kind"
    elif loop.generates and not decode_for(loop, scenario).slots:
        on = "1 GPU" if loop.rollout.tensor == 1 else f"{loop.rollout.tensor} GPUs"
        longest = f"a prompt and a response of {loop.response.most:,} tokens"
        text = f"the weights with {longest} do not fit on {on}; give more GPUs, or a lower response.most"
        yield (*path, "rollout", "tensor"), text
    else:
        try:
            phases(loop, scenario, scenario.seed)
        except ValueError as error:
            yield (*path, "gpus"), f"{str(error).replace('data x', 'dp x')}{_other_split(loop, scenario)}"


def _other_split(loop: Loop, scenario: Scenario) -> str:
    """How many GPUs for rollouts leave a number that the layout of the trainers can use."""
    size = section(scenario.workload.models[loop.model])[1].layout.replica_gpus
    apart = range(loop.gpus % size, loop.gpus, size) if loop.generates else ()
    gpus = next((n for n in apart if n and n % loop.rollout.tensor == 0), None)
    return "" if gpus is None else f"; rollout.gpus {gpus} would leave {loop.gpus - gpus}"


def doubts(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    """Warnings on trainers that need more memory than a GPU has, and on loops that no published run is like."""
    for k, loop in enumerate(loops_of(scenario)):
        if outside := certainty_of(loop, scenario).outside:
            yield ("post_training", k), f"outside of what was measured: {'; '.join(outside)}"
        need, has = trainer_memory_bytes(loop, scenario, profile)
        if need > has:
            text = f"training needs {format_bytes(need)} on a GPU of {format_bytes(has)}"
            yield ("post_training", k, "gpus"), f"{text}: recompute, shard more (zero, tp, pp), or use more GPUs"


def trainer_memory_bytes(loop: Loop, scenario: Scenario, profile: HardwareProfile) -> tuple[float, float]:
    """(what training needs on a GPU, what a GPU has); adapters, whose memory is not predicted, need 0."""
    model, has = scenario.workload.models[loop.model], profile.accelerator(nodes_of(scenario).accelerator).memory_bytes
    layout = section(model)[1].layout
    replicas = loop.trainer_gpus // layout.replica_gpus
    need = memory_need_bytes(model, layout.pp * layout.micro_batch, replicas) if loop.adapter == "none" else 0.0
    return need, has.value
