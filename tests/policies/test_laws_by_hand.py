"""Plans and the shared laws by values: what is planned or else observed, overlap, rates, deals of whole samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.observation import Jobs, Observation, Workers
from equipoise.policies.physics import (
    deal,
    efficiency,
    hidden_s,
    largest_remainder,
    overlapped_s,
    rate_worth,
    ruled_rate,
    share_for,
    speed_at,
)
from equipoise.policies.plan import (
    ADASCALE,
    CHANGES,
    LINEAR,
    RULES,
    SCRIPT,
    SQRT,
    UNCHANGED,
    UNSCALED,
    Allocation,
    Plan,
)

NAN = math.nan

# -- plans -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "field", "column"),
    [
        ("samples", "samples_per_step", "samples_per_step"), ("pushes", "push_interval", "push_interval"),
        ("shares", "gpu_share", "gpu_share"), ("weights", "gradient_weight", "gradient_weight"),
        ("intervals", "sync_interval", "sync_interval"), ("far", "far_every", "far_every"),
    ],
)  # fmt: skip
def test_what_is_planned_counts_or_else_what_is(reads: str, field: str, column: str) -> None:
    table = "jobs" if column in ("sync_interval", "far_every") else "workers"
    o = Observation.of(
        jobs=Jobs.of(id=[0, 1], sync_interval=[3, 5], far_every=[2, 7]),
        workers=Workers.of(
            job=[0, 1], samples_per_step=[9, 4], push_interval=[6, 8], gpu_share=[0.5, 0.25],
            gradient_weight=[0.75, 1.0],
        ),
    )  # fmt: skip
    assert getattr(UNCHANGED, reads)(o) is getattr(getattr(o, table), column)
    planned = np.zeros(2)
    assert getattr(UNCHANGED.with_(**{field: planned}), reads)(o) is planned


def test_which_plans_change_something() -> None:
    assert UNCHANGED.changes_nothing()
    assert Plan().changes_nothing()
    assert UNCHANGED.because("a", "b", c=3).with_(revisit_s=5.0).changes_nothing()
    for name in CHANGES:
        value: Any = Allocation.of([]) if name == "allocation" else np.zeros(1)
        assert not UNCHANGED.with_(**{name: value}).changes_nothing()
    plan = UNCHANGED.because("a", "b", c=3).because("d", "e")
    assert [(reason.stage, reason.text, reason.values) for reason in plan.reasons] == [
        ("a", "b", {"c": 3}), ("d", "e", {}),
    ]  # fmt: skip
    assert (UNCHANGED.revisit_s, UNCHANGED.reasons, UNCHANGED.told) == (math.inf, (), 0)


def test_an_allocation_in_compressed_rows() -> None:
    given = Allocation.of([(4, [7, 8]), (2, []), (9, [3, 1, 5])], 0.25)
    assert (given.job.tolist(), given.offset.tolist(), given.gpu.tolist()) == (
        [4, 2, 9], [0, 2, 2, 5], [7, 8, 3, 1, 5],
    )  # fmt: skip
    assert [given.gpus_of(k).tolist() for k in range(3)] == [[7, 8], [], [3, 1, 5]]
    assert (given.share.tolist(), Allocation.of([(0, [1])]).share.tolist()) == ([0.25] * 5, [1.0])


def test_rules_of_rates_have_their_numbers() -> None:
    assert RULES == ("adascale", "sqrt", "linear", "none", "script")
    assert (ADASCALE, SQRT, LINEAR, UNSCALED, SCRIPT) == (0, 1, 2, 3, 4)


# -- laws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work_s", "exchange_s", "gamma", "both_s"),
    [
        (3.0, 1.0, 2.0, math.sqrt(10.0)), (1.0, 3.0, 2.0, math.sqrt(10.0)), (3.0, 1.0, 1.0, 4.0),
        (3.0, 0.0, 2.0, 3.0), (2.0, 2.0, 3.0, 2.0 * 2.0 ** (1 / 3)), (0.0, 5.0, 4.0, 5.0),
        (2.0, 0.5, 1.5, (2.0**1.5 + 0.5**1.5) ** (2 / 3)),
    ],
)  # fmt: skip
def test_a_step_with_its_exchange(work_s: float, exchange_s: float, gamma: float, both_s: float) -> None:
    assert overlapped_s(work_s, exchange_s, gamma) == pytest.approx(both_s, rel=1e-13)
    assert hidden_s(work_s, exchange_s, gamma) == pytest.approx(work_s + exchange_s - both_s, abs=1e-12)


def test_what_a_sample_counts_for() -> None:
    assert efficiency(64.0, 3.0, 100.0, 32.0, 0.05) == pytest.approx(132 / 164 / 1.1)
    assert efficiency(64.0, 3.0, 0.0, 32.0, 0.0) == 0.5
    assert efficiency(32.0, 5.0, 100.0, 64.0, 0.0) == 1.0
    assert efficiency(32.0, 5.0, 100.0, 64.0, 0.125) == pytest.approx(164 / 132 / 1.5)
    assert efficiency(0.0, 1.0, 0.0, 32.0, 0.0) == 1.0
    assert efficiency(0.5, 1.0, 0.0, 0.25, 0.0) == 0.5
    assert efficiency(64.0, 3.0, -0.5, 32.0, 0.25) == pytest.approx(1 / 1.5)


def test_the_rate_of_each_rule_and_what_it_is_worth() -> None:
    """From 32 to 96 samples at a noise scale of 160: the best rate is 96 x 192 / (32 x 256) = 2.25."""
    assert [ruled_rate(96.0, 32.0, 160.0, rule) for rule in range(5)] == pytest.approx(
        [2.25, math.sqrt(3.0), 3.0, 1.0, 1.0]
    )
    assert ruled_rate(96.0, 32.0, 0.0, ADASCALE) == 1.0
    assert ruled_rate(96.0, 32.0, NAN, ADASCALE) == ruled_rate(96.0, 32.0, -1.0, ADASCALE) == 1.0
    for rate, x in ((3.0, 4 / 3), (1.0, 4 / 9), (2.25, 1.0), (4.5, 2.0), (4.49, 4.49 / 2.25), (9.0, 4.0)):
        assert rate_worth(rate, 96.0, 32.0, 160.0, LINEAR) == pytest.approx(max(x * (2.0 - x), 0.01))
    x = 3.0 / math.sqrt(3.0)
    assert rate_worth(3.0, 96.0, 32.0, NAN, SQRT) == pytest.approx(x * (2.0 - x))
    assert rate_worth(3.0, 96.0, 32.0, 160.0, SQRT) == pytest.approx(x * (2.0 - x))
    assert rate_worth(3.0, 96.0, 32.0, NAN, LINEAR) == rate_worth(3.0, 96.0, 32.0, 160.0, SCRIPT) == 1.0
    assert rate_worth(3.0, 96.0, 32.0, -1.0, UNSCALED) == 1.0
    assert rate_worth(3.0, 96.0, 32.0, 0.0, UNSCALED) == 0.01


def test_the_share_curve_by_hand() -> None:
    assert speed_at(0.25, 0.5) == pytest.approx(0.5)
    assert speed_at(0.4, 0.6) == pytest.approx(0.64)
    assert (speed_at(0.4, math.inf), share_for(0.4, NAN)) == (0.4, 0.4)
    assert share_for(0.5, 0.5) == pytest.approx(0.25)
    assert share_for(0.64, 0.6) == pytest.approx(0.4)


# -- whole samples ---------------------------------------------------------------------------------------------


def test_deals_of_units_and_what_is_left_over() -> None:
    assert deal(10, [1, 2, 4], 3).tolist() == [0, 4, 6]
    assert deal(2, [0, 0, 5], 3).tolist() == [0, 0, 2]
    assert deal(11, [0, 3, 1], 4).tolist() == [0, 11, 0]
    assert deal(11, [0, 2, 2], 4).tolist() == [0, 7, 4]
    assert deal(7, [0.5, 0.25, 0.0]).tolist() == [5, 2, 0]
    assert deal(7, [0, 0, 0], 2).tolist() == [3, 2, 2]


@pytest.mark.parametrize(
    ("ideal", "units", "low", "cap", "expected"),
    [
        ([0.1, 2.9, 3.0], 6, 1, [6, 6, 6], [1, 2, 3]), ([0.1, 0.1, 5.8], 6, 1, [6, 6, 6], [1, 1, 4]),
        ([5.8, 0.2], 6, 0, [4, 9], [4, 2]), ([1.5, 2.5, 3.0], 7, 0, [9, 9, 9], [1, 3, 3]),
        ([1.5, 1.5, 4.0], 7, 0, [9, 9, 9], [2, 1, 4]), ([1.5, 2.5, 3.0], 7, 0, [9, 2, 9], [2, 2, 3]),
        ([2.0, 3.0 - 2.0**-31, 2.0], 7, 0, [9, 9, 9], [2, 3, 2]), ([0.4, 0.6], 3, 1, [1, 5], [1, 2]),
        ([0.2, 0.3, 2.5], 3, 1, [9, 9, 9], [1, 1, 1]), ([3.2, 0.1, 3.7], 7, 1, [9, 9, 9], [3, 1, 3]),
    ],
)  # fmt: skip
def test_the_largest_remainders_within_bounds(
    ideal: list[float], units: int, low: int, cap: list[int], expected: list[int]
) -> None:
    found = largest_remainder(np.array(ideal), units, low, np.array(cap))
    assert found.tolist() == expected
