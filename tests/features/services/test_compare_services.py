"""Comparisons, sizes and reports of scenarios with services show what became of the requests."""

import gzip
import json
import math

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.policies.record.journal import read, replay
from equipoise.policies.registry import make_policy
from equipoise.sim.features.services.shown import SHOWN
from equipoise.sim.loading.file import dump, from_mapping
from equipoise.sim.run import run
from equipoise.study.questions.targets import read_target
from equipoise.study.questions.tune import ParameterRange, ParameterSearch, tune
from equipoise.study.report.page import make_report
from equipoise.study.report.timeline import bars
from equipoise.study.runs.compare import compare

CHAT = {
    "name": "chat",
    "batch_latency": {"measured": {1: "25 ms", 8: "60 ms", 32: "180 ms"}},
    "requests": {"rate": "100/s"},
    "latency": {"p99": "500 ms"},
    "replicas": {"max": 2},
}


def case(services):
    return from_mapping(
        {
            "schema_version": 1,
            "name": "beside",
            "services": services,
            "horizon": "300 s",
            "cluster": {"nodes": [{"gpus": 4, "accelerator": "a100_sxm_40gb"}]},
            "workload": {"jobs": [{"duration": "100 s", "count": 3}]},
        }
    )


def test_a_comparison_has_the_metrics_of_services_only_where_there_are_some():
    found = compare(case([CHAT]), ["fifo", "las"], seeds=2)
    of = {cell.metric: cell for cell in found.cells if cell.policy == "fifo"}
    assert of["service_requests"].value.mean == pytest.approx(30_000, rel=0.02)
    assert of["service_goodput_ratio"].value.mean == 1.0
    assert 0.0 < of["cost_per_million_requests_usd"].value.mean < 100.0
    parts = [
        cell.value.mean
        for name, cell in of.items()
        if name in ("gpu_busy_ratio", "idle_ratio", "serving_ratio", "restart_ratio", "lost_to_faults_ratio")
    ]
    assert math.fsum(parts) == pytest.approx(1.0)
    text = found.as_table(wide=True)
    for label in ("answered in time", "latency p99", "cost per 1e6 requests", "  serving"):
        assert label in text
    without = compare(case([]), ["fifo"], seeds=1)
    assert not [cell.metric for cell in without.cells if "serv" in cell.metric or "requests" in cell.metric]


def test_targets_of_services():
    row = run(case([CHAT, CHAT | {"name": "other", "requests": {"rate": "1/s"}}])).summary()
    assert read_target("service_latency_p99<=0.5 s").met(row)
    assert read_target("service_goodput>=99 %").met(row)
    assert not read_target("service_latency_p50[chat]<=30 ms").met(row)
    assert read_target("service_latency_p50[other]<=30 ms").met(row)
    assert row["service_latency_p50_s"] == row["service_latency_p50_s[chat]"]


def test_a_report_shows_each_service(tmp_path):
    run(case([CHAT]), policy=make_policy("fifo"), timeline=True).write(tmp_path)
    page = make_report(tmp_path).path.read_text()
    for text in ("How requests were answered", "serving requests", '<th scope="row">chat</th>'):
        assert text in page


def test_the_gantt_chart_has_a_row_for_each_replica(tmp_path):
    """Two replicas, one of which ends before the run: when each had its GPUs, and in which node."""
    lent = CHAT | {
        "requests": {"rate": 200 / 3, "kind": "profile", "every": "100 s", "weights": [1, 0, 0]},
        "autoscaler": {"every": "10 s", "hold": "20 s"},
        "batch_latency": {"measured": {1: "10 ms"}},
        "replicas": {"min": 1, "max": 3},
    }
    made = run(case([lent]), policy=make_policy("fifo"), timeline=True)
    made.write(tmp_path / "run")
    kept = made.timeline["replicas"]
    held_s = (kept["end_s"] - kept["start_s"]) * kept["gpus"]
    assert held_s.sum() == pytest.approx(made.tables["services"]["gpu_s"].sum())
    assert set(kept["replica"].tolist()) > {0, 1}
    assert (kept["end_s"] < 299.0).any()
    for number in set(kept["replica"].tolist()):
        of = kept["replica"] == number
        assert (kept["start_s"][of][1:] >= kept["end_s"][of][:-1]).all(), "one after the other"
    found = bars(tmp_path / "run")
    said = json.loads(gzip.decompress(found.names))
    rows = 3 + len(set(kept["replica"].tolist()))
    assert (found.rows, found.beside) == (rows, {"replicas of services": rows - 3})
    assert found.count == len(made.timeline["segments"]["job_id"]) + len(kept["replica"])
    assert said["names"][3:5] == ["chat replica 1", "chat replica 2"]
    assert {said["nodes"][k] for k in said["node_of"][3:]} == {said["nodes"][0]}
    assert "replicas of services" in make_report(tmp_path / "run").path.read_text()
    without = run(case([]), policy=make_policy("fifo"), timeline=True)
    assert "replicas" not in without.timeline


TOLD = ("answered in time", "latency p50", "latency p95", "latency p99", "cost per 1e6 requests", "cost")


def test_run_compare_and_report_show_goodput_latency_and_cost(capsys, tmp_path):
    file, out = tmp_path / "case.yaml", tmp_path / "out"
    file.write_text(dump(case([CHAT])))
    sweep = {"schema_version": 1, "name": "replicas", "scenario": str(file), "policies": ["fifo"], "seeds": 1}
    keys = {"services.0.replicas.max": [1, 2]}
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep | {"parameters": keys}))
    other = tmp_path / "other.yaml"
    other.write_text(dump(case([CHAT | {"name": "other"}])))
    for command in (
        ["run", str(file)],
        ["compare", str(file), "--policy", "fifo", "--policy", "las", "--seeds", "2"],
        ["compare", str(file), str(other), "--policy", "fifo", "--policy", "las", "--seeds", "2"],
    ):
        assert main([*command, "--wide", "-q"]) == 0
        text = capsys.readouterr().out
        assert [told for told in TOLD if told not in text] == [], command[0]
    assert main(["sweep", str(tmp_path / "sweep.yaml"), "--out", str(out), "-q"]) == 0  # prints no figures
    page = make_report(out).path.read_text()
    assert [told for told in TOLD if told not in page] == []


def test_a_journal_keeps_the_services_and_explain_tells_of_them(capsys, tmp_path):
    made = run(case([CHAT]), policy=make_policy("las"), journal=tmp_path / "journal.jsonl")
    made.write(tmp_path)
    assert replay(make_policy("las"), tmp_path / "journal.jsonl") == []
    kept = [entry.decision.observation for entry in read(tmp_path / "journal.jsonl")]
    assert kept[-1].beside["services"]["name"].tolist() == ["chat"]
    assert kept[-1].beside["services"]["replicas"].tolist() == [1]
    assert kept[-1].beside["services"]["latency_p99_s"].item() > 0.025
    assert (kept[-1].gpus.job == -3).sum() == 1
    assert main(["explain", str(tmp_path), "--at", "100 s"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("  service chat: 1 of 1 replicas wanted (1 to 2); ")
    assert line.endswith("100 % within 500 ms")


def test_of_several_services_the_worst_is_shown_and_each() -> None:
    services = {
        "service": np.array(["a", "b"], dtype=object),
        "answered": [300.0, 200.0],
        "requests": [400.0, 250.0],
        "goodput_ratio": [0.5, 0.75],
        "goodput_per_s": [2.0, 3.0],
        "cost_usd": [1.0, 1.5],
        **{f"latency_p{q}_s": [q / 100, 2.0] for q in (50, 95, 99)},
    }
    of = {name: np.array(value) for name, value in services.items()}
    row = SHOWN.summary({"services": of}, {"serving_gpu_s": 20.0, "serving_usd": 5.0}, 200.0)
    assert (row["serving_ratio"], row["serving_usd"], row["service_requests"]) == (0.1, 5, 650)
    assert (row["service_goodput_ratio"], row["service_goodput_per_s"], row["service_latency_p95_s"]) == (0.5, 5, 2)
    assert row["cost_per_million_requests_usd"] == 5000
    assert (row["service_goodput_ratio[b]"], row["service_latency_p50_s[a]"]) == (0.75, 0.5)
    alone = {name: value[:1] for name, value in of.items()}
    alone["answered"] = np.zeros(1)
    single = SHOWN.summary({"services": alone}, {"serving_gpu_s": 0.0, "serving_usd": 0.0}, 200.0)
    assert math.isnan(single["cost_per_million_requests_usd"])
    assert "service_goodput_ratio[a]" not in single


@pytest.mark.parametrize("metric", ["service_goodput_ratio", "service_goodput_per_s"])
def test_more_answers_in_time_are_better(tmp_path, metric):
    """One replica is too few and the start; the search has to find that more of them answer more in time."""
    pytest.importorskip("optuna")
    chat = {
        "name": "chat",
        "batch_latency": {"measured": {1: "50 ms"}},
        "requests": {"rate": "60/s"},
        "latency": {"p99": "500 ms"},
        "replicas": {"min": 1, "max": 1},
    }
    spec = {
        "schema_version": 1,
        "name": "short",
        "services": [chat],
        "horizon": "60 s",
        "policy": ["fifo"],
        "cluster": {"nodes": [{"gpus": 6, "accelerator": "a100_sxm_40gb"}]},
        "workload": {"jobs": [{"duration": "10 s"}]},
    }
    (tmp_path / "short.yaml").write_text(json.dumps(spec))
    vary = {"services.0.replicas.max": ParameterRange(1, 5, True, "linear")}
    found = tune(ParameterSearch(tmp_path / "short.yaml", vary, metrics=(metric,), trials=5, seeds=2, fresh=4))
    (choice,) = found.choices
    assert found.better
    assert choice.ratios[metric].low > 1.0
    assert choice.trial.values["services.0.replicas.max"] > 1
