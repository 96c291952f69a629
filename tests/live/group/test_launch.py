"""A user's script under the launcher: three added lines, and two more to survive the loss of a rank."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")

from equipoise import cli
from equipoise.live import demo
from equipoise.live.group import launch
from equipoise.live.group.hosting import TOKEN
from equipoise.policies.record.export import ExportedPolicy, write_policy
from equipoise.policies.registry import make_policy
from tests.live import ranks as live_ranks

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, os, signal, sys
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from equipoise.live.group import regroup

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


@pytest.mark.long
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
    manifest = json.loads((live_ranks.record(tmp_path / "run") / "manifest.json").read_text())
    assert (manifest["global_batch"], manifest["samples"], len(manifest["members"])) == (8, 96, 2)


def test_the_first_failure_is_the_launchers_when_nobody_finishes(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(7)")
    assert launch.main([str(script)]) == 7


def test_a_process_that_ended_well_is_not_started_again(tmp_path: Path) -> None:
    launcher = launch.Launcher(restarts=1)
    launcher.start([sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'a').write('x')"], 1)
    assert launcher.wait() == 0
    launcher.stop()
    assert (tmp_path / "started").read_text() == "x"


@pytest.mark.parametrize(("code", "wrote"), [(0, True), (0, False), (1, True)])
def test_a_demonstration_needs_its_ranks_to_end_well_and_to_write_a_result(
    code: int, wrote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(launch.Launcher):
        """Of ranks that have ended."""

        def start(self, *command: object, **environment: object) -> None:
            if wrote:
                (tmp_path / "run" / "result.json").write_text('{"rounds": 3}')

        def wait(self) -> int:
            return code

    monkeypatch.setattr("equipoise.live.group.launcher.Launcher", Ended)
    given = argparse.Namespace(
        ranks=2, policy="s2", rounds=3, batch=8, sample_ms=1.0, slowdown=2.0, decide_every=1, delay_rounds=0
    )
    if code == 0 and wrote:
        assert demo.run(given, "uneven", tmp_path / "run") == {"rounds": 3}
        return
    with pytest.raises(RuntimeError, match=f"the uneven run failed with exit code {code}"):
        demo.run(given, "uneven", tmp_path / "run")


def demonstrated(rank: int, folder: str) -> None:
    """A demonstration whose clock is moved by its waits alone."""
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    demo.time = types.SimpleNamespace(sleep=sleep, perf_counter=lambda: now_s[0])  # type: ignore[assignment]
    demo.train(argparse.Namespace(mode="plain", rounds=4, batch=2, sample_ms=10.0, slowdown=3.0, run_dir=folder))


def test_a_demonstration_slows_its_first_rank_half_way(tmp_path: Path) -> None:
    live_ranks.Ranks(demonstrated, 2, str(tmp_path)).join()
    made = json.loads((tmp_path / "result.json").read_text())
    assert made["times_s"] == pytest.approx([0.02, 0.02, 0.06, 0.06])
    assert (made["batch"], made["shares"], len(made["losses"])) == (4, [[2, 2]] * 4, 4)


def test_stopping_ends_every_process(tmp_path: Path) -> None:
    launcher = launch.Launcher()
    launcher.start([sys.executable, "-c", "import time; time.sleep(60)"], 2)
    launcher.stop()
    assert all(process.returncode == -signal.SIGTERM for process in launcher.processes)


@pytest.mark.long
def test_a_store_of_its_own_stops_when_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "equipoise.live.group.store", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"equipoise: store on 127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def train_as_the_readme_says(rank: int, folder: str) -> list[str]:
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    import equipoise

    os.chdir(folder)
    torch.distributed.init_process_group("gloo")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## In your training script") :]
    example = section[section.index("```py\n") + 6 :]
    dataset = TensorDataset(torch.randn(8 * 512, 4), torch.randn(8 * 512, 1))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    names = {"equipoise": equipoise, "torch": torch, "DataLoader": DataLoader}
    names |= {"dataset": dataset, "model": model, "optimizer": optimizer}
    exec(example[: example.index("```")], names)
    names["runtime"].close()
    return [str(names["runtime"].round), str(names["runtime"].run)]


def test_the_readmes_lines_train(tmp_path: Path) -> None:
    write_policy(ExportedPolicy(make_policy("s1+s2+s3")), tmp_path / "policy.yaml")
    first, second = live_ranks.run(train_as_the_readme_says, 2, str(tmp_path))
    assert first == second == ["8", first[1]]
    written = {path.name for path in (tmp_path / "runs" / "live" / first[1]).iterdir()}
    assert {"rounds-0.jsonl", "rounds-1.jsonl"} <= written  # looked at when both are done


@pytest.mark.parametrize(("ranks", "best"), [(2, 1.5), (4, 1.75), (1, 1.0)])
def test_the_best_possible_ratio(ranks: int, best: float) -> None:
    assert demo.bound(ranks, 2.0) == pytest.approx(best)
    assert demo.bound(ranks, 1.0) == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rounds", "41"], "--rounds must be at least 42"),
        (["--slowdown", "0.5"], "--slowdown at least 1"),
        (["--sample-ms", "0"], "--sample-ms above 0"),
        (["--run-dir", "."], "already contains a run"),
    ],
)
def test_the_demonstration_refuses_what_it_cannot_show(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train.py"], "train.py: no such file; needed: a training script"),
        (["--ranks", "0", __file__], "--ranks: at least 1 is needed"),
        (["--ranks", "two", __file__], "argument --ranks: invalid"),
        (["--max-restarts", "-1", __file__], "--max-restarts: at least 0 is needed"),
        (["--nodes", "2", __file__], "--nodes: more than one needs a --store"),
        (["--node-rank", "1", __file__], "--node-rank: 1 is not allowed; needed: 0 to 0"),
        (["--node-rank", "-1", __file__], "--node-rank: -1 is not allowed; needed: 0 to 0"),
        (["--nodes", "3", "--node-rank", "3", __file__], "--node-rank: 3 is not allowed; needed: 0 to 2"),
        (["--store", "h:1", __file__], f"--store: needs the job's token in {TOKEN}"),
        (["--hosts", "list", "--host-command", "cat list", "x.py"], "--hosts: not allowed with --host-command"),
        (["--hosts", "list", "--join", "h:1", "x.py"], "--hosts: not allowed with --host-command, --nodes or"),
    ],
)
def test_the_launcher_says_in_one_line_what_it_cannot_start(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(SystemExit) as stop:
        launch.main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"equipoise: {says}")


def test_the_demonstration_says_how_to_get_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        demo.main([])
    assert stop.value.code == 2
    assert "make live-demo" in capsys.readouterr().err


def demonstrate(rank: int, folder: str) -> None:
    arguments = ["--worker", "--mode", "act", "--policy", "s1+s2", "--rounds", "48", "--batch", "14"]
    arguments += ["--decide-every", "4", "--sample-ms", "2"]
    assert demo.main([*arguments, "--run-dir", folder]) == 0


@pytest.mark.long
def test_the_demonstrations_ranks_adapt_to_the_slow_one_and_have_a_twin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live_ranks.run(demonstrate, 2, str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["shares"][0] == [14, 14]
    slow, fast = result["shares"][-1]
    assert slow + fast == 28
    assert slow < 14
    assert len(result["times_s"]) == 48
    assert cli.main(["twin", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replay_equal"] is True
    assert found["ranks"] == 2
    assert found["rounds"] == 48
    assert found["decisions"] >= 10
    first, _ = found["measured"]["speeds"]
    assert max(first["per_sample_s"]) > 1.3 * first["per_sample_s"][0]
    assert found["parted"] is None or found["parted"]["what"] in ("samples_per_step", "moves")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration that does not train: the policy's rounds take two thirds of the time."""
    times = {"plain": 0.3, "act": 0.2}

    def run(given: object, mode: str, folder: Path) -> dict[str, object]:
        return {"times_s": [9.0] * 40 + [times[mode]] * 10, "batch": 6, "shares": [[3, 3], [2, 4]]}

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setattr(demo, "REACTION", 15)


def test_the_demonstration_reports_both_runs(
    told: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"step_error_median": 0.03, "decisions_identical": 10}
    monkeypatch.setattr(demo, "twin", lambda _, form: json.dumps(said) if form == "json" else "a table")
    assert demo.main(["--rounds", "50", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ranks": 2,
        "throughput_static": pytest.approx(20.0),
        "throughput_policy": pytest.approx(30.0),
        "ratio": pytest.approx(1.5),
        "bound": 1.5,
        "twin_step_error_median": 0.03,
        "decisions_identical": 10,
    }
    assert demo.main(["--rounds", "50"]) == 0
    text = capsys.readouterr().out
    assert "1.50 times plain DDP" in text
    assert "a table" in text


@pytest.mark.long
def test_without_a_twin_the_demonstration_fails_and_says_why(
    told: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert demo.main(["--rounds", "50", "--format", "json"]) == 1
    out = capfd.readouterr()
    assert json.loads(out.out)["twin_step_error_median"] is None
    assert "manifest.json: No such file" in out.err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_demonstration_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise.live.demo", "--run-dir", str(tmp_path / "run"), "--sample-ms", "100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + 180
        while len(ranks := _children(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(ranks) == 2
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert process.stderr.read().decode().endswith("equipoise: interrupted\n")
    _all_end(ranks)


@pytest.mark.long
def test_the_ranks_of_a_killed_demonstration_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "equipoise.live.demo", "--run-dir", str(tmp_path / "run"), "--sample-ms", "100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        deadline = time.monotonic() + 180
        while len(ranks := _children(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert len(ranks) == 2
    _all_end(ranks)


def _children(pid: int) -> list[int]:
    """Ranks that a demonstration has started, once they run its module."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"--worker" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _all_end(ranks: list[int]) -> None:
    """A rank whose parent was interrupted while starting it notices by itself, half a second later."""
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in ranks)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
