"""The tables of a live job and its bounds, figure by figure."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide import world as live_world
from equipoise.live.decide.window import Telemetry, measure
from equipoise.live.decide.world import UNBOUNDED
from equipoise.live.options import Bounds
from equipoise.policies.contract import Plan
from tests.live.decide.test_world import places, rows_of, world

NAN = math.nan
RATE = 12 / 0.231  # samples/s: two ranks take 0.111 and 0.211 s a step, and 0.02 s to exchange it


def row_of(made: Any) -> dict[str, float]:
    """The job's row."""
    return {name: column[0] for name, column in made.observe().jobs.as_dict().items() if len(column)}


def test_progress_and_what_is_left() -> None:
    for done, target, progress, left in ((250, 1000, 0.25, 750), (1000, 1000, 1.0, 0), (2000, 1000, 1.0, 0)):
        made = world(places(0, 1), samples_target=target)
        made.samples_done, made.gpu_s = done, 33.0
        job = row_of(made)
        assert (job["progress"], job["remaining_samples"]) == (progress, left)
        assert job["duration_s"] == pytest.approx((done + left) / RATE)
        assert job["service_s"] == pytest.approx(left / RATE)
        assert job["attained_gpu_s"] == 33.0
    made = world(places(0, 1))
    job = row_of(made)
    assert (job["progress"], job["remaining_samples"]) == (0.0, 96)  # without a target what the epoch has
    made.deal, made.telemetry = None, Telemetry.unknown(2)
    job = row_of(made)
    assert job["remaining_samples"] == 0
    assert np.isnan([job["duration_s"], job["service_s"], job["work_s"]]).all()
    made = world(places(0, 1), samples_target=1000)
    made.telemetry.window = replace(made.telemetry.window, samples=np.zeros(2))
    job = row_of(made)
    assert job["throughput_samples_per_s"] == 0.0
    assert np.isnan([job["duration_s"], job["service_s"]]).all()  # at that rate it never ends


def test_what_a_job_may_have_and_what_it_has() -> None:
    made = world(places(0, 1, 2), batch_max=24, batch_reference=6, micro_batch=2)
    job = row_of(made)
    assert (job["gpus_held"], job["workers_min"], job["workers_max"]) == (3, 3, 3)
    assert (job["batch_reference"], job["batch_given"], job["batch_max"], job["micro_batch"]) == (
        6,
        12,
        24,
        2,
    )
    assert (job["accumulation"], job["restart_s"], job["sync_interval"], job["far_every"]) == (0, 0.0, 1, 1)
    made = world(places(0, 1), bounds=Bounds(workers_min=1, workers_max=4), allow={"accumulation"})
    made.least_passes, made.restart_s = 3, 3.5
    job = row_of(made)
    assert (job["workers_min"], job["workers_max"], job["batch_max"]) == (1, 4, 0)
    assert (job["accumulation"], job["restart_s"], job["batch_reference"]) == (3, 3.5, 12)
    assert row_of(world(places(0, 1), bounds=Bounds(workers_max=1)))["workers_max"] == 2


@pytest.mark.parametrize(
    ("interval", "far_every", "far_ratio", "batch", "rate", "worth"),
    [
        (1, 1, 1.0, 12, 1.0, 1.0),
        (4, 1, 1.0, 12, 1.0, 1 / 1.03),  # three extra local steps, of a hundredth each
        (4, 2, 0.5, 12, 1.0, 1 / 1.05),  # as much drift as one of six steps
        (
            1,
            1,
            1.0,
            24,
            24 * 62 / (12 * 74),
            62 / 74,
        ),  # noise scale 50: a larger batch, at the best rate for it
        (1, 1, 1.0, 12, 1.5, 0.75),
        (1, 1, 1.0, 12, 2.0, 0.01),
    ],
)
def test_what_a_sample_is_worth(
    interval: int, far_every: int, far_ratio: float, batch: int, rate: float, worth: float
) -> None:
    made = world(places(0, 1))
    made.interval, made.far_every, made.far_ratio = interval, far_every, far_ratio
    made.batch, made.rate = batch, rate
    job = row_of(made)
    assert job["throughput_samples_per_s"] == pytest.approx(RATE)
    assert job["goodput_samples_per_s"] == pytest.approx(RATE * worth)


def test_a_speed_is_told_of_whole_gpus_where_the_batch_may_change() -> None:
    seen = world(places(0, 1), batch_max=24).observe().speeds
    assert (seen.gpus.tolist(), seen.gpu_model.tolist(), seen.job.tolist()) == ([2], [0], [0])
    assert seen.samples_per_s.tolist() == pytest.approx([12 / 0.211])
    assert seen.exchange_s.tolist() == seen.apart_exchange_s.tolist() == pytest.approx([0.02])
    assert len(world(places(0, 1)).observe().speeds.job) == 0
    assert len(world(places(0, 1, devices=["x", "x"]), batch_max=24).observe().speeds.job) == 0
    made = world(places(0, 1), batch_max=24)
    made.forget()
    assert len(made.observe().speeds.job) == 0


@pytest.mark.parametrize(
    ("memory", "bound", "most"),
    [
        ((5.9, NAN), None, [5, UNBOUNDED]),
        ((5.9, NAN), 4, [4, 4]),
        ((3.0, math.inf), 4, [3, 4]),
        ((1e30, 8.0), None, [UNBOUNDED, 8]),
    ],
)
def test_no_rank_has_more_samples_than_it_may(memory: Any, bound: int | None, most: list[int]) -> None:
    for passes in (False, True):
        allow = {"allow": {"accumulation"}} if passes else {}
        made = world(places(0, 1), bounds=Bounds(samples_max=bound), **allow)
        made.telemetry.samples_max = np.array(memory)
        workers = made.observe().workers
        free = [UNBOUNDED, UNBOUNDED]  # a step in passes has no limit, each of them does
        assert workers.samples_max.tolist() == (free if passes else most)
        assert workers.samples_per_pass.tolist() == (most if passes else free)


def test_when_a_shard_is_needed() -> None:
    """Each rank has four of twelve samples, and takes 18.5 or 35.2 ms for one."""
    shards = world(places(0, 1), sample_bytes=100).observe().shards
    each_s = np.repeat([0.111 / 6, 0.211 / 6], 4)
    assert shards.needed_in_s.tolist() == pytest.approx((np.tile([0, 12, 24, 36], 2) * each_s).tolist())
    assert shards.samples.tolist() == [12] * 8
    assert shards.bytes.tolist() == [1200.0] * 8
    assert shards.worker.tolist() == [0] * 4 + [1] * 4
    assert shards.local.all()
    assert not shards.started.any()


def test_a_gpu_that_is_held_in_part_is_not_the_jobs_own() -> None:
    active = places(0, 1)
    active[1] = replace(active[1], share=0.25, share_quantum=0.125, memory_bytes=8.0)
    made = world(active, places(2, devices=["z"]))
    made.telemetry.gpu = {"power_w": np.array([100.0, 200.0])}
    gpus = made.observe().gpus
    assert gpus.job.tolist() == [0, -2, -1]
    assert gpus.share_free.tolist() == [0.0, 0.75, 1.0]
    assert gpus.share_quantum.tolist() == [0.01, 0.125, 0.01]
    assert gpus.power_w.tolist() == pytest.approx([100.0, 200.0, NAN], nan_ok=True)
    assert gpus.memory_bytes.tolist() == pytest.approx([NAN, 8.0, NAN], nan_ok=True)


def test_first_gpus_of_hosts() -> None:
    nodes = world(places(0, 1, 2, 3, 4, 5, hosts="aaabbc")).observe().nodes
    assert (nodes.gpus.tolist(), nodes.first_gpu.tolist()) == ([3, 2, 1], [0, 3, 5])


def test_caps_of_a_host_are_those_that_all_its_ranks_may_have() -> None:
    made = world(places(0, 1, 2, hosts="aab"))
    made.power = [
        np.array([100.0, 120.0, 90.0]),
        np.array([300.0, 280.0, 250.0]),
        np.array([250.0, 240.0, NAN]),
    ]
    nodes = made.observe().nodes
    assert nodes.power_idle_w[0] == np.nextafter(120.0, 0.0)
    assert (nodes.power_max_w[0], nodes.power_cap_w[0]) == (280.0, 240.0)
    assert np.isnan([nodes.power_idle_w[1], nodes.power_max_w[1], nodes.power_cap_w[1]]).all()
    made.power = [column[:2] for column in made.power]  # of a group that was smaller
    assert np.isnan(made.observe().nodes.power_cap_w).all()


def test_the_clock_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(live_world, "time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    made = world(places(0, 1))
    seen = []
    for clock.now_s in (1007.0, 1010.0):
        found = made.observe()
        seen.append((found.time_s, found.window_s))
    clock.now_s = 1012.0
    made.forget()
    clock.now_s = 1013.0
    seen.append((made.observe().time_s, 13.0 - 12.0))
    made.continue_from(50.0)
    clock.now_s = 1015.0
    found = made.observe()
    assert [*seen, (found.time_s, found.window_s)] == [(7.0, 7.0), (10.0, 3.0), (13.0, 1.0), (52.0, 2.0)]


def test_the_quickest_exchange_is_the_one_alone() -> None:
    made = world(places(0, 1))
    found = []
    for tail_s in (0.02, 0.01, 0.03):
        made.telemetry = Telemetry(
            measure(rows_of(*[[(6, 0.0, 0.1, tail_s, 0.0)]] * 2), [True]), *(np.full(2, NAN),) * 3
        )
        job = row_of(made)
        found.append((job["exchange_s"], job["exchange_alone_s"], job["far_exchange_s"]))
    assert np.array(found) == pytest.approx(
        np.array([(0.02, 0.02, 0.02), (0.01, 0.01, 0.01), (0.03, 0.01, 0.03)])
    )


# -- bounds ----------------------------------------------------------------------------------------------------


def array(*values: Any) -> Any:
    return np.array(values)


def bounded(made: Any, plan: Plan) -> tuple[Any, list[str]]:
    """What is changed and what is refused of a plan, whatever it asks for."""
    made.observe()
    refused = made.apply(plan)
    return made.change, [f"{one.what}: {one.why}" for one in refused]


@pytest.mark.parametrize(
    ("plan", "changed", "refused"),
    [
        (Plan(samples_per_step=array(5, 7)), {"shares": (5, 7)}, []),
        (Plan(samples_per_step=array(4, 8)), {}, ["samples: 4 is under the bound of 5"]),
        (Plan(sync_interval=array(6)), {"interval": 6}, []),
        (Plan(sync_interval=array(7)), {}, ["interval: 7 is above the bound of 6"]),
        (Plan(sync_interval=array(1)), {}, []),  # it is so already
        (Plan(far_every=array(6)), {"far_every": 6}, []),
        (Plan(far_every=array(7)), {}, ["interval: 7 steps until all meet are above the bound of 6"]),
        (Plan(sync_interval=array(3), far_every=array(2)), {"interval": 3, "far_every": 2}, []),
        (Plan(sync_interval=array(4), far_every=array(2)), {"interval": 4}, [
            "interval: 8 steps until all meet are above the bound of 6"
        ]),
        (Plan(gpu_share=array(0.25, 0.75)), {"gpu_share": (0.25, 0.75)}, []),
        (Plan(gpu_share=array(0.24, 0.76)), {}, ["share: 0.24 is under the bound of 0.25"]),
        (Plan(gradient_weight=array(1.0, 1.0), samples_per_step=array(5, 7)), {"shares": (5, 7)}, []),
        (Plan(gradient_weight=array(1.0, 0.5)), {}, ["gradient_weight: a live job leaves no rank's gradient out"]),
        (Plan(gradient_weight=array(1.5, 1.5)), {}, ["gradient_weight: a live job leaves no rank's gradient out"]),
        (Plan(learning_rate=array(2.0)), {"learning_rate": 2.0}, []),
        (Plan(learning_rate=array(1.0)), {}, []),
        (Plan(global_batch=array(24), learning_rate=array(1.0)), {"shares": (12, 12), "global_batch": 24}, []),
        (Plan(global_batch=array(26)), {}, ["batch: 26 gives a rank more or fewer samples than it may have"]),
        (Plan(global_batch=array(10)), {"shares": (5, 5), "global_batch": 10}, []),
        (Plan(global_batch=array(9)), {}, ["batch: 9 gives a rank more or fewer samples than it may have"]),
    ],
)  # fmt: skip
def test_a_plan_goes_up_to_the_bounds(plan: Plan, changed: dict[str, Any], refused: list[str]) -> None:
    bounds = Bounds(samples_min=5, samples_max=12, interval_max=6, share_min=0.25)
    change, said = bounded(world(places(0, 1), bounds=bounds), plan)
    names = ("shares", "interval", "far_every", "gpu_share", "learning_rate", "global_batch", "accumulation")
    assert {name: getattr(change, name) for name in names if getattr(change, name) is not None} == changed
    assert said == refused


@pytest.mark.parametrize(
    ("samples_max", "unit", "asked", "passes"),
    [
        (8, 1, None, None),
        (6, 1, None, None),
        (5, 1, None, 2),
        (2, 1, None, 3),
        (3, 2, None, 3),
        (1, 2, None, 3),
        (8, 1, 4, 4),
        (2, 1, 2, 3),
    ],
)
def test_a_step_has_as_many_passes_as_memory_needs(
    samples_max: int, unit: int, asked: int | None, passes: int | None
) -> None:
    """Six samples a rank; a pass has whole micro-batches, and at least one."""
    made = world(
        places(0, 1),
        bounds=Bounds(samples_max=samples_max),
        micro_batch=unit,
        allow={"accumulation", "samples"},
    )
    plan = Plan() if asked is None else Plan(accumulation=array(asked))
    change, refused = bounded(made, plan)
    assert (change.accumulation, refused) == (passes, [])


# -- data in files -----------------------------------------------------------------------------------------------


def test_where_files_lie_and_when_they_are_needed() -> None:
    """Of three files of two stores rank 1 has one here, of which it has read 2 of 5 samples, and fetches one."""
    pytest.importorskip("fsspec")
    from equipoise.live.data.index import Shard
    from equipoise.live.data.plane import HEAD, packed
    from equipoise.live.data.view import DataView
    from equipoise.live.train.deal import Deal

    made = world(places(0, 1, hosts="ab"))
    files = [Shard("x", 10, 1000, None, 0), Shard("y", 5, 400, None, 1), Shard("z", 8, 600, None, 0)]
    sizes = np.array([10, 5, 8])
    made.deal = Deal.whole(np.arange(23), 3, np.array([0, 1, 1]), 2, sizes=sizes)
    made.deal.draw(np.array([0, 2]), 1)
    made.data = DataView(files)
    reports = np.zeros((2, made.data.length))
    reports[1, 0] = 0.02  # of the 0.05 s that it waited, so long for files
    reports[:, HEAD : HEAD + 8] = (1000.0, 2.0, 0.25, 1.0, 400.0, 4.0, 0.5, 1.0)
    reports[1, HEAD + 8 :] = np.concatenate([packed(np.arange(3) == k) for k in (1, 2)])
    made.data.update(reports, ["a", "b"])
    seen = made.observe()
    shards, each_s = seen.shards, (5 * 0.211 - 0.02) / 30
    assert shards.id.tolist() == [0, 1, 2]
    assert shards.worker.tolist() == [0, 1, 1]
    assert shards.node.tolist() == [2, 3, 2]
    assert shards.samples.tolist() == [10, 3, 8]
    assert shards.bytes.tolist() == [1000.0, 240.0, 600.0]
    assert shards.started.tolist() == [False, True, True]
    assert shards.local.tolist() == [False, True, False]
    assert shards.needed_in_s.tolist() == pytest.approx([0.0, 0.0, 3 * each_s])
    assert seen.workers.step_s.tolist() == pytest.approx([0.111, 0.207])
    assert seen.workers.step_cov.tolist() == pytest.approx([0.0, 0.0])
    assert seen.workers.samples_owned.tolist() == [10.0, 11.0]
    nodes = seen.nodes
    assert [nodes.gpus.tolist(), nodes.gpus_free.tolist(), nodes.first_gpu.tolist()] == [
        [1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 2, 2]
    ]  # fmt: skip
    assert len(nodes.speed_ratio) == 4
    paths = seen.paths
    assert list(zip(paths.source.tolist(), paths.target.tolist(), strict=True)) == [
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
    ]
    # At 500 and 100 bytes/s. Each has 10.5 of 21 samples to train on, of which rank 0 lacks half a sample.
    supply = [10.5 / (1000 / 500 + 0.5 * 2000 / 23 / 500), 11 / (600 / 500)]
    assert seen.workers.input_samples_per_s.tolist() == pytest.approx(supply)
