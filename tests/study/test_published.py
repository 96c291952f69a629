"""Reproduction scenarios: each meets the ratio that its paper publishes, as its first lines say."""

from pathlib import Path

import pytest

import equipoise
from equipoise.study.bounds import lower_bound
from equipoise.study.validation.sets import shockwave

pytestmark = pytest.mark.long
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

RATIOS = [
    ("gavel-three-kinds", "las", "gavel", 1.4),
    ("tiresias-heavy-tail", "fifo", "tiresias", 5.5),
    ("pollux-adaptive", "tiresias", "pollux", 1 / (1 - 0.37)),
    ("sia-three-kinds", "pollux", "sia", 1 / (1 - 0.30)),
    ("lucid-packing", "tiresias", "lucid", 1.3),
    ("optimus-marginal-gain", "drf", "optimus", 2.39),
]

MAKESPANS = {"optimus-marginal-gain": 1.63}


@pytest.mark.parametrize(("scenario", "against", "policy", "least"), RATIOS, ids=[r[0] for r in RATIOS])
def test_the_published_ratio_is_met(scenario, against, policy, least):
    case = equipoise.load(f"scenarios/{scenario}.yaml")
    bound = lower_bound(case)
    mean_s, makespan_s = {}, {}
    for name in (against, policy):
        summary = equipoise.run(case, policy=name).summary()
        assert summary["completed"] == summary["jobs"]
        assert summary["makespan_s"] >= bound.makespan_s
        assert summary["completion_mean_s"] >= bound.completion_mean_s
        mean_s[name], makespan_s[name] = summary["completion_mean_s"], summary["makespan_s"]
    assert mean_s[against] / mean_s[policy] >= least
    assert makespan_s[against] / makespan_s[policy] >= MAKESPANS.get(scenario, 0.0)


def test_shockwave_ends_the_last_job_sooner_though_less_so_than_published():
    """Published: 1.3 times sooner; of equal jobs that come evenly, as here, 1.1 times."""
    case = equipoise.load("scenarios/shockwave-window.yaml")
    makespan_s = {
        name: equipoise.run(case, policy=name).summary()["makespan_s"] for name in ("shockwave-like", "themis", "gavel")
    }
    for other in ("themis", "gavel"):
        assert 1.05 <= makespan_s[other] / makespan_s["shockwave-like"] < 1.3


@pytest.mark.shared_data
@pytest.mark.skipif(not DATA.is_dir(), reason="no shared data")
@pytest.mark.parametrize(
    "fair", ["themis(round_s=120)", "gavel(round_s=120)", "gavel(objective=finish-time, round_s=120)"]
)
def test_shockwave_ends_the_last_job_of_its_own_trace_as_much_sooner_as_published(fair):
    """Section 8.2: 120 jobs on 32 GPUs; 1.3 times sooner than schedulers that are fair round by round."""
    jobs = shockwave.read_jobs(DATA, "finish_time_fairness")
    assert len(jobs) == 120
    last_s = {}
    for policy in ("shockwave-like", fair):
        took_s = shockwave.completions_s(jobs, policy)
        last_s[policy] = max(job.arrival_s + took_s[job.number] for job in jobs)
    assert last_s[fair] / last_s["shockwave-like"] >= 1.3
