"""CPU seconds of the command line, cold and warm: python -m tests.bench.speed.startup [--format json]"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

DEMO = [
    "compare",
    "scenarios/quickstart.yaml",
    *(word for name in ("none", "s1", "s1+s2", "s1+s2+s3", "s1+s2+s3+s4") for word in ("--policy", name)),
]


def measure(arguments: list[str], cache: str) -> tuple[float, float]:
    """(CPU, wall) seconds of one command of its own process, with its children."""
    environment = dict(os.environ, EQUIPOISE_KERNEL_CACHE=cache)
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "equipoise.cli", *arguments], env=environment, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, time.monotonic() - began_s


def main() -> None:
    """Print one row per command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", choices=["table", "json"], default="table")
    arguments = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as cache:
        rows["--help"] = min(measure(["--help"], cache) for _ in range(3))
        rows["demo, empty kernel cache"] = measure(DEMO, cache)
        rows["demo, kernels compiled before"] = min(measure(DEMO, cache) for _ in range(3))
    if arguments.format == "json":
        print(json.dumps({name: {"cpu_s": cpu, "wall_s": wall} for name, (cpu, wall) in rows.items()}))
    else:
        for name, (cpu_s, wall_s) in rows.items():
            print(f"{name:32} {cpu_s:7.2f} CPU s {wall_s:7.2f} s")


if __name__ == "__main__":
    main()
