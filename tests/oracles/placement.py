"""Plain twins of the kernels that place gangs, check allocations and order the baselines, written to be read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FULL = 1.0 - 1e-9


@dataclass
class Node:
    """A node: its GPUs as [row, room, memory], whether it is up, and its weight and group."""

    gpus: list[list]
    up: bool = True
    weight: float = 1.0
    group: int = 0

    def usable(self, share, need):
        """Rows of GPUs with room and memory, lowest first."""
        if not self.up:
            return []
        return [row for row, room, memory in self.gpus if room >= share - 1e-9 and not memory < need]

    def size(self, need):
        """GPUs with memory enough."""
        return sum(1 for _, _, memory in self.gpus if not memory < need)


def place(nodes, wanted, share, need, rule, alike=False):
    """GPU rows that a gang gets, or None when it must wait; takes them out of `nodes`. alike: in one group."""
    if wanted <= 0:
        return None
    groups = max(node.group for node in nodes) + 1
    if alike and wanted > 1 and groups > 1:
        if rule == "weighted":
            free = [len(node.usable(share, need)) for node in nodes]
            found = [_heaviest(nodes, free, wanted, group) for group in range(groups)]
            best = max((f for f in found if f is not None), key=lambda f: f[1], default=None)
            inside = {n for n, _ in best[0]} if best else set()
            nodes = [node if n in inside else Node([], node.up) for n, node in enumerate(nodes)]
            return place(nodes, wanted, share, need, rule) if best else None
        parts = [[n if n.group == g else Node([], n.up) for n in nodes] for g in range(groups)]
        return next((rows for part in parts if (rows := place(part, wanted, share, need, rule))), None)
    if wanted == 1 and share < FULL and rule != "counted":
        fitting = [
            gpu for node in nodes if node.up for gpu in node.gpus if gpu[1] >= share - 1e-9 and not gpu[2] < need
        ]
        if not fitting:
            return None
        least = min(gpu[1] for gpu in fitting)
        return _take(nodes, [min(gpu[0] for gpu in fitting if gpu[1] <= least + 1e-12)], share)
    free = [len(node.usable(share, need)) for node in nodes]
    chosen = {"counted": _counted, "any": _any, "packed": _packed, "weighted": _weighted}[rule](
        nodes, free, wanted, need
    )
    if chosen is None or sum(count for _, count in chosen) < wanted:
        return None
    rows = [row for n, count in chosen for row in nodes[n].usable(share, need)[:count]]
    return _take(nodes, rows, share)


def _take(nodes, rows, share):
    for node in nodes:
        for gpu in node.gpus:
            if gpu[0] in rows:
                gpu[1] = max(gpu[1] - share, 0.0)
    return rows


def _counted(nodes, free, wanted, need):
    chosen = []
    for n, count in enumerate(free):
        if wanted and count:
            chosen.append((n, min(count, wanted)))
            wanted -= chosen[-1][1]
    return chosen


def _fit(free, wanted):
    enough = [(count, n) for n, count in enumerate(free) if count >= wanted]
    return min(enough)[1] if enough else None


def _any(nodes, free, wanted, need):
    free, chosen = list(free), []
    while wanted:
        n = _fit(free, wanted)
        if n is None:
            if not max(free, default=0):
                return None
            n = free.index(max(free))
        chosen.append((n, min(free[n], wanted)))
        wanted -= chosen[-1][1]
        free[n] = 0
    return chosen


def _packed(nodes, free, wanted, need):
    free, chosen, used = list(free), [], set()
    sizes = [node.size(need) if node.up else 0 for node in nodes]
    for level in sorted({size for size in sizes if size}, reverse=True):
        alike = [n for n, size in enumerate(sizes) if size == level]
        whole = min(len(alike), wanted // level)
        empty = [n for n in alike if free[n] == level][:whole]
        if len(empty) < whole:
            return None
        for n in empty:
            chosen.append((n, level))
            used.add(n)
            free[n] = 0
            wanted -= level
        if not wanted:
            return chosen
        if wanted < level and len(alike) > whole:
            n = _fit(free, wanted)
            return None if n is None else [*chosen, (n, wanted)]
    return None


def _weighted(nodes, free, wanted, need):
    groups = sorted({node.group for node in nodes})
    best = None
    if max(groups) > 0:
        for group in range(max(groups) + 1):
            found = _heaviest(nodes, free, wanted, group)
            if found is not None and (best is None or found[1] > best[1]):
                best = found
    if best is None:
        best = _heaviest(nodes, free, wanted, None)
    return None if best is None else best[0]


def _heaviest(nodes, free, wanted, group):
    order = sorted(range(len(nodes)), key=lambda n: -nodes[n].weight)
    free, chosen, worth = list(free), [], 0.0
    while wanted:
        values = {n: min(free[n], wanted) * nodes[n].weight for n in order}
        able = [n for n in order if values[n] > 0 and (group is None or nodes[n].group == group)]
        if not able:
            return None
        n = max(able, key=lambda n: values[n])  # the first of the best in order
        chosen.append((n, min(free[n], wanted)))
        worth += values[n]
        wanted -= chosen[-1][1]
        free[n] -= chosen[-1][1]
    return chosen, worth


@dataclass
class Job:
    """A job as the checks and schedulers below see it."""

    row: int
    gpus: int
    rigid: bool = True
    per: int = 1
    fewest: int = 1
    most: int = 1
    memory: float = 0.0
    done: bool = False
    holds: dict[int, float] = field(default_factory=dict)


def fault(entries, jobs, gpus):
    """Code of the first fault of an allocation, 0 when feasible; as `contract._ALLOCATION_FAULTS` up to 11.

    entries: (job row, [(GPU row, share)]); jobs: rows to `Job`; gpus: rows to (up, memory, share free).
    """
    rows = [row for row, _ in entries]
    if any(row not in jobs for row in rows) or len(set(rows)) < len(rows):
        return 1
    for row, got in entries:
        job = jobs[row]
        if job.done:
            return 2
        shrinks = job.most > job.fewest and job.per * job.fewest <= len(got) < job.gpus
        whole = len(got) % job.per == 0
        if got and job.rigid and len(got) != job.gpus and not (shrinks and whole):
            return 6
        if got and not job.rigid and (len(got) % job.per or not job.fewest <= len(got) // job.per <= job.most):
            return 7
        for gpu, share in got:
            if gpu not in gpus:
                return 3
            up, memory, _ = gpus[gpu]
            if not up:
                return 4
            if not 0 < share <= 1:
                return 10
            if memory < job.memory:
                return 8
    wanted: dict[int, float] = {}
    seen = set()
    for row, got in entries:
        for gpu, share in got:
            if (row, gpu) in seen:
                return 9
            seen.add((row, gpu))
            wanted[gpu] = wanted.get(gpu, 0.0) + share
    given_up = {gpu: sum(jobs[row].holds.get(gpu, 0.0) for row in rows) for gpu in wanted}
    return 5 if any(share > gpus[gpu][2] + given_up[gpu] + 1e-9 for gpu, share in wanted.items()) else 0


def start_in_order(queue, free, strict):
    """Jobs (row, gpus) of a queue that start on `free` counted GPUs."""
    started = []
    for row, gpus in queue:
        if gpus <= free:
            started.append(row)
            free -= gpus
        elif strict:
            break
    return started


def easy(queue, free, running, now):
    """EASY on counted GPUs. queue: (row, gpus, service); running: (gpus, service); returns rows started."""
    started, running = [], [(now + max(service, 0.0), gpus) for gpus, service in running]
    queue = list(queue)
    while queue and queue[0][1] <= free:
        row, gpus, service = queue.pop(0)
        started.append(row)
        free -= gpus
        running.append((now + max(service, 0.0), gpus))
    if not queue:
        return started
    head, shadow, later = queue[0][1], math.nan, free
    for end, gpus in sorted(running):
        if end > shadow * (1 + 1e-12):  # all that end at that time count
            break
        later += gpus
        if math.isnan(shadow) and later >= head:
            shadow = end
    extra = later - head
    for row, gpus, service in queue[1:]:
        late = not math.isnan(shadow) and now + service > shadow
        if gpus > free or (late and gpus > extra):
            continue
        started.append(row)
        free -= gpus
        if late:
            extra -= gpus
    return started


def preempt(queue, free, running):
    """Counted GPUs. queue: (key, row, gpus) in order; running: (bar, row, gpus). Returns (stopped, started)."""
    victims, started, stopped = sorted(running, key=lambda v: (-v[0], -v[1])), [], []
    for key, row, gpus in queue:
        taken, got = [], free
        for victim in victims:
            if got >= gpus or victim[0] <= key:
                break
            taken.append(victim)
            got += victim[2]
        if got < gpus:
            continue
        for victim in reversed(taken):  # who is not needed keeps running
            if got - victim[2] >= gpus:
                got -= victim[2]
                taken.remove(victim)
        free = got - gpus
        started.append(row)
        for victim in taken:
            victims.remove(victim)
            stopped.append(victim[1])
    return sorted(stopped), started
