"""Contention: how exchanges of other jobs over the same nodes slow that of a job that would grow there."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from equipoise.policies.allocation.elastic import held_gpus, slowest_models
from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.allocation.ranking import NodeState
from equipoise.policies.kernels.gangs import frozen
from equipoise.policies.kernels.jit import jit_in_place
from equipoise.policies.kernels.scaling import ScalingColumns, TableColumns, exchanging_of, times_of
from equipoise.policies.observation import Bools, Floats, Ints


@jit_in_place
def spanned(holder: Ints, node: Ints, count: Ints, seen: Ints) -> None:
    """Count the nodes on which each job (row) holds whole GPUs; `seen` is scratch, -1 per job.

    holder, node: of each GPU, grouped by node.
    """
    for g in range(holder.size):
        job = holder[g]
        if job >= 0 and seen[job] != node[g]:
            seen[job] = node[g]
            count[job] += 1


@jit_in_place
def add_to_nodes(holder: Ints, node: Ints, share: Floats, seen: Ints, busy: Floats) -> None:
    """Add each job's share to every node on which it holds whole GPUs; arguments as for `spanned`."""
    for g in range(holder.size):
        job = holder[g]
        if job >= 0 and seen[job] != node[g]:
            seen[job] = node[g]
            busy[node[g]] += share[job]


class Exchanges:
    """Share of the time in which the jobs of a proposal exchange over the links of each node.

    Links are shared fairly: if other jobs exchange for a share s of the time (in sum, on the busiest of a job's
    nodes), an exchange that leaves a node takes 1 + s times as long as alone.
    """

    def __init__(self, proposal: Proposal, nodes: NodeState, scaling: ScalingColumns, table: TableColumns) -> None:
        self._draft, self._nodes, self._scaling, self._table = proposal, nodes, scaling, table

    @cached_property
    def _busy(self) -> Floats:
        """Per node, the sum of the shares of time in which jobs exchange over its links."""
        o, holder = self._draft.observation, self._draft.holder
        count, seen = np.zeros(len(o.jobs), dtype=np.int64), np.full(len(o.jobs), -1)
        spanned(holder, o.gpus.node, count, seen)
        rows = np.flatnonzero((count > 1) & ~o.jobs.rigid)
        share, busy = np.zeros(len(o.jobs)), np.zeros(len(o.nodes))
        share[rows] = self._exchanging(rows, *held_gpus(holder, rows))
        seen[:] = -1
        add_to_nodes(holder, o.gpus.node, frozen(share), seen, busy)
        return busy

    def _exchanging(self, rows: Ints, offset: Ints, gpu: Ints) -> Floats:
        """Share of its time, 0..1, that each job (row) would exchange with these GPUs, in compressed rows."""
        o = self._draft.observation
        per, share = np.maximum(o.jobs.gpus_per_worker[rows], 1), np.zeros(len(rows))
        model = slowest_models(o, self._nodes, offset, gpu)
        now, workers = o.jobs.gpus_held[rows] // per, np.diff(offset) // per
        exchanging_of(frozen(rows), now, workers, model, self._scaling, self._table, share)
        return share

    def _nodes_of(self, gpus: Ints) -> Ints:
        """Nodes whose links an exchange among these GPUs uses."""
        nodes = np.unique(self._draft.observation.gpus.node[gpus])
        return nodes if len(nodes) > 1 else nodes[:0]

    def without(self, row: int, gpus: Ints, sign: float = -1.0) -> None:
        """Remove the exchanges of a job that holds these GPUs from their nodes' links."""
        share = self._exchanging(np.array([row]), np.array([0, len(gpus)]), gpus)
        self._busy[self._nodes_of(gpus)] += sign * share[0]

    def beside(self, row: int, gpus: Ints) -> None:
        """Add the exchanges of a job that holds these GPUs to their nodes' links."""
        self.without(row, gpus, 1.0)

    def longer(self, gpus: Ints) -> float:
        """Slowdown of an exchange among these GPUs by the exchanges on the links now."""
        return 1.0 + float(self._busy[self._nodes_of(gpus)].max(initial=0.0))

    def crossed(self, gpus: Ints) -> Bools:
        """Per node: whether exchanges use its links and it has none of these GPUs."""
        crossed: Bools = self._busy > 1e-9
        crossed[self._draft.observation.gpus.node[gpus]] = False
        return crossed

    def gain_s(self, row: int, held: Ints, new: Ints, cost_s: float, alone_s: float, margin: float) -> float:
        """Seconds that a job gains with `new` GPUs in place of `held`, with the exchanges on the links now.

        alone_s: its gain without them, restart `cost_s` deducted. 0 where a step does not shorten by `margin`.
        """
        here, there = self.longer(held), self.longer(new)
        if there <= here:
            return alone_s
        o, table = self._draft.observation, self._table
        per = max(int(o.jobs.gpus_per_worker[row]), 1)
        now, workers = int(o.jobs.gpus_held[row]) // per, np.array([len(held), len(new)]) // per
        model = slowest_models(o, self._nodes, np.array([0, len(held), len(held) + len(new)]), np.append(held, new))
        seen = now == workers[0] > 1 and o.jobs.exchange_s[row] > 0.0  # it was measured beside the others
        as_it_is = (table[1] == model[0]) & (table[2] == len(held))
        factor = np.where(as_it_is, 1.0, there / here) if seen else np.where(as_it_is, here, there)
        slowed = (*table[:4], frozen(np.where(table[0] == row, table[4] * factor, table[4])), table[5])
        step_s = np.empty((2, 2))
        for columns, result_s in zip((table, slowed), step_s, strict=True):
            times_of(
                frozen(np.array([row])),
                np.array([now]),
                model[:1],
                np.zeros(2, dtype=np.int64),
                workers,
                model,
                self._scaling,
                columns,
                result_s,
            )
        ratio = step_s[:, 1] / step_s[:, 0]
        if not ratio[0] < 1.0 or ratio[1] > 1.0 - margin:
            return 0.0
        left_s = (alone_s + cost_s) / (1.0 - ratio[0])
        return float(left_s * (1.0 - ratio[1]) - cost_s)
