"""Runs in several processes of this machine, each with its own pipe.

When a process is killed, its pipe identifies its current run: only that run is repeated, and a run that kills its
process every time fails alone. With a shared queue, as in the pools of the standard library, runs could be lost or
other runs failed.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

from equipoise.base.sources import in_environment
from equipoise.exit_codes import FAILURE
from equipoise.study.runs.engine import EngineError, Work, failed
from equipoise.study.runs.orders import Order, Row
from equipoise.study.signals import uninterrupted

KILLS = 3
"""A run fails after this many of its processes were killed."""
_AHEAD = 2  # orders in a pipe: the one being made, and the next
_FILES, _FILES_EACH = 5, 3  # pipes to the process that forks and while one is started; to each process
_READY = "ready"
_CONTEXT = get_context("forkserver")  # a clean process that has everything imported, and forks
_CONTEXT.set_forkserver_preload(["equipoise.study.runs.orders"])


def _serve(pipe: Connection, work: Work) -> None:
    """The process: make runs from the pipe until it closes, or until the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    threading.Thread(target=_die_with_parent, daemon=True).start()
    answer: object = _READY
    while True:
        try:
            pipe.send(answer)
            order = pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return
        answer = work.perform(order)


def _die_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(FAILURE)


def _check_files(count: int) -> None:
    """Raises EngineError when the limit of open files is too low for this many processes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = len(os.listdir("/dev/fd")) - 1 + _FILES + _FILES_EACH * count
    if most != resource.RLIM_INFINITY and needed > most:
        raise EngineError(
            f"{count} processes need {needed} open files, {most} are allowed (ulimit -n): "
            "raise the limit, or use one process"
        )


class _Worker:
    """One process and the orders in its pipe."""

    def __init__(self, work: Work) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process: ForkServerProcess = _CONTEXT.Process(target=_serve, args=(theirs, work), daemon=True)
        try:
            with uninterrupted(), in_environment():
                self.process.start()
        except (EOFError, OSError) as error:
            why = str(error) or "the fork server has ended"
            raise EngineError(f"processes cannot be started: {why}") from error
        theirs.close()
        self.ready = False
        self.orders: deque[Order] = deque()

    def give(self, order: Order) -> None:
        """Put an order into the pipe; a process that has just died is detected at the next read."""
        self.orders.append(order)
        try:
            self.pipe.send(order)
        except (BrokenPipeError, ConnectionResetError):
            return

    def rows(self) -> Iterator[Row]:
        """Rows received so far, without waiting. Raises EOFError when the process has ended."""
        while self.pipe.poll():
            try:
                message = self.pipe.recv()
            except (ConnectionResetError, OSError):
                raise EOFError from None
            if message == _READY:
                self.ready = True
            else:
                self.orders.popleft()
                yield message

    def stop(self) -> None:
        """End the process, even if busy."""
        self.pipe.close()
        self.process.kill()
        self.process.join()


class Processes:
    """Makes runs in `count` processes; use as a context manager."""

    def __init__(self, work: Work, count: int) -> None:
        _check_files(count)
        self.work = work
        self.workers = [_Worker(work) for _ in range(count)]
        self.kills: Counter[str] = Counter()
        self._unborn = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """Rows as they complete. Raises EngineError when processes keep dying before they begin."""
        waiting = deque(orders)
        missing = len(waiting)
        while missing:
            for worker in self.workers:
                while waiting and len(worker.orders) < _AHEAD:
                    worker.give(waiting.popleft())
            ready = wait([worker.pipe for worker in self.workers])
            for k, worker in enumerate(self.workers):
                if worker.pipe not in ready:
                    continue
                try:
                    for row in worker.rows():
                        missing -= 1
                        yield row
                    self._unborn = 0 if worker.ready else self._unborn
                except EOFError:
                    for row in self._replace(k, waiting):
                        missing -= 1
                        yield row

    def _replace(self, k: int, waiting: deque[Order]) -> Iterator[Row]:
        """Replace a dead process and requeue its orders; a run that killed too many processes becomes a failed row."""
        dead = self.workers[k]
        dead.stop()
        self._unborn = 0 if dead.ready else self._unborn + 1
        if self._unborn >= KILLS:
            raise EngineError(f"processes cannot start (exit code {dead.process.exitcode})")
        if dead.ready and dead.orders:
            self.kills[dead.orders[0].id] += 1
        back = list(dead.orders)
        if back and self.kills[back[0].id] >= KILLS:
            order = back.pop(0)
            yield {**order.row(), **failed(f"the process that made this run was killed {KILLS} times")}
        waiting.extendleft(reversed(back))
        self.workers[k] = _Worker(self.work)
