"""Time limits are of running time: whatever a node's speed, a job runs for as long as its work needs or may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.record import Run
from equipoise.sim.traces.trace import make_trace
from equipoise.study.bounds import lower_bound
from tests.scenarios import scenario, simulate


def ended(speed: float = 1.0, trace: Any = None, **sections: Any) -> list[tuple[float, str]]:
    """(when it ended, how) of each job of 100 s that may run for 60 s, on one node."""
    jobs = [] if trace else [{"duration": 100.0, "time_limit": 60.0, "checkpoint": {"interval": 10.0}}]
    case = {"cluster": {"nodes": [{"name": "n", "speed": speed}]}, "workload": {"jobs": jobs}} | sections
    made = simulate(scenario(**case), trace=trace)
    return list(zip(made.jobs["completion_s"].tolist(), made.jobs["status"].tolist(), strict=True))


def slow(at: float) -> dict[str, Any]:
    return {"events": [{"kind": "slow", "node": "n-0", "at": at, "duration": 999.0, "factor": 4.0}]}


def test_a_limit_is_of_running_time_at_any_speed() -> None:
    """At half speed 30 s of work are done by then, at double speed all 100 s by 50 s."""
    assert ended(1.0) == [(60.0, "timeout")]
    assert ended(0.5) == [(60.0, "timeout")]
    assert ended(2.0) == [(50.0, "completed")]
    assert ended(faults=slow(0.0)) == ended(faults=slow(7.0)) == [(60.0, "timeout")]
    assert ended(2.0, faults=slow(40.0)) == [(60.0, "timeout")]  # 80 of 100 s, then 20 s at 1/2 need 40


def test_what_a_crash_throws_back_has_its_whole_limit_again() -> None:
    """Back from 40 s of work at 45 s: the 60 s that are left take as long as the limit from then on."""
    crash = {"events": [{"kind": "crash", "node": "n-0", "at": 45.0, "duration": 5.0}]}
    free = {"detection": 0.0, "rescheduling": 0.0, "initialisation": 0.0}
    assert ended(faults=crash, restart=free) == [(110.0, "completed")]


def test_a_trace_is_ended_by_its_limits_on_slower_nodes() -> None:
    """Of 100 s and 130 s of work, which ran late, at half speed; without a limit it takes twice as long."""
    limits = {"time_limit_s": np.array([120.0, 125.0, np.nan])}
    trace = make_trace(np.arange(3), np.zeros(3), np.ones(3, int), np.array([100.0, 130, 50]), columns=limits)
    nodes = {"cluster": {"nodes": [{"name": "n", "gpus": 3}]}}
    assert ended(trace=trace, **nodes) == [(100.0, "completed"), (130.0, "completed"), (50.0, "completed")]
    nodes["cluster"]["nodes"][0]["speed"] = 0.5
    assert ended(trace=trace, **nodes) == [(120.0, "timeout"), (130.0, "timeout"), (100.0, "completed")]


def test_jobs_at_their_limit_are_counted_apart(tmp_path: Path) -> None:
    jobs = [{"name": "a", "duration": 100.0, "time_limit": 60.0}, {"name": "b", "duration": 30.0}]
    made = simulate(scenario(workload={"jobs": jobs}), timeline=True)
    row = made.summary()
    assert (row["jobs"], row["completed"], row["timeouts"], row["makespan_s"]) == (2, 1, 1, 60)
    assert "jobs ended at their time limit: 1" in made.notes
    assert made.timeline is not None
    assert made.timeline["segments"]["end_reason"].tolist() == ["timeout", "completed"]
    assert "timeouts" not in simulate(scenario(workload={"jobs": jobs[1:]})).summary()


SPEEDS = st.sampled_from([0.5, 0.77, 1.0, 2.0])
SECONDS = st.integers(1, 90)
POLICIES = st.sampled_from(["fifo", "easy", "sjf", "srtf", "las", "gavel", "s4", "themis"])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(1, 90), st.integers(1, 90) | st.none(), st.booleans(), st.integers(0, 50)
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(SPEEDS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 150), st.sampled_from([1.5, 4.0])), max_size=2),
    POLICIES,
    st.sampled_from(["duration", "time-limit"]),
)
def test_a_job_runs_for_its_work_or_its_limit(
    drawn: list[tuple[int, int, int | None, bool, int]],
    speeds: list[float],
    slowed: list[tuple[int, float]],
    policy: str,
    estimate: str,
) -> None:
    jobs = [
        {"name": f"j{k}", "gpus": gpus, "duration": float(takes), "arrival": float(at), "mix_gpus": True}
        | ({"time_limit": float(limit)} if limit else {})
        | ({"gpus_min": 1} if shrinks else {})
        for k, (gpus, takes, limit, shrinks, at) in enumerate(drawn)
    ]
    case = scenario(
        cluster={"nodes": [{"name": f"n{k}", "gpus": 3, "speed": s} for k, s in enumerate(speeds)]},
        workload={"jobs": jobs},
        decide={"every": 20.0, "estimate": estimate, "estimate_error": 0.3},
        faults={
            "events": [
                {"kind": "slow", "node": "n0", "at": at, "duration": 40.0, "factor": factor} for at, factor in slowed
            ]
        },
    )
    made = simulate(case, policy, timeline=True)
    assert made.stopped is None
    ran_s = _ran_s(made)
    status = made.jobs.get("status", np.full(len(jobs), "completed"))
    limit_s = np.array([job.get("time_limit", np.inf) for job in jobs])[
        np.argsort([j["arrival"] for j in jobs], kind="stable")
    ]
    assert (ran_s <= limit_s * (1 + 1e-9)).all()
    assert ran_s[status == "timeout"] == pytest.approx(limit_s[status == "timeout"])
    bound = lower_bound(case)
    assert made.totals["makespan_s"] >= bound.makespan_s * (1 - 1e-9)
    if not slowed and len(set(speeds)) == 1 and not any(shrinks for *_, shrinks, _ in drawn):
        takes = {f"j{k}": takes / speeds[0] for k, (_, takes, *_) in enumerate(drawn)}
        least = np.minimum([takes[name] for name in made.jobs["name"]], limit_s)
        assert ran_s == pytest.approx(least)


def _ran_s(made: Run) -> Any:
    """Running time of each job without its restarts, (jobs,), from its segments."""
    assert made.timeline is not None
    part = made.timeline["segments"]
    ran_s = np.where(part["state"] == "running", part["end_s"] - part["start_s"], 0.0)
    ran_s -= part["restart_gpu_s"] / np.maximum(part["gpus"], 1)
    return np.bincount(np.searchsorted(np.sort(made.jobs["job_id"]), part["job_id"]), ran_s)[made.jobs["job_id"]]
