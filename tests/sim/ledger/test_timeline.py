"""The timeline keeps what the accounts say: segments per job, buckets over time, energy, links; equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.sim.ledger.buckets import spread
from equipoise.sim.ledger.tables import USE_NAMES
from equipoise.sim.record import Run
from equipoise.sim.scenario.model import Scenario
from tests.oracles.buckets import naive_spread
from tests.scenarios import cases, model, scenario, simulate

CHECKS = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
CHARGES = st.lists(
    st.tuples(st.floats(0.0, 300.0), st.floats(0.0, 50.0), st.integers(0, 2), st.floats(-5.0, 5.0)), max_size=20
)


def table(made: Run, name: str) -> Mapping[str, Any]:
    assert made.timeline is not None
    return made.timeline[name]


# -- buckets ---------------------------------------------------------------------------------------------------


@CHECKS
@given(CHARGES, st.sampled_from([0.125, 1.0, 7.0]))
def test_spreading_equals_the_plain_way(charges, width_s) -> None:
    rows = np.array([(s, s + length, column, amount) for s, length, column, amount in charges]).reshape(-1, 4)
    totals = np.zeros((16, 3))
    spread(rows, width_s, totals)
    np.testing.assert_allclose(totals, naive_spread(rows, width_s, 16, 3), rtol=1e-9, atol=1e-9)


# -- a run -----------------------------------------------------------------------------------------------------


def assert_kept(made: Run) -> None:
    """Sums over segments and buckets are the accounts; intervals follow each other."""
    segments, usage, jobs = table(made, "segments"), table(made, "usage"), made.jobs
    for name in USE_NAMES:
        for job_id, expected in zip(jobs["job_id"], jobs[name], strict=True):
            got = segments[name][segments["job_id"] == job_id].sum()
            assert got == pytest.approx(expected, rel=1e-9, abs=1e-6), (name, job_id)
        assert (segments[name] >= -1e-6).all(), name
        assert usage[name].sum() == pytest.approx(jobs[name].sum(), rel=1e-9, abs=1e-6), name
        assert (usage[name] >= -1e-6).all(), name
    idle = usage["idle_gpu_s"] + usage["down_gpu_s"]
    assert idle.sum() == pytest.approx(made.totals["idle_gpu_s"], abs=1e-6)
    assert usage["down_gpu_s"].sum() == pytest.approx(made.totals["down_gpu_s"], abs=1e-6)
    assert (usage["start_s"][1:] == usage["end_s"][:-1]).all()
    length_s = usage["end_s"] - usage["start_s"]
    assert length_s.sum() == pytest.approx(made.totals["makespan_s"])
    queued = segments["state"] == "queued"
    waited_s = (segments["end_s"] - segments["start_s"])[queued].sum()
    assert waited_s == pytest.approx(made.jobs["queueing_s"].sum(), abs=1e-6)
    assert (usage["jobs_waiting"] * length_s).sum() == pytest.approx(waited_s, abs=1e-6)
    assert usage["energy_j"].sum() == pytest.approx(made.totals["energy_j"], rel=1e-9)
    sent = made.totals["exchanged_bytes"] + made.totals["transferred_bytes"]
    assert usage["network_bytes"].sum() == pytest.approx(sent, rel=1e-9)


def assert_ordered(made: Run) -> None:
    segments, holdings = table(made, "segments"), table(made, "holdings")
    for job_id in made.jobs["job_id"]:
        mine = segments["job_id"] == job_id
        assert segments["segment"][mine].tolist() == list(range(mine.sum()))
        assert (segments["start_s"][mine][1:] >= segments["end_s"][mine][:-1] - 1e-9).all()
    running = segments["state"] == "running"
    assert holdings["gpu"].size == segments["gpus"][running].sum()


@CHECKS
@given(cases(), st.sampled_from(["fifo", "s1+s2+fifo", "srtf", "s1+s2+s3+s4"]), st.integers(0, 3))
def test_the_timeline_keeps_every_sum(case: Scenario, policy: str, seed: int) -> None:
    made = simulate(case, policy, seed, timeline=True)
    assert_kept(made)
    assert_ordered(made)
    plain = simulate(case, policy, seed)
    for name, values in plain.jobs.items():
        assert values.tolist() == made.jobs[name].tolist() or np.isnan(values.astype(float)).any(), name


def crash(at: float, node: str = "node-0") -> dict[str, object]:
    return {"events": [{"kind": "crash", "node": node, "at": at, "duration": 3.0}]}


def test_work_that_a_crash_takes_back_is_lost_when_it_was_done() -> None:
    job = {"name": "r", "gpus": 1, "duration": 20.0, "checkpoint": {"interval": 8.0}}
    case = scenario(
        cluster={"nodes": [{"gpus": 1}]},
        workload={"jobs": [job]},
        faults=crash(11.0, "node"),
        restart={"detection": 0.0, "initialisation": 1.0},
    )
    made = simulate(case, timeline=True)
    usage, segments = table(made, "usage"), table(made, "segments")
    middle_s = (usage["start_s"] + usage["end_s"]) / 2
    lost = usage["lost_to_faults_gpu_s"] > 1e-9
    assert middle_s[lost].min() == pytest.approx(8.0, abs=0.1)
    assert middle_s[lost].max() == pytest.approx(11.0, abs=0.1)
    assert segments["end_reason"].tolist() == ["fault", "started", "completed"]
    assert segments["state"].tolist() == ["running", "queued", "running"]
    assert segments["lost_to_faults_gpu_s"].tolist() == pytest.approx([3.0, 0.0, 0.0])
    events = table(made, "events")
    assert list(zip(events["time_s"], events["kind"], events["subject"], strict=True)) == [
        (11.0, "crash", "node-0"),
        (14.0, "repair", "node-0"),
    ]
    assert usage["down_gpu_s"].sum() == pytest.approx(3.0)


def test_links_carry_what_the_exchange_sends() -> None:
    case = scenario(
        cluster={"nodes": [{"count": 2, "nic": 1e9}]},
        workload={
            "models": {"m": model(gradient=1e6)},
            "jobs": [{"gpus": 2, "model": "m", "steps": 50, "global_batch": 20}],
        },
    )
    made = simulate(case, timeline=True)
    links = table(made, "links")
    for name in ("node-0.nic_out", "node-1.nic_in"):
        mine = links["link"] == name
        assert links["bytes"][mine].sum() == pytest.approx(50 * 1e6)
        assert set(links["capacity_bytes_per_s"][mine]) == {1e9}
    assert not (links["link"] == "node-0.disk").any()


def test_it_is_written_whole_and_the_same_every_time(tmp_path) -> None:
    case = scenario(
        workload={
            "models": {"m": model(gradient=1e6)},
            "jobs": [{"gpus": 2, "model": "m", "steps": 50, "global_batch": 20}, {"gpus": 2, "duration": 5.0}],
        },
        horizon=4.0,
    )
    for name in ("a", "b"):
        simulate(case, timeline=True).write(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a" / "timeline").iterdir())
    assert files == [f"{n}.parquet" for n in ("events", "gpus", "holdings", "links", "segments", "usage")]
    for name in files:
        assert (tmp_path / "a/timeline" / name).read_bytes() == (tmp_path / "b/timeline" / name).read_bytes()
    rows = duckdb.sql(
        f"SELECT job_id, segment, state, gpus, end_reason FROM '{tmp_path}/a/timeline/segments.parquet'"
    ).fetchall()
    assert rows == [(0, 0, "running", 2, "open"), (1, 0, "queued", 0, "open")]
    types = dict(
        duckdb.sql(f"DESCRIBE FROM '{tmp_path}/a/timeline/segments.parquet'")
        .project("column_name, column_type")
        .fetchall()
    )
    for name in ("links", "events"):
        described = duckdb.sql(f"DESCRIBE FROM '{tmp_path}/a/timeline/{name}.parquet'").fetchall()
        assert {row[1] for row in described} == {"VARCHAR", "DOUBLE"}
    assert (types["job_id"], types["segment"], types["first_gpu"], types["end_reason"]) == (
        "BIGINT",
        "INTEGER",
        "INTEGER",
        "VARCHAR",
    )


def test_the_public_function_gives_tables_and_needs_a_folder_for_the_journal(tmp_path: Path) -> None:
    case = scenario(workload={"jobs": [{"gpus": 2, "duration": 5.0}]})
    made = equipoise.run(case, timeline=True, journal=True, out=tmp_path)
    assert table(made, "segments")["busy_gpu_s"].tolist() == [10.0]
    assert (tmp_path / "journal.jsonl").stat().st_size > 0
    with pytest.raises(ValueError, match="journal needs out"):
        equipoise.run(case, journal=True)


@pytest.mark.parametrize("horizon", [100.0, 400.0])
def test_a_restart_is_charged_where_it_happens_though_a_checkpoint_follows_it(horizon: float) -> None:
    """Checkpoints that cost nothing are written before the first step after a restart."""
    case = scenario(
        cluster={"nodes": [{"gpus": 1}]},
        workload={
            "models": {"m": {"sample_time": 0.01}},
            "jobs": [{"gpus": 1, "model": "m", "global_batch": 1, "steps": 2000}],
        },
        faults={"spot": {"group": "node", "mtbf": 10.0, "notice": 0.0, "away": 20.0}},
        horizon=horizon,
    )
    made = simulate(case, timeline=True)
    usage = made.timeline["usage"]
    assert made.jobs["restart_gpu_s"][0] > 10.0
    assert usage["restart_gpu_s"].sum() == pytest.approx(made.jobs["restart_gpu_s"][0])
    length_s = usage["end_s"] - usage["start_s"]
    for use in ("restart_gpu_s", "idle_gpu_s", "busy_gpu_s"):
        assert (usage[use] >= -1e-9).all()
        assert (usage[use] <= length_s + 1e-9).all()
