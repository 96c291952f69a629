"""One period of one job, event by event: workers with a barrier and without one, exchanges as flows."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.advance.asynchronous import Asynchronous
from equipoise.sim.advance.event_by_event import EventByEvent
from equipoise.sim.clock import Clock
from equipoise.sim.job.period import Ends
from equipoise.sim.network.network import Network
from equipoise.sim.randomness import step_noise

START_S = 5.0
STILL = step_noise(7, 0.0)


def few(**more: Any) -> Any:
    return SimpleNamespace(**more)


def exchange(volume: float, alone_s: float, link: int = 0, delay_s: float = 0.0, happens: bool = True) -> Any:
    """At most 10 bytes/s over one link."""
    return few(
        volume_bytes=volume, alone_s=alone_s, links=np.array([link]), usage=np.ones(1), cap_bytes_per_s=10.0,
        rate_bytes_per_s=10.0, delay_s=delay_s, happens=happens,
    )  # fmt: skip


class Site:
    """Two links of 10 bytes/s, at 5 s."""

    def __init__(self) -> None:
        self.clock = Clock(START_S)
        self.network = Network(self.clock, np.array([10.0, 10.0]))
        self.events: Any = EventByEvent(self.clock, self.network, lambda job: None, lambda what, why: None)

    def ran(self, life: Any, at: dict[float, Callable[[], Any]] | None = None) -> Any:
        """What a process returns, with what else happens so much later."""
        found = []

        def whole() -> Any:
            found.append((yield from life))

        self.clock.process(whole())
        for delay_s, act in (at or {}).items():
            self.clock.at(self.clock.now + delay_s, lambda _, act=act: act())
        self.clock.run()
        return found[0]


def job_of(far: Any, near: Any = None, workers: int = 3) -> Any:
    ends = Ends()
    ends.resume_at(START_S)
    config = few(workers=workers, exchange=far, near=near)
    return few(
        row=4, generation=1, config=config, data=None, model=few(overlap=2.0, drift=0.5), step_noise=STILL,
        ends=ends, steps_of={},
    )  # fmt: skip


def period(steps: int = 3, far: bool = True, **more: Any) -> Any:
    """Three workers whose steps take 200 and 300 ms of computing and 400 ms of input."""
    compute_s, input_s = np.array([0.2, 0.3, 0.1]), np.array([0.05, 0.1, 0.4])
    given = {
        "start_s": START_S, "steps": steps, "first_step": 0, "far": far, "compute_s": compute_s, "input_s": input_s,
        "last_compute_s": compute_s, "last_input_s": input_s, "samples": np.array([5, 7, 4]),
        "last_samples": np.array([5, 7, 4]),
    }  # fmt: skip
    return few(**(given | more))


# --- with a barrier --------------------------------------------------------------------------------------


def test_a_period_ends_with_an_exchange_that_its_last_worker_s_step_hides_in_part() -> None:
    """The last comes after 1.2 s; of an exchange of 300 ms its last step of 400 hides 200."""
    site = Site()
    found = site.ran(site.events._unfold(job_of(exchange(3.0, 0.3)), period(), 1))
    assert (found.arrival_s, found.duration_s, found.exchange_s, found.end_s) == pytest.approx(
        (1.2, 1.3, 0.3, None)
    )
    assert found.finish_s == pytest.approx([0.6, 0.9, 1.2])
    assert found.busy_s == pytest.approx([0.6, 0.9, 0.3])
    assert found.busy_square == pytest.approx([0.12, 0.27, 0.03])
    assert found.stall_s == pytest.approx([0.0, 0.0, 0.9])
    assert site.clock.now == pytest.approx(START_S + 1.3)
    assert site.events._flow == {}


def test_the_last_step_may_be_another_one() -> None:
    site = Site()
    last = {"last_compute_s": np.array([0.7, 0.1, 0.2]), "last_input_s": np.array([0.1, 0.2, 0.1])}
    found = site.ran(
        site.events._unfold(job_of(exchange(0.0, 0.0, happens=False)), period(steps=2, **last), 1)
    )
    assert found.finish_s == pytest.approx([0.9, 0.5, 0.6])
    assert found.busy_s == pytest.approx([0.9, 0.4, 0.3])
    assert found.stall_s == pytest.approx([0.0, 0.1, 0.3])
    assert (found.duration_s, found.exchange_s, site.clock.now) == pytest.approx((0.9, 0.0, START_S + 0.9))


def test_of_workers_that_come_together_the_first_hides_the_exchange() -> None:
    """They differ by half a billionth: of the first one's step of 300 ms, and not of the other's of 600."""
    site = Site()
    last = {"last_compute_s": np.array([0.3, 0.6, 0.1]), "last_input_s": np.array([0.1, 0.2, 0.1])}
    before = {"compute_s": np.array([0.9 - 6e-10, 0.6, 0.1]), "input_s": np.zeros(3)}
    found = site.ran(site.events._unfold(job_of(exchange(3.0, 0.3)), period(steps=2, **before, **last), 1))
    assert found.duration_s == pytest.approx(1.2 + 0.3 - (0.6 - np.hypot(0.3, 0.3)))


def test_near_workers_exchange_where_it_is_not_the_turn_of_all() -> None:
    site = Site()
    job = job_of(exchange(3.0, 0.3), exchange(6.0, 0.6, link=1))
    found = site.ran(site.events._unfold(job, period(far=False), 1))
    hidden_s = 0.4 + 0.6 - np.hypot(0.4, 0.6)
    assert (found.exchange_s, found.duration_s) == pytest.approx((0.6, 1.8 - hidden_s))


def test_an_exchange_that_shares_its_link_takes_longer_and_ends_the_period_later() -> None:
    site = Site()
    site.network.start(1e3, np.array([0]), np.ones(1), 10.0, lambda flow: None)
    job = job_of(exchange(3.0, 0.3))
    found = site.ran(site.events._unfold(job, period(), 1), {50.0: lambda: None})
    assert (found.exchange_s, found.end_s, found.duration_s) == pytest.approx((0.6, START_S + 1.6, 1.6))
    late = Site()
    late.network.start(1.0, np.array([0]), np.ones(1), 10.0, lambda flow: None)  # gone before
    assert late.ran(late.events._unfold(job_of(exchange(3.0, 0.3)), period(), 1)).end_s is None


def test_a_job_that_is_stopped_leaves_the_network() -> None:
    for at_s, flows in ((0.5, 0), (1.1, 1)):
        site, job, seen = Site(), job_of(exchange(3.0, 0.3)), list[int]()

        def stop(site: Site = site, job: Any = job, seen: list[int] = seen) -> None:
            seen.append(site.network.count_on(0))
            job.generation = 2
            site.events.halt(job)
            seen.append(site.network.count_on(0))

        assert site.ran(watched(site, job), {at_s: stop}) == "stopped"
        assert seen == [flows, 0]


def watched(site: Site, job: Any) -> Any:
    """A period in which a job is stopped before its exchange, or in it: nobody goes on then."""
    found = []

    def life() -> Any:
        found.append((yield from site.events._unfold(job, period(), 1)))

    site.clock.process(life())
    yield site.clock.until(START_S + 9.0)
    assert found in ([], [None])
    return "stopped"


def test_what_should_have_flowed_by_now_counts_as_sent() -> None:
    for begin_s, took_s in (
        (START_S - 0.3, 0.2),
        (START_S - 0.5, 0.0),
        (START_S - 9.0, 0.0),
        (START_S + 0.5, 1.0),
    ):
        site = Site()
        site.ran(site.events._exchange(job_of(None), exchange(3.0, 0.3, delay_s=0.2), begin_s))
        assert site.clock.now - START_S == pytest.approx(took_s)
        assert site.events._flow == {}


def test_a_plan_that_changes_a_job_makes_it_work_out_its_pace_anew() -> None:
    site, job = Site(), job_of(None)
    site.events.reconfigure(job)
    assert job.config.stale
    site.events.set_capacity(1, 4.0)
    assert site.network._state.links["capacity"].tolist() == [10.0, 4.0]


# --- without a barrier -----------------------------------------------------------------------------------


def pushing(pushes: list[Any], interval: list[int]) -> Any:
    job = job_of(None, workers=2)
    job.config.pushes, job.config.push_interval = pushes, np.array(interval)
    return job


def round_of(batch: int, samples: list[int]) -> Any:
    return few(
        start_s=START_S, batch=batch, samples=np.array(samples), compute_s=np.array([0.3, 0.4]),
        input_s=np.array([0.1, 0.6]),
    )  # fmt: skip


def test_a_fast_worker_takes_more_and_pushes_as_often_as_its_interval_says() -> None:
    """The first pushes 3, 3 and 2 samples after 0.5, 1 and 1.4 s; the second 4, in two steps, after 1.25 s.

    Four samples are two updates old by then, and the last two one; 4 after two steps count as 4 / 1.5.
    """
    site = Site()
    job = pushing([exchange(0.0, 0.7, delay_s=0.2), exchange(0.0, 0.2, delay_s=0.05)], [1, 2])
    found = site.ran(Asynchronous(site.clock, site.network).unfold(job, round_of(12, [3, 2]), 1))
    assert (found.samples.tolist(), found.steps.tolist(), found.pushes.tolist()) == ([8, 4], [3, 2], [3, 1])
    assert found.busy_s == pytest.approx([0.8, 0.8])
    assert found.busy_square == pytest.approx([0.22, 0.32])
    assert found.stall_s == pytest.approx([0.0, 0.4])
    assert found.exposed_s == pytest.approx([0.6, 0.05])
    assert found.finish_s == pytest.approx([1.4, 1.25])
    assert (found.end_s, found.duration_s, found.arrival_s) == pytest.approx((START_S + 1.4, 1.4, 1.4))
    assert (found.staleness, found.kept) == pytest.approx((10 / 12, (8 + 4 / 1.5) / 12))
    assert found.exchange_s == pytest.approx(0.45)
    assert job.steps_of == {0: 3, 1: 2}


def test_pushes_share_the_network_and_a_worker_without_samples_does_nothing() -> None:
    """Of 12 bytes each at 5 bytes/s both have 2.4 s; one alone 1.2 s."""
    site = Site()
    job = pushing([exchange(12.0, 1.2), exchange(12.0, 1.2)], [1, 1])
    both = few(**(vars(round_of(4, [2, 2])) | {"compute_s": np.array([0.5, 0.5]), "input_s": np.zeros(2)}))
    found = site.ran(Asynchronous(site.clock, site.network).unfold(job, both, 1))
    assert found.finish_s == pytest.approx([2.9, 2.9])
    assert found.staleness == pytest.approx(2 / 4)  # the second of both is one update behind
    alone = Site()
    job = pushing([exchange(12.0, 1.2, happens=False), exchange(12.0, 1.2)], [1, 1])
    found = alone.ran(Asynchronous(alone.clock, alone.network).unfold(job, round_of(2, [0, 2]), 1))
    assert found.finish_s == pytest.approx([0.0, 0.6 + 1.2])
    assert (found.samples.tolist(), found.pushes.tolist()) == ([0, 2], [0, 1])
    quiet = Site()
    job = pushing([exchange(12.0, 1.2, happens=False)] * 2, [1, 1])
    found = quiet.ran(Asynchronous(quiet.clock, quiet.network).unfold(job, round_of(3, [3, 0]), 1))
    assert found.finish_s == pytest.approx([0.3, 0.0])


def test_a_round_that_is_stopped_takes_its_pushes_off_the_network() -> None:
    site = Site()
    job, rounds = (
        pushing([exchange(12.0, 1.2), exchange(12.0, 1.2)], [1, 1]),
        Asynchronous(site.clock, site.network),
    )
    seen = []

    def stop() -> None:
        seen.append(site.network.count_on(0))
        job.generation = 2
        rounds.halt(4)
        rounds.halt(4)
        seen.append(site.network.count_on(0))

    life = rounds.unfold(job, round_of(12, [3, 2]), 1)
    site.clock.process(life)
    site.clock.at(START_S + 0.75, lambda _: stop())
    site.clock.run()
    assert seen == [2, 0]
    assert rounds._flows == {}
