"""CPU seconds and memory of sacct records read as a job trace: python -m tests.bench.speed.formats [--rows N]"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from equipoise.sim.traces.read import read_trace

STATES = ("COMPLETED",) * 5 + ("FAILED", "CANCELLED by 1001", "TIMEOUT")


def write_records(path: Path, rows: int) -> None:
    """`sacct` text with the 26 columns that Open XDMoD asks for, made from a fixed seed."""
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(_record(number, chance) + "\n")


def _record(number: int, chance: random.Random) -> str:
    submit_s = 1_704_067_200 + 30 * number + chance.randrange(30)
    start_s = submit_s + chance.randrange(90_000)
    run_s = chance.randrange(1, 300_000)
    gpus, user, name = chance.choice((1, 2, 4, 8)), chance.randrange(500), f"{chance.getrandbits(128):032x}"
    tres = f"billing={gpus * 12},cpu={gpus * 12},gres/gpu={gpus},mem={gpus * 64}G,node=1"
    hours, rest = divmod(run_s % 86400, 3600)
    elapsed = f"{run_s // 86400}-{hours:02}:{rest // 60:02}:{rest % 60:02}"
    cells = [number, number, "big", f"p{number % 8}", "normal", f"a{user % 40}", f"g{user % 40}", user % 40, f"u{user}"]
    cells += [1000 + user, _iso(submit_s), _iso(submit_s), _iso(start_s), _iso(start_s + run_s), elapsed, "0:0"]
    cells += [chance.choice(STATES), 1, gpus * 12, gpus * 12, f"{gpus * 64}G", tres, f"gres/gpu:a100={gpus},{tres}"]
    return "|".join(map(str, [*cells, "2-00:00:00", f"gn{chance.randrange(800):03}", name]))


def _iso(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def measure(path: Path) -> tuple[int, float, float]:
    """(rows, CPU seconds, peak GiB of this process) of reading the file."""
    began_s = time.process_time()
    rows = len(read_trace(path))
    return rows, time.process_time() - began_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def adds_per_s() -> float:
    """Additions in a plain loop of Python per CPU second: the yardstick to compare machines by."""
    began_s, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number
    return 5_000_000 / (time.process_time() - began_s)


def main() -> None:
    """Print one row per size, each read in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.file:
        print(json.dumps(measure(arguments.file)))
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in arguments.rows:
            path = Path(folder) / f"{rows}.txt"
            write_records(path, rows)
            command = [sys.executable, "-m", "tests.bench.speed.formats", "--file", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            read, cpu_s, memory_gib = json.loads(done.stdout)
            row = {"rows": read, "megabytes": path.stat().st_size / 1e6, "cpu_s": cpu_s, "memory_gib": memory_gib}
            results.append(row | {"loop_adds_per_s": adds_per_s()})
    if arguments.format == "json":
        print(json.dumps(results))
        return
    print(f"{'sacct rows':>12} {'MB':>8} {'CPU s':>8} {'GiB':>6} {'adds/s of a plain loop':>24}")
    for row in results:
        print(
            f"{row['rows']:12,} {row['megabytes']:8.1f} {row['cpu_s']:8.2f} {row['memory_gib']:6.2f} "
            f"{row['loop_adds_per_s']:24,.0f}"
        )


if __name__ == "__main__":
    main()
