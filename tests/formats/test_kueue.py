"""Objects of Kueue and Kubernetes, and the generator of Kueue's performance test."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.formats.kueue.generator import read_generator
from equipoise.formats.kueue.read import read_kueue
from equipoise.formats.kueue.values import quantity
from equipoise.formats.text.errors import FormatError
from equipoise.sim.loading.site.read import import_site

QUEUES = b"""
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: main}
spec:
  cohortName: all
  queueingStrategy: StrictFIFO
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - {name: cpu, nominalQuota: 500m}
      - {name: nvidia.com/gpu, nominalQuota: 16, borrowingLimit: "4", lendingLimit: 0}
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority, borrowWithinCohort: {policy: Never}}
  fairSharing: {weight: "2"}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: old}
spec: {cohort: all}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {namespace: team, name: door}
spec: {clusterQueue: main}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: all}
spec: {parentName: root}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeLabels: {gpu: h100}, topologyName: dc}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: dc}
spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}]}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 1000
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
"""

JOBS = b"""
apiVersion: batch/v1
kind: Job
metadata:
  generateName: train-
  labels: {kueue.x-k8s.io/queue-name: door, kueue.x-k8s.io/priority-class: high}
  annotations: {kueue.x-k8s.io/job-min-parallelism: "2"}
spec:
  parallelism: 8
  template:
    metadata:
      annotations: {kueue.x-k8s.io/podset-required-topology: rack}
    spec:
      initContainers: [{name: i, resources: {requests: {cpu: 3}}}]
      containers:
      - {name: a, resources: {requests: {cpu: 1}, limits: {nvidia.com/gpu: 4}}}
      - {name: b, resources: {requests: {cpu: 500m}}}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, labels: {kueue.x-k8s.io/queue-name: door}}
spec:
  replicatedJobs:
  - {name: w, replicas: 3, template: {spec: {parallelism: 2, template: {spec: {containers: []}}}}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: torch}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "8"}}}]}}}
    Worker: {replicas: 3, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: "8"}}}]}}}
"""


def test_queues_flavors_and_topology() -> None:
    found = read_kueue(QUEUES)
    main, old = found.cluster_queues
    assert (main.name, main.cohort, main.strategy, main.weight) == ("main", "all", "StrictFIFO", 2.0)
    assert (main.reclaim_within_cohort, main.within_cluster_queue) == ("Any", "LowerPriority")
    cpu, gpu = main.quotas
    assert (cpu.flavor, cpu.nominal, cpu.borrowing_limit) == ("h100", 0.5, None)
    assert (gpu.nominal, gpu.borrowing_limit, gpu.lending_limit) == (16.0, 4.0, 0.0)
    assert (old.cohort, old.strategy, old.within_cluster_queue) == ("all", "BestEffortFIFO", "Never")
    assert (found.local_queues[0].namespace, found.local_queues[0].cluster_queue) == ("team", "main")
    assert found.cohorts[0].parent == "root"
    assert (found.flavors[0].node_labels, found.flavors[0].topology) == ({"gpu": "h100"}, "dc")
    assert found.topologies[0].levels == ("block", "rack")
    assert found.priority_classes == {"high": 1000}
    assert [(c.reason, c.first_line) for c in found.changes] == [("an object of kind Secret", 8)]


def test_jobs_of_several_kinds() -> None:
    job, jobset, torch = read_kueue(JOBS).workloads
    (pods,) = job.pod_sets
    assert (job.name, job.queue, job.priority_class, job.gpus) == ("train-", "door", "high", 32)
    assert (pods.count, pods.min_count, pods.topology, pods.level) == (8, 2, "required", "rack")
    assert pods.requests == {"cpu": 3.0, "nvidia.com/gpu": 4.0}
    assert (jobset.kind, jobset.pod_sets[0].count) == ("JobSet", 6)
    assert ([p.count for p in torch.pod_sets], torch.gpus) == ([1, 3], 32)


def workload(**status: object) -> dict[str, object]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"namespace": "team", "name": "w", "creationTimestamp": "2024-03-01T10:00:00Z"},
        "spec": {
            "queueName": "door",
            "priority": 50,
            "podSets": [
                {
                    "name": "main",
                    "count": 4,
                    "minCount": 2,
                    "template": {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}},
                }
            ],
        },
        "status": status,
    }


def test_workloads_with_their_times() -> None:
    def condition(kind: str, status: str, minute: int) -> dict[str, str]:
        return {"type": kind, "status": status, "lastTransitionTime": f"2024-03-01T10:{minute:02}:00Z", "reason": kind}

    done = workload(
        conditions=[
            condition("QuotaReserved", "True", 5),
            condition("Admitted", "True", 6),
            condition("Finished", "True", 30),
            condition("Evicted", "False", 5),
        ],
        schedulingStats={"evictions": [{"reason": "Preempted", "count": 3}]},
        admission={"clusterQueue": "main"},
    )
    one, two = read_kueue(json.dumps({"kind": "List", "items": [done, workload()]}).encode()).workloads
    assert (one.queue, one.priority, one.gpus, one.cluster_queue, one.evictions) == ("door", 50, 8, "main", 3)
    assert (one.admitted_s - one.created_s, one.finished_s - one.admitted_s) == (360.0, 1440.0)
    assert one.pod_sets[0].min_count == 2
    assert math.isnan(two.admitted_s)
    assert two.evictions == 0


def test_pods_and_nodes() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "creationTimestamp": "2024-03-01T10:00:00Z",
            "ownerReferences": [{"kind": "Job", "name": "train"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {
            "phase": "Succeeded",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2024-03-01T10:01:00Z"}],
            "containerStatuses": [
                {"state": {"terminated": {"startedAt": "2024-03-01T10:02:00Z", "finishedAt": "2024-03-01T11:02:00Z"}}}
            ],
        },
    }
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"gpu": "h100"}},
        "status": {"allocatable": {"cpu": "95500m", "memory": "1Ti", "nvidia.com/gpu": "8"}},
    }
    found = read_kueue(json.dumps({"items": [pod, node]}).encode())
    one = found.pods[0]
    assert (one.owner, one.node, one.gpus, one.phase) == ("Job/train", "n1", 8, "Succeeded")
    assert (one.scheduled_s - one.created_s, one.finished_s - one.started_s) == (60.0, 3600.0)
    assert found.nodes[0].gpus == 8
    assert found.nodes[0].allocatable == {"cpu": 95.5, "memory": 2.0**40, "nvidia.com/gpu": 8.0}


def test_the_generator() -> None:
    text = b"""
cohorts:
- className: c
  count: 5
  queuesSets:
  - className: q
    count: 6
    nominalQuota: 20
    borrowingLimit: 100
    workloadsSets:
    - {count: 350, creationIntervalMs: 100, workloads: [{className: s, runtimeMs: 200, priority: 50, request: 1}]}
"""
    (cohorts,) = read_generator(text).cohorts
    (queues,) = cohorts.queues
    assert (cohorts.count, queues.count, queues.nominal_quota, queues.borrowing_limit) == (5, 6, 20.0, 100.0)
    work = queues.work[0]
    assert (work.count, work.interval_s, work.run_s, work.priority, work.request) == (350, 0.1, 0.2, 50, 1.0)


@pytest.mark.parametrize(
    ("value", "number"),
    [("500m", 0.5), ("36Gi", 36 * 2.0**30), (8, 8.0), ("1e3", 1000.0), ("2k", 2000.0), ("x", None), ("1_0", None)],
)
def test_quantities(value: object, number: float | None) -> None:
    assert quantity(value) == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: [", "not YAML: "),
        (b"hello", "apiVersion and kind are needed"),
        (
            b"kind: ClusterQueue\nmetadata: {name: q}\nspec: {resourceGroups: 3}",
            "ClusterQueue q: spec.resourceGroups: '3'",
        ),
        (b"kind: ClusterQueue\nmetadata: {name: q}\nspec: {fairSharing: {weight: much}}", "fairSharing.weight: 'much'"),
        (b'{"kind": "Pod", "spec": ', "<input>:1: not JSON"),
        (b"kind: Workload\nmetadata: {creationTimestamp: yesterday}", "creationTimestamp: 'yesterday'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_kueue(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


KINDS = st.sampled_from(
    ["ClusterQueue", "LocalQueue", "Cohort", "Workload", "Pod", "Node", "Job", "Topology", "Queue", "HyperNode"]
)
KEYS = st.sampled_from(
    ["spec", "status", "metadata", "resourceGroups", "conditions", "podSets", "containers", "template"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(KINDS, st.dictionaries(KEYS, VALUES, max_size=5), st.binary(max_size=60))
def test_any_values_give_objects_or_one_clear_error(kind: str, rest: dict[str, object], noise: bytes) -> None:
    for data in (json.dumps({"kind": kind, **rest}).encode(), noise, b"kind: Pod\n" + noise):
        for reader in (read_kueue, read_generator):
            try:
                reader(data)  # type: ignore[operator]
            except FormatError as error:
                message = str(error)
            else:
                message = ""
            assert "\n" not in message


def test_performance_test_with_nodes_and_pods(tmp_path: Path) -> None:
    text = """
topology:
  levels:
    - {name: rack, count: 3, nodeLabel: x/rack}
    - {name: node, count: 4, nodeLabel: kubernetes.io/hostname, capacity: {cpu: "96"}}
cohorts:
  - className: c
    queuesSets:
    - className: q
      nominalQuota: "500"
      workloadsSets:
      - count: 5
        creationIntervalMs: 200
        workloads:
        - {className: near, runtimeMs: 1000, request: "2", podCount: 4, tasConstraint: required, tasLevel: x/rack}
        - {className: even, runtimeMs: 1000, request: "2", podCount: 8, tasConstraint: balanced, tasLevel: x/rack}
"""
    path = tmp_path / "generator.yaml"
    path.write_text(text)
    made = import_site([path], out=tmp_path / "lab.yaml")
    assert "count: 12\n      gpus: 96" in made
    assert "{kind: tree, nodes_per_rack: 4}" in made
    assert "{name: near-c-0-0, count: 5, gpus: 8," in made
    assert made.count("together: rack-required") == 1
    assert "#   even: balanced in x/rack" in made


def test_objects_of_several_commands_in_one_file() -> None:
    flavor = '{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "%s"}}'
    found = read_kueue(f"{flavor % 'a'}\n{flavor % 'b'} {flavor % 'c'}\n".encode())
    assert [one.name for one in found.flavors] == ["a", "b", "c"]
    with pytest.raises(FormatError, match=r"f:2: not JSON: Expecting"):
        read_kueue(f"{flavor % 'a'}\n{{oops\n".encode(), name="f")


def test_what_an_import_has_no_place_for_is_told(tmp_path: Path) -> None:
    text = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: t}
spec: {levels: [{nodeLabel: x/rack}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: q}
spec:
  resourceGroups:
  - flavors: [{name: f, resources: [{name: habana.ai/gaudi, nominalQuota: 16}, {name: cpu, nominalQuota: 9}]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {template: {spec: {containers: [{name: c}]}}}
"""
    path = tmp_path / "kueue.yaml"
    path.write_text(text)
    made = import_site([path], out=tmp_path / "lab.yaml")
    assert "count: 2\n      gpus: 8" in made
    assert "#   t: x/rack" in made
    assert "#   q: quotas of cpu" in made
    assert "#   1 workloads and jobs" in made
