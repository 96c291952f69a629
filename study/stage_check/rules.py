"""The contract of stages as plain functions, called by `check-stage` and the contract tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise.policies.contract import UNCHANGED, AllocationStage, Stage, check
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation
from equipoise.policies.record.journal import encode_memory
from equipoise.study.stage_check.observations import (
    MadeCluster,
    change,
    one_job,
    random_cluster,
    with_dead_nodes,
    with_gpus_beside,
    without_telemetry,
)
from equipoise.study.stage_check.same import freeze, only, same

KINDS = ("data", "tasks", "sync", "power", "allocation")
CASES = 20
"""Random clusters of each rule."""


def run(stage: Any, observation: Any, plan: Any = UNCHANGED, memory: Any = None) -> Any:
    """Refine and check the contract: feasible, pure, deterministic; returns (plan, memory)."""
    memory = stage.initial() if memory is None else memory
    twin_observation, twin_plan, twin_memory = map(copy.deepcopy, (observation, plan, memory))
    freeze(memory)
    new_plan, new_memory = stage.refine(observation, plan, memory)
    problem = check(new_plan, observation)
    assert problem is None, problem
    for name, table in observation.tables().items():
        assert same(table, getattr(twin_observation, name)), f"table {name} was modified"
    assert same(plan, twin_plan), "the plan handed in was modified"
    assert same(memory, twin_memory), "old memory was modified"
    again = stage.refine(twin_observation, twin_plan, twin_memory)
    assert same(again[0], new_plan), "the same input gave another plan"
    assert same(again[1], new_memory), "the same input gave another memory"
    encode_memory({"plan": new_plan, "before": memory, "after": new_memory})  # raises when a journal cannot
    assert len(new_plan.reasons) > len(plan.reasons), "no reason was given"
    assert new_plan.reasons[: len(plan.reasons)] == plan.reasons
    assert_starts_once(new_plan, observation)
    return new_plan, new_memory


def assert_starts_once(plan: Any, observation: Any) -> Any:
    """No job is listed twice, and no job is started that is done or already holds its GPUs."""
    if plan.allocation is None:
        return
    jobs = plan.allocation.job.tolist()
    assert len(set(jobs)) == len(jobs)
    for k, job in enumerate(jobs):
        assert observation.jobs.state[job] != JobState.DONE
        gpus = plan.allocation.gpus_of(k)
        if observation.jobs.state[job] == JobState.WAITING:
            assert len(gpus), f"job {job} waits already and is stopped"


def change_time(observation: Any, time_s: Any) -> Any:
    """The observation at another time."""
    other = change(observation, "nodes")
    other.time_s = time_s
    return other


class GpuPool:
    """Six GPUs as one pool; rigid jobs that lose nothing when they are stopped."""

    def __init__(self, jobs: Any) -> None:
        self.gpus, self.left_s, self.arrival_s = np.array(jobs, dtype=float).T.copy()
        self.duration_s, self.attained = self.left_s.copy(), np.zeros(len(jobs))
        self.held, self.now = np.full(6, -1), 0.0

    @property
    def running(self) -> Any:
        """Rows of jobs that hold GPUs."""
        return np.unique(self.held[self.held >= 0])

    def observe(self) -> Any:
        """The observation of the pool."""
        n = int((self.arrival_s <= self.now).sum())
        state = np.where(self.left_s > 0, JobState.WAITING, JobState.DONE)
        state[self.running] = JobState.RUNNING
        free = self.held < 0
        columns = {
            "id": np.arange(n),
            "arrival_s": self.arrival_s[:n],
            "state": state[:n],
            "rigid": np.ones(n),
            "gpus_requested": self.gpus[:n],
            "gpus_held": self.gpus[:n] * (state[:n] == JobState.RUNNING),
            "workers_min": self.gpus[:n],
            "workers_max": self.gpus[:n],
            "duration_s": self.duration_s[:n],
            "service_s": self.left_s[:n],
            "attained_gpu_s": self.attained[:n],
            "memory_bytes": np.zeros(n),
            "restart_s": np.zeros(n),
            "queued_since_s": self.arrival_s[:n],
            "checkpoint_bytes": np.zeros(n),
        }
        return Observation.of(
            self.now,
            10.0,
            jobs=Jobs.of(**columns),
            nodes=Nodes.of(gpus=[6], first_gpu=[0], gpus_free=[free.sum()], up=[True]),
            gpus=Gpus.of(node=np.zeros(6), job=self.held, share_free=free, memory_bytes=np.full(6, np.inf)),
        )

    def apply(self, plan: Any) -> Any:
        """Apply the allocation of the plan."""
        if plan.allocation is not None:
            self.held[np.isin(self.held, plan.allocation.job)] = -1
            for k, job in enumerate(plan.allocation.job):
                self.held[plan.allocation.gpus_of(k)] = job

    def forward(self, revisit_s: Any) -> Any:
        """Advance to the next completion, arrival or revisit; False when there is none."""
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


def declares_itself(stage: Any) -> Any:
    """The stage declares its name and behaviour, and is a frozen dataclass."""
    assert stage.kind in KINDS, f"kind {stage.kind!r} is none of {', '.join(KINDS)}"
    assert stage.name, "it has no name"
    assert type(stage).__doc__, "the stage needs a docstring that says what it does"
    assert hash(stage) == hash(copy.deepcopy(stage)), "a stage must be a frozen dataclass that holds parameters only"
    if isinstance(stage, AllocationStage) or stage.kind == "allocation":
        for rule in (stage.order, stage.blocking, stage.preemption):
            assert isinstance(rule, str), "order, blocking and preemption are texts"
            assert rule.strip(), "order, blocking and preemption must not be empty"


def survives_nothing(stage: Any) -> Any:
    """On an empty cluster, and with all nodes down, it changes nothing."""
    plan, memory = run(stage, Observation.of(10.0, 5.0))
    assert plan.changes_nothing(), "it plans a change on an empty cluster"
    run(stage, Observation.of(20.0, 5.0, nodes=Nodes.of(gpus=[0], up=[True])), memory=memory)
    cluster = MadeCluster(np.random.default_rng(2), [2, 2], [False, False])
    cluster.add(JobState.WAITING, rigid=True, gpus=1)
    assert run(stage, cluster.observe())[0].changes_nothing(), "it plans a change while every node is down"


def survives_a_full_cluster(stage: Any) -> Any:
    """It handles a full cluster with waiting jobs."""
    cluster = MadeCluster(np.random.default_rng(1), [4, 4], [True, True])
    for rigid in (True, False):
        cluster.add(JobState.RUNNING, rigid=rigid, gpus=4)
    for rigid in (True, False, True):
        cluster.add(JobState.WAITING, rigid=rigid, gpus=3)
    run(stage, cluster.observe())


def survives_lost_nodes_and_telemetry(stage: Any) -> Any:
    """It handles a node failure under a job and missing telemetry; the last good batch split is kept."""
    observation = one_job([2.0, 2.0, 1.0, 1.0])
    _, memory = run(stage, observation)
    run(stage, with_dead_nodes(observation, [1]), memory=memory)
    plan, memory = run(stage, without_telemetry(change_time(observation, 110.0)), memory=memory)
    assert stage.kind not in ("data", "tasks") or plan.changes_nothing(), "the last good plan stays"
    run(stage, change_time(observation, 120.0), memory=memory)
    run(stage, without_telemetry(observation))


def leaves_gpus_beside_alone(stage: Any) -> Any:
    """GPUs held by features are in no plan, however full the cluster is, also with failed nodes."""
    for seed in range(CASES // 2):
        observation = with_gpus_beside(random_cluster(seed), every=1 + seed % 3)
        _, memory = run(stage, observation)
        later = change_time(observation, observation.time_s + 10.0)
        run(stage, with_dead_nodes(later, [seed % len(observation.nodes)]), memory=memory)


def survives_anything(stage: Any) -> Any:
    """It handles random clusters in sequence with one memory, some without telemetry, some with a failed node."""
    memory, time_s = stage.initial(), 60.0
    for seed in range(CASES):
        observation = change_time(random_cluster(seed), time_s)
        run(stage, observation)
        _, memory = run(stage, observation, memory=memory)
        _, memory = run(stage, change_time(without_telemetry(observation), time_s + 1.0), memory=memory)
        dead = with_dead_nodes(change_time(observation, time_s + 2.0), [seed % len(observation.nodes)])
        _, memory = run(stage, dead, memory=memory)
        time_s += 10.0


def reads_only_what_it_needs(stage: Any) -> Any:
    """Tables that `needs` leaves out are not read."""
    for seed in range(CASES):
        observation = random_cluster(seed)
        whole, _ = run(stage, observation)
        part, _ = stage.refine(only(observation, stage.needs), UNCHANGED, stage.initial())
        same_plan = same(part.with_(reasons=()), whole.with_(reasons=()))
        assert same_plan, "a table that `needs` leaves out was read"


def serves_every_job(stage: Any, jobs: Any = None) -> Any:
    """On a pool of 6 GPUs, all rigid jobs of (GPUs, duration, arrival) complete."""
    rng = np.random.default_rng(3)
    jobs = jobs or [(int(rng.integers(1, 7)), int(rng.integers(1, 50)), int(rng.integers(61))) for _ in range(10)]
    pool, memory = GpuPool(sorted(jobs, key=lambda job: job[2])), stage.initial()
    for _ in range(60 * len(jobs)):
        plan, memory = run(stage, pool.observe(), memory=memory)
        pool.apply(plan)
        if not pool.forward(plan.revisit_s):
            break
    assert (pool.left_s <= 0).all(), f"jobs left over: {np.flatnonzero(pool.left_s > 0)}"


RULES = (
    declares_itself,
    survives_nothing,
    survives_a_full_cluster,
    survives_lost_nodes_and_telemetry,
    leaves_gpus_beside_alone,
    survives_anything,
    reads_only_what_it_needs,
)


def rules_for(stage: Stage) -> tuple[Callable[[Any], Any], ...]:
    """The rules that a stage must hold to."""
    return (*RULES, serves_every_job) if stage.kind == "allocation" else RULES
