"""S4: its kernels against plain twins, each sub-step in a scenario made for it, and nobody starves."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import kernels_allocation as kernels
from policies import kernels_scaling as scaling
from policies import make_stage, optimal_allocation
from policies.contract import UNCHANGED, check
from policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Shards, Speeds, Workers
from policies.optimal_allocation import best_sizes
from policies.s4_allocation import NodeAllocation
from tests import naive_allocation as naive
from tests.tiny_world import TinyWorld

MANY = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
W, R, D = JobState.WAITING, JobState.RUNNING, JobState.DONE


def ints(values):
    return np.array(values, dtype=np.int64)


# -- kernels -------------------------------------------------------------------------------------------------


@MANY
@given(seed=SEEDS)
def test_state_of_nodes(seed):
    rng = np.random.default_rng(seed)
    nodes, n = 4, int(rng.integers(0, 9))
    index = rng.integers(0, nodes, n)
    value = np.where(rng.random(n) < 0.3, np.nan, rng.random(n))
    mean = np.empty(nodes)
    kernels.mean_by(index, value, mean, np.empty(nodes, dtype=np.int64))
    assert mean == pytest.approx([naive.mean(value[index == k]) for k in range(nodes)], nan_ok=True)
    rows = [(int(j), int(rng.integers(0, 3)), int(rng.integers(1, 3)), float(rng.integers(0, 5)))
            for j in np.sort(rng.integers(0, 3, n))]  # fmt: skip
    speed, count = np.zeros(3), np.zeros(3, dtype=np.int64)
    columns = [np.array([row[k] for row in rows], dtype=np.int64) for k in range(3)]
    kernels.model_speeds(
        *columns, np.array([row[3] for row in rows]), ints([-1] * 3), np.zeros(3), speed, count
    )
    expected = naive.model_speeds(rows, 3)
    assert speed == pytest.approx(expected, nan_ok=True)
    job, node, model = np.sort(rng.integers(0, 3, n)), rng.integers(0, nodes, n), rng.integers(0, 3, nodes)
    seconds = np.where(rng.random(n) < 0.2, np.nan, rng.integers(1, 5, n) * 1.0)
    own = np.empty(n)
    kernels.worker_speeds(job, node, seconds, model, speed, own)
    plain = naive.worker_speeds(
        list(zip(job.tolist(), node.tolist(), seconds.tolist(), strict=True)), model, expected
    )
    assert own == pytest.approx(plain, nan_ok=True)


@MANY
@given(seed=SEEDS)
def test_memory_that_fits(seed):
    rng = np.random.default_rng(seed)
    gpus, nodes = int(rng.integers(1, 12)), 3
    memory, node = rng.choice([16.0, 32.0, 80.0, np.nan], gpus), rng.integers(0, nodes, gpus)
    up, need = rng.random(nodes) < 0.8, rng.choice([0.0, 16.0, 20.0, 99.0], 5)
    kind, count, enough = np.empty(gpus), np.empty(gpus, dtype=np.int64), np.empty(5, dtype=np.int64)
    n = kernels.gpus_by_memory(memory, node, up, kind, count)
    kernels.count_enough(need, kind[:n], count[:n], enough)
    assert enough.tolist() == [sum(up[node] & ~(memory < x)) for x in need]


@MANY
@given(seed=SEEDS)
def test_priorities(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    jobs = [
        {
            "p": float(rng.choice([1.0, 2.0])), "data": float(rng.choice([0.0, 5.0, 9.0, np.nan])),
            "flops": float(rng.choice([0.0, 1e15, np.nan])), "service": float(rng.choice([0.1, 60.0, np.nan])),
            "waited": float(rng.choice([0.0, 30.0, np.nan])), "queued": float(rng.integers(0, 120)),
            "waits": bool(rng.random() < 0.6), "fit": bool(rng.random() < 0.8),
        }
        for _ in range(n)
    ]  # fmt: skip
    column = lambda key: np.array([job[key] for job in jobs])  # noqa: E731
    claims = (
        np.where(column("waits"), W, R).astype(np.int8), column("p"), column("data"), column("flops"),
        column("service"), column("queued"), column("waited"),
    )  # fmt: skip
    a = np.empty(n)
    kernels.priorities(np.arange(n), column("fit"), claims, 100.0, 4.0, 3600.0, a)
    assert a == pytest.approx([naive.priority(job, jobs, 100.0, 4.0, 3600.0) for job in jobs])


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
        size, free, by_size, np.repeat(np.arange(nodes), size), np.concatenate(holder), a_run, trains,
        ints([w[0] for w in workers]), ints([w[1] for w in workers]), np.ones(len(workers)),
        np.array([w[2] for w in workers]), sums,
    )  # fmt: skip
    ratio = np.empty(waiting)
    with np.errstate(divide="ignore"):
        weight = np.where(sums > 0, speed / sums, 0.0)
    kernels.entitlements(wanted, a_wait, free, weight, np.empty(len(by_size)), ratio)
    plain = naive.ratios(
        list(zip(size, free, speed, strict=True)), list(zip(a_run, held, strict=True)),
        list(zip(a_wait, wanted, strict=True)),
    )  # fmt: skip
    assert ratio == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_data_delay(seed):
    rng = np.random.default_rng(seed)
    n, workers = int(rng.integers(0, 9)), 3
    owner, size, local = rng.integers(-1, workers, n), rng.choice([0.0, 5.0, 7.0], n), rng.random(n) < 0.5
    remote = np.empty(workers)
    kernels.remote_share(owner, size, local, np.empty(workers), remote)
    for w in range(workers):
        total = size[owner == w].sum()
        assert remote[w] == pytest.approx(size[(owner == w) & ~local].sum() / total if total else 0.0)


def drawn_job(rng):
    listed = rng.random() < 0.7
    table = [(int(rng.integers(0, 2)), int(g), float(rng.choice([0.0, 50.0, 80.0, 130.0])))
             for g in rng.choice([1, 2, 4, 8], rng.integers(1, 5))] if listed else []  # fmt: skip
    return {
        "table": table, "batch": int(rng.integers(8, 64)), "per": int(rng.integers(1, 3)),
        "now": int(rng.integers(0, 5)), "model": int(rng.integers(0, 2)), "interval": int(rng.integers(1, 4)),
        "work": float(rng.choice([np.nan, 0.3, 1.7])), "exchange": float(rng.choice([np.nan, 0.2, 3.0])),
        "alone": float(rng.choice([np.nan, 0.1])), "gamma": float(rng.choice([1.0, 2.5, 12.0])),
        "speeds": [float(rng.choice([np.nan, 1.0])), float(rng.choice([np.nan, 0.5]))],
    }  # fmt: skip


def columns_of(jobs):
    """(scaling columns, table columns) of drawn jobs."""
    n = len(jobs)
    rows = [(k, *row) for k, job in enumerate(jobs) for row in job["table"]]
    column = lambda key, kind: np.array([job[key] for job in jobs], dtype=kind)  # noqa: E731
    jobs_columns = (
        column("batch", np.int64), np.ones(n, np.int64), column("per", np.int64), np.ones(n, np.int64),
        np.full(n, 8), column("interval", np.int64), column("work", float), column("exchange", float),
        column("alone", float), column("gamma", float), np.full(n, 500.0),
    )  # fmt: skip
    table = (
        ints([r[0] for r in rows]), ints([r[1] for r in rows]), ints([r[2] for r in rows]),
        np.array([r[3] for r in rows], dtype=float), np.array(jobs[0]["speeds"]),
    )  # fmt: skip
    return jobs_columns, table


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS)
def test_step_time(seed):
    rng = np.random.default_rng(seed)
    jobs = [drawn_job(rng) for _ in range(3)]
    for job in jobs:
        job["speeds"] = jobs[0]["speeds"]
    columns, table = columns_of(jobs)
    index, workers, model = rng.integers(0, 3, 8), rng.integers(1, 9, 8), rng.integers(0, 2, 8)
    result = np.empty(8)
    now, here = ints([job["now"] for job in jobs]), ints([job["model"] for job in jobs])
    scaling.times_of(np.arange(3), now, here, index, workers, model, columns, table, result)
    plain = [naive.step(jobs[i], int(n), int(m)) for i, n, m in zip(index, workers, model, strict=True)]
    assert result == pytest.approx(plain)


@MANY
@given(seed=SEEDS)
def test_parallel_efficiency(seed):
    rng = np.random.default_rng(seed)
    jobs = [drawn_job(rng) for _ in range(3)]
    for job in jobs:
        job["speeds"] = jobs[0]["speeds"]
    columns, table = columns_of(jobs)
    workers, model = rng.integers(1, 6, 3), rng.integers(0, 2, 3)
    now = ints([job["now"] for job in jobs])
    got = scaling.parallel_efficiency(np.arange(3), workers, now, model, columns, table)
    total = 0.0
    for job, n, m in zip(jobs, workers, model, strict=True):
        job["model"] = int(m)
        total += naive.step(job, 1, int(m)) / naive.step(job, int(n), int(m))
    assert got == pytest.approx(total / workers.sum())


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


# -- scenarios -----------------------------------------------------------------------------------------------


def cluster(sizes, jobs, *, models=None, time_s=1000.0, window_s=10.0, gpu=None, up=None, **tables):
    """Nodes of `sizes` GPUs and jobs as dicts of columns; `holds` are a job's GPUs, `share` stands for all."""
    nodes, total = len(sizes), sum(sizes)
    first, node = np.concatenate(([0], np.cumsum(sizes)[:-1])), np.repeat(np.arange(nodes), sizes)
    holder, workers = np.full(total, -1), []
    up = np.ones(nodes, dtype=bool) if up is None else np.array(up)
    defaults = {
        "state": W, "rigid": True, "gpus_requested": 1, "duration_s": 600.0, "service_s": 600.0, "priority": 1.0,
        "queued_since_s": time_s, "workers_min": 1, "workers_max": 1, "global_batch": 64, "restart_s": 30.0,
        "work_s": math.nan, "exchange_s": math.nan, "goodput_samples_per_s": math.nan, "gpus_held": 0,
        "memory_bytes": 0.0, "data_demand_bytes": 0.0, "compute_demand_flops": 0.0, "waited_s": 0.0,
    }  # fmt: skip
    rows = []
    for k, job in enumerate(jobs):
        row = {**defaults, **{key: value for key, value in job.items() if key not in ("holds", "response_s")}}
        if "holds" in job:
            row["state"], row["gpus_held"] = R, len(job["holds"])
            holder[job["holds"]] = k
            if not row["rigid"]:
                seconds = job.get("response_s", [math.nan] * len(job["holds"]))
                workers += [
                    (k, i, g, node[g], s) for i, (g, s) in enumerate(zip(job["holds"], seconds, strict=True))
                ]
        rows.append(row)
    free = (holder < 0) & up[node]
    return Observation.of(
        time_s, window_s,
        nodes=Nodes.of(gpus=sizes, first_gpu=first, gpus_free=np.bincount(node, free, nodes), up=up),
        gpus=Gpus.of(
            node=node, job=holder, share_free=np.where(free, 1.0, 0.0),
            model=np.zeros(total) if models is None else np.array(models)[node],
            **{"memory_bytes": np.full(total, 80e9), **(gpu or {})},
        ),
        jobs=Jobs.of(id=range(len(rows)), **{key: [row[key] for row in rows] for key in rows[0]}),
        workers=Workers.of(**{
            name: [w[k] for w in workers]
            for k, name in enumerate(("job", "index", "gpu", "node", "response_s_per_sample"))
        }),
        gpu_models=tuple(f"m{k}" for k in range(1 + max(models or [0]))),
        **tables,
    )  # fmt: skip


def decide(observation, memory=None, **parameters):
    """(GPUs by job row, values of the reason, memory)."""
    plan, memory = NodeAllocation(**parameters).refine(observation, UNCHANGED, memory or {})
    assert check(plan, observation) is None
    given = {}
    if plan.allocation is not None:
        given = {int(j): plan.allocation.gpus_of(k).tolist() for k, j in enumerate(plan.allocation.job)}
    return given, plan.reasons[-1].values, memory


ELASTIC = {"rigid": False, "workers_max": 8, "gpus_requested": 4, "work_s": 1.0, "exchange_s": 0.01}


def test_s411_a_slow_node_is_avoided_and_forgiven():
    measured = {**ELASTIC, "workers_max": 4, "holds": [0, 2], "response_s": [0.01, 0.04], "gpus_requested": 2}
    given, values, memory = decide(cluster([2, 2, 2], [measured, {"state": W}]))
    assert values["s411_slowest_node"] == 1
    assert values["s411_slowest_speed"] == pytest.approx(0.25)
    assert given[1] != [3]
    alone = cluster([2, 2], [{"state": W}], time_s=1010.0)
    remembered = {"node_speed": np.array([0.25, 1.0]), "time_s": 1000.0}
    assert decide(alone, remembered)[0] == {0: [2]}
    later = cluster([2, 2], [{"state": W}], time_s=1e6)
    assert decide(later, remembered)[0] == {0: [0]}
    assert memory["node_speed"][1] == pytest.approx(0.25)


def test_s411_values():
    sm = {"sm_active_ratio": [0.5, math.nan, 0.9, 0.7]}
    _, values, _ = decide(cluster([2, 2], [{"holds": [0]}, {}], gpu=sm))
    assert values["s411_efficiency"] == pytest.approx((0.5 + 0.8) / 2)


def test_s412_order_by_priority_demand_and_waiting():
    for better in (
        {"priority": 2.0}, {"data_demand_bytes": 9e9}, {"compute_demand_flops": 1e18}, {"queued_since_s": 0.0},
        {"waited_s": 500.0}, {"service_s": 60.0, "queued_since_s": 900.0},
    ):  # fmt: skip
        worse = {"queued_since_s": 900.0} if "service_s" in better else {}
        given, values, _ = decide(cluster([1], [worse, better]))
        assert given == {1: [0]}, better
        assert values["s422_order"].tolist() == [1, 0]
        assert values["s412_priority"][0] > values["s412_priority"][1]


def test_s412_what_fits_nowhere_holds_up_nobody():
    given, _, _ = decide(
        cluster([1, 1], [{"memory_bytes": 99e9, "queued_since_s": 0.0}, {"gpus_requested": 3}, {}])
    )
    assert list(given) == [2]


def test_s413_a_resize_that_does_harm_is_undone_and_backed_off():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "goodput_samples_per_s": 100.0}
    given, values, memory = decide(cluster([4], [job]))
    assert given == {0: [0, 1, 2, 3]}
    assert values["s422_gain_s"][0] > 0
    grown = {**job, "holds": [0, 1, 2, 3]}
    for k, goodput in enumerate((60.0, 61.0)):
        given, values, memory = decide(
            cluster([4], [{**grown, "goodput_samples_per_s": goodput}], time_s=1020.0 + 10 * k), memory
        )
        assert values["s413_watched"] == (1 if k == 0 else 0)
    assert given == {0: [0, 1]}
    assert values["s413_undone"].tolist() == [0]
    back = {**job, "goodput_samples_per_s": 100.5}
    assert decide(cluster([4], [back], time_s=1050.0), memory)[0] == {}  # backed off
    assert decide(cluster([4], [back], time_s=1050.0 + 600.0), memory)[0] == {0: [0, 1, 2, 3]}


def test_s413_stale_measurements_do_not_count():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "goodput_samples_per_s": 100.0}
    _, _, memory = decide(cluster([4], [job]))
    grown = {**job, "holds": [0, 1, 2, 3]}
    for k in range(4):  # it still restarts: the goodput is that of before
        given, values, memory = decide(cluster([4], [grown], time_s=1020.0 + 10 * k), memory)
        assert given == {}
        assert values["s413_watched"] == 1
    for goodput in (180.0, 181.0):
        k += 1
        again = {**grown, "goodput_samples_per_s": goodput}
        given, values, memory = decide(cluster([4], [again], time_s=1020.0 + 10 * k), memory)
    assert values["s413_kept"].tolist() == [0]


def test_s421_use():
    _, values, _ = decide(cluster([2, 4], [{"holds": [0, 2]}, {"gpus_requested": 9}, {}]))
    assert values["s421_used_ratio"] == pytest.approx(2 / 6)
    assert (values["s421_free"], values["s421_largest_block"], values["s421_waiting"]) == (4, 3, 2)


def test_s422_whole_gangs_and_exact_requests():
    given, _, _ = decide(cluster([2, 2], [{"gpus_requested": 3}, {"gpus_requested": 2}]))
    assert sorted(map(len, given.values())) in ([2], [3])
    given, _, _ = decide(
        cluster([4], [{**ELASTIC, "gpus_requested": 3, "workers_max": 3, "gpus_per_worker": 1}])
    )
    assert len(given[0]) == 3


def test_s422_nodes_by_contention():
    """A job of high priority uses half of node 0: its ratio there leaves less to others than node 1."""
    important = {"holds": [0, 1], "priority": 50.0, "gpus_requested": 2}
    given, _, _ = decide(cluster([4, 4], [important, {"holds": [4, 5], "gpus_requested": 2}, {}]))
    assert given == {2: [6]}


def test_s422_data_elsewhere_weakens_a_ratio():
    """Worker 0 reads all its data from elsewhere: its claim to its node counts half."""
    job = {**ELASTIC, "workers_max": 2, "workers_min": 2, "gpus_requested": 2, "holds": [0, 2]}
    shards = Shards.of(
        id=[0, 1],
        job=[0, 0],
        worker=[0, 1],
        node=[1, 1],
        bytes=[5.0, 5.0],
        samples=[1, 1],
        local=[False, True],
    )
    given, _, _ = decide(cluster([2, 2], [job, {}], shards=shards))
    assert given == {1: [1]}
    shards = Shards.of(
        id=[0, 1],
        job=[0, 0],
        worker=[0, 1],
        node=[0, 0],
        bytes=[5.0, 5.0],
        samples=[1, 1],
        local=[True, False],
    )
    given, _, _ = decide(cluster([2, 2], [job, {}], shards=shards))
    assert given == {1: [3]}


SPEEDS = Speeds.of(
    job=[0] * 4, gpu_model=[0, 1, 0, 1], gpus=[2, 2, 4, 4], samples_per_s=[50.0, 100.0, 100.0, 200.0]
)


def test_s422_a_gang_stays_on_one_model_and_takes_the_fast_one():
    job = {**ELASTIC, "workers_max": 2, "workers_min": 2, "gpus_requested": 2}
    given, _, _ = decide(cluster([1, 1, 2], [job], models=[0, 1, 1], speeds=SPEEDS))
    assert len(given[0]) == 2
    assert 0 not in given[0]
    wide = {**job, "gpus_requested": 3, "workers_min": 3, "workers_max": 3}
    given, _, _ = decide(cluster([1, 2], [wide], models=[0, 1]))
    assert sorted(given[0]) == [0, 1, 2]  # neither model alone is enough


def test_s422_the_overdue_first_is_not_delayed():
    """A gang of 4 has waited for 2 hours; what would still run when it can start must wait."""
    jobs = [
        {"holds": [0, 1], "gpus_requested": 2, "service_s": 100.0},
        {"gpus_requested": 4, "queued_since_s": -6200.0, "service_s": 1000.0},
        {"service_s": 90.0}, {"service_s": 300.0, "queued_since_s": 990.0},
    ]  # fmt: skip
    given, values, _ = decide(cluster([4], jobs))
    assert values["s422_overdue"] == 1
    assert list(given) == [2]
    given, values, _ = decide(cluster([4], jobs), reserve_after_s=1e5)
    assert values["s422_overdue"] == -1
    assert sorted(given) == [2, 3]


def test_s422_preemption_must_gain_more_than_restarts():
    running = {"holds": [0], "service_s": 1000.0, "restart_s": 100.0}
    short = {"service_s": 250.0, "queued_since_s": 500.0}
    given, values, _ = decide(cluster([1], [running, short]))
    assert given == {0: [], 1: [0]}
    assert values["s422_stopped"].tolist() == [0]
    for change in ({"service_s": 350.0}, {"queued_since_s": 1000.0}):  # 1000/2 - 200 is less; no higher claim
        assert decide(cluster([1], [running, {**short, **change}]))[0] == {}
    assert decide(cluster([1], [running, {**short, "service_s": 350.0}]), reluctance=1.0)[0] == {
        0: [],
        1: [0],
    }


def test_s422_elastic_jobs_take_what_nobody_waits_for():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2}
    given, values, _ = decide(cluster([4, 2], [job]))
    assert len(given[0]) == 6
    assert values["s422_grown"].tolist() == [0]
    assert decide(cluster([4, 2], [{**job, "restart_s": 5000.0}]))[0] == {}  # a restart costs more
    assert decide(cluster([4, 2], [{**job, "exchange_s": 99.0}]))[0] == {}  # it would not get faster
    assert decide(cluster([4, 2], [{**job, "service_s": 40.0}]))[0] == {}  # it ends soon anyway
    assert len(decide(cluster([4, 2], [{**job, "global_batch": 3}]))[0][0]) == 3  # no worker without a batch
    given, _, _ = decide(cluster([4, 2], [job, {"gpus_requested": 5}]))
    assert 0 not in given or len(given[0]) <= 2  # somebody waits


def test_s422_who_grows_first():
    """Who holds less than it asks for; else who has the higher ratio per GPU."""
    job = {**ELASTIC, "gpus_requested": 1, "workers_max": 2}
    for better in ({"gpus_requested": 2}, {"priority": 3.0}):
        for k in (0, 1):
            jobs = [{**job, "holds": [0]}, {**job, "holds": [1]}]
            jobs[k] |= better
            given, _, _ = decide(cluster([3], jobs))
            assert given == {k: [k, 2]}, (better, k)


def test_s422_a_job_moves_to_faster_gpus():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "workers_max": 2}
    given, _, _ = decide(cluster([2, 2], [job], models=[0, 1], speeds=SPEEDS))
    assert given == {0: [2, 3]}
    assert decide(cluster([2, 2], [{**job, "restart_s": 500.0}], models=[0, 1], speeds=SPEEDS))[0] == {}


def test_s422_elastic_jobs_make_room_where_that_pays():
    job = {**ELASTIC, "holds": [0, 1, 2, 3], "exchange_s": 2.0}  # mostly exchange: it loses little
    given, values, _ = decide(cluster([4], [job, {"gpus_requested": 2}]))
    assert values["s422_shrunk"].tolist() == [0]
    assert (len(given[0]), len(given[1])) == (2, 2)
    for change in ({"exchange_s": 0.0}, {"restart_s": 5000.0}, {"priority": 90.0}):
        assert decide(cluster([4], [{**job, **change}, {"gpus_requested": 2}]))[0] == {}, change
    idle = {"sm_active_ratio": [0.2] * 4}
    assert len(decide(cluster([4], [{**job, "exchange_s": 0.0}, {"gpus_requested": 2}], gpu=idle))[0]) == 2


def test_s422_a_waiting_elastic_job_starts_smaller():
    given, _, _ = decide(cluster([4], [{"holds": [0], "service_s": 60.0}, {**ELASTIC, "workers_max": 4}]))
    assert len(given[1]) == 3  # half, and the one that nobody else wants
    given, _, _ = decide(
        cluster([4], [{"holds": [0], "service_s": 60.0}, {**ELASTIC, "workers_min": 4, "workers_max": 6}])
    )
    assert given == {}


def test_s423_effect_on_parallel_work():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "exchange_s": 0.2}
    given, values, _ = decide(cluster([4], [job]))
    assert len(given[0]) == 4
    assert 0 < values["s423_efficiency_after"] < values["s423_efficiency_before"] <= 1
    _, values, _ = decide(cluster([4], [{"state": W}]))
    assert math.isnan(values["s423_efficiency_before"])


def test_every_sub_step_is_in_the_reasons():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "goodput_samples_per_s": 10.0}
    for mode in ("formula", "optimal"):
        _, values, _ = decide(cluster([4], [job, {}]), mode=mode)
        seen = {key.split("_")[0] for key in values}
        assert {"s411", "s412", "s413", "s421", "s422", "s423"} <= seen


def test_dead_nodes_are_left_alone():
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2}
    for mode in ("formula", "optimal"):
        given, _, _ = decide(cluster([2, 2], [job, {"gpus_requested": 2}], up=[False, True]), mode=mode)
        assert given == {1: [2, 3]}


def test_optimal_sizes_beat_the_requests():
    """Two elastic jobs, 8 GPUs: one scales, one is all exchange. The programme gives the GPUs to the first."""
    scales = {**ELASTIC, "exchange_s": 0.001, "holds": [0, 1, 2, 3]}
    talks = {**ELASTIC, "exchange_s": 9.0, "holds": [4, 5, 6, 7], "restart_s": 1.0}
    given, values, _ = decide(cluster([4, 4], [{**scales, "restart_s": 1.0}, talks]), mode="optimal")
    assert values["s422_configurations"] > 4
    assert len(given[0]) > 4 > len(given[1])
    given, _, _ = decide(
        cluster([4, 4], [{**scales, "restart_s": 1e4}, {**talks, "restart_s": 1e4}]), mode="optimal"
    )
    assert given == {}


def test_optimal_falls_back_with_a_reason(monkeypatch):
    def late(*_):
        raise TimeoutError("no optimum within 0.1 s")

    monkeypatch.setattr(optimal_allocation, "best_sizes", late)
    observation = cluster([4], [{**ELASTIC, "workers_max": 4}])
    given, values, _ = decide(observation, mode="optimal", time_limit_s=0.1)
    assert values["s422_fallback"] == "no optimum within 0.1 s"
    assert given == decide(observation)[0] == {0: [0, 1, 2, 3]}


def test_a_real_time_limit_is_noticed():
    rng = np.random.default_rng(0)
    n, jobs = 3000, 300
    index = np.sort(rng.integers(0, jobs, n))
    with pytest.raises(TimeoutError, match="within"):
        best_sizes(
            rng.integers(1, 99, n), np.zeros(n, dtype=np.int64), rng.random(n), index, np.zeros(jobs, bool),
            np.array([997.0]), 1e-6,
        )  # fmt: skip


def test_parameters_are_checked():
    for bad in (
        {"mode": "best"},
        {"ageing": 0.0},
        {"horizon_s": -1.0},
        {"margin": -0.1},
        {"time_limit_s": 0.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            make_stage("s4", bad)


# -- over time -----------------------------------------------------------------------------------------------

WORKLOADS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 2, 3, 5]), st.integers(1, 40)),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("mode", ["formula", "optimal"])
@settings(max_examples=15, deadline=None)
@given(
    jobs=WORKLOADS,
    nodes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    reserve=st.sampled_from([0.0, 20.0]),
)
def test_all_jobs_end(mode, jobs, nodes, reserve):
    """The little world asserts whole gangs and that no GPU is handed out twice."""
    tiny = TinyWorld(sorted((float(a), g, float(d)) for a, g, d in jobs), [*nodes, 3, 2], restart_s=2.0)
    tiny.run(NodeAllocation(mode=mode, reserve_after_s=reserve))
    assert len(tiny.completion) == len(jobs)


def test_nobody_starves():
    """Single-GPU jobs keep a full pool busy for a day; a gang of all GPUs gets its turn long before."""
    stream = [(30.0 * k, 1, 110.0) for k in range(2400)]
    jobs = sorted([*stream, (100.0, 4, 300.0)])
    gang = jobs.index((100.0, 4, 300.0))
    tiny = TinyWorld(jobs, [4])
    tiny.run(NodeAllocation(), verify=False)
    assert tiny.first_start[gang] < 100.0 + 2 * 3600.0
    greedy = TinyWorld(jobs, [4])
    greedy.run(NodeAllocation(reserve_after_s=1e9), verify=False)
    assert greedy.first_start[gang] > 60_000.0


def test_short_jobs_do_not_wait_for_long_ones():
    """Mean completion is near that of preemptive shortest-first, far from first come first served."""
    rng = np.random.default_rng(3)
    arrival, gpus = np.cumsum(rng.exponential(60.0, 150)), rng.choice([1, 2, 4], 150)
    jobs = list(zip(arrival.tolist(), gpus.tolist(), rng.lognormal(5.0, 1.5, 150).tolist(), strict=True))
    mean = {}
    for name, stage in (("s4", NodeAllocation()), ("fifo", make_stage("fifo")), ("srtf", make_stage("srtf"))):
        tiny = TinyWorld(jobs, [4, 4], restart_s=10.0)
        tiny.run(stage, verify=False)
        mean[name] = tiny.mean_completion_s()
    assert mean["s4"] < 1.5 * mean["srtf"]
    assert mean["s4"] < 0.6 * mean["fifo"]
