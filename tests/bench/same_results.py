"""Whether results are still the same, to the bit: python -m tests.bench.same_results [--write] [--only TEXT]

Compares every number and text of some fifty cases with the digests in same_results.csv, and prints which column
of which table differs, the largest difference first. `--write` makes that file anew. A file or a column that was
renamed on purpose stands in RENAMED. Digests hold for one kind of processor and one set of versions; the first
line of the file names them.

Every case runs with seeds 1 and 2, through what users call: `equipoise.run`, `equipoise.compare`, the command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import equipoise
from equipoise.sim.discover import files
from tests.bench.digests import (
    Columns,
    Digest,
    Name,
    Tables,
    add_record,
    differences,
    digests,
    join,
    read,
    read_tables,
    write,
)
from tests.study.twin.twin_runs import Truth, write_run

RENAMED: dict[str, str] = {}
"""`table:column` now, and what it was; a beginning of it (`table`, `table:observation.nodes`) renames all below."""

DIGESTS = Path(__file__).with_suffix(".csv")
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "scenarios"
SCHEDULES = ROOT.parent / "shared" / "data" / "schedules"
COMMAND = Path(sys.executable).with_name("equipoise")
SEEDS = (1, 2)
SHOWN = 200

STAGES = "s1+s2+s3+s4"
LONG_NAMES = {"optimal": "s4(mode=optimal, time_limit_s=600)"}
"""Policies with parameters; the limit is longer than it takes, for the clock must not decide."""
TRAINING = (STAGES, "optimal", "easy", "fifo", "none")
QUEUED = ("s4", "las", "easy", "fifo", "none")  # jobs of a fixed duration: s1 to s3 have nothing to do
WITHOUT_JOURNAL = ("fifo", "sjf-greedy", "none")  # they do no more than start jobs in order
SHIPPED = {
    "many-jobs-faults": TRAINING,
    "faulty": TRAINING,
    "congested": TRAINING,
    "quickstart": TRAINING,
    "skewed-data": TRAINING,
    "weak-host": TRAINING,
    "remote-storage": TRAINING,
    "two-racks": (STAGES, "fifo"),
    "unequal-demand": (STAGES, "fifo"),
    "worn-nodes": (STAGES, "fifo"),
    "shared-hosts": (STAGES, "fifo"),
    "slow-uplinks": (STAGES, "fifo"),
    "slow-pushes": (STAGES, "none"),
    "sick-gpu": (STAGES, "none"),
    "two-rooms": (STAGES, "none"),
    "full-memory": (STAGES, "none"),
    "shared-gpus": (STAGES, "none"),
    "mig-slices": (STAGES, "none"),
    "llm-13b": ("none",),
    "meant-to-fail": TRAINING,
    "counted": QUEUED,
    "philly": QUEUED,
}
"""Shipped scenarios and their policies, the longest first."""
TRACED = {"counted": 1, "philly": 8}
"""Scenarios that need a trace, and how many GPUs its smallest job has."""
SHRUNK = {"many-jobs-faults": ("workload.jobs.0.count=8", "workload.jobs.1.count=4", "workload.jobs.2.count=10")}
"""Changes to scenarios that take long."""
OF_FEATURES = ("horizon=2 h",)
"""Changes to the scenarios of features."""
TRAINED = ("workload.trace.training.count=3", "workload.trace.training.models=[small, large]")
NO_RESULT = {
    "manifest",  # dates, versions, and the hash of the source
    "summary:identity",
    "journal:before",  # what the decision before left in `after`
    "runs:id",
    "runs:attempts",
    "runs:cpu_s",
    "runs:wall_s",
    "comparison:runs.identity",
}
"""What is left out: `table:column`, or the beginning of it."""


# -- cases ---------------------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[], Tables]]:
    """What to compute, by name."""
    found: dict[str, Callable[[], Tables]] = {}
    for name, policies in SHIPPED.items():
        for policy in policies:
            found[f"{name}/{policy}"] = partial(simulated, name, policy, TRACED.get(name), SHRUNK.get(name, ()))
    for path in files("scenarios/*.yaml"):
        for policy in (STAGES, "easy"):
            found[f"{path.stem}/{policy}"] = partial(simulated, str(path.with_suffix("")), policy, None, OF_FEATURES)
    for policy in (STAGES, "fifo"):
        found[f"philly with training/{policy}"] = partial(simulated, "philly", policy, 8, TRAINED)
    found["wrong/no jobs"] = partial(simulated, "counted", "fifo")
    found["wrong/key"] = partial(simulated, "quickstart", "none", None, ("cluster.nodes.0.gpuz=1",))
    found["wrong/policy"] = partial(simulated, "quickstart", "s1+s9")
    for policy in ("fifo", "sjf-greedy"):
        found[f"C1/{policy}"] = partial(simulated, "counted", policy, SCHEDULES / "C1_philly_0e4a51.csv.gz")
    return found | {"compare": compared, "sweep": swept, "twin": twinned, "limits": limited}


def simulated(name: str, policy: str, trace: int | Path | None = None, overrides: tuple[str, ...] = ()) -> Tables:
    """The records of a run per seed; what was configured under one policy only.

    trace: GPUs of the smallest job of a trace that is made here, or a file.
    """
    tables: Tables = {}
    for seed in SEEDS:
        with workplace() as here:
            equipoise.run(
                SCENARIOS / f"{name}.yaml",
                policy=LONG_NAMES.get(policy, policy),
                seed=seed,
                trace=placed(trace),
                overrides=overrides,
                out="run",
                timeline=True,
                journal=policy not in WITHOUT_JOURNAL,
            )
            join(tables, read_tables(here / "run", seed))
    return {table: columns for table, columns in tables.items() if table != "config" or policy == "none"}


def compared() -> Tables:
    """Two policies on the same seeds, with intervals and ratios."""
    made = equipoise.compare(SCENARIOS / "congested.yaml", ["none", "s1+s2+s3"], seeds=3)
    return of_data("comparison", json.loads(made.as_json()))


def swept() -> Tables:
    """The shipped sweep with fewer seeds."""
    with workplace() as here:
        spec = yaml.safe_load((SCENARIOS / "sweep-quick.yaml").read_text(encoding="utf-8"))
        spec |= {"scenario": str(SCENARIOS / spec["scenario"]), "seeds": len(SEEDS)}
        Path("sweep.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        command("sweep", "sweep.yaml", "--out", "out", "--quiet")
        return read_tables(here / "out", 0)


def twinned() -> Tables:
    """The twin of a live run, which is made up."""
    with workplace() as here:
        write_run(Truth(step_cov=0.03), here / "live")
        found = json.loads(command("twin", "live", "--format", "json"))
        return of_data("twin", found) | read_tables(here / "live", 0)


def limited() -> Tables:
    """What limits a job, and the levers."""
    out = command("limits", str(SCENARIOS / "quickstart.yaml"), "--seeds", "2", "--format", "json", "--quiet")
    return of_data("limits", json.loads(out))


def of_data(table: str, value: dict[str, Any]) -> Tables:
    """A table of one record."""
    columns: Columns = {}
    add_record(columns, 0, value)
    return {table: columns}


def command(*arguments: str) -> str:
    """What `equipoise` prints."""
    return subprocess.run([COMMAND, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A fresh working directory, so that no path of this machine gets into a result."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield Path(folder)


def placed(trace: int | Path | None) -> str | None:
    """The trace in the working directory: a copy of a file, or jobs of 1 to 32 times so many GPUs."""
    if trace is None:
        return None
    if isinstance(trace, Path):
        return shutil.copy(trace, "trace.csv.gz")
    drawn, arrival_s, rows = random.Random(1), 0, ["job_id,arrival_s,gpus,duration_s"]
    for job in range(150):
        arrival_s += drawn.randint(0, 150)
        gpus = trace * drawn.choice([1, 1, 1, 2, 4, 8, 16, 32])
        rows.append(f"{job},{arrival_s},{gpus},{drawn.randint(60, 5000)}")
    Path("trace.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return "trace.csv"


# -- the command ---------------------------------------------------------------------------------------------


def computed(name: str) -> tuple[str, dict[Name, Digest]]:
    """A line about one case, and its digests."""
    began_s, message = sum(os.times()[:4]), ""  # with what the commands took
    try:
        tables = cases()[name]()
    except Exception as error:  # whatever it is, it is the result
        message = str(error).replace(f"{ROOT}{os.sep}", "") or repr(error)
        tables = of_data("message", {"text": message})
    line = f"{name}: {sum(os.times()[:4]) - began_s:.1f} s of CPU {message}"
    return line.rstrip(), digests(name, tables, RENAMED, NO_RESULT)


def compute(names: list[str], jobs: int) -> dict[Name, Digest]:
    """The digests of the cases, with a line on stderr for each."""
    found: dict[Name, Digest] = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(computed, name) for name in names]
        for k, task in enumerate(tasks, start=1):
            line, made = task.result()
            found |= made
            print(f"{k:3}/{len(names)} {line}", file=sys.stderr, flush=True)
    return found


def chosen(only: str) -> list[str]:
    """Names of the cases with `only` in them, without those whose data is not there."""
    names = [name for name in cases() if only in name]
    if not SCHEDULES.is_dir():
        print(f"without the cases C1: {SCHEDULES} is not there", file=sys.stderr)
        names = [name for name in names if not name.startswith("C1/")]
    return names


def about() -> str:
    """What else digests depend on."""
    versions = [f"{name} {metadata.version(name)}" for name in ("numpy", "numba", "scipy", "simpy")]
    return ", ".join([f"Python {platform.python_version()}", *versions, platform.machine()])


def main() -> int:
    """Write the digests, or compare with them; 1 when anything differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write the digests anew")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    names = chosen(arguments.only)
    if arguments.write and len(names) < len(cases()):
        parser.error("--write needs every case")
    now = compute(names, arguments.jobs)
    if arguments.write:
        failed = {name.case for name in now if name.table == "message" and not name.case.startswith("wrong/")}
        if failed:
            sys.exit(f"failed, and nothing is written: {', '.join(sorted(failed))}")
        write(DIGESTS, now, about())
        return 0
    where, then = read(DIGESTS)
    if where != about():
        print(f"the digests are of {where}; this is {about()}", file=sys.stderr)
    left_out = set(cases()) - set(names)
    found = differences({name: old for name, old in then.items() if name.case not in left_out}, now)
    for difference in found[:SHOWN]:
        print(*difference.name, difference.text, sep="  ")
    print(f"{len(found)} columns differ, of {len(now)} in {len(names)} cases")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
