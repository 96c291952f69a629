import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cli import main
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.runs.compare import compare
from equipoise.study.runs.store import Ledger
from equipoise.study.runs.sweep import SweepOptions, sweep
from equipoise.study.runs.until import Until, read_until
from equipoise.study.runs.warm import _SMALL
from equipoise.study.statistics import mean_interval, t_quantile
from tests.study.runs.sweeps.sweep_helpers import write_sweep


def sampled(until, draw):
    """Values of one policy when the sampling stops, and the interval then."""
    values = []
    for count in until.looks:
        values += [draw() for _ in range(count - len(values))]
        if until.met({"only": values}):
            break
    return values, mean_interval(values, until.level)


@pytest.mark.parametrize(("spread", "share"), [(0.1, 0.03), (0.3, 0.1), (0.05, 0.05)])
def test_the_interval_at_which_it_stops_covers_the_truth(spread, share):
    until, rng = Until(share, first=3), np.random.Generator(np.random.Philox(int(1000 * spread)))
    trials, hits = 1500, 0
    for _ in range(trials):
        _, interval = sampled(until, lambda: float(rng.normal(1.0, spread)))
        hits += interval.low <= 1.0 <= interval.high
    assert hits / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)


@settings(max_examples=25)
@given(st.floats(0.02, 0.3), st.floats(0.01, 0.2), st.integers(0, 2**32), st.integers(3, 12))
def test_it_stops_at_the_first_look_that_is_narrow_enough(spread, share, key, first):
    until = Until(share, first=first, most=60)
    rng = np.random.Generator(np.random.Philox(key))
    values, _ = sampled(until, lambda: float(rng.normal(10.0, 10.0 * spread)))
    n = len(values)
    assert n in until.looks
    half = t_quantile(until.level, n - 1) * np.std(values, ddof=1) / math.sqrt(n) / abs(np.mean(values))
    assert until.reached({"only": values}) == pytest.approx(half)
    assert half <= share or n == 60
    if n > first:
        before = until.looks[until.looks.index(n) - 1]
        assert not until.met({"only": values[:before]})


def test_the_ratio_is_paired_and_needs_fewer_seeds():
    rng = np.random.Generator(np.random.Philox(9))
    common = rng.lognormal(0, 0.5, size=12).tolist()
    values = {"first": common, "second": [0.8 * x for x in common]}
    assert Until(0.02, of_ratio=True).reached(values) <= 1e-12
    assert Until(0.02).reached(values) > 0.3
    assert Until(0.02, of_ratio=True).reached({"first": common}) == 0.0


@pytest.mark.parametrize(
    ("text", "first", "most", "says"),
    [
        ("2%", 5, 100, "write ci:SHARE"),
        ("ci", 5, 100, "write ci:SHARE"),
        ("ci:2%:makespan_s:rate", 5, 100, "write ci:SHARE"),
        ("ci:2%:makespan_s:ratio:x", 5, 100, "write ci:SHARE"),
        ("ic:2%", 5, 100, "write ci:SHARE"),
        ("ci:100%", 5, 100, "allowed is 0 to 100 %"),
        ("ci:0%", 5, 100, "allowed is 0 to 100 %"),
        ("ci:2 GB", 5, 100, "'2 GB' is a size, a share is needed"),
        ("ci:2%:makspan_s", 5, 100, "unknown metric 'makspan_s'; known: jobs, completed, timeouts, makespan_s"),
        ("ci:2%", 2, 100, "at least 3 are needed"),
        ("ci:2%", 9, 8, "raise --max-seeds"),
    ],
)
def test_wrong_conditions(text, first, most, says):
    with pytest.raises(InputError) as raised:
        read_until(text, first, most)
    assert says in str(raised.value)


class Drawn:
    """Makes runs whose makespan is 100 s plus noise by seed, the same for every policy; counts them."""

    def __init__(self, spread=0.1):
        self.spread, self.calls = spread, []

    def __call__(self, scenario, *, policy, seed, trace=None):
        from tests.study.runs.sweeps.sweep_helpers import quick

        self.calls.append((policy.name, seed))
        made = quick(scenario, policy=policy, seed=0)
        rng = np.random.Generator(np.random.Philox(key=seed))
        end = made.jobs["completion_s"] * (1 + self.spread * scenario.noise.step_cov * rng.normal())
        return made.__class__(
            made.scenario_name,
            policy.name,
            seed,
            f"{policy.name}{seed}",
            "{}",
            {**made.jobs, "completion_s": end},
            {**made.totals, "makespan_s": float(end[0])},
        )


def test_compare_adds_seeds_and_makes_no_run_twice():
    case = Scenario.model_validate(_SMALL)
    runner = Drawn(spread=1.0)
    until = read_until("ci:5%:makespan_s", 3, 60)
    result = compare(case, ["fifo", "sjf"], 3, until=until, runner=runner)
    assert len(result.seeds) in until.looks
    assert len(result.seeds) > 3
    assert len(runner.calls) == len(set(runner.calls)) == 2 * len(result.seeds)
    assert result.precision.met
    cell = next(cell for cell in result.cells if cell.metric == "makespan_s")
    wanted = mean_interval([r.metrics["makespan_s"] for r in result.of("fifo")], until.level)
    assert (cell.value.low, cell.value.high) == (wanted.low, wanted.high)
    written = json.loads(result.as_json())
    assert written["confidence"] == 0.95
    assert written["until"]["level"] == until.level
    assert "makespan within ±" in result.as_table()
    alone = compare(case, ["fifo"], 3, until=read_until("ci:50%:makespan_s", 3), runner=Drawn(0.01))
    assert alone.precision.met
    assert len(alone.seeds) == 3
    # All policies share their noise here, so their ratio is exact at once.
    by_ratio = compare(case, ["fifo", "sjf"], 3, until=read_until("ci:1%:makespan_s:ratio", 3), runner=Drawn())
    assert len(by_ratio.seeds) == 3


def test_a_ratio_needs_a_second_policy(tmp_path):
    until = read_until("ci:1%:makespan_s:ratio", 3)
    with pytest.raises(InputError, match="a ratio needs a second policy"):
        compare(Scenario.model_validate(_SMALL), ["fifo"], 3, until=until, runner=None)
    file = write_sweep(tmp_path, seeds=3, policies=["fifo"])
    with pytest.raises(InputError, match="a ratio needs a second policy"):
        until_sweep(file, tmp_path / "out", None, until="ci:1%:makespan_s:ratio")


def test_compare_stops_at_the_most_and_says_so():
    case = Scenario.model_validate(_SMALL)
    result = compare(case, ["fifo"], 3, until=read_until("ci:0.1%:makespan_s", 3, 6), runner=Drawn(1.0))
    assert len(result.seeds) == 6
    assert not result.precision.met
    assert "not reached, 0.1 % was asked for" in result.as_table()


def seeds_by_point(out):
    with Ledger(out) as ledger:
        rows = ledger.rows()
    return {p: len({r["seed"] for r in rows if r["point"] == p}) for p in sorted({r["point"] for r in rows})}


def until_sweep(file, out, runner, **options):
    given = {"until": "ci:5%:makespan_s", "max_seeds": 40} | options
    return sweep(file, out, SweepOptions(**given), runner=runner)


def test_each_point_of_a_sweep_gets_the_seeds_it_needs(tmp_path):
    file = write_sweep(tmp_path, seeds=3, covs=(0.05, 0.8))
    runner = Drawn()
    outcome = until_sweep(file, tmp_path / "out", runner)
    few, many = seeds_by_point(tmp_path / "out").values()
    assert (few, many > 3) == (3, True)
    assert outcome.runs == outcome.made == len(runner.calls) == 2 * (few + many)
    assert "reached at 2 of 2 points" in outcome.notes[-2]
    assert "use level 0.99" in outcome.notes[-1]
    # A second start makes nothing, a plain sweep keeps what belongs to it and the rest is put aside.
    assert until_sweep(file, tmp_path / "out", Drawn()).made == 0
    plain = sweep(file, tmp_path / "out", SweepOptions(), runner=Drawn())
    assert (plain.runs, plain.made) == (12, 0)
    again = Drawn()
    assert until_sweep(file, tmp_path / "out", again).runs == outcome.runs
    assert again.calls == []


def test_processes_make_the_same_sweep(tmp_path):
    file = write_sweep(tmp_path, seeds=3, covs=(0.05, 0.5), case=_SMALL)
    asked = {"until": "ci:0.3%:completion_mean_s", "max_seeds": 8}
    one = sweep(file, tmp_path / "one", SweepOptions(**asked))
    two = sweep(file, tmp_path / "two", SweepOptions(jobs=2, **asked))
    assert seeds_by_point(tmp_path / "one") == seeds_by_point(tmp_path / "two")
    assert (one.runs, one.made) == (two.runs, two.made)
    assert one.runs > 12


def test_what_is_there_already_does_not_change_when_it_stops(tmp_path):
    file = write_sweep(tmp_path, seeds=3, covs=(0.3,))
    until_sweep(file, tmp_path / "new", Drawn())
    write_sweep(tmp_path, seeds=30, covs=(0.3,))
    sweep(file, tmp_path / "old", SweepOptions(), runner=Drawn())
    write_sweep(tmp_path, seeds=3, covs=(0.3,))
    assert until_sweep(file, tmp_path / "old", Drawn()).made == 0
    assert seeds_by_point(tmp_path / "old") == seeds_by_point(tmp_path / "new")


def test_points_without_noise_and_points_that_fail_do_not_hold_up_a_sweep(tmp_path):
    def unlucky(scenario, **given):
        if scenario.noise.step_cov == 0.9:
            raise ValueError("no such luck")
        return Drawn()(scenario, **given)

    file = write_sweep(tmp_path, seeds=3, covs=(0.0, 0.05, 0.9))
    outcome = until_sweep(file, tmp_path / "out", unlucky)
    assert seeds_by_point(tmp_path / "out") == {0: 1, 1: 3, 2: 3}
    assert len(outcome.failed) == 6
    assert outcome.unsure == (2,)
    assert "not reached with 40 seeds at point 2" in outcome.notes
    calls = []

    def counted(scenario, **given):
        calls.append(given["seed"])
        return unlucky(scenario, **given)

    until_sweep(file, tmp_path / "out", counted, retry=True)
    assert len(calls) == 6  # each failed run once, not once a look


def test_shards_take_whole_points_and_merge_to_the_same(tmp_path):
    file = write_sweep(tmp_path, seeds=3, covs=(0.1, 0.4, 0.8))
    until_sweep(file, tmp_path / "whole", Drawn())
    for part in (1, 2):
        until_sweep(file, tmp_path / "parts", Drawn(), shard=(part, 2))
    assert until_sweep(file, tmp_path / "parts", Drawn()).made == 0
    assert seeds_by_point(tmp_path / "parts") == seeds_by_point(tmp_path / "whole")


def test_command_line(tmp_path, capsys):
    write_sweep(tmp_path, seeds=3, covs=(0.1,))
    file, out = str(tmp_path / "sweep.yaml"), str(tmp_path / "out")
    assert main(["sweep", file, "--out", out, "--until", "ci:1%", "--max-seeds", "20", "--dry-run"]) == 0
    assert capsys.readouterr().out == "at most 40 runs, 1 points\n"
    assert main(["sweep", file, "--out", out, "--until", "ci:1%"]) == 0
    assert "6 runs in" in capsys.readouterr().out  # rigid jobs without anything to disturb them
    assert main(["sweep", file, "--out", out, "--until", "1%"]) == 2
    noisy = str(write_sweep(tmp_path / "noisy", seeds=3, covs=(0.5,), case=_SMALL, policies=["fifo"]))
    asked = ["sweep", noisy, "--out", out, "--until", "ci:0.01%", "--max-seeds", "3"]
    assert main(asked) == 5
    assert "not reached with 3 seeds at point 0" in capsys.readouterr().err
    scenario = tmp_path / "small.yaml"
    scenario.write_text(json.dumps(_SMALL))
    asked = ["compare", str(scenario), "-q", "--seeds", "3", "--max-seeds", "5", "--format", "json"]
    assert main([*asked, "--until", "ci:0.01%"]) == 5
    assert len(json.loads(capsys.readouterr().out)["seeds"]) == 5
    assert main([*asked, "--until", "ci:50%:makespan_s"]) == 0
    assert len(json.loads(capsys.readouterr().out)["seeds"]) == 3
