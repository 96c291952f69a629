import dataclasses
import json
import re

import duckdb
import pytest

from equipoise.base.database import own_database
from equipoise.cli import main
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario
from equipoise.study.runs.compare import compare
from equipoise.study.runs.query import export
from equipoise.study.runs.store import Ledger, connect
from equipoise.study.runs.sweep import SweepOptions, sweep
from equipoise.study.runs.warm import _SMALL
from tests.study.runs.sweeps.sweep_helpers import write_sweep

ROWS = [("a", "=1+2", 0.25, 3, None), ("b", "https://example.org", float("nan"), -4, True)]


@pytest.fixture
def table():
    connection = own_database()
    connection.execute("CREATE TABLE t (id VARCHAR, words VARCHAR, share DOUBLE, n INTEGER, flag BOOLEAN)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", ROWS)
    yield connection
    connection.close()


def test_csv_json_and_parquet(table, tmp_path):
    for kind in ("csv", "json", "parquet"):
        export(table, "SELECT id, n, flag FROM t ORDER BY id", tmp_path / f"t.{kind}")
    assert (tmp_path / "t.csv").read_text() == "id,n,flag\na,3,\nb,-4,true\n"
    assert json.loads((tmp_path / "t.json").read_text())[1] == {"id": "b", "n": -4, "flag": True}
    back = duckdb.execute(f"SELECT * FROM read_parquet('{tmp_path / 't.parquet'}') ORDER BY id").fetchall()
    assert back == [("a", 3, None), ("b", -4, True)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A sweep of real runs with everything kept."""
    folder = tmp_path_factory.mktemp("kept")
    file = write_sweep(folder, seeds=2, covs=(0.1,), case=_SMALL, policies=["fifo", "sjf"])
    sweep(file, folder / "out", SweepOptions(keep=True, timeline=True))
    return folder / "out"


def test_timelines_of_a_sweep_can_be_asked(kept):
    with connect(kept) as connection:
        names = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}
        assert {"runs", "jobs", "segments", "usage", "gpus"} <= names
        run_id, job = connection.execute(
            "SELECT r.id, j.job_id FROM runs r JOIN jobs j USING (id) WHERE j.name LIKE 'training%' LIMIT 1"
        ).fetchone()
        asked = f"FROM segments WHERE id = '{run_id}' AND job_id = {job}"
        busy = connection.execute(f"SELECT sum(busy_gpu_s), count(*) {asked}").fetchone()
        total = connection.execute(f"SELECT busy_gpu_s FROM jobs WHERE id = '{run_id}' AND job_id = {job}").fetchone()
        assert busy[1] >= 1
        assert busy[0] == pytest.approx(total[0])
        plan = connection.execute("EXPLAIN ANALYZE SELECT * FROM segments WHERE id = 'none'").fetchall()[0][1]
        assert re.search(r"Scanning Files: 0/\d+", plan), "only the files of the run should be read"


def test_a_comparison_and_a_run_can_be_asked(tmp_path):
    case = Scenario.model_validate(_SMALL)
    compare(case, ["fifo", "none"], 2, out=tmp_path / "c")
    with connect(tmp_path / "c") as connection:
        rows = connection.execute(
            "SELECT r.policy, r.seed, count(*), avg(r.makespan_s) FROM runs r JOIN jobs USING (id) "
            "GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    assert [row[:3] for row in rows] == [("fifo", 0, 5), ("fifo", 1, 5), ("none", 0, 5), ("none", 1, 5)]
    run(case).write(tmp_path / "r")
    with connect(tmp_path / "r") as connection:
        (row,) = connection.execute("SELECT policy, makespan_s FROM runs").fetchall()
        assert row[1] == pytest.approx(rows[0][3], rel=0.2)
        assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (5,)


@pytest.mark.parametrize(("package", "method"), [("pandas", "df"), ("polars", "pl"), ("pyarrow", "arrow")])
def test_tables_of_other_libraries(kept, package, method):
    pytest.importorskip(package)
    with connect(kept) as connection:
        found = getattr(connection.sql("SELECT policy, seed, makespan_s FROM runs ORDER BY ALL"), method)()
        if hasattr(found, "read_all"):
            found = found.read_all()
    names = found.column_names if package == "pyarrow" else list(found.columns)
    assert names == ["policy", "seed", "makespan_s"]
    assert len(found) == 4


def test_kept_directories_are_made_on_a_second_start(tmp_path):
    file = write_sweep(tmp_path, seeds=1, covs=(0.1,), case=_SMALL, policies=["fifo"])
    out = tmp_path / "out"
    assert sweep(file, out, SweepOptions()).made == 1
    assert sweep(file, out, SweepOptions(keep=True)).made == 1
    assert sweep(file, out, SweepOptions(keep=True)).made == 0
    assert not list(out.glob("runs/*/timeline"))
    assert sweep(file, out, SweepOptions(keep=True, timeline=True)).made == 1
    assert len(list(out.glob("runs/*/timeline/segments.parquet"))) == 1
    assert sweep(file, out, SweepOptions(keep=True, timeline=True)).made == 0
    with Ledger(out) as ledger:
        assert [row["status"] for row in ledger.rows()] == ["done"]


def test_a_failed_run_keeps_its_records_up_to_then(tmp_path):
    def unlucky(scenario, **given):
        made = run(scenario, **given)
        if given["seed"] == 1:
            raise RunFailed("stage s9 at 1 s: out of luck", dataclasses.replace(made, stopped="out of luck"))
        return made

    file = write_sweep(tmp_path, seeds=2, covs=(0.1,), case=_SMALL, policies=["fifo"])
    out = tmp_path / "out"
    (bad,) = sweep(file, out, SweepOptions(keep=True), runner=unlucky).failed
    folder = out / "runs" / bad["id"]
    assert (folder / "jobs.parquet").is_file()
    assert not (folder / "summary.json").exists()
    assert json.loads((folder / "manifest.json").read_text())["status"] == "out of luck"
    assert sweep(file, out, SweepOptions(keep=True)).made == 0  # not made again without --retry
    assert sweep(file, out, SweepOptions(keep=True, retry=True)).failed == ()
    assert (folder / "summary.json").is_file()


def test_command_line(kept, tmp_path, capsys):
    sql = "SELECT policy, count(*) AS n FROM runs GROUP BY ALL ORDER BY ALL"
    target = tmp_path / "t.csv"
    assert main(["query", sql, "--out", str(kept), "--to", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text() == "policy,n\nfifo,2\nsjf,2\n"
    assert main(["query", sql, "--out", str(kept), "--to", str(tmp_path / "t.doc")]) == 2
    assert main(["query", "SELECT nope FROM runs", "--out", str(kept), "--to", str(target)]) == 2
    file = write_sweep(tmp_path / "s", seeds=1)
    assert main(["sweep", str(file), "--out", str(tmp_path / "o"), "--timeline"]) == 2
    assert "--timeline needs --keep" in capsys.readouterr().err
