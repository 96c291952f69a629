"""Plain twins of S4's kernels: every pair of a job and a node is laid out, every choice is tried."""

from __future__ import annotations

import itertools
import math


def mean(values):
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan


def model_speeds(table, models):
    """table: (job, model, gpus, samples/s). Speed of each model relative to the fastest."""
    ratios = [[] for _ in range(models)]
    for job in dict.fromkeys(row[0] for row in table):
        rows = [row for row in table if row[0] == job]
        alike = [row for row in rows if row[2] == rows[0][2] and row[3] > 0]
        for _, model, _, rate in alike:
            ratios[model].append(math.log(rate / max(row[3] for row in alike)))
    speeds = [math.exp(sum(r) / len(r)) if r else math.nan for r in ratios]
    fastest = max((s for s in speeds if not math.isnan(s)), default=math.nan)
    return [s / fastest for s in speeds]


def known(value):
    return value if value > 0 else 0.0


def waited(job, now):
    """Seconds a job has waited in all."""
    return known(job["waited"]) + (known(now - job["queued"]) if job["waits"] else 0.0)


def priority(job, now, ageing, lead, patience, unknown):
    """A of one job; jobs are dicts with worth, service, waited, queued, waits."""
    service, w = unknown if math.isnan(job["service"]) else max(job["service"], 1.0), waited(job, now)
    return job["worth"] * (ageing * (1 + (lead + w) / service) + w / patience)


def worth(job, jobs, demand, memory):
    """What of A stays; jobs are dicts with p, data, flops, need, fit; memory: of a GPU, None: not known."""
    result = job["p"] * job["fit"]
    for key in ("data", "flops"):
        logs = [math.log(j[key]) for j in jobs if j[key] > 0]
        if job[key] > 0:
            result *= (job[key] / math.exp(sum(logs) / len(logs))) ** demand
    return result if memory is None else result * memory / (memory + job["need"])


def lateness(job, now, after, slowdown, longest, unknown):
    """Seconds a job has waited beyond what it may."""
    duration = unknown if math.isnan(job["duration"]) else job["duration"]
    return waited(job, now) - min(after + slowdown * duration, longest)


def bar(job, now, ratio, reluctance, run, growth):
    """A waiting job that needs less may stop this one: a dict with service, restart, started, attained, ..."""
    cost, width = known(job["restart"]), job["gpus"] * min(job["share"], 1.0)
    ran = math.inf if math.isnan(job["started"]) else known(now - job["started"] - cost) * width
    if ran < run * width or ran < growth * (job["attained"] - ran):
        return -math.inf
    return math.inf if math.isnan(job["service"]) else ratio * job["service"] - reluctance * cost


def ratios(nodes, running, waiting):
    """sum_j R_ij of waiting jobs, every (job, node) pair laid out.

    nodes: (GPUs, free GPUs, speed); running: (A, [(node, GPUs, delay)]); waiting: (A, GPUs wanted).
    R_ij = R_j * (u_ij * A_i / (1 + d_ij)) / sum over k, times the node's speed.
    """
    totals = [0.0] * len(waiting)
    for n, (size, free, speed) in enumerate(nodes):
        if not size:
            continue
        running_pairs = [
            gpus / size * a / (1 + delay) for a, held in running for node, gpus, delay in held if node == n
        ]
        waiting_pairs = [min(wanted, free) / size * a for a, wanted in waiting]
        denominator = sum(running_pairs) + sum(waiting_pairs)
        for i, pair in enumerate(waiting_pairs):
            totals[i] += size * pair / denominator * speed if denominator else 0.0
    return totals


def listed_work(table, batch, gpus, model):
    """Seconds of local work by a job's own rows (model, gpus, samples/s)."""
    points = sorted({g: batch / r for m, g, r, _ in reversed(table) if m == model and r > 0}.items())
    if not points:
        return math.nan
    below = [point for point in points if point[0] <= gpus]
    above = [point for point in points if point[0] >= gpus]
    if not below or not above:
        g, seconds = (below or above)[-1 if below else 0]
        return seconds * g / gpus
    (g0, s0), (g1, s1) = below[-1], above[0]
    return s0 if g0 == g1 else s1 + (s0 - s1) * (1 / gpus - 1 / g1) / (1 / g0 - 1 / g1)


def listed_exchange(table, gpus, model):
    """Seconds of an exchange by a job's own rows (model, gpus, samples/s, exchange)."""
    points = sorted({g: s for m, g, _, s in reversed(table) if m == model and s >= 0}.items())
    below, above = [p for p in points if p[0] <= gpus], [p for p in points if p[0] >= gpus]
    if not below or not above:
        return (below[-1:] or above[:1] or [(0, math.nan)])[0][1]
    (g0, s0), (g1, s1) = below[-1], above[0]
    return s0 if g0 == g1 else s0 + (s1 - s0) * (gpus - g0) / (g1 - g0)


def work_and_exchange(job, workers, model):
    """Seconds of local work and of an exchange of a job: a dict as `drawn_job` in test_kernels_allocation.py."""
    table, measured = job["table"], job["work"] if job["now"] > 0 and job["work"] > 0 else math.nan
    listed = listed_work(table, job["batch"], workers * job["per"], model)
    if measured > 0 and (workers, model) == (job["now"], job["model"]):
        work = measured
    elif not math.isnan(listed):
        here = listed_work(table, job["batch"], job["now"] * job["per"], job["model"]) if measured > 0 else math.nan
        work = listed * measured / here if here > 0 else listed
    else:
        fast, now_fast = job["speeds"][model], job["speeds"][job["model"]]
        if measured > 0:
            work = measured * job["now"] / workers * (now_fast / fast if fast > 0 and now_fast > 0 else 1.0)
        else:
            work = 1 / (workers * (fast if fast > 0 else 1.0))
    exchange = 0.0
    if workers > 1 and (table or measured > 0):
        there = listed_exchange(table, workers * job["per"], model)
        here = listed_exchange(table, job["now"] * job["per"], job["model"])
        if job["now"] > 1 and job["exchange"] > 0 and there > 0 and here > 0:
            exchange = there * job["exchange"] / here
        elif job["now"] > 1 and job["exchange"] > 0:
            exchange = job["exchange"] * (1 - 1 / workers) / (1 - 1 / job["now"])
        elif there >= 0:
            exchange = there
        elif job["alone"] > 0:
            exchange = job["alone"]
    return work, exchange


def step(job, workers, model):
    """Seconds of a step of a job."""
    work, exchange = work_and_exchange(job, workers, model)
    gamma = max(job["gamma"], 1.0)
    together = (work**gamma + exchange**gamma) ** (1 / gamma)
    return ((job["interval"] - 1) * work + together) / job["interval"]


def best_worth(configurations, jobs, must, room):
    """Most worth by trying all choices. configurations: (job, GPUs, model, worth)."""
    options = []
    for job in range(jobs):
        own = [c for c in configurations if c[0] == job]
        options.append(own if must[job] else [None, *own])
    best = -math.inf
    for choice in itertools.product(*options):
        used = [sum(c[1] for c in choice if c and c[2] == m) for m in range(len(room))]
        if all(u <= r for u, r in zip(used, room, strict=True)):
            best = max(best, sum(c[3] for c in choice if c))
    return best
