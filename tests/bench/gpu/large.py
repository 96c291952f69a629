"""Steps and peak memory of large transformers on one GPU; prints one JSON object.

    python -m tests.bench.gpu.large --seconds 80 --shapes 1.3B

By batch and sequence, with all activations kept and recomputed (Chen et al. 2016), as it is written and through
torch.compile (each block; embedding, loss and update as they are). Parameters and moments in 32 bits, products in
bf16 by autocast, the update fused. Predictions are made elsewhere: this only measures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder in the style of GPT-2 (Radford et al. 2019), its embeddings tied."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    positions: int


SHAPES = {
    "1.3B": Shape(24, 2048, 16, 50304, 4096),
    "350M": Shape(24, 1024, 16, 50304, 2048),
    "2.7B": Shape(32, 2560, 32, 50304, 2048),
    "tiny": Shape(2, 64, 2, 256, 64),
}


@dataclass(frozen=True)
class Case:
    """One step to be timed."""

    batch: int
    sequence: int
    recompute: bool = False
    compiled: bool = False


CASES = {
    "1.3B": (
        *(Case(b, 2048) for b in (4, 1, 2, 8)),
        *(Case(b, s) for b, s in ((4, 1024), (1, 1024), (16, 1024), (2, 4096), (4, 4096))),
        *(Case(b, 2048, recompute=True) for b in (4, 1, 8, 16)),
        Case(4, 4096, recompute=True),
        *(Case(b, 2048, compiled=True) for b in (4, 8)),
        Case(4, 2048, recompute=True, compiled=True),
    ),
    "350M": (
        Case(8, 2048),
        Case(16, 1024),
        Case(8, 2048, recompute=True),
        Case(8, 2048, compiled=True),
        Case(16, 2048),
    ),
    "2.7B": (Case(4, 2048), Case(2, 2048), Case(4, 2048, recompute=True), Case(4, 2048, compiled=True), Case(4, 1024)),
    "tiny": (Case(1, 32), Case(2, 64, recompute=True), Case(2, 64, compiled=True), Case(2, 64, True, True)),
}
"""The most telling first: what no time is left for is left out."""
WARM_UP, LEAST_STEPS, MOST_STEPS = 2, 4, 12
STEPS_S = 1.2  # of timed steps in one case


def model_of(shape: Shape, device: str) -> Any:
    """The decoder; `recompute` and `blocks` say how a step is done."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):  # type: ignore[misc] # PyTorch's types are not read
        """Attention and feed-forward, each behind a norm."""

        def __init__(self) -> None:
            super().__init__()
            wide = shape.hidden
            self.before_attention, self.before_forward = nn.LayerNorm(wide), nn.LayerNorm(wide)
            self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
            self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

        def forward(self, x: Any) -> Any:
            """Shape (batch, sequence, hidden)."""
            batch, length, wide = x.shape
            parts = self.qkv(self.before_attention(x)).view(batch, length, 3, shape.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, length, wide))
            inner = functional.gelu(self.up(self.before_forward(x)), approximate="tanh")
            return x + self.down(inner)

    class Decoder(nn.Module):  # type: ignore[misc]
        """Tokens to the mean loss of the next ones."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.hidden)
            self.places = nn.Embedding(shape.positions, shape.hidden)
            self.layers = nn.ModuleList(Block() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.hidden)
            self.recompute = False
            self.blocks: list[Callable[[Any], Any]] = list(self.layers)
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, tokens: Any, targets: Any) -> Any:
            """The loss."""
            x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    with torch.device(device):
        return Decoder()


class Bench:
    """One model and its optimiser, stepped in every case in turn."""

    def __init__(self, device: str, shape: Shape) -> None:
        import torch

        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.device, self.shape = device, shape
        self.model = model_of(self.shape, device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device == "cuda")
        self.plain = list(self.model.layers)
        self.compiled: list[Any] | None = None

    def _blocks(self, compiled: bool) -> list[Any]:
        import torch

        if not compiled:
            return self.plain
        if self.compiled is None:
            self.compiled = [torch.compile(block, dynamic=False) for block in self.plain]
        return self.compiled

    def step(self, case: Case) -> Callable[[], None]:
        """A function that does one training step of a case and waits for its end."""
        import torch

        self.model.recompute, self.model.blocks = case.recompute, self._blocks(case.compiled)
        size = (2, case.batch, case.sequence)
        tokens, targets = torch.randint(0, self.shape.vocab, size, device=self.device)

        def step() -> None:
            """Forward, backward, update."""
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.model(tokens, targets)
            loss.backward()
            self.optimizer.step()
            self.wait()

        return step

    def wait(self) -> None:
        """Until the device has done what is queued."""
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()

    def measure(self, case: Case) -> dict[str, Any]:
        """Seconds of every step and peak bytes of one case."""
        import torch

        began = time.perf_counter()
        step = self.step(case)
        cuda = self.device == "cuda"
        if cuda:
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(WARM_UP):
            step()
        ready_s = time.perf_counter() - began
        times: list[float] = []
        end = time.perf_counter() + STEPS_S
        while len(times) < LEAST_STEPS or (time.perf_counter() < end and len(times) < MOST_STEPS):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        found: dict[str, Any] = {**asdict(case), "steps_s": times, "ready_s": ready_s}
        if cuda:
            free, total = torch.cuda.mem_get_info()
            found |= {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "device_bytes": total - free,
            }
        return found


def measure(device: str, name: str, deadline: float) -> dict[str, Any]:
    """All cases of one shape for which there is time; one that does not fit into memory says so."""
    import torch

    bench, found, left_out = Bench(device, SHAPES[name]), [], []
    for case in CASES[name]:
        if time.monotonic() > deadline:
            left_out.append(asdict(case))
            continue
        try:
            result = bench.measure(case)
        except torch.OutOfMemoryError as error:
            result = {**asdict(case), "out_of_memory": str(error).splitlines()[0]}
        found.append(result)
        shown = f"{statistics.median(result['steps_s']):.4f} s" if "steps_s" in result else "out of memory"
        print(f"{name} {case}: {shown}", file=sys.stderr, flush=True)
    parameters = sum(p.numel() for p in bench.model.parameters())
    return {"name": name, "shape": asdict(bench.shape), "parameters": parameters, "cases": found, "left_out": left_out}


def main(arguments: list[str] | None = None) -> None:
    """Run the worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=80.0, help="no case is begun after so many")
    parser.add_argument("--shapes", default="1.3B", help=f"some of {','.join(SHAPES)}")
    given = parser.parse_args(arguments)
    if given.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit("PyTorch shows no CUDA device")
    deadline = time.monotonic() + given.seconds
    print(json.dumps([measure(given.device, name, deadline) for name in given.shapes.split(",")]))


if __name__ == "__main__":
    main()
