"""S324: caps by hand, what undoes and forbids them, what the other stages see under them, and what they save."""

import math

import numpy as np
import pytest

from equipoise import api
from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.observation import Nodes
from equipoise.policies.registry import make_policy, make_stage
from equipoise.policies.stages.power import at_full_clock, clocks
from equipoise.sim.loading.file import from_mapping, load
from equipoise.sim.run import run as simulate
from tests.policies.observations import change
from tests.policies.stages.test_parameters import waiting
from tests.sim.advance.test_advance import assert_equal

ALL = "s1+s2+s3+s4"
WITHOUT = "s1+s2+s3(frozen=S324)+s4"


def decided(*seen, **parameters):
    """Caps that S3 plans one after the other (None: as they are), and what it computed last."""
    stage, memory, caps = make_stage("s3", {"power_least": 0.1, **parameters}), {}, []
    for o in seen:
        plan, memory = stage.refine(o, UNCHANGED, memory)
        assert check(plan, o) is None
        caps.append(None if plan.power_cap_w is None else plan.power_cap_w.tolist())
    return caps, plan.reasons[-1].values


def twice(observation, **parameters):
    """Caps after the same was measured in two windows in a row, and what was computed then."""
    (first, caps), values = decided(observation, at(110.0, observation), **parameters)
    assert first is None
    return caps, values


def at(time_s, observation, **job):
    """The same, observed at another time, with other columns of its job."""
    other = change(observation, "jobs", **job)
    other.time_s = time_s
    return other


def capped(cap_w, *, own_s=12.0, others_s=15.0, stall_s=0.0):
    """`waiting` as it is measured once the first three nodes have a cap: they compute as fast as the clock."""
    clock = np.array([*[math.cbrt((cap_w - 50) / 250)] * 3, 1.0])
    o = waiting([cap_w, cap_w, cap_w, 300.0], own_s=own_s, others_s=others_s)
    step_s = np.array([own_s, own_s, own_s, others_s]) / clock
    whole_s = np.maximum(step_s, np.array([own_s + stall_s, 0.0, 0.0, 0.0]))
    return change(
        o,
        "workers",
        step_s=step_s,
        input_stall_s=whole_s - step_s,
        wait_s=whole_s.max() - whole_s,
        response_s_per_sample=whole_s / 24,
        capacity_samples_per_s=24 / whole_s,
        gradient_rate_per_s=1 / step_s,
    )


def test_three_of_four_wait_for_the_last():
    """Clock 12 / (15 x 0.98) = 0.8163; 50 + 250 x 0.8163^3 = 186.0, a whole watt above."""
    caps, values = twice(waiting())
    assert caps == [186.0, 186.0, 186.0, 300.0]
    assert (values["s324_capped"], values["s324_least_w"], values["s324_changed"]) == (3, 186.0, 3)


def test_one_waits_for_its_input():
    """It computes 12 s of 20, and all others wait for it: 50 + 250 x (0.6 / 0.98)^3 = 107.4; itself 0.6 / 0.94."""
    caps, _ = twice(waiting(others_s=12.0, stall_s=8.0))
    assert caps == [116.0, 108.0, 108.0, 108.0]
    caps, _ = twice(waiting(others_s=12.0, stall_s=8.0), power_least=0.5)
    assert caps == [150.0] * 4


def test_steps_that_vary_keep_a_lead():
    """Two standard deviations of the difference of two steps: 0.02 + 2 x 0.03 x sqrt(2) of 15 s."""
    caps, _ = twice(waiting(step_cov=0.03))
    assert caps[0] == math.ceil(50 + 250 * (12 / (15 * (0.98 - 0.06 * math.sqrt(2)))) ** 3)


def test_nothing_is_capped_without_leave_or_where_it_is_frozen():
    seen = change(waiting(), "nodes", power_idle_w=np.nan, power_max_w=np.nan, power_cap_w=np.nan)
    caps, values = decided(seen)
    assert caps == [None]
    assert not any(name.startswith("s324") for name in values)
    _, memory = make_stage("s3").refine(seen, UNCHANGED, {})
    assert not any(name.startswith("power") for name in memory)
    assert twice(waiting(), frozen="S324")[0] is None
    planned = UNCHANGED.with_(power_cap_w=np.full(4, 200.0))
    kept, _ = make_stage("s3").refine(waiting(), planned, {})
    assert kept.power_cap_w.tolist() == [200.0] * 4


def test_it_stays_while_the_wait_does_and_goes_with_it():
    first, same, even = waiting(), capped(186.0), capped(186.0, others_s=12.0)
    lasts = (first, at(110.0, first))
    caps, _ = decided(*lasts, at(120.0, same), at(130.0, same), at(140.0, even))
    assert caps[1:] == [[186.0] * 3 + [300.0], None, None, [300.0] * 4]
    caps, _ = decided(*lasts, at(120.0, capped(186.0, others_s=13.5)))
    assert caps[2] == [math.ceil(50 + 250 * (12 / (13.5 * 0.98)) ** 3)] * 3 + [300.0], "raised at once"


def test_it_is_lowered_by_what_a_whole_window_has_measured_and_the_guard_has_kept():
    slower = change(capped(186.0, others_s=20.0), "jobs", goodput_samples_per_s=96 / 15)
    caps, values = decided(waiting(), at(110.0, waiting()), *(at(t, slower) for t in (120.0, 130.0)))
    assert caps[2:] == [None, [math.ceil(50 + 250 * (12 / (20 * 0.98)) ** 3)] * 3 + [300.0]]
    assert values["s324_rolled_back"] == 0


def test_a_job_whose_goodput_falls_gets_full_clocks_until_its_back_off_ends():
    low = {"goodput_samples_per_s": waiting().jobs.goodput_samples_per_s * 0.8}
    same = capped(186.0)
    seen = [waiting(), at(110.0, waiting()), *(at(t, same, **low) for t in (120.0, 130.0))]
    caps, values = decided(*seen)
    assert (caps[2:], values["s324_rolled_back"]) == ([None, [300.0] * 4], 1)
    caps, _ = decided(*seen, *(at(t, waiting()) for t in (140.0, 200.0, 210.0, 220.0)))
    assert caps[4:] == [None, None, None, [186.0] * 3 + [300.0]], "8 windows of 10 s, and two that say so"


def test_while_work_is_dealt_anew_nothing_is_lowered():
    stage, memory, planned = make_stage("s3", {"spread": 9.0}), {}, np.array([25, 24, 24, 23])
    for samples in (planned, planned, None):
        plan, memory = stage.refine(waiting(), UNCHANGED.with_(samples_per_step=samples), memory)
        assert (plan.power_cap_w is None) == (samples is not None)


def test_caps_in_force_are_looked_at_again():
    plan, _ = make_stage("s3").refine(capped(186.0), UNCHANGED, {})
    assert plan.revisit_s == 160.0
    plan, _ = make_stage("s3").refine(waiting(), UNCHANGED, {})
    assert plan.revisit_s == math.inf


def test_who_is_dealt_more_gets_its_clock_back():
    planned = UNCHANGED.with_(samples_per_step=np.array([27, 27, 27, 15]))
    plan, _ = make_stage("s3", {"spread": 9.0}).refine(capped(186.0), planned, {})
    assert plan.power_cap_w.tolist() == [300.0] * 4


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("gpus", {"job": [-1, 0, 0, 0]}),
        ("gpus", {"job": [-2, 0, 0, 0]}),
        ("gpus", {"job": [-3, 0, 0, 0]}),
        ("nodes", {"up": [False, True, True, True]}),
        ("jobs", {"gpus_per_worker": [2]}),
        ("jobs", {"rigid": [True]}),
        ("workers", {"step_s": [np.nan, 12.0, 12.0, 15.0]}),
        ("shards", {"local": False}),
    ],
    ids=[
        "a free GPU",
        "a shared GPU",
        "a service",
        "a dead node",
        "a worker of several nodes",
        "rigid",
        "not measured",
        "data to fetch",
    ],
)
def test_where_anybody_else_may_compute_there_is_no_cap(table, columns):
    caps, _ = twice(change(waiting(), table, **columns))
    assert caps is None or caps[0] == 300.0


def test_two_jobs_on_a_node_have_the_clock_of_who_needs_more():
    """Worker 1 of the other job keeps pace at 12 / 15, worker 0 at 9 / 15, on one node."""
    o = change(waiting(), "workers", node=[0, 0, 2, 3], step_s=[9.0, 12.0, 12.0, 15.0])
    o = change(o, "gpus", node=[0, 0, 2, 3])
    o = change(o, "nodes", gpus=[2, 0, 1, 1])
    caps, _ = twice(o)
    assert caps == [186.0, 300.0, 186.0, 300.0]


@pytest.mark.parametrize("stall_s", [0.0, 3.5])
def test_other_stages_see_what_would_be_without_caps(stall_s):
    plain, seen = capped(300.0, stall_s=stall_s), at_full_clock(capped(250.0, stall_s=stall_s))
    assert at_full_clock(plain) is plain
    for name in (
        "step_s",
        "input_stall_s",
        "wait_s",
        "response_s_per_sample",
        "capacity_samples_per_s",
        "gradient_rate_per_s",
    ):
        assert getattr(seen.workers, name) == pytest.approx(getattr(plain.workers, name)), name
    assert seen.jobs.work_s == pytest.approx(plain.workers.step_s.mean())
    deals = [make_stage("s2").refine(o, UNCHANGED, {})[0].samples_per_step for o in (plain, capped(250.0))]
    if not stall_s:
        assert deals[0].tolist() == deals[1].tolist()


def test_caps_go_when_no_job_trains():
    idle = change(waiting(), "nodes", power_cap_w=[150.0, 300.0, 300.0, 300.0])
    idle.workers = type(idle.workers)()
    plan, _ = make_stage("s3").refine(idle, UNCHANGED, {})
    assert plan.power_cap_w.tolist() == [300.0] * 4
    assert clocks(idle.nodes)[0] == pytest.approx(0.4 ** (1 / 3))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_scenario_saves_energy_at_the_same_time(seed):
    """As it expects: without caps an eighth more energy or so; each job as early as without, to 1 %."""
    made, plain = (api.run("power-slack", policy=policy, seed=seed) for policy in (ALL, WITHOUT))
    assert 1.1 < plain.totals["energy_j"] / made.totals["energy_j"] < 1.2
    assert (made.jobs["completion_s"] <= 1.01 * plain.jobs["completion_s"]).all()


def test_a_straggler_that_recovers_costs_nothing():
    """One of four nodes is slow for a while; with caps the job is done within 1 % of without them."""
    spec = {
        "schema_version": 1,
        "name": "recovers",
        "cluster": {"nodes": [{"count": 4, "gpus": 1, "accelerator": "a100_sxm_80gb"}]},
        "workload": {
            "models": {"m": {"sample_time": 0.1}},
            "jobs": [{"gpus": 4, "model": "m", "steps": 3000, "global_batch": 4}],
        },
        "faults": {"events": [{"kind": "slow", "at": "100 s", "node": "node-2", "factor": 2.0, "duration": "200 s"}]},
        "energy": {"policy_caps": True},
        "decide": {"every": "2 s"},
        "noise": {"step_cov": 0.03},
    }
    made, plain = (simulate(from_mapping(spec), policy=make_policy(p), seed=1) for p in (ALL, WITHOUT))
    assert made.totals["energy_j"] < 0.97 * plain.totals["energy_j"]
    assert made.jobs["completion_s"][0] < 1.01 * plain.jobs["completion_s"][0]


def test_both_ways_of_advancing_time_agree():
    scenario = load("scenarios/power-slack.yaml").model_copy(update={"horizon": 400.0})
    fast, plain = (simulate(scenario, policy=make_policy(ALL), seed=1, event_by_event=slow) for slow in (False, True))
    assert_equal(fast, plain)
    assert fast.totals["energy_j"] == pytest.approx(plain.totals["energy_j"])


def test_what_a_job_draws_says_what_a_cap_does() -> None:
    """Of 50 to 350 W: 87.5 W leave (37.5 / 300)^(1/3) to who draws 350 W, and all to who draws 80 W."""
    nodes = {"gpus": [1, 1], "first_gpu": [0, 1], "power_idle_w": [50.0] * 2, "power_max_w": [350.0] * 2}
    found = clocks(Nodes.of(**nodes, power_cap_w=[87.5, 87.5], power_draw_w=[np.nan, 80.0]))
    assert found.tolist() == [0.5, 1.0]
