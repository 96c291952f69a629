"""S111: an unsound gradient counts for nothing, its worker gets little to do, and its GPU is replaced in time."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.registry import make_policy, make_stage
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import load
from equipoise.sim.run import run
from tests.policies.observations import change, one_job

STEADY = one_job([2.0] * 4, batch=96, micro=4)
SICK = change(STEADY, "workers", gradient_norm=[1.0, np.nan, 1.0, 1.0])


def refine(stage, observation, memory, plan=UNCHANGED):
    plan, memory = stage.refine(observation, plan, memory)
    assert check(plan, observation) is None
    return plan, memory


def seen(observation, plan, time_s):
    """The observation once the world has done what the plan says about gradients, samples and GPUs."""
    after = change(
        observation, "workers", gradient_weight=plan.weights(observation), samples_per_step=plan.samples(observation)
    )
    if plan.suspect is not None:
        after = change(after, "gpus", suspect=plan.suspect)
    after.time_s = time_s
    return after


def test_it_is_left_out_at_once_and_counts_again_when_it_is_sound():
    s1 = make_stage("s1")
    plan, memory = refine(s1, SICK, {})
    assert plan.gradient_weight.tolist() == [1.0, 0.0, 1.0, 1.0]
    left_out = seen(SICK, plan, 110.0)
    plan, memory = refine(s1, left_out, memory)
    assert plan.gradient_weight is None, "it is left out already"
    plan, memory = refine(s1, change(left_out, "workers", gradient_norm=np.ones(4)), memory)
    assert plan.gradient_weight.tolist() == [1.0] * 4


def test_where_no_gradient_is_sound_nothing_can_be_told_apart():
    plan, _ = refine(make_stage("s1"), change(STEADY, "workers", gradient_norm=np.full(4, np.inf)), {})
    assert plan.gradient_weight is None


@pytest.mark.parametrize("mode", ["formula", "optimal"])
def test_s2_leaves_it_one_micro_batch_by_which_it_is_watched(mode):
    s1, s2 = make_stage("s1"), make_stage("s2", {"mode": mode})
    plan, _ = refine(s1, SICK, {})
    plan, memory = refine(s2, SICK, {}, plan)
    assert plan.samples_per_step[1] == 4
    assert plan.samples_per_step.sum() == 96
    well = change(seen(SICK, plan, 110.0), "workers", gradient_weight=np.ones(4))
    plan, _ = refine(s2, well, memory)
    assert plan.samples_per_step[1] > 4


def suspects(windows, **parameters):
    """When GPU 1 is suspect, at windows of 10 s from 100 s on."""
    s1, memory, observation, found = make_stage("s1", parameters), {}, SICK, []
    for k in range(windows):
        plan, memory = refine(s1, observation, memory)
        observation = seen(observation, plan, 100.0 + 10.0 * (k + 1))
        found.append(bool(observation.gpus.suspect[1]))
        assert not observation.gpus.suspect[[0, 2, 3]].any()
    return found


def test_its_gpu_is_suspect_after_some_windows_until_it_was_long_enough():
    assert suspects(5) == [False, False, True, True, True]
    assert suspects(3, sick_windows=1) == [True] * 3
    s1, memory = make_stage("s1", {"sick_windows": 1, "suspect_s": 50.0}), {}
    plan, memory = refine(s1, SICK, memory)
    idle = seen(STEADY, plan, 140.0)
    plan, memory = refine(s1, idle, memory)
    assert plan.suspect is None
    idle.time_s = 151.0
    plan, memory = refine(s1, idle, memory)
    assert not plan.suspect.any()


def sick(events, policy="s1+s2+s3+s4", **changes):
    spec = load(scenarios_dir() / "sick-gpu.yaml")
    faults = spec.faults.model_copy(update={"corrupt_gradient": None, "events": ()})
    spec = spec.model_copy(update={"faults": faults, **changes})
    raw = spec.model_dump()
    raw["faults"]["events"] = events
    spec = type(spec).model_validate(raw)
    return run(spec, policy=make_policy(policy), seed=1, timeline=True)


SOON = [{"kind": "corrupt", "node": "node-2", "at": 30.0, "duration": 1e5}]


def test_a_spare_gpu_takes_its_place_and_training_goes_on():
    made, sound = sick(SOON), sick([])
    held = made.timeline["holdings"]
    assert set(held["gpu"][held["segment"] == 0].tolist()) == set(range(8))
    last = held["gpu"][held["segment"] == held["segment"].max()].tolist()
    assert len(last) == 8
    assert 2 not in last
    assert made.jobs["completion_s"][0] < 1.15 * sound.jobs["completion_s"][0]


def test_without_a_spare_the_others_do_the_work():
    """All ten GPUs are asked for: the tenth of the samples is lost, not all progress."""
    spec = load(scenarios_dir() / "sick-gpu.yaml")
    jobs = tuple(job.model_copy(update={"gpus": 10}) for job in spec.workload.jobs)
    workload = spec.workload.model_copy(update={"jobs": jobs})
    made, sound = sick(SOON, workload=workload), sick([], workload=workload)
    assert made.jobs["completion_s"][0] < 1.25 * sound.jobs["completion_s"][0]


def test_frozen_every_gradient_counts():
    made = sick([SOON[0] | {"duration": 300.0}], "s1(frozen=S111)+s2+s3+s4")
    assert made.jobs["completion_s"][0] > 300.0 + 0.9 * sick([]).jobs["completion_s"][0]
