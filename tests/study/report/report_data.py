"""Run directories with timelines, made from numbers alone: what a report reads, at any size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Plan, Reason, Refusal
from equipoise.policies.record import journal
from equipoise.sim.record import WASTE, Run, write_parquet
from equipoise.study.report.timeline import USES
from tests.policies.observations import one_job

REASONS = ("completed", "preempted", "resized", "fault")


def segments(jobs: int, each: int, gpus: int, seed: int = 0) -> dict[str, np.ndarray]:
    """`each` segments per job, waiting and running in turn; jobs arrive one after the other."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    n = jobs * each
    job, part = np.repeat(np.arange(jobs), each), np.tile(np.arange(each), jobs)
    length = np.where(part % 2 == 0, draw.exponential(40.0, n), draw.exponential(300.0, n)) + 1.0
    ends = np.cumsum(length.reshape(jobs, each), axis=1)
    arrival = np.sort(draw.uniform(0.0, 3.0 * jobs, jobs))
    end = (arrival[:, None] + ends).ravel()
    running = part % 2 == 1
    last = part == each - 1
    how = np.where(last, 0, draw.integers(1, len(REASONS), n))
    held = np.where(running, 2 ** draw.integers(0, 4, n), 0).astype(np.int32)
    used = draw.dirichlet([6, 1, 1, 1, 0.2, 0.2, 0.3, 0.3], n) * (held * length)[:, None]
    reason = np.where(running, np.array(REASONS, dtype=object)[how], "started")
    columns = {
        "job_id": job.astype(np.int64),
        "segment": part.astype(np.int32),
        "state": np.where(running, "running", "queued").astype(object),
        "start_s": end - length,
        "end_s": end,
        "gpus": held,
        "nodes": np.minimum(held, 1).astype(np.int32),
        "first_gpu": np.where(running, draw.integers(0, max(gpus - 8, 1), n), -1).astype(np.int32),
        "end_reason": reason.astype(object),
    }
    return columns | {f"{use}_gpu_s": used[:, k] for k, use in enumerate(USES)}


def job_columns(rows: dict[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The jobs that those segments belong to."""
    jobs = len(names)
    shaped = {key: values.reshape(jobs, -1) for key, values in rows.items()}
    sums = {f"{use}_gpu_s": shaped[f"{use}_gpu_s"].sum(axis=1) for use in USES}
    queued = (shaped["state"] == "queued") * (shaped["end_s"] - shaped["start_s"])
    whole = np.zeros(jobs, dtype=np.int64)
    return {
        "job_id": np.arange(jobs),
        "name": np.array(names, dtype=object),
        "arrival_s": shaped["start_s"][:, 0],
        "start_s": shaped["end_s"][:, 0],
        "completion_s": shaped["end_s"][:, -1],
        "gpus": shaped["gpus"][:, 1].astype(np.int64),
        "queueing_s": queued.sum(axis=1),
        "samples": whole,
        "useful_samples": whole.astype(float),
        "lost_samples": whole,
        "steps": whole,
        "preemptions": whole,
        "restarts": whole,
        **sums,
        "useful_gpu_s": sums["busy_gpu_s"],
    }


def usage(end_s: float, gpus: int, buckets: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Shares of a cluster over equal buckets; each bucket sums to GPUs x its length."""
    draw = np.random.Generator(np.random.Philox(key=seed + 1))
    edges = np.linspace(0.0, end_s, buckets + 1)
    wave = 3 + 2 * np.sin(np.linspace(0, 6, buckets))
    parts = draw.dirichlet([8, 1, 1, 1, 0.3, 0.3, 0.4, 0.4, 3, 0.3], buckets)
    parts[:, 8] *= wave
    parts *= gpus * end_s / buckets / parts.sum(axis=1, keepdims=True)
    columns = {f"{use}_gpu_s": parts[:, k] for k, use in enumerate((*USES, "idle", "down"))}
    times = {"start_s": edges[:-1], "end_s": edges[1:]}
    rest = {"jobs_waiting": wave, "jobs_running": wave, "network_bytes": wave * 1e9, "energy_j": wave * 1e6}
    return times | columns | rest


def links(end_s: float, buckets: int, count: int) -> dict[str, np.ndarray]:
    """So many links, the first the most loaded."""
    edges = np.linspace(0.0, end_s, buckets + 1)
    name = np.repeat([f"node-{k} up" for k in range(count)], buckets).astype(object)
    share = (1 / (1 + np.arange(count)))[:, None] * (0.5 + 0.5 * np.sin(np.linspace(0, 20, buckets)) ** 2)
    width = end_s / buckets
    return {
        "link": name,
        "capacity_bytes_per_s": np.full(count * buckets, 1e10),
        "start_s": np.tile(edges[:-1], count),
        "end_s": np.tile(edges[1:], count),
        "bytes": (share * 1e10 * width).ravel(),
    }


def holdings(rows: dict[str, np.ndarray], gpus_per_node: int) -> dict[str, np.ndarray]:
    """Each running segment holds GPUs side by side from its first."""
    which = np.flatnonzero(rows["gpus"])
    count = rows["gpus"][which]
    at = np.repeat(which, count)
    inside = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
    gpu = (rows["first_gpu"][at] + inside).astype(np.int32)
    return {
        "job_id": rows["job_id"][at],
        "segment": rows["segment"][at],
        "gpu": gpu,
        "node": (gpu // gpus_per_node).astype(np.int32),
        "share": np.ones(len(at)),
    }


EVENTS = {
    "time_s": np.array([10.0, 500.0, 900.0]),
    "kind": np.array(["crash", "repair", "fail_slow"], dtype=object),
    "subject": np.array(["node-1", "node-1", "node-0"], dtype=object),
    "value": np.array([1.0, 0.0, 2.0]),
}


def write_timeline(folder: Path, rows: dict[str, np.ndarray], gpus: int, buckets: int, held: bool = True) -> None:
    """The tables of a timeline below a run directory."""
    target = folder / "timeline"
    target.mkdir(parents=True, exist_ok=True)
    end_s = float(rows["end_s"].max())
    write_parquet(target / "segments.parquet", rows)
    write_parquet(target / "usage.parquet", usage(end_s, gpus, buckets))
    write_parquet(target / "links.parquet", links(end_s, buckets, 12))
    write_parquet(target / "events.parquet", EVENTS)
    number = np.arange(gpus, dtype=np.int32)
    node = (number // 8).astype(np.int32)
    names = np.array([f"node-{k}" for k in node], dtype=object)
    models = np.full(gpus, "h100_sxm", dtype=object)
    write_parquet(target / "gpus.parquet", {"gpu": number, "node": node, "node_name": names, "model": models})
    if held:
        write_parquet(target / "holdings.parquet", holdings(rows, 8))


def write_journal(path: Path, decisions: int, text: str = "started job-1") -> None:
    """So many decisions with two reasons each; every tenth has a refusal."""
    seen = one_job([1.0, 2.0])
    with journal.JournalWriter(path) as writer:
        for k in range(decisions):
            values: dict[str, Any] = {"jobs": np.arange(2), "bad": math.inf, "k": k}
            reasons = (Reason("s4", f"{text} ({k % 7})", values), Reason("s1", "nothing to move"))
            refused = [Refusal("allocation", "GPU 3 is down")] if k % 10 == 9 else []
            writer.write(Decision(seen, Plan(reasons=reasons), {}, {}), refused)


def make_run(
    folder: Path,
    policy: str = "fifo",
    seed: int = 0,
    *,
    jobs: int = 20,
    each: int = 4,
    gpus: int = 64,
    buckets: int = 64,
    name: str = "made",
    job_name: str = "job",
    timeline: bool = True,
    decisions: int = 0,
    stopped: str | None = None,
    usd: float = math.nan,
) -> Run:
    """A whole run directory; returns the run."""
    rows = segments(jobs, each, gpus, seed)
    names = [f"{job_name}-{k}" for k in range(jobs)]
    columns = job_columns(rows, names)
    span_s = float(rows["end_s"].max() - columns["arrival_s"].min())
    used = sum(float(columns[f"{use}_gpu_s"].sum()) for use in USES)
    room = max(gpus, math.ceil(1.3 * used / span_s))
    totals = {"gpus": float(room), "makespan_s": span_s, "idle_gpu_s": room * span_s - used, "decisions": 1.0}
    totals |= {f"{use}_usd": usd / 20 for use in WASTE}
    totals |= {"energy_j": room * span_s * 400, "cost_usd": usd}
    config = json.dumps(
        {"name": name, "cluster": {"hardware": "catalogue", "nodes": [{"name": "node", "accelerator": "h100_sxm"}]}}
    )
    made = Run(name, policy, seed, f"{seed:016x}", config, columns, totals, (), stopped)
    made.write(folder)
    if timeline:
        write_timeline(folder, rows, gpus, buckets)
    if decisions:
        write_journal(folder / "journal.jsonl", decisions)
    return made
