"""What every stage must hold to, built in or of another package: being registered is being tested.

A package that ships stages checks them with `equipoise check-stage NAME`, which has the rules without hypothesis.
"""

import copy
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from equipoise.policies.baselines.allocation import Fifo
from equipoise.policies.baselines.gavel import OBJECTIVES
from equipoise.policies.contract import UNCHANGED, Moves, Policy, check, refine
from equipoise.policies.observation import JobState, Observation
from equipoise.policies.record.journal import JournalWriter, replay
from equipoise.policies.registry import available, make_stage
from equipoise.sim.run import RunFailed
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario
from equipoise.study import stage_check as rules
from equipoise.study.stage_check import change_time, run, same
from tests.policies.observations import (
    MadeCluster,
    clusters,
    one_job,
    only,
    shared_gpu,
    with_dead_nodes,
    without_telemetry,
)

EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@cache
def drawn(strategy, number):
    """Ten examples of a strategy, the same ones for a number: drawn once for all stages, which takes a while."""
    found = []

    @seed(number)
    @EXAMPLES
    @given(example=strategy)
    def draw(example):
        found.append(example)

    draw()
    return tuple(found)


CLUSTERS = clusters()
SEVERAL = st.lists(CLUSTERS, min_size=2, max_size=3)
WITH_A_NODE = CLUSTERS.flatmap(lambda seen: st.tuples(st.just(seen), st.integers(0, len(seen.nodes) - 1)))


@cache
def cases():
    """(label, stage) of every registered stage by default, and in each mode or with each objective that it has."""
    found = []
    for name in sorted(available()):
        stage = make_stage(name)
        found.append((name, stage))
        if getattr(stage, "mode", None) == "formula":
            found.append((f"{name}-optimal", make_stage(name, {"mode": "optimal"})))
        if name == "gavel":
            found += [(f"{name}-{aim}", make_stage(name, {"objective": aim})) for aim in OBJECTIVES[1:]]
    return tuple(found)


def stages(*kinds):
    """Parametrise a test over all stages, or those of some kinds."""
    chosen = [(label, stage) for label, stage in cases() if not kinds or stage.kind in kinds]
    return pytest.mark.parametrize("stage", [s for _, s in chosen], ids=[label for label, _ in chosen])


@stages()
def test_declares_itself(stage):
    rules.declares_itself(stage)


@stages()
def test_nothing_there_and_everything_down(stage):
    rules.survives_nothing(stage)


@stages()
def test_gpus_of_features_are_left_alone(stage):
    rules.leaves_gpus_beside_alone(stage)


@stages()
def test_what_runs_show(stage):
    rules.survives_what_a_run_shows(stage)


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
    if stage.kind in ("data", "tasks", "sync") and stage.name not in ("fixed-h", "hierarchical-local-sgd"):
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
        observation = one_job([2.0] * workers, batch=12 * workers, fixed_s=fixed_s, time_s=100.0 + 10 * window)
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
    _, memory = run(stage, shared_gpu([0.5, 0.5], [1.0, 2.0], others_s=[2.0, 2.0], time_s=160.0), memory=memory)
    run(stage, one_job([2.0, 1.0], time_s=170.0), memory=memory)


@stages()
def test_random_clusters(stage):
    for observation in drawn(CLUSTERS, 1):
        run(stage, observation)


@stages()
def test_memory_of_anything(stage):
    for observations in drawn(SEVERAL, 2):
        memory, time_s = stage.initial(), 60.0
        for observation in observations:
            _, memory = run(stage, change_time(observation, time_s), memory=memory)
            time_s += 10.0


@stages()
def test_random_clusters_without_telemetry(stage):
    for observation in drawn(CLUSTERS, 3):
        plan, _ = run(stage, without_telemetry(observation))
        if stage.kind in ("data", "tasks") and stage.name not in ("locality", "equal"):
            assert plan.changes_nothing(), plan.reasons


@stages()
def test_random_clusters_with_a_death(stage):
    for observation, dead in drawn(WITH_A_NODE, 4):
        _, memory = run(stage, observation)
        run(stage, with_dead_nodes(change_time(observation, observation.time_s + 10), [dead]), memory=memory)


@stages()
def test_decisions_replay_from_a_journal(stage, tmp_path):
    """What is read back gives the same decisions: nothing outside (observation, memory) decides."""
    policy = Policy("replayed", (stage,))
    for k, observations in enumerate(drawn(SEVERAL, 5)):
        memory, time_s = policy.initial(), 60.0
        with JournalWriter(tmp_path / f"{k}.jsonl") as journal:
            for observation in observations:
                decision = refine(policy, change_time(observation, time_s), memory)
                journal.write(decision)
                memory, time_s = decision.memory, time_s + 10.0
        assert replay(policy, tmp_path / f"{k}.jsonl") == []


@stages()
def test_reads_only_what_it_needs(stage):
    for observation in drawn(CLUSTERS, 6):
        whole, _ = run(stage, observation)
        part, _ = stage.refine(only(observation, stage.needs), UNCHANGED, stage.initial())
        same_plan = same(part.with_(reasons=()), whole.with_(reasons=()))
        assert same_plan, "a table that `needs` leaves out was read"


@stages()
def test_refines_what_is_planned(stage):
    """What earlier stages planned stays feasible, and is kept where the stage has nothing to say about it."""
    for observation in drawn(CLUSTERS, 7):
        refines_what_is_planned(stage, observation)


def refines_what_is_planned(stage, observation):
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
        planned = planned.with_(sync_interval=jobs.sync_interval + 1, far_every=jobs.far_every.copy())
    planned = planned.with_(push_interval=observation.workers.push_interval.copy())
    if stage.kind == "allocation":
        suspect, batch = np.zeros(len(observation.gpus), dtype=np.bool_), jobs.global_batch.copy()
        weight = np.full(len(observation.workers), 0.5)
        planned = planned.with_(suspect=suspect, gradient_weight=weight, global_batch=batch)
    assert check(planned, observation) is None
    plan, _ = run(stage, observation, planned)
    assert plan.suspect is planned.suspect or stage.kind != "allocation"
    assert plan.gradient_weight is planned.gradient_weight or stage.kind != "allocation"
    assert plan.global_batch is planned.global_batch or stage.name in ("pollux", "sia")
    if planned.moves is not None:
        assert plan.moves is not None
        assert plan.moves.shard[0] == planned.moves.shard[0]
    if stage.kind != "sync":
        assert plan.sync_interval is planned.sync_interval
        assert plan.far_every is planned.far_every
        assert plan.push_interval is planned.push_interval


JOBS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=10)


@stages("allocation")
def test_every_job_is_served(stage):
    """A pool of 6 GPUs, rigid jobs of (GPUs, duration, arrival): all of them end."""
    for sizes in drawn(JOBS, 8):
        rules.serves_every_job(stage, sizes)


def tiny_jobs(count, every_s):
    """A scenario of small jobs, elastic ones and some known by their duration, on 32 GPUs of two models."""
    rng = np.random.default_rng(5)
    jobs = [{"name": f"tiny-{k}", "arrival": every_s * k} for k in range(count)]
    for k, job in enumerate(jobs):
        if k % 3:
            job |= {"model": "small", "steps": int(rng.integers(5, 60)), "global_batch": 64, "batch_max": 1024}
            job |= {"workers_max": 4}
        else:
            job |= {"gpus": 1 + k % 2, "duration": int(rng.integers(1, 9))}
    small = {"fixed_time": 0.08, "sample_time": 0.002, "parameters": 25e6, "noise_scale": 2000.0}
    nodes = [
        {"name": name[0], "count": 2, "gpus": 8, "accelerator": name} for name in ("a100_sxm_40gb", "v100_sxm2_32gb")
    ]
    return Scenario.model_validate(
        {
            "schema_version": 1,
            "name": "tiny",
            "cluster": {"nodes": nodes},
            "workload": {"models": {"small": small}, "jobs": jobs},
        }
    )


@cache
def many_tiny_jobs():
    """What a policy sees of three thousand such jobs that have all come."""
    seen = []

    @dataclass(frozen=True)
    class Looks(Fifo):
        """Keeps what it sees first, and starts nothing."""

        def refine(self, observation, plan, memory):
            if len(observation.jobs) >= 3000:
                seen.append(copy.deepcopy(observation))
            raise StopIteration

    with pytest.raises(RunFailed):
        simulate(tiny_jobs(3000, 0.0), policy=Policy("looks", (Looks(),)), timeline=False)
    return seen[0]


@stages("allocation")
def test_thousands_of_tiny_elastic_jobs(stage):
    """All of three thousand wait at once: one decision gives out every GPU, or as many as its rule does."""
    plan, _ = stage.refine(many_tiny_jobs(), UNCHANGED, stage.initial())
    assert check(plan, many_tiny_jobs()) is None
    assert len(np.unique(plan.allocation.gpu)) >= 30, "GPUs stay free"


@pytest.mark.long
@stages("allocation")
def test_a_thousand_tiny_jobs_all_end(stage):
    """A thousand of them, fifty a second, in a whole run."""
    found = simulate(tiny_jobs(1000, 0.02), policy=Policy(stage.name, (stage,)), timeline=False)
    assert found.summary()["completed"] == 1000


@pytest.mark.parametrize("borrows", [False, True])
@stages("allocation")
def test_a_quota_of_zero(stage, borrows):
    """Who has none and may not borrow never gets a GPU; who may gets what is left; the others are all served."""
    jobs = [
        {"name": f"{queue}-{k}", "queue": queue, "gpus": 2, "duration": "10 min", "arrival": f"{k} s"}
        for k in range(2)
        for queue in ("none", "all")
    ]
    more = {"cohort": "site"} if borrows else {}
    queues = [{"name": "none", "gpus": 0, **more}, {"name": "all", "gpus": 4, **more}]
    case = Scenario.model_validate(
        {
            "schema_version": 1,
            "name": "zero",
            "workload": {"jobs": jobs},
            "cluster": {"nodes": [{"count": 1, "gpus": 4, "accelerator": "v100_sxm2_32gb"}]},
            "queues": {"queues": queues, "cohorts": [{"name": "site"}], "too_large": "leave-out"},
        }
    )
    found = simulate(case, policy=Policy(stage.name, (stage,)), timeline=False)
    served = {name for name, at in zip(found.jobs["name"], found.jobs["completion_s"], strict=True) if at > 0}
    assert served == {"all-0", "all-1"} | ({"none-0", "none-1"} if borrows else set())


@stages("allocation")
def test_the_node_of_a_start_dies_before_it(stage):
    """What was planned on a node that is gone when the plan is carried out is refused, and later done elsewhere."""
    cluster = MadeCluster(np.random.default_rng(3), [2, 2], [True, True])
    cluster.add(JobState.WAITING, rigid=True, gpus=2)
    observation = cluster.observe()
    plan, memory = run(stage, observation)
    if plan.allocation is None:
        return
    node = int(observation.gpus.node[plan.allocation.gpu[0]])
    dead = with_dead_nodes(change_time(observation, observation.time_s + 1.0), [node])
    assert check(plan, dead), "a start on a dead node is not feasible"
    after, _ = run(stage, dead, memory=memory)
    if after.allocation is not None:
        assert (observation.gpus.node[after.allocation.gpu] != node).all()
