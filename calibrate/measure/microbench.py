"""Microbenchmarks of one GPU: memory, arithmetic, latency, host and peer transfers.

Each is a `Measure`; the kernels were checked by `calibrate.measure.verify` before. Buffers rotate through an arena
several times the L2, so that a repeat never finds the data of the one before in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_double, c_float, c_int, c_longlong, c_uint
from functools import cached_property, partial
from typing import Any

import numpy as np

from equipoise.calibrate.device.cuda import Buffer, Device, PinnedBuffer
from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.tensor import TensorKernel
from equipoise.calibrate.measure.timing import DeviceTimer, time_calls, time_calls_batched
from equipoise.calibrate.measure.verify import CHAINS, UNROLL

MIB = 2**20
BLOCKS_PER_SM = 4
THREADS, LEAST_THREADS = 512, 64
COPY_THREADS = 256  # at most, of a copy: on an H200 it is 1 to 3 % behind the driver's copy, with 512 4 %
ARENA_L2_MULTIPLE = 8
ARENA_LEAST_BYTES = 256 * MIB
# Bytes moved per byte of one array: read + write, read, two reads + write.
TRAFFIC = {"copy": 2, "read": 1, "triad": 3}
KERNEL_S = 5e-4  # about how long one launch of an arithmetic kernel should take


class Microbench:
    """The measurements of one device."""

    def __init__(self, device: Device, quick: bool, tensor_kernels: Sequence[TensorKernel] = ()) -> None:
        """`tensor_kernels`: those that were checked."""
        self.device = device
        self._tensor_kernels = tensor_kernels
        self.quick = quick
        self.timer = DeviceTimer(device)
        self.blocks = device.sm_count * BLOCKS_PER_SM
        self._kept: list[Any] = []

    @cached_property
    def arena_bytes(self) -> int:
        """Size of each of the three arenas: several times the L2, at most an eighth of what is free."""
        wanted = max(ARENA_L2_MULTIPLE * self.device.l2_bytes, ARENA_LEAST_BYTES)
        return min(wanted, self.device.free_bytes // 8) // 4096 * 4096

    @cached_property
    def arenas(self) -> tuple[Buffer, Buffer, Buffer]:
        """Three device buffers filled with ordinary numbers (zeros would draw less power)."""
        values = np.random.default_rng(0).standard_normal(MIB // 4).astype(np.float32)
        buffers = (Buffer(self.arena_bytes), Buffer(self.arena_bytes), Buffer(self.arena_bytes))
        for buffer in buffers:
            self.device.tile(buffer, values)
        return buffers

    def measures(self) -> list[Measure]:
        """All measurements of this device alone, in the order in which they run."""
        return [*self.bandwidth(), *self.arithmetic(), *self.tensor(), *self.latency(), *self.transfers()]

    def bandwidth(self) -> list[Measure]:
        """copy, read and triad over sizes, and the driver's own copy as a second method."""
        smaller = (MIB // 16, 4 * MIB) if self.quick else tuple(MIB // 16 * 4**k for k in range(6))
        sizes = [*(s for s in smaller if s < self.arena_bytes), self.arena_bytes]
        found = [
            Measure(kind, {"bytes": size * factor, "array_bytes": size}, partial(self._bandwidth, kind, size))
            for size in sizes
            for kind, factor in TRAFFIC.items()
        ]
        whole = {"bytes": 2 * self.arena_bytes, "array_bytes": self.arena_bytes}
        return [*found, Measure("library_copy", whole, self._library_copy)]

    def _bandwidth(self, kind: str, size: int, budget_s: float) -> Outcome:
        a, b, out = self.arenas
        slots, elements = max(self.arena_bytes // size, 1), size // 16
        # Small arrays in smaller blocks, so that all SMs have one. A block a tile; but each thread of `read` also
        # writes its sum, which is not counted, so that it has no more blocks than run at once.
        each = -(-elements // (UNROLL[kind] * self.device.sm_count))
        most = COPY_THREADS if kind == "copy" else THREADS
        threads = min(max(2 ** (each.bit_length() - 1), LEAST_THREADS), most)
        blocks = -(-elements // (UNROLL[kind] * threads))
        if kind == "read":
            blocks = min(self.blocks * THREADS // threads, blocks)
        kernel = self.device.kernel("bandwidth", kind)
        sums = self._sums if kind == "read" else None

        def queue(k: int) -> None:
            """One launch on the next slot of the arena."""
            at = k % slots * size
            arguments: list[Any] = [a.at(at)]
            if kind == "triad":
                arguments += [b.at(at), out.at(at), c_float(0.5)]
            else:
                arguments.append(sums if sums is not None else out.at(at))
            self.device.launch(kernel, blocks, threads, [*arguments, c_longlong(elements)])

        return self.timer.times(queue, budget_s)

    @cached_property
    def _sums(self) -> Buffer:
        return Buffer(4 * self.blocks * THREADS)

    def _library_copy(self, budget_s: float) -> Outcome:
        a, _, out = self.arenas
        return self.timer.times(lambda k: self.device.copy(out.pointer, a.pointer, self.arena_bytes), budget_s)

    def arithmetic(self) -> list[Measure]:
        """Multiply-adds on the ordinary pipes."""
        # Rough rates per SM and second size the launches; the timer sizes the rest.
        rough = {"fp32": 2.0e11, "fp64": 2.0e10, "fp16": 4.0e11}
        return [self._fma(precision, rate) for precision, rate in rough.items()]

    def _fma(self, precision: str, flop_per_sm_s: float) -> Measure:
        threads = self.blocks * THREADS
        per_iteration = threads * CHAINS * (4 if precision == "fp16" else 2)
        iterations = max(int(flop_per_sm_s * self.device.sm_count * KERNEL_S / per_iteration), 8)
        half = [c_uint(int(np.float16(v).view(np.uint16)) * 0x10001) for v in (0.5, 1.25, 2.0)]
        constants: dict[str, list[Any]] = {
            "fp32": [c_float(0.5), c_float(1.25)],
            "fp64": [c_double(0.5), c_double(1.25)],
            "fp16": half,
        }

        def run(budget_s: float) -> Outcome:
            """Time the multiply-adds."""
            out = Buffer(threads * {"fp32": 4, "fp64": 8, "fp16": 4 * CHAINS}[precision])
            kernel = self.device.kernel("arithmetic", f"fma_{precision}")
            values = [out, *constants[precision], c_int(iterations)]
            return self.timer.times(lambda k: self.device.launch(kernel, self.blocks, THREADS, values), budget_s)

        return Measure("fma", {"precision": precision, "flop": iterations * per_iteration}, run)

    def tensor(self) -> list[Measure]:
        """Tensor cores by format, through the fastest instructions that were checked."""
        return [self._tensor(kernel) for kernel in self._tensor_kernels]

    def _tensor(self, tensor: TensorKernel) -> Measure:
        blocks = self.device.sm_count * tensor.blocks_per_sm
        rate = {"fp16": 4e12, "bf16": 4e12, "tf32": 2e12, "fp8": 8e12, "fp64": 2e11}[tensor.precision]
        iterations = max(int(rate * self.device.sm_count * KERNEL_S / tensor.flop(blocks)), 8)

        def run(budget_s: float) -> Outcome:
            """Time the tensor cores."""
            a, b, _ = tensor.operands()
            out, kernel = tensor.out(blocks), self.device.kernel(tensor.file, tensor.name)
            values = [a, b, out, c_int(iterations)]
            return self.timer.times(lambda k: self.device.launch(kernel, blocks, tensor.block, values), budget_s)

        flop = iterations * tensor.flop(blocks)
        return Measure("tensor", {"precision": tensor.precision, "instruction": tensor.instruction, "flop": flop}, run)

    def latency(self) -> list[Measure]:
        """Launches, queued one by one."""
        return [Measure("launch_pipelined", {}, self._launch_pipelined)]

    def _launch_pipelined(self, budget_s: float) -> Outcome:
        kernel = self.device.kernel("latency", "nothing")

        def burst() -> None:
            """200 launches, then wait."""
            for _ in range(200):
                self.device.launch(kernel, 1, 32, [])
            self.device.wait(self.device.stream)

        return tuple(t / 200 for t in time_calls(burst, budget_s))

    def transfers(self) -> list[Measure]:
        """Host to device and back, from page-locked and from ordinary memory."""
        sizes = [64 * MIB] if self.quick else [64 * 1024, MIB, 16 * MIB, 256 * MIB]
        sizes = sorted({min(s, self.arena_bytes) for s in sizes})
        return [
            Measure(
                "transfer",
                {"direction": direction, "memory": memory, "bytes": size},
                partial(self._transfer, direction, memory, size),
            )
            for size in sizes
            for memory in ("pinned", "pageable")
            for direction in ("to_device", "to_host")
        ]

    def _transfer(self, direction: str, memory: str, size: int, budget_s: float) -> Outcome:
        device, buffer = self.device, self.arenas[0]
        pinned = PinnedBuffer(size) if memory == "pinned" else None
        host = np.ones(size, np.uint8) if pinned is None else pinned.array
        address = host.ctypes.data

        def one() -> None:
            """One transfer, waited for."""
            if direction == "to_device":
                device.to_device(buffer.pointer, address, size)
            else:
                device.to_host(address, buffer.pointer, size)
            device.wait(device.stream)

        try:
            return time_calls_batched(one, budget_s)
        finally:
            if pinned is not None:
                pinned.free()


def peer_measures(first: Device, second: Device, quick: bool) -> list[Measure]:
    """Copies from one GPU to another; `direct` says whether the hardware lets them address each other."""
    sizes = [64 * MIB] if quick else [64 * 1024, MIB, 16 * MIB, 256 * MIB]
    direct = first.reach(second)
    pair = {"source": first.index, "target": second.index, "direct": direct}
    return [Measure("peer", {**pair, "bytes": size}, partial(_peer, first, second, size)) for size in sizes]


def _peer(first: Device, second: Device, size: int, budget_s: float) -> Outcome:
    second.use()
    target = Buffer(size)
    first.use()
    origin = Buffer(size)

    def one() -> None:
        """One copy between devices, waited for."""
        first.to_peer(target.pointer, second, origin.pointer, size)
        first.wait(first.stream)

    try:
        return time_calls_batched(one, budget_s)
    finally:
        origin.free()
        target.free()
