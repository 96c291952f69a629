"""Plain twins: SRPT by small steps over sorted lists, and a list scheduler that respects every rule."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def srpt_total_completion(arrival: Sequence[float], size: Sequence[float]) -> Fraction:
    """Sum of completion minus arrival under preemptive SRPT on one machine, in exact arithmetic."""
    left = [Fraction(s) for s in size]
    at = [Fraction(a) for a in arrival]
    now, total, undone = Fraction(0), Fraction(0), set(range(len(at)))
    while undone:
        here = [j for j in undone if at[j] <= now]
        later = [at[j] for j in undone if at[j] > now]
        if not here:
            now = min(later)
            continue
        j = min(here, key=lambda j: (left[j], j))
        until = min([now + left[j], *later])
        left[j] -= until - now
        now = until
        if left[j] == 0:
            total += now - at[j]
            undone.remove(j)
    return total


def list_schedule(
    arrival: Sequence[float], gpus: Sequence[int], duration: Sequence[float], pool: int, order: Sequence[int]
) -> list[float]:
    """Completion of rigid jobs on `pool` counted GPUs: whenever one fits it starts, in the given order."""
    completion, running, waiting, now, free = [0.0] * len(arrival), [], list(order), 0.0, pool
    while waiting or running:
        for end, j in [entry for entry in running if entry[0] <= now]:
            running.remove((end, j))
            free += gpus[j]
        for j in list(waiting):
            if arrival[j] <= now and gpus[j] <= free:
                waiting.remove(j)
                free -= gpus[j]
                completion[j] = now + duration[j]
                running.append((completion[j], j))
        future = [end for end, _ in running] + [arrival[j] for j in waiting if arrival[j] > now]
        if future:
            now = min(future)
    return completion
