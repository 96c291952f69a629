"""The allocation baselines: each name means one thing, however long the queue, whatever happened before."""

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.policies.baselines import sorted_queue
from equipoise.policies.contract import UNCHANGED, Plan, check
from equipoise.policies.kernels.placement import PLACEMENTS
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Workers
from equipoise.policies.registry import make_stage
from tests.oracles import placement as naive
from tests.sim.world.tiny_world import TinyWorld

NAMES = ("fifo", "fifo-greedy", "sjf", "sjf-greedy", "easy", "srtf", "las")
SCHEDULES = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedules"


def counted(name, **parameters):
    return make_stage(name, {"placement": "counted", **parameters})


# -- what each name means ------------------------------------------------------------------------------------


def test_easy_keeps_nothing_for_a_job_that_is_larger_than_what_is_up():
    plan, _ = counted("easy").refine(pool([(1, 9.0)], [(9, 1.0), (2, 1e6)], 4), UNCHANGED, {})
    assert plan.allocation.job.tolist() == [2]


def test_easy_with_an_unknown_end_reserves_nothing_before_it():
    observation = pool([(3, 99.0)], [(4, 1.0), (1, 1.0), (1, math.nan)], 4, running_service_s=math.nan)
    plan, _ = counted("easy").refine(observation, UNCHANGED, {})
    assert plan.allocation.job.tolist() == [2]  # the one that ends; the other might never


def test_srtf_stops_the_longest_and_no_more_than_needed():
    jobs = [(0.0, 1, 50.0), (0.0, 2, 40.0), (0.0, 1, 30.0), (1.0, 2, 5.0)]
    seen = []
    tiny = TinyWorld(jobs, [4])
    tiny.run(counted("srtf"), on_decision=lambda o, plan: seen.append(stopped(plan)))
    assert seen[1] == [1]  # the longest alone is not enough, and is not needed beside the second


def test_las_demotes_at_the_threshold_without_being_asked():
    """Job 1 gets its turn when job 0 has had 100 GPU-seconds, at exactly that time."""
    tiny = TinyWorld([(0.0, 2, 200.0), (10.0, 2, 20.0)], [2])
    tiny.run(counted("las", thresholds_gpu_s=(100.0,)))
    assert tiny.first_start[1] == pytest.approx(50.0, abs=1e-5)
    assert tiny.completion[1] == pytest.approx(70.0, abs=1e-5)
    assert tiny.completion[0] == pytest.approx(220.0, abs=1e-5)
    assert tiny.decisions == 5  # two arrivals, one demotion, two ends


def test_las_starves_nobody():
    """A stream of short jobs keeps the pool full; the long one comes back because it waits."""
    jobs = [(0.0, 1, 300.0)] + [(10.0 * k, 1, 10.0) for k in range(1, 400)]
    stage = {"thresholds_gpu_s": (100.0,), "placement": "counted"}
    ends = {}
    for promote in (0.0, 4.0):
        tiny = TinyWorld(sorted(jobs), [1])
        tiny.run(make_stage("las", {**stage, "promote": promote}))
        ends[promote] = tiny.completion[0]
    assert ends[0.0] > 3900.0  # after all of them
    assert ends[4.0] < 2000.0


def test_las_takes_thresholds_as_a_list():
    stage = make_stage("las", {"thresholds_gpu_s": [60.0, 600.0]})
    assert stage.thresholds_gpu_s == (60.0, 600.0)
    assert hash(stage) == hash(make_stage("las", {"thresholds_gpu_s": (60.0, 600.0)}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement_is_one_rule_for_all(name, placement):
    """A gang of 3 on nodes of 2 GPUs, of which 1, 1 and 2 are free."""
    free = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    nodes = Nodes.of(gpus=[2, 2, 2], first_gpu=[0, 2, 4], gpus_free=[1, 1, 2])
    gpus = Gpus.of(node=[0, 0, 1, 1, 2, 2], share_free=free, job=np.where(free == 1, -1, 0))
    jobs = Jobs.of(
        id=[0, 1],
        arrival_s=[0.0, 1.0],
        state=[JobState.RUNNING, JobState.WAITING],
        rigid=[True, True],
        gpus_requested=[2, 3],
        duration_s=[9.0, 9.0],
        service_s=[5.0, 9.0],
        attained_gpu_s=[0.0, 0.0],
    )
    observation = Observation.of(2.0, nodes=nodes, gpus=gpus, jobs=jobs)
    plan, _ = make_stage(name, {"placement": placement}).refine(observation, UNCHANGED, {})
    expected = {"counted": [0, 2, 4], "packed": [0, 4, 5], "any": [0, 4, 5]}[placement]
    assert sorted(plan.allocation.gpu.tolist()) == expected


# -- against plain schedulers --------------------------------------------------------------------------------


def pool(running, waiting, gpus, ids=None, running_service_s=None, **columns):
    """Jobs (gpus, service_s) that run on, and wait for, one pool."""
    jobs = [*running, *waiting]
    held = np.repeat(np.arange(len(running)), [g for g, _ in running]).astype(np.int64)
    holder = np.concatenate((held, np.full(gpus - len(held), -1)))
    service = [s for _, s in jobs]
    if running_service_s is not None:
        service[: len(running)] = [running_service_s] * len(running)
    return Observation.of(
        100.0,
        nodes=Nodes.of(gpus=[gpus], first_gpu=[0], gpus_free=[gpus - len(held)]),
        gpus=Gpus.of(node=np.zeros(gpus), job=holder, share_free=np.where(holder < 0, 1.0, 0.0)),
        jobs=Jobs.of(
            id=range(len(jobs)) if ids is None else ids,
            arrival_s=np.arange(len(jobs)) * 1.0,
            state=[JobState.RUNNING] * len(running) + [JobState.WAITING] * len(waiting),
            rigid=[True] * len(jobs),
            gpus_requested=[g for g, _ in jobs],
            duration_s=[s for _, s in jobs],
            service_s=service,
            attained_gpu_s=[0.0] * len(jobs),
            gpus_held=[g for g, _ in running] + [0] * len(waiting),
            **columns,
        ),
    )


def started(plan):
    if plan.allocation is None:
        return []
    held = np.diff(plan.allocation.offset)
    return plan.allocation.job[held > 0].tolist()


def stopped(plan):
    if plan.allocation is None:
        return []
    return plan.allocation.job[np.diff(plan.allocation.offset) == 0].tolist()


def level(o, row, thresholds, promote):
    """The queue of a job under least attained service, by the rule as it is written down."""
    jobs = o.jobs
    waited = jobs.waited_s[row]
    if jobs.state[row] == JobState.WAITING:
        waited += o.time_s - jobs.queued_since_s[row]
    quanta = math.floor(jobs.gpus_requested[row] * waited / promote / thresholds[0] + 1e-9) if promote else 0
    service = jobs.attained_gpu_s[row] - quanta * thresholds[0]
    return sum(service >= t * (1 - 1e-9) - 1e-6 for t in thresholds)


def expected(name, o, thresholds=(), promote=0.0):
    """(stopped, started) by a scheduler that looks at everything, every time."""
    jobs, free = o.jobs, int(o.nodes.gpus_free.sum())
    gpus = jobs.gpus_requested
    waiting, running = o.waiting.tolist(), o.running.tolist()
    if name.startswith("sjf"):
        waiting.sort(key=lambda row: (jobs.duration_s[row], jobs.id[row]))
    if name in ("fifo", "sjf", "fifo-greedy", "sjf-greedy"):
        strict = not name.endswith("greedy")
        return [], naive.start_in_order([(row, gpus[row]) for row in waiting], free, strict)
    if name == "easy":
        queue = [(row, gpus[row], jobs.service_s[row]) for row in waiting]
        return [], naive.easy(queue, free, [(gpus[row], jobs.service_s[row]) for row in running], o.time_s)
    if name == "srtf":
        keys = {row: jobs.service_s[row] for row in waiting}
        bars = {row: jobs.service_s[row] - jobs.restart_s[row] for row in running}
    else:
        keys = {row: level(o, row, thresholds, promote) for row in waiting}
        bars = {row: level(o, row, thresholds, promote) for row in running}
    queue = sorted((keys[row], row, gpus[row]) for row in waiting)
    return naive.preempt(queue, free, [(bars[row], row, gpus[row]) for row in running])


WORKLOADS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 2, 3, 5]), st.integers(1, 40)), min_size=1, max_size=30
)
CRASHES = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 29)), max_size=6)


# Two jobs are promoted at 93 s, which one sum of the times that they waited puts a rounding later.
LATE_BY_ROUNDING = [
    (0, 1, 8),
    (0, 1, 21),
    (0, 1, 22),
    (0, 3, 7),
    (0, 5, 1),
    (7, 1, 16),
    (15, 1, 18),
    (15, 1, 20),
    (16, 1, 20),
    (22, 1, 20),
    (28, 2, 12),
    (28, 3, 1),
    (31, 2, 11),
    (36, 1, 14),
    (42, 1, 12),
    (44, 1, 12),
    (44, 3, 8),
    (45, 1, 12),
    (49, 1, 10),
    (51, 1, 12),
    (51, 1, 14),
    (52, 1, 12),
    (52, 1, 12),
]


@pytest.mark.parametrize("name", NAMES)
@example(jobs=LATE_BY_ROUNDING, crashes=[], restart=3.0, short=2)
@example(jobs=[(0, 3, 1), (0, 3, 2), (1, 1, 2), (1, 2, 1), (2, 1, 2)], crashes=[], restart=0.0, short=2)
@settings(max_examples=40, deadline=None)
@given(jobs=WORKLOADS, crashes=CRASHES, restart=st.sampled_from([0.0, 0.0, 3.0]), short=st.sampled_from([2, 512]))
def test_every_decision_is_that_of_a_plain_scheduler(name, jobs, crashes, restart, short, monkeypatch_module):
    monkeypatch_module.setattr(sorted_queue, "SHORT", short)  # with 2 the queue is rebuilt all the time
    jobs = sorted((float(a), g, float(d)) for a, g, d in jobs)
    parameters = {"thresholds_gpu_s": (11.0, 37.0), "promote": 4.0} if name == "las" else {}
    tiny = TinyWorld(jobs, [5], restart_s=restart, crashes=[(float(t) + 0.5, k) for t, k in crashes if k < len(jobs)])

    def same(o, plan: Plan):
        rule = {"thresholds": (11.0, 37.0), "promote": 4.0} if name == "las" else {}
        assert (stopped(plan), started(plan)) == expected(name, o, **rule)

    tiny.run(counted(name, **parameters), on_decision=same)
    assert len(tiny.completion) == len(jobs)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=10, deadline=None)
@given(jobs=WORKLOADS, nodes=st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_all_placements_finish_all_jobs(name, placement, jobs, nodes):
    """The little world asserts whole gangs and that no GPU is handed out twice."""
    nodes = [*nodes, 5]
    tiny = TinyWorld(sorted((float(a), g, float(d)) for a, g, d in jobs), nodes)
    tiny.run(make_stage(name, {"placement": placement}))
    assert len(tiny.completion) == len(jobs)


# -- the queue between decisions -----------------------------------------------------------------------------


def test_nothing_planned_is_overruled():
    observation = pool([], [(1, 5.0)], 1)
    planned, _ = counted("fifo").refine(observation, UNCHANGED, {})
    for name in NAMES:
        plan, _ = counted(name).refine(observation, planned, {})
        assert plan.allocation is planned.allocation
        assert "earlier stage" in plan.reasons[-1].text


# -- training jobs and shares --------------------------------------------------------------------------------


def training(requested, per=1, fewest=1, most=8):
    return Observation.of(
        nodes=Nodes.of(gpus=[8], first_gpu=[0], gpus_free=[8]),
        gpus=Gpus.of(node=np.zeros(8), memory_bytes=[10.0] * 4 + [20.0] * 4),
        jobs=Jobs.of(
            id=[0],
            arrival_s=[0.0],
            gpus_requested=[requested],
            gpus_per_worker=[per],
            workers_min=[fewest],
            workers_max=[most],
            duration_s=[9.0],
            service_s=[9.0],
            memory_bytes=[15.0],
        ),
    )


@pytest.mark.parametrize("name", NAMES)
def test_training_jobs_get_whole_workers_with_memory(name):
    for requested, per, got in ((4, 2, 4), (3, 2, 2), (1, 2, 2)):
        observation = training(requested, per)
        plan, _ = make_stage(name).refine(observation, UNCHANGED, {})
        assert check(plan, observation) is None
        assert plan.allocation.gpu.tolist() == [4, 5, 6, 7][:got]  # those with memory
    plan, _ = make_stage(name).refine(training(5), UNCHANGED, {})
    assert plan.allocation is None  # only four have memory


@pytest.mark.parametrize("name", NAMES)
def test_shares_go_where_they_fit_tightest(name):
    observation = Observation.of(
        nodes=Nodes.of(gpus=[3], first_gpu=[0], gpus_free=[1]),
        gpus=Gpus.of(node=[0, 0, 0], job=[-1, -2, -2], share_free=[1.0, 0.5, 0.3]),
        jobs=Jobs.of(
            id=range(4),
            arrival_s=np.arange(4.0),
            rigid=[True] * 4,
            gpus_requested=[1] * 4,
            duration_s=[9.0] * 4,
            service_s=[9.0] * 4,
            gpu_share_requested=[0.3, 0.4, 0.6, 0.5],
        ),
    )
    plan, _ = make_stage(name).refine(observation, UNCHANGED, {})
    assert check(plan, observation) is None
    got = dict(zip(plan.allocation.job.tolist(), plan.allocation.gpu.tolist(), strict=True))
    assert got == {0: 2, 1: 1, 2: 0}  # the last must wait: 0.4 and 0.1 are left


def test_srtf_takes_back_the_shares_it_can_see():
    observation = Observation.of(
        nodes=Nodes.of(gpus=[1], first_gpu=[0], gpus_free=[0]),
        gpus=Gpus.of(node=[0], job=[-2], share_free=[0.0]),
        jobs=Jobs.of(
            id=range(3),
            arrival_s=np.arange(3.0),
            rigid=[False, False, True],
            state=[JobState.RUNNING, JobState.RUNNING, JobState.WAITING],
            gpus_requested=[1] * 3,
            service_s=[50.0, 90.0, 9.0],
            gpu_share_requested=[0.5] * 3,
        ),
        workers=Workers.of(job=[0, 1], index=[0, 0], gpu=[0, 0], node=[0, 0], gpu_share=[0.5, 0.5]),
    )
    plan, _ = make_stage("srtf").refine(observation, UNCHANGED, {})
    assert check(plan, observation) is None
    assert (stopped(plan), started(plan)) == ([1], [2])


# -- the reference schedules ---------------------------------------------------------------------------------


def rows(name):
    with gzip.open(SCHEDULES / name, "rt") as file:
        return list(csv.DictReader(file))


@pytest.mark.shared_data
@pytest.mark.skipif(not SCHEDULES.exists(), reason="the public schedules are not beside the checkout")
@pytest.mark.parametrize("name", ["fifo", "fifo-greedy", "sjf", "sjf-greedy"])
def test_reference_schedules_job_by_job(name):
    trace = rows("C1_philly_0e4a51.csv.gz")
    jobs = [(float(job["arrival_s"]), int(job["gpus"]), float(job["duration_s"])) for job in trace]
    tiny = TinyWorld(jobs, [48])
    tiny.run(counted(name), verify=False, progress=False)
    for reference in rows(f"ref_C1_{name}.csv.gz"):
        job = int(reference["job_id"])
        assert tiny.first_start[job] == float(reference["start_s"])
        assert tiny.completion[job] == float(reference["completion_s"])
