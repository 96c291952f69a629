"""What the adapter costs: plain data-parallel training against the same with a policy attached.

    python tests/bench/live/overhead.py [--ranks 2] [--blocks 12] [--steps 10] [--format json]

Both models (12 M parameters, steps of about 100 ms) live in the same processes and take turns in blocks of
some steps, statistics, decisions and the record of the run included; the figure is the median ratio of paired
blocks. On a busy machine ranks are not equal, and a policy rightly reacts: `--mode advise` then shows the
cost of the adapter alone, and `--mode control` (nothing attached) what noise alone makes of the figure. The last
lines say whether 1 % is kept with 95 % confidence, missed, or cannot be told from so many pairs: of the time on the
clock, and of the processor time that the adapter adds on the rank that decides, in all of its threads, which other
work on the machine hardly disturbs and of which the clock shows no more than what holds training up.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.live import ranks as live_ranks

WANTED = 0.01  # of a step, at most


def measure(
    rank: int,
    policy: str,
    mode: str,
    blocks: int,
    steps: int,
    target_s: float,
    work: str,
    width: int,
    run_dir: str,
    delay_rounds: int,
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    from equipoise.live.attach import attach

    torch.set_num_threads(1)  # as torchrun does: more would compete for the cores
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        """About 12 M parameters; waits where real computing would compete for the cores."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(1000, width),
                torch.nn.ReLU(),
                torch.nn.Linear(width, width),
                torch.nn.Linear(width, 100),
            )
            self.wait_s = 0.0

        def forward(self, x: Any) -> Any:
            if self.wait_s:
                time.sleep(self.wait_s)
            return self.layers(x)

    batch = 16 * ranks
    inputs, labels = torch.randn(4096, 1000), torch.randint(0, 100, (4096,))
    data = TensorDataset(inputs, labels)
    plain, attached = (DistributedDataParallel(Net()) for _ in range(2))
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (plain, attached)]
    loaders = [DataLoader(data, batch_size=16, sampler=DistributedSampler(data)) for _ in range(2)]
    runtime = None
    if mode != "control":
        runtime = attach(
            attached,
            optimizers[1],
            policy=policy,
            global_batch=batch,
            mode=mode,
            run_dir=run_dir,
            delay_rounds=delay_rounds,
        )
        loaders[1] = DataLoader(data, batch_sampler=runtime.sampler(data))

    def forever(loader: Any) -> Any:
        while True:
            yield from loader

    streams = [forever(loader) for loader in loaders]

    def block(k: int) -> tuple[float, float]:
        model, optimizer = (plain, attached)[k], optimizers[k]
        dist.barrier()
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            x, y = next(streams[k])
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if k and runtime is not None:
                runtime.step()
        return time.perf_counter() - began, time.process_time() - began_cpu

    for k in (0, 1):
        block(k)
    step_s = torch.tensor([block(0)[0] / steps])
    dist.all_reduce(step_s, dist.ReduceOp.MAX)
    if work == "wait":
        for model in (plain, attached):
            model.module.wait_s = max(0.0, target_s - float(step_s))
    times: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for n in range(blocks):
        for k in (0, 1) if n % 2 == 0 else (1, 0):
            wall_s, cpu_s = block(k)
            times[k].append(wall_s / steps)
            cpu[k].append(cpu_s / steps)
    shares = None
    if runtime is not None:
        shares = runtime.shares
        runtime.close()
    return {"plain": times[0], "attached": times[1], "cpu": cpu, "shares": shares}


def _interval(ratios: list[float]) -> list[float]:
    """Where the median lies with 95 % confidence: order statistics of the sorted pairs, without any assumption."""
    n = len(ratios)
    below = [sum(math.comb(n, k) for k in range(j + 1)) / 2**n for j in range(n)]
    j = max((j for j in range(n // 2) if 2 * below[j] <= 0.05), default=-1)
    return [ratios[j], ratios[n - 1 - j]] if j >= 0 else [-math.inf, math.inf]


def verdict(ratios: list[float]) -> str:
    """One line: the overhead (`ratios` in order), its interval, what is wanted, and whether that is kept."""
    low, high = _interval(ratios)
    kept = "kept" if high <= WANTED else "missed" if low > WANTED else "not to be told from so few or noisy pairs"
    found = f"{statistics.median(ratios):+.2%} of a step (95 %: {low:+.2%} to {high:+.2%}, {len(ratios)} pairs)"
    return f"{found}, wanted at most {WANTED:.0%}: {kept}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--delay-rounds", type=int, default=0, help="rounds trained while a decision is made")
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--width", type=int, default=3000, help="of the hidden layers; 3000: 12 M parameters")
    parser.add_argument("--policy", default="s1+s2")
    parser.add_argument("--mode", choices=["observe", "advise", "act", "control"], default="act")
    parser.add_argument("--work", choices=["wait", "compute"], default="wait")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ranks = live_ranks.Ranks(
            measure,
            given.ranks,
            given.policy,
            given.mode,
            given.blocks,
            given.steps,
            given.step_ms / 1e3,
            given.work,
            given.width,
            folder,
            given.delay_rounds,
        )
        result = ranks.join(timeout_s=3600)[0]
    pairs = zip(result["plain"], result["attached"], strict=True)
    ratios = sorted(b / a - 1 for a, b in pairs)
    step_s, wanted_s = statistics.median(result["plain"]), given.step_ms / 1e3
    extra = sorted((b - a) / wanted_s for a, b in zip(*result["cpu"], strict=True))
    found = {
        "ranks": given.ranks,
        "plain_step_s": step_s,
        "attached_step_s": statistics.median(result["attached"]),
        "overhead_median": statistics.median(ratios),
        "overhead_interval_95": _interval(ratios),
        "load": os.getloadavg()[0],
        "overhead_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
        "pairs": len(ratios),
        "ratios": ratios,
        "extra_cpu_s_per_step": statistics.median(extra) * wanted_s,
        "shares": result["shares"],
        "verdict": verdict(ratios),
        "verdict_cpu": verdict(extra),
    }
    print(
        json.dumps(found)
        if given.format == "json"
        else "\n".join(f"{k}: {v}" for k, v in found.items() if k != "ratios")
    )


if __name__ == "__main__":
    main()
