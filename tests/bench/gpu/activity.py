"""Do the activity counters agree with what the GPU must be doing? A full-rate product, a copy, nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_longlong
from dataclasses import dataclass
from typing import Any

from equipoise.calibrate.device import cuda, nvml
from equipoise.calibrate.device.nvml import GPM_METRICS
from equipoise.calibrate.measure.cublaslt import Gemm
from equipoise.calibrate.monitor.readings import DEVICE_FIELDS, Reading, Sampler

PRODUCT = 8192  # m = n = k, bf16
AHEAD_S = 0.2  # work queued at a time, so that the device never waits for the host
WATCHED = ("PROF_SM_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE")


@dataclass(frozen=True)
class Expectation:
    """What a counter must show during a load: at least or at most `bound`."""

    load: str
    counter: str
    bound: float
    least: bool

    def holds(self, value: float) -> bool:
        """Whether a reading is as it must be."""
        return value >= self.bound if self.least else value <= self.bound

    @property
    def text(self) -> str:
        """As in a table."""
        return f"{'at least' if self.least else 'at most'} {self.bound:g}"


EXPECTED = (
    Expectation("product", "PROF_PIPE_TENSOR_ACTIVE", 0.75, True),
    Expectation("product", "PROF_SM_ACTIVE", 0.9, True),
    Expectation("copy", "PROF_DRAM_ACTIVE", 0.75, True),
    Expectation("copy", "PROF_PIPE_TENSOR_ACTIVE", 0.02, False),
    Expectation("idle", "PROF_SM_ACTIVE", 0.02, False),
    Expectation("idle", "PROF_DRAM_ACTIVE", 0.05, False),
)
"""A product that runs at the library's best rate still leaves the tensor pipe idle between tiles."""


@contextmanager
def running(device: cuda.Device, queue: Callable[[], None]) -> Iterator[None]:
    """Keep the device busy with what `queue` queues, from a thread of its own, for a `with` block.

    Raises what the load raised, when the block ends.
    """
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            device.use()
            queue()
            device.wait(device.stream)
            start = time.perf_counter()
            queue()
            device.wait(device.stream)
            ahead = min(max(int(AHEAD_S / max(time.perf_counter() - start, 1e-5)), 1), 400)
            while not stop.is_set():
                for _ in range(ahead):
                    queue()
                device.wait(device.stream)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def product_load(device: cuda.Device) -> Iterator[Callable[[], None]]:
    """Queues one bf16 product of PRODUCT cubed by the library's first algorithm."""
    gemm = Gemm(device, "bf16", PRODUCT, PRODUCT, PRODUCT)
    buffers = [cuda.Buffer(2 * PRODUCT * PRODUCT).fill(0x3F803F80) for _ in range(3)]
    try:
        yield lambda: gemm.queue(gemm.algorithms[0], *(b.pointer for b in buffers))
    finally:
        gemm.close()
        for buffer in buffers:
            buffer.free()


@contextmanager
def copy_load(device: cuda.Device) -> Iterator[Callable[[], None]]:
    """Queues one copy of an array several times the L2."""
    size = min(max(8 * device.l2_bytes, 2**28), device.free_bytes // 4) // 4096 * 4096
    source, target = cuda.Buffer(size).fill(0x3F800000), cuda.Buffer(size)
    kernel, count = device.kernel("bandwidth", "copy"), c_longlong(size // 16)
    try:
        yield lambda: device.launch(kernel, device.sm_count * 4, 512, [source, target, count])
    finally:
        source.free()
        target.free()


def watch(gpu: nvml.Gpu, seconds: float, settle_s: float) -> Reading:
    """One reading over `seconds`, after the load has settled."""
    sampler = Sampler(gpu)
    try:
        time.sleep(settle_s)
        sampler.read()
        time.sleep(seconds)
        return sampler.read()
    finally:
        sampler.close()


def measure(seconds: float = 2.0, settle_s: float = 1.0) -> dict[str, Any]:
    """Readings under each load, which metrics answered and why the others did not.

    Raises CudaUnavailableError, NvmlUnavailableError, LibraryMissingError, MissingError: one line each.
    """
    device = cuda.Device(0)
    found: dict[str, Any] = {"readings": {}, "answers": {}, "missing": {}}
    with nvml.session():
        gpu = next((g for g in nvml.gpus() if g.uuid == device.uuid), None)
        if gpu is None:
            raise nvml.NvmlUnavailableError("NVML does not show the device that CUDA uses")
        found["readings"]["idle"] = _kept(watch(gpu, seconds, settle_s))
        for name, load in (("product", product_load), ("copy", copy_load)):
            with load(device) as queue, running(device, queue):
                reading = watch(gpu, seconds, settle_s)
            found["readings"][name] = _kept(reading)
        found["answers"] = dict(reading.sources)
        found["missing"] = dict(reading.missing)
    return found


def _kept(reading: Reading) -> dict[str, float | None]:
    return {name: reading.values.get(name) for name in (*GPM_METRICS, *DEVICE_FIELDS)}
