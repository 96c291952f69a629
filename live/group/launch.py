"""Starts a job on this machine whose ranks may die and join.

    python -m equipoise.live.group.launch --ranks 4 train.py

The store lives here, so that any rank can die; the others go on, and are told at once who died. A further
member joins a running job with `--join HOST:PORT train.py` if it knows the job's token: `--token-file` names the
file that the first launcher writes it to, or EQUIPOISE_TOKEN holds it for both. Jobs whose ranks never change can
use torchrun as well, which ends all of them when one dies.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from equipoise.live.group.hosting import TOKEN, host_store, of_job, own_token
from equipoise.policies.numerals import plain_numbers

_POLL_S = 0.05
_GRACE_S = 30.0  # for scripts that save a checkpoint when they are told to end


class Launcher:
    """The store and the processes of one job."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.token = own_token()
        self._server = host_store(host)
        self._store = of_job(self._server, self.token)
        self.address = f"{host}:{self._server.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], ranks: int, **environment: str) -> None:
        """Start founders 0 .. ranks-1."""
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), **environment}
            self.processes.append(_start(command, self.address, self.token, own))

    def wait(self) -> int:
        """Wait for all; returns 0 when some rank finished the training, else the first failure's code."""
        running = dict(enumerate(self.processes))
        codes: dict[int, int] = {}
        while running:
            for rank, process in list(running.items()):
                code = process.poll()
                if code is not None:
                    codes[rank] = code
                    del running[rank]
                    if code != 0:
                        self._store.set(f"dead/{rank}", str(code))
                        print(f"equipoise: rank {rank} died ({_cause(code)})", file=sys.stderr)
            time.sleep(_POLL_S)
        if 0 in codes.values():
            return 0
        return next(1 if code < 0 else code for _, code in sorted(codes.items()))

    def stop(self) -> None:
        """End every process that still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _start(command: Sequence[str], store: str, token: str, own: dict[str, str]) -> subprocess.Popen[bytes]:
    host, _, port = store.rpartition(":")
    environment = {
        **os.environ,
        "EQUIPOISE_STORE": store,
        TOKEN: token,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is hosted already
        **own,
    }
    return subprocess.Popen(list(command), env=environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m equipoise.live.group.launch", description=__doc__.splitlines()[0]
    )
    plain_numbers(parser)
    parser.add_argument("--ranks", type=int, default=1, help="processes to start")
    parser.add_argument("--host", default="127.0.0.1", help="address on which members reach the store")
    parser.add_argument("--join", metavar="HOST:PORT", help="join the job whose store is there instead")
    parser.add_argument("--token-file", type=Path, help="where the job's token is written, or read by --join")
    parser.add_argument("script", help="training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    command = [sys.executable, given.script, *given.arguments]
    if given.ranks < 1:
        parser.error("--ranks: at least 1 is needed")
    if given.join:
        try:
            token = os.environ[TOKEN] if given.token_file is None else given.token_file.read_text().strip()
        except (KeyError, OSError) as error:
            parser.error(f"--join: needs the job's token, by --token-file or {TOKEN}: {error}")
        return _start(command, given.join, token, {"EQUIPOISE_JOIN": "1"}).wait()
    return _launch(command, given)


def _launch(command: Sequence[str], given: argparse.Namespace) -> int:
    try:
        launcher = Launcher(given.host)
        if given.token_file is not None:
            _write_secret(given.token_file, launcher.token)
    except (OSError, RuntimeError) as error:
        print(f"equipoise: no store on {given.host}: {error}", file=sys.stderr)
        return 1
    print(f"equipoise: store on {launcher.address}", file=sys.stderr)
    ended = signal.signal(signal.SIGTERM, _end)
    try:
        launcher.start(command, given.ranks)
        return launcher.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        launcher.stop()
        signal.signal(signal.SIGTERM, ended)


def _end(number: int, frame: object) -> None:
    """What ends the launcher ends its ranks, too."""
    raise SystemExit(128 + number)


def _write_secret(path: Path, text: str) -> None:
    """For the eyes of this user only."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
