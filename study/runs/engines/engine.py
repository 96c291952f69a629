"""Who makes the runs of a sweep: this process, processes of this machine, or a Dask cluster that is there.

All are the same to the sweep: orders in, rows out, in whatever order they end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
