"""The tensor-core kernels: which ones a device runs, and checks of their results.

Instructions specific to a generation (wgmma on Hopper, wide products in double precision) are
timed if their results match NumPy's; if not, mma.sync is timed, and a line says so.
"""

from __future__ import annotations

from ctypes import c_int, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.calibrate.device.cuda import Buffer, CudaError, Device
from equipoise.calibrate.device.nvrtc import CompileError
from equipoise.calibrate.measure.verify import Array, VerificationError, operands, same, to_bits

ROW_BYTES = 32  # of K elements, in every format of 32 bits and fewer
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4, "fp8": 1}
CHECKED_ITERATIONS = 3


@dataclass(frozen=True)
class TensorKernel:
    """One kernel: each `group` of threads adds A (m, k) @ B (k, n) to accumulators, `adds` times an iteration.

    It runs in blocks of `block` threads, `blocks_per_sm` of which an SM holds.
    """

    precision: str
    instruction: str
    file: str
    name: str
    shape: tuple[int, int, int]
    group: int = 32
    adds: int = 4
    block: int = 512
    blocks_per_sm: int = 4

    @property
    def result(self) -> type[Any]:
        """The type of accumulators."""
        return np.float64 if self.precision == "fp64" else np.float32

    def flop(self, blocks: int) -> int:
        """Floating-point operations of one iteration."""
        m, n, k = self.shape
        return blocks * self.block // self.group * self.adds * 2 * m * n * k

    def out(self, blocks: int) -> Buffer:
        """Room for all results."""
        m, n, _ = self.shape
        return Buffer(blocks * self.block // self.group * m * n * np.dtype(self.result).itemsize)

    def operands(self) -> tuple[Buffer, Buffer, Array]:
        """Device copies of A and of B transposed, and A @ B."""
        m, n, k = self.shape
        a, b = operands(k, m, n)
        right = np.ascontiguousarray(b.T)
        left, right = (
            (a, right) if self.precision == "fp64" else (to_bits(a, self.precision), to_bits(right, self.precision))
        )
        return Buffer(left.nbytes).write(left), Buffer(right.nbytes).write(right), a @ b

    def check(self, device: Device, kernel: c_void_p | None = None) -> None:
        """Its products, or those of a variant of it, against NumPy's.

        Raises VerificationError, CudaError, CompileError.
        """
        a, b, product = self.operands()
        out = self.out(2).fill(0x7FC00000)
        kernel = kernel or device.kernel(self.file, self.name)
        device.launch(kernel, 2, self.block, [a, b, out, c_int(CHECKED_ITERATIONS)])
        device.wait(device.stream)
        groups = 2 * self.block // self.group
        wanted = np.tile(CHECKED_ITERATIONS * self.adds * product.ravel(), groups)
        same(self.name, out.read(self.result, wanted.size), wanted, 1e-6)


def warp_kernel(precision: str) -> TensorKernel:
    """Through mma.sync, on every generation that has the format."""
    shape = (8, 8, 4) if precision == "fp64" else (16, 8, ROW_BYTES // ELEMENT_BYTES[precision])
    return TensorKernel(precision, "mma.sync", "tensor", f"tensor_{precision}", shape)


def hopper_kernel(precision: str) -> TensorKernel:
    """Through what compute capability 9.0 alone has, or has at full rate."""
    if precision == "fp64":
        return TensorKernel(precision, "mma.sync m16n8k16", "tensor", "tensor_fp64_wide", (16, 8, 16))
    shape = (64, 256, ROW_BYTES // ELEMENT_BYTES[precision])
    return TensorKernel(precision, "wgmma", "warpgroup", f"warpgroup_{precision}", shape, 128, 8, 256, 1)


def precisions(device: Device) -> list[str]:
    """Formats that this device's tensor cores take."""
    has_fp8 = (device.major, device.minor) >= (8, 9)
    return ["fp16", "bf16", "tf32", *(["fp8"] if has_fp8 else []), "fp64"]


def checked_kernels(device: Device) -> tuple[list[TensorKernel], list[str]]:
    """The fastest kernel by precision whose results match NumPy's, and a line for each that does not match.

    Raises VerificationError when not even mma.sync does, and CudaError when it does not run.
    """
    chosen, refused = [], []
    for precision in precisions(device):
        kernel = warp_kernel(precision)
        kernel.check(device)
        if (device.major, device.minor) == (9, 0):
            own = hopper_kernel(precision)
            try:
                own.check(device)
                kernel = own
            except (VerificationError, CudaError, CompileError) as error:
                why = " ".join(str(error).split())
                refused.append(f"tensor {precision} by {own.instruction}: {why}; {kernel.instruction} is timed")
        chosen.append(kernel)
    return chosen, refused
