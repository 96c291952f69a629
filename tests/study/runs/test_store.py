import os
import sqlite3

import pytest

from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.store import Ledger, StoreError, connect, only_writer


def row(key, **changes):
    base = {"id": key, "number": 0, "point": 0, "policy": "fifo", "seed": 0, "status": "done", "attempts": 1}
    return base | {"makespan_s": 1.5} | changes


def put_one_by_one(ledger, rows):
    for each in rows:
        ledger.put(each)


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


def test_no_sweep_to_query(tmp_path):
    with pytest.raises(InputError, match="no sweep, comparison or run here"):
        connect(tmp_path)
