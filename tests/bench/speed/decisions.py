"""CPU time of one decision on a large cluster: python -m tests.bench.speed.decisions [--format json]

10,000 nodes of 8 GPUs, 1,000 jobs of which some wait, 10,000 workers, with equal speeds and with every job out of
balance; and 1,000 jobs that start at once in an empty cluster. The observation is made here, the same for every
stage; the last rows are whole policies.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from equipoise.policies.contract import Policy, refine
from equipoise.policies.observation import Gpus, Jobs, JobState, Nodes, Observation, Shards, Workers
from equipoise.policies.registry import make_policy

NODES, JOBS, WORKERS_EACH = 10_000, 1_000, 10


def observation(spread: float) -> Observation:
    """Every tenth job waits, the others hold ten GPUs each; speeds vary by `spread` around 1."""
    rng = np.random.default_rng(7)
    state = np.where(np.arange(JOBS) % 10 == 0, JobState.WAITING, JobState.RUNNING)
    running = np.flatnonzero(state == JobState.RUNNING)
    job = np.repeat(running, WORKERS_EACH)
    gpu = np.arange(job.size) * 8
    holder = np.full(8 * NODES, -1)
    holder[gpu] = job
    speed = 100.0 * (1.0 + spread * rng.uniform(-1, 1, job.size))
    batch = 64 * WORKERS_EACH
    return Observation.of(
        1000.0,
        300.0,
        nodes=Nodes.of(
            gpus=np.full(NODES, 8),
            first_gpu=np.arange(NODES) * 8,
            gpus_free=8 - (holder.reshape(NODES, 8) >= 0).sum(1),
            nic_bytes_per_s=np.full(NODES, 1e10),
            nic_busy_ratio=np.zeros(NODES),
            storage_free_bytes=np.full(NODES, 1e12),
        ),
        gpus=Gpus.of(
            node=np.repeat(np.arange(NODES), 8),
            job=holder,
            memory_bytes=np.full(8 * NODES, 8e10),
            share_free=(holder < 0).astype(float),
        ),
        jobs=Jobs.of(
            id=np.arange(JOBS),
            arrival_s=np.arange(JOBS) * 0.5,
            state=state,
            gpus_requested=np.full(JOBS, 10),
            gpus_held=np.where(state == JobState.RUNNING, 10, 0),
            workers_min=np.full(JOBS, 10),
            workers_max=np.full(JOBS, 10),
            global_batch=np.full(JOBS, batch),
            batch_reference=np.full(JOBS, batch),
            duration_s=rng.uniform(1e3, 1e5, JOBS),
            service_s=rng.uniform(1e3, 1e5, JOBS),
            work_s=np.full(JOBS, 0.64),
            exchange_s=np.full(JOBS, 0.05),
            exchange_alone_s=np.full(JOBS, 0.05),
            remaining_samples=np.full(JOBS, 1e6),
            throughput_samples_per_s=np.full(JOBS, 900.0),
            goodput_samples_per_s=np.full(JOBS, 900.0),
            data_demand_bytes=np.full(JOBS, 1e11),
            compute_demand_flops=rng.uniform(1e15, 1e18, JOBS),
        ),
        workers=Workers.of(
            job=job,
            index=np.tile(np.arange(WORKERS_EACH), running.size),
            gpu=gpu,
            node=gpu // 8,
            samples_per_step=np.full(job.size, 64),
            samples_owned=np.full(job.size, 1e5),
            capacity_samples_per_s=speed,
            step_s=64 / speed,
            step_cov=np.full(job.size, 0.05),
            wait_s=np.zeros(job.size),
            input_stall_s=np.zeros(job.size),
            response_s_per_sample=1 / speed,
            gradient_rate_per_s=speed / 64,
            gradient_norm=np.ones(job.size),
        ),
        shards=Shards.of(
            id=np.arange(6 * job.size),
            job=np.repeat(job, 6),
            worker=np.repeat(np.arange(job.size), 6),
            node=np.repeat(gpu // 8, 6),
            bytes=np.full(6 * job.size, 1e8),
            samples=np.full(6 * job.size, 1000),
            local=np.full(6 * job.size, True),
            needed_in_s=np.tile(np.arange(6) * 100.0, job.size),
        ),
    )


def arrivals() -> Observation:
    """All jobs wait, and nothing runs."""
    jobs = np.arange(JOBS)
    return Observation.of(
        1000.0,
        300.0,
        nodes=Nodes.of(
            gpus=np.full(NODES, 8),
            first_gpu=np.arange(NODES) * 8,
            gpus_free=np.full(NODES, 8),
            nic_bytes_per_s=np.full(NODES, 1e10),
        ),
        gpus=Gpus.of(node=np.repeat(np.arange(NODES), 8), memory_bytes=np.full(8 * NODES, 8e10)),
        jobs=Jobs.of(
            id=jobs,
            arrival_s=jobs * 0.5,
            queued_since_s=jobs * 0.5,
            gpus_requested=1 + jobs % 24,
            rigid=jobs >= 0,
            duration_s=1e3 + 99.0 * jobs,
            service_s=1e3 + 99.0 * jobs,
        ),
    )


def measure(policy: Policy, seen: Observation) -> float:
    """Best CPU seconds of a decision, checks included, with the memory that earlier ones left."""
    memory, best_s = policy.initial(), float("inf")
    for k in range(12):
        seen.time_s = 1000.0 + 300.0 * k
        began_s = time.process_time()
        memory = refine(policy, seen, memory).memory
        if k >= 2:  # the first ones compile, and fill the memory
            best_s = min(best_s, time.process_time() - began_s)
    return best_s


def main() -> None:
    """Print one row per stage and state of the cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    cases = {"balanced": observation(0.0), "out of balance": observation(0.3), "all jobs start": arrivals()}
    rows = [
        {"policy": name, "case": case, "ms": 1e3 * measure(make_policy(name), seen)}
        for name in ("s1", "s2", "s3", "s4", "s1+s2+s3+s4")
        for case, seen in cases.items()
        if "s4" in name or case != "all jobs start"
    ]
    if arguments.format == "json":
        print(json.dumps(rows))
        return
    for row in rows:
        print("{policy:12} {case:15} {ms:8.2f} ms a decision".format(**row))


if __name__ == "__main__":
    main()
