"""S311: a new deal that slows the updates is undone, and not tried again for a while."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.registry import make_policy, make_stage
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import load
from equipoise.sim.run import run
from tests.policies.observations import one_job

OLD, NEW = np.array([24, 24, 24, 24]), np.array([30, 30, 18, 18])


def window(time_s, samples, goodput, speeds=(2.0, 2.0, 2.0, 2.0)):
    return one_job(list(speeds), samples=samples, time_s=time_s, job={"goodput_samples_per_s": goodput})


def decisions(*windows, **parameters):
    """Deals after each (observation, deal that S2 plans)."""
    stage, memory, found = make_stage("s3", parameters), {}, []
    for observation, planned in windows:
        plan = UNCHANGED if planned is None else UNCHANGED.with_(samples_per_step=planned)
        plan, memory = stage.refine(observation, plan, memory)
        assert check(plan, observation) is None
        found.append(plan.samples(observation).tolist())
    return found


def measured(after, **more):
    """The new deal is made at 100 s; after it the goodput is `after`. S2 would have it again from then on."""
    return [
        (window(100.0, OLD, 6.0, **more), NEW),
        (window(110.0, NEW, after, **more), None),
        (window(120.0, NEW, after, **more), None),
        (window(130.0, OLD, 6.0, **more), NEW),
    ]


def test_a_deal_that_slows_the_updates_is_undone_and_backed_off():
    found = decisions(*measured(4.0))
    assert found[:2] == [NEW.tolist(), NEW.tolist()]
    assert found[2] == OLD.tolist()
    assert found[3] == OLD.tolist(), "not for eight windows"
    again = (window(210.0, OLD, 6.0), NEW)
    assert decisions(*measured(4.0), again)[4] == NEW.tolist()


def test_a_loss_within_the_noise_is_kept():
    assert decisions(*measured(5.9))[2] == NEW.tolist()
    assert decisions(*measured(4.0), noise=0.5)[2] == NEW.tolist()


def test_a_deal_is_not_to_blame_when_the_old_one_would_be_slower_still():
    """The last two workers have become slow: with as much as before they would take longer."""
    assert decisions(*measured(4.0, speeds=(2.0, 2.0, 1.0, 1.0)))[2] == NEW.tolist()


def test_after_what_no_deal_is_to_blame_for_deals_go_on():
    slower = measured(4.0, speeds=(2.0, 2.0, 1.0, 1.0))
    again = window(130.0, NEW, 4.0, speeds=(2.0, 2.0, 1.0, 1.0)), np.array([32, 32, 16, 16])
    assert decisions(*slower[:3], again)[3] == [32, 32, 16, 16]


def test_the_back_off_ends_when_a_worker_has_another_speed():
    """The last worker is twice as fast at the old deal, which has been in force for a window."""
    there = [(window(time_s, OLD, 6.0), NEW) for time_s in (130.0, 140.0)]
    other = [(window(time_s, OLD, 6.0, speeds=(2.0, 2.0, 2.0, 4.0)), NEW) for time_s in (130.0, 140.0)]
    assert decisions(*measured(4.0)[:3], *there)[3:] == [OLD.tolist()] * 2
    assert decisions(*measured(4.0)[:3], *other)[3:] == [OLD.tolist(), NEW.tolist()]


def test_no_deal_comes_back_to_a_worker_whose_gradient_does_not_count():
    stage, memory, windows = make_stage("s3"), {}, measured(4.0)[:3]
    for observation, planned in windows:
        plan = UNCHANGED if planned is None else UNCHANGED.with_(samples_per_step=planned)
        if observation.time_s == 120.0:
            plan = plan.with_(gradient_weight=np.array([1.0, 1.0, 1.0, 0.0]))
        plan, memory = stage.refine(observation, plan, memory)
    assert plan.samples(observation).tolist() == NEW.tolist()


def test_frozen_it_stays():
    assert decisions(*measured(4.0), frozen="S311")[2] == NEW.tolist()


@pytest.mark.parametrize("mode", ["formula", "optimal"])
def test_full_memory_a_second_pass_is_taken_back(mode):
    spec = load(scenarios_dir() / "full-memory.yaml")
    job = spec.workload.jobs[0].model_copy(update={"steps": 600})
    spec = spec.model_copy(update={"workload": spec.workload.model_copy(update={"jobs": (job,)})})
    times = [
        run(spec, policy=make_policy(f"s2(mode={mode})+s3{frozen}+fifo"), seed=1).jobs["completion_s"][0]
        for frozen in ("", "(frozen=S311)")
    ]
    assert times[0] < 0.95 * times[1]
