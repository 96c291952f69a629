"""Checks of a scenario's services on its cluster."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator

import numpy as np

from equipoise.policies.physics import speed_at
from equipoise.sim.cost.measured import share_kappa
from equipoise.sim.features.services.section import Service, services_of
from equipoise.sim.features.services.state import batch_times_s, capacity_per_s
from equipoise.sim.hardware.profile import HardwareProfile
from equipoise.sim.job.paces import typical_speed
from equipoise.sim.scenario.model import JobSpec, NodeGroup, Scenario
from equipoise.sim.scenario.tree import KeyPath
from equipoise.sim.scenario.units import format_seconds

Problem = tuple[KeyPath, str]


def problems(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    """Names that do not exist, replicas and jobs that never fit, and targets that no request can meet."""
    seen: set[str] = set()
    for k, spec in enumerate(services_of(scenario)):
        path: KeyPath = ("services", k)
        if spec.name in seen:
            yield (*path, "name"), f"{spec.name!r} is the name of two services"
        seen.add(spec.name)
        wrong = list(_one(scenario, profile, spec, path))
        yield from wrong
        if not wrong:
            yield from _target(scenario, profile, spec, path)
    if services_of(scenario):
        yield from _crowded(scenario)


def _allowed(spec: Service, scenario: Scenario) -> list[NodeGroup]:
    on = set(spec.placement.on)
    return [g for g in scenario.cluster.groups if g.gpus and (not on or on & {g.name, g.accelerator})]


def _one(scenario: Scenario, profile: HardwareProfile, spec: Service, path: KeyPath) -> Iterator[Problem]:
    groups = scenario.cluster.groups
    known = sorted({g.name for g in groups} | {g.accelerator for g in groups})
    for k, name in enumerate(spec.placement.on):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            yield (*path, "placement", "on", k), f"no accelerator or group of nodes is named {name!r}; {hint}"
    if spec.batch_latency.of is not None:
        try:
            profile.accelerator(spec.batch_latency.of)
        except ValueError as error:
            yield (*path, "batch_latency", "of"), str(error)
    allowed = _allowed(spec, scenario)
    largest = max((g.gpus for g in allowed), default=0)
    if allowed and spec.replicas.gpus > largest:
        text = f"a replica needs {spec.replicas.gpus} GPUs on one node; the largest allowed node has {largest}"
        yield (*path, "replicas", "gpus"), text
        return
    each = math.floor(1.0 / spec.share + 1e-9)
    room = sum(g.count * (g.gpus // spec.replicas.gpus) for g in allowed) * each
    if allowed and spec.replicas.max > room:
        yield (*path, "replicas", "max"), f"{spec.replicas.max} replicas, but there is room for {room}"


def _target(scenario: Scenario, profile: HardwareProfile, spec: Service, path: KeyPath) -> Iterator[Problem]:
    """A target below the time of a request alone, on the fastest GPU that the service may have."""
    alone_s = float(batch_times_s(spec.batch_latency)[1]) / best_speed(scenario, profile, spec)
    if spec.latency.within_s < alone_s:
        target = format_seconds(spec.latency.within_s)
        text = f"{target} is less than the latency of a single request, {format_seconds(alone_s)}"
        yield (*path, "latency", spec.latency.key), text


def best_speed(scenario: Scenario, profile: HardwareProfile, spec: Service) -> float:
    """Speed of a replica alone on the fastest GPU that it may have, relative to its stated times."""
    groups = _allowed(spec, scenario)
    said = any(group.speed != 1.0 for group in scenario.cluster.groups)
    base = profile.accelerator(spec.batch_latency.of or groups[0].accelerator)
    found = []
    for group in groups:
        accelerator = profile.accelerator(group.accelerator)
        kappa = share_kappa(spec.share_kappa, accelerator)
        part = 1.0 if spec.share == 1.0 else speed_at(spec.share, kappa)
        found.append(group.speed * part * (1.0 if said else typical_speed(accelerator, base)))
    return max(found)


def _crowded(scenario: Scenario) -> Iterator[Problem]:
    """Problems with services that need more GPUs than exist, and jobs that need GPUs reserved by services."""
    total = sum(group.count * group.gpus for group in scenario.cluster.groups)
    kept = math.fsum(spec.kept * spec.replicas.gpus * spec.share for spec in services_of(scenario))
    if kept > total + 1e-9:
        yield ("services",), f"need {kept:g} GPUs all the time, the cluster has {total}"
        return
    whole = sum(spec.kept * spec.replicas.gpus for spec in services_of(scenario) if spec.share == 1.0)
    left = total - whole
    for k, job in enumerate(scenario.workload.jobs):
        if left < (needs := _fewest(job, scenario)) <= total:
            text = f"needs {needs} GPUs, {left} of {total} are not reserved by services"
            yield ("workload", "jobs", k, "gpus"), text
    described = scenario.workload.generate
    for k, kind in enumerate(described.classes if described is not None else ()):
        if left < (most := max(count for count, weight in kind.gpus.items() if weight)) <= total:
            text = f"needs {most} GPUs, {left} of {total} are not reserved by services"
            yield ("workload", "generate", "classes", k, "gpus"), text


def _fewest(job: JobSpec, scenario: Scenario) -> int:
    """Fewest GPUs with which a job can start."""
    if job.model is None:
        return job.gpus_min or job.gpus
    parallel = scenario.workload.models[job.model].parallel
    size = parallel.tensor * parallel.pipeline
    return (job.workers_min or max(1, job.gpus // size)) * size


def doubts(scenario: Scenario, profile: HardwareProfile) -> Iterator[Problem]:
    """Warnings on services that cannot answer their requests with all replicas running."""
    for k, spec in enumerate(services_of(scenario)):
        batch_s = batch_times_s(spec.batch_latency) / best_speed(scenario, profile, spec)
        sizes = np.arange(1, len(batch_s))
        most = spec.replicas.max * float((sizes / batch_s[1:]).max())
        rate = spec.requests.rate
        if rate is not None and rate > most:
            text = f"{rate:g}/s arrive on average; {spec.replicas.max} replicas answer at most {most:.4g}/s"
            yield ("services", k, "requests", "rate"), text
        elif rate is not None:
            in_time = spec.replicas.max * capacity_per_s(batch_s, spec.latency.within_s, 1.0)
            if rate > in_time:
                text = f"{rate:g}/s arrive on average; {spec.replicas.max} replicas answer {in_time:.4g}/s in time"
                yield ("services", k, "requests", "rate"), text
