"""Observed paths: rates of finished transfers, else those of the topology."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.policies.observation import Paths
from equipoise.policies.paths import PathSpeeds
from equipoise.sim.job.listener import Listener
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.network.topology import Topology
from equipoise.sim.network.transfers import Transfer
from equipoise.sim.world.tables import refill


class PathWatch(Listener):
    """Watches transfers end, and fills the table of paths. Both time advances let them end at the same times."""

    def __init__(self, topology: Topology) -> None:
        self.topology, self.speeds = topology, PathSpeeds()

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """A transfer of data has arrived."""
        waited_s = transfer.begin_s - transfer.asked_s
        self.speeds.finished(transfer.source, transfer.target, transfer.size_bytes, transfer.alone_s, waited_s)

    def path(self, source: int, target: int) -> tuple[float, float]:
        """Recent (bytes/s, delay in s) from a node's disk to another node."""
        links, latency_s = self.topology.read_route(source, target)
        promised = float(self.topology.capacity_bytes_per_s[links].min())
        return self.speeds.at(source, target, promised, latency_s)

    def bytes_per_s(self, source: int, target: int) -> float:
        """The rate of `path`."""
        return self.path(source, target)[0]

    def fill(self, table: Paths, jobs: Sequence[TrainingJob]) -> None:
        """One row per pair of a node that stores data and another one that reads it."""
        pairs = set()
        for job in jobs:
            if job.data is not None and job.data.bytes_per_sample > 0.0:
                homes = {home for shard in job.data.homes for home in shard}
                nodes = set(job.config.nodes.tolist())
                pairs |= {(home, node) for home in homes for node in nodes if home != node}
        rows: dict[str, list[float]] = {name: [] for name in Paths.columns}
        for source, target in sorted(pairs):
            rate, delay_s = self.path(source, target)
            for name, value in (("source", source), ("target", target), ("bytes_per_s", rate), ("latency_s", delay_s)):
                rows[name].append(value)
        refill(table, rows)
