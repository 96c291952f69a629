"""Comparisons over several traces, and by groups of jobs."""

import json

import numpy as np
import pytest

from equipoise import studies
from equipoise.cli import main
from equipoise.sim.record import read_parquet
from equipoise.sim.scenario.tree import InputError
from equipoise.study.breakdown import breakdown
from equipoise.study.runs.across import across
from equipoise.study.statistics import paired_p, paired_ratio

CASE = {
    "schema_version": 1,
    "name": "x",
    "cluster": {
        "nodes": [
            {"name": "new", "gpus": 4, "accelerator": "a100_sxm_80gb"},
            {"name": "old", "gpus": 4, "accelerator": "generic"},
        ]
    },
    "workload": {},
    "noise": {"step_cov": 0.1},
}
POLICIES = ("fifo", "srtf", "las")


@pytest.fixture
def traces(tmp_path):
    (tmp_path / "x.yaml").write_text(json.dumps(CASE | {"decide": {"estimate_error": 0.5}}))
    for k in range(3):
        dice = np.random.default_rng(k)
        arrival_s = np.cumsum(dice.exponential(60.0, 30)).round(1)
        rows = [
            f"{j},{at},{dice.choice([1, 2, 4])},{dice.lognormal(6, 1):.1f},{'ab'[j % 2]}"
            for j, at in enumerate(arrival_s)
        ]
        (tmp_path / f"t{k}.csv").write_text("\n".join(["job_id,arrival_s,gpus,duration_s,user", *rows]) + "\n")
    return tmp_path


def compared(folder, **more):
    return {
        f"t{k}": studies.compare(folder / "x.yaml", POLICIES, 2, trace=folder / f"t{k}.csv", **more) for k in range(3)
    }


def test_traces_are_paired_with_each_other(traces):
    made = compared(traces)
    whole = across(made)
    mean = {
        p: [np.mean([r.metrics["completion_mean_s"] for r in one.of(p)]) for one in made.values()] for p in POLICIES
    }
    cells = {cell.policy: cell for cell in whole.cells if cell.metric == "completion_mean_s"}
    for policy in POLICIES[1:]:
        assert cells[policy].value.mean == pytest.approx(np.mean(mean[policy]))
        assert cells[policy].ratio == paired_ratio(mean[policy], mean["fifo"])
        assert cells[policy].ratio.n == 3
        assert paired_p(mean[policy], mean["fifo"]) <= cells[policy].p <= 2 * paired_p(mean[policy], mean["fifo"])
    assert "3 traces, mean" in whole.as_table()
    assert whole.random


def test_groups_sum_to_all_and_are_the_same_from_memory_and_disk(traces):
    kinds = ("gpus", "ran_on", "user")
    made = studies.compare(traces / "x.yaml", POLICIES, 2, trace=traces / "t0.csv", by=kinds)
    kept = studies.compare(traces / "x.yaml", POLICIES, 2, trace=traces / "t0.csv", by=kinds, out=traces / "out")
    again = studies.compare(traces / "x.yaml", POLICIES, 2, trace=traces / "t0.csv", by=("user",), out=traces / "out")
    assert [r.groups for r in made.results] == [r.groups for r in kept.results]
    assert {key for r in again.results for key in r.groups} < {key for r in kept.results for key in r.groups}
    for result in made.results:
        of = {kind: [k for k in result.groups if k.startswith("jobs[")] for kind in kinds}
        assert sum(result.groups[k] for k in of["gpus"]) == 3 * 30
        jobs = read_parquet(traces / "out" / "runs" / result.identity / "jobs.parquet")
        assert set(jobs["ran_on"]) <= {"a100_sxm_80gb", "generic", "a100_sxm_80gb+generic"}
        assert breakdown(jobs, kinds) == result.groups
        mine = jobs["user"] == "a"
        span_s = (jobs["completion_s"] - jobs["arrival_s"])[mine]
        assert result.groups["completion_p95_s[user a]"] == pytest.approx(np.percentile(span_s, 95))
    with pytest.raises(InputError, match="--by 'size': allowed: gpus, ran_on"):
        studies.compare(traces / "x.yaml", POLICIES, 2, trace=traces / "t0.csv", by=("size",))


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_the_command_has_a_table_for_each_trace_and_one_for_all(traces, capsys, form):
    line = ["compare", str(traces / "x.yaml"), "--policy", "fifo", "--policy", "srtf", "--seeds", "2", "--by", "user"]
    files = [x for k in range(3) for x in ("--trace", str(traces / f"t{k}.csv"))]
    assert main([*line, *files, "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        tables = json.loads(out)["tables"]
        assert list(tables) == ["t0", "t1", "t2", "all traces"]
        assert any(row["metric"] == "jobs[user a]" for row in tables["all traces"]["rows"])
    elif form == "csv":
        assert {row.split(",")[0] for row in out.splitlines()} == {"trace", "t0", "t1", "t2", "all traces"}
    else:
        assert out.count("waiting p95 [user a]") == 1  # the first screen is over all traces
        assert "all traces: 3 traces" in out
        assert len(out.splitlines()) <= 25
        assert main([*line, *files, "--wide"]) == 0
        assert capsys.readouterr().out.count("waiting p95 [user a]") == 4


def test_two_traces_of_one_name_are_refused(traces, capsys):
    file = str(traces / "t0.csv")
    assert main(["compare", str(traces / "x.yaml"), "--trace", file, "--trace", file]) == 2
    assert "two traces are called 't0'" in capsys.readouterr().err
