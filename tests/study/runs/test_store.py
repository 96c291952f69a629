import json
import math
import os
import sqlite3
from contextlib import closing, contextmanager
from weakref import ref

import pytest

from equipoise.base.json_values import from_json
from equipoise.sim.record import read_parquet
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs import shards, store
from equipoise.study.runs.shards import ShardFile, merge, read_lines
from equipoise.study.runs.store import (
    Ledger,
    StoreError,
    connect,
    is_current,
    kinds,
    ledger_with_copy,
    only_writer,
    to_array,
    write_copy,
)


def row(key, **changes):
    base = {"id": key, "number": 0, "point": 0, "policy": "fifo", "seed": 0, "status": "done", "attempts": 1}
    return base | {"makespan_s": 1.5} | changes


def put_one_by_one(ledger, rows):
    for each in rows:
        ledger.put(each)


def test_rows_come_back_in_order_and_columns_appear_as_needed(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put(row("b", number=1))
        ledger.put(row("a", number=0, **{"noise.step_cov": 0.1, 'odd " name': "x"}))
        ledger.put(row("c", number=2, makespan_s=math.nan, lists=[1, 2], flag=True))
    with Ledger(tmp_path) as ledger:
        rows = ledger.rows()
        assert [r["id"] for r in rows] == ["a", "b", "c"]
        assert rows[0]["noise.step_cov"] == 0.1
        assert rows[0]['odd " name'] == "x"
        assert "noise.step_cov" not in rows[1]
        assert "makespan_s" not in rows[2]
        assert (rows[2]["lists"], rows[2]["flag"]) == ("[1, 2]", 1)


def test_a_run_is_there_once_however_often_it_is_put(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put(row("a", status="failed", error="bad"))
        assert [r["id"] for r in ledger.failures()] == ["a"]
        ledger.put(row("a", attempts=2))
        assert ledger.status() == {"a": ("done", 2)}
        assert ledger.failures() == []
        assert "error" not in ledger.rows()[0]


def test_committed_rows_survive_a_process_that_just_goes_away(tmp_path):
    pid = os.fork()
    if pid == 0:
        ledger = Ledger(tmp_path)
        for k in range(50):
            ledger.put(row(f"r{k}", number=k))
        os._exit(9)
    os.waitpid(pid, 0)
    with Ledger(tmp_path) as ledger:
        assert [r["id"] for r in ledger.rows()] == [f"r{k}" for k in range(50)]


def test_unplanned_runs_are_put_aside_and_come_back(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put_all([row("a"), row("b", extra=3)])
        before = ledger.rows()
        assert ledger.keep_only(["a", "c"]) == 1
        assert list(ledger.status()) == ["a"]
        assert ledger.keep_only(["a", "b"]) == 0
        assert ledger.rows() == before


def test_one_writer_at_a_time(tmp_path):
    with only_writer(tmp_path), pytest.raises(StoreError, match="another sweep"), only_writer(tmp_path):
        pass
    with only_writer(tmp_path):
        pass


def test_a_ledger_of_another_version_or_no_ledger_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "sweep.db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another version"):
        Ledger(tmp_path)
    (tmp_path / "sweep.db").write_text("this is text, not a database, and long enough to be seen as none" * 20)
    with pytest.raises(StoreError, match="is damaged"):
        Ledger(tmp_path)


def test_a_ledger_that_cannot_be_read_is_not_copied(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger._db.close()
        with pytest.raises(StoreError, match=r"sweep\.db: is damaged: .*; delete it to start again"):
            ledger.export()


def test_a_copy_is_of_the_ledger_as_it_is(tmp_path):
    """It is there, of the same time, and nothing stands in the ledger's log."""
    ledger, copy, log = (tmp_path / name for name in ("sweep.db", "runs.parquet", "sweep.db-wal"))
    ledger.touch()
    assert not is_current(tmp_path)
    copy.touch()
    for ledger_ns, copy_ns, written, current in (
        (5, 5, None, True),
        (5, 6, None, False),
        (6, 5, None, False),
        (5, 5, b"", True),
        (5, 5, b"x", False),
    ):
        os.utime(ledger, ns=(ledger_ns, ledger_ns))
        os.utime(copy, ns=(copy_ns, copy_ns))
        if written is not None:
            log.write_bytes(written)
        assert is_current(tmp_path) == current


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put(row("a"))
        ledger._db.execute("PRAGMA max_page_count = 8")
        many = [row(f"r{k}", error="x" * 500) for k in range(1000)]
        with pytest.raises(StoreError, match="cannot be used: database or disk is full"):
            put_one_by_one(ledger, many)
        kept = len(ledger.rows())
        ledger._db.execute("PRAGMA max_page_count = 100000")
        ledger.put(row("z"))
        assert len(ledger.rows()) == kept + 1


def test_query_sees_the_ledger_as_it_is_now(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put_all([row("a", makespan_s=1.0), row("b", policy="sjf", makespan_s=3.0)])
    asked = "SELECT policy, avg(makespan_s) FROM runs GROUP BY policy ORDER BY policy"
    with connect(tmp_path) as connection:
        assert connection.execute(asked).fetchall() == [("fifo", 1.0), ("sjf", 3.0)]
    assert is_current(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.put(row("c", policy="sjf", makespan_s=5.0))
    with connect(tmp_path) as connection:
        assert connection.execute(asked).fetchall() == [("fifo", 1.0), ("sjf", 4.0)]


def test_no_sweep_to_query(tmp_path):
    with pytest.raises(InputError, match="no sweep, comparison or run here"):
        connect(tmp_path)


@pytest.mark.parametrize(
    ("values", "kind", "result"),
    [
        ([1, 2], "BIGINT", [1, 2]),
        ([1, None], "DOUBLE", [1.0, None]),
        ([1, 2.5], "DOUBLE", [1.0, 2.5]),
        ([None, "x"], "VARCHAR", [None, "x"]),
        ([1, "x"], "VARCHAR", ["1", "x"]),
        ([None, None], "DOUBLE", [None, None]),
    ],
)
@pytest.mark.parametrize("batch", [1, 5000])
def test_columns_for_parquet(tmp_path, monkeypatch, values, kind, result, batch):
    monkeypatch.setattr(store, "BATCH", batch)
    with Ledger(tmp_path) as ledger:
        ledger.put_all(row(str(k), number=k, x=value) for k, value in enumerate(values))
    with connect(tmp_path) as connection:
        column = connection.sql("SELECT x FROM runs")
        assert str(column.types[0]) == kind
        assert [x for (x,) in column.fetchall()] == result


def test_a_ledger_is_copied_in_pieces(tmp_path, monkeypatch):
    """Only so many runs at once stand in memory as Python's objects, and the bytes do not show it."""
    seen = []

    def counted(values, kind):
        seen.append(len(values))
        return to_array(values, kind)

    with Ledger(tmp_path) as ledger:
        ledger.put_all(row(f"r{k}", number=-k, makespan_s=float(k)) for k in range(25))
        whole = ledger.export().read_bytes()
        monkeypatch.setattr(store, "BATCH", 10)
        monkeypatch.setattr(store, "to_array", counted)
        copy = ledger.export()
        assert copy.read_bytes() == whole
        assert set(seen) == {10, 5}
        assert read_parquet(copy)["makespan_s"].tolist() == [float(k) for k in reversed(range(25))]


def test_a_copy_is_of_one_moment_whoever_writes_meanwhile(tmp_path, monkeypatch):
    """A run that another process adds once the columns are known, with one of its own, comes next time."""
    with Ledger(tmp_path) as ledger:
        ledger.put_all([row("a", number=1), row("b", number=2)])
    with Ledger(tmp_path) as ledger, Ledger(tmp_path) as other:
        late = [row("c", number=3, seed="text", more=1)]

        def then_written(db):
            known = kinds(db)
            while late:
                other.put(late.pop())
            return known

        monkeypatch.setattr(store, "kinds", then_written)
        first = read_parquet(ledger.export())
        assert (first["id"].tolist(), "more" in first) == (["a", "b"], False)
        assert read_parquet(ledger.export())["seed"].tolist() == ["0", "0", "text"]


def test_a_table_larger_than_its_memory_is_copied_through_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "COPY_MIB", 24)
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / ".tmp").touch()  # where DuckDB would put it by itself: not into the working folder
    monkeypatch.chdir(elsewhere)
    names = [f"c{k}" for k in range(70)]
    numbers = "WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < 39999)"
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE runs (id, number, {', '.join(names)})")
        random = ", ".join("random() / 7.0" for _ in names)
        db.execute(f"INSERT INTO runs {numbers} SELECT 'r' || x, x, {random} FROM n")
        db.commit()
        write_copy(db, folder / "runs.parquet")
    assert read_parquet(folder / "runs.parquet")["number"].tolist() == list(range(40_000))
    assert [path.name for path in folder.iterdir()] == ["runs.parquet"]


def test_shard_file_drops_half_a_line_and_goes_on(tmp_path):
    with ShardFile(tmp_path, 1, 2) as shard:
        shard.put(row("a"))
        shard.put(row("b", makespan_s=math.nan))
    with open(shard.path, "ab") as file:
        file.write(b'{"id": "c", "number')
    with ShardFile(tmp_path, 1, 2) as shard:
        assert set(shard.status()) == {"a", "b"}
        shard.put(row("d"))
    rows, size = read_lines(shard.path)
    assert [r["id"] for r in rows] == ["a", "b", "d"]
    assert size == shard.path.stat().st_size
    assert rows[1]["makespan_s"] is None


def test_a_line_that_is_no_run_is_refused(tmp_path):
    path = tmp_path / "shards" / "shard-1-of-1.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(row("a")) + "\n[1, 2]\n" + json.dumps(row("b")) + "\n")
    with pytest.raises(StoreError, match=r"shard-1-of-1\.jsonl:2:1: not a run"):
        read_lines(path)


def test_merge_prefers_done_and_names_missing_shards(tmp_path):
    with ShardFile(tmp_path / "x", 1, 3) as shard:
        shard.put(row("a", status="failed", error="bad"))
        shard.put(row("b", number=1))
        shard.set_about(plan="p")
    with ShardFile(tmp_path / "y", 2, 3) as shard:
        shard.put(row("a"))
        shard.set_about(plan="p")
    assert (tmp_path / "y" / "shards" / "about.json").read_text() == '{\n  "plan": "p"\n}\n'
    assert merge(tmp_path / "x", [tmp_path / "x", tmp_path / "y"]) == (2, 0, ["shards missing of 3: 3"])
    with Ledger(tmp_path / "x") as ledger:
        assert [(r["id"], r["status"]) for r in ledger.rows()] == [("a", "done"), ("b", "done")]
        assert ledger.about() == {"plan": "p"}


@pytest.mark.parametrize(
    "anew",
    [lambda whole: b"".join(reversed(whole.splitlines(keepends=True))), lambda _: b"", lambda _: b"{}", lambda _: b"3"],
)
def test_a_shard_that_is_written_anew_while_it_is_merged_is_told(tmp_path, monkeypatch, anew):
    with ShardFile(tmp_path, 1, 1) as shard:
        shard.put(row("a", error="longer than the other"))
        shard.put(row("b", number=1))
    whole = shard.path.read_bytes()

    @contextmanager
    def then_written(folder):
        with ledger_with_copy(folder) as ledger:
            shard.path.write_bytes(anew(whole))
            yield ledger

    monkeypatch.setattr(shards, "ledger_with_copy", then_written)
    with pytest.raises(StoreError, match=r"shard-1-of-1\.jsonl: was rewritten during the merge; merge again"):
        merge(tmp_path, [tmp_path])
    with Ledger(tmp_path) as ledger:
        assert ledger.rows() == []


def test_shards_are_merged_a_run_at_a_time(tmp_path, monkeypatch):
    """Beside where each run stands, no more than three of them are in memory."""
    with ShardFile(tmp_path, 1, 1) as shard:
        for k in range(30):
            shard.put(row(f"r{k}", number=-k, makespan_s=float(k)))
    made, alive = [], []

    def counted(line):
        made.append(ref(read := Kept(from_json(line))))
        alive.append(sum(each() is not None for each in made))
        return read

    monkeypatch.setattr(shards, "from_json", counted)
    assert merge(tmp_path, [tmp_path]) == (30, 0, [])
    assert len(alive) == 60
    assert max(alive) <= 3
    with Ledger(tmp_path) as ledger:
        assert [r["makespan_s"] for r in ledger.rows()] == [float(k) for k in reversed(range(30))]


class Kept(dict):
    """A section that can be watched."""


def test_of_a_run_that_two_shards_have_a_done_one_wins_whichever_is_read_first(tmp_path):
    ends = {"a": ("failed", "done"), "b": ("done", "failed"), "c": ("done", "done"), "d": ("failed", "failed")}
    for part in (1, 2):
        with ShardFile(tmp_path, part, 4) as shard:
            for number, (key, status) in enumerate(ends.items()):
                shard.put(row(key, number=number, status=status[part - 1], makespan_s=float(part)))
    beside = tmp_path / "shards" / "shard-1-of-4-old.jsonl"  # read before the others, if it were one
    beside.write_text("{}\n")
    assert merge(tmp_path, [tmp_path, tmp_path / "none"]) == (3, 1, ["shards missing of 4: 3, 4"])
    with Ledger(tmp_path) as ledger:
        assert [r["makespan_s"] for r in ledger.rows()] == [2.0, 1.0, 1.0, 1.0]
        assert ledger.about() == {}


def test_shards_of_different_sweeps_are_not_merged(tmp_path):
    for name in ("x", "y"):
        with ShardFile(tmp_path / name, 1, 1) as shard:
            shard.put(row(name))
            shard.set_about(plan=name)
    with pytest.raises(InputError, match="different sweeps"):
        merge(tmp_path / "z", [tmp_path / "x", tmp_path / "y"])
    with pytest.raises(InputError, match="here"):
        merge(tmp_path / "z", [tmp_path])
