"""What one look at a queue of 10,000 waiting jobs costs: read, decide, apply changes only, in processor time.

    python -m tests.bench.queue_10000

`squeue` and `sinfo` are made files that `cat` prints, 128 nodes of 8 GPUs, all taken; `scontrol` reads and says
nothing. Counted is the time of this process and of the commands, kernels compiled before; the journal is written.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from equipoise.live.queue.loop import Scheduler
from equipoise.live.queue.options import QueueOptions
from equipoise.live.queue.record import Record
from equipoise.live.queue.slurm import Slurm
from equipoise.policies.registry import make_policy

WAITING, NODES = 10_000, 128
NOW_S = 1_795_360_000


def _line(number: int, state: str, gpus: int, submit_s: int, minutes: int, node: str) -> str:
    start = str(submit_s + 5) if node else "N/A"
    why = "None" if node else "Priority"
    return (
        f"{number}|{state}|{4294901760 - number}|0|cpu=1,mem=20000M,node=1,billing=1|gres:gpu:{gpus}|N/A|N/A|1|1|"
        f"{submit_s}|{submit_s}|{start}|NONE|{minutes // 60}:{minutes % 60:02}:00|{why}|{node}|"
        f"user{number % 50}|1|N/A|train-{number}\n"
    )


def made_queue(waiting: int) -> str:
    """`squeue` with two jobs of four GPUs on each node, and so many that wait."""
    random = np.random.default_rng(1)
    running = [
        _line(k + 1, "RUNNING", 4, NOW_S - int(random.integers(3600)), int(random.integers(61, 600)), f"n{k // 2}")
        for k in range(2 * NODES)
    ]
    first = len(running) + 1
    gpus, minutes = random.choice([1, 2, 4, 8], waiting), random.integers(1, 2880, waiting)
    queue = [
        _line(first + k, "PENDING", int(gpus[k]), NOW_S - waiting + k, int(minutes[k]), "") for k in range(waiting)
    ]
    return "".join([*running, *queue])


def cpu_s() -> float:
    """Processor time (s) of this process and of those that it waited for."""
    return sum(os.times()[:4])


def measure(policy: str, folder: Path) -> dict[str, float]:
    """Processor seconds of a first look, of one at which 20 more have come, and of one without news."""
    record = Record(folder / policy)
    scheduler = Scheduler(Slurm("main"), make_policy(policy), QueueOptions(mode="act", changes_per_s=1e9), record)
    problem = scheduler.warm_up()
    assert problem is None, problem
    found = {}
    for name, waiting in (("first", WAITING), ("20 more", WAITING + 20), ("no news", WAITING + 20)):
        (folder / "squeue.txt").write_text(made_queue(waiting))
        before_s = cpu_s()
        scheduler.step()
        found[name] = cpu_s() - before_s
    record.close()
    events = (folder / policy / "events.jsonl").read_text()
    assert '"lost"' not in events
    assert '"failed"' not in events
    assert scheduler.decisions == 2
    found["changes"] = float(events.count('"did"'))
    found["journal_bytes"] = float((folder / policy / "decisions.jsonl").stat().st_size / 2)
    return found


def main() -> None:
    """Print a line for each policy."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nodes = "".join(f"n{k}|allocated|gpu:8|gpu:8|512000|64|\n" for k in range(NODES))
        (folder / "sinfo.txt").write_text(nodes)
        commands = {
            "squeue": f"cat {folder}/squeue.txt",
            "sinfo": f"cat {folder}/sinfo.txt",
            "scontrol": "cat > /dev/null",
        }
        for command, script in commands.items():
            (folder / command).write_text(f"#!/bin/sh\n{script}\n")
            (folder / command).chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        for policy in ("fifo", "sjf", "easy", "las", "s4"):
            found = measure(policy, folder)
            looks = ", ".join(f"{look} {found[look]:.2f} s" for look in ("first", "20 more", "no news"))
            changes, size = int(found["changes"]), found["journal_bytes"] / 1e6
            print(f"{policy}: {looks} CPU; {changes} changes, {size:.1f} MB of journal a decision", flush=True)


if __name__ == "__main__":
    main()
