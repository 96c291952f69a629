"""120 jobs on a physical cluster of 32 GPUs (Shockwave): completion times from the authors' throughput inputs.

A job's length is the number of rounds of 120 s that it needs at the throughputs that the authors' simulator is
given, whose batch grows on the way; the last round counts half. The jobs run in our simulator under our counterpart
of each policy (`POLICIES`), decided every round. AlloX never stops a job: here a queue in order of arrival that
passes over what does not fit. Nothing is fitted to the physical runs. Naive: the length, as if alone.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.study.validation.rows import Cells, read_rows
from equipoise.study.validation.score import Line, judge, line

TRACE = "traces/shockwave_tacc32_trace.tsv.gz"
TIMES = "traces/shockwave_tacc32_jct.csv.gz"
RATES = "traces/shockwave_tacc32_throughput_timeline.csv.gz"
ROUND_S, NODES, NODE_GPUS = 120.0, 8, 4
POLICIES = {
    "allox": "fifo-greedy",
    "finish_time_fairness": "gavel(objective=finish-time, round_s=120)",
    "max_sum_throughput_perf": "gavel(objective=throughput, round_s=120)",
    "min_total_duration": "gavel(objective=makespan, round_s=120)",
    "max_min_fairness": "gavel(objective=max-min, round_s=120)",
}


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """One job: GPUs, arrival and length [s], and its mean steps/s."""

    number: int
    gpus: int
    arrival_s: float
    length_s: float
    steps_per_s: float


def read_jobs(data: Path, policy: str) -> list[PublishedJob]:
    """The jobs with their lengths under a policy. Raises FileNotFoundError, KeyError."""
    rates: dict[int, list[float]] = defaultdict(list)
    for name, mode, number, rate in read_rows(data / RATES, lambda text: _told(text, "steps_per_s")):
        if (name, mode) == (policy, "simulation"):
            rates[number].append(rate)
    with gzip.open(data / TRACE, "rt", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return [
        PublishedJob(k, int(row[6]), float(row[11]), (len(rates[k]) - 0.5) * ROUND_S, float(np.mean(rates[k])))
        for k, row in enumerate(rows)
        if rates[k]
    ]


def _told(text: Cells, column: str) -> tuple[str, str, int, float]:
    """(policy, mode, job, figure) of a row."""
    return text["policy"], text["mode"], text.whole("job_id"), text.number(column)


def completions_s(jobs: list[PublishedJob], policy: str) -> dict[int, float]:
    """Seconds from arrival to completion by job number, in our simulator."""
    scenario = from_mapping(
        {
            "schema_version": 1,
            "name": "physical",
            "cluster": {"nodes": [{"name": "node", "count": NODES, "gpus": NODE_GPUS}]},
            "workload": {
                "jobs": [
                    {
                        "name": f"j{j.number}",
                        "gpus": j.gpus,
                        "arrival": j.arrival_s,
                        "duration": j.length_s,
                        "priority": j.steps_per_s if "throughput" in policy else 1.0,
                        "checkpoint": {"size": 0, "interval": ROUND_S},
                    }
                    for j in jobs
                ]
            },
            "restart": {"detection": 0, "initialisation": 0, "checkpoint_write": 0},
            "decide": {"every": ROUND_S, "on_events": False},
        }
    )
    table = simulate(scenario, policy=make_policy(policy)).jobs
    times = np.asarray(table["completion_s"]) - np.asarray(table["arrival_s"])
    return {int(str(name)[1:]): float(s) for name, s in zip(table["name"], times, strict=True)}


def run(data: Path) -> list[Line]:
    """A line for all policies together and one for each. Raises FileNotFoundError, KeyError."""
    measured: dict[str, dict[int, float]] = defaultdict(dict)
    for name, mode, number, seconds in read_rows(data / TIMES, lambda text: _told(text, "jct_s")):
        if mode == "physical":
            measured[name][number] = seconds
    rows: list[tuple[str, str, float, float, float]] = []
    for name in sorted(measured):
        if name not in POLICIES:
            continue
        jobs = read_jobs(data, name)
        guess = completions_s(jobs, POLICIES[name])
        rows += [
            (name, f"{name} job {j.number}", guess[j.number], j.length_s, measured[name][j.number])
            for j in jobs
            if j.number in measured[name]
        ]
    if not rows:
        raise ValueError(f"policy: none of {', '.join(POLICIES)} is there")
    names = [row[0] for row in rows]
    found = []
    for label in ("all policies", *dict.fromkeys(names)):
        chosen = [row for row in rows if label in ("all policies", row[0])]
        guess, naive, truth = np.array([row[2:] for row in chosen]).T
        one = judge([row[1] for row in chosen], guess, naive, truth, (np.nan, np.nan))
        found.append(line(f"Shockwave, 32 GPUs: {label} -> completion", 0.06, [one]))
    return found
