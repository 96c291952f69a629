"""Nodes, quotas and labels of Kueue as nodes and switches, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import equipoise
from equipoise.cli import main
from equipoise.formats.kueue.objects import (
    ClusterQueue,
    KubeNode,
    KubeTopology,
    KueueCohort,
    KueueObjects,
    KueueQuota,
    KueueWorkload,
    Pod,
    ResourceFlavor,
)
from equipoise.formats.kueue.read import read_kueue
from equipoise.formats.text.tally import TextChange
from equipoise.sim.loading.site.cluster import Site, SiteNodes, SiteSwitch
from equipoise.sim.loading.site.kubernetes import _kinds, add_kueue

NVIDIA, GKE, AMD = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name")


def node(name: str, gpus: float, cpu: float = 0.0, memory: float = 0.0, **labels: str) -> KubeNode:
    """One node; labels: GKE= and so on, and `block` and `rack`."""
    long = {"NVIDIA": NVIDIA, "GKE": GKE, "AMD": AMD, "HOST": "kubernetes.io/hostname"}
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return KubeNode(name, amounts, gpus, {long.get(key, key): value for key, value in labels.items()})


def quota(flavor: str, nominal: float, resource: str = "nvidia.com/gpu") -> KueueQuota:
    return KueueQuota(flavor, resource, nominal, None, None)


def queue(name: str, *quotas: KueueQuota) -> ClusterQueue:
    return ClusterQueue(name, "", "BestEffortFIFO", quotas, "Never", "Never", "Never", None, 1.0)


def test_nodes_that_are_equal_are_one_group() -> None:
    site = Site(nodes=[SiteNodes(("old",), 3)])
    found = KueueObjects(
        nodes=(
            node("a", 8.0, 96.5, 2e9, NVIDIA="H100"),
            node("b", 8.0, 96.0, 3e9, NVIDIA="H100"),
            node("c", 8.0, 96.9, 2e9, NVIDIA="H100", GKE="t4"),
            node("d", 4.0, AMD="mi300x"),
            node("e", 0.0),
        )
    )
    add_kueue(site, found, "GPUs")
    told = [(g.names, g.gpus, g.gpu_type, g.cores, g.memory_bytes, g.count) for g in site.nodes]
    assert told == [
        (("old",), 3, "", None, None, 1),
        (("a", "c"), 8, "H100", 96, 2e9, 2),
        (("b",), 8, "H100", 96, 3e9, 1),
        (("d",), 4, "mi300x", None, None, 1),
        (("e",), 0, "", None, None, 1),
    ]
    assert (site.switches, site.policy) == ([], "easy")


def test_places_of_nodes_are_switches_below_each_other() -> None:
    levels = ("hall", "block", "row", "rack", "kubernetes.io/hostname")
    nodes = (
        node("a", 8, hall="h", block="x", row="r", rack="1", HOST="a"),
        node("b", 8, hall="h", block="x", row="r", rack="2", HOST="b"),
        node("c", 8, hall="h", block="x", row="r", rack="1", HOST="c"),
        node("d", 8, hall="h", block="y", HOST="d"),
    )
    site = Site()
    found = KueueObjects(nodes=nodes, topologies=(KubeTopology("t", levels), KubeTopology("u", ("other",))))
    add_kueue(site, found, "GPUs")
    assert site.switches == [
        SiteSwitch("h/x/r/1", ("a", "c")),
        SiteSwitch("h/x/r/2", ("b",)),
        SiteSwitch("h/y/none/none", ("d",)),
        SiteSwitch("h", (), ("h/x", "h/y")),
        SiteSwitch("h/x", (), ("h/x/r",)),
        SiteSwitch("h/x/r", (), ("h/x/r/1", "h/x/r/2")),
        SiteSwitch("h/y", (), ("h/y/none",)),
        SiteSwitch("h/y/none", (), ("h/y/none/none",)),
    ]
    assert site.aside == {}
    hosts = Site()
    add_kueue(hosts, KueueObjects(nodes=nodes, topologies=(KubeTopology("t", ("kubernetes.io/hostname",)),)), "GPUs")
    assert hosts.switches == []


def test_quotas_of_all_queues_and_cohorts_are_nodes_of_the_largest_size_that_fits() -> None:
    cohort = KueueCohort("c", "", (quota("eight", 9.0), quota("four", 12.0), quota("odd", 7.5)), 1.0)
    other = KueueCohort(
        "d", "", (quota("eight", 15.0), quota("two", 6.0), quota("none", 0.0), quota("eight", 7.0, "cpu")), 1.0
    )
    found = KueueObjects(
        cohorts=(cohort, other),
        cluster_queues=(queue("q", quota("eight", 16.0)), queue("r", quota("four", 8.0))),
        flavors=(ResourceFlavor("eight", {GKE: "t4", "x": "y"}, ""), ResourceFlavor("two", {}, "")),
    )
    site = Site()
    add_kueue(site, found, "GPUs")
    told = [(g.names, g.gpus, g.gpu_type, g.cores, g.count, g.label, g.remark) for g in site.nodes]
    said = "nominal quotas of all queues:"
    assert sorted(told, key=lambda row: row[5]) == [
        ((), 8, "t4", None, 5, "eight", f"{said} 40 GPUs; 8 per node: assumed"),
        ((), 4, "", None, 5, "four", f"{said} 20 GPUs; 4 per node: assumed"),
        ((), 1, "", None, 7, "odd", f"{said} 7 GPUs; 1 per node: assumed"),
        ((), 2, "two", None, 3, "two", f"{said} 6 GPUs; 2 per node: assumed"),
    ]
    assert (site.policy, site.policy_why) == ("kueue", "with these queues")


def test_quotas_of_cores_are_nodes_of_cores_and_nodes_that_are_told_come_first() -> None:
    found = KueueObjects(cohorts=(KueueCohort("c", "", (quota("f", 12.0, "cpu"), quota("g", 8.0)), 1.0),))
    site = Site()
    add_kueue(site, found, "CPUs")
    assert [(g.gpus, g.cores, g.count, g.label) for g in site.nodes] == [(4, 4, 3, "f")]
    assert site.policy == "easy"
    told = Site(nodes=[SiteNodes(("old",), 3)])
    add_kueue(told, found, "GPUs")
    assert [g.names for g in told.nodes] == [("old",)]


def test_flavors_are_accelerators_by_their_product_else_by_their_nodes() -> None:
    flavors = (
        ResourceFlavor("product", {NVIDIA: "l40s", "pool": "h"}, ""),
        ResourceFlavor("nodes", {"pool": "h"}, ""),
        ResourceFlavor("mixed", {"zone": "z"}, ""),
        ResourceFlavor("t4", {"pool": "none"}, ""),
        ResourceFlavor("unknown", {AMD: "strange"}, ""),
    )
    nodes = (
        node("a", 8, NVIDIA="a10", pool="h", zone="z"),
        node("b", 0, NVIDIA="t4", pool="h"),
        node("c", 4, GKE="v100", zone="z"),
        node("d", 0, pool="none"),
    )
    found = KueueObjects(flavors=flavors, nodes=nodes)
    two = Site(nodes=[SiteNodes(("a",), 8, "a10"), SiteNodes(("c",), 4, "v100")])
    expected = {"product": "l40s", "nodes": "a10", "mixed": "", "t4": "", "unknown": "generic"}
    assert _kinds(two, found) == expected
    one = Site(nodes=[SiteNodes(("a",), 8, "a10"), SiteNodes(("d",), 0, "t4")])
    assert _kinds(one, found) == expected
    assert _kinds(Site(nodes=[SiteNodes(("d",), 0, "t4")]), found) == expected
    bare = KueueObjects(
        flavors=(ResourceFlavor("f", {"pool": "p"}, ""),),
        nodes=(node("e", 2, pool="p"), node("f", 2, pool="p", NVIDIA="t4")),
    )
    assert _kinds(two, bare) == {"f": ""}
    assert _kinds(Site(), KueueObjects(flavors=(ResourceFlavor("a10", {}, ""),))) == {"a10": "a10"}
    assert _kinds(Site(), KueueObjects(flavors=flavors)) == {
        "product": "l40s",
        "nodes": "",
        "mixed": "",
        "t4": "t4",
        "unknown": "",
    }


def test_what_has_no_place_is_listed() -> None:
    pod = Pod("n", "p", "", "", "Running", {}, 1.0, {}, 1.0, 2.0, 3.0, 4.0)
    work = [KueueWorkload("Job", "n", f"w{k}", "q", None, "", ()) for k in range(3)]
    found = KueueObjects(
        flavors=(ResourceFlavor("f", {"x": "1", "y": "2"}, "t", ("taints: k",)), ResourceFlavor("g", {}, "")),
        priority_classes={"high": 70, "low": -3},
        topologies=(KubeTopology("t", ("block", "rack")),),
        workloads=tuple(work),
        pods=(pod, pod),
        changes=(TextChange(count=5, action="left out", reason="objects of other kinds", first_line=3),),
    )
    site = Site()
    add_kueue(site, found, "GPUs")
    assert site.nodes == []
    assert site.aside == {
        "Flavors": ["f: x=1, y=2, topology t, taints: k", "g: any node, topology none"],
        "Priority classes": ["high: 70", "low: -3"],
        "Topologies without nodes (`kubectl get nodes -o json` lists them)": ["t: block, rack"],
        "Jobs": [
            "3 workloads and jobs: to use them as jobs, name the file with --trace",
            "2 pods: to use them as jobs, name the file with --trace",
        ],
        "Left out": ["5 objects of other kinds"],
    }


NODES = [
    {
        "kind": "Node",
        "metadata": {"name": f"n{k}", "labels": {"rack": f"r{k // 2}"}},
        "status": {"allocatable": {"nvidia.com/gpu": 8}},
    }
    for k in range(6)
]


def tree(kind: str, name: str, version: str, **spec: object) -> dict[str, object]:
    return {"kind": kind, "apiVersion": version, "metadata": {"name": name}, "spec": spec}


def test_queues_of_volcano_lend_what_they_deserve_and_switches_are_racks() -> None:
    """48 GPUs: research deserves 32 and may have 48, product by weight the other 16; vision never lends 4 of its 8."""
    queue, switch = "scheduling.volcano.sh/v1beta1", "topology.volcano.sh/v1alpha1"
    gpu = "nvidia.com/gpu"
    pattern, exact = {"regexMatch": {"pattern": "n[0-3]"}}, [{"exactMatch": {"name": name}} for name in ("n4", "n5")]
    things = [
        tree("Queue", "root", queue, weight=1),
        tree("Queue", "research", queue, parent="root", deserved={gpu: 32}, capability={gpu: 48}),
        tree("Queue", "vision", queue, parent="research", deserved={gpu: 8}, guarantee={"resource": {gpu: 4}}),
        tree("Queue", "language", queue, parent="research", deserved={gpu: "16"}, weight=3),
        tree("Queue", "product", queue, parent="root", weight=1),
        tree("HyperNode", "s0", switch, tier=1, members=[{"type": "Node", "selector": pattern}]),
        tree("HyperNode", "s1", switch, tier=1, members=[{"type": "Node", "selector": one} for one in exact]),
        *NODES,
    ]
    site = Site()
    add_kueue(site, read_kueue(json.dumps(things).encode()), "GPUs")
    assert {q["name"]: (q["cohort"], q["gpus"], q.get("lend")) for q in site.queues["queues"]} == {
        "vision": ("research", 8, 4),
        "language": ("research", 16, None),
        "product": ("root", 16, None),
    }
    assert {c["name"]: (c.get("parent"), c["gpus"], c.get("borrow")) for c in site.queues["cohorts"]} == {
        "all-queues": (None, 0, None),
        "root": ("all-queues", 0, None),
        "research": ("root", 8, 16),
    }
    assert site.queues["fair_sharing"] is True
    assert {switch.name: len(switch.nodes) for switch in site.switches} == {"s0": 4, "s1": 2}


def test_queues_of_kai_and_jobs_in_them(tmp_path: Path) -> None:
    """48 GPUs: 16 are the department's, 8 of these team 1's, who may have 12; team 2 without a quota has the others."""
    kai = "scheduling.run.ai/v2"
    job = {
        "kind": "Job",
        "metadata": {
            "name": "fine",
            "creationTimestamp": "2026-11-01T10:00:00Z",
            "labels": {"kai.scheduler/queue": "team-1"},
            "annotations": {"kai.scheduler/topology-required-placement": "rack"},
        },
        "spec": {
            "parallelism": 2,
            "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4}}}]}},
        },
        "status": {"startTime": "2026-11-01T10:05:00Z", "completionTime": "2026-11-01T12:05:00Z"},
    }
    things = [
        tree("Queue", "dept", kai, resources={"gpu": {"quota": 16, "limit": -1, "overQuotaWeight": 2}}),
        tree("Queue", "team-1", kai, parentQueue="dept", resources={"gpu": {"quota": 8, "limit": 12}}),
        tree("Queue", "team-2", kai, parentQueue="dept", resources={"gpu": {"quota": -1, "limit": -1}}),
        tree("Topology", "t", "kai.scheduler/v1", levels=[{"nodeLabel": "rack"}]),
        job,
        *NODES,
    ]
    (tmp_path / "kai.json").write_text(json.dumps({"items": things}))
    lab, objects = str(tmp_path / "lab.yaml"), str(tmp_path / "kai.json")
    assert main(["import", objects, "--trace", objects, "--out", lab]) == 0
    case = equipoise.load(lab)
    assert {q.name: (q.gpus, q.borrow) for q in case.queues.queues} == {"team-1": (8, 4), "team-2": (8, None)}
    assert {c.name: (c.gpus, c.weight) for c in case.queues.cohorts} == {"all-queues": (32, 1), "dept": (0, 2)}
    result = equipoise.run(case)
    assert result.jobs["queue"][0] == "team-1"
    assert result.jobs["completion_s"][0] == 2 * 3600.0


FLAWED = """
apiVersion: v1
kind: List
items:
- {kind: ResourceFlavor, metadata: {name: a}, spec: {nodeLabels: {nvidia.com/gpu.product: A100-SXM4-80GB}}}
- {kind: ResourceFlavor, metadata: {name: h}, spec: {nodeLabels: {pool: h}}}
- kind: ClusterQueue
  metadata: {name: one}
  spec:
    resourceGroups:
    - flavors:
      - {name: a, resources: [{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4}]}
      - {name: h, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}
      - {name: ghost, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}
- kind: ClusterQueue
  metadata: {name: two}
  spec: {resourceGroups: [{flavors: [{name: a, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]}]}
- {kind: LocalQueue, metadata: {namespace: x, name: door}, spec: {clusterQueue: one}}
- {kind: LocalQueue, metadata: {namespace: y, name: door}, spec: {clusterQueue: two}}
- kind: Node
  metadata: {name: n0, labels: {nvidia.com/gpu.product: A100-SXM4-80GB}}
  status: {allocatable: {nvidia.com/gpu: 8}}
- kind: Node
  metadata: {name: n1, labels: {pool: h, nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
  spec: {unschedulable: true}
  status: {allocatable: {nvidia.com/gpu: 8}}
"""
VOLCANO_JOB = """
- kind: Job
  apiVersion: batch.volcano.sh/v1alpha1
  metadata: {name: w, namespace: NAMESPACE, creationTimestamp: "2024-03-01T10:00:00Z"}
  spec:
    queue: door
    tasks: [{name: t, replicas: 2, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 4}}}]}}}]
  status:
    state: {phase: Completed, lastTransitionTime: "2024-03-01T12:00:00Z"}
    conditions:
    - {status: Running, lastTransitionTime: "2024-03-01T10:30:00Z"}
    - {status: Completed, lastTransitionTime: "2024-03-01T12:00:00Z"}
"""


def test_queues_of_a_namespace_and_flavors_that_have_no_nodes(tmp_path: Path) -> None:
    """Both namespaces call their queue `door`. Flavor h has a cordoned node only, `ghost` is defined nowhere."""
    site, jobs, lab = (str(tmp_path / name) for name in ("site.yaml", "jobs.yaml", "lab.yaml"))
    Path(site).write_text(FLAWED)
    Path(jobs).write_text(
        "apiVersion: v1\nkind: List\nitems:" + "".join(VOLCANO_JOB.replace("NAMESPACE", name) for name in ("x", "y"))
    )
    assert main(["import", site, "--trace", jobs, "--out", lab]) == 0
    case = equipoise.load(lab)
    queues = {q.name: (q.gpus, q.borrow, q.names) for q in case.queues.queues}
    assert queues == {"one": ({"a": 8}, {"a": 4}, ("x/door",)), "two": ({"a": 4}, None, ("y/door",))}
    aside = Path(lab).read_text().partition("# Not part")[2]
    assert "their quotas are left out:\n#   one: ghost\n" in aside
    assert "their quotas are left out:\n#   h\n" in aside
    result = equipoise.run(case)
    assert list(result.jobs["account"]) == ["x"]  # that of y, of 8 GPUs, never fits into the quota of `two`
    assert list(result.jobs["completion_s"]) == [1.5 * 3600.0]


def test_a_quota_below_0_is_told_by_its_field_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lab = tmp_path / "bad.yaml", tmp_path / "lab.yaml"
    path.write_text(FLAWED.replace("nominalQuota: 8, b", "nominalQuota: -8, b"))
    assert main(["import", str(path), "--out", str(lab)]) == 2
    field = "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"
    assert capsys.readouterr().err.splitlines() == [f"{path}: ClusterQueue one: {field}: '-8' is below 0"]
    assert not lab.exists()


def test_what_volcano_and_kai_say_of_queues_beside_is_named(tmp_path: Path) -> None:
    volcano, kai = "scheduling.volcano.sh/v1beta1", "scheduling.run.ai/v2"
    closed = tree("Queue", "leaf", volcano, parent="top", weight=1) | {"status": {"state": "Closed"}}
    more = {"priority": 7, "preemptMinRuntime": "4h", "reclaimMinRuntime": "1h"}
    things = [
        tree("Queue", "top", volcano, priority=5, guarantee={"resource": {"nvidia.com/gpu": 4}}),
        closed,
        tree("Queue", "team", kai, resources={"gpu": {"quota": 8}, "cpu": {"quota": -1, "limit": 500}}, **more),
        *NODES,
    ]
    site = Site()
    add_kueue(site, read_kueue(json.dumps(things).encode()), "GPUs")
    assert site.aside["More on local queues and cohorts"] == [
        "top: priority '5', guarantee of 4 GPUs to the queues below it"
    ]
    assert site.aside["More on cluster queues"] == [
        "team: priority '7', preemptMinRuntime '\"4h\"', reclaimMinRuntime '\"1h\"', cpu limit 500",
        "leaf: status.state 'Closed': taken as open",
    ]
