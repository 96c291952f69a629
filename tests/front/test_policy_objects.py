"""Policies that a script makes itself: compared, swept and sized as named ones are, with errors that help."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import equipoise
from equipoise.policies.contract import Allocation, AllocationStage, Policy
from equipoise.policies.registry import make_policy
from equipoise.sim.record import MissingError
from equipoise.sim.run import RunFailed
from equipoise.study.runs.engine import EngineError
from equipoise.study.runs.sweep import SweepOptions
from equipoise.study.runs.sweep import sweep as make_sweep

CASE = {
    "schema_version": 1,
    "name": "a few jobs",
    "cluster": {"gpus": 4},
    "workload": {"jobs": [{"gpus": 2, "duration": "10 min", "count": 4, "spacing": 60.0}]},
}


@dataclass(frozen=True)
class LastFirst(AllocationStage):
    """Starts the job that came last."""

    name: ClassVar[str] = "last-first"
    order: ClassVar[str] = "latest arrival"
    blocking: ClassVar[str] = "none"
    preemption: ClassVar[str] = "never"
    how: str = ""
    many: int = 2

    def refine(self, observation, plan, memory):
        if self.how == "raises":
            return {}["nothing"]
        if self.how == "plan alone":
            return plan
        free = np.flatnonzero(observation.gpus.share_free == 1)
        if self.how == "too few":
            return plan.with_(allocation=Allocation.of([(0, free[:1])])), memory
        if self.how == "too many" or (self.how == "grow" and len(observation.running)):
            rows = observation.waiting if self.how == "too many" else observation.running
            gpus = range(len(observation.gpus) + 1)
            if len(rows):
                return plan.with_(allocation=Allocation.of([(rows[0], gpus)])), memory
        if self.how == "a list":
            return plan.with_(sync_interval=[1]), memory
        if len(free) < 2 or not len(observation.waiting):
            return plan.because(self.name, "nothing"), memory
        return plan.with_(allocation=Allocation.of([(observation.waiting[-1], free[:2])])), memory


MINE = Policy("mine", (LastFirst(),))


def test_compared_beside_named_ones():
    result = equipoise.compare(CASE, ["fifo", MINE], seeds=1)
    assert result.policies == ("fifo", "mine")
    assert result.of("mine")[0].metrics["completed"] == 4
    assert repr(result) == "<Comparison of 'a few jobs': fifo, mine; 1 seed>"


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="'mine' is named twice"):
        equipoise.compare(CASE, [MINE, Policy("mine", make_policy("fifo").stages)])


def test_swept_and_sized(tmp_path):
    (tmp_path / "case.yaml").write_text(json.dumps(CASE | {"policy": ["fifo"]}))
    sweep = {
        "schema_version": 1,
        "name": "s",
        "scenario": "case.yaml",
        "policies": ["fifo"],
        "parameters": {"cluster.gpus": [2, 4]},
    }
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    made = equipoise.sweep(tmp_path / "sweep.yaml", tmp_path / "out", policies=["fifo", MINE])
    assert (made.runs, made.failed) == (4, ())
    again = equipoise.sweep(tmp_path / "sweep.yaml", tmp_path / "out", policies=["fifo", MINE])
    assert (again.made, again.reused) == (0, 4)
    answer = equipoise.size(tmp_path / "case.yaml", ["cluster.gpus=2,4,8"], ["makespan<=25min"], policy=MINE, seeds=1)
    assert answer.best.candidate.values == {"cluster.gpus": "4"}


def test_parameters_of_stages_are_keys_of_a_sweep(tmp_path):
    (tmp_path / "case.yaml").write_text(json.dumps(CASE))
    sweep = {
        "schema_version": 1,
        "name": "s",
        "scenario": "case.yaml",
        "policies": ["las", "fifo"],
        "parameters": {"policy.las.thresholds_gpu_s": [[60.0], [1e9]]},
    }
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    made = make_sweep(tmp_path / "sweep.yaml", tmp_path / "out", SweepOptions(keep=True))
    assert (made.runs, made.failed) == (3, ()), "fifo has no such parameter, so its two points are one run"
    names = {json.loads(p.read_text())["policy"] for p in (tmp_path / "out" / "runs").glob("*/summary.json")}
    assert names == {"fifo", "las(thresholds_gpu_s=[60.0])", "las(thresholds_gpu_s=[1000000000.0])"}
    mine = make_sweep(tmp_path / "sweep.yaml", tmp_path / "other", SweepOptions(policies=(make_policy("las"),)))
    assert (mine.runs, mine.failed) == (2, ())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"stage last-first at 0 s: KeyError: 'nothing' \(test_policy_objects.py:LINE\)"),
        ("plan alone", r"refine must return \(plan, memory\) \(test_policy_objects.py:\d+\)"),
        (
            "too few",
            r"infeasible plan: allocation: job 0 \(row 0\) gets 1 GPUs of the 4 there are, allowed: 2, or "
            r"none: it is rigid \(test_policy_objects.py:\d+\)$",
        ),
        (
            "too many",
            r"at 0 s: infeasible plan: allocation: job 0 \(row 0\) gets 5 GPUs of the 4 there are, allowed: 2, or "
            r"none: it is rigid \(test_policy_objects.py:\d+\)$",
        ),
        ("a list", r"infeasible plan: sync_interval: needs one value per row .* \(test_policy_objects.py:\d+\)"),
    ],
)
def test_an_error_names_the_job_and_the_authors_line(how, said):
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = next(k for k, row in enumerate(text, 1) if row.strip() == 'return {}["nothing"]')
    with pytest.raises(RunFailed, match=said.replace("LINE", str(line))):
        equipoise.run(CASE, policy=Policy("bad", (LastFirst(how=how),)))


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (4, "gets 5 GPUs of the 4 there are, allowed: 1 to 4, or none"),
        (8, "GPU 4 for job 0 (row 0) does not exist: there are 4, from 0"),
    ],
)
def test_a_job_that_would_grow_beyond_the_cluster_is_told_in_one_line(most, said):
    elastic = {"gpus": 2, "workers_min": 1, "workers_max": most, "model": "m", "steps": 500, "global_batch": 16}
    models = {"m": {"sample_time": "5 ms", "gradient": "1 MB"}}
    case = CASE | {"workload": {"models": models, "jobs": [elastic]}, "decide": {"every": "1 s"}}
    with pytest.raises(RunFailed, match=rf"{re.escape(said)} \(test_policy_objects.py:\d+\)$") as found:
        equipoise.run(case, policy=Policy("bad", (LastFirst(how="grow"),)))
    assert "\n" not in str(found.value)


def test_a_stage_in_no_file_runs_here_and_nowhere_else():
    space = {"__name__": "written_by_hand", "Stage": type(MINE.stages[0])}
    exec("class Typed(Stage): pass", space)
    policy = Policy("typed", (space["Typed"](),))
    assert equipoise.compare(CASE, ["fifo", policy], seeds=1).policies == ("fifo", "typed")
    noisy = CASE | {"decide": {"estimate_error": 0.1}}
    with pytest.raises(EngineError, match="'last-first' is not in a file"):
        equipoise.compare(noisy, ["fifo", policy], seeds=2, jobs=2)


def test_a_run_is_short_to_look_at_and_a_table_where_pandas_is():
    run = equipoise.run(CASE)
    assert repr(run) == "<Run 'a few jobs', fifo, seed 0: 4 of 4 jobs done in 1260 s>"
    for made, rows in ((run, 4), (equipoise.compare(CASE, ["fifo"], seeds=1), 20)):
        try:
            import pandas  # noqa: F401
        except ImportError:
            with pytest.raises(MissingError, match="pip install pandas"):
                made.to_df()
        else:
            assert len(made.to_df()) >= rows
