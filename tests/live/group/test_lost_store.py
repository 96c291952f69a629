"""The host of the store dies: every rank ends soon, with one line, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group import lifeline  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import os, pathlib, signal, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from equipoise.live.group import regroup

torch.set_num_threads(1)
member = regroup.start().member
if member == 1:  # as a script that saves a checkpoint when it is told to end
    signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("saved").touch(), sys.exit(3)))
data = TensorDataset(torch.randn(80000, 4), torch.randn(80000, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="none", global_batch=8, decide_every=2)
loader = DataLoader(data, batch_sampler=runtime.sampler(data), num_workers=1)
for inputs, labels in runtime.batches(loader):
    with runtime.recover():
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        if member == 0 and runtime.round == 8:
            pathlib.Path("waits").touch()
            time.sleep(600)  # in one exchange or none: told all the same
            pathlib.Path("woke").touch()
        optimizer.step()
    runtime.step()
"""


@pytest.mark.long
def test_a_killed_launcher_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--ranks", "2", "train.py"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
        while not (tmp_path / "waits").exists():
            assert launcher.poll() is None
            time.sleep(0.02)
        launcher.kill()
        assert launcher.stderr is not None
        said = launcher.stderr.read().decode()  # its end: nobody holds the pipe any more, no data worker either
    assert not (tmp_path / "woke").exists()
    first, *others = said.splitlines()
    assert first.startswith("equipoise: store on ")
    assert sorted(line[:28] for line in others) == ["equipoise: member 0 ends: th", "equipoise: member 1 ends: th"]
    assert (tmp_path / "saved").exists()


def test_what_waits_for_the_store_to_go_keeps_no_process_from_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        line = lifeline.Lifeline(lifeline.reached(*store.getsockname()), "member 0", lambda: None)
        line.release()
        line.join(60)
    assert (line.daemon, line.is_alive()) == (True, False)


def test_a_rank_that_finds_no_store_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_REACHED_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SystemExit, match=f"equipoise: no store at 127.0.0.1:{port}: Connection refused"):
        lifeline.reached("127.0.0.1", port)


def test_a_launcher_that_is_told_to_end_ends_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(600)")
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--ranks", "2", "waits.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
        assert launcher.stdout is not None
        assert sorted(launcher.stdout.read(6)) == sorted(b"up\nup\n")  # of both, in any order
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
        assert launcher.stdout.read() == b""  # the ranks held it, too


def test_a_launcher_whose_store_dies_ends_its_ranks_and_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import pathlib, time; pathlib.Path('up').touch(); time.sleep(600)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EQUIPOISE_TOKEN": "0" * 32}
    python = [sys.executable, "-m"]
    store = [*python, "equipoise.live.group.store", "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([*store, "--address-file", "address"], cwd=tmp_path, env=environment) as own:
        while not (tmp_path / "address").exists():
            assert own.poll() is None
            time.sleep(0.02)
        address = (tmp_path / "address").read_text().strip()
        command = [*python, "equipoise.live.group.launch", "--ranks", "1", "--store", address, "waits.py"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
            while not (tmp_path / "up").exists():
                assert launcher.poll() is None
                time.sleep(0.02)
            own.kill()
            assert launcher.stderr is not None
            said = launcher.stderr.read().decode().splitlines()
            assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
    gone = f"equipoise: the job's store at {address} is gone; start the job again"
    assert said == [f"equipoise: store on {address}", gone]


NODE = """
import os, pathlib, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from equipoise.live.group import regroup

torch.set_num_threads(1)
member = regroup.start().member
data = TensorDataset(torch.randn(80000, 4), torch.randn(80000, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="none", global_batch=8, decide_every=2)
loader = DataLoader(data, batch_sampler=runtime.sampler(data))
seen, end = set(), None
for inputs, labels in runtime.batches(loader):
    if os.environ["RANK"] == sys.argv[1] and runtime.round == 3:
        os._exit(9)
    members = tuple(runtime._parts.group.members)
    seen.add(members)
    if members == (0, 2) and end is None:  # at the same round on both
        end = runtime.round + 5
    with runtime.recover():
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
    runtime.step()
    if runtime.round == end:
        break
    time.sleep(0.01)
pathlib.Path(f"seen-{member}").write_text(repr(sorted(seen)))
runtime.close()
"""


@pytest.mark.long
def test_a_node_that_is_started_again_is_taken_in(tmp_path: Path) -> None:
    """As a pod that is replaced: two launchers, one store; the second node's rank dies and comes back."""
    (tmp_path / "node.py").write_text(NODE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "EQUIPOISE_TOKEN": "x"}
    module = [sys.executable, "-m"]
    file = tmp_path / "address"
    store = [*module, "equipoise.live.group.store", "--port", "0", "--address-file", str(file)]
    with subprocess.Popen(store, env=environment, stdout=subprocess.DEVNULL) as host:
        while not file.exists():
            assert host.poll() is None
            time.sleep(0.02)
        node = [*module, "equipoise.live.group.launch", "--store", file.read_text().strip(), "--nodes", "2"]
        first = subprocess.Popen([*node, "--node-rank", "0", "node.py", "-1"], cwd=tmp_path, env=environment)
        second = [*node, "--node-rank", "1", "node.py"]
        assert subprocess.run([*second, "1"], cwd=tmp_path, env=environment, check=False).returncode == 9
        assert subprocess.run([*second, "-1"], cwd=tmp_path, env=environment, check=False).returncode == 0
        assert first.wait(timeout=60) == 0
        assert "(0,)" in (tmp_path / "seen-0").read_text()
        assert "(0, 2)" in (tmp_path / "seen-2").read_text()
        host.terminate()


@pytest.mark.long
def test_a_rank_that_comes_back_to_nobody_begins_again(tmp_path: Path) -> None:
    """As the only pod, replaced: it looks for the others in vain, and is the job then; once more, all is done."""
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "again.py").write_text(
        "from equipoise.live.group import regroup; job = regroup.start(); print(job.members); job.close()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "EQUIPOISE_TOKEN": "x"}
    file = tmp_path / "address"
    module = [sys.executable, "-m"]
    store = [*module, "equipoise.live.group.store", "--port", "0", "--address-file", str(file)]
    with subprocess.Popen(store, env=environment, stdout=subprocess.DEVNULL) as host:
        while not file.exists():
            assert host.poll() is None
            time.sleep(0.02)
        node = [*module, "equipoise.live.group.launch", "--store", file.read_text().strip()]

        def run(*more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*node, *more], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
            )

        assert run("node.py", "0").returncode == 9
        alone = run("again.py")
        assert (alone.returncode, alone.stdout) == (0, "[0]\n")
        assert "no member is left in the job; it restarts from its last checkpoint" in alone.stderr
        done = run("again.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        host.terminate()


RESUMING = """
import json, os, pathlib, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from equipoise.live.group import regroup

torch.set_num_threads(1)
regroup.start()
data = TensorDataset(torch.randn(160, 4), torch.randn(160, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="none", global_batch=8)
sampler = runtime.sampler(data)
path, log = pathlib.Path("checkpoint.pt"), pathlib.Path(f"log-{runtime.rank}")
if path.exists():
    runtime.load_state_dict(torch.load(path, weights_only=True))
for epoch in runtime.epochs(1):
    for inputs, labels in runtime.batches(DataLoader(data, batch_sampler=sampler)):
        number, indices = runtime.round, sampler.current().indices.tolist()
        with runtime.recover():
            torch.nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
        runtime.step()
        with log.open("a") as file:
            file.write(json.dumps([number, indices]) + chr(10))
        if runtime.round == 7:
            state = runtime.state_dict()
            if runtime.rank == 0:
                torch.save(state, "draft.pt")
                os.replace("draft.pt", path)
        while runtime.round == 11 and not pathlib.Path("again").exists():
            time.sleep(0.05)
runtime.close()
"""


@pytest.mark.long
def test_a_launcher_that_is_started_again_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RESUMING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--ranks", "2", "train.py"]
    logs = [tmp_path / "log-0", tmp_path / "log-1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
        while not all(log.exists() and log.read_text().count("\n") == 11 for log in logs):
            assert launcher.poll() is None
            time.sleep(0.02)
        launcher.kill()
        assert launcher.stderr is not None
        launcher.stderr.read()  # until nobody is left
    (tmp_path / "again").touch()
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 0
    rounds: dict[tuple[int, int], list[int]] = {}
    for rank, log in enumerate(logs):
        for number, indices in map(json.loads, log.read_text().splitlines()):
            rounds[rank, number] = indices  # rounds 7 to 10 were trained on again
    assert sorted(i for indices in rounds.values() for i in indices) == list(range(160))
    assert len(logs[0].read_text().splitlines()) == 20 + 4


OUTER = """
import datetime, sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.mark.long
def test_on_a_store_of_somebody_elses_the_death_of_the_launcher_ends_nothing(tmp_path: Path) -> None:
    """As inside torchrun's c10d rendezvous, whose store is a plain one of PyTorch's."""
    (tmp_path / "train.py").write_text(RESUMING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "EQUIPOISE_TOKEN": "x"}
    outer = [sys.executable, "-c", OUTER]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        address = f"127.0.0.1:{store.stdout.readline().strip()}"
        command = [sys.executable, "-m", "equipoise.live.group.launch", "--store", address, "--ranks", "2"]
        logs = [tmp_path / "log-0", tmp_path / "log-1"]
        with subprocess.Popen(
            [*command, "train.py"], stderr=subprocess.PIPE, cwd=tmp_path, env=environment
        ) as launcher:
            while not all(log.exists() and log.read_text().count("\n") == 11 for log in logs):
                assert launcher.poll() is None
                time.sleep(0.02)
            launcher.kill()
            (tmp_path / "again").touch()
            assert launcher.stderr is not None
            said = launcher.stderr.read().decode()  # until nobody is left
        assert said.splitlines()[1:] == []
        rounds = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        assert sorted(i for _, indices in rounds for i in indices) == list(range(160))
        store.communicate()


def test_a_store_that_goes_while_a_process_comes_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.live.group import regroup

    def gone(hosts: bool = False) -> Any:
        raise torch.distributed.DistNetworkError("Failed to recv, got 0 bytes.\nException raised from recvBytes")

    monkeypatch.setenv("EQUIPOISE_STORE", "127.0.0.1:1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(regroup, "reached", lambda *where: None)
    monkeypatch.setattr(regroup, "job_store", gone)
    monkeypatch.setattr(regroup.gc, "freeze", lambda: None)  # of the tests' own process
    with pytest.raises(SystemExit, match=r"^equipoise: this process ends: .*127\.0\.0\.1:1 was lost .* checkpoint$"):
        regroup.start()
    assert regroup.current() is None
