"""Workers of the GPU validation, each a process of its own.

    python -m tests.bench.gpu.training serve --kind products
    python -m tests.bench.gpu.training adapter --seconds 8

`serve` prepares a training, prints "ready", then trains for as many seconds as each line of its input says and
answers with the seconds of every step, as JSON; MPS limits the process from outside. `adapter` compares plain
data-parallel training of three transformers, two bound by the host and one by the GPU, with the same under s1+s2+s3
in each mode, in blocks that take turns.
"""

from __future__ import annotations

import argparse
import json
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
    ("products", "cpu"): (64, 256),
    ("memory", "cpu"): (128, 4),
}
KINDS = ("products", "memory")
# Blocks, width, batch, length, by the time of a step that a GPU of 2023 takes; on a CPU for trials.
CASES = {
    "cuda": {"host 25 ms": (8, 512, 8, 256), "host 40 ms": (12, 1024, 16, 512), "GPU 150 ms": (12, 2048, 16, 1024)},
    "cpu": {"tiny": (1, 16, 4, 4)},
}
MODES = ("plain", "observe", "advise", "act")
BLOCK_STEPS = {"cuda": 20, "cpu": 4}
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
    """Seconds a step of blocks that take turns, by case and mode, one rank; `seconds` for each case."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/meeting", rank=0, world_size=1)
        try:
            return {name: _adapter(device, case, seconds, folder) for name, case in CASES[device].items()}
        finally:
            dist.destroy_process_group()


def _adapter(device: str, case: tuple[int, int, int, int], seconds: float, folder: str) -> dict[str, list[float]]:
    import torch
    from torch import nn

    from equipoise.live.attach import attach

    blocks, wide, batch, length = case
    x, y = torch.randn(BATCHES_HELD * batch, length, wide, device=device), torch.arange(batch, device=device) % 10

    def attached(mode: str) -> Callable[[], float]:
        """What trains one block and returns the seconds of a step."""
        torch.manual_seed(0)
        with torch.device(device):  # built on the host, a model takes longer than its blocks
            layers = [nn.TransformerEncoderLayer(wide, 8, 4 * wide, 0.0, batch_first=True) for _ in range(blocks)]
            net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(length * wide, 10))
        model = nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        step = stepper(model, optimizer, device)
        if mode == "plain":
            batches, end = torch.utils.data.BatchSampler(range(len(x)), batch, True), lambda: None
        else:
            runtime = attach(model, optimizer, "s1+s2+s3", mode=mode, global_batch=batch, run_dir=f"{folder}/{mode}")
            batches, end = runtime.sampler(len(x)), runtime.step
        chosen = _forever(batches)

        def block() -> float:
            began = time.perf_counter()
            for _ in range(BLOCK_STEPS[device]):
                step(x[torch.as_tensor(next(chosen), device=device)], y)
                end()
            _wait(device)
            return (time.perf_counter() - began) / BLOCK_STEPS[device]

        return block

    block_of = {mode: attached(mode) for mode in MODES}
    for _ in range(2):
        for mode in MODES:
            block_of[mode]()
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found["plain"]) < 4:
        first = len(found["plain"]) % len(MODES)
        for mode in (*MODES[first:], *MODES[:first]):
            found[mode].append(block_of[mode]())
    return found


def _forever(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


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
