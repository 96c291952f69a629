"""The borders of every setting: the last value that is allowed, and the first that is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.live.options import Bounds, Options

LEAST_1 = (
    "global_batch",
    "micro_batch",
    "accumulation",
    "batch_reference",
    "decide_every",
    "statistics_every",
    "samples_target",
    "shards",
)
ABOVE_0 = ("decision_budget_s", "warm_up_budget_s", "control_timeout_s", "outer_lr")


def options(**changes: Any) -> Options:
    return Options(**({"global_batch": 20} | changes))


def refused(name: str, make: Any, **changes: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* is not allowed"):
        make(**changes)


@pytest.mark.parametrize("name", LEAST_1)
def test_at_least_one(name: str) -> None:
    assert getattr(options(**{name: 1}), name) == 1
    for wrong in (0, -1, True, 1.0, "1"):
        refused(name, options, **{name: wrong})


@pytest.mark.parametrize("name", ["delay_rounds", "seed"])
def test_at_least_none(name: str) -> None:
    assert getattr(options(**{name: 0}), name) == 0
    refused(name, options, **{name: -1})


@pytest.mark.parametrize("name", ABOVE_0)
def test_above_0_and_finite(name: str) -> None:
    assert getattr(options(**{name: 1e-9}), name) == 1e-9
    assert isinstance(getattr(options(**{name: 7}), name), float)
    for wrong in (0, -1e-9, math.inf, math.nan, True, "1"):
        refused(name, options, **{name: wrong})


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "mlflow", "nvml", "plugins", "strict", "weighted"])
def test_yes_or_no(name: str) -> None:
    for value in (True, False):
        assert getattr(options(**{name: value}), name) is value
    for wrong in (1, 0, "yes", None):
        refused(name, options, **{name: wrong})


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("sample_bytes", (0, 1e12), (-1e-9, math.inf, math.nan)),
        ("outer_momentum", (0, 0.999), (-1e-9, 1.0)),
        ("drift", (0, 1e9, "measured"), (-1e-9, math.inf, -math.inf, "guessed", True)),
        ("prometheus_port", (0, 65535, None), (-1, 65536)),
        ("prometheus_host", ("::1",), ("", 5)),
        ("allow", ({"samples"}, ["power", "moves"], ()), ("samples", {"sample"}, 5)),
        ("shuffle", (True, False), (1, 0)),
        ("mode", ("observe", "advise", "act"), ("acts",)),
        ("learning_rate", (None, "none", "script"), ("cube",)),
        ("micro_batch", (20,), (21,)),
        ("batch_reference", (20, None), (21,)),
        ("batch_max", (20, 21, None), (19,)),
        ("delay_rounds", (9,), (10,)),
    ],
)
def test_borders(name: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    for value in right:
        found = getattr(options(**{name: value}), name)
        assert found == (frozenset(value) if name == "allow" else value)
    for value in wrong:
        refused(name, options, **{name: value})


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("samples_min", (0, 5), (-1, True)),
        ("samples_max", (1, None), (0,)),
        ("interval_max", (1,), (0,)),
        ("share_min", (1e-9, 1.0), (0.0, 1.0000001)),
    ],
)
def test_bounds(name: str, right: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    for value in right:
        assert getattr(Bounds(**{name: value}), name) == value
    for value in wrong:
        refused(f"bounds: {name}", Bounds, **{name: value})


def test_a_least_is_not_above_a_most() -> None:
    assert Bounds(samples_min=3, samples_max=3).samples_min == 3
    with pytest.raises(ValueError, match="bounds: minimum 4 is above maximum 3"):
        Bounds(samples_min=4, samples_max=3)


def test_what_does_not_go_together() -> None:
    refused("weighted", options, weighted=True, loss_reduction="sum")
    assert options(weighted=True).weighted
    assert options(loss_reduction="sum").loss_reduction == "sum"
    refused("micro_batch", options, micro_batch=21)
    passes = {"allow": {"accumulation"}}
    assert options(**passes, accumulation=1).takes_passes
    for other, said in (({"accumulation": 2}, "accumulation of 2"), ({"weighted": True}, "weighted batches")):
        with pytest.raises(ValueError, match=f"allow: 'accumulation' is not allowed with {said}"):
            options(**passes, **other)
    assert not options(accumulation=2).takes_passes


@pytest.mark.parametrize(
    ("changes", "local", "alone", "assumed"),
    [
        ({}, False, False, math.nan),
        ({"drift": 0}, True, True, 0.0),
        ({"drift": 0.02}, True, True, 0.02),
        ({"drift": "measured"}, True, True, 0.1),
        ({"drift": 0.02, "mode": "advise"}, True, False, 0.02),
        ({"drift": 0.02, "allow": {"samples"}}, True, False, 0.02),
    ],
)
def test_local_steps_are_taken_where_their_drift_is_known_and_a_policy_may(
    changes: dict[str, Any], local: bool, alone: bool, assumed: float
) -> None:
    """A drift that is to be measured begins with one that allows two local steps."""
    made = options(**changes)
    assert (made.local_steps, made.may_step_alone) == (local, alone)
    assert made.assumed_drift == pytest.approx(assumed, nan_ok=True)


def test_what_holds_where_a_script_says_nothing() -> None:
    made = Options(global_batch=20)
    held = {
        "mode": "act",
        "micro_batch": 1,
        "accumulation": 1,
        "loss_reduction": "mean",
        "weighted": False,
        "decide_every": None,
        "every": 10,
        "delay_rounds": 0,
        "statistics_every": 10,
        "decision_budget_s": 0.25,
        "warm_up_budget_s": 30.0,
        "control_timeout_s": 1800.0,
        "sample_bytes": 0.0,
        "shards": 64,
        "shuffle": True,
        "drop_last": False,
        "seed": 0,
        "outer_lr": 1.0,
        "outer_momentum": 0.0,
        "prometheus_host": "127.0.0.1",
        "mlflow": False,
        "nvml": True,
        "plugins": False,
        "strict": False,
        "share_backend": "none",
        "allow": {"samples", "moves", "order", "interval", "share", "batch"},
        "bounds": Bounds(),
    }
    assert {name: getattr(made, name) for name in held} == held
    nothing = ("batch_reference", "batch_max", "learning_rate", "samples_target", "run_dir", "prometheus_port")
    assert [getattr(made, name) for name in nothing] == [None] * 6
    assert math.isnan(made.drift)  # type: ignore[arg-type]
    assert Bounds() == Bounds(1, None, 64, 0.05)


def test_what_all_ranks_must_agree_on() -> None:
    common = options(seed=7, allow={"accumulation"}).common()
    assert (common["seed"], common["global_batch"], common["'accumulation' in allow"]) == (7, 20, True)
    assert "run_dir" not in common
    assert not options().common()["'accumulation' in allow"]
