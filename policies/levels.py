"""Levels of the network: groups of workers with fast links, and the drift left by exchanges inside groups.

Near workers are those in one rack, where the job spans several, else those on one node. Hierarchical local SGD (Lin
et al. 2020, "Don't use large mini-batches, use local SGD", section 5): near workers exchange every H steps, all of
them every m * H.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Ints


def near_groups(node: Ints, rack: Ints) -> Ints | None:
    """Group (workers,) of each worker on nodes `node` (workers,), whose racks are `rack` (nodes,); None: one level.

    Groups are numbered from 0. One level where all workers are near, or none is near to another.
    """
    for place in (rack[node], node):
        groups, group = np.unique(place, return_inverse=True)
        if 1 < len(groups) < len(node):
            return group.astype(np.int64)
    return None


def far_ratio(group: Ints) -> float:
    """Part of the workers' drift that is left by exchanges inside the groups (workers,), 0..1.

    Workers that drift apart independently of each other differ by the same in each of n - 1 directions; the groups'
    means differ in (groups - 1) of them (as in an analysis of variance).
    """
    return int(group.max()) / (len(group) - 1)


def mean_interval(interval: int, far_every: int, ratio: float) -> float:
    """The one-level H with the same drift: 1 + ratio * (m H - 1) + (1 - ratio) * (H - 1)."""
    return interval * (1.0 + ratio * (far_every - 1))
