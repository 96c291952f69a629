"""Twins of three training scripts: `python -m tests.bench.live.twins [--seconds 40] [--only SCRIPT] [--keep DIR]`

A convolutional and a transformer model that compute on this machine's processors, and a small one that pauses for
evaluation and checkpoints; 2 ranks under s1+s2, rank 0 at half its speed from half-way on (another model computes
its batch, too). Each is trained twice, twinned, and judged: the step time of every window within 5 %, and the
first ten decisions alike, or one sentence why not. Beside it stands how far the two runs are apart themselves,
which is this machine's noise alone. Exit code 1 when a window of the twin is further off.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.study.twin.record import read_run
from equipoise.study.twin.text import render
from equipoise.study.twin.twin import Twin, twin

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ("convolution", "transformer", "pauses")
RANKS, BATCH, WITHIN = 2, 16, 0.05  # samples per rank
DECIDE_EVERY = 12  # rounds
PAUSE_EVERY = 25  # rounds
TIMES = 2  # that each is trained
SLOW_FROM = "slow-from"  # file with the round at which rank 0 turns slow


def network(script: str) -> tuple[Any, Any]:
    """(model, 4,096 inputs) of a script."""
    import torch
    from torch import nn

    if script == "convolution":
        layers = [nn.Conv2d(3, 48, 3, 2), nn.ReLU(), nn.Conv2d(48, 96, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 10)), torch.randn(4096, 3, 64, 64)
    if script == "transformer":
        layer = nn.TransformerEncoderLayer(192, 4, 384, dropout=0.0, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(48 * 192, 10))
        return model, torch.randn(4096, 48, 192)
    wide = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return wide, torch.randn(4096, 256)


def train(script: str, run_dir: str, seconds: float) -> None:
    """One rank: trains for so long."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    (net, inputs), (other, _) = network(script), network(script)
    data = TensorDataset(inputs, torch.randint(10, (len(inputs),)))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runtime = attach(
        model,
        optimizer,
        policy="s1+s2",
        global_batch=BATCH * RANKS,
        warm_up_budget_s=600.0,
        delay_rounds=1,
        decide_every=DECIDE_EVERY,
        run_dir=run_dir,
    )
    loader = DataLoader(data, batch_sampler=runtime.sampler(data))
    rank, began_s, over, slow = dist.get_rank(), time.perf_counter(), torch.zeros(1), False
    for _ in runtime.epochs(10**6):
        for x, y in loader:
            late = time.perf_counter() - began_s
            if rank == 0 and late > seconds / 2:  # other work on its processor, as much as its own
                if not slow:
                    Path(run_dir, SLOW_FROM).write_text(str(runtime.round))
                slow = True
                torch.nn.functional.cross_entropy(other(x), y).backward()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            runtime.step()
            if script == "pauses" and runtime.round % PAUSE_EVERY == 0:
                with torch.no_grad():
                    model(inputs[:1024])
                net.state_dict()
            if runtime.round % 10 == 0:
                over[0] = float(late > seconds)
                dist.all_reduce(over)
                if over[0]:
                    break
        if over[0]:
            break
    runtime.close()
    dist.destroy_process_group()


def record(script: str, seconds: float, folder: Path) -> None:
    """Train a script; its record lies in `folder`."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    worker = ["-m", "tests.bench.live.twins", "--worker", script, "--seconds", str(seconds), "--run-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(search_path()), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *torchrun, *worker], env=environment, check=True)


def judge(script: str, folders: Sequence[Path]) -> bool:
    """Twin each run and print the first; whether all of its windows are close enough."""
    found = [twin(read_run(folder)) for folder in folders]
    print(f"== {script}\n{render(found[0])}", flush=True)
    errors = [window.error for window in found[0].windows]
    apart = np.concatenate([floor(a, b) for a, b in itertools.combinations(found, 2)])
    alike = found[0].decisions_identical
    print(f"{script}: twin against run: {spread(errors)}; the first {alike} decisions alike")
    print(f"{script}: run against run: {spread(apart)}\n", flush=True)
    return max(errors) <= WITHIN


def spread(errors: Sequence[float] | Floats) -> str:
    """How far off windows are."""
    far = int(np.sum(np.array(errors) > WITHIN))
    share = f"{far} of {len(errors)} by more than {WITHIN:.0%}"
    return f"step time off by {np.median(errors):.1%} in the median window, {np.max(errors):.0%} at most, {share}"


def floor(one: Twin, other: Twin) -> Floats:
    """How far the windows of two runs of one script are apart, in turn from the start and from the slowdown on."""
    halves = [halved(one), halved(other)]
    pairs = [pair for part in zip(*halves, strict=True) for pair in zip(*part, strict=False)]
    return np.array([abs(a - b) / a for a, b in pairs])


def halved(found: Twin) -> tuple[list[float], list[float]]:
    """Measured step times (s) of the windows before the slowdown, and of those after it."""
    slow = int((found.run.folder.parent / SLOW_FROM).read_text())
    before = [w.measured_s for w in found.windows if w.last_round < slow]
    return before, [w.measured_s for w in found.windows if w.first_round > slow]


def search_path() -> str:
    """This project, whatever was installed."""
    return os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of training, each")
    parser.add_argument("--only", choices=SCRIPTS)
    parser.add_argument("--keep", type=Path, help="folder of the records; those that it holds are not made again")
    parser.add_argument("--worker", choices=SCRIPTS, help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        train(given.worker, given.run_dir, given.seconds)
        return 0
    close = []
    with tempfile.TemporaryDirectory() as made:
        for script in [given.only] if given.only else SCRIPTS:
            folders = [(given.keep or Path(made)) / f"{script}-{k + 1}" for k in range(TIMES)]
            for folder in folders:
                if not folder.exists():
                    record(script, given.seconds, folder)
            close.append(judge(script, folders))
    return 0 if all(close) else 1


if __name__ == "__main__":
    sys.exit(main())
