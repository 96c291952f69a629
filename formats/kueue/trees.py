"""Queues of Volcano and KAI, and Volcano's switches, as the queues, cohorts and node labels of Kueue.

What a queue deserves (KAI `quota`, Volcano `deserved`; with neither, its weight's part of what its parent has) is its
nominal quota. A queue that others name as their parent becomes a cohort, whose own quota is what its queues leave of
it; what no queue deserves is the uppermost cohort's. So queues borrow what is idle, and reclaim what they deserve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from equipoise.formats.accelerators import is_accelerator
from equipoise.formats.kueue.objects import (
    ClusterQueue,
    HyperNode,
    KubeTopology,
    KueueCohort,
    KueueObjects,
    KueueQuota,
    TreeQueue,
)
from equipoise.formats.kueue.values import Thing
from equipoise.formats.text.errors import shown

GPU, TREES, TOP, TIER = "nvidia.com/gpu", "gpus", "all-queues", "HyperNode of tier "
_OTHERS = ("cpu", "memory")


def tree_queue(thing: Thing, name: str) -> TreeQueue:
    """A queue of scheduling.volcano.sh, or of scheduling.run.ai (KAI), where -1 stands for no limit."""
    spec, gpu = thing.get("spec"), thing.get("spec", "resources", "gpu")
    if thing.get("apiVersion").text().startswith("scheduling.run.ai/"):
        quota, most = gpu.get("quota").quantity(0.0) or 0.0, gpu.get("limit").quantity(-1.0) or 0.0
        weight = gpu.get("overQuotaWeight").quantity(1.0) or 0.0
        parent = spec.get("parentQueue").text()
        rest = (*spec.rest("parentQueue resources displayName"), *_resources(spec.get("resources")))
        return TreeQueue(name, parent, None if quota < 0 else quota, None if most < 0 else most, 0.0, weight, rest)
    deserved, limit, kept = (
        _gpus(spec.get(*keys)) for keys in (("deserved",), ("capability",), ("guarantee", "resource"))
    )
    rest = () if spec.get("reclaimable").text("true") == "true" else ("reclaimable false",)
    rest += spec.rest("parent deserved capability guarantee weight reclaimable")
    state = thing.get("status", "state").text("Open")
    rest += () if state == "Open" else (f"status.state {shown(state)}: taken as open",)
    weight = float(spec.get("weight").whole(1))
    return TreeQueue(name, spec.get("parent").text(), deserved, limit, kept or 0.0, weight, rest)


def _resources(resources: Thing) -> tuple[str, ...]:
    """Quotas and limits of a KAI queue for other resources than GPUs; -1 is none."""
    told = ((name, key, resources.get(name, key).quantity(-1.0)) for name in _OTHERS for key in ("quota", "limit"))
    return tuple(f"{name} {key} {amount:g}" for name, key, amount in told if amount is not None and amount >= 0)


def _gpus(amounts: Thing) -> float | None:
    """GPUs of a list of resources, None where it has none."""
    known = [str(name) for name in amounts.value or () if is_accelerator(str(name))]
    return math.fsum(amounts.get(name).amount(0.0) or 0.0 for name in known) if known else None


def hyper_node(thing: Thing, name: str) -> HyperNode:
    """A HyperNode of topology.volcano.sh."""
    found: dict[str, list[str]] = {"Node": [], "HyperNode": []}
    for member in thing.get("spec", "members").members():
        selector = member.get("selector")
        exact = re.escape(selector.get("exactMatch", "name").text())
        pattern = exact or selector.get("regexMatch", "pattern").text()
        try:
            re.compile(pattern)
        except re.error as error:
            raise selector.fail(f"{shown(pattern)} is not a regular expression: {error}") from None
        found.setdefault(member.get("type").text("Node"), []).append(pattern or "(?!)")
    return HyperNode(name, thing.get("spec", "tier").whole(1), tuple(found["Node"]), tuple(found["HyperNode"]))


def as_kueue(found: KueueObjects) -> KueueObjects:
    """With cluster queues and cohorts for the queues of trees, and labels of the nodes for switches."""
    return _with_switches(_with_queues(found))


def _with_queues(found: KueueObjects) -> KueueObjects:
    queues = {queue.name: queue for queue in found.tree_queues}
    below: dict[str, list[TreeQueue]] = {}
    for queue in queues.values():
        below.setdefault(queue.parent if queue.parent in queues else "", []).append(queue)
    there = math.fsum(node.gpus for node in found.nodes if not node.cordoned) if found.nodes else math.inf
    waiting: list[tuple[str, float, TreeQueue | None]] = [("", there, None)] if queues else []
    cohorts, leaves = [], []
    while waiting:
        name, gpus, parent = waiting.pop()
        deserved = [(queue, _deserved(queue, gpus, below[name])) for queue in below[name]]
        left = gpus - math.fsum(amount for _, amount in deserved)
        own = _quota(max(0.0, left) if math.isfinite(left) else 0.0, gpus, parent)
        above = "" if parent is None else parent.parent if parent.parent in queues else TOP
        weight, rest = (1.0, ()) if parent is None else (parent.weight or 1.0, parent.rest)
        rest += (f"guarantee of {parent.kept:g} GPUs to the queues below it",) if parent and parent.kept else ()
        cohorts.append(KueueCohort(name or TOP, above, own, weight, rest))
        for queue, amount in deserved:
            if queue.name in below:
                waiting.append((queue.name, amount, queue))
                continue
            quota, weight = _quota(amount, amount, queue), queue.weight or 1.0
            order = ("BestEffortFIFO", quota, "LowerPriority", "Any", "Never", None, weight, queue.rest)
            leaves.append(ClusterQueue(queue.name, name or TOP, *order))
    listed = (*found.cluster_queues, *leaves)
    return replace(found, cluster_queues=listed, cohorts=(*found.cohorts, *cohorts), tree_queues=())


def _deserved(queue: TreeQueue, gpus: float, siblings: Sequence[TreeQueue]) -> float:
    """GPUs that a queue deserves of its parent's; by weight of what is left, which is not known without nodes: 0."""
    part = queue.deserved
    if part is None:
        left = gpus - math.fsum(one.deserved for one in siblings if one.deserved is not None)
        weights = math.fsum(one.weight for one in siblings if one.deserved is None) or 1.0
        part = max(0.0, left) * queue.weight / weights if math.isfinite(left) else 0.0
    part = min(part, gpus, math.inf if queue.limit is None else queue.limit)
    return part if math.isfinite(part) else 0.0


def _quota(own: float, deserved: float, queue: TreeQueue | None) -> tuple[KueueQuota, ...]:
    borrow = None if queue is None or queue.limit is None else max(0.0, queue.limit - deserved)
    lend = max(0.0, own - queue.kept) if queue is not None and queue.kept else None
    return (KueueQuota(TREES, GPU, own, borrow, lend),)


def _with_switches(found: KueueObjects) -> KueueObjects:
    """Each tier of switches is a level of a topology, and a label of the nodes below them."""
    if not found.hyper_nodes or found.topologies:
        return found
    labels: dict[str, dict[str, str]] = {node.name: {} for node in found.nodes}
    members: dict[str, set[str]] = {}
    for switch in sorted(found.hyper_nodes, key=lambda one: one.tier):
        below = {node for node in labels if any(re.fullmatch(pattern, node) for pattern in switch.nodes)}
        for name, nodes in list(members.items()):
            below |= nodes if any(re.fullmatch(pattern, name) for pattern in switch.below) else set()
        members[switch.name] = below
        for node in below:
            labels[node][f"{TIER}{switch.tier}"] = switch.name
    tiers = sorted({switch.tier for switch in found.hyper_nodes}, reverse=True)
    topology = KubeTopology("HyperNodes", tuple(f"{TIER}{tier}" for tier in tiers))
    labelled = tuple(replace(node, labels={**node.labels, **labels[node.name]}) for node in found.nodes)
    return replace(found, nodes=labelled, topologies=(topology,), hyper_nodes=())
