"""Which kernels reach a GPU's limits, and what slows large products: one JSON object from about 40 s of a GPU.

    python -m tests.bench.gpu.kernels [PART ...]

Parts: memory (copy, read and triad in many forms), own (multiply-adds and tensor instructions), products (bf16
products by cuBLASLt and PyTorch on several data, cold and for two seconds, with clock and power). Each part runs in
a process of its own, since a fault of a kernel ends the whole process's use of the device.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_float, c_longlong, c_uint64
from statistics import median
from typing import Any

import numpy as np

from equipoise.calibrate.device import cuda, nvml, nvrtc
from equipoise.calibrate.device.cuda import Buffer, Device
from equipoise.calibrate.measure import cublaslt, verify
from equipoise.calibrate.measure.measure import Measure
from equipoise.calibrate.measure.microbench import TRAFFIC, Microbench
from equipoise.calibrate.measure.tensor import TensorKernel, hopper_kernel, precisions, warp_kernel
from equipoise.calibrate.measure.timing import DeviceTimer

PART_S = 50.0  # then a part is given up
LOADS = (
    "ld.global.v4.f32",
    "ld.global.nc.L1::no_allocate.v4.f32",
    "ld.global.nc.L1::no_allocate.L2::256B.v4.f32",
    "ld.global.cs.v4.f32",
)
STORES = ("st.global.v4.f32", "st.global.cs.v4.f32", "st.global.L1::no_allocate.v4.f32")
UNROLLS, THREADS = (1, 2, 4, 8), (256, 512, 1024)
PER_SM = (2, 4, 8, 0)  # blocks of 512 threads' worth that go round; 0: one block a tile
VARIANT_S, OWN_S = 0.006, 0.3
SIZES = (2**29, 2**30, 2**32)  # bytes of an array
SIDE, COLD, WARM_UPS, LOAD_S, BURST_S = 8192, 10, 3, 2.0, 0.05
FLOP = 2.0 * SIDE**3


def defines(unroll: int, load: str, store: str) -> str:
    """Text in front of kernels/bandwidth.cu that makes a variant of it."""
    text: dict[str, int | str] = {"COPY_UNROLL": unroll, "READ_UNROLL": unroll, "TRIAD_UNROLL": unroll}
    for hint in ("ONCE", "STREAMED"):
        text |= {f"LOAD_{hint}": f'"{load}"', f"STORE_{hint}": f'"{store}"'}
    return "".join(f"#define {name} {value}\n" for name, value in text.items())


def variants() -> Iterator[tuple[int, str, str]]:
    """(elements in flight, load, store): every unrolling with the usual hints, then other hints."""
    for unroll in UNROLLS:
        yield unroll, LOADS[1], STORES[0]
    others = [(load, STORES[0]) for load in LOADS] + [(LOADS[1], store) for store in STORES] + [(LOADS[3], STORES[1])]
    for load, store in others:
        if (load, store) != (LOADS[1], STORES[0]):
            yield 4, load, store


def image(unroll: int, load: str, store: str, architecture: str) -> bytes:
    """A variant's machine code. Raises CompileError."""
    text = defines(unroll, load, store) + nvrtc.source("bandwidth")
    return nvrtc.compile_cubin(text, "bandwidth", architecture)


class Memory:
    """Three arrays of ordinary numbers and the copies, reads and triads on them."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        self.timer = DeviceTimer(device)
        count = min(2**18, size // 4)
        self.values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
        self.a, self.b, self.out = (device.tile(Buffer(size), self.values) for _ in range(3))
        self.sums = Buffer(4 * device.sm_count * 32 * 1024)

    def rate(self, queue: Callable[[int], None], traffic: int) -> float:
        """Bytes per second, the median."""
        return traffic * self.size / median(self.timer.times(queue, VARIANT_S))

    def run(self, library: Any, kind: str, unroll: int, threads: int, per_sm: int) -> float:
        """Bytes per second of a variant on a grid, after a look at what it wrote."""
        tiles = -(-self.size // 16 // (unroll * threads))
        blocks = min(tiles, self.device.sm_count * max(per_sm * 512 // threads, 1)) if per_sm else tiles
        kernel = self.device.kernel_of(library, kind)
        arguments: list[Any] = [self.a]
        if kind == "triad":
            arguments += [self.b, self.out, c_float(0.5)]
        else:
            arguments.append(self.sums if kind == "read" else self.out)
        arguments.append(c_longlong(self.size // 16))
        return self.checked(kind, lambda k: self.device.launch(kernel, blocks, threads, arguments), TRAFFIC[kind])

    def checked(self, kind: str, queue: Callable[[int], None], traffic: int) -> float:
        """The rate, once the last launch's result is right at both ends of the array."""
        if kind != "read":
            self.out.fill(0x7FC00000)
        found = self.rate(queue, traffic)
        self.device.wait(self.device.stream)
        scale = np.float32(1.5 if kind == "triad" else 1.0)
        for at in (0, self.size - self.values.nbytes) if kind != "read" else ():
            verify.same(kind, self.out.read(np.float32, self.values.size, at), self.values * scale, 1e-6)
        return found

    def free(self) -> None:
        """Give the arrays back."""
        for buffer in (self.a, self.b, self.out, self.sums):
            buffer.free()


def memory(device: Device, size: int = 0, larger: Sequence[int] = SIZES) -> Iterator[dict[str, Any]]:
    """Every variant on every grid at a calibration's size; the driver's copy; the best of each on larger arrays."""
    usual = Memory(device, size or Microbench(device, False).arena_bytes)
    found: list[tuple[float, str, tuple[int, str, str], int, int]] = []
    for variant in variants():
        try:
            library = device.load(image(*variant, device.architecture))
        except Exception as error:
            yield {"variant": variant, "error": _text(error)}
            continue
        block = THREADS if variant[1:] == (LOADS[1], STORES[0]) else THREADS[1:2]
        for kind, threads, per_sm in itertools.product(TRAFFIC, block, PER_SM):
            if kind == "read" and per_sm == 0:
                continue  # its sums would be a part of the traffic
            try:
                rate = usual.run(library, kind, variant[0], threads, per_sm)
                found.append((rate, kind, variant, threads, per_sm))
                yield _variant(rate, kind, variant, threads, per_sm, usual.size)
            except Exception as error:
                yield {"kind": kind, "variant": variant, "threads": threads, "error": _text(error)}
    yield _library_copy(usual)
    best = {kind: max(f for f in found if f[1] == kind) for kind in TRAFFIC if any(f[1] == kind for f in found)}
    for size in larger:
        try:
            yield from _again(device, size, [f[1:] for f in best.values()])
        except Exception as error:
            yield {"array_bytes": size, "error": _text(error)}


def _again(
    device: Device, size: int, chosen: Sequence[tuple[str, tuple[int, str, str], int, int]]
) -> Iterator[dict[str, Any]]:
    """The driver's copy and some variants on arrays of another size, where there is room for them."""
    if 3 * size > device.free_bytes // 2:
        return
    arrays = Memory(device, size)
    try:
        yield _library_copy(arrays)
        for kind, variant, threads, per_sm in chosen:
            library = device.load(image(*variant, device.architecture))
            rate = arrays.run(library, kind, variant[0], threads, per_sm)
            yield _variant(rate, kind, variant, threads, per_sm, size)
    finally:
        arrays.free()


def _variant(
    rate: float, kind: str, variant: tuple[int, str, str], threads: int, per_sm: int, size: int
) -> dict[str, Any]:
    unroll, load, store = variant
    grid = {"unroll": unroll, "threads": threads, "per_sm": per_sm, "load": load, "store": store}
    return {"kind": kind, "array_bytes": size, **grid, "bytes_per_s": float(f"{rate:.5g}")}


def _library_copy(memory: Memory) -> dict[str, Any]:
    device = memory.device
    rate = memory.rate(lambda k: device.copy(memory.out.pointer, memory.a.pointer, memory.size), TRAFFIC["copy"])
    return {"kind": "library_copy", "array_bytes": memory.size, "bytes_per_s": float(f"{rate:.5g}")}


def own(device: Device) -> Iterator[dict[str, Any]]:
    """Multiply-adds; tensor cores by mma.sync and by the generation's own instructions, checked before timed."""
    formats = precisions(device)
    kernels = [*map(warp_kernel, formats), hopper_kernel("fp64"), *map(hopper_kernel, formats[:-1])]
    with _gpu(device) as gpu:
        for measure in Microbench(device, False).arithmetic():
            yield _timed_measure(gpu, measure, {"kind": "fma"})
        for kernel in kernels:
            try:
                kernel.check(device)
                (measure,) = Microbench(device, False, [kernel]).tensor()
                yield _timed_measure(gpu, measure, {"kind": "tensor"})
            except Exception as error:
                said = {"kind": "tensor", "precision": kernel.precision, "instruction": kernel.instruction}
                yield {**said, "error": _text(error), **_swapped(device, kernel, error)}


def _timed_measure(gpu: nvml.Gpu | None, measure: Measure, said: dict[str, Any]) -> dict[str, Any]:
    before = _state(gpu)
    rates = float(str(measure.parameters["flop"])) / np.array(measure.run(OWN_S))
    return {**said, **measure.parameters, **_spread(rates), "before": before, "after": _state(gpu)}


def _swapped(device: Device, kernel: TensorKernel, error: Exception) -> dict[str, str]:
    """Whether a wrong result is one of the two offsets of the matrix descriptor having changed places."""
    if kernel.file != "warpgroup" or not isinstance(error, verify.VerificationError):
        return {}
    try:
        text = "#define LEADING_BYTES 256\n#define STRIDE_BYTES 128\n" + nvrtc.source(kernel.file)
        code = nvrtc.compile_cubin(text, kernel.file, nvrtc.ONE_ARCHITECTURE[kernel.file])
        kernel.check(device, device.kernel_of(device.load(code), kernel.name))
    except Exception as other:
        return {"offsets_swapped": _text(other)}
    return {"offsets_swapped": "right"}


def _spread(rates: Any) -> dict[str, float]:
    names = {"first": rates[0], "lowest": rates.min(), "median": np.median(rates), "highest": rates.max()}
    return {f"{name}_per_s": float(f"{value:.5g}") for name, value in names.items()}


@contextmanager
def _gpu(device: Device) -> Iterator[nvml.Gpu | None]:
    """The device in NVML, None without NVML."""
    try:
        with nvml.session():
            yield next((g for g in nvml.gpus() if g.uuid == device.uuid), None)
    except nvml.NvmlUnavailableError:
        yield None


def _state(gpu: nvml.Gpu | None) -> dict[str, Any]:
    """Clock, power, energy, temperature and what limits the clock, now."""
    if gpu is None:
        return {}
    c = nvml.counters(gpu, {})
    return {
        "sm_clock_hz": c.sm_clock_hz,
        "power_w": c.power_w,
        "energy_j": c.energy_j.value if c.energy_j else None,
        "temperature_c": c.temperature_c,
        "clock_reasons": list(c.clock_reasons),
    }


def _operands(data: str) -> list[tuple[Any, Any, Any]]:
    """Three sets of A, B transposed and room for the result, in bf16, on the GPU."""
    import torch

    low, high = cublaslt.MAGNITUDES
    torch.manual_seed(0)

    def one() -> Any:
        if data == "normal":
            return torch.randn(SIDE, SIDE, device="cuda").to(torch.bfloat16)
        rows = 8 if data == "magnitudes, every 8 rows again" else SIDE
        magnitude = torch.rand(rows, SIDE, device="cuda") * (high - low) + low
        signs = torch.randint(0, 2, (rows, SIDE), device="cuda") * 2 - 1
        return (magnitude * signs).to(torch.bfloat16).repeat(SIDE // rows, 1).contiguous()

    return [(one(), one(), torch.empty(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)) for _ in range(3)]


def _queue_cublaslt(device: Device, sets: list[tuple[Any, Any, Any]], best: bool) -> Callable[[int], None]:
    """Queues a product on the device's stream: by the library's first algorithm, or by its fastest."""
    gemm = cublaslt.Gemm(device, "bf16", SIDE, SIDE, SIDE)
    timer = DeviceTimer(device)

    def queue(algorithm: Any, k: int) -> None:
        gemm.queue(algorithm, *(c_uint64(t.data_ptr()) for t in sets[k % len(sets)]))

    def rough(algorithm: Any) -> float:
        queue(algorithm, 0)
        device.wait(device.stream)
        return timer.once(lambda k: queue(algorithm, k), 3)

    chosen = min(gemm.algorithms, key=rough) if best else gemm.algorithms[0]
    return lambda k: queue(chosen, k)


def _queue_torch(sets: list[tuple[Any, Any, Any]], stream: Any, transposed: bool) -> Callable[[int], None]:
    """Queues a product through PyTorch on that stream; `transposed`: with B stored as the other method has it."""
    import torch

    def queue(k: int) -> None:
        a, b, out = sets[k % len(sets)]
        with torch.cuda.stream(stream):
            torch.matmul(a, b.T if transposed else b, out=out)

    return queue


CASES = (
    ("normal", "torch"),
    ("normal", "torch transposed"),
    ("normal", "cublasLt first"),
    ("normal", "cublasLt fastest"),
    ("magnitudes", "torch"),
    ("magnitudes", "cublasLt fastest"),
    ("magnitudes, every 8 rows again", "cublasLt fastest"),
)


def products(device: Device) -> Iterator[dict[str, Any]]:
    """Each case cold, ten products after a second of idling and three others; then two seconds of them."""
    import torch

    torch.zeros(1, device="cuda")
    device.use()
    stream = torch.cuda.ExternalStream(device.stream.value or 0)
    with _gpu(device) as gpu:
        for data, library in CASES:
            try:
                sets = _operands(data)
                torch.cuda.synchronize()
                if library.startswith("torch"):
                    queue = _queue_torch(sets, stream, library.endswith("transposed"))
                else:
                    queue = _queue_cublaslt(device, sets, library.endswith("fastest"))
                yield {"data": data, "library": library, **timed(device, gpu, queue)}
            except Exception as error:
                yield {"data": data, "library": library, "error": _text(error)}


def timed(device: Device, gpu: nvml.Gpu | None, queue: Callable[[int], None]) -> dict[str, Any]:
    """A product cold and for LOAD_S seconds."""
    return {"cold": _cold(device, gpu, queue), "sustained": _sustained(device, gpu, queue)}


def _events(device: Device, queue: Callable[[int], None], count: int) -> list[cuda.Event]:
    """Queue products with an event around each."""
    events = [cuda.Event() for _ in range(count + 1)]
    events[0].record(device.stream)
    for k in range(count):
        queue(k)
        events[k + 1].record(device.stream)
    return events


def _rates(events: list[cuda.Event]) -> list[float]:
    return [float(f"{FLOP / b.elapsed_s(a):.4g}") for a, b in itertools.pairwise(events)]


def _cold(device: Device, gpu: nvml.Gpu | None, queue: Callable[[int], None]) -> dict[str, Any]:
    queue(0)  # loads the kernel
    device.wait(device.stream)
    time.sleep(1.0)
    before = _state(gpu)
    for k in range(WARM_UPS):
        queue(k)
    device.wait(device.stream)
    start = time.perf_counter()
    events = _events(device, queue, COLD)
    device.wait(device.stream)
    wall_s = time.perf_counter() - start
    rates = _rates(events)
    whole = COLD * FLOP / events[-1].elapsed_s(events[0])
    return {
        "flop_per_s": rates,
        "by_events": float(f"{whole:.4g}"),
        "by_wall_time": float(f"{COLD * FLOP / wall_s:.4g}"),
        "before": before,
        "after": _state(gpu),
    }


def _sustained(device: Device, gpu: nvml.Gpu | None, queue: Callable[[int], None]) -> list[dict[str, Any]]:
    """Bursts back to back; the state is read while a burst runs."""
    found, start = [], time.perf_counter()
    burst = max(int(BURST_S * 6e14 / FLOP), 2)
    pending = _events(device, queue, burst)
    while (now := time.perf_counter() - start) < LOAD_S:
        following = _events(device, queue, burst)
        state = _state(gpu)
        rate = burst * FLOP / pending[-1].elapsed_s(pending[0])
        found.append({"time_s": round(now, 3), "flop_per_s": float(f"{rate:.4g}"), **state})
        pending = following
    device.wait(device.stream)
    return found


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


PARTS: dict[str, Callable[[Device], Iterator[dict[str, Any]]]] = {"memory": memory, "own": own, "products": products}


def part(name: str) -> None:
    """One part in this process: a JSON object a line, as it is measured."""
    device = Device(0)
    for line in PARTS[name](device):
        print(json.dumps(line), flush=True)


def gathered(name: str) -> dict[str, Any]:
    """One part in a process of its own: what it printed, and how it ended where it did not end well."""
    start = time.monotonic()
    command = [sys.executable, "-m", "tests.bench.gpu.kernels", "--part", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PART_S)
        printed, ended, said = done.stdout, str(done.returncode), done.stderr
    except subprocess.TimeoutExpired as error:
        printed, ended, said = _decoded(error.stdout), "time is up", _decoded(error.stderr)
    lines = [line for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    found: dict[str, Any] = {"wall_s": round(time.monotonic() - start, 1), "found": list(map(json.loads, lines))}
    if ended != "0":
        found |= {"ended": ended, "said": said.strip().splitlines()[-8:]}
    return found


def _decoded(text: str | bytes | None) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text or ""


def main(arguments: list[str]) -> None:
    """All parts, or those named, as one JSON object."""
    if arguments[:1] == ["--part"]:
        part(arguments[1])
        return
    print(json.dumps({name: gathered(name) for name in arguments or PARTS}))


if __name__ == "__main__":
    main(sys.argv[1:])
