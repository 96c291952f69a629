"""Starts a job on this machine whose ranks may die and join: `python -m live.launch --ranks 4 train.py`.

The store lives here, so that any rank can die; the others go on, and are told at once who died. A further
member joins a running job with `python -m live.launch --join HOST:PORT train.py`. Jobs whose ranks never change can
use torchrun as well, which ends all of them when one dies.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist

_POLL_S = 0.05


class Launcher:
    """The store and the processes of one job."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        timeout = datetime.timedelta(seconds=60)
        self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        self._store = dist.PrefixStore("equipoise", self._server)
        self.address = f"{host}:{self._server.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], ranks: int, **environment: str) -> None:
        """Start founders 0 .. ranks-1."""
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), **environment}
            self.processes.append(_start(command, self.address, own))

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
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _start(command: Sequence[str], store: str, own: dict[str, str]) -> subprocess.Popen[bytes]:
    host, _, port = store.rpartition(":")
    environment = {
        **os.environ,
        "EQUIPOISE_STORE": store,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is hosted already
        **own,
    }
    return subprocess.Popen(list(command), env=environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m live.launch", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="processes to start")
    parser.add_argument("--host", default="127.0.0.1", help="address on which members reach the store")
    parser.add_argument("--join", metavar="HOST:PORT", help="join the job whose store is there instead")
    parser.add_argument("script", help="training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    command = [sys.executable, given.script, *given.arguments]
    if given.join:
        process = _start(command, given.join, {"EQUIPOISE_JOIN": "1"})
        return process.wait()
    if given.ranks < 1:
        parser.error("--ranks: at least 1 is needed")
    try:
        socket.getaddrinfo(given.host, None)
        launcher = Launcher(given.host)
    except (OSError, RuntimeError) as error:
        print(f"equipoise: no store on {given.host}: {error}", file=sys.stderr)
        return 1
    print(f"equipoise: store on {launcher.address}", file=sys.stderr)
    launcher.start(command, given.ranks)
    try:
        return launcher.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        launcher.stop()


if __name__ == "__main__":
    sys.exit(main())
