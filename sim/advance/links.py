"""Which exchanges and transfers can use each link of the network."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.job.training import TrainingJob


class Links:
    """Which exchanges and transfers can use each link, to tell which exchanges may be disturbed."""

    def __init__(self, capacity_bytes_per_s: Floats) -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s.copy()
        self.load = np.zeros(len(capacity_bytes_per_s))  # bytes/s that all exchanges together can put on it
        self.transfers = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)
        self.users: dict[int, dict[int, None]] = {}  # link -> job rows
        self._of: dict[int, tuple[Ints, Floats]] = {}

    def set_job(self, job: TrainingJob | None, row: int) -> list[int]:
        """Note a job's exchange (None: it has none any more); returns the rows that share a link with it."""
        touched: dict[int, None] = {}
        links, load = self._of.pop(row, (None, None))
        if links is not None and load is not None:
            self.load[links] -= load
            for link in links.tolist():
                del self.users[link][row]
                touched.update(self.users[link])
        if job is not None and job.config.exchange.volume_bytes > 0.0:
            links = job.config.exchange.links
            load = job.config.exchange.usage * job.config.exchange.rate_bytes_per_s
            self._of[row] = (links, load)
            self.load[links] += load
            for link in links.tolist():
                self.users.setdefault(link, {})[row] = None
                touched.update(self.users[link])
        touched.pop(row, None)
        return sorted(touched)

    def disturbed(self, job: TrainingJob) -> bool:
        """Whether anything else may slow the job's exchange."""
        if job.config.exchange.volume_bytes == 0.0:
            return False
        links = job.config.exchange.links
        room = self.capacity_bytes_per_s[links] * (1.0 + 1e-9)
        return bool((self.transfers[links] > 0).any() or (self.load[links] > room).any())
