"""Nodes, flavors and queues of Kueue, as a site's cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.formats.kueue.objects import ClusterQueue, KubeNode, KueueObjects, Quota, ResourceFlavor
from equipoise.sim.loading.site.cluster import Nodes, Site, Switch

_PRODUCT = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
_HOST = "kubernetes.io/hostname"


def add_kueue(site: Site, found: KueueObjects, unit: str) -> None:
    """Nodes as they are listed, else as many as the nominal quotas add up to; queues as comments."""
    if found.nodes:
        _add_nodes(site, found)
    elif not site.nodes:
        _add_quotas(site, found, unit)
    for queue in found.cluster_queues:
        site.add_aside("Cluster queues", *_queue_lines(queue))
    strict = [q for q in found.cluster_queues if q.strategy == "StrictFIFO"]
    if found.cluster_queues:
        all_strict = len(strict) == len(found.cluster_queues)
        site.policy = "fifo" if all_strict else "easy"
        order = "StrictFIFO" if all_strict else "BestEffortFIFO"
        site.policy_why = f"{order}; nearest here, without the quotas below"
    cohorts = (
        f"{c.name} in {c.parent or 'none'}, weight {c.weight:g}; {_quotas(c.quotas)}" for c in found.cohorts
    )
    site.add_aside("Cohorts", *cohorts)
    site.add_aside(
        "Local queues", *(f"{q.namespace}/{q.name} of {q.cluster_queue}" for q in found.local_queues)
    )
    flavors = (f"{f.name}: {_labels(f.node_labels)}, topology {f.topology or 'none'}" for f in found.flavors)
    site.add_aside("Flavors", *flavors)
    site.add_aside(
        "Priority classes", *(f"{name}: {value}" for name, value in found.priority_classes.items())
    )
    site.add_aside("Left out", *(f"{change.count} {change.reason}" for change in found.changes))


def _queue_lines(queue: ClusterQueue) -> Iterable[str]:
    yield (
        f"{queue.name} in cohort {queue.cohort or 'none'}: {queue.strategy}, preemption within the queue "
        f"{queue.within_cluster_queue}, reclaim {queue.reclaim_within_cohort}, while borrowing "
        f"{queue.borrow_within_cohort}, weight {queue.weight:g}; {_quotas(queue.quotas)}"
    )


def _quotas(quotas: Iterable[Quota]) -> str:
    return ", ".join(
        f"{q.flavor} {q.resource} {q.nominal:g}"
        + ("" if q.borrowing_limit is None else f" (borrows up to {q.borrowing_limit:g})")
        + ("" if q.lending_limit is None else f" (lends up to {q.lending_limit:g})")
        for q in quotas
    )


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "any node"


def _add_nodes(site: Site, found: KueueObjects) -> None:
    equal: dict[tuple[int, str, int, float], list[str]] = {}
    for node in found.nodes:
        kind = next((node.labels[key] for key in _PRODUCT if key in node.labels), "")
        cores, memory = int(node.allocatable.get("cpu", 0.0)), node.allocatable.get("memory", 0.0)
        equal.setdefault((int(node.gpus), kind, cores, memory), []).append(node.name)
    for (gpus, kind, cores, memory), names in equal.items():
        site.nodes.append(Nodes(tuple(names), gpus, kind, cores or None, memory or None))
    levels = [level for t in found.topologies[:1] for level in t.levels if level != _HOST]
    if levels:
        _add_levels(site, found.nodes, levels)


def _add_levels(site: Site, nodes: Iterable[KubeNode], levels: list[str]) -> None:
    """Switches by the labels of a topology's levels, coarse to fine."""
    leaves: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        leaves.setdefault(tuple(node.labels.get(level, "none") for level in levels), []).append(node.name)
    below: dict[tuple[str, ...], dict[str, None]] = {}
    for place in leaves:
        for depth in range(1, len(place)):
            below.setdefault(place[:depth], {})["/".join(place[: depth + 1])] = None
    site.switches += [Switch("/".join(place), tuple(names)) for place, names in leaves.items()]
    site.switches += [Switch("/".join(place), (), tuple(names)) for place, names in below.items()]


def _add_quotas(site: Site, found: KueueObjects, unit: str) -> None:
    """As many nodes of each flavor as hold the nominal quotas of all queues and cohorts."""
    quotas = [quota for queue in found.cluster_queues for quota in queue.quotas]
    quotas += [quota for cohort in found.cohorts for quota in cohort.quotas]
    total: dict[str, float] = {}
    for quota in quotas:
        if quota.resource.endswith("/gpu") if unit == "GPUs" else quota.resource == "cpu":
            total[quota.flavor] = total.get(quota.flavor, 0.0) + quota.nominal
    flavors = {flavor.name: flavor for flavor in found.flavors}
    for name, amount in total.items():
        whole = int(amount)
        each = next((size for size in (8, 4, 2) if whole % size == 0), 1)
        if whole:
            remark = f"nominal quotas of all queues: {whole} {unit}; {each} a node: assumed"
            cores = each if unit == "CPUs" else None
            kind = _product(flavors.get(name))
            site.nodes.append(Nodes((), each, kind, cores, count=whole // each, label=name, remark=remark))


def _product(flavor: ResourceFlavor | None) -> str:
    labels = flavor.node_labels if flavor else {}
    return next((labels[key] for key in _PRODUCT if key in labels), flavor.name if flavor else "")
