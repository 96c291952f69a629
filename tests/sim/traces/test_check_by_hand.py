"""Rows of a site's file, one for each border of what is taken, left out and found odd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.formats.text.columns import Text, TextBuilder
from equipoise.formats.text.tally import Change
from equipoise.sim.scenario.model import Cluster
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces import check
from equipoise.sim.traces.rows import Rows, further, moment
from equipoise.sim.traces.table import TextTable, left_out

DAY_S = 86_400.0


def text(*values: str) -> Text:
    builder = TextBuilder()
    builder.add(list(values))
    return builder.finish()


def rows_of(n: int, **given: Any) -> Rows:
    """Jobs 1 .. n that come a second after each other, take 10 s on one GPU, and stand from line 2 on."""
    columns = {name: np.asarray(value, dtype=np.float64) for name, value in given.pop("columns", {}).items()}
    whole = {
        "name": text(*given.pop("name", [str(k + 1) for k in range(n)])), "arrival_s": np.arange(n) * 1.0,
        "duration_s": np.full(n, 10.0), "units": np.ones(n), "line": np.arange(2, n + 2), "columns": columns,
        "changes": (), "path": "jobs.txt",
    }  # fmt: skip
    return Rows(**(whole | {k: np.asarray(v, dtype=np.float64) for k, v in given.items()}))


def told(findings: Any) -> list[tuple[str, int, int]]:
    return [(each.what, each.count, each.line) for each in findings]


def test_rows_that_are_no_jobs_are_left_out_for_one_reason_each() -> None:
    nan = np.nan
    given: dict[str, Any] = {
        "units": [nan, 1e9, 1.1e9, 0, 0.5, 1.5, 1, 1, 1], "arrival_s": [0, 1, 2, 3, 4, 5, nan, 7, 8],
        "duration_s": [1, 1, 1, 1, 1, 1, 1, 0, np.inf],
    }  # fmt: skip
    rows = rows_of(9, **given)
    rows.sift("GPUs")
    assert rows.keep.tolist() == [False, True, False, False, True, True, False, False, False]
    assert [(c.action, c.reason, c.count, c.first_line) for c in rows.tally.changes()] == [
        ("left out", "does not say how many GPUs", 1, 2),
        ("left out", "more GPUs than any cluster has", 1, 4),
        ("left out", "no GPUs, CPUs only", 1, 5),
        ("left out", "no submit time", 1, 8),
        ("left out", "zero duration", 1, 9),
        ("left out", "no duration: it does not say when the job ended", 1, 10),
        ("changed", "a broken number of GPUs rounded up", 1, 7),
        ("noted", "a share of one of the GPUs", 1, 6),
    ]
    made = rows_of(9, **given).trace(unit="GPUs")
    assert made.job_id.tolist() == [2, 5, 6]
    assert made.arrival_s.tolist() == [0, 3, 4]  # counted from 1 s
    assert made.gpus.tolist() == [10**9, 1, 2]
    assert made.gpu_share is not None
    assert made.gpu_share.tolist() == [1, 0.5, 1]
    assert made.notes[0].endswith(
        "9 rows, 3 jobs; left out: 1 does not say how many GPUs, 1 more GPUs than any cluster has, "
        "1 no GPUs, CPUs only, 1 no submit time, 1 zero duration, 1 no duration: it does not say when the job "
        "ended; changed: 1 a broken number of GPUs rounded up; noted: 1 a share of one of the GPUs; "
        "arrivals counted from 1 s"
    )
    lost = (Change("left out", "a", 3, 9), Change("merged", "b", 4, 9), Change("noted", "c", 5, 9))
    copied = replace(rows_of(5), changes=lost, made=2)
    assert copied.read == 5 - 2 + 3 + 4
    assert [change.count for change in copied.tally.changes()] == [3, 4, 5]
    below = rows_of(2, duration_s=[-1, 1])
    below.sift("CPUs")
    assert [c.reason for c in below.tally.changes()] == ["a duration below 0"]
    with pytest.raises(
        InputError, match=r"no jobs in it: left out: 1 no GPUs, CPUs only; --set workload.trace"
    ):
        rows_of(1, units=[0]).trace(unit="GPUs")


@pytest.mark.parametrize(
    ("names", "ids", "named"),
    [
        (["7", "9"], [7, 9], False),
        (["7", "7"], [0, 1], True),
        (["7", "x"], [0, 1], True),
        (["9" * 18, "1"], [10**18 - 1, 1], False),
        (["9" * 19, "1"], [0, 1], True),
    ],
)
def test_names_that_are_numbers_once_each_number_the_jobs(
    names: list[str], ids: list[int], named: bool
) -> None:
    made = rows_of(2, name=names).trace(unit="GPUs")
    assert made.job_id.tolist() == ids
    assert [made.name_of(k) for k in range(2)] == names
    assert bool(made.name) == named


def test_moments_are_dates_from_1973_on() -> None:
    assert [moment(t) for t in (0.0, 99_999_999.0, 1e8)] == ["0 s", "1e+08 s", "1973-03-03T09:46:40Z"]
    found = further({"Queue time": text("a"), "queue_time": text("b"), "x": text("c")}, {"x": np.zeros(1)})
    assert len(found) == 3
    assert len(set(found) | {"x"}) == 4
    keep, notes = left_out(
        {"a": np.array([True, False, False]), "b": np.array([True, True, False]), "c": np.zeros(3, bool)}
    )
    assert (keep.tolist(), notes) == ([False, False, True], ["1 jobs left out (a)", "1 jobs left out (b)"])


def clock_of(late: dict[int, float], n: int = 200, at: int = 150, back_s: float = 0.0) -> list[Any]:
    """Jobs a minute apart, of which from number `at` on all are earlier, and some alone later."""
    submit = np.arange(n) * 60.0
    submit[at:] -= back_s
    for k, more_s in late.items():
        submit[k] += more_s
    return told(check._clock(rows_of(n, submit_s=submit, name=[f"{k + 1}" for k in range(n)])))


def test_submissions_that_go_back_in_time() -> None:
    """By more than a minute, in at most one of a hundred jobs, unless it is one job that was sent anew."""
    jump, renewed = (
        "clock jumps: submitted before the job with the number before",
        "submitted later than its job number says",
    )
    assert clock_of({}, back_s=120.0) == []
    assert (
        clock_of({}, back_s=120.5) == clock_of({}, back_s=180.0) == [(renewed, 1, 151)]
    )  # as if the 150th were late
    assert clock_of({}, back_s=180.5) == [(jump, 1, 152)]
    assert clock_of({100: 121.0}) == [(renewed, 1, 102)]
    assert clock_of({0: 121.0}) == [(jump, 1, 3)]  # before it there is nothing to tell it by
    assert clock_of({1: 121.0}) == [(renewed, 1, 3)]
    assert clock_of({100: 121.0, 120: 121.0}) == [(renewed, 2, 102)]
    assert clock_of({100: 121.0, 120: 121.0, 140: 121.0}) == []  # three of 200: numbers say nothing
    words = [
        finding.effect
        for back_s in (3600.0 + 60 - 119.5, 3600.0 + 60 - 120, 3600.0 + 60 + 119.5, 3600.0 + 60 + 120)
        for finding in check._clock(
            rows_of(200, submit_s=np.arange(200) * 60.0 - back_s * (np.arange(200) >= 150))
        )
    ]
    assert ["daylight" in each for each in words] == [True, False, True, False]
    assert "wrong by up to 3480.5 s" in words[0]
    waited = rows_of(3, columns={"site_queueing_s": [0.0, -1.0, -2.0]})
    assert told(check._clock(waited)) == [("started before it could run", 2, 3)]
    assert [check._number(t) for t in ("12", "12_3", "12+1", "12.batch")] == [12] * 4
    assert np.isnan([check._number(t) for t in ("a1", "1a", "1" * 16)]).all()


def test_days_without_jobs_and_jobs_alike() -> None:
    assert told(check._silence(rows_of(3, arrival_s=[0, DAY_S, 2 * DAY_S]))) == []
    (found,) = check._silence(rows_of(4, arrival_s=[0, DAY_S + 1, 2 * DAY_S, 5 * DAY_S]))
    assert found.count == 2
    assert "from 172800 s, 72 h" in found.effect
    rows = rows_of(4, arrival_s=[0, 0, 0, 1], duration_s=[5, 5, 6, 5], name=["1", "2", "2", "3"])
    (double, alike) = check._twice(rows, np.array([1.0, 2.0, 3.0, 4.0]))
    assert (double.what, double.count, double.line) == ("several jobs with one id", 1, 4)
    assert "30 % of the load" in double.effect
    assert (alike.count, alike.line) == (1, 3)
    assert "20 % of the load" in alike.effect


def test_what_was_held_at_the_edges_and_at_once() -> None:
    """Starts at 0, 4 and 12 s for 10 s each on 2, 3 and 4 GPUs: 5 at once from 4 to 10 s, 7 from 12 to 14 s."""
    rows = rows_of(3, arrival_s=[0, 0, 10], units=[2, 3, 4], columns={"site_queueing_s": [0, 4, 2]})
    (early,) = check._edges(rows, np.array([20.0, 30.0, 50.0]))
    assert (early.count, early.line) == (2, 2)
    assert early.effect.startswith("50 % of the load; what ended before 10 s is not in the record")
    (peak,) = check._load(rows, "GPUs", None)
    assert (peak.what, peak.count, peak.line) == ("the site held up to 7 GPUs at once", 7, 0)
    four, five, seven = (Cluster.model_validate({"nodes": [{"gpus": n}]}) for n in (4, 5, 7))
    assert told(check._load(rows, "GPUs", seven)) == []
    (two,) = check._load(rows, "GPUs", five)
    assert two.count == 2
    assert two.effect.startswith("0.0005556 h, first at 12 s: up to 7 GPUs, the scenario has 5")
    assert next(check._load(rows, "GPUs", four)).count == 8
    wide = rows_of(3, units=[8, 6, 9], columns={"nodes": [2, 1, 0]})
    small = Cluster.model_validate({"nodes": [{"count": 2, "gpus": 4}]})
    assert told(check._too_large(wide, "GPUs", small)) == [
        ("larger than the cluster", 1, 4),
        ("no node can hold its part", 1, 3),
    ]


def test_what_is_left_out_lowers_the_load() -> None:
    rows = rows_of(4, units=[1, 1, 1, 1.5], duration_s=[10, 10, np.inf, 10])
    rows.sift("GPUs")
    rows.drop("two of one", np.array([True, False, False, False]), "merged")
    found = list(check._left_out(rows, np.array([3600.0, 3600.0, 0.0, 7200.0]), "GPUs"))
    assert told(found) == [
        ("left out: no duration: it does not say when the job ended", 1, 4),
        ("merged: two of one", 1, 2),
        ("changed: a broken number of GPUs rounded up", 1, 5),
        ("1 GPU-hours of rows that are left out or merged", 2, 0),
    ]
    assert "lower by 25 %" in found[-1].effect
    assert list(check._left_out(rows_of(2), np.full(2, 3600.0), "GPUs")) == []


def test_numbers_of_a_table_at_their_borders(tmp_path: Any) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n{2**53},1\n0,2\n0,2\n", encoding="utf-8")
    table = TextTable(path)
    assert table.ints("a", low=0).tolist() == [2**53, 0, 0]
    assert table.repeated() == 1
    assert table.select("b", ["2"]).tolist() == [False, True, True]
    assert table.at(0, "b") == f"{path}:2:18"
    assert table.floats("b", low=1.0, high=2.0).tolist() == [1, 2, 2]
    for low, high, message in ((1.5, 9.0, ":2:18: b: 1 is too small"), (0.0, 1.5, ":3:3: b: 2 is too large")):
        with pytest.raises(InputError, match=message):
            table.floats("b", low=low, high=high)
    path.write_text(f"a\n{2**53 + 2}\n", encoding="utf-8")
    with pytest.raises(InputError, match="is not a whole number"):
        TextTable(path).ints("a", low=0)
    path.write_text("a\n" + "x\n" * 20, encoding="utf-8")
    with pytest.raises(InputError) as twenty:
        TextTable(path).floats("a")
    assert len(twenty.value.lines) == 20
    path.write_text("a\n" + "x\n" * 21, encoding="utf-8")
    with pytest.raises(InputError, match="and 1 more lines like these"):
        TextTable(path).floats("a")
