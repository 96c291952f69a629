"""The kernels of S4 against plain twins that lay out every pair and try every choice."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.policies.allocation import elastic
from equipoise.policies.allocation.preemption import patient_bars
from equipoise.policies.allocation.ranking import _worth
from equipoise.policies.allocation.sizes import best_sizes
from equipoise.policies.kernels import allocation as kernels
from equipoise.policies.kernels import scaling
from equipoise.policies.observation import Gpus, Jobs, JobState, Observation
from tests.oracles import allocation as naive
from tests.policies.kernels.arguments import as_used

MANY = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
W, R = JobState.WAITING, JobState.RUNNING


def ints(values):
    return np.array(values, dtype=np.int64)


@MANY
@given(seed=SEEDS)
def test_state_of_nodes(seed):
    rng = np.random.default_rng(seed)
    nodes, n = 4, int(rng.integers(0, 9))
    index = rng.integers(0, nodes, n)
    value = np.where(rng.random(n) < 0.3, np.nan, rng.random(n))
    mean = np.empty(nodes)
    kernels.mean_by(*as_used("RRww", index, value, mean, np.empty(nodes, dtype=np.int64)))
    assert mean == pytest.approx([naive.mean(value[index == k]) for k in range(nodes)], nan_ok=True)
    rows = [
        (int(j), int(rng.integers(0, 3)), int(rng.integers(1, 3)), float(rng.integers(0, 5)))
        for j in np.sort(rng.integers(0, 3, n))
    ]
    speed, count = np.zeros(3), np.zeros(3, dtype=np.int64)
    columns = [np.array([row[k] for row in rows], dtype=np.int64) for k in range(3)]
    columns.append(np.array([row[3] for row in rows], dtype=float))
    kernels.model_speeds(*as_used("RRRRwwww", *columns, ints([-1] * 3), np.zeros(3), speed, count))
    expected = naive.model_speeds(rows, 3)
    assert speed == pytest.approx(expected, nan_ok=True)


@MANY
@given(seed=SEEDS)
def test_order_in_which_jobs_keep_their_gpus(seed):
    """Fastest nodes first, among them those with most of the job's GPUs, then by row."""
    rng = np.random.default_rng(seed)
    node, speed = rng.integers(0, 4, 12), rng.integers(1, 3, 4) / 2
    jobs = np.split(rng.permutation(12), np.sort(rng.integers(0, 12, 2)))
    offset, gpu = np.cumsum([0, *map(len, jobs)]), np.concatenate(jobs)
    elastic._best_first(*as_used("RwRRw", offset, gpu, node, speed, np.zeros(4, dtype=np.int64)))
    count = [[int((node[held] == n).sum()) for n in range(4)] for held in jobs]
    kept = [
        sorted(held.tolist(), key=lambda g: (-speed[node[g]], -count[k][node[g]], g)) for k, held in enumerate(jobs)
    ]
    assert gpu.tolist() == [g for held in kept for g in held]


@MANY
@given(seed=SEEDS)
def test_memory_that_fits(seed):
    rng = np.random.default_rng(seed)
    gpus, nodes = int(rng.integers(1, 12)), 3
    memory, node = rng.choice([16.0, 32.0, 80.0, np.nan], gpus), rng.integers(0, nodes, gpus)
    up, need = rng.random(nodes) < 0.8, rng.choice([0.0, 16.0, 20.0, 99.0], 5)
    kind, count, enough = np.empty(gpus), np.empty(gpus, dtype=np.int64), np.empty(5, dtype=np.int64)
    n = kernels.gpus_by_memory(*as_used("RRRww", memory, node, up, kind, count))
    kernels.count_enough(need, kind[:n], count[:n], enough)
    assert enough.tolist() == [sum(up[node] & ~(memory < x)) for x in need]


@MANY
@given(seed=SEEDS)
def test_priorities(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    jobs = [
        {
            "worth": float(rng.choice([0.0, 1.0, 2.0])),
            "service": float(rng.choice([0.1, 60.0, np.nan])),
            "waited": float(rng.choice([0.0, 30.0, np.nan])),
            "queued": float(rng.integers(0, 120)),
            "waits": bool(rng.random() < 0.6),
            "duration": float(rng.choice([1.0, 600.0, np.nan])),
        }
        for _ in range(n)
    ]
    column = lambda key: np.array([job[key] for job in jobs])  # noqa: E731
    (claims,) = as_used(
        "R",
        (
            np.where(column("waits"), W, R).astype(np.int8),
            column("service"),
            column("duration"),
            column("queued"),
            column("waited"),
        ),
    )
    a, late_s = np.empty(n), np.empty(n)
    kernels.priorities(np.arange(n), column("worth"), claims, 100.0, 4.0, 500.0, 86400.0, 3600.0, a)
    assert a == pytest.approx([naive.priority(j, 100.0, 4.0, 500.0, 86400.0, 3600.0) for j in jobs])
    kernels.lateness(np.arange(n), claims, 100.0, 20.0, 3.0, 900.0, 3600.0, late_s)
    assert late_s == pytest.approx([naive.lateness(j, 100.0, 20.0, 3.0, 900.0, 3600.0) for j in jobs])


@MANY
@given(seed=SEEDS)
def test_worth(seed):
    rng = np.random.default_rng(seed)
    n, memory = int(rng.integers(1, 7)), rng.choice([80.0, np.nan])
    jobs = [
        {
            "p": float(rng.choice([1.0, 2.0])),
            "data": float(rng.choice([0.0, 5.0, 9.0, np.nan])),
            "flops": float(rng.choice([0.0, 1e15, np.nan])),
            "need": float(rng.choice([0.0, 20.0])),
            "fit": bool(rng.random() < 0.8),
        }
        for _ in range(n)
    ]
    column = lambda key: np.array([job[key] for job in jobs])  # noqa: E731
    o = Observation.of(
        gpus=Gpus.of(node=[0, 0], memory_bytes=[memory, memory]),
        jobs=Jobs.of(
            id=range(n),
            priority=column("p"),
            data_demand_bytes=column("data"),
            compute_demand_flops=column("flops"),
            memory_bytes=column("need"),
        ),
    )
    known = None if np.isnan(memory) else float(memory)
    plain = [naive.worth(job, jobs, 0.1, known) for job in jobs]
    assert _worth(o, np.arange(n), column("fit")) == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_bars_of_running_jobs(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    values = {
        "service": [50.0, 1e4, np.nan],
        "restart": [0.0, 30.0, np.nan],
        "started": [0.0, 500.0, 990.0, np.nan],
        "attained": [0.0, 500.0, 4000.0, 9000.0],
        "gpus": [1, 4],
        "share": [0.5, 1.0],
    }
    jobs = [{key: rng.choice(choice).item() for key, choice in values.items()} for _ in range(n)]
    column = lambda key: np.array([job[key] for job in jobs])  # noqa: E731
    o = Observation.of(
        1000.0,
        10.0,
        jobs=Jobs.of(
            id=range(n),
            state=np.full(n, R),
            service_s=column("service"),
            restart_s=column("restart"),
            started_s=column("started"),
            attained_gpu_s=column("attained"),
            gpus_held=column("gpus"),
            gpu_share_requested=column("share"),
        ),
    )
    found = patient_bars(o, np.arange(n), 0.5, 2.0, 300.0, 0.25)
    assert found == pytest.approx([naive.bar(job, 1000.0, 0.5, 2.0, 300.0, 0.25) for job in jobs])


@MANY
@given(seed=SEEDS)
def test_ratios_without_laying_out_the_pairs(seed):
    rng = np.random.default_rng(seed)
    nodes, waiting, running = (int(rng.integers(1, 6)) for _ in range(3))
    size = rng.integers(1, 5, nodes)
    speed = rng.choice([0.5, 1.0], nodes)
    holder = [np.full(s, -1) for s in size]
    held, a_run, delays = [[] for _ in range(running)], rng.random(running) + 0.1, rng.random(running)
    trains = rng.random(running) < 0.5
    for n in range(nodes):
        for g in range(size[n]):
            if rng.random() < 0.5:
                k = int(rng.integers(0, running))
                holder[n][g] = k
                held[k].append((n, 1, float(delays[k]) if trains[k] else 0.0))
    free = ints([(h < 0).sum() for h in holder])
    wanted, a_wait = rng.integers(1, 7, waiting), rng.random(waiting) + 0.1
    by_size, sums = np.empty(free.max() + 1), np.empty(nodes)
    kernels.demand_by_size(wanted, a_wait, by_size)
    assert by_size == pytest.approx([sum(np.minimum(wanted, f) * a_wait) for f in range(len(by_size))])
    workers = [(k, n, d) for k in range(running) if trains[k] for n, _, d in held[k]]
    kernels.contention(
        *as_used(
            "RRwRRwwRRwww",
            size,
            free,
            by_size,
            np.repeat(np.arange(nodes), size),
            np.concatenate(holder),
            a_run,
            trains,
            ints([w[0] for w in workers]),
            ints([w[1] for w in workers]),
            np.ones(len(workers)),
            np.array([w[2] for w in workers]),
            sums,
        )
    )
    ratio = np.empty(waiting)
    with np.errstate(divide="ignore"):
        weight = np.where(sums > 0, speed / sums, 0.0)
    kernels.entitlements(*as_used("wwRwww", wanted, a_wait, free, weight, np.empty(len(by_size)), ratio))
    plain = naive.ratios(
        list(zip(size, free, speed, strict=True)),
        list(zip(a_run, held, strict=True)),
        list(zip(a_wait, wanted, strict=True)),
    )
    assert ratio == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_data_delay(seed):
    rng = np.random.default_rng(seed)
    n, workers = int(rng.integers(0, 9)), 3
    owner, size, local = rng.integers(-1, workers, n), rng.choice([0.0, 5.0, 7.0], n), rng.random(n) < 0.5
    remote = np.empty(workers)
    kernels.remote_share(*as_used("RRRww", owner, size, local, np.empty(workers), remote))
    for w in range(workers):
        total = size[owner == w].sum()
        assert remote[w] == pytest.approx(size[(owner == w) & ~local].sum() / total if total else 0.0)


def drawn_job(rng):
    listed = rng.random() < 0.7
    table = (
        [
            (
                int(rng.integers(0, 2)),
                int(g),
                float(rng.choice([0.0, 50.0, 80.0, 130.0])),
                float(rng.choice([np.nan, 0.0, 0.3, 2.0])),
            )
            for g in rng.choice([1, 2, 4, 8], rng.integers(1, 5))
        ]
        if listed
        else []
    )
    return {
        "table": table,
        "batch": int(rng.integers(8, 64)),
        "per": int(rng.integers(1, 3)),
        "now": int(rng.integers(0, 5)),
        "model": int(rng.integers(0, 2)),
        "interval": int(rng.integers(1, 4)),
        "work": float(rng.choice([np.nan, 0.3, 1.7])),
        "exchange": float(rng.choice([np.nan, 0.2, 3.0])),
        "alone": float(rng.choice([np.nan, 0.1])),
        "gamma": float(rng.choice([1.0, 2.5, 12.0])),
        "speeds": [float(rng.choice([np.nan, 1.0])), float(rng.choice([np.nan, 0.5]))],
    }


def columns_of(jobs):
    """(scaling columns, table columns) of drawn jobs."""
    n = len(jobs)
    rows = [(k, *row) for k, job in enumerate(jobs) for row in job["table"]]
    column = lambda key, kind: np.array([job[key] for job in jobs], dtype=kind)  # noqa: E731
    jobs_columns = (
        column("batch", np.int64),
        np.ones(n, np.int64),
        column("per", np.int64),
        np.ones(n, np.int64),
        np.full(n, 8),
        column("interval", np.int64),
        column("work", float),
        column("exchange", float),
        column("alone", float),
        column("gamma", float),
        np.full(n, 500.0),
    )
    table = (
        ints([r[0] for r in rows]),
        ints([r[1] for r in rows]),
        ints([r[2] for r in rows]),
        np.array([r[3] for r in rows], dtype=float),
        np.array([r[4] for r in rows], dtype=float),
        np.array(jobs[0]["speeds"]),
    )
    return as_used("RR", jobs_columns, table)


def drawn_jobs(rng):
    """(three drawn jobs, scaling columns, table columns)."""
    jobs = [drawn_job(rng) for _ in range(3)]
    for job in jobs:
        job["speeds"] = jobs[0]["speeds"]
    return jobs, *columns_of(jobs)


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_step_time(seed):
    rng = np.random.default_rng(seed)
    jobs, columns, table = drawn_jobs(rng)
    index, workers, model = rng.integers(0, 3, 8), rng.integers(1, 9, 8), rng.integers(0, 2, 8)
    result = np.empty(8)
    now, here = ints([job["now"] for job in jobs]), ints([job["model"] for job in jobs])
    scaling.times_of(*as_used("R", np.arange(3)), now, here, index, workers, model, columns, table, result)
    plain = [naive.step(jobs[i], int(n), int(m)) for i, n, m in zip(index, workers, model, strict=True)]
    assert result == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_speed_up_over_one_worker(seed):
    rng = np.random.default_rng(seed)
    jobs, columns, table = drawn_jobs(rng)
    workers, model = rng.integers(0, 6, 3), rng.integers(0, 2, 3)
    now, speedup = ints([job["now"] for job in jobs]), np.empty(3)
    scaling.speedups_of(np.arange(3), workers, now, model, columns, table, speedup)
    plain = []
    for job, n, m in zip(jobs, workers, model, strict=True):
        job["model"] = int(m)
        plain.append(naive.step(job, 1, int(m)) / naive.step(job, int(n), int(m)) if n else 0.0)
    assert speedup == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_sizes_of_most_worth(seed):
    rng = np.random.default_rng(seed)
    jobs, n = int(rng.integers(1, 4)), int(rng.integers(1, 7))
    index = np.sort(np.concatenate((np.arange(jobs), rng.integers(0, jobs, n))))
    n = len(index)
    gpus, model, worth = rng.integers(1, 5, n), rng.integers(0, 2, n), rng.random(n)
    must, room = rng.random(jobs) < 0.4, rng.integers(2, 9, 2).astype(float)
    expected = naive.best_worth(list(zip(index, gpus, model, worth, strict=True)), jobs, must, room)
    if expected == -math.inf:
        with pytest.raises(ValueError, match=r"."):
            best_sizes(gpus, model, worth, index, must, room, 10.0)
        return
    picked = best_sizes(gpus, model, worth, index, must, room, 10.0)
    assert worth[picked].sum() == pytest.approx(expected)
    assert (np.bincount(index[picked], minlength=jobs) <= 1).all()
