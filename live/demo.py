"""A policy in real training on this machine, without a GPU: `python -m equipoise.live.demo [--ranks 4]`.

Some gloo processes train a small model; half-way, rank 0 becomes twice as slow (it waits longer per sample,
so that a busy machine has little effect). The same training runs with equal shares and with the policy; then the
simulated twin of the second run shows how well the simulation predicts it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from equipoise.base.numerals import plain_numbers
from equipoise.base.sources import environment

_FEATURES = 64
REACTION = 20  # rounds after the slowdown that are ignored, in which the policy adapts


def bound(ranks: int, slowdown: float) -> float:
    """Best possible throughput over that of equal shares, when one of `ranks` is `slowdown` times slower."""
    return slowdown * (ranks - 1 + 1.0 / slowdown) / ranks


def train(given: argparse.Namespace) -> None:
    """One rank of one run; rank 0 writes its round times."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    from equipoise.live.attach import attach
    from equipoise.live.train.wrapped import keep_group

    class Net(torch.nn.Module):  # type: ignore[misc]
        """A small model that takes `sample_s` longer per sample."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(_FEATURES, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
            self.sample_s = given.sample_ms / 1e3

        def forward(self, x: Any) -> Any:
            """Wait, then compute."""
            time.sleep(self.sample_s * len(x))
            return self.layers(x)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    batch = given.batch * dist.get_world_size()
    inputs = torch.randn(batch * given.rounds, _FEATURES)
    dataset = TensorDataset(inputs, inputs[:, :8].sum(dim=1, keepdim=True))
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runtime = None
    if given.mode == "plain":
        keep_group(model)
        sampler = DistributedSampler(dataset, shuffle=False)
        loader = DataLoader(dataset, given.batch, sampler=sampler)
    else:
        runtime = attach(
            model,
            optimizer,
            policy=given.policy,
            global_batch=batch,
            mode=given.mode,
            decide_every=given.decide_every,
            delay_rounds=given.delay_rounds,
            drift=0.02,
            warm_up_budget_s=600.0,  # the first run on a machine compiles the policy's kernels
            samples_target=len(inputs),
            run_dir=given.run_dir,
        )
        loader = DataLoader(dataset, batch_sampler=runtime.sampler(dataset))
    times_s, losses, shares = [], [], []
    for number, (x, y) in enumerate(loader):
        if number == given.rounds // 2 and dist.get_rank() == 0:
            model.module.sample_s *= given.slowdown
        began = time.perf_counter()
        shares.append([given.batch] * dist.get_world_size() if runtime is None else runtime.shares)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if runtime is not None:
            runtime.step()
        times_s.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
    if dist.get_rank() == 0:
        result = {"times_s": times_s, "losses": losses, "shares": shares, "batch": batch}
        (Path(given.run_dir) / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if runtime is not None:
        runtime.close()
    dist.destroy_process_group()


def run(given: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """One training run in separate processes; returns the result of rank 0. Raises CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
    command += ["-m", "equipoise.live.demo", "--worker", "--mode", mode, "--run-dir", str(folder)]
    for name in ("policy", "rounds", "batch", "sample_ms", "slowdown", "decide_every", "delay_rounds"):
        command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    subprocess.run(command, env={**environment(), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}, check=True)
    return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))


def throughput(result: dict[str, Any]) -> float:
    """Samples per second from `REACTION` rounds after the slowdown on."""
    times_s = result["times_s"]
    counted = times_s[len(times_s) // 2 + REACTION :]
    return float(result["batch"] * len(counted) / sum(counted))


def main() -> int:
    """Run the command line; returns the exit code."""
    given = _arguments()
    if given.worker:
        train(given)
        return 0
    with tempfile.TemporaryDirectory(prefix="equipoise-demo-") as scratch:
        folder = Path(given.run_dir or scratch)
        print(f"equipoise: {given.ranks} ranks, plain data-parallel training ...", file=sys.stderr)
        static = run(given, "plain", folder / "static")
        print(f"equipoise: {given.ranks} ranks, {given.policy} ...", file=sys.stderr)
        policy = run(given, "act", folder / "policy")
        before, now = throughput(static), throughput(policy)
        print(f"after rank 0 slowed down, {given.ranks} ranks trained, in samples per second,")
        print(f"  with plain DDP      {before:8.1f}")
        print(f"  with the policy     {now:8.1f}   {now / before:.2f} times plain DDP")
        print(f"  at best                        {bound(given.ranks, given.slowdown):.2f} times plain DDP")
        print(f"shares at the end: {policy['shares'][-1]}\n", flush=True)
        twin = [sys.executable, "-m", "equipoise.cli", "twin", str(folder / "policy")]
        return subprocess.run(twin, env=environment(), check=False).returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m equipoise.live.demo", description=__doc__.splitlines()[0])
    plain_numbers(parser)
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--policy", default="s1+s2+s3+s4", help="stages joined by +, or an exported file")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, default=28, help="samples per rank and round")
    parser.add_argument("--sample-ms", type=float, default=3.0, help="time per sample")
    parser.add_argument("--decide-every", type=int, default=6, help="rounds between decisions")
    parser.add_argument("--delay-rounds", type=int, default=0, help="rounds trained while a decision is made")
    parser.add_argument("--slowdown", type=float, default=2.0, help="factor by which rank 0 slows down half-way")
    parser.add_argument("--run-dir", help="folder for the records")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="act", help=argparse.SUPPRESS)
    given = parser.parse_args()
    least = 2 * (REACTION + 1)
    if given.rounds < least or given.batch < 1 or given.sample_ms <= 0 or given.slowdown < 1:
        parser.error(f"--rounds must be at least {least}, --batch and --slowdown at least 1, --sample-ms above 0")
    return given


if __name__ == "__main__":
    sys.exit(main())
