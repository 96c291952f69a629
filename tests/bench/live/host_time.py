"""Host time that the adapter adds to a step, by part: python tests/bench/live/host_time.py [--steps 800]

Two gloo ranks train tiny layers on the CPU; the adapter's clock is that of a GPU with events of the host, so its path
for GPUs runs. Times are processor time of the training thread: waits and other work on the machine do not count. The
first steps, in which every window asks the policy, are left out. Processor time still grows with other work on the
machine (shared caches, hyperthreads), so the quarter of the blocks with the least of it counts.
A part is timed where the adapter is entered; `whole` is a step with the adapter less one without it (medians).
"""

from __future__ import annotations

import argparse
import collections
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.live import ranks as live_ranks

BLOCK, FIRST = 50, 3  # steps; blocks that are not counted
LIMITS_MS = {"observe": 0.15, "act": 0.4}
PER_TENSOR_MS = 0.02


class Event:
    """Stands for an event of CUDA: recording takes what it takes there (4 us of the host)."""

    made = recorded = waited = 0

    def __init__(self, enable_timing: bool = True) -> None:
        Event.made += 1
        self.at_s = 0.0

    def record(self) -> None:
        """Read the host's clock."""
        Event.recorded += 1
        until = time.perf_counter() + 4e-6
        while (now := time.perf_counter()) < until:
            pass
        self.at_s = now

    def query(self) -> bool:
        """It is always there."""
        return True

    def synchronize(self) -> None:
        """Somebody waits for the device."""
        Event.waited += 1

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds between two."""
        return 1e3 * (other.at_s - self.at_s)


def timed(owner: Any, name: str, part: str, spent: dict[str, float], inner: str = "") -> None:
    """Add up the time that a function takes as `part`, less what is added to `inner` meanwhile."""
    if not hasattr(owner, name):
        return
    function = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        began, within = time.thread_time(), spent.get(inner, 0.0)
        spent[f"{part} calls"] += 1
        try:
            return function(*arguments, **named)
        finally:
            spent[part] += time.thread_time() - began - (spent.get(inner, 0.0) - within)

    setattr(owner, name, wrapper)


def wrapping_s() -> float:
    """What timing itself adds to one call."""
    spent: dict[str, float] = collections.defaultdict(float)

    class Empty:
        """Does nothing."""

        def call(self) -> None:
            """Nothing."""

    timed(Empty, "call", "nothing", spent)
    one = Empty()
    for _ in range(2000):
        one.call()
    return spent["nothing"] / 2000


def train(rank: int, tensors: int, mode: str, policy: str, steps: int) -> dict[str, float]:
    """One rank: blocks of steps with and without the adapter, in turn."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach
    from equipoise.live.stepping import Stepping
    from equipoise.live.train import gradients, rounds, timing
    from equipoise.live.train.sampler import ShareSampler

    torch.distributed.init_process_group("gloo")
    torch.cuda.Event = Event  # type: ignore[misc]
    rounds.make_timer = lambda device, *more: timing.CudaTimer(*more)  # type: ignore[attr-defined]
    spent: dict[str, float] = collections.defaultdict(float)
    for owner, name, part, inner in (
        (rounds.RoundMeter, "_before_forward", "forward", ""),
        (gradients.BackwardProbe, "_finish", "gradients", ""),
        (rounds.RoundMeter, "_gradient_ready", "gradients", ""),
        (Stepping, "_decide", "decisions", ""),
        (Stepping, "finish", "step", "decisions"),
        (Stepping, "begin", "step", ""),
        (ShareSampler, "_draw", "batches", ""),
    ):
        timed(owner, name, part, spent, inner)

    def make() -> tuple[Any, Any]:
        net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(tensors // 2)])
        model = DistributedDataParallel(net)
        return model, torch.optim.SGD(net.parameters(), lr=1e-3)

    plain, watched = make(), make()
    runtime = attach(*watched, policy, global_batch=32, mode=mode, warm_up_budget_s=600.0, decision_budget_s=5.0)
    batches = iter(runtime.sampler(64 * (steps + (FIRST + 1) * BLOCK)))
    x = torch.randn(64, 16)

    def step(pair: tuple[Any, Any], rows: int, end: Callable[[], None] = lambda: None) -> None:
        model, optimizer = pair
        model(x[:rows]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        end()

    took: dict[str, list[float]] = {"plain": [], "watched": []}
    blocks: list[dict[str, float]] = []
    for block in range(-FIRST, steps // BLOCK):
        spent.clear()
        if block == 0:
            Event.made = Event.recorded = Event.waited = 0
        for name in ("plain", "watched"):
            began = time.thread_time()
            for _ in range(BLOCK):
                if name == "plain":
                    step(plain, 16)
                else:
                    step(watched, len(next(batches)), runtime.step)
            if block >= 0:
                took[name].append((time.thread_time() - began) / BLOCK)
        blocks += [dict(spent)] * (block >= 0)
    done = BLOCK * len(took["watched"])
    whole = statistics.median(a - b for a, b in zip(took["watched"], took["plain"], strict=True))
    own_s = wrapping_s()
    parts = sorted({part for found in blocks for part in found if not part.endswith(" calls")})

    def each_ms(found: dict[str, float], part: str) -> float:
        return 1e3 * (found.get(part, 0.0) - own_s * found.get(f"{part} calls", 0.0)) / BLOCK

    blocks.sort(key=lambda found: sum(each_ms(found, part) for part in parts))
    least = blocks[: max(1, len(blocks) // 4)]
    result = {part: statistics.mean(each_ms(found, part) for found in least) for part in parts}
    result["of all blocks"] = statistics.mean(sum(each_ms(found, part) for part in parts) for found in blocks)
    result |= {"whole": 1e3 * whole, "plain step": 1e3 * statistics.median(took["plain"])}
    return result | {"events": Event.recorded / done, "events made": Event.made / done, "waits": Event.waited / done}


def main() -> int:
    """Measure and print; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--tensors", type=int, nargs="+", default=[20, 220])
    given = parser.parse_args()
    code, whole = 0, {}
    for mode, policy in (("observe", "none"), ("act", "s1+s2+s3")):
        for tensors in given.tensors:
            found = live_ranks.run(train, 2, tensors, mode, policy, given.steps)[0]
            parts = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
            print(f"{mode}, {tensors} tensors, ms a step: {parts}")
            whole[mode, tensors] = sum(
                found.get(p, 0.0) for p in ("forward", "gradients", "decisions", "step", "batches")
            )
            code |= whole[mode, tensors] > LIMITS_MS[mode]
        few, many = given.tensors[0], given.tensors[-1]
        each = (whole[mode, many] - whole[mode, few]) / max(1, many - few)
        print(f"{mode}: parts {whole[mode, many]:.3f} ms a step (at most {LIMITS_MS[mode]}), {each:.5f} ms a tensor")
        code |= each > PER_TENSOR_MS
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
