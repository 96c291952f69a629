"""Seconds until training continues after a death in mid-epoch: python -m tests.bench.live.deaths [--torchft PYTHON]

Three ranks train in rounds of 50 ms; rank 1 is killed by SIGKILL after round 75. torchrun starts all ranks again, from
a checkpoint of every 20th (or `--saves`) round; torchft (`--torchft`: an interpreter that has it, with its
torchft_lighthouse) goes on with the other two; `--regroup` is a tree of a commit that still formed the group anew
inside running processes (11399593^). Times are from the kill to the end of a round of any rank.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

RANKS, KILLED_AFTER, ROUNDS, ROUND_S, BATCH, ENDS_S = 3, 75, 150, 0.05, 24, 120.0


def make() -> tuple[Any, Any]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


def ended(round_number: int, ranks: int, rank: int) -> None:
    """Log a round; rank 1 dies once."""
    with Path(f"log-{os.getpid()}").open("a", encoding="utf-8") as file:
        file.write(f"{time.time()} {round_number} {ranks}\n")
    if round_number == KILLED_AFTER and rank == 1 and not Path("killed").exists():
        Path("killed").write_text(str(time.time()), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


def with_adapter(way: str, saves: int) -> None:
    """One rank of ours; a process that torchrun, or the launcher of `--regroup`, started."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    regroup: Any = None
    if way == "regroup":
        from equipoise.live.group import regroup  # type: ignore[attr-defined, no-redef]

        regroup.start()
    else:
        dist.init_process_group("gloo")
    net, optimizer = make()
    data = TensorDataset(torch.randn(BATCH * ROUNDS, 32), torch.randint(10, (BATCH * ROUNDS,)))
    model = regroup.wrap(net) if regroup else torch.nn.parallel.DistributedDataParallel(net)
    runtime: Any = attach(model, optimizer, policy="s1+s2", global_batch=BATCH)
    loader = DataLoader(data, batch_sampler=runtime.sampler(data))
    path, kept = Path("checkpoint.pt"), {"runtime": runtime, "model": net, "optimizer": optimizer}
    if path.exists():
        for name, saved in torch.load(path, weights_only=True).items():
            kept[name].load_state_dict(saved)
    for _ in runtime.epochs(1):
        for x, y in runtime.batches(loader) if regroup else loader:
            with runtime.recover() if regroup else nullcontext():
                time.sleep(ROUND_S)
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            runtime.step()
            ended(runtime.round, runtime.ranks, runtime.rank)
            if runtime.round % saves == 0 and not regroup:
                states = {name: owner.state_dict() for name, owner in kept.items()}
                if runtime.rank == 0:
                    torch.save(states, "draft.pt")
                    os.replace("draft.pt", path)
    os._exit(0)


def with_torchft(rank: int) -> None:
    """One replica of torchft's."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    import torchft

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    net, inner = make()

    def load(state: Any) -> None:
        net.load_state_dict(state["net"])
        inner.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=2,
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica-{rank}",
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=10),
    )
    model, optimizer = torchft.DistributedDataParallel(manager, net), torchft.Optimizer(manager, inner)
    while manager.current_step() < ROUNDS:
        x, y = torch.randn(BATCH // RANKS, 32), torch.randint(10, (BATCH // RANKS,))
        optimizer.zero_grad()
        time.sleep(ROUND_S)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ended(manager.current_step(), manager.num_participants(), rank)
    os._exit(0)


def measured(way: str, folder: Path, given: argparse.Namespace) -> str:
    """A row of the table: run one way to its end."""
    worker = [__file__, "--saves", str(given.saves), "--worker", way]
    paths = [str(given.regroup)] * (way == "regroup") + [str(Path(__file__).parents[3])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHFT_LIGHTHOUSE": "http://127.0.0.1:29717"}
    if way == "torchrun":
        options = [f"--nproc-per-node={RANKS}", "--max-restarts=1", "--standalone"]
        commands = [[sys.executable, "-m", "torch.distributed.run", *options, *worker]]
    elif way == "regroup":
        commands = [[sys.executable, "-m", "equipoise.live.group.launch", "--ranks", str(RANKS), *worker]]
    else:
        tool = Path(given.torchft).parent / "torchft_lighthouse"
        options = ["--min_replicas=2", "--join_timeout_ms=1000", "--quorum_tick_ms=100", "--bind=127.0.0.1:29717"]
        commands = [[given.torchft, *worker, "--rank", str(rank)] for rank in range(RANKS)]
        commands.append([str(tool), *options])
    with (folder / "output").open("w") as output:
        running = [subprocess.Popen(c, cwd=folder, env=environment, stdout=output, stderr=output) for c in commands]
        try:
            running[0].wait(ENDS_S)
        finally:
            for process in running:
                process.terminate()
    rows = [tuple(map(float, line.split())) for path in folder.glob("log-*") for line in path.open()]
    killed_s = float((folder / "killed").read_text())
    after = sorted(row for row in rows if row[0] > killed_s + ROUND_S / 2)
    again = min(row[0] for row in after if row[1] > KILLED_AFTER)
    first = after[0]
    redone = max(0, KILLED_AFTER - int(first[1]) + 1)
    return f"| {way} | {first[0] - killed_s:.1f} s, on {int(first[2])} ranks | {again - killed_s:.1f} s | {redone} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchft", help="an interpreter that imports torchft")
    parser.add_argument("--regroup", type=Path, help="a tree that has the launcher")
    parser.add_argument("--saves", type=int, default=20, help="rounds between checkpoints")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker == "torchft":
        with_torchft(given.rank)
    elif given.worker:
        with_adapter(given.worker, given.saves)
    else:
        print("| | first round after the death | back where it died | rounds trained again |\n|---|---|---|---|")
        ways = ["torchrun", *(["torchft"] if given.torchft else []), *(["regroup"] if given.regroup else [])]
        for way in ways * given.times:
            with tempfile.TemporaryDirectory() as folder:
                print(measured(way, Path(folder), given), flush=True)
        print(f"load {os.getloadavg()[0]:.0f}")


if __name__ == "__main__":
    main()
