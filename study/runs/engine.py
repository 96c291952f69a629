"""Engines for the runs of a study, this process or several: orders in, rows out, in order of completion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from equipoise.study.runs.orders import Order, Row


class EngineError(RuntimeError):
    """The engine cannot be started or is no longer reachable; the message is one line."""


class Engine(Protocol):
    """Makes runs."""

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """The row of every order, each as soon as it is complete."""
