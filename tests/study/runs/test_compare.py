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
from equipoise.sim.run import RunFailed
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.bounds import LowerBound
from equipoise.study.display import show
from equipoise.study.runs import compare as compare_module
from equipoise.study.runs.compare import Comparison, Result, _never_waits, _notes, compare, is_random
from equipoise.study.table import as_latex

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


def test_table_is_plain_and_fits(comparison):
    text = comparison.as_table(width=100)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\n\nthree jobs: 3 seeds, mean ± 95 % interval" in text
    line = next(line for line in text.splitlines() if line.startswith("makespan"))
    assert line.split() == ["makespan", "3.67", "±0.83", "min", "110", "±25", "s"]
    assert "of noise-free bound" in text
    assert "note: a note" in text
    html = comparison._repr_html_()
    assert "three jobs: 3 seeds, mean and 95 % interval" in html
    assert "note" in html


def test_table_folds_policies_that_do_not_fit():
    seen = compare(scenario(), ["fifo", "sjf", "las", "easy"], 2, runner=fake_run)
    wide, narrow = seen.as_table(width=200), seen.as_table(width=64)
    assert max(map(len, narrow.splitlines())) <= 64
    assert (wide.count("makespan"), narrow.count("makespan")) == (1, 2)


@pytest.mark.parametrize(
    ("metric", "mean", "half", "text"),
    [
        ("makespan_s", 43.12, 0.21, "43.1 ±0.21 s"),
        ("makespan_s", 43.12, 0.0001, "43.1 s"),
        ("makespan_s", 7200.0, math.nan, "2.00 h"),
        ("idle_ratio", 0.1234, 0.0, "12.3 %"),
        ("idle_ratio", 0.0, 0.0, "0 %"),
        ("idle_ratio", 4e-8, 0.0, "0 %"),
        ("queueing_mean_s", 0.0, 0.0, "0 s"),
        ("jobs", 68063.0, math.nan, "68063"),
        ("requests", 69_122_468.4, 9145.0, "69,122,468 ±9145"),
        ("completed", 43.5, 0.2, "43.5 ±0.20"),
        ("completion_mean_s", math.nan, math.nan, "-"),
        ("network_bytes", 8.5e10, math.nan, "85 GB"),
        ("cost_usd", 1234.5, math.nan, "1,234 USD"),
        ("cost_usd", 1234.5, 6.0, "1,234 ±6.0 USD"),
        ("energy_j", 2.2752e6, 1.0915e4, "632 ±3.0 Wh"),
        ("cost_per_useful_sample_usd", 2.38e-6, 2.55e-8, "2.38 ±0.025 USD"),
    ],
)
def test_human_units(metric, mean, half, text):
    assert show(metric, mean, half) == text


def test_json_and_csv_hold_the_same_numbers(comparison):
    content = json.loads(comparison.as_json())
    lines = list(csv.DictReader(io.StringIO(comparison.as_csv())))
    assert len(lines) == len(content["rows"]) == len(comparison.rows())
    for line, row in zip(lines, content["rows"], strict=True):
        assert (line["metric"], line["policy"]) == (row["metric"], row["policy"])
        assert (float(line["mean"]) if line["mean"] else None) == row["mean"]
    assert content["runs"][0]["metrics"]["makespan_s"] == 200.0
    assert content["bound"]["makespan_s"] == 150.0


def test_differences_are_tested_and_stand_in_a_table_for_papers(comparison):
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
    text = as_latex("90 % of it", [replace(found, policy="first", p=math.nan), replace(found, policy="a_b", p=0.001)])
    assert r"90 \% of it" in text
    assert r"a\_b" in text
    assert text.count("$^{**}$") == 1
    for seeds, said in ((1, "one seed"), (2, "2 seeds, paired")):
        made = compare(scenario(), ["fifo", "sjf"], seeds, runner=fake_run)
        assert rf": {said}}}" in made.as_latex()
    part = as_latex("t", [replace(found, metric="idle_late_ratio", policy="first")])
    assert "\n\\quad after last arrival &" in part, "a part of idle, which stands above it"
    hostile = as_latex("\\input{/etc/passwd} ~^ $x$ \x1b[2J\n%", [replace(found, policy="first")])
    written = r"\caption{\textbackslash{}input\{/etc/passwd\} \textasciitilde{}\textasciicircum{} \$x\$ "
    assert written + r"\textbackslash{}x1b[2J \%}" in hostile


def test_progress_counts_every_run():
    seen = []
    compare(scenario(), ["fifo", "sjf"], 2, runner=fake_run, progress=lambda *given: seen.append(given))
    assert [(done, of) for done, of, _ in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert seen[0][2] == "fifo seed 0"


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


def of_metrics(comparison, **metrics):
    """The comparison with these metrics in every run; those of `sjf` are twice the first's."""
    results = [
        replace(r, metrics={**r.metrics, **{k: v * (2 if r.policy == "sjf" else 1) for k, v in metrics.items()}})
        for r in comparison.results
    ]
    return replace(comparison, results=tuple(results))


def test_small_shares_are_rounding_and_small_times_are_not(comparison):
    """Below 1e-12 a share is nothing; a time of a share's size is one."""
    for share, mean, ratio in ((1e-12, 1e-12, 2.0), (0.99e-12, 0.0, math.nan), (-0.4e-12, 0.0, math.nan)):
        seen = of_metrics(comparison, idle_ratio=share)
        assert cell(seen, "idle_ratio", "fifo").value.mean == mean
        if share == -0.4e-12:
            assert cell(seen, "idle_ratio", "sjf").value.mean == 0.0
        assert cell(seen, "idle_ratio", "sjf").ratio.mean == pytest.approx(ratio, nan_ok=True)
    seen = of_metrics(comparison, makespan_s=1e-13)
    assert cell(seen, "makespan_s", "sjf").ratio.mean == pytest.approx(2.0)


def test_a_bound_of_nothing_is_none(comparison):
    for bound_s, over in ((0.5, 440.0), (0.0, math.nan)):
        seen = replace(comparison, bound=LowerBound(bound_s, 0.0, False))
        found = cell(seen, "makespan_s", "fifo")
        assert (found.bound, found.over_bound) == (bound_s, pytest.approx(over, nan_ok=True))
    assert math.isnan(cell(seen, "completion_p95_s", "fifo").bound)


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


def result(policy="fifo", seed=0, notes=(), gpus=20.0, busy=0.1, waited_s=0.0, jobs=2.0):
    metrics = {"queueing_mean_s": waited_s, "jobs": jobs, "gpu_busy_ratio": busy}
    return Result(policy, seed, "x", metrics, notes, {"gpus": gpus} if gpus else {})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "no job ever waits: the 20 GPUs compute 10 % of the time; 3 would 80 %"),
        ({"busy": 0.0}, "no job ever waits: the 20 GPUs compute 0 % of the time; 1 would 80 %"),
        ({"busy": 0.79}, "no job ever waits: the 20 GPUs compute 79 % of the time; 20 would 80 %"),
        ({"busy": 0.8}, None),
        ({"gpus": 2.0}, "no job ever waits: the 2 GPUs compute 10 % of the time; 1 would 80 %"),
        ({"gpus": 1.0}, None),
        ({"gpus": None}, None),
        ({"waited_s": 1e-9}, None),
        ({"jobs": 1.0}, None),
        ({"jobs": 0.0}, None),
    ],
)
def test_gpus_that_would_do_are_told_where_no_job_waits(changes, told):
    pair = [result(**changes), result("sjf", **changes)]
    assert _never_waits(pair) == ([] if told is None else [told])
    assert _never_waits(pair[:1]) == []
    assert _never_waits([*pair, result(waited_s=1.0)]) == []


def test_notes_of_all_runs_come_once_and_others_with_their_run():
    results = [
        result("fifo", 3, ("all", "one")),
        result("fifo", 4, ("all", "late")),
        result("sjf", 3, ("two", "all")),
        result("sjf", 4, ("all",)),
    ]
    assert _notes(results) == ["all", "fifo seed 3: one", "sjf seed 3: two"]


def test_one_run_more_than_can_be_held_is_refused(monkeypatch):
    monkeypatch.setattr(compare_module, "RUNS_MOST", 4)
    assert len(compare(scenario(), ["fifo", "sjf"], 2, runner=fake_run).results) == 4
    with pytest.raises(InputError, match="6 runs; a comparison has at most 4"):
        compare(scenario(), ["fifo", "sjf"], 3, runner=fake_run)
    assert len(compare(scenario(noise={}), ["fifo", "sjf"], 3, runner=fake_run).results) == 2


def test_titles_of_one_seed_and_of_several():
    for seeds, table, page in ((1, "one seed", "one seed"), (2, "2 seeds, mean", "2 seeds, mean and 95 %")):
        seen = compare(scenario(), ["fifo", "sjf"], seeds, runner=fake_run)
        assert f"three jobs: {table}" in seen.as_table()
        assert f"three jobs: {page}" in seen._repr_html_()


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


def test_percentiles_of_a_single_job_are_left_out_of_the_table():
    def single(case, **given):
        run = fake_run(case, **given)
        return dataclasses.replace(run, jobs={name: column[:1] for name, column in run.jobs.items()})

    one = compare(scenario(), ["fifo"], 2, runner=single)
    assert "p95" not in one.as_table()
    assert "completion_p95_s" in one.as_csv()


def test_a_failure_while_compiling_does_not_stop_the_runs(monkeypatch, tmp_path):
    def fails(name, queue):
        raise RunFailed("not made for that case", fake_run(scenario(), policy=make_policy("fifo"), seed=0))

    alone = compare(scenario(), ["fifo", "sjf"], 1)
    monkeypatch.setattr(
        "equipoise.study.runs.warm._mark", lambda portion: tmp_path / portion
    )  # nothing is compiled yet
    monkeypatch.setattr("equipoise.study.runs.warm.processors", lambda: 1)
    monkeypatch.setattr("equipoise.study.runs.warm._compile", fails)
    for processes in (1, 2):
        found = compare(scenario(), ["fifo", "sjf"], 1, jobs_parallel=processes)
        assert found.as_csv() == alone.as_csv()
    assert not list(tmp_path.iterdir())


def test_a_comparison_in_which_no_job_waits_says_so():
    jobs = [{"gpus": 2, "duration": "1 h", "count": 2, "spacing": "1 h"}]
    idle, busy = case_of({"gpus": 20}, jobs), case_of({"gpus": 3}, jobs * 2)
    told = "no job ever waits: the 20 GPUs compute 10 % of the time; 3 would 80 %"
    assert told in compare(idle, ["fifo", "sjf"], 1).notes
    assert not any("ever waits" in note for note in compare(idle, ["fifo"], 1).notes)
    assert not any("ever waits" in note for note in compare(busy, ["fifo", "sjf"], 1).notes)


def case_of(cluster, jobs):
    return from_mapping({"schema_version": 1, "name": "x", "cluster": cluster, "workload": {"jobs": jobs}})
