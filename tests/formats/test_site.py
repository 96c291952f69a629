"""A site's cluster files become a scenario that runs; a trace is looked through for what it lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import equipoise
from equipoise import cli
from equipoise.sim.loading.file import load, read_scenario
from equipoise.sim.loading.site.cluster import accelerator_of
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.scenario.model import Explicit, Star, TraceSpec, TreeTopology
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.check import Finding, check_trace
from tests.formats.test_jobs_to_trace import sacct, sacct_row

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "formats"

SLURM = """\
ClusterName=lab
SchedulerType=sched/backfill
PriorityWeightAge=1000
MailProg=/bin/mail
NodeName=DEFAULT CPUs=64 RealMemory=512000
NodeName=g[01-04] Gres=gpu:a100:4
NodeName=h[01-02]
NodeName=c[01-08] CPUs=32
PartitionName=gpu Nodes=g[01-04],h[01-02] Default=YES MaxTime=1-0 QOS=normal
"""
GRES = "NodeName=h[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n"
TOPOLOGY = "SwitchName=s1 Nodes=g[01-04],c[01-08]\nSwitchName=s2 Nodes=h[01-02]\nSwitchName=top Switches=s1,s2\n"


def write(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [str(folder / name) for name in files]


def test_a_slurm_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = write(tmp_path, topology=TOPOLOGY, gres=GRES, slurm=SLURM)
    out = tmp_path / "site.yaml"
    assert cli.main(["import", *files, "--out", str(out)]) == 0
    assert cli.main(["validate", str(out)]) == 0
    scenario = load(out)
    assert scenario.name == "lab"
    assert [(g.name, g.count, g.gpus, g.accelerator, g.cores) for g in scenario.cluster.nodes] == [
        ("g", 4, 4, "a100_sxm_80gb", 64),
        ("h", 2, 8, "h100_sxm", 64),
    ]
    topology = scenario.cluster.topology
    assert isinstance(topology, Explicit)
    links = {(link.source, link.target): link.rate for link in topology.links}
    assert links["h-1", "s2"] == 12.5e9
    assert links["s1", "top"] == 4 * 12.5e9
    text = out.read_text(encoding="utf-8")
    for said in (
        "a100 taken as a100_sxm_80gb: guessed",
        "nic: 100 Gbit/s  # assumed",
        "c01 to c08: 8 nodes, 32 cores",
        "#   gpu: longest 24 h",
        "- {name: gpu, default: true, qos: normal}",
        "priority: {age: 1000}",
        "#   mailprog",
    ):
        assert said in text
    assert cli.main(["import", *files, "--out", str(out)]) == 2
    assert "exists; --force replaces it" in capsys.readouterr().err


def test_jobs_of_the_site_run_on_its_cluster(tmp_path: Path) -> None:
    files = write(tmp_path, slurm=SLURM)
    jobs = sacct(tmp_path, sacct_row("1"), sacct_row("2_7", asked="cpu=64", got="cpu=64", cpus="64"))
    text = import_site(files, out=tmp_path / "gpus.yaml", trace=str(jobs))
    (tmp_path / "gpus.yaml").write_text(text, encoding="utf-8")
    assert equipoise.run(tmp_path / "gpus.yaml").jobs["name"].tolist() == ["1"]
    text = import_site(files, out=tmp_path / "cpus.yaml", trace=str(jobs), count="cpus")
    (tmp_path / "cpus.yaml").write_text(text, encoding="utf-8")
    done = equipoise.run(tmp_path / "cpus.yaml")
    assert done.totals["gpus"] == 4 * 64 + 2 * 64 + 8 * 32
    assert done.jobs["gpus"].tolist() == [8, 64]
    assert "each CPU counts as a GPU: energy and money mean nothing" in done.notes[0]


def test_blocks_of_equal_size_are_racks(tmp_path: Path) -> None:
    block = "BlockName=b1 Nodes=g[01-02]\nBlockName=b2 Nodes=g[03-04]\nBlockSizes=2,4\n"
    slurm = "ClusterName=x\nNodeName=g[01-04] CPUs=8 Gres=gpu:h200:8\n"
    files = write(tmp_path, slurm=slurm, topology=block)
    out = tmp_path / "s.yaml"
    out.write_text(import_site(files, out=out), encoding="utf-8")
    topology = load(out).cluster.topology
    assert isinstance(topology, TreeTopology)
    assert topology.nodes_per_rack == 2
    assert "block sizes 2, 4" in out.read_text(encoding="utf-8")


QUEUES = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: a100}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: cq}
spec:
  cohort: all
  queueingStrategy: StrictFIFO
  resourceGroups:
    - coveredResources: [nvidia.com/gpu]
      flavors: [{name: a100, resources: [{name: nvidia.com/gpu, nominalQuota: 24, borrowingLimit: 8}]}]
"""


def test_kueue_quotas_without_nodes(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    out.write_text(import_site(write(tmp_path, queues=QUEUES), out=out), encoding="utf-8")
    scenario = load(out)
    (group,) = scenario.cluster.nodes
    assert (group.count, group.gpus, group.accelerator) == (3, 8, "a100_sxm_80gb")
    assert scenario.policy == ("kueue",)
    (queue,) = scenario.queues.queues
    assert (queue.name, queue.cohort, queue.gpus, queue.borrow, queue.order) == ("cq", "all", 24, 8, "strict")
    text = out.read_text(encoding="utf-8")
    assert "nominal quotas of all queues: 24 GPUs; 8 per node: assumed" in text


NCCL = """<system version="1"><cpu numaid="0"><pci busid="a" class="0x060400" link_speed="32 GT/s" link_width="16">
<pci busid="b" class="0x030200" link_speed="32 GT/s" link_width="16"><gpu dev="0" sm="90" rank="0" gdr="1">
<nvlink target="x" count="18" tclass="0x068000"/></gpu></pci>
<pci busid="c" class="0x020700" link_speed="32 GT/s" link_width="16"><nic><net name="mlx5_0" speed="400000"/></nic>
</pci></pci></cpu></system>
"""
FABRIC = """\
Switch 3 "S-1"  # "leaf" enhanced port 0 lid 1 lmc 0
[1] "H-1"[1](1)  # "n1 mlx5_0" lid 2 4xNDR
[2] "H-2"[1](2)  # "n2 mlx5_0" lid 3 4xNDR

Ca 1 "H-1"  # "n1 mlx5_0"
[1](1) "S-1"[1]  # lid 2 lmc 0 "leaf" lid 1 4xNDR

Ca 1 "H-2"  # "n2 mlx5_0"
[1](2) "S-1"[2]  # lid 3 lmc 0 "leaf" lid 1 4xNDR
"""


def test_files_of_one_kubernetes_cluster_are_read_together(tmp_path: Path) -> None:
    """18 nodes of 8 GPUs in two racks, a quota of their 144 and the topology: one cluster, in either order."""
    level = "cloud.provider.com/topology-rack"
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{k}", "labels": {level: f"r{k // 9}", "kubernetes.io/hostname": f"n{k}"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "96"}},
        }
        for k in range(18)
    ]
    (tmp_path / "nodes.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    resource = {"name": "nvidia.com/gpu", "nominalQuota": 144}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "f", "resources": [resource]}]}]
    objects = [
        {"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"resourceGroups": groups}},
        {"kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {"topologyName": "t"}},
        {"kind": "Topology", "metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": level}]}},
    ]
    lines = [json.dumps({"apiVersion": "kueue.x-k8s.io/v1beta1", **thing}) for thing in objects]
    (tmp_path / "queues.yaml").write_text("\n---\n".join(["kind: List", *lines]))
    out = tmp_path / "lab.yaml"
    for order in (("queues.yaml", "nodes.json"), ("nodes.json", "queues.yaml", "nodes.json")):
        out.write_text(import_site([tmp_path / name for name in order], out=out))
        cluster = load(out).cluster
        assert sum(group.count * group.gpus for group in cluster.nodes) == 144
        assert isinstance(cluster.topology, TreeTopology)
        assert cluster.topology.nodes_per_rack == 9


def test_nodes_that_two_files_tell_count_once(tmp_path: Path) -> None:
    """slurm.conf tells the GPUs of 4 nodes and none of 2 others, sinfo those of all: 4 x 4 and 2 x 8."""
    slurm = "ClusterName=x\nNodeName=g[01-04] CPUs=8 Gres=gpu:a100:4\nNodeName=h[01-02] CPUs=8\n"
    sinfo = "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST GRES\ngpu up 1-0 4 idle g[01-04] gpu:a100:4\n"
    files = write(tmp_path, slurm=slurm, sinfo=sinfo + "gpu up 1-0 2 idle h[01-02] gpu:h100:8\n")
    (tmp_path / "s.yaml").write_text(import_site(files[::-1], out=tmp_path / "s.yaml"))
    groups = load(tmp_path / "s.yaml").cluster.nodes
    assert [(group.count, group.gpus) for group in groups] == [(4, 4), (2, 8)]


def test_a_machine_and_a_fabric(tmp_path: Path) -> None:
    machine, fabric = write(tmp_path, nccl=NCCL, ib=FABRIC)
    out = tmp_path / "s.yaml"
    out.write_text(import_site([fabric, machine], out=out), encoding="utf-8")
    cluster = load(out).cluster
    (group,) = cluster.nodes
    assert (group.count, group.gpus, group.accelerator) == (2, 1, "h100_sxm")
    assert (group.nic, group.fabric) == (50e9, 450e9)
    assert isinstance(cluster.topology, Star)
    with pytest.raises(InputError, match="no node with GPUs in these files"):
        import_site([fabric], out=out)


def test_a_host_with_few_adapters_is_named_and_is_no_node(tmp_path: Path) -> None:
    slow = '\nCa 1 "H-3"  # "store mlx5_0"\n[1](3) "S-1"[3]  # lid 4 lmc 0 "leaf" lid 1 4xEDR\n'
    text = import_site(write(tmp_path, nccl=NCCL, ib=FABRIC + slow), out=tmp_path / "s.yaml")
    heading, *lines = text[text.index("Hosts with few adapters, not taken as GPU nodes") :].splitlines()
    told = " ".join([heading, lines[0]])
    assert ("store" in told, "n1" in told, "n2" in told) == (True, False, False)


def test_types_of_gpus_by_the_names_of_sites() -> None:
    assert accelerator_of("NVIDIA-H100-80GB-HBM3") == ("h100_sxm", "")
    assert accelerator_of("tesla_v100-pcie-32gb")[1] == "tesla_v100-pcie-32gb taken as v100_sxm2_32gb: guessed"
    assert accelerator_of("a10") == ("a10", "")
    for name in (
        "gb200",
        "NVIDIA-GB300",
        "b300",
        "nvidia_h20",
        "h800",
        "mi355x",
        "rtx_4090",
        "NVIDIA-GeForce-RTX-4090",
    ):
        assert accelerator_of(name)[0] in name.lower().replace("-", "_"), name
    assert accelerator_of("NVIDIA-GH200-480GB")[0] == "h100_sxm"
    assert accelerator_of("h100_pcie")[0] == "h100_pcie"
    assert accelerator_of("a1000")[0] == "generic"
    assert accelerator_of("P100") == ("generic", "P100 is not in the hardware profile: generic")


def findings(path: Path, scenario: Path | None = None) -> dict[str, Finding]:
    cluster = None if scenario is None else read_scenario(scenario).scenario.cluster
    found = check_trace(TraceSpec(file=str(path)), path, cluster)
    return {finding.what: finding for finding in found.findings}


def test_check_tells_what_is_odd_and_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        sacct_row(
            str(k),
            submit=f"2024-03-01T{10 + k // 60:02}:{k % 60:02}:00",
            eligible="Unknown",
            start="2024-03-01T20:00:00",
            end="2024-03-01T21:00:00",
        )
        for k in range(1, 120)
    ]
    rows[60] = sacct_row("61", submit="2024-03-01T10:01:00", start="2024-03-01T20:00:00", end="2024-03-01T21:00:00")
    rows += [
        sacct_row("200", submit="Unknown", eligible="Unknown"),
        sacct_row("201", submit="2024-03-01T12:20:00", state="RUNNING", end="Unknown"),
    ]
    rows += [
        sacct_row(
            "202",
            submit="2024-03-01T12:30:00",
            got="cpu=8,gres/gpu=16",
            start="2024-03-01T20:30:00",
            end="2024-03-01T21:30:00",
        )
    ]
    path = sacct(tmp_path, *rows)
    (tmp_path / "s.yaml").write_text(
        "schema_version: 1\nname: x\ncluster: {nodes: [{name: n, count: 20, gpus: 8}]}\nworkload: {}\n",
        encoding="utf-8",
    )
    found = findings(path, tmp_path / "s.yaml")
    assert found["left out: no submit time"].count == 1
    assert found["left out: had not ended when the file was written"].count == 1
    jump = found["clock jumps: submitted before the job with the number before"]
    assert (jump.count, jump.line) == (1, 62)
    assert "3540 s; about an hour: probably a change of daylight saving time" in jump.effect
    over = found["over capacity: seconds in which the site held more than the scenario has"]
    assert over.count == 3600  # 119 jobs of 2 GPUs for an hour on 160
    assert "up to 254 GPUs, the scenario has 160" in over.effect
    assert found["no node can hold its GPUs"].count == 1
    assert cli.main(["check", str(path), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["jobs"]) == (122, 120)
    assert any(f["what"] == "the site held up to 254 GPUs at once" for f in told["findings"])


def test_check_tells_a_renewed_submission_from_a_clock_jump(tmp_path: Path) -> None:
    rows = [
        sacct_row(
            str(k),
            submit=f"2024-03-01T10:{k // 4:02}:{k % 4 * 15:02}",
            start="2024-03-02T10:00:00",
            end="2024-03-02T11:00:00",
        )
        for k in range(1, 121)
    ]
    rows.append(sacct_row("200", submit="2024-03-01T12:00:00", start="2024-03-02T10:00:00", end="2024-03-02T11:00:00"))
    rows.append(sacct_row("201", submit="2024-03-01T11:00:00", start="2024-03-02T10:00:00", end="2024-03-02T11:00:00"))
    found = findings(sacct(tmp_path, *rows))
    assert found["submitted later than jobs with higher numbers"].count == 1
    assert "clock jumps: submitted before the job with the number before" not in found


def test_check_tells_of_twins_and_of_both_ends(tmp_path: Path) -> None:
    long = {"start": "2024-03-01T10:00:00", "end": "2024-03-01T22:00:00", "elapsed": "12:00:00"}
    path = sacct(tmp_path, sacct_row("1", **long), sacct_row("2"), sacct_row("3"))
    found = findings(path)
    alike = found["jobs alike in arrival, duration, GPUs and user"]
    assert alike.count == 1
    assert "7.14 % of the load is counted twice" in alike.effect  # one of 12 + 1 + 1 h
    early = found["began before the first end in the record"]
    assert early.count == 3
    assert "jobs that ended before 2024-03-01T11:05:00Z are not in the record" in early.effect


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="the public data are not beside the checkout")
def test_files_of_a_university(tmp_path: Path) -> None:
    files = [DATA / f"medium-{name}.conf" for name in ("slurm", "gres", "topology")]
    trace, out = DATA / "medium-workload_5k.events.gz", tmp_path / "s.yaml"
    out.write_text(import_site(files, out=out, trace=str(trace), count="cpus"), encoding="utf-8")
    read = read_scenario(out)
    assert sum(group.count * group.gpus for group in read.scenario.cluster.nodes) == 7968
    jobs = read.trace()
    assert jobs is not None
    assert len(jobs) == 4975
    assert "5000 rows, 4975 jobs; left out: 25 zero duration" in jobs.notes[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NodeName=n Name=gpu Count=4\n", "(gres.conf); also name slurm.conf, sinfo or `scontrol show node`"),
        ("apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: q}\nspec: {}\n", "--count cpus"),
    ],
)
def test_a_file_that_holds_only_a_part_says_what_to_name_beside_it(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "part"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        import_site([path], out=tmp_path / "out.yaml")
    assert len(error.value.lines) == 1
    assert why in error.value.lines[0]


def test_a_file_of_jobs_alone_says_what_to_do_with_it(tmp_path):
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|Submit|Start|End|AllocTRES|State\n1|2024-03-01T00:00:00|2024-03-01T00:00:00|2024-03-01T01:00:00|"
        "gres/gpu=2|COMPLETED\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError) as wrong:
        import_site([path], out=tmp_path / "site.yaml")
    assert len(wrong.value.lines) == 1
    assert "give it as --trace with a file that does" in wrong.value.lines[0]


def test_check_counts_what_is_left_out_and_loses_no_load_of_merged_components(tmp_path: Path) -> None:
    """5 rows of a native table, 2 of them jobs; of sacct, two wrong times, and 24 GPU-hours kept in one job of 12."""
    plain = tmp_path / "plain.csv"
    plain.write_text("job_id,arrival_s,gpus,duration_s\n1,0,8,100\n2,0,0,100\n3,10,8,0\n4,10,8,50\n4,10,8,50\n")
    checked = check_trace(TraceSpec(file=str(plain)), plain)
    assert (checked.rows, checked.jobs) == (5, 2)
    assert [(f.what, f.count, f.line) for f in checked.findings] == [
        ("left out: no GPUs", 1, 3),
        ("left out: zero duration", 1, 4),
        ("left out: equal to an earlier row", 1, 6),
    ]
    day, form = "2024-03-01T", "JobID|User|State|Submit|Start|End|Elapsed|AllocTRES"
    rows = [
        f"{job}|u|COMPLETED|{day}00:00:00|{day}01:00:00|{day}{end}:00:00|{elapsed}:00:00|gres/gpu={gpus},node=1"
        for job, end, elapsed, gpus in (("1", "00", "03", 8), ("2", "03", "01", 8), ("3+0", "03", "02", 8))
    ]
    table = tmp_path / "sacct.txt"
    table.write_text("\n".join([form, *rows, rows[2].replace("3+0", "3+1").replace("=8", "=4")]) + "\n")
    found = findings(table)
    assert found["changed: End is before Start: Elapsed, where there is one, is the duration"].line == 2
    told = "changed: Elapsed is not the time from Start to End (suspended?): Elapsed is the duration"
    assert (found[told].count, found[told].line) == (1, 3)
    assert not [what for what in found if "of rows left out or merged" in what]


def test_what_of_slurm_conf_is_not_simulated_is_named(tmp_path: Path) -> None:
    conf = "ClusterName=x\nNodeName=g[1-2] Gres=gpu:8 CPUs=64\nNodeName=g2 Gres=gpu:4 CPUs=64\n"
    conf += "NodeName=g3 Gres=gpu:x:y:z,gpu:a100:no_consume:2 CPUs=64\nPartitionName=a Nodes=ALL State=DOWN\n"
    (tmp_path / "slurm.conf").write_text(conf)
    aside = import_site([tmp_path / "slurm.conf"], out=tmp_path / "o.yaml").partition("# Not part")[2]
    assert "# Nodes defined twice: the first applies:\n#   g2\n" in aside
    assert "# Gres not understood, taken as one GPU:\n#   g3: gpu:x:y:z\n" in aside
    assert "#   a: taken as up, although State is DOWN" in aside
