"""Settings of an attachment, and hard bounds of a policy."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from equipoise.live.rules import Rule, follow, one_of, optional, real, whole
from equipoise.policies.plan import RULES, RateRule

Reduction = Literal["mean", "sum"]
Mode = Literal["observe", "advise", "act"]
Lever = Literal["samples", "moves", "order", "interval", "share", "batch"]
Backend = Literal["none", "duty-cycle", "green-context", "mps"]
LEVERS: tuple[Lever, ...] = get_args(Lever)


def _levers(value: Any) -> frozenset[Any]:
    if isinstance(value, str) or not set(value) <= set(LEVERS):
        raise ValueError
    return frozenset(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _drift(value: Any) -> float | str:
    if value == "measured" and isinstance(value, str):
        return value
    if isinstance(value, bool | str) or not (math.isnan(value) or 0 <= value < math.inf):
        raise ValueError
    return float(value)


_POSITIVE = real(lambda v: 0 < v < math.inf, "a finite number above 0")
_BOUNDS_RULES: dict[str, Rule] = {
    "samples_min": whole(0),
    "samples_max": optional(whole(1)),
    "interval_max": whole(1),
    "share_min": real(lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
}
_RULES: dict[str, Rule] = {
    "global_batch": whole(1),
    "mode": one_of(*get_args(Mode)),
    "micro_batch": whole(1),
    "accumulation": whole(1),
    "loss_reduction": one_of(*get_args(Reduction)),
    "batch_reference": optional(whole(1)),
    "batch_max": optional(whole(1)),
    "learning_rate": optional(one_of(*RULES)),
    "decide_every": optional(whole(1)),
    "delay_rounds": whole(0),
    "statistics_every": whole(1),
    "decision_budget_s": _POSITIVE,
    "warm_up_budget_s": _POSITIVE,
    "control_timeout_s": _POSITIVE,
    "allow": (_levers, f"a set of {', '.join(LEVERS)}"),
    "bounds": (lambda value: value if isinstance(value, Bounds) else int("no"), "an equipoise.live.options.Bounds"),
    "drift": (_drift, 'a finite number of at least 0, NaN (unknown), or "measured"'),
    "samples_target": optional(whole(1)),
    "weighted": one_of(True, False),
    "sample_bytes": real(lambda v: 0 <= v < math.inf, "a finite number of at least 0"),
    "shards": whole(1),
    "shuffle": one_of(True, False),
    "drop_last": one_of(True, False),
    "seed": whole(0),
    "outer_lr": _POSITIVE,
    "outer_momentum": real(lambda v: 0 <= v < 1, "a number of at least 0 and under 1"),
    "run_dir": optional((lambda value: Path(os.fspath(value)), "a path")),
    "prometheus_port": optional(whole(0, 65535)),
    "prometheus_host": (_text, "the name or address of a network interface"),
    "mlflow": one_of(True, False),
    "nvml": one_of(True, False),
    "plugins": one_of(True, False),
    "strict": one_of(True, False),
    "share_backend": one_of(*get_args(Backend)),
}


@dataclass(frozen=True)
class Bounds:
    """Hard bounds: parts of a plan that exceed them are refused.

    Raises ValueError for a bound that is not allowed.
    """

    samples_min: int = 1  # per rank and round; 0: a rank without samples reads one without weight
    samples_max: int | None = None  # per rank and round; none: as many as fit into memory, if measured
    interval_max: int = 64
    share_min: float = 0.05

    def __post_init__(self) -> None:
        follow(_BOUNDS_RULES, self, "bounds: ")
        if self.samples_max is not None and self.samples_min > self.samples_max:
            raise ValueError(f"bounds: minimum {self.samples_min} is above maximum {self.samples_max}")


_COMMON = (
    "global_batch",
    "micro_batch",
    "accumulation",
    "loss_reduction",
    "weighted",
    "decide_every",
    "delay_rounds",
    "statistics_every",
    "learning_rate",
    "shards",
    "shuffle",
    "drop_last",
    "seed",
    "outer_lr",
    "outer_momentum",
)


@dataclass(frozen=True)
class Options:
    """Settings of one attachment; see `live.attach.attach` for their meaning.

    Raises ValueError for the first that is not allowed, in one line: its name, its value, the allowed values.
    """

    global_batch: int
    mode: Mode = "act"
    micro_batch: int = 1
    accumulation: int = 1
    loss_reduction: Reduction = "mean"
    weighted: bool = False
    batch_reference: int | None = None
    batch_max: int | None = None
    learning_rate: RateRule | None = None
    decide_every: int | None = None
    delay_rounds: int = 0
    statistics_every: int = 10
    decision_budget_s: float = 0.25
    warm_up_budget_s: float = 30.0
    control_timeout_s: float = 1800.0
    allow: frozenset[Lever] = frozenset(("samples", "moves", "order", "interval", "share", "batch"))
    bounds: Bounds = Bounds()
    drift: float | Literal["measured"] = math.nan
    samples_target: int | None = None
    sample_bytes: float = 0.0
    shards: int = 64
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    run_dir: Path | None = None
    prometheus_port: int | None = None
    prometheus_host: str = "127.0.0.1"
    mlflow: bool = False
    nvml: bool = True
    plugins: bool = False
    strict: bool = False
    share_backend: Backend = "none"

    def __post_init__(self) -> None:
        follow(_RULES, self)
        if self.micro_batch > self.global_batch:
            raise ValueError(
                f"micro_batch: {self.micro_batch} is not allowed; needed: at most global_batch ({self.global_batch})"
            )
        if self.delay_rounds >= self.every:
            raise ValueError(
                f"delay_rounds: {self.delay_rounds} is not allowed; needed: below decide_every ({self.every})"
            )
        if self.weighted and self.loss_reduction == "sum":
            raise ValueError("weighted: True is not allowed with loss_reduction 'sum', which is already weighted")
        if self.batch_reference is not None and self.batch_reference > self.global_batch:
            raise ValueError(
                f"batch_reference: {self.batch_reference} is not allowed; needed: at most global_batch "
                f"({self.global_batch})"
            )
        if self.batch_max is not None and self.batch_max < self.global_batch:
            raise ValueError(
                f"batch_max: {self.batch_max} is not allowed; needed: at least global_batch ({self.global_batch})"
            )

    @property
    def every(self) -> int:
        """Rounds between decisions, or, if nothing is decided, between exchanges of what ranks measured."""
        return self.decide_every or (50 if self.mode == "observe" else 10)

    @property
    def may_step_alone(self) -> bool:
        """Whether a plan may ask for local steps."""
        return self.mode == "act" and "interval" in self.allow and self.local_steps

    @property
    def local_steps(self) -> bool:
        """Whether local steps are wanted: their drift is given, or is to be measured."""
        return self.drift == "measured" or not math.isnan(self.drift)

    @property
    def assumed_drift(self) -> float:
        """The drift before any measurement; if it is to be measured, one that allows two local steps."""
        return 0.1 if isinstance(self.drift, str) else self.drift

    def common(self) -> dict[str, Any]:
        """Options that must be equal on all ranks, because each rank splits the batch by itself."""
        return {name: getattr(self, name) for name in _COMMON}
