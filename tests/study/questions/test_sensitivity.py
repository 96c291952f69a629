import json
from pathlib import Path

import pytest
import yaml

from equipoise.cli import main
from equipoise.policies.registry import PolicyError
from equipoise.sim.loading.file import from_mapping, load, read_scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.sensitivity import sensitivity
from equipoise.study.questions.sensitivity_keys import default_ranges
from equipoise.study.runs.variants import RunOptions

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
CASE = {
    "schema_version": 1,
    "name": "to be varied",
    "cluster": {"nodes": [{"name": "a", "count": 2, "gpus": 2}]},
    "workload": {
        "models": {"m.1": {"sample_time": "10 ms", "parameters": 0}},
        "jobs": [{"name": "train", "gpus": 4, "model": "m.1", "steps": 100, "global_batch": 16}],
    },
    "policy": "fifo",
}
NOISY = CASE | {"noise": {"step_cov": 0.2}}


@pytest.fixture
def found(tmp_path):
    def find(content=CASE, metric="completion_mean_s", **given):
        path = tmp_path / "case.yaml"
        path.write_text(yaml.safe_dump(content))
        return sensitivity(path, metric, **given)

    return find


def test_a_bar_is_the_runs_at_its_ends(found):
    result = found(vary=["cluster.nodes.0.speed=0.5..2"], defaults=False)
    (bar,) = result.bars
    # 100 steps of 16 samples on 4 GPUs at 10 ms a sample.
    assert result.base.mean == pytest.approx(4.0)
    assert bar.low.value.mean == pytest.approx(8.0)
    assert bar.high.value.mean == pytest.approx(2.0)
    assert (bar.low.ratio.mean, bar.high.ratio.mean) == (pytest.approx(2.0), pytest.approx(0.5))
    assert bar.length == pytest.approx(1.5)
    assert result.seeds == 1  # nothing is random


def test_longest_bars_first_and_equal_ones_in_order(found):
    vary = ["cluster.nodes.0.nic=x0.5..x2", "cluster.nodes.0.speed=x0.9..x1.1", "workload.jobs.0.steps=x0.5..x2"]
    result = found(vary=vary, defaults=False)
    assert [bar.key.rpartition(".")[2] for bar in result.bars] == ["steps", "speed", "nic"]
    assert result.bars[-1].length == pytest.approx(0.0, abs=1e-12)


def test_common_random_numbers_make_the_ratio_sure(found):
    result = found(NOISY, vary=["cluster.nodes.0.speed=x0.5..x2"], defaults=False, options=RunOptions(seeds=5))
    (bar,) = result.bars
    assert result.seeds == 5
    assert bar.high.ratio.mean == pytest.approx(0.5, rel=1e-9)
    assert bar.high.ratio.half_width < 1e-9
    assert bar.high.value.half_width > 1e-4


def test_noise_can_be_taken_away(found):
    result = found(NOISY, vary=["noise.step_cov=0..0.4"], defaults=False, options=RunOptions(seeds=3))
    (bar,) = result.bars
    assert bar.low.value.half_width == 0.0
    assert bar.low.ratio.mean < 1.0 < bar.high.ratio.mean


def test_the_default_set_suits_every_shipped_scenario():
    seen, problems = set(), []
    for path in sorted(SCENARIOS.glob("*.yaml")):
        try:
            scenario = load(path)
        except InputError:  # a sweep or a price book
            continue
        ranges = default_ranges(scenario)
        assert len(ranges) == len({r.key for r in ranges}) >= 1
        seen |= {r.key.rpartition(".")[2] for r in ranges}
        valid = 0
        for found in ranges:
            assert found.low != found.high
            for side in (found.low, found.high):
                try:
                    valid += read_scenario(path, side).scenario != scenario
                except InputError as error:
                    problems.append(str(error))
        assert valid >= 1.5 * len(ranges)
    too_few_nodes = ("GPUs", "unknown node", "there is room for")
    assert all(any(word in text for word in too_few_nodes) for text in problems)
    wanted = {"speed", "nic", "count", "global_batch", "step_cov", "mtbf", "rate", "oversubscription", "repair"}
    assert wanted <= seen


def test_batch_is_varied_at_equal_work(found):
    (batch,) = [r for r in default_ranges(from_mapping(CASE)) if r.key.endswith("global_batch")]
    assert batch.low == ("workload.jobs.0.global_batch=8", "workload.jobs.0.steps=200")
    assert batch.high == ("workload.jobs.0.global_batch=32", "workload.jobs.0.steps=50")
    by_epochs = json.loads(json.dumps(CASE))
    job = by_epochs["workload"]["jobs"][0]
    del job["steps"]
    job |= {"samples": 1600}
    (batch,) = [r for r in default_ranges(from_mapping(by_epochs)) if r.key.endswith("global_batch")]
    assert batch.high == ("workload.jobs.0.global_batch=32",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("noise.step_cov", "write KEY=LOW..HIGH"),
        ("noise.step_cov=0.1", "write KEY=LOW..HIGH"),
        ("=0..1", "write KEY=LOW..HIGH"),
        ("cluster.nodes.0.speed=x1..xy", "'xy' is not a factor"),
        ("cluster.nodes.0.count=xnan..x2", "'xnan' is not a factor"),
        ("cluster.nodes.0.count=xinf..x2", "'xinf' is not a factor"),
        ("cluster.nodes.0.count=x-1..x2", "'x-1' is not a factor"),
        ("cluster.nodes.0.name=x1..x2", "is not a number that 'x1' can multiply"),
        ("nic=x0.5..x2", "write the whole key, such as cluster.nodes.0.nic"),
        ("noise.step_cof=0..1", "did you mean 'step_cov'"),
        ("noise.step_cov=0..9", "noise.step_cov"),
    ],
)
def test_wrong_ranges(found, text, says):
    with pytest.raises(InputError) as raised:
        found(vary=[text], defaults=False)
    assert says in str(raised.value)
    assert "--vary" in str(raised.value)


def test_wrong_metric_policy_and_nothing_to_vary(found):
    calls = []

    def counted(scenario, **given):
        from equipoise.sim.run import run

        calls.append(given["seed"])
        return run(scenario, **given)

    options = RunOptions(runner=counted)
    with pytest.raises(InputError, match=r"this scenario has no 'span'; it has .*makespan_s"):
        found(metric="span", vary=["noise.step_cov=0..0.1"], defaults=False, options=options)
    assert calls == [0]  # not every variant on every seed
    short = CASE | {"horizon": 1.0}
    with pytest.raises(InputError, match="'completion_mean_s' is not known"):
        found(short, vary=["noise.step_cov=0..0.1"], defaults=False)
    with pytest.raises(PolicyError):
        found(policy="s9")
    with pytest.raises(InputError, match="nothing to vary"):
        found(defaults=False)


def test_a_failing_end_is_told_and_a_failing_base_stops(found):
    def picky(scenario, **given):
        from equipoise.sim.run import run

        if scenario.cluster.nodes[0].speed == 2.0:
            raise ValueError("too fast\nfor me")
        return run(scenario, **given)

    result = found(vary=["cluster.nodes.0.speed=0.5..2"], defaults=False, options=RunOptions(runner=picky))
    assert result.bars[0].high.problem == "ValueError: too fast for me"
    assert result.notes == ("cluster.nodes.0.speed=2: ValueError: too fast for me",)
    with pytest.raises(RuntimeError, match="too fast for me"):
        found(
            CASE | {"cluster": {"nodes": [{"count": 4, "speed": 2.0}]}},
            vary=["noise.step_cov=0..0.1"],
            defaults=False,
            options=RunOptions(runner=picky),
        )


def test_command_line(tmp_path, capsys):
    path, out = tmp_path / "case.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(CASE))
    asked = ["sensitivity", str(path), "-q", "--vary", "cluster.nodes.0.speed=0.5..2", "--metric", "makespan_s"]
    assert main([*asked, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    first = " ".join(text.split())
    assert first.startswith(
        "makespan of to be varied under fifo (4.00 s) depends most on cluster.nodes.0.speed: 2 times"
    )
    row = next(line for line in text.splitlines() if line.startswith("cluster.nodes.0.speed"))
    assert row.split() == ["cluster.nodes.0.speed", "0.5", "2", "x2.00", "x0.500", f"{'H' * 14}|{'L' * 14}"]
    written = json.loads((out / "sensitivity.json").read_text())
    assert (written["metric"], written["base"]) == ("makespan_s", pytest.approx(4.0))
    (row,) = written["rows"]
    assert {k: row[k] for k in ("key", "low_value", "high_value")} == {
        "key": "cluster.nodes.0.speed",
        "low_value": "0.5",
        "high_value": "2",
    }
    assert (row["low"], row["high"]) == (pytest.approx(8.0), pytest.approx(2.0))
    assert main([*asked, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == written
    assert main(["sensitivity", str(path), "--vary", "noise.step_cov"]) == 2
    assert main(["sensitivity", str(path), "--metric", "span", "-q"]) == 2
    assert main([*asked, "--out", str(path)]) == 2
