"""Comparisons of real runs: processes, resuming, failures, and the lower bound."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.read import read_trace
from equipoise.study.folders import check_free, kind_of
from equipoise.study.report.page import make_report
from equipoise.study.runs import processes
from equipoise.study.runs.compare import EveryPolicyFailed, compare
from equipoise.study.runs.make import _at_most
from equipoise.study.runs.warm import _SMALL
from tests.study.runs.sweeps.sweep_helpers import run_folder

POLICIES = ["fifo", "sjf-greedy"]


class Counted:
    """The simulator, counting its runs; fails at one seed, with the records of the run."""

    def __init__(self, fail_at=None):
        self.calls, self.fail_at = 0, fail_at

    def __call__(self, case, **given):
        made = run(case, **given)
        self.calls += 1
        if given["seed"] == self.fail_at:
            raise RunFailed("stage s9 at 1 s: out of luck", made)
        return made


@pytest.fixture(scope="module")
def small():
    return Scenario.model_validate(_SMALL)


@pytest.fixture(scope="module")
def plain(small):
    return compare(small, POLICIES, 2)


def test_processes_change_no_result_and_are_no_more_than_processors(small, plain, tmp_path, monkeypatch, capsys):
    started = []

    class Seen(processes.Processes):
        def __init__(self, shared, count):
            started.append(count)
            super().__init__(shared, count)

    _at_most.cache_clear()
    monkeypatch.setattr(processes, "Processes", Seen)
    monkeypatch.setattr("equipoise.study.runs.make.processors", lambda: 1)
    for out in (None, tmp_path):
        assert compare(small, POLICIES, 2, jobs_parallel=64, out=out).as_json() == plain.as_json()
    assert (tmp_path / "comparison.json").read_text() == plain.as_json()
    assert (run_folder(tmp_path, "sjf-greedy", 1) / "summary.json").is_file()
    assert started == [2, 2]  # two even on one processor: a run whose process is killed is made again
    told = "2 processes instead of 4: more processes than processors take memory and save no time"
    assert capsys.readouterr().err.count(told) == 1  # 4 runs are to be made


def test_a_second_start_makes_only_what_is_missing(small, plain, tmp_path):
    first, again, third = Counted(), Counted(), Counted()
    compare(small, POLICIES, 2, out=tmp_path, runner=first)
    (run_folder(tmp_path, "fifo", 1) / "summary.json").unlink()
    resumed = compare(small, POLICIES, 2, out=tmp_path, runner=again)
    assert (first.calls, again.calls) == (4, 1)
    assert resumed.as_json() == plain.as_json()
    assert [result.reused for result in resumed.results] == [True, False, True, True]
    changed = small.model_copy(update={"noise": small.noise.model_copy(update={"step_cov": 0.2})})
    compare(changed, POLICIES, 2, out=tmp_path, runner=third)
    assert third.calls == 4


def test_a_failing_run_keeps_what_was_made(small, tmp_path):
    with pytest.raises(EveryPolicyFailed, match="fifo seed 2 failed: stage s9 at 1 s: out of luck"):
        compare(small, ["fifo"], 3, out=tmp_path, runner=Counted(fail_at=2))
    assert (run_folder(tmp_path, "fifo", 1) / "summary.json").is_file()
    assert (run_folder(tmp_path, "fifo", 2) / "jobs.parquet").is_file()
    again, third = Counted(), Counted()
    assert compare(small, ["fifo"], 3, out=tmp_path, runner=again).failures == ()
    compare(small, ["fifo"], 2, out=tmp_path, runner=third)
    assert (again.calls, third.calls) == (1, 0)


def test_ctrl_c_keeps_the_runs_that_are_done(small, plain, tmp_path):
    def interrupted(case, **given):
        if (given["policy"].name, given["seed"]) == ("sjf-greedy", 1):
            raise KeyboardInterrupt
        return run(case, **given)

    with pytest.raises(KeyboardInterrupt):
        compare(small, POLICIES, 2, out=tmp_path, runner=interrupted)
    assert kind_of(tmp_path) == "comparison"
    assert "3 runs of 1 points" in make_report(tmp_path).path.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="holds a comparison"):
        check_free(tmp_path, "sweep")
    again = Counted()
    assert compare(small, POLICIES, 2, out=tmp_path, runner=again).as_json() == plain.as_json()
    assert again.calls == 1


def test_a_trace_reaches_runs_in_other_processes(small, tmp_path):
    file = tmp_path / "jobs.csv"
    file.write_text("job_id,arrival_s,gpus,duration_s\n1,0,2,10\n2,5,2,20\n")
    trace = read_trace(file)
    file.unlink()  # nobody can read it again
    one, two = (compare(small, ["fifo"], 2, trace=trace, jobs_parallel=jobs) for jobs in (1, 2))
    assert one.as_json() == two.as_json()
    assert one.results[0].metrics["jobs"] == 2 + compare(small, ["fifo"], 1).results[0].metrics["jobs"]


def always_fails(case, **given):
    raise RunFailed("stage s9 at 1 s: out of luck", run(case, **given))


def test_a_failure_in_another_process_comes_back_with_its_reason(small, tmp_path):
    with pytest.raises(EveryPolicyFailed, match="fifo seed 0 failed: stage s9 at 1 s: out of luck"):
        compare(small, ["fifo"], 2, jobs_parallel=2, out=tmp_path, runner=always_fails)
    kept = run_folder(tmp_path, "fifo", 0)
    assert json.loads((kept / "manifest.json").read_text())["policy"] == "fifo"


SPEEDS = st.sampled_from([0.5, 1.0, 1.6])
RIGID = st.builds(
    lambda arrival, gpus, duration: {"arrival": arrival, "gpus": gpus, "duration": duration},
    st.integers(0, 20),
    st.integers(1, 4),
    st.integers(1, 30),
)
TRAINING = st.builds(
    lambda arrival, gpus, steps, batch, extra: {
        "arrival": arrival,
        "gpus": gpus,
        "model": "m",
        "steps": steps,
        "global_batch": batch,
        "workers_min": 1,
        "workers_max": gpus + extra,
        "data": {"samples": 2 * batch + extra, "sample_size": 10, "shards": 4},
    },
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(8, 40),
    st.integers(0, 3),
)
MODELS = st.builds(
    lambda fixed, per_pass, overlap, phi: {
        "fixed_time": fixed,
        "sample_time": 2e-3,
        "samples_per_pass": per_pass,
        "overlap": overlap,
        "parameters": 1e6,
        "noise_scale": phi,
        "drift": 0.01,
    },
    st.sampled_from([0.0, 5e-3]),
    st.sampled_from([None, 4]),
    st.sampled_from([1.0, 3.0]),
    st.sampled_from([None, 30.0]),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(RIGID, TRAINING), min_size=1, max_size=6),
    MODELS,
    st.lists(SPEEDS, min_size=2, max_size=3),
    st.sampled_from(["fifo", "sjf-greedy", "srtf", "las", "easy", "s1+s2+s3+s4", "s2+s3+fifo-greedy"]),
)
def test_no_policy_beats_the_bound(jobs, model, speeds, policy):
    nodes = [{"name": f"n{k}", "count": 1, "gpus": 2, "speed": s} for k, s in enumerate(speeds)]
    named = [job | {"name": f"job{k}"} for k, job in enumerate(jobs)]
    case = Scenario.model_validate(
        {
            "schema_version": 1,
            "name": "drawn",
            "cluster": {"nodes": nodes},
            "workload": {"models": {"m": model}, "jobs": named},
            "decide": {"every_steps": 5},
        }
    )
    seen = compare(case, [policy], 1)
    over = {c.metric: c.over_bound for c in seen.cells if c.over_bound == c.over_bound}
    assert set(over) == {"makespan_s", "completion_mean_s"}
    assert min(over.values()) >= 1 - 1e-9
