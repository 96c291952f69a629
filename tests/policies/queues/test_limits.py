"""Limits of users, accounts, QOS and cohorts: what is left of each, and that no policy ever breaks one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.policies.baselines.gavel import Gavel
from equipoise.policies.contract import Allocation, AllocationStage, Decision, Memory, Plan, Policy, Refusal
from equipoise.policies.declared_queues import Queues
from equipoise.policies.observation import RUNNING, Observation
from equipoise.policies.quotas.limits import Quota
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from tests.oracles.queues import Node

POLICIES = ("fifo", "fifo-greedy", "easy", "sjf", "srtf", "las", "s4", "multifactor", "kueue")


def case(jobs: list[dict[str, Any]], queues: dict[str, Any], nodes: Any = None) -> Any:
    cluster = {"nodes": nodes or [{"name": "a", "count": 2, "gpus": 4}]}
    plain = {"restart": {"initialisation": 0, "detection": 0, "checkpoint_write": 0}}
    text = {"schema_version": 1, "name": "x", "cluster": cluster, "workload": {"jobs": jobs}, "queues": queues}
    return from_mapping(text | plain)


def most_held(scenario: Any, policy: str, kind: str) -> dict[str, int]:
    """Most GPUs that the jobs of each user (account, ...) held at any decision, from what the policy saw."""
    most: dict[str, int] = {}
    made = run(scenario, policy=make_policy(policy), timeline=True)
    assert made.timeline is not None
    segments = made.timeline["segments"]
    who = dict(zip(made.jobs["job_id"].tolist(), made.jobs[kind].tolist(), strict=True))
    runs = [
        (s, e, who[j], g)
        for s, e, j, g, state in zip(
            segments["start_s"], segments["end_s"], segments["job_id"], segments["gpus"], segments["state"], strict=True
        )
        if state != "queued" and e > s
    ]
    for moment in {r[0] for r in runs}:
        for name in set(who.values()):
            now = sum(int(g) for s, e, owner, g in runs if s <= moment < e and owner == name)
            most[name] = max(most.get(name, 0), now)
    assert np.isfinite(made.jobs["completion_s"]).all()
    return most


@pytest.mark.parametrize("policy", POLICIES)
def test_a_user_never_holds_more_than_the_qos_allows(policy: str) -> None:
    jobs = [
        {"name": "u", "count": 6, "gpus": 2, "duration": "1 h", "user": "ann", "qos": "normal"},
        {"name": "v", "count": 3, "gpus": 1, "duration": "1 h", "user": "bob", "qos": "normal", "arrival": 5},
    ]
    scenario = case(jobs, {"qos": [{"name": "normal", "gpus_per_user": 4, "gpus": 5}]})
    assert most_held(scenario, policy, "user") == {"ann": 4, "bob": 1}


@pytest.mark.parametrize("policy", POLICIES)
def test_partition_and_gpu_types_hold_under_every_policy(policy: str) -> None:
    nodes = [{"name": "a", "count": 1, "gpus": 4}, {"name": "h", "count": 1, "gpus": 4, "accelerator": "h100_sxm"}]
    jobs = [
        {"name": "any", "count": 2, "gpus": 2, "duration": "1 h"},
        {"name": "h", "count": 3, "gpus": 2, "duration": "1 h", "gpu_types": ["h100_sxm"]},
        {"name": "p", "count": 2, "gpus": 2, "duration": "1 h", "partition": "slow"},
    ]
    scenario = case(jobs, {"partitions": [{"name": "slow", "nodes": ["a"]}]}, nodes)
    made = run(scenario, policy=make_policy(policy), timeline=True)
    assert made.timeline is not None
    held = made.timeline["holdings"]
    names = dict(zip(made.jobs["job_id"].tolist(), made.jobs["name"].tolist(), strict=True))
    for job, node in zip(held["job_id"].tolist(), held["node"].tolist(), strict=True):
        if names[job].startswith("h"):
            assert node == 1
        if names[job].startswith("p"):
            assert node == 0
    assert np.isfinite(made.jobs["completion_s"]).all()


@dataclass(frozen=True)
class Latest(AllocationStage):
    """Stops whoever runs for the last to come, whose GPUs are the first ones of the cluster."""

    name: ClassVar[str] = "latest"
    order: ClassVar[str] = "latest first"
    blocking: ClassVar[str] = "all"
    preemption: ClassVar[str] = "always"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        waiting = observation.waiting.tolist()
        running = np.flatnonzero(observation.jobs.state == RUNNING).tolist()
        if not waiting or max(waiting) < max(running, default=-1):
            return plan, memory
        stops: list[tuple[int, list[int]]] = [(row, []) for row in running]
        return plan.with_(allocation=Allocation.of([*stops, (max(waiting), [0, 1, 2, 3])])), memory


def test_a_job_that_comes_after_one_that_is_stopped_is_put_where_it_may_be() -> None:
    """Both may use node b alone: the GPUs that the first leaves are the second one's."""
    nodes = [{"name": name, "count": 1, "gpus": 4} for name in "ab"]
    jobs = [{"name": f"j{at}", "gpus": 4, "duration": 100, "arrival": at, "partition": "p"} for at in (0, 10)]
    scenario = case(jobs, {"partitions": [{"name": "p", "nodes": ["b"]}]}, nodes)
    made = run(scenario, policy=Policy("latest", (Latest(),)), timeline=True)
    assert made.timeline is not None
    assert made.jobs["start_s"].tolist() == [0.0, 10.0]
    assert made.jobs["preemptions"].tolist() == [1, 0]
    assert set(made.timeline["holdings"]["node"].tolist()) == {1}


def test_a_gang_that_asks_for_one_node_gets_one() -> None:
    jobs = [
        {"name": "x", "count": 2, "gpus": 3, "duration": "1 h"},
        {"name": "y", "gpus": 2, "duration": "1 h", "together": "node-required", "arrival": 1},
    ]
    made = run(case(jobs, {}), policy=make_policy("fifo"))
    assert made.jobs["start_s"].tolist() == [0.0, 0.0, 3600.0]  # two GPUs were free, one on each node


def test_jobs_that_a_limit_never_lets_start() -> None:
    jobs = [{"name": "big", "gpus": 6, "duration": 60, "qos": "q"}, {"name": "ok", "gpus": 1, "duration": 60}]
    queues: dict[str, Any] = {"qos": [{"name": "q", "gpus_per_job": 4}]}
    with pytest.raises(InputError, match="job big asks for 6 GPUs, one job may have 4: it can never start"):
        run(case(jobs, queues))
    made = run(case(jobs, queues | {"too_large": "leave-out"}))
    assert made.jobs["name"].tolist() == ["ok"]
    assert any("1 jobs left out: they can never start; first big" in note for note in made.notes)


def test_jobs_of_a_user_without_an_account_are_charged_to_the_user_s_first_one(tmp_path: Path) -> None:
    """A allows 4 of the 8 GPUs: one job of u after the other, whether the scenario or a trace lists them."""
    users = [{"name": "u", "account": "A"}, {"name": "u", "account": "B"}]
    queues: dict[str, Any] = {"accounts": [{"name": "A", "gpus": 4}, {"name": "B"}], "users": users}
    listed = case([{"name": "x", "count": 2, "gpus": 4, "duration": "1 h", "user": "u"}], queues)
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,arrival_s,gpus,duration_s,user\n0,0,4,3600,u\n1,0,4,3600,u\n")
    for policy in ("multifactor", "fifo"):
        for made in (equipoise.run(listed, policy=policy), equipoise.run(case([], queues), policy=policy, trace=trace)):
            assert made.jobs["start_s"].tolist() == [0.0, 3600.0]
            assert made.jobs["account"].tolist() == ["A", "A"]
            assert any("2 jobs name a user and no account" in note for note in made.notes)
    # Shares: u1's account has 1, u2's 9, and each job holds all GPUs; u1 has used some when the third is chosen.
    users = [{"name": f"u{k}", "account": a} for k, a in ((1, "A"), (2, "B"))]
    queues = {"accounts": [{"name": "A", "shares": 1}, {"name": "B", "shares": 9}], "users": users}
    jobs = [{"name": f"j{k}", "gpus": 8, "duration": "1 h", "user": f"u{1 + k // 2}"} for k in range(4)]
    made = equipoise.run(case(jobs, queues | {"priority": {"fairshare": 1000}}), policy="multifactor")
    order = made.jobs["user"][np.argsort(made.jobs["start_s"])].tolist()
    assert order == ["u1", "u2", "u2", "u1"]


def test_what_is_not_declared_is_refused_in_one_line() -> None:
    for queues, said in (
        ({"queues": [{"name": "q", "gpus": 1, "cohort": "c"}]}, "queues.0.cohort: 'c' is not declared"),
        ({"accounts": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, "'a' is its own ancestor"),
        ({"qos": [{"name": "q"}, {"name": "q"}]}, "'q' appears twice"),
        ({"partitions": [{"name": "p", "nodes": ["z"]}]}, "unknown node or group of nodes 'z'; known: a, a-0, a-1"),
        ({"partitions": [{"name": "pp"}]}, r"workload.jobs.0.partition: unknown partition 'p'; did you mean 'pp'\?"),
        ({"flavors": {"f": ["b200"]}}, "queues.flavors.f.0: unknown accelerator or group of nodes 'b200'"),
    ):
        with pytest.raises(InputError, match=said):
            run(case([{"gpus": 1, "duration": 1, "partition": "p"}], queues))


def test_a_policy_that_leaves_declared_rules_aside_says_so() -> None:
    queues: dict[str, Any] = {"priority": {"age": 1, "fairshare": 1}, "backfill": {}}
    jobs = [{"gpus": 1, "duration": 1, "user": "u"}]
    notes = run(case(jobs, queues), policy=make_policy("fifo")).notes
    assert "policy fifo does not apply these settings of 'queues': priority, fair share, backfill" in notes
    assert not [n for n in run(case(jobs, queues), policy=make_policy("multifactor")).notes if "does not apply" in n]


def test_a_policy_that_leaves_the_priority_of_jobs_aside_says_so() -> None:
    jobs = [{"gpus": 1, "duration": 1, "priority": priority} for priority in (1, 2)]
    silent = ("s4", "kueue", "gavel")
    for policy in ("fifo", "easy", "multifactor", Gavel(objective="makespan"), *silent):
        notes = equipoise.run(case(jobs, {}), policy=policy).notes
        assert any("does not apply the 'priority' of jobs" in note for note in notes) == (policy not in silent)


def test_a_limit_on_nodes_counts_those_of_jobs_that_do_not_state_them() -> None:
    """Two nodes of 4 GPUs: jobs of 1 GPU hold one node, a job of 5 GPUs two."""
    queues = {"accounts": [{"name": "A", "tres": {"node": 2}}]}
    jobs = [{"name": "x", "count": 3, "gpus": 1, "duration": 100, "account": "A"}]
    jobs.append({"name": "y", "gpus": 5, "duration": 100, "account": "A"})
    assert equipoise.run(case(jobs, queues), policy="fifo").jobs["start_s"].tolist() == [0.0, 0.0, 100.0, 200.0]


amount = st.integers(0, 12).map(float)
limit = st.none() | amount


@st.composite
def forests(draw: st.DrawFn) -> list[Node]:
    """A root cohort, a cohort in it, and queues below both; children behind their parents."""
    root = Node("root", draw(amount))
    inner = Node("inner", draw(amount), draw(limit), draw(limit), root)
    root.children.append(inner)
    nodes = [root, inner]
    for k in range(draw(st.integers(1, 4))):
        parent = inner if k == 0 or draw(st.booleans()) else root
        node = Node(f"q{k}", draw(amount), draw(limit), draw(limit), parent)
        parent.children.append(node)
        nodes.append(node)
    return nodes


def queues_of(nodes: list[Node]) -> Queues:
    names = [node.name for node in nodes]
    leaves = [k for k, node in enumerate(nodes) if node.name.startswith("q")]
    most = [
        node.subtree() + (0.0 if node.parent is None else np.inf if node.borrow is None else node.borrow)
        for node in nodes
    ]
    return Queues(
        names={"limit": tuple(names)},
        claims=np.full((len(leaves), 5), -1),
        leaf=np.array([[k] for k in leaves]),
        parent=np.array([-1 if n.parent is None else names.index(n.parent.name) for n in nodes]),
        gpus_max=np.array(most),
        gpus_kept=np.array([node.guaranteed() for node in nodes]),
        gpus_nominal=np.array([node.subtree() for node in nodes]),
        jobs_max=np.full(len(nodes), np.inf),
        models=np.full(len(nodes), -1),
    )


@settings(max_examples=150, deadline=None)
@given(forests(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=12))
def test_quotas_in_cohorts_equal_the_oracle(nodes: list[Node], asked: list[tuple[int, int]]) -> None:
    queues = [node for node in nodes if node.name.startswith("q")]
    quota = Quota.unused(queues_of(nodes), 1)
    for which, gpus in asked:
        claim = which % len(queues)
        fits = quota.broken(claim, {0: float(gpus)}) < 0
        assert fits == queues[claim].allows(float(gpus))
        if fits:
            quota.book(claim, {0: float(gpus)})
            queues[claim].used += gpus
        for k, node in enumerate(nodes):
            assert quota.gpus[k] == pytest.approx(node.usage())


def test_borrowing_and_lending_on_a_worked_case() -> None:
    root = Node("root", 0.0)
    a, b = Node("qa", 8.0, 4.0, 6.0, root), Node("qb", 8.0, None, None, root)
    root.children = [a, b]
    quota = Quota.unused(queues_of([root, a, b]), 1)
    assert (quota.left(1), quota.left(2)) == (12.0, 14.0)  # a: 8 and 4 borrowed; b: 8, and the 6 that a lends
    quota.book(0, {0: 9.0})
    assert (quota.left(1), quota.left(2)) == (3.0, 7.0)  # 2 of its 9 a keeps; 7 are of the 14 shared
    quota.book(1, {0: 7.0})
    assert (quota.left(1), quota.left(2)) == (0.0, 0.0)


CASES = st.lists(
    st.fixed_dictionaries(
        {
            "gpus": st.integers(1, 4),
            "duration": st.integers(1, 40).map(float),
            "user": st.sampled_from("uv"),
            "account": st.sampled_from(["x", "y"]),
            "qos": st.sampled_from(["n", "h"]),
            "arrival": st.integers(0, 30).map(float),
            "queue": st.sampled_from(["qa", "qb"]),
            "priority": st.sampled_from([1.0, 2.0]),
        }
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=12, deadline=None)
@given(CASES, st.sampled_from(POLICIES))
def test_no_policy_ever_breaks_a_limit(jobs: list[dict[str, Any]], policy: str) -> None:
    queues = {
        "accounts": [{"name": "x", "gpus": 6}, {"name": "y", "parent": "x", "gpus_per_user": 4}],
        "qos": [{"name": "n", "gpus": 5}, {"name": "h", "gpus_per_user": 4, "jobs_per_account": 2}],
        "cohorts": [{"name": "c"}],
        "queues": [
            {"name": "qa", "cohort": "c", "gpus": 3, "lend": 1, "borrow": 3, "reclaim": "any"},
            {"name": "qb", "cohort": "c", "gpus": 4, "within": "lower-priority"},
        ],
    }
    named = [{"name": f"j{k}", **job} for k, job in enumerate(jobs)]
    checked = 0

    def check(decision: Decision, refused: list[Refusal]) -> None:
        nonlocal checked
        quota, q = Quota.now(decision.observation), decision.observation.queues
        assert all(used <= most + 1e-9 for used, most in zip(quota.gpus, q.gpus_max, strict=True))
        assert all(used <= most for used, most in zip(quota.jobs, q.jobs_max, strict=True))
        checked += 1

    from equipoise.sim.cluster.cluster import Cluster
    from equipoise.sim.hardware.prices import make_prices
    from equipoise.sim.hardware.profile import load_profile
    from equipoise.sim.job.demand import make_demand
    from equipoise.sim.network.topology import Topology
    from equipoise.sim.world.world import SimWorld

    scenario = case(named, queues | {"too_large": "leave-out"})
    topology, profile = Topology(scenario.cluster), load_profile(scenario.cluster.hardware)
    cluster = Cluster(scenario.cluster, profile, topology)
    try:
        demand = make_demand(scenario, None, cluster)
    except InputError:
        return  # every job is too large
    world = SimWorld(
        scenario, demand, cluster, topology, make_policy(policy), 0, check, prices=make_prices(scenario, profile)
    )
    while not world.done.triggered:
        world.clock.step()
    assert checked


def test_a_journal_replays(tmp_path: Any) -> None:
    from equipoise.policies.record.journal import replay

    jobs = [{"name": "u", "count": 5, "gpus": 2, "duration": 600, "user": "ann", "qos": "n", "spacing": 60}]
    scenario = case(jobs, {"qos": [{"name": "n", "gpus_per_user": 4}], "priority": {"age": 10, "fairshare": 100}})
    for policy in ("easy", "multifactor", "kueue"):
        equipoise.run(scenario, policy=policy, out=tmp_path / policy, journal=True)
        assert replay(make_policy(policy), tmp_path / policy / "journal.jsonl") == []
