"""The learning rate of a changed batch: what each rule makes of it, and what a step at another rate is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.learning import batch_worth, with_rates
from equipoise.policies.physics import best_rate, efficiency, rate_worth, ruled_rate
from equipoise.policies.rate_rules import ADASCALE, LINEAR, RULES, SCRIPT, SQRT, UNSCALED
from equipoise.policies.registry import make_stage
from tests.oracles import physics as plain
from tests.policies.observations import change, one_job

PHI, GIVEN = 1000.0, 32
BATCHES = st.floats(1, 1e6)


def seen(rule=ADASCALE, *, batch=GIVEN, rate=1.0, batch_max=1024, phi=PHI):
    """Four workers whose step takes 0.1 s and 0.01 s a sample."""
    job = {
        "batch_reference": [GIVEN],
        "batch_given": [GIVEN],
        "batch_max": [batch_max],
        "noise_scale": [phi],
        "learning_rate": [rate],
        "rate_rule": [rule],
        "exchange_s": [0.0],
    }
    dealt = [batch // 4] * 4
    return change(one_job([100.0] * 4, batch=batch, samples=dealt, fixed_s=0.1), "jobs", **job)


def test_rates_by_hand():
    """At 1,000 of 32 samples with a noise scale of 1,000: 1000 (1000 + 32) / (32 (1000 + 1000)) = 16.125."""
    rates = {rule: ruled_rate(1000.0, 32.0, PHI, k) for k, rule in enumerate(RULES)}
    assert rates == {"adascale": 16.125, "sqrt": math.sqrt(31.25), "linear": 31.25, "none": 1.0, "script": 1.0}
    x = 1 / 16.125
    assert rate_worth(1.0, 1000.0, 32.0, PHI, UNSCALED) == pytest.approx(2 * x - x * x)
    x = 31.25 / 16.125
    assert rate_worth(31.25, 1000.0, 32.0, PHI, LINEAR) == pytest.approx(2 * x - x * x)


@given(st.floats(0.1, 3.0), BATCHES, BATCHES, st.floats(0, 1e7))
def test_a_step_is_worth_what_a_quadratic_loss_falls_by(x, batch, own, phi):
    rate = x * best_rate(batch, own, phi, False)
    expected = max(plain.rate_worth(rate, batch, own, phi), 0.01)
    assert rate_worth(rate, batch, own, phi, ADASCALE) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert rate_worth(rate, batch, own, phi, ADASCALE) <= 1.0


@given(BATCHES, BATCHES, st.floats(0, 1e7), st.sampled_from([ADASCALE, SQRT, SCRIPT]))
def test_the_rate_that_belongs_to_a_batch_costs_nothing(batch, own, phi, rule):
    assert rate_worth(ruled_rate(batch, own, phi, rule), batch, own, phi, rule) == 1.0
    assert ruled_rate(own, own, phi, rule) == 1.0


def test_a_step_without_a_scaled_rate_is_at_most_twice_as_good():
    """However large the batch: noise that is averaged out helps, longer steps are not made."""
    worth = [rate_worth(1.0, m, 32.0, PHI, UNSCALED) * best_rate(m, 32.0, PHI, False) for m in (32.0, 512.0, 1e9)]
    assert worth[0] == 1.0
    assert worth[0] < worth[1] < worth[2] < 2.0


@pytest.mark.parametrize("rule", [ADASCALE, LINEAR, UNSCALED, SCRIPT])
def test_an_unknown_noise_scale_costs_nothing(rule):
    for phi in (-1.0, math.nan):
        assert rate_worth(3.0, 64.0, 32.0, phi, rule) == 1.0


@pytest.mark.parametrize("name", ["s2", "pollux", "sia"])
@pytest.mark.parametrize("rule", range(len(RULES)))
def test_who_sets_a_batch_sets_its_rate(name, rule):
    """And chooses a smaller one where its rate does not follow, or follows too far."""
    if name == "s2":
        at = seen(rule)
    else:
        from tests.policies.baselines.test_field import elastic

        at = change(elastic(1024), "jobs", batch_given=[GIVEN], rate_rule=[rule])
    plan, _ = make_stage(name).refine(at, UNCHANGED, {})
    assert check(plan, at) is None
    batch = GIVEN if plan.global_batch is None else int(plan.global_batch[0])
    rate = 1.0 if plan.learning_rate is None else float(plan.learning_rate[0])
    assert rate == ruled_rate(float(batch), float(GIVEN), PHI, rule)
    if rule in (ADASCALE, SQRT, SCRIPT):
        assert 150 < batch < 260
    else:
        assert batch < 200 if rule == UNSCALED else batch < 260
        (worth,) = batch_worth(at, 0, np.array([batch]), 1.0, 0.0)
        assert worth < efficiency(batch, 1.0, PHI, GIVEN, 0.0) or batch == GIVEN


def test_a_rate_follows_the_noise_scale_where_that_matters():
    at = seen(batch=256, rate=ruled_rate(256.0, 32.0, PHI, ADASCALE), phi=1.05 * PHI)
    assert with_rates(at, UNCHANGED).learning_rate is None, "2 % off costs 0.04 %"
    at = seen(batch=256, rate=ruled_rate(256.0, 32.0, PHI, ADASCALE), phi=4 * PHI)
    assert with_rates(at, UNCHANGED).learning_rate.tolist() == [ruled_rate(256.0, 32.0, 4 * PHI, ADASCALE)]
    at = seen(batch=256, rate=5.0, phi=math.nan)
    assert with_rates(at, UNCHANGED).learning_rate is None
    assert with_rates(seen(batch_max=0), UNCHANGED.with_(global_batch=np.array([32]))).learning_rate is None
