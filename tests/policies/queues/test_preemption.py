"""Slurm's preemption, limits on what is not GPUs, and time limits: worked cases, and what must never happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.quotas.limits import Quota, held_amounts
from equipoise.policies.record.journal import read
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from tests.policies.queues.test_limits import case

QOS: dict[str, Any] = {
    "qos": [
        {"name": "low", "priority": 1},
        {"name": "mid", "priority": 5},
        {"name": "high", "preempts": ["low", "mid"]},
    ],
    "preemption": {"by": "qos"},
}


def job(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "gpus": gpus, "duration": 100, **more}


def starts(jobs: list[dict[str, Any]], queues: dict[str, Any], policy: str = "multifactor") -> dict[str, list[float]]:
    """(start in s, times stopped) by name."""
    made = run(case(jobs, queues), policy=make_policy(policy))
    rows = zip(made.jobs["name"].tolist(), made.jobs["start_s"], made.jobs["preemptions"], strict=True)
    return {name: [float(start), float(stops)] for name, start, stops in rows}


def test_a_qos_stops_only_those_that_it_may() -> None:
    jobs = [job("m", 4, qos="mid"), job("l", 4, qos="low"), job("h", 4, qos="high", arrival=10)]
    assert starts(jobs, QOS) == {"m": [0.0, 0.0], "l": [0.0, 1.0], "h": [10.0, 0.0]}  # the lowest priority
    assert starts(jobs, QOS | {"preemption": None})["h"] == [100.0, 0.0]
    jobs[2]["qos"] = "mid"
    assert starts(jobs, QOS)["h"] == [100.0, 0.0]  # mid may stop nobody


def test_those_that_it_does_not_need_are_spared() -> None:
    """Tried in order of nodes (a, then b, c of two), and given back from the last: only b makes room for all."""
    jobs = [job(name, gpus, qos="low") for name, gpus in (("a", 1), ("b", 6), ("c", 1))]
    jobs.append(job("h", 6, qos="high", arrival=9))
    found = starts(jobs, QOS)
    assert {name: stops for name, (_, stops) in found.items()} == {"a": 0.0, "b": 1.0, "c": 0.0, "h": 0.0}


def test_partitions_of_a_higher_tier_stop_those_of_a_lower() -> None:
    queues: dict[str, Any] = {
        "partitions": [{"name": "p", "tier": 2}, {"name": "q"}, {"name": "r", "spared": True}],
        "preemption": {"by": "partition", "exempt": 30},
    }
    jobs = [job("a", 4, partition="q"), job("b", 4, partition="r"), job("h", 4, partition="p", arrival=40)]
    assert starts(jobs, queues) == {"a": [0.0, 1.0], "b": [0.0, 0.0], "h": [40.0, 0.0]}
    jobs[2]["arrival"] = 10  # nobody has run for 30 s
    assert starts(jobs, queues)["h"][0] > 10.0
    jobs[2]["partition"] = "q"
    assert starts(jobs, queues)["h"][0] == 100.0


@pytest.mark.parametrize(("youngest", "stopped"), [(True, "b"), (False, "a")])
def test_the_order_of_stopping(youngest: bool, stopped: str) -> None:
    queues = QOS | {"preemption": {"by": "qos", "youngest_first": youngest}}
    jobs = [job("a", 4, qos="low"), job("b", 4, qos="mid", arrival=1), job("h", 4, qos="high", arrival=9)]
    found = starts(jobs, queues)
    assert [name for name, (_, stops) in found.items() if stops] == [stopped]


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["low", "mid", "high"]),
        st.integers(1, 6),
        st.integers(5, 60),
        st.integers(0, 60),
        st.sampled_from("ab"),
        st.integers(0, 6),
    ),
    min_size=2,
    max_size=16,
)


@settings(max_examples=15, deadline=None)
@given(JOBS)
def test_limits_hold_and_nobody_is_stopped_for_nothing(tmp_path_factory: Any, jobs: list[Any]) -> None:
    account = {"name": "x", "tres": {"cpu": 8}, "tres_per_user": {"cpu": 6, "node": 2}, "gpus": 7}
    queues = QOS | {"accounts": [account]}
    listed = [
        {"name": f"j{k}", "qos": q, "gpus": g, "duration": d, "arrival": a, "user": u, "account": "x", "nodes": 1}
        | ({"cpus": c} if c else {})
        for k, (q, g, d, a, u, c) in enumerate(jobs)
    ]
    folder = tmp_path_factory.mktemp("run")
    made = run(case(listed, queues), policy=make_policy("multifactor"), journal=folder / "j.jsonl")
    assert np.isfinite(made.jobs["completion_s"]).all()
    for entry in read(folder / "j.jsonl"):
        o, plan = entry.decision.observation, entry.decision.plan
        users = [made.jobs["user"][row] for row in range(len(o.jobs))]
        for user in "ab":
            rows = [row for row in o.running.tolist() if users[row] == user]
            assert sum(jobs[int(o.jobs.id[row])][5] for row in rows) <= 6
            assert len(rows) <= 2
        assert sum(jobs[int(o.jobs.id[row])][5] for row in o.running.tolist()) <= 8
        assert sum(int(o.jobs.gpus_held[row]) for row in o.running.tolist()) <= 7
        values = plan.reasons[-1].values if plan.reasons else {}
        started = (
            []
            if plan.allocation is None
            else [row for k, row in enumerate(plan.allocation.job.tolist()) if len(plan.allocation.gpus_of(k))]
        )
        for victim, by in zip(values.get("stopped", ()), values.get("stopped_for", ()), strict=True):
            assert by in started
            assert jobs[int(o.jobs.id[by])][0] == "high"
            assert jobs[int(o.jobs.id[victim])][0] != "high"


@pytest.mark.parametrize("policy", ["fifo", "easy", "sjf", "s4", "multifactor", "kueue"])
def test_limits_of_cores_memory_and_nodes_hold_under_every_policy(policy: str) -> None:
    """Worked: of each kind the third job waits for the first, whatever GPUs are free."""
    asked = (("cpus", 8, {"cpu": 20}), ("host_memory", 4e9, {"mem": "10 GB"}), ("nodes", 1, {"node": 2}))
    for what, each, most in asked:
        jobs = [job(f"j{k}", 1, user="ann", account="a", **{what: each}) for k in range(3)]
        for limit in ("tres", "tres_per_user"):
            found = starts(jobs, {"accounts": [{"name": "a", limit: most}]}, policy)
            assert sorted(start for start, _ in found.values()) == [0.0, 0.0, 100.0], (what, limit)


def test_a_job_that_a_limit_of_cores_never_lets_start_is_refused() -> None:
    jobs = [job("j", 1, account="a", cpus=9)]
    with pytest.raises(InputError, match="account a, cpu allows: 8 CPUs: it can never start"):
        run(case(jobs, {"accounts": [{"name": "a", "tres": {"cpu": 8}}]}))
    with pytest.raises(InputError, match="more CPUs, memory or nodes than one job may have"):
        run(case(jobs, {"accounts": [{"name": "a", "tres_per_job": {"cpu": 8}}]}))


def test_what_a_limit_counts_is_the_sum_over_running_jobs(tmp_path: Path) -> None:
    """Quota.now, and what is booked, against sums by hand."""
    jobs = [job(f"j{k}", 1 + k % 2, user="ab"[k % 2], account="a", cpus=1 + k, arrival=k) for k in range(4)]
    scenario = case(jobs, {"accounts": [{"name": "a", "tres": {"cpu": 100}, "tres_per_user": {"cpu": 50}}]})
    run(scenario, policy=make_policy("fifo"), journal=tmp_path / "j.jsonl")
    seen = [entry.decision.observation for entry in read(tmp_path / "j.jsonl")]
    o = max(seen, key=lambda o: len(o.running))
    assert len(o.running) == 3
    quota = Quota.now(o)
    used = dict(zip(o.queues.names["limit"], quota.gpus, strict=True))
    cpus = {name: sum(jobs[k]["cpus"] for k in o.jobs.id[o.running] if jobs[k]["user"] == name) for name in "ab"}
    assert used["account a, cpu"] == sum(cpus.values())
    for name in "ab":
        assert used[f"account a, each user: {name}, cpu"] == cpus[name]
    for row in o.running.tolist():
        quota.book(int(o.jobs.claim[row]), {m: -n for m, n in held_amounts(o, row).items()}, -1)
    assert quota.gpus == [0.0] * len(quota.gpus)


# -- time limits ------------------------------------------------------------------------------------------------


def limited(estimate: str, policy: str = "multifactor") -> dict[str, float]:
    """Starts: `runs` holds half until 100 s, `wide` needs all, `short` takes 80 s and says 200 s."""
    jobs = [job("runs", 4), job("wide", 8, arrival=1), job("short", 4, arrival=2, duration=80, time_limit=200)]
    text = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"name": "a", "count": 2, "gpus": 4}]},
        "workload": {"jobs": jobs},
        "queues": {"backfill": {"interval": 1}},
        "decide": {"estimate": estimate},
    }
    made = run(from_mapping(text), policy=make_policy(policy))
    return dict(zip(made.jobs["name"].tolist(), made.jobs["start_s"].tolist(), strict=True))


@pytest.mark.parametrize("policy", ["multifactor", "easy"])
def test_backfill_plans_with_the_time_limit(policy: str) -> None:
    assert limited("duration", policy)["short"] == 2.0
    assert limited("time-limit", policy)["short"] > limited("time-limit", policy)["wide"] >= 100.0


def test_what_is_left_is_the_limit_less_what_has_run(tmp_path: Path) -> None:
    jobs = [job("a", 1, time_limit=150), job("b", 1, arrival=40), job("c", 1, arrival=99)]
    text = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"name": "a", "gpus": 4}]},
        "workload": {"jobs": jobs},
        "decide": {"estimate": "time-limit"},
        "restart": {"initialisation": 0},
    }
    run(from_mapping(text), policy=make_policy("fifo"), journal=tmp_path / "j.jsonl")
    seen = [entry.decision.observation for entry in read(tmp_path / "j.jsonl")]
    left = [(o.time_s, float(o.jobs.service_s[0])) for o in seen]
    assert left[:3] == [(0.0, 150.0), (40.0, 110.0), (99.0, 51.0)]
