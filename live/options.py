"""Settings of an attachment, and hard bounds of a policy."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, InstanceOf, PlainValidator, StrictBool

from equipoise.live.rules import Count, Positive, Real, Whole, follow
from equipoise.policies.rate_rules import RateRule

Reduction = Literal["mean", "sum"]
Mode = Literal["observe", "advise", "act"]
Lever = Literal["samples", "moves", "order", "interval", "share", "batch"]
Backend = Literal["none", "duty-cycle", "green-context", "mps"]
LEVERS: tuple[Lever, ...] = get_args(Lever)


def _levers(value: Any) -> frozenset[Any]:
    if isinstance(value, str) or not set(value) <= set(LEVERS):
        raise ValueError(f"a set of {', '.join(LEVERS)}")
    return frozenset(value)


def _drift(value: Any) -> float | str:
    if isinstance(value, str) and value == "measured":
        return value
    if isinstance(value, bool | str) or not (math.isnan(value) or 0 <= value < math.inf):
        raise ValueError('a finite number of at least 0, NaN (unknown), or "measured"')
    return float(value)


@dataclass(frozen=True)
class Bounds:
    """Hard bounds: parts of a plan that exceed them are refused.

    Raises ValueError for a bound that is not allowed.
    """

    samples_min: Whole = 1  # per rank and round; 0: a rank without samples reads one without weight
    samples_max: Count | None = None  # per rank and round; none: as many as fit into memory, if measured
    interval_max: Count = 64
    share_min: Annotated[Positive, Field(le=1)] = 0.05

    def __post_init__(self) -> None:
        follow(self, "bounds: ")
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

    global_batch: Count
    mode: Mode = "act"
    micro_batch: Count = 1
    accumulation: Count = 1
    loss_reduction: Reduction = "mean"
    weighted: StrictBool = False
    batch_reference: Count | None = None
    batch_max: Count | None = None
    learning_rate: RateRule | None = None
    decide_every: Count | None = None
    delay_rounds: Whole = 0
    statistics_every: Count | None = None
    decision_budget_s: Positive = 0.25
    warm_up_budget_s: Positive = 30.0
    control_timeout_s: Positive = 1800.0
    allow: Annotated[frozenset[Lever], PlainValidator(_levers)] = frozenset(LEVERS)
    bounds: InstanceOf[Bounds] = Bounds()
    drift: Annotated[float | Literal["measured"], PlainValidator(_drift)] = math.nan
    samples_target: Count | None = None
    sample_bytes: Annotated[Real, Field(ge=0, allow_inf_nan=False)] = 0.0
    shards: Count = 64
    shuffle: StrictBool = True
    drop_last: StrictBool = False
    seed: Whole = 0
    outer_lr: Positive = 1.0
    outer_momentum: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    run_dir: Annotated[Path, BeforeValidator(os.fspath)] | None = None
    prometheus_port: Annotated[Whole, Field(le=65535)] | None = None
    prometheus_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    nvml: StrictBool = True
    plugins: StrictBool = False
    strict: StrictBool = False
    share_backend: Backend = "none"

    def __post_init__(self) -> None:
        follow(self)
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
    def half(self) -> int:
        """Rounds up to the next decision after one that changed something."""
        return max(self.every // 2, min(self.every, 4), self.delay_rounds + 1)

    @property
    def gradients_every(self) -> int:
        """Optimiser steps between measurements of gradients: fewer where batch or interval depend on their noise."""
        return self.statistics_every or (10 if self.local_steps or self.batch_max is not None else 50)

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
