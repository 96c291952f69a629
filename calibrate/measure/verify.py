"""Checks that each kernel computes what it is timed for, on small inputs, before anything is timed.

A kernel that does nothing is fast. Expected values are NumPy's.
"""

from __future__ import annotations

from ctypes import c_double, c_float, c_int, c_longlong, c_uint
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.device.cuda import Buffer, Device

Array = npt.NDArray[Any]

CHAINS = 8
UNROLL = {"copy": 1, "read": 4, "triad": 4}
"""Elements of a thread in one tile, as kernels/bandwidth.cu has them."""


class VerificationError(RuntimeError):
    """A kernel computed a wrong result, so its times are not valid."""


def to_bits(values: Array, precision: str) -> Array:
    """Small integers and halves encoded in a tensor-core format, as unsigned words of its size.

    fp8 is e4m3 (4 exponent bits, bias 7, 3 mantissa bits). Exact for the values used here.
    """
    single = np.asarray(values, np.float32)
    if precision == "fp16":
        return single.astype(np.float16).view(np.uint16)
    bits = single.view(np.uint32)
    if precision == "tf32":
        return bits
    if precision == "bf16":
        return (bits >> 16).astype(np.uint16)
    sign, exponent, mantissa = bits >> 31, (bits >> 23) & 0xFF, (bits >> 20) & 0x7
    packed = (sign << 7) | ((exponent.astype(np.int64) - 127 + 7).astype(np.uint32) << 3) | mantissa
    return np.where(single == 0, 0, packed).astype(np.uint8)


def operands(k: int, rows: int = 16, columns: int = 8) -> tuple[Array, Array]:
    """Test operands A (rows, k) and B (k, columns): halves between -1.5 and 1.5, exact in every format."""
    random = np.random.default_rng(7)
    return random.integers(-3, 4, (rows, k)) / 2.0, random.integers(-3, 4, (k, columns)) / 2.0


def same(what: str, got: Array, wanted: Array, tolerance: float) -> None:
    """Raises VerificationError when a value is off by more than `tolerance` of the largest one."""
    scale = float(np.abs(wanted).max()) or 1.0
    error = float(np.abs(got.astype(np.float64) - wanted).max()) / scale
    if not error <= tolerance:
        raise VerificationError(f"kernel {what}: wrong by {error:.2g} relative, {tolerance:.0e} is allowed")


def check_bandwidth(device: Device) -> None:
    """copy, read and triad against NumPy. Raises VerificationError."""
    random = np.random.default_rng(1)
    b, c = (random.standard_normal(4 * 1000).astype(np.float32) for _ in range(2))
    first, second, out = (Buffer(b.nbytes) for _ in range(3))
    first.write(b)
    second.write(c)
    count = c_longlong(1000)
    device.launch(device.kernel("bandwidth", "copy"), 3, 64, [first, out.fill(0x7FC00000), count])
    _wait(device)
    same("copy", out.read(np.float32, b.size), b, 0.0)
    device.launch(
        device.kernel("bandwidth", "triad"), 3, 64, [first, second, out.fill(0x7FC00000), c_float(0.5), count]
    )
    _wait(device)
    same("triad", out.read(np.float32, b.size), b + np.float32(0.5) * c, 1e-6)
    sums = Buffer(4 * 192).fill(0x7FC00000)
    device.launch(device.kernel("bandwidth", "read"), 3, 64, [first, sums, count])
    _wait(device)
    quads, element = b.astype(np.float64).reshape(-1, 4).sum(1), np.arange(1000)
    owner = element // (UNROLL["read"] * 64) % 3 * 64 + element % 64
    same("read", sums.read(np.float32, 192), np.bincount(owner, quads, 192), 1e-5)


def check_arithmetic(device: Device) -> None:
    """The multiply-add chains against NumPy. Raises VerificationError."""
    start = np.arange(64)[:, None] % 32 + np.arange(CHAINS)
    wanted = start.astype(np.float64)
    for _ in range(5):
        wanted = wanted * 0.5 + 1.25
    for name, number, dtype in (("fma_fp32", c_float, np.float32), ("fma_fp64", c_double, np.float64)):
        out = Buffer(64 * np.dtype(dtype).itemsize).fill(0x7FC00000)
        device.launch(device.kernel("arithmetic", name), 2, 32, [out, number(0.5), number(1.25), c_int(5)])
        _wait(device)
        same(name, out.read(dtype, 64), wanted.sum(1), 1e-6)
    half, one = np.float16(0.5).view(np.uint16), np.float16(1.25).view(np.uint16)
    first = np.array([3.0, 2.0], np.float16).view(np.uint32)[0]
    pair = [c_uint(int(v) << 16 | int(v)) for v in (half, one)]
    out = Buffer(64 * CHAINS * 4).fill(0x7E007E00)
    device.launch(device.kernel("arithmetic", "fma_fp16"), 2, 32, [out, *pair, c_uint(int(first)), c_int(5)])
    _wait(device)
    x = (first + np.arange(CHAINS, dtype=np.uint32)).view(np.float16).astype(np.float64)
    for _ in range(5):
        x = x * 0.5 + 1.25
    same("fma_fp16", out.read(np.float16, 64 * CHAINS * 2), np.tile(x, 64), 4e-3)


def check_all(device: Device) -> None:
    """Every kernel but those of the tensor cores (`tensor.checked_kernels`).

    Raises VerificationError, and CudaError when one does not run at all.
    """
    check_bandwidth(device)
    check_arithmetic(device)


def _wait(device: Device) -> None:
    device.wait(device.stream)
