"""Nodes, flavors and queues of Kueue, as a site's cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from equipoise.formats.kueue.objects import KubeNode, KueueObjects, ResourceFlavor
from equipoise.formats.kueue.trees import as_kueue
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch, accelerator_of
from equipoise.sim.loading.site.queues import add_queues, counts

_PRODUCT = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")
_HOST = "kubernetes.io/hostname"


def add_kueue(site: Site, found: KueueObjects, unit: str) -> None:
    """Nodes as they are listed, else as many as the nominal quotas add up to; and its queues."""
    trees = bool(found.tree_queues)
    found = as_kueue(found)
    if found.nodes:
        _add_nodes(site, found)
    elif not site.nodes:
        _add_quotas(site, found, unit)
    if found.cluster_queues:
        site.policy, site.policy_why = "kueue", "with these queues"
        add_queues(site, found, unit, _kinds(site, found))
        if trees:  # their weights are of what is above quotas
            site.queues["fair_sharing"] = True
            site.policy_why = "whose fair sharing stands for the scheduler of these queues"
    flavors = (
        ", ".join([f"{f.name}: {_labels(f.node_labels)}", f"topology {f.topology or 'none'}", *f.rest])
        for f in found.flavors
    )
    site.add_aside("Flavors", *flavors)
    site.add_aside("Priority classes", *(f"{name}: {value}" for name, value in found.priority_classes.items()))
    levels = (f"{t.name}: {', '.join(t.levels)}" for t in found.topologies if not found.nodes)
    site.add_aside("Topologies without nodes (`kubectl get nodes -o json` lists them)", *levels)
    for kind, things in (("workloads and jobs", found.workloads), ("pods", found.pods)):
        said = f"{len(things)} {kind}: to use them as jobs, name the file with --trace"
        site.add_aside("Jobs", *([said] if things else []))
    site.add_aside("Left out", *(f"{change.count} {change.reason}" for change in found.changes))


def _kinds(site: Site, found: KueueObjects) -> dict[str, str]:
    """The accelerator of each flavor by its product label, else by its nodes; "" where unknown."""
    kinds = {group.gpu_type for group in site.nodes if group.gpus}
    kinds |= {_product_of(node.labels) for node in found.nodes if node.gpus and node.cordoned}
    apart = len(kinds) > 1 or any(_product_of(flavor.node_labels) for flavor in found.flavors)
    told = {}
    for flavor in found.flavors:
        named = any(key in flavor.node_labels for key in _PRODUCT) or not found.nodes
        product = _product(flavor) if named else ""
        mine = {
            _product_of(node.labels)
            for node in found.nodes
            if node.gpus and flavor.node_labels.items() <= node.labels.items()
        }
        product = product or (mine.pop() if len(mine) == 1 and apart else "")
        accelerator = accelerator_of(product)[0] if product else ""
        known = found.nodes or accelerator != "generic"  # without nodes, an unknown name tells nothing apart
        told[flavor.name] = accelerator if known else ""
    return told


def _labels(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "any node"


def _add_nodes(site: Site, found: KueueObjects) -> None:
    equal: dict[tuple[int, str, int, float], list[str]] = {}
    up = [node for node in found.nodes if not node.cordoned]
    site.add_aside("Cordoned nodes, left out", *(node.name for node in found.nodes if node.cordoned))
    for node in up:
        kind = _product_of(node.labels)
        cores, memory = int(node.allocatable.get("cpu", 0.0)), node.allocatable.get("memory", 0.0)
        equal.setdefault((int(node.gpus), kind, cores, memory), []).append(node.name)
    for (gpus, kind, cores, memory), names in equal.items():
        site.add_nodes(SiteNodes(tuple(names), gpus, kind, cores or None, memory or None))
    levels = [level for t in found.topologies[:1] for level in t.levels if level != _HOST]
    if levels:
        _add_levels(site, up, levels)


def _add_levels(site: Site, nodes: Iterable[KubeNode], levels: list[str]) -> None:
    """Switches by the labels of a topology's levels, coarse to fine."""
    leaves: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        leaves.setdefault(tuple(node.labels.get(level, "none") for level in levels), []).append(node.name)
    below: dict[tuple[str, ...], dict[str, None]] = {}
    for place in leaves:
        for depth in range(1, len(place)):
            below.setdefault(place[:depth], {})["/".join(place[: depth + 1])] = None
    site.switches += [SiteSwitch("/".join(place), tuple(names)) for place, names in leaves.items()]
    site.switches += [SiteSwitch("/".join(place), (), tuple(names)) for place, names in below.items()]


def _add_quotas(site: Site, found: KueueObjects, unit: str) -> None:
    """As many nodes of each flavor as hold the nominal quotas of all queues and cohorts."""
    quotas = [quota for queue in found.cluster_queues for quota in queue.quotas]
    quotas += [quota for cohort in found.cohorts for quota in cohort.quotas]
    total: dict[str, float] = {}
    for quota in quotas:
        if counts(quota.resource, unit):
            total[quota.flavor] = total.get(quota.flavor, 0.0) + quota.nominal
    flavors = {flavor.name: flavor for flavor in found.flavors}
    for name, amount in total.items():
        whole = int(amount)
        each = next((size for size in (8, 4, 2) if whole % size == 0), 1)
        if whole:
            remark = f"nominal quotas of all queues: {whole} {unit}; {each} per node: assumed"
            cores = each if unit == "CPUs" else None
            kind = _product(flavors.get(name))
            site.nodes.append(SiteNodes((), each, kind, cores, count=whole // each, label=name, remark=remark))


def _product(flavor: ResourceFlavor | None) -> str:
    return (_product_of(flavor.node_labels) or flavor.name) if flavor else ""


def _product_of(labels: Mapping[str, str]) -> str:
    return next((labels[key] for key in _PRODUCT if key in labels), "")
