"""One rank of a collective benchmark: reads requests as JSON lines, answers with its times.

Run as `python -m equipoise.calibrate.measure.collective_worker BACKEND RANK RANKS MEETING_FILE`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

from equipoise.calibrate.measure.training import prepared_step

WARM_UP = 3
LEAST_REPEATS = 8
MOST_REPEATS = 200
LARGEST_BYTES = 2**30
SLOT_BYTES = 32 * 2**20  # of the shared memory that stands in for a network
START_TIMEOUT_S = 60.0


class TorchRank:
    """A rank of PyTorch's gloo or NCCL."""

    def __init__(self, backend: str, rank: int, ranks: int, meeting: Path) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._ranks = torch, dist, ranks
        self._device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self._device)
        dist.init_process_group(
            backend, f"file://{meeting}", timeout=timedelta(seconds=60), rank=rank, world_size=ranks
        )

    def prepared(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """A function that does the collective once and waits for it; `size_bytes` is the whole message."""
        torch, dist = self._torch, self._dist
        count = max(min(size_bytes, LARGEST_BYTES) // 4 // self._ranks, 1)
        whole = torch.ones(count * self._ranks, device=self._device)
        part = torch.ones(count, device=self._device)

        def once() -> None:
            """One collective, waited for."""
            if collective == "all_reduce":
                dist.all_reduce(whole)
            elif collective == "all_gather":
                dist.all_gather_into_tensor(whole, part)
            else:
                dist.reduce_scatter_tensor(part, whole)
            if self._device.type == "cuda":
                torch.cuda.synchronize()

        return once

    def overlapped(self, quick: bool, workload: str, precision: str, batch: int) -> list[Callable[[], None]]:
        """A training step without its exchange, the exchange alone, and the step with it (PyTorch's own DDP)."""
        from torch.nn.parallel import DistributedDataParallel

        step, model = prepared_step(self._device.type, quick, workload, precision, batch, wrap=DistributedDataParallel)
        size = 4 * sum(parameter.numel() for parameter in model.parameters())

        def alone() -> None:
            """A step whose gradients stay here."""
            with model.no_sync():
                step()

        return [alone, self.prepared("all_reduce", size), step]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._dist.barrier()

    def agree(self, value: int) -> int:
        """The largest of all ranks' values."""
        tensor = self._torch.tensor([value], device=self._device)
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
        return int(tensor.item())

    def close(self) -> None:
        """Leave the group."""
        self._dist.destroy_process_group()


class SharedMemoryRank:
    """A ring all-reduce (Patarasuk & Yuan 2009) over one memory-mapped file, in place of a network library.

    Every rank has a slot of the file; a step copies or adds a neighbour's chunk between two barriers. The
    barrier counts arrivals in the file and spins, yielding the core.
    """

    def __init__(self, rank: int, ranks: int, meeting: Path) -> None:
        self._rank, self._ranks = rank, ranks
        size = 4096 + ranks * SLOT_BYTES
        deadline = time.monotonic() + START_TIMEOUT_S
        if rank == 0:
            fresh = meeting.with_suffix(".new")
            with fresh.open("wb") as file:
                file.truncate(size)
            fresh.replace(meeting)
        while not meeting.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("rank 0 did not come")
            time.sleep(0.01)
        with meeting.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._arrived = np.frombuffer(self._map, np.int64, 512, 0)
        words = SLOT_BYTES // 4
        self._slots = [np.frombuffer(self._map, np.float32, words, 4096 + r * SLOT_BYTES) for r in range(ranks)]
        self._generation = 0

    def barrier(self) -> None:
        """Wait for all ranks; each counts its own generations, 64 bytes from the next."""
        self._generation += 1
        self._arrived[self._rank * 8] = self._generation
        deadline = time.monotonic() + START_TIMEOUT_S
        while (self._arrived[: self._ranks * 8 : 8] < self._generation).any():
            os.sched_yield()
            if time.monotonic() > deadline:
                raise TimeoutError("a rank is gone")

    def prepared(self, collective: str, size_bytes: int) -> Callable[[], None]:
        """A function that does one all-reduce of `size_bytes`. Raises ValueError above SLOT_BYTES."""
        if collective != "all_reduce" or size_bytes > SLOT_BYTES:
            raise ValueError(f"shared memory does all_reduce of at most {SLOT_BYTES} bytes")
        count = size_bytes // 4 // self._ranks
        chunks = [slice(k * count, (k + 1) * count) for k in range(self._ranks)]
        mine, left = self._slots[self._rank], self._slots[self._rank - 1]
        mine[: count * self._ranks] = 1.0

        def once() -> None:
            """One all-reduce around the ring."""
            for step in range(self._ranks - 1):
                self.barrier()
                chunk = chunks[(self._rank - 1 - step) % self._ranks]
                with np.errstate(over="ignore"):  # repeats sum ever larger values
                    np.add(mine[chunk], left[chunk], out=mine[chunk])
            for step in range(self._ranks - 1):
                self.barrier()
                chunk = chunks[(self._rank - step) % self._ranks]
                np.copyto(mine[chunk], left[chunk])
            self.barrier()

        return once

    def overlapped(self, quick: bool, workload: str, precision: str, batch: int) -> list[Callable[[], None]]:
        """Raises ValueError: a training step needs PyTorch."""
        raise ValueError("training steps with their exchange need PyTorch")

    def agree(self, value: int) -> int:
        """The largest of all ranks' values."""
        self.barrier()
        self._arrived[256 + self._rank] = value
        self.barrier()
        largest = int(self._arrived[256 : 256 + self._ranks].max())
        self.barrier()
        return largest

    def close(self) -> None:
        """Nothing to leave."""


Rank = TorchRank | SharedMemoryRank


def measure(rank: Rank, calls: Sequence[Callable[[], None]], budget_s: float) -> list[float]:
    """Seconds of each call on this rank, all of them in turn; the ranks agree on how many turns there are."""
    for _ in range(WARM_UP):
        for once in calls:
            once()
    rank.barrier()
    start = time.perf_counter()
    for once in calls:
        once()
    rough = max(time.perf_counter() - start, 1e-7)
    repeats = rank.agree(min(max(math.ceil(budget_s / rough / 2), LEAST_REPEATS), MOST_REPEATS))
    times = []
    for once in repeats * list(calls):
        rank.barrier()
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return times


def main(arguments: list[str]) -> None:
    """Serve requests from standard input until it ends."""
    backend, index, ranks, meeting = arguments[0], int(arguments[1]), int(arguments[2]), Path(arguments[3])
    rank: Rank
    if backend == "shared memory":
        rank = SharedMemoryRank(index, ranks, meeting)
    else:
        rank = TorchRank(backend, index, ranks, meeting)
    for line in sys.stdin:
        request = json.loads(line)
        if "workload" in request["what"]:
            calls = rank.overlapped(**request["what"])
        else:
            calls = [rank.prepared(**request["what"])]
        print(json.dumps(measure(rank, calls, request["budget_s"])), flush=True)
    rank.close()


if __name__ == "__main__":
    main(sys.argv[1:])
