"""All benchmarks of the simulator, to docs/performance.md: python -m tests.bench"""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numba
import numpy

from tests.bench.speed.yardstick import heapq_events_per_s, simpy_events_per_s

TITLES = {
    "steps": "One noisy job: CPU per worker and step",
    "schedules": "Rigid jobs: CPU per job",
    "overload": "Rigid jobs that wait for hours: CPU per job over that on an idle cluster",
    "decisions": "One decision, 10,000 nodes and 1,000 jobs",
    "flows": "10,000 contended flows, one by one on the clock",
    "scale": "100,000 GPUs, 200,000 jobs, 30 days, faults, S4 every 300 s; then twice the jobs and days",
    "store": "Stored results: a group-by, and one job's slice of a timeline",
    "startup": "The command line",
}


def main() -> None:
    """Run each benchmark in a process of its own and write what it prints."""
    page = [
        "# Performance",
        "",
        "Written by `make bench`. Times are CPU seconds, the best of several runs; a heapq event is one heappop",
        "and heappush of a tuple in the same run, the yardstick to compare machines by.",
        "",
        f"- date: {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, numpy {numpy.__version__}, "
        f"numba {numba.__version__}, {platform.machine()}",
        f"- bare heapq: {heapq_events_per_s():,.0f} events per CPU second",
        f"- bare SimPy timeouts: {simpy_events_per_s():,.0f} events per CPU second",
    ]
    for name, title in TITLES.items():
        print(title, file=sys.stderr, flush=True)
        module = f"tests.bench.speed.{name}"
        done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        page += ["", f"## {title}", "", "```", f"$ python -m {module}", done.stdout.rstrip(), "```"]
    target = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
    target.write_text("\n".join(page) + "\n", encoding="utf-8")
    print(target.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
