"""Ends a rank whose job lost its store: without the store no group can be formed, and the rank would hang unnoticed.

PyTorch's client notices only when it is used, retries for minutes, and prints a page each time. So a separate
connection is held open, on which nothing is sent: the kernel closes it when the store's process dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

_REACHED_WITHIN_S = 15.0
_GRACE_S = 10.0  # for a script that handles SIGTERM, to save a checkpoint
_NOTICED_WITHIN_S = 1.0  # of the store's first error
_SILENT_HOST = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3))  # s, s, times


class Lifeline(threading.Thread):
    """Sends SIGTERM to this process when the store's host is gone, and ends it `_GRACE_S` later."""

    def __init__(self, line: socket.socket, who: str, let_go: Callable[[], None]) -> None:
        """`line`: from `reached`. `let_go`: makes a pending wait of the process fail."""
        super().__init__(name="equipoise-lifeline", daemon=True)
        self._line, self._who, self._let_go = line, who, let_go
        self._where = "{}:{}".format(*line.getpeername()[:2])
        self._released = False
        self._broke = threading.Event()
        self.start()

    def run(self) -> None:
        """Wait until the line breaks or is released."""
        with contextlib.suppress(OSError):
            self._line.recv(1)
        if self._released:
            return
        self._broke.set()
        text = (
            f"equipoise: {self._who} ends: the job's store at {self._where} is gone, and its launcher with it; "
            "start the job again to resume from its last checkpoint\n"
        )
        os.write(2, text.encode())
        os.kill(os.getpid(), signal.SIGTERM)
        self._let_go()  # the script can handle the signal only when it no longer waits for other ranks
        time.sleep(_GRACE_S)
        os._exit(128 + signal.SIGTERM)

    def wait_for_end(self) -> None:
        """If the store is gone, wait for the process to be ended, so that no second error is printed."""
        if self._broke.wait(_NOTICED_WITHIN_S):
            time.sleep(2 * _GRACE_S)

    def release(self) -> None:
        """Stop watching the store, since training has ended."""
        self._released = True
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)


def reached(host: str, port: int) -> socket.socket:
    """A connection to the store at that address. Raises SystemExit, with one line, if there is none after 15 s."""
    deadline = time.monotonic() + _REACHED_WITHIN_S
    while True:
        try:
            line = socket.create_connection((host, port), timeout=_REACHED_WITHIN_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"equipoise: no store at {host}:{port}: {error.strerror or error}") from None
        time.sleep(0.2)
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENT_HOST:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    return line
