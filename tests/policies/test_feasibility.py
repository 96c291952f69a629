"""What a plan may ask for: each rule at its border, and what is said just beyond it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.policies.contract import Allocation
from equipoise.policies.feasibility import check
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Shards, Workers
from equipoise.policies.plan import UNCHANGED, Moves
from equipoise.policies.rate_rules import SCRIPT

NAN = math.nan


def world(jobs: dict[str, Any] | None = None, workers: dict[str, Any] | None = None, **nodes: Any) -> Observation:
    """Job 0 has workers 0 and 1 on GPUs 0 and 1 of nodes 0 and 1, job 1 has worker 2 on GPU 2 of node 1."""
    of_jobs = {
        "id": [0, 1],
        "state": [JobState.RUNNING] * 2,
        "gpus_held": [2, 1],
        "global_batch": [8, 6],
        "batch_reference": [4, 6],
        "batch_max": [16, 0],
        "batch_given": [8, 6],
        "micro_batch": [2, 1],
        "accumulation": [2, 0],
        "far_every": [1, 3],
        "near_exchange_s": [0.1, NAN],
        "sync_interval": [1, 2],
    } | (jobs or {})
    of_workers = {
        "job": [0, 0, 1],
        "index": [0, 1, 0],
        "gpu": [0, 1, 2],
        "node": [0, 1, 1],
        "gpu_share": [1.0, 0.5, 0.25],
        "samples_per_step": [4, 4, 6],
        "samples_max": [8, 8, 6],
        "push_s": [NAN, NAN, 0.1],
        "push_interval": [1, 1, 2],
    } | (workers or {})
    of_nodes = {
        "gpus": [1, 2],
        "first_gpu": [0, 1],
        "gpus_free": [0, 0],
        "storage_free_bytes": [NAN, 10.0],
        "power_cap_w": [200.0, NAN],
        "power_idle_w": [100.0, NAN],
        "power_max_w": [300.0, NAN],
    } | nodes
    return Observation.of(
        100.0,
        10.0,
        jobs=Jobs.of(**of_jobs),
        workers=Workers.of(**of_workers),
        nodes=Nodes.of(**of_nodes),
        gpus=Gpus.of(node=[0, 1, 1], job=[0, -2, -2], share_free=[0.0, 0.25, 0.5]),
        shards=Shards.of(
            job=[0, 0, 1, 1],
            worker=[0, 1, 2, 2],
            node=[0, 0, 1, 1],
            bytes=[6.0, 4.0, 5.0, 99.0],
            started=[False, False, True, False],
        ),
    )


NOW = world()
SAID: list[tuple[str, list[Any], str | None]] = [
    ("samples_per_step", [5, 3, 6], None),
    ("samples_per_step", [8, 0, 6], None),
    ("samples_per_step", [9, -1, 6], "worker 1 of job row 0 gets -1 samples"),
    ("samples_per_step", [9, 0, 6], "worker 0 of job row 0 gets 9 samples, memory holds 8"),
    ("samples_per_step", [5, 4, 6], "job row 0 splits 9 samples, its global batch is 8"),
    ("samples_per_step", [4, 4, 5], "job row 1 splits 5 samples, its global batch is 6"),
    ("samples_per_step", [5, 4, 5], "job row 0 splits 9 samples, its global batch is 8"),
    ("sync_interval", [1, 1], None),
    ("sync_interval", [1, 0], "job row 1 has interval 0, at least 1 is needed"),
    ("far_every", [2, 3], None),
    ("far_every", [1, 1], None),
    ("far_every", [1, 2], "job row 1 has 2 exchanges per exchange of all workers; 1, or more with near workers"),
    ("far_every", [0, 3], "job row 0 has 0 exchanges per exchange of all workers; 1, or more with near workers"),
    ("accumulation", [1, 0], None),
    ("accumulation", [4, 0], None),
    ("accumulation", [5, 0], "job row 0 gets 5 passes a step, allowed: 1 to 4"),
    ("accumulation", [0, 0], "job row 0 gets 0 passes a step, allowed: 1 to 4"),
    ("accumulation", [2, 1], "job row 1 gets 1 passes a step, allowed: 0, its layout sets them"),
    ("push_interval", [1, 1, 1], None),
    ("push_interval", [1, 1, 9], None),
    (
        "push_interval",
        [1, 1, 0],
        "worker 2 of job row 1 pushes every 0 steps; allowed: at least 1, and only where workers do not wait",
    ),
    (
        "push_interval",
        [2, 1, 2],
        "worker 0 of job row 0 pushes every 2 steps; allowed: at least 1, and only where workers do not wait",
    ),
    ("power_cap_w", [200.0, NAN], None),
    ("power_cap_w", [300.0, NAN], None),
    ("power_cap_w", [100.5, NAN], None),
    ("power_cap_w", [100.0, NAN], "node 0 gets a cap of 100 W, allowed: above 100 to 300"),
    ("power_cap_w", [301.0, NAN], "node 0 gets a cap of 301 W, allowed: above 100 to 300"),
    ("power_cap_w", [NAN, NAN], "node 0 gets a cap of nan W, allowed: above 100 to 300"),
    ("power_cap_w", [200.0, 50.0], "node 1 gets a cap of 50 W, allowed: none, a plan cannot cap its GPUs"),
    ("gpu_share", [1.0, 0.5, 0.25], None),
    ("gpu_share", [1.0, 0.75, 0.75], None),
    ("gpu_share", [1.0, 0.75 + 5e-10, 0.75], None),
    ("gpu_share", [1.0, 0.76, 0.25], "GPU 1 has shares of 0.7600 in all, 0.7500 is available"),
    ("gpu_share", [1.0, 0.5, 0.75001], "GPU 2 has shares of 0.7500 in all, 0.7500 is available"),
    ("gpu_share", [0.0, 0.5, 0.25], "worker 0 of job row 0 has share 0.0, allowed is 0 < share <= 1"),
    ("gpu_share", [1.0, 1.5, 0.25], "worker 1 of job row 0 has share 1.5, allowed is 0 < share <= 1"),
    ("gradient_weight", [0.0, 1.0, 0.5], None),
    ("gradient_weight", [0.0, 0.0, 1.0], "job row 0 is left without any gradient"),
    ("gradient_weight", [1.0, 1.0, 0.0], "job row 1 is left without any gradient"),
    ("gradient_weight", [1.0, -0.5, 1.0], "worker 1 of job row 0 has weight -0.5, allowed is 0 <= weight <= 1"),
    ("global_batch", [4, 6], None),
    ("global_batch", [16, 6], None),
    ("global_batch", [3, 6], "job row 0 gets a batch of 3, allowed: 4 to 16"),
    ("global_batch", [17, 6], "job row 0 gets a batch of 17, allowed: 4 to 16"),
    ("global_batch", [8, 7], "job row 1 gets a batch of 7, allowed: its own, 6: it has no batch_max"),
    ("learning_rate", [4.0, 1.0], None),
    ("learning_rate", [0.5, 1.0], None),
    ("learning_rate", [4.5, 1.0], "job row 0 gets 4.5 times its learning rate, allowed: above 0, at most 4"),
    ("learning_rate", [0.0, 1.0], "job row 0 gets 0 times its learning rate, allowed: above 0, at most 4"),
    (
        "learning_rate",
        [1.0, 2.0],
        "job row 1 gets 2 times its learning rate, allowed: the present one: it has no batch_max",
    ),
    ("fetch_order", [3, 0, 2, 1], None),
    ("fetch_order", [3], None),
    ("fetch_order", [0, 4], "needs distinct rows of shards (0..3)"),
    ("fetch_order", [0, -1], "needs distinct rows of shards (0..3)"),
    ("fetch_order", [1, 1], "needs distinct rows of shards (0..3)"),
]


@pytest.mark.parametrize(("field", "values", "said"), SAID)
def test_a_value_by_row_at_the_border_of_what_is_allowed(field: str, values: list[Any], said: str | None) -> None:
    plan = UNCHANGED.with_(**{field: np.array(values)})
    assert check(plan, NOW) == (said and f"{field}: {said}")
    assert check(plan, NOW, plan) is None  # what has been checked already


@pytest.mark.parametrize(
    ("field", "table", "rows"),
    [
        ("samples_per_step", "workers", 3),
        ("gpu_share", "workers", 3),
        ("gradient_weight", "workers", 3),
        ("push_interval", "workers", 3),
        ("sync_interval", "jobs", 2),
        ("global_batch", "jobs", 2),
        ("learning_rate", "jobs", 2),
        ("far_every", "jobs", 2),
        ("accumulation", "jobs", 2),
        ("suspect", "gpus", 3),
        ("power_cap_w", "nodes", 2),
    ],
)
def test_a_dense_value_has_all_rows_and_its_kind(field: str, table: str, rows: int) -> None:
    right = {"gpu_share": "f", "gradient_weight": "f", "learning_rate": "f", "power_cap_w": "f", "suspect": "?"}
    kind = right.get(field, "i")
    for wrong in (
        np.ones(rows - 1, kind),
        np.ones(rows + 1, kind),
        np.ones((rows, 1), kind),
        np.ones((), kind),
        [1] * rows,
    ):
        plan = UNCHANGED.with_(**{field: wrong})
        assert check(plan, NOW) == f"{field}: needs one value per row of {table} ({rows})"
    other = np.ones(rows, "i" if kind in "f?" else "f")
    assert check(UNCHANGED.with_(**{field: other}), NOW) == f"{field}: has dtype {other.dtype}"


@pytest.mark.parametrize(
    ("changed", "field", "values", "said"),
    [
        ({"workers": {"samples_max": [3, 8, 6]}}, "samples_per_step", [4, 4, 6], None),  # as it is
        (
            {"jobs": {"batch_reference": [9, 6]}},
            "samples_per_step",
            [5, 3, 6],
            "job row 0 splits 8 samples, fewer than its reference batch",
        ),
        ({"jobs": {"batch_reference": [8, 6]}}, "samples_per_step", [5, 3, 6], None),
        ({"jobs": {"micro_batch": [0, 1]}}, "accumulation", [8, 0], None),
        ({"jobs": {"micro_batch": [0, 1]}}, "accumulation", [9, 0], "job row 0 gets 9 passes a step, allowed: 1 to 8"),
        ({"jobs": {"batch_given": [0, 6]}}, "learning_rate", [32.0, 1.0], None),
        ({"jobs": {"batch_given": [5, 6]}}, "learning_rate", [6.4, 1.0], None),
        (
            {"jobs": {"batch_max": [4, 0]}},
            "learning_rate",
            [1.5, 1.0],
            "job row 0 gets 1.5 times its learning rate, allowed: the present one: it has no batch_max",
        ),
        (
            {"jobs": {"rate_rule": [SCRIPT, 0]}},
            "learning_rate",
            [1.5, 1.0],
            "job row 0 gets 1.5 times its learning rate, allowed: its script sets it",
        ),
        ({"jobs": {"batch_max": [4, 0]}}, "global_batch", [4, 6], None),
        (
            {"jobs": {"batch_max": [4, 0]}},
            "global_batch",
            [5, 6],
            "job row 0 gets a batch of 5, allowed: its own, 8: it has no batch_max",
        ),
    ],
)
def test_where_a_table_says_otherwise(changed: Any, field: str, values: list[Any], said: str | None) -> None:
    assert check(UNCHANGED.with_(**{field: np.array(values)}), world(**changed)) == (said and f"{field}: {said}")


@pytest.mark.parametrize(
    ("shard", "source", "target", "worker", "said"),
    [
        ([0], [0], [1], [1], None),
        ([0, 1], [0, 0], [1, 1], [1, 1], None),  # 6 + 4 bytes, just what is free
        ([3], [1], [1], [2], None),  # it stays where it is
        ([4], [0], [1], [1], "shard rows must be 1 values in 0..3"),
        ([-1], [0], [1], [1], "shard rows must be 1 values in 0..3"),
        ([0], [0], [1], [3], "worker rows must be 1 values in 0..2"),
        ([0], [0], [2], [1], "target rows must be 1 values in 0..1"),
        ([0], [0], [1], [1, 1], "worker rows must be 1 values in 0..2"),
        ([0, 0], [0, 0], [1, 1], [1, 1], "a shard is moved twice"),
        ([0, 2], [0, 1], [1, 1], [1, 2], "shard row 2 has been started"),
        ([0], [1], [1], [1], "source is not the node that stores the shard"),
        ([0], [0], [0], [1], "target is not the node of the new owner"),
        ([0], [0], [1], [2], "the new owner belongs to another job"),
    ],
)
def test_which_shards_may_be_moved(shard: Any, source: Any, target: Any, worker: Any, said: str | None) -> None:
    moves = Moves(*(np.array(rows) for rows in (shard, source, target, worker)))
    assert check(UNCHANGED.with_(moves=moves), NOW) == (said and f"moves: {said}")


def test_shards_go_to_living_nodes_that_have_room() -> None:
    moves = Moves(np.array([0, 1]), np.array([0, 0]), np.array([1, 1]), np.array([1, 1]))
    for nodes, said in (
        ({"storage_free_bytes": [NAN, 9.9]}, "node 1 has no room for the shards moved to it"),
        ({"up": [True, False]}, "node 1 is down"),
        ({"storage_free_bytes": [0.0, NAN]}, None),
    ):
        assert check(UNCHANGED.with_(moves=moves), world(**nodes)) == (said and f"moves: {said}")  # type: ignore[arg-type]


@pytest.mark.parametrize(("revisit_s", "allowed"), [(100.0, False), (100.5, True), (NAN, False), (99.0, False)])
def test_a_plan_is_looked_at_again_later_than_now(revisit_s: float, allowed: bool) -> None:
    said = None if allowed else f"revisit_s: {revisit_s} is not after now (100.0)"
    assert check(UNCHANGED.with_(revisit_s=revisit_s), NOW) == said


def cluster(**columns: Any) -> Observation:
    """GPUs 0 to 5; 1 is half free, 2 has little memory and another model, 3 is a feature's, 4 on a dead node."""
    jobs = {
        "id": range(3),
        "state": [JobState.WAITING, JobState.DONE, JobState.WAITING],
        "rigid": [True, True, False],
        "gpus_requested": [2, 2, 1],
        "workers_max": [1, 1, 2],
        "memory_bytes": [5.0, 0.0, 0.0],
        "one_gpu_model": [False, False, True],
    }
    return Observation.of(
        0.0,
        jobs=Jobs.of(**jobs | columns),
        gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=[4, 1, 1], first_gpu=[0, 4, 5], gpus_free=[2, 0, 1], up=[True, False, True]),
        gpus=Gpus.of(
            node=[0, 0, 0, 0, 1, 2],
            model=[0, 0, 1, 1, 0, 0],
            job=[-1, -2, -1, -3, -1, -1],
            share_free=[1.0, 0.5, 1.0, 0.0, 0.0, 1.0],
            memory_bytes=[5.0, 8.0, 4.0, 8.0, 8.0, 8.0],
        ),
    )


@pytest.mark.parametrize(
    ("entries", "share", "said"),
    [
        ([(0, [0, 5])], 1.0, None),
        ([(2, [1])], 0.5, None),
        ([(2, [2])], 1.0, None),
        ([(2, [5, 0])], 1.0, None),
        ([(3, [0])], 1.0, "job row 3 does not exist or is listed twice"),
        ([(9, [0])], 1.0, "job row 9 does not exist or is listed twice"),
        ([(-1, [0])], 1.0, "job row -1 does not exist or is listed twice"),
        ([(0, [0, 5]), (0, [])], 1.0, "job row 0 does not exist or is listed twice"),
        ([(1, [0, 5])], 1.0, "job row 1 is done"),
        ([(2, [4])], 1.0, "GPU 4 for job row 2 is on a node that is down"),
        ([(2, [1])], 0.51, "GPU 1 for job row 2 is booked beyond its free share"),
        ([(0, [0, 5]), (2, [5])], 1.0, "GPU 5 for job row 0 is booked beyond its free share"),
        ([(0, [0, 2])], 1.0, "GPU 2 has too little memory for job row 0"),
        ([(2, [0, 0])], 1.0, "GPU 0 is listed twice for job row 2"),
        ([(2, [0])], 0.0, "share on GPU 0 for job row 2 must be above 0 and at most 1"),
        ([(2, [0])], 1.01, "share on GPU 0 for job row 2 must be above 0 and at most 1"),
        (
            [(2, [0, 2])],
            1.0,
            "GPU 2 is of another model than the first of job row 2, whose gang must not mix GPU models",
        ),
        ([(2, [3])], 1.0, "GPU 3 is held by a feature beside the jobs until it releases it; job row 2 cannot have it"),
        ([(0, [5])], 1.0, "job row 0 gets 1 GPUs of the 6 there are, allowed: 2, or none: it is rigid"),
        ([(2, [0, 5, 1])], 0.5, "job row 2 gets 3 GPUs of the 6 there are, allowed: 1 to 2, or none"),
    ],
)
def test_which_gpus_a_job_may_have(entries: Any, share: float, said: str | None) -> None:
    plan = UNCHANGED.with_(allocation=Allocation.of(entries, share))
    assert check(plan, cluster()) == (said and f"allocation: {said}")


def test_compressed_rows_must_match() -> None:
    wrong = Allocation(np.array([0]), np.array([0, 1]), np.array([0, 5]), np.ones(2))
    assert check(UNCHANGED.with_(allocation=wrong), cluster()) == (
        "allocation: offsets do not match the listed jobs and GPUs"
    )
