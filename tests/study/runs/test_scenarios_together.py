"""One table over several scenarios: tests within them, over all of them, and as texts."""

import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from equipoise import studies
from equipoise.cli import main
from equipoise.study.runs.across import _NONE, SCENARIOS, SEEDS, ComparisonLine, Together
from equipoise.study.statistics import Interval, holm, paired_effect, paired_p, paired_ratio, stratified_ratio

POLICIES = ("fifo", "srtf", "las")


def case(name, spread, gpus):
    dice = np.random.default_rng(gpus)
    jobs = [
        {"arrival": f"{30 * k} s", "gpus": int(dice.choice([1, 2])), "duration": f"{dice.lognormal(6, 1):.0f} s"}
        for k in range(25)
    ]
    return {
        "schema_version": 1,
        "name": name,
        "cluster": {"gpus": gpus},
        "workload": {"jobs": jobs},
        "decide": {"estimate_error": spread},
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    for name, spread, gpus in (("small", 0.6, 4), ("large", 0.9, 6), ("sure", 0.0, 5)):
        (folder / f"{name}.yaml").write_text(json.dumps(case(name, spread, gpus)))
    return folder


@pytest.fixture(scope="module")
def together(files):
    return Together({name: studies.compare(files / f"{name}.yaml", POLICIES, 4) for name in ("small", "large", "sure")})


def line_of(together, scenario, policy, metric="completion_mean_s"):
    (found,) = [x for x in together.lines if (x.metric, x.scenario, x.policy) == (metric, scenario, policy)]
    return found


def values(together, name, policy, metric="completion_mean_s"):
    return [r.metrics[metric] for r in together.comparisons[name].of(policy)]


def test_equal_groups_are_a_t_test_on_what_each_group_leaves():
    """Two groups of equal size and variance: the pooled two-sample formula by SciPy, with a sign turned."""
    dice = np.random.default_rng(1)
    noise = dice.normal(size=6)
    a, b = 0.2 + noise, 0.4 + noise[::-1]
    ratio, p, effect = stratified_ratio([np.exp(a), np.exp(b)], [np.ones(6)] * 2, [False, False])
    # The mean of two means against 0 is the difference of one against the negative of the other.
    oracle = stats.ttest_ind(a, -b, equal_var=False)
    assert p == pytest.approx(oracle.pvalue)
    assert math.log(ratio.mean) == pytest.approx(0.5 * (a.mean() + b.mean()))
    low, high = (0.5 * x for x in oracle.confidence_interval(0.95))
    assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((low, high))
    assert effect == pytest.approx(math.log(ratio.mean) / noise.std(ddof=1))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    dice, hits = np.random.default_rng(2), 0
    for _ in range(2000):
        logs = [dice.normal(0.1, 0.2, 5), dice.normal(0.5, 0.05, 3), np.array([0.3])]
        ratio, _, _ = stratified_ratio([np.exp(x) for x in logs], [np.ones(x.size) for x in logs], [0, 0, 1])
        hits += ratio.low <= math.exp(0.3) <= ratio.high
    assert 0.935 <= hits / 2000 <= 0.975


def test_one_pair_of_a_random_group_tells_no_spread():
    ratio, p, effect = stratified_ratio([[2.0], [3.0, 3.1]], [[1.0], [1.0, 1.0]], [False, False])
    assert ratio.mean == pytest.approx(math.sqrt(2.0 * math.sqrt(9.3)))
    assert np.isnan([ratio.low, p, effect]).all()
    ratio, p, _ = stratified_ratio([[2.0], [3.0, 3.1]], [[1.0], [1.0, 1.0]], [True, False])
    assert ratio.low < ratio.mean < ratio.high
    assert p < 0.05
    assert math.isnan(stratified_ratio([[0.0, 1.0]], [[1.0, 1.0]], [False])[0].mean)


def test_rows_over_all_count_each_scenario_once(together):
    names = list(together.comparisons)
    for policy in POLICIES[1:]:
        logs = [np.log(np.array(values(together, n, policy)) / np.array(values(together, n, "fifo"))) for n in names]
        seeds = line_of(together, SEEDS, policy)
        assert seeds.ratio.mean == pytest.approx(math.exp(np.mean([x.mean() for x in logs])))
        assert seeds.pairs == 4 + 4 + 1
        means = [[np.mean(values(together, n, p)) for n in names] for p in (policy, "fifo")]
        assert line_of(together, SCENARIOS, policy).ratio == paired_ratio(*means)
        assert line_of(together, SCENARIOS, policy).effect == paired_effect(*means)
    raw = [paired_p(values(together, n, p), values(together, n, "fifo")) for n in names for p in POLICIES[1:]]
    mine = [line_of(together, n, p).p for n in names for p in POLICIES[1:]]
    np.testing.assert_allclose(mine, holm(raw))
    assert math.isnan(line_of(together, SEEDS, "fifo").p)
    # Over all, Holm's correction is over the policies but the first; `sure` has nothing random in it.
    first = [values(together, n, "fifo") for n in names]
    of_seeds = [
        stratified_ratio([values(together, n, p) for n in names], first, [n == "sure" for n in names])
        for p in POLICIES[1:]
    ]
    np.testing.assert_allclose([line_of(together, SEEDS, p).p for p in POLICIES[1:]], holm([p for _, p, _ in of_seeds]))
    assert [line_of(together, SEEDS, p).effect for p in POLICIES[1:]] == [d for *_, d in of_seeds]
    mean = {p: [np.mean(values(together, n, p)) for n in names] for p in POLICIES}
    np.testing.assert_allclose(
        [line_of(together, SCENARIOS, p).p for p in POLICIES[1:]],
        holm([paired_p(mean[p], mean["fifo"]) for p in POLICIES[1:]]),
    )


def line(scenario, policy, value=None, ratio=math.nan, p=math.nan, effect=math.nan, metric="makespan_s"):
    """A line whose intervals are 1 s to either side, and 0.1 of a ratio."""
    mean = _NONE if value is None else Interval(value, value - 1.0, value + 1.0, 4)
    return ComparisonLine(metric, scenario, policy, 4, mean, Interval(ratio, ratio - 0.1, ratio + 0.1, 4), p, effect)


def test_a_table_for_programs(together):
    text = together.as_json()
    assert text.startswith('{\n  "schema_version": 1,\n  "scenarios": [\n')
    content = json.loads(text)
    assert (content["policies"], content["confidence"], content["failures"]) == (list(POLICIES), 0.95, [])
    assert len(content["rows"]) == len(together.lines)


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_the_command_compares_several_scenarios(files, tmp_path, capsys, form):
    line = ["compare", str(files / "small.yaml"), str(files / "sure.yaml"), "--policy", "fifo", "--policy", "las"]
    assert main([*line, "--seeds", "2", "--format", form, "--out", str(tmp_path / "out"), "-q"]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert list(json.loads(out)["tables"]) == ["small", "sure", "all scenarios"]
        assert any(row["scenario"] == SEEDS for row in json.loads(out)["tables"]["all scenarios"]["rows"])
    elif form == "csv":
        assert out.splitlines()[0].startswith("metric,scenario,policy,pairs,mean")
    else:
        assert out.startswith(("Over 2 scenarios", "No policy is faster"))
        assert out.count("completion mean") == 1
    assert (tmp_path / "out" / "small" / "comparison.json").is_file()


def test_two_scenarios_of_one_name_are_refused(files, capsys):
    file = str(files / "small.yaml")
    assert main(["compare", file, file]) == 2
    assert "two scenarios are called 'small'" in capsys.readouterr().err


def test_scenarios_under_one_policy_are_options(tmp_path, capsys):
    """8 GPUs at 3 USD/h for 1 h are 24 USD, at 2 USD/h for 1.2 h 19.2 USD; for 2 h, slower, 32 USD."""
    for name, accelerator, hours in (
        ("new", "h100_sxm", 1.0),
        ("old", "a100_sxm_80gb", 1.2),
        ("slow", "a100_sxm_80gb", 2),
    ):
        content = case(name, 0.0, 8) | {
            "cluster": {"nodes": [{"count": 1, "gpus": 8, "accelerator": accelerator}]},
            "workload": {"jobs": [{"gpus": 8, "duration": f"{hours} h"}]},
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(content))
    files, out = [str(tmp_path / f"{name}.yaml") for name in ("new", "old", "slow")], tmp_path / "out"
    assert main(["compare", *files, "--policy", "fifo", "--out", str(out), "-q"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "old is the cheapest of 3: makespan 72.0 min for 19.2 USD; new the fastest: makespan 60.0 min for 24" in said[0]
    )
    assert said[1] == "Slower and dearer than one of these, or as much: slow."
    assert [line.split()[0] for line in said if line.endswith("frontier")] == ["new", "old"]
    assert main(["report", str(out)]) == 0
    assert "against cost" in (out / "report.html").read_text()


def test_a_choice_that_the_odds_contradict_is_called_undecided(tmp_path, capsys):
    """In cost both are alike, by half of a per cent; the steps of one are known worse, and are likelier above."""
    model = {
        "precision": "bf16",
        "transformer": {"config": "llama3-70b", "stack": "megatron-core/H100", "plan": "auto"},
    }
    for name, accelerator in (("dense", "mi300x"), ("denseB", "b200")):
        content = {
            "schema_version": 1,
            "name": name,
            "cluster": {
                "nodes": [{"count": 32, "gpus": 8, "accelerator": accelerator, "nic": "400 Gbit/s", "nics": 8}]
            },
            "workload": {
                "models": {"m": model},
                "jobs": [{"gpus": 256, "model": "m", "steps": 100, "global_batch": 512}],
            },
        }
        (tmp_path / f"{name}.yaml").write_text(json.dumps(content))
    assert main(["compare", *(str(tmp_path / f"{name}.yaml") for name in ("dense", "denseB")), "-q"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    odds = re.search(r"not decided: denseB has the lower cost with (\d+) %", told)
    assert odds is not None
    assert told.startswith("By its figures dense is the cheapest of 2,")
    assert f"not decided: denseB is likelier, with {odds[1]} %. denseB is the fastest of 2:" in told
    size = ["size", str(tmp_path / "dense.yaml"), "--objective", "cost", "--rank", "--wide", "--target", "power<=900kW"]
    assert main([*size, "--vary", "cluster.nodes.0.accelerator=mi300x,b200", "-q"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"(not decided: cluster.nodes.0.accelerator=b200 is likelier, with {odds[1]} %)" in told
    assert "with peak power" in told  # the highest, of 256 GPUs at full load; the column is the mean
    assert "mean power" in told


def test_without_a_policy_each_scenario_runs_under_its_own(tmp_path, capsys):
    """A job of 2 h before one of 1 h, or after it: the mean is 0.5 h shorter."""
    jobs = [{"gpus": 8, "duration": "1 s"}, *({"gpus": 8, "duration": f"{h} h", "arrival": "0.1 s"} for h in (2, 1))]
    for policy in ("fifo", "sjf"):
        content = case(policy, 0.0, 8) | {"policy": policy, "workload": {"jobs": jobs}}
        (tmp_path / f"{policy}.yaml").write_text(json.dumps(content))
    both = [str(tmp_path / f"{policy}.yaml") for policy in ("fifo", "sjf")]
    assert main(["compare", *both, "-q"]) == 0
    assert capsys.readouterr().out.startswith("sjf is the fastest")
    for form in ("json", "csv", "latex"):
        assert main(["compare", *both, "-q", "--format", form]) == 0
        assert "sjf" in capsys.readouterr().out
