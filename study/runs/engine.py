"""Engines for the runs of a study, this process or several: orders in, rows out, in order of completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from equipoise.study.runs.orders import Order, Row


class EngineError(RuntimeError):
    """The engine cannot be started or is no longer reachable; the message is one line."""


class Work(Protocol):
    """Makes the row of an order, in any process."""

    @property
    def token(self) -> str:
        """Differs between studies on one worker."""

    def check(self) -> None:
        """Raises RuntimeError when this process runs different code from the one that made the orders."""

    def perform(self, order: Order) -> Row:
        """The row of an order; any error except Ctrl-C becomes a failed row."""


class Engine(Protocol):
    """Makes runs."""

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """The row of every order, each as soon as it is complete."""


def failed(why: str) -> Row:
    """The outcome of a run that could not be made."""
    return {"status": "failed", "error": " ".join(why.split())}
