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


def test_what_a_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is ready, then a row for each order; and when its pipe has closed it is gone."""
    worker = object.__new__(processes._Worker)
    worker.pipe, theirs = Pipe()
    worker.ready, worker.orders = False, deque([Order(str(k), k, 0, "a", k, "{}", {}) for k in range(2)])
    assert list(worker.rows()) == []
    assert not worker.ready
    theirs.send("ready")
    assert list(worker.rows()) == []
    assert (worker.ready, len(worker.orders)) == (True, 2)
    theirs.send({"id": "0"})
    theirs.send({"id": "1"})
    assert list(worker.rows()) == [{"id": "0"}, {"id": "1"}]
    assert len(worker.orders) == 0
    theirs.close()
    with pytest.raises(EOFError):
        list(worker.rows())
    worker.give(Order("2", 2, 0, "a", 2, "{}", {}))  # that it is gone is found out when it is read
    assert len(worker.orders) == 1


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError])
def test_a_process_whose_pipe_breaks_ends(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    made, sent = list[str](), list[object]()
    monkeypatch.setattr(processes.signal, "signal", lambda *_: None)
    monkeypatch.setattr(processes.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(processes, "perform", lambda order, shared: made.append(order) or f"row {order}")
    orders = ["a", "b"]

    def receive() -> str:
        if not orders:
            raise error
        return orders.pop(0)

    processes._serve(SimpleNamespace(send=sent.append, recv=receive), None)  # type: ignore[arg-type]
    assert (made, sent) == (["a", "b"], ["ready", "row a", "row b"])


@pytest.mark.parametrize(
    ("error", "why"), [(EOFError(), "the process that forks them has ended"), (OSError("full"), "full")]
)
def test_processes_that_cannot_be_started(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> None:
        raise error

    made = SimpleNamespace(Pipe=Pipe, Process=lambda **_: SimpleNamespace(start=start))
    monkeypatch.setattr(processes, "_CONTEXT", made)
    with pytest.raises(EngineError, match=f"processes cannot be started: {why}"):
        processes._Worker(None)  # type: ignore[arg-type]


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
    for allowed in (17, 18, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=allowed: (soft, 4096))
        processes._check_files(3)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 4096))
    with pytest.raises(EngineError, match="3 processes need 17 open files and 16 are allowed"):
        processes._check_files(3)
