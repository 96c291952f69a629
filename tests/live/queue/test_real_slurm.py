"""`equipoise schedule` in front of a real Slurm on this machine: deaths, restarts, changes by hand, 200 at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.live.queue.real import RealSlurm, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no Slurm to be had here: {why_not()}")
long = pytest.mark.long
ROOT = Path(__file__).parents[3]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[RealSlurm]:
    try:
        running = RealSlurm(tmp_path / "slurm")
    except (subprocess.SubprocessError, AssertionError, TimeoutError) as error:
        pytest.skip(f"the Slurm that is installed does not start here: {error}")
    yield running
    running.stop()


class Schedule:
    """The command, in front of a Slurm."""

    def __init__(self, slurm: RealSlurm, *arguments: str) -> None:
        self.slurm, self.journal = slurm, slurm.folder / "journal"
        command = [sys.executable, "-m", "equipoise.cli", "schedule", *arguments]
        command += ["--partition", "main", "--journal", str(self.journal), "--every", "0.5"]
        with (slurm.folder / "schedule.log").open("a") as log:
            self.process = subprocess.Popen(command, env=slurm.env, stdout=log, stderr=subprocess.STDOUT)
        begun = len(self.events("begun"))
        slurm.wait_for(lambda: len(self.events("begun")) > begun, 300.0, "the scheduler decides")

    def events(self, kind: str) -> list[dict[str, Any]]:
        try:
            lines = (self.journal / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event.get("event") == kind]

    def watchdog(self) -> int:
        """The id of the process that gives the queue back."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
        return next(child for child, line in lines.items() if b"queue.lease" in line)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


def estimates(folder: Path, seconds: dict[str, float]) -> str:
    path = folder / "estimates.csv"
    path.write_text("name,duration_s\n" + "".join(f"{name},{took}\n" for name, took in seconds.items()))
    return str(path)


def all_over(slurm: RealSlurm) -> bool:
    return all(job["State"] in ("COMPLETED", "CANCELLED") for job in slurm.jobs().values())


def nices(slurm: RealSlurm) -> set[str]:
    return {job["Nice"] for job in slurm.jobs().values() if job["State"] == "PENDING"}


def waiting(slurm: RealSlurm) -> list[str]:
    jobs = [job for job in slurm.jobs().values() if job["State"] == "PENDING"]
    return [job["Name"].strip() for job in sorted(jobs, key=lambda job: -int(job["PriorityLong"]))]


def starts(slurm: RealSlurm) -> list[str]:
    jobs = [job for job in slurm.jobs().values() if job["State"] == "COMPLETED"]
    return [job["Name"].strip() for job in sorted(jobs, key=lambda job: int(job["StartTime"]))]


TOOK = {"block": 6.0, "a": 5.0, "b": 1.0, "c": 4.0, "d": 3.0, "e": 2.0}


def submit(slurm: RealSlurm, until: Mapping[str, float | Path]) -> dict[str, int]:
    first = {"block": slurm.submit(until["block"], 8, "block")}
    slurm.wait_for(lambda: slurm.jobs()[first["block"]]["State"] == "RUNNING", 60.0, "the first job runs")
    return first | {name: slurm.submit(until[name], 8, name) for name in "abcde"}


@long
@pytest.mark.parametrize(
    ("scheduler", "priority"),
    [("builtin", "basic"), ("backfill", "basic"), ("builtin", "multifactor"), ("backfill", "multifactor")],
)
def test_jobs_start_in_the_order_of_the_policy(tmp_path: Path, scheduler: str, priority: str) -> None:
    slurm = RealSlurm(tmp_path / "slurm", f"sched/{scheduler}", f"priority/{priority}")
    try:
        schedule = Schedule(slurm, "sjf", "--mode", "act", "--estimates", estimates(slurm.folder, TOOK))
        free = slurm.folder / "free"
        submit(slurm, TOOK | {"block": free})
        slurm.wait_for(lambda: waiting(slurm) == [*"bedca"], 60.0, "they wait in the order of the policy")
        free.touch()
        slurm.wait_for(lambda: all_over(slurm), 120.0, "all jobs have ended")
        assert starts(slurm) == ["block", *"bedca"]
        schedule.end()
    finally:
        slurm.stop()


def refused(slurm: RealSlurm, *arguments: str, user: str = "") -> str:
    """The last line of a command that exits with 2."""
    command = [sys.executable, "-m", "equipoise.cli", "schedule", "sjf", *arguments]
    env = slurm.env | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=env, cwd=slurm.folder, capture_output=True, text=True, timeout=120, user=user or None
    )
    assert done.returncode == 2, (done.stdout, done.stderr)
    return done.stderr.splitlines()[-1]


@long
def test_what_cannot_be_scheduled_is_refused_in_one_line(tmp_path: Path) -> None:
    slurm = RealSlurm(tmp_path / "slurm", tier=1)
    try:
        act = ("--partition", "main", "--mode", "act")
        assert refused(slurm, *act).startswith("equipoise: sched/builtin with priority/basic starts jobs in")
        said = refused(slurm, "--partition", "mian")
        assert said == "equipoise: --partition: 'mian' is not a partition of this cluster; did you mean 'main'?"
    finally:
        slurm.stop()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[RealSlurm]:
    """Two nodes, accounts and QOS, all GPUs held by one job until `free` is there."""
    if missing := [
        name for name in ("slurmdbd", "mariadbd") if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]:
        pytest.skip(f"{missing[0]} is not installed")
    slurm = RealSlurm(tmp_path / "slurm", *MULTIFACTOR, nodes={"m1": 4, "m2": 4}, accounts="")
    block = slurm.submit(slurm.folder / "free", 4, "block", "--nodes=2")
    slurm.wait_for(lambda: slurm.jobs()[block]["State"] == "RUNNING", 60.0, "the first job runs")
    yield slurm
    slurm.stop()


MULTIFACTOR = "sched/backfill", "priority/multifactor"


@long
def test_a_policy_keeps_to_the_order_of_qos_and_to_priorities_that_were_set(shared: RealSlurm) -> None:
    for name, qos, minutes in (("n9", "normal", 9), ("u8", "urgent", 8), ("n3", "normal", 3), ("u7", "urgent", 7)):
        shared.submit(1, 4, name, f"--qos={qos}", f"--time={minutes}", "--uid=nobody")
    raised = shared.submit(1, 4, "raised", "--qos=normal", "--time=10")
    shared.run("scontrol", "update", f"jobid={raised}", "priority=50000")
    schedule = Schedule(shared, "sjf", "--mode", "act")
    shared.wait_for(lambda: waiting(shared) == ["raised", "u7", "u8", "n3", "n9"], 60.0, "the order within each QOS")
    schedule.end()
    assert nices(shared) == {"0"}
    schedule = Schedule(shared, "sjf", "--mode", "act", "--across-qos")
    shared.wait_for(lambda: waiting(shared) == ["raised", "n3", "u7", "u8", "n9"], 60.0, "the order across QOS")
    schedule.end()
    assert shared.jobs()[raised]["PriorityLong"] == "50000"


@long
def test_a_user_without_rights_changes_nothing(shared: RealSlurm) -> None:
    for name, minutes in (("a", 9), ("b", 3)):
        shared.submit(1, 4, name, f"--time={minutes}", "--uid=nobody")
    for folder in list(shared.folder.parents)[:3]:
        folder.chmod(0o755)  # for the configuration
    (own := shared.folder / "scontrol").write_text('#!/bin/sh\nexec runuser -u nobody -- /usr/bin/scontrol "$@"\n')
    own.chmod(0o755)
    shared.env["PATH"] = f"{shared.folder}:{shared.env['PATH']}"
    said = refused(shared, "--partition=main", "--mode=act")
    assert "needs the rights of a Slurm operator" in said
    assert '"did"' not in (shared.folder / "queue-journal" / "events.jsonl").read_text()
    assert nices(shared) == {"0"}


@long
def test_one_task_of_an_array_is_requeued(tmp_path: Path) -> None:
    slurm = RealSlurm(tmp_path / "slurm", "sched/backfill")
    try:
        array = slurm.submit("$((SLURM_ARRAY_TASK_ID * 600 + 1))", 8, "array", "--array=0-1%1", "--time=30")
        slurm.wait_for(lambda: slurm.jobs()[array]["State"] == "RUNNING", 60.0, "the last task has the array's id")
        done = slurm.jobs()[array + 1]
        schedule = Schedule(slurm, "srtf", "--mode", "act", "--requeue", "--restart", "1", "--budget", "30")
        short = slurm.submit(1, 8, "short", "--time=1")
        slurm.wait_for(lambda: slurm.jobs()[short]["State"] == "COMPLETED", 60.0, "the short job has ended")
        assert [e["id"] for e in schedule.events("did") if e["verb"] == "requeue"] == [array]
        assert (done["State"], slurm.jobs()[array + 1]) == ("COMPLETED", done)
        schedule.end()
    finally:
        slurm.stop()


@long
@pytest.mark.parametrize("priority", ["basic", "multifactor"])
def test_what_users_do_meanwhile_stays_as_they_did_it(tmp_path: Path, priority: str) -> None:
    """Random verbs, VERBS of them: at the end each waiting job has the nice, hold and priority of its user.

    One GPU is left to others, so that some jobs run and are requeued.
    """
    slurm, random = RealSlurm(tmp_path / "slurm", "sched/backfill", f"priority/{priority}"), Random(1)
    want: dict[str, dict[str, int]] = {}  # by task

    def submit() -> None:
        """A job, or an array of three."""
        tasks, nice = random.choice([1, 1, 3]), random.choice([0, 0, 100])
        array = [f"--array=0-{tasks - 1}"] * (tasks > 1)
        job = slurm.submit(9999, random.randint(1, 4), "x", f"--nice={nice}", f"--time={random.randint(1, 99)}", *array)
        names = [f"{job}_{k}" for k in range(tasks)] if array else [f"{job}"]
        want.update({name: {"nice": nice, "held": 0, "priority": 0} for name in names})

    def running() -> set[str]:
        """Tasks that run."""
        return set(slurm.run("squeue", "-h", "-r", "-t", "R,CG", "-o", "%i").split()) - {str(block)}

    def started() -> bool:
        """Whether the free GPU has been taken."""
        return bool(running())

    try:
        block = slurm.submit(9999, 7, "block")
        slurm.wait_for(lambda: slurm.jobs()[block]["State"] == "RUNNING", 60.0, "the first job runs")
        schedule = Schedule(slurm, "sjf", "--mode", "act", "--changes", "1000")
        for _ in range(20):
            submit()
        slurm.wait_for(started, 30.0, "one job runs beside it")
        for _ in range(int(os.environ.get("VERBS", "150"))):
            task, verb, number = random.choice(list(want)), random.choice("sshhrrcnptdq"), random.randint(2000, 9000)
            its = want[task]
            if verb == "s":
                submit()
            elif task in (run := running()) or verb == "q":  # what runs is stopped, now and then
                task = random.choice(sorted(run) or [task])
                slurm.run(*(["scontrol", "requeue"] if verb in "qr" else ["scancel"]), task)
                if verb not in "qr":
                    del want[task]
                with contextlib.suppress(TimeoutError):
                    slurm.wait_for(started, 10.0, "the next one runs")
            elif verb == "h":
                slurm.run("scontrol", random.choice(["hold", "uhold"]), task)
                its["held"] = 1
            elif verb == "r":  # Slurm takes the nice of a job that was not held
                slurm.run("scontrol", "release", task)
                its.update(nice=its["nice"] * its["held"], held=0, priority=0)
            elif verb == "c":
                slurm.run("scancel", task)
                del want[task]
            elif verb in "td":
                value = f"timelimit={number}" if verb == "t" else f"dependency=afterany:{block}"
                slurm.run("scontrol", "update", f"jobid={task}", value)
            elif verb == "n" and not its["held"] and not its["priority"]:
                slurm.run("scontrol", "update", f"jobid={task}", f"nice={number}")
                its["nice"] = number
            elif verb == "p" and not its["held"]:
                slurm.run("scontrol", "update", f"jobid={task}", f"priority={number}")
                its.update(priority=number, nice=0)  # as Slurm does
            time.sleep(random.choice([0, 0, 0.5]))
        assert nices(slurm) - {str(its["nice"]) for its in want.values()}, "nothing was moved"
        schedule.end()
        form = "JobArrayID:|,Nice:|,PriorityLong:|"
        rows = [row.split("|") for row in slurm.run("squeue", "-h", "-r", "-t", "PD", "-O", form).splitlines()]
        found = {
            task: {"nice": int(nice), "held": int(rank == "0"), "priority": int(rank)} for task, nice, rank, _ in rows
        }
        assert set(found) == set(want) - running()
        for task, its in ((task, want[task]) for task in found):
            fixed = its["priority"] if its["priority"] and not its["held"] else found[task]["priority"]
            assert found[task] == its | {"priority": fixed}, task
    finally:
        slurm.stop()


def test_killed_in_the_middle_everything_ends_as_slurm_orders_it(slurm: RealSlurm) -> None:
    schedule = Schedule(slurm, "sjf", "--mode", "act", "--estimates", estimates(slurm.folder, TOOK))
    given_back = slurm.folder / "given-back"
    submit(slurm, {"block": given_back, **dict.fromkeys("abcde", 0.1)})
    slurm.wait_for(lambda: nices(slurm) - {"0"}, 60.0, "the order was changed")
    watchdog = os.pidfd_open(schedule.watchdog())
    schedule.process.kill()
    schedule.process.wait(10)
    slurm.wait_for(lambda: schedule.events("watchdog") != [], 60.0, "the watchdog gives back")
    slurm.wait_for(lambda: nices(slurm) <= {"0"}, 60.0, "no job has a nice value of ours")
    assert select.select([watchdog], [], [], 60.0)[0], "the watchdog ends while there is a Slurm"
    os.close(watchdog)
    given_back.touch()
    slurm.wait_for(lambda: all_over(slurm), 120.0, "all jobs have ended")
    assert {job["State"] for job in slurm.jobs().values()} == {"COMPLETED"}


@long
def test_a_controller_that_is_restarted_is_waited_for(slurm: RealSlurm) -> None:
    options = ["--mode", "act", "--timeout", "3", "--estimates", estimates(slurm.folder, TOOK | {"block": 12.0})]
    schedule = Schedule(slurm, "sjf", *options)
    block = slurm.submit(12.0, 8, "block")
    slurm.wait_for(lambda: slurm.jobs()[block]["State"] == "RUNNING", 30.0, "the first job runs")
    for name in "ab":
        slurm.submit(TOOK[name], 8, name)
    slurm.kill("slurmctld")
    slurm.wait_for(lambda: schedule.events("lost") != [], 60.0, "the scheduler has noticed")
    slurm.start_controller()
    for name in "cde":
        slurm.submit(TOOK[name], 8, name)
    slurm.wait_for(lambda: schedule.events("found again") != [], 90.0, "the scheduler goes on")
    slurm.wait_for(lambda: all_over(slurm), 180.0, "all jobs have ended")
    assert len(starts(slurm)) == 6
    assert {job["State"] for job in slurm.jobs().values()} == {"COMPLETED"}
    schedule.end()


@long
def test_a_running_job_is_requeued_where_that_is_allowed(slurm: RealSlurm) -> None:
    """srtf stops the long job for the short one; the one that forbids it is left alone."""
    took = {"fixed": 90.0, "long": 60.0, "short": 2.0}
    options = ["--mode", "act", "--requeue", "--restart", "1", "--budget", "30"]
    options += ["--estimates", estimates(slurm.folder, took)]
    schedule = Schedule(slurm, "srtf", *options)
    over = slurm.folder / "over"
    fixed = slurm.submit(over, 4, "fixed", "--no-requeue")
    long = slurm.submit(took["long"], 4, "long")
    slurm.wait_for(lambda: slurm.jobs()[long]["State"] == "RUNNING", 30.0, "both run")
    first_s = int(slurm.jobs()[long]["StartTime"])
    short = slurm.submit(took["short"], 4, "short")
    slurm.wait_for(lambda: slurm.jobs()[short]["State"] == "COMPLETED", 60.0, "the short job has ended")
    assert slurm.jobs()[fixed]["State"] == "RUNNING"
    over.touch()
    slurm.wait_for(lambda: all_over(slurm), 300.0, "all jobs have ended")
    found = slurm.jobs()
    assert {job["State"] for job in found.values()} == {"COMPLETED"}
    assert int(found[long]["StartTime"]) > first_s
    assert int(found[short]["EndTime"]) <= int(found[long]["StartTime"])
    requeues = [e for e in schedule.events("did") if e["verb"] == "requeue"]
    assert [event["id"] for event in requeues] == [long]
    schedule.end()


@long
def test_nothing_is_lost_of_200_at_once_one_cancelled_and_one_changed_by_hand(slurm: RealSlurm) -> None:
    schedule = Schedule(slurm, "s4", "--mode", "act", "--changes", "1000")
    free = slurm.folder / "free"
    block = slurm.submit(free, 8, "block")
    slurm.wait_for(lambda: slurm.jobs()[block]["State"] == "RUNNING", 30.0, "the first job runs")
    jobs = [slurm.submit(0.1, 1 + k % 4, f"job-{k}", f"--time={1 + k * 7 % 13}") for k in range(200)]
    slurm.wait_for(lambda: len(schedule.events("job")) == 201, 60.0, "all are seen")
    by_hand = next(job for job in jobs if slurm.jobs()[job]["Nice"] != "0")
    cancelled = next(job for job in jobs if job != by_hand)
    slurm.run("scontrol", "update", f"jobid={by_hand}", "nice=77")
    slurm.run("scancel", str(cancelled))
    free.touch()
    slurm.wait_for(lambda: all_over(slurm), 400.0, "all jobs have ended")
    found = slurm.jobs()
    assert {number: job["State"] for number, job in found.items() if job["State"] != "COMPLETED"} == {
        cancelled: "CANCELLED"
    }
    assert len(found) == 201
    assert found[by_hand]["Nice"] == "77"
    assert by_hand in [event["id"] for event in schedule.events("left alone")]
    slurm.wait_for(lambda: len(schedule.events("end")) == 201, 60.0, "all ends are on record")
    schedule.end()
    assert not any(job["PriorityLong"] == "0" for job in slurm.jobs().values())


def blocks(kind: str) -> list[str]:
    text = (ROOT / "docs" / "schedule.md").read_text()
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)


@long
def test_the_ten_commands_of_the_page_run(slurm: RealSlurm) -> None:
    (slurm.folder / "queue.yaml").write_text(blocks("yaml")[0])
    commands = blocks("sh")[0].splitlines()
    assert len(commands) == 10
    env = slurm.env | {"PATH": f"{Path(sys.executable).parent}:{slurm.env['PATH']}"}
    said = []
    for command in commands:
        limited = command.startswith("timeout")
        if limited:
            for k in range(6):
                slurm.submit(1.0 + 2 * (k % 2), 8, f"job-{k}", f"--time={1 + 5 * (k % 2)}")
        shorter = re.sub(r"^timeout \w+", "timeout 40", command)
        done = subprocess.run(["bash", "-c", shorter], env=env, cwd=slurm.folder, capture_output=True, text=True)
        assert done.returncode == (124 if limited else 0), (command, done.stdout, done.stderr)
        said.append(done.stdout)
    assert "in the live order" in said[4]
    assert int(said[7]) > 0
    assert " did priority job " in said[8]
    assert "100 % of the starts within 5 s" in said[9]
