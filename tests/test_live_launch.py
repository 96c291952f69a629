"""A user's script under the launcher: three added lines, and two more to survive the loss of a rank."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from live import demo, launch
from policies import make_policy
from policies.export import ExportedPolicy, write_policy
from policies.journal import replay
from tests import live_ranks

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, os, signal, sys
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from live import regroup

member = regroup.start().member
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="policy.yaml", global_batch=8, run_dir="run")
loader = DataLoader(data, batch_sampler=runtime.sampler(data))
trained = 0
for epoch in runtime.epochs(2):
    for inputs, labels in runtime.batches(loader):
        if member == 0 and runtime.round == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        with runtime.recover():
            torch.nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            trained += len(inputs)
        runtime.step()
runtime.close()
json.dump({"trained": trained, "ranks": runtime.ranks}, open(f"done-{member}.json", "w"))
"""


def test_a_script_outlives_the_rank_that_hosted_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    write_policy(ExportedPolicy(make_policy("s2")), tmp_path / "policy.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    assert launch.main(["--ranks", "2", "train.py"]) == 0
    done = json.loads((tmp_path / "done-1.json").read_text())
    assert done == {"trained": 5 * 4 + 96 - 5 * 8 + 96, "ranks": 1}
    err = capfd.readouterr().err
    assert "rank 0 died (SIGKILL)" in err
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["global_batch"], manifest["samples"], len(manifest["members"])) == (8, 96, 2)


def test_the_first_failure_is_the_launchers_when_nobody_finishes(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(7)")
    assert launch.main([str(script)]) == 7


def test_stopping_ends_every_process(tmp_path: Path) -> None:
    launcher = launch.Launcher()
    launcher.start([sys.executable, "-c", "import time; time.sleep(60)"], 2)
    launcher.stop()
    assert all(process.returncode == -signal.SIGTERM for process in launcher.processes)


def test_a_store_of_its_own_stops_when_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "live.store", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"equipoise: store on port {port}"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(("ranks", "best"), [(2, 1.5), (4, 1.75), (1, 1.0)])
def test_the_best_possible_ratio(ranks: int, best: float) -> None:
    assert demo.bound(ranks, 2.0) == pytest.approx(best)
    assert demo.bound(ranks, 1.0) == 1.0


def test_the_demonstration_refuses_what_it_cannot_show(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(["--rounds", "3"])
    assert stop.value.code == 2
    assert "--rounds must be at least 40" in capsys.readouterr().err


def demonstrate(rank: int, folder: str) -> None:
    arguments = ["--worker", "--mode", "act", "--policy", "s2", "--rounds", "40", "--batch", "8"]
    assert demo.main([*arguments, "--sample-ms", "2", "--run-dir", folder]) == 0


def test_the_demonstrations_ranks_adapt_to_the_slow_one(tmp_path: Path) -> None:
    live_ranks.run(demonstrate, 2, str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["shares"][0] == [8, 8]
    slow, fast = result["shares"][-1]
    assert slow + fast == 16
    assert slow < 8
    assert len(result["times_s"]) == 40
    assert replay(make_policy("s2"), tmp_path / "decisions-0.jsonl") == []


def test_the_demonstration_reports_both_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"observe": 0.3, "act": 0.2}

    def run(given: object, mode: str, folder: Path) -> dict[str, object]:
        return {"times_s": [9.0] * 30 + [times[mode]] * 10, "batch": 6, "shares": [[3, 3], [2, 4]]}

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(demo, "twin", lambda folder: (None, "no twin: none here"))
    assert demo.main(["--rounds", "40", "--format", "json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert found == {
        "ranks": 2,
        "throughput_static": pytest.approx(20.0),
        "throughput_policy": pytest.approx(30.0),
        "ratio": pytest.approx(1.5),
        "bound": 1.5,
        "twin_step_error_median": None,
        "decisions_identical": None,
    }
    assert "no twin" in out.err
    said = {"step_error_median": 0.03, "decisions_identical": 10}
    monkeypatch.setattr(demo, "twin", lambda folder: (said, "a table"))
    assert demo.main(["--rounds", "40"]) == 0
    text = capsys.readouterr().out
    assert "1.50 times as many" in text
    assert "a table" in text


def test_without_the_twin_the_demonstration_says_so(tmp_path: Path) -> None:
    found, text = demo.twin(tmp_path / "empty")
    assert found is None
    assert text.startswith("no twin: ")
