"""Which matrix products to time on a GPU, and by which library."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from equipoise.calibrate.device.cuda import Device
from equipoise.calibrate.measure import cublaslt
from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.timing import LEAST_REPEATS, MOST_REPEATS, DeviceTimer

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
# Shapes (m, n, k): squares for the efficiency by size, thin ones that traffic limits, those of transformers.
QUICK_SHAPES = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (16, 4096, 4096),
    (128, 8192, 2048),
)
FULL_SHAPES = (
    *QUICK_SHAPES,
    (128, 128, 128),
    (384, 384, 384),
    (768, 768, 768),
    (1536, 1536, 1536),
    (3072, 3072, 3072),
    (6144, 6144, 6144),
    (1, 8192, 8192),
    (64, 4096, 4096),
    (256, 4096, 1024),
    (1024, 3072, 768),
    (2048, 768, 3072),
    (4096, 1024, 4096),
    (8192, 5120, 1280),
    (16384, 1024, 1024),
    (2048, 16384, 512),
    (512, 2048, 16384),
)
LARGEST_FP32 = 4096  # larger products on the ordinary pipes take too long and show nothing new


def gemm_measures(device: Device, timer: DeviceTimer, quick: bool) -> list[Measure]:
    """cuBLASLt over shapes and precisions. Each first use of a precision is checked against NumPy."""
    precisions = [p for p in PRECISIONS if p != "fp8" or (device.major, device.minor) >= (8, 9)]
    checked: set[str] = set()
    return [
        Measure(
            "gemm",
            {"precision": precision, "m": m, "n": n, "k": k, "library": "cublasLt"},
            partial(_gemm, device, timer, checked, precision, m, n, k),
            weight=0.5,
        )
        for precision in precisions
        for m, n, k in (QUICK_SHAPES if quick else FULL_SHAPES)
        if not (precision == "fp32" and m * n * k > LARGEST_FP32**3) and not (precision == "fp8" and m % 16)
    ]


def _gemm(
    device: Device, timer: DeviceTimer, checked: set[str], precision: str, m: int, n: int, k: int, budget_s: float
) -> Outcome:
    if precision not in checked:
        cublaslt.check_gemm(device, precision)
        checked.add(precision)
    return cublaslt.time_gemm(device, timer, precision, m, n, k, budget_s)


def torch_gemm_measures(quick: bool) -> list[Measure]:
    """The same products through PyTorch, a second method; none where it is not installed for CUDA."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    sizes = (4096, 8192) if quick else (1024, 2048, 4096, 8192)
    return [
        Measure(
            "gemm",
            {"precision": precision, "m": size, "n": size, "k": size, "library": "torch"},
            partial(_torch_gemm, precision, size),
        )
        for precision in ("tf32", "fp16", "bf16")
        for size in sizes
    ]


def _torch_gemm(precision: str, size: int, budget_s: float) -> Outcome:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    dtype = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    low, high = cublaslt.MAGNITUDES

    def operand() -> torch.Tensor:
        """Values as the other method has them: the rate depends on them."""
        magnitude = torch.rand(size, size, device="cuda") * (high - low) + low
        return (magnitude * (torch.randint(0, 2, (size, size), device="cuda") * 2 - 1)).to(dtype)

    sets = [(operand(), operand()) for _ in range(3)]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def ten() -> float:
        """Device seconds of one of ten products queued together, by events as the other method has them."""
        start.record()
        for k in range(10):
            torch.matmul(*sets[k % len(sets)])
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-4

    ten()
    times: list[float] = []
    deadline = time.perf_counter() + budget_s
    while len(times) < LEAST_REPEATS or (time.perf_counter() < deadline and len(times) < MOST_REPEATS):
        times.append(ten())
    return tuple(times)
