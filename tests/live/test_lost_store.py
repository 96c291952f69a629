"""The host of the store dies: every rank ends soon, with one line, and nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from equipoise.live.group import lifeline

ROOT = Path(__file__).resolve().parents[2]
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
            time.sleep(60)  # in one exchange or none: told all the same
        optimizer.step()
    runtime.step()
"""


def test_a_killed_launcher_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--ranks", "2", "train.py"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
        while not (tmp_path / "waits").exists():
            assert launcher.poll() is None
            time.sleep(0.02)
        launcher.kill()
        began = time.monotonic()
        assert launcher.stderr is not None
        said = (
            launcher.stderr.read().decode()
        )  # its end: nobody holds the pipe any more, no data worker either
    assert time.monotonic() - began < 20.0
    first, *others = said.splitlines()
    assert first.startswith("equipoise: store on ")
    assert sorted(line.split(":")[1] for line in others) == [" member 0 ends", " member 1 ends"]
    assert (tmp_path / "saved").exists()


def test_a_rank_that_finds_no_store_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_REACHED_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SystemExit, match=f"equipoise: no store at 127.0.0.1:{port}: Connection refused"):
        lifeline.reached("127.0.0.1", port)


def test_a_launcher_that_is_told_to_end_ends_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time; print('up', flush=True); time.sleep(60)")
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--ranks", "2", "waits.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as launcher:
        assert launcher.stdout is not None
        for _ in range(2):
            assert launcher.stdout.readline() == b"up\n"
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=60) == 128 + signal.SIGTERM
        assert launcher.stdout.read() == b""  # the ranks held it, too
