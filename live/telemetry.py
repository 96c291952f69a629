"""The record of a live run: one JSONL file of rounds and events per member, decisions in the policies' journal.

    RUN_DIR/manifest.json            what the run was (written by rank 0)
    RUN_DIR/rounds-MEMBER.jsonl      one line per round of that member, and its events
    RUN_DIR/decisions-MEMBER.jsonl   the decisions made while that member was rank 0; they replay

A disk that is full or gone costs lines, never training.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.contract import Decision


def plain(value: Any) -> Any:
    """A JSON-able copy: arrays become lists, NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | type(None)) else str(value)


class Recorder:
    """Buffers lines and writes them at decisions. `folder` None: nothing is written."""

    def __init__(self, folder: Path | None, member: int) -> None:
        self.folder, self.member = folder, member
        self.lost = 0  # lines that could not be written
        self._lines: list[str] = []
        self._told = False
        if folder is not None:
            self._guarded(lambda: folder.mkdir(parents=True, exist_ok=True), 0)

    def manifest(self, content: Mapping[str, Any]) -> None:
        """Write what the run is, whole or not at all."""
        if self.folder is None:
            return
        folder, text = self.folder, json.dumps(plain(content), indent=1) + "\n"

        def write() -> None:
            draft = folder / f".manifest-{self.member}.json"
            draft.write_text(text, encoding="utf-8")
            draft.replace(folder / "manifest.json")

        self._guarded(write, 1)

    def round(self, values: Mapping[str, Any]) -> None:
        """Note one finished round."""
        if self.folder is not None:
            self._lines.append(json.dumps(plain(values), separators=(",", ":")))

    def event(self, what: str, **values: Any) -> None:
        """Note something that happened once; written at once."""
        if self.folder is not None:
            line = {"event": what, "unix_s": time.time(), **plain(values)}
            self._lines.append(json.dumps(line, separators=(",", ":")))
            self.flush()

    def decision(self, decision: Decision) -> None:
        """Append a decision to the journal."""
        if self.folder is None:
            return
        from policies.journal import append

        path = self.folder / f"decisions-{self.member}.jsonl"
        self._guarded(lambda: append(path, decision), 1)

    def flush(self) -> None:
        """Write what is buffered."""
        if self.folder is None or not self._lines:
            return
        path, lines = self.folder / f"rounds-{self.member}.jsonl", self._lines
        self._lines = []

        def write() -> None:
            with path.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")

        self._guarded(write, len(lines))

    def _guarded(self, write: Any, lines: int) -> None:
        try:
            write()
        except (OSError, ValueError, TypeError) as error:
            self.lost += lines
            if not self._told:
                self._told = True
                print(f"equipoise: the run's record is incomplete: {error}", file=sys.stderr)
