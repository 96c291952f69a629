"""Builders of observations (those of `check-stage`), and random clusters for hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from equipoise.policies.observation import TABLES, Gpus, Jobs, JobState, Nodes, Observation, Workers
from equipoise.study.stage_check import MEASURED, change, freeze, only, same, with_dead_nodes, without_telemetry  # noqa: F401 (tests find them all here)
from tests.policies.made_clusters import FREE, SHARED, MadeCluster, even_deal, one_job  # noqa: F401


def shared_gpu(shares, steps_s, *, others_s=None, goodput=None, kappa=np.nan, stall_s=0.0, quantum=0.01, time_s=100.0):
    """Jobs 0, 1, ... with one worker each on GPU 0; with `others_s` a second worker on a GPU of its own.

    `steps_s[j]` is the step of job j's worker on the shared GPU.
    """
    n = len(shares)
    pairs = others_s is not None
    per_job = 2 if pairs else 1
    job = np.repeat(np.arange(n), per_job)
    index = np.tile(np.arange(per_job), n)
    on_shared = index == 0
    step_s = np.where(on_shared, np.asarray(steps_s, float)[job], np.asarray(others_s or steps_s, float)[job])
    slowest_s = np.maximum.reduceat(step_s, np.arange(0, len(job), per_job))
    gpu = np.where(on_shared, 0, 1 + job)
    gpus = 1 + n if pairs else 1
    share = np.where(on_shared, np.asarray(shares, float)[job], 1.0)
    held = np.bincount(gpu, weights=share, minlength=gpus)
    goodput = 10 / slowest_s if goodput is None else np.asarray(goodput, float)
    return Observation.of(
        time_s,
        10.0,
        nodes=Nodes.of(gpus=[gpus], first_gpu=[0], gpus_free=[0], up=[True], nic_bytes_per_s=[1e9]),
        gpus=Gpus.of(
            node=np.zeros(gpus),
            job=np.where(np.arange(gpus) == 0, SHARED, np.arange(gpus) - 1),
            share_free=1 - held,
            share_quantum=np.full(gpus, quantum),
            memory_bytes=np.full(gpus, 80e9),
        ),
        jobs=Jobs.of(
            id=np.arange(n),
            arrival_s=np.arange(n),
            state=np.full(n, JobState.RUNNING),
            gpus_requested=np.full(n, per_job),
            gpus_held=np.full(n, per_job),
            workers_min=np.full(n, per_job),
            workers_max=np.full(n, per_job),
            global_batch=np.full(n, 8 * per_job),
            batch_reference=np.full(n, 8 * per_job),
            work_s=slowest_s,
            exchange_s=np.zeros(n),
            goodput_samples_per_s=goodput,
        ),
        workers=Workers.of(
            job=job,
            index=index,
            gpu=gpu,
            node=np.zeros(len(job)),
            gpu_share=share,
            share_kappa=np.broadcast_to(kappa, n)[job],
            samples_per_step=np.full(len(job), 8),
            step_s=step_s,
            step_cov=np.zeros(len(job)),
            wait_s=slowest_s[job] - step_s,
            input_stall_s=np.broadcast_to(stall_s, len(job)),
            capacity_samples_per_s=8 / step_s,
            response_s_per_sample=step_s / 8,
            gradient_rate_per_s=1 / step_s,
        ),
    )


def together(*observations):
    """The jobs of several observations (no paths) in one cluster, on their own nodes each, in this order."""
    tables = {name: table.as_dict() for name, table in observations[0].tables().items()}
    for o in observations[1:]:
        base = {name: len(next(iter(columns.values()))) for name, columns in tables.items()}
        points = {
            "nodes": {"first_gpu": "gpus"},
            "gpus": {"node": "nodes", "job": "jobs"},
            "jobs": {"id": "jobs"},
            "workers": {"job": "jobs", "gpu": "gpus", "node": "nodes"},
            "shards": {"id": "shards", "job": "jobs", "worker": "workers", "node": "nodes"},
        }
        for name, table in o.tables().items():
            for column, values in table.as_dict().items():
                if column in points.get(name, {}):  # what is no row stays: -1 nobody, -2 shared
                    values = np.where(values >= 0, values + base[points[name][column]], values)
                tables[name][column] = np.concatenate((tables[name][column], values))
    first, used = observations[0], ("nodes", "gpus", "jobs", "workers", "shards")
    made = {name: TABLES[name].of(**tables[name]) for name in used}
    return Observation.of(first.time_s, first.window_s, **made)


@st.composite
def clusters(draw, jobs_max=8):
    """A random consistent observation: waiting, running and done jobs, rigid, training and fractional."""
    if draw(st.booleans()):
        gpus_of_node, up = [draw(st.integers(1, 24))], [True]  # a counted pool
    else:
        nodes = draw(st.integers(1, 6))
        gpus_of_node = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=nodes, max_size=nodes))
        up = draw(st.lists(st.sampled_from([True, True, True, False]), min_size=nodes, max_size=nodes))
    cluster = MadeCluster(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), gpus_of_node, up)
    for _ in range(draw(st.integers(0, jobs_max))):
        rigid, share = draw(st.booleans()), draw(st.sampled_from([1.0, 1.0, 0.5, 0.25]))
        cluster.add(
            draw(st.sampled_from([JobState.WAITING, JobState.RUNNING, JobState.RUNNING, JobState.DONE])),
            rigid=rigid,
            gpus=1 if share < 1 else draw(st.integers(1, 10)),
            share=share,
            per_worker=1 if rigid or share < 1 else draw(st.sampled_from([1, 1, 2])),
            elastic=not rigid and draw(st.booleans()),
        )
    return cluster.observe(time_s=draw(st.sampled_from([60.0, 100.0, 5000.0])))
