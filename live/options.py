"""What a script may set when it attaches a policy, and how far a policy may go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from live.gradients import Reduction

Mode = Literal["observe", "advise", "act"]
Lever = Literal["samples", "moves", "order", "interval", "share", "resize"]
LEVERS: tuple[Lever, ...] = ("samples", "moves", "order", "interval", "share", "resize")


@dataclass(frozen=True)
class Bounds:
    """Hard bounds: the part of a plan that goes beyond them is refused, whatever the policy says."""

    samples_min: int = 0  # per rank and round
    samples_max: int | None = None  # per rank and round; none: what memory holds, where that is measured
    interval_max: int = 64
    share_min: float = 0.05
    workers_min: int | None = None  # none: the number of ranks at the start
    workers_max: int | None = None

    def __post_init__(self) -> None:
        if self.samples_min < 0 or (
            self.samples_max is not None and self.samples_max < max(1, self.samples_min)
        ):
            raise ValueError("bounds: 0 <= samples_min <= samples_max is needed")
        if self.interval_max < 1 or not 0 < self.share_min <= 1:
            raise ValueError("bounds: interval_max must be at least 1, share_min in (0, 1]")


_COMMON = (
    "global_batch",
    "micro_batch",
    "accumulation",
    "loss_reduction",
    "decide_every",
    "statistics_every",
    "shards",
    "shuffle",
    "seed",
    "outer_lr",
    "outer_momentum",
)


@dataclass(frozen=True)
class Options:
    """Settings of one attachment; see `live.attach.attach` for their meaning."""

    global_batch: int
    mode: Mode = "act"
    micro_batch: int = 1
    accumulation: int = 1
    loss_reduction: Reduction = "mean"
    batch_reference: int | None = None
    decide_every: int = 6
    statistics_every: int = 10
    decision_budget_s: float = 0.25
    warm_up_budget_s: float = 30.0
    control_timeout_s: float = 1800.0
    allow: frozenset[Lever] = frozenset(("samples", "moves", "order", "interval", "share"))
    bounds: Bounds = Bounds()
    drift: float = math.nan
    samples_target: int | None = None
    sample_bytes: float = 0.0
    shards: int = 64
    shuffle: bool = True
    seed: int = 0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    run_dir: Path | None = None
    prometheus_port: int | None = None
    mlflow: bool = False
    nvml: bool = True
    share_backend: Literal["none", "duty-cycle", "green-context", "mps"] = "none"
    state: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (
            "global_batch",
            "micro_batch",
            "accumulation",
            "decide_every",
            "statistics_every",
            "shards",
        ):
            if int(getattr(self, name)) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed, at least 1 is needed")
        if self.mode not in ("observe", "advise", "act"):
            raise ValueError(f"mode: {self.mode!r} is not one of observe, advise, act")
        if self.loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction: {self.loss_reduction!r} is not one of mean, sum")
        unknown = set(self.allow) - set(LEVERS)
        if unknown:
            raise ValueError(f"allow: {sorted(unknown)} unknown; allowed: {', '.join(LEVERS)}")
        for name in ("decision_budget_s", "warm_up_budget_s", "control_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be above 0")
        if self.micro_batch > self.global_batch:
            raise ValueError(f"micro_batch {self.micro_batch} is more than global_batch {self.global_batch}")
        if self.batch_reference is not None and self.batch_reference > self.global_batch:
            raise ValueError("batch_reference must not exceed global_batch")

    def common(self) -> dict[str, Any]:
        """What must be the same on every rank, because each deals and counts for itself."""
        return {name: getattr(self, name) for name in _COMMON}
