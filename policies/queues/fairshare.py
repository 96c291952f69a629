"""Slurm's fair-share factors from usage that decays: Fair Tree, and the classic formula.

Fair Tree: https://slurm.schedmd.com/fair_tree.html; classic: https://slurm.schedmd.com/classic_fair_share.html.
A tree is `parent` (rows,; -1 for the root, parents before children), `share` and `usage`; its leaves are users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from equipoise.policies.contract import Memory
from equipoise.policies.observation import Floats, Ints, Observation


def decayed(usage: Floats, added: Floats, span_s: float, half_life_s: float) -> Floats:
    """Usage (GPU-seconds) after a span in which `added` accrued evenly, with decay by half per half-life."""
    x = math.log(2.0) * span_s / half_life_s
    if x <= 0.0:
        return usage + added
    return usage * math.exp(-x) + added * (-math.expm1(-x) / x)


def usage_now(o: Observation, memory: Memory) -> Memory:
    """Decayed usage of each row of the fair-share tree: `usage` (rows,), with what the next call needs.

    counted: the usage at `counted_s`, when priorities were calculated last: every `period_s`, 0 for now.
    """
    q, jobs = o.queues, o.jobs
    known = jobs.claim >= 0
    leaf = q.share_leaf[jobs.claim[known]]
    attained = np.bincount(leaf, weights=jobs.attained_gpu_s[known], minlength=len(q.share))
    before = memory.get("attained", np.zeros(len(q.share)))
    usage = memory.get("usage", np.zeros(len(q.share)))
    span_s = o.time_s - memory.get("time_s", o.time_s)
    added, half_life_s = np.maximum(attained - before, 0.0), q.numbers.get("half_life_s", math.inf)
    now = decayed(usage, added, span_s, half_life_s)
    period_s = q.numbers.get("period_s", 0.0)
    counted, counted_s = now, o.time_s - math.fmod(o.time_s, period_s) if period_s else o.time_s
    if counted_s <= o.time_s - span_s:
        counted = memory.get("counted", now)
    elif counted_s < o.time_s:  # the same jobs have run all the while
        part = 1.0 - (o.time_s - counted_s) / span_s
        counted = decayed(usage, added * part, span_s * part, half_life_s)
    return {"attained": attained, "usage": now, "time_s": o.time_s, "counted": counted, "counted_s": counted_s}


def totals(parent: Ints, usage: Floats) -> Floats:
    """Usage of whole subtrees from that of the leaves."""
    total = usage.copy()
    for row in range(len(parent) - 1, 0, -1):
        total[parent[row]] += total[row]
    return total


def _children(parent: Ints) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in parent]
    for row in range(1, len(parent)):
        found[int(parent[row])].append(row)
    return found


def level_shares(parent: Ints, share: Floats, usage: Floats) -> Floats:
    """Level fair share of each row: its part of the siblings' shares over its part of their usage.

    Infinite without usage, 0 without shares.
    """
    total, children = totals(parent, usage), _children(parent)
    level = np.full(len(parent), math.inf)
    for rows in children:
        shares, used = math.fsum(share[row] for row in rows), math.fsum(total[row] for row in rows)
        for row in rows:
            if share[row] <= 0.0:
                level[row] = 0.0
            elif total[row] > 0.0:
                level[row] = (share[row] / shares) / (total[row] / used)
    return level


def fair_tree(parent: Ints, share: Floats, usage: Floats) -> Floats:
    """Factor of each leaf: its rank, the best having 1, over the number of leaves; 0 for other rows.

    Siblings are visited by descending level fair share. Tied users share a rank; the children of tied accounts are
    merged; a user tied with an account has the rank of that account's best user.
    """
    children, level = _children(parent), level_shares(parent, share, usage)
    factor, leaves = np.zeros(len(parent)), sum(not rows for rows in children[1:])

    def visit(rows: Sequence[int], rank: int, tied: int) -> int:
        """The next rank; tied: users above that already have this rank."""
        for _, equal in groupby(sorted(rows, key=lambda row: -level[row]), key=lambda row: level[row]):
            group = list(equal)
            users = [row for row in group if not children[row]]
            below = [child for row in group for child in children[row]]
            factor[users] = rank / leaves
            tied += len(users)
            rank, tied = visit(below, rank, tied) if below else rank - tied, 0
        return rank

    visit(children[0], leaves, 0)
    return factor


def classic(parent: Ints, share: Floats, usage: Floats) -> Floats:
    """Factor 2^(-U/S) of each row: S its part of all shares, U its effective usage.

    U of a child is its own usage u plus (U of its parent - u) times its part of the siblings' shares; directly below
    the root it is u (`usage_efctv = usage_norm` in Slurm's priority_multifactor.c).
    """
    total, children = totals(parent, usage), _children(parent)
    part, effective = np.ones(len(parent)), np.ones(len(parent))
    whole = total[0] if total[0] > 0.0 else 1.0
    for above, rows in enumerate(children):
        shares = math.fsum(share[row] for row in rows)
        for row in rows:
            mine = float(share[row]) / shares if shares > 0.0 else 0.0
            part[row] = part[above] * mine
            used = total[row] / whole
            effective[row] = used + (effective[above] - used) * mine if above else used
    safe = np.where(part > 0.0, part, 1.0)
    return np.where(part > 0.0, np.exp2(-effective / safe), 0.0)
