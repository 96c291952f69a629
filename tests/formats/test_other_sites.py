"""What other sites' files hold: accelerators of other vendors, tables at fixed widths, node sets, other clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import equipoise
from equipoise.formats.accelerators import is_accelerator
from equipoise.formats.read import read
from equipoise.formats.recognise import recognise
from equipoise.formats.slurm.values import gres_gpus, tres_gpus
from equipoise.formats.text.errors import FormatError
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_trace
from equipoise.sim.traces.trace import Trace

NODES = "ClusterName=lab\nNodeName=a[1-4] Gres=gpu:a100:4 CPUs=64\nPartitionName=p Nodes=a[1-4]\n"
NODES += "AccountingStorageEnforce=limits\n"


def imported(tmp_path: Path, *texts: str, gpus: int = 0) -> str:
    """The scenario from files with these texts, the blanks between words made one."""
    paths = [tmp_path / f"file{k}" for k in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return " ".join(import_site(paths, out=tmp_path / "lab.yaml", gpus=gpus).split())


def trace(tmp_path: Path, text: str, **options: object) -> Trace:
    """The jobs of a trace with this text."""
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    return read_trace(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gres/npu=8,cpu=4", (8, "npu")),
        ("gres/npu=8,gres/npu:ascend910=8", (8, "ascend910")),
        ("gres/dcu=4,gres/gpu=2", (6, "dcu")),
        ("gres/shard=4,gres/gpumem=1G", (0, "")),
        ("cpu=1", (0, "")),
    ],
)
def test_gpus_of_tres_by_other_names(text: str, found: tuple[int, str]) -> None:
    assert tres_gpus(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GPU:4", (4, "")),
        ("npu:8", (8, "npu")),
        ("gpu:a100:no_consume:2", (2, "a100")),
        ("7696487:2", (2, "")),
        ("per_job:gpu:4", (4, "")),
        ("gpu:a100:1K", (1024, "a100")),
        ("gpu:1g.10gb:2", (2, "1g.10gb")),
        ("nic:2,gpu:mi300x:8(S:0-1)", (8, "mi300x")),
        ("npu:0", (0, "")),
        ("tmpfs:10G", (0, "")),
    ],
)
def test_gpus_of_gres_by_other_names(text: str, found: tuple[int, str]) -> None:
    assert gres_gpus(text) == found


def test_resources_of_kubernetes_that_are_whole_gpus() -> None:
    whole = (
        "nvidia.com/gpu",
        "amd.com/gpu",
        "habana.ai/gaudi",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "gpu.nvidia.com",
    )
    parts = ("nvidia.com/mig-1g.5gb", "nvidia.com/gpucores", "nvidia.com/gpumem", "cpu", "memory", "gpu", "cpu_credits")
    assert all(map(is_accelerator, whole))
    assert not any(map(is_accelerator, parts))


def test_nodes_of_one_line_whose_gres_conf_differs(tmp_path: Path) -> None:
    slurm = (
        "ClusterName=lab\nNodeName=a[1-5] Gres=gpu:4\nNodeName=n[1-2] Gres=npu:8\nNodeName=x State=FUTURE Gres=gpu:8\n"
    )
    gres = "NodeName=a[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]\nNodeName=a[3-5] Name=gpu Type=h100 Count=4\n"
    text = imported(tmp_path, slurm, gres)
    assert "count: 2 gpus: 4 accelerator: a100_sxm_80gb" in text
    assert "count: 3 gpus: 4 accelerator: h100_sxm" in text
    assert "count: 2 gpus: 8 accelerator: generic" in text
    assert "# x: State=FUTURE" in text


def test_partitions_of_node_sets(tmp_path: Path) -> None:
    slurm = (
        "ClusterName=lab\nNodeName=a[1-2] Gres=gpu:a100:4 Feature=old,ib\n"
        "NodeName=h[1-2] Gres=gpu:h100:8 Feature=new\n"
        "NodeSet=fast Feature=new\nNodeSet=slow Nodes=a[1-2]\n"
        "PartitionName=x Nodes=fast\nPartitionName=y Nodes=slow,h1\nPartitionName=z Nodes=ALL\n"
    )
    text = imported(tmp_path, slurm)
    assert "{name: x, nodes: [h, h2]}" in text
    assert "{name: y, nodes: [a, h]}" in text
    assert "{name: z}" in text


def test_switches_that_scontrol_shows_with_all_nodes_below(tmp_path: Path) -> None:
    shown = (
        "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=a[1-2]\nSwitchName=l2 Level=0 LinkSpeed=1 Nodes=a[3-4]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=a[1-4] Switches=l[1-2]\nSwitchName=none Level=0 Nodes=\n"
    )
    assert "topology: {kind: tree, nodes_per_rack: 2}" in imported(tmp_path, NODES, shown)


def test_a_partition_that_scontrol_shows_over_several_lines(tmp_path: Path) -> None:
    shown = (
        "PartitionName=gpu\n   AllowGroups=ALL Default=YES QoS=fast\n   Nodes=a[1-4]\n"
        "   State=UP TotalCPUs=256 TotalNodes=4\n"
    )
    node = "NodeName=a1 CPUTot=64 Gres=gpu:a100:4 State=IDLE\n   RealMemory=1000\n"
    assert recognise(shown.encode()) == "scontrol"
    assert "{name: gpu, default: true, qos: fast}" in imported(tmp_path, node, shown)


def test_limits_from_any_form_of_the_table(tmp_path: Path) -> None:
    few = "Name|GrpTRES|MaxTRESPU|MaxJobsPU\nfast|gres/gpu=32|gres/gpu=8|10\nslow||gres/npu=4|\n"
    wide = (
        "      Name   Priority       GrpTRES \n---------- ---------- ------------- \n"
        "      fast          5   gres/gpu=32 \n      slow          0                \n"
    )
    assert "{name: fast, gpus: 32, gpus_per_user: 8, jobs_per_user: 10}" in imported(tmp_path, NODES, few)
    assert "{name: slow, gpus_per_user: 4}" in imported(tmp_path, NODES, few)
    assert "{name: fast, priority: 5, gpus: 32} - {name: slow}" in imported(tmp_path, NODES, wide)
    cut = wide.replace("  gres/gpu=32", "cpu=512,gres/+".rjust(13)[-13:])
    with pytest.raises(InputError, match=r"file1:3: GrpTRES '.*\+' is truncated; print the table with -P"):
        imported(tmp_path, NODES, cut)
    with pytest.raises(FormatError, match=":3: text between the columns"):
        read(wide.replace("fast   ", "fastest, ").encode())


def test_trees_of_accounts_that_blanks_tell(tmp_path: Path) -> None:
    shares = (
        "Account                    User  RawShares   FairShare\n"
        "-------------------- ---------- ---------- -----------\n"
        "root                                          1.000000\n"
        " ml                                     20            \n"
        "  ml                        ada          1    0.250000\n"
        "  nlp                                    5            \n"
        "   nlp                       bo     parent    0.250000\n"
        " vision                                 10            \n"
    )
    flat = "Cluster|Account|User|Share\nlab|root||1\nlab| ml||20\nlab|  ml|ada|1\nlab|  nlp||5\nlab| vision||10\n"
    right = (
        "   Account       User      Share \n---------- ---------- ---------- \n"
        "      root                     1 \n    vision                    10 \n        ml                    20 \n"
    )
    wanted = "{name: ml, shares: 20.0} - {name: nlp, parent: ml, shares: 5.0} - {name: vision, shares: 10.0}"
    assert wanted in imported(tmp_path, NODES, shares)
    assert wanted in imported(tmp_path, NODES, flat)
    assert "{name: vision, shares: 10.0} - {name: ml, shares: 20.0}" in imported(tmp_path, NODES, right)


def test_gpus_that_no_file_tells_are_given(tmp_path: Path) -> None:
    sinfo = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ngpu*         up 2-00:00:00      2  idle~ a[1-2]\n"
    assert "count: 2 gpus: 4" in imported(tmp_path, sinfo, gpus=4)
    with pytest.raises(InputError, match="no node with GPUs"):
        imported(tmp_path, sinfo)


ROW = "1|ada|2024-03-01T10:00:00|2024-03-01T10:05:00|2024-03-01T11:05:00|01:00:00|COMPLETED|gres/gpu=4"
HEAD = "JobID|User|Submit|Start|End|Elapsed|State|AllocTRES"


def test_a_header_in_capitals_is_not_squeue(tmp_path: Path) -> None:
    jobs = trace(tmp_path, f"{HEAD.upper()}\n{ROW}\n")
    assert (jobs.gpus.tolist(), jobs.duration_s.tolist()) == ([4], [3600.0])


def test_dates_with_slashes(tmp_path: Path) -> None:
    jobs = trace(tmp_path, f"{HEAD}\n{ROW.replace('2024-03-01T', '2024/3/01 ')}\n")
    assert jobs.columns["site_queueing_s"].tolist() == [300.0]


def test_jobs_without_a_state_ended_where_an_end_is_told(tmp_path: Path) -> None:
    head, row = HEAD.replace("|State", ""), ROW.replace("|COMPLETED", "")
    running = row.replace("1|ada", "2|bo").replace("2024-03-01T11:05:00", "Unknown")
    jobs = trace(tmp_path, f"{head}\n{row}\n{running}\n")
    assert jobs.job_id.tolist() == [1]
    assert "1 no State, assumed to have ended" in jobs.notes[0]


def test_times_that_are_none_stand_in_the_refusal(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 Submit is not a time, ignored"):
        trace(tmp_path, f"{HEAD}\n{ROW.replace('2024-03-01T', '01.03.2024 ')}\n")


def test_slices_of_gpus_are_told(tmp_path: Path) -> None:
    jobs = trace(tmp_path, f"{HEAD}\n{ROW.replace('gpu=4', 'gpu:a100_1g.5gb=4')}\n")
    assert "1 a slice of a GPU (MIG) counts as a GPU" in jobs.notes[0]


def test_milliseconds_and_durations_as_python_writes_them(tmp_path: Path) -> None:
    text = 'when,gpus,took\n1709287200000,2,"1 day, 0:00:10"\n1709287500000,1,0 days 00:01:00\n'
    jobs = trace(tmp_path, text, columns={"arrival": "when", "gpus": "gpus", "duration": "took"})
    assert jobs.arrival_s.tolist() == [0.0, 300.0]
    assert jobs.duration_s.tolist() == [86410.0, 60.0]


MATRIX = "GPU0\tCPU Affinity\tNUMA Affinity{}\nGPU0\t X \t0-15\t0\n"


@pytest.mark.parametrize("marks", [("\x1b[4m", "\x1b[0m"), ("[4m", "[0m"), ("", "")], ids=["told", "cut", "none"])
def test_a_matrix_whose_header_was_underlined(marks: tuple[str, str]) -> None:
    text = f"\t{marks[0]}{MATRIX.format(marks[1])}".encode()
    assert recognise(text) == "nvidia-smi-topo"
    assert read(text).devices == ("GPU0",)


def test_a_matrix_of_another_tool_is_refused() -> None:
    text = b"===== ROCm System Management Interface =====\n       GPU0   GPU1\nGPU0   0   15\nGPU1   15   0\n"
    with pytest.raises(FormatError, match=r"f: .*rocm-smi is not read; use RCCL's topology XML"):
        read(text, name="f")


def test_slow_ports_of_a_machine_are_left_out(tmp_path: Path) -> None:
    text = (
        '<system version="1"><cpu numaid="0"><pci busid="1" class="0x030200"><gpu dev="0" sm="103">'
        '<nvlink target="2" count="18"/></gpu></pci><nic><net name="mlx5_0" speed="400000"/></nic>'
        '<nic><net name="eth0" speed="10000"/></nic></cpu></system>'
    )
    made = imported(tmp_path, text)
    assert "nic: 400 Gbit/s fabric: 900 GB/s" in made
    assert "# slow ports left out: eth0" in made
    for target in ("gfx942", "942"):
        amd = text.replace('sm="103"', f'sm="304" gcn="{target}"').replace("nvlink", "xgmi").replace('"18"', '"7"')
        assert "accelerator: mi300x nic: 400 Gbit/s fabric: 448 GB/s" in imported(tmp_path, amd)
    assert "fabric: 350 GB/s" in imported(tmp_path, amd.replace('"942"', '"910"'))


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("-N 2 -n 8 --gpus-per-task=2", 16),
        ("-N 3 --ntasks-per-node=2 --gpus-per-task=h100:1", 6),
        ("-N 3 --tres-per-node=gres/gpu:2", 6),
        ("-n 4 --tres-per-task=cpu=4,gres/gpu:a100:1", 4),
        ("-G4 -N 2", 4),
    ],
)
def test_gpus_of_submissions_in_all_their_ways(options: str, gpus: int) -> None:
    event = f"-dt 1 -e submit_batch_job | -J a -sim-walltime 5 {options} x.job\n"
    assert read(event.encode()).gpus.tolist() == [gpus]


def test_queues_of_several_clusters(tmp_path: Path) -> None:
    head = "JOBID|USER|STATE|SUBMIT_TIME|TIME_LIMIT|NODES|TRES_PER_NODE"
    rows = "1|ada|RUNNING|2024-03-01T10:00:00|2:00:00|{}|gres:gpu:4"
    text = f"CLUSTER: one\n{head}\n{rows.format(2)}\n\nCLUSTER: two\n{head}\n{rows.format(1)}\n"
    jobs = trace(tmp_path, text)
    assert jobs.gpus.tolist() == [8, 4]
    assert list(jobs.columns["cluster"]) == ["one", "two"]


def test_accounts_of_a_day_without_jobs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no jobs in it"):
        trace(tmp_path, '{"meta": {}, "jobs": [\n], "errors": []}')


ACCOUNTED = (
    "{id}|{id}|c|p|acct|group|3|ada|4|2020-01-01T00:00:00|2020-01-01T00:00:01|2020-01-01T00:00:02|2020-01-01T01:00:02|"
    "01:00:00|0:0|COMPLETED|8|256|256|1000Mc|{resources}|3-00:00:00|a[01-08]|name\n"
)


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        (("gpu:0|", "gpu:P100:2(IDX:1,3),hbm:0|"), [0, 16]),
        (("||", "|cpu=256,gres/gpu=8|"), [-1, 8]),
        (("cpu=256,gres/gpu=8|", "|"), [8, -1]),
    ],
    ids=["gres", "gres and tres", "tres"],
)
def test_columns_of_headerless_accounts_are_told_by_what_they_hold(resources: tuple[str, str], gpus: list[int]) -> None:
    rows = [ACCOUNTED.format(id=f"{k}_[1-3]", resources=text) for k, text in enumerate(resources)]
    jobs = read("".join(rows).encode())
    assert jobs.gpus.tolist() == gpus
    assert jobs.name.tolist() == ["name", "name"]
    assert jobs.time_limit_s.tolist() == [259200.0, 259200.0]


def test_durations_in_days(tmp_path: Path) -> None:
    jobs = trace(tmp_path, f"{HEAD}|Timelimit\n{ROW.replace('01:00:00', '1 days 01:00:00')}|3 days\n")
    assert (jobs.duration_s.tolist(), jobs.columns["time_limit_s"].tolist()) == ([90000.0], [259200.0])


def test_nodes_of_json_that_tells_the_least(tmp_path: Path) -> None:
    node = (
        '{"node": {"state": ["IDLE", "DRAIN"]}, "nodes": {"nodes": ["n1"]}, "cpus": {"total": 80, "idle": 0}, '
        '"memory": {"minimum": 500000}, "features": {"active": "ib4"}, "gres": '
        '{"total": "gpu:v100:8(S:0-1)"}, "partition": {"name": "p"}, "reason": {"description": "bad disk"}}'
    )
    text = imported(tmp_path, f'{{"sinfo": [{node}]}}')
    assert "gpus: 8 accelerator: v100_sxm2_32gb cores: 80 host_memory: 500000 MiB" in text
    assert "# n1: IDLE+DRAIN: bad disk" in text
    assert "# n1: ib4" in text


def test_names_that_look_like_numbers_stay_text(tmp_path: Path) -> None:
    slurm = "ClusterName=7\nNodeName=12,13 Gres=gpu:4\nPartitionName=1e5 Nodes=12\nPartitionName=0x1f Nodes=13\n"
    paths = [tmp_path / "slurm.conf"]
    paths[0].write_text(slurm)
    text = import_site(paths, out=tmp_path / "lab.yaml")
    (tmp_path / "lab.yaml").write_text(text)
    made = read_scenario(tmp_path / "lab.yaml").scenario
    assert (made.name, [part.name for part in made.queues.partitions]) == ("7", ["1e5", "0x1f"])


def test_accounts_of_several_clusters_count_once(tmp_path: Path) -> None:
    table = "Cluster|Account|User|Share\nx|ml||5\nx|ml|ada|1\ny|ml||7\ny|ml|ada|1\ny\n"
    text = imported(tmp_path, NODES, table)
    assert "accounts: - {name: ml, shares: 5.0} users: - {name: ada, account: ml}" in text
    assert "# accounts ml # users ada" in text


def test_broken_scripts_and_amounts(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="f:2: quotes that do not match"):
        read(b"add QOS Name=a\nadd QOS Name='b\n", name="f")
    with pytest.raises(InputError, match="1 more GPUs than any cluster has"):
        trace(tmp_path, "a,g,d\n1,1e30,5\n", columns={"arrival": "a", "gpus": "g", "duration": "d"})


def test_flavors_of_gpus_that_are_not_there(tmp_path: Path) -> None:
    kueue = (
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: h100}\nspec:\n"
        "  nodeLabels: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n---\n"
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: q}\nspec:\n  resourceGroups:\n"
        "  - flavors: [{name: h100, resources: [{name: nvidia.com/gpu, nominalQuota: 8}]}]\n"
    )
    text = imported(tmp_path, NODES, kueue)
    assert "flavors:" not in text.partition("# Not part")[0]
    assert "# Flavors of GPUs that no node has, taken as any GPU: # h100" in text


def test_columns_may_be_told_by_the_names_that_they_have_later(tmp_path):
    text = "t,g,d,team,pool,colour,no\n0,1,5,red,long,blue,12_3\n"
    told = {"arrival": "t", "gpus": "g", "duration": "d", "account": "team", "partition": "pool", "id": "no"}
    jobs = trace(tmp_path, text, columns=told)
    assert {name: str(jobs.columns[name][0]) for name in ("account", "partition", "colour")} == {
        "account": "red",
        "partition": "long",
        "colour": "blue",
    }
    assert "pool" not in jobs.columns
    assert jobs.name[0] == "12_3"


def test_what_a_site_says_is_taken_as_it_is_meant(tmp_path: Path) -> None:
    """One line a node is one group, two types on a node are two, a QOS of N/A is none, idle limits do not bind."""
    lines = [f"NodeName=x{k} Gres=gpu:a100:4,gpu:v100:1 CPUs=60 RealMemory=100000" for k in range(98)]
    slurm = "\n".join(
        ["ClusterName=lab", *lines, "PartitionName=p Nodes=x[0-97] QoS=N/A", "NodeName=h Gres=gpu:h100:8"]
    )
    text = imported(tmp_path, slurm, "Name|Priority|MaxTRESPU\nfast|0|gres/gpu=32\n")
    assert "name: x count: 98 gpus: 4 accelerator: a100_sxm_80gb cores: 48 host_memory: 80000 MiB" in text
    assert "name: x-v100 count: 98 gpus: 1 accelerator: v100_sxm2_32gb cores: 12 host_memory: 20000 MiB" in text
    assert text.count(" count: ") == 3
    assert "{name: p, nodes: [x, x-v100]} qos: - {name: fast}" in text
    assert "gpu_types: {a100: [x], v100: [x-v100], h100: [h]}" in text
    assert "does not enforce, left out: # qos fast: gpus_per_user 32" in text


def test_a_cordoned_node_and_gpu_memory_are_no_gpus(tmp_path: Path) -> None:
    node = "apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {unschedulable: %s}\nstatus: {allocatable: {%s}}\n"
    told = ("a", "false", "nvidia.com/gpu: 8"), ("b", "true", "nvidia.com/gpu: 8"), ("c", "false", "gpu.memory: 800Gi")
    text = imported(tmp_path, "---\n".join(node % one for one in told))
    assert "(1 nodes)" in text
    assert "count: 1 gpus: 8" in text
    assert "Cordoned nodes, left out: # b" in text


def test_an_exclusive_partition_gives_whole_nodes_and_takes_only_its_accounts(tmp_path: Path) -> None:
    """Two jobs of 1 GPU for 30 min on one node of 4: the second waits 30 min; one of another account never starts."""
    slurm = tmp_path / "slurm.conf"
    slurm.write_text(
        "ClusterName=lab\nNodeName=a[1-2] Gres=gpu:4\n"
        "PartitionName=p Nodes=a1 OverSubscribe=EXCLUSIVE AllowAccounts=x\n"
    )
    scenario = yaml.safe_load(import_site([slurm], out=tmp_path / "lab.yaml"))
    job = {"gpus": 1, "duration": "30 min", "partition": "p"}
    told = [{"name": "first", "account": "x"}, {"name": "second", "account": "x"}, {"name": "other", "account": "y"}]
    run = equipoise.run({**scenario, "workload": {"jobs": [job | one for one in told]}}, policy="multifactor")
    assert dict(zip(run.jobs["name"], run.jobs["start_s"], strict=True)) == {"first": 0.0, "second": 1800.0}
