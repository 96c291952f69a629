"""Nodes that come and go: when they are rented, given back and reclaimed, and what they cost."""

from __future__ import annotations

import csv
import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import from_mapping, read_scenario
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.targets import price_usd_per_h, standing_usd_per_h

OWN = {"name": "own", "gpus": 8, "price": "10 USD/h"}
DEMAND = {
    "name": "demand",
    "count": 3,
    "gpus": 8,
    "price": "20 USD/h",
    "autoscale": {"delay": "3 min", "idle": "5 min"},
}


def scaled(jobs: list[dict], *groups: dict, policy: str = "fifo", **more: object) -> Run:
    nodes = list(groups or (OWN, DEMAND))
    data = {"schema_version": 1, "name": "x", "cluster": {"nodes": nodes}, "workload": {"jobs": jobs}, "policy": policy}
    return run(from_mapping(data | more), timeline=True)


def events(made: Run) -> list[tuple[float, str, str]]:
    columns = made.timeline["events"]
    return list(zip(*(columns[name].tolist() for name in ("time_s", "kind", "subject")), strict=True))


def test_a_node_comes_when_a_job_waits_and_goes_when_idle():
    made = scaled([{"gpus": 8, "count": 2, "duration": "30 min"}, {"gpus": 1, "arrival": "2 h", "duration": "1 min"}])
    assert made.jobs["start_s"].tolist() == [0.0, 180.0, 7200.0]
    assert events(made) == [(180.0, "rented", "demand-0"), (1980.0 + 300.0, "released", "demand-0")]
    own_h, demand_h = 7260.0 / 3600.0, 2100.0 / 3600.0
    assert made.pools() == [
        {"group": "own", "node_h": pytest.approx(own_h), "gpu_usd": pytest.approx(10.0 * own_h)},
        {"group": "demand", "node_h": pytest.approx(demand_h), "gpu_usd": pytest.approx(20.0 * demand_h)},
    ]
    assert made.totals["gpu_usd"] == pytest.approx(10.0 * own_h + 20.0 * demand_h)
    row = made.summary()
    used = 8 * 2 * 1800.0 + 60.0
    assert row["gpu_busy_ratio"] == pytest.approx(used / (8 * 3600.0 * (own_h + demand_h)))
    assert row["idle_ratio"] == pytest.approx(1.0 - row["gpu_busy_ratio"])


def test_only_as_many_nodes_come_as_are_lacking():
    made = scaled([{"gpus": 12, "duration": "1 h"}, {"gpus": 4, "arrival": "1 min", "duration": "1 h"}])
    assert [what for _, *what in events(made)] == [["rented", "demand-0"]]  # 8 are free, 8 are on their way


def test_a_job_that_no_number_of_nodes_could_hold_now_orders_none():
    jobs = [{"gpus": 8, "duration": "1 h"}, {"gpus": 32, "arrival": "1 min", "duration": "1 h"}]
    made = scaled(jobs)
    assert made.jobs["start_s"].tolist() == [0.0, 3600.0 + 180.0]
    assert [at for at, *_ in events(made)] == [3780.0] * 3


def test_the_group_that_stands_first_is_rented_first_and_spot_nodes_only_while_they_can_be_had():
    spot = {"name": "spot", "gpus": 8, "count": 2, "price": 5.0, "autoscale": {"delay": "1 min", "idle": "1 h"}}
    spot["available"] = {"supply": [{"at": 0, "nodes": 1}, {"at": "20 min", "nodes": 0}, {"at": "1 h", "nodes": 2}]}
    made = scaled([{"gpus": 8, "count": 2, "duration": "30 min"}], spot, DEMAND)
    (first, *_), (second, *_), (third, kind, lost), (fourth, *last) = events(made)
    assert (first, second, third, fourth) == (60.0, 180.0, 1200.0, 1200.0 + 180.0)
    assert (kind, lost[:4], last) == ("reclaim", "spot", ["rented", "demand-1"])
    assert made.jobs["preemptions"].tolist() == [1, 0]  # it was told, and nothing was to be saved
    assert made.pools()[0]["node_h"] == pytest.approx((1200.0 - 60.0) / 3600.0)


def test_what_is_not_rented_is_there_whenever_it_can_be_had():
    spot = {"name": "spot", "gpus": 8, "count": 2, "price": 5.0}
    spot["available"] = {
        "supply": [{"at": 0, "nodes": 2}, {"at": 600, "nodes": 1}, {"at": 1800, "nodes": 2}],
        "begin": 300,
    }
    made = scaled([{"gpus": 16, "duration": "1 h"}], spot)
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
    made = scaled([job], spot)
    assert made.totals["makespan_s"] == pytest.approx(1800.0 + 30.0 + 30.0 + 3600.0)  # detected, begun anew
    assert made.jobs["lost_to_faults_gpu_s"][0] == pytest.approx(8 * 600.0)


def test_no_node_is_ordered_before_the_job_has_waited_nor_within_the_cool_down():
    demand = DEMAND | {"autoscale": {"wait": "10 min", "delay": "1 min", "cool_down": "1 h"}}
    jobs = [
        {"gpus": 8, "duration": "3 h"},
        {"gpus": 8, "duration": "3 h"},
        {"gpus": 8, "arrival": "11 min", "duration": "3 h"},
    ]
    made = scaled(jobs, OWN, demand)
    assert made.jobs["start_s"].tolist() == [0.0, 660.0, 600.0 + 3600.0 + 60.0]


def test_the_least_number_of_nodes_stays():
    demand = DEMAND | {"autoscale": {"min": 2, "delay": "3 min", "idle": 0}}
    made = scaled([{"gpus": 24, "duration": "1 h"}, {"gpus": 1, "arrival": "2 h", "duration": "1 h"}], OWN, demand)
    assert made.jobs["start_s"].tolist() == [0.0, 7200.0]
    assert events(made) == []
    assert made.pools()[1]["node_h"] == pytest.approx(2 * 3.0)


def test_free_gpus_that_a_waiting_job_cannot_use_do_not_keep_it_from_others():
    """In one node there are not enough, though in all nodes there are."""
    small = {"name": "small", "count": 2, "gpus": 4, "price": 1.0}
    job = {"gpus": 8, "duration": "1 h", "together": "node-required"}
    made = scaled([job], small, DEMAND, policy="s4")
    assert made.jobs["start_s"].tolist() == [180.0]


@pytest.mark.parametrize("policy", ["srtf", "las", "s4", "gavel", "sia", "pollux", "drf", "themis"])
def test_policies_that_move_jobs_leave_none_on_a_node_that_goes(policy):
    jobs = [
        {"gpus": 8, "count": 8, "duration": "20 min", "spacing": "4 min"},
        {"gpus": 1, "count": 3, "duration": "3 h"},
    ]
    spot = {"name": "spot", "gpus": 8, "count": 2, "price": 5.0, "autoscale": {"idle": "1 min"}}
    spot["available"] = {"supply": [{"at": 0, "nodes": 2}, {"at": "20 min", "nodes": 1}, {"at": "1 h", "nodes": 2}]}
    made = scaled(jobs, OWN, spot, DEMAND, policy=policy)
    assert made.summary()["completed"] == 11
    assert made.totals["gpu_usd"] == pytest.approx(sum(p["gpu_usd"] for p in made.pools()))


def test_a_supply_that_ends_with_nothing_is_no_reason_to_wait_for_ever():
    spot = {
        "name": "spot",
        "gpus": 8,
        "price": 5.0,
        "available": {"supply": [{"at": 0, "nodes": 1}, {"at": 60, "nodes": 0}]},
    }
    with pytest.raises(RunFailed, match="idle cluster"):
        scaled([{"gpus": 8, "duration": "1 h"}], spot, decide={"every": "5 min"})


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


def test_what_is_not_always_there_is_not_what_a_run_costs_at_least():
    data = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [OWN, DEMAND]},
        "workload": {"jobs": [{"duration": 9}]},
    }
    scenario, profile = from_mapping(data), load_profile("catalogue")
    assert (price_usd_per_h(scenario, profile), standing_usd_per_h(scenario, profile)) == (70.0, 10.0)


def test_the_shipped_pools_cost_less_than_half(capsys):
    """As the scenario expects: 24 nodes at the reserved price, for as long, are twice as dear."""
    assert main(["run", "elastic-pools", "--wide"]) == 0
    lines = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["waiting p95"][-1] == "min"
    assert float(lines["waiting p95"][-2]) < 30.0
    hours, usd = (float(lines["reserved"][k].replace(",", "")) for k in (1, 2))
    cost = float(lines["cost"][1].replace(",", ""))
    assert usd == pytest.approx(12.0 * hours, rel=1e-3)
    assert cost < 0.5 * 24 * 12.0 * hours / 4


@pytest.mark.parametrize("job", [{"partition": "p"}, {"queue": "q"}, {"gpu_types": ["g1"]}, {"partition": "single"}])
def test_nodes_are_rented_of_the_group_that_a_job_may_use(job: dict):
    """Of two groups with one accelerator: by partition, flavor or pin to the second."""
    nodes = [{"name": f"g{k}", "count": 4, "gpus": 8, "autoscale": {"delay": "1 min"}} for k in (0, 1)]
    queues = {
        "partitions": [{"name": "p", "nodes": ["g1"]}, {"name": "single", "nodes": ["g1-2", "g1-3"]}],
        "flavors": {"second": ["g1"]},
        "queues": [{"name": "q", "gpus": {"second": 32}}],
    }
    made = scaled([{"gpus": 16, "duration": "1 h"} | job], *nodes, queues=queues)
    names = ["g1-2", "g1-3"] if job.get("partition") == "single" else ["g1-0", "g1-1"]
    assert events(made) == [(60.0, "rented", name) for name in names]
    assert made.jobs["start_s"].tolist() == [60.0]


def test_a_job_of_one_gpu_model_has_any_model_that_can_be_had():
    """Twelve GPUs of one model: of the first there are eight."""
    groups = [{"name": name, "count": n, "gpus": 4, "accelerator": name} for name, n in (("t4", 2), ("l40s", 3))]
    made = scaled([{"gpus": 12, "duration": "1 h"}], *(g | {"autoscale": {"delay": "1 min"}} for g in groups))
    assert [subject for _, _, subject in events(made)] == ["l40s-0", "l40s-1", "l40s-2"]
