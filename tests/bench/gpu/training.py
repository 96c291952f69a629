"""Workers of the GPU validation, each a process of its own; prints one JSON object.

    python -m tests.bench.gpu.training step --device cuda --seconds 3
    python -m tests.bench.gpu.training adapter --device cuda --seconds 8

`step` times training steps alone or beside others (MPS limits the process from outside); `--wait-for FILE`
begins when the file appears, so that two begin together. `adapter` compares plain data-parallel training with
the same under a policy, in paired blocks that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LAYERS = 6
# (width, batch): on a GPU a step must be far longer than the host takes to queue it.
SIZES = {
    ("step", "cuda"): (2048, 4096),
    ("adapter", "cuda"): (8192, 1024),
    ("step", "cpu"): (64, 16),
    ("adapter", "cpu"): (64, 16),
}
BLOCK_STEPS = {"cuda": 10, "cpu": 4}
BATCHES_HELD = 8


def network(device: str, wide: int) -> Any:
    """A perceptron whose step is long enough to be timed."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if device == "cpu":
        torch.set_num_threads(1)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(wide, wide), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(wide, 10)).to(device)


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def stepper(model: Any, optimizer: Any, device: str) -> Callable[[Any, Any], None]:
    """One training step on a batch."""
    import torch

    def step(x: Any, y: Any) -> None:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def batch_of(device: str, wide: int, batch: int) -> tuple[Any, Any]:
    """Inputs and labels."""
    import torch

    return torch.randn(batch, wide, device=device), torch.randint(0, 10, (batch,), device=device)


def time_steps(device: str, seconds: float, wait_for: str | None) -> dict[str, Any]:
    """Seconds of every step for about `seconds`, after warm-up and, if asked, after a file appeared."""
    import torch

    wide, batch = SIZES["step", device]
    model = network(device, wide)
    step = stepper(model, torch.optim.AdamW(model.parameters()), device)
    x, y = batch_of(device, wide, batch)
    for _ in range(5):
        step(x, y)
    _wait(device)
    if wait_for:
        print("ready", flush=True)
        deadline = time.monotonic() + 60.0
        while not Path(wait_for).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{wait_for} did not appear")
            time.sleep(0.002)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step(x, y)
        _wait(device)
        times.append(time.perf_counter() - start)
    return {"steps_s": times}


def time_adapter(device: str, seconds: float) -> dict[str, Any]:
    """Seconds a step of paired blocks: [plain, attached], one rank."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/meeting", rank=0, world_size=1)
        try:
            return _adapter(device, seconds, folder)
        finally:
            dist.destroy_process_group()


def _adapter(device: str, seconds: float, folder: str) -> dict[str, Any]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    wide, batch = SIZES["adapter", device]
    models = [DistributedDataParallel(network(device, wide)) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in models]
    steps = [stepper(m, o, device) for m, o in zip(models, optimizers, strict=True)]
    runtime = attach(
        models[1],
        optimizers[1],
        policy="s1+s2",
        global_batch=batch,
        statistics_every=10,
        shuffle=False,  # as the plain one reads, so that only the adapter differs
        run_dir=folder,
    )
    x, y = batch_of("cpu", wide, BATCHES_HELD * batch)
    data = torch.utils.data.TensorDataset(x, y)
    loaders = (
        torch.utils.data.DataLoader(data, batch_size=batch),
        torch.utils.data.DataLoader(data, batch_sampler=runtime.sampler(data)),
    )
    streams = [_forever(loader) for loader in loaders]

    def block(k: int) -> float:
        began = time.perf_counter()
        for _ in range(BLOCK_STEPS[device]):
            x, y = next(streams[k])
            steps[k](x.to(device), y.to(device))
            if k:
                runtime.step()
        _wait(device)
        return (time.perf_counter() - began) / BLOCK_STEPS[device]

    for k in (0, 1):
        block(k)
    pairs: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < 4:
        order = (0, 1) if len(pairs) % 2 == 0 else (1, 0)
        times = {k: block(k) for k in order}
        pairs.append([times[0], times[1]])
    runtime.close()
    return {"pairs_s": pairs, "overhead": statistics.median(b / a - 1.0 for a, b in pairs)}


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def main(arguments: list[str] | None = None) -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["step", "adapter"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--wait-for")
    given = parser.parse_args(arguments)
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit("PyTorch shows no CUDA device")
    if given.what == "step":
        found = time_steps(given.device, given.seconds, given.wait_for)
    else:
        found = time_adapter(given.device, given.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
