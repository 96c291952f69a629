"""Workloads of Kueue, and pods of any Kubernetes cluster, as rows of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.formats.kueue.objects import KueueObjects, KueueWorkload, Pod, PodSet
from equipoise.formats.text.columns import Text, TextBuilder
from equipoise.formats.text.tally import TextChange
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.rows import Rows
from equipoise.sim.traces.trace import Column

_GANGS = (
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.x-k8s.io/pod-group",
    "volcano.sh/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""Labels that tell which pods belong together, before the owner does."""

_ENDED = ("Succeeded", "Failed")
Row = Mapping[str, object]


def from_kueue(found: KueueObjects, unit: str, file: str) -> Rows:
    """Workloads where the file has some, else pods, those of one gang as one job. Raises InputError for neither."""
    if found.workloads:
        made = [_of_workload(workload, found, unit) for workload in found.workloads]
    elif found.pods:
        made = [_of_gang(pods, unit) for pods in _gangs(found.pods)]
    else:
        raise InputError([f"{file}: Kubernetes objects without workloads or pods: {found.seen}"])
    more = 0 if found.workloads else len(found.pods) - len(made)
    gangs = (TextChange("merged", "a further pod of a gang", more, 1),) if more else ()
    numbers = {key: np.array([row.get(key, np.nan) for row in made], dtype=np.float64) for key in _NUMBERS}
    texts: dict[str, Column] = {key: _text([str(row.get(key, "")) for row in made]) for key in _TEXTS}
    texts |= {"site_queueing_s": numbers["start"] - numbers["arrival"], "pods": numbers["pods"]}
    optional = {name: numbers[name] for name in ("gpus_min", "segment") if not np.isnan(numbers[name]).all()}
    texts |= optional
    rows = Rows(
        name=_text([str(row["name"]) for row in made]),
        arrival_s=numbers["arrival"],
        duration_s=numbers["end"] - numbers["start"],
        units=numbers["units"],
        line=np.arange(1, len(made) + 1, dtype=np.int64),
        columns=texts,
        changes=(*found.changes, *gangs),
    )
    sliced = np.array([bool(row.get("slices")) for row in made]) & ~(numbers["segment"] > 0)
    rows.count("requests pod slices that stay within a node, or have no size: not simulated", sliced)
    order = np.array([float(str(row.get("priority", "")) or 0.0) for row in made])
    if order.any():  # Kueue has 0 and below, a scenario is above 0
        rows.priority = order + max(0.0, 1.0 - float(order.min()))
    kinds = np.array([str(row["kind"]) for row in made])
    for kind in dict.fromkeys(kinds.tolist()):
        never = np.isnan(numbers["start"]) & (rows.units > 0) & (kinds == kind)
        rows.drop(f"a {kind} that was never admitted or started, or a manifest without its status", never)
    rows.drop("had not ended when the file was written", np.isnan(numbers["end"]) & (rows.units > 0))
    rows.count("evicted at least once; its duration counts from the last admission", numbers["evictions"] > 0)
    return rows


_NUMBERS = ("arrival", "start", "end", "units", "pods", "evictions", "gpus_min", "segment")
_TEXTS = ("account", "queue", "cluster_queue", "priority", "state", "kind", "together")
_HOST = "kubernetes.io/hostname"


def _of_workload(workload: KueueWorkload, found: KueueObjects, unit: str) -> Row:
    by_class = found.priority_classes.get(workload.priority_class)
    priority = by_class if workload.priority is None else workload.priority
    return {
        "name": f"{workload.namespace}/{workload.name}",
        "arrival": workload.created_s,
        "start": workload.admitted_s,
        "end": workload.finished_s,
        "units": math.fsum(p.count * p.requests.get("cpu", 0.0) for p in workload.pod_sets)
        if unit == "CPUs"
        else workload.gpus,
        "pods": sum(pod_set.count for pod_set in workload.pod_sets),
        "gpus_min": sum(pod_set.fewest_gpus for pod_set in workload.pod_sets)
        if unit == "GPUs" and any(pod_set.min_count < pod_set.count for pod_set in workload.pod_sets)
        else np.nan,
        "evictions": workload.evictions,
        "account": workload.namespace,
        "queue": workload.queue,
        "cluster_queue": workload.cluster_queue,
        "priority": "" if priority is None else priority,
        "state": workload.finished_reason,
        "kind": workload.kind,
        "slices": any(pod_set.slice_level for pod_set in workload.pod_sets),
        "segment": next((size for pod_set in workload.pod_sets if (size := _segment(pod_set, unit))), np.nan),
        "together": next((word for pod_set in workload.pod_sets if (word := _together(pod_set))), ""),
    }


def _segment(pod_set: PodSet, unit: str) -> float:
    """GPUs of a slice of pods that must stay within one place above nodes, 0 without slices."""
    above = pod_set.slice_level not in ("", _HOST) and unit == "GPUs"
    return pod_set.slice_size * pod_set.gpus / max(pod_set.count, 1) if above else 0.0


def _together(pod_set: PodSet) -> str:
    """A pod set's topology request as a scenario value: one host, or a level above it as a rack.

    Where slices have a level of their own, the level above that has no counterpart.
    """
    if pod_set.topology not in ("required", "preferred") or pod_set.slice_level not in ("", _HOST, pod_set.level):
        return ""
    return f"{'node' if pod_set.level == _HOST else 'rack'}-{pod_set.topology}"


def _gangs(pods: Sequence[Pod]) -> list[list[Pod]]:
    """Groups of pods, by label or else by owner."""
    found: dict[tuple[str, str], list[Pod]] = {}
    for pod in pods:
        label = next((pod.labels[key] for key in _GANGS if pod.labels.get(key)), "")
        found.setdefault((pod.namespace, label or pod.owner or pod.name), []).append(pod)
    return list(found.values())


def _of_gang(pods: Sequence[Pod], unit: str) -> Row:
    """A gang runs from the start of its last pod to its last pod's end."""
    first = pods[0]
    begun = [pod.started_s if np.isfinite(pod.started_s) else pod.scheduled_s for pod in pods]
    label = next((first.labels[key] for key in _GANGS if first.labels.get(key)), "")
    return {
        "name": f"{first.namespace}/{label or first.owner.partition('/')[2] or first.name}",
        "arrival": np.fmin.reduce([pod.created_s for pod in pods]),
        "start": np.maximum.reduce(begun),
        "end": np.maximum.reduce([pod.finished_s for pod in pods]),
        "units": math.fsum(pod.requests.get("cpu", 0.0) if unit == "CPUs" else pod.gpus for pod in pods),
        "pods": len(pods),
        "account": first.namespace,
        "queue": first.labels.get("kueue.x-k8s.io/queue-name", ""),
        "state": next((pod.phase for pod in pods if pod.phase not in _ENDED), first.phase),
        "kind": first.owner.partition("/")[0] or "Pod",
    }


def _text(values: list[str]) -> Text:
    builder = TextBuilder()
    builder.add(values)
    return builder.finish()
