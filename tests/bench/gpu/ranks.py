"""Two ranks on one GPU, the second on a smaller part of it: equal work, and stages that decide.

Each rank is a process on its own multiprocessors by MPS; they exchange over gloo, since NCCL refuses two ranks on
one GPU. A convolutional net: few parameters, much to compute. FOLDER receives the record of each run with a policy.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from equipoise.calibrate.measure.measure import MeasureMissingError
from equipoise.study.twin.record import read_run, the_run_in
from equipoise.study.twin.twin import twin

ROOT = Path(__file__).resolve().parents[3]
PERCENTAGES = (60, 40)
DECIDE_EVERY, REACTION = 6, 30  # rounds; so many at the beginning do not count
# (channels, layers, width of an image, images of a rank and round, rounds)
SIZES = {"cuda": (192, 8, 64, 96, 150), "cpu": (8, 2, 8, 12, 60)}


def network(device: str) -> Any:
    """Convolutions at full resolution, and a mean."""
    import torch
    from torch import nn

    channels, layers, *_ = SIZES[device]
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(layers):
        parts += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).to(device)


def train(policy: str, device: str, folder: Path) -> dict[str, Any]:
    """One run of this rank; seconds of every round, and the samples that this rank had in it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    from equipoise.live.attach import attach

    _, _, wide, each, rounds = SIZES[device]
    batch = each * dist.get_world_size()
    model = DistributedDataParallel(network(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = torch.randn(4 * batch, 3, wide, wide, device=device)
    labels = torch.randint(0, 10, (4 * batch,), device=device)
    ids = TensorDataset(torch.arange(batch * rounds))
    runtime = None
    if policy == "plain":
        loader = DataLoader(ids, each, sampler=DistributedSampler(ids, shuffle=False))
    else:
        mps = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in os.environ
        runtime = attach(
            model,
            optimizer,
            policy,
            global_batch=batch,
            decide_every=DECIDE_EVERY,
            shuffle=False,
            drift=0.02,
            warm_up_budget_s=600.0,
            decision_budget_s=5.0,
            samples_target=len(ids),
            share_backend="mps" if mps else "none",
            run_dir=str(folder),
        )
        loader = DataLoader(ids, batch_sampler=runtime.sampler(ids))
    times: list[float] = []
    samples: list[int] = []
    intervals: list[int] = []
    dist.barrier()
    for (number,) in loader:
        began = time.perf_counter()
        chosen = number.to(device) % len(images)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        intervals.append(1 if runtime is None else int(runtime.interval))
        if runtime is not None:
            runtime.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        samples.append(len(number))
    if runtime is not None:
        runtime.close()
    return {"policy": policy, "times_s": times, "samples": samples, "intervals": intervals, "batch": batch}


def rank(runs: Sequence[str], device: str, out: Path) -> None:
    """All runs one after another in this rank; its results are its last line."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train("plain", device, out)  # loads libraries and sets up connections: does not count
    found = [train(policy, device, out / f"{k}-{policy.replace('+', '')}") for k, policy in enumerate(runs)]
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)


def measure(
    environment: Mapping[str, str], runs: Sequence[str], device: str, out: Path, timeout_s: float
) -> dict[str, Any]:
    """Both ranks; their results by rank. Raises MissingError, one line, when one fails or time is up."""
    deadline = time.monotonic() + timeout_s
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ExitStack() as stack:
        command = [sys.executable, "-m", "tests.bench.gpu.ranks", "--device", device]
        command += ["--out", str(out), "--runs", ",".join(runs)]
        started = []
        for k, percentage in enumerate(PERCENTAGES):
            own = {
                **environment,
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage),
                "RANK": str(k),
                "WORLD_SIZE": str(len(PERCENTAGES)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "PYTHONWARNINGS": "ignore",
            }
            said, errors = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            process = subprocess.Popen(command, env=own, cwd=ROOT, stdout=said, stderr=errors, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append((process, said, errors))
        return {"percentages": PERCENTAGES, "ranks": [_result(*each, deadline) for each in started]}


def _result(process: subprocess.Popen[str], said: IO[str], errors: IO[str], deadline: float) -> Any:
    try:
        process.wait(timeout=max(deadline - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        raise MeasureMissingError("time is up: two ranks on one GPU") from None
    said.seek(0)
    errors.seek(0)
    if process.returncode != 0:
        lines = errors.read().strip().splitlines() or ["no message"]
        raise MeasureMissingError(f"a rank ended: {lines[-1]}")
    return json.loads(said.read().splitlines()[-1])


def throughput(run: Mapping[str, Any]) -> float:
    """Samples per second once a policy has had time to adapt."""
    times = run["times_s"][REACTION:]
    return float(run["batch"] * len(times) / sum(times))


def twin_of(folder: Path) -> tuple[str, float, int, int, bool]:
    """(policy, median relative error of step times, first decisions alike, decisions, replayed) of a recorded run.

    Raises InputError for a record that has no twin.
    """
    found = twin(read_run(the_run_in(folder)))
    replayed = not found.replay_differences
    policy = str(found.run.manifest["policy"])
    return policy, found.step_error_median, found.decisions_identical, len(found.windows), replayed


def main(arguments: list[str] | None = None) -> None:
    """One rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", default="plain,s1+s2,plain,s1+s2+s3")
    given = parser.parse_args(arguments)
    rank(given.runs.split(","), given.device, given.out)


if __name__ == "__main__":
    main()
