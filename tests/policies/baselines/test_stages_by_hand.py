"""Baselines of parts of GPUs, of intervals and of queues, each on a cluster small enough to decide by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.baselines.lucid import Lucid, _kind
from equipoise.policies.baselines.shares import BestFit, _per_core, fragmentation, frequent
from equipoise.policies.baselines.sync import AdaComm, DiLoCo, EveryStep, FixedInterval, HierarchicalLocalSgd
from equipoise.policies.contract import UNCHANGED, Allocation, Plan
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Workers
from equipoise.policies.registry import make_stage
from tests.policies.baselines.test_allocation_baselines import pool
from tests.policies.baselines.test_queues import INF, NONE, fitted
from tests.policies.baselines.test_sharing import cluster, trainers
from tests.policies.observations import change

NAN = math.nan
W, R, DONE = JobState.WAITING, JobState.RUNNING, JobState.DONE


def given(plan: Plan) -> dict[int, list[int]]:
    found = plan.allocation
    return {} if found is None else {int(job): found.gpus_of(k).tolist() for k, job in enumerate(found.job)}


# -- best fit --------------------------------------------------------------------------------------------------


def with_cores(asks: Any, cpus: list[float], cores: Any = (8.0, 6.0)) -> Observation:
    """Nodes of two and three free GPUs with 8 and 6 cores."""
    o = change(cluster([[1.0] * 2, [1.0] * 3], asks), "nodes", cores=list(cores))
    o.told = {"cpus": np.array(cpus)}
    return o


def test_who_finds_no_cores_waits_unless_no_node_could_ever_have_them() -> None:
    stage = BestFit(cores="count")
    plan, memory = stage.refine(with_cores([(1, 0.5), (1, 0.5), (4, 1.0)], [8.0, 8.0, 2.0]), UNCHANGED, {})
    assert given(plan) == {0: [0], 2: [2, 3, 4, 1]}  # a gang larger than any node goes where GPUs are
    assert memory == {"cores": ((0, 0, 8.0),)}
    assert plan.reasons[-1].text == "started 2 of 3 waiting jobs"
    for cpus, expected in ((6.0, {0: [2, 3, 4]}), (7.0, {}), (8.0, {}), (8.5, {0: [2, 3, 4]})):
        plan, memory = stage.refine(with_cores([(3, 1.0)], [cpus]), UNCHANGED, {})
        assert given(plan) == expected
        assert memory == ({"cores": ((0, 1, 6.0),)} if cpus == 6.0 else {})
    # Two of six cores each on a node of 12, then a third of the other's six.
    plan, memory = stage.refine(with_cores([(1, 0.5)] * 4, [6.0] * 4, (12.0, 6.0)), UNCHANGED, {})
    assert memory["cores"] == ((0, 1, 6.0), (1, 0, 6.0), (2, 0, 6.0))
    assert set(given(plan)) == {0, 1, 2}


def test_gangs_of_parts_go_where_the_rule_puts_them() -> None:
    plan, memory = BestFit().refine(cluster([[0.5, 0.4], [0.5, 0.5, 1.0]], [(2, 0.5)]), UNCHANGED, {})
    assert (given(plan), memory) == ({0: [2, 3]}, {})
    assert plan.allocation is not None
    assert plan.allocation.share.tolist() == [0.5, 0.5]


def test_why_best_fit_starts_nobody() -> None:
    def said(o: Observation, plan: Plan = UNCHANGED) -> str:
        return BestFit().refine(o, plan, {})[0].reasons[-1].text

    assert said(cluster([[1.0]], [(1, 1.0)]), UNCHANGED.with_(allocation=Allocation.of([]))).startswith(
        "an earlier"
    )
    none = cluster([[1.0]], [(1, 1.0)])
    none.waiting = np.empty(0, dtype=np.int64)
    assert said(none) == "no job waits"
    assert said(cluster([[0.0, 0.0]], [(1, 0.5)])) == "nothing is free"
    assert said(cluster([[0.4, 0.0]], [(1, 0.5)])) == "no waiting job may start now"
    assert said(cluster([[0.4, 1.0]], [(2, 1.0), (1, 0.5)])) == "started 1 of 2 waiting jobs"


def test_fragments_at_their_borders() -> None:
    def of(gpus: int, share: float, cores: float, first: int = 0, room: Any = (1.0, 0.6, 0.2)) -> float:
        return fragmentation(
            first, 3, np.array(room), 8.0, np.array([gpus]), np.array([share]), np.array([cores]), np.ones(1)
        )  # fmt: skip

    assert of(1, 0.6 + 5e-10, 0.0) == pytest.approx(0.2)
    assert of(1, 0.6 + 2e-9, 0.0) == pytest.approx(0.8)
    assert of(1, 0.5, 8.0 + 5e-10) == pytest.approx(0.2)
    assert of(1, 0.5, 8.0 + 2e-9) == pytest.approx(1.8)
    assert of(1, 0.5, 0.0, first=1) == pytest.approx(0.2)
    assert of(9, 1.0, 0.0, room=(1.0, 1.0, 1.0)) == 0.0  # a gang of whole nodes uses all of this one
    assert of(3, 1.0, 0.0, room=(1.0, 1.0, 0.9)) == pytest.approx(2.9)
    assert of(2, 1.0, 0.0, room=(1.0, 1.0, 0.9)) == pytest.approx(0.9)
    assert of(1, 2.0, 0.0, room=(1.0, 0.9, 0.0)) == pytest.approx(0.9)  # more than all of a GPU is all of it


def test_the_most_frequent_64_kinds_count() -> None:
    asked = np.array([[1.0, 1.0, float(k)] for k in range(70)] + [[2.0, 0.5, 3.0]] * 5)
    gpus, share, cores, weight = frequent(asked)
    assert (len(gpus), gpus[:2].tolist(), share[:2].tolist(), cores[:3].tolist()) == (
        64, [2, 1], [0.5, 1.0], [3.0, 0.0, 1.0],
    )  # fmt: skip
    assert weight[:2] == pytest.approx([5 / 75, 1 / 75])


def test_whole_gangs_go_where_they_strand_least() -> None:
    """For pairs of GPUs one that is left alone is of no use: of three a pair leaves one, of four another pair."""
    pairs = np.array([2]), np.array([1.0]), np.zeros(1), np.ones(1)
    assert fitted([[1.0] * 3, [1.0] * 4], 2, 1.0, kinds=pairs) == [3, 4]
    assert fitted([[1.0] * 3, [1.0] * 4], 1, 1.0, kinds=pairs) == [0]
    assert fitted([[1.0] * 3, [0.5, 1.0, 0.7, 1.0]], 2, 1.0, kinds=NONE) == [0, 1]  # 3.0 before against 3.2
    assert fitted([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5]], 3, 1.0) == []
    assert fitted([[0.3 - 5e-10], [0.3 - 2e-9]], 1, 0.3) == [0]
    assert fitted([[0.3 - 2e-9], [0.3 - 5e-10]], 1, 0.3) == [1]
    assert fitted([[1.0], [1.0]], 1, 1.0, cores=(4.0 - 2e-9, 4.0 - 5e-10), wants=4.0) == [1]
    assert fitted([[0.8, 0.7], [0.9, 0.4]], 1, 0.4) == [3]  # 1.3 left there before, 1.5 here
    o = cluster([[1.0] * 2, [1.0] * 3], [(1, 1.0)])
    assert _per_core(change(o, "nodes", cores=[8.0, 12.0])) == 3 / 12
    assert _per_core(change(o, "nodes", cores=[NAN, 12.0])) == 3 / 12
    assert _per_core(change(o, "nodes", cores=[0.0, 0.0])) == 0.0
    assert _per_core(change(o, "nodes", cores=[0.5, 0.25])) == 6.0
    assert fitted([[1.0], [0.9]], 1, 0.5, cores=(INF, INF)) == [1]


# -- intervals -------------------------------------------------------------------------------------------------


def behind(time_s: float = 100.0, workers: dict[str, Any] | None = None, **jobs: Any) -> Observation:
    """Job 0 waits, jobs 1 and 2 train on two and three workers, job 3 is known by its duration only."""
    of_jobs = {
        "id": range(4), "state": [W, R, R, R], "gpus_requested": [1, 2, 3, 1], "gpus_held": [0, 2, 3, 1],
        "rigid": [False, False, False, True], "sync_interval": [3, 3, 3, 3], "far_every": [6, 6, 6, 6],
    } | jobs  # fmt: skip
    of_workers = {
        "job": [1, 1, 2, 2, 2, 3], "index": [0, 1, 0, 1, 2, 0], "gpu": range(6), "node": range(6),
        "gradient_norm": [1.0, 3.0, 5.0, 6.0, 10.0, 4.0],
    } | (workers or {})  # fmt: skip
    return Observation.of(
        time_s, 10.0, jobs=Jobs.of(**of_jobs), workers=Workers.of(**of_workers),
        nodes=Nodes.of(gpus=[1] * 6, first_gpu=range(6), gpus_free=[0] * 6),
        gpus=Gpus.of(node=range(6), job=[1, 1, 2, 2, 2, 3], share_free=[0.0] * 6),
    )  # fmt: skip


def levels(stage: Any, o: Observation, plan: Plan = UNCHANGED) -> tuple[list[int], list[int], str]:
    plan, _ = stage.refine(o, plan, {})
    return plan.intervals(o).tolist(), plan.far(o).tolist(), plan.reasons[-1].text


def test_only_jobs_that_train_get_an_interval() -> None:
    assert levels(FixedInterval(5), behind()) == ([3, 5, 5, 3], [6] * 4, "sets 2 intervals to 5")
    assert levels(EveryStep(), behind(sync_interval=[3, 1, 2, 4]))[::2] == (
        [3, 1, 1, 4],
        "sets 1 intervals to 1",
    )
    assert levels(EveryStep(), behind(sync_interval=[3, 1, 1, 4]))[::2] == (
        [3, 1, 1, 4],
        "every interval is 1",
    )
    two = {"near_exchange_s": [0.1, NAN, 0.1, 0.1]}
    assert levels(HierarchicalLocalSgd(4, 7), behind(**two)) == (
        [3, 4, 4, 3],
        [6, 1, 7, 6],
        "sets 2 intervals",
    )
    same = {"sync_interval": [3, 4, 4, 3], "far_every": [6, 1, 7, 6]}
    assert levels(HierarchicalLocalSgd(4, 7), behind(**two, **same))[2] == "every interval is as it should be"
    other = {"sync_interval": [3, 9, 4, 3], "far_every": [6, 1, 7, 6]}
    assert levels(HierarchicalLocalSgd(4, 7), behind(**two, **other))[2] == "sets 1 intervals"
    progress = {"progress": [0.9, 0.2, 0.3, 0.9]}
    assert levels(DiLoCo(9, 0.25), behind(**two, **progress)) == (
        [3, 1, 1, 3],
        [6, 1, 9, 6],
        "sets 2 intervals",
    )
    progress = {"progress": [0.1, 0.3, 0.2, 0.9]}
    assert levels(DiLoCo(9, 0.25), behind(**two, **progress))[:2] == ([3, 9, 1, 3], [6, 1, 1, 6])
    planned = UNCHANGED.with_(sync_interval=np.array([8, 5, 5, 8]))
    assert levels(FixedInterval(5), behind(), planned)[::2] == ([8, 5, 5, 8], "every interval is 5")


def test_adacomm_rounds_up_but_for_rounding_and_halves_upwards() -> None:
    """Norms of 0.7 and 6 at first; 7 x 0.3 / 0.7 is three, 7 x 5.2 / 6 is 6.07; of five half is three."""
    stage = AdaComm(interval=7, every_s=50.0)
    begun = behind(100.0, {"gradient_norm": [0.6, 0.8, 5.0, 6.0, 10.0, 4.0]})
    plan, memory = stage.refine(begun, UNCHANGED, {})
    assert (plan.intervals(begun).tolist(), plan.reasons[-1].text) == ([3, 7, 7, 3], "sets 2 intervals")
    assert memory["first"][1:3].tolist() == pytest.approx([0.7, 6.0])
    assert np.isnan(memory["first"][[0, 3]]).all()

    def after(time_s: float, norms: list[float], now: list[int], memory: Any) -> tuple[list[int], Any]:
        o = behind(time_s, {"gradient_norm": norms}, sync_interval=[3, *now, 3])
        plan, memory = stage.refine(o, UNCHANGED, memory)
        return plan.intervals(o)[1:3].tolist(), memory

    memory["first"][1] = memory["last"][1] = 0.7
    less = [0.3, 0.3, 5.2, 5.2, 5.2, 4.0]
    assert after(149.9, less, [7, 8], memory)[0] == [7, 8]
    found, later = after(150.0, less, [7, 8], memory)
    assert found == [3, 7]
    assert (later["last"][1:3].tolist(), later["at_s"][1:3].tolist()) == ([0.3, 5.2], [150.0, 150.0])
    assert after(200.0, less, [2, 5], later)[0] == [1, 3]  # it has not fallen, and would be longer
    assert after(200.0, less, [3, 7], later)[0] == [2, 4]  # as long as it is, likewise
    assert after(200.0, [0.29, 0.29, 5.1, 5.1, 5.1, 4.0], [2, 5], later)[0] == [2, 5]  # it has fallen
    assert after(200.0, [1e-12, 1e-12, INF, INF, INF, 4.0], [2, 5], later)[0] == [1, 5]
    assert after(200.0, less, [1, 1], later)[0] == [1, 1]
    # What is remembered of fewer jobs, or of more, is that of the same rows.
    fewer = {name: column[:2] for name, column in later.items()}
    found, grown = after(200.0, less, [7, 8], fewer)
    assert (found, grown["first"][1:3].tolist()) == ([3, 7], [0.7, 5.2])
    more = {name: np.append(column, 9.0) for name, column in later.items()}
    assert len(after(200.0, less, [7, 8], more)[1]["first"]) == 4


# -- Lucid -----------------------------------------------------------------------------------------------------


def hosts(o: Observation, busy: Any = None, stage: Lucid | None = None) -> dict[int, tuple[Any, ...]]:
    known = {_kind(o, 0): np.array(0.3), _kind(o, 1): np.array(0.6)} if busy is None else busy
    found = (stage or Lucid())._hosts(o, Draft(o), known)
    return {
        row: (h.gpu.tolist(), h.ready, h.busy, h.score, h.held_bytes, h.most_bytes, h.gpu_models)
        for row, h in found.items()
    }  # fmt: skip


def test_who_may_have_company() -> None:
    o = change(trainers([0.4, 1.0]), "jobs", memory_bytes=[5.0, NAN, 0.0, 0.0])
    assert hosts(o) == {0: ([0], False, 0.3, 1, 5.0, 1e9, 1), 1: ([1], False, 0.6, 2, 0.0, 1e9, 1)}
    ready = change(trainers([0.4, 1.0], shares=(0.5, 1.0)), "jobs", memory_bytes=[5.0, NAN, 0.0, 0.0])
    assert hosts(ready)[0] == ([0], True, 0.3, 1, 5.0, 1e9, 1)
    score = hosts(o, {})[0]
    assert (math.isnan(score[2]), score[3]) == (True, 3)  # nothing is known: never packed
    assert hosts(o, {}, Lucid(capacity=4))[0][3] == 5
    assert set(hosts(change(ready, "gpus", share_free=[0.4, 0.0]))) == {1}  # somebody else has 0.1
    assert set(hosts(change(ready, "gpus", share_free=[0.5 + 5e-7, 0.0]))) == {0, 1}
    assert set(hosts(change(o, "workers", gpu=[0, 0]))) == set()
    assert set(hosts(change(o, "jobs", gpu_share_requested=[0.5, 1.0, 1.0, 1.0]))) == {1}
    assert set(hosts(change(o, "jobs", gpus_per_worker=[1, 2, 1, 1]))) == {0}
    assert set(hosts(change(o, "gpus", mig=[True, False]))) == {1}
    assert set(hosts(change(o, "nodes", up=[False]))) == set()


def test_a_host_of_several_gpus_has_the_least_memory_of_them() -> None:
    o = Observation.of(
        100.0, 10.0, nodes=Nodes.of(gpus=[3], first_gpu=[0], gpus_free=[0], up=[True]), gpu_models=("a", "h"),
        gpus=Gpus.of(
            node=[0] * 3, job=[1, 1, 0], share_free=[0.0] * 3, model=[0, 1, 1], memory_bytes=[8.0, 4.0, 9.0]
        ),
        jobs=Jobs.of(id=[0, 1], state=[R, R], gpus_requested=[1, 2], gpus_held=[1, 2], memory_bytes=[3.0, 2.0]),
        workers=Workers.of(job=[0, 1, 1], index=[0, 0, 1], gpu=[2, 0, 1], node=[0] * 3, gpu_share=[1.0] * 3),
    )  # fmt: skip
    assert hosts(o) == {0: ([2], False, 0.3, 1, 3.0, 9.0, 1), 1: ([0, 1], False, 0.6, 2, 2.0, 4.0, 2)}
    active = change(o, "gpus", sm_active_ratio=[0.2, 0.6, 0.75])
    known = Lucid()._learnt(active, {})
    assert known == {_kind(o, 0): np.array(0.75), _kind(o, 1): np.array(0.4)}


def test_two_waiting_jobs_join_two_hosts() -> None:
    """The shorter one joins the host that is busy least; each host has made room for one."""
    o = trainers([0.1, 0.2])
    o = change(o, "jobs", service_s=[60.0, 60.0, 50.0, 40.0], work_s=[0.1, NAN, 0.1, 0.1])
    plan, _ = Lucid().refine(o, UNCHANGED, {})
    # Job 3 is like job 1 (0.2 busy), job 2 like job 0 (0.1).
    assert plan.gpu_share is not None
    assert plan.gpu_share.tolist() == pytest.approx([1.0 - 0.2 / 0.3, 1.0 - 0.1 / 0.3])
    assert plan.revisit_s == 102.0  # twice a second where a step is not known
    assert plan.reasons[-1].text == "starts 0 of 2 waiting jobs, deals shares of GPUs"
    quick = change(o, "jobs", work_s=[0.1, 0.2, 0.1, 0.1])
    assert Lucid().refine(quick, UNCHANGED, {})[0].revisit_s == 101.0
    assert Lucid().refine(quick, UNCHANGED.with_(revisit_s=100.5), {})[0].revisit_s == 100.5
    assert (
        Lucid().refine(trainers([0.1, 0.2], waiting=0), UNCHANGED, {})[0].reasons[-1].text == "no job waits"
    )
    for wrong in ({"placement": "tight"}, {"tiny": 0.5, "medium": 0.4}, {"medium": 1.5}):
        with pytest.raises(ValueError, match=r"none of|0 to 1"):
            Lucid(**wrong)  # type: ignore[arg-type]


# -- queues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fifo", "fifo-greedy", "sjf", "sjf-greedy", "easy", "srtf", "las"])
def test_why_a_queue_starts_nobody(name: str) -> None:
    stage = make_stage(name)
    assert stage.refine(pool([(1, 9.0)], [], 2), UNCHANGED, {})[0].reasons[-1].text == "no job waits"
    planned = UNCHANGED.with_(allocation=Allocation.of([]))
    said = stage.refine(pool([], [(1, 9.0)], 2), planned, {})[0].reasons[-1].text
    assert said == "an earlier stage has handed out GPUs already"
    none = stage.refine(pool([(2, 9.0)], [(1, 99.0)], 2), UNCHANGED, {})[0].reasons[-1].text
    assert none == ("no waiting job may start now" if name in ("srtf", "las") else "nothing is free")
    few = stage.refine(pool([(1, 9.0)], [(2, 99.0)], 2), UNCHANGED, {})[0].reasons[-1].text
    assert few == "no waiting job may start now"


def test_easy_says_until_when_it_keeps_gpus() -> None:
    """The first waits for four GPUs until 110 s; of the others one ends before."""
    o = pool([(3, 10.0)], [(4, 5.0), (1, 20.0), (1, 6.0)], 4)
    plan, _ = make_stage("easy").refine(o, UNCHANGED, {})
    assert (given(plan), plan.reasons[-1].values["reserved_s"]) == ({3: [3]}, 110.0)
    assert plan.reasons[-1].text == "started 1 of 3 waiting jobs"
    plan, _ = make_stage("easy").refine(pool([(2, 10.0)], [(1, 5.0), (4, 5.0)], 4), UNCHANGED, {})
    assert given(plan) == {1: [2]}
    assert math.isnan(plan.reasons[-1].values["reserved_s"])  # nobody is behind the first that waits
    o = pool([(2, 10.0)], [(1, 30.0), (4, 5.0), (1, 6.0), (1, 7.0)], 4)
    plan, _ = make_stage("easy").refine(o, UNCHANGED, {})
    assert (given(plan), plan.reasons[-1].values["reserved_s"]) == ({1: [2], 3: [3]}, 130.0)


def fair(attained: list[float], state: list[int], **columns: Any) -> Observation:
    """Jobs ask for both of two GPUs; those that run hold them. Now is 100 s, since when all who wait do."""
    n, holder = len(attained), state.index(R) if R in state else -1
    return Observation.of(
        100.0,
        nodes=Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[2 if holder < 0 else 0]),
        gpus=Gpus.of(node=[0, 0], job=[holder] * 2, share_free=[1.0 if holder < 0 else 0.0] * 2),
        jobs=Jobs.of(
            id=range(n), arrival_s=np.arange(n), state=state, rigid=[True] * n, gpus_requested=[2] * n,
            gpus_held=[2 if each == R else 0 for each in state], attained_gpu_s=attained,
            queued_since_s=[100.0] * n, **columns,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attained", "state", "promote", "again_s", "said"),
    [
        ([40.0, 0.0], [R, W], 4.0, 130.0, "no waiting job may start now"),  # 60 more on two GPUs
        ([40.0, 150.0], [R, W], 4.0, 300.0, "no waiting job may start now"),  # 200 s on two GPUs are 100
        ([40.0, 150.0], [R, W], 2.0, 200.0, "no waiting job may start now"),
        ([40.0, 150.0], [R, W], 16.0, 580.0, "no waiting job may start now"),  # 960 more for the second level
        ([40.0, 150.0], [R, W], 0.0, 580.0, "no waiting job may start now"),
        ([150.0, 0.0], [R, W], 0.0, 600.0, "started 1 of 1 waiting jobs, stopped 1"),
        ([150.0, 0.0], [R, W], 4.0, 300.0, "started 1 of 1 waiting jobs, stopped 1"),  # who was stopped
        ([30.0, 60.0], [W, W], 4.0, 135.0, "started 1 of 2 waiting jobs"),
        ([0.0], [W], 4.0, INF, "started 1 of 1 waiting jobs"),
    ],
)  # fmt: skip
def test_when_least_attained_service_looks_again(
    attained: list[float], state: list[int], promote: float, again_s: float, said: str
) -> None:
    stage = make_stage("las", {"thresholds_gpu_s": (100.0, 1000.0), "promote": promote})
    plan, queue = stage.refine(fair(attained, state), UNCHANGED, {})
    assert (plan.revisit_s, plan.reasons[-1].text) == (pytest.approx(again_s), said)
    assert queue["waiting"] == state.count(W) - len(plan.allocation.job if plan.allocation else ()) + (
        1 if "stopped" in said else 0
    )  # fmt: skip
    sooner, _ = stage.refine(fair(attained, state), UNCHANGED.with_(revisit_s=120.0), {})
    assert sooner.revisit_s == 120.0


def test_srtf_stops_who_has_more_left_than_a_restart_costs() -> None:
    for restart_s, stops in ((0.0, True), (4.9, True), (5.0, False)):
        o = fair([0.0, 0.0], [R, W], service_s=[12.0, 7.0], restart_s=[restart_s, 99.0])
        plan, queue = make_stage("srtf").refine(o, UNCHANGED, {})
        assert given(plan) == ({0: [], 1: [0, 1]} if stops else {})
        assert queue["again"].tolist() == ([0] if stops else [])
        if stops:
            assert plan.reasons[-1].values["stopped"].tolist() == [0]
            assert plan.reasons[-1].values["started"].tolist() == [1]


def test_parameters_of_queues_at_their_borders() -> None:
    assert make_stage("las", {"promote": 0.0, "thresholds_gpu_s": (1e-9,)}).promote == 0.0
    assert (make_stage("las").thresholds_gpu_s, make_stage("las").promote) == ((3600.0, 36000.0), 256.0)
    assert make_stage("diloco").interval == 500
    assert (make_stage("adacomm").interval, make_stage("adacomm").every_s) == (10, 60.0)
    assert (make_stage("lucid").tiny, make_stage("lucid").medium, make_stage("lucid").capacity) == (
        0.25,
        0.5,
        2,
    )
