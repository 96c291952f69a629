"""Files that sites hold, read as job traces: each row becomes a job or is counted with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise import cli
from equipoise.formats.kueue.objects import PodSet
from equipoise.formats.text.columns import Text
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.loading.site.read import import_site
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces import kubernetes
from equipoise.sim.traces.read import Trace, read_trace

SACCT = """\
JobID|User|Account|Partition|Submit|Eligible|Start|End|Elapsed|State|NNodes|NCPUS|ReqTRES|AllocTRES|Timelimit|Comment
{rows}"""


def sacct_row(job: str, **cells: str) -> str:
    usual = {
        "user": "ann",
        "account": "lab",
        "partition": "gpu",
        "submit": "2024-03-01T10:00:00",
        "eligible": "2024-03-01T10:00:00",
        "start": "2024-03-01T10:05:00",
        "end": "2024-03-01T11:05:00",
        "elapsed": "01:00:00",
        "state": "COMPLETED",
        "nodes": "1",
        "cpus": "8",
        "asked": "cpu=8,gres/gpu=2",
        "got": "cpu=8,gres/gpu:a100=2,gres/gpu=2",
        "limit": "02:00:00",
        "comment": "x",
    }
    return "|".join([job, *(usual | cells).values()])


def sacct(folder: Path, *rows: str) -> Path:
    path = folder / "jobs.txt"
    path.write_text(SACCT.format(rows="".join(f"{row}\n" for row in rows)), encoding="utf-8")
    return path


def texts(trace: Trace, name: str) -> list[str]:
    column = trace.columns[name]
    assert isinstance(column, Text)
    return column.tolist()


def test_accounting_with_arrays_and_what_is_known_of_each_job(tmp_path: Path) -> None:
    later = {"submit": "2024-03-01T10:10:00", "eligible": "2024-03-01T10:20:00", "user": "bob"}
    later["asked"] = "cpu=8,gres/gpu:a100=2,gres/gpu=2"
    path = sacct(tmp_path, sacct_row("12_3", asked=later["asked"]), sacct_row("12_4", **later), sacct_row("12_3.batch"))
    trace = read_trace(path)
    assert trace.name == ("12_3", "12_4")
    assert trace.job_id.tolist() == [0, 1]
    assert trace.arrival_s.tolist() == [0.0, 1200.0]  # eligible, not submitted
    assert trace.gpus.tolist() == [2, 2]
    assert trace.duration_s.tolist() == [3600.0, 3600.0]
    assert trace.line.tolist() == [2, 3]
    assert texts(trace, "user") == ["ann", "bob"]
    assert [texts(trace, k)[0] for k in ("account", "partition", "state", "gpu_type", "comment")] == [
        "lab",
        "gpu",
        "COMPLETED",
        "a100",
        "x",
    ]
    assert "qos" not in trace.columns
    assert trace.columns["site_queueing_s"].tolist() == [300.0, -900.0]
    (note,) = trace.notes
    assert note.startswith(
        "jobs.txt: 3 rows, 2 jobs; left out: 1 a step of a job; changed: 1 arrival is the eligible time"
    )
    assert "arrivals counted from 2024-03-01T10:00:00Z" in note


def test_every_row_that_is_no_job_is_counted_by_reason(tmp_path: Path) -> None:
    nothing = {"start": "Unknown", "end": "Unknown", "elapsed": "00:00:00", "got": ""}
    path = sacct(
        tmp_path,
        sacct_row("1"),
        sacct_row("2", asked="cpu=8", got="cpu=8"),
        sacct_row("3", state="PENDING", **nothing),
        sacct_row("4", state="RUNNING", end="Unknown"),
        sacct_row("5", elapsed="00:00:00", end="2024-03-01T10:05:00"),
        sacct_row("6+0"),
        sacct_row("6+1", elapsed="02:00:00"),
        sacct_row("1"),
    )
    trace = read_trace(path)
    assert trace.name == ("1", "6+0")
    assert trace.gpus.tolist() == [2, 4]
    assert trace.duration_s.tolist() == [3600.0, 7200.0]
    (note,) = trace.notes
    assert "8 rows, 2 jobs" in note
    assert "left out: 1 no GPUs, CPUs only, 1 never started, 1 had not ended" in note
    assert "1 zero duration" in note
    assert (
        "merged: 1 a component of a heterogeneous job, added to its first component, 1 equal to an earlier row" in note
    )


def test_a_requeued_job_is_its_last_attempt_that_ran(tmp_path: Path) -> None:
    again = {"submit": "2024-03-01T10:40:00", "eligible": "2024-03-01T10:40:00", "start": "2024-03-01T10:50:00"}
    path = sacct(
        tmp_path,
        sacct_row("7", state="PREEMPTED", elapsed="00:30:00", end="2024-03-01T10:35:00"),
        sacct_row("7", **again, end="2024-03-01T11:30:00", elapsed="00:40:00"),
        sacct_row("8", submit="2024-03-01T10:01:00", eligible="2024-03-01T10:01:00"),
    )
    trace = read_trace(path)
    assert trace.job_id.tolist() == [7, 8]
    assert trace.arrival_s.tolist() == [0.0, 60.0]
    assert trace.duration_s.tolist() == [2400.0, 3600.0]
    assert "merged: 1 another attempt of a requeued job" in trace.notes[0]


def test_keep_zone_limit_and_clusters(tmp_path: Path) -> None:
    path = sacct(tmp_path, sacct_row("1"), sacct_row("2", state="FAILED"), sacct_row("3", account="other"))
    kept = read_trace(path, keep=["state=COMPLETED", "user=ann"], zone="America/New_York")
    assert kept.job_id.tolist() == [1, 3]
    assert "1 not state=COMPLETED" in kept.notes[0]
    assert "2024-03-01T15:00:00Z" in kept.notes[0]
    assert read_trace(path, keep=[["state=FAILED", "TIMEOUT"][0]]).job_id.tolist() == [2]
    assert read_trace(path, clusters=["other"]).job_id.tolist() == [3]
    for wrong, message in (
        ("state=DONE", "no state 'DONE'; known: COMPLETED, FAILED"),
        ("colour=red", "column 'colour' is missing, --keep colour=red; columns: user, account"),
        ("state", "--keep state: write column=value"),
    ):
        with pytest.raises(InputError, match=message):
            read_trace(path, keep=[wrong])


def test_a_file_without_gpus_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = sacct(tmp_path, sacct_row("1", asked="cpu=8", got="cpu=8"))
    with pytest.raises(InputError) as caught:
        read_trace(path)
    (line,) = caught.value.lines
    assert line == (
        f"{path}: no jobs in it: left out: 1 no GPUs, CPUs only; "
        "--set workload.trace.count=cpus counts CPUs in place of GPUs"
    )
    assert read_trace(path, count="cpus").gpus.tolist() == [8]


def test_what_squeue_shows_runs_for_its_time_limit(tmp_path: Path) -> None:
    path = tmp_path / "queue.txt"
    path.write_text(
        "JOBID|USER|STATE|SUBMIT_TIME|TIME_LIMIT|TRES_PER_NODE|NODES|TIME\n"
        "5_[1-3]|ann|PENDING|2024-03-01T10:00:00|1:00:00|gres:gpu:4|2|0:00\n"
        "6|bob|RUNNING|2024-03-01T09:00:00|UNLIMITED|gres:gpu:1|1|1:00:00\n",
        encoding="utf-8",
    )
    trace = read_trace(path)
    assert trace.name == ("5_[1-3]",) * 3
    assert trace.gpus.tolist() == [8, 8, 8]
    assert trace.duration_s.tolist() == [3600.0] * 3
    assert "2 rows, 3 jobs; left out: 1 no duration" in trace.notes[0]


def test_events_of_the_slurm_simulator_and_swf(tmp_path: Path) -> None:
    path = tmp_path / "week.events"
    path.write_text(
        "-dt 10.5 -e submit_batch_job | -sim-walltime 90000 --uid=u1 -J j1 -N 2 -n 64 -t 10 --gres=gpu:2 x.job\n"
        "-dt 20 -e submit_batch_job | -sim-walltime 60 --uid=u2 -J j2 -n 4 -t 1-0 x.job\n",
        encoding="utf-8",
    )
    trace = read_trace(path)
    assert (trace.name, trace.gpus.tolist(), trace.duration_s.tolist()) == (("j1",), [4], [600.0])
    assert read_trace(path, count="cpus").gpus.tolist() == [64, 4]
    path = tmp_path / "log.swf"
    row = "{} {} 10 100 8 -1 -1 8 3600 -1 {} 3 1 -1 1 1 -1 -1\n"
    path.write_text("; Version: 2.2\n" + row.format(1, 50, 1) + row.format(2, 40, 5), encoding="utf-8")
    trace = read_trace(path, count="cpus")
    assert trace.job_id.tolist() == [2, 1]
    assert texts(trace, "state") == ["CANCELLED", "COMPLETED"]
    assert trace.columns["site_queueing_s"].tolist() == [10.0, 10.0]


def kube(kind: str, name: str, spec: dict[str, Any], status: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "lab", "creationTimestamp": "2024-03-01T10:00:00Z", **more}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}


def containers(gpus: int) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": "3"}}}]}


def condition(kind: str, time: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": f"2024-03-01T{time}Z", "reason": "JobFinished"}


def test_workloads_of_kueue(tmp_path: Path) -> None:
    spec = {"queueName": "q1", "priority": 50, "podSets": [{"count": 4, "template": {"spec": containers(2)}}]}
    status = {"conditions": [condition("Admitted", "10:10:00"), condition("Finished", "10:30:00")]}
    items = [kube("Workload", "w1", spec, status), kube("Workload", "w2", spec, {})]
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    trace = read_trace(path)
    assert (trace.name, trace.gpus.tolist(), trace.duration_s.tolist()) == (("lab/w1",), [8], [1200.0])
    assert [texts(trace, key) for key in ("account", "queue", "priority")] == [["lab"], ["q1"], ["50"]]
    assert trace.columns["site_queueing_s"].tolist() == [600.0]
    assert "left out: 1 a Workload that was never admitted" in trace.notes[0]
    assert "gpus_min" not in trace.columns
    assert read_trace(path, count="cpus").gpus.tolist() == [12]  # four pods of three


def test_slices_of_pods_and_segments_of_nodes_are_parts_of_a_job(tmp_path: Path) -> None:
    """Slices of pods (a Workload's topologyRequest) and segments of nodes (sbatch --segment)."""
    slices = {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 4}
    pods = {"count": 8, "topologyRequest": slices, "template": {"spec": containers(1)}}
    status = {"conditions": [condition("Admitted", "10:10:00"), condition("Finished", "10:30:00")]}
    (tmp_path / "w.json").write_text(json.dumps(kube("Workload", "w", {"podSets": [pods]}, status)))
    assert read_trace(tmp_path / "w.json").columns["segment"].tolist() == [4.0]
    header = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|SubmitLine"
    row = "2024-01-01T00:00:00|2024-01-01T00:00:00|2024-01-01T01:00:00|01:00:00|COMPLETED|gres/gpu=16"
    lines = [header, f"1|{row}|sbatch --segment=4 a.sh", f"2|{row}|sbatch a.sh --segmented"]
    (tmp_path / "s.txt").write_text("\n".join(lines))
    assert "1 requests segments (--segment) without" in " ".join(read_trace(tmp_path / "s.txt").notes)


@pytest.mark.parametrize(
    ("kind", "spec", "told"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": containers(8)}}}}, "1 PyTorchJob"),
        ("PodGroup", {"minMember": 1}, "1 an object of kind PodGroup"),
    ],
)
def test_kubernetes_objects_that_are_not_read_are_named(
    kind: str, spec: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(kube(kind, "x", spec, {})))
    with pytest.raises(InputError, match=f"no nodes in these files .*: {told}.*; Kueue's queues, .* are read;"):
        import_site([path], out=tmp_path / "out.yaml")
    with pytest.raises(InputError, match="PyTorchJob" if kind == "PyTorchJob" else told):
        read_trace(path)


def test_what_workloads_of_kueue_ask_for_travels_to_the_jobs(tmp_path: Path) -> None:
    """Fewest pods, topology and priority: two workloads of 8 GPUs on 12, of which one may have fewer pods."""
    status = {"conditions": [condition("Admitted", "10:10:00"), condition("Finished", "10:30:00")]}
    host = {"required": "kubernetes.io/hostname"}
    pods = {"count": 4, "template": {"spec": containers(2)}}
    items = [
        kube("Workload", "a", {"priority": 0, "podSets": [pods]}, status),
        kube("Workload", "b", {"priority": -5, "podSets": [{**pods, "minCount": 1}]}, status),
        kube("Workload", "c", {"priority": -9, "podSets": [{**pods, "count": 1, "topologyRequest": host}]}, status),
    ]
    path = tmp_path / "workloads.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    trace = read_trace(path)
    assert trace.priority.tolist() == [10.0, 5.0, 1.0]
    assert texts(trace, "together") == ["", "", "node-required"]
    cluster = {"nodes": [{"name": "n", "count": 3, "gpus": 4}]}
    scenario = {"schema_version": 1, "name": "x", "cluster": cluster, "workload": {"trace": {"file": "w"}}}
    made = run(from_mapping(scenario), trace=trace, policy=make_policy("kueue"))
    times = zip(made.jobs["start_s"], made.jobs["completion_s"], strict=True)
    jobs = dict(zip(made.jobs["name"].tolist(), times, strict=True))
    assert jobs == {"lab/a": (0.0, 1200.0), "lab/b": (0.0, 2400.0), "lab/c": (1200.0, 2400.0)}


@pytest.mark.parametrize(
    ("level", "word"),
    [
        ("kubernetes.io/hostname", "node"),
        ("topology.kubernetes.io/zone", "rack"),
        ("cloud.provider.com/topology-rack", "rack"),
    ],
)
def test_what_is_above_a_host_is_a_rack(level: str, word: str) -> None:
    asked = [PodSet("p", 1, 1, {}, kind, level) for kind in ("required", "preferred", "unconstrained")]
    assert [kubernetes._together(each) for each in asked] == [f"{word}-required", f"{word}-preferred", ""]


def test_pods_of_one_owner_are_one_gang(tmp_path: Path) -> None:
    items = []
    for k in range(3):
        ended = {"startedAt": f"2024-03-01T10:0{k}:00Z", "finishedAt": "2024-03-01T10:30:00Z", "exitCode": 0}
        status = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": ended}}]}
        owner = [{"kind": "Job", "name": "train"}] if k < 2 else []
        items.append(kube("Pod", f"p{k}", containers(1), status, ownerReferences=owner))
    path = tmp_path / "pods.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    trace = read_trace(path)
    assert (trace.name, trace.gpus.tolist()) == (("lab/train", "lab/p2"), [2, 1])
    assert trace.duration_s.tolist() == [29 * 60.0, 28 * 60.0]
    assert "3 rows, 2 jobs; merged: 1 a further pod of a gang" in trace.notes[0]


def test_published_traces_and_shared_gpus(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
        "p1,8000,10,1,250,V100M16,LS,Running,0,100,10\np2,8000,10,2,1000,,BE,Running,5,55,5\n",
        encoding="utf-8",
    )
    trace = read_trace(path)
    assert trace.gpus.tolist() == [1, 2]
    assert trace.gpu_share is not None
    assert trace.gpu_share.tolist() == [0.25, 1.0]
    assert texts(trace, "gpu_type") == ["V100M16", ""]
    assert "1 a fraction of one of the GPUs" in trace.notes[0]


MAPPED = (
    "id,submit_time,gpu_num,length,weight,team\n"
    "a,2024-03-01T10:00:00,2,60,3,x\nb,2024-03-01T09:00:00+01:00,0.5,30,1,y\n"
)
COLUMNS = {"job_id": "id", "arrival": "submit_time", "gpus": "gpu_num", "duration": "length", "priority": "weight"}


def test_any_csv_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(MAPPED, encoding="utf-8")
    trace = read_trace(path, columns=COLUMNS)
    assert trace.name == ("b", "a")
    assert trace.arrival_s.tolist() == [0.0, 7200.0]
    assert trace.priority.tolist() == [1.0, 3.0]
    assert texts(trace, "team") == ["y", "x"]
    with pytest.raises(InputError, match="columns: one of arrival, arrival_s, submit is needed"):
        read_trace(path, columns={"gpus": "gpu_num"})
    with pytest.raises(InputError, match="column 'when' is missing; found: id, submit_time"):
        read_trace(path, columns=COLUMNS | {"arrival": "when"})


def test_ids_and_columns_stand_in_the_jobs_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.csv").write_text(MAPPED, encoding="utf-8")
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "schema_version: 1\nname: site\ncluster: {gpus: 8}\nworkload:\n  jobs: [{name: own, gpus: 1, duration: 5 s}]\n",
        encoding="utf-8",
    )
    done = equipoise.run(
        scenario, trace=tmp_path / "own.csv", overrides=[f"workload.trace.columns={json.dumps(COLUMNS)}"]
    )
    assert done.jobs["name"].tolist() == ["own", "b", "a"]
    assert done.jobs["team"].tolist() == ["", "y", "x"]
    options = "job_id=id,arrival=submit_time,gpus=gpu_num,duration=length"
    out, trace = str(tmp_path / "out"), str(tmp_path / "own.csv")
    how = ["--columns", options, "--keep", "team=x", "--zone", "Asia/Tokyo", "--trace-format", "csv", "--journal"]
    given = [
        "compare",
        str(scenario),
        "--policy",
        "fifo",
        "--policy",
        "easy",
        "--seeds",
        "1",
        "--trace",
        trace,
        "--out",
        out,
    ]
    assert cli.main([*given, *how]) == 0
    capsys.readouterr()
    asked = "SELECT name, team FROM jobs WHERE team <> '' GROUP BY ALL"
    assert cli.main(["query", asked, "--out", out, "--format", "csv"]) == 0
    assert capsys.readouterr().out.split() == ["name,team", "a,x"]


def test_jobs_run_on_the_gpu_type_that_they_asked_for(tmp_path: Path) -> None:
    """Eight jobs of a node's GPUs on two nodes of A100 and two of H100; sacct names types here and there."""
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=lab\nNodeName=a[01-02] Gres=gpu:A100:8\nNodeName=h[01-02] Gres=gpu:h100:8\n"
    )
    plain, a100, h100 = "gres/gpu=8", "gres/gpu:a100=8,gres/gpu=8", "gres/gpu:h100=8,gres/gpu=8"
    asked_got = {"1": (h100, h100), "2": (h100, plain), "3": ("cpu=8", h100), "4": (h100, a100), "5": (plain, h100)}
    both = "gres/gpu:a100=4,gres/gpu:h100=4"
    asked_got |= {"6": (plain, plain), "7": (both, both), "8": ("gres/gpu:v100=8", plain)}
    path = sacct(tmp_path, *(sacct_row(job, asked=a, got=g) for job, (a, g) in asked_got.items()))
    out = tmp_path / "lab.yaml"
    assert cli.main(["import", str(tmp_path / "slurm.conf"), "--trace", str(path), "--out", str(out)]) == 0
    assert equipoise.load(out).queues.gpu_types == {"a100": ("a",), "h100": ("h",)}
    made = equipoise.run(out, policy="fifo")
    ran_on = dict(zip(made.jobs["name"].tolist(), made.jobs["ran_on"].tolist(), strict=True))
    assert {ran_on[job] for job in "1234"} == {"h100_sxm"}
    # In strict order: 3 waits for an H100 node and all wait behind it; 3 to 6 follow after an hour, then 7 and 8.
    assert made.jobs["start_s"].tolist() == [0.0] * 2 + [3600.0] * 4 + [7200.0] * 2
    (of_trace,) = (note for note in made.notes if note.startswith("jobs.txt"))
    for told in (
        "1 GPU type known only from the allocation: taken as requested",
        "1 allocated a GPU type without requesting one: may use any",
        "1 allocated another GPU type than requested: the request counts",
        "1 requests several GPU types at once: assumed to run on one of them",
    ):
        assert told in of_trace
    (stranger,) = (note for note in made.notes if "gpu_types" in note)
    assert stranger.startswith("1 jobs ask for a GPU type that queues.gpu_types does not name (such as v100)")
