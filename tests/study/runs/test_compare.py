import csv
import dataclasses
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from equipoise.policies.registry import PolicyError, make_policy
from equipoise.sim.job.account import Use
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.record import Run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs import compare as compare_module
from equipoise.study.runs.compare import compare, is_random
from equipoise.study.runs.comparison import Comparison

SPEED = {"fifo": 1.0, "sjf": 0.5, "las": 0.8, "easy": 0.9}


def scenario(**changes):
    content = {
        "schema_version": 1,
        "name": "three jobs",
        "cluster": {"gpus": 4},
        "workload": {"jobs": [{"name": "job", "count": 3, "gpus": 2, "duration": 100.0}]},
        "noise": {"step_cov": 0.1},
    }
    return Scenario.model_validate(content | changes)


def fake_run(case, *, policy, seed, trace=None):
    """A run whose metrics are known functions of (policy, seed): times 100 * SPEED * (1 + seed / 10)."""
    end = 100.0 * SPEED[policy.name] * (1.0 + seed / 10.0) * np.array([1.0, 1.5, 2.0])
    columns = {"arrival_s": np.zeros(3), "completion_s": end, "queueing_s": np.zeros(3)}
    columns |= {use.column: np.zeros(3) for use in Use}
    columns["busy_gpu_s"] = columns["useful_gpu_s"] = 2.0 * end
    idle_gpu_s = float(4 * end.max() - 2 * end.sum())
    totals = {"gpus": 4.0, "makespan_s": float(end.max()), "idle_gpu_s": idle_gpu_s}
    return Run(case.name, policy.name, seed, "made up", "{}", columns, totals, notes=("a note",))


class Counted:
    """The fake run, counting how often it is called; can fail at one seed."""

    def __init__(self, fail_at=None):
        self.calls, self.fail_at = 0, fail_at

    def __call__(self, case, **given):
        if given["seed"] == self.fail_at:
            raise RuntimeError("out of luck")
        self.calls += 1
        return fake_run(case, **given)


@pytest.fixture
def comparison():
    return compare(scenario(), ["fifo", "sjf"], 3, runner=fake_run)


def cell(comparison, metric, policy):
    return next(c for c in comparison.cells if (c.metric, c.policy) == (metric, policy))


def test_mean_interval_and_paired_ratio(comparison):
    fifo, sjf = (cell(comparison, "makespan_s", policy) for policy in ("fifo", "sjf"))
    assert fifo.value.mean == pytest.approx(220.0)  # 200 * (1, 1.1, 1.2)
    # Standard deviation 20 over 3 seeds, t(0.975, 2) = 4.302653.
    assert fifo.value.half_width == pytest.approx(4.302653 * 20 / math.sqrt(3), rel=1e-6)
    assert sjf.ratio.mean == pytest.approx(0.5)
    assert sjf.ratio.half_width < 1e-12  # seeds differ by 20 %, the pairs not at all
    assert fifo.ratio.mean == 1.0
    # Differences -100 * (1, 1.1, 1.2): mean -110, standard deviation 10.
    assert sjf.difference.mean == pytest.approx(-110.0)
    assert sjf.difference.half_width == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)
    assert sjf.row()["difference_low"] == pytest.approx(sjf.difference.low)
    assert fifo.difference.mean == 0.0


def test_seeds_are_common_and_start_at_the_scenarios(comparison):
    assert comparison.seeds == (0, 1, 2)
    seen = compare(scenario(seed=7), ["fifo", "sjf"], 2, runner=fake_run)
    assert [(r.policy, r.seed) for r in seen.results] == [("fifo", 7), ("fifo", 8), ("sjf", 7), ("sjf", 8)]


def test_distance_to_the_bound(comparison):
    # Three jobs of 2 GPUs and 100 s on 4 GPUs: 600 GPU-seconds / 4 = 150 s.
    assert comparison.bound.makespan_s == pytest.approx(150.0)
    assert comparison.bound.noise_free
    assert cell(comparison, "makespan_s", "fifo").over_bound == pytest.approx(220 / 150)
    assert math.isnan(cell(comparison, "completion_p95_s", "fifo").over_bound)


def test_no_bound_when_jobs_were_left_undone():
    def stopped(case, **given):
        run = fake_run(case, **given)
        run.jobs["completion_s"][2] = math.nan
        return run

    seen = compare(scenario(), ["fifo"], 2, runner=stopped)
    assert math.isnan(cell(seen, "makespan_s", "fifo").over_bound)


def test_without_randomness_one_seed_is_run_and_said_so():
    runner = Counted()
    seen = compare(scenario(noise={}), ["fifo", "sjf"], 5, runner=runner)
    assert runner.calls == 2
    assert seen.seeds == (0,)
    assert "one seed was run instead of 5" in seen.notes[0]
    assert not seen.bound.noise_free


@pytest.mark.parametrize(
    ("section", "random"),
    [
        ({"noise": {}}, False),
        ({"noise": {"step_cov": 0.01}}, True),
        ({"noise": {}, "decide": {"estimate_error": 0.1}}, True),
        ({"noise": {}, "faults": {"crash": {"mtbf": "30 d"}}}, True),
        ({"noise": {}, "faults": {"spot": {"group": "node", "mtbf": "30 d"}}}, True),
        ({"noise": {}, "faults": {"events": [{"kind": "crash", "node": "pool-0", "at": 1, "duration": 2}]}}, False),
    ],
)
def test_what_counts_as_random(section, random):
    assert is_random(scenario(**section)) == random


@pytest.mark.parametrize(
    ("policies", "given", "error", "says"),
    [
        ([], {}, ValueError, "no policy"),
        (["fifo", "fifo"], {}, ValueError, "'fifo' is named twice"),
        (["las", "fifo", "sjf", "fifo", "sjf"], {}, ValueError, "'fifo' is named twice"),
        (["fifo"], {"seeds": 0}, ValueError, "seeds: 0"),
        (["fifo"], {"jobs_parallel": 0}, ValueError, "jobs: 0"),
        (["fifa"], {}, PolicyError, "did you mean 'fifo'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(policies, given, error, says):
    runner = Counted()
    with pytest.raises(error, match=says):
        compare(scenario(), policies, **({"seeds": 2} | given), runner=runner)
    assert runner.calls == 0


def test_json_and_csv_hold_the_same_numbers(comparison):
    content = json.loads(comparison.as_json())
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    assert len(lines) == len(content["rows"]) == len(comparison.rows())
    for line, row in zip(lines, content["rows"], strict=True):
        assert (line["metric"], line["policy"]) == (row["metric"], row["policy"])
        assert (float(line["mean"]) if line["mean"] else None) == row["mean"]
    assert content["runs"][0]["metrics"]["makespan_s"] == 200.0
    assert content["bound"]["makespan_s"] == 150.0


def test_differences_are_tested(comparison):
    noise = np.random.default_rng(1).lognormal(0.0, 0.2, len(comparison.results))
    results = [
        replace(r, metrics={**r.metrics, "makespan_s": r.metrics["makespan_s"] * factor})
        for r, factor in zip(comparison.results, noise, strict=True)
    ]
    noisy = replace(comparison, results=tuple(results))
    first, mine = ([r.metrics["makespan_s"] for r in noisy.of(policy)] for policy in ("fifo", "sjf"))
    found, logs = cell(noisy, "makespan_s", "sjf"), np.log(np.divide(mine, first))
    assert found.effect == pytest.approx(logs.mean() / logs.std(ddof=1))
    assert found.p == pytest.approx(ttest_rel(np.log(mine), np.log(first)).pvalue)
    assert math.isnan(cell(noisy, "makespan_s", "fifo").p)


def test_a_row_gives_the_same_result_from_memory_and_from_a_ledger(tmp_path):
    plain = compare(scenario(), ["fifo", "sjf"], 2, runner=fake_run)
    kept = compare(scenario(), ["fifo", "sjf"], 2, runner=fake_run, out=tmp_path)
    read = compare(scenario(), ["fifo", "sjf"], 2, runner=Counted(), out=tmp_path)
    assert plain.as_json() == kept.as_json() == read.as_json()
    assert [result.reused for result in read.results] == [True] * 4
    made = fake_run(scenario(), policy=make_policy("sjf"), seed=1)
    found = read.results[3]
    assert dict(found.metrics) == pytest.approx(made.summary(), nan_ok=True)
    assert tuple(found.metrics) == tuple(made.summary())
    assert dict(found.totals) == made.totals
    assert found.notes == made.notes


def test_one_policy_in_two_spellings_is_run_once():
    runner = Counted()
    seen = compare(scenario(), ["fifo", " fifo "], 2, runner=runner)
    assert runner.calls == 2
    assert seen.policies == ("fifo", " fifo ")
    assert cell(seen, "makespan_s", " fifo ").ratio.mean == 1.0


def test_rounding_of_a_share_is_no_ratio():
    def residue(case, **given):
        run = fake_run(case, **given)
        return dataclasses.replace(run, totals=run.totals | {"idle_gpu_s": 1e-13 * (given["seed"] + 1)})

    seen = compare(scenario(), ["fifo", "sjf"], 2, runner=residue)
    assert math.isnan(cell(seen, "idle_ratio", "sjf").ratio.mean)
    assert cell(seen, "idle_ratio", "sjf").value.mean == 0.0


def test_holm_is_over_all_policies_but_the_first():
    """The smallest of two p counts twice."""
    seen = compare(scenario(), ["fifo", "sjf", "las"], 4, runner=fake_run)
    noise = np.random.default_rng(3).lognormal(0.0, 0.1, len(seen.results))
    results = [
        replace(r, metrics={**r.metrics, "makespan_s": r.metrics["makespan_s"] * factor})
        for r, factor in zip(seen.results, noise, strict=True)
    ]
    seen = replace(seen, results=tuple(results))
    logs = {p: np.log([r.metrics["makespan_s"] for r in seen.of(p)]) for p in seen.policies}
    raw = sorted((ttest_rel(logs[p], logs["fifo"]).pvalue, p) for p in ("sjf", "las"))
    (least, first), (most, last) = raw
    assert cell(seen, "makespan_s", first).p == pytest.approx(2 * least)
    assert cell(seen, "makespan_s", last).p == pytest.approx(max(2 * least, most))


def test_one_run_more_than_can_be_held_is_refused(monkeypatch):
    monkeypatch.setattr(compare_module, "RUNS_MOST", 4)
    assert len(compare(scenario(), ["fifo", "sjf"], 2, runner=fake_run).results) == 4
    with pytest.raises(InputError, match="6 runs; a comparison has at most 4"):
        compare(scenario(), ["fifo", "sjf"], 3, runner=fake_run)
    assert len(compare(scenario(noise={}), ["fifo", "sjf"], 3, runner=fake_run).results) == 2


def test_what_was_written_is_read_and_what_is_damaged_is_not(comparison):
    content = json.loads(comparison.as_json())
    assert content["schema_version"] == 1
    assert comparison.as_json().startswith('{\n  "schema_version": 1,\n')
    again = Comparison.read(content)
    assert json.loads(again.as_json())["rows"] == content["rows"]
    assert (again.seeds, again.random, again.bound) == (comparison.seeds, True, comparison.bound)
    assert not Comparison.read(content | {"random": False}).random
    for policies in (["fifo"], ["fifo", "sjf", "zzz"]):
        with pytest.raises(ValueError, match="its policies are not those of its runs"):
            Comparison.read(content | {"policies": policies})
    one, *others = content["runs"]
    for runs in (others[2:], [one | {"metrics": {"jobs": 3}}, *others], [one | {"metrics": {"completed": 3}}, *others]):
        with pytest.raises(ValueError, match=r"its policies are not those of its runs|a run has no metrics"):
            Comparison.read(content | {"runs": runs})


def test_a_comparison_in_which_no_job_waits_says_so():
    jobs = [{"gpus": 2, "duration": "1 h", "count": 2, "spacing": "1 h"}]
    idle, busy = case_of({"gpus": 20}, jobs), case_of({"gpus": 3}, jobs * 2)
    told = "no job ever waits: the 20 GPUs compute 10 % of the time; 3 would 80 %"
    assert told in compare(idle, ["fifo", "sjf"], 1).notes
    assert not any("ever waits" in note for note in compare(idle, ["fifo"], 1).notes)
    assert not any("ever waits" in note for note in compare(busy, ["fifo", "sjf"], 1).notes)


def case_of(cluster, jobs):
    return from_mapping({"schema_version": 1, "name": "x", "cluster": cluster, "workload": {"jobs": jobs}})
