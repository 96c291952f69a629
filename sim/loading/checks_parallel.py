"""Warnings on model parallelism: costs that `parallel` leaves out, assumptions of `transformer`."""

from __future__ import annotations

from collections.abc import Iterator

from equipoise.sim.scenario.model import JobSpec, Model, Scenario
from equipoise.sim.scenario.tree import KeyPath

Problem = tuple[KeyPath, str]
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
