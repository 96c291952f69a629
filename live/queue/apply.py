"""A plan as changes of a queue: jobs that opted in exchange their positions; other jobs are not changed.

Only jobs of one partition and QOS exchange: between those, the site has decided. The first job of the order gets the
highest priority that one of them has now, and so on; those that had these priorities get the ones that came free.
Nice is what moves a job, because the manager keeps counting age and shares below it, and because taking it back is
one number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.live.queue.manager import QueueChange, QueuedJob, Verb

_MOST_NICE = 2**31 - 4


def class_of(job: QueuedJob) -> tuple[str, str]:
    """Partition and QOS: jobs that differ in one of them were put in order by the site."""
    return job.partition, job.qos


def exchange(
    order: Sequence[QueuedJob], waiting: Sequence[QueuedJob], others: Sequence[QueuedJob] = (), across_qos: bool = False
) -> list[QueueChange]:
    """Changes of nice after which the jobs of `order` come first in their class, in order; none where they do.

    order: some of `waiting`, first to start first. others: further jobs that wait. A class is a partition and a QOS,
    or with across_qos a partition: its jobs keep the priorities that they have together.
    """
    classes: dict[tuple[str, ...], list[QueuedJob]] = {}
    for job in waiting:
        classes.setdefault(class_of(job)[: 1 if across_qos else 2], []).append(job)
    found = []
    for key, members in classes.items():
        ids = {job.id for job in members}
        top = max(job.priority for job in members)
        above = (job.priority for job in (*waiting, *others) if job.priority > top and job.id not in ids)
        first = [job for job in order if class_of(job)[: len(key)] == key]
        found += _exchange(first, members, min(above, default=math.inf))
    return found


def _exchange(order: Sequence[QueuedJob], waiting: Sequence[QueuedJob], below: float) -> list[QueueChange]:
    """Changes within one class; below: what no priority may reach.

    Jobs of equal priority are told apart by up to one point each; where that would reach `below`, fewer are placed.
    """
    while order:
        first = {job.id for job in order}
        rest = [job for job in waiting if job.id not in first]
        if _in_order(order, max((job.priority for job in rest), default=-1)):
            return []
        ranked = sorted((job.priority for job in waiting), reverse=True)
        floor = ranked[len(order)] if rest else -1
        places: list[int] = []
        for value in reversed(ranked[: len(order)]):
            floor = max(value, floor + 1)
            places.append(floor)
        if floor < below:
            return _changes(order, rest, places[::-1], ranked)
        order = order[:-1]
    return []


def _changes(
    order: Sequence[QueuedJob], rest: Sequence[QueuedJob], places: Sequence[int], ranked: Sequence[int]
) -> list[QueueChange]:
    moved = list(zip(order, places, strict=True))
    above = sorted((job for job in rest if job.priority > ranked[len(order)]), key=_place)
    free = sorted((job.priority for job in order), reverse=True)[len(order) - len(above) :] if above else []
    moved += zip(above, free, strict=True)
    why = [*(f"place {k + 1}" for k in range(len(order))), *["gives way"] * len(above)]
    found = [
        QueueChange(Verb.PRIORITY, job.id, job.nice + job.priority - place, job.nice, reason)
        for (job, place), reason in zip(moved, why, strict=True)
        if job.priority != place
    ]
    return found if all(abs(change.value) <= _MOST_NICE for change in found) else []


def _place(job: QueuedJob) -> tuple[int, int]:
    """What a manager sorts waiting jobs by."""
    return -job.priority, job.id


def _in_order(order: Sequence[QueuedJob], highest: int) -> bool:
    """Whether these jobs come first already, in this order; highest: the priority of the others."""
    values = [job.priority for job in order]
    return all(a > b for a, b in zip(values, [*values[1:], highest], strict=True))
