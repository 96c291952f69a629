"""Reports at size: time to write, bytes, time until the Gantt chart is drawn: python -m tests.bench.speed.report"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from equipoise.study.report.page import make_report
from equipoise.study.report.perfetto import write_trace
from equipoise.study.runs.store import Ledger
from tests.study.report.browser import Browser, chromium
from tests.study.report.report_data import make_run

BARS = {"100,000 bars": (20_000, 5), "1,000,000 bars": (100_000, 10)}
RUNS = 100_000
T = TypeVar("T")


def sweep_of(folder: Path, runs: int) -> None:
    """A ledger with so many runs: 4 policies, 10 seeds."""
    draw = np.random.Generator(np.random.Philox(key=0)).lognormal(7.0, 0.3, runs).tolist()
    with Ledger(folder) as ledger:
        ledger.put_all(_row(k, value) for k, value in enumerate(draw))
        ledger.set_about(sweep="schema_version: 1\nname: large\nparameters: {noise.step_cov: [1]}\n")
        ledger.export()


def _row(k: int, value: float) -> dict[str, object]:
    policy, seed, point = f"policy-{k % 4}", k // 4 % 10, k // 40
    which = {"id": f"{k:016x}", "number": k, "point": point, "policy": policy, "seed": seed, "status": "done"}
    spent = {"attempts": 1, "cpu_s": 0.05, "wall_s": 0.05, "noise.step_cov": 0.01 * (point % 50)}
    metrics = {"jobs": 60.0, "completed": 60.0, "makespan_s": value, "completion_mean_s": value / 3, "gpus": 64.0}
    return {**which, **spent, **metrics, "goodput_ratio": 0.5, "gpu_busy_ratio": 0.5, "idle_ratio": 0.5}


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """(CPU seconds, result) of a call."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def look(browser: Browser, folder: Path) -> str:
    """Write the report and the trace of a run, open the report, zoom into its Gantt chart; in words."""
    cpu_s, made = timed(lambda: make_report(folder))
    browser.open(made.path)
    ready_ms, draw_ms = browser.js("const g = Gantt.views[0]; return [g.readyMs, g.drawMs]")
    zoom_ms = browser.js(
        "const g = Gantt.views[0]; const t = []; for (let k = 0; k < 8; k++) { g.zoom(0.7, 0.8); g.paint();"
        "t.push(g.drawMs); } return t"
    )
    trace_s, trace = timed(lambda: write_trace(folder, folder / "t.json.gz"))
    return (
        f"written in {cpu_s:.1f} CPU s, {made.size_bytes / 1e6:.1f} MB; "
        f"unpacked and drawn in {ready_ms / 1e3:.2f} s ({draw_ms / 1e3:.2f} s for the drawing), "
        f"zooming at most {max(zoom_ms):.0f} ms; trace of {trace.slices} slices in {trace_s:.1f} CPU s"
    )


def main() -> None:
    """Print one line per case."""
    with tempfile.TemporaryDirectory() as place:
        try:
            with chromium() as browser:
                for name, (jobs, each) in BARS.items():
                    folder = Path(place) / name.partition(" ")[0]
                    make_run(folder, jobs=jobs, each=each, buckets=1024)
                    print(f"{name}: {look(browser, folder)}")
        except pytest.skip.Exception as why:
            sys.exit(str(why))
        folder = Path(place) / "sweep"
        folder.mkdir()
        sweep_of(folder, RUNS)
        cpu_s, made = timed(lambda: make_report(folder))
        print(f"{RUNS:,} runs: {cpu_s:.1f} CPU s, {made.size_bytes / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
