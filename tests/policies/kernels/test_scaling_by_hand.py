"""Jobs that grow, move and shrink, where work is shared evenly: seconds gained and lost worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.elastic import _makes_way
from equipoise.policies.allocation.growing import _granted
from equipoise.policies.allocation.ranking import NodeState
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation
from tests.policies.kernels.arguments import as_used

R = JobState.RUNNING


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def world(
    holds: list[list[int]], nodes: list[int], models: list[int], work_s: list[float], **jobs: Any
) -> tuple[Draft, NodeState, Any, Any, Any]:
    """(draft, nodes, scaling, table, elastic columns) of running jobs; model 1 is twice as fast as model 0."""
    n, node = len(holds), np.repeat(np.arange(len(nodes)), nodes)
    holder = np.full(len(node), -1)
    for job, gpus in enumerate(holds):
        holder[gpus] = job
    free = np.bincount(node, weights=holder < 0, minlength=len(nodes)).astype(np.int64)
    of = {
        "global_batch": [60] * n, "micro_batch": [1] * n, "gpus_per_worker": [1] * n, "workers_min": [1] * n,
        "workers_max": [6] * n, "sync_interval": [1] * n, "service_s": [600.0] * n, "cost_s": [50.0] * n,
        "memory_bytes": [0.0] * n,
    } | jobs  # fmt: skip
    o = Observation.of(
        0.0, gpu_models=("a", "h"),
        nodes=Nodes.of(gpus=nodes, first_gpu=np.cumsum((0, *nodes))[:-1], gpus_free=free),
        gpus=Gpus.of(
            node=node, model=np.array(models)[node], job=holder, share_free=(holder < 0) * 1.0,
            memory_bytes=np.full(len(node), 8.0),
        ),
        jobs=Jobs.of(
            id=range(n), state=[R] * n, gpus_held=[len(gpus) for gpus in holds],
            **{name: of[name] for name in ("gpus_per_worker", "memory_bytes", "workers_min", "workers_max")},
        ),
    )  # fmt: skip
    names = ("global_batch", "micro_batch", "gpus_per_worker", "workers_min", "workers_max", "sync_interval")
    whole = [np.array(of[name], dtype=np.int64) for name in names]
    nothing = np.full(n, np.nan)
    scaling, table = as_used(
        "RR", (*whole, np.array(work_s), nothing, nothing, np.ones(n), np.array(of["service_s"])),
        (ints(), ints(), ints(), np.empty(0), np.empty(0), np.array([0.5, 1.0])),
    )  # fmt: skip
    offset, gpu = (
        np.cumsum([0, *map(len, holds)]),
        np.array([g for gpus in holds for g in gpus], dtype=np.int64),
    )
    model = np.array([models[int(node[gpus[0]])] for gpus in holds])
    requested = np.array([len(gpus) for gpus in holds]) // np.maximum(whole[2], 1)
    columns = (np.arange(n), offset, gpu, model, np.array(of["cost_s"]), requested)
    order = np.arange(len(nodes))
    draft = Draft(o, np.ones(len(nodes)), np.array(models), order)
    speed = np.array([0.5, 1.0])
    return (
        draft,
        NodeState(np.array(models), np.ones(len(nodes)), speed[models], speed),
        scaling,
        table,
        columns,
    )


def grown(given: Any, horizon_s: float = 1e4, margin: float = 0.0, closed: Any = None) -> dict[int, Any]:
    draft, nodes, scaling, table, columns = given
    shut = np.zeros(len(nodes.model), dtype=np.bool_) if closed is None else np.array(closed)
    job, offset, gpu, gain_s = _granted(draft, nodes, scaling, table, columns, horizon_s, margin, shut)
    return {
        int(row): (gpu[offset[k] : offset[k + 1]].tolist(), pytest.approx(gain_s[k]))
        for k, row in enumerate(job.tolist())
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "horizon_s", "margin", "gpus", "gain_s"),
    [
        ({}, 1e4, 0.0, 6, 350.0), ({}, 300.0, 0.0, 6, 150.0), ({}, 1e4, 0.66, 6, 350.0), ({}, 1e4, 0.67, 0, 0.0),
        ({"cost_s": [399.0]}, 1e4, 0.0, 6, 1.0), ({"cost_s": [400.5]}, 1e4, 0.0, 0, 0.0),
        ({"workers_max": [5]}, 1e4, 0.0, 5, 310.0), ({"global_batch": [5]}, 1e4, 0.0, 5, 310.0),
        ({"global_batch": [11], "micro_batch": [2]}, 1e4, 0.0, 5, 310.0), ({"workers_max": [2]}, 1e4, 0.0, 0, 0.0),
        ({"global_batch": [1]}, 1e4, 0.0, 0, 0.0), ({"micro_batch": [0], "global_batch": [4]}, 1e4, 0.0, 4, 250.0),
        ({"service_s": [np.nan]}, 900.0, 0.0, 6, 550.0),
    ],
)  # fmt: skip
def test_a_job_grows_to_the_size_that_saves_most(
    changed: dict[str, Any], horizon_s: float, margin: float, gpus: int, gain_s: float
) -> None:
    """600 s are left in steps of 6 s on two GPUs; four more are free. On six a step takes 2 s: 400 s are saved."""
    found = grown(world([[0, 1]], [6], [0], [6.0], **changed), horizon_s, margin)
    assert found == ({0: (list(range(gpus)), gain_s)} if gpus else {})


def test_workers_of_two_gpus_grow_by_two() -> None:
    """Of five free GPUs four are of use: four workers in place of two, 3 s in place of 6 s."""
    given = world([[0, 1, 2, 3]], [9], [0], [6.0], gpus_per_worker=[2])
    assert grown(given) == {0: ([0, 1, 2, 3, 4, 5, 6, 7], 250.0)}
    assert grown(world([[0, 1, 2, 3]], [5], [0], [6.0], gpus_per_worker=[2])) == {}
    # On a node that is closed, or with too little memory, there is nothing to take.
    assert grown(world([[0, 1]], [2, 4], [0, 0], [6.0]), closed=[False, True]) == {}
    assert grown(world([[0, 1]], [2, 4], [0, 0], [6.0]), closed=[True, False])[0][0] == [0, 1, 2, 3, 4, 5]
    assert grown(world([[0, 1]], [6], [0], [6.0], memory_bytes=[9.0])) == {}


def test_a_job_moves_to_a_faster_model_and_leaves_its_gpus_to_the_next() -> None:
    """Two workers take 6 s on model 0, three 2 s on model 1; then three in place of one take 8 / 3 s on model 0."""
    given = world([[0, 1], [2]], [3, 3], [0, 1], [6.0, 8.0], service_s=[600.0, 300.0], cost_s=[50.0, 20.0])
    assert grown(given) == {0: ([3, 4, 5], 350.0), 1: ([2, 0, 1], 180.0)}
    # Half as many on the faster model are as quick as those that it has, and one fewer is not.
    assert grown(world([[0, 1]], [2, 1], [0, 1], [6.0], cost_s=[0.0])) == {}
    assert grown(world([[0, 1]], [2, 2], [0, 1], [6.0], cost_s=[10.0])) == {0: ([2, 3], 290.0)}
    assert grown(world([[0, 1]], [2, 3], [0, 1], [6.0], workers_min=[4], workers_max=[9])) == {}
    # On the slower model twice as many would be as quick.
    assert grown(world([[0, 1]], [2, 4], [1, 0], [6.0], cost_s=[0.0])) == {}
    assert grown(world([[0, 1]], [2, 6], [1, 0], [6.0], cost_s=[50.0])) == {0: ([2, 3, 4, 5, 6, 7], 150.0)}


@pytest.mark.parametrize(
    ("wanted", "worth_s", "kept", "gpus"),
    [
        (2, 36.0, [2, 2], [2, 7]), (2, 35.0, None, []),  # 600 s half as long again, and a restart, a tenth of it
        (4, 119.5, [2, 1], [2, 5, 6, 7]), (4, 119.0, None, []),  # 84 for two GPUs, then 35 for one
        (5, 209.5, [1, 1], [1, 2, 5, 6, 7]), (5, 208.5, None, []),  # 84, and 125 for two of the first job
        (6, 1e9, None, []),  # each keeps a worker
    ],
)  # fmt: skip
def test_who_loses_least_per_gpu_gives_way(wanted: int, worth_s: float, kept: Any, gpus: list[int]) -> None:
    """Job 0 has three GPUs in steps of 4 s, job 1 two pairs in steps of 6 s and 400 s left; GPU 7 is free."""
    draft, _, scaling, table, columns = world(
        [[0, 1, 2], [3, 4, 5, 6]], [8], [0], [4.0, 6.0], gpus_per_worker=[1, 2], service_s=[600.0, 400.0],
        cost_s=[50.0, 20.0],
    )  # fmt: skip
    workers, out = np.empty(2, dtype=np.int64), np.empty(wanted, dtype=np.int64)
    found = _makes_way(
        0, 1.0, worth_s, draft, columns, np.array([0.1, 0.2]), 1e4, scaling, table, workers, out
    )  # fmt: skip
    assert found == (kept is not None)
    if kept is not None:
        assert (workers.tolist(), sorted(out.tolist())) == (kept, gpus)
