"""Compiling ahead: what is compiled, by whom, and that it is done once."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policies.contract import Plan
from equipoise.policies.observation import Gpus, Jobs, Observation
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.study.runs import warm

ROOT = Path(__file__).resolve().parents[4]
RIGID = {"gpus": 1, "duration": 1.0}
TRAINING = {"gpus": 1, "model": "m", "steps": 1}


def case(*jobs, models=True):
    model = {"m": {"fixed_time": 1e-3, "sample_time": 1e-3, "parameters": 1e6}}
    workload = {"models": model if models else {}, "jobs": list(jobs)}
    return from_mapping({"schema_version": 1, "name": "c", "cluster": {"gpus": 2}, "workload": workload})


def test_portions_are_what_the_scenario_and_the_policies_need():
    portions = warm._portions
    assert portions(["none"], case(RIGID, models=False)) == ["fifo"]
    assert portions(["none"], case(RIGID, RIGID, models=False)) == ["fifo with a queue"]
    assert portions(["none", "s1"], case(TRAINING)) == ["network", "time-advance", "fifo", "s1"]
    both = portions(["s1+las", "s1+s2"], None)
    assert sorted(both) == sorted(
        name + " with a queue" for name in ("network", "time-advance", "s1", "las", "s2", "fifo")
    )
    assert portions([make_policy("las")], case(RIGID, models=False)) == ["las"]


def test_stages_from_elsewhere_are_not_run_ahead():
    class Own:
        name = "own"

    policy = make_policy("fifo")
    own = type(policy)("own", (*policy.stages, Own()))
    assert warm._portions([own], case(RIGID, models=False)) == ["fifo"]


NAMES = ["network", "time-advance", "s1", "locality", "s2", "s3", "s4", "fifo", "equal"]


@given(st.sets(st.sampled_from(NAMES)), st.integers(1, 8), st.booleans())
def test_portions_are_shared_out_once_each_and_evenly(names, processes, queue):
    portions = sorted(name + " with a queue" * queue for name in names)
    groups = warm._share_out(portions, processes)
    assert sorted(name for group in groups for name in group) == portions
    assert len(groups) <= processes
    loads = [warm._cost(group) for group in groups]
    assert max(loads, default=0) <= sum(loads) / processes + 14.0  # the largest that one process must do


@given(st.sets(st.sampled_from(NAMES)), st.integers(1, 8))
def test_one_process_compiles_the_network(names, processes):
    movers = names & {"network", "s1", "locality"}
    groups = warm._share_out(sorted(names), processes)
    assert sum(bool(movers & set(group)) for group in groups) == bool(movers)


@pytest.mark.parametrize(
    ("portions", "groups", "shared"),
    [
        ([], 2, [[], []]),
        (["s2", "s3", "fifo"], 1, [["s2", "s3", "fifo"]]),
        # The runs are 1.5 s of the first group, then come 9 s (network and s1, together), 4, 3.7, 2 and 0.5 s.
        (["network", "time-advance", "s1", "s2", "s3", "fifo"], 2,
         [["time-advance", "s3", "fifo"], ["network", "s1", "s2"]]),
        (["s3 with a queue", "fifo with a queue"], 2, [["s3 with a queue"], ["fifo with a queue"]]),
        (["fifo", "s3", "s2"], 3, [["s3"], ["fifo"], ["s2"]]),
    ],
)  # fmt: skip
def test_the_longest_goes_to_who_has_least_to_do(portions, groups, shared):
    assert warm._share_out(portions, groups) == shared


def test_the_small_case_has_what_a_portion_needs_and_no_more():
    for alone in (True, False):
        for moves in (True, False):
            for noise in (True, False):
                made = warm._case(alone=alone, moves=moves, noise=noise)
                assert [job.count for job in made.workload.jobs] == ([1] if alone else [2, 3])
                assert (made.workload.models["model"].parameters > 0) == moves
                data = made.workload.jobs[0].data
                assert (data.replicas == 4) == (not moves)  # every node has all of it
                assert made.noise.step_cov == (0.1 if noise else None)
    assert [stage.name for stage in warm._only("s1").stages] == ["s1", "plainly"]
    assert [stage.name for stage in warm._only("las").stages] == ["las"]


@pytest.mark.parametrize(
    ("asked", "free", "given"),
    [((1, 3), [0, 2], [(0, [0])]), ((2, 1), [1, 2], [(0, [1, 2])]), ((3, 1), [0, 2], None), ((), [0], None)],
)
def test_jobs_start_plainly(asked, free, given):
    """The first one where it fits, on the first GPUs that are free; else none."""
    gpus = Gpus.of(node=np.zeros(3), share_free=np.isin(np.arange(3), free).astype(float))
    jobs = Jobs.of(id=np.arange(len(asked)), gpus_requested=np.array(asked, dtype=np.int64))
    plan, _ = warm._Plainly().refine(Observation.of(0.0, gpus=gpus, jobs=jobs), Plan(), {})
    found = None if plan.allocation is None else [
        (int(row), plan.allocation.gpus_of(k).tolist()) for k, row in enumerate(plan.allocation.job)
    ]  # fmt: skip
    assert found == given


def test_marks_and_processors(monkeypatch):
    assert warm._mark("s1 with a queue") == warm.cache_dir() / "compiled-s1-with-a-queue"
    monkeypatch.setattr(os, "sched_getaffinity", {0: {0, 1, 5}}.get)  # of this process
    assert warm.processors() == 3
    for count, found in ((7, 7), (None, 1)):
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert warm.processors() == found


def test_garbage_collection_comes_back():
    import gc

    with warm._no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.long
def test_kernels_are_compiled_once(tmp_path):
    """In a cache of its own: the first call compiles and marks, the second finds all done."""
    code = (
        "import sys; from equipoise.study.runs.warm import warm\n"
        "from equipoise.sim.loading.file import from_mapping\n"
        "scenario = from_mapping({'schema_version': 1, 'name': 'c', 'cluster': {'gpus': 2},"
        " 'workload': {'jobs': [{'gpus': 1, 'duration': 1.0}]}})\n"
        "warm(['static'], scenario)\n"
    )
    environment = {**os.environ, "EQUIPOISE_KERNEL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    said = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stderr
        for _ in range(2)
    ]
    marks = {path.name for path in tmp_path.rglob("compiled-*")}
    assert marks == {"compiled-static", "compiled-fifo"}
    assert any(tmp_path.rglob("*.nbc"))
    assert said == ["compiling kernels, this once\n", ""]
