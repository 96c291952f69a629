"""Columns that policies see, by hand: of workers, links, speeds, stores, and of a job that has arrived."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Observation, Speeds, Stores
from equipoise.policies.registry import make_stage
from equipoise.sim.job.measurements import JobWindow
from equipoise.sim.job.progress import Progress
from equipoise.sim.network.topology import FABRIC, NIC_IN, NIC_OUT
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Data
from equipoise.sim.world import observe
from equipoise.sim.world.arrivals import _fill_row, _first_after, _shard_sizes
from equipoise.sim.world.observe import Traffic, pace_of, worker_columns
from equipoise.sim.world.tables import _add_rigid, _counts, fill_stores
from tests.scenarios import model, scenario
from tests.sim.cost.test_configuration import made
from tests.sim.world.test_room import cluster_of


def window(**given: Any) -> JobWindow:
    """Of two workers, of which the second did nothing: four steps of two samples, 0.25 to 0.75 s long."""
    found = JobWindow(
        np.array([2.0, 0.0]),
        np.array([1.25, 0.0]),
        np.array([0.4, 0.0]),
        np.array([0.2, 1.0]),
        np.array([8.0, 0.0]),
        steps=4,
        periods=2,
    )
    for name, value in given.items():
        setattr(found, name, value)
    return found


def job(noise_scale: float = -1.0, **more: Any) -> Any:
    config = SimpleNamespace(ingest=np.array([100.0, 3.0]), gradient_factor=lambda: np.array([3.0, 2.0]))
    measured = SimpleNamespace(columns={"push_s": np.full(2, 7.0)})
    progress = SimpleNamespace(noise_scale=noise_scale, ratio=0.0)
    return SimpleNamespace(
        config=config, measured=measured, progress=progress, data=None, norm_key=1, exchanges=2, **more
    )


def test_what_is_measured_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = worker_columns(job(), window(), lambda *_: math.nan)
    told = {name: column.tolist() for name, column in found.items()}
    nan = math.nan
    assert np.allclose(told.pop("push_s"), [nan, nan], equal_nan=True)
    assert np.allclose(told.pop("step_cov"), [0.25 / 0.5, nan], equal_nan=True)
    by_hand = {
        "capacity_samples_per_s": [4, nan],
        "input_samples_per_s": [100, 3],
        "step_s": [0.5, nan],
        "wait_s": [0.05, 0.25],
        "input_stall_s": [0.1, 0],
        "response_s_per_sample": [0.3, nan],
        "gradient_rate_per_s": [2, nan],
        "gradient_norm": [3, nan],
    }
    assert told.keys() == by_hand.keys()
    for name, column in by_hand.items():
        assert np.allclose(told[name], column, equal_nan=True), name
    monkeypatch.setattr(observe, "norm_noise", lambda key, exchanges, ratio, steps: np.full(2, key + exchanges + steps))
    noisy = worker_columns(job(8.0), window(), lambda *_: math.nan)["gradient_norm"]
    assert noisy[0] == pytest.approx(3 * math.sqrt(1 + 8 * 4 / 8) * 7)
    alone = {"own_steps": np.array([8, 3]), "pushes": np.array([2, 0]), "push_s": np.array([1.0, 0.0])}
    apart = worker_columns(job(), window(**alone), lambda *_: math.nan)
    assert apart["step_s"][0] == 0.25
    assert apart["push_s"].tolist() == [0.5, 7]
    narrow = job()
    narrow.config.ingest = np.array([3.0, 3.0])
    assert worker_columns(narrow, window(), lambda *_: math.nan)["capacity_samples_per_s"][0] == 3
    still = window(busy_square=np.array([0.99, 0.0]))  # a variance below 0 is rounding
    assert worker_columns(job(), still, lambda *_: math.nan)["step_cov"][0] == 0


def test_a_pace_is_that_of_the_profile_over_what_was_measured() -> None:
    """8 samples in 2 s of steps of 0.5 s: two a step, which by the profile take 0.4 s."""
    listed = SimpleNamespace(listed_s=lambda samples: 0.2 * samples)
    columns = {"step_s": np.array([0.5, math.nan])}
    measured: Any = SimpleNamespace(config=listed, measured=SimpleNamespace(columns=columns))
    assert np.allclose(pace_of(measured, window()), [0.8, math.nan], equal_nan=True)


def test_links_are_as_busy_as_what_they_carried() -> None:
    """In 2 s a NIC of 12.5e9 bytes/s could carry 25e9 bytes."""
    cluster = cluster_of(1, 1)
    topology = cluster.topology
    assert topology.capacity_bytes_per_s[topology.link(0, NIC_OUT)] == 12.5e9
    traffic = Traffic(cluster)
    traffic.by_job = True
    out, into, inside = (topology.link(0, NIC_OUT), topology.link(1, NIC_IN), topology.link(0, FABRIC))
    traffic.carried(0, np.array([out, into, inside]), np.array([5e9, 10e9, 1e15]))
    transfer: Any = SimpleNamespace(links=np.array([out]), size_bytes=10e9, owner=1)
    traffic.transferred(transfer, 1.0)
    assert (traffic.due(0.0), traffic.due(2.0)) == (False, True)
    traffic.fill(2.0)
    assert cluster.nodes.nic_busy_ratio == pytest.approx([0.6, 0.4])
    both = np.array([0, 1])
    shares = [traffic.by_others(row, both).tolist() for row in (0, 1, 9)]
    assert np.allclose(shares, [[0.4, 0.0], [0.2, 0.4], [0.6, 0.4]])
    traffic.carried(0, np.array([out]), np.array([1e12]))
    traffic.fill(3.0)
    assert cluster.nodes.nic_busy_ratio.tolist() == [1.0, 0.0]
    assert traffic.by_others(9, both).tolist() == [1.0, 0.0]
    assert not traffic.due(3.0)


def test_worker_counts_that_speeds_are_listed_for() -> None:
    assert _counts(1, 5) == [1, 2, 3, 4, 5]
    assert _counts(1, 16) == list(range(1, 17))
    assert _counts(1, 17) == [1, 2, 4, 8, 16, 17]
    assert _counts(4, 32) == [4, 8, 16, 32]
    assert _counts(3, 3) == [3]


def test_speeds_of_duration_jobs_stand_among_the_others() -> None:
    table = Speeds()
    _add_rigid(table, np.array([2, 5]), np.array([9, 9, 3, 9, 9, 4]), np.array([[1.0, 2.0], [1.0, 0.5]]))
    assert table.job.tolist() == [2, 2, 5, 5]
    assert table.gpu_model.tolist() == [0, 1, 0, 1]
    assert table.gpus.tolist() == [3, 3, 4, 4]
    assert table.samples_per_s.tolist() == [1, 2, 1, 0.5]
    assert np.isnan(table.exchange_s).all()
    _add_rigid(table, np.array([3]), np.array([0, 0, 0, 7, 0, 0]), np.array([[1.0, 3.0]]))
    assert table.job.tolist() == [2, 2, 3, 3, 5, 5]
    assert table.samples_per_s.tolist() == [1, 2, 1, 3, 1, 0.5]


def test_stores_of_jobs_by_the_part_of_their_shards() -> None:
    def stored(row: int, homes: Any, before: Any = None, size: float = 1.0) -> Any:
        data = None if homes is None else SimpleNamespace(homes=homes)
        return SimpleNamespace(row=row, data=data, homes_before_start=before, config=SimpleNamespace(data_bytes=size))

    table, cluster = Stores(), cluster_of(1, 1, 1)
    jobs = [stored(0, [[0, 2], [2], [0], [2]]), stored(3, None), stored(4, None, [[1]]), stored(5, [[1]], size=0.0)]
    fill_stores(table, jobs, cluster)
    assert table.job.tolist() == [0, 0, 4]
    assert table.node.tolist() == [0, 2, 1]
    assert table.ratio.tolist() == [0.5, 0.75, 1.0]
    fill_stores(table, jobs[1:2], cluster)
    assert len(table) == 0


def test_the_row_of_a_job_that_has_arrived() -> None:
    """Four workers with three samples each: 0.13 s, and an exchange of 0.456 s; five steps, thought 1.5 as long."""
    config = made(4)
    spec, own = config.spec, config.model
    progress = Progress(spec, own, asynchronous=False)
    checkpoints = SimpleNamespace(size_bytes=77.0)
    arrived: Any = SimpleNamespace(
        row=0, spec=spec, model=own, config=config, progress=progress, checkpoints=checkpoints, save_s=4.0
    )
    columns: Any = defaultdict(lambda: np.zeros(1))
    roster: Any = SimpleNamespace(factor=np.array([1.5]), columns=columns, initialisation_s=30.0)
    _fill_row(arrived, roster)
    told = {name: column.item() for name, column in columns.items()}
    assert math.isnan(told.pop("noise_scale"))
    assert told == pytest.approx(
        {
            "gpus_per_worker": 1,
            "workers_min": 4,
            "workers_max": 4,
            "global_batch": 12,
            "batch_max": 0,
            "batch_given": 12,
            "rate_rule": progress.rate_rule,
            "batch_reference": 12,
            "micro_batch": 1,
            "accumulation": 1,
            "sync_interval": 1,
            "gamma": 1,
            "drift": 0,
            "remaining_samples": 60,
            "duration_s": 5 * (0.13 + 0.456) * 1.5,
            "service_s": 5 * (0.13 + 0.456) * 1.5,
            "data_demand_bytes": 50_000,
            "input_bytes": 60_000,
            "compute_demand_flops": 0,
            "memory_bytes": 0,
            "checkpoint_bytes": 77,
            "restart_s": 38,
        }
    )
    progress.interval = 3
    _fill_row(arrived, roster)
    assert columns["duration_s"].item() == pytest.approx(5 * (2 * 0.13 + 0.13 + 0.456) / 3 * 1.5)
    large = made(4, parameters=1e9)
    arrived.config, arrived.model = large, large.model
    arrived.spec = spec.model_copy(update={"gpu_share": 0.5})
    _fill_row(arrived, roster)
    assert columns["memory_bytes"].item() == 16e9 / 0.5
    arrived.config = made(9)  # more than there are: what they exchange is not known
    _fill_row(arrived, roster)
    assert columns["duration_s"].item() == pytest.approx(5 * 0.12 * 1.5)


@dataclass(frozen=True)
class Look(Stage):
    """Keeps what was measured of the job's exchanges."""

    name: ClassVar[str] = "look"
    kind: ClassVar[Kind] = "tasks"
    seen: list[tuple[float, float, float]] = field(default_factory=list)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        jobs = observation.jobs
        columns = (jobs.exchange_s, jobs.throughput_samples_per_s, jobs.goodput_samples_per_s)
        self.seen.append(tuple(column.item() for column in columns))  # type: ignore[arg-type]
        return plan, memory


def test_exchanges_and_samples_are_means_over_what_was_observed() -> None:
    """Steps of 0.1 s with ten samples each, of which nine tenths count, and an exchange of 0.25 s."""
    spec = model(gradient=1e8, exchange={"alpha": 0.125, "rate": 1e24}, lighter={"samples_factor": 10 / 9})
    job = {"gpus": 2, "model": "m", "steps": 60, "global_batch": 20}
    case = scenario(workload={"models": {"m": spec}, "jobs": [job]}, decide={"every": 4.0})
    look = Look()
    run(case, policy=Policy("look", (make_stage("fifo"), look)))
    exchange_s, throughput, goodput = look.seen[2]
    assert exchange_s == pytest.approx(0.25 + 1e8 / 12.5e9)
    assert throughput == pytest.approx(20 / (0.1 + exchange_s))
    assert goodput == pytest.approx(0.9 * throughput)


def test_arrivals_of_an_instant_and_sizes_of_shards() -> None:
    arrival_s = [0.0, 1.0, 1.0, 2.0]
    assert [_first_after(at, arrival_s, 1) for at in (0.5, 1.0, 1.9, 2.0, 9.0)] == [1, 3, 3, 4, 4]

    def sizes(**given: Any) -> list[int]:
        spec = Data.model_validate({"samples": 10, "sample_size": 1.0, "shards": 4} | given)
        return _shard_sizes(spec, min(spec.shards, spec.samples), np.random.default_rng(0)).tolist()

    assert sizes() == [3, 3, 2, 2]
    assert sizes(shard_sizes=(1, 2, 3, 4)) == [1, 2, 3, 4]
    assert sizes(samples=3, shard_sizes=(1, 2, 3, 4)) == [1, 1, 1]
    many = np.array(sizes(samples=10**8, shards=1000, shard_sizes={"kind": "lognormal", "cov": 0.5}))
    assert many.sum() == 10**8
    assert many.std() / many.mean() == pytest.approx(0.5, abs=0.05)
