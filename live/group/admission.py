"""Reports foreign keys and connections at a job's store: one line per kind, then rarely, with counts.

PyTorch's store accepts every connection and every key; keys of other jobs are never read. It answers
members at once, but not invalid data: a connection that sent something and gets no answer is closed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import torch.distributed as dist

from equipoise.live.group.sockets import shut, unanswered

_LOOK_S = 1.0
_AGAIN_S = 60.0  # between two lines of one kind
_UNANSWERED_S = 5.0  # longest time in which a busy store answers a member
_PER_MEMBER, _SPARE = 16, 64  # connections that a job may have
_ESTABLISHED = "01"
_OF_PYTORCH = ("init/", "default_pg/")


def connections_to(port: int) -> int:
    """Number of TCP connections to `port` on this machine; 0 if /proc does not list them."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = (line.split() for line in Path(table).read_text(encoding="ascii").splitlines()[1:])
            count += sum(row[3] == _ESTABLISHED and row[1].endswith(f":{port:04X}") for row in rows)
    return count


def strange_keys(keys: Iterable[str], token: str) -> list[str]:
    """Keys written without the job's token; groups formed by the script itself have no token."""
    own = (f"equipoise/{token}/", f"equipoise/{token}.")  # of its first era and of later ones
    return sorted(key for key in keys if not key.startswith((*own, *_OF_PYTORCH)))


class AdmissionLog:
    """Inspects a store of this process every second, in a separate thread, while the store exists."""

    def __init__(self, store: dist.TCPStore, token: str | None, members: Callable[[], int] | None = None) -> None:
        """`members`: present number of members; None: connections are not checked."""
        self._token, self._members = token, members
        self._told: dict[str, tuple[int, float]] = {}  # by kind: number reported, and when
        self._waiting: dict[tuple[int, int], float] = {}  # connections without an answer, and since when
        self._shut = 0
        self._store = weakref.ref(store)
        threading.Thread(target=self._run, name="equipoise-doorman", daemon=True).start()

    def _run(self) -> None:
        while (store := self._store()) is not None:
            self.look(store)
            del store
            time.sleep(_LOOK_S)

    def look(self, store: dist.TCPStore) -> None:
        """Inspect the store once."""
        if self._token is not None and hasattr(store, "list_keys"):  # added in a later version of PyTorch
            keys = strange_keys(store.list_keys(), self._token)
            first = f", e.g. {keys[0][:80]!a}" if keys else ""
            self._tell("keys written without the job's token, ignored", len(keys), first)
        self._close_garbage(store.port)
        if self._members is not None:
            allowed, found = _PER_MEMBER * self._members() + _SPARE, connections_to(store.port)
            more = found if found > allowed else 0
            self._tell("connections more than the job's members need", more, "; the job continues")

    def _close_garbage(self, port: int) -> None:
        now, found = time.monotonic(), unanswered(port)
        self._waiting = {one: self._waiting.get(one, now) for one in found}
        closed = [one for one, since in self._waiting.items() if now - since >= _UNANSWERED_S]
        if closed:
            self._shut += shut(frozenset(closed))
            self._tell("connections with invalid data, closed", self._shut, f", e.g. from {found[closed[0]]}")

    def _tell(self, kind: str, count: int, more: str) -> None:
        before, at_s = self._told.get(kind, (0, -_AGAIN_S))
        if count > before and time.monotonic() - at_s >= _AGAIN_S:
            self._told[kind] = count, time.monotonic()
            print(f"equipoise: store: {count} {kind}{more}", file=sys.stderr, flush=True)
