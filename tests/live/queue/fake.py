"""A queue that behaves like the real Slurm 22.05.8 that its rules and answers were recorded from, small.

Run as `squeue`, `sinfo`, `scontrol` or `sbatch` (see `install`) it keeps its state in the file that FAKE_SLURM
names and prints what the real commands printed for the fields that `live.queue.slurm` asks for; in tests of the
loop it is a manager itself, with a clock that the test sets. What was recorded: a held job has priority 0, and no
eligible time if it was submitted so; a nice value set on a held job frees it; `StartTime=now+60` makes it eligible
then; a requeued job is eligible after 120 s; jobs of a partition start strictly by priority, then id.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIRST_PRIORITY = 4294901760
_FIELD = re.compile(r"([\w-]+):(\|?)")


class FakeQueue:
    """One node of eight GPUs, jobs by id; `now_s` is the clock."""

    name = "fake"

    def __init__(self, now_s: float = 1000.0, gpus: int = 8) -> None:
        self.now_s, self.gpus, self.jobs, self.down = now_s, gpus, dict[int, dict[str, Any]](), False
        self.said = ""

    def submit(
        self, seconds: float, gpus: int, name: str = "job", *, hold: bool = False, limit_s: float = math.inf
    ) -> int:
        """A job that runs for so long; returns its id."""
        number = len(self.jobs) + 1
        self.jobs[number] = {
            "id": number,
            "name": name,
            "gpus": gpus,
            "seconds": seconds,
            "state": "PENDING",
            "nice": 0,
            "priority": 0 if hold else FIRST_PRIORITY - number,
            "submit": self.now_s,
            "limit": limit_s,
            "eligible": math.nan if hold else self.now_s,
            "start": math.nan,
            "end": math.nan,
            "reason": "JobHeldUser" if hold else "None",
        }
        return number

    # -- what the controller does --------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Let time go on: jobs end, and others start as soon as they can."""
        while True:
            ends = [job["end"] for job in self._in("RUNNING") if job["end"] <= now_s]
            begins = [job["eligible"] for job in self._waiting() if self.now_s < job["eligible"] <= now_s]
            self.now_s = min([*ends, *begins], default=now_s)
            for job in self._in("RUNNING"):
                if job["end"] <= self.now_s:
                    job["state"] = "COMPLETED"
            self._start()
            if not ends and not begins:
                self.now_s = now_s
                return

    def _in(self, state: str) -> list[dict[str, Any]]:
        return [job for job in self.jobs.values() if job["state"] == state]

    def _waiting(self) -> list[dict[str, Any]]:
        return [job for job in self._in("PENDING") if job["priority"] > 0]

    def _start(self) -> None:
        free = self.gpus - sum(job["gpus"] for job in self._in("RUNNING"))
        for job in sorted(self._waiting(), key=lambda job: (-job["priority"], job["id"])):
            if not job["eligible"] <= self.now_s:
                continue
            if job["gpus"] > free:
                return
            free -= job["gpus"]
            job.update(state="RUNNING", start=self.now_s, end=self.now_s + job["seconds"], reason="None")

    # -- scontrol ------------------------------------------------------------------------------------------

    def control(self, line: str) -> str:
        """One line of scontrol; returns what it says on stderr."""
        verb, *words = line.split()
        values = dict(word.split("=", 1) for word in words if "=" in word)
        number = int(values.get("jobid", words[0] if words else "0").split("_")[0])
        job = self.jobs.get(number)
        if job is None:
            return f"Invalid job id specified for job {number}"
        if verb == "requeue":
            job.update(state="PENDING", eligible=self.now_s + 120.0, reason="BeginTime")
            job.update(start=math.nan, end=math.nan)
        elif job["state"] != "PENDING":
            return f"Job/step already completing or completed for job {number}" if job["state"] != "RUNNING" else ""
        elif verb in ("hold", "uhold"):
            job.update(priority=0, reason="JobHeldUser")
        elif verb == "release":
            self._release(job)
        elif "nice" in values:  # of a held job, too: that frees it
            job["priority"] = max(job["priority"] + job["nice"] - int(values["nice"]), 2)
            job["nice"] = int(values["nice"])
        elif "StartTime" in values:
            job.update(eligible=self.now_s + float(values["StartTime"][3:] or 0.0), reason="BeginTime")
        return ""

    def _release(self, job: dict[str, Any]) -> None:
        if job["priority"] == 0:
            job["priority"] = FIRST_PRIORITY - len(self.jobs) - job["id"]
        if math.isnan(job["eligible"]):
            job["eligible"] = self.now_s

    # -- as a manager --------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        """As `QueueManager.snapshot`."""
        from equipoise.live.queue.manager import ManagerError, QueueNode, QueueSnapshot

        if self.down:
            raise ManagerError("squeue: Unable to contact slurm controller (connect failure)")
        used = sum(job["gpus"] for job in self._in("RUNNING"))
        node = QueueNode("vm", self.gpus, used, True, 64, 2**34, "")
        return QueueSnapshot(self.now_s, tuple(map(_job, self.jobs.values())), (node,))

    def set_directly(self) -> frozenset[int]:
        """As `QueueManager.set_directly`."""
        return frozenset()

    def carry_out(self, changes: Sequence[Any]) -> str:
        """As `QueueManager.carry_out`."""
        from equipoise.live.queue.slurm import _lines

        jobs = {job.id: job for job in self.snapshot().jobs}
        said = [
            self.control(line)
            for change in changes
            if not jobs[change.job].held or change.verb != "restore"
            for line in _lines(change, jobs[change.job])
        ]
        self.advance(self.now_s)
        return "; ".join(filter(None, [*said, self.said]))


def _job(job: dict[str, Any]) -> Any:
    from equipoise.live.queue.manager import QueuedJob
    from equipoise.live.queue.slurm import _phase

    held = job["priority"] == 0 and job["state"] == "PENDING"
    return QueuedJob(
        job["id"],
        job["name"],
        "root",
        _phase(job["state"]),
        job["state"],
        job["gpus"],
        ("vm",) if job["state"] in ("RUNNING", "COMPLETED") else (),
        job["submit"],
        job["eligible"],
        job["start"],
        math.nan if job["state"] == "RUNNING" else job["end"],
        job["limit"],
        job["priority"],
        job["nice"],
        held,
        False,
        job.get("mine", True),
        True,
        job["reason"],
        "main",
        job.get("qos", "normal"),
    )


# -- as four commands ------------------------------------------------------------------------------------------


def install(folder: Path) -> dict[str, str]:
    """Make the four commands in `folder`; returns the environment in which they are found."""
    for name in ("squeue", "sinfo", "scontrol", "sbatch"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        path.chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "FAKE_SLURM": str(folder / "state.json")}


def _time(value: float) -> str:
    return "N/A" if math.isnan(value) else f"{value:.0f}"


def _cell(job: dict[str, Any], field: str) -> str:
    limit_s = job["limit"]
    return {
        "JobArrayID": str(job["id"]),
        "JobID": str(job["id"]),
        "Partition": "main",
        "QOS": job.get("qos", "normal"),
        "State": job["state"],
        "PriorityLong": str(job["priority"]),
        "Nice": str(job["nice"]),
        "tres-alloc": "cpu=1,mem=20000M,node=1,billing=1",
        "tres-per-node": f"gres:gpu:{job['gpus']}",
        "NumTasks": "1",
        "NumNodes": "1",
        "SubmitTime": _time(job["submit"]),
        "EligibleTime": _time(job["eligible"]),
        "StartTime": _time(job["start"]),
        "EndTime": _time(job["end"]),
        "Reason": job["reason"],
        "UserName": "root",
        "TimeLimit": "UNLIMITED" if math.isinf(limit_s) else f"{int(limit_s // 60)}:00",
        "Requeue": "1",
        "NodeList": "vm" if job["state"] in ("RUNNING", "COMPLETED") else "",
        "Name": job["name"],
    }.get(field, "N/A")


def _said(queue: FakeQueue, name: str, arguments: list[str]) -> str:
    """What a command prints."""
    form = next((a.removeprefix("--Format=") for a in arguments if a.startswith("--Format=")), "")
    if name == "squeue":
        cells = _FIELD.findall(form)
        rows = ("".join(_cell(job, field) + bar for field, bar in cells) for job in queue.jobs.values())
        return "".join(f"{row}\n" for row in rows)
    if name == "sinfo":
        used = sum(job["gpus"] for job in queue._in("RUNNING"))
        return f"vm|mixed|gpu:{queue.gpus}|gpu:{used}|20000|64|\n"
    if name == "sbatch":
        words = dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a and a.startswith("--"))
        seconds = float(re.findall(r"sleep ([\d.]+)", arguments[-1])[0])
        gpus = int(words["gres"].rpartition(":")[2])
        return f"{queue.submit(seconds, gpus, words.get('job-name', 'wrap'), hold='--hold' in arguments)}\n"
    if arguments[:2] == ["show", "config"]:
        return "SchedulerType           = sched/backfill\nPriorityType            = priority/basic\n"
    if arguments[:2] == ["show", "partition"]:
        return "PartitionName=main PriorityJobFactor=1 PriorityTier=1 State=UP\n"
    lines = sys.stdin.read().splitlines() if not arguments else [" ".join(arguments)]
    for line in [line for line in lines if not line.startswith("show job")]:
        if text := queue.control(line):
            print(text, file=sys.stderr)
    return ""


def _main() -> None:
    """One command: read the state, let time go on, do it, write the state."""
    import fcntl

    path = Path(os.environ["FAKE_SLURM"])
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.with_suffix(".down").exists():
            sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        queue = FakeQueue(time.time())
        if path.exists():
            kept = json.loads(path.read_text())
            queue.now_s, queue.jobs = (kept["now_s"], {int(number): job for number, job in kept["jobs"].items()})
        queue.advance(time.time())
        text = _said(queue, sys.argv[1], sys.argv[2:])
        queue.advance(time.time())
        path.write_text(json.dumps({"now_s": queue.now_s, "jobs": queue.jobs}))
    sys.stdout.write(text)


if __name__ == "__main__":
    _main()
