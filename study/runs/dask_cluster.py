"""Runs on a Dask cluster, one run a task.

Dask continues when a worker is killed, and repeats only the unfinished runs of that worker: each result is collected
and released as it ends, so no finished run is lost with a worker. Runs are submitted a few at a time, so memory does
not grow with the sweep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from distributed import Client, Future, KilledWorker, WorkerPlugin, as_completed

from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.engine import EngineError, Work, failed
from equipoise.study.runs.orders import Order, Row

AHEAD = 3
"""Orders queued per worker beyond the current one, so that no worker waits for the coordinator."""
CONNECT_S = 10.0
_COUNT_WORKERS_EVERY = 64
_on_worker: dict[str, Work] = {}


class GiveWork(WorkerPlugin):  # type: ignore[misc]
    """Sends what all runs share to each worker, also to one that joins or restarts later."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.name = f"equipoise-{work.token}"

    def setup(self, worker: Any) -> None:
        """Called on the worker when it starts. Raises RuntimeError if it has different code."""
        self.work.check()
        _on_worker[self.work.token] = self.work


def perform_on_worker(token: str, order: Order) -> Row:
    """One run, on a worker."""
    return _on_worker[token].perform(order)


class OnDask:
    """Makes runs on the cluster of a client."""

    def __init__(self, client: Client, work: Work) -> None:
        self.client, self.work = client, work
        try:
            client.register_plugin(GiveWork(work))
        except RuntimeError as error:
            raise EngineError(str(error)) from error

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """Rows as they complete. A run whose workers keep being killed is tried once more alone, then failed.

        Alone, because runs queued at a killed worker are suspected together with the cause.
        """
        suspects: list[Order] = []
        yield from self._pass(orders, suspects)
        for order in suspects:
            again: list[Order] = []
            yield from self._pass([order], again)
            if again:
                yield {**order.row(), **failed("the process that made this run was killed, every time")}

    def _pass(self, orders: Sequence[Order], suspects: list[Order]) -> Iterator[Row]:
        waiting = deque(orders)
        pending: dict[Any, Order] = {}
        done, taken, most = as_completed(with_results=True, raise_errors=False), 0, 0
        while waiting or pending:
            if taken % _COUNT_WORKERS_EVERY == 0:
                most = (1 + AHEAD) * max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))
            while waiting and len(pending) < most:
                order = waiting.popleft()
                future = self._submit(order)
                pending[future.key] = order
                done.add(future)
            future, result = next(done)
            order = pending.pop(future.key)
            taken += 1
            row = self._row(future, result)
            future.release()
            if row is None:
                suspects.append(order)
            else:
                yield row

    def _submit(self, order: Order) -> Future[Row]:
        return self.client.submit(perform_on_worker, self.work.token, order, key=order.id)

    def _row(self, future: Future[Row], result: Any) -> Row | None:
        """The row of a task that has ended; None when its workers were killed."""
        if future.status == "finished":
            return result  # type: ignore[no-any-return]
        if future.status == "error" and isinstance(result[1], KilledWorker):
            return None
        if future.status == "error":
            raise EngineError(f"a worker cannot make runs: {result[1]}") from result[1]
        raise EngineError("the Dask cluster is no longer reachable")


@contextmanager
def on_cluster(address: str, work: Work) -> Iterator[OnDask]:
    """An existing Dask cluster. Raises EngineError when it does not answer, InputError."""
    try:
        client = Client(address, timeout=CONNECT_S)
    except ValueError as error:
        raise InputError([f"--dask {address}: is not an address such as tcp://host:8786: {error}"]) from error
    except OSError as error:  # a TimeoutError is one, too
        raise EngineError(f"{address}: no Dask scheduler answers: {error}") from error
    with client:
        yield OnDask(client, work)
