"""Processes that die: how often another one takes their place, and what becomes of their runs."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.study.runs.engines import processes
from equipoise.study.runs.engines.engine import EngineError
from equipoise.study.runs.orders import Order


class Fate:
    """A process of which is known before when it dies: at its birth, once it has said that it began and before
    anybody reads that, or at an order; None: never.
    """

    fates: Iterator[str | None]

    def __init__(self, shared: Any) -> None:
        self.pipe, theirs = Pipe()
        theirs.close()  # so that it always is to be read
        self.process = SimpleNamespace(exitcode=-9)
        self.fate = next(self.fates)
        self.ready = False
        self.orders: deque[Order] = deque()

    def give(self, order: Order) -> None:
        self.orders.append(order)
        self.most = max(getattr(self, "most", 0), len(self.orders))

    def rows(self) -> Iterator[dict[str, Any]]:
        if self.fate == "birth":
            raise EOFError
        if not self.ready:
            self.ready = True  # which is all that it says at first
            if self.fate == "begin":
                raise EOFError
            return
        while self.orders:
            if self.orders[0].policy == self.fate:
                raise EOFError
            yield self.orders.popleft().row()

    def stop(self) -> None:
        self.pipe.close()


def made(monkeypatch: pytest.MonkeyPatch, *fates: str | None) -> dict[str, str]:
    """What came of three runs, by policy."""
    monkeypatch.setattr(processes, "_Worker", Fate)
    monkeypatch.setattr(Fate, "fates", iter(fates), raising=False)
    orders = [Order(policy, k, 0, policy, 0, "{}", {}) for k, policy in enumerate("abc")]
    with processes.Processes(None, 1) as engine:  # type: ignore[arg-type]
        rows = list(engine.rows(orders))
    assert len(rows) == 3
    return {str(row["policy"]): str(row.get("error", "")) for row in rows}


@pytest.mark.parametrize(
    "fates",
    [
        (None,),
        ("birth", None),
        ("birth", "birth", None),
        ("b", "b", None),
        ("birth", "birth", "b", "birth", "birth", None),  # one that began stands between them
        ("birth", "birth", "begin", "birth", "birth", None),
        ("a", "a", "b", "b", "c", "c", None),
    ],
)
def test_another_process_goes_on(fates: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, *fates) == {"a": "", "b": "", "c": ""}


def test_a_run_that_kills_three_processes_is_given_up_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(monkeypatch, "b", "b", "b", None)
    assert (found["a"], found["c"]) == ("", "")
    assert "was killed 3 times" in found["b"]


def test_three_processes_that_die_before_they_begin_are_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="processes cannot start"):
        made(monkeypatch, "birth", "birth", "birth", None)


def test_a_process_is_given_one_order_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_Worker", Fate)
    monkeypatch.setattr(Fate, "fates", iter([None]), raising=False)
    with processes.Processes(None, 1) as engine:  # type: ignore[arg-type]
        rows = list(engine.rows([Order(str(k), k, 0, "a", k, "{}", {}) for k in range(5)]))
        assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]
        assert [worker.most for worker in engine.workers] == [2]  # type: ignore[attr-defined]


def test_open_files_that_processes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three are open, and the fourth is that of the list; five are for the process that forks, three for each."""
    monkeypatch.setattr(os, "listdir", lambda _: ["0", "1", "2", "3"])
    for allowed in (14, 15, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=allowed: (soft, 4096))
        processes._check_files(2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (13, 4096))
    with pytest.raises(EngineError, match="2 processes need 14 open files and 13 are allowed"):
        processes._check_files(2)
