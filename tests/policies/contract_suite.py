"""What every stage must hold to, built in or of another package: being registered is being tested.

A package that ships stages can run the same suite: `from tests.policies.contract_suite import *` in a test file.
"""

import copy
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.policies.contract import UNCHANGED, AllocationStage, Decision, Moves, Policy, check, refine
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation
from equipoise.policies.record.journal import JournalWriter, encode, replay
from equipoise.policies.registry import available, make_stage
from tests.policies.observations import (
    Cluster,
    change,
    clusters,
    freeze,
    one_job,
    only,
    same,
    shared_gpu,
    with_dead_nodes,
    without_telemetry,
)

KINDS = ("data", "tasks", "sync", "allocation")
EXAMPLES = settings(
    max_examples=10, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


@cache
def cases():
    """(label, stage) of every registered stage by default, and in mode `optimal` if it has one."""
    found = []
    for name in sorted(available()):
        stage = make_stage(name)
        found.append((name, stage))
        if getattr(stage, "mode", None) == "formula":
            found.append((f"{name}-optimal", make_stage(name, {"mode": "optimal"})))
    return tuple(found)


def stages(*kinds):
    """Parametrise a test over all stages, or those of some kinds."""
    chosen = [(label, stage) for label, stage in cases() if not kinds or stage.kind in kinds]
    return pytest.mark.parametrize("stage", [s for _, s in chosen], ids=[label for label, _ in chosen])


def run(stage, observation, plan=UNCHANGED, memory=None):
    """Refine and hold the result to the contract: feasible, pure, deterministic; returns (plan, memory)."""
    memory = stage.initial() if memory is None else memory
    twin_observation, twin_plan, twin_memory = map(copy.deepcopy, (observation, plan, memory))
    freeze(memory)
    new_plan, new_memory = stage.refine(observation, plan, memory)
    assert check(new_plan, observation) is None
    for name, table in observation.tables().items():
        assert same(table, getattr(twin_observation, name)), f"table {name} was modified"
    assert same(plan, twin_plan), "the plan handed in was modified"
    assert same(memory, twin_memory), "old memory was modified"
    again = stage.refine(twin_observation, twin_plan, twin_memory)
    assert same(again[0], new_plan), "the same input gave another plan"
    assert same(again[1], new_memory), "the same input gave another memory"
    encode(Decision(observation, new_plan, {"stage": memory}, {"stage": new_memory}))  # raises when it cannot
    assert len(new_plan.reasons) > len(plan.reasons), "no reason was given"
    assert new_plan.reasons[: len(plan.reasons)] == plan.reasons
    assert_starts_once(new_plan, observation)
    return new_plan, new_memory


def assert_starts_once(plan, observation):
    """No job is listed twice, and none that is done or holds what it is given is started again."""
    if plan.allocation is None:
        return
    jobs = plan.allocation.job.tolist()
    assert len(set(jobs)) == len(jobs)
    for k, job in enumerate(jobs):
        assert observation.jobs.state[job] != JobState.DONE
        gpus = plan.allocation.gpus_of(k)
        if observation.jobs.state[job] == JobState.WAITING:
            assert len(gpus), f"job {job} waits already and is stopped"


@stages()
def test_declares_itself(stage):
    assert stage.kind in KINDS
    assert stage.name
    assert type(stage).__doc__, "say what the stage does"
    assert hash(stage) == hash(copy.deepcopy(stage)), "parameters only: a stage is a value"
    if isinstance(stage, AllocationStage) or stage.kind == "allocation":
        for rule in (stage.order, stage.blocking, stage.preemption):
            assert isinstance(rule, str)
            assert rule.strip()


@stages()
def test_empty_cluster(stage):
    plan, memory = run(stage, Observation.of(10.0, 5.0))
    assert plan.changes_nothing()
    run(stage, Observation.of(20.0, 5.0, nodes=Nodes.of(gpus=[0], up=[True])), memory=memory)


@stages()
def test_full_cluster(stage):
    cluster = Cluster(np.random.default_rng(1), [4, 4], [True, True])
    for rigid in (True, False):
        cluster.add(JobState.RUNNING, rigid=rigid, gpus=4)
    for rigid in (True, False, True):
        cluster.add(JobState.WAITING, rigid=rigid, gpus=3)
    observation = cluster.observe()
    assert observation.nodes.gpus_free.sum() == 0
    run(stage, observation)


@stages()
def test_everything_is_down(stage):
    cluster = Cluster(np.random.default_rng(2), [2, 2], [False, False])
    cluster.add(JobState.WAITING, rigid=True, gpus=1)
    plan, _ = run(stage, cluster.observe())
    assert plan.changes_nothing()


@stages()
def test_node_dies_under_a_job(stage):
    observation = one_job([2.0, 2.0, 1.0, 1.0])
    _, memory = run(stage, observation)
    plan, _ = run(stage, with_dead_nodes(observation, [1]), memory=memory)
    if plan.moves is not None:
        assert not (plan.moves.target == 1).any()


@stages()
def test_one_worker(stage):
    plan, _ = run(stage, one_job([2.0]))
    assert plan.samples_per_step is None
    assert plan.moves is None


@stages()
def test_nothing_was_measured_yet(stage):
    observation = without_telemetry(one_job([2.0, 2.0, 1.0, 1.0]))
    plan, _ = run(stage, observation)
    if stage.kind in ("data", "tasks", "sync") and stage.name != "fixed-h":
        assert plan.changes_nothing(), plan.reasons


@stages()
def test_telemetry_is_lost(stage):
    observation = one_job([2.0, 2.0, 1.0, 1.0])
    _, memory = run(stage, observation)
    blind = without_telemetry(change_time(observation, 110.0))
    plan, memory = run(stage, blind, memory=memory)
    if stage.kind in ("data", "tasks"):
        assert plan.changes_nothing(), "the last good plan stays"
    run(stage, change_time(observation, 120.0), memory=memory)


@stages("data", "tasks")
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("fixed_s", [0.0, 0.7])
def test_equal_workers_change_nothing(stage, workers, fixed_s):
    memory = stage.initial()
    for window in range(4):
        observation = one_job(
            [2.0] * workers, batch=12 * workers, fixed_s=fixed_s, time_s=100.0 + 10 * window
        )
        plan, memory = run(stage, observation, memory=memory)
        assert plan.changes_nothing(), plan.reasons


@stages()
def test_memory_of_other_workers(stage):
    """Workers appear, vanish and change rows between two decisions."""
    memory = stage.initial()
    sizes = [[2.0, 1.0], [2.0, 1.0, 1.0, 3.0], [1.0], [2.0, 1.0, 1.0]]
    for window, speeds in enumerate(sizes):
        _, memory = run(stage, one_job(speeds, time_s=100.0 + 10 * window), memory=memory)
    _, memory = run(stage, Observation.of(150.0, 10.0), memory=memory)
    _, memory = run(
        stage, shared_gpu([0.5, 0.5], [1.0, 2.0], others_s=[2.0, 2.0], time_s=160.0), memory=memory
    )
    run(stage, one_job([2.0, 1.0], time_s=170.0), memory=memory)


@stages()
@EXAMPLES
@given(observation=clusters())
def test_random_clusters(stage, observation):
    run(stage, observation)


@stages()
@EXAMPLES
@given(observations=st.lists(clusters(), min_size=2, max_size=3))
def test_memory_of_anything(stage, observations):
    memory, time_s = stage.initial(), 60.0
    for observation in observations:
        _, memory = run(stage, change_time(observation, time_s), memory=memory)
        time_s += 10.0


@stages()
@EXAMPLES
@given(observation=clusters())
def test_random_clusters_without_telemetry(stage, observation):
    plan, _ = run(stage, without_telemetry(observation))
    if stage.kind in ("data", "tasks") and stage.name not in ("locality", "equal"):
        assert plan.changes_nothing(), plan.reasons


@stages()
@EXAMPLES
@given(observation=clusters(), data=st.data())
def test_random_clusters_with_a_death(stage, observation, data):
    _, memory = run(stage, observation)
    dead = data.draw(st.integers(0, len(observation.nodes) - 1))
    run(stage, with_dead_nodes(change_time(observation, observation.time_s + 10), [dead]), memory=memory)


@stages()
@EXAMPLES
@given(observations=st.lists(clusters(), min_size=2, max_size=3))
def test_decisions_replay_from_a_journal(stage, observations):
    """What is read back gives the same decisions: nothing outside (observation, memory) decides."""
    policy = Policy("replayed", (stage,))
    memory, time_s = policy.initial(), 60.0
    with tempfile.TemporaryDirectory() as folder, JournalWriter(Path(folder) / "journal.jsonl") as journal:
        for observation in observations:
            decision = refine(policy, change_time(observation, time_s), memory)
            journal.write(decision)
            memory, time_s = decision.memory, time_s + 10.0
        assert replay(policy, Path(folder) / "journal.jsonl") == []


@stages()
@EXAMPLES
@given(observation=clusters())
def test_reads_only_what_it_needs(stage, observation):
    whole, _ = run(stage, observation)
    part, _ = stage.refine(only(observation, stage.needs), UNCHANGED, stage.initial())
    assert same(part.with_(reasons=()), whole.with_(reasons=())), "a table that `needs` leaves out was read"


@stages()
@EXAMPLES
@given(observation=clusters())
def test_refines_what_is_planned(stage, observation):
    """What earlier stages planned stays feasible, and is kept where the stage has nothing to say about it."""
    planned = UNCHANGED.because("earlier", "planned something")
    shards = observation.shards
    movable = np.flatnonzero(
        ~shards.started & (shards.worker >= 0) & (shards.node >= 0) & observation.nodes.up[shards.node]
    )[:1]
    if len(movable) and shards.node[movable[0]] == observation.workers.node[shards.worker[movable[0]]]:
        worker = shards.worker[movable]
        planned = planned.with_(moves=Moves(movable, shards.node[movable], shards.node[movable], worker))
    jobs = observation.jobs
    if len(jobs):
        planned = planned.with_(sync_interval=jobs.sync_interval + 1)
    assert check(planned, observation) is None
    plan, _ = run(stage, observation, planned)
    if planned.moves is not None:
        assert plan.moves is not None
        assert plan.moves.shard[0] == planned.moves.shard[0]
    if stage.kind != "sync":
        assert plan.sync_interval is planned.sync_interval


@stages("allocation")
@settings(EXAMPLES, max_examples=8)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=10
    )
)
def test_every_job_is_served(stage, sizes):
    """A pool of 6 GPUs, rigid jobs of (GPUs, duration, arrival): all of them end."""
    pool = Pool(sorted(sizes, key=lambda job: job[2]))
    memory = stage.initial()
    for _ in range(60 * len(sizes)):
        plan, memory = run(stage, pool.observe(), memory=memory)
        pool.apply(plan)
        if not pool.forward(plan.revisit_s):
            break
    assert (pool.left_s <= 0).all(), f"jobs left over: {np.flatnonzero(pool.left_s > 0)}"


class Pool:
    """Six GPUs, counted; rigid jobs that lose nothing when they are stopped."""

    def __init__(self, jobs):
        self.gpus, self.left_s, self.arrival_s = np.array(jobs, dtype=float).T.copy()
        self.duration_s, self.attained = self.left_s.copy(), np.zeros(len(jobs))
        self.held, self.now = np.full(6, -1), 0.0

    @property
    def running(self):
        return np.unique(self.held[self.held >= 0])

    def observe(self):
        n = int((self.arrival_s <= self.now).sum())
        state = np.where(self.left_s > 0, JobState.WAITING, JobState.DONE)
        state[self.running] = JobState.RUNNING
        free = self.held < 0
        columns = {
            "id": np.arange(n), "arrival_s": self.arrival_s[:n], "state": state[:n], "rigid": np.ones(n),
            "gpus_requested": self.gpus[:n], "gpus_held": self.gpus[:n] * (state[:n] == JobState.RUNNING),
            "workers_min": self.gpus[:n], "workers_max": self.gpus[:n], "duration_s": self.duration_s[:n],
            "service_s": self.left_s[:n], "attained_gpu_s": self.attained[:n], "memory_bytes": np.zeros(n),
            "restart_s": np.zeros(n), "queued_since_s": self.arrival_s[:n], "checkpoint_bytes": np.zeros(n),
        }  # fmt: skip
        return Observation.of(
            self.now, 10.0, jobs=Jobs.of(**columns),
            nodes=Nodes.of(gpus=[6], first_gpu=[0], gpus_free=[free.sum()], up=[True]),
            gpus=Gpus.of(node=np.zeros(6), job=self.held, share_free=free, memory_bytes=np.full(6, np.inf)),
        )  # fmt: skip

    def apply(self, plan):
        if plan.allocation is not None:
            self.held[np.isin(self.held, plan.allocation.job)] = -1
            for k, job in enumerate(plan.allocation.job):
                self.held[plan.allocation.gpus_of(k)] = job

    def forward(self, revisit_s):
        """To the next completion, arrival or revisit; False when there is none."""
        running = self.running
        ends = self.now + self.left_s[running]
        later = self.arrival_s[self.arrival_s > self.now]
        then = min([*ends, *later, revisit_s])
        if not np.isfinite(then):
            return False
        self.left_s[running] -= then - self.now
        self.left_s[self.left_s < 1e-9] = 0.0
        self.attained[running] += (then - self.now) * self.gpus[running]
        self.held[np.isin(self.held, np.flatnonzero(self.left_s == 0))] = -1
        self.now = then
        return True


def change_time(observation, time_s):
    """The same observation at another time."""
    other = change(observation, "nodes")
    other.time_s = time_s
    return other
