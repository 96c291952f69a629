"""A policy in real training on this machine, without a GPU: `python -m live.demo [--ranks 4]`.

Some gloo processes train a small model; half-way, rank 0 becomes twice as slow (it waits longer per sample).
The same training runs with equal shares and with the policy; then the simulator's twin of the second run, if
the package has one, tells how well the simulation predicts it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FEATURES = 64


def bound(ranks: int, slowdown: float) -> float:
    """Best possible throughput over that of equal shares, when one of `ranks` is `slowdown` times slower."""
    return slowdown * (ranks - 1 + 1.0 / slowdown) / ranks


def train(given: argparse.Namespace) -> None:
    """One rank of one run; rank 0 writes its round times."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from live.attach import attach

    class Net(torch.nn.Module):  # type: ignore[misc]
        """A small model that takes `sample_s` longer per sample."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(_FEATURES, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1)
            )
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
    runtime = attach(
        model,
        optimizer,
        policy=given.policy,
        global_batch=batch,
        mode=given.mode,
        decide_every=4,
        drift=0.02,
        samples_target=len(inputs),
        run_dir=given.run_dir,
    )
    loader = DataLoader(dataset, batch_sampler=runtime.sampler(dataset))
    times_s, losses, shares = [], [], []
    for number, (x, y) in enumerate(loader):
        if number == given.rounds // 2 and dist.get_rank() == 0:
            model.module.sample_s *= given.slowdown
        began = time.perf_counter()
        shares.append(runtime.shares)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
        times_s.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
    if dist.get_rank() == 0:
        result = {"times_s": times_s, "losses": losses, "shares": shares, "batch": batch}
        (Path(given.run_dir) / "result.json").write_text(json.dumps(result), encoding="utf-8")
    runtime.close()
    dist.destroy_process_group()


def run(given: argparse.Namespace, mode: str, folder: Path) -> dict[str, Any]:
    """One training run in processes of its own; returns what rank 0 wrote. Raises RuntimeError."""
    from live.launch import Launcher

    folder.mkdir(parents=True, exist_ok=True)
    launcher = Launcher()
    command = [sys.executable, "-m", "live.demo", "--worker", "--mode", mode, "--run-dir", str(folder)]
    for name in ("policy", "rounds", "batch", "sample_ms", "slowdown"):
        command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    launcher.start(command, given.ranks, PYTHONPATH=os.pathsep.join(paths), PYTHONWARNINGS="ignore")
    try:
        code = launcher.wait()
    finally:
        launcher.stop()
    if code != 0:
        raise RuntimeError(f"the {mode} run failed with exit code {code}")
    return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))


def throughput(result: dict[str, Any]) -> float:
    """Samples per second over the last quarter of the rounds, when a policy has had time to react."""
    last = result["times_s"][-(len(result["times_s"]) // 4) :]
    return float(result["batch"] * len(last) / sum(last))


def twin(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """What `equipoise twin` says about a run: (its data, its table or why there is none)."""
    command = [sys.executable, "-m", "equipoise.cli", "twin", str(folder)]
    done = [
        subprocess.run([*command, "--format", form], capture_output=True, text=True, check=False)
        for form in ("json", "table")
    ]
    if any(d.returncode != 0 for d in done):
        lines = done[0].stderr.strip().splitlines() or ["no message"]
        return None, f"no twin: {lines[-1]}"
    return dict(json.loads(done[0].stdout)), done[1].stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m live.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--policy", default="s1+s2+s3+s4", help="stages joined by +, or an exported file")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--batch", type=int, default=32, help="samples per rank and round")
    parser.add_argument("--sample-ms", type=float, default=2.0, help="time per sample")
    parser.add_argument("--slowdown", type=float, default=2.0, help="of rank 0, half-way")
    parser.add_argument("--run-dir", help="keep the records here")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="act", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        train(given)
        return 0
    if given.rounds < 40 or given.batch < 1 or given.slowdown < 1:
        parser.error("--rounds must be at least 40, --batch and --slowdown at least 1")
    with tempfile.TemporaryDirectory(prefix="equipoise-demo-") as scratch:
        folder = Path(given.run_dir) if given.run_dir else Path(scratch)
        print(f"equipoise: {given.ranks} ranks, equal shares ...", file=sys.stderr)
        static = run(given, "observe", folder / "static")
        print(f"equipoise: {given.ranks} ranks, {given.policy} ...", file=sys.stderr)
        policy = run(given, "act", folder / "policy")
        found, table = twin(folder / "policy")
    rates = throughput(static), throughput(policy)
    summary = {
        "ranks": given.ranks,
        "throughput_static": rates[0],
        "throughput_policy": rates[1],
        "ratio": rates[1] / rates[0],
        "bound": bound(given.ranks, given.slowdown),
        "twin_step_error_median": None if found is None else found.get("step_error_median"),
        "decisions_identical": None if found is None else found.get("decisions_identical"),
    }
    if given.format == "json":
        print(json.dumps(summary))
        if found is None:
            print(f"equipoise: {table}", file=sys.stderr)
    else:
        _print(summary, policy, table)
    return 0


def _print(summary: dict[str, Any], policy: dict[str, Any], table: str) -> None:
    print(f"after rank 0 slowed down, {summary['ranks']} ranks trained, in samples per second,")
    print(f"  with equal shares   {summary['throughput_static']:8.1f}")
    print(f"  with the policy     {summary['throughput_policy']:8.1f}   {summary['ratio']:.2f} times as many")
    print(f"  at best                        {summary['bound']:.2f} times as many")
    print(f"shares at the end: {policy['shares'][-1]}")
    print(f"\n{table.rstrip()}")


if __name__ == "__main__":
    sys.exit(main())
