"""Nobody starves: every job starts within a bound that follows from the parameters, and is stopped a few times."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.policies.baselines.allocation import Easy, Fifo, FifoGreedy, Las, Sjf, SjfGreedy, Srtf
from equipoise.policies.registry import make_stage
from equipoise.policies.stages.s4 import NodeAllocation
from tests.sim.world.tiny_world import TinyWorld

RESTART_S = 5.0


def overload(rng, load, jobs, sizes, durations, gpus):
    """Poisson arrivals of jobs that ask for `load` times the GPUs that there are."""
    wanted, duration = rng.choice(sizes, jobs), rng.uniform(*durations, jobs)
    gap_s = (wanted * duration).mean() / (gpus * load)
    arrival = np.cumsum(rng.exponential(gap_s, jobs))
    return list(zip(arrival.tolist(), wanted.tolist(), duration.tolist(), strict=True))


class Watched(TinyWorld):
    """Counts how often each job is stopped."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stopped = dict.fromkeys(range(len(self.jobs)), 0)

    def _release(self, job, now, state):
        super()._release(job, now, state)
        self.stopped[job] += job not in self.completion and state == 0


def most_stops(stage, duration_s):
    """How often S4 may stop a job: its work since the last start must reach run_s, and grow by `growth`."""
    longer = max(duration_s / stage.run_s, 1.0)
    return 1 + math.floor(math.log(longer) / math.log(1.0 + stage.growth) + 1e-9)


def latest_starts(stage, jobs):
    """The bound that S4 states: (k + 1) * T after a job is overdue, k starts of jobs that fell due before."""
    due = [a + min(stage.reserve_after_s + stage.slowdown * d, stage.longest_wait_s) for a, _, d in jobs]
    longest_s = max(d for _, _, d in jobs) + RESTART_S
    starts = [1 + most_stops(stage, d) for _, _, d in jobs]
    return [
        due_s + longest_s * (1 + sum(s for s, other_s in zip(starts, due, strict=True) if other_s < due_s))
        for due_s in due
    ]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    load=st.sampled_from([0.9, 1.02, 1.5, 3.0]),
    nodes=st.sampled_from([(4,), (2, 2), (4, 4, 1)]),
    after=st.sampled_from([0.0, 300.0]),
    slowdown=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_every_job_starts_within_the_stated_bound(seed, load, nodes, after, slowdown):
    rng = np.random.default_rng(seed)
    jobs = overload(rng, load, 60, [1, 1, 2, 3, sum(nodes)], (5.0, 400.0), sum(nodes))
    stage = NodeAllocation(
        reserve_after_s=after, slowdown=slowdown, longest_wait_s=1500.0, run_s=20.0, growth=0.5, reluctance=1.0
    )
    tiny = Watched(jobs, nodes, restart_s=RESTART_S)
    tiny.run(stage)
    assert len(tiny.completion) == len(jobs)
    for job, bound_s in enumerate(latest_starts(stage, jobs)):
        assert tiny.first_start[job] <= bound_s
        assert tiny.stopped[job] <= most_stops(stage, jobs[job][2])


@pytest.mark.parametrize("load", [1.02, 1.3])
def test_a_gang_as_large_as_the_cluster_does_not_wait_for_the_end_of_arrivals(load):
    """4 nodes of 4 GPUs, jobs of 1 to 4 GPUs for days, and one of 16 after an hour."""
    jobs = overload(np.random.default_rng(0), load, 800, [1, 2, 3, 4], (300.0, 1800.0), 16)
    gang = (3600.0, 16, 1800.0)
    jobs = sorted([*jobs, gang])
    row = jobs.index(gang)
    tiny = TinyWorld(jobs, [4] * 4, restart_s=RESTART_S)
    tiny.run(NodeAllocation(), verify=False)
    due_s = 3600.0 + 3600.0 + 10 * 1800.0
    assert tiny.first_start[row] <= due_s + 2 * 1800.0 + RESTART_S
    assert jobs[-1][0] > 2 * due_s  # arrivals go on for long after
    assert len(tiny.completion) == len(jobs)


def test_a_long_job_is_not_stopped_for_ever():
    """Short jobs fill the pool four times over the length of a long one; it is stopped a few times only."""
    short = [(100.0 * k, 1, 95.0) for k in range(1, 1200)]
    long = (0.0, 1, 30_000.0)
    tiny = Watched(sorted([*short, long]), [1], restart_s=RESTART_S)
    stage = NodeAllocation(longest_wait_s=20_000.0)
    tiny.run(stage, verify=False)
    assert 1 <= tiny.stopped[0] <= most_stops(stage, 30_000.0)
    assert tiny.completion[0] < short[-1][0] - 30_000.0  # well before the short jobs have ended
    assert tiny.first_start[0] == 0.0


@pytest.mark.parametrize("cls", [Fifo, FifoGreedy, Sjf, SjfGreedy, Easy, Srtf, Las, NodeAllocation])
def test_a_stage_says_truly_who_may_starve(cls):
    """A gang and a long job among small, short ones in overload: those who starve them say so; all end."""
    rng = np.random.default_rng(5)
    jobs = overload(rng, 1.3, 900, [1, 1, 2], (60.0, 240.0), 4)
    gang, long = (500.0, 4, 100.0), (600.0, 1, 9000.0)
    jobs = sorted([*jobs, gang, long])
    stage = cls() if cls is not NodeAllocation else NodeAllocation(slowdown=1.0, longest_wait_s=4000.0)
    tiny = TinyWorld(jobs, [4], restart_s=RESTART_S)
    tiny.run(stage, verify=False)
    assert len(tiny.completion) == len(jobs)
    last_s = jobs[-1][0]
    starved = [tiny.completion[jobs.index(job)] > last_s for job in (gang, long)]
    says_never = cls.starvation.startswith("never")
    assert cls.starvation
    assert any(starved) != says_never, starved


def test_parameters_of_patience_are_checked():
    for bad in ({"run_s": 0.0}, {"growth": 0.0}, {"slowdown": -1.0}, {"longest_wait_s": -5.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            make_stage("s4", bad)


class TraceColumns(NodeAllocation):
    """S4 that notes of each decision: (time, head and its reserved time, who starts, who is overdue, who waits)."""

    def refine(self, observation, plan, memory):
        found, memory = super().refine(observation, plan, memory)
        values, jobs, rows = found.reasons[-1].values, observation.jobs, observation.waiting
        waited_s = np.nan_to_num(jobs.waited_s[rows]) + observation.time_s - jobs.queued_since_s[rows]
        due_s = np.minimum(self.reserve_after_s + self.slowdown * jobs.duration_s[rows], self.longest_wait_s)
        late = {int(row): float(s) for row, s in zip(rows, waited_s - due_s, strict=True) if s >= 0.0}
        head = (values["s422_overdue"], values["s422_reserved_s"]) if "s422_overdue" in values else None
        began = set()
        if found.allocation is not None:
            held = np.diff(found.allocation.offset) > 0
            began = set(found.allocation.job[held].tolist())
        DECISIONS.append((observation.time_s, head, began, late, set(rows.tolist())))
        return found, memory


DECISIONS = []


LIMITED = {"accounts": [{"name": "x", "gpus_per_user": 4}], "too_large": "leave-out"}


def declared(rng, gpus):
    """Where a job of this many GPUs may run, and under which limit: of groups a (2 nodes x 4) and b (1 x 2)."""
    own = {}
    if rng.random() < 0.3:
        own["gpu_types"] = ["b"] if gpus <= 2 and rng.random() < 0.5 else ["a"]
    if rng.random() < 0.2 and gpus <= 4:
        own["together"] = str(rng.choice(["node-required", "rack-required"])) if gpus <= 2 else "rack-required"
    if rng.random() < 0.3 and gpus <= 4:
        own |= {"account": "x", "user": str(rng.choice(["ann", "bob"]))}
    return own


def mixed_queue(rng):
    """50 jobs for 10 GPUs of one or two models: rigid, of fewer GPUs, parts of GPUs (MPS or MIG).

    Some name a group of nodes, must have one node or rack, end at a limit of time, or share a user's limit.
    """
    jobs, arrival_s = [], 0.0
    for k in range(50):
        arrival_s += rng.exponential(120.0)
        gpus, duration_s, kind = (int(rng.choice([1, 1, 2, 3, 4, 8])), float(rng.uniform(60.0, 1200.0)), rng.random())
        own = {"gpus": gpus, "duration": duration_s}
        if kind < 0.2:
            own |= {"gpus_min": 1}
        elif kind < 0.4:
            own |= {"gpus": 1, "gpu_share": float(rng.choice([0.29, 0.57]))}  # MIG slices too
        own |= declared(rng, own["gpus"])
        if rng.random() < 0.2:
            own["time_limit"] = float(rng.uniform(60.0, 1200.0))
        jobs.append({"name": f"j{k}", "arrival": arrival_s, "priority": float(rng.choice([1, 1, 5])), **own})
    first = {"name": "a", "count": 2, "gpus": 4, "accelerator": "a100_sxm_80gb"}
    first |= {"sharing": str(rng.choice(["mps", "mig"]))}
    second = first | {"name": "b", "count": 1, "gpus": 2}
    second |= {"accelerator": "h100_sxm"} if rng.random() < 0.5 else {}
    return {
        "schema_version": 1,
        "name": "mixed",
        "cluster": {"nodes": [first, second], "topology": {"kind": "tree", "nodes_per_rack": 2}},
        "queues": LIMITED,
        "workload": {"jobs": jobs},
    }


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slowdown=st.sampled_from([0.0, 1.0, 5.0]))
@example(seed=23, slowdown=1.0)  # a job that its time limit ends runs on a faster GPU
def test_nothing_delays_the_job_that_has_the_reservation(seed, slowdown):
    """The time reserved for it never moves later, unless another is overdue longer.

    Jobs are known by their duration: the estimates of training jobs change as they are measured.
    """
    DECISIONS.clear()
    policy = TraceColumns(reserve_after_s=300.0, slowdown=slowdown, longest_wait_s=3000.0)
    equipoise.run(mixed_queue(np.random.default_rng(seed)), policy=policy)
    head, by_s = -1, math.inf
    for time_s, told, began, late, waiting in DECISIONS:
        other = any(s >= late.get(head, 0.0) for row, s in late.items() if row != head)
        if other or head in began or head not in waiting:
            head, by_s = -1, math.inf
        assert time_s <= by_s + 1.5
        if told is None or told[0] < 0 or told[0] in began:
            continue
        assert told[0] != head or not told[1] > by_s + 1.5
        by_s = min(by_s, math.inf if math.isnan(told[1]) else told[1]) if told[0] == head else told[1]
        head, by_s = told[0], math.inf if math.isnan(by_s) else by_s


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slowdown=st.sampled_from([0.0, 1.0, 3.0]), load=st.sampled_from([1.0, 1.5]))
def test_a_job_on_some_nodes_or_under_a_limit_starts_within_the_stated_bound(seed, slowdown, load):
    """(k + 1) * T after it is overdue, and T more for each of these under a limit, which empties first."""
    rng = np.random.default_rng(seed)
    jobs = overload(rng, load, 60, [1, 1, 2, 3, 4, 8], (30.0, 600.0), 10)
    stage = NodeAllocation(
        reserve_after_s=300.0, slowdown=slowdown, longest_wait_s=2000.0, run_s=20.0, growth=0.5, reluctance=1.0
    )
    rows = [
        {"name": f"j{k}", "arrival": a, "gpus": int(n), "duration": d, "priority": float(rng.choice([1, 1, 5]))}
        | declared(rng, n)
        for k, (a, n, d) in enumerate(jobs)
    ]
    group = {"accelerator": "generic", "gpus": 4, "count": 2, "name": "a"}
    case = {
        "schema_version": 1,
        "name": "bound",
        "cluster": {
            "nodes": [group, group | {"name": "b", "count": 1, "gpus": 2}],
            "topology": {"kind": "tree", "nodes_per_rack": 2},
        },
        "queues": LIMITED,
        "restart": {"detection": 1.0, "initialisation": 1.0},
        "workload": {"jobs": rows},
    }
    found = equipoise.run(case, policy=stage).jobs
    start_s = dict(zip(found["name"], found["start_s"].tolist(), strict=True))
    for k, bound_s in enumerate(latest_starts(stage, jobs)):
        due_s = jobs[k][0] + min(300.0 + slowdown * jobs[k][2], 2000.0)
        assert start_s[f"j{k}"] <= due_s + 2 * (bound_s - due_s)


def test_jobs_of_a_user_do_not_keep_an_overdue_one_at_its_limit_for_ever():
    """Jobs of one GPU for 5 min, 3 of 4 allowed busy; one of 4 of the same user, due 35 min after it came.

    From then on none of the others starts, and 5 min later its limit is free.
    """
    small = {"name": "small", "count": 240, "spacing": "100 s", "gpus": 1, "duration": "5 min"}
    large = {"name": "large", "gpus": 4, "arrival": "1 h", "duration": "5 min"}
    case = {
        "schema_version": 1,
        "name": "limit",
        "cluster": {"nodes": [{"count": 1, "gpus": 8}]},
        "queues": LIMITED,
        "workload": {"jobs": [one | {"account": "x", "user": "ann"} for one in (small, large)]},
    }
    jobs = equipoise.run(case, policy=NodeAllocation(reserve_after_s=600.0, slowdown=5.0)).jobs
    row = list(jobs["name"]).index("large")
    assert jobs["start_s"][row] - 3600.0 <= 35 * 60.0 + 5 * 60.0 + 1.0


@pytest.mark.parametrize(("minutes", "own", "priority"), [(60, 240, 10), (65, 65, 1)])
def test_small_jobs_that_come_later_do_not_pass_the_first_for_hours(minutes, own, priority):
    """Jobs of 2 GPUs for an hour keep 60 or 65 of 64 busy; one of 48 comes at 3 h and reserves after an hour.

    One of priority 1 (and as long as the others) reserves after an hour and its own 65 min. 16 GPUs may stay busy:
    with those of the last 16 min. The others have ended 44 (49) min after that.
    """
    small = {"name": "small", "count": 500, "spacing": "2 min", "gpus": 2, "duration": f"{minutes} min"}
    large = {"name": "large", "gpus": 48, "arrival": "3 h", "duration": f"{own} min", "priority": priority}
    case = {
        "schema_version": 1,
        "name": "late",
        "cluster": {"nodes": [{"count": 8, "gpus": 8}]},
        "workload": {"jobs": [small, large]},
    }
    jobs = equipoise.run(case, policy="s4").jobs
    row = list(jobs["name"]).index("large")
    assert jobs["start_s"][row] - 3 * 3600.0 <= 3600.0 + (minutes - 14 + (priority == 1) * own) * 60.0
