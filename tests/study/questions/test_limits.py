import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cli import main
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.checks import problems
from equipoise.sim.loading.file import from_mapping, load
from equipoise.sim.run import run
from equipoise.study.questions import levers as levers_module
from equipoise.study.questions.levers import LIMITS, Lever, levers
from equipoise.study.questions.limits import Effect, Limited, LimitReport, limits, times_by_limit
from equipoise.study.runs.variants import RunOptions
from equipoise.study.statistics import Interval
from tests.scenarios import cases
from tests.sim.llm.test_scenario import data as large_model


def case(model=None, job=None, cluster=None, **sections):
    """One training job on four equal GPUs that does nothing but compute, with changes."""
    trained = {"sample_time": "10 ms", "parameters": 0} | (model or {})
    if "flop_per_sample" in trained:
        del trained["sample_time"]
    work = {"name": "train", "gpus": 4, "model": "m", "steps": 200, "global_batch": 32} | (job or {})
    base = {
        "schema_version": 1,
        "name": "limited",
        "cluster": {"nodes": [{"count": 4, "gpus": 1}]} | (cluster or {}),
        "workload": {"models": {"m": trained}, "jobs": [work]},
        "policy": "fifo",
    }
    return base | sections


LYING = {"kind": "nodes", "nodes": ["node-0"]}
READS = {"data": {"samples": 6400, "sample_size": "10 MB", "shards": 32, "placement": LYING}}
UNEVEN = [{"name": "a", "count": 3, "speed": 2.0}, {"name": "b", "count": 1, "speed": 0.4}]
CRASHES = [{"kind": "crash", "node": f"node-{k}", "at": 15 * (k + 1), "duration": 1} for k in range(4)]
MANY = {"models": {"m": {"sample_time": "10 ms"}}, "jobs": [{"name": "short", "count": 12, "gpus": 4, "duration": 60}]}
CASES = {
    "compute": case(),
    "memory": case({"kind": "large-products", "flop_per_sample": "1 GFLOP", "bytes_per_sample": "10 GB"}),
    "input": case({"sample_time": "1 ms"}, READS, {"nodes": [{"count": 4, "storage_rate": "50 MB/s"}]}),
    "barrier": case(cluster={"nodes": UNEVEN}),
    "network": case({"gradient": "400 MB", "exchange": {"alpha": 0, "rate": "1 GB/s"}}),
    "layout": case({"parallel": {"pipeline": 4, "pipeline_microbatches": 1}}),
    "queue": case(workload=MANY),
    "faults": case(
        job={"checkpoint": {"interval": "never"}},
        faults={"events": CRASHES},
        restart={"detection": 20, "initialisation": 20},
    ),
}
STRONGEST = {
    "compute": "GPUs twice as fast",
    "memory": "twice the GPU memory and its bandwidth",
    "input": "storage and host input twice as fast",
    "barrier": "equal nodes, same total speed",
    "network": "network twice as fast",
    "layout": "twice the micro-batches in a pipeline",
    "queue": "twice the nodes",
    "faults": "no faults",
}


@pytest.fixture
def found(tmp_path):
    def find(content, **given):
        path = tmp_path / "case.yaml"
        path.write_text(yaml.safe_dump(content))
        return limits(path, **({"policies": ()} | given))

    return find


@pytest.mark.parametrize("limit", LIMITS)
def test_the_true_limit_is_named_and_its_lever_helps(found, limit):
    result = found(CASES[limit])
    group = result.groups[0]
    assert group.limit == group.account == limit, group.shares
    assert group.shares[limit] > 0.4
    assert sum(group.shares.values()) == pytest.approx(1.0)
    lever = group.best_against(limit)
    assert lever is not None
    assert lever.ratio.mean < 0.75
    assert STRONGEST[limit] in [e.lever.name for e in group.effects if e.helps]


@pytest.mark.parametrize("limit", ["compute", "input", "barrier", "network", "faults"])
def test_levers_against_other_limits_help_less(found, limit):
    content = CASES[limit]
    if "name" not in content["cluster"]["nodes"][0]:  # a second disturbance, small, so that it has a lever
        content = content | {"noise": {"step_cov": 0.02}}
    group = found(content, options=RunOptions(2)).groups[0]
    best = group.best_against(limit).ratio.mean
    others = [e.ratio.mean for e in group.effects if e.lever.against not in (limit, "compute", "queue")]
    assert others, "some other lever must apply"
    assert all(ratio > best for ratio in others)


def test_waiting_for_others_is_blamed_on_what_makes_them_late(found):
    skewed = {"data": READS["data"] | {"placement": {"kind": "skewed"}}}
    late_data = case({"sample_time": "1 ms"}, skewed, {"nodes": [{"count": 4, "storage_rate": "50 MB/s"}]})
    slow = [{"kind": "slow", "node": "node-0", "at": 0, "duration": "1 h", "factor": 5}]
    for content, limit in ((late_data, "input"), (case(faults={"events": slow}), "faults")):
        group = found(content).groups[0]
        assert (group.account, group.limit) == ("barrier", limit), (group.shares, group.effects)


def test_a_resource_doubled_halves_what_only_it_limits(found):
    effects = {e.lever.name: e.ratio.mean for e in found(CASES["compute"]).groups[0].effects}
    assert effects["GPUs twice as fast"] == pytest.approx(0.5, rel=1e-6)
    roomy = case(cluster={"nodes": [{"count": 8}]})
    effects = {e.lever.name: e.ratio.mean for e in found(roomy).groups[0].effects}
    assert effects["twice the GPUs per training job"] == pytest.approx(0.5, rel=1e-6)
    memory = {e.lever.name: e.ratio.mean for e in found(CASES["memory"]).groups[0].effects}
    assert memory["twice the GPU memory and its bandwidth"] == pytest.approx(0.5, rel=1e-2)
    queue = {e.lever.name: e.ratio.mean for e in found(CASES["queue"]).groups[0].effects}
    # 12 jobs of 60 s one after the other: mean 390 s; two at a time: 210 s; twice as fast: half.
    assert queue["twice the nodes"] == pytest.approx(210 / 390)
    assert queue["GPUs twice as fast"] == pytest.approx(0.5)


def test_a_limit_that_a_stage_can_lift_says_which(found):
    tried = {"policies": ("s1+s2+s3",), "overrides": ("decide.every_steps=5",)}
    barrier = found(CASES["barrier"], **tried).groups[0]
    assert (barrier.limit, barrier.stage.lever.name) == ("barrier", "s2")
    assert barrier.stage.ratio.mean < 0.9
    weak = [{"name": "a", "count": 3}, {"name": "weak", "cores": 1}]
    starved = case({"sample_time": "1 ms", "preprocess_time": "50 ms"}, cluster={"nodes": weak})
    group = found(starved, **tried).groups[0]
    assert (group.limit, group.stage.lever.name) == ("input", "s2")
    assert group.best_against("input") is not None, "lever and stage agree"
    compute = found(CASES["compute"], **tried).groups[0]
    assert compute.stage is None
    assert not [
        e
        for e in found(CASES["barrier"], policy="s1+s2+s3+s4", **tried).groups[0].effects
        if e.lever.against == "stage"
    ]


def test_shares_are_the_accounts(found):
    content = CASES["network"]
    made = run(from_mapping(content), policy=make_policy("fifo"))
    times = times_by_limit(made)
    span = made.jobs["completion_s"] - made.jobs["arrival_s"]
    np.testing.assert_allclose(np.sum(list(times.values()), axis=0), span)
    exposed = made.jobs["exposed_communication_gpu_s"][0] / 4  # four GPUs, held from start to end
    assert times["network"][0] == pytest.approx(exposed)
    group = found(content).groups[0]
    assert group.shares["network"] == pytest.approx(exposed / span[0])
    assert group.time_s.mean == pytest.approx(span[0])


def test_jobs_of_a_trace_stand_alone(tmp_path, found):
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,arrival_s,gpus,duration_s\n7,0,4,100\n8,1,4,10\n9,2,4,10\n")
    content = case()
    del content["workload"]["jobs"]
    result = found(content | {"workload": {}}, trace=str(trace), most=2)
    assert result.groups[0].jobs == 3
    assert [g.name for g in result.groups[1:]] == ["9", "8"]
    assert [g.limit for g in result.groups] == ["queue", "queue", "queue"]


def test_gains_are_paired_by_seed(found):
    result = found(case(noise={"step_cov": 0.3}), options=RunOptions(seeds=4))
    group = result.groups[0]
    assert result.seeds == 4
    assert group.limit in ("compute", "barrier")
    no_jitter = next(e for e in group.effects if e.lever.name == "no jitter")
    assert no_jitter.helps
    assert no_jitter.ratio.n == 4
    faster = next(e for e in group.effects if e.lever.name == "GPUs twice as fast")
    assert faster.ratio.mean == pytest.approx(0.5, rel=1e-6)
    assert faster.ratio.half_width < 1e-6  # the same noise, whatever its size
    assert math.isnan(found(CASES["compute"]).groups[0].effects[0].ratio.half_width)


def test_processes_do_not_change_a_result(found):
    content = case(noise={"step_cov": 0.1})
    assert found(content, options=RunOptions(2, jobs=2)).as_dict() == found(content, options=RunOptions(2)).as_dict()


def test_every_lever_changes_the_scenario_and_leaves_it_valid():
    for path in sorted((Path(__file__).resolve().parents[3] / "scenarios").glob("*.yaml")):
        try:
            scenario = load(path)
        except Exception:  # a sweep or a price book
            continue
        if not scenario.workload.jobs:
            continue
        found = levers(scenario, "fifo")
        assert {lever.against for lever in found} >= {"compute", "queue", "any"}
        for lever in found:
            assert (lever.scenario != scenario) or lever.policy != "fifo"
            again = type(scenario).model_validate_json(lever.scenario.model_dump_json())
            assert again == lever.scenario, lever.name


@settings(max_examples=40)
@given(cases())
def test_every_lever_of_any_scenario_can_be_run(scenario):
    for lever in levers(scenario, "fifo"):
        assert problems(lever.scenario) == [], lever.name


@settings(max_examples=6)
@given(cases(), st.integers(0, 99))
def test_time_by_limit_is_all_of_a_jobs_time(scenario, seed):
    made = run(scenario, policy=make_policy("fifo-greedy"), seed=seed)
    times = times_by_limit(made)
    span = made.jobs["completion_s"] - made.jobs["arrival_s"]
    total = np.sum(list(times.values()), axis=0)
    np.testing.assert_allclose(total, span, rtol=1e-9, atol=1e-6)
    assert all((values >= 0).all() for values in times.values())


def test_undone_jobs_count_and_are_noted(found):
    result = found(case(horizon=5.0))
    assert "1 jobs did not complete" in result.notes[0]
    assert result.groups[0].time_s.mean == pytest.approx(5.0, rel=0.05)


def test_command_line(tmp_path, capsys):
    path = tmp_path / "case.yaml"
    case = copy.deepcopy(CASES["network"])
    for model in case["workload"]["models"].values():
        model["drift"] = 0.01  # without it S3 knows no interval that pays
    path.write_text(yaml.safe_dump(case))
    out = tmp_path / "out"
    assert main(["limits", str(path), "-q", "--try", "s3", "--out", str(out)]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    assert " under fifo is limited by network: " in answer
    assert "What would help most: " in answer
    assert "network twice as fast, x0." in answer
    assert "Stage s3 would reduce it: x0." in answer
    written = json.loads((out / "limits.json").read_text())
    assert written["groups"][0]["limit"] == "network"
    assert {lever["lever"] for lever in written["groups"][0]["levers"]} >= {"policy s3", "network twice as fast"}
    assert main(["limits", str(path), "-q", "--format", "json", "--try", "s3", "--seeds", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == written
    assert main(["limits", str(path), "-q", "--try", "s9"]) == 2
    (tmp_path / "taken" / "limits.json").mkdir(parents=True)
    capsys.readouterr()
    asked = ["limits", str(path), "-q", "--format", "json", "--try", "s3", "--seeds", "1"]
    assert main([*asked, "--out", str(tmp_path / "taken")]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == written, "what was found is not lost"
    assert "limits.json: Is a directory" in shown.err
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["limits.json"]
    assert main(["limits", str(tmp_path / "none.yaml"), "-q"]) == 2
    every = main(["limits", str(path), "-q", "--try", "s3", "--all"])
    assert every == 0
    assert "no effect: twice the nodes, " in capsys.readouterr().out


def test_a_given_layout_is_held_against_the_fastest_that_fits():
    given = from_mapping(large_model({"tp": 8, "pp": 4, "zero": 1}))
    lever = next(one for one in levers(given, "fifo") if one.name == "the fastest layout that fits")
    sent = type(given).model_validate_json(lever.scenario.model_dump_json())  # as to another process
    assert run(sent).totals["makespan_s"] < 0.9 * run(given).totals["makespan_s"]


def test_gpus_twice_as_fast_leave_what_the_gpus_of_a_replica_exchange():
    given = from_mapping(large_model({"tp": 8, "pp": 2, "zero": 1}))
    before, after = run(given), run(levers_module.faster_gpus(given))
    shares = [made.jobs["tensor_exchange_gpu_s"][0] for made in (before, after)]
    assert shares[0] > 0.0
    assert shares[1] == pytest.approx(shares[0], rel=1e-3)
    assert after.jobs["busy_gpu_s"][0] == pytest.approx(before.jobs["busy_gpu_s"][0] / 2, rel=0.01)
    assert 0.5 < after.totals["makespan_s"] / before.totals["makespan_s"] < 0.8


def test_levers_without_effect_are_one_line():
    def effect(name, ratio):
        return Effect(Lever(name, "compute", None, "fifo"), Interval(ratio, math.nan, math.nan, 1))

    effects = (effect("doubled", 0.5), effect("nearly nothing", 0.9997), effect("worse", 1.2), effect("same", 1.0))
    group = Limited(
        "train", 1, Interval(10.0, math.nan, math.nan, 1), dict.fromkeys(LIMITS, 0.0) | {"compute": 1.0}, effects
    )
    every = LimitReport("x", "fifo", 1, (group,), ()).findings(every=True)
    assert [row[1:] for row in every.tables[1].rows[1:]] == [("doubled", "x0.500"), ("worse", "x1.20")]
    assert every.remarks[-1] == "train: no effect: nearly nothing, same"
    assert not any("nothing" in line for line in LimitReport("x", "fifo", 1, (group,), ()).findings().lines())


def test_what_a_gpu_needs_of_its_host_is_told(tmp_path, capsys):
    """By hand: 0.5 ms a sample are 2,000 samples/s, 16 cores at 8 ms each, and 220 MB/s at 110 kB."""
    model = {"sample_time": "0.5 ms", "parameters": 1e6, "preprocess_time": "8 ms"}
    node = {"count": 1, "gpus": 4, "cores": 16, "storage_rate": "2 GB/s"}
    data = {"samples": 100_000, "sample_size": "110 kB"}
    job = {"name": "vision", "model": "m", "gpus": 4, "steps": 20, "global_batch": 512, "data": data}
    (tmp_path / "host.yaml").write_text(
        yaml.safe_dump(
            {
                "schema_version": 1,
                "name": "host",
                "cluster": {"nodes": [node]},
                "workload": {"models": {"m": model}, "jobs": [job]},
            }
        )
    )
    assert main(["limits", str(tmp_path / "host.yaml"), "--seeds", "1", "--quiet"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "limited by input" in told
    assert "each GPU computes 2,000 samples/s, and for that needs 16 cores to prepare them (there are 4)" in told
    assert "220 MB/s to read them (its node's own disk gives 500 MB/s), 11 GB of disks" in told
