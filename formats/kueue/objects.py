"""Data of Kueue's objects, and of the jobs and pods it queues."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from equipoise.formats.kueue.values import gpus_of
from equipoise.formats.text.tally import TextChange


@dataclass(frozen=True)
class KueueQuota:
    """Quota of a queue for one resource of one flavor; None for no limit. Units as Kubernetes counts them."""

    flavor: str
    resource: str
    nominal: float
    borrowing_limit: float | None
    lending_limit: float | None


@dataclass(frozen=True)
class ClusterQueue:
    """A queue with quota. strategy: BestEffortFIFO or StrictFIFO; the preemption policies are Never by default.

    rest: further settings as `key: value`; the same in the other objects.
    """

    name: str
    cohort: str
    strategy: str
    quotas: tuple[KueueQuota, ...]
    within_cluster_queue: str
    reclaim_within_cohort: str
    borrow_within_cohort: str
    borrow_within_most: int | None
    weight: float
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalQueue:
    """A namespace's local queue for a cluster queue."""

    namespace: str
    name: str
    cluster_queue: str
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class KueueCohort:
    """A group of queues that lend to each other, itself in a parent ("" for none)."""

    name: str
    parent: str
    quotas: tuple[KueueQuota, ...]
    weight: float
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResourceFlavor:
    """Nodes of one kind, by their labels."""

    name: str
    node_labels: Mapping[str, str]
    topology: str
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class KubeTopology:
    """Node labels of the levels, coarse to fine."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class PodSet:
    """Equal pods. requests: of one pod. topology: `required`, `preferred`, `unconstrained` or ""; level: its label.

    slice_level: of which label parts of `slice_size` pods must stay within one place, "" for none.
    """

    name: str
    count: int
    min_count: int
    requests: Mapping[str, float]
    topology: str = ""
    level: str = ""
    slice_level: str = ""
    slice_size: int = 0

    @property
    def gpus(self) -> float:
        """GPUs of all its pods."""
        return self.count * gpus_of(self.requests)

    @property
    def fewest_gpus(self) -> float:
        """GPUs of the fewest pods with which it may be admitted."""
        return min(self.min_count, self.count) * gpus_of(self.requests)


@dataclass(frozen=True)
class KueueWorkload:
    """A job in a queue. Times are UTC seconds, NaN where there is none; evictions: number of evictions.

    kind: `KueueWorkload`, or the kind of the job (`Job`, `JobSet`, `PyTorchJob` ...). priority None: not given.
    """

    kind: str
    namespace: str
    name: str
    queue: str
    priority: int | None
    priority_class: str
    pod_sets: tuple[PodSet, ...]
    created_s: float = math.nan
    admitted_s: float = math.nan
    finished_s: float = math.nan
    finished_reason: str = ""
    evictions: int = 0
    cluster_queue: str = ""

    @property
    def gpus(self) -> float:
        """GPUs of all its pods."""
        return sum(pod_set.gpus for pod_set in self.pod_sets)


@dataclass(frozen=True)
class Pod:
    """One pod. Times are UTC seconds, NaN where there is none. owner: `Kind/name` of its owner."""

    namespace: str
    name: str
    owner: str
    node: str
    phase: str
    requests: Mapping[str, float]
    gpus: float
    labels: Mapping[str, str]
    created_s: float
    scheduled_s: float
    started_s: float
    finished_s: float


@dataclass(frozen=True)
class KubeNode:
    """One node with its allocatable resources; cordoned: no pods are placed on it."""

    name: str
    allocatable: Mapping[str, float]
    gpus: float
    labels: Mapping[str, str]
    cordoned: bool = False


@dataclass(frozen=True)
class TreeQueue:
    """A queue of Volcano or KAI. deserved: GPUs, None for its weight's part of what its parent has.

    limit: most GPUs it may hold, None for no limit; kept: GPUs that it never lends.
    """

    name: str
    parent: str
    deserved: float | None
    limit: float | None
    kept: float
    weight: float
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class HyperNode:
    """A switch of Volcano's: its nodes and the switches below it, each by name or as a regular expression."""

    name: str
    tier: int
    nodes: tuple[str, ...]
    below: tuple[str, ...]


READ = (
    "Kueue's queues, cohorts, flavors and topologies, queues of Volcano and KAI, HyperNodes, Nodes, Workloads, jobs of "
    "pod templates and Pods are read"
)


@dataclass(frozen=True)
class KueueObjects:
    """Every object of a file by kind, in its order. priority_classes: value of each class by name."""

    cluster_queues: tuple[ClusterQueue, ...] = ()
    local_queues: tuple[LocalQueue, ...] = ()
    cohorts: tuple[KueueCohort, ...] = ()
    flavors: tuple[ResourceFlavor, ...] = ()
    topologies: tuple[KubeTopology, ...] = ()
    workloads: tuple[KueueWorkload, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: tuple[KubeNode, ...] = ()
    tree_queues: tuple[TreeQueue, ...] = ()
    hyper_nodes: tuple[HyperNode, ...] = ()
    priority_classes: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[TextChange, ...] = ()

    @property
    def seen(self) -> str:
        """A phrase on the jobs and pods, the unread objects, and the kinds that can be read."""
        jobs = Counter([*(workload.kind for workload in self.workloads), *("Pod" for _ in self.pods)])
        found = [f"{count} {kind}" for kind, count in jobs.items()]
        found += [f"{change.count} {change.reason}" for change in self.changes]
        return "; ".join([", ".join(found), READ] if found else [READ])


def merged(parts: Sequence[KueueObjects]) -> KueueObjects:
    """The objects of several files of one cluster; the last of equal kind, namespace and name wins."""
    found: dict[str, tuple[Any, ...]] = {}
    kinds = "cluster_queues local_queues cohorts flavors topologies workloads pods nodes tree_queues hyper_nodes"
    for key in kinds.split():
        every = [thing for part in parts for thing in getattr(part, key)]
        found[key] = tuple({(getattr(x, "namespace", ""), x.name, getattr(x, "kind", "")): x for x in every}.values())
    classes = {name: value for part in parts for name, value in part.priority_classes.items()}
    changes = tuple(change for part in parts for change in part.changes)
    return KueueObjects(**found, priority_classes=classes, changes=changes)
