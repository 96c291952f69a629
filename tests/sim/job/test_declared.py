"""What a scenario declares of its queues as codes: limits, quotas of cohorts, and fair shares, by hand."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from equipoise.policies.declared_queues import Queues
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.declared import Claim, Declared, Places, copies
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.queues import Queue
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")
NODES = [
    {"name": "big", "count": 2, "gpus": 4, "accelerator": "h100_sxm"},
    {"name": "mid", "count": 1, "gpus": 3, "accelerator": "a100_sxm_40gb"},
    {"name": "old", "count": 2, "gpus": 2, "accelerator": "t4"},
    {"name": "disk", "count": 1, "gpus": 0, "accelerator": "t4"},
]


@cache
def cluster_of() -> Cluster:
    case = scenario(cluster={"nodes": NODES})
    return Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))


def case_of(**queues: Any) -> Scenario:
    return scenario(cluster={"nodes": NODES}, queues=queues)


def declared_of(**queues: Any) -> Declared:
    return Declared(case_of(**queues), cluster_of())


def claim(
    user: str = "", account: str = "", partition: str = "", qos: str = "", queue: str = "", tres: Any = ()
) -> Claim:
    return user, account, partition, qos, queue, tres, ()


def limits(q: Queues, row: int = 0) -> dict[str, float]:
    """The limits that a claim stands under directly, with what they allow."""
    return {q.names["limit"][leaf]: q.gpus_max[leaf] for leaf in q.leaf[row].tolist() if leaf >= 0}


# -- places -------------------------------------------------------------------------------------------------


def test_a_word_means_a_group_of_nodes_or_a_single_node() -> None:
    places = Places(cluster_of())
    assert places.nodes(("mid",), "x").tolist() == [False, False, True, False, False, False]
    assert places.nodes(("big", "old-1"), "x").tolist() == [True, True, False, False, True, False]
    assert places.nodes((), "x").tolist() == [False] * 6
    with pytest.raises(InputError, match=r"queues: here: no group of nodes and no node 'bigg'; did you mean"):
        places.nodes(("big", "bigg"), "here")


def test_a_word_means_a_gpu_model_or_those_of_a_group() -> None:
    places = Places(cluster_of())
    assert places.models(("h100_sxm",), "x") == 1
    assert places.models(("mid",), "x") == 2
    assert places.models(("t4", "big"), "x") == 5
    assert places.models(("mid", "a100_sxm_40gb"), "x") == 2
    assert places.models((), "x") == 0
    with pytest.raises(InputError, match=r"queues: there: 'disk' is no accelerator or group here; did you"):
        places.models(("disk",), "there")
    with pytest.raises(InputError, match=r"'v100' is no accelerator or group here; known: h100_sxm, a100"):
        places.models(("v100",), "there")


# -- limits of users, accounts, partitions and QOS ----------------------------------------------------------


def test_a_user_stands_under_its_own_limit_and_under_the_accounts_above() -> None:
    declared = declared_of(
        accounts=[
            {"name": "top", "gpus": 11, "gpus_of_type": {"t4": 3}, "tres": {"mem": 700}},
            {"name": "mid", "parent": "top"},
            {
                "name": "low",
                "parent": "mid",
                "jobs": 7,
                "gpus_per_user": 5,
                "jobs_per_user": 6,
                "tres_per_user": {"cpu": 40},
                "gpus_of_type": {"mid": 2},
            },
        ],
        users=[
            {"name": "ann", "account": "low", "gpus": 4, "gpus_of_type": {"big": 1}, "tres": {"node": 9}},
            {"name": "cid", "account": "low", "jobs": 2},
        ],
    )
    q = declared.build([claim("ann", "low"), claim("bob", "low"), claim("cid", "low"), claim("", "mid")], False)
    assert limits(q, 0) == {
        "account low, user ann": 4,
        "account low, each user: ann, cpu": 40,
        "account low, mid": 2,
        "account top, t4": 3,
        "account top, mem": 700,
        "account low, user ann, big": 1,
        "account low, user ann, node": 9,
    }
    assert limits(q, 1)["account low, user bob"] == 5
    assert limits(q, 2)["account low, user cid"] == 5
    assert limits(q, 3) == {"account top": 11, "account top, t4": 3, "account top, mem": 700}
    by = {name: k for k, name in enumerate(q.names["limit"])}
    assert q.parent[by["account top"]] == -1
    assert q.parent[by["account low"]] == by["account top"]
    assert q.parent[by["account low, user ann"]] == by["account low"]
    assert q.parent[by["account low, mid"]] == -1
    assert q.jobs_max[by["account low, user ann"]] == 6
    assert q.jobs_max[by["account low, user cid"]] == 2
    assert (q.jobs_max[by["account low"]], q.gpus_max[by["account low"]]) == (7, math.inf)
    assert q.jobs_max[by["account top"]] == math.inf
    assert [q.models[by[name]] for name in ("account top, t4", "account low, mid", "account top")] == [4, 2, -1]
    resources = ("account low, each user: ann, cpu", "account top, mem", "account low, user ann, node")
    assert [q.resource[by[name]] for name in resources] == [0, 1, 2]
    assert q.resource[by["account low"]] == -1
    assert not q.gpus_kept.any()
    assert set(q.owner.tolist()) == {-1}
    assert q.gpus_nominal[by["account low, user bob"]] == 5
    assert q.leaf.shape == (4, 7)
    assert q.leaf[3].tolist()[3:] == [-1] * 4


def test_a_user_of_an_account_without_bounds_of_users_stands_under_the_account() -> None:
    q = declared_of(accounts=[{"name": "a", "gpus": 8}, {"name": "b"}]).build(
        [claim("ann", "a"), claim("ann", "b"), claim("", "none")], False
    )
    assert limits(q, 0) == {"account a": 8}
    assert (limits(q, 1), limits(q, 2), q.leaf.shape) == ({}, {}, (3, 1))
    assert declared_of(accounts=[{"name": "b"}]).build([claim("ann", "b")], False).leaf.shape == (1, 0)
    only_jobs = declared_of(accounts=[{"name": "a", "jobs_per_user": 3}]).build([claim("ann", "a")], False)
    assert limits(only_jobs) == {"account a, user ann": math.inf}
    assert only_jobs.jobs_max.tolist() == [3]
    nobody = declared_of(accounts=[{"name": "a", "gpus_per_user": 3, "tres_per_user": {"cpu": 2}}])
    assert limits(nobody.build([claim("", "a")], False)) == {}


def test_a_partition_and_its_qos_and_the_jobs_qos_bound_all_each_user_and_each_account() -> None:
    declared = declared_of(
        partitions=[
            {
                "name": "p",
                "gpus": 10,
                "jobs_per_user": 3,
                "gpus_per_account": 6,
                "qos": "q",
                "gpus_of_type": {"old": 2},
                "tres": {"cpu": 50},
                "tres_per_user": {"mem": 60},
                "tres_per_account": {"node": 70},
            }
        ],
        qos=[{"name": "q", "jobs": 9, "gpus_per_user": 7, "jobs_per_account": 8}, {"name": "r", "gpus": 12}],
    )
    q = declared.build([claim("u", "a", "p", "r"), claim("", "", "p", "q"), claim("u", "", "x", "r")], False)
    assert limits(q, 0) == {
        "partition p": 10,
        "partition p, user u": math.inf,
        "partition p, account a": 6,
        "partition p, old": 2,
        "partition p, cpu": 50,
        "partition p, user u, mem": 60,
        "partition p, account a, node": 70,
        "QOS r": 12,
        "QOS q": math.inf,
        "QOS q, user u": 7,
        "QOS q, account a": math.inf,
    }
    assert limits(q, 1) == {"partition p": 10, "partition p, old": 2, "partition p, cpu": 50, "QOS q": math.inf}
    assert limits(q, 2) == {"QOS r": 12}
    jobs = dict(zip(q.names["limit"], q.jobs_max.tolist(), strict=True))
    assert (jobs["partition p"], jobs["partition p, user u"], jobs["QOS q"]) == (math.inf, 3, 9)
    assert jobs["QOS q, account a"] == 8
    bare = declared_of(qos=[{"name": "q"}]).build([claim("u", "a", "", "q")], False)
    assert bare.names["limit"] == ()
    per_account = declared_of(qos=[{"name": "q", "gpus_per_account": 3, "gpus_per_user": 2}])
    assert limits(per_account.build([claim("u", "", "", "q")], False)) == {"QOS q, user u": 2}
    assert limits(per_account.build([claim("", "a", "", "q")], False)) == {"QOS q, account a": 3}


def test_a_job_that_names_no_partition_is_in_the_default_one() -> None:
    declared = declared_of(
        partitions=[{"name": "first"}, {"name": "usual", "default": True}],
        queues=[{"name": "cq", "gpus": 3, "names": ["local", "other"]}, {"name": "other", "gpus": 2}],
    )
    named = declared.standard(claim("u", "a", "", "q", "local", (3.0,)))
    assert named == ("u", "a", "usual", "q", "cq", (3.0,), ())
    assert declared.standard(claim(partition="first", queue="other"))[2:5] == ("first", "", "other")
    assert declared.standard(claim(queue="strange"))[4] == "strange"
    assert declared_of(partitions=[{"name": "p"}]).standard(claim())[2] == ""


def test_a_partition_of_some_nodes_and_the_flavors_of_a_queue_leave_a_claim_its_nodes() -> None:
    declared = declared_of(
        partitions=[{"name": "few", "nodes": ["big-1", "old"]}, {"name": "all"}],
        flavors={"new": ["h100_sxm", "mid"]},
        queues=[
            {"name": "q", "gpus": {"new": 5, "t4": 1}},
            {"name": "n", "gpus": {"new": 5}},
            {"name": "b", "gpus": 4},
        ],
    )
    claims = [claim(partition="few"), claim(queue="n"), claim(partition="few", queue="n"), claim()]
    q = declared.build(claims, False)
    assert q.nodes.astype(int).tolist() == [[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [1] * 6]
    assert q.restricts
    free = declared.build([claim(partition="all"), claim(queue="q")], False)
    assert free.nodes.shape == (2, 0)
    plain = declared_of(partitions=[{"name": "all"}])
    assert not plain.build([claim(partition="all")], False).restricts
    assert plain.build([claim(partition="all")], True).restricts
    few = declared_of(partitions=[{"name": "few", "nodes": ["big-1"]}])
    assert few.build([claim(partition="few")], False).restricts
    assert declared_of(qos=[{"name": "q", "gpus": 2}]).build([claim(qos="q")], False).restricts
    none = declared_of().build([], False)
    assert (none.nodes.shape, none.leaf.shape, none.claims.shape) == ((0, 0), (0, 0), (0, 5))
    assert not none.restricts


# -- codes, factors and numbers -----------------------------------------------------------------------------


def test_names_have_codes_in_the_order_declared_and_then_as_jobs_tell_them() -> None:
    declared = declared_of(
        accounts=[{"name": "a"}, {"name": "b"}],
        users=[{"name": "w", "account": "b"}],
        partitions=[{"name": "p"}],
        qos=[{"name": "q"}],
        queues=[{"name": "k", "count": 2, "gpus": 1}],
    )
    q = declared.build([claim("u", "b", "s", "", "k-1"), claim("w", "", "p", "z", "o")], False)
    assert {kind: q.names[kind] for kind in ("user", "account", "partition", "qos", "queue")} == {
        "user": ("w", "u"),
        "account": ("a", "b"),
        "partition": ("p", "s"),
        "qos": ("q", "z"),
        "queue": ("k-0", "k-1", "o"),
    }
    assert q.claims.tolist() == [[1, 1, 1, -1, 1], [0, -1, 0, 1, 2]]
    assert q.name("queue", 1) == "k-1"


def test_factors_are_parts_of_the_largest_priority() -> None:
    declared = declared_of(
        partitions=[{"name": "p", "priority": 3, "tier": 4, "spared": True}, {"name": "r", "priority": 12, "tier": 2}],
        qos=[
            {"name": "low", "priority": 5},
            {"name": "high", "priority": 20, "preempts": ["low", "mid"]},
            {"name": "mid", "priority": 10, "spared": True, "preempts": ["low"]},
        ],
    )
    claims = [
        claim(partition="p", qos="low"),
        claim(partition="r", qos="mid"),
        claim(qos="high"),
        claim(partition="?", qos="?"),
    ]
    q = declared.build(claims, False)
    assert q.tier.tolist() == [4, 2, 1, 1]
    assert q.partition_factor.tolist() == [0.25, 1.0, 0.0, 0.0]
    assert q.qos_factor.tolist() == [0.25, 0.5, 1.0, 0.0]
    assert q.spared.tolist() == [True, True, False, False]
    assert q.qos_priority.tolist() == [5, 20, 10, 0]
    assert q.names["qos"] == ("low", "high", "mid", "?")
    assert q.preempts.astype(int).tolist() == [[0] * 4, [1, 0, 1, 0], [1, 0, 0, 0], [0] * 4]
    nought = declared_of(partitions=[{"name": "p", "priority": 0}], qos=[{"name": "q"}])
    q = nought.build([claim(partition="p", qos="q")], False)
    assert (q.partition_factor.tolist(), q.qos_factor.tolist()) == ([0.0], [0.0])
    half = declared_of(partitions=[{"name": "p", "priority": 0.5}], qos=[{"name": "q", "priority": 0.25}])
    q = half.build([claim(partition="p", qos="q")], False)
    assert (q.partition_factor.tolist(), q.qos_factor.tolist()) == ([1.0], [1.0])


def test_numbers_are_those_of_the_sections_that_are_there() -> None:
    assert declared_of().build([], False).numbers == {"fair_sharing": 0.0, "cycles": 0.0}
    declared = declared_of(
        fair_sharing=True,
        priority={
            "age": 2,
            "fairshare": 3,
            "size": 4,
            "partition": 5,
            "qos": 6,
            "max_age": 7,
            "half_life": 8,
            "algorithm": "classic",
            "favour_small": True,
        },
        backfill={"depth": 9, "window": 10, "interval": 11},
        preemption={"by": "partition", "exempt": 12, "youngest_first": True},
    )
    assert declared.build([], False).numbers == {
        "fair_sharing": 1.0,
        "cycles": 0.0,
        "age": 2,
        "fairshare": 3,
        "size": 4,
        "partition": 5,
        "qos": 6,
        "max_age_s": 7,
        "half_life_s": 8,
        "classic": 1.0,
        "favour_small": 1.0,
        "depth": 9.0,
        "window_s": 10,
        "interval_s": 11,
        "preempt_by": 2.0,
        "exempt_s": 12,
        "youngest_first": 1.0,
    }
    other = declared_of(priority={"half_life": "never"}, preemption={}).build([], False).numbers
    assert (other["half_life_s"], other["classic"], other["favour_small"]) == (math.inf, 0.0, 0.0)
    assert (other["preempt_by"], other["exempt_s"], other["youngest_first"]) == (1.0, 0.0, 0.0)
    assert "depth" not in other


def test_a_control_plane_decides_in_cycles() -> None:
    case = scenario(cluster={"nodes": NODES}, decide={"writes_per_s": 3})
    assert Declared(case, cluster_of()).build([], False).numbers["cycles"] == 1.0


# -- queues of Kueue ----------------------------------------------------------------------------------------


def test_a_quota_is_what_a_queue_has_and_may_borrow_and_keeps_what_it_does_not_lend() -> None:
    declared = declared_of(
        cohorts=[{"name": "root", "gpus": 2}, {"name": "c", "parent": "root", "gpus": 3, "lend": 13, "borrow": 1}],
        queues=[
            {"name": "a", "cohort": "c", "gpus": 8, "lend": 6, "borrow": 5},
            {"name": "b", "cohort": "c", "gpus": 7},
            {"name": "t", "cohort": "root", "count": 3, "gpus": 4, "lend": 1},
            {"name": "alone", "gpus": 9, "lend": 2, "borrow": 3},
        ],
    )
    queues = ("a", "b", "t-1", "alone")
    q = declared.build([claim(queue=name) for name in queues], False)
    by = {name.removeprefix("quota of "): k for k, name in enumerate(q.names["limit"])}
    assert list(by) == ["cohort root", "cohort c", "a", "b", "t-1", "alone"]

    def row(name: str) -> tuple[float, float, float, int, int]:
        k = by[name]
        return q.gpus_max[k], q.gpus_nominal[k], q.gpus_kept[k], q.parent[k], q.owner[k]

    assert row("cohort root") == (2 + 13 + 3 * 1, 18, 0, -1, -1)
    assert row("cohort c") == (16 + 1, 3 + 6 + 7, 3, 0, -1)
    assert row("a") == (13, 8, 2, 1, 0)
    assert row("b") == (math.inf, 7, 0, 1, 1)
    assert row("t-1") == (math.inf, 4, 3, 0, 3)
    assert row("alone") == (9, 9, 0, -1, 5)
    assert set(q.models.tolist()) == {-1}
    assert q.leaf.tolist() == [[2], [3], [4], [5]]


def test_each_flavor_of_a_quota_is_a_limit_of_its_own() -> None:
    declared = declared_of(
        flavors={"new": ["h100_sxm", "mid"]},
        cohorts=[{"name": "c", "gpus": {"new": 2}}],
        queues=[{"name": "a", "cohort": "c", "gpus": {"new": 6, "t4": 3}, "lend": {"new": 4}, "borrow": {"t4": 1}}],
    )
    q = declared.build([claim(queue="a")], False)
    found = {
        name: (q.gpus_max[k], q.gpus_nominal[k], q.gpus_kept[k], q.parent[k], q.models[k])
        for k, name in enumerate(q.names["limit"])
    }
    assert found == {
        "quota of cohort c for new": (6, 6, 0, -1, 3),
        "quota of a for new": (math.inf, 6, 2, 0, 3),
        "quota of cohort c for t4": (3, 3, 0, -1, 4),
        "quota of a for t4": (4, 3, 0, 2, 4),
    }


def test_two_flavors_of_the_same_gpus_are_refused() -> None:
    with pytest.raises(InputError, match=r"flavors 'new' and 'mid' of queue a are of the same GPUs: make them one"):
        declared_of(
            flavors={"new": ["h100_sxm", "mid"]}, queues=[{"name": "a", "gpus": {"t4": 1, "new": 2, "mid": 3}}]
        ).build([claim(queue="a")], False)


def test_what_queues_may_stop_and_how_they_order() -> None:
    stops = {"reclaim": "lower-priority", "borrow_within": "lower-priority"}
    declared = declared_of(
        queues=[
            {"name": "a", "gpus": 1, "order": "strict", "reclaim": "any", "within": "lower-priority", "weight": 2.5},
            {"name": "b", "gpus": 2, "within": "lower-or-newer-equal-priority", **stops, "borrow_within_most": 30},
            {"name": "c", "gpus": 3, **stops},
        ]
    )
    q = declared.build([claim(queue="?")], False)
    assert q.names["queue"] == ("a", "b", "c", "?")
    assert q.strict.tolist() == [True, False, False, False]
    assert q.reclaim.tolist() == [3, 1, 1, 0]
    assert q.within.tolist() == [1, 2, 0, 0]
    assert q.weight.tolist() == [2.5, 1.0, 1.0, 1.0]
    assert q.borrows_below.tolist() == [-math.inf, np.nextafter(30.0, 31.0), math.inf, -math.inf]


def test_an_entry_of_several_queues_names_them_from_nought() -> None:
    assert copies(Queue(name="a", gpus=1)) == ["a"]
    assert copies(Queue(name="a", gpus=1, count=3)) == ["a-0", "a-1", "a-2"]


# -- one job, and what is declared at all -------------------------------------------------------------------


def test_a_single_job_may_have_the_least_that_any_limit_over_it_allows() -> None:
    declared = declared_of(
        accounts=[
            {"name": "top", "gpus_per_job": 5, "tres_per_job": {"cpu": 30}},
            {"name": "low", "parent": "top", "gpus_per_job": 9, "tres_per_job": {"mem": 80}},
        ],
        users=[{"name": "ann", "account": "low", "gpus_per_job": 4, "tres_per_job": {"cpu": 20}}],
        partitions=[{"name": "p", "gpus_per_job": 3, "qos": "of"}, {"name": "r", "tres_per_job": {"node": 6}}],
        qos=[{"name": "q", "gpus_per_job": 2}, {"name": "of", "gpus_per_job": 1}],
    )

    def most(*names: str) -> tuple[float, list[float]]:
        gpus, tres = declared.of_one_job(claim(*names))
        return gpus, tres.tolist()

    assert most("bob", "low") == (5, [30, 80, math.inf])
    assert most("ann", "low") == (4, [20, 80, math.inf])
    assert most("ann", "top") == (5, [30, math.inf, math.inf])
    assert most("", "", "p")[0] == 1
    assert most("", "", "r", "q") == (2, [math.inf, math.inf, 6])
    assert most("", "", "?", "?") == (math.inf, [math.inf] * 3)


@pytest.mark.parametrize("kind", ["tres", "tres_per_user", "tres_per_account", "tres_per_job"])
@pytest.mark.parametrize("where", ["accounts", "users", "partitions", "qos"])
def test_a_bound_on_cores_counts_cores_of_claims(where: str, kind: str) -> None:
    entry = {"name": "e", kind: {"cpu": 5}} | ({"account": "a"} if where == "users" else {})
    declared = declared_of(**({"accounts": [{"name": "a"}]} | {where: [entry]}))
    assert declared.counts_tres
    assert declared.build([claim(tres=(2.0, 3.0, 4.0))], False).tres.tolist() == [[2, 3, 4]]
    plain = declared_of(accounts=[{"name": "a", "gpus": 3}])
    assert not plain.counts_tres
    assert plain.build([claim(tres=())], False).tres.shape == (0, 0)


def test_names_alone_weigh_nothing() -> None:
    assert not declared_of().weighs
    assert not declared_of(flavors={"x": ["t4"]}, gpu_types={"y": ["t4"]}, cohorts=[{"name": "c"}]).weighs
    for section in (
        {"accounts": [{"name": "a"}]},
        {"partitions": [{"name": "a"}]},
        {"qos": [{"name": "a"}]},
        {"priority": {}},
        {"backfill": {}},
        {"queues": [{"name": "a", "gpus": 1}]},
    ):
        assert declared_of(**section).weighs  # type: ignore[arg-type]


def test_fair_shares_form_a_tree_of_accounts_with_their_users_as_leaves() -> None:
    declared = declared_of(
        accounts=[{"name": "low", "parent": "top", "shares": 3}, {"name": "top", "shares": 5}],
        users=[{"name": "ann", "account": "low", "shares": 7}],
    )
    claims = [claim("bob", "low"), claim("ann", "low"), claim("bob", "top"), claim("bob", "?"), claim("bob", "low")]
    q = declared.build(claims, False)
    # 0: root, 1: top, 2: low, 3: ann of low, 4: bob of low, 5: bob of top, 6: ?, 7: bob of ?
    assert q.share_parent.tolist() == [-1, 0, 1, 2, 2, 1, 0, 6]
    assert q.share.tolist() == [1, 5, 3, 7, 1, 1, 1, 1]
    assert q.share_leaf.tolist() == [4, 3, 5, 7, 4]
    assert declared.build([claim("u")], False).share_parent[-1] == 0
