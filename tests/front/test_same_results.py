"""The check that results are still the same: what its digests see, and that it looks at every shipped scenario."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.record import write_parquet
from tests.bench import same_results
from tests.bench.digests import (
    Digest,
    Name,
    add_record,
    cells,
    differences,
    digest,
    digests,
    join,
    read,
    read_tables,
    write,
)

JOBS = {
    "job_id": np.arange(3),
    "name": np.array(["a", None, "c"], dtype=object),
    "queueing_s": np.array([0.0, math.nan, 2.5]),
}
LINE = {
    "time_s": 0.5,
    "plan": {"$Plan": {"moves": None, "reasons": {"$tuple": [{"$Reason": {"stage": "s1", "values": {}}}]}}},
    "up": {"$array": "bool", "rows": 3, "all": True},
    "rate": {"$array": "float64", "values": [1.0, {"$float": "inf"}]},
}


def records(folder: Path, jobs=JOBS, lines=(LINE, LINE), renamed=None, run: int = 1, without=()):
    """Digests of a folder such as a run writes."""
    folder.mkdir()
    write_parquet(folder / "jobs.parquet", jobs)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return digests("case", read_tables(folder, run), renamed or {}, without)


def changed(old, new) -> dict[str, str]:
    return {f"{d.name.table}:{d.name.column}": d.text for d in differences(old, new)}


def test_equal_records_have_equal_digests(tmp_path):
    first, again = records(tmp_path / "a"), records(tmp_path / "b")
    assert differences(first, again) == []
    assert first[Name("case", "jobs", "queueing_s")].sum == "2.5"
    assert first[Name("case", "jobs", "name")].rows == 3
    assert {name.column for name in first if name.table == "journal"} == {
        "time_s", "plan.moves", "plan.reasons", "plan.reasons.stage", "up", "rate",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("queueing_s", [0.0, math.nan, 3.0], "sum 2.5 is now 3.0 (+0.5, 17 %)"),
        ("queueing_s", [2.5, math.nan, 0.0], "sum 2.5 is now 2.5 (+0, 0 %)"),
        ("queueing_s", [-0.0, math.nan, 2.5], "sum 2.5 is now 2.5 (+0, 0 %)"),
        ("queueing_s", [0.0, math.inf, 2.5], "sum 2.5 is now 2.5 (+0, 0 %)"),
        ("job_id", [0, 1, 3], "3 values differ"),
        ("job_id", [0.0, 1.0, 2.0], "3 values differ"),
        ("name", ["a", "", "c"], "3 values differ"),
        ("name", ["ac", None, ""], "3 values differ"),
    ],
)
def test_a_changed_value_is_seen(tmp_path, column, values, text):
    array = np.array(values, dtype=object if column == "name" else None)
    made = records(tmp_path / "b", JOBS | {column: array})
    assert changed(records(tmp_path / "a"), made) == {f"jobs:{column}": text}


def test_a_changed_line_of_a_journal_is_seen(tmp_path):
    old = records(tmp_path / "a")
    late = records(tmp_path / "b", lines=(LINE, LINE | {"time_s": 0.75}))
    assert list(changed(old, late)) == ["journal:time_s"]
    down = records(tmp_path / "c", lines=(LINE, LINE | {"up": LINE["up"] | {"all": False}}))
    assert list(changed(old, down)) == ["journal:up"]
    elsewhere = [{k: v for k, v in LINE.items() if k != ("up", "rate")[n]} for n in range(2)]
    swapped = [elsewhere[1], elsewhere[0]]
    first, second = records(tmp_path / "d", lines=elsewhere), records(tmp_path / "e", lines=swapped)
    assert sorted(changed(first, second)) == ["journal:rate", "journal:up"]


def test_a_missing_row_is_seen(tmp_path):
    short = {column: values[:2] for column, values in JOBS.items()}
    found = changed(records(tmp_path / "a"), records(tmp_path / "b", short))
    assert found == dict.fromkeys(("jobs:job_id", "jobs:name", "jobs:queueing_s"), "had 3 values, has 2")


def test_a_renamed_column_is_seen_unless_it_is_meant(tmp_path):
    jobs = {name.replace("queueing_s", "waiting_s"): values for name, values in JOBS.items()}
    old = records(tmp_path / "a")
    assert changed(old, records(tmp_path / "b", jobs)) == {
        "jobs:queueing_s": "is missing", "jobs:waiting_s": "is new",
    }  # fmt: skip
    assert (
        differences(old, records(tmp_path / "c", jobs, renamed={"jobs:waiting_s": "jobs:queueing_s"})) == []
    )


def test_a_renamed_table_and_group_of_columns_can_be_meant(tmp_path):
    old = records(tmp_path / "a")
    lines = [{"plans" if k == "plan" else k: v for k, v in LINE.items()}] * 2
    new = records(tmp_path / "b", lines=lines)
    renamed = {"journal:plans": "journal:plan", "jobs": "tasks"}
    tasks = {n._replace(table=n.table.replace("jobs", "tasks")): found for n, found in old.items()}
    assert differences(tasks, records(tmp_path / "c", lines=lines, renamed=renamed)) == []
    assert len(differences(old, new)) == 6
    with pytest.raises(ValueError, match="two columns are jobs:name"):
        records(tmp_path / "d", renamed={"jobs:job_id": "jobs:name"})


def test_the_largest_difference_comes_first():
    then = {Name("c", "t", k): Digest(1, "0", "100.0") for k in "abc"}
    now = {
        Name("c", "t", k): Digest(1, "1", total)
        for k, total in zip("abc", ("101.0", "50.0", "100.0"), strict=True)
    }
    assert [d.name.column for d in differences(then, now)] == ["b", "a", "c"]
    assert [d.size for d in differences(then, now)] == pytest.approx([0.5, 1 / 101, 0.0])


def test_runs_are_told_apart_and_what_is_no_result_is_left_out(tmp_path):
    without = ("journal", "jobs:job_id")
    first, second = (records(tmp_path / str(k), run=k, without=without) for k in (1, 2))
    assert {f"{name.table}:{name.column}" for name in first} == {"jobs:name", "jobs:queueing_s"}
    assert len(differences(first, second)) == 2
    both = read_tables(tmp_path / "1", 1)
    join(both, read_tables(tmp_path / "2", 2))
    assert digests("case", both, {})[Name("case", "jobs", "name")].rows == 6


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=3))))
def test_only_equal_cells_have_equal_digests(values):
    def bits(held):
        return [repr(value) for value in held]

    found = digest([(0, cells(values))]).sha256
    for other in (values[1:], [*values, None], values[::-1], [None, *values[1:]]):
        assert (digest([(0, cells(other))]).sha256 == found) == (bits(other) == bits(values))


def test_a_list_of_mappings_keeps_its_length():
    one, two = {}, {}
    add_record(one, 0, {"nodes": [{"gpus": 1}, {"gpus": 2}]})
    add_record(two, 0, {"nodes": [{"gpus": 1}, {"gpus": 2}, {}]})
    assert digest(one["nodes.gpus"]) == digest(two["nodes.gpus"])
    assert digest(one["nodes"]) != digest(two["nodes"])


def test_the_file_comes_back(tmp_path):
    found = {Name("a, b", "t", "x"): Digest(2, "0f", "0.1"), Name("c", "t", "y"): Digest(0, "1e", "")}
    write(tmp_path / "digests.csv", found, "Python 3")
    assert read(tmp_path / "digests.csv") == ("Python 3", found)


def test_the_committed_digests_are_of_every_shipped_scenario():
    shipped = {path.stem for path in same_results.SCENARIOS.glob("*.yaml")}
    left_out = {
        *same_results.RATIOS_HELD,
        *same_results.TOO_LONG,
        *same_results.BESIDE,
        "prices",
        "carbon",
        "sweep-quick",
    }
    assert shipped == {*same_results.SHIPPED, *left_out}
    _, committed = read(same_results.DIGESTS)
    assert {name.case for name in committed} == set(same_results.cases())


def test_a_case_is_computed_alone(monkeypatch):
    monkeypatch.setattr(same_results, "SEEDS", (1,))
    line, found = same_results.computed("wrong/no jobs")
    assert line.endswith("scenarios/counted.yaml: workload: no jobs in it; give a trace (--trace FILE)")
    assert str(same_results.ROOT) not in line
    assert list(found) == [Name("wrong/no jobs", "message", "text")]
    _, made = same_results.computed("meant-to-fail/none")
    assert {n.table for n in made} >= {"jobs", "summary", "config", "timeline/segments"}
    _, committed = read(same_results.DIGESTS)
    assert set(made) == {name for name in committed if name.case == "meant-to-fail/none"}


def test_the_command_writes_compares_and_writes_no_failure(tmp_path, monkeypatch, capsys):
    held = {Name("a/none", "jobs", "x"): Digest(1, "0", "2.0")}
    monkeypatch.setattr(same_results, "DIGESTS", tmp_path / "digests.csv")
    monkeypatch.setattr(same_results, "cases", lambda: dict.fromkeys(("a/none", "b/none")))
    monkeypatch.setattr(same_results, "SCHEDULES", tmp_path)
    monkeypatch.setattr(same_results, "compute", lambda names, jobs: held)

    def called(*arguments: str) -> object:
        monkeypatch.setattr("sys.argv", ["same_results", *arguments])
        try:
            return same_results.main()
        except SystemExit as stop:
            return stop.code

    assert called("--write") == 0
    assert called() == 0
    held[Name("a/none", "jobs", "x")] = Digest(1, "1", "3.0")
    assert called() == 1
    assert "a/none  jobs  x  sum 2.0 is now 3.0 (+1, 33 %)\n1 columns differ" in capsys.readouterr().out
    assert called("--only", "b/") == 1  # what was computed and is not in the file
    held[Name("b/none", "message", "text")] = Digest(1, "2", "")
    assert called("--write") == "failed, and nothing is written: b/none"
    assert called("--write", "--only", "a/") == 2
    assert read(tmp_path / "digests.csv")[1] == {Name("a/none", "jobs", "x"): Digest(1, "0", "2.0")}
