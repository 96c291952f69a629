"""Benchmarks of a CPU: memory, arithmetic, matrix products, shared and contended cores, storage, preprocessing.

The same measurements as on a GPU where they have a counterpart, through NumPy (its BLAS for matrix products).
Work is spread over one thread a core; NumPy releases the interpreter while it computes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.timing import time_calls, time_calls_batched
from equipoise.calibrate.samples import CPU_TIME

MIB = 2**20
QUICK_GEMM = (64, 128, 256, 384, 512, 768, 1024)
FULL_GEMM = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
THIN = ((16, 1024, 1024), (1, 2048, 2048), (256, 1024, 64))
BLOCK = 4096  # elements of the compute-bound loop: 32 KiB, within the first-level cache
LARGEST_ARRAY_BYTES = 512 * MIB

Array = npt.NDArray[Any]


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def last_level_cache_bytes() -> int:
    """Size of the largest cache that the kernel describes; 32 MiB where it describes none."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 1024, "M": MIB}.get(text[-1], 1))
    return max(sizes, default=32 * MIB)


class HostBench:
    """The measurements of this machine's CPU."""

    def __init__(self, quick: bool, folder: Path | None = None) -> None:
        self.quick = quick
        self.cores = cores()
        self.folder = folder
        self._pool = ThreadPoolExecutor(self.cores)
        cache = last_level_cache_bytes()
        self.array_bytes = min(max(4 * cache, 64 * MIB), LARGEST_ARRAY_BYTES)

    @cached_property
    def arrays(self) -> tuple[Array, Array, Array]:
        """Three arrays of doubles, each larger than the last-level cache."""
        first = np.random.default_rng(0).standard_normal(self.array_bytes // 8)
        return first, first[::-1].copy(), np.zeros_like(first)

    def measures(self) -> list[Measure]:
        """All measurements, in the order in which they run."""
        return [*self.memory(), *self.gemm(), *self.sharing(), *self.storage(), self.preprocessing()]

    def memory(self) -> list[Measure]:
        """Copy, read and add (STREAM's a = b + c; McCalpin 1995) on all cores, past every cache."""
        traffic = {"copy": 2, "read": 1, "add": 3}
        return [
            Measure(
                kind, {"bytes": factor * self.array_bytes, "array_bytes": self.array_bytes}, partial(self._stream, kind)
            )
            for kind, factor in traffic.items()
        ]

    def _stream(self, kind: str, budget_s: float) -> Outcome:
        return time_calls(partial(self._on_cores, self.cores, self._part(kind)), budget_s, least=4)

    def _part(self, kind: str) -> Callable[[int, int], object]:
        a, b, out = self.arrays

        def part(index: int, parts: int) -> object:
            """One core's rows of the arrays."""
            rows = slice(index * len(a) // parts, (index + 1) * len(a) // parts)
            if kind == "copy":
                return np.positive(a[rows], out=out[rows])
            if kind == "read":
                return np.dot(a[rows], a[rows])
            return np.add(a[rows], b[rows], out=out[rows])

        return part

    def _on_cores(self, count: int, part: Callable[[int, int], object]) -> None:
        if count == 1:
            part(0, 1)
            return
        for done in [self._pool.submit(part, index, count) for index in range(count)]:
            done.result()

    def gemm(self) -> list[Measure]:
        """Square products over sizes and a few thin ones, through NumPy's BLAS."""
        squares = [(n, n, n) for n in (QUICK_GEMM if self.quick else FULL_GEMM)]
        precisions = ("fp32",) if self.quick else ("fp32", "fp64")
        return [
            Measure(
                "gemm",
                {"precision": precision, "m": m, "n": n, "k": k, "library": "NumPy BLAS"},
                partial(_gemm, precision, m, n, k),
                weight=0.5,
            )
            for precision in precisions
            for m, n, k in (*squares, *THIN)
        ]

    def sharing(self) -> list[Measure]:
        """Rate on some of the cores, and a kernel's slow-down while the other cores run another."""
        if self.cores < 2:
            return []
        counts = sorted({1, self.cores // 2, self.cores})
        curve = [
            Measure(
                "share",
                {"kernel": kernel, "share": count / self.cores, "method": "cores"},
                partial(self._share, kernel, count),
            )
            for count in counts
            for kernel in ("compute", "memory")
        ]
        pairs = [
            Measure(
                "interference",
                {"kernel": kernel, "neighbour": neighbour, "others_utilisation": 1.0, "method": "cores"},
                partial(self._together, kernel, neighbour),
                unit="1",
            )
            for kernel, neighbour in (("compute", "memory"), ("memory", "memory"))
        ]
        return curve + pairs

    def _work(self, kernel: str) -> Callable[[int, int], object]:
        """A fixed amount of work cut into parts: memory copies a part of an array, compute stays in cache."""
        if kernel == "memory":
            return self._part("copy")
        block = np.linspace(0.0, 1.0, BLOCK)

        def part(index: int, parts: int) -> object:
            """One core's share of the passes over a block."""
            out = np.empty_like(block)
            for _ in range(400 * (index + 1) // parts - 400 * index // parts):
                np.sin(block, out=out)
            return out

        return part

    def _share(self, kernel: str, count: int, budget_s: float) -> Outcome:
        return time_calls(partial(self._on_cores, count, self._work(kernel)), budget_s, least=4)

    def _together(self, kernel: str, neighbour: str, budget_s: float) -> Outcome:
        """Slow-down of `kernel` on half the cores while the others run `neighbour`; one value a repeat."""
        half = max(self.cores // 2, 1)
        mine, other = self._work(kernel), self._work(neighbour)
        stop = False

        def disturb(index: int) -> None:
            """Run the neighbour's work until told to stop."""
            while not stop:
                other(index, self.cores)

        ratios: list[float] = []
        deadline = time.perf_counter() + budget_s
        while len(ratios) < 4 or (time.perf_counter() < deadline and len(ratios) < 50):
            alone = time_calls(partial(self._alone, mine, half), 0.0, least=2)
            stop = False
            busy = [self._pool.submit(disturb, half + k) for k in range(self.cores - half)]
            try:
                beside = time_calls(partial(self._alone, mine, half), 0.0, least=2)
            finally:
                stop = True
                for done in busy:
                    done.result()
            ratios.append(min(beside) / min(alone))
        return tuple(ratios)

    def _alone(self, part: Callable[[int, int], object], count: int) -> None:
        """The first `count` of as many parts as there are cores, the first of them in this thread."""
        others = [self._pool.submit(part, index, self.cores) for index in range(1, count)]
        part(0, self.cores)
        for done in others:
            done.result()

    def storage(self) -> list[Measure]:
        """Write with fsync, and read past the page cache, one file in the folder."""
        size = (32 if self.quick else 256) * MIB
        return [
            Measure(f"storage_{way}", {"bytes": size}, partial(self._storage, way, size)) for way in ("write", "read")
        ]

    def _storage(self, way: str, size: int, budget_s: float) -> Outcome:
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
        with tempfile.NamedTemporaryFile(dir=self.folder, prefix="equipoise-") as file:

            def write() -> None:
                """Write all of the file, to the device."""
                file.seek(0)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

            def read() -> None:
                """Read all of the file, past the page cache."""
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(0)
                while file.read(4 * MIB):
                    pass

            write()
            return time_calls(write if way == "write" else read, budget_s, least=3)

    def preprocessing(self) -> Measure:
        """Image samples prepared by one core: crop, flip and normalise 256 x 256 x 3 bytes to 224 x 224."""
        samples = 32
        return Measure(
            "preprocess",
            {"samples": samples, "work": "crop, flip, normalise", "clock": CPU_TIME},
            partial(_prepare, samples),
        )

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _gemm(precision: str, m: int, n: int, k: int, budget_s: float) -> Outcome:
    random = np.random.default_rng(0)
    dtype = np.float32 if precision == "fp32" else np.float64
    a, b = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
    out = np.empty((m, n), dtype)
    return time_calls_batched(lambda: np.matmul(a, b, out=out), budget_s)


def _prepare(samples: int, budget_s: float) -> Outcome:
    images = np.random.default_rng(0).integers(0, 256, (samples, 256, 256, 3), np.uint8)
    mean, scale = np.float32(118.0), np.float32(1.0 / 58.0)

    def once() -> None:
        """Prepare every sample."""
        for k, image in enumerate(images):
            crop = image[k % 32 : k % 32 + 224, k % 32 : k % 32 + 224]
            flipped = crop[:, ::-1] if k % 2 else crop
            (flipped.astype(np.float32) - mean) * scale

    return time_calls(once, budget_s, clock=time.process_time)
