"""Who makes the runs of a sweep: this process, processes of this machine, or a Dask cluster that is there.

All are the same to the sweep: orders in, rows out, in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from equipoise.study.runs.orders import Order, Row, Shared, perform


class EngineError(RuntimeError):
    """The engine cannot be started or has gone away; the message is one line."""


class Engine(Protocol):
    """Makes runs."""

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """The row of every order, each as soon as it is there."""


class InProcess:
    """One run after the other, here."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """Rows in the order of `orders`."""
        for order in orders:
            yield perform(order, self.shared)


@contextmanager
def engine(shared: Shared, jobs: int = 1, dask: str | None = None) -> Iterator[Engine]:
    """The engine for `jobs` processes here (1: this one), or for the Dask scheduler at address `dask`.

    `dask="local"` starts a Dask cluster of `jobs` processes here.
    Raises EngineError when Dask is needed and not installed, or does not answer.
    """
    if dask is not None:
        try:
            from equipoise.study.runs.dask_engine import local, remote
        except ImportError as error:
            raise EngineError("Dask is not installed: pip install 'equipoise[dist]'") from error
        with local(jobs, shared) if dask == "local" else remote(dask, shared) as cluster:
            yield cluster
    elif jobs == 1:
        yield InProcess(shared)
    else:
        from equipoise.study.runs.processes import Processes

        with Processes(shared, jobs) as processes:
            yield processes
