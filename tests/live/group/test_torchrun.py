"""Inside a rendezvous that exists: real torchrun ends all ranks when one dies, and starts them again.

With c10d, and with etcd where its server and its Python client (of the system, say) are installed.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"

ROOT = Path(__file__).resolve().parents[3]
SAMPLES, BATCH, SAVED, DIES = 160, 8, 10, 13  # rounds

SCRIPT = f"""
import json, os, signal, sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import equipoise

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
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
    for batch in loader:
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


@contextlib.contextmanager
def etcd(folder: Path) -> Iterator[tuple[list[str], str]]:
    """(torchrun's options, a search path that its client is on) of an etcd that runs meanwhile."""
    program = shutil.which("etcd")
    client = [Path(p) / "etcd" for p in (*sys.path, "/usr/lib/python3/dist-packages") if (Path(p) / "etcd").is_dir()]
    if program is None or not client:
        pytest.skip("no etcd, or not its Python client")
    for name in ("etcd", "dns", "urllib3", "six.py"):  # of that folder nothing else
        (folder / name).symlink_to(client[0].parent / name)
    ports = [free_port() for _ in range(2)]
    mine, peers = (f"http://127.0.0.1:{port}" for port in ports)
    command = [
        program,
        "--enable-v2",
        "--data-dir",
        str(folder / "data"),
        "--listen-client-urls",
        mine,
        "--advertise-client-urls",
        mine,
        "--listen-peer-urls",
        peers,
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(ports[0], server)
        yield ["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", f"127.0.0.1:{ports[0]}"], str(folder)
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Until somebody listens there."""
    while True:
        assert server.poll() is None, "etcd ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)


@contextlib.contextmanager
def c10d(folder: Path) -> Iterator[tuple[list[str], str]]:
    """torchrun's own rendezvous."""
    yield ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"], str(folder)


@pytest.mark.long
@pytest.mark.parametrize("rendezvous", [c10d, etcd])
def test_after_a_death_torchrun_goes_on_from_the_checkpoint_with_every_sample_once(
    rendezvous: Any, tmp_path: Path
) -> None:
    work, outer = tmp_path / "work", tmp_path / "outer"
    work.mkdir()
    outer.mkdir()
    (work / "train.py").write_text(SCRIPT)
    torchrun = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", "job"]
    with rendezvous(outer) as (options, path):
        search = os.pathsep.join([str(ROOT), path])
        environment = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"} | dict([FRESH_STORE.split("=")])
        command = [sys.executable, "-m", *torchrun, *options, "train.py"]
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"from {SAVED} to {SAMPLES // BATCH} on 2"] * 2
    parts = [json.loads((work / f"{when}-{k}.json").read_text()) for when in ("before", "after") for k in (0, 1)]
    assert collections.Counter(i for part in parts for i in part) == collections.Counter(range(SAMPLES))
