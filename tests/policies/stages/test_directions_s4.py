"""Direction: each variable of the formulas of S4, raised alone in a small observation, moves its decision.

Each measure is a number that the decision alone makes: the node or job that it chooses, or how many GPUs it gives.
"""

import math

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import Nodes, Shards, Speeds, Stores
from equipoise.policies.stages.s4 import NodeAllocation
from tests.policies.observations import change
from tests.policies.stages.test_s4 import ELASTIC, cluster, decide

UP, DOWN = 1, -1
TWO = {**ELASTIC, "workers_min": 2, "workers_max": 2, "gpus_requested": 2}


# -- S411, S421 and S422: which node ---------------------------------------------------------------------------


def node_chosen(sizes, jobs, **more):
    """The first of the nodes that the last job, which waits, is given GPUs on; -1 none."""
    seen = cluster(sizes, jobs, **more)
    given, _, _ = decide(seen)
    return int(seen.gpus.node[given[len(jobs) - 1][0]]) if len(jobs) - 1 in given else -1


def beside(response_s=0.01):
    """Where one GPU goes when a job has one GPU of each of two nodes, and is this slow on the first."""
    return node_chosen([2, 2], [{**TWO, "holds": [0, 2]}, {}], ratio=[0.01 / response_s, 1.0])


def two_holders(gpus_0=1, a_0=1.0, size_0=8):
    """Where one GPU of a job that reads data goes: one job holds GPUs of node 0, another of node 1, which has eight."""
    jobs = [
        {"holds": list(range(gpus_0)), "gpus_requested": gpus_0, "priority": a_0},
        {"holds": [size_0, size_0 + 1], "gpus_requested": 2, "priority": 2.0},
    ]
    return node_chosen([size_0, 8], [*jobs, {"input_bytes": 1e9}])


def claimed(remote_0):
    """Where one GPU goes when the worker on node 0 reads this part of its data from elsewhere, on node 1 half."""
    shards = Shards.of(
        id=range(4),
        job=[0] * 4,
        worker=[0, 0, 1, 1],
        node=[1, 0, 1, 0],
        samples=[1] * 4,
        bytes=[remote_0, 1.0 - remote_0, 0.5, 0.5],
        local=[False, True, True, False],
    )
    return node_chosen([2, 2], [{**TWO, "holds": [0, 2]}, {}], shards=shards)


def near_data(ratio_1=0.5, nic_0=1e9, busy_0=0.0, input_bytes=1e12, service_s=600.0, weight_1=1.0, store=0.0):
    """Where one GPU goes for a job of which node 1 stores this part of its data, node 0 the rest, or node 2 some."""
    ratio = [(1.0 - ratio_1) * (1.0 - store), ratio_1 * (1.0 - store), store]
    stores = Stores.of(job=[0, 0, 0], node=[0, 1, 2], ratio=ratio)
    other = {"holds": [2], "service_s": 1e6}
    seen = cluster([1, 1, 1], [{"service_s": service_s}, other], stores=stores, ratio=[1.0, weight_1, 1.0])
    nodes = {"nic_bytes_per_s": [nic_0, 1e9, 1e10], "nic_busy_ratio": [busy_0, 0.0, 0.0]}
    seen.nodes = Nodes.of(**{**seen.nodes.as_dict(), **nodes})
    seen = change(seen, "jobs", input_bytes=[input_bytes, 0.0])
    given, _, _ = decide(seen)
    return int(seen.gpus.node[given[0][0]])


def memory_there(memory_0):
    """Where one GPU goes for a job that needs 40 GB, when node 0 has this much a GPU and node 1 has 80 GB."""
    job = {"memory_bytes": 40e9}
    return node_chosen([1, 1], [job], gpu={"memory_bytes": [memory_0, 80e9]})


# -- S412: which job -------------------------------------------------------------------------------------------

LIKE = {"data_demand_bytes": 1e9, "compute_demand_flops": 1e15, "memory_bytes": 1e10, "service_s": 600.0}


def second_first(of_1=None, memory_of_gpu=80e9, **more_of_1):
    """1 where the second of two waiting jobs takes the only GPU."""
    jobs = [dict(LIKE), {**LIKE, **(of_1 or {}), **more_of_1}]
    given, _, _ = decide(cluster([1], jobs, gpu={"memory_bytes": [memory_of_gpu]}))
    return int(list(given) == [1])


def second_grows(**of_1):
    """1 where the second of two elastic jobs takes the GPU that is free."""
    job = {**LIKE, **ELASTIC, "gpus_requested": 1, "workers_max": 2, "goodput_samples_per_s": 9.0}
    given, _, _ = decide(cluster([3], [{**job, "holds": [0]}, {**job, "holds": [1], **of_1}]))
    return int(list(given) == [1])


def both(**of_1):
    """Order of waiting jobs and size of running ones together."""
    return second_first(of_1) + second_grows(**of_1)


def needy_first(memory_of_gpu):
    """1 where a job that needs much memory, of a little more priority, comes before one that needs little."""
    return second_first({"memory_bytes": 2e10, "priority": 1.1}, memory_of_gpu)


# -- S411 efficiency, S413, S422: sizes ----------------------------------------------------------------------------


def first_gives(active_0=0.9):
    """1 where the first of two elastic jobs, whose GPUs are this busy, gives one to a job that waits."""
    jobs = [{**ELASTIC, "holds": [4 * k + g for g in range(4)], "goodput_samples_per_s": 9.0} for k in range(2)]
    active = np.repeat([active_0, 0.7], 4)
    given, _, _ = decide(cluster([4, 4], [*jobs, {"gpus_requested": 1}], gpu={"sm_active_ratio": active}))
    return int(0 in given)


def started_with(exchange_s=0.15, interval=1, gamma=1.0):
    """GPUs that an elastic job starts with on an idle cluster of eight, by its estimates.

    exchange_s: that of two workers; each further one adds as much.
    """
    job = {**ELASTIC, "gpus_requested": 8, "service_s": 1e5, "work_s": math.nan, "exchange_s": math.nan}
    speeds = Speeds.of(
        job=[0] * 8,
        gpu_model=[0] * 8,
        gpus=range(1, 9),
        samples_per_s=16.0 * np.arange(1, 9),
        exchange_s=exchange_s * np.arange(8),
    )
    seen = change(cluster([1] * 8, [job], speeds=speeds), "jobs", gamma=[gamma])
    plan = UNCHANGED.with_(sync_interval=np.array([interval]))
    allocation = NodeAllocation().refine(seen, plan, {})[0].allocation
    return len(allocation.gpus_of(0))


def grown_to(**of_job):
    """GPUs that a running elastic job of two holds after a decision; four are free."""
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "exchange_s": 0.1, "service_s": 600.0, **of_job}
    given, _, _ = decide(cluster([6], [job]))
    return len(given.get(0, [0, 1]))


def gives_way(priority=1.0, needs_s=250.0, left_s=1000.0, restart_s=100.0):
    """1 where a running job is stopped for one that waits."""
    running = {"holds": [0], "service_s": left_s, "restart_s": restart_s}
    waiting = {"service_s": needs_s, "queued_since_s": 500.0, "priority": priority}
    return int(decide(cluster([1], [running, waiting]))[0] == {0: [], 1: [0]})


def shrinks(exchange_s=2.0, priority_of_waiting=1.0, other_left_s=1100.0):
    """GPUs that an elastic job of four gives up for one that waits for two, while another one holds two more."""
    job = {**ELASTIC, "holds": [0, 1, 2, 3], "exchange_s": exchange_s}
    waiting = {**TWO, "priority": priority_of_waiting, "work_s": math.nan, "exchange_s": math.nan}
    other = {"holds": [4, 5], "gpus_requested": 2, "service_s": other_left_s}
    speeds = Speeds.of(job=[2], gpu_model=[0], gpus=[2], samples_per_s=[64.0], exchange_s=[0.0])
    seen = cluster([3, 1, 2], [job, other, waiting], speeds=speeds)
    return 4 - len(decide(seen)[0].get(0, range(4)))


def undone(loss=0.0):
    """GPUs of a job that grew from two to four and lost this part of its goodput, two measurements later."""
    job = {**ELASTIC, "holds": [0, 1], "gpus_requested": 2, "goodput_samples_per_s": 100.0, "service_s": 1e4}
    seen = change(cluster([4], [job]), "jobs", remaining_samples=[1e6])
    _, _, memory = decide(seen)
    grown = {**job, "holds": [0, 1, 2, 3]}
    for k in range(3):
        more = {**grown, "goodput_samples_per_s": 100.0 * (1.0 - loss) + k}
        seen = change(cluster([4], [more], time_s=1020.0 + 10 * k), "jobs", remaining_samples=[1e6 - k])
        given, _, memory = decide(seen, memory)
        if 0 in given:
            return len(given[0])
    return 4


CASES = [
    ("S411 speed: a slow node is left", beside, "response_s", 0.01, 0.04, UP),
    ("S411 efficiency: who keeps its GPUs busy gives last", first_gives, "active_0", 0.4, 0.9, DOWN),
    ("S411 memory: only where it has room", memory_there, "memory_0", 20e9, 80e9, DOWN),
    ("S412 p: more important, first", both, "priority", 0.9, 2.0, UP),
    ("S412 D: more data, first", both, "data_demand_bytes", 0.5e9, 2e9, UP),
    ("S412 C: more computing, first", both, "compute_demand_flops", 0.5e15, 2e15, UP),
    ("S412 m: what needs more memory comes later", both, "memory_bytes", 0.5e10, 2e10, DOWN),
    ("S412 M: where there is much memory, need counts less", needy_first, "memory_of_gpu", 25e9, 1e12, UP),
    ("S412 w: who waits longer comes first", second_first, "waited_s", 0.0, 500.0, UP),
    ("S412 s: what takes longer comes later", second_first, "service_s", 60.0, 6000.0, DOWN),
    ("S413 goodput: a change that lost is undone", undone, "loss", 0.0, 0.4, DOWN),
    ("S421, S422 u: a node that a job uses more is left", two_holders, "gpus_0", 1, 5, UP),
    ("S422 A: the node of an important job is left", two_holders, "a_0", 1.0, 9.0, UP),
    ("S422 R_j: a larger node has more for each", two_holders, "size_0", 2, 8, DOWN),
    ("S422 d: who reads from elsewhere claims less", claimed, "remote_0", 0.1, 0.9, DOWN),
    ("S422 d: to where more of its data is", near_data, "ratio_1", 0.1, 0.9, UP),
    ("S422 d: not behind a slow interface", lambda n: near_data(nic_0=n, store=1.0), "n", 1e8, 1e10, DOWN),
    ("S422 d: not behind a busy interface", lambda n: near_data(busy_0=n, store=1.0), "n", 0.0, 0.9, UP),
    (
        "S422 d: little to read, the faster node",
        lambda b: near_data(ratio_1=0.9, input_bytes=b, weight_1=0.5),
        "b",
        1e6,
        4e12,
        UP,
    ),
    (
        "S422 d: long to compute, the faster node",
        lambda s: near_data(ratio_1=0.9, input_bytes=4e12, service_s=s, weight_1=0.5),
        "s",
        600.0,
        1e7,
        DOWN,
    ),
    ("S422 exchange: dearer, fewer GPUs", started_with, "exchange_s", 0.05, 0.5, DOWN),
    ("S422 S3's interval: exchanges less often, more GPUs", started_with, "interval", 1, 64, UP),
    ("S422 overlap: exchanges hide, more GPUs", started_with, "gamma", 1.0, 4.0, UP),
    ("S422 measured exchange: dearer, grows less", grown_to, "exchange_s", 0.01, 5.0, DOWN),
    (
        "S422 measured exchange, without contention: the same where nothing else is known",
        lambda e: grown_to(exchange_s=math.nan, exchange_alone_s=e),
        "e",
        0.01,
        5.0,
        DOWN,
    ),
    ("S422 restart: dearer, no resize", grown_to, "restart_s", 1.0, 5000.0, DOWN),
    ("S422 time left: more is gained", grown_to, "service_s", 20.0, 6000.0, UP),
    ("S422 batch: no worker without samples", grown_to, "global_batch", 3, 64, UP),
    ("S422 A: an important job takes the place of another", gives_way, "priority", 0.1, 1.0, UP),
    ("S422 s: only a shorter one does", gives_way, "needs_s", 250.0, 450.0, DOWN),
    ("S422 s: only of one that is not nearly done", gives_way, "left_s", 400.0, 1000.0, UP),
    ("S422 restart: a dear one is not stopped", gives_way, "restart_s", 10.0, 300.0, DOWN),
    ("S422 exchange: who loses little gives GPUs up", shrinks, "exchange_s", 0.0, 2.0, UP),
    (
        "S422 A: for an important one they are given up",
        lambda p: shrinks(exchange_s=0.0, priority_of_waiting=p),
        "p",
        0.1,
        9.0,
        UP,
    ),
    ("S422 wait: nobody gives up GPUs for one that can start soon", shrinks, "other_left_s", 20.0, 1100.0, UP),
]


@pytest.mark.parametrize(
    ("measure", "variable", "one", "other", "sign"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_it_moves_the_decision_that_way(measure, variable, one, other, sign):
    before, after = float(measure(**{variable: one})), float(measure(**{variable: other}))
    assert sign * (after - before) > 0.0, f"{before} and then {after}"
