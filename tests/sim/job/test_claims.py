"""Who submitted each job, what it may run on, and why it can never start: by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.policies.declared_queues import EMPTY, NODE_PREFERRED, RACK_PREFERRED, RACK_REQUIRED
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job import claims as made_of
from equipoise.sim.job.claims import Claims, make_claims, refuse_too_large, texts_by_kind
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import JobSpec
from equipoise.sim.scenario.tree import InputError
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")
NODES = [
    {"name": "big", "count": 3, "gpus": 4, "accelerator": "h100_sxm"},
    {"name": "old", "count": 2, "gpus": 2, "accelerator": "t4"},
]
TREE = {"kind": "tree", "nodes_per_rack": 2, "oversubscription": 4.0}
"""Racks of 8, 6 and 2 GPUs."""


def texts(*names: str) -> Any:
    return np.array(names, dtype=object)


def jobs_of(*jobs: dict[str, Any]) -> list[JobSpec]:
    return [JobSpec.model_validate({"name": f"j{k}", "duration": 5.0} | job) for k, job in enumerate(jobs)]


def claims_of(
    least: list[int],
    listed: dict[int, dict[str, Any]] | None = None,
    told: Any = None,
    nodes: Any = None,
    share: list[float] | None = None,
    tres: Any = None,
    by: Any = None,
    **queues: Any,
) -> Claims:
    """by: names by kind; listed: the scenario's own jobs by row."""
    case = scenario(cluster={"nodes": nodes or NODES, "topology": TREE}, queues=queues)
    cluster = Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))
    n = len(least)
    rows = list(listed or ())
    specs = dict(zip(rows, jobs_of(*(listed or {}).values()), strict=True))
    return make_claims(
        case,
        cluster,
        by or {},
        told or {},
        specs,
        np.array(least),
        np.array(share or [1.0] * n),
        tres or [(0.0, 0.0, 0.0)] * n,
    )


def test_names_come_from_the_scenarios_own_jobs_and_from_the_columns_of_a_trace() -> None:
    listed = jobs_of({"user": "ann", "qos": "high"}, {"user": "bob"})
    columns = {"user": texts("x", "y", "z", "w"), "account": texts("", "", "a", ""), "queue": np.ones(4)}
    found = texts_by_kind(columns, listed, np.array([3, 1]), 4)
    assert {kind: names.tolist() for kind, names in found.items()} == {
        "user": ["x", "bob", "z", "ann"],
        "account": ["", "", "a", ""],
        "qos": ["", "", "", "high"],
    }
    assert columns["user"].tolist() == ["x", "y", "z", "w"]
    assert texts_by_kind({"user": texts("", "")}, [], np.array([], dtype=np.int64), 2) == {}
    named = jobs_of({"queue": "q"})
    assert texts_by_kind({"queue": np.ones(2)}, named, np.array([1]), 2)["queue"].tolist() == ["", "q"]


def test_where_nothing_is_said_there_are_no_claims() -> None:
    found = claims_of([1, 2], {0: {}})
    assert found.queues is EMPTY
    assert (found.claim.size, found.gpu_types.size, found.together.size) == (0, 0, 0)
    assert claims_of([1, 2], told={"gpu_type": texts("a", "b")}, nodes=NODES[:1]).queues is EMPTY
    assert claims_of([1, 2], told={"gpu_type": texts("a", "b")}).queues is not EMPTY
    assert claims_of([1, 2], told={"together": texts("", "")}).queues is not EMPTY
    assert claims_of([1], {0: {"gpu_types": ["t4"]}}).queues is not EMPTY
    assert claims_of([1], {0: {"together": "rack-required"}}).queues is not EMPTY
    assert claims_of([1], gpu_types={"a": ["t4"]}).queues is not EMPTY
    assert claims_of([1], qos=[{"name": "q"}]).queues is not EMPTY
    assert claims_of([1], by={"user": texts("ann")}).queues is not EMPTY


def test_each_distinct_claim_has_a_number() -> None:
    found = claims_of(
        [1] * 5,
        by={"user": texts("a", "b", "a", "", "a"), "partition": texts("p", "", "p", "", "")},
        partitions=[{"name": "p", "default": True}],
    )
    assert found.claim.tolist() == [0, 1, 0, 2, 0]
    assert found.queues.claims.tolist() == [[0, -1, 0, -1, -1], [1, -1, 0, -1, -1], [-1, -1, 0, -1, -1]]
    assert found.queues.tres.shape == (0, 0)


def test_claims_that_take_other_amounts_are_others_where_amounts_count() -> None:
    limits = [{"name": "q", "tres": {"cpu": 9}}]
    found = claims_of(
        [1, 1, 1], by={"qos": texts("q", "q", "q")}, tres=[(2.0, 0, 0), (3.0, 0, 0), (2.0, 0, 0)], qos=limits
    )
    assert found.claim.tolist() == [0, 1, 0]
    assert found.queues.tres.tolist() == [[2, 0, 0], [3, 0, 0]]


def test_the_types_of_gpus_that_jobs_ask_for() -> None:
    asks = texts("V100", "p4|V100", "misc", "", "Misc,p4", "p4", "misc")
    told, meaning = {"gpu_type": asks}, {"p4": ["t4"], "v100": ["big"]}
    found = claims_of([1] * 7, {5: {"gpu_types": ["big"]}}, told, gpu_types=meaning)
    assert found.gpu_types.tolist() == [1, 3, -1, -1, -1, 1, -1]
    assert found.together.tolist() == [0] * 7
    assert found.notes == (
        "3 jobs ask for a GPU type that queues.gpu_types does not name (such as misc): these jobs may use any GPU",
    )
    assert found.queues.restricts
    same = claims_of([1], told={"gpu_type": texts("a")}, nodes=NODES[:1], gpu_types={"a": ["big"]})
    assert same.gpu_types.tolist() == [1]
    alone = claims_of([1], {0: {"gpu_types": ["t4"]}}, {"gpu_type": texts("x")})
    assert (alone.gpu_types.tolist(), alone.notes) == ([2], ())
    unknown = claims_of([1, 1], told={"gpu_type": texts("x", "x")}, by={"user": texts("a", "b")}, nodes=NODES[:1])
    assert (unknown.notes, unknown.queues.restricts) == ((), False)


def test_how_close_together_jobs_ask_to_be() -> None:
    words = texts("rack-preferred", "node-required", "", "strange", "node-preferred", "rack-required")
    found = claims_of([1] * 6, {1: {"together": "rack-required"}, 5: {}}, {"together": words})
    assert found.together.tolist() == [RACK_PREFERRED, RACK_REQUIRED, 0, 0, NODE_PREFERRED, 0]
    assert found.queues.restricts
    assert not claims_of([1], told={"together": texts("")}).queues.restricts


def test_a_note_on_each_kind_of_name_that_is_not_declared() -> None:
    found = claims_of(
        [1] * 4,
        by={
            "account": texts("a", "b", "c", "b"),
            "qos": texts("q", "", "r", "r"),
            "queue": texts("k", "", "", "m"),
            "partition": texts("s", "s", "s", "s"),
            "user": texts("u", "u", "u", "u"),
        },
        accounts=[{"name": "a"}],
        qos=[{"name": "q"}],
        queues=[{"name": "k", "gpus": 3}],
    )
    assert found.notes == (
        "3 jobs name a account that 'queues' does not declare (b): no limit applies",
        "2 jobs name a qos that 'queues' does not declare (r): no limit applies",
        "1 jobs name a queue that 'queues' does not declare (m): no limit applies",
        "2 jobs name no queue: no quota applies to them",
    )
    every = claims_of([1], by={"queue": texts("k")}, queues=[{"name": "k", "gpus": 3}])
    assert every.notes == ()


def test_a_job_above_a_limit_can_never_start_and_one_that_equals_it_can() -> None:
    found = claims_of(
        [5, 6, 7, 6],
        share=[1.0, 1.0, 0.5, 1.0],
        by={"qos": texts("q", "q", "q", "")},
        qos=[{"name": "q", "gpus_per_user": 9, "gpus": 5}],
    )
    assert found.too_large == ["", "the limit QOS q allows 5", "", ""]
    fits = claims_of([5, 4], by={"qos": texts("q", "q")}, qos=[{"name": "q", "gpus": 5}])
    assert fits.too_large == ["", ""]


def test_a_single_job_may_be_bounded() -> None:
    found = claims_of([3, 4, 5], by={"qos": texts("q", "q", "")}, qos=[{"name": "q", "gpus_per_job": 3}])
    assert found.too_large == ["", "one job may have 3", ""]
    half = claims_of([7], share=[0.5], by={"qos": texts("q")}, qos=[{"name": "q", "gpus_per_job": 3}])
    assert half.too_large == ["one job may have 3"]


def test_cores_memory_and_nodes_of_a_job_are_bounded() -> None:
    each = [(4.0, 2.0, 1.0), (4.0, 5.0, 1.0), (3.0, 5.5, 0.0)]
    bound = {"tres_per_job": {"cpu": 4, "mem": 5}}
    found = claims_of([1, 1, 1], tres=each, by={"qos": texts("q", "q", "q")}, qos=[{"name": "q", **bound}])
    assert found.too_large == ["", "", "and more CPUs, memory or nodes than one job may have"]
    user = claims_of(
        [1, 2],
        tres=[(6.0, 0.0, 0.0), (7.0, 0.0, 0.0)],
        by={"qos": texts("q", "q"), "user": texts("u", "u")},
        qos=[{"name": "q", "tres_per_user": {"cpu": 6}}],
    )
    assert user.too_large == ["", "more than the limit QOS q, user u, cpu allows: 6 CPUs"]


def test_a_job_that_its_nodes_have_too_few_gpus_for_can_never_start() -> None:
    found = claims_of(
        [12, 13, 5, 4],
        by={"partition": texts("p", "p", "old", "old")},
        partitions=[{"name": "p", "nodes": ["big"]}, {"name": "old", "nodes": ["old"]}],
    )
    assert found.too_large == ["", "the nodes that it may use have 12", "the nodes that it may use have 4", ""]
    close = claims_of(
        [8, 9, 4, 5, 9, 16],
        {
            0: {"together": "rack-required"},
            1: {"together": "rack-required"},
            2: {"together": "node-required"},
            3: {"together": "node-required"},
            4: {"together": "rack-preferred"},
            5: {"together": "node-preferred"},
        },
    )
    assert close.too_large == ["", "the nodes that it may use have 8", "", "the nodes that it may use have 4", "", ""]


def test_a_job_of_one_gpu_type_fits_the_nodes_that_have_it() -> None:
    found = claims_of(
        [4, 5, 12, 13],
        {0: {"gpu_types": ["t4"]}, 1: {"gpu_types": ["t4"]}, 2: {"gpu_types": ["big"]}, 3: {"gpu_types": ["big"]}},
    )
    assert found.too_large == ["", "the nodes that it may use have 4", "", "the nodes that it may use have 12"]
    typed = claims_of(
        [2, 3, 3],
        {0: {"gpu_types": ["t4"]}, 1: {"gpu_types": ["t4"]}, 2: {}},
        by={"qos": texts("q", "q", "q")},
        qos=[{"name": "q", "gpus_of_type": {"t4": 2}}],
    )
    assert typed.too_large == ["", "the limit QOS q, t4 allows 2", ""]


def test_jobs_that_can_never_start_are_refused_or_left_out() -> None:
    case, names, least = scenario(), ["a", "b", "c"], np.array([2, 7, 9])
    claims = Claims(too_large=["", "the limit x allows 5", "one job may have 3"])
    with pytest.raises(InputError) as error:
        refuse_too_large(case, claims, names, least, False)
    assert str(error.value) == (
        "test: job b asks for 7 GPUs, the limit x allows 5: it can never start (and 1 more such jobs); "
        "'queues.too_large: leave-out' skips such jobs"
    )
    assert refuse_too_large(case, claims, names, least, True).tolist() == [True, False, False]
    one = Claims(too_large=["", "", "why"])
    with pytest.raises(InputError, match=r"job c asks for 9 GPUs, why: it can never start; 'queues"):
        refuse_too_large(case, one, names, least, False)
    assert refuse_too_large(case, Claims(), names, least, False).tolist() == [True] * 3


def test_columns_with_very_many_names_are_no_claims_where_nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_of, "_MOST", 2)
    two, three = {"user": texts("a", "b", "a")}, {"user": texts("a", "b", "c")}
    assert claims_of([1] * 3, by=two).claim.tolist() == [0, 1, 0]
    assert claims_of([1] * 3, by=three).queues is EMPTY
    assert claims_of([1] * 3, by=three, qos=[{"name": "q"}]).claim.tolist() == [0, 1, 2]


def test_a_note_on_gpu_types_where_none_are_named_and_there_are_several_models() -> None:
    found = claims_of([1, 1, 1], told={"gpu_type": texts("x", "", "x")})
    assert found.notes == (
        "2 jobs ask for a GPU type that queues.gpu_types does not name (such as x): these jobs may use any GPU",
    )
    assert found.gpu_types.tolist() == [-1] * 3
