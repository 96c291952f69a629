"""Plain twins of what queues compute: quotas in cohorts, fair shares, priorities; written from the documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Node:
    """A queue or cohort of Kueue with what is used: own nominal quota, limits None for none."""

    name: str
    nominal: float
    borrow: float | None = None
    lend: float | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    used: float = 0.0  # of a queue: by its jobs

    def subtree(self) -> float:
        """Its own quota, and what its children lend."""
        return self.nominal + sum(min(c.subtree(), math.inf if c.lend is None else c.lend) for c in self.children)

    def guaranteed(self) -> float:
        """What it never lends."""
        return max(0.0, self.subtree() - self.lend) if self.lend is not None and self.parent else 0.0

    def usage(self) -> float:
        """Of a queue its jobs', of a cohort what its children take beyond what is guaranteed to them."""
        if not self.children:
            return self.used
        return sum(max(0.0, child.usage() - child.guaranteed()) for child in self.children)

    def allows(self, more: float) -> bool:
        """Whether `more` fits: tried, by looking at every bound on the way up."""
        self.used += more
        node: Node | None = self
        fits = True
        while node is not None:
            bound = node.subtree()
            if node.parent is not None:
                bound += math.inf if node.borrow is None else node.borrow
            fits = fits and node.usage() <= bound + 1e-9
            node = node.parent
        self.used -= more
        return fits


def fair_tree_order(parent: Sequence[int], share: Sequence[float], usage: Sequence[float]) -> dict[int, float]:
    """Fair Tree factors of the leaves where no two siblings tie: ranks of a depth-first walk."""
    n = len(parent)
    children = {k: [c for c in range(n) if parent[c] == k] for k in range(n)}

    def total(k: int) -> float:
        return usage[k] + sum(total(c) for c in children[k])

    def level(k: int) -> float:
        mates = children[parent[k]]
        if total(k) == 0:
            return math.inf
        return (share[k] / sum(share[m] for m in mates)) / (total(k) / sum(total(m) for m in mates))

    walk: list[int] = []

    def visit(k: int) -> None:
        for child in sorted(children[k], key=level, reverse=True):
            if children[child]:
                visit(child)
            else:
                walk.append(child)

    visit(0)
    return {leaf: (len(walk) - k) / len(walk) for k, leaf in enumerate(walk)}


def priority(weights: Mapping[str, float], factors: Mapping[str, float]) -> int:
    """Slurm's sum of weighted factors."""
    return int(sum(weights.get(name, 0.0) * factor for name, factor in factors.items()) + 1e-9)
