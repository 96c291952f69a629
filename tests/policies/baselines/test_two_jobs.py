"""Baselines that look at each job by itself, on observations of two jobs; every figure worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.baselines.lucid import Lucid, _Host, _kind
from equipoise.policies.baselines.power import Zeus
from equipoise.policies.baselines.sync import AdaComm, DiLoCo, FixedInterval, HierarchicalLocalSgd
from equipoise.policies.baselines.tasks import Equal, LbBsp
from equipoise.policies.contract import UNCHANGED, Plan
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Speeds, Workers
from equipoise.policies.registry import make_stage

NAN = math.nan
W, R = JobState.WAITING, JobState.RUNNING


def pair(time_s: float = 100.0, workers: dict[str, Any] | None = None, **jobs: Any) -> Observation:
    """Job 0 trains on GPUs 0 and 1 of nodes 0 and 1, job 1 on GPUs 2 to 4 of nodes 2 to 4."""
    of_jobs = {
        "id": [0, 1], "state": [R, R], "gpus_requested": [2, 3], "gpus_held": [2, 3], "global_batch": [60, 90],
        "batch_reference": [60, 90], "workers_min": [2, 3], "workers_max": [2, 3], "started_s": [10.0, 20.0],
    } | jobs  # fmt: skip
    of_workers = {
        "job": [0, 0, 1, 1, 1], "index": [0, 1, 0, 1, 2], "gpu": range(5), "node": range(5),
        "samples_per_step": [30] * 5, "step_s": [1.0] * 5, "response_s_per_sample": [1 / 30] * 5,
        "gradient_norm": [1.0, 3.0, 5.0, 6.0, 10.0],
    } | (workers or {})  # fmt: skip
    return Observation.of(
        time_s, 10.0, jobs=Jobs.of(**of_jobs), workers=Workers.of(**of_workers),
        nodes=Nodes.of(gpus=[1] * 5, first_gpu=range(5), gpus_free=[0] * 5),
        gpus=Gpus.of(node=range(5), job=[0, 0, 1, 1, 1], share_free=[0.0] * 5),
    )  # fmt: skip


def done(stage: Any, o: Observation, memory: Any = None) -> tuple[Plan, Any]:
    return stage.refine(o, UNCHANGED, stage.initial() if memory is None else memory)  # type: ignore[no-any-return]


# -- intervals -------------------------------------------------------------------------------------------------


def test_intervals_of_both_jobs() -> None:
    plan, _ = done(FixedInterval(4), pair(sync_interval=[4, 1]))
    assert plan.reasons[-1].text == "sets 1 intervals to 4"
    assert plan.intervals(pair()).tolist() == [4, 4]
    plan, _ = done(FixedInterval(4), pair(sync_interval=[4, 4]))
    assert (plan.sync_interval, plan.reasons[-1].text) == (None, "every interval is 4")
    two = {"near_exchange_s": [0.1, NAN]}
    plan, _ = done(HierarchicalLocalSgd(), pair(**two, sync_interval=[2, 1], far_every=[1, 1]))
    assert (plan.sync_interval.tolist(), plan.far_every.tolist()) == ([2, 2], [8, 1])  # type: ignore[union-attr]
    assert plan.reasons[-1].text == "sets 2 intervals"
    plan, _ = done(HierarchicalLocalSgd(), pair(**two, sync_interval=[2, 2], far_every=[7, 1]))
    assert plan.reasons[-1].text == "sets 1 intervals"
    plan, _ = done(HierarchicalLocalSgd(), pair(**two, sync_interval=[2, 2], far_every=[8, 1]))
    assert plan.reasons[-1].text == "every interval is as it should be"
    plan, _ = done(DiLoCo(interval=9, warm_up=0.5), pair(progress=[0.49, 0.5]))
    assert (plan.intervals(pair()).tolist(), plan.reasons[-1].text) == ([1, 9], "sets 1 intervals")
    assert DiLoCo(interval=1, warm_up=0.0).warm_up + HierarchicalLocalSgd(1, 1).interval == 1
    assert DiLoCo().warm_up == pytest.approx(24_000 / 88_000)  # steps of the paper's model
    for stage, wrong in (
        (FixedInterval, {"interval": 0}), (HierarchicalLocalSgd, {"interval": 0}), (DiLoCo, {"interval": 0}),
        (HierarchicalLocalSgd, {"far_every": 0}), (DiLoCo, {"warm_up": 1.1}), (DiLoCo, {"warm_up": -0.1}),
        (AdaComm, {"interval": 0}), (AdaComm, {"every_s": 0.0}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            stage(**wrong)


def test_adacomm_follows_the_median_norm_of_each_job() -> None:
    """Medians of 2 and 6; 60 s later 1 and 6: ceil(10 x 1 / 2) = 5, and one that did not fall is halved."""
    plan, memory = done(AdaComm(), pair())
    assert (plan.sync_interval.tolist(), plan.reasons[-1].text) == ([10, 10], "sets 2 intervals")  # type: ignore[union-attr]
    assert (memory["first"].tolist(), memory["at_s"].tolist()) == ([2.0, 6.0], [100.0, 100.0])
    less = {"gradient_norm": [0.5, 1.5, 5.0, 6.0, 10.0]}
    early, _ = done(AdaComm(), pair(159.9, less, sync_interval=[10, 10]), memory)
    assert early.sync_interval is None
    plan, memory = done(AdaComm(), pair(160.0, less, sync_interval=[10, 10]), memory)
    assert plan.sync_interval.tolist() == [5, 5]  # type: ignore[union-attr]
    assert (memory["last"].tolist(), memory["first"].tolist()) == ([1.0, 6.0], [2.0, 6.0])
    # A ratio of 1 and one above: the first has fallen since, and keeps its interval; nothing is less than 1.
    more = {"gradient_norm": [0.9, 0.9, 9.0, 9.0, 9.0]}
    plan, memory = done(AdaComm(), pair(220.0, more, sync_interval=[3, 1]), memory)
    assert (plan.sync_interval, memory["last"].tolist()) == (None, [0.9, 9.0])
    odd = {"gradient_norm": [0.0, 0.0, NAN, 1.0, 1.0]}
    plan, same = done(AdaComm(), pair(280.0, odd, sync_interval=[3, 1]), memory)
    assert (plan.sync_interval, same["at_s"].tolist()) == (None, [220.0, 220.0])


# -- deals -----------------------------------------------------------------------------------------------------


def test_deals_of_both_jobs() -> None:
    uneven = pair(workers={"samples_per_step": [40, 20, 10, 20, 60]})
    assert done(Equal(), uneven)[0].samples_per_step.tolist() == [30, 30, 30, 30, 30]  # type: ignore[union-attr]
    # Twice as fast a worker in each: 60 as 40 and 20, 90 as 45, 22.5 and 22.5 (the lower rank gets the odd one).
    fast = {"response_s_per_sample": [0.02, 0.04, 0.02, 0.04, 0.04]}
    assert done(LbBsp(), pair(workers=fast))[0].samples_per_step.tolist() == [40, 20, 45, 23, 22]  # type: ignore[union-attr]
    unknown = {"response_s_per_sample": [0.02, 0.04, 0.02, NAN, 0.04]}
    assert done(LbBsp(), pair(workers=unknown))[0].samples_per_step.tolist() == [40, 20, 30, 30, 30]  # type: ignore[union-attr]
    # The slowest step falls from 30 x 0.04 to 20 x 0.04, by a third; of the other job by a quarter, to 23 x 0.04.
    for margin, expected in ((0.0, [40, 20, 45, 23, 22]), (0.24, [40, 20, 30, 30, 30]), (0.34, None)):
        plan = done(LbBsp(margin=margin), pair(workers=fast))[0]
        assert (None if plan.samples_per_step is None else plan.samples_per_step.tolist()) == expected
    for wrong in ({"margin": -0.1}, {"memory": 1.0}, {"memory": -0.1}):
        with pytest.raises(ValueError, match="must"):
            LbBsp(**wrong)


def test_what_was_predicted_before_counts_by_the_memory() -> None:
    """Speeds of 50 and 25, then 25 each: a quarter of 50 and three of 25 are 31.25."""
    fast = {"response_s_per_sample": [0.02, 0.04, 0.04, 0.04, 0.04]}
    _, memory = done(LbBsp(memory=0.25), pair(workers=fast))
    assert memory["speed"].tolist() == [50.0, 25.0, 25.0, 25.0, 25.0]
    even = {"response_s_per_sample": [0.04] * 5, "samples_per_step": [40, 20, 30, 30, 30]}
    plan, memory = done(LbBsp(memory=0.25), pair(workers=even), memory)
    assert memory["speed"].tolist() == [31.25, 25.0, 25.0, 25.0, 25.0]
    assert plan.samples_per_step.tolist() == [33, 27, 30, 30, 30]  # type: ignore[union-attr]  # 60 x 31.25 / 56.25
    none = {"response_s_per_sample": [NAN] * 5}
    assert (
        done(LbBsp(memory=0.25), pair(workers=none), memory)[1]["speed"].tolist() == memory["speed"].tolist()
    )


# -- caps and companions ---------------------------------------------------------------------------------------


def powered(
    highest_w: Any = 300.0, cap_w: Any = 300.0, job: Any = (0, 0, 1, 1, 1), **jobs: Any
) -> Observation:
    o = pair(**{"throughput_samples_per_s": [10.0, 30.0]} | jobs)
    power = {
        "power_max_w": np.full(5, highest_w),
        "power_idle_w": [50.0] * 5,
        "power_cap_w": np.full(5, cap_w),
    }
    o.nodes = Nodes.of(**o.nodes.as_dict() | power)
    o.gpus = Gpus.of(**o.gpus.as_dict() | {"job": job, "power_w": [200.0] * 5})
    return o


def test_zeus_tries_one_cap_after_another_and_keeps_the_best() -> None:
    plan, memory = done(Zeus(), powered())
    assert (plan.power_cap_w, plan.reasons[-1].text, plan.reasons[-1].values["trying"]) == (
        None, "the caps in force are right", 2,
    )  # fmt: skip
    assert (memory["row"].tolist(), memory["since_s"].tolist(), memory["gpus"].tolist()) == (
        [0, 1],
        [10.0, 20.0],
        [2, 3],
    )
    plan, memory = done(Zeus(), powered(), memory)
    # 0.5 x 400 W and 0.5 x 600 W for 10 samples a second; three GPUs for 30.
    assert memory["cost"][:, 0].tolist() == [50.0, 25.0]
    assert np.isnan(memory["cost"][:, 1:]).all()
    assert plan.power_cap_w.tolist() == [275.0] * 5  # type: ignore[union-attr]
    assert plan.reasons[-1].values["caps_w"].tolist() == [275.0]
    known = {**memory, "cost": np.tile(np.arange(9.0)[::-1], (2, 1))}
    known["cost"][1, 3] = -1.0
    plan, _ = done(Zeus(), powered(throughput_samples_per_s=[NAN, NAN]), known)
    assert plan.power_cap_w.tolist() == [100.0, 100.0, 225.0, 225.0, 225.0]  # type: ignore[union-attr]
    assert plan.reasons[-1].values["trying"] == 0
    # Started again, or on other GPUs: nothing is known of it.
    plan, _ = done(Zeus(), powered(started_s=[11.0, 20.0]), known)
    assert plan.power_cap_w.tolist() == [300.0, 300.0, 225.0, 225.0, 225.0]  # type: ignore[union-attr]
    assert plan.reasons[-1].values["trying"] == 1


def test_zeus_caps_nodes_of_one_training_job_only() -> None:
    o = powered()
    assert [(row, gpus.tolist()) for row, gpus in Zeus()._alone(o)] == [(0, [0, 1]), (1, [2, 3, 4])]
    some = powered([300.0, NAN, 300.0, 300.0, 300.0])
    assert [row for row, _ in Zeus()._alone(some)] == [1]
    free = powered(job=(0, -1, 1, 1, 1))
    assert [(row, gpus.tolist()) for row, gpus in Zeus()._alone(free)] == [(0, [0]), (1, [2, 3, 4])]
    o.gpus = Gpus.of(**o.gpus.as_dict() | {"node": [0, 1, 1, 3, 4]})
    assert Zeus()._alone(o) == []
    half = powered(job=(0, 0, 1, 1, -2))
    half.gpus = Gpus.of(**half.gpus.as_dict() | {"node": [0, 1, 2, 3, 3]})
    assert [row for row, _ in Zeus()._alone(half)] == [0]
    assert done(Zeus(), powered(NAN))[0].reasons[-1].text == "no node's power may be capped"


def companions(**jobs: Any) -> Observation:
    """Job 2 of one GPU waits; like it 0.4 of a GPU was used."""
    columns = {
        "id": range(3), "state": [R, R, W], "gpus_requested": [1, 1, 1], "gpus_held": [1, 1, 0],
        "memory_bytes": [5.0, 5.0, 3.0], "gpus_per_worker": [1] * 3, "rigid": [False] * 3,
    } | jobs  # fmt: skip
    return Observation.of(
        100.0, jobs=Jobs.of(**columns), nodes=Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[0]),
        gpus=Gpus.of(node=[0, 0], job=[0, 1], share_free=[0.0, 0.0], memory_bytes=[8.0, 8.0]),
        workers=Workers.of(job=[0, 1], index=[0, 0], gpu=[0, 1], node=[0, 0]),
    )  # fmt: skip


def host(
    row: int, ready: bool, busy: float, score: int, *, most: float = 8.0, gpus: int = 1, models: int = 1
) -> _Host:
    return _Host(row, np.arange(row, row + gpus), ready, busy, score, 5.0, most, models)


@pytest.mark.parametrize(
    ("hosts", "jobs", "expected"),
    [
        ([host(0, False, 0.6, 1), host(1, False, 0.2, 0)], {}, 1),  # the one that is busy least
        ([host(0, False, 0.2, 1), host(1, True, 0.6, 1)], {}, 1),  # but first who has made room
        ([host(0, False, 0.9, 2)], {}, None), ([host(0, False, 0.4, 1)], {}, 0),  # scores of 1 and 1 are 2
        ([host(0, False, 0.4, 1, most=7.9)], {}, None),
        ([host(0, False, 0.4, 1)], {"memory_bytes": [5.0, 5.0, 3.1]}, None),
        ([host(0, False, 0.4, 1, gpus=2)], {}, None), ([host(0, False, 0.4, 1)], {"rigid": [True] * 3}, None),
        ([host(0, False, 0.4, 1)], {"gpu_share_requested": [1.0, 1.0, 0.5]}, None),
        ([host(0, False, 0.4, 1)], {"gpus_per_worker": [1, 1, 2]}, None),
        ([host(0, False, 0.4, 1, models=2)], {"one_gpu_model": [True] * 3}, None),
        ([host(0, False, 0.4, 1, models=2)], {}, 0), ([], {}, None),
    ],
)  # fmt: skip
def test_whom_a_job_of_lucid_joins(hosts: list[_Host], jobs: dict[str, Any], expected: int | None) -> None:
    o = companions(**jobs)
    busy, share, draft = {_kind(o, 2): np.array(0.4)}, np.ones(2), Draft(o)
    found = Lucid()._join(o, 2, 1, hosts, draft, share, busy)
    assert (None if found is None else found.row) == expected
    assert (2 in draft.given) == (found is not None and found.ready)
    if found is not None and not found.ready:
        assert share[found.row] == pytest.approx(1.0 - 0.4 / (0.4 + found.busy))
    assert share.sum() == pytest.approx(
        2.0 - (0.0 if found is None or found.ready else 0.4 / (0.4 + found.busy))
    )
    assert Lucid()._join(o, 2, 1, hosts, draft, share, {}) is None


def test_lucid_starts_the_least_gpu_time_first_and_looks_again() -> None:
    """Two GPUs for 3 s before one for 7 s."""
    o = Observation.of(
        0.0, nodes=Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[2]), gpus=Gpus.of(node=[0, 0], job=[-1, -1]),
        jobs=Jobs.of(id=[0, 1], rigid=[True] * 2, gpus_requested=[1, 2], service_s=[7.0, 3.0]),
    )  # fmt: skip
    plan, _ = done(Lucid(), o)
    assert plan.allocation is not None
    assert plan.allocation.job.tolist() == [1]
    assert plan.reasons[-1].text == "starts 1 of 2 waiting jobs"
    full = companions(rigid=[True] * 3)
    assert done(Lucid(), full)[0].reasons[-1].text == "nobody finds room or company"


def test_optimus_weighs_the_gain_of_beginners() -> None:
    """Equal jobs but for their progress: the third GPU goes to the one whose end is the more certain."""
    sizes = np.array([1, 2])
    for progress, expected in (
        ([0.04, 0.05], {0: 1, 1: 2}),
        ([0.05, 0.04], {0: 2, 1: 1}),
        ([0.04, 0.0], {0: 2, 1: 1}),
    ):
        o = Observation.of(
            0.0, nodes=Nodes.of(gpus=[3], first_gpu=[0], gpus_free=[3]), gpus=Gpus.of(node=[0] * 3, job=[-1] * 3),
            jobs=Jobs.of(
                id=[0, 1], global_batch=[32, 32], batch_reference=[32, 32], workers_max=[2, 2], progress=progress,
                remaining_samples=[1e6, 1e6],
            ),
            speeds=Speeds.of(
                job=[0, 0, 1, 1], gpu_model=[0] * 4, gpus=np.tile(sizes, 2), samples_per_s=[10.0, 20.0] * 2,
                exchange_s=[0.0] * 4,
            ),
        )  # fmt: skip
        plan, _ = done(make_stage("optimus"), o)
        assert plan.allocation is not None
        given = {int(job): len(plan.allocation.gpus_of(k)) for k, job in enumerate(plan.allocation.job)}
        assert given == expected
