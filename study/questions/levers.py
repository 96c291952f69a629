"""Levers: changes of a scenario that remove a limit or halve it.

Resources are doubled, disturbances are removed. A lever that changes nothing in a scenario is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.policies.registry import make_policy
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.network.topology import link_bytes_per_s
from equipoise.sim.scenario.model import ClusterSpec, Even, Explicit, FaultsSpec, Model, NodeGroup, Noise, Scenario
from equipoise.sim.seeds import step_noise

LIMITS = ("compute", "memory", "input", "barrier", "network", "layout", "queue", "faults")
POLICIES = ("s1+s2+s3", "s1+s2+s3+s4")
"""Other policies that are tried."""

STAGES = ("s1", "s2", "s3", "s4")
STAGE = "stage"
"""`against` of the lever of one stage, which may lift several limits."""

Change = Callable[[Scenario], Scenario]


@dataclass(frozen=True)
class Lever:
    """One change of the scenario or policy. `against`: the limit that it addresses, or "any" for another policy."""

    name: str
    against: str
    scenario: Scenario
    policy: str


def levers(scenario: Scenario, policy: str, policies: Sequence[str] = POLICIES) -> list[Lever]:
    """Every lever that changes this scenario or its policy."""
    changes: tuple[tuple[str, str, Change], ...] = (
        ("GPUs twice as fast", "compute", faster_gpus),
        ("twice the GPUs per training job", "compute", larger_jobs),
        ("products in 8 bits", "compute", fp8_products),
        ("twice the GPU memory and its bandwidth", "memory", more_memory),
        ("storage and host input twice as fast", "input", faster_input),
        ("data spread evenly over each job's nodes", "input", data_at_hand),
        ("no jitter", "barrier", no_jitter),
        ("equal nodes, same total speed", "barrier", equal_nodes),
        ("network twice as fast", "network", faster_network),
        ("twice the micro-batches in a pipeline", "layout", more_micro_batches),
        ("the fastest layout that fits", "layout", fastest_layout),
        ("twice the nodes", "queue", more_nodes),
        ("no faults", "faults", no_faults),
    )
    found = [Lever(name, against, change(scenario), policy) for name, against, change in changes]
    found = [lever for lever in found if lever.scenario != scenario]
    found += [Lever(f"policy {name}", "any", scenario, name) for name in policies if name != policy]
    alone = missing_stages(policy) if policies else ()
    return found + [Lever(name, STAGE, scenario, with_stage(policy, name)) for name in alone]


def missing_stages(policy: str) -> list[str]:
    """The stages of s1 to s4 that a policy does not have."""
    used = {stage.name for stage in make_policy(policy).stages}
    return [name for name in STAGES if name not in used]


def with_stage(policy: str, name: str) -> str:
    """The policy with one more of the four stages; s4 replaces its allocation stage."""
    parts = policy.split("+")
    kept = [p for p in parts if name != "s4" or make_policy(p).stages[0].kind != "allocation"]
    at = sum(part.partition("(")[0] in STAGES[: STAGES.index(name)] for part in kept)
    return "+".join((*kept[:at], name, *kept[at:]))


def _with(section: Any, **changes: Any) -> Any:
    return section.model_copy(update=changes)


def _groups(scenario: Scenario, change: Callable[[NodeGroup], NodeGroup]) -> Scenario:
    """The scenario with every group of nodes changed; a counted pool becomes one node."""
    groups = tuple(change(group) for group in scenario.cluster.groups)
    if groups == scenario.cluster.groups:
        return scenario
    cluster: ClusterSpec = _with(scenario.cluster, nodes=groups, gpus=None)
    return _with(scenario, cluster=cluster)  # type: ignore[no-any-return]


def _models(scenario: Scenario, change: Callable[[Model], Model]) -> Scenario:
    models = {name: change(model) for name, model in scenario.workload.models.items()}
    return _with(scenario, workload=_with(scenario.workload, models=models))  # type: ignore[no-any-return]


def _jobs(scenario: Scenario, change: Callable[[Any], Any]) -> Scenario:
    jobs = tuple(change(job) for job in scenario.workload.jobs)
    return _with(scenario, workload=_with(scenario.workload, jobs=jobs))  # type: ignore[no-any-return]


def faster_gpus(scenario: Scenario) -> Scenario:
    """Every GPU computes twice as fast; exchanges within a replica take as long as before."""
    faster = _groups(scenario, lambda group: _with(group, speed=2.0 * group.speed))

    def change(model: Model) -> Model:
        """`speed` divides a replica's exchanges as well: on links half as fast they take the same time."""
        p, spec = model.parallel, model.transformer
        if spec is not None:
            return _with(model, transformer=_with(spec, replica_links=0.5 * spec.replica_links))  # type: ignore[no-any-return]
        if p.tensor == 1:
            return model
        twice = _with(p, tensor_bytes_per_sample=2.0 * p.tensor_bytes_per_sample)
        return _with(model, parallel=twice)  # type: ignore[no-any-return]

    return _models(faster, change)


def larger_jobs(scenario: Scenario) -> Scenario:
    """Training jobs ask for twice their GPUs, if the cluster has that many."""
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)

    def change(job: Any) -> Any:
        """The section with the change applied."""
        if job.model is None or 2 * job.gpus > total or 2 * job.gpus > job.global_batch:
            return job
        ends = {name: getattr(job, name) for name in ("workers_min", "workers_max")}
        return _with(job, gpus=2 * job.gpus, **{k: 2 * v for k, v in ends.items() if v is not None})

    return _jobs(scenario, change)


def more_memory(scenario: Scenario) -> Scenario:
    """Passes may hold twice the samples, memory is twice as fast, and nothing is recomputed to save memory."""

    def change(model: Model) -> Model:
        """The section with the change applied."""
        room = model.samples_per_pass
        changed: Model = _with(
            model,
            samples_per_pass=None if room is None else 2 * room,
            bytes_per_sample=0.5 * model.bytes_per_sample,
            memory=_with(model.memory, recompute=False),
        )
        return changed

    return _models(scenario, change)


def faster_input(scenario: Scenario) -> Scenario:
    """Storage, local disks and the hosts' cores and input pipelines deliver twice as much."""
    reads = any(job.data is not None and job.data.sample_size > 0 for job in scenario.workload.jobs)
    prepares = any(model.preprocess_time is not None for model in scenario.workload.models.values())
    if not reads and not prepares and all(group.ingest is None for group in scenario.cluster.groups):
        return scenario
    return _groups(
        scenario,
        lambda group: _with(
            group,
            storage_rate=2.0 * group.storage_rate,
            cores=2 * group.cores if prepares else group.cores,
            local_read=None if group.local_read is None else 2.0 * group.local_read,
            ingest=None if group.ingest is None else 2.0 * group.ingest,
        ),
    )


def data_at_hand(scenario: Scenario) -> Scenario:
    """Every job's data is stored in equal parts on the nodes that it runs on."""

    def change(job: Any) -> Any:
        """The section with the change applied."""
        if job.data is None or job.data.sample_size == 0.0:
            return job
        return _with(job, data=_with(job.data, placement=Even()))

    return _jobs(scenario, change)


def no_jitter(scenario: Scenario) -> Scenario:
    """Steps have no random variation; permanent differences between GPUs are kept."""
    if not step_noise(scenario):
        return scenario
    kept = scenario.noise.model_dump(include={"gpu_cov", "slow_nodes", "slow_speed"})
    noise = Noise(step_cov=0.0, **kept)
    return _with(scenario, noise=noise)  # type: ignore[no-any-return]


def equal_nodes(scenario: Scenario) -> Scenario:
    """All GPUs of one accelerator compute at their mean speed, so the total is unchanged."""
    if scenario.noise.gpu_cov or scenario.noise.slow_nodes:
        scenario = _with(scenario, noise=_with(scenario.noise, gpu_cov=0.0, slow_nodes=0.0, slow_speed=1.0))
    speeds: dict[str, list[float]] = {}
    for group in scenario.cluster.groups:
        speeds.setdefault(group.accelerator, []).extend([group.speed] * (group.count * group.gpus))
    mean = {name: math.fsum(values) / len(values) for name, values in speeds.items()}
    if all(abs(group.speed - mean[group.accelerator]) <= 1e-12 for group in scenario.cluster.groups):
        return scenario
    return _groups(scenario, lambda group: _with(group, speed=mean[group.accelerator]))


def faster_network(scenario: Scenario) -> Scenario:
    """Links between and inside nodes, and the usable rate of exchanges on them, have twice the bandwidth."""
    if not any(job.model is not None for job in scenario.workload.jobs) and scenario.workload.trace is None:
        return scenario
    profile = load_profile(scenario.cluster.hardware)

    def faster(group: NodeGroup) -> NodeGroup:
        """The nodes with links twice as fast."""
        changed: NodeGroup = _with(group, nic=2.0 * group.nic, fabric=2.0 * link_bytes_per_s(group, profile))
        return changed

    changed = _groups(scenario, faster)
    cluster = changed.cluster
    slow = tuple(_with(link, rate=2.0 * link.rate) for link in cluster.slow_links)
    topology = cluster.topology
    if isinstance(topology, Explicit):
        topology = _with(topology, links=tuple(_with(link, rate=2.0 * link.rate) for link in topology.links))
    changed = _with(changed, cluster=_with(cluster, slow_links=slow, topology=topology))

    def change(model: Model) -> Model:
        """The section with the change applied."""
        rate = model.exchange.rate
        exchange = _with(model.exchange, rate=None if rate is None else 2.0 * rate)
        return _with(model, exchange=exchange)  # type: ignore[no-any-return]

    return _models(changed, change)


def fp8_products(scenario: Scenario) -> Scenario:
    """Matrix products of models of known shape run in 8 bits, if every accelerator can; others were not measured."""
    profile = load_profile(scenario.cluster.hardware)
    on = {group.accelerator for group in scenario.cluster.groups if group.gpus}
    if any("fp8" not in profile.accelerator(name).flop_per_s for name in on):
        return scenario

    def change(model: Model) -> Model:
        """The section with the change applied."""
        if model.transformer is None or model.precision not in ("bf16", "fp16"):
            return model
        return _with(model, precision="fp8")  # type: ignore[no-any-return]

    return _models(scenario, change)


def more_micro_batches(scenario: Scenario) -> Scenario:
    """Pipelines are filled with twice the micro-batches."""

    def change(model: Model) -> Model:
        """The model with twice the micro-batches, where it is typed as a pipeline."""
        p = model.parallel
        if model.transformer is not None or p.pipeline == 1:
            return model
        parallel = _with(p, pipeline_microbatches=2 * p.pipeline_microbatches)
        return _with(model, parallel=parallel)  # type: ignore[no-any-return]

    return _models(scenario, change)


def fastest_layout(scenario: Scenario) -> Scenario:
    """Models given by shape and layout use the fastest layout instead."""

    def change(model: Model) -> Model:
        """The model with the layout left to the search."""
        spec = model.transformer
        if spec is None or spec.plan is not None:
            return model
        return _with(model, transformer=_with(spec, layout=None, plan="auto"))  # type: ignore[no-any-return]

    return _models(scenario, change)


def more_nodes(scenario: Scenario) -> Scenario:
    """Twice the nodes of every kind; not available if every link is given by name."""
    if isinstance(scenario.cluster.topology, Explicit):
        return scenario
    if scenario.cluster.gpus is not None:
        return _with(scenario, cluster=_with(scenario.cluster, gpus=2 * scenario.cluster.gpus))  # type: ignore[no-any-return]
    return _groups(scenario, lambda group: _with(group, count=2 * group.count))


def no_faults(scenario: Scenario) -> Scenario:
    """Nothing breaks."""
    return _with(scenario, faults=FaultsSpec())  # type: ignore[no-any-return]
