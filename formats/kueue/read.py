"""Objects of Kueue and of the jobs it queues, as `kubectl get -o yaml|json` or a manifest gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.formats.kueue.objects import (
    ClusterQueue,
    KubeNode,
    KubeTopology,
    KueueCohort,
    KueueObjects,
    KueueQuota,
    KueueWorkload,
    LocalQueue,
    Pod,
    PodSet,
    ResourceFlavor,
)
from equipoise.formats.kueue.trees import TIER, hyper_node, tree_queue
from equipoise.formats.kueue.values import Thing, gpus_of, pod_requests
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile
from equipoise.formats.text.yamlfile import load_documents

_QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "volcano.sh/queue-name")
_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_TOPOLOGY = "kueue.x-k8s.io/podset-"
_SLICES, _SLICE_SIZE = f"{_TOPOLOGY}slice-required-topology", f"{_TOPOLOGY}slice-size"
_ENDED = ("Complete", "Completed", "Succeeded", "Failed", "Aborted", "Terminated")
_MODES = ("required", "preferred", "unconstrained")


def read_kueue(source: str | Path | bytes, *, name: str = "") -> KueueObjects:
    """The objects of a YAML or JSON file (`first_line` of a change is the object's place in it, from 1).

    Kinds that are not understood are counted. Raises FormatError when it is no such file, or for a wrong value.
    """
    file, tally = TextFile(source, name), RowTally()
    found: dict[str, list[Any]] = {}
    classes: dict[str, int] = {}
    objects = [thing for document in load_documents(file) for thing in _objects(document)]
    for place, document in enumerate(objects, 1):
        kind, title = _title(document)
        thing = Thing(document, f"{file.name}: {title}: ")
        if kind in ("PriorityClass", "WorkloadPriorityClass"):
            classes[_name(thing)] = thing.get("value").whole(0)
        elif reader := _READERS.get(kind):
            found.setdefault(reader[0], []).append(reader[1](thing))
        elif kind and thing.get("spec").value is not None and _pod_sets(thing):
            found.setdefault("workloads", []).append(_job(thing))
        else:
            group = thing.get("apiVersion").text().rpartition("/")[0] if kind else ""
            tally.add("left out", f"an object of kind {kind or '(none)'}{f' of {group}' if group else ''}", place)
    if not any(_title(document)[0] for document in objects):
        raise file.error(0, "not a Kubernetes object: apiVersion and kind are needed")
    return KueueObjects(
        **{key: tuple(values) for key, values in found.items()}, priority_classes=classes, changes=tally.changes()
    )


def _objects(document: Any) -> list[Any]:
    """The document, or the members of a list of objects."""
    items = document.get("items") if isinstance(document, dict) else document
    return items if isinstance(items, list) else [document]


def _title(document: Any) -> tuple[str, str]:
    """(kind, kind and name)."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not isinstance(document.get("apiVersion", ""), str):
        return "", "object"
    metadata = document.get("metadata")
    name = metadata.get("name", metadata.get("generateName", "")) if isinstance(metadata, dict) else ""
    return kind, f"{kind} {name}"[:80].replace("\n", " ")


def _name(thing: Thing) -> str:
    metadata = thing.get("metadata")
    return metadata.get("name").text() or metadata.get("generateName").text()


def _whole(thing: Thing) -> int | None:
    """A whole number where there is one."""
    return None if thing.value is None else thing.whole(0)


def _cluster_queue(thing: Thing) -> ClusterQueue:
    spec, preemption = thing.get("spec"), thing.get("spec", "preemption")
    return ClusterQueue(
        name=_name(thing),
        cohort=spec.get("cohortName").text() or spec.get("cohort").text(),
        strategy=spec.get("queueingStrategy").text("BestEffortFIFO"),
        quotas=_quotas(spec),
        within_cluster_queue=preemption.get("withinClusterQueue").text("Never"),
        reclaim_within_cohort=preemption.get("reclaimWithinCohort").text("Never"),
        borrow_within_cohort=preemption.get("borrowWithinCohort", "policy").text("Never"),
        borrow_within_most=_whole(preemption.get("borrowWithinCohort", "maxPriorityThreshold")),
        weight=_weight(spec),
        rest=spec.rest("cohort cohortName queueingStrategy resourceGroups preemption fairSharing"),
    )


def _quotas(spec: Thing) -> tuple[KueueQuota, ...]:
    return tuple(
        KueueQuota(
            flavor=flavor.get("name").text(),
            resource=resource.get("name").text(),
            nominal=resource.get("nominalQuota").amount(0.0) or 0.0,
            borrowing_limit=resource.get("borrowingLimit").amount(),
            lending_limit=resource.get("lendingLimit").amount(),
        )
        for group in spec.get("resourceGroups").members()
        for flavor in group.get("flavors").members()
        for resource in flavor.get("resources").members()
    )


def _weight(spec: Thing) -> float:
    weight = spec.get("fairSharing", "weight").amount(1.0)
    return 1.0 if weight is None else weight


def _local_queue(thing: Thing) -> LocalQueue:
    spec = thing.get("spec")
    namespace = thing.get("metadata", "namespace").text("default")
    return LocalQueue(namespace, _name(thing), spec.get("clusterQueue").text(), spec.rest("clusterQueue"))


def _cohort(thing: Thing) -> KueueCohort:
    spec = thing.get("spec")
    parent = spec.get("parentName").text() or spec.get("parent").text()
    rest = spec.rest("parent parentName resourceGroups fairSharing")
    return KueueCohort(_name(thing), parent, _quotas(spec), _weight(spec), rest)


def _flavor(thing: Thing) -> ResourceFlavor:
    spec = thing.get("spec")
    labels, topology = spec.get("nodeLabels").texts(), spec.get("topologyName").text()
    return ResourceFlavor(_name(thing), labels, topology, spec.rest("nodeLabels topologyName"))


def _topology(thing: Thing) -> KubeTopology:
    levels = thing.get("spec", "levels").members()
    return KubeTopology(_name(thing), tuple(level.get("nodeLabel").text() for level in levels))


def _workload(thing: Thing) -> KueueWorkload:
    spec, status = thing.get("spec"), thing.get("status")
    true: dict[str, Thing] = {}
    ever: set[str] = set()
    for condition in status.get("conditions").members():
        kind = condition.get("type").text()
        ever.add(kind)
        if condition.get("status").text() in ("True", "true"):
            true[kind] = condition
    at = {kind: condition.get("lastTransitionTime").time_s() for kind, condition in true.items()}
    evictions = [part.get("count").whole(0) for part in status.get("schedulingStats", "evictions").members()]
    priority = spec.get("priority")
    return KueueWorkload(
        kind="Workload",
        namespace=thing.get("metadata", "namespace").text("default"),
        name=_name(thing),
        queue=spec.get("queueName").text(),
        priority=_whole(priority),
        priority_class=spec.get("priorityClassName").text() or spec.get("priorityClassRef", "name").text(),
        pod_sets=tuple(_pod_set(part) for part in spec.get("podSets").members()),
        created_s=thing.get("metadata", "creationTimestamp").time_s(),
        admitted_s=at.get("Admitted", math.nan),
        finished_s=at.get("Finished", math.nan),
        finished_reason=true["Finished"].get("reason").text() if "Finished" in true else "",
        evictions=sum(evictions) if evictions else int("Evicted" in ever),
        cluster_queue=status.get("admission", "clusterQueue").text(),
    )


def _pod_set(part: Thing) -> PodSet:
    count = part.get("count").whole(1)
    asked = {f"{_TOPOLOGY}{mode}-topology": part.get("topologyRequest", mode).text() for mode in _MODES}
    asked[_SLICES] = part.get("topologyRequest", "podSetSliceRequiredTopology").text()
    asked[_SLICE_SIZE] = part.get("topologyRequest", "podSetSliceSize").text()
    asked |= part.get("template", "metadata", "annotations").texts()
    return _placed(part.get("name").text("main"), count, part.get("minCount").whole(count), part.get("template"), asked)


def _placed(name: str, count: int, least: int, template: Thing, annotations: Mapping[str, str]) -> PodSet:
    """A pod set with the topology request of its annotations."""
    mode = next((mode for mode in _MODES if annotations.get(f"{_TOPOLOGY}{mode}-topology")), "")
    return PodSet(
        name=name,
        count=count,
        min_count=least,
        requests=pod_requests(template.get("spec")),
        topology=mode,
        level=annotations.get(f"{_TOPOLOGY}{mode}-topology", "") if mode in _MODES[:2] else "",
        slice_level=annotations.get(_SLICES, ""),
        slice_size=int(size) if (size := annotations.get(_SLICE_SIZE, "")).isdecimal() else 0,
    )


def _pod_sets(thing: Thing) -> tuple[PodSet, ...]:
    """The pods of a Job, a JobSet, Volcano's Job, or a training job with replica specs; none for another kind."""
    spec = thing.get("spec")
    if spec.get("template", "spec").value is not None:
        return (_job_pods("main", spec, 1, thing.get("metadata", "annotations").texts()),)
    if spec.get("replicatedJobs").value is not None:
        return tuple(
            _job_pods(part.get("name").text(), part.get("template", "spec"), part.get("replicas").whole(1), {})
            for part in spec.get("replicatedJobs").members()
        )
    if spec.get("tasks").value is not None:
        return tuple(_job_pods(part.get("name").text(), part, 1, {}) for part in spec.get("tasks").members())
    for key, value in spec.value.items() if isinstance(spec.value, dict) else ():
        if str(key).endswith("ReplicaSpecs") and isinstance(value, dict):
            parts = [(str(role), spec.get(str(key), str(role))) for role in value]
            return tuple(_job_pods(role, part, 1, {}) for role, part in parts)
    return ()


def _job_pods(name: str, spec: Thing, times: int, annotations: Mapping[str, str]) -> PodSet:
    template = spec.get("template")
    count = times * spec.get("parallelism").whole(spec.get("replicas").whole(1))
    least = annotations.get("kueue.x-k8s.io/job-min-parallelism", "")
    asked = template.get("metadata", "annotations").texts()
    return _placed(name, count, int(least) if least.isdecimal() and least.isascii() else count, template, asked)


def _job(thing: Thing) -> KueueWorkload:
    labels, status = thing.get("metadata", "labels").texts(), thing.get("status")
    named = thing.get("metadata", "annotations").texts() | labels
    placed = _whole_placement(thing, named)
    return KueueWorkload(
        kind=thing.get("kind").text(),
        namespace=thing.get("metadata", "namespace").text("default"),
        name=_name(thing),
        queue=next((named[label] for label in _QUEUE_LABELS if named.get(label)), thing.get("spec", "queue").text()),
        priority=None,
        priority_class=labels.get(_PRIORITY_LABEL, "") or thing.get("spec", "priorityClassName").text(),
        pod_sets=tuple(replace(pods, **placed) for pods in _pod_sets(thing)),
        created_s=thing.get("metadata", "creationTimestamp").time_s(),
        admitted_s=_told_s(status, "startTime", "Running"),
        finished_s=_told_s(status, "completionTime", *_ENDED),
    )


def _told_s(status: Thing, key: str, *words: str) -> float:
    """A time of a job's status; without it that of the last condition of one of these kinds that holds."""
    times_s = [status.get(key).time_s()]
    for condition in status.get("conditions").members() if math.isnan(times_s[0]) else ():
        kind, holds = condition.get("type").text(), condition.get("status").text()
        if holds in words or (kind in words and holds in ("True", "true")):  # Volcano has its kinds in `status`
            times_s.append(condition.get("lastTransitionTime").time_s())
    return times_s[-1]


def _whole_placement(thing: Thing, named: Mapping[str, str]) -> dict[str, Any]:
    """Where all pods of a job must be near each other: annotations of KAI, or `networkTopology` of Volcano."""
    for mode in _MODES[:2]:
        if level := named.get(f"kai.scheduler/topology-{mode}-placement"):
            return {"topology": mode, "level": level}
    asked = thing.get("spec", "networkTopology")
    if asked.value is None:
        return {}
    mode = "required" if asked.get("mode").text("hard") == "hard" else "preferred"
    return {"topology": mode, "level": f"{TIER}{asked.get('highestTierAllowed').whole(1)}"}


def _pod(thing: Thing) -> Pod:
    spec, status = thing.get("spec"), thing.get("status")
    scheduled = [
        condition.get("lastTransitionTime").time_s()
        for condition in status.get("conditions").members()
        if condition.get("type").text() == "PodScheduled" and condition.get("status").text() in ("True", "true")
    ]
    started, finished = [], []
    for container in status.get("containerStatuses").members():
        ended = container.get("state", "terminated")
        started += [ended.get("startedAt").time_s(), container.get("state", "running", "startedAt").time_s()]
        finished.append(ended.get("finishedAt").time_s())
    owners = thing.get("metadata", "ownerReferences").members()
    requests = pod_requests(spec)
    return Pod(
        namespace=thing.get("metadata", "namespace").text("default"),
        name=_name(thing),
        owner=f"{owners[0].get('kind').text()}/{owners[0].get('name').text()}" if owners else "",
        node=spec.get("nodeName").text(),
        phase=status.get("phase").text(),
        requests=requests,
        gpus=gpus_of(requests),
        labels=thing.get("metadata", "labels").texts(),
        created_s=thing.get("metadata", "creationTimestamp").time_s(),
        scheduled_s=scheduled[0] if scheduled else math.nan,
        started_s=min((time for time in started if not math.isnan(time)), default=math.nan),
        finished_s=max(finished, default=math.nan) if not any(map(math.isnan, finished)) else math.nan,
    )


def _node(thing: Thing) -> KubeNode:
    amounts = thing.get("status", "allocatable")
    names = list(amounts.value) if isinstance(amounts.value, dict) else []
    allocatable = {str(name): amounts.get(str(name)).quantity(0.0) or 0.0 for name in names}
    labels = thing.get("metadata", "labels").texts()
    cordoned = thing.get("spec", "unschedulable").text() == "true"
    return KubeNode(_name(thing), allocatable, gpus_of(allocatable), labels, cordoned)


_READERS: dict[str, tuple[str, Callable[[Thing], Any]]] = {
    "ClusterQueue": ("cluster_queues", _cluster_queue),
    "LocalQueue": ("local_queues", _local_queue),
    "Cohort": ("cohorts", _cohort),
    "ResourceFlavor": ("flavors", _flavor),
    "Topology": ("topologies", _topology),
    "Workload": ("workloads", _workload),
    "Pod": ("pods", _pod),
    "Node": ("nodes", _node),
    "Queue": ("tree_queues", lambda thing: tree_queue(thing, _name(thing))),
    "HyperNode": ("hyper_nodes", lambda thing: hyper_node(thing, _name(thing))),
}
