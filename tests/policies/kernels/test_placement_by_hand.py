"""Where gangs go among many nodes, what a job that does not fit leaves as it was, and what is told of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.policies.allocation.gangs import place_gang, request_columns, start_in_order, working
from equipoise.policies.contract import UNCHANGED, Allocation, check
from equipoise.policies.kernels.placement import ANY, WEIGHTED
from equipoise.policies.observation import Gpus, Jobs, Nodes, Observation
from tests.oracles import placement as naive
from tests.policies.allocation.test_placement import columns


def nodes_of(free: list[int]) -> Any:
    """Nodes of two GPUs, of which so many are free; all of the same worth."""
    return columns([
        naive.Node([[2 * n + k, 1.0 if k < count else 0.0, 16.0] for k in range(2)], True, 1.0, 0)
        for n, count in enumerate(free)
    ])  # fmt: skip


def started(free: list[int], gpus: list[int], **jobs: Any) -> dict[int, list[int]]:
    o = Observation.of(
        jobs=Jobs.of(id=range(len(gpus)), rigid=[True] * len(gpus), gpus_requested=gpus, **jobs)
    )
    (job, offset, gpu, _), _ = start_in_order(o.waiting, False, WEIGHTED, request_columns(o), nodes_of(free))
    return {int(row): gpu[offset[k] : offset[k + 1]].tolist() for k, row in enumerate(job.tolist())}


def test_a_gang_finds_the_node_that_holds_it_behind_64_others() -> None:
    assert started([1] * 64 + [2] + [0] * 5, [2]) == {0: [128, 129]}
    assert started([1] * 64 + [0, 2] + [0] * 5, [2]) == {0: [130, 131]}
    assert started([0] * 66 + [2] + [0] * 3, [2, 1]) == {0: [132, 133]}
    assert started([0] * 64 + [1] + [0] * 64 + [2, 1], [2, 1, 1]) == {0: [258, 259], 1: [128], 2: [260]}
    assert started([0] * 70, [1]) == {}


def test_a_part_that_fits_nowhere_changes_nothing() -> None:
    room = working(nodes_of([0, 1]))
    out = np.full(2, -7, dtype=np.int64)
    before = room[6].copy(), room[7][1].copy()
    assert not place_gang(room, 1, 0.5, 32.0, ANY, out, False)  # too little memory
    assert (out.tolist(), room[6].tolist(), room[7][1].tolist()) == (
        [-7, -7],
        before[0].tolist(),
        before[1].tolist(),
    )
    assert place_gang(room, 1, 0.5, 16.0, ANY, out, False)
    assert (out.tolist(), room[6].tolist()) == ([2, -7], [0.0, 0.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (2, None), (4, None), (6, None), (3, "allowed: 2 to 6 in steps of 2"), (8, "allowed: 2 to 6 in steps of 2"),
    ],
)  # fmt: skip
def test_a_rigid_job_may_have_fewer_whole_workers(given: int, said: str | None) -> None:
    o = Observation.of(
        0.0, nodes=Nodes.of(gpus=[9], first_gpu=[0], gpus_free=[9]), gpus=Gpus.of(node=np.zeros(9)),
        jobs=Jobs.of(
            id=[0], rigid=[True], gpus_requested=[6], gpus_per_worker=[2], workers_min=[1], workers_max=[3]
        ),
    )  # fmt: skip
    found = check(UNCHANGED.with_(allocation=Allocation.of([(0, range(given))])), o)
    assert (found is None) if said is None else (found is not None and said in found)


def test_a_gpu_may_be_two_jobs_in_parts() -> None:
    o = Observation.of(
        0.0, nodes=Nodes.of(gpus=[2], first_gpu=[0], gpus_free=[2]), gpus=Gpus.of(node=[0, 0]),
        jobs=Jobs.of(id=[0, 1], rigid=[True] * 2, gpus_requested=[1, 1]),
    )  # fmt: skip
    for order in ((0, 1), (1, 0)):
        assert check(UNCHANGED.with_(allocation=Allocation.of([(job, [1]) for job in order], 0.5)), o) is None
