"""Runs commands of ours where they can be killed, and where disk and clock can fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kills.commands import held, prepare, words

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass
class Ended:
    """How a command ended: exit code or minus the signal, what it said, how often it changed the disk."""

    code: int
    said: str
    changes: int

    @property
    def clean(self) -> bool:
        """No traceback, and nothing for the makers of this software."""
        return "Traceback" not in self.said and "--debug shows the traceback" not in self.said


class Lab:
    """A folder with everything prepared, and a process that forks commands into copies of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, folder / "base"
        self.base.mkdir()
        before = Path.cwd()
        try:
            os.chdir(self.base)
            prepare(self.base)
        finally:
            os.chdir(before)
        self._undisturbed: dict[str, tuple[dict[str, Any], int, float]] = {}
        environment = os.environ | {"PYTHONPATH": str(ROOT), "LD_PRELOAD": str(_disk(folder))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kills.zygote", str(self.base / "case.yaml")],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fresh(self) -> Path:
        """A copy of the prepared folder."""
        place = self.folder / "work"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.base, place)
        return place

    def start(self, name: str, folder: Path, **more: Any) -> int:
        """Start a command of `COMMANDS`; returns its pid."""
        order = {"arguments": words(name), "folder": str(folder), "label": "one", **more}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self, folder: Path, label: str = "one") -> Ended:
        """How the command that was started last ended, and then that beside it."""
        assert self.process.stdout is not None
        code, changes = json.loads(self.process.stdout.readline())
        return Ended(code, Path(f"{folder}.{label}.err").read_text(), changes)

    def do(self, name: str, folder: Path, **more: Any) -> Ended:
        """Start and wait."""
        self.start(name, folder, **more)
        return self.wait(folder)

    def undisturbed(self, name: str) -> tuple[dict[str, Any], int, float]:
        """(what the folder then holds, changes of the disk, seconds) of a command that nothing disturbs."""
        if name not in self._undisturbed:
            self.do(name, self.fresh())  # whatever is compiled or read for the first time
            folder = self.fresh()
            began_s = time.monotonic()
            ended = self.do(name, folder)
            took_s = time.monotonic() - began_s
            assert ended.code == 0, ended
            self._undisturbed[name] = held(folder), ended.changes, took_s
        return self._undisturbed[name]

    def at_call(self, name: str, folder: Path, nth: int, number: signal.Signals) -> Ended:
        """Run a command in a process of its own that gets a signal at its n-th call; changes are not counted."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.kills.at_call", str(nth), number.name, *words(name)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        return Ended(done.returncode, done.stderr, 0)

    def close(self) -> None:
        """End the process that forks."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _disk(folder: Path) -> Path:
    """The library of a disk that fails."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    target = folder / "full_disk.so"
    source = str(HERE / "full_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(target), source, "-ldl"], check=True)
    return target


FULL, READ_ONLY = errno.ENOSPC, errno.EROFS
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
