"""Workers of the GPU validation, each a process of its own.

    python -m tests.bench.gpu.training serve --kind products
    python -m tests.bench.gpu.training adapter --seconds 8

`serve` prepares a training, prints "ready", then trains for as many seconds as each line of its input says and
answers with the seconds of every step, as JSON; MPS limits the process from outside. `adapter` compares plain
data-parallel training with the same under a policy, in paired blocks that take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

LAYERS = 6
# (width, batch): on a GPU a step must be far longer than the host takes to queue it. Small batches of a wide
# perceptron are limited by memory: by its weights, and by the update.
SIZES = {
    ("products", "cuda"): (4096, 8192),
    ("memory", "cuda"): (8192, 64),
    ("adapter", "cuda"): (8192, 1024),
    ("products", "cpu"): (64, 256),
    ("memory", "cpu"): (128, 4),
    ("adapter", "cpu"): (64, 16),
}
KINDS = ("products", "memory")
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
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def batch_of(device: str, wide: int, batch: int) -> tuple[Any, Any]:
    """Inputs and labels."""
    import torch

    return torch.randn(batch, wide, device=device), torch.randint(0, 10, (batch,), device=device)


def serve(kind: str, device: str) -> None:
    """Train for as long as each line of the input says, a line of JSON for each; no line ends it."""
    import torch

    wide, batch = SIZES[kind, device]
    model = network(device, wide)
    step = stepper(model, torch.optim.AdamW(model.parameters(), fused=device == "cuda"), device)
    x, y = batch_of(device, wide, batch)
    for _ in range(5):
        step(x, y)
    _wait(device)
    print("ready", flush=True)
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            step(x, y)
            _wait(device)
            times.append(time.perf_counter() - start)
        print(json.dumps({"steps_s": times}), flush=True)


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
    parser.add_argument("what", choices=["serve", "adapter"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    given = parser.parse_args(arguments)
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit("PyTorch shows no CUDA device")
    if given.what == "serve":
        serve(given.kind, given.device)
    else:
        print(json.dumps(time_adapter(given.device, given.seconds)))


if __name__ == "__main__":
    main()
