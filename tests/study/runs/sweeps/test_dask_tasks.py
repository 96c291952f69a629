"""What becomes of the tasks of a Dask cluster, and how many are handed out at once; the cluster is made up."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from equipoise.study.runs.engines.engine import EngineError
from equipoise.study.runs.orders import Order, Shared

dask_cluster = pytest.importorskip("equipoise.study.runs.engines.dask_cluster")
KilledWorker = pytest.importorskip("distributed").KilledWorker


@dataclass(eq=False)
class Task:
    key: str
    status: str
    result: Any
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass
class Cluster:
    """A client, and what it tells of tasks in the order in which they were given.

    ends: by seed, how often a run of it ends with that status (its result says why) before it is finished.
    """

    workers: int = 1
    ends: dict[int, tuple[str, BaseException | None, int]] = field(default_factory=dict)
    asked: int = 0
    most: int = 0
    tasks: deque[Task] = field(default_factory=deque)
    given: list[Task] = field(default_factory=list)

    def register_plugin(self, plugin: Any) -> None:
        pass

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        """As Dask tells it: five workers of all where the number is not -1."""
        assert n_workers == -1
        self.asked += 1
        return {"workers": dict.fromkeys(range(self.workers))}

    def submit(self, work: Any, token: str, order: Order, *, key: str) -> Task:
        status, why, times = self.ends.get(order.seed, ("finished", None, 0))
        self.ends[order.seed] = status, why, times - 1
        bad = times > 0
        said = "".join(status if bad else "finished")  # as it comes from elsewhere: not the text in the code
        self.given.append(Task(key, said, (type(why), why, None) if bad else order.row()))
        return self.given[-1]

    def __call__(self, with_results: bool, raise_errors: bool) -> Cluster:
        assert (with_results, raise_errors) == (True, False)
        return self

    def add(self, task: Task) -> None:
        self.tasks.append(task)
        self.most = max(self.most, len(self.tasks))

    def __next__(self) -> tuple[Task, Any]:
        task = self.tasks.popleft()
        return task, task.result


def made(cluster: Cluster, runs: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(dask_cluster, "as_completed", cluster)
    orders = [Order(f"r{k}", k, 0, "fifo", k, "{}", {}) for k in range(runs)]
    return list(dask_cluster.OnDask(cluster, Shared((), "")).rows(orders))


@pytest.mark.parametrize(("workers", "most"), [(0, 4), (1, 4), (2, 8)])
def test_each_worker_has_a_run_and_three_in_line(
    workers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(workers)
    assert [row["seed"] for row in made(cluster, 20, monkeypatch)] == list(range(20))
    assert cluster.most == most
    assert all(task.released for task in cluster.given)


def test_workers_are_counted_again_after_every_64_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    assert len(made(cluster, 129, monkeypatch)) == 129
    assert cluster.asked == 3  # before the first, the 65th and the 129th has been taken


def test_fewer_are_handed_out_when_a_worker_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shrinking(Cluster):
        def scheduler_info(self, n_workers: int) -> dict[str, Any]:
            found = super().scheduler_info(n_workers)
            self.workers, self.most = 1, 0
            return found

    cluster = Shrinking(2)
    assert len(made(cluster, 100, monkeypatch)) == 100
    assert cluster.most == 4  # since the second time that they were counted


KILLED = KilledWorker("r1", None, 1)


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, "was killed, every time")])
def test_a_run_whose_workers_were_killed_is_tried_alone_at_the_end(
    times: int, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(ends={1: ("error", KILLED, times)})
    rows = made(cluster, 3, monkeypatch)
    assert [row["seed"] for row in rows] == [0, 2, 1]
    assert [task.key for task in cluster.given] == ["r0", "r1", "r2", "r1"]
    assert (error is None and "error" not in rows[2]) or error in rows[2]["error"]


@pytest.mark.parametrize(
    ("status", "why", "said"),
    [
        ("error", ValueError("no such class"), "a worker cannot make runs: no such class"),
        ("lost", None, "the Dask cluster has gone away"),
        ("cancelled", None, "the Dask cluster has gone away"),
    ],
)
def test_a_cluster_that_cannot_make_runs(
    status: str, why: BaseException | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        made(Cluster(ends={0: (status, why, 1)}), 1, monkeypatch)
    assert caught.value.__cause__ is why


def test_a_cluster_of_this_machine_has_a_process_a_worker_and_suspects_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    @contextmanager
    def started(**given: Any) -> Any:
        asked.update(given, failures=dask_cluster.dask.config.get("distributed.scheduler.allowed-failures"))
        yield Cluster()

    @contextmanager
    def client(cluster: Cluster) -> Any:
        yield cluster

    monkeypatch.setattr(dask_cluster, "LocalCluster", started)
    monkeypatch.setattr(dask_cluster, "Client", client)
    with dask_cluster.local(3, Shared((), "")) as engine:
        assert isinstance(engine, dask_cluster.OnDask)
    found = [asked[name] for name in ("n_workers", "threads_per_worker", "memory_limit", "failures")]
    assert found == [3, 1, 0, 0]  # a limit of 0 is none
