"""What a sweep costs beside its runs: python tests/bench/speed/sweep.py [--runs 2000] [--jobs 2] [--spin]

Runs are naps of a fixed length (with --spin: busy loops, which on a machine with no core to spare also
measures what the coordinator takes from the workers). Start-up of the processes is not counted: the clock
starts when the first results are in.

overhead per run: (wall time * processes) / runs - length of a run; efficiency: length / (that + length).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from equipoise.sim.record import Run
from equipoise.study.runs.store import connect
from equipoise.study.runs.sweep import SweepOptions, sweep
from tests.study.runs.sweeps.sweep_helpers import write_sweep

_ZERO = np.zeros(1)
_USES = ("busy", "input_stall", "barrier_wait", "exposed_communication", "restart", "lost_to_faults", "useful")
_JOBS = {"arrival_s": _ZERO, "completion_s": np.ones(1), "queueing_s": _ZERO}
_JOBS |= {f"{use}_gpu_s": _ZERO for use in _USES}
_TOTALS = {"gpus": 1.0, "makespan_s": 1.0, "idle_gpu_s": 0.0}


def nap(scenario: Any, *, policy: Any, seed: int, trace: Any = None) -> Run:
    """A run that takes `decide.every` seconds."""
    time.sleep(scenario.decide.every)
    return Run(scenario.name, policy.name, seed, "none", "{}", _JOBS, _TOTALS)


def spin(scenario: Any, *, policy: Any, seed: int, trace: Any = None) -> Run:
    """A run that computes for `decide.every` seconds of processor time."""
    end_s = time.process_time() + scenario.decide.every
    while time.process_time() < end_s:
        pass
    return Run(scenario.name, policy.name, seed, "none", "{}", _JOBS, _TOTALS)


def measure(runs: int, run_s: float, jobs: int, runner: Any, dask: str | None = None) -> dict[str, float]:
    """Overhead, efficiency and memory of one sweep."""
    with tempfile.TemporaryDirectory() as folder:
        case: dict[str, Any] = {
            "schema_version": 1,
            "name": "nap",
            "cluster": {"gpus": 1},
            "workload": {"jobs": [{"gpus": 1, "duration": 1}]},
            "decide": {"every": run_s},
        }
        file = write_sweep(Path(folder), seeds=runs // 4, case=case)
        marks: list[tuple[float, float, float]] = []

        def progress(done: int, total: int, text: str) -> None:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            marks.append((time.perf_counter(), time.process_time(), memory))

        options = SweepOptions(jobs=jobs, dask=dask)
        sweep(file, Path(folder) / "out", options, progress=progress, runner=runner)
        with connect(Path(folder) / "out") as connection:
            began_s = time.perf_counter()
            connection.execute("SELECT policy, avg(makespan_s) FROM runs GROUP BY policy").fetchall()
            grouped_s = time.perf_counter() - began_s
    first, last = min(4 * jobs, len(marks) // 2), len(marks) - 1
    per_run_s = (marks[last][0] - marks[first][0]) / (last - first)
    return {
        "runs": float(runs),
        "processes": float(jobs),
        "run_ms": 1e3 * run_s,
        "overhead_ms_per_run": 1e3 * (per_run_s * jobs - run_s),
        "coordinator_cpu_ms_per_run": 1e3 * (marks[last][1] - marks[first][1]) / (last - first),
        "efficiency": run_s / (per_run_s * jobs),
        "coordinator_mib_after_first_runs": marks[first][2],
        "coordinator_mib_at_end": marks[last][2],
        "group_by_ms": 1e3 * grouped_s,
    }


def main() -> None:
    """Print one measurement as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--run-ms", type=float, default=50.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dask", help="address of a scheduler, or local")
    parser.add_argument("--spin", action="store_true")
    given = parser.parse_args()
    found = measure(given.runs, given.run_ms / 1e3, given.jobs, spin if given.spin else nap, given.dask)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
