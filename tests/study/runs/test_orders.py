"""Orders and how they are made: what is missing, what is kept, what their rows and their progress say."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.policies.contract import Policy
from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario
from equipoise.study.runs import make as making
from equipoise.study.runs.engines.engine import EngineError
from equipoise.study.runs.make import How, _check_can_travel, make
from equipoise.study.runs.orders import Order, Shared, _take_place, make_run, orders_at, perform
from equipoise.study.runs.store import Memory, to_cell
from equipoise.study.runs.variants import RunOptions, Variant, policy_text, run_all
from tests.study.runs.sweeps.sweep_helpers import SCENARIO, quick

CASE = Scenario.model_validate(SCENARIO | {"seed": 7})


@pytest.mark.parametrize(
    ("asked", "there", "kept"),
    [
        ((), (), True),
        ((), ("journal.jsonl",), True),
        (("timeline",), (), False),
        (("timeline",), ("journal.jsonl",), False),
        (("timeline",), ("timeline/usage.parquet",), True),
        (("journal",), ("timeline/usage.parquet",), False),
        (("journal",), ("journal.jsonl",), True),
        (("timeline", "journal"), ("journal.jsonl",), False),
        (("timeline", "journal"), ("timeline/usage.parquet",), False),
        (("timeline", "journal"), ("timeline/usage.parquet", "journal.jsonl"), True),
    ],
)
def test_a_run_is_kept_when_all_is_there_that_is_asked_for(
    tmp_path: Path, asked: tuple[str, ...], there: tuple[str, ...], kept: bool
) -> None:
    shared = Shared(keep=tmp_path, **dict.fromkeys(asked, True))  # type: ignore[arg-type]
    order = Order("r", 0, 0, "fifo", 0, "{}", {})
    for name in there:
        (tmp_path / "r" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "r" / name).touch()
    assert not shared.is_kept(order)  # without its summary it was not written to its end
    (tmp_path / "r").mkdir(exist_ok=True)
    for summary, whole in (('{"identity": "r"}', kept), ("{}", False), ("3", False), ("{", False)):
        (tmp_path / "r" / "summary.json").write_text(summary)
        assert shared.is_kept(order) == whole
    assert Shared(timeline=True, journal=True).is_kept(order)  # nothing is to be kept


def test_orders_go_policy_by_policy_over_the_seeds_from_the_scenarios() -> None:
    orders = list(orders_at(CASE, ["fifo", "sjf"], 2, None, point=3, values={"a.b": 1}, number=10))
    assert [(o.number, o.policy, o.seed) for o in orders] == [
        (10, "fifo", 7), (11, "fifo", 8), (12, "sjf", 7), (13, "sjf", 8)
    ]  # fmt: skip
    assert len({o.id for o in orders}) == 4
    row = orders[0].row()
    assert row.pop("id") == orders[0].id
    assert row == {"number": 10, "point": 3, "policy": "fifo", "seed": 7, "a.b": 1}
    (plain,) = orders_at(CASE, ["fifo"], 1, None)
    assert (plain.number, plain.point, plain.values) == (0, 0, {})


def order_of(policy: str = "fifo", **changes: Any) -> Order:
    (order,) = orders_at(CASE, [policy], 1, None, **changes)
    return order


def test_what_a_runner_gets_and_what_its_row_says(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    def runner(scenario: Scenario, **given: Any) -> Any:
        asked.append(given)
        return quick(scenario, policy=given["policy"], seed=given["seed"])

    row = perform(order_of(), Shared(runner=runner))
    assert asked.pop().keys() == {
        "policy",
        "seed",
        "trace",
    }  # a runner need not know of timelines and journals
    assert (row["status"], row["jobs"], row["completed"]) == ("done", 3, 3)
    # `quick`: 100 s times 1 + seed 7 times 1 + noise 0.1 each; none of its jobs waits.
    assert row["makespan_s"] == pytest.approx(880.0)
    assert "groups" not in row
    assert "notes" not in row
    assert 0.0 <= row["cpu_s"] < 60.0
    assert 0.0 <= row["wall_s"] < 600.0
    perform(order_of(), Shared(runner=runner, keep=tmp_path, timeline=True, journal=True))
    given = asked.pop()
    assert (given["timeline"], given["journal"]) == (True, tmp_path / order_of().id / "journal.jsonl")


def test_what_a_run_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SimpleNamespace(
        perf_counter=iter((100.0, 107.0)).__next__, process_time=iter((50.0, 53.0)).__next__
    )
    monkeypatch.setattr("equipoise.study.runs.orders.time", clocks)
    row = perform(
        order_of(), Shared(runner=lambda case, **given: quick(case, policy=given["policy"], seed=1))
    )
    assert (row["wall_s"], row["cpu_s"]) == (7.0, 3.0)


def test_what_goes_wrong_is_told_in_one_line() -> None:
    def runner(*_: object, **__: object) -> Any:
        raise error

    said = {}
    for error in (
        ValueError("no such\n  luck"),
        RunFailed("out of luck", quick(CASE, policy=order_of().stages(), seed=0)),
    ):
        row = perform(order_of(), Shared(runner=runner))
        assert row["status"] == "failed"
        said[type(error)] = row["error"]
    assert said == {ValueError: "ValueError: no such luck", RunFailed: "out of luck"}


def test_records_of_a_failed_run_are_left_beside_the_finished_one(tmp_path: Path) -> None:
    """In `unfinished`; a run that ends well takes the place of the finished one, and nothing else is left there."""
    keep, beside = tmp_path / "run", tmp_path / "run" / "unfinished"
    policy = order_of().stages()
    made = quick(CASE, policy=policy, seed=0)

    def fails(*_: object, **__: object) -> Any:
        raise RunFailed("out of luck", made)

    def ends(*_: object, **__: object) -> Any:
        return made

    make_run(CASE, policy, 0, None, keep=keep, runner=ends)
    (keep / "timeline").mkdir()
    (keep / "journal.jsonl").touch()
    with pytest.raises(RunFailed):
        make_run(CASE, policy, 0, None, keep=keep, unfinished=beside, runner=fails)
    names = {path.name for path in beside.iterdir()}
    assert "jobs.parquet" in names
    assert json.loads((keep / "summary.json").read_text())["identity"] == "fake"
    make_run(CASE, policy, 0, None, keep=keep, unfinished=beside, runner=ends)
    assert {path.name for path in keep.iterdir()} == names | {"summary.json"}
    make_run(CASE, policy, 0, None, keep=keep, unfinished=tmp_path / "another", runner=ends)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    beside.mkdir()
    make_run(
        CASE, policy, 0, None, keep=keep, unfinished=keep, runner=ends
    )  # of one that was killed meanwhile
    assert not beside.exists()


def test_a_summary_takes_its_place_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that all is there."""
    new, old, moved = tmp_path / "new", tmp_path / "old", list[str]()
    old.mkdir()
    (new / "timeline").mkdir(parents=True)
    for name in ("summary.json", "a", "z"):
        (new / name).touch()
    monkeypatch.setattr(os, "replace", lambda path, target: moved.append(Path(path.rename(target)).name))
    _take_place(new, old)
    assert (sorted(moved[:3]), moved[3:]) == (["a", "timeline", "z"], ["summary.json"])
    assert not new.exists()


def test_only_what_another_process_can_import_may_travel() -> None:
    class Own:
        name = "own"

    Own.__module__ = "written at the prompt"
    own = Policy("own", (Own(),))  # type: ignore[arg-type]
    _check_can_travel(["fifo", make_policy("fifo")])
    for given in ([own], ["fifo", make_policy("fifo"), own]):
        with pytest.raises(EngineError, match="stage 'own' is in no file"):
            _check_can_travel(given)


def simulates(*_: object, **__: object) -> Any:
    raise AssertionError


simulates.simulates = True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("runner", "jobs", "dask", "done"),
    [
        (quick, 1, None, [("engine", 1, None)]),
        (quick, 9, None, [("travel",), ("engine", 9, None)]),  # not the simulator: nothing is known of it
        (run, 1, None, [("warming",), ("engine", 1, None)]),
        (run, 2, None, [("travel",), ("warm",), ("engine", 2, None)]),
        (run, 3, None, [("travel",), ("warm",), ("engine", 3, None)]),
        (run, 4, None, [("travel",), ("warm",), ("engine", 3, None)]),
        (simulates, 4, "local", [("travel",), ("warm",), ("engine", 3, "local")]),
        (run, 1, "local", [("travel",), ("warming",), ("engine", 1, "local")]),
        (run, 9, "tcp://a:1", [("travel",), ("engine", 9, "tcp://a:1")]),
    ],
)
def test_kernels_are_compiled_before_simulations_on_three_processors(
    runner: Any, jobs: int, dask: str | None, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    @contextmanager
    def noted(name: str, *values: Any) -> Iterator[None]:
        seen.append((name, *values))
        yield

    monkeypatch.setattr(making, "processors", lambda: 3)
    monkeypatch.setattr(making, "warming", lambda policies, scenario: noted("warming"))
    monkeypatch.setattr(making, "warm", lambda policies, scenario: seen.append(("warm",)))
    monkeypatch.setattr(making, "engine", lambda shared, jobs, dask: noted("engine", jobs, dask))
    monkeypatch.setattr(making, "_check_can_travel", lambda policies: seen.append(("travel",)))
    with making.workers(Shared(runner=runner), list(orders_at(CASE, ["fifo"], 1, None)), jobs, dask):
        assert seen == done
    seen.clear()
    with making.workers(Shared(runner=runner), [], jobs, dask):
        assert [one for one in seen if one[0] not in ("travel", "engine")] == []


def test_progress_counts_what_is_there_already_and_what_fails() -> None:
    def unlucky(scenario: Scenario, **given: Any) -> Any:
        if given["seed"] in (8, 9):
            raise ValueError("no such luck")
        return quick(scenario, **given)

    orders = list(orders_at(CASE, ["fifo"], 4, None))
    store, seen = Memory(), []
    make(store, orders[:1], Shared(runner=unlucky), How())
    chosen, made = make(
        store, [*orders, orders[0]], Shared(runner=unlucky), How(progress=lambda *said: seen.append(said))
    )
    assert (len(chosen), len(made)) == (5, 3)
    assert seen == [
        (3, 5, "fifo seed 8, 1 failed"), (4, 5, "fifo seed 9, 2 failed"), (5, 5, "fifo seed 10, 2 failed")
    ]  # fmt: skip
    assert make(store, orders, Shared(runner=quick), How())[1] == set()
    assert make(store, orders, Shared(runner=quick), How(retry=True))[1] == {orders[1].id, orders[2].id}
    assert [attempts for _, attempts in store.status().values()] == [1, 2, 2, 1]
    assert store.failures() == []


def test_there_are_as_many_processes_as_runs_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def workers(shared: Shared, missing: Any, jobs: int, dask: str | None) -> Any:
        asked.append(jobs)
        raise EngineError("asked enough")

    monkeypatch.setattr(making, "workers", workers)
    for runs, jobs in ((1, 3), (3, 3), (4, 3)):
        with pytest.raises(EngineError, match="asked enough"):
            make(Memory(), list(orders_at(CASE, ["fifo"], runs, None)), Shared(), How(jobs))
    assert asked == [1, 3, 3]
    make(Memory(), [], Shared(), How(3))  # nothing is missing: nobody is asked


def test_no_process_at_all_is_refused() -> None:
    assert How(1).jobs == 1
    with pytest.raises(EngineError, match="jobs: 0 processes can make no run; 1 or more can"):
        How(0)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (True, 1), (False, 0), (0.5, 0.5), (math.nan, None), (math.inf, None), (-math.inf, None), (0, 0),
        ("x", "x"), ([1, "a"], '[1, "a"]'), ({"a": 1}, '{"a": 1}'), (None, None),
    ],
)  # fmt: skip
def test_a_value_as_the_ledger_holds_it(value: Any, cell: Any) -> None:
    assert to_cell(value) == cell
    assert type(to_cell(value)) is type(cell)


def test_rows_in_memory_are_those_of_a_ledger() -> None:
    store = Memory()
    for key, number, status, more in (
        ("c", 2, "done", {"x": 1.0}), ("a", 1, "failed", {"x": 2.0}), ("b", 1, "done", {"x": math.nan}),
        ("d", 3, "done", {"x": None}), ("e", 4, "done", {}), ("f", 5, "done", {"x": 0.0}),
    ):  # fmt: skip
        store.put({"id": key, "number": number, "status": status, "attempts": 1, **more})
    assert [row["id"] for row in store.rows()] == ["a", "b", "c", "d", "e", "f"]
    assert store.results("x") == {"c": 1.0, "f": 0.0}
    assert [row["id"] for row in store.failures()] == ["a"]
    assert store.keep_only(["c", "z"]) == 5
    assert list(store.status()) == ["c"]


def test_variants_are_run_on_the_same_seeds_and_equal_ones_once() -> None:
    calls: list[tuple[str, int]] = []

    def counted(scenario: Scenario, **given: Any) -> Any:
        calls.append((given["policy"].name, given["seed"]))
        if given["policy"].name == "las" and given["seed"] == 8:
            raise ValueError("no such luck")
        return quick(scenario, **given)

    asked = [Variant(str(k), CASE, policy) for k, policy in enumerate(("fifo", "sjf", "fifo", "las"))]
    names: list[str] = []
    found = run_all(
        asked, RunOptions(3, runner=counted, progress=lambda _done, _of, name: names.append(name))
    )
    assert calls == [(policy, seed) for policy in ("fifo", "sjf", "las") for seed in (7, 8, 9)]
    assert names == ["0", "0", "0", "1", "1", "1", "3", "3, 1 failed", "3, 1 failed"]
    # `quick`: 100 s times 1 + seed times 1 + noise 0.1, twice that under sjf.
    assert found[1].values("makespan_s") == pytest.approx([1760.0, 1980.0, 2200.0])
    assert [one.failed for one in found] == [None, None, None, "ValueError: no such luck"]
    assert found[2].rows == found[0].rows
    assert (policy_text(CASE, "sjf"), policy_text(CASE, None)) == ("sjf", "fifo")
    with pytest.raises(PolicyError, match="unknown stage 'fifa'"):
        policy_text(CASE, "fifa")
    sure = CASE.model_copy(update={"noise": CASE.noise.model_copy(update={"step_cov": 0.0})})
    assert [len(one.rows) for one in run_all([Variant("a", sure, "fifo")], RunOptions(3, runner=quick))] == [
        1
    ]
    mixed = [Variant("a", sure, "fifo"), Variant("b", CASE, "fifo")]
    assert [len(one.rows) for one in run_all(mixed, RunOptions(3, runner=quick))] == [3, 3]
