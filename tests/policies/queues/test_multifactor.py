"""Slurm's multifactor order on worked cases: fair shares, decay, the sum of factors, backfill."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.declared_queues import Queues
from equipoise.policies.observation import Jobs, Nodes, Observation
from equipoise.policies.queues.fairshare import classic, decayed, fair_tree, level_shares
from equipoise.policies.queues.multifactor import priorities
from equipoise.policies.registry import make_policy
from equipoise.sim.run import run
from tests.oracles.queues import fair_tree_order, priority
from tests.policies.queues.test_limits import case


def test_usage_halves_in_a_half_life() -> None:
    one = np.array([100.0])
    assert decayed(one, np.zeros(1), 3600.0, 3600.0)[0] == 50.0
    # 1 GPU-second each second of a half-life: the integral of 2^-x over it, times 3600.
    assert decayed(np.zeros(1), np.array([3600.0]), 3600.0, 3600.0)[0] == pytest.approx(3600 * 0.5 / math.log(2))
    assert decayed(one, one, 10.0, math.inf)[0] == 200.0


#       root
#   phys(3)  chem(1)
#   u1 u2    u3 u4
PARENT = np.array([-1, 0, 0, 1, 1, 2, 2])
SHARE = np.array([1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_fair_tree_on_a_worked_case() -> None:
    usage = np.array([0.0, 0.0, 0.0, 40.0, 20.0, 10.0, 30.0])
    level = level_shares(PARENT, SHARE, usage)
    # phys: 3/4 of the shares, 60 of 100 used; chem: 1/4 and 40 of 100.
    assert level[1:3].tolist() == pytest.approx([0.75 / 0.6, 0.25 / 0.4])
    assert level[3:].tolist() == pytest.approx([0.75, 1.5, 2.0, 2 / 3])
    assert fair_tree(PARENT, SHARE, usage)[3:].tolist() == [0.75, 1.0, 0.5, 0.25]


def test_fair_tree_ties() -> None:
    none = np.zeros(7)  # nobody has used anything: all tie, and have the rank of the best
    assert fair_tree(PARENT, SHARE, none)[3:].tolist() == [1.0, 1.0, 1.0, 1.0]
    # A user that ties with an account has the rank of the account's best user.
    parent, share = np.array([-1, 0, 0, 1, 1]), np.ones(5)
    factors = fair_tree(parent, share, np.array([0.0, 0.0, 30.0, 10.0, 20.0]))
    assert factors[[2, 3, 4]].tolist() == [1.0, 1.0, pytest.approx(1 / 3)]


def test_classic_on_a_worked_case() -> None:
    usage = np.array([0.0, 0.0, 0.0, 40.0, 20.0, 10.0, 30.0])
    # S of u1: 3/4 x 1/2. U: own 0.4, of phys, below the root, 0.6; so 0.4 + (0.6 - 0.4) / 2 = 0.5.
    assert classic(PARENT, SHARE, usage)[3] == pytest.approx(2 ** -(0.5 / 0.375))


def test_classic_orders_accounts_below_the_root_by_their_own_usage() -> None:
    """U/S when the short jobs come: A 0.1 / 0.1, B 0.5 / 0.45, C 0.4 / 0.45."""
    shares = {"A": 2, "B": 9, "C": 9}
    queues = {
        "accounts": [{"name": name, "shares": share} for name, share in shares.items()],
        "users": [{"name": f"u{name}", "account": name} for name in shares],
        "priority": {"fairshare": 100000, "half_life": "never", "algorithm": "classic"},
    }
    hours = {"A": 1, "B": 5, "C": 4}
    long = [{"name": f"long{n}", "gpus": 8, "duration": f"{h} h", "user": f"u{n}"} for n, h in hours.items()]
    short = [{"name": n, "gpus": 8, "duration": 1, "user": f"u{n}", "arrival": 35999} for n in shares]
    found = starts(long + short, queues)
    assert sorted(shares, key=found.__getitem__) == ["C", "A", "B"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fair_tree_equals_the_oracle(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 12))
    parent = [-1, *(data.draw(st.integers(0, k - 1)) for k in range(1, n))]
    leaves = [k for k in range(1, n) if k not in parent]
    usage, share = np.zeros(n), np.array([data.draw(st.floats(0.5, 9)) for _ in range(n)])
    usage[leaves] = [data.draw(st.floats(0.5, 99)) for _ in leaves]
    level = level_shares(np.array(parent), share, usage)
    for k in range(n):
        mates = sorted(level[c] for c in range(1, n) if parent[c] == k)
        if any(b - a < 1e-9 for a, b in pairwise(mates)):
            return
    expected = fair_tree_order(parent, share.tolist(), usage.tolist())
    found = fair_tree(np.array(parent), share, usage)
    assert {leaf: found[leaf] for leaf in leaves} == pytest.approx(expected)


def test_priority_is_the_weighted_sum_of_factors() -> None:
    weights = {"age": 1000.0, "fairshare": 2000.0, "size": 500.0, "partition": 100.0, "qos": 40.0}
    q = Queues(
        claims=np.zeros((2, 5), dtype=np.int64),
        partition_factor=np.array([0.5, 1.0]),
        qos_factor=np.array([1.0, 0.0]),
        share_leaf=np.array([1, 2]),
        share_parent=np.array([-1, 0, 0]),
        share=np.ones(3),
        numbers={**weights, "max_age_s": 100.0},
    )
    jobs = Jobs.of(
        arrival_s=np.array([0.0, 950.0]),
        queued_since_s=np.array([0.0, 950.0]),
        claim=np.array([0, 1]),
        gpus_requested=np.array([4, 2]),
        waited_s=np.zeros(2),
    )
    o = Observation.of(1000.0, jobs=jobs, nodes=Nodes.of(gpus=np.array([8, 8])), queues=q)
    found = priorities(o, np.array([0, 1]), np.array([0.0, 30.0, 10.0]), o.time_s)
    first = priority(weights, {"age": 1.0, "fairshare": 0.5, "size": 4 / 16, "partition": 0.5, "qos": 1.0})
    second = priority(weights, {"age": 0.5, "fairshare": 1.0, "size": 2 / 16, "partition": 1.0, "qos": 0.0})
    assert found.tolist() == [first, second] == [2215.0, 2662.0]


def starts(jobs: list[dict[str, Any]], queues: dict[str, Any]) -> dict[str, float]:
    made = run(case(jobs, queues), policy=make_policy("multifactor"))
    return dict(zip(made.jobs["name"].tolist(), made.jobs["start_s"].tolist(), strict=True))


def test_who_used_less_goes_first() -> None:
    jobs = [
        {"name": "a1", "gpus": 8, "duration": 100, "user": "ann"},
        {"name": "a2", "gpus": 8, "duration": 100, "user": "ann", "arrival": 1},
        {"name": "b1", "gpus": 8, "duration": 100, "user": "bob", "arrival": 2},
    ]
    assert starts(jobs, {"priority": {"fairshare": 100}}) == {"a1": 0.0, "b1": 100.0, "a2": 200.0}
    assert starts(jobs, {}) == {"a1": 0.0, "a2": 100.0, "b1": 200.0}
    for period_s, order in ((60, {"a1": 0.0, "b1": 100.0, "a2": 200.0}), (150, {"a1": 0.0, "a2": 100.0, "b1": 200.0})):
        # What ann has used is counted at 60 s, and with 150 s not before 100 s.
        assert starts(jobs, {"priority": {"fairshare": 100, "period": period_s}}) == order


def test_the_first_that_waits_keeps_its_nodes_from_other_partitions() -> None:
    jobs = [
        {"name": "runs", "gpus": 5, "duration": 100, "partition": "a"},
        {"name": "head", "gpus": 6, "duration": 50, "arrival": 1, "partition": "a"},
        {"name": "late", "gpus": 3, "duration": 90, "arrival": 2, "partition": "b"},
    ]
    partitions = {"partitions": [{"name": "a"}, {"name": "b"}]}
    assert starts(jobs, partitions) == {"runs": 0.0, "head": 100.0, "late": 150.0}
    assert starts(jobs, {**partitions, "backfill": {"interval": 1}})["late"] == 2.0


def test_backfill_delays_no_job_planned_before() -> None:
    jobs = [
        {"name": "runs", "gpus": 5, "duration": 100},
        {"name": "head", "gpus": 6, "duration": 50, "arrival": 1},
        {"name": "next", "gpus": 8, "duration": 30, "arrival": 2},
        {"name": "fits", "gpus": 3, "duration": 90, "arrival": 3},
        {"name": "late", "gpus": 3, "duration": 200, "arrival": 4},
    ]
    planned = {"runs": 0.0, "head": 100.0, "next": 150.0, "fits": 3.0, "late": 180.0}
    assert starts(jobs, {"backfill": {"interval": 1}}) == planned
    # Only the two first are looked at: nobody starts out of turn.
    assert starts(jobs, {"backfill": {"interval": 1, "depth": 2}})["fits"] == 180.0
    # Without backfill likewise.
    assert starts(jobs, {})["fits"] == 180.0
    # A pass every 60 s at most: what came at 3 s is looked at 60 s after the pass at 1 s.
    short = [*jobs[:2], {"name": "short", "gpus": 3, "duration": 30, "arrival": 3}]
    assert starts(short, {"backfill": {"interval": 60}})["short"] == 61.0
    assert starts(short, {"backfill": {"interval": 1}})["short"] == 3.0


def test_a_blocked_partition_does_not_block_another() -> None:
    nodes = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 4}]
    jobs = [
        {"name": "a1", "gpus": 4, "duration": 100, "partition": "a"},
        {"name": "a2", "gpus": 4, "duration": 100, "partition": "a", "arrival": 1},
        {"name": "b1", "gpus": 4, "duration": 100, "partition": "b", "arrival": 2},
    ]
    queues = {"partitions": [{"name": "a", "nodes": ["a"]}, {"name": "b", "nodes": ["b"]}]}
    made = run(case(jobs, queues, nodes), policy=make_policy("multifactor"))
    assert made.jobs["start_s"].tolist() == [0.0, 100.0, 2.0]
