"""The record of a live run: rounds and events as JSONL per member, decisions in the policies' journal.

    RUN_DIR/RUN/manifest.json            description of the run (written by rank 0)
    RUN_DIR/RUN/rounds-MEMBER.jsonl      one line per round of that member, and its events
    RUN_DIR/RUN/decisions-MEMBER.jsonl   the decisions made while that member was rank 0; they replay

RUN is the id of the run: several runs may share a folder, also at the same time.

A full or missing disk loses lines, but never stops training.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.base.json_values import plain
from equipoise.live.train.rounds import COLUMNS, RoundInfo
from equipoise.policies.contract import Decision, Refusal
from equipoise.policies.observation import Floats
from equipoise.policies.record.journal import append

_Work = Callable[[], object]


class Recorder:
    """Writes in a separate thread, so that a slow disk delays nothing. `folder` None: nothing is written."""

    def __init__(self, folder: Path | None, member: int) -> None:
        self.folder, self.member = folder, member
        self._told = False
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._held: deque[_Work] = deque()
        self._holders = 0  # nested `holding` blocks
        self._lock = threading.Lock()  # other threads record events as well
        if folder is not None:
            threading.Thread(target=self._run, name="equipoise-record", daemon=True).start()
            atexit.register(self.close)
            self._put(lambda: folder.mkdir(parents=True, exist_ok=True))

    def manifest(self, content: Mapping[str, Any]) -> None:
        """Write the manifest, completely or not at all."""
        if self.folder is None:
            return
        folder = self.folder

        def write() -> None:
            """Write it, in the writer's thread."""
            draft = folder / f".manifest-{self.member}.json"
            draft.write_text(json.dumps(plain(content), indent=1) + "\n", encoding="utf-8")
            draft.replace(folder / "manifest.json")

        self._put(write)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Delay writing until the end of the block, so that it does not slow down code all ranks wait for.

        An inner block ends with the outer one.
        """
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                while self._held and not self._holders:
                    self._work.put(self._held.popleft())

    def _put(self, write: _Work) -> None:
        with self._lock:
            if self._holders:
                self._held.append(write)
            else:
                self._work.put(write)

    def rounds(self, rows: Floats, infos: Sequence[RoundInfo]) -> None:
        """Record finished rounds (this rank's rows, `live.train.rounds.COLUMNS`)."""
        self._append(lambda: [_line(values, info) for values, info in zip(rows.tolist(), infos, strict=True)])

    def event(self, kind: str, **values: Any) -> None:
        """Record an event."""
        at_s = time.time()
        self._append(lambda: [{"event": kind, "unix_s": at_s, **values}])

    def decision(self, decision: Decision, refused: Sequence[Refusal] = ()) -> None:
        """Append a decision to the journal."""
        if self.folder is not None:
            path = self.folder / f"decisions-{self.member}.jsonl"
            self._put(lambda: append(path, decision, refused))

    def close(self, timeout_s: float = 10.0) -> None:
        """Wait until everything is written, or until the time-out."""
        if self.folder is not None:
            done = threading.Event()
            self._put(done.set)
            done.wait(timeout_s)

    def _append(self, make: Callable[[], list[dict[str, Any]]]) -> None:
        if self.folder is None:
            return
        path = self.folder / f"rounds-{self.member}.jsonl"

        def write() -> None:
            """Write it, in the writer's thread."""
            lines = [json.dumps(plain(line), separators=(",", ":")) for line in make()]
            _append_whole(path, "".join(f"{line}\n" for line in lines).encode())

        self._put(write)

    def _run(self) -> None:
        while True:
            try:
                self._work.get()()
            except (OSError, ValueError, TypeError) as error:
                if not self._told:
                    self._told = True
                    print(f"equipoise: {self._incomplete(error)}", file=sys.stderr)

    def _incomplete(self, error: Exception) -> str:
        why = error.strerror if isinstance(error, OSError) else error
        advice = "; free some space, later records will then be written" if _is_full(error) else ""
        return f"{self.folder}: the run's record is incomplete: {why}; training continues{advice}"


def _append_whole(path: Path, content: bytes) -> None:
    """Append `content` or nothing: a disk that fills up midway leaves no partial line."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            written = file.write(content)
            while written < len(content):
                written += file.write(content[written:])
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _line(values: Sequence[float], info: RoundInfo) -> dict[str, Any]:
    head = {
        "round": info.number,
        "exchanged": info.exchanged,
        "local": info.local,
        "ranks": len(info.window),
        **({"near": True} if info.near else {}),
        **({"paused": True} if info.paused else {}),
    }
    return {**head, **dict(zip(COLUMNS, values, strict=True))}
