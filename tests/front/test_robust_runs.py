"""Runs that are interrupted, get nowhere, fail beside others, or have nowhere to print to."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest
import yaml

import equipoise
from equipoise.cli import main
from equipoise.policies.contract import Kind, Memory, Plan, Stage
from equipoise.policies.observation import Observation
from equipoise.sim.run import INTERRUPTED, RunFailed, RunInterrupted
from equipoise.sim.world.stall import FRUITLESS_RESTARTS, IDLE_FAILURES
from tests.scenarios import model, scenario, simulate
from tests.study.runs.sweeps.sweep_helpers import run_folder

ROOT = Path(__file__).resolve().parents[2]
LONG = """schema_version: 1
name: long
cluster: {nodes: [{name: n, count: 2, gpus: 1}]}
workload:
  jobs: [{gpus: 1, duration: 30 s, count: 2, spacing: 10 s}, {name: tail, gpus: 1, duration: 100000 d}]
policy: [las]
decide: {every: 1 h}
"""


def command(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "equipoise.cli", *arguments], cwd=ROOT, text=True, stderr=subprocess.PIPE, **options
    )


@pytest.fixture
def long_case(tmp_path: Path) -> str:
    path = tmp_path / "long.yaml"
    path.write_text(LONG, encoding="utf-8")
    return str(path)


# -- Ctrl-C ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "last"), [(signal.SIGINT, 130, "interrupted at "), (signal.SIGTERM, 143, "ended by SIGTERM")]
)
def test_a_signal_keeps_what_has_been_simulated(
    number: int, code: int, last: str, long_case: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    running = command("run", long_case, "--out", str(out), "--timeline", "--journal", stdout=subprocess.PIPE)
    journal = out / "journal.jsonl"
    limit_s = time.monotonic() + 300.0  # the first run of a new environment compiles its kernels
    while not (journal.is_file() and journal.stat().st_size > 50_000):
        assert running.poll() is None
        assert time.monotonic() < limit_s, "the run has not begun to write its journal"
        time.sleep(0.02)
    running.send_signal(number)
    printed, said = running.communicate(timeout=60)
    assert running.returncode == code, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(f"equipoise: {last}")
    assert "records up to this time are in " in said
    assert " jobs are done " in printed
    assert json.loads((out / "manifest.json").read_text())["status"] == INTERRUPTED
    assert not (out / "summary.json").exists()
    done, busy_gpu_s = duckdb.sql(
        f"SELECT count(*) FILTER (NOT isnan(completion_s)), sum(busy_gpu_s) FROM '{out}/jobs.parquet'"
    ).fetchall()[0]
    assert (done, busy_gpu_s > 60.0) == (2, True)
    ends = duckdb.sql(f"SELECT end_reason FROM '{out}/timeline/segments.parquet'").fetchall()
    assert ("open",) in ends


HEARS = """
import os, signal
from equipoise.study.signals import terminable
signal.signal(signal.SIGINT, signal.SIG_IGN)
try:
    with terminable() as terminated:
        os.kill(os.getpid(), signal.SIGTERM)
        print("goes on")
except KeyboardInterrupt:
    print("heard", terminated())
os.kill(os.getpid(), signal.SIGTERM)
print("goes on")
"""


def test_sigterm_is_heard_where_ctrl_c_is_ignored_and_ends_what_does_not_ask() -> None:
    ended = subprocess.run([sys.executable, "-uc", HEARS], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("heard True\n", "", -signal.SIGTERM)


IN_A_LIBRARY = """
import os, signal, sys, time
from types import ModuleType
from equipoise.study import signals
library = ModuleType("{0}")
exec("def work(call, undone):\\n    call()\\n    undone.clear()", vars(library))
signals._PATIENCE_S = {2}
undone = ["memory"]
if {3}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
def wait():
    end_s = time.monotonic() + 60.0
    while time.monotonic() < end_s:
        time.sleep(0.001)
    print("goes on")
def call():
    signal.raise_signal(signal.SIG{1})
    end_s = time.monotonic() + 0.05
    while time.monotonic() < end_s:
        time.sleep(0.001)
try:
    with signals.terminable() as terminated:
        library.work(call, undone)
        wait()
except KeyboardInterrupt:
    print("heard", terminated(), undone)
"""


def in_a_library(name: str, sent: str, patience_s: float, ignored: bool = False) -> str:
    ended = subprocess.run(
        [sys.executable, "-uc", IN_A_LIBRARY.format(name, sent, patience_s, ignored)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (ended.stderr, ended.returncode) == ("", 0)
    return ended.stdout


@pytest.mark.parametrize("name", ["llvmlite.binding", "numba.core.typing"])
@pytest.mark.parametrize(
    ("sent", "ignored", "terminated"), [("INT", False, False), ("TERM", False, True), ("TERM", True, True)]
)
def test_a_signal_in_the_middle_of_machine_code_waits_until_it_returns(
    name: str, sent: str, ignored: bool, terminated: bool
) -> None:
    """Numba and llvmlite also where they call what is ours."""
    assert in_a_library(name, sent, 60.0, ignored) == f"heard {terminated} []\n"


def test_stop_is_asked_between_events_and_the_records_add_up() -> None:
    asked = iter([False] * 4 + [True])
    jobs = [{"gpus": 1, "duration": 10.0, "count": 5, "spacing": 1.0}]
    with pytest.raises(RunInterrupted, match="interrupted") as stopped:
        simulate(scenario(workload={"jobs": jobs}), stop=lambda: next(asked))
    made = stopped.value.run
    assert made.stopped == INTERRUPTED
    used = sum(made.jobs[f"{use}_gpu_s"].sum() for use in ("busy", "restart", "lost_to_faults"))
    assert used + made.totals["idle_gpu_s"] == pytest.approx(2 * made.totals["makespan_s"])


def test_a_run_that_is_stopped_does_not_take_a_finished_one_with_it(tmp_path: Path) -> None:
    jobs = [{"gpus": 1, "duration": 10.0, "count": 5, "spacing": 1.0}]
    case = scenario(workload={"jobs": jobs})
    first = equipoise.run(case, out=tmp_path, timeline=True, journal=True)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    asked = iter([False] * 4 + [True])
    with pytest.raises(RunInterrupted):
        equipoise.run(case, policy="easy", out=tmp_path, journal=True, stop=lambda: next(asked))
    assert {p: p.read_bytes() for p in before} == before
    assert (tmp_path / "unfinished" / "journal.jsonl").is_file()
    assert json.loads((tmp_path / "unfinished" / "manifest.json").read_text())["status"] == INTERRUPTED
    # One that ends well takes its place whole: nothing of the first is left.
    second = equipoise.run(case, policy="easy", out=tmp_path)
    assert first.identity != second.identity
    kept = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert kept == {"config.yaml", "jobs.parquet", "manifest.json", "summary.json"}


# -- faults that let nothing end ---------------------------------------------------------------------------------


def test_a_job_that_faults_throw_back_for_ever_is_named() -> None:
    job = {"name": "hopeless", "gpus": 2, "duration": 1e5, "checkpoint": {"interval": 1e4}}
    case = scenario(
        workload={"jobs": [job]},
        faults={"crash": {"mtbf": 60.0, "repair": 1.0}},
        restart={"detection": 0.0, "initialisation": 1.0},
    )
    with pytest.raises(RunFailed, match="job hopeless was interrupted by faults") as failed:
        simulate(case)
    assert failed.value.run.jobs["restarts"][0] == FRUITLESS_RESTARTS
    assert "with 60 s between failures of a node it never reaches a checkpoint" in str(failed.value)


def test_a_training_job_that_never_ends_a_period_is_named() -> None:
    job = {
        "name": "big",
        "gpus": 2,
        "model": "m",
        "steps": 10,
        "global_batch": 20,
        "workers_min": 1,
        "checkpoint": {"interval": "never", "size": 1e6},
    }
    case = scenario(
        workload={"models": {"m": model(sample_time=1000.0)}, "jobs": [job]},
        faults={"crash": {"mtbf": 60.0, "repair": 1.0}},
    )
    with pytest.raises(RunFailed, match="job big was interrupted by faults"):
        simulate(case)


def test_a_job_that_gets_on_slowly_is_left_alone() -> None:
    job = {"name": "slow", "gpus": 1, "duration": 30_000.0, "checkpoint": {"interval": 5.0}}
    case = scenario(
        cluster={"nodes": [{"gpus": 1}]},
        workload={"jobs": [job]},
        faults={"crash": {"mtbf": 10.0, "repair": 1.0}},
        restart={"detection": 0.0, "initialisation": 0.1},
    )
    made = simulate(case)
    assert made.summary()["completed"] == 1
    assert made.jobs["restarts"][0] > FRUITLESS_RESTARTS


def test_a_gang_for_which_the_nodes_are_never_up_together_is_named() -> None:
    job = {"name": "gang", "gpus": 12, "duration": 10.0, "arrival": 500.0}
    case = scenario(
        cluster={"nodes": [{"count": 12, "gpus": 1}]},
        workload={"jobs": [job]},
        faults={"crash": {"mtbf": 100.0, "repair": 1e5}},
    )
    with pytest.raises(RunFailed, match=f"nothing ran during the last {IDLE_FAILURES} node failures: job gang waits"):
        simulate(case)


# -- a policy that fails beside others ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Failing(Stage):
    """Raises at its third decision of a run."""

    name: ClassVar[str] = "failing"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        if observation.time_s > 5.0:
            raise RuntimeError("cannot go on")
        return plan, memory


def compared(tmp_path: Path, policies: Sequence[str]) -> tuple[int, Path]:
    from equipoise.cli import main

    case = tmp_path / "case.yaml"
    case.write_text(LONG.replace("100000 d", "1 min"), encoding="utf-8")
    chosen = [part for policy in policies for part in ("--policy", policy)]
    return main(["compare", str(case), *chosen, "--seeds", "1", "--out", str(tmp_path / "out")]), tmp_path / "out"


@pytest.fixture
def failing_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.policies import registry as policies

    monkeypatch.setitem(policies.BUILT_IN, "failing", f"{__name__}:Failing")


@pytest.mark.usefixtures("failing_stage")
def test_a_policy_that_fails_does_not_take_the_others_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compared(tmp_path, ["failing+fifo", "fifo", "sjf"])
    printed, said = capsys.readouterr()
    assert code == 3
    assert ["fifo", "sjf"] in [line.split() for line in printed.splitlines()]  # the table's header
    failures = [line for line in said.splitlines() if "failed" in line]
    assert len(failures) == 1
    assert failures[0].startswith("equipoise: failing+fifo seed 0 failed: stage failing")
    kept = json.loads((out / "comparison.json").read_text())
    assert len(kept["failures"]) == 1
    assert {run["policy"] for run in kept["runs"]} == {"fifo", "sjf"}
    assert (run_folder(out, "failing+fifo", 0) / "jobs.parquet").is_file()


@pytest.mark.usefixtures("failing_stage")
def test_when_every_policy_fails_so_does_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = compared(tmp_path, ["failing+fifo"])
    assert code == 1
    assert "cannot go on" in capsys.readouterr().err


# -- stdout ------------------------------------------------------------------------------------------------------


def shell(line: str, case: str) -> subprocess.CompletedProcess[str]:
    run = f"'{sys.executable}' -m equipoise.cli run '{case}'"
    return subprocess.run(
        ["sh", "-c", line.replace("RUN", run)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def short_case(tmp_path: Path) -> str:
    path = tmp_path / "short.yaml"
    path.write_text(LONG.replace("100000 d", "1 min"), encoding="utf-8")
    return str(path)


def test_a_closed_stdout_is_one_clear_line(short_case: str, tmp_path: Path) -> None:
    done = shell(f"RUN --quiet --out '{tmp_path}/out' >&-", short_case)
    assert done.returncode == 0
    said = [line for line in done.stderr.splitlines() if line.startswith("equipoise:")]
    assert said == ["equipoise: stdout is closed, so results are not printed"]
    assert "Error" not in done.stderr
    assert (tmp_path / "out" / "summary.json").is_file()


def test_a_closed_stderr_does_not_spoil_the_data(short_case: str) -> None:
    done = shell("RUN --format json 2>&-", short_case)
    assert done.returncode == 0
    assert json.loads(done.stdout)["completed"] == 3


def test_a_reader_that_goes_away_is_no_traceback(short_case: str) -> None:
    done = shell("(RUN --quiet --format json; echo $? >&2) | true", short_case)
    assert done.stderr.strip() in ("0", "1")


@pytest.mark.parametrize("what", ["timeline", "journal"])
def test_what_is_to_be_kept_needs_a_folder(what: str, short_case: str, capsys: pytest.CaptureFixture[str]) -> None:
    from equipoise.cli import main

    assert main(["run", short_case, f"--{what}"]) == 2
    assert f"--{what} needs --out DIR" in capsys.readouterr().err


# -- what is there already -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scenario, a sweep, a run, and one whose events are gone."""
    made = tmp_path_factory.mktemp("whole")
    case = scenario(workload={"jobs": [{"gpus": 1, "duration": 10.0}]})
    (made / "case.yaml").write_text(yaml.safe_dump(json.loads(case.model_dump_json(exclude_defaults=True))))
    (made / "sweep.yaml").write_text(
        "{schema_version: 1, name: s, scenario: case.yaml, policies: [fifo], seeds: 1, "
        "parameters: {workload.jobs.0.gpus: [1]}}"
    )
    equipoise.run(made / "case.yaml", out=made / "run", timeline=True)
    shutil.copytree(made / "run", made / "damaged")
    (made / "damaged" / "timeline" / "events.parquet").write_bytes(b"")
    return made


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report run --out run/summary.json", "run/summary.json: is a part of a result"),
        ("report run --out case.yaml", "case.yaml: is there and is no .html or .htm file"),
        ("report run --out ''", "--out: a file name is needed"),
        ("timeline run --out run/timeline/usage.parquet", "usage.parquet: is a part of a result"),
        ("query --out run 'select 1' --to run/jobs.parquet", "run/jobs.parquet: is a part of a result"),
        ("export case.yaml --out case.yaml", "case.yaml: exists and is not a policy file"),
        ("calibrate --device cpu --quick --out case.yaml", "case.yaml: not a profile (it has 'cluster')"),
        (
            "size case.yaml --vary cluster.nodes.0.count=2:3 --target makespan<=2h --confidence nan",
            "'nan' is not a number",
        ),
        (f"run case.yaml --out {300 * 'x'}", "File name too long: 300 characters between slashes"),
        (f"query --out run 'select 1' --to {300 * 'x'}.csv", "File name too long"),
        ("report damaged", "too small to be a Parquet file"),
    ],
)
def test_nothing_that_is_there_is_destroyed(
    line: str,
    says: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert main(shlex.split(line)) == 2
    assert says in capsys.readouterr().err
    assert {p: p.read_bytes() for p in before} == before


def test_an_earlier_output_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    equipoise.run(scenario(workload={"jobs": [{"gpus": 1, "duration": 10.0}]}), out="run", timeline=True)
    Path("timeline").mkdir()  # names like those of a result, where there is none
    for line in (
        "report run --out page.html",
        "timeline run --out timeline/trace.json.gz",
        "query --out run 'select 1' --to jobs.parquet",
    ):
        assert main(shlex.split(line)) == main(shlex.split(line)) == 0, line
