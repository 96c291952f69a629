"""The search for parameters: what it finds holds on fresh seeds, it says when it found nothing, and it resumes."""

import json

import numpy as np
import pytest

from equipoise import cli
from equipoise.policies.registry import PolicyError
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.tune import ParameterRange, ParameterSearch, read_range, tune

JOB = {"gpus": 2, "model": "m", "steps": 200, "global_batch": 16}
CASE = {
    "schema_version": 1,
    "name": "slow links",
    "policy": ["fixed-h"],
    "noise": {"step_cov": 0.1},
    "decide": {"every": 1.0},
    "cluster": {"nodes": [{"count": 2, "nic": "10 Gbit/s"}]},
    "workload": {
        "models": {"m": {"sample_time": "5 ms", "gradient": "200 MB", "drift": 0.02, "exchange": {"alpha": "30 us"}}},
        "jobs": [JOB],
    },
}
VARY = {"policy.fixed-h.interval": ParameterRange(1, 32, True, "log")}


@pytest.fixture
def case(tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "case.yaml").write_text(json.dumps(CASE))
    return tmp_path / "case.yaml"


def search(case, **more):
    return ParameterSearch(case, **{"vary": VARY, "trials": 6, "seeds": 2, "fresh": 5} | more)


def test_finds_what_is_better_on_fresh_seeds(case):
    found = tune(search(case, policy="fixed-h(interval=1)", trials=8))
    (choice,) = found.choices
    assert found.better
    assert choice.p["completion_mean_s"] < 0.01
    assert choice.ratios["completion_mean_s"].high < 1.0
    assert choice.trial.values["policy.fixed-h.interval"] > 2
    assert found.trials[0].values == {}, "the first trial is the scenario as it is"


def test_killed_and_resumed_gives_the_same_trials(case, tmp_path):
    whole = tune(search(case))
    made = []

    def stop_at_five(done, total, what):
        made.append(what)
        if len(made) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(search(case, out=tmp_path / "out"), stop_at_five)
    again = []
    resumed = tune(search(case, out=tmp_path / "out"), lambda done, total, what: again.append(what))
    assert resumed.trials == whole.trials
    assert resumed.choices == whole.choices
    third = []
    tune(search(case, out=tmp_path / "out"), lambda done, total, what: third.append(what))
    assert third == [], "all runs are kept"
    assert len(again) + 5 <= len(whole.trials) * 2 + 10


def test_a_scenario_without_chance_says_so(tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "calm.yaml").write_text(json.dumps(CASE | {"noise": {}}))
    found = tune(ParameterSearch(tmp_path / "calm.yaml", VARY, trials=4))
    assert "not random" in found.notes[0]
    assert np.isnan(found.choices[0].p["completion_mean_s"])


def test_seeds_that_all_give_the_same_are_no_sample(tmp_path):
    """Only estimates are random, and no stage here reads them: ten equal pairs would have p 0."""
    pytest.importorskip("optuna")
    decide = {"every": 1.0, "estimate_error": 0.3}
    (tmp_path / "calm.yaml").write_text(json.dumps(CASE | {"noise": {}, "decide": decide}))
    found = tune(
        ParameterSearch(tmp_path / "calm.yaml", {"policy.fixed-h.interval": ("8",)}, trials=2, seeds=1, fresh=3)
    )
    assert "all 3 fresh seeds gave the same" in found.notes[0]
    assert np.isnan(found.choices[0].p["completion_mean_s"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": ("speed",)}, "--metric 'speed': allowed: "),
        ({"metrics": ("makespan_s", "makespan_s")}, "--metric 'makespan_s' is given twice"),
        ({"vary": {}}, "nothing to vary"),
        ({"vary": {"nothing": ParameterRange(1, 2, False, "linear")}}, "nothing: unknown key"),
        ({"vary": {"workload.jobs.0.gpus": ("many", "few")}}, "many"),
        ({"trials": 1}, "--trials 1: at least 2"),
        ({"vary": {"policy.las.promote": ParameterRange(1, 2, False, "linear")}}, "no policy has that stage"),
    ],
)
def test_what_cannot_be_searched_is_one_line(tmp_path, changes, said):
    (tmp_path / "case.yaml").write_text(json.dumps(CASE))
    with pytest.raises((InputError, PolicyError), match=said):
        tune(search(tmp_path / "case.yaml", **changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1:4", ParameterRange(1, 4, True, "linear")),
        ("a.b=0.5:4:log", ParameterRange(0.5, 4, False, "log")),
        ("a.b=x, y", ("x", "y")),
    ],
)
def test_ranges(text, expected):
    assert read_range(text) == ("a.b", expected)


def test_the_command(case, capsys):
    line = ["tune", str(case), "--vary", "policy.fixed-h.interval=1:32:log", "--trials", "6", "--seeds", "1"]
    assert cli.main([*line, "--fresh", "3"]) == 0
    out = capsys.readouterr().out
    assert "unchanged" in out
    (answer, *_) = out.splitlines()
    # 17.9 s unchanged, 14.3 s at an interval of 10: 0.799 times.
    assert answer.startswith("Set policy.fixed-h.interval=10: ")
    assert "0.799 times" in answer


TWO = ("completion_mean_s", "exposed_communication_ratio")


def test_several_objectives_give_the_points_that_no_other_beats(case, tmp_path, capsys):
    found = tune(
        search(case, metrics=TWO, trials=10, vary={"policy.fixed-h.interval": ParameterRange(1, 64, True, "log")})
    )
    means = [tuple(choice.trial.means[m] for m in TWO) for choice in found.choices]
    assert len(means) > 1, "more local steps save exchanges and cost statistical efficiency"
    for mine in means:
        for trial in found.trials:
            other = tuple(trial.means[m] for m in TWO)
            assert not (all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine)
    assert found.better
    picture = tmp_path / "front.svg"
    line = ["tune", str(case), "--vary", "policy.fixed-h.interval=1:64:log", "--trials", "6", "--fresh", "3"]
    assert cli.main([*line, *(x for m in TWO for x in ("--metric", m)), "--picture", str(picture)]) == 0
    answer = " ".join(capsys.readouterr().out.split())
    assert answer.startswith("Set ")
    assert "are better in some objective" in answer
    assert "Exposed comm." in picture.read_text()
    assert cli.main([*line, "--picture", str(picture)]) == 2
    assert "needs --metric twice" in capsys.readouterr().err
