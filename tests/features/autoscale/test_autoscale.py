"""Nodes that come and go: when they are rented, given back and reclaimed, and what they cost."""

from __future__ import annotations

import pytest

from equipoise.cli import main
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import Run
from equipoise.sim.run import run
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


@pytest.mark.parametrize("policy", ["kueue", "fifo"])
def test_no_node_is_rented_nor_kept_for_jobs_that_a_quota_holds_back(policy: str):
    """A quota of 8 GPUs, four jobs of 8 for an hour: one node at a time; each starts when the last has ended."""
    queues = {"flavors": {"all": ["own", "demand"]}, "queues": [{"name": "q", "gpus": {"all": 8}}]}
    jobs = [{"gpus": 8, "count": 4, "duration": "1 h", "queue": "q"}]
    made = scaled(jobs, DEMAND | {"name": "own"}, DEMAND, queues=queues, policy=policy)
    assert made.jobs["start_s"].tolist() == [180.0 + 3600.0 * k for k in range(4)]
    assert [what for _, what, _ in events(made)].count("rented") == 1


def test_a_job_of_one_gpu_model_has_any_model_that_can_be_had():
    """Twelve GPUs of one model: of the first there are eight."""
    groups = [{"name": name, "count": n, "gpus": 4, "accelerator": name} for name, n in (("t4", 2), ("l40s", 3))]
    made = scaled([{"gpus": 12, "duration": "1 h"}], *(g | {"autoscale": {"delay": "1 min"}} for g in groups))
    assert [subject for _, _, subject in events(made)] == ["l40s-0", "l40s-1", "l40s-2"]
