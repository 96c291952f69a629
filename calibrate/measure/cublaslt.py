"""Matrix products through the vendor's library (cuBLASLt), by its C interface.

The library ranks its own algorithms for a shape; each of the first few is timed and the fastest kept, so that
the figure is the library's best and not its first guess. Signatures are those of cublasLt.h 12 and 13.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.calibrate.device.cuda import Buffer, Device
from equipoise.calibrate.device.libraries import load_library
from equipoise.calibrate.fit.robust import Floats
from equipoise.calibrate.measure.measure import MeasureMissingError
from equipoise.calibrate.measure.timing import DeviceTimer
from equipoise.calibrate.measure.verify import VerificationError, to_bits

WORKSPACE_BYTES = 64 * 2**20
ALGORITHMS = 6
MAGNITUDES = (0.25, 3.75)  # of operands: normal numbers in every format
OPERATION_T = 1
DESC_TRANSPOSE_A = 3
DESC_A_SCALE, DESC_B_SCALE = 17, 18
PREFERENCE_WORKSPACE = 1

# cudaDataType_t and cublasComputeType_t.
R_32F, R_16F, R_16BF, R_8F_E4M3 = 0, 2, 14, 28
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77


@dataclass(frozen=True)
class Format:
    """Data types of operands, computation and result of a precision."""

    input: int
    output: int
    compute: int
    input_bytes: int
    output_bytes: int
    encoding: str


FORMATS = {
    "fp32": Format(R_32F, R_32F, COMPUTE_32F, 4, 4, "tf32"),
    "tf32": Format(R_32F, R_32F, COMPUTE_32F_FAST_TF32, 4, 4, "tf32"),
    "fp16": Format(R_16F, R_16F, COMPUTE_32F, 2, 2, "fp16"),
    "bf16": Format(R_16BF, R_16BF, COMPUTE_32F, 2, 2, "bf16"),
    "fp8": Format(R_8F_E4M3, R_16BF, COMPUTE_32F, 1, 2, "fp8"),
}


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


class CublasError(RuntimeError):
    """A library call failed; the message names it."""


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    install = "install PyTorch for CUDA, or pip install nvidia-cublas"
    return load_library("cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"), install)


def _call(function: str, *arguments: object) -> None:
    code = getattr(_library(), function)(*arguments)
    if code != 0:
        raise CublasError(f"{function}: status {code}")


def version() -> int:
    """cuBLASLt's version number, e.g. 130000. Raises LibraryMissingError."""
    _library().cublasLtGetVersion.restype = c_size_t
    return int(_library().cublasLtGetVersion())


class Gemm:
    """C (m, n) = A (m, k) @ B (k, n) of one shape and precision on a device.

    A and B^T are stored row by row, so that both are read along k (what fp8 needs). Raises MissingError when
    the library has no algorithm for it here.
    """

    def __init__(self, device: Device, precision: str, m: int, n: int, k: int) -> None:
        self.device, self.format, self.shape = device, FORMATS[precision], (m, n, k)
        self._handle, self._operation = c_void_p(), c_void_p()
        _call("cublasLtCreate", byref(self._handle))
        _call("cublasLtMatmulDescCreate", byref(self._operation), c_int(self.format.compute), c_int(R_32F))
        transpose = c_int32(OPERATION_T)
        self._describe(DESC_TRANSPOSE_A, transpose)
        self._workspace = Buffer(WORKSPACE_BYTES)
        self._scale = Buffer(4).write(np.ones(1, np.float32))
        if precision == "fp8":
            for attribute in (DESC_A_SCALE, DESC_B_SCALE):
                self._describe(attribute, self._scale.pointer)
        # Column-major to the library: C^T (n, m) = (B^T stored (k, n) column by column)^T @ A^T (k, m).
        self._layouts = (
            self._layout(self.format.input, k, n),
            self._layout(self.format.input, k, m),
            self._layout(self.format.output, n, m),
        )
        self.algorithms = self._ranked()

    def _describe(self, attribute: int, value: ctypes._SimpleCData[int]) -> None:
        size = c_size_t(ctypes.sizeof(value))
        _call("cublasLtMatmulDescSetAttribute", self._operation, c_int(attribute), byref(value), size)

    @staticmethod
    def _layout(kind: int, rows: int, columns: int) -> c_void_p:
        layout = c_void_p()
        size = (c_uint64(rows), c_uint64(columns), c_int64(rows))
        _call("cublasLtMatrixLayoutCreate", byref(layout), c_int(kind), *size)
        return layout

    def _ranked(self) -> list[_Result]:
        preference, found = c_void_p(), c_int()
        _call("cublasLtMatmulPreferenceCreate", byref(preference))
        limit = c_size_t(WORKSPACE_BYTES)
        _call(
            "cublasLtMatmulPreferenceSetAttribute",
            preference,
            c_int(PREFERENCE_WORKSPACE),
            byref(limit),
            c_size_t(ctypes.sizeof(limit)),
        )
        results = (_Result * ALGORITHMS)()
        left, right, out = self._layouts
        try:
            _call(
                "cublasLtMatmulAlgoGetHeuristic",
                self._handle,
                self._operation,
                left,
                right,
                out,
                out,
                preference,
                c_int(ALGORITHMS),
                results,
                byref(found),
            )
        except CublasError as error:
            raise MeasureMissingError(f"cuBLASLt has no algorithm for {self.shape} on this device ({error})") from None
        finally:
            _library().cublasLtMatmulPreferenceDestroy(preference)
        usable = [r for r in results[: found.value] if r.status == 0]
        if not usable:
            raise MeasureMissingError(f"cuBLASLt has no algorithm for {self.shape} on this device")
        return usable

    def queue(self, algorithm: _Result, a: c_uint64, b_transposed: c_uint64, out: c_uint64) -> None:
        """Queue one product."""
        one, zero = c_float(1.0), c_float(0.0)
        left, right, result = self._layouts
        _call(
            "cublasLtMatmul",
            self._handle,
            self._operation,
            byref(one),
            b_transposed,
            left,
            a,
            right,
            byref(zero),
            out,
            result,
            out,
            result,
            byref(algorithm),
            self._workspace.pointer,
            c_size_t(WORKSPACE_BYTES),
            self.device.stream,
        )

    def close(self) -> None:
        """Destroy the library's objects."""
        for layout in self._layouts:
            _library().cublasLtMatrixLayoutDestroy(layout)
        _library().cublasLtMatmulDescDestroy(self._operation)
        _library().cublasLtDestroy(self._handle)
        self._workspace.free()


def check_gemm(device: Device, precision: str, m: int = 48, n: int = 32, k: int = 64) -> None:
    """The library's product of known operands against NumPy's. Raises VerificationError, MissingError."""
    form = FORMATS[precision]
    random = np.random.default_rng(5)
    a, b = random.integers(-3, 4, (m, k)) / 2.0, random.integers(-3, 4, (k, n)) / 2.0
    gemm = Gemm(device, precision, m, n, k)
    try:
        left = Buffer(m * k * form.input_bytes).write(to_bits(a, form.encoding))
        right = Buffer(n * k * form.input_bytes).write(to_bits(np.ascontiguousarray(b.T), form.encoding))
        out = Buffer(m * n * form.output_bytes).fill(0x7FC07FC0)
        gemm.queue(gemm.algorithms[0], left.pointer, right.pointer, out.pointer)
        device.wait(device.stream)
        got = _decoded(out, form.output, m * n).reshape(m, n)
    finally:
        gemm.close()
    error = float(np.abs(got - a @ b).max() / np.abs(a @ b).max())
    if not error <= 1e-2:  # bf16 results keep 8 bits
        raise VerificationError(f"matrix product in {precision}: wrong by {error:.2g} relative")


def _decoded(out: Buffer, kind: int, count: int) -> Floats:
    if kind == R_16BF:
        return (out.read(np.uint16, count).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return out.read(np.float16 if kind == R_16F else np.float32, count).astype(np.float64)


def time_gemm(
    device: Device, timer: DeviceTimer, precision: str, m: int, n: int, k: int, budget_s: float
) -> tuple[float, ...]:
    """Seconds of one product by the fastest of the library's algorithms, operands rotated past the L2.

    Raises MissingError, LibraryMissingError.
    """
    gemm = Gemm(device, precision, m, n, k)
    try:
        rotating = _operands(device, gemm.format, m, n, k)

        def queue(algorithm: _Result, index: int) -> None:
            """One product on the next set of operands."""
            a, b, out = rotating[index % len(rotating)]
            gemm.queue(algorithm, a.pointer, b.pointer, out.pointer)

        def rough(algorithm: _Result) -> float:
            """The best of three short timings (s)."""
            queue(algorithm, 0)
            device.wait(device.stream)
            return min(timer.once(lambda i: queue(algorithm, i), 3) for _ in range(3))

        best = min(gemm.algorithms, key=rough)
        return timer.times(lambda i: queue(best, i), budget_s)
    finally:
        gemm.close()


def _operands(device: Device, form: Format, m: int, n: int, k: int) -> list[tuple[Buffer, Buffer, Buffer]]:
    """Enough sets of operands to be larger than twice the L2, at most 16, of values as training has them.

    Random mantissas: products of round numbers switch fewer transistors, draw less power and so run faster.
    """
    one_bytes = (m * k + n * k) * form.input_bytes + m * n * form.output_bytes
    sets = int(min(max(2 * device.l2_bytes // max(one_bytes, 1) + 1, 2), 16))
    random = np.random.default_rng(0)
    signs = random.integers(0, 2, 2**16) * 2 - 1
    block = to_bits(signs * random.uniform(*MAGNITUDES, 2**16), form.encoding)
    made = []
    for _ in range(sets):
        a, b = (device.tile(Buffer(rows * k * form.input_bytes), block) for rows in (m, n))
        made.append((a, b, Buffer(m * n * form.output_bytes)))
    return made
