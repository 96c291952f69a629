"""`equipoise schedule` in front of a real Slurm on this machine: deaths, restarts, changes by hand, 200 at once."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.live.queue.real import RealSlurm, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no Slurm to be had here: {why_not()}")
long = pytest.mark.long


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


@long
def test_a_slurm_that_does_not_look_at_priorities_is_refused(tmp_path: Path) -> None:
    slurm = RealSlurm(tmp_path / "slurm", tier=1)
    try:
        command = [sys.executable, "-m", "equipoise.cli", "schedule", "sjf", "--partition", "main", "--mode", "act"]
        done = subprocess.run(command, env=slurm.env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith("equipoise: sched/builtin with priority/basic starts jobs in")
    finally:
        slurm.stop()


def test_killed_in_the_middle_everything_ends_and_nothing_stays_held(slurm: RealSlurm) -> None:
    schedule = Schedule(
        slurm, "sjf", "--mode", "act", "--held", "--lease", "20", "--estimates", estimates(slurm.folder, TOOK)
    )
    given_back = slurm.folder / "given-back"
    submit(slurm, {"block": given_back, **dict.fromkeys("abcde", 0.1)})
    held = slurm.submit(0.1, 8, "held", "--hold")
    slurm.wait_for(lambda: slurm.jobs()[held]["PriorityLong"] != "0", 60.0, "the hold became a lease")
    slurm.wait_for(lambda: nices(slurm) > {"0"}, 60.0, "the order was changed")
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
def test_without_the_watchdog_slurm_itself_lets_the_held_jobs_go(slurm: RealSlurm) -> None:
    schedule = Schedule(slurm, "sjf", "--mode", "act", "--held", "--lease", "20")
    free = slurm.folder / "free"
    block = slurm.submit(free, 8, "block")
    slurm.wait_for(lambda: slurm.jobs()[block]["State"] == "RUNNING", 30.0, "the first job runs")
    held = [slurm.submit(0.5, 8, f"held-{k}", "--hold") for k in range(3)]
    slurm.wait_for(lambda: all(slurm.jobs()[job]["PriorityLong"] != "0" for job in held), 30.0, "holds are leases")
    os.kill(schedule.watchdog(), signal.SIGKILL)
    schedule.process.kill()
    schedule.process.wait(10)
    assert {slurm.jobs()[job]["State"] for job in held} == {"PENDING"}
    free.touch()
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


ROOT = Path(__file__).parents[3]


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
