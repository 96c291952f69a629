"""Placing gangs and checking allocations, against plain twins and against what the rules promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.contract import Allocation, Plan, check
from equipoise.policies.kernels import gangs
from equipoise.policies.kernels.gangs import (
    RoomColumns,
    frozen,
    holdings,
    place_gang,
    reordered,
    start_in_order,
    working,
)
from equipoise.policies.kernels.placement import ANY, COUNTED, PACKED, WEIGHTED
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Workers
from tests.oracles import placement as naive

RULES = {"counted": COUNTED, "packed": PACKED, "any": ANY, "weighted": WEIGHTED}
MANY = settings(max_examples=150, deadline=None)


@st.composite
def clusters(draw):
    """(plain nodes, room columns): up to 6 nodes of up to 5 GPUs, some taken, some shared, some down."""
    nodes, row = [], 0
    for _ in range(draw(st.integers(1, 6))):
        size, up = draw(st.integers(0, 5)), draw(st.integers(0, 9)) > 0
        rooms = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 1.0]), min_size=size, max_size=size))
        memory = draw(st.sampled_from([16.0, 16.0, 32.0, math.nan]))
        gpus = [[row + k, room if up else 0.0, memory] for k, room in enumerate(rooms)]
        weight, group = draw(st.sampled_from([0.5, 1.0, 1.0, 3.0])), draw(st.integers(0, 1))
        nodes.append(naive.Node(gpus, up, weight, group))
        row += size
    return nodes, columns(nodes)


def columns(nodes):
    size = np.array([len(node.gpus) for node in nodes], dtype=np.int64)
    gpus = [gpu for node in nodes for gpu in node.gpus]
    weight = np.array([node.weight for node in nodes])
    return RoomColumns(
        *(
            frozen(column)
            for column in (
                np.concatenate(([0], np.cumsum(size)[:-1])).astype(np.int64),
                size,
                np.array([node.up for node in nodes]),
                np.array([sum(room == 1.0 for _, room, _ in node.gpus) for node in nodes], dtype=np.int64),
                np.array([room for _, room, _ in gpus]),
                np.array([memory for _, _, memory in gpus]),
                weight,
                weight,
                np.array([node.group for node in nodes], dtype=np.int64),
                np.argsort(-weight, kind="stable").astype(np.int64),
            )
        )
    )


GANGS = st.lists(
    st.tuples(
        st.integers(1, 12), st.sampled_from([1.0, 1.0, 0.5, 0.2]), st.sampled_from([0.0, 0.0, 20.0]), st.booleans()
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("rule", RULES)
@MANY
@given(cluster=clusters(), gang_list=GANGS)
def test_gangs_sit_where_the_plain_twin_puts_them(rule, cluster, gang_list):
    """One after the other, so that what the first leaves behind matters for the next."""
    nodes, observed = cluster
    room = working(observed)
    for wanted, share, need, alike in gang_list:
        out = np.full(wanted + 1, -7, dtype=np.int64)
        placed = place_gang(room, wanted, share, need, RULES[rule], out, alike)
        expected = naive.place(nodes, wanted, share, need, rule, alike)
        assert placed == (expected is not None)
        if placed:
            assert out[:wanted].tolist() == expected
        assert out[wanted] == -7
        left = [gpu[1] for node in nodes for gpu in node.gpus]
        *_, share_left, by_node = room
        assert share_left == pytest.approx(left)
        free = [sum(gpu[1] >= naive.FULL for gpu in node.gpus) for node in nodes]
        assert by_node[1].tolist() == free
    for column in observed:
        assert not column.flags.writeable


@MANY
@given(cluster=clusters(), wanted=st.integers(1, 12))
def test_what_the_rules_promise(cluster, wanted):
    """`any` and `counted` place whenever enough is free; `packed` uses no more nodes than an empty cluster."""
    nodes, observed = cluster
    free = int(observed[3].sum())
    used = {}
    for rule in RULES:
        out = np.empty(wanted, dtype=np.int64)
        placed = place_gang(working(observed), wanted, 1.0, 0.0, RULES[rule], out, False)
        if rule != "packed":
            assert placed == (free >= wanted)
        if placed:
            assert len(set(out.tolist())) == wanted
            used[rule] = len(set(np.searchsorted(observed[0], out, side="right")))
    if "packed" in used:
        assert used["packed"] == used["any"]  # which uses the fewest possible now
        sizes = sorted((len(node.gpus) for node in nodes if node.up), reverse=True)
        assert used["packed"] == next(k for k in range(1, 7) if sum(sizes[:k]) >= wanted)


def test_worked_examples():
    nodes = [
        naive.Node([[4 * n + k, 1.0 if k < free else 0.0, 80.0] for k in range(4)])
        for n, free in enumerate((3, 4, 1, 2))
    ]
    observed = columns(nodes)

    def rows(wanted, rule):
        out = np.empty(wanted, dtype=np.int64)
        return out.tolist() if place_gang(working(observed), wanted, 1.0, 0.0, RULES[rule], out, False) else None

    assert rows(2, "counted") == [0, 1]
    assert rows(2, "any") == rows(2, "packed") == [12, 13]  # the tightest node that holds it
    assert rows(5, "counted") == [0, 1, 2, 4, 5]
    assert rows(5, "any") == rows(5, "packed") == [4, 5, 6, 7, 8]  # a whole node, the rest where it is tight
    assert rows(8, "packed") is None  # there is one whole node
    assert rows(8, "any") == [4, 5, 6, 7, 0, 1, 2, 8]
    assert rows(11, "any") is None


@MANY
@given(cluster=clusters(), jobs=st.lists(st.integers(1, 9), max_size=8), strict=st.booleans())
def test_starting_in_order(cluster, jobs, strict):
    _, observed = cluster
    n = len(jobs)
    requests = (
        np.ones(n, dtype=np.bool_),
        np.array(jobs, dtype=np.int64),
        *(np.ones(n, dtype=np.int64) for _ in range(3)),
        np.ones(n),
        np.zeros(n),
        np.zeros(n, dtype=np.bool_),
        np.zeros(n),
        *gangs.ANYWHERE,
    )
    requests = tuple(frozen(column) for column in requests)
    queue = frozen(np.arange(n, dtype=np.int64))
    (job, offset, gpu, share), more = start_in_order(queue, strict, COUNTED, requests, observed)
    free = int(observed[3].sum())
    expected = naive.start_in_order(list(enumerate(jobs)), free, strict)
    assert job.tolist() == expected
    assert np.diff(offset).tolist() == [jobs[k] for k in expected]
    assert len(set(gpu.tolist())) == len(gpu)
    assert (share == 1.0).all()
    assert (observed[4][gpu] == 1.0).all()
    left = free - sum(jobs[k] for k in expected)
    if left > 0:
        assert more == (not strict or len(expected) == n)


def test_many_more_shared_jobs_than_gpus():
    """More grants than there are GPUs: the space for them grows on the way."""
    n = 300
    node = naive.Node([[0, 1.0, 80.0], [1, 1.0, 80.0]])
    requests = (
        np.ones(n, dtype=np.bool_),
        *(np.ones(n, dtype=np.int64) for _ in range(4)),
        np.full(n, 0.01),
        np.zeros(n),
        np.zeros(n, dtype=np.bool_),
        np.zeros(n),
        *gangs.ANYWHERE,
    )
    requests = tuple(frozen(column) for column in requests)
    queue = frozen(np.arange(n, dtype=np.int64))
    (job, offset, gpu, _), _ = start_in_order(queue, False, ANY, requests, columns([node]))
    assert job.tolist() == list(range(200))
    assert np.bincount(gpu).tolist() == [100, 100]
    assert offset[-1] == 200


@MANY
@given(holder=st.lists(st.integers(-2, 6), max_size=20), jobs=st.sets(st.integers(0, 6)), seed=st.integers(0, 99))
def test_holdings_and_their_order(holder, jobs, seed):
    job = np.array(sorted(jobs), dtype=np.int64)
    offset, gpu = holdings(job, np.array(holder, dtype=np.int64))
    by_job = [gpu[offset[k] : offset[k + 1]].tolist() for k in range(len(job))]
    assert by_job == [[g for g, j in enumerate(holder) if j == row] for row in job]
    order = np.random.default_rng(seed).permutation(len(job)).astype(np.int64)
    new_offset, new = reordered(offset, gpu, order)
    assert [new[new_offset[k] : new_offset[k + 1]].tolist() for k in range(len(job))] == [by_job[k] for k in order]


# -- the check of allocations --------------------------------------------------------------------------------


@st.composite
def plans(draw):
    """(entries, plain jobs, plain GPUs, observation): allocations that are often wrong."""
    gpus = draw(st.integers(1, 4))
    up = draw(st.lists(st.integers(0, 4), min_size=gpus, max_size=gpus))
    memory = draw(st.lists(st.sampled_from([8.0, 16.0]), min_size=gpus, max_size=gpus))
    jobs, holder, room, workers = {}, [-1] * gpus, [1.0] * gpus, []
    for row in range(draw(st.integers(1, 4))):
        job = naive.Job(
            row,
            draw(st.integers(1, 3)),
            rigid=draw(st.booleans()),
            per=draw(st.integers(1, 2)),
            fewest=draw(st.integers(1, 2)),
            most=draw(st.integers(1, 3)),
            memory=draw(st.sampled_from([0.0, 10.0])),
            done=draw(st.integers(0, 7)) == 0,
        )
        jobs[row] = job
        for gpu in range(gpus):
            share = draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0]))
            if job.done or share == 0.0 or share > room[gpu] or (holder[gpu] != -1 and share == 1.0):
                continue
            if share == 1.0:
                holder[gpu] = row
            else:
                holder[gpu] = -2
                workers.append((row, gpu, share))
            room[gpu] -= share
            job.holds[gpu] = share
    entries = [
        (
            draw(st.integers(0, len(jobs))),
            draw(st.lists(st.tuples(st.integers(0, gpus), st.sampled_from([1.0, 1.0, 0.5, 0.0])), max_size=4)),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    return entries, jobs, up, memory, holder, room, workers


@settings(max_examples=300, deadline=None)
@given(drawn=plans())
def test_faults_are_those_of_the_plain_twin(drawn):
    entries, jobs, up, memory, holder, room, workers = drawn
    n, gpus = len(jobs), len(up)
    alive = [u > 0 for u in up]
    observation = Observation.of(
        nodes=Nodes.of(gpus=[1] * gpus, first_gpu=range(gpus), up=alive),
        gpus=Gpus.of(node=range(gpus), job=holder, share_free=room, memory_bytes=memory),
        jobs=Jobs.of(
            id=range(n),
            state=[JobState.DONE if j.done else JobState.RUNNING for j in jobs.values()],
            rigid=[j.rigid for j in jobs.values()],
            gpus_requested=[j.gpus for j in jobs.values()],
            gpus_per_worker=[j.per for j in jobs.values()],
            workers_min=[j.fewest for j in jobs.values()],
            workers_max=[j.most for j in jobs.values()],
            memory_bytes=[j.memory for j in jobs.values()],
        ),
        workers=Workers.of(
            job=[w[0] for w in workers],
            index=range(len(workers)),
            gpu=[w[1] for w in workers],
            node=[w[1] for w in workers],
            gpu_share=[w[2] for w in workers],
        ),
    )
    allocation = Allocation(
        np.array([row for row, _ in entries], dtype=np.int64),
        np.cumsum([0, *(len(got) for _, got in entries)]).astype(np.int64),
        np.array([gpu for _, got in entries for gpu, _ in got], dtype=np.int64),
        np.array([share for _, got in entries for _, share in got], dtype=np.float64),
    )
    table = {g: (alive[g], memory[g], room[g]) for g in range(gpus)}
    expected = naive.fault(entries, jobs, table)
    problem = check(Plan(allocation=allocation), observation)
    assert (problem is None) == (expected == 0), (problem, expected)


def test_offsets_must_fit():
    for offset in ([0], [1, 1], [0, 2], [0, 0], [0, 1, 1]):
        allocation = Allocation(np.array([0]), np.array(offset, dtype=np.int64), np.array([0]), np.ones(1))
        observation = Observation.of(
            nodes=Nodes.of(gpus=[1], first_gpu=[0]),
            gpus=Gpus.of(node=[0]),
            jobs=Jobs.of(id=[0], gpus_requested=[1], rigid=[True]),
        )
        assert "offsets" in check(Plan(allocation=allocation), observation)
