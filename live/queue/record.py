"""The record of a scheduler: decisions in the journal's format, and what happened and was done as JSON lines.

DIR/decisions.jsonl   every decision, as `policies.record.journal` writes it
DIR/events.jsonl      jobs that came, started and ended; every action with its reason; what went wrong
DIR/touched.json      what Slurm has to get back: written before anything is changed
DIR/site/             the configuration and the accounts of the site, for the twin
DIR/lock              locked by the scheduler that writes here

A .jsonl file that grows beyond its limit becomes NAME.1.jsonl, in place of the one before.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from equipoise.base.files import write_whole
from equipoise.base.json_values import from_json
from equipoise.live.queue.manager import QueueChange, QueuedJob
from equipoise.policies.contract import Decision, Refusal
from equipoise.policies.record.journal import JournalWriter

FORMAT = {"format": "equipoise-queue", "version": 1}
_PATIENCE_S = 15.0


EVENTS, DECISIONS = "events.jsonl", "decisions.jsonl"


class BusyError(Exception):
    """Another scheduler writes to this record."""


class Touched(dict[int, dict[str, Any]]):
    """Jobs that were changed, by id.

    nice: before the first change; set: what it was set to since; lease: whether their start is put off.
    """

    @classmethod
    def read(cls, folder: Path) -> Touched:
        """What an earlier scheduler left behind; empty without one. Raises ValueError for a damaged file."""
        path = folder / "touched.json"
        try:
            held = from_json(path.read_text(encoding="utf-8"))
            return cls({int(job): dict(was) for job, was in held.items()})
        except FileNotFoundError:
            return cls()
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}: is damaged ({error}); `scontrol` shows what jobs have") from error

    def inherit(self, job: QueuedJob) -> None:
        """Note a task that was split off its array after the array's nice was changed: it has that nice."""
        was = self.get(job.array) if job.array and job.id not in self else None
        if was is not None and job.nice in was.get("set", ()):
            self[job.id] = {**was, "lease": False}


def lock(file: IO[Any], patience_s: float, kind: int = fcntl.LOCK_EX) -> None:
    """Wait until no other process has locked the file. Raises OSError when that takes longer than `patience_s`."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


def lock_scope(cluster: str, partition: str) -> list[IO[Any]]:
    """Locks of this host against a second scheduler of the same jobs. Raises BusyError.

    A scheduler of one partition shares the cluster with those of other partitions, one of an account with none.
    """
    stem = re.sub(r"[^\w.-]", "_", f"equipoise-{cluster}")
    held: list[IO[Any]] = []
    for name, kind in ((stem, fcntl.LOCK_SH if partition else fcntl.LOCK_EX), (f"{stem}-{partition}", fcntl.LOCK_EX)):
        path = Path(tempfile.gettempdir()) / f"{name}.lock"
        with contextlib.suppress(FileExistsError, PermissionError):
            path.touch(0o644, exist_ok=False)
        held.append(open(path, "rb"))  # noqa: SIM115 (as long as the process lives)
        try:
            lock(held[-1], _PATIENCE_S, kind)
        except OSError as error:
            why = "another scheduler, or the watchdog of one that was killed, acts on these jobs"
            raise BusyError(f"cluster {cluster}: {why}") from error
    return held


def old_name(path: Path) -> None:
    """Put a full file aside, in place of the one before."""
    path.replace(path.with_suffix(f".1{path.suffix}"))


class Record:
    """Appends to the record in a folder; one scheduler at a time."""

    def __init__(
        self, folder: Path, echo: Callable[[Mapping[str, Any]], None] | None = None, most_bytes: float = 2e9
    ) -> None:
        """`echo` is called with every event; most_bytes: of the events, and of the decisions.

        Raises BusyError, and OSError where nothing can be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.most_bytes, self._echo = folder, most_bytes, echo
        self._lock = open(folder / "lock", "ab")  # noqa: SIM115 (open until close)
        try:  # the watchdog of a scheduler that was killed is soon done, one that lives is not
            lock(self._lock, _PATIENCE_S)
        except OSError as error:
            why = "another scheduler, or the watchdog of one that was killed, writes here"
            raise BusyError(f"{folder}: {why}") from error
        self._last: dict[str, Mapping[str, Any]] = {}  # events that a new file begins with
        self._begin_events()
        self._decisions = JournalWriter(folder / "decisions.jsonl")
        self.touched = Touched.read(folder)
        self._kept = dict(self.touched)

    def _begin_events(self) -> None:
        self._events = open(self.folder / EVENTS, "a", encoding="utf-8")  # noqa: SIM115 (open until close)
        for line in [FORMAT, *self._last.values()] if self._events.tell() == 0 else ():
            self._put(line)

    def _put(self, line: Mapping[str, Any]) -> None:
        self._events.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._events.flush()

    def event(self, event: str, **values: Any) -> None:
        """One thing that happened; what is not a finite number is left out."""
        kept = {k: v for k, v in values.items() if not (isinstance(v, float) and not math.isfinite(v))}
        line = {"time_s": round(time.time(), 3), "event": event, **kept}
        self._put(line)
        if event in ("begun", "nodes"):
            self._last[event] = line
        if self._events.tell() > self.most_bytes / 2:
            self._events.close()
            old_name(self.folder / EVENTS)
            self._begin_events()
        if self._echo is not None:
            self._echo(line)

    def decision(self, decision: Decision, refused: Sequence[Refusal]) -> None:
        """One decision, as it was made. Raises TypeError when a stage remembers what cannot be written."""
        path = self.folder / DECISIONS
        if path.stat().st_size > self.most_bytes / 2:
            self._decisions.close()
            old_name(path)
            self._decisions = JournalWriter(path)
        self._decisions.write(decision, refused)

    def site(self, files: Mapping[str, bytes]) -> None:
        """Keep what the manager says of its site, for the twin."""
        (self.folder / "site").mkdir(exist_ok=True)
        for name, content in files.items():
            write_whole(self.folder / "site" / name, content.decode(errors="replace"))

    def actions(self, changes: Sequence[QueueChange], event: str) -> None:
        """One line for each change."""
        for c in changes:
            self.event(event, verb=str(c.verb), id=c.job, value=c.value, was=c.was, why=c.why)

    def keep_touched(self) -> None:
        """Write down what was changed, where that is news; call it before the change."""
        if self.touched != self._kept:
            write_whole(self.folder / "touched.json", json.dumps(self.touched))
            self._kept = {job: dict(was) for job, was in self.touched.items()}

    def close(self) -> None:
        """Close the files."""
        self._decisions.close()
        self._events.close()
        self._lock.close()
