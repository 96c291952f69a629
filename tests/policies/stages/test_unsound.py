"""S111: an unsound gradient counts for nothing, its worker gets little to do, and its GPU is replaced in time."""

import numpy as np
import pytest

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.contract import UNCHANGED, check
from equipoise.policies.observation import Gpus, Jobs, JobState, Observation, Workers
from equipoise.policies.registry import make_policy, make_stage
from equipoise.policies.stages.groups import group_workers
from equipoise.policies.stages.unhealthy import avoided_gpus, replace_suspects, samples_bound, suspect_gpus
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import load
from equipoise.sim.run import run
from tests.policies.observations import MadeCluster, change, one_job

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


def replaced(gpus=8, *, touched=False, **jobs):
    """Rows of the jobs that get another GPU for one of their four; a job of 100 s that restarts in 10 s."""
    cluster = MadeCluster(np.random.default_rng(1), [gpus], [True])
    cluster.add(JobState.RUNNING, rigid=False, gpus=4, share=1.0, per_worker=1, elastic=False)
    observation = change(cluster.observe(), "jobs", **({"service_s": [100.0], "restart_s": [10.0]} | jobs))
    suspect = np.arange(gpus) == np.flatnonzero(observation.gpus.job == 0)[1]
    proposal = Proposal(observation, avoided=suspect)
    if touched:
        held, _ = proposal.gpus_of(0)
        proposal.resize(0, held, held)
    rows = replace_suspects(proposal)
    assert not len(rows) or not suspect[proposal.gpus_of(0)[0]].any()
    return rows.tolist()


def test_a_gpu_is_replaced_where_it_pays_and_the_job_can_restart():
    assert replaced() == [0]
    assert replaced(gpus=4) == []  # none is free
    assert replaced(rigid=[True]) == []
    assert replaced(touched=True) == []
    assert replaced(restart_s=[24.0]) == [0]  # a quarter of its work is lost on one GPU of four
    assert replaced(restart_s=[25.0]) == []
    assert replaced(service_s=[101.0], restart_s=[25.1]) == [0]


def test_how_long_a_gpu_is_suspect():
    """Worker 0 of two GPUs is sick; GPU 3 was until 1000.5 s, GPU 4 until 1000 s, GPU 1 for longer already."""
    o = Observation.of(
        1000.0,
        jobs=Jobs.of(id=range(2), gpus_per_worker=[2, 1]),
        gpus=Gpus.of(node=[0] * 6, job=[0, 0, 0, -1, -1, 1], suspect=[False, True, False, True, True, True]),
        workers=Workers.of(job=[0, 1], index=[0, 0], gpu=[0, 5], node=[0, 0]),
    )
    memory = {"suspect_gpu": np.array([1, 3, 4]), "suspect_until_s": np.array([5000.0, 1000.5, 1000.0])}
    plan, after = suspect_gpus(o, UNCHANGED, memory, np.array([0]), 60.0)
    assert plan.suspect.tolist() == [True, True, False, True, False, False]
    assert (after["suspect_gpu"].tolist(), after["suspect_until_s"].tolist()) == ([0, 1, 3], [1060.0, 5000.0, 1000.5])
    plan, after = suspect_gpus(o, UNCHANGED, {}, np.array([1]), 60.0)
    assert np.flatnonzero(plan.suspect).tolist() == after["suspect_gpu"].tolist() == [5]
    other = change(o, "gpus", job=[0, 1, 0, -1, -1, 1])  # its second GPU is another's by now
    assert np.flatnonzero(suspect_gpus(other, UNCHANGED, {}, np.array([0]), 60.0)[0].suspect).tolist() == [0]
    sound = change(o, "gpus", suspect=[False] * 6)
    assert suspect_gpus(sound, UNCHANGED, {}, np.empty(0, dtype=np.int64), 60.0)[0] is UNCHANGED


def test_who_is_left_out_gets_one_micro_batch_where_there_is_one_for_all():
    o = one_job([1.0] * 3, batch=12, micro=4, samples_max=[9, 9, 3])
    plan = UNCHANGED.with_(gradient_weight=np.array([0.0, 1.0, 0.0]))
    assert samples_bound(o, group_workers(o), plan).tolist() == [4, 9, 3]
    few = one_job([1.0] * 3, batch=11, micro=4, samples_max=[9, 9, 3])
    assert samples_bound(few, group_workers(few), plan).tolist() == [9, 9, 3]
    assert samples_bound(o, group_workers(o), UNCHANGED) is o.workers.samples_max
    suspect = change(o, "gpus", suspect=[True, False, False])
    assert avoided_gpus(suspect, UNCHANGED).tolist() == [True, False, False]
    assert avoided_gpus(o, UNCHANGED) is None
    none_runs = change(suspect, "jobs", state=[0])
    none_runs.running = np.empty(0, dtype=np.int64)
    assert avoided_gpus(none_runs, UNCHANGED) is None
