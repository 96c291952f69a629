"""How fast one GPU runs each kind of operation, and how fast its host queues them.

Files: `measured/NAME.yaml`, fitted to operations and profiled training steps on that GPU (`tests/bench/gpu/rates.py`).
A GPU without a file takes the shares of its data sheet that another one reaches, with a wider interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from equipoise.base.files import write_whole
from equipoise.calibrate.trace.work import LINEAR_ALGEBRA, READ, RECURRENCE, TracedOperation, kind_on_core
from equipoise.sim.hardware.profile import Accelerator, load_profile

FOLDER = Path(__file__).parent / "measured"
NEAREST = "h100"
"""Whose shares a GPU without a file takes."""
EXTRAPOLATED = 0.3
"""Relative half-width of the interval where shares are another GPU's; assumed."""
RECURRENCE_S = 15e-6
"""Least seconds of one time of a recurrent layer on a GPU: a small product and what follows it; assumed."""
FACTORISED = 2e11
"""FLOP/s of factorisations of a matrix; assumed."""


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
    """Time beyond the launch: bytes / bytes_per_s + FLOP / flop_per_s; None: that part takes none.

    The first cache_bytes of an operation move at cached_bytes_per_s.
    """

    bytes_per_s: float | None = None
    flop_per_s: float | None = None
    cached_bytes_per_s: float | None = None
    cache_bytes: float = 0.0

    def seconds(self, moved: float, flop: float) -> float:
        """Seconds to move the given bytes and compute the given FLOP."""
        cached = min(moved, self.cache_bytes)
        parts = (cached, self.cached_bytes_per_s), (moved - cached, self.bytes_per_s), (flop, self.flop_per_s)
        return sum(amount / rate for amount, rate in parts if rate)


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
    product: ProductRates | None
    kinds: Mapping[str, KindRates]
    host: HostRates
    error: float
    origin: str
    serial: bool = False  # a CPU core, which runs each operation before it goes on

    def seconds(self, work: TracedOperation) -> float:
        """Seconds of the GPU for one operation; most kinds that were not measured count as elementwise ones."""
        if not work.kind or work.kind == READ:
            return 0.0
        if work.kind == "product" and work.product is not None and self.product is not None:
            return self.launch_s + self.product.seconds(*work.product)
        if work.kind == RECURRENCE and work.product is not None and self.product is not None:
            times, *each = work.product
            return times * max(RECURRENCE_S, self.product.seconds(1, *each))
        if work.kind == LINEAR_ALGEBRA:
            return self.launch_s + work.flop / FACTORISED
        return self.launch_s + self.kind(work).seconds(work.bytes, work.flop)

    def kind(self, work: TracedOperation) -> KindRates:
        """Rates of an operation's kind, or of the nearest one that was measured."""
        return self.kinds.get(self.named(work)) or self.kinds.get(work.kind) or self.kinds["elementwise"]

    def unmeasured(self, operations: Iterable[TracedOperation]) -> list[str]:
        """Kinds of operations without a measured rate."""
        known = {"", READ, *self.kinds} | ({"product"} if self.product is not None else set())
        return sorted({self.named(work) for work in operations if work.kind and work.kind != READ} - known)

    def named(self, work: TracedOperation) -> str:
        """The kind of an operation by which its time is known."""
        return kind_on_core(work) if self.serial else work.kind

    def scaled(self, name: str, products: float, memory: float, origin: str) -> OperationRates:
        """Rates of another GPU: `products` times the FLOP and `memory` times the bytes a second."""
        of = self.product
        return replace(
            self,
            name=name,
            product=of and replace(of, flop_per_s=of.flop_per_s * products, bytes_per_s=of.bytes_per_s * memory),
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
    product, host = raw.pop("product", None), HostRates(**raw.pop("host"))
    return OperationRates(kinds=kinds, product=product and ProductRates(**product), host=host, **raw)


def write_rates(rates: OperationRates, path: Path) -> None:
    """Write rates with six digits."""
    write_whole(path, yaml.safe_dump(_digits(asdict(rates)), sort_keys=False, width=120))


def _digits(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _digits(inner) for key, inner in value.items() if inner is not None}
    return value


def beside(profile: Path) -> Path:
    """The file of a calibrated profile's rates of operations."""
    return profile.with_suffix(".operations.yaml")


def rates_of(gpu: str, hardware: str = "catalogue") -> OperationRates:
    """Rates of a GPU by the name of its file (h100), of its accelerator (h100_sxm) or of a calibrated PROFILE.yaml.

    Raises ValueError, one line, for a name that no profile knows.
    """
    if gpu.endswith(".yaml"):
        path = beside(Path(gpu))
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file; 'equipoise calibrate --device cpu' writes it")
        return read_rates(path)
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
