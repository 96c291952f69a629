"""The record of a scheduler: decisions in the journal's format, and what happened and was done as JSON lines.

DIR/decisions.jsonl   every decision, as `policies.record.journal` writes it
DIR/events.jsonl      jobs that came, started and ended; every action with its reason; what went wrong
DIR/touched.json      what Slurm has to get back: written before anything is changed
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from equipoise.base.files import write_whole
from equipoise.base.json_values import from_json
from equipoise.live.queue.manager import QueueChange
from equipoise.policies.contract import Decision, Refusal
from equipoise.policies.record.journal import JournalWriter

FORMAT = {"format": "equipoise-queue", "version": 1}
_PATIENCE_S = 15.0


class BusyError(Exception):
    """Another scheduler writes to this record."""


class Touched(dict[int, dict[str, Any]]):
    """Jobs that were changed, by id: `nice` they had before, and whether their start is put off (`lease`)."""

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


def lock(file: IO[Any], patience_s: float) -> None:
    """Wait until no other process has locked the file. Raises OSError when that takes longer than `patience_s`."""
    end_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


class Record:
    """Appends to the record in a folder; one scheduler at a time."""

    def __init__(self, folder: Path, echo: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """`echo` is called with every event. Raises BusyError, and OSError where nothing can be written."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._echo = folder, echo
        self._events = open(folder / "events.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (open until close)
        try:  # the watchdog of a scheduler that was killed is soon done, one that lives is not
            lock(self._events, _PATIENCE_S)
        except OSError as error:
            why = "another scheduler, or the watchdog of one that was killed, writes here"
            raise BusyError(f"{folder}: {why}") from error
        if self._events.tell() == 0:
            self._put(FORMAT)
        self._decisions = JournalWriter(folder / "decisions.jsonl")
        self.touched = Touched.read(folder)
        self._kept = dict(self.touched)

    def _put(self, line: Mapping[str, Any]) -> None:
        self._events.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._events.flush()

    def event(self, event: str, **values: Any) -> None:
        """One thing that happened; what is not a finite number is left out."""
        kept = {k: v for k, v in values.items() if not (isinstance(v, float) and not math.isfinite(v))}
        line = {"time_s": round(time.time(), 3), "event": event, **kept}
        self._put(line)
        if self._echo is not None:
            self._echo(line)

    def decision(self, decision: Decision, refused: Sequence[Refusal]) -> None:
        """One decision, as it was made. Raises TypeError when a stage remembers what cannot be written."""
        self._decisions.write(decision, refused)

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
