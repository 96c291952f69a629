"""What each sub-step is worth in real ranks: python -m tests.bench.live.method --keep RUNS --write

Two gloo ranks on this machine, the policy against itself with one sub-step frozen (`policies.stages.frozen`), in
turn, so many times, each about four minutes. What is slow is a wait, not work: computing, a store's paths (a server
with rates), a link between the ranks. `--keep` is a file of runs: what it holds already is not run again.

data        shards of very unequal size in a store, to which rank 1 has a slow path; s1+s2
owners      the same store with two equal paths; rank 0 needs 3 times as long per sample; s1+s2
computing   equal shards, no store; rank 0 needs 3 times as long per sample; s1+s2
exchange    every exchange takes 60 ms more, rank 0 turns twice as slow half-way; s1+s2+s3, drift 0.01

Judged by seconds from the first batch to the last, over the mean statistical efficiency where the interval changes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.physics import efficiency
from equipoise.policies.stages.frozen import STEPS
from equipoise.study.statistics import Interval, paired_ratio
from tests.bench.method_table import HELPS, judge
from tests.live import ranks as live_ranks
from tests.live.data.store import SlowStore, write_shards

ROWS: dict[str, tuple[str, ...]] = {
    "data": ("S111", "S112", "S113", "S211", "S212", "S213", "S221"),
    "owners": ("S112", "S113", "S213"),
    "computing": ("S221",),
    "exchange": ("S221", "S311", "S312"),
}
ALIKE = {"S222": "S221", "S223": "S221"}
STAGES = {"data": "s1+s2", "owners": "s1+s2", "computing": "s1+s2", "exchange": "s1+s2+s3"}
PAGE = Path(__file__).parents[3] / "docs" / "method-live.md"
RATES = {"data": (8e6, 1e6), "owners": (8e6, 8e6)}
"""Bytes per second on the way from the store to each rank."""
SHARDS, SAMPLES, BATCH, DRIFT = 40, 1600, 40, 0.01


def policy_of(scenario: str, frozen: str) -> str:
    """The stages of a scenario with one sub-step frozen; none for an empty text."""
    stages = STAGES[scenario].split("+")
    return "+".join(f"{s}(frozen={frozen})" if frozen in STEPS[s] else s for s in stages)


def sizes() -> list[int]:
    """Samples of each shard: lognormal, with a coefficient of variation of 1."""
    drawn = np.random.default_rng(7).lognormal(-0.35, 0.83, SHARDS)
    parts = np.maximum(1, np.floor(drawn / drawn.sum() * SAMPLES)).astype(int)
    parts[parts.argmax()] += SAMPLES - parts.sum()
    return [int(n) for n in parts]


def train(rank: int, runs: Sequence[Mapping[str, Any]], roots: Sequence[Mapping[str, str]], folder: str) -> list[float]:
    """All runs one after another in the same ranks; the seconds that each took, as judged."""
    import torch
    import torch.distributed as dist

    os.environ["EQUIPOISE_HOST"] = f"host-{rank}"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    took = [_train(rank, run, roots[rank], Path(folder, f"{k}-{rank}")) for k, run in enumerate(runs)]
    dist.destroy_process_group()
    return took


def _train(rank: int, run: Mapping[str, Any], root: Mapping[str, str], folder: Path) -> float:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.data.files import ShardDataset

    scenario = run["scenario"]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).double())
    link_s = 0.06 if scenario == "exchange" else 0.0
    _slow_link(model, link_s)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data: Any = TensorDataset(torch.arange(4 * SAMPLES if scenario == "exchange" else SAMPLES))
    if scenario in RATES:
        data = ShardDataset(root[scenario], cache=folder, cache_bytes=1e9, decode=lambda s: (int(s["id"]),))
    runtime = attach(
        model,
        optimizer,
        policy_of(scenario, run["frozen"]),
        global_batch=BATCH,
        decide_every=3,
        seed=run["pair"],
        warm_up_budget_s=600.0,
        decision_budget_s=5.0,
        drift=DRIFT,
    )
    loader = DataLoader(data, batch_sampler=runtime.sampler(data))
    dist.barrier()
    began_s, useful, rounds = time.monotonic(), 0.0, 0
    for number, (ids,) in enumerate(loader):
        mine = runtime.shares[rank]
        x = 1.0 - 2.0 * (ids[: max(mine, 1)].double()[:, None] % 2)  # gradients that stay as they are: all are sound
        loss = ((model(x) - 2 * x) ** 2).mean()
        slower = {"data": 1.0, "owners": 3.0, "computing": 3.0, "exchange": 2.0 if number >= 80 else 1.0}[scenario]
        each_s = {"data": 5e-3, "owners": 5e-3, "computing": 4e-3, "exchange": 1.5e-3}[scenario]
        time.sleep(each_s * mine * (1.0 if rank else slower))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        useful += float(efficiency(BATCH, runtime.interval, 4000.0, BATCH, DRIFT))
        rounds += 1
        runtime.step()
    took_s = time.monotonic() - began_s
    runtime.close()
    return took_s * rounds / useful


def _slow_link(model: Any, link_s: float) -> None:
    """Every exchange takes so much longer: of gradients, and of parameters after local steps."""
    import torch
    import torch.distributed as dist

    from equipoise.live.train import sync

    def exchange(_: Any, bucket: Any) -> Any:
        time.sleep(link_s)
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def average(*arguments: Any, **named: Any) -> None:
        time.sleep(link_s)
        plain(*arguments, **named)

    exchange.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    plain = getattr(sync, "_plain_average", sync.average)
    sync._plain_average, sync.average = plain, average  # type: ignore[attr-defined]
    if link_s:
        model.register_comm_hook(None, exchange)


def measure(pair: int, scenarios: Sequence[str], done: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The runs of one repetition that are not done yet, in an order that turns from one to the next."""
    runs = [{"pair": pair, "scenario": s, "frozen": step} for s in scenarios for step in ("", *ROWS[s])]
    known = {(d["pair"], d["scenario"], d["frozen"]) for d in done}
    runs = [run for run in runs if tuple(run.values()) not in known]
    if not runs:
        return []
    turned = runs[pair * 3 % len(runs) :] + runs[: pair * 3 % len(runs)]
    turned = turned if pair % 2 == 0 else turned[::-1]
    runs = [turned[0], *turned]  # the first of a process also loads and compiles: it does not count
    with tempfile.TemporaryDirectory() as scratch:
        write_shards(Path(scratch, "store"), sizes(), 20_000)
        paths = {f"{scenario}-{rank}": rates[rank] for scenario, rates in RATES.items() for rank in range(2)}
        store = SlowStore(Path(scratch, "store"), paths)
        roots = [{scenario: store.url(f"{scenario}-{rank}") for scenario in RATES} for rank in range(2)]
        took = live_ranks.Ranks(train, 2, runs, roots, scratch).join(timeout_s=60.0 * (len(runs) + 2))
        store.close()
    slowest = [max(by_rank) for by_rank in zip(*took, strict=True)]
    return [{**run, "took_s": took_s} for run, took_s in zip(runs[1:], slowest[1:], strict=True)]


def table(done: Sequence[Mapping[str, Any]]) -> str:
    """The page as Markdown."""
    scenarios = [s for s in ROWS if any(d["scenario"] == s for d in done)]
    pairs = len({d["pair"] for d in done})
    lines = [
        "# What each sub-step is worth in real ranks",
        "",
        "Made by `python -m tests.bench.live.method --keep RUNS --write`; do not edit.",
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, gloo, no GPU; load "
        f"{os.getloadavg()[2]:.0f} (of processes that want a core) when this was written.",
        "",
        f"Seconds with one sub-step frozen over seconds with none, {pairs} pairs in turn, with a 95 % interval.",
        f"Bold: it helps by {HELPS - 1:.0%} or more, and its interval is clear of 1. What is slow is a wait; the",
        "script says what the scenarios are. S222 and S223 are frozen as S221 is. S313 needs a network of several",
        "levels, S321 to S323 need a GPU.",
        "",
        "| step | " + " | ".join(scenarios) + " |",
        "|---" * (1 + len(scenarios)) + "|",
    ]
    took = {(d["scenario"], d["frozen"], d["pair"]): float(d["took_s"]) for d in done}
    steps = [step for own in ("s1", "s2") for step in STEPS[own]] + ["S311", "S312"]
    for step in steps:
        cells = [_ratio(took, s, ALIKE.get(step, step)) for s in scenarios]
        lines.append(f"| {step} | " + " | ".join("" if c is None else judge(c) for c in cells) + " |")
    whole = {s: [t for (name, frozen, _), t in took.items() if name == s and not frozen] for s in scenarios}
    lines.append("| seconds | " + " | ".join(f"{statistics.median(whole[s]):.1f}" for s in scenarios) + " |")
    return "\n".join([*lines, ""])


def _ratio(took: Mapping[tuple[str, str, int], float], scenario: str, step: str) -> Interval | None:
    """A row's ratio over the pairs of which both halves were run."""
    pairs = sorted(p for s, frozen, p in took if (s, frozen) == (scenario, step) and (s, "", p) in took)
    if not pairs:
        return None
    frozen, whole = ([took[scenario, name, p] for p in pairs] for name in (step, ""))
    return paired_ratio(frozen, whole)


def main() -> None:
    """Run what is missing, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="pair to begin with, where several share the work")
    parser.add_argument("--keep", required=True, help="file of runs, one a line")
    parser.add_argument("--write", action="store_true", help="write the page, once all is run")
    parser.add_argument("scenarios", nargs="*", choices=[*ROWS, []], help="default: all")
    given = parser.parse_args()
    path, chosen = Path(given.keep), given.scenarios or list(ROWS)
    for pair in range(given.first, given.pairs):
        done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for run in measure(pair, chosen, done):
            print(json.dumps(run), file=sys.stderr)
            with path.open("a") as file:
                file.write(json.dumps(run) + "\n")
    done = [json.loads(line) for line in path.read_text().splitlines()]
    page = table(done)
    if given.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(page, end="")


if __name__ == "__main__":
    main()
