"""The hosts on which a launcher may start ranks: a list that can change while the job runs."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from equipoise.base.numerals import strict_int

LOOK_EVERY_S = 2.0
_COMMAND_MAX_S = 20.0


def parse_hosts(text: str, name: str) -> dict[str, int]:
    """Ranks by host, of lines `HOST` or `HOST:RANKS`; `#` begins a comment.

    Raises ValueError, one line with the place in the file called `name`.
    """
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        host, _, count = entry.partition(":")
        try:
            ranks = strict_int(count) if count else 1
        except ValueError:
            ranks = 0
        if ranks < 1 or host in found or not host or host.startswith("-") or len(host.split()) != 1:
            why = "is listed twice" if host in found else "is not HOST or HOST:RANKS with at least 1 rank"
            raise ValueError(f"{name}:{number}:1: {entry!r} {why}")
        found[host] = ranks
    if not found:
        raise ValueError(f"{name}:1:1: no hosts; a line is HOST or HOST:RANKS")
    return found


class HostList:
    """Ranks by host, from a file or the output of a command; read again every `LOOK_EVERY_S`."""

    def __init__(self, file: Path | None, command: str | None) -> None:
        """Raises ValueError or OSError when the list cannot be read at the start."""
        self._file, self._command = file, command
        self._told = ""
        self.ranks = self._read()
        self._next_s = time.monotonic() + LOOK_EVERY_S

    def changed(self) -> bool:
        """Read the list if due, and return whether it changed; if it cannot be read, the last one stays in force."""
        if time.monotonic() < self._next_s:
            return False
        before = self.ranks
        try:
            self.ranks = self._read()
        except (OSError, ValueError) as error:
            if str(error) != self._told:
                self._told = str(error)
                print(f"equipoise: {error}; the hosts are unchanged", file=sys.stderr)
        self._next_s = time.monotonic() + LOOK_EVERY_S
        return self.ranks != before

    def _read(self) -> dict[str, int]:
        if self._file is not None:
            return parse_hosts(self._file.read_text(encoding="utf-8"), str(self._file))
        assert self._command is not None
        return parse_hosts(_said(self._command), self._command)


def _said(command: str) -> str:
    """Output of a command. Raises ValueError, in one line, if it cannot be run, fails or takes too long."""
    try:
        words = shlex.split(command)
        if not words:
            raise ValueError("it is empty")
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_MAX_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command}: no output within {_COMMAND_MAX_S:g} s") from None
    except (OSError, ValueError) as error:  # not found, or an unbalanced quotation mark
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ValueError(f"--host-command {command!r}: {why}; needed: a command that prints hosts") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise ValueError(": ".join([command, f"exit code {done.returncode}", *last]))
    return done.stdout


def is_here(host: str) -> bool:
    """Whether a host of the list is this machine."""
    return host in ("localhost", "127.0.0.1", socket.gethostname())


def start(
    command: Sequence[str], environment: Mapping[str, str], inherited: Mapping[str, str], remote: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a process; `remote`: through the command that reaches another machine ("ssh HOST"), empty: here.

    It starts in the same folder there; the environment is sent on standard input, where no list of processes
    shows the token.
    """
    if not remote:
        return subprocess.Popen(list(command), env={**inherited, **environment})
    told = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    script = "\n".join([*told, f"cd {shlex.quote(str(Path.cwd()))} &&", f"exec {shlex.join(command)} </dev/null\n"])
    process = subprocess.Popen([*remote, "sh"], stdin=subprocess.PIPE, env=dict(inherited))
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(script.encode())
    return process
