"""Redraws the jobs of a trace at other times: sessions and the load of each window are kept."""

from __future__ import annotations

import numpy as np

from equipoise.formats.text.columns import Text
from equipoise.sim.randomness import stream
from equipoise.sim.scenario.model import Redraw
from equipoise.sim.traces.trace import Floats, Ints, Trace, make_trace


def redrawn(trace: Trace, spec: Redraw, seed: int) -> Trace:
    """The jobs of a trace with its sessions in another order within each window, `spec.scale` times as many.

    What changes from seed to seed is which session comes when, within a window, and which are taken twice or not
    at all. With `spec.alike` only sessions of about as much GPU time change places, so that the load stays where it
    was within the window, too. What stays: each session's jobs with their gaps, the times of day at which sessions
    begin, the load of each window (but for sessions that reach beyond it), and so the sizes and durations that go
    together. With `spec.draws` seeds take these orders in turn, so that no more than so many differ.
    """
    session, copies, begin_s, at_s = _order(trace, spec, seed)
    again = _copy(copies)
    rows, of = _rows(session, copies)
    often = again[of]
    names = [trace.name_of(row) + (f"-{n}" if n else "") for row, n in zip(rows.tolist(), often.tolist(), strict=True)]
    return make_trace(
        np.arange(len(rows)),
        trace.arrival_s[rows] - begin_s[of] + at_s[of],
        trace.gpus[rows],
        trace.duration_s[rows],
        priority=trace.priority[rows],
        model=list(trace.model[rows]),
        gpu_share=None if trace.gpu_share is None else trace.gpu_share[rows],
        name=names,
        source=trace.source,
        columns={t: c.take(rows) if isinstance(c, Text) else c[rows] for t, c in trace.columns.items()},
    )


def shifts(trace: Trace, spec: Redraw, seed: int) -> Floats:
    """How much later (s) than in the trace each session of `redrawn` begins; of copies only the first."""
    _, copies, begin_s, at_s = _order(trace, spec, seed)
    later_s: Floats = (at_s - begin_s)[_copy(copies) == 0]
    return later_s


def _order(trace: Trace, spec: Redraw, seed: int) -> tuple[Ints, Ints, Floats, Floats]:
    """(session of each job; for each drawn session its index, begin in the trace and new begin (s))."""
    random = stream(spec.draws[seed % len(spec.draws)] if spec.draws else seed, "redraw")
    session, first = sessions(trace, spec.together)
    begin_s = trace.arrival_s[first]
    window = (begin_s // spec.window).astype(np.int64)
    taken = _taken(len(first), spec.scale, random)
    copies = np.repeat(np.arange(len(first)), taken)
    again = _copy(copies)
    at_s = np.empty(len(copies))
    for k in np.unique(window[copies]):
        here = np.flatnonzero(window[copies] == k)
        places = np.sort(begin_s[window == k])
        if spec.alike is None:
            at_s[here] = random.permutation(_begins(places, len(here), random))
            continue
        own = begin_s[copies[here]]
        own[again[here] > 0] = _between(places, int((again[here] > 0).sum()), random)
        work = np.bincount(session, weights=trace.gpus * trace.duration_s).astype(np.float64)[copies[here]]
        at_s[here] = own[_among_alike(work, spec.alike, random)]
    return session, copies, begin_s[copies], at_s


def _copy(copies: Ints) -> Ints:
    """Copy number of each drawn session, ascending."""
    return np.arange(len(copies)) - np.searchsorted(copies, copies)


def sessions(trace: Trace, together_s: float) -> tuple[Ints, Ints]:
    """(session of each job (jobs,), its first job (sessions,)).

    A session goes on while the next job of the same user, where the trace names users, and the same number of
    GPUs comes within `together_s` of the one before.
    """
    users = trace.columns.get("user")
    who = list(users) if isinstance(users, Text) else [""] * len(trace)
    session = np.empty(len(trace), dtype=np.int64)
    first: list[int] = []
    last: dict[tuple[str, int], tuple[float, int]] = {}
    for row, (arrival_s, key) in enumerate(
        zip(trace.arrival_s.tolist(), zip(who, trace.gpus.tolist(), strict=True), strict=True)
    ):
        before_s, number = last.get(key, (-np.inf, -1))
        if arrival_s - before_s > together_s:
            number = len(first)
            first.append(row)
        session[row] = number
        last[key] = (arrival_s, number)
    return session, np.array(first, dtype=np.int64)


def _taken(count: int, scale: float, random: np.random.Generator) -> Ints:
    """Number of copies of each session, `scale` on average; at least one session is kept."""
    whole = int(scale)
    taken = np.full(count, whole, dtype=np.int64)
    more = round((scale - whole) * count)
    taken[random.permutation(count)[: max(more, 0 if whole else 1)]] += 1
    return taken


def _begins(places: Floats, count: int, random: np.random.Generator) -> Floats:
    """`count` start times (s): those of the window, and further ones between two neighbouring starts."""
    if count <= len(places):
        return random.permutation(places)[:count]
    return np.concatenate((places, _between(places, count - len(places), random)))


def _between(places: Floats, count: int, random: np.random.Generator) -> Floats:
    """Begins (s) drawn between two neighbouring places each."""
    before = random.integers(0, len(places), count)
    after = np.minimum(before + 1, len(places) - 1)
    drawn: Floats = places[before] + random.uniform(size=count) * (places[after] - places[before])
    return drawn


def _among_alike(work: Floats, many: int, random: np.random.Generator) -> Ints:
    """For each session the one whose place it takes: one of a group of `many` that need about as much work.

    Sorted by work, sessions are cut into groups from a place on that is drawn, so that neighbours differ.
    """
    order = np.argsort(work, kind="stable")
    taken = np.arange(len(work))
    cuts = np.arange(int(random.integers(0, many)), len(work), many)
    for group in np.split(order, cuts):
        taken[group] = random.permutation(group)
    return taken


def _rows(session: Ints, copies: Ints) -> tuple[Ints, Ints]:
    """(job, copy) of all jobs of the copied sessions."""
    order = np.argsort(session, kind="stable")
    sizes = np.bincount(session)
    start = np.cumsum(sizes) - sizes
    of = np.repeat(np.arange(len(copies)), sizes[copies])
    inside = np.arange(len(of)) - np.repeat(np.cumsum(sizes[copies]) - sizes[copies], sizes[copies])
    return order[start[copies[of]] + inside], of
