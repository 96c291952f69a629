"""The queues that a site declares, as integer codes with their names: access, limits and order.

A *claim* is one distinct (user, account, partition, QOS, queue) that jobs are submitted under. A *limit* is one
bound on the GPUs or the number of jobs that some claims hold together. Limits form trees: what a limit uses beyond
what it keeps for itself (`gpus_kept`) counts for its parent as well. That is how Kueue counts quotas in cohorts
(nominal quota, borrowing and lending limits: kueue `pkg/cache/scheduler/resource_node.go`); a limit of Slurm keeps
nothing, so that all of it counts for the accounts above (Slurm, "Resource Limits").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESOURCES = ("cpu", "mem", "node")
"""Resources other than GPUs that limits bound: cores, host memory (bytes), nodes."""
KINDS = ("user", "account", "partition", "qos", "queue")
NEVER, LOWER_PRIORITY, LOWER_OR_NEWER, ANY_PRIORITY = range(4)
NO_PLACE, RACK_PREFERRED, RACK_REQUIRED, NODE_PREFERRED, NODE_REQUIRED = range(5)
"""Topology request of a job: column `together` of the jobs table."""


def _ints(*shape: int) -> Ints:
    return np.empty(shape or (0,), dtype=np.int64)


def _floats() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, slots=True, eq=False)
class Queues:
    """All declared queues; `EMPTY` where none is declared.

    names: of each of KINDS, and of `limit`, by code. claims (claims, 5): codes in the order of KINDS, -1 none.
    nodes (claims, nodes): which nodes a claim may use; (claims, 0): all. leaf (claims, most): its limits, -1 none.

    Of limits: parent (-1 none; a parent stands before its children), gpus_max and jobs_max (inf: none), gpus_kept,
    gpus_nominal (what is its own; more is borrowed), models: bits of the GPU models that it counts, -1 all.
    resource: -1 for GPUs; else it bounds that column of tres (claims, RESOURCES), which each job of a claim takes,
    and `gpus_max` counts that.

    Of claims for `multifactor`: tier, and factors 0..1 of partition and QOS; share_leaf, a row of the fair-share
    tree with share_parent and share; spared: never stopped for others. preempts (QOS, QOS): which QOS may stop
    which; qos_priority. numbers: of `queues.priority`, `queues.backfill` and `queues.preemption` by name.

    Of queues for `kueue`: strict, reclaim, within (NEVER ...), weight, owner (limits,): whose limit it is, -1 none;
    borrows_below: while it borrows, it may stop jobs of other queues with a priority below this, -inf none.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: Ints = field(default_factory=lambda: _ints(0, len(KINDS)))
    nodes: Bools = field(default_factory=lambda: np.empty((0, 0), dtype=np.bool_))
    leaf: Ints = field(default_factory=lambda: _ints(0, 0))
    parent: Ints = field(default_factory=_ints)
    gpus_max: Floats = field(default_factory=_floats)
    gpus_kept: Floats = field(default_factory=_floats)
    gpus_nominal: Floats = field(default_factory=_floats)
    jobs_max: Floats = field(default_factory=_floats)
    models: Ints = field(default_factory=_ints)
    resource: Ints = field(default_factory=_ints)
    tres: Floats = field(default_factory=lambda: np.empty((0, 0)))
    tier: Ints = field(default_factory=_ints)
    partition_factor: Floats = field(default_factory=_floats)
    qos_factor: Floats = field(default_factory=_floats)
    share_leaf: Ints = field(default_factory=_ints)
    share_parent: Ints = field(default_factory=_ints)
    share: Floats = field(default_factory=_floats)
    spared: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    preempts: Bools = field(default_factory=lambda: np.empty((0, 0), dtype=np.bool_))
    qos_priority: Floats = field(default_factory=_floats)
    numbers: Mapping[str, float] = field(default_factory=dict)
    strict: Bools = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    reclaim: Ints = field(default_factory=_ints)
    within: Ints = field(default_factory=_ints)
    weight: Floats = field(default_factory=_floats)
    owner: Ints = field(default_factory=_ints)
    borrows_below: Floats = field(default_factory=_floats)
    restricts: bool = False

    def codes(self, claim: Ints, kind: str) -> Ints:
        """Codes of one of KINDS for rows of claims, -1 where there is none."""
        column = self.claims[:, KINDS.index(kind)]
        return np.where(claim >= 0, column[claim], -1) if len(column) else np.full(len(claim), -1)

    def name(self, kind: str, code: int) -> str:
        """The name of a code, "" for none."""
        return self.names[kind][code] if code >= 0 else ""


EMPTY = Queues()
