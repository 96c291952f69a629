"""Nodes that come and go: when they are reclaimed, and series of counts from files."""

from __future__ import annotations

import csv
import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.tree import InputError


def supplied(jobs: list[dict], group: dict, **more: object) -> Run:
    data = {"schema_version": 1, "name": "x", "cluster": {"nodes": [group]}, "workload": {"jobs": jobs}}
    return run(from_mapping(data | more))


def test_what_is_not_rented_is_there_whenever_it_can_be_had():
    spot = {"name": "spot", "gpus": 8, "count": 2, "price": 5.0}
    spot["available"] = {
        "supply": [{"at": 0, "nodes": 2}, {"at": 600, "nodes": 1}, {"at": 1800, "nodes": 2}],
        "begin": 300,
    }
    made = supplied([{"gpus": 16, "duration": "1 h"}], spot)
    restart_s = 30.0  # it was told, saved what it had done in 300 s, and goes on with that
    assert made.totals["makespan_s"] == pytest.approx(1500.0 + restart_s + 3600.0 - 300.0)
    assert made.pools()[0]["node_h"] == pytest.approx((2 * made.totals["makespan_s"] - 1200.0) / 3600.0)


def test_who_is_not_told_loses_what_was_not_saved():
    spot = {"name": "spot", "gpus": 8, "price": 5.0}
    spot["available"] = {
        "supply": [{"at": 0, "nodes": 1}, {"at": 600, "nodes": 0}, {"at": 1800, "nodes": 1}],
        "notice": 0,
    }
    job = {"gpus": 8, "duration": "1 h", "checkpoint": {"interval": "never"}}
    made = supplied([job], spot)
    assert made.totals["makespan_s"] == pytest.approx(1800.0 + 30.0 + 30.0 + 3600.0)  # detected, begun anew
    assert made.jobs["lost_to_faults_gpu_s"][0] == pytest.approx(8 * 600.0)


def test_a_supply_that_ends_with_nothing_is_no_reason_to_wait_for_ever():
    spot = {
        "name": "spot",
        "gpus": 8,
        "price": 5.0,
        "available": {"supply": [{"at": 0, "nodes": 1}, {"at": 60, "nodes": 0}]},
    }
    with pytest.raises(RunFailed, match="idle cluster"):
        supplied([{"gpus": 8, "duration": "1 h"}], spot, decide={"every": "5 min"})


def test_a_file_of_counts(tmp_path):
    (tmp_path / "spot.csv").write_text("time_s,zone-a,zone-b\n0,1,3\n60,2,0\n")
    file = tmp_path / "x.yaml"
    node = "{name: s, count: 3, gpus: 1, available: {file: spot.csv%s}}"
    text = "schema_version: 1\nname: x\ncluster:\n  nodes:\n    - %s\nworkload: {jobs: [{duration: 1 h}]}\n"
    file.write_text(text % (node % ", series: zone-b"))
    found = read_scenario(file).scenario.cluster.nodes[0].available
    assert [(entry.at, entry.nodes) for entry in found.supply] == [(0.0, 3), (60.0, 0)]
    assert found.loss_per_s(3) == pytest.approx(3 / 180.0)
    for more, message in (
        ("", "spot.csv has several columns, name one; allowed: zone-a, zone-b"),
        (", series: zone-c", "spot.csv has no column 'zone-c'; allowed: zone-a, zone-b"),
    ):
        file.write_text(text % (node % more))
        with pytest.raises(InputError, match=message.replace("?", r"\?")):
            read_scenario(file)
    file.write_text(text % (node % ", series: zone-b"))
    (tmp_path / "spot.csv").write_text("time_s,zone-b\n0,1\n60,-2\n")
    with pytest.raises(InputError, match=r"spot.csv:3:4: zone-b: "):
        read_scenario(file)
    (tmp_path / "spot.csv").write_text("time_s,zone-b\n60,1\n60,2\n")
    with pytest.raises(InputError, match=r"spot.csv:3:1: time_s 60 does not come after 60"):
        read_scenario(file)


SPOT = Path(__file__).resolve().parents[4] / "shared" / "data" / "spot"
NODE = "{name: s, count: 4, gpus: 1, available: {file: %s%s}}"
CASE = "schema_version: 1\nname: x\ncluster:\n  nodes:\n    - %s\nworkload: {jobs: [{duration: 1 h}]}\n"


def supply_of(folder: Path, file: object, more: str = "") -> list[tuple[float, int]]:
    (folder / "x.yaml").write_text(CASE % (NODE % (file, more)))
    found = read_scenario(folder / "x.yaml").scenario.cluster.nodes[0].available
    return [(entry.at, entry.nodes) for entry in found.supply]


def test_probes_as_skypilot_keeps_them(tmp_path):
    kept = tmp_path / "zone.json"
    kept.write_text('{"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 0, 3]}')
    assert supply_of(tmp_path, "zone.json") == [(0.0, 1), (1200.0, 0), (2400.0, 3)]
    assert supply_of(tmp_path, "zone.json", ", nodes_each: 2")[2] == (2400.0, 6)
    with gzip.open(tmp_path / "zone.json.gz", "wt") as packed:
        packed.write(kept.read_text())
    assert supply_of(tmp_path, "zone.json.gz") == supply_of(tmp_path, "zone.json")
    with pytest.raises(InputError, match=r"zone\.json holds one series without a name"):
        supply_of(tmp_path, "zone.json", ", series: a")
    for text, message in (
        ('{"metadata": {}, "data": [1]}', "metadata.gap_seconds: None; seconds above 0 are needed"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "metadata.gap_seconds: 0; seconds above 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": []}', "data: a list of counts is needed"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', r"data\[1\]: -1; whole numbers from 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": [true]}', r"data\[0\]: True; whole numbers from 0"),
        ('{"metadata":\n {"gap_seconds": 60], "data": [1]}', "zone.json:2: not JSON"),
        ("[1, 2]", "metadata.gap_seconds: None"),
    ):
        kept.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            supply_of(tmp_path, "zone.json")
        assert len(caught.value.lines) == 1


@pytest.mark.shared_data
@pytest.mark.skipif(not SPOT.is_dir(), reason="no shared data")
def test_public_spot_series_as_they_stand(tmp_path):
    file = SPOT / "aws_2022_10_availability.csv.gz"
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 8
    for row in rows:
        found = supply_of(tmp_path, file, f", series: {row['series']}, nodes_each: 4")
        text = "".join(
            str(count // 4) * round((end_s - at_s) / 600)
            for (at_s, count), (end_s, _) in pairwise([*found, (600.0 * len(row["available"]), 0)])
        )
        assert text == row["available"]
    made = run(read_scenario(tmp_path / "x.yaml").scenario)
    assert made.jobs["completion_s"][0] >= 3600.0
