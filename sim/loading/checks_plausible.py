"""Warnings on values that are allowed but probably a mistake, with the likely meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.network.topology import UNKNOWN_LINK_BYTES_PER_S, link_known
from equipoise.sim.scenario.model import JobSpec, Model, NodeGroup, Scenario
from equipoise.sim.scenario.tree import KeyPath, Tree
from equipoise.sim.scenario.units import format_bytes_per_s, format_scaled, format_seconds, format_share

Problem = tuple[KeyPath, str]

NIC_MOST = 100e9
"""Fastest NIC that is sold: 800 Gbit/s."""
DATA_CENTRE_LINK = 100e9
"""An accelerator with faster links than this is built for nodes with about one NIC for each of them."""
STEP_TOKENS_MOST, STEP_SAMPLES_MOST = 100e6, 500_000
"""Beyond the largest batches that were published (16 million tokens: Llama 3, Grattafiori et al. 2024, table 4)."""
CAP_LEAST = 0.25
"""Cards refuse caps below about this share of their highest power (`nvidia-smi -q -d POWER`: H100 200 of 700 W)."""
JITTER_MOST = 0.5


def plausible_doubts(scenario: Scenario, profile: HardwareProfile, tree: Tree | None) -> Iterator[Problem]:
    """(key path, text) of every such value. tree: as written, to tell bare numbers; None: nothing is bare."""
    yield from _times(scenario, tree)
    for k, group in enumerate(scenario.cluster.nodes):
        yield from _node(scenario, profile, group, ("cluster", "nodes", k))
    for k, job in enumerate(scenario.workload.jobs):
        if job.model is not None:
            yield from _batch(job, scenario.workload.models[job.model], ("workload", "jobs", k, "global_batch"))
    cov = scenario.noise.step_cov or 0.0
    if cov > JITTER_MOST:
        text = f"{cov:g} means {format_share(cov)} of a step; for {cov:g} % write '{cov:g} %' or {cov / 100:g}"
        yield ("noise", "step_cov"), text
    yield from _cap(scenario, profile)


def _times(scenario: Scenario, tree: Tree | None) -> Iterator[Problem]:
    """Warnings on bare numbers (seconds) where hours were probably meant."""
    faults = scenario.faults
    found: list[tuple[KeyPath, float, float]] = [(("horizon",), scenario.horizon or 0.0, 3600.0)]
    for kind in ("crash", "fail_slow", "link", "rack", "spot"):
        if (section := getattr(faults, kind)) is not None:
            found.append((("faults", kind, "mtbf"), section.mtbf or 0.0, 1e6))
    for path, value, least in found:
        if 0.0 < value < least and _bare(tree, path):
            long = format_seconds(value)
            also = "" if long.endswith(" s") else f" ({long})"
            text = f"{value:g} was read as {value:g} s{also}, because a bare number is in seconds"
            yield path, f"{text}; if hours were meant, write '{value:g} h'"


def _bare(tree: Tree | None, path: KeyPath) -> bool:
    """Whether the value is written without a unit."""
    try:
        value: Any = None if tree is None else tree.get(path)
    except KeyError:
        return False
    return isinstance(value, int | float) or (isinstance(value, str) and value.replace(".", "").strip().isdigit())


def _node(scenario: Scenario, profile: HardwareProfile, group: NodeGroup, path: KeyPath) -> Iterator[Problem]:
    given = group.model_fields_set
    if group.nic > NIC_MOST and "nic" in given:
        rate = format_bytes_per_s(group.nic)
        text = f"{rate} for one NIC; the fastest NIC has {format_bytes_per_s(NIC_MOST)}"
        yield ((*path, "nic"), f"{text}; write bits as 'Gbit/s', and several NICs as 'nics: 8' with the rate of one")
    trace = scenario.workload.trace
    trains = any(job.model for job in scenario.workload.jobs) or (trace is not None and trace.training.count)
    if not trains or not group.gpus:
        return
    link = link_known(group, profile)
    if link is None and group.gpus > 1:
        assumed = format_bytes_per_s(UNKNOWN_LINK_BYTES_PER_S)
        yield path, f"the links between its GPUs are not given; {assumed} is assumed (PCI Express); give 'fabric'"
    one_nic = "nics" not in given and group.gpus >= 8 and group.nic <= NIC_MOST and "nic" in given
    if one_nic and link is not None and link >= DATA_CENTRE_LINK and group.accelerator != "generic":
        each = format_bytes_per_s(group.nic / group.gpus)
        text = f"one NIC of {format_bytes_per_s(group.nic)} serves {group.gpus} GPUs, {each} each"
        yield (*path, "nic"), f"{text}; such nodes usually have one for each GPU: 'nics: {group.gpus}'"


def _batch(job: JobSpec, model: Model, path: KeyPath) -> Iterator[Problem]:
    tokens = model.tokens
    if tokens and job.global_batch * tokens > STEP_TOKENS_MOST:
        step = format_scaled(job.global_batch * tokens, "")
        text = f"{job.global_batch} samples of {tokens} tokens, {step}tokens a step"
        yield (
            path,
            f"{text}; if {job.global_batch} tokens were meant, write {max(1, round(job.global_batch / tokens))}",
        )
    elif not tokens and job.global_batch > STEP_SAMPLES_MOST:
        yield (path, f"{job.global_batch} samples a step; a batch is counted in samples (sequences), not in tokens")


def _cap(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    cap_w = scenario.energy.power_cap
    for name in dict.fromkeys(group.accelerator for group in scenario.cluster.groups if group.gpus):
        highest = profile.accelerator(name).max_w
        if cap_w is not None and highest is not None and cap_w < CAP_LEAST * highest.value:
            share = format_share(cap_w / highest.value)
            text = f"{cap_w:g} W is {share} of the {highest.value:g} W of {name}; cards refuse caps this low"
            yield ("energy", "power_cap"), f"{text}; usual caps are {format_share(CAP_LEAST)} or more"


INSTEAD = "give 'transformer' in place of 'parallel'"


def parallel_doubts(scenario: Scenario) -> Iterator[Problem]:
    """(key path, text) of every model that is spread over several GPUs, with the jobs that train it."""
    for name, model in scenario.workload.models.items():
        jobs = [job for job in scenario.workload.jobs if job.model == name]
        path: KeyPath = ("workload", "models", name)
        if model.transformer is not None:
            yield from _network(scenario, path)
            yield from _stack(scenario, model, (*path, "transformer", "stack"))
        else:
            yield from _typed(scenario, model, jobs, (*path, "parallel"))


def _network(scenario: Scenario, path: KeyPath) -> Iterator[Problem]:
    if any("nic" not in group.model_fields_set for group in scenario.cluster.nodes):
        rate = min(group.network for group in scenario.cluster.nodes)
        text = f"the network of a node was not given; {rate / 1e9:g} GB/s is assumed (cluster.nodes: nic)"
        yield (*path, "transformer"), text


def _stack(scenario: Scenario, model: Model, path: KeyPath) -> Iterator[Problem]:
    """Warnings on a stack that was fitted on another kind of accelerator."""
    stack = model.transformer.stack if model.transformer is not None else ""
    kind = stack.partition("/")[2].lower() if isinstance(stack, str) else ""
    for name in dict.fromkeys(group.accelerator for group in scenario.cluster.groups if group.gpus):
        if kind and not name.startswith(kind):
            yield path, f"{stack} was measured on {kind}; times of {name} use it with the rates and links of {name}"


def _typed(scenario: Scenario, model: Model, jobs: list[JobSpec], path: KeyPath) -> Iterator[Problem]:
    """Warnings on costs that `parallel` leaves out: latencies, rates and passes that depend on the layout."""
    p, node = model.parallel, min((g.gpus for g in scenario.cluster.groups if g.gpus), default=0)
    if p.tensor > 1 and p.tensor_bytes_per_sample == 0.0:
        yield ((*path, "tensor"), f"tensor_bytes_per_sample is 0: all-reduces between {p.tensor} GPUs cost nothing")
    elif p.tensor > 1:
        yield ((*path, "tensor"), f"the latency of tensor all-reduces is not in tensor_bytes_per_sample; {INSTEAD}")
    if p.tensor > node:
        yield (
            (*path, "tensor"),
            f"{p.tensor} is wider than a node of {node} GPUs: timed at the slower of its links and NICs",
        )
    if p.tensor * p.pipeline > node:
        text = f"replicas of {p.tensor * p.pipeline} GPUs exchange gradients through the first of their nodes' NICs"
        yield path, f"{text}; {INSTEAD}"
    for job in jobs:
        yield from _passes(model, job, path)


def _passes(model: Model, job: JobSpec, path: KeyPath) -> Iterator[Problem]:
    p = model.parallel
    samples = -(-job.global_batch // max(1, job.gpus // (p.tensor * p.pipeline)))
    passes = -(-samples // (model.samples_per_pass or samples))
    if p.pipeline > 1 and p.pipeline_microbatches != max(passes, samples // job.micro_batch):
        real = max(passes, samples // job.micro_batch)
        text = f"a bubble of {p.pipeline_microbatches} micro-batches is assumed; job {job.name!r} has {real} per step"
        yield (*path, "pipeline_microbatches"), text
    if p.zero == 3 and passes > 1:
        text = f"parameters are gathered in each of {passes} passes of job {job.name!r}, not once; {INSTEAD}"
        yield (*path, "zero"), text
