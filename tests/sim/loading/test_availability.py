"""Files of how many nodes can be had, and what may not lie on nodes that go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.sim.loading.availability import pool_problems, with_availability
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError, WrongValueError
from tests.scenarios import model, scenario

PLAIN = {"name": "plain", "count": 3, "gpus": 2, "accelerator": "generic"}
TIMES = "time_s,a,b\n5,3,0\n7.5,4,2\n"
DIGITS = "series,gap_s,available\na,30,0110\nb,20,33377\n"


def given(file: str | None, **own: Any) -> Scenario:
    group = PLAIN | {"name": "spot", "available": {"file": file} | own}
    return scenario(cluster={"nodes": [PLAIN, group]})


def supply(folder: Path, text: str, *, name: str = "f.csv", **own: Any) -> list[tuple[float, int]]:
    (folder / name).write_text(text)
    plain, group = with_availability(given(name, **own), folder).cluster.nodes
    assert plain.available is None
    assert group.available is not None
    assert group.available.file is None
    return [(entry.at, entry.nodes) for entry in group.available.supply]


def test_counts_by_time_are_the_named_column(tmp_path: Path) -> None:
    assert supply(tmp_path, TIMES, series="b") == [(5.0, 0), (7.5, 2)]
    assert supply(tmp_path, TIMES, series="a", nodes_each=3) == [(5.0, 9), (7.5, 12)]
    assert supply(tmp_path, "n,time_s\n2,4\n6,9\n5,10\n") == [(4.0, 2), (9.0, 6), (10.0, 5)]


def test_digits_are_counts_of_equal_stretches_told_where_they_change(tmp_path: Path) -> None:
    assert supply(tmp_path, DIGITS, series="a") == [(0.0, 0), (30.0, 1), (90.0, 0)]
    assert supply(tmp_path, DIGITS, series="b", nodes_each=2) == [(0.0, 6), (60.0, 14)]
    assert supply(tmp_path, "available,more,gap_s,series\n20,x,0.5,only\n") == [(0.0, 2), (0.5, 0)]


def test_probes_of_a_spot_trace_are_told_where_they_change(tmp_path: Path) -> None:
    text = json.dumps({"metadata": {"gap_seconds": 0.5}, "data": [0, 0, 2, 2.0, 3, 3, 0]})
    assert supply(tmp_path, text, name="f.json") == [(0.0, 0), (1.0, 2), (2.0, 3), (3.0, 0)]
    assert supply(tmp_path, text, name="f.json.txt", nodes_each=5)[1:3] == [(1.0, 10), (2.0, 15)]


def test_when_a_run_begins_and_how_it_is_told_stay_as_given(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(TIMES)
    case = with_availability(given("f.csv", series="a", begin=6.0, notice=33.0), tmp_path)
    spec = case.cluster.nodes[1].available
    assert spec is not None
    assert (spec.begin, spec.notice) == (6.0, 33.0)
    bare = scenario(cluster={"nodes": [PLAIN, PLAIN | {"name": "x", "available": {"supply": [{"at": 0, "nodes": 2}]}}]})
    assert with_availability(bare, None) is bare


@pytest.mark.parametrize(
    ("text", "own", "line"),
    [
        ("time_s,a\n", {}, "f.csv:1:1: no rows"),
        (
            "t,a\n1,2\n",
            {},
            "f.csv:1:1: no series of counts; found: t, a; allowed: time_s and a column of "
            "counts for each series, or series, gap_s, available with a row of digits for each",
        ),
        (
            "time_s,a\n4,2\n6,3\n6,4\n9,1\n8,1\n",
            {},
            "f.csv:4:1: time_s 6 does not come after 6\nf.csv:6:1: time_s 8 does not come after 9",
        ),
        (
            "series,gap_s,available\na,3,01\nb,3,1\na,4,1\na,5,1\n",
            {"series": "a"},
            "f.csv:2:1: series 'a' appears 3 times",
        ),
        ("series,gap_s,available\na,0,01\n", {}, "f.csv:2:3: gap_s: 0, must be above 0"),
        (
            "series,gap_s,available\na,30,01x2y\n",
            {},
            "f.csv:2:6: available: 'x' is not a digit; each digit stands for 30 s",
        ),
        (
            "series,gap_s,available\na,30,1²\n",
            {},
            "f.csv:2:6: available: '²' is not a digit; each digit stands for 30 s",
        ),
    ],
)
def test_tables_that_are_wrong_are_refused_at_their_place(
    tmp_path: Path, text: str, own: dict[str, Any], line: str
) -> None:
    with pytest.raises(InputError) as caught:
        supply(tmp_path, text, **own)
    assert str(caught.value).replace(f"{tmp_path}/", "") == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "metadata.gap_seconds: 0; seconds above 0 are needed"),
        ({"metadata": {"gap_seconds": True}, "data": [1]}, "metadata.gap_seconds: True; seconds above 0 are needed"),
        ({"data": [1]}, "metadata.gap_seconds: None; seconds above 0 are needed"),
        ({"metadata": {"gap_seconds": 3}, "data": []}, "data: a list of counts is needed, one for each probe"),
        ({"metadata": {"gap_seconds": 3}, "data": 4}, "data: a list of counts is needed, one for each probe"),
        ({"metadata": {"gap_seconds": 3}, "data": [0, -1]}, "data[1]: -1; whole numbers from 0 are needed"),
        ({"metadata": {"gap_seconds": 3}, "data": [4, 2, 2.5]}, "data[2]: 2.5; whole numbers from 0 are needed"),
        ({"metadata": {"gap_seconds": 3}, "data": [False]}, "data[0]: False; whole numbers from 0 are needed"),
    ],
)
def test_spot_traces_that_are_wrong_are_refused(tmp_path: Path, content: object, line: str) -> None:
    with pytest.raises(InputError) as caught:
        supply(tmp_path, json.dumps(content), name="f.json")
    assert str(caught.value) == f"{tmp_path}/f.json: {line}"


@pytest.mark.parametrize(
    ("name", "text", "own", "key", "line"),
    [
        ("f.csv", TIMES, {}, "series", "f.csv has several columns, name one; allowed: a, b"),
        ("f.csv", DIGITS, {}, "series", "f.csv has several series, name one; allowed: a, b"),
        ("f.csv", TIMES, {"series": "c"}, "series", "f.csv has no column 'c'; allowed: a, b"),
        ("f.csv", DIGITS, {"series": "c"}, "series", "f.csv has no series 'c'; allowed: a, b"),
        ("f.csv", "time_s\n3\n", {}, "series", "f.csv has several columns, name one; allowed: none"),
        ("f.json", "{}", {"series": "c"}, "series", "f.json holds one series without a name; leave this key out"),
    ],
)
def test_a_series_that_is_not_told_apart_is_asked_for(
    tmp_path: Path, name: str, text: str, own: dict[str, Any], key: str, line: str
) -> None:
    with pytest.raises(WrongValueError) as caught:
        supply(tmp_path, text, name=name, **own)
    assert (caught.value.path, str(caught.value)) == (("cluster", "nodes", 1, "available", key), line)


def test_a_file_that_is_not_there_is_told_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(WrongValueError) as caught:
        with_availability(given("gone.csv"), tmp_path)
    assert caught.value.path == ("cluster", "nodes", 1, "available", "file")
    assert str(caught.value) == f"gone.csv: no such file in {tmp_path}"
    with pytest.raises(WrongValueError, match=r"^gone\.csv: no such file in \.$"):
        with_availability(given("gone.csv"), None)


SPOT = PLAIN | {"name": "spot", "available": {"supply": [{"at": 0, "nodes": 2}]}}
RENTED = PLAIN | {"name": "rented", "autoscale": {"min": 2}}


def problems(*groups: dict[str, Any], data: Any = None, **more: Any) -> list[tuple[Any, str]]:
    job = {"gpus": 2, "model": "m", "steps": 3, "global_batch": 8}
    jobs = [{"gpus": 2, "duration": 5.0}, job, job | {"data": data}]
    workload = {"models": {"m": model()}, "jobs": jobs}
    return [*pool_problems(scenario(cluster={"nodes": list(groups)}, workload=workload, **more))]


def test_no_more_nodes_are_always_kept_than_there_are() -> None:
    assert problems(PLAIN, RENTED | {"autoscale": {"min": 3}}) == []
    assert problems(PLAIN, RENTED | {"autoscale": {"min": 4}}) == [
        (("cluster", "nodes", 1, "autoscale", "min"), "4 nodes, but the group's count is 3")
    ]


def test_only_one_section_takes_the_nodes_of_a_group() -> None:
    told = "'faults.spot' already reclaims nodes of this group; leave out one of the two"
    spot = {"spot": {"group": "spot", "mtbf": 1e5}}
    assert problems(PLAIN, SPOT, faults=spot) == [(("cluster", "nodes", 1, "available"), told)]
    assert problems(PLAIN, SPOT, faults={"spot": {"group": "plain", "mtbf": 1e5}}) == []
    assert problems(PLAIN, SPOT) == []


def test_data_lie_on_nodes_that_stay() -> None:
    at = ("workload", "jobs", 2, "data", "placement")
    on = {"samples": 50, "placement": {"kind": "nodes", "nodes": ["plain-0", "spot-1", "rented-2"]}}
    assert problems(PLAIN, SPOT, RENTED, data=on) == [
        ((*at, "nodes"), "nodes of rented, spot can be absent and cannot store data")
    ]
    assert problems(PLAIN, SPOT, data={"samples": 50, "placement": {"kind": "nodes", "nodes": ["plain-0"]}}) == []
    everywhere = {"samples": 50, "placement": {"kind": "even", "over": "cluster"}}
    assert problems(PLAIN, SPOT, data=everywhere) == [((*at, "over"), "nodes of spot can be absent; allowed: job")]
    assert problems(PLAIN, data=everywhere) == []
    assert problems(PLAIN, SPOT, data={"samples": 50}) == []
