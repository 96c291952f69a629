"""The row of a run, its classes and its users, from columns whose sums are plain; and when progress is told."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim import run as running
from equipoise.sim.fairness import USES, fairness, finish_ratios, groups
from equipoise.sim.record import WASTE, Run

NAN = math.nan


def columns(**more: Any) -> dict[str, Any]:
    """Three jobs on 1, 2 and 2 GPUs: they wait 0, 10 and 30 s and take 10, 30 s, and for ever."""
    found = {
        "arrival_s": [0.0, 10.0, 20.0],
        "completion_s": [10.0, 40.0, NAN],
        "queueing_s": [0.0, 10.0, 30.0],
        "gpus": [1, 2, 2],
        "useful_gpu_s": [8.0, 16.0, 0.0],
        "useful_samples": [100.0, 150.0, 0.0],
        **{f"{use}_gpu_s": [k + 1.0, 1.0, 0.0] for k, use in enumerate(USES)},
    }
    return {name: np.array(value) for name, value in (found | more).items()}


def made(jobs: dict[str, Any] | None = None, **totals: float) -> Run:
    given = {"gpus": 4.0, "makespan_s": 50.0, "idle_gpu_s": 80.0, "idle_late_gpu_s": 30.0}
    return Run("x", "fifo", 0, "", "{}", jobs or columns(), given | totals)


def test_a_row_of_a_run_by_hand() -> None:
    """200 GPU-seconds; 80 idle, of which 30 late; completion after 10 and 30 s, waiting of 0, 10 and 30 s."""
    row = made().summary()
    assert (row["jobs"], row["completed"], row["makespan_s"], row["completion_mean_s"]) == (3, 2, 50, 20)
    assert [row[f"completion_p{q}_s"] for q in (50, 95, 99)] == pytest.approx([20, 29, 29.8])
    assert row["queueing_mean_s"] == pytest.approx(40 / 3)
    assert [row[f"queueing_p{q}_s"] for q in (50, 95, 99)] == pytest.approx([10, 28, 29.6])
    assert (row["goodput_ratio"], row["gpu_busy_ratio"]) == (24 / 200, 2 / 200)
    assert (row["idle_ratio"], row["idle_late_ratio"]) == (0.4, 0.15)
    assert [row[f"{use}_ratio"] for use in WASTE[1:]] == [(k + 2) / 200 for k in range(1, 8)]
    away = made(away_gpu_s=100.0).summary()
    assert (away["idle_ratio"], away["goodput_ratio"], away["idle_late_ratio"]) == (0.0, 0.24, 0.0)
    none = {name: value[:0] for name, value in columns().items()}
    empty = made(none, makespan_s=0.0).summary()
    assert (empty["jobs"], empty["goodput_ratio"]) == (0, 0)
    assert math.isnan(empty["queueing_mean_s"])
    assert math.isnan(empty["completion_p50_s"])
    waiting = made(columns(completion_s=[NAN] * 3)).summary()
    assert math.isnan(waiting["completion_mean_s"])
    assert waiting["queueing_p50_s"] == 10


def test_energy_money_and_tokens_by_hand() -> None:
    waste = {f"{use}_usd": float(k) for k, use in enumerate(WASTE)}
    row = made(
        energy_j=500.0,
        cost_usd=50.0,
        carbon_kg=3.0,
        model_flop=4e3,
        peak_flop=1e4,
        tokens=2500.0,
        upfront_usd=7.0,
        **waste,
    ).summary()
    assert row["waste_usd"] == sum(range(8))
    assert (row["energy_per_useful_sample_j"], row["cost_per_useful_sample_usd"]) == (2.0, 0.2)
    assert (row["mfu_ratio"], row["tokens_per_s"], row["cost_per_million_tokens_usd"]) == (0.4, 50, 20_000)
    assert (row["carbon_kg"], row["upfront_usd"], "committed_usd" in row) == (3, 7, False)
    little = made(columns(useful_samples=[0.5, 0.0, 0.0]), energy_j=1.0, peak_flop=0.5, model_flop=0.25, tokens=0.5)
    shown = little.summary()
    assert (shown["energy_per_useful_sample_j"], shown["mfu_ratio"], shown["tokens_per_s"]) == (2.0, 0.5, 0.01)
    nothing = made(columns(useful_samples=[0.0] * 3), energy_j=1.0, peak_flop=0.0, tokens=0.0).summary()
    unknown = ("energy_per_useful_sample_j", "mfu_ratio", "tokens_per_s", "cost_usd", "waste_usd")
    assert all(math.isnan(nothing[name]) for name in unknown)


def test_classes_of_jobs_by_hand() -> None:
    named = made(columns(**{"class": np.array(["a", "b", "b"], dtype=object)})).summary()
    assert [named[f"queueing_p50_s[{name}]"] for name in ("a", "b", "1 GPU", "2 GPUs")] == [0, 20, 0, 20]
    assert named["completion_p99_s[b]"] == 30
    one = columns(**{"class": np.array(["a"] * 3, dtype=object)})
    assert "queueing_p50_s[1 GPU]" not in made(one).summary()
    ran = made(one | {"ran_on": np.array(["h100", "", "h100"], dtype=object)}).by_class()
    assert ran["queueing_p50_s[h100]"] == 15
    assert "queueing_p50_s[]" not in ran
    lost = made(columns(completion_s=[10.0, NAN, NAN])).by_class()
    assert math.isnan(lost["completion_p50_s[2 GPUs]"])
    pools = made(**{"node_h[spot]": 2.0, "gpu_usd[spot]": 6.0, "node_h[own]": 3.0, "gpu_usd[own]": 1.0}).pools()
    assert pools == [{"group": "spot", "node_h": 2.0, "gpu_usd": 6.0}, {"group": "own", "node_h": 3.0, "gpu_usd": 1.0}]


def test_users_in_order_of_what_they_held() -> None:
    """Ann's two jobs take 10 s of 10 and 30 s of 20; Bob's is not done; one job names nobody."""
    jobs = {
        "arrival_s": [0.0, 10.0, 20.0, 0.0],
        "completion_s": [10.0, 40.0, NAN, 5.0],
        "queueing_s": [0.0, 10.0, 30.0, 5.0],
        "busy_gpu_s": [1.0, 2.0, 9.0, 50.0],
        "restart_gpu_s": [1.0, 0, 0, 0],
    }
    table = {name: np.array(value) for name, value in jobs.items()}
    table["user"] = np.array(["ann", "ann", "bob", ""], dtype=object)
    assert np.array_equal(finish_ratios(table), [1.0, 1.5, NAN, NAN], equal_nan=True)
    bob, ann = groups(table, "user")
    assert ann == {
        "user": "ann",
        "jobs": 2,
        "completed": 2,
        "service_gpu_s": 4.0,
        "queueing_mean_s": 5.0,
        "finish_ratio_mean": 1.25,
        "finish_ratio_worst": 1.5,
    }
    assert (bob["user"], bob["jobs"], bob["completed"], bob["service_gpu_s"]) == ("bob", 1, 0, 9.0)
    assert bob["queueing_mean_s"] == 30
    short = {
        name: np.array([value]) for name, value in (("arrival_s", 0.0), ("completion_s", 1.0), ("queueing_s", 0.5))
    }
    assert finish_ratios(short).tolist() == [2.0]
    assert math.isnan(bob["finish_ratio_mean"])
    assert math.isnan(bob["finish_ratio_worst"])
    assert groups(table | {"user": np.array([""] * 4, dtype=object)}, "user") == []
    assert groups(table | {"user": np.arange(4.0)}, "user") == []
    table["queueing_s"] = np.array([0.0, 10.0, 0.0, 0.0])
    table["completion_s"] = np.array([10.0, 40.0, 60.0, 5.0])
    found = fairness(table | {"partition": np.array(["p", "q", "q", "q"], dtype=object)})
    assert found["fairness_user"] == pytest.approx(1.8**2 / (2 * (0.8**2 + 1)))  # means 1.25 and 1
    queues = (1.0, 3 / 3.5)  # p: 1; q: 1.5, 1 and 1
    assert found["fairness_queue"] == pytest.approx(sum(queues) ** 2 / (2 * sum(q * q for q in queues)))
    assert math.isnan(found["fairness_account"])
    assert found["fairness_worst"] == 1.25
    alone = fairness(table | {"user": np.array(["ann"] * 4, dtype=object)})
    assert math.isnan(alone["fairness_user"])
    assert math.isnan(alone["fairness_worst"])


@pytest.mark.parametrize(("part", "told"), [(0.4, [3000, 6000, 6500]), (0.5, [2000, 4000, 6000, 6500])])
def test_progress_is_told_after_a_time_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, part: float, told: list[int]
) -> None:
    """The time is looked at after every 1,000 events, which take `part` of the time between two lines."""
    world: Any = SimpleNamespace(demand=[0] * 7, roster=SimpleNamespace(completed=3))
    world.done = SimpleNamespace(triggered=False)
    world.clock = SimpleNamespace(_queue=[(0.0,)], now=0)

    def step() -> None:
        world.clock.now += 1
        world.done.triggered = world.clock.now == 6500

    world.clock.step = step
    monkeypatch.setattr(running.time, "monotonic", lambda: world.clock.now / 1000 * part * running._PROGRESS_S)
    seen: list[tuple[float, int, int]] = []
    scenario: Any = SimpleNamespace(horizon=None)
    assert running._advance(world, scenario, lambda *line: seen.append(line), None)
    assert seen == [(at, 3, 7) for at in told]


def test_a_horizon_stop_and_nothing_left_end_a_run() -> None:
    def world_at(*events: float) -> Any:
        world: Any = SimpleNamespace(demand=[0] * 2, roster=SimpleNamespace(completed=1), closed=[])
        world.done, world.close = SimpleNamespace(triggered=False), world.closed.append
        world.clock = SimpleNamespace(_queue=[(at,) for at in events], now=0)
        world.clock.step = lambda: world.clock._queue.pop(0)
        return world

    scenario: Any = SimpleNamespace(horizon=5.0)
    world = world_at(1.0, 5.0, 5.5)
    assert running._advance(world, scenario, None, None)
    assert (world.closed, world.clock._queue) == ([5.0], [(5.5,)])  # what falls on the horizon happens
    with pytest.raises(running.Stalled, match="1 jobs are not done, but no event is left"):
        running._advance(world_at(1.0), scenario, None, None)
    stopped = world_at(1.0, 2.0)
    assert not running._advance(stopped, scenario, None, lambda: len(stopped.clock._queue) == 1)
