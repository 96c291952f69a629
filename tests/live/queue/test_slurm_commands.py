"""Slurm's commands as the scheduler reads and calls them: a fake made from recorded answers, and its failures."""

from __future__ import annotations

import csv
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.live.queue.lease import Watchdog
from equipoise.live.queue.manager import ManagerError, NotAllowedError, Phase, QueueChange, Verb
from equipoise.live.queue.record import Record, Touched
from equipoise.live.queue.slurm import Slurm
from tests.bench.slurm_runs import PAGE, RESULTS, table
from tests.live.queue.fake import install
from tests.live.queue.real import RealSlurm

RECORDED = Path(__file__).parent / "recorded"
"""What the commands of Slurm 22.05.8 printed for the fields that are asked for."""

MADE = """\
n[2]|drained|gpu:a100:4(S:0-1)|gpu:a100:0(IDX:N/A)|64000|32|
n3|idle*|gpu:a100:4|gpu:a100:0|64000|32|
cpu|idle|(null)|(null)|64000|32|
"""
"""Nodes that one machine cannot show, as the manual writes them."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake's commands first on the path."""
    for name, value in install(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def put(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_recorded_answers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").write_text((RECORDED / "sinfo.txt").read_text() * 2 + MADE)  # in two partitions
    put(tmp_path, "squeue", f"cat {RECORDED}/squeue.txt")
    put(tmp_path, "sinfo", f"cat {tmp_path}/nodes")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = Slurm("main").snapshot()
    jobs = {job.name: job for job in found.jobs if job.name != "arr"}
    assert {name: (job.gpus, job.phase.value) for name, job in jobs.items()} == {
        "gone": (1, "ended"),
        "byhand": (8, "waiting"),
        "dep": (1, "waiting"),
        "later": (1, "waiting"),
        "heldlater": (8, "waiting"),
        "held": (4, "waiting"),
        "a|b c": (3, "running"),
        "pt": (4, "running"),
        "cpu": (0, "waiting"),
    }
    assert sorted((job.phase.value, job.id, job.ref) for job in found.jobs if job.name == "arr") == [
        ("running", 22, "15_0"),
        ("waiting", 15, "15_[1]"),
    ]
    byhand, pt, gone = jobs["byhand"], jobs["pt"], jobs["gone"]
    assert (byhand.nice, byhand.priority, byhand.limit_s) == (-50, 4294901794, math.inf)
    assert (pt.limit_s, pt.requeues, byhand.requeues, pt.start_s) == (3600.0, False, True, 1795362151.0)
    assert (gone.start_s, gone.end_s, gone.nodes) == (1795362151.0, 1795362155.0, ("vm",))
    assert math.isnan(jobs["later"].start_s)  # expected, not a start
    assert jobs["later"].eligible_s == 1795363154.0
    assert {name for name, job in jobs.items() if job.held} == {"held", "heldlater"}
    assert [(n.name, n.gpus, n.gpus_used, n.up, n.gpu_type) for n in found.nodes] == [
        ("vm", 8, 8, True, ""),
        ("n2", 4, 0, False, "a100"),
        ("n3", 4, 0, False, "a100"),
    ]


def test_an_empty_queue_has_no_jobs(fake: Path) -> None:
    found = Slurm("main").snapshot()
    assert found.jobs == ()
    assert found.nodes[0].gpus == 8


def test_changes_reach_slurm_and_the_next_snapshot_shows_them(fake: Path) -> None:
    for _ in range(3):
        subprocess.run(["sbatch", "--gres=gpu:8", "--job-name=x", "--wrap", "sleep 600"], check=True)
    subprocess.run(["sbatch", "--hold", "--gres=gpu:8", "--job-name=x", "--wrap", "sleep 600"], check=True)
    slurm = Slurm("main")
    before = {job.id: job for job in slurm.snapshot().jobs}
    assert [before[k].held for k in (1, 2, 3, 4)] == [False, False, False, True]
    said = slurm.carry_out(
        [QueueChange(Verb.PRIORITY, 3, -7), QueueChange(Verb.REQUEUE, 1), QueueChange(Verb.PRIORITY, 99, 1)]
    )
    assert said == ""  # what is gone is not asked for
    found = slurm.snapshot()
    after = {job.id: job for job in found.jobs}
    assert (after[3].nice, after[3].priority - before[3].priority) == (-7, 7)
    assert after[4].held
    assert 100 < after[1].eligible_s - found.time_s < 121
    assert after[3].phase is Phase.RUNNING  # it came before job 2


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str = "") -> tuple[Slurm, Path]:
    """A Slurm that shows the recorded queue and writes down what scontrol is told."""
    put(folder, "squeue", f"cat {RECORDED}/squeue.txt")
    put(folder, "sinfo", f"cat {RECORDED}/sinfo.txt")
    put(folder, "sprio", "printf '19|50|0|0|0|0|0|0\\n16|5000|0|0|0|0|0|0\\n18|1200|900|300|0|0|0|0\\n'")
    show = "PriorityType = priority/multifactor"
    log = folder / "log"
    put(folder, "scontrol", f'if [ "$1" = show ]; then echo "{show}"; else cat >> {log}; {says or "true"}; fi')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slurm("main"), log


def test_tasks_are_named_one_by_one_and_what_changed_meanwhile_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, log = recorded(tmp_path, monkeypatch)
    slurm.snapshot()
    assert slurm.set_directly() == {16}  # the nice of 19 alone makes its priority
    slurm.carry_out(
        [
            QueueChange(Verb.PRIORITY, 15, -3, 0),  # of an array, what still waits
            QueueChange(Verb.REQUEUE, 22),  # one task of it, not its id, which is the array's for Slurm
            QueueChange(Verb.PRIORITY, 17, -2, 0),  # held
            QueueChange(Verb.PRIORITY, 19, -9, 0),  # its nice is -50 by now
            QueueChange(Verb.RESTORE, 17, 7, -50),  # a held job, too
        ]
    )
    assert log.read_text().splitlines() == ["update jobid=15_[1] nice=-3", "requeue 15_0", "update jobid=17 nice=7"]


def test_without_rights_nothing_but_the_first_line_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, log = recorded(tmp_path, monkeypatch, "echo 'Access/permission denied for job 16' >&2")
    with pytest.raises(NotAllowedError, match="needs the rights of a Slurm operator"):
        slurm.carry_out([QueueChange(Verb.PRIORITY, 15, 9, 0), QueueChange(Verb.PRIORITY, 16, -9, 0)])
    assert log.read_text() == "update jobid=16 nice=-9\n"


def test_a_nice_value_set_in_the_last_moment_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm shows right before our change that the user of 16 has set 7; that of 18 did nothing."""
    shown = "echo 'JobId=16 JobName=x\n   Priority=5 Nice=7 A=b'; echo 'JobId=18 JobName=x\n   Priority=5 Nice=0 A=b'"
    slurm, log = recorded(tmp_path, monkeypatch, shown)
    slurm.carry_out([QueueChange(Verb.PRIORITY, 16, -9, 0), QueueChange(Verb.PRIORITY, 18, 9, 0)])
    assert log.read_text().splitlines() == [
        "update jobid=16 nice=-9",
        "show job 16",
        "show job 18",
        "update jobid=18 nice=9",
        "update jobid=16 nice=7",
    ]


def test_what_slurm_does_not_answer_is_one_line(fake: Path) -> None:
    (fake / "state.down").touch()
    with pytest.raises(ManagerError, match=r"^sinfo: slurm_load_jobs error: Unable to contact slurm controller"):
        Slurm("main").snapshot()
    put(fake, "sinfo", "sleep 60")
    with pytest.raises(ManagerError, match=r"^sinfo: no answer within 0\.2 s$"):
        Slurm("main", timeout_s=0.2).snapshot()
    put(fake, "sinfo", "echo nonsense")
    with pytest.raises(ManagerError):
        Slurm("main").snapshot()


@pytest.mark.parametrize("name", ["a b", "x;y", "$(z)"])
def test_a_partition_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a name of a partition"):
        Slurm(name)


def left_alone(fake: Path) -> tuple[Slurm, Record, Watchdog]:
    """A queue whose third job has another nice value, which its watchdog has to give back."""
    for _ in range(3):
        subprocess.run(["sbatch", "--gres=gpu:8", "--job-name=x", "--wrap", "sleep 600"], check=True)
    slurm = Slurm("main")
    slurm.snapshot()
    slurm.carry_out([QueueChange(Verb.PRIORITY, 3, -7)])
    record = Record(fake / "journal")
    record.touched.update({3: {"nice": 0, "lease": False, "set": [-7]}})
    record.keep_touched()
    return slurm, record, Watchdog(fake / "journal", "main", "")


@pytest.mark.long
def test_the_watchdog_gives_back_when_its_scheduler_is_gone(fake: Path) -> None:
    slurm, record, watchdog = left_alone(fake)
    reads = Path(f"/proc/{watchdog._process.pid}/wchan")
    RealSlurm.wait_for(lambda: "pipe_read" in reads.read_text(), 60.0, "it waits for the end of the pipe")
    assert watchdog._process.stdin is not None
    watchdog._process.stdin.close()  # what happens when the scheduler dies,
    time.sleep(1.0)
    record.close()  # and its files are closed a moment after the pipe
    assert watchdog._process.wait(30) == 0
    assert {job.nice for job in slurm.snapshot().jobs} == {0}
    said = (fake / "journal" / "events.jsonl").read_text()
    assert '"event":"watchdog","verb":"restore","id":3,"value":0' in said


def test_a_watchdog_that_is_dismissed_does_nothing(fake: Path) -> None:
    slurm, record, watchdog = left_alone(fake)
    record.close()
    watchdog.dismiss()
    assert watchdog._process.returncode == -signal.SIGKILL
    assert {job.id: job.nice for job in slurm.snapshot().jobs} == {1: 0, 2: 0, 3: -7}
    assert "watchdog" not in (fake / "journal" / "events.jsonl").read_text()


def test_a_damaged_list_of_what_was_touched_is_said(tmp_path: Path) -> None:
    (tmp_path / "touched.json").write_text("{nonsense")
    with pytest.raises(ValueError, match=r"touched\.json: is damaged"):
        Touched.read(tmp_path)


@pytest.mark.long
def test_the_command_orders_a_queue_and_gives_it_back(fake: Path) -> None:
    """The whole way: sbatch, schedule, twin; no Slurm needed."""
    (fake / "took.csv").write_text("name,duration_s\nlong,3\nshort,1\n")
    command = [sys.executable, "-m", "equipoise.cli", "schedule", "sjf", "--partition", "main", "--mode", "act"]
    command += ["--every", "0.1", "--journal", str(fake / "j"), "--estimates", str(fake / "took.csv")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "nodes" in line:
            for name, seconds in (("block", 2), ("long", 3), ("short", 1)):
                subprocess.run(
                    ["sbatch", "--gres=gpu:8", f"--job-name={name}", "--wrap", f"sleep {seconds}"], check=True
                )
            break
    slurm = Slurm("main")
    over = {Phase.ENDED}
    RealSlurm.wait_for(lambda: {job.phase for job in slurm.snapshot().jobs} == over, 60.0, "all have ended")
    process.terminate()
    assert process.wait(30) == 0
    states = {job.name: job.start_s for job in slurm.snapshot().jobs}
    assert states["block"] < states["short"] < states["long"]


def test_the_table_of_the_page_is_that_of_the_runs() -> None:
    with RESULTS.open(newline="") as file:
        assert table(list(csv.DictReader(file))) in PAGE.read_text()
