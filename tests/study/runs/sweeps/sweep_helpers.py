"""Sweeps whose runs take a few milliseconds and are pure functions of point, policy and seed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import yaml

from equipoise.sim.job.account import Use
from equipoise.sim.record import Run
from equipoise.study.runs.store import connect

LOG = "EQUIPOISE_TEST_LOG"
TIMINGS = ("attempts", "cpu_s", "wall_s")  # columns that differ between equal sweeps
SCENARIO = {
    "schema_version": 1,
    "name": "tiny",
    "cluster": {"gpus": 4},
    "workload": {"jobs": [{"name": "job", "count": 3, "gpus": 2, "duration": 100.0}]},
    "noise": {"step_cov": 0.1},
}


def write_sweep(folder: Path, seeds: int = 5, covs=(0.1, 0.2), case=None, **changes) -> Path:
    """A sweep file and its scenario in `folder`: 2 policies x len(covs) points x seeds runs."""
    folder.mkdir(parents=True, exist_ok=True)
    # Processes are forked from a server that may be older than this test and have another environment.
    noted = {"why": os.environ[LOG]} if LOG in os.environ and case is None else {}
    (folder / "tiny.yaml").write_text(yaml.safe_dump((case or SCENARIO) | noted))
    spec = {
        "schema_version": 1,
        "name": "tiny sweep",
        "scenario": "tiny.yaml",
        "policies": ["fifo", "sjf"],
        "seeds": seeds,
        "parameters": {"noise.step_cov": list(covs)},
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (spec | changes).items() if v is not None}))
    return path


def run_folder(out: Path, policy: str, seed: int) -> Path:
    """The directory of a run that a comparison in `out` kept."""
    with connect(out) as found:
        asked = "SELECT id FROM runs WHERE policy = ? AND seed = ?"
        ((key,),) = found.execute(asked, [policy, seed]).fetchall()
    return out / "runs" / key


def quick(scenario, *, policy, seed, trace=None) -> Run:
    """A run without a simulation, some 3 ms; notes each call in the file named by EQUIPOISE_TEST_LOG.

    The scenario's `why`, where `write_sweep` put that name, is what counts.
    """
    log = scenario.why or os.environ.get(LOG)
    if log:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{policy.name} {scenario.noise.step_cov} {seed}\n".encode())
        os.close(handle)
    time.sleep(0.003)
    end = 100.0 * (1 + seed) * (1 + scenario.noise.step_cov) * (2 if policy.name == "sjf" else 1) * np.ones(3)
    jobs = {"arrival_s": np.zeros(3), "completion_s": end, "queueing_s": np.zeros(3)}
    jobs |= {use.column: np.zeros(3) for use in Use}
    totals = {"gpus": 4.0, "makespan_s": float(end[0]), "idle_gpu_s": 4.0 * float(end[0])}
    return Run(scenario.name, policy.name, seed, "fake", "{}", jobs, totals)


def slow(scenario, **given) -> Run:
    """`quick`, but 30 ms."""
    time.sleep(0.03)
    return quick(scenario, **given)


def poisoned(scenario, **given) -> Run:
    """`quick`, but seed 2 kills its process and seed 3 raises."""
    if given["seed"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if given["seed"] == 3:
        raise ValueError("no such luck\nat all")
    return quick(scenario, **given)
