"""The working state of a decision: what is free, who holds what, and what becomes of it step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.policies.allocation.draft import Draft
from equipoise.policies.allocation.gangs import NO_ROWS, SHARED, GrantColumns
from equipoise.policies.observation import Gpus, Nodes, Observation, Workers
from tests.policies.stages.test_s4 import cluster


def grants(*each: tuple[int, list[int], list[float]]) -> GrantColumns:
    """(job, its GPUs, its share of each)."""
    job, gpus, shares = zip(*each, strict=True)
    offset = np.cumsum([0, *map(len, gpus)])
    return (
        np.array(job),
        offset,
        np.concatenate([*map(np.array, gpus)]),
        np.concatenate([*map(np.array, shares)]),
    )


def free(draft: Draft) -> tuple[list[int], list[float]]:
    return draft.columns.free.tolist(), draft.columns.room.tolist()


def sharing(**more: Any) -> Observation:
    """Job 0 holds GPU 0, job 1 a quarter and job 2 half of GPU 1, and job 2 GPU 3; GPUs 2 and 4 are free."""
    jobs = [{"rigid": False, "workers_max": 4, "holds": gpus} for gpus in ([0], [1], [3])]
    o = cluster([3, 2], [*jobs, {}, {}], **more)
    gpus = o.gpus.as_dict() | {"job": [0, SHARED, -1, 2, -1], "share_free": [0.0, 0.25, 1.0, 0.0, 1.0]}
    nodes = Nodes.of(**o.nodes.as_dict() | {"gpus_free": [1, 1]})
    workers = Workers.of(
        job=[0, 1, 2, 2],
        index=[0, 0, 0, 1],
        gpu=[0, 1, 1, 3],
        node=[0, 0, 0, 1],
        gpu_share=[1.0, 0.25, 0.5, 1.0],
    )
    return replace(o, gpus=Gpus.of(**gpus), nodes=nodes, workers=workers)


def test_nothing_is_decided_at_first() -> None:
    o = sharing()
    draft = Draft(o)
    assert free(draft) == ([1, 1], [0.0, 0.25, 1.0, 0.0, 1.0])
    assert (draft.free, draft.speed.tolist(), draft.away.tolist()) == (2, [1.0, 1.0], [False, False])
    assert draft.holder.tolist() == [0, SHARED, -1, 2, -1]
    assert draft.touched(np.arange(5)).tolist() == [False] * 5
    assert draft.allocation() is None
    assert draft.started() is draft.resized() is NO_ROWS
    assert (draft.columns.weight.tolist(), draft.columns.order.tolist(), draft.columns.group.tolist()) == (
        [],
        [],
        [],
    )
    two = cluster([1, 1], [{}], models=[0, 1])
    assert Draft(two).columns.group.tolist() == [0, 1]
    assert Draft(two, group=np.array([3, 2])).columns.group.tolist() == [3, 2]


def test_what_starts_is_taken_and_held() -> None:
    o = sharing()
    draft = Draft(o)
    rows = draft.start(grants((4, [4], [0.75]), (3, [2, 1], [1.0, 0.125])))
    assert rows.tolist() == [4, 3]
    assert free(draft) == ([0, 0], [0.0, 0.125, 0.0, 0.0, 0.25])
    assert draft.holder.tolist() == [0, SHARED, 3, 2, SHARED]
    assert [(gpu.tolist(), share.tolist()) for gpu, share in (draft.gpus_of(4), draft.gpus_of(3))] == [
        ([4], [0.75]), ([2, 1], [1.0, 0.125])
    ]  # fmt: skip
    assert (draft.started().tolist(), draft.resized().tolist()) == ([4, 3], [])
    assert draft.touched(np.arange(5)).tolist() == [False, False, False, True, True]
    done = draft.allocation()
    assert done is not None
    assert (done.job.tolist(), done.offset.tolist(), done.gpu.tolist()) == ([4, 3], [0, 1, 3], [4, 2, 1])
    assert done.share.tolist() == [0.75, 1.0, 0.125]
    assert o.gpus.share_free.tolist() == [0.0, 0.25, 1.0, 0.0, 1.0]  # what was observed stays


def test_what_a_job_holds_alone_and_shared() -> None:
    draft = Draft(sharing())
    held = [[part.tolist() for part in draft.gpus_of(row)] for row in (0, 1, 2, 3)]
    assert held == [[[0], [1.0]], [[1], [0.25]], [[3, 1], [1.0, 0.5]], [[], []]]


def test_who_stops_gives_all_back() -> None:
    draft = Draft(sharing())
    draft.stop([2])
    assert free(draft) == ([1, 2], [0.0, 0.75, 1.0, 1.0, 1.0])
    assert draft.holder.tolist() == [0, SHARED, -1, -1, -1]
    draft.stop(iter([1]))
    assert free(draft) == ([2, 2], [0.0, 1.0, 1.0, 1.0, 1.0])
    assert draft.holder.tolist() == [0, -1, -1, -1, -1]
    draft.start(grants((3, [1, 3], [1.0, 1.0])))
    assert (draft.stopped, draft.touched(np.arange(5)).tolist()) == ([2, 1], [False, True, True, True, False])
    done = draft.allocation()
    assert done is not None
    assert (done.job.tolist(), done.offset.tolist(), done.gpu.tolist()) == ([2, 1, 3], [0, 0, 0, 2], [1, 3])
    draft.stop([3])
    assert (draft.stopped, draft.given, draft.free) == ([2, 1, 3], {}, 4)
    done = draft.allocation()
    assert done is not None
    assert (done.job.tolist(), done.offset.tolist(), done.gpu.tolist()) == ([2, 1, 3], [0, 0, 0, 0], [])
    whole = Draft(cluster([4], [{"holds": [0, 2]}, {"holds": [3]}, {}]))
    whole.stop_whole(np.array([1, 0]), np.array([3, 0, 2]))
    assert (whole.stopped, whole.free, whole.holder.tolist()) == ([1, 0], 4, [-1] * 4)
    assert whole.touched(np.arange(3)).tolist() == [True, True, False]


def test_a_node_that_is_down_gives_nothing_back() -> None:
    o = cluster([2, 3], [{"holds": [1, 2]}], up=[False, True])
    draft = Draft(o)
    draft.stop([0])
    assert free(draft) == ([0, 3], [0.0, 0.0, 1.0, 1.0, 1.0])
    assert draft.holder.tolist() == [-1, 0, -1, -1, -1]


def test_a_job_that_is_resized_holds_what_it_is_given() -> None:
    draft = Draft(cluster([3, 3], [{"holds": [0, 1, 3]}, {}]))
    draft.resize(0, np.array([0, 1, 3]), np.array([1, 4]))
    assert free(draft) == ([2, 2], [1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    assert draft.holder.tolist() == [-1, 0, -1, -1, 0, -1]
    assert [part.tolist() for part in draft.gpus_of(0)] == [[1, 4], [1.0, 1.0]]
    assert (draft.resized().tolist(), draft.started().tolist()) == ([0], [])
    assert draft.touched(np.array([1, 0])).tolist() == [False, True]
    draft.leave(np.array([1]))
    assert draft.touched(np.array([1, 0])).tolist() == [True, True]


def test_where_jobs_may_grow() -> None:
    draft = Draft(cluster([3, 2], [{"holds": [0]}]))
    draft.away[1] = True
    assert (draft.free_to_grow.tolist(), draft.free) == ([2, 0], 4)
    room = draft.without_free()
    assert (room.free.tolist(), room.room.tolist()) == ([0, 0], [0.0] * 5)
    assert room.size.tolist() == [3, 2]


def test_shunned_gpus_are_not_handed_out_when_they_are_given_back() -> None:
    o = cluster([4, 2], [{"holds": [0, 1]}, {"holds": [4]}])
    draft = Draft(o, shunned=np.array([True, False, True, False, True, True]))
    assert free(draft) == ([1, 0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    draft.stop([0, 1])
    assert free(draft) == ([2, 0], [0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    assert draft.holder.tolist() == [0, -1, -1, -1, 1, -1]
