"""How fast one GPU runs each kind of operation, and how fast its host queues them.

Files: `measured/NAME.yaml`, fitted to operations and profiled training steps on that GPU (`tests/bench/gpu/rates.py`).
A GPU without a file takes the shares of its data sheet that another one reaches, with a wider interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from equipoise.calibrate.trace.work import READ, TracedOperation
from equipoise.sim.hardware.profile import Accelerator, load_profile

FOLDER = Path(__file__).parent / "measured"
NEAREST = "h100"
"""Whose shares a GPU without a file takes."""
EXTRAPOLATED = 0.3
"""Relative half-width of the interval where shares are another GPU's; assumed."""


@dataclass(frozen=True)
class ProductRates:
    """Time of a product (m, n, k) of 16-bit numbers: launch + the longer of FLOP / rate and bytes / memory rate.

    rate = flop_per_s * k / (k + half_k), times `even` or `odd` where a dimension is a multiple of 2 alone or of
    nothing (tensor cores want multiples of 8: NVIDIA, "Matrix Multiplication Background", section 3).
    """

    flop_per_s: float
    half_k: float
    even: float
    odd: float
    bytes_per_s: float

    def seconds(self, groups: int, m: int, n: int, k: int) -> float:
        """Seconds of `groups` products at once, without the launch."""
        aligned = min(d & -d for d in (m, n, k))
        share = 1.0 if aligned >= 8 else (self.even if aligned >= 2 else self.odd)
        share *= k / (k + self.half_k)
        padded = float(groups) * _padded(m) * _padded(n) * k
        moved = 2.0 * groups * (m * k + k * n + m * n)
        return max(2.0 * padded / (self.flop_per_s * share), moved / self.bytes_per_s)


def _padded(size: int) -> int:
    return -(-size // 64) * 64


@dataclass(frozen=True)
class KindRates:
    """Time beyond the launch: bytes / bytes_per_s + FLOP / flop_per_s; None: that part takes none."""

    bytes_per_s: float | None = None
    flop_per_s: float | None = None

    def seconds(self, moved: float, flop: float) -> float:
        """Seconds to move the given bytes and compute the given FLOP."""
        return (moved / self.bytes_per_s if self.bytes_per_s else 0.0) + (
            flop / self.flop_per_s if self.flop_per_s else 0.0
        )


@dataclass(frozen=True)
class HostRates:
    """Seconds of the host to queue one operation, by pass; a view only makes a new shape."""

    forward_s: float
    backward_s: float
    view_s: float
    step_s: float = 0.0


@dataclass(frozen=True)
class OperationRates:
    """Rates of one GPU. error: relative half-width of a step's 90 % interval; origin: what it rests on, in words."""

    name: str
    launch_s: float
    product: ProductRates
    kinds: Mapping[str, KindRates]
    host: HostRates
    error: float
    origin: str

    def seconds(self, work: TracedOperation) -> float:
        """Seconds of the GPU for one operation; a kind that was not measured counts as an elementwise one."""
        if not work.kind or work.kind == READ:
            return 0.0
        if work.kind == "product" and work.product is not None:
            return self.launch_s + self.product.seconds(*work.product)
        return self.launch_s + self.kind(work.kind).seconds(work.bytes, work.flop)

    def kind(self, name: str) -> KindRates:
        """Rates of a kind, or of the nearest one that was measured."""
        return self.kinds.get(name) or self.kinds["elementwise"]

    def unmeasured(self, operations: Iterable[TracedOperation]) -> list[str]:
        """Kinds of operations without a measured rate."""
        known = {"", "product", READ, *self.kinds}
        return sorted({work.kind for work in operations} - known)

    def scaled(self, name: str, products: float, memory: float, origin: str) -> OperationRates:
        """Rates of another GPU: `products` times the FLOP and `memory` times the bytes a second."""
        product = self.product
        return replace(
            self,
            name=name,
            product=replace(
                product, flop_per_s=product.flop_per_s * products, bytes_per_s=product.bytes_per_s * memory
            ),
            kinds={
                kind: KindRates(
                    None if rates.bytes_per_s is None else rates.bytes_per_s * memory,
                    None if rates.flop_per_s is None else rates.flop_per_s * products,
                )
                for kind, rates in self.kinds.items()
            },
            error=math.hypot(self.error, EXTRAPOLATED),
            origin=origin,
        )


def measured_rates() -> list[str]:
    """Names of GPUs whose operations were measured."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_rates(path: Path) -> OperationRates:
    """Rates in a file."""
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    kinds = {kind: KindRates(**rates) for kind, rates in raw.pop("kinds").items()}
    product, host = ProductRates(**raw.pop("product")), HostRates(**raw.pop("host"))
    return OperationRates(kinds=kinds, product=product, host=host, **raw)


def rates_of(gpu: str, hardware: str = "catalogue") -> OperationRates:
    """Rates of a GPU by the name of its file (h100) or of its accelerator (h100_sxm).

    Raises ValueError, one line, for a name that no profile knows.
    """
    known = measured_rates()
    for name in known:
        if gpu == name or gpu == f"{name}_sxm":
            return read_rates(FOLDER / f"{name}.yaml")
    profile = load_profile(hardware)
    here, there = profile.accelerator(gpu), profile.accelerator(f"{NEAREST}_sxm")
    base = read_rates(FOLDER / f"{NEAREST}.yaml")
    words = f"{gpu} was not measured: shares of its data sheet as on {NEAREST}"
    return base.scaled(gpu, _ratio(here, there), here.hbm_bytes_per_s.value / there.hbm_bytes_per_s.value, words)


def _ratio(here: Accelerator, there: Accelerator) -> float:
    precision = "bf16" if "bf16" in here.flop_per_s else "fp16"
    return here.peak_flop_per_s(precision) / there.peak_flop_per_s("bf16")
