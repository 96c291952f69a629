"""Throughput with one rank of three slow, against the bound: python -m tests.bench.live.speed [--pairs 3]

Five kinds of slowness of rank 0, from round 60 on, and five ways to train in turn: equal shares (plain DDP), DDP's join
with batches in proportion to speed, LB-BSP by hand (the best shares from the start, weights by hand), local SGD
(PyTorch's PeriodicModelAverager, every 4 steps), and the policy. All are emulated by waits (2 ms a sample, 32 samples
each), so a busy machine disturbs little; times count from 30 rounds after the slowdown on. The bound is that of the
best shares in whole samples; on a busy machine these shares do not reach it either ("by hand"). The last line says
whether each kind reaches `WANTED` of it. `--equal`: no rank is slow, and the policy may be 0.5 % slower at most.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.live import ranks as live_ranks

RANKS, EACH, SAMPLE_S, SLOW_FROM, REACTION, COUNTED = 3, 32, 2e-3, 60, 30, 30
BATCH, WANTED, EQUAL = RANKS * EACH, 0.93, 0.995
KINDS = {  # (computing times, loading a sample, seconds in each round) of the slow rank
    "twice as slow": (2.0, 0.0, 0.0),
    "6 times as slow": (6.0, 0.0, 0.0),
    "slow loader": (1.0, SAMPLE_S, 0.0),
    "slow behind the last gradient": (1.0, 0.0, 0.0),
    "fixed delay": (1.0, 0.0, EACH * SAMPLE_S),
    "equal": (1.0, 0.0, 0.0),
}
WAYS = ("plain", "join", "by hand", "local", "policy")


def seconds(kind: str, samples: int) -> float:
    """A round of `samples` on the slow rank."""
    times, load_s, fixed_s = KINDS[kind]
    tail_s = SAMPLE_S * samples if kind == "slow behind the last gradient" else 0.0
    return samples * (times * SAMPLE_S + load_s) + fixed_s + tail_s


def best(kind: str) -> int:
    """Samples of the slow rank with which a round takes least time."""
    return min(range(1, EACH + 1), key=lambda n: max(seconds(kind, n), SAMPLE_S * math.ceil((BATCH - n) / (RANKS - 1))))


def measure(rank: int, kind: str, way: str, policy: str) -> float:
    """Seconds per global batch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    slow = {"now": way in ("join", "by hand", "local", "plain") and rank == 0}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            times, _, fixed_s = KINDS[kind] if slow["now"] else (1.0, 0.0, 0.0)
            time.sleep(len(x) * times * SAMPLE_S + fixed_s)
            return self.layer(x)

    class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> Any:
            raise NotImplementedError

        def __getitems__(self, indices: list[int]) -> list[Any]:
            time.sleep(len(indices) * KINDS[kind][1] if slow["now"] else 0.0)
            return [row.clone()] * len(indices)

    row, net = torch.zeros(64), Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    runtime: Any = None
    counts, rounds = [EACH] * RANKS, 10 + COUNTED
    if way == "policy":
        runtime = attach(model, optimizer, policy, global_batch=BATCH, warm_up_budget_s=600.0, decision_budget_s=5.0)
        batches, rounds = runtime.sampler(Data()), SLOW_FROM + REACTION + COUNTED
    else:
        n = best(kind)
        if way == "by hand":
            counts = [n, math.ceil((BATCH - n) / 2), (BATCH - n) // 2]
        if way == "join":  # so many batches that both kinds of ranks are busy equally long
            part = EACH * SAMPLE_S / seconds(kind, EACH)
            most = RANKS * rounds / (RANKS - 1 + part)
            mine = round(most * part) if rank == 0 else round(most)
        batches = [list(range(counts[rank]))] * (mine if way == "join" else rounds)
    averager = PeriodicModelAverager(period=4)
    joining: Any = model.join() if way == "join" else contextlib.nullcontext()
    times_s, began_s = list[float](), time.perf_counter()
    with joining:
        for number, x in enumerate(torch.utils.data.DataLoader(Data(), batch_sampler=batches)):
            if number == rounds:
                break
            slow["now"] = rank == 0 and (runtime is None or number >= SLOW_FROM)
            with model.no_sync() if way == "local" else contextlib.nullcontext():
                (model(x).square().mean() * counts[rank] * RANKS / BATCH).backward()
            if kind == "slow behind the last gradient" and slow["now"]:
                time.sleep(len(x) * SAMPLE_S)
            optimizer.step()
            if way == "local":
                averager.average_parameters(net.parameters())
            optimizer.zero_grad()
            if runtime is not None:
                runtime.step()
            times_s.append(time.perf_counter())
    if runtime is not None:
        runtime.close()
    dist.barrier()
    if way == "join":
        return (time.perf_counter() - began_s) / rounds
    return (times_s[-1] - times_s[-1 - COUNTED]) / COUNTED


def all_of(rank: int, kinds: list[str], ways: list[str], policy: str, pair: int) -> dict[str, dict[str, float]]:
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    turn = ways if pair % 2 == 0 else ways[::-1]
    return {kind: {way: measure(rank, kind, way, policy) for way in turn} for kind in kinds}


def main() -> int:
    """Run and print; 1 if a kind misses `WANTED`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--policy", default="s1+s2")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    kinds = ["equal"] if given.equal else [given.only] if given.only else list(KINDS)[:-1]
    ways = ["plain", "policy"] if given.equal else given.ways
    jobs = (live_ranks.Ranks(all_of, RANKS, kinds, ways, given.policy, pair) for pair in range(given.pairs))
    found = [job.join(timeout_s=900.0)[0] for job in jobs]
    print(f"| times plain DDP, {given.pairs} pairs | " + " | ".join([*ways[1:], "bound", "part"]) + " |")
    print("|---" * (len(ways) + 2) + "|")
    missed = False
    for kind in kinds:
        n = best(kind)
        least_s = max(seconds(kind, n) if kind != "equal" else 0.0, SAMPLE_S * math.ceil((BATCH - n) / 2))
        bound = seconds(kind, EACH) / least_s if kind != "equal" else 1.0
        ratios = {way: [f[kind]["plain"] / f[kind][way] for f in found] for way in ways[1:]}
        part = statistics.median(ratios["policy"]) / bound
        missed |= part < (EQUAL if given.equal else WANTED)
        spread = f"{min(ratios['policy']):.2f} to {max(ratios['policy']):.2f}"
        cells = [f"{statistics.median(r):.2f}" + (f" ({spread})" if w == "policy" else "") for w, r in ratios.items()]
        print(f"| {kind} | " + " | ".join([*cells, f"{bound:.2f}", f"{part:.3f}"]) + " |", flush=True)
    print(f"wanted {EQUAL if given.equal else WANTED}: {'missed' if missed else 'kept'}; load {os.getloadavg()[0]:.0f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
