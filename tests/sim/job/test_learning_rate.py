"""A batch whose learning rate does not follow it learns less, by what each rule costs; both time advances agree."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise import api
from equipoise.policies.contract import Policy
from equipoise.policies.physics import efficiency, rate_worth, ruled_rate
from equipoise.policies.rate_rules import RULES
from equipoise.policies.record.journal import read
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.tree import InputError
from tests.sim.advance.test_advance import assert_conserved, assert_equal
from tests.sim.job.test_batch import FIRST, PHI, STEP_S, Batch, case, run


@pytest.mark.parametrize("rule", RULES)
def test_a_step_counts_by_the_rate_that_its_rule_makes(rule):
    made = run(case(batch_max=256, learning_rate=rule), Batch(128))
    k = RULES.index(rule)
    rate = ruled_rate(128.0, float(FIRST), PHI, k)
    worth = efficiency(128.0, 1.0, PHI, float(FIRST), 0.0) * rate_worth(rate, 128.0, float(FIRST), PHI, k)
    steps = np.ceil(100 * FIRST / (128 * worth))
    assert made.jobs["steps"].tolist() == [steps]
    assert made.summary()["makespan_s"] == pytest.approx(steps * (STEP_S + 0.001 * 64))


def test_rules_in_their_order():
    """128 of 32 samples at a noise scale of 1,000 and rates of 3.66 (best), 4, 1: none is dear, linear is not."""
    steps = {rule: run(case(batch_max=256, learning_rate=rule), Batch(128)).jobs["steps"][0] for rule in RULES}
    assert steps["adascale"] == steps["sqrt"] == steps["script"] <= steps["linear"] < steps["none"]
    assert steps["none"] > 1.9 * steps["adascale"]


def test_a_plan_that_leaves_the_rate_pays_for_it():
    class OnlyBatch(Batch):
        def refine(self, observation, plan, memory):
            plan, memory = super().refine(observation, plan, memory)
            return plan.with_(learning_rate=None), memory

    made = run(case(batch_max=256), OnlyBatch(128))
    unscaled = run(case(batch_max=256, learning_rate="none"), Batch(128))
    assert made.jobs["steps"][0] == unscaled.jobs["steps"][0]


@pytest.mark.parametrize("rule", RULES)
def test_both_ways_of_advancing_time_agree(rule):
    spec = case(batch_max=256, learning_rate=rule, steps=400)
    spec["workload"]["models"]["m"]["noise_scale"] = 50.0
    spec["noise"] = {"step_cov": 0.1}
    spec["faults"] = {"crash": {"mtbf": "20 s", "repair": "1 s"}}
    spec["restart"] = {"detection": "2 s", "initialisation": "2 s"}
    for policy in (Policy("mine", (Batch(96), *make_policy("fifo").stages)), make_policy("s2+fifo")):
        fast, plain = (simulate(from_mapping(spec), policy=policy, event_by_event=slow) for slow in (False, True))
        assert_equal(fast, plain)
        assert_conserved(fast)


def test_a_stage_takes_a_smaller_batch_where_the_rate_stays():
    ends = {}
    for rule in ("adascale", "none"):
        spec = case(batch_max=1024, steps=2000, learning_rate=rule)
        ends[rule] = api.run(spec, policy="s2"), api.run(spec, policy="none")
    batch = {rule: made.jobs["samples"][0] / made.jobs["steps"][0] for rule, (made, _) in ends.items()}
    assert batch["none"] < 0.7 * batch["adascale"]
    for made, plain in ends.values():
        assert made.summary()["makespan_s"] <= plain.summary()["makespan_s"] * 1.001
    gained = [made.summary()["makespan_s"] / plain.summary()["makespan_s"] for made, plain in ends.values()]
    assert gained[0] < 0.8 * gained[1]


def test_the_journal_has_the_rate(tmp_path):
    api.run(case(batch_max=1024, steps=500), policy="s2", out=tmp_path / "run", journal=True)
    (found,) = (tmp_path / "run").rglob("journal*")
    entries = list(read(found))
    planned = [e.decision.plan.learning_rate for e in entries if e.decision.plan.learning_rate is not None]
    assert planned
    assert entries[-1].decision.observation.jobs.learning_rate[0] == planned[-1][0] > 1.0


def test_no_other_rule():
    with pytest.raises(InputError, match="learning_rate"):
        api.run(case(learning_rate="cube"))
