"""SQL over results: only them, only read, and an end when it is asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

import equipoise
from equipoise import cli
from equipoise.base.database import database
from equipoise.sim.scenario.tree import InputError
from equipoise.study.report import page
from equipoise.study.runs.query import ask, memory_at_most

ROOT = Path(__file__).resolve().parent.parent
CASE = {
    "schema_version": 1,
    "name": "case \x1b[31m",
    "cluster": {"gpus": 4},
    "workload": {"jobs": [{"name": "job\x1b[31m\x9b", "gpus": 1, "duration": 10.0, "user": "ada"}]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "it's a run"
    equipoise.run(CASE, out=out, timeline=True)
    return out


def test_user_without_quotes_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sql, told in (
        ("SELECT user FROM jobs", True),
        ('SELECT "user" FROM jobs', False),
        ("SELECT jobs.user FROM jobs", False),
        ("SELECT 'the user' AS x, count(*) AS users FROM jobs", False),
    ):
        assert cli.main(["query", "--out", str(folder), sql]) == 0
        assert ('"user", in quotes' in capsys.readouterr().err) == told, sql


def test_what_is_kept_can_be_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for place in (folder, Path(folder.name)):
        assert ask(place, "SELECT policy, makespan_s FROM runs") == (["policy", "makespan_s"], [("fifo", 10.0)])
        for table in ("jobs", "segments"):
            assert ask(place, f"SELECT DISTINCT id FROM {table}")[1] == [("it's a run",)]
        assert ask(place, "WITH a AS (FROM segments) SELECT count(*) > 0 FROM a")[1] == [(True,)]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO '{there}/x.csv'",
        "COPY runs TO '{run}/x.csv'",
        "EXPORT DATABASE '{there}/x'",
        "ATTACH '{there}/x.db' AS x",
        "SELECT * FROM read_csv('{there}/secret')",
        "SELECT * FROM read_text('{run}/../secret')",
        "SELECT * FROM glob('{there}/*')",
        "SELECT * FROM '{there}/secret'",
        "SELECT * FROM query('COPY runs TO ''{there}/x''')",
        "SELECT * FROM read_csv('{run}/link.csv')",
        "SELECT * FROM '{run}/linked/secret.csv'",
        "SELECT * FROM read_csv('/dev/stdin')",
        "FROM read_blob('file:///etc/passwd')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "FROM parquet_metadata('{there}/secret')",
        "FROM 'http://127.0.0.1:1/x.csv'",
        "SELECT getenv('HOME')",
        "CREATE SECRET x (TYPE s3)",
        "CREATE MACRO m() AS TABLE FROM read_text('{there}/secret')",
        "CREATE TEMP VIEW v AS FROM read_text('{there}/secret')",
        "WITH x AS (DELETE FROM runs RETURNING *) FROM x",
        "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{there}/secret'')'))",
        "SELECT * FROM folder",
        "SET enable_external_access = true",
        "SELECT 1; COPY runs TO '{there}/x.csv'",
        "CREATE TABLE x AS FROM runs",
        "INSTALL httpfs",
        "PRAGMA database_list",
        "/* a */ -- b\n pragma database_list",
        "\ufeff;PRAGMA version",
        "CALL enable_logging()",
    ],
)
def test_nothing_else_is_read_or_written(folder: Path, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret").write_text("a\n1\n")
    (tmp_path / "secret.csv").write_text("a\n1\n")
    (folder.parent / "secret").write_text("a\n1\n")
    for name, target in (("link.csv", tmp_path / "secret.csv"), ("linked", tmp_path)):
        (folder / name).unlink(missing_ok=True)  # results may come from others, with links in them
        (folder / name).symlink_to(target)
    before = sorted(folder.rglob("*")), sorted(tmp_path.iterdir())
    run = str(folder).replace("'", "''")
    with pytest.raises((InputError, duckdb.Error)):
        ask(folder, sql.format(there=tmp_path, run=run))
    assert (sorted(folder.rglob("*")), sorted(tmp_path.iterdir())) == before


@pytest.mark.parametrize("sql", ["FROM read_xlsx('x')", "FROM sqlite_scan('x', 'y')", "FROM iceberg_scan('x')"])
def test_no_extension_of_the_database_is_fetched(folder: Path, sql: str) -> None:
    with pytest.raises(duckdb.Error) as caught:
        ask(folder, sql)
    assert "automatically install" not in str(caught.value)
    assert "ownload" not in str(caught.value)


def test_other_files_when_they_are_allowed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    sql = f"SELECT a, policy FROM read_csv('{tmp_path}/a.csv'), runs"
    with pytest.raises(duckdb.Error):
        ask(folder, sql)
    assert ask(folder, sql, allow_files=True)[1] == [(1, "fifo")]


TIMES = "SELECT now() AS n, 7 AS a, 8 AS b, [now()] AS l, {'x': now()} AS s, now()::TIMETZ AS z ORDER BY a"


def test_times_with_a_zone_need_no_other_package(folder: Path, tmp_path: Path) -> None:
    names, (row,) = ask(folder, TIMES)
    assert (names, row[1:3]) == (["n", "a", "b", "l", "s", "z"], (7, 8))
    assert all(str(row[k]).count(":") >= 2 for k in (0, 3, 4, 5))
    ask(folder, "SELECT now() AS n", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").is_file()


@pytest.mark.parametrize("name", ["it's.csv", "a.json", "a.parquet"])
def test_a_file_is_written_where_it_is_asked_for(folder: Path, tmp_path: Path, name: str) -> None:
    ask(folder, "SELECT policy FROM runs", tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_escape_sequence_reaches_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT name, name AS \"x\x1b[2J\", 'a\nb' AS c FROM jobs"
    for more in ([], ["--format", "json"]):
        assert cli.main(["query", sql, "--out", str(folder), *more]) == 0
        shown = capsys.readouterr().out
        assert all(c == "\n" or c.isprintable() for c in shown)
        assert "job\\x1b[31m\\x9b" in shown or json.loads(shown)[0]["name"] == "job\x1b[31m\x9b"
    assert cli.main(["query", "SELECT CAST('\x1b[31m' AS INT)", "--out", str(folder)]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_nor_from_the_names_of_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps(CASE))
    for command in (["run"], ["compare", "--seeds", "1", "--policy", "fifo"]):
        assert cli.main([command[0], str(tmp_path / "s.yaml"), *command[1:]]) == 0
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
        assert "case \\x1b[31m" in shown.out


def test_memory_is_limited_and_the_limit_ends(folder: Path) -> None:
    with pytest.raises(InputError, match="more than 4 GiB of memory"):
        ask(folder, "SELECT repeat('x', 3000000000) || repeat('y', 3000000000)")
    with memory_at_most(2**28), pytest.raises(MemoryError):
        bytearray(2**30)
    assert len(bytearray(2**30)) == 2**30


# -- Ctrl-C: each test waits for an event, not for a time ----------------------------------------------------------

HANGS = """
import sys, threading
from pathlib import Path
from equipoise.study.runs.query import interruptible
left_over = Path(sys.argv[1])
def work():
    left_over.touch()
    print("began", flush=True)
    threading.Event().wait()
interruptible(work, left_over)
"""


def test_an_interruption_does_not_wait_for_the_query(tmp_path: Path) -> None:
    begun = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(tmp_path / "x.partial")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert begun.stdout is not None
    assert begun.stdout.readline() == "began\n"
    begun.send_signal(signal.SIGINT)
    said = begun.communicate()[1]
    assert (said, begun.returncode) == ("equipoise: interrupted\n", 130)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="memory of a process is not told here")
def test_ctrl_c_ends_a_query_that_is_being_folded(folder: Path) -> None:
    sql = "SELECT unnest(range(100000000))"
    asked = subprocess.Popen(
        [sys.executable, "-m", "equipoise.cli", "query", "--out", str(folder), sql],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    statm = Path(f"/proc/{asked.pid}/statm")
    while int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") < 600e6:  # the list is being made
        assert asked.poll() is None
        time.sleep(0.001)
    asked.send_signal(signal.SIGINT)
    said = asked.communicate()[1]
    assert (said, asked.returncode) == ("equipoise: interrupted\n", 130)


LONG = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b"


def test_ctrl_c_that_duckdb_hears_ends_any_command_as_it_should(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asks(*_: object) -> None:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 1.0)  # whenever it comes: the question takes hours
        try:
            database().execute(LONG).fetchall()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(page, "make_report", asks)
    try:
        assert cli.main(["report", str(folder)]) == 130
    finally:
        signal.signal(signal.SIGALRM, before)
    assert capsys.readouterr().err.lstrip() == "equipoise: interrupted\n"
