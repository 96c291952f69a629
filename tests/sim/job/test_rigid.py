"""Accounts of jobs that are known by a duration only: what they computed, lost and have left, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from equipoise.sim.clock import Clock
from equipoise.sim.cluster.cluster import Cluster, Holding
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.job.account import BUSY, LOST_TO_FAULTS, RESTART, USEFUL
from equipoise.sim.job.demand import make_demand
from equipoise.sim.job.rigid import RigidJob, RigidJobs
from equipoise.sim.network.topology import Topology
from equipoise.sim.scenario.model import Restart
from tests.scenarios import scenario

PROFILE = load_profile("catalogue")
NODES = [{"name": "fast", "count": 1, "gpus": 4}, {"name": "slow", "count": 1, "gpus": 3, "speed": 0.5}]
GPUS = np.array([0, 1, 2])
ACROSS = np.array([2, 3, 4])
"""Two of the fast node, one of the slow node."""


class Bench:
    """Jobs beside a clock; `told` is what has been metered: (row, GPUs held, GPU-seconds)."""

    def __init__(
        self, *jobs: dict[str, Any], meter: bool = True, mtbf_s: float = math.inf, restart: Any = None
    ) -> None:
        case = scenario(
            cluster={"nodes": NODES}, workload={"jobs": [{"name": f"j{k}", **job} for k, job in enumerate(jobs)]}
        )
        self.cluster = Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))
        self.clock = Clock()
        self.done: list[tuple[float, int]] = []
        self.told: list[tuple[int, int, float]] = []
        self.jobs = RigidJobs(
            self.clock,
            self.cluster,
            make_demand(case, None, self.cluster),
            lambda job: self.done.append((self.clock.now, job.row)),
            self.metered if meter else None,
            lambda nodes: mtbf_s / len(nodes),
            Restart.model_validate(restart or {}),
        )

    def metered(self, row: int, holding: Holding, gpu_s: float) -> None:
        self.told.append((row, holding.gpu.size, gpu_s))

    def start(
        self, row: int, gpus: Any = GPUS, delay_s: float = 0.0, share: float = 1.0, again: RigidJob | None = None
    ) -> RigidJob:
        job = again or RigidJob(self.jobs, row)
        holding = self.cluster.book(row, gpus, np.full(len(gpus), share))
        job.start(holding, self.clock.now, delay_s)
        return job

    def to(self, time_s: float) -> None:
        self.clock.run(until=self.clock.until(time_s))

    def account(self, row: int) -> tuple[float, float, float, float]:
        """(busy, useful, restart, lost to faults) GPU-seconds."""
        a = self.jobs.gpu_s[row]
        return a[BUSY], a[USEFUL], a[RESTART], a[LOST_TO_FAULTS]


def test_a_job_ends_after_its_delay_and_its_duration_at_the_pace_of_its_slowest_node() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0}, {"gpus": 3, "duration": 30.0}, {"gpus": 3, "duration": 7.0})
    job = bench.start(1, ACROSS, delay_s=5.0)
    assert bench.account(1) == (0, 0, 15, 0)
    assert job.booked_until_s == 5.0
    bench.to(64.0)
    assert bench.done == []
    bench.to(66.0)
    assert bench.done == [(65.0, 1)]
    assert bench.account(1) == (180, 180, 15, 0)
    assert (bench.jobs.left_s[1], bench.jobs.rate[1], bench.jobs.attained_gpu_s[1]) == (0, 0, 180)
    assert bench.told == [(1, 3, 180.0)]
    assert (bench.account(0), bench.account(2)) == ((0, 0, 0, 0), (0, 0, 0, 0))


def test_half_a_gpu_each_counts_as_half() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0, "gpu_share": 0.5}, meter=False)
    job = bench.start(0, share=0.5)
    bench.to(21.0)
    assert bench.account(0) == (30, 30, 0, 0)
    assert bench.told == []
    assert job.computed_gpu_s == 30.0


def test_a_job_that_is_stopped_goes_on_where_it_stopped() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0})
    job = bench.start(0, delay_s=2.0)
    bench.to(10.0)
    assert job.stop(10.0, lost=False) == 0.0
    assert bench.account(0) == (24, 24, 6, 0)
    assert (bench.jobs.left_s[0], job.kept, bench.jobs.rate[0]) == (12, 8, 0)
    assert job.holding is None
    assert bench.told == [(0, 3, 24.0)]
    job._meter()
    assert len(bench.told) == 1
    bench.cluster.release(0)
    bench.to(40.0)
    assert bench.done == []
    bench.start(0, ACROSS, again=job)
    bench.to(70.0)
    assert bench.done == [(64.0, 0)]
    assert bench.account(0) == (96, 96, 6, 0)
    assert bench.told[1:] == [(0, 3, 72.0)]


def test_a_restart_that_is_cut_short_counts_as_far_as_it_came() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0})
    job = bench.start(0, delay_s=9.0)
    bench.to(4.0)
    job.stop(4.0, lost=False)
    assert bench.account(0) == (0, 0, 12, 0)
    assert bench.jobs.left_s[0] == 20


@pytest.mark.parametrize(("interval", "kept"), [("never", 0), (4.0, 8), (11.0, 11), (12.0, 0), (11.5, 0)])
def test_a_crash_leads_back_to_the_last_checkpoint(interval: Any, kept: float) -> None:
    bench = Bench({"gpus": 3, "duration": 20.0, "checkpoint": {"interval": interval}})
    job = bench.start(0)
    bench.to(11.0)
    job.stop(11.0, lost=True)
    assert (bench.jobs.left_s[0], job.kept) == (20 - kept, kept)
    lost = 3 * (11.0 - kept)
    assert bench.account(0) == (33 - lost, 33 - lost, 0, lost)
    assert job.computed_gpu_s == 33.0
    assert bench.told == [(0, 3, 33.0)]


def test_checkpoints_are_counted_from_where_it_went_on() -> None:
    bench = Bench({"gpus": 3, "duration": 50.0, "checkpoint": {"interval": 4.0}})
    job = bench.start(0)
    bench.to(7.0)
    job.stop(7.0, lost=False)
    bench.cluster.release(0)
    bench.start(0, again=job)
    bench.to(20.0)
    job.stop(20.0, lost=True)
    assert (job.kept, bench.jobs.left_s[0]) == (19.0, 31.0)
    assert bench.account(0) == (57, 57, 0, 3)


def test_checkpoints_as_often_as_young_and_daly_advise() -> None:
    """sqrt(2 x 8 s x 200 s / 2 nodes) = 40 s, in which half of the work is done; where nothing fails there is none."""
    job = {"gpus": 3, "duration": 100.0, "checkpoint": {"interval": "young-daly"}}
    for mtbf_s, kept in ((200.0, 60.0), (math.inf, 0.0)):
        bench = Bench(job, mtbf_s=mtbf_s, restart={"checkpoint_write": 8.0})
        going = bench.start(0, ACROSS)
        bench.to(138.0)
        going.stop(138.0, lost=True)
        assert going.kept == kept
        assert bench.account(0)[3] == pytest.approx(3 * (69 - kept) / 0.5)


def test_a_checkpoint_that_takes_no_time_keeps_everything() -> None:
    bench = Bench(
        {"gpus": 3, "duration": 100.0, "checkpoint": {"interval": "young-daly"}},
        mtbf_s=200.0,
        restart={"checkpoint_write": 0.0},
    )
    job = bench.start(0)
    bench.to(17.0)
    job.stop(17.0, lost=True)
    assert (job.kept, bench.account(0)) == (17.0, (51, 51, 0, 0))


def test_work_that_is_lost_took_as_long_as_the_rates_were_then() -> None:
    """8 s at 1, 12 s at 1/2, 10 s at 1/4: 8 + 6 + 2.5 of 60 s; what a crash takes back took as long."""
    for interval, kept, lost_s in (("never", 0, 30), (4.0, 16, 2), (11.0, 14.5, 8), (18.0, 13, 12), (6.0, 16.5, 0)):
        bench = Bench({"gpus": 3, "duration": 60.0, "checkpoint": {"interval": interval}})
        job = bench.start(0)
        bench.to(8.0)
        bench.cluster.slow[0] = 2.0
        job.speed_changed()
        assert bench.jobs.rate[0] == 0.5
        bench.to(20.0)
        job.speed_changed()  # nothing has changed
        bench.cluster.slow[0] = 4.0
        job.speed_changed()
        assert bench.jobs.left_s[0] == 46
        bench.to(30.0)
        job.stop(30.0, lost=True)
        assert job.kept == kept
        assert bench.account(0) == (90 - 3 * lost_s, 90 - 3 * lost_s, 0, 3 * lost_s)


def test_a_job_whose_node_slows_down_ends_later() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0})
    job = bench.start(0, delay_s=4.0)
    bench.to(3.0)
    bench.cluster.slow[0] = 2.0
    job.speed_changed()
    assert job.booked_until_s == 4.0
    bench.to(14.0)
    bench.cluster.slow[0] = 1.0
    job.speed_changed()
    assert (job.booked_until_s, bench.jobs.left_s[0]) == (14.0, 15.0)
    bench.to(35.0)
    assert bench.done == [(29.0, 0)]
    assert bench.account(0) == (75, 75, 12, 0)
    assert bench.told == [(0, 3, 75.0)]


def test_metering_counts_up_to_now_and_each_part_once() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0})
    job = bench.start(0)
    bench.to(6.0)
    job.meter_until_now()
    bench.to(11.0)
    job.meter_until_now()
    bench.to(15.0)
    job.close(15.0)
    assert bench.told == [(0, 3, 18.0), (0, 3, 15.0), (0, 3, 12.0)]
    assert bench.account(0) == (45, 45, 0, 0)
    assert job.computed_gpu_s == 45


def test_what_a_policy_sees_of_running_jobs() -> None:
    """Row 1: 6 of 20 s done at factor 1.5; row 2 starts in 3 s; row 0 waits, and nothing is written of it."""
    bench = Bench(
        {"gpus": 3, "duration": 50.0},
        {"gpus": 3, "duration": 20.0},
        {"gpus": 2, "duration": 30.0},
        {"gpus": 1, "duration": 8.0},
    )
    bench.start(1)
    last = bench.start(3, np.array([3]))
    bench.to(6.0)
    bench.start(2, np.array([4, 5]), delay_s=3.0)
    bench.jobs._attained_gpu_s[1] = 100.0
    attained, service = np.full((2, 4), -7.0)
    rows, factor = np.array([0, 1, 2, 3]), np.array([2.0, 1.5, 4.0, 0.5])
    rows.flags.writeable = False  # as the rows of those that run are
    bench.jobs.refresh(6.0, rows, factor, attained, service)
    assert attained.tolist() == [-7, 118, 0, 6]
    assert service.tolist() == [-7, 21, 120, 1]
    bench.jobs.refresh(999.0, rows[1:2], factor, attained, service)
    assert service[1] == 0.0
    cells = {"attained_gpu_s": np.zeros(4), "service_s": np.zeros(4)}
    bench.to(8.5)
    last.fill_row(cells, 3.0)
    assert (cells["attained_gpu_s"].tolist(), cells["service_s"].tolist()) == ([0, 0, 0, 8], [0] * 4)
    bench.jobs.allowed_s[3], bench.jobs.spare_s[3] = 5.0, 0.0
    last.fill_row(cells, 3.0)
    assert cells["service_s"][3] == 5.0


def test_a_job_works_on_what_it_holds_once_it_has_restarted() -> None:
    bench = Bench({"gpus": 3, "duration": 20.0, "gpu_share": 0.5})
    job = bench.start(0, delay_s=4.0, share=0.5)
    assert job.utilisation(4.0).tolist() == [0, 0, 0]
    assert job.utilisation(4.5).tolist() == [0.5] * 3
    assert (job.name, job.gpu_s[RESTART], job.save_s, job.exchanges) == ("j0", 6.0, 0.0, 0)
    seconds, nodes, amounts = job.on_links((0.0, 0))
    assert (seconds, nodes.size, amounts.size) == (0.0, 0, 0)
    assert [part.size for part in job.not_metered()] == [0, 0]
    assert job.rigid
    assert (job.elastic, job.traffic) == (None, (0, 0))


def test_a_job_with_fewer_gpus_than_it_asks_for_runs_in_proportion() -> None:
    bench = Bench({"gpus": 4, "duration": 30.0, "gpus_min": 3}, {"gpus": 1, "duration": 5.0})
    bench.start(0)
    bench.start(1, np.array([3]))
    assert (bench.jobs.rate[0], bench.jobs.rate[1]) == (0.75, 1.0)
    bench.to(50.0)
    assert bench.done == [(5.0, 1), (40.0, 0)]


def test_a_job_runs_as_fast_as_its_gpu_model_does_its_kind_of_work() -> None:
    rates = [
        {"job_type": kind, "gpu_model": gpu, "gpus": 1, "rate": rate}
        for kind, gpu, rate in (("a", "t4", 2.0), ("a", "h100_sxm", 5.0), ("b", "t4", 4.0), ("b", "h100_sxm", 3.0))
    ]
    nodes = [{"name": name, "gpus": 2, "accelerator": name} for name in ("t4", "h100_sxm")]
    jobs = [{"name": f"j{k}", "gpus": 2, "duration": 30.0, "job_type": kind} for k, kind in enumerate("ab")]
    case = scenario(
        cluster={"nodes": nodes}, workload={"jobs": jobs, "throughputs": {"rates": rates, "reference": "t4"}}
    )
    cluster = Cluster(case.cluster, PROFILE, Topology(case.cluster, PROFILE))
    made = RigidJobs(Clock(), cluster, make_demand(case, None, cluster), lambda job: None, None, math.inf, Restart())
    slow, fast = cluster.book(7, np.array([0, 1]), np.ones(2)), cluster.book(8, np.array([2, 3]), np.ones(2))
    assert [made.rate_on(slow, row) for row in (0, 1)] == [1.0, 1.0]
    assert [made.rate_on(fast, row) for row in (0, 1)] == [2.5, 0.75]
