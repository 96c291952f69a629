"""Jobs exchange their places: the order is kept, and nobody else's place changes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from equipoise.live.queue.manager import Phase, QueuedJob
from equipoise.live.queue.world import exchange


def job(number: int, priority: int, nice: int = 0, qos: str = "normal", partition: str = "main") -> QueuedJob:
    return QueuedJob(
        number,
        f"job-{number}",
        "u",
        Phase.WAITING,
        "PENDING",
        1,
        (),
        0.0,
        0.0,
        math.nan,
        math.nan,
        math.inf,
        priority,
        nice,
        False,
        False,
        True,
        True,
        "",
        partition,
        qos,
    )


def after(jobs: list[QueuedJob], order: list[int]) -> dict[int, int]:
    """Priorities once the changes for this order are made; nice takes the place of what it was."""
    by = {j.id: j for j in jobs}
    changes = exchange([by[k] for k in order], jobs)
    priority = {j.id: j.priority for j in jobs}
    for change in changes:
        assert change.value != change.was == by[change.job].nice
        priority[change.job] += change.was - change.value
    return priority


@given(st.lists(st.integers(100, 10**6), min_size=1, max_size=30, unique=True), st.data())
def test_the_order_comes_first_and_priorities_are_only_exchanged(priorities: list[int], data: st.DataObject) -> None:
    jobs = [job(k, p, data.draw(st.integers(-50, 50))) for k, p in enumerate(priorities)]
    chosen = data.draw(st.permutations(range(len(jobs))))[: data.draw(st.integers(0, len(jobs)))]
    got = after(jobs, chosen)
    assert sorted(got.values()) == sorted(priorities)
    ranked = sorted(got, key=lambda k: -got[k])
    assert ranked[: len(chosen)] == chosen
    # The others that have not given way stand as they stood.
    still = [k for k in range(len(jobs)) if k not in chosen and got[k] == priorities[k]]
    moved = [k for k in range(len(jobs)) if k not in chosen and got[k] != priorities[k]]
    assert len(moved) <= len(chosen)
    assert sorted(moved, key=lambda k: got[k]) == sorted(moved, key=lambda k: priorities[k])
    assert all(got[k] < min((got[c] for c in chosen), default=10**7) for k in still)


@given(st.lists(st.tuples(st.integers(100, 140), st.sampled_from("nu"), st.sampled_from("pq")), min_size=1), st.data())
def test_no_job_passes_one_of_another_qos_or_partition(told: list[tuple[int, str, str]], data: st.DataObject) -> None:
    """The k-th of a class stays behind all jobs of others that the k-th was behind; so no class loses to another."""
    jobs = [job(k, rank, qos=qos, partition=part) for k, (rank, qos, part) in enumerate(told)]
    got = after(jobs, data.draw(st.permutations(range(len(jobs)))))
    for own in {(j.qos, j.partition) for j in jobs}:
        mine = [j for j in jobs if (j.qos, j.partition) == own]
        above = [j.priority for j in jobs if (j.qos, j.partition) != own and j.priority > max(m.priority for m in mine)]
        assert max(got[j.id] for j in mine) < min(above, default=10**7)
        assert sorted(got[j.id] for j in mine) >= sorted(j.priority for j in mine)
        assert max(got[j.id] for j in mine) < max(j.priority for j in mine) + len(mine)


@given(st.lists(st.integers(100, 103), min_size=2, max_size=20), st.data())
def test_jobs_of_equal_priority_are_told_apart_by_a_point_each(priorities: list[int], data: st.DataObject) -> None:
    jobs = [job(k, p) for k, p in enumerate(priorities)]
    chosen = data.draw(st.permutations(range(len(jobs))))[: data.draw(st.integers(1, len(jobs)))]
    got = after(jobs, chosen)
    ranked = sorted(got, key=lambda k: (-got[k], k))
    assert ranked[: len(chosen)] == chosen
    assert max(got.values()) <= max(priorities) + len(chosen)


def test_an_order_that_holds_already_changes_nothing() -> None:
    jobs = [job(k, 1000 - 10 * k) for k in range(6)]
    assert exchange(jobs[:3], jobs) == []
    assert exchange([], jobs) == []


def test_one_job_that_comes_first_takes_the_first_place_and_one_gives_way() -> None:
    jobs = [job(k, 1000 - k) for k in range(5)]
    assert [(c.job, c.value, c.why) for c in exchange([jobs[3]], jobs)] == [(3, -3, "place 1"), (0, 3, "gives way")]
