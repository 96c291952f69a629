"""Inside a rendezvous that exists: real torchrun with c10d ends all ranks when one dies, and starts them again."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
SAMPLES, BATCH, SAVED, DIES = 160, 8, 10, 13  # rounds

SCRIPT = f"""
import json, os, signal, sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import equipoise
from equipoise.live.group import regroup

regroup.start()
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
model = regroup.wrap(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="none", global_batch={BATCH})
path = Path("checkpoint.pt")
if path.exists():
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    runtime.load_state_dict(saved["runtime"])
loader = DataLoader(range({SAMPLES}), batch_sampler=runtime.sampler({SAMPLES}))
began, log = runtime.round, []
for _ in runtime.epochs(1):
    for batch in runtime.batches(loader):
        with runtime.recover():
            model(batch.float()[:, None]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        runtime.step()
        log += batch.tolist()
        if began == 0 and runtime.round == {SAVED}:
            states = {{"net": net.state_dict(), "runtime": runtime.state_dict()}}
            Path(f"before-{{runtime.rank}}.json").write_text(json.dumps(log))
            if runtime.rank == 0:
                torch.save(states, path)
        if began == 0 and runtime.round == {DIES} and runtime.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
Path(f"after-{{runtime.rank}}.json").write_text(json.dumps(log))
print("from", began, "to", runtime.round, "on", runtime.ranks)
runtime.close()
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_after_a_death_torchrun_goes_on_from_the_checkpoint_with_every_sample_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    c10d = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *torchrun, *c10d, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"from {SAVED} to {SAMPLES // BATCH} on 2"] * 2
    parts = [
        json.loads((tmp_path / f"{when}-{k}.json").read_text())
        for when in ("before", "after")
        for k in (0, 1)
    ]
    assert collections.Counter(i for part in parts for i in part) == collections.Counter(range(SAMPLES))
