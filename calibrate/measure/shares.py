"""Throughput on a part of a GPU, and the mutual slow-down of two kernels on its two halves.

Green contexts (driver 12.4 and later) cut the SMs exactly; otherwise MPS limits a process to a percentage of
its threads. Both kernels are sized for the whole GPU, so on a part they take longer, not smaller pieces. They
have many more blocks than fit at once: with one wave of blocks on all SMs, a third of them would need four
waves for three waves' work, and the curve would show that rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from ctypes import c_float, c_int, c_longlong, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

from equipoise.base.sources import environment as own_environment
from equipoise.calibrate.device.cuda import Buffer, CudaError, Device, DevicePartition
from equipoise.calibrate.measure.measure import Measure, MeasureMissingError, Outcome
from equipoise.calibrate.measure.timing import time_calls

SHARES = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
QUICK_SHARES = (0.25, 0.5, 1.0)
MPS_PERCENTAGES = (25, 50, 75, 100)
LAUNCHES = 20
THREADS = 512
BLOCKS_PER_SM = 4  # that run at once
WAVES = 16  # of blocks on the whole GPU
FMA_ITERATIONS = 256  # of one block; 0.3 ms in all on a H100


class ShareBench:
    """The compute-bound and the memory-bound kernel on any stream of a device."""

    def __init__(self, device: Device, arena_bytes: int) -> None:
        self.device = device
        self.blocks = device.sm_count * BLOCKS_PER_SM * WAVES
        self.count = arena_bytes // 16
        # Two of each: two copies of one array would find each other's lines in the L2.
        self._sources = [Buffer(arena_bytes).fill(0x3F800000) for _ in range(2)]
        self._targets = [Buffer(arena_bytes) for _ in range(2)]
        self._out = Buffer(4 * self.blocks * THREADS)

    def queue(self, kernel: str, stream: c_void_p, launches: int = LAUNCHES, arrays: int = 0) -> None:
        """Queue a burst of one of the two kernels, on the first or second pair of arrays."""
        if kernel == "compute":
            function = self.device.kernel("arithmetic", "fma_fp32")
            arguments: list[Any] = [self._out, c_float(0.5), c_float(1.25), c_int(FMA_ITERATIONS)]
        else:
            function = self.device.kernel("bandwidth", "copy")
            arguments = [self._sources[arrays], self._targets[arrays], c_longlong(self.count)]
        for _ in range(launches):
            self.device.launch(function, self.blocks, THREADS, arguments, stream)

    def burst(self, kernel: str, stream: c_void_p) -> None:
        """Run a burst to its end."""
        self.queue(kernel, stream)
        self.device.wait(stream)

    def times(self, kernel: str, stream: c_void_p, budget_s: float) -> tuple[float, ...]:
        """Seconds per launch."""
        return tuple(t / LAUNCHES for t in time_calls(partial(self.burst, kernel, stream), budget_s))


def share_measures(device: Device, arena_bytes: int, quick: bool) -> list[Measure]:
    """Both kernels over shares of the SMs, and all four pairs on two halves.

    Without green contexts MPS is used, and without MPS one measure that says what is missing.
    """
    bench = ShareBench(device, arena_bytes)
    try:
        parts = _partitions(device, QUICK_SHARES if quick else SHARES)
        half = device.sm_count // 2
        halves = (device.partition(half), DevicePartition(device, half, complement=True))
    except CudaError as error:
        return _mps_measures(str(error))
    curve = [
        Measure(
            "share", {"kernel": kernel, "share": share, "method": "green context"}, partial(bench.times, kernel, stream)
        )
        for share, stream in parts
        for kernel in ("compute", "memory")
    ]
    pairs = [
        Measure(
            "interference",
            {"kernel": kernel, "neighbour": neighbour, "others_utilisation": 1.0, "method": "green context"},
            partial(_together, bench, halves, kernel, neighbour),
            unit="1",
        )
        for kernel in ("compute", "memory")
        for neighbour in ("compute", "memory")
    ]
    return curve + pairs


def _partitions(device: Device, shares: tuple[float, ...]) -> list[tuple[float, c_void_p]]:
    """(share granted, stream) for each distinct number of SMs granted; the whole device needs no partition."""
    found: dict[int, c_void_p] = {}
    for share in shares:
        if share == 1.0:
            found[device.sm_count] = device.stream
            continue
        part = device.partition(max(round(share * device.sm_count), 1))
        if part.sm_count in found:
            part.free()
        else:
            found[part.sm_count] = part.stream
    return [(count / device.sm_count, stream) for count, stream in found.items()]


def _together(
    bench: ShareBench, halves: tuple[DevicePartition, DevicePartition], kernel: str, neighbour: str, budget_s: float
) -> Outcome:
    """Slow-down of `kernel` on one half while `neighbour` keeps the other half busy; one value a repeat."""
    mine, other = halves[0].stream, halves[1].stream
    alone = min(bench.times(kernel, mine, budget_s / 4)) * LAUNCHES
    beside = min(bench.times(neighbour, other, budget_s / 4))
    enough = max(int(4 * alone / beside), LAUNCHES)
    ratios: list[float] = []
    deadline = time.perf_counter() + budget_s / 2
    while len(ratios) < 5 or (time.perf_counter() < deadline and len(ratios) < 50):
        start = time.perf_counter()
        bench.burst(kernel, mine)
        by_itself = time.perf_counter() - start
        bench.queue(neighbour, other, min(enough, 500), arrays=1)
        start = time.perf_counter()
        bench.burst(kernel, mine)
        together = time.perf_counter() - start
        bench.device.wait(other)
        ratios.append(together / by_itself)
    return tuple(ratios)


def _mps_measures(why_not_green: str) -> list[Measure]:
    return [
        Measure(
            "share",
            {"kernel": kernel, "share": percentage / 100.0, "method": "MPS"},
            partial(_mps, kernel, percentage, why_not_green),
        )
        for percentage in MPS_PERCENTAGES
        for kernel in ("compute", "memory")
    ]


def mps_is_running() -> bool:
    """Whether an MPS control daemon listens."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def _mps(kernel: str, percentage: int, why_not_green: str, budget_s: float) -> Outcome:
    """Times from a separate process, since MPS fixes the percentage when a process starts."""
    if not mps_is_running():
        raise MeasureMissingError(f"neither green contexts ({why_not_green}) nor a running MPS daemon")
    environment = {**own_environment(), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    command = [sys.executable, "-m", "equipoise.calibrate.measure.shares", kernel, str(budget_s)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60 + 10 * budget_s)
    if done.returncode != 0:
        raise MeasureMissingError(f"MPS at {percentage} %: {done.stderr.strip().splitlines()[-1:]}")
    return tuple(json.loads(done.stdout))


def main(arguments: list[str]) -> None:
    """Worker for one percentage: prints the times of one kernel as JSON."""
    device = Device(0)
    bench = ShareBench(device, 8 * max(device.l2_bytes, 32 * 2**20))
    print(json.dumps(bench.times(arguments[0], device.stream, float(arguments[1]))))


if __name__ == "__main__":
    main(sys.argv[1:])
