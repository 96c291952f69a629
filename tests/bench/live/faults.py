"""Seeded faults: ranks are killed, stopped, slow, or raise, and all are started again as torchrun does.

    python -m tests.bench.live.faults [--seeds 0:200] [--torchrun]

Each seed draws ranks (another number after a restart), samples, batch, checkpoint interval, loader processes, local
steps, faults; `--torchrun` has torchrun itself start them, always the same number. A run is good when no start waits
for ever, the samples of every epoch are trained on once along the history of the checkpoints, replicas are equal, and
(without local steps) the weights are those of one process.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation
from tests.live import ranks as live_ranks

KINDS = ("kill", "raise", "stop", "slow", "exit")
PHASES = ("batch", "forward", "backward", "optimizer", "step", "save", "saved")
EPOCHS, ENDS_S = 2, 120.0


@dataclasses.dataclass(frozen=True)
class Faulty(Stage):
    """Random shares and intervals; now and then it raises, or returns nonsense."""

    name: ClassVar[str] = "faulty"
    kind: ClassVar[Kind] = "tasks"
    seed: int = 0
    local: bool = False

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        rng = np.random.default_rng((self.seed, int(observation.jobs.remaining_samples[0])))
        if rng.random() < 0.1:
            raise RuntimeError("a faulty policy")
        shares = observation.workers.samples_per_step
        parts = rng.multinomial(int(shares.sum()), rng.dirichlet(np.ones(len(shares))))
        plan = plan.with_(samples_per_step=parts)
        return (plan.with_(sync_interval=np.array([rng.integers(1, 4)])) if self.local else plan), memory


@dataclasses.dataclass(frozen=True)
class Case:
    """What a seed stands for."""

    seed: int
    ranks: tuple[int, ...]  # of every start
    samples: int
    batch: int
    saves: int  # rounds between checkpoints
    workers: int
    local: bool
    faults: tuple[tuple[str, str, int, int], ...]  # (kind, phase, rank, rounds of this start), one a start but the last

    @classmethod
    def of(cls, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        starts, samples = int(rng.integers(1, 4)), int(rng.integers(40, 160))
        ranks = tuple(int(n) for n in rng.integers(2, 5, starts + 1))
        faults = tuple(
            (KINDS[rng.integers(len(KINDS))], PHASES[rng.integers(len(PHASES))], int(rng.integers(ranks[k])), int(at))
            for k, at in enumerate(rng.integers(0, 12, starts))
        )
        batch, saves = int(rng.integers(8, 20)), int(rng.integers(1, 6))
        return cls(seed, ranks, samples, batch, saves, int(rng.integers(0, 2)), bool(rng.random() < 0.3), faults)


def make() -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def data(samples: int) -> Any:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.utils.data.TensorDataset(torch.arange(samples), x)


def train(rank: int, case: Case, start: int, folder: str) -> tuple[list[list[int]], list[Any]]:
    """(samples of every round, weights) of a start that reaches the end."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    from equipoise.live.attach import attach

    fault = case.faults[start] if start < len(case.faults) else None
    done = 0

    def at(phase: str) -> None:
        if fault is None or fault[1:] != (phase, rank, done):
            return
        match fault[0]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "raise":
                raise RuntimeError("a faulty script")
            case "stop":
                pid = os.getpid()
                if os.fork() == 0:  # somebody else lets it go on
                    time.sleep(1.0)
                    os.kill(pid, signal.SIGCONT)
                    os._exit(0)
                os.kill(pid, signal.SIGSTOP)
            case "slow":
                time.sleep(1.0)

    torch.distributed.init_process_group("gloo")
    net, optimizer = make()
    model = DistributedDataParallel(net)
    policy = Policy("faulty", (Faulty(case.seed, case.local),))
    drift = {"drift": "measured"} if case.local else {}
    options = {"global_batch": case.batch, "decide_every": 2, "decision_budget_s": 5.0, "seed": case.seed, **drift}
    runtime = attach(model, optimizer, policy, nvml=False, **options)
    samples, path, log = data(case.samples), Path(folder) / "checkpoint.pt", list[list[int]]()
    loader = DataLoader(samples, batch_sampler=runtime.sampler(samples), num_workers=case.workers)
    if path.exists():
        saved = torch.load(path)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        runtime.load_state_dict(saved["runtime"])
        log = saved["log"]
    for _ in runtime.epochs(EPOCHS):
        for numbers, x in loader:
            at("batch")
            loss = model(x).square().mean()
            at("forward")
            loss.backward()
            at("backward")
            optimizer.step()
            optimizer.zero_grad()
            at("optimizer")
            mine = numbers.tolist() if runtime.shares[rank] else []  # else a stand-in, without weight
            runtime.step()
            parts: list[Any] = [None] * runtime.ranks
            torch.distributed.all_gather_object(parts, mine)
            log.append([number for part in parts for number in part])
            at("step")
            done += 1
            if done % case.saves == 0:
                state = {"runtime": runtime.state_dict(), "net": net.state_dict(), "optimizer": optimizer.state_dict()}
                at("save")
                if rank == 0:
                    torch.save(state | {"log": log}, f"{path}.draft")
                    os.replace(f"{path}.draft", path)
                at("saved")
    runtime.state_dict()  # replicas meet
    runtime.close()
    return log, [p.detach() for p in net.parameters()]


def outcome(case: Case) -> str:
    """Empty, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for start, ranks in enumerate(case.ranks):
            job = live_ranks.Ranks(train, ranks, case, start, folder)
            until = time.monotonic() + ENDS_S
            while any(p.exitcode is None for p in job.processes) and not any(p.exitcode for p in job.processes):
                if time.monotonic() > until:
                    [p.kill() for p in job.processes]
                    return f"start {start} hangs"
                time.sleep(0.02)
            if not any(p.exitcode for p in job.processes):
                return judged(case, job.join())
            if start == len(case.faults):
                return f"the last start fails: {job_error(job)}"
            for process in job.processes:  # as torchrun does
                process.kill()
                process.join()
    return "no start ended"


def under_torchrun(case: Case) -> str:
    """See `outcome`."""
    with tempfile.TemporaryDirectory() as folder:
        run = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(min(case.ranks)),
            "--max-restarts",
        ]
        script = [
            str(len(case.faults)),
            "--standalone",
            "-m",
            "tests.bench.live.faults",
            "--rank",
            str(case.seed),
            folder,
        ]
        environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run([*run, *script], env=environment, capture_output=True, text=True, timeout=4 * ENDS_S)
        except subprocess.TimeoutExpired:
            return "hangs"
        if done.returncode:
            return f"fails: {done.stderr.strip().splitlines()[-1]}"
        return judged(case, [torch.load(f"{folder}/{rank}") for rank in range(min(case.ranks))])


def one_rank(case: Case, folder: str) -> None:
    """A process that torchrun started."""
    rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.save(train(rank, case, start, folder), f"{folder}/{rank}")


def job_error(job: Any) -> str:
    try:
        job.join(timeout_s=5.0)
    except AssertionError as error:
        return str(error).strip().splitlines()[-1]
    return ""


def judged(case: Case, results: list[Any]) -> str:
    """Empty, or what is wrong with the end of a run."""
    (log, weights), *others = results
    seen = collections.Counter(number for batch in log for number in batch)
    if seen != collections.Counter(list(range(case.samples)) * EPOCHS):
        return f"{len(seen)} of {case.samples} samples, {sum(seen.values())} times in all"
    if any(not torch.equal(a, b) for other in others for a, b in zip(weights, other[1], strict=True)):
        return "replicas differ"
    if case.local:
        return ""
    net, optimizer = make()
    samples = data(case.samples)
    for batch in log:
        net(samples[batch][1]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    off = max(float((a - b.detach()).abs().max()) for a, b in zip(weights, net.parameters(), strict=True))
    return "" if off < 1e-12 else f"weights {off:.0e} off"


def main() -> int:
    """Run the seeds; 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0:200")
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        one_rank(Case.of(int(given.rank[0])), given.rank[1])
        return 0
    first, end = map(int, given.seeds.split(":"))
    wrong, kinds = 0, collections.Counter[str]()
    for seed in range(first, end):
        case = Case.of(seed)
        kinds.update(kind for kind, *_ in case.faults)
        if problem := under_torchrun(case) if given.torchrun else outcome(case):
            wrong += 1
            print(f"{case}: {problem}", flush=True)
    print(f"{end - first} runs, {sum(kinds.values())} faults ({dict(kinds)}): {wrong} went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
