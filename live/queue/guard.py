"""Asks from time to time whether the policy does worse than the site's own order, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence

from equipoise.base.sources import environment


class Guard:
    """Runs `command`, which prints JSON with a key `why`: "" while the policy may go on.

    It runs when `least` more jobs have ended, but not more often than every `every_s`. A command that fails says
    nothing.
    """

    def __init__(self, command: Sequence[str], least: int = 20, every_s: float = 600.0) -> None:
        self.command, self.least, self.every_s = list(command), least, every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._ended, self._asked_s = 0, time.monotonic()

    def ask(self, ended: int) -> str:
        """Why to step back, as far as is known, or "". ended: jobs so far."""
        if self._process is None:
            if ended >= self._ended + self.least and time.monotonic() >= self._asked_s + self.every_s:
                self._ended, self._asked_s = ended, time.monotonic()
                none, pipe = subprocess.DEVNULL, subprocess.PIPE
                env = environment()
                self._process = subprocess.Popen(self.command, stdin=none, stdout=pipe, stderr=none, env=env)
            return ""
        if self._process.poll() is None:
            return ""
        said, self._process = self._process.communicate()[0], None
        try:
            return str(json.loads(said)["why"])
        except (ValueError, KeyError, TypeError):
            return ""

    def close(self) -> None:
        """End a command that still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
