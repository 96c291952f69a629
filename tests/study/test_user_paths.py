"""Two ways by commands alone: an administrator's from an accounting file, an engineer's from a policy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from equipoise.cli import main

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ROOT.parent / "shared" / "data" / "formats"


def told(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """What a command prints that ends well."""
    code = main(list(command))
    out, err = capsys.readouterr()
    assert code == 0, f"{command}: {err}{out}"
    return out


@pytest.mark.long
@pytest.mark.shared_data
def test_an_administrator_learns_the_waits_under_another_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """11,704 jobs of a university, each core taken for a GPU; 1,031 of them ended as they began."""
    file, jobs = FORMATS / "xdmod-pozidriv.log.gz", 10_673
    if not file.is_file():
        pytest.skip("needs the public accounting files")
    monkeypatch.chdir(tmp_path)
    Path("slurm.conf").write_text("ClusterName=site\nSchedulerType=sched/backfill\nNodeName=n[001-250] CPUs=32\n")
    told(capsys, "import", "slurm.conf", "--trace", str(file), "--out", "site.yaml", "--count", "cpus")
    assert f"{jobs} jobs" in told(capsys, "check", str(file), "site.yaml").replace(",", "")
    assert "scenario ok" in told(capsys, "validate", "site.yaml")
    policies = ("--policy", "multifactor", "--policy", "sjf")
    table = told(capsys, "compare", "site.yaml", *policies, "--seeds", "1", "--out", "site")
    assert "waiting mean" in table
    query = (
        "SELECT policy, count(*) AS jobs, avg(queueing_s) AS wait_s, avg(site_queueing_s) AS site_s "
        "FROM jobs JOIN runs USING (id) GROUP BY policy ORDER BY policy"
    )
    own, other = json.loads(told(capsys, "query", "--out", "site", query, "--format", "json"))
    assert (own["policy"], other["policy"]) == ("multifactor", "sjf")
    assert own["jobs"] == other["jobs"] == jobs
    assert own["site_s"] == other["site_s"] > 0  # the record's own waits stand beside both
    assert other["wait_s"] <= own["wait_s"]
    told(capsys, "report", "site")
    assert "sjf" in Path("site/report.html").read_text(encoding="utf-8")


def accounting_line(number: int, start_h: int) -> str:
    """A row as `sacct --parsable2 --noheader` prints it, of 26 fields: eight A100 for an hour."""
    clock = [f"2024-03-01T{hour:02}:00:00" for hour in (8, 8, 8 + start_h, 9 + start_h)]
    asked = "billing=64,cpu=64,gres/gpu=8,mem=480G,node=1"
    held = "billing=64,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=480G,node=1"
    cells = [
        number,
        number,
        "lab",
        "gpu",
        "normal",
        "vision",
        "staff",
        100,
        f"u{number % 3}",
        1000 + number % 3,
        *clock,
        "01:00:00",
        "0:0",
        "COMPLETED",
        1,
        64,
        64,
        "480G",
        asked,
        held,
        "02:00:00",
        f"g{number % 2 + 1:02}",
        "train",
    ]
    return "|".join(map(str, cells))


def test_an_administrator_with_gpu_jobs_learns_how_many_nodes_the_queue_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten jobs of a node each, handed in at once: with five nodes the p95 wait is an hour, with four it is two."""
    monkeypatch.chdir(tmp_path)
    Path("slurm.conf").write_text("ClusterName=lab\nNodeName=g[01-02] CPUs=64 Gres=gpu:a100:8\n")
    rows = [accounting_line(100 + k, k // 2) for k in range(10)]
    pending = rows[0].replace("100|100", "200|200", 1).split("|")
    pending[12:17] = ["None", "Unknown", "00:00:00", "0:0", "CANCELLED by 1001"]
    pending[22] = ""  # nothing was given to it
    step = rows[0].replace("100|100", "100.batch|100.batch", 1)
    Path("jobs.txt").write_text("\n".join([*rows, step, "|".join(pending)]) + "\n")
    told(capsys, "import", "slurm.conf", "--trace", "jobs.txt", "--out", "lab.yaml")
    assert "10 jobs" in told(capsys, "check", "jobs.txt", "lab.yaml")
    question = ["--vary", "cluster.nodes.0.count=2:8", "--target", "wait_p95<=70min", "--policy", "fifo"]
    answer = json.loads(told(capsys, "size", "lab.yaml", *question, "--seeds", "1", "--rank", "--format", "json"))
    assert answer["values"] == {"cluster.nodes.0.count": 5}
    waits_h = {row["values"]: row["queueing_p95_s"] / 3600 for row in answer["ranking"]}
    assert [waits_h[f"count {n}"] for n in (2, 4, 5, 8)] == pytest.approx([4.0, 2.0, 1.0, 1.0])


TRAIN = """
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import equipoise

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(24 * 120, 8), torch.randn(24 * 120, 1))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(
    model, optimizer, policy="policy.yaml", strict=True, global_batch=24, run_dir="runs", warm_up_budget_s=600.0
)
slow_s = 0.004 * (1 + 2 * dist.get_rank())  # a sample takes rank 1 three times as long
for inputs, labels in DataLoader(data, batch_sampler=runtime.sampler(data)):
    time.sleep(slow_s * len(inputs))
    torch.nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    runtime.step()
print("shares", *runtime.shares)
runtime.close()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_an_engineer_takes_a_policy_into_training_and_its_twin_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """export, torchrun on two ranks of which one is slow, ranks, twin, report."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("two.yaml").write_text(
        yaml.safe_dump(
            {
                "schema_version": 1,
                "name": "two",
                "cluster": {"nodes": [{"count": 2}]},
                "workload": {
                    "models": {"m": {"sample_time": "4 ms", "parameters": 1e3}},
                    "jobs": [{"gpus": 2, "model": "m", "steps": 120, "global_batch": 24}],
                },
            }
        )
    )
    told(capsys, "export", "two.yaml", "--policy", "s1+s2", "--out", "policy.yaml")
    Path("train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shares = {tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("shares")}
    ((quick, slow),) = shares  # every rank knows the same
    assert int(quick) + int(slow) == 24
    assert int(quick) >= 1.5 * int(slow)  # 18 and 6 would be even in time

    found = json.loads(told(capsys, "ranks", "runs", "--format", "json"))
    assert [rank["cause"] is None for rank in found["ranks"]] == [True, False]
    assert found["ranks"][1]["slower"] > 1.5
    twin = json.loads(told(capsys, "twin", "runs", "--format", "json"))
    assert (twin["ranks"], twin["rounds"], twin["replay_equal"]) == (2, 120, True)
