"""The contract of stages as plain functions, called by `check-stage` and the contract tests.

Stages are tried on what a policy observes in short simulated runs, also with nodes down, without telemetry and beside
features that hold GPUs, and in a run of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np

from equipoise.policies.contract import UNCHANGED, AllocationStage, Kind, Policy, Stage, check
from equipoise.policies.observation import TABLES, JobState, Nodes, Observation, Table, writable
from equipoise.policies.record.journal import encode_memory
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.run import run as simulate

KINDS = ("data", "tasks", "sync", "power", "allocation")
CASES = {"worn-nodes": "easy", "faulty": "s1+s2+s3+s4", "skewed-data": "s1+s2", "shared-gpus": "s3+fifo"}
"""Scenarios whose runs are observed, with the policy of each."""
EACH = 8
"""Observations of a run that stages are tried on."""
FREE, NO_JOB = -1, -3


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


# -- what stages are tried on ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Watch(Stage):
    """Keeps what it observes, and plans nothing."""

    name: ClassVar[str] = "watch"
    kind: ClassVar[Kind] = "data"
    seen: list[Observation] = field(default_factory=list, hash=False)

    def refine(self, observation: Observation, plan: Any, memory: Any) -> Any:
        """Copy the observation."""
        self.seen.append(copy.deepcopy(observation))
        return plan, memory


@cache
def observed() -> tuple[tuple[Observation, ...], ...]:
    """Observations of each case, in order of time, evenly from all decisions of a run."""
    found = []
    for name, policy in CASES.items():
        watch = _Watch()
        simulate(read_scenario(name).scenario, policy=Policy("watched", (watch, *make_policy(policy).stages)))
        step = max(1, len(watch.seen) // EACH)
        found.append(tuple(watch.seen[::step][:EACH]))
    return tuple(found)


def change(observation: Any, table: Any, **columns: Any) -> Any:
    """A deep copy with some columns of one table replaced."""
    other = copy.deepcopy(observation)
    for name, values in columns.items():
        target = getattr(other, table)
        writable(target, name)[: len(target)] = values
    return other


def change_time(observation: Any, time_s: Any) -> Any:
    """The observation at another time."""
    other = change(observation, "nodes")
    other.time_s = time_s
    return other


def with_dead_nodes(observation: Any, dead: Any) -> Any:
    """The observation with the nodes `dead` down: nothing on them is free or up."""
    up = observation.nodes.up.copy()
    up[dead] = False
    gpu_up = up[observation.gpus.node]
    other = change(observation, "nodes", up=up, gpus_free=np.where(up, observation.nodes.gpus_free, 0))
    other = change(other, "gpus", share_free=np.where(gpu_up, observation.gpus.share_free, 0.0))
    return change(other, "shards", node=np.where(up[other.shards.node], other.shards.node, -1))


def with_gpus_beside(observation: Any, every: Any = 2) -> Any:
    """The observation with each `every`-th free GPU held by a feature, which no job may have."""
    free = np.flatnonzero((observation.gpus.job == FREE) & observation.nodes.up[observation.gpus.node])[::every]
    job, share = observation.gpus.job.copy(), observation.gpus.share_free.copy()
    job[free], share[free] = NO_JOB, 0.0
    taken = np.bincount(observation.gpus.node[free], minlength=len(observation.nodes))
    other = change(observation, "nodes", gpus_free=observation.nodes.gpus_free - taken)
    other = change(other, "gpus", job=job, share_free=share)
    other.beside = {"feature": {"gpus": np.array([len(free)])}}
    return other


def without_telemetry(observation: Any) -> Any:
    """The observation with all measurements unknown (NaN)."""
    other = copy.deepcopy(observation)
    for name, columns in MEASURED.items():
        table = getattr(other, name)
        for column in columns:
            writable(table, column)[: len(table)] = np.nan
    return other


MEASURED = {
    "nodes": ("nic_busy_ratio", "ingest_samples_per_s", "speed_ratio"),
    "gpus": ("sm_active_ratio", "dram_active_ratio", "power_w", "temperature_c", "clock_ratio"),
    "workers": (
        "samples_owned",
        "capacity_samples_per_s",
        "step_s",
        "step_cov",
        "wait_s",
        "input_stall_s",
        "response_s_per_sample",
        "gradient_rate_per_s",
        "gradient_norm",
        "memory_free_bytes",
        "load_ratio",
    ),
    "jobs": (
        "work_s",
        "exchange_s",
        "exchange_alone_s",
        "noise_scale",
        "throughput_samples_per_s",
        "goodput_samples_per_s",
        "remaining_samples",
        "data_demand_bytes",
        "compute_demand_flops",
    ),
    "speeds": ("samples_per_s",),
    "shards": ("needed_in_s",),
    "paths": ("bytes_per_s", "latency_s"),
}
"""Columns that a world measures, by table."""


# -- the rules -------------------------------------------------------------------------------------------------


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
    first = observed()[0][0]
    down = with_dead_nodes(first, list(range(len(first.nodes))))
    plan, _ = run(stage, down)
    assert plan.allocation is None or not len(plan.allocation.gpu), "it starts a job while every node is down"


def survives_what_a_run_shows(stage: Any) -> Any:
    """It handles observations of several runs in sequence with one memory."""
    memory, time_s = stage.initial(), 60.0
    for run_of in observed():
        for observation in run_of:
            run(stage, observation)
            time_s += 10.0
            _, memory = run(stage, change_time(observation, time_s), memory=memory)


def survives_lost_nodes(stage: Any) -> Any:
    """It handles a node failure under its jobs."""
    for run_of in observed():
        for k, observation in enumerate(run_of):
            _, memory = run(stage, observation)
            later = change_time(observation, observation.time_s + 10.0)
            run(stage, with_dead_nodes(later, [k % len(observation.nodes)]), memory=memory)


def survives_lost_telemetry(stage: Any) -> Any:
    """It handles missing measurements; the last good batch split is kept."""
    for run_of in observed():
        for observation in run_of:
            _, memory = run(stage, observation)
            blind = without_telemetry(change_time(observation, observation.time_s + 10.0))
            plan, memory = run(stage, blind, memory=memory)
            assert stage.kind not in ("data", "tasks") or plan.samples_per_step is None, "the last good plan stays"
            run(stage, change_time(observation, observation.time_s + 20.0), memory=memory)


def leaves_gpus_beside_alone(stage: Any) -> Any:
    """GPUs held by features are in no plan, however full the cluster is, also with failed nodes."""
    for run_of in observed():
        for k, seen in enumerate(run_of):
            observation = with_gpus_beside(seen, every=1 + k % 3)
            _, memory = run(stage, observation)
            later = change_time(observation, observation.time_s + 10.0)
            run(stage, with_dead_nodes(later, [k % len(observation.nodes)]), memory=memory)


def reads_only_what_it_needs(stage: Any) -> Any:
    """Tables that `needs` leaves out are not read."""
    for run_of in observed():
        for observation in run_of:
            whole, _ = run(stage, observation)
            part, _ = stage.refine(only(observation, stage.needs), UNCHANGED, stage.initial())
            same_plan = same(part.with_(reasons=()), whole.with_(reasons=()))
            assert same_plan, "a table that `needs` leaves out was read"


def serves_every_job(stage: Any, jobs: Sequence[tuple[int, int, int]] = ()) -> Any:
    """On a pool of 6 GPUs, all rigid jobs of (GPUs, duration, arrival) complete."""
    rng = np.random.default_rng(3)
    jobs = jobs or [(int(rng.integers(1, 7)), int(rng.integers(1, 50)), int(rng.integers(61))) for _ in range(10)]
    listed = [
        {"gpus": gpus, "duration": length, "arrival": at} for gpus, length, at in sorted(jobs, key=lambda j: j[2])
    ]
    case = {"schema_version": 1, "name": "pool", "cluster": {"gpus": 6}, "workload": {"jobs": listed}}
    done = simulate(from_mapping(case), policy=Policy("checked", (stage,))).summary()["completed"]
    assert done == len(jobs), f"{len(jobs) - done:.0f} jobs are left over"


RULES = (
    declares_itself,
    survives_nothing,
    survives_what_a_run_shows,
    survives_lost_nodes,
    survives_lost_telemetry,
    leaves_gpus_beside_alone,
    reads_only_what_it_needs,
)


def rules_for(stage: Stage) -> tuple[Callable[[Any], Any], ...]:
    """The rules that a stage must hold to."""
    return (*RULES, serves_every_job) if stage.kind == "allocation" else RULES


# -- comparing -------------------------------------------------------------------------------------------------


def freeze(value: Any) -> Any:
    """Make every array inside `value` read-only and return it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict):
        for item in value.values():
            freeze(item)
    elif isinstance(value, list | tuple):
        for item in value:
            freeze(item)
    return value


def only(observation: Any, tables: Any) -> Any:
    """The observation with all tables empty except `tables`."""
    other = copy.deepcopy(observation)
    for name, kind in TABLES.items():
        if name not in tables:
            setattr(other, name, kind())
    return other


def same(one: Any, other: Any) -> Any:
    """Whether two plans, memories or tables are equal to the bit, NaN equal to NaN."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Table):
        # The arrays behind the columns: thousands of tables are compared, and no stage has read most columns.
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(same(writable(one, name)[: len(one)], writable(other, name)[: len(one)]) for name in one.columns)
        )
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__
        )
    return type(one) is type(other) and (one == other or (one != one and other != other))
