"""What a site's files declare of its queues becomes the section `queues` of a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

import equipoise
from equipoise.formats.read import read
from equipoise.formats.recognise import recognise
from equipoise.formats.text.errors import FormatError
from equipoise.sim.loading.file import load
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.scenario.model import Scenario
from tests.formats.test_site import write

SLURM = """\
ClusterName=lab
AccountingStorageEnforce=limits
SchedulerParameters=bf_window=4320,bf_interval=120,bf_max_job_test=50,bf_continue,preempt_youngest_first
PreemptType=preempt/qos
PreemptMode=REQUEUE
PreemptExemptTime=00:10:00
PriorityType=priority/multifactor
PriorityDecayHalfLife=30-0
PriorityWeightFairshare=120000
PriorityWeightJobSize=200
PriorityMaxAge=7-0
NodeName=g[01-04] CPUs=8 Gres=gpu:a100:4
NodeName=h[01-02] CPUs=8 Gres=gpu:h100:8
PartitionName=all Nodes=ALL Default=YES
PartitionName=half Nodes=g[01-02] PriorityTier=5 PriorityJobFactor=3 QOS=high AllowAccounts=physics PreemptMode=OFF
"""
QOS = """\
Name|Priority|Preempt|Flags|UsageFactor|GrpTRES|MaxTRES|MaxWall|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxSubmitPU
normal|0||||||||||
high|100|normal,old|OverPartQOS|1.000000|cpu=9,mem=2T,bb/x=3,gres/gpu:a100=4,gres/gpu=8|gres/gpu=2|1-00:00:00|gres/gpu=3|5|gres/gpu=6|7
"""
DUMP = """\
# To edit this file start with a cluster line for the new cluster
Cluster - 'lab':Fairshare=1:QOS='normal'
Parent - 'root'
User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
Account - 'physics':Description='a':Fairshare=10:GrpTRES=gres/gpu:a100=8,gres/gpu=16
Parent - 'physics'
Account - 'cosmo':Description='x':Fairshare=3:MaxJobs=2
Parent - 'cosmo'
User - 'ann':DefaultAccount='cosmo':Fairshare=2:MaxJobs=4:GrpTRES=gres/gpu=5
User - 'bob':Fairshare=parent
"""
ASSOC = """\
Cluster|Account|ParentName|User|Share|GrpTRES|MaxJobs
lab|root|||1||
lab|physics|root||10|gres/gpu:a100=8,gres/gpu=16|
lab|cosmo|physics||3||2
lab|cosmo||ann|2|gres/gpu=5|4
lab|cosmo||bob|parent||
"""
SCRIPT = """\
remove QOS where Name=normal
add QOS Name=high Priority=100 MaxTRESPerUser=gres/gpu=3
add account Name=physics Fairshare=10 GrpTRES=gres/gpu:a100=8,gres/gpu=16
add account Name=cosmo Parent=physics Fairshare=3 MaxJobs=2
add user Name=ann,bob Account=cosmo Fairshare=2
modify account where Name=cosmo set Fairshare=4
"""


def imported(folder: Path, **files: str) -> tuple[Scenario, str]:
    out = folder / "s.yaml"
    out.write_text(import_site(write(folder, **files), out=out), encoding="utf-8")
    return load(out), " ".join(out.read_text(encoding="utf-8").replace("#", " ").split())


def test_partitions_priorities_backfill_and_qos(tmp_path: Path) -> None:
    scenario, text = imported(tmp_path, slurm=SLURM, qos=QOS)
    q = scenario.queues
    assert scenario.policy == ("multifactor",)
    assert q.backfill is not None
    assert (q.backfill.depth, q.backfill.window, q.backfill.interval) == (50, 3 * 86400.0, 120.0)
    assert q.priority is not None
    assert (q.priority.fairshare, q.priority.size, q.priority.age) == (120000.0, 200.0, 0.0)
    assert (q.priority.half_life, q.priority.max_age) == (30 * 86400.0, 7 * 86400.0)
    assert [(g.name, g.count) for g in scenario.cluster.nodes] == [("g", 2), ("g2", 2), ("h", 2)]
    one, half = q.partitions
    assert (one.name, one.nodes, one.default) == ("all", (), True)
    assert (half.nodes, half.tier, half.priority, half.qos) == (("g",), 5, 3.0, "high")
    assert half.accounts == ("physics",)
    _, high = q.qos
    assert (high.preempts, high.tres.cpu, high.tres.mem) == (("normal",), 9.0, 2.0 * 2**40)
    assert q.preemption is not None
    assert (q.preemption.by, q.preemption.exempt, q.preemption.youngest_first) == ("qos", 600.0, True)
    assert (one.spared, half.spared) == (False, True)
    assert scenario.decide.estimate == "time-limit"
    assert (high.priority, high.gpus, high.gpus_per_user, high.gpus_per_account) == (100.0, 8.0, 3.0, 6.0)
    assert (high.gpus_per_job, high.jobs_per_user) == (2.0, 5)
    assert high.gpus_of_type == {"a100_sxm_80gb": 4.0}
    for told in ("GrpTRES bb/x=3", "MaxSubmitPU 7", "preempts a QOS that is not in these files old"):
        assert told in text


@pytest.mark.parametrize("form", ["dump", "assoc"])
def test_accounts_and_users(tmp_path: Path, form: str) -> None:
    scenario, text = imported(tmp_path, slurm=SLURM, accounts=DUMP if form == "dump" else ASSOC)
    physics, cosmo = scenario.queues.accounts
    assert (physics.name, physics.parent, physics.shares, physics.gpus) == ("physics", "", 10.0, 16.0)
    assert physics.gpus_of_type == {"a100_sxm_80gb": 8.0}
    assert (cosmo.parent, cosmo.shares, cosmo.jobs_per_user) == ("physics", 3.0, 2)
    ann, bob = scenario.queues.users
    assert (ann.name, ann.account, ann.shares, ann.jobs, ann.gpus) == ("ann", "cosmo", 2.0, 4, 5.0)
    assert bob.shares == 1.0
    assert "Fairshare=parent" in text


def test_a_job_of_a_file_without_accounts_is_charged_to_the_user_s_default_account(tmp_path: Path) -> None:
    """The default account, the second of the file, allows 8 of the 16 GPUs: one job after the other, as in Slurm."""
    slurm = "AccountingStorageEnforce=limits\nNodeName=g[1-2] CPUs=8 Gres=gpu:h100:8\nPartitionName=all Nodes=ALL\n"
    user = "User - 'u':DefaultAccount='A':Fairshare=1\n"
    dump = "Cluster - 'lab':Fairshare=1\nParent - 'root'\nAccount - 'B':Fairshare=1\n"
    dump += f"Account - 'A':Fairshare=1:GrpTRES=gres/gpu=8\nParent - 'B'\n{user}Parent - 'A'\n{user}"
    row = "|u|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|01:00:00|COMPLETED|gres/gpu=8\n"
    (sacct,) = write(tmp_path, sacct=f"JobID|User|Submit|Start|End|Elapsed|State|AllocTRES\n1{row}2{row}")
    scenario, _ = imported(tmp_path, slurm=slurm, accounts=dump)
    assert equipoise.run(scenario, trace=sacct).jobs["start_s"].tolist() == [0.0, 3600.0]


def test_a_script_for_sacctmgr(tmp_path: Path) -> None:
    scenario, text = imported(tmp_path, slurm=SLURM, script=SCRIPT)
    assert [(a.name, a.parent, a.shares) for a in scenario.queues.accounts] == [
        ("physics", "", 10.0),
        ("cosmo", "physics", 4.0),
    ]
    assert [(u.name, u.account, u.shares) for u in scenario.queues.users] == [
        ("ann", "cosmo", 2.0),
        ("bob", "cosmo", 2.0),
    ]
    assert [(q.name, q.priority, q.gpus_per_user) for q in scenario.queues.qos] == [("high", 100.0, 3.0)]
    assert "1 line remove qos" in text


def test_what_is_no_dump_is_refused_with_its_line(tmp_path: Path) -> None:
    (path,) = write(tmp_path, dump="Parent - 'root'\nhello\n")
    assert recognise(path) == "sacctmgr-dump"
    with pytest.raises(FormatError, match=r"dump:2: no line `Parent"):
        read(path)


KUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: reserved}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: new}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: cq}
spec:
  cohort: all
  preemption:
    reclaimWithinCohort: Any
    withinClusterQueue: LowerPriority
    borrowWithinCohort: {policy: LowerPriority, maxPriorityThreshold: 100}
  fairSharing: {weight: 2}
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors:
        - {name: reserved, resources: [{name: nvidia.com/gpu, nominalQuota: 8, lendingLimit: 4}]}
        - {name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: 16}]}
        - {name: new, resources: [{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 0}]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: door, namespace: team}
spec: {clusterQueue: cq}
"""


def test_a_cohort_above_that_is_declared_nowhere_is_there(tmp_path: Path) -> None:
    """Kueue makes a cohort that somebody names; v1beta2 calls the keys `cohortName` and `parentName`."""
    above = "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {name: all}\n"
    above += "spec: {parentName: root}\n"
    text = KUEUE.replace("cohort: all", "cohortName: all").replace("v1beta1", "v1beta2") + above
    scenario, _ = imported(tmp_path, kueue=text)
    assert [(c.name, c.parent) for c in scenario.queues.cohorts] == [("all", "root"), ("root", "")]


def test_queues_cohorts_and_flavors_of_kueue(tmp_path: Path) -> None:
    scenario, text = imported(tmp_path, kueue=KUEUE)
    assert scenario.policy == ("kueue",)
    assert [cohort.name for cohort in scenario.queues.cohorts] == ["all"]
    (queue,) = scenario.queues.queues
    assert queue.gpus == {"spot+reserved": 24, "new": 8}
    assert (queue.borrow, queue.lend) == ({"new": 0}, {"spot+reserved": 20})  # spot has no limit: its 16, and 4
    assert (queue.reclaim, queue.within, queue.weight, queue.names) == ("any", "lower-priority", 2.0, ("door",))
    assert (queue.borrow_within, queue.borrow_within_most) == ("lower-priority", 100.0)
    assert scenario.queues.flavors == {"spot+reserved": ("a100_sxm_80gb",), "new": ("h100_sxm",)}
    assert "quotas summed" in text


def test_what_objects_of_kueue_say_beside_is_never_dropped_silently(tmp_path: Path) -> None:
    text = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeTaints: [{key: spot, effect: NoSchedule}]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: a100}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: q}
spec:
  flavorFungibility: {whenCanBorrow: TryNextFlavor}
  resourceGroups:
  - flavors:
    - {name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 16}, {name: memory, nominalQuota: 9Gi}]}
    - {name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: door}
spec: {clusterQueue: q, stopPolicy: Hold}
"""
    (tmp_path / "queues.yaml").write_text(text, encoding="utf-8")
    made = import_site([tmp_path / "queues.yaml"], out=tmp_path / "out.yaml")
    aside = made.partition("# Not part of the simulation")[2]
    for told in ("nodeTaints", "flavorFungibility", "quotas of memory", "door: stopPolicy"):
        assert told in aside
    # Flavors that no node is told of are told apart by their names.
    assert "gpus: {h100: 16, a100: 8}" in made
