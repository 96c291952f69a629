"""Frozen sub-steps: what they no longer decide, and how a policy's text names them."""

import pytest

from equipoise.policies.registry import PolicyError, make_policy, make_stage
from equipoise.policies.stages.frozen import STEPS
from equipoise.study.statistics import paired_ratio
from tests.bench.method_table import frozen_policy, judge
from tests.policies.stages.test_parameters import decisions as of
from tests.policies.stages.test_parameters import exchange, queue, rates, remote, uneven

MOVES, SAMPLES, ORDER, INTERVAL = range(4)


@pytest.mark.parametrize("step", [step for own in STEPS.values() for step in own])
def test_the_command_line_can_name_it(step):
    policy = make_policy(frozen_policy(step))
    assert [stage.frozen for stage in policy.stages if stage.frozen] == [step]
    assert make_policy(policy.name) == policy


def test_what_is_no_sub_step_of_the_stage_is_refused():
    with pytest.raises(PolicyError, match="s2: frozen: 'S111' is not one of S211, S212"):
        make_policy("s2(frozen=S111)")


@pytest.mark.parametrize(
    ("step", "field", "observations"),
    [("S113", MOVES, rates([2.0] * 4)), ("S223", SAMPLES, uneven()), ("S312", INTERVAL, exchange(30.0) * 3)],
)
def test_it_leaves_what_it_would_decide(step, field, observations):
    stage = next(s for s in make_policy(frozen_policy(step)).stages if s.frozen)
    free = next(s for s in make_policy("s1+s2+s3+s4").stages if s.name == stage.name)
    assert any(plan[field] is not None for plan in of(free, observations))
    assert all(plan[field] is None for plan in of(stage, observations))


def test_s212_frozen_fetches_in_the_order_of_need():
    for frozen, plain in (("", False), ("S212", True)):
        (plan,) = of(make_stage("s2", {"priority_alpha": 0.0, "frozen": frozen}), remote())
        assert (plan[ORDER] is None) == plain


def test_s412_frozen_starts_jobs_in_order_of_arrival():
    jobs = queue({"arrival_s": 0.0, "service_s": 9e3}, {"arrival_s": 5.0, "service_s": 60.0})
    first = {policy: of(make_policy(policy).stages[0], jobs)[0][5].job.tolist() for policy in ("s4", "s4(frozen=S412)")}
    assert first == {"s4": [1], "s4(frozen=S412)": [0]}


def test_a_sub_step_helps_harms_or_neither():
    assert judge(paired_ratio([10.4, 10.5, 10.6], [10.0, 10.0, 10.0])).startswith("**1.05")
    assert judge(paired_ratio([9.4, 9.5, 9.6], [10.0, 10.0, 10.0])).endswith("harms")
    assert judge(paired_ratio([10.0, 10.0], [10.0, 10.0])) == "1"
