"""Restoring a queue: at the end, after failures, and by a watchdog process if the scheduler was killed.

Nothing that waits depends on any of it: what is given back are nice values, and start times of requeued jobs, which
Slurm itself lets pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from equipoise.base.sources import environment
from equipoise.live.queue.manager import ManagerError, Phase, QueueChange, QueueManager, Verb
from equipoise.live.queue.record import Touched, lock

_TRIES, _EVERY_S = 1800, 2.0  # an hour
_DYING_S = 3.0


def to_give_back(manager: QueueManager, touched: Touched) -> list[QueueChange]:
    """Changes that undo what was done to jobs that still wait; holds stay. Raises ManagerError.

    A nice value that is not one of ours is its user's: Slurm itself takes it, too, when a priority is set.
    """
    found, seen = [], manager.snapshot()
    for job in seen.jobs:
        touched.inherit(job)
        was = touched.get(job.id)
        if was is None or job.phase is not Phase.WAITING:
            continue
        if was["lease"] and not job.held and not job.eligible_s <= seen.time_s:  # not known: never so far
            found.append(QueueChange(Verb.RELEASE, job.id, why="given back"))
        if job.nice != was["nice"] and job.nice in was.get("set", ()):
            found.append(QueueChange(Verb.RESTORE, job.id, int(was["nice"]), job.nice, "given back"))
    return found


class Watchdog:
    """A process that restores the queue when this one has ended for any reason."""

    def __init__(self, folder: Path, partition: str, account: str, scope: Sequence[IO[Any]] = ()) -> None:
        """`scope`: locks that it holds as well, until it has ended."""
        arguments = [sys.executable, "-m", "equipoise.live.queue.lease", str(folder), partition, account]
        # A session of its own, so that Ctrl-C and the death of a terminal do not reach it.
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
            pass_fds=[file.fileno() for file in scope],
        )

    def dismiss(self) -> None:
        """The queue has been given back already. The process only waits for us, so it can be ended at once."""
        self._process.kill()
        self._process.communicate()


def watch(folder: Path, manager: QueueManager) -> None:
    """Wait until the scheduler's end of our stdin closes, and give the queue back."""
    sys.stdin.buffer.read()
    with open(folder / "lock", "ab") as file:
        try:  # a process that dies closes its pipe to us before its files, or after
            lock(file, _DYING_S)
        except OSError:
            return  # a new scheduler has taken over
        _give_back(folder, manager)


def _give_back(folder: Path, manager: QueueManager) -> None:
    """Try until it is done, for an hour."""
    for _ in range(_TRIES):
        try:
            changes = to_give_back(manager, Touched.read(folder))
            if not changes:
                break
            said = manager.carry_out(changes)
            _tell(folder, changes, said)
        except ManagerError as error:
            said = str(error)
            _tell(folder, [], said)
        time.sleep(_EVERY_S)


def _tell(folder: Path, changes: list[QueueChange], said: str) -> None:
    """Append to the events; the dead scheduler may have left half a line."""
    now_s = round(time.time(), 3)
    lines = [
        {"time_s": now_s, "event": "watchdog", "verb": str(c.verb), "id": c.job, "value": c.value, "was": c.was}
        for c in changes
    ]
    if said:
        lines.append({"time_s": now_s, "event": "watchdog", "why": said})
    with open(folder / "events.jsonl", "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        broken = size > 0 and file.read(1) != b"\n"
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        file.write(b"\n" * broken + text.encode())


if __name__ == "__main__":
    from equipoise.live.queue.slurm import Slurm

    watch(Path(sys.argv[1]), Slurm(sys.argv[2], sys.argv[3]))
