"""A plan as changes of a queue: jobs that opted in exchange their positions; other jobs are not changed.

The first job of the order gets the highest priority that one of them has now, and so on; those that had these
priorities get the ones that came free. Nice is what moves a job, because the manager keeps counting age and shares
below it, and because taking it back is one number.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.live.queue.manager import QueueChange, QueuedJob, Verb

_MOST_NICE = 2**31 - 4


def exchange(order: Sequence[QueuedJob], waiting: Sequence[QueuedJob]) -> list[QueueChange]:
    """Changes of nice after which `order` comes first among `waiting`, in order; none where it does already.

    order: some of `waiting`, first to start first. Jobs of equal priority are told apart by up to one point each.
    """
    first = {job.id for job in order}
    rest = [job for job in waiting if job.id not in first]
    highest = max((job.priority for job in rest), default=-1)
    if not order or _in_order(order, highest):
        return []
    ranked = sorted((job.priority for job in waiting), reverse=True)
    floor = ranked[len(order)] if rest else -1
    places = []
    for value in reversed(ranked[: len(order)]):
        floor = max(value, floor + 1)
        places.append(floor)
    places.reverse()
    moved = list(zip(order, places, strict=True))
    above = sorted((job for job in rest if job.priority > (ranked[len(order)])), key=_place)
    free = sorted((job.priority for job in order), reverse=True)[len(order) - len(above) :] if above else []
    moved += zip(above, free, strict=True)
    why = [*(f"place {k + 1}" for k in range(len(order))), *["gives way"] * len(above)]
    return [
        QueueChange(Verb.PRIORITY, job.id, _nice(job, place), job.nice, reason)
        for (job, place), reason in zip(moved, why, strict=True)
        if _nice(job, place) != job.nice
    ]


def _place(job: QueuedJob) -> tuple[int, int]:
    """What a manager sorts waiting jobs by."""
    return -job.priority, job.id


def _nice(job: QueuedJob, place: int) -> int:
    """The nice value that gives a job this priority."""
    return max(-_MOST_NICE, min(_MOST_NICE, job.nice + job.priority - place))


def _in_order(order: Sequence[QueuedJob], highest: int) -> bool:
    """Whether these jobs come first already, in this order; highest: the priority of the others."""
    values = [job.priority for job in order]
    return all(a > b for a, b in zip(values, [*values[1:], highest], strict=True))
