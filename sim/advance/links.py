"""Which exchanges and transfers can use each link of the network."""

from __future__ import annotations

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.job.training import TrainingJob


def _uses(job: TrainingJob | None) -> tuple[Ints, Floats]:
    """Links that a job's exchanges use, and the highest rate (bytes/s) on each over the levels."""
    if job is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    far, near = job.config.exchange, job.config.near
    load = far.usage * far.rate_bytes_per_s
    if job.progress.far_every == 1 or near.volume_bytes == 0.0:
        return (far.links, load) if far.volume_bytes > 0.0 else (far.links[:0], load[:0])
    links, place = np.unique(np.concatenate((far.links, near.links)), return_inverse=True)
    most = np.zeros(len(links))
    np.maximum.at(most, place, np.concatenate((load, near.usage * near.rate_bytes_per_s)))
    return links, most


class Links:
    """Exchanges and transfers on each link, to find out which exchanges may be disturbed."""

    def __init__(self, capacity_bytes_per_s: Floats) -> None:
        self.capacity_bytes_per_s = capacity_bytes_per_s.copy()
        self.load = np.zeros(len(capacity_bytes_per_s))  # bytes/s that all exchanges together can put on it
        self.transfers = np.zeros(len(capacity_bytes_per_s), dtype=np.int64)
        self.users: dict[int, dict[int, None]] = {}  # link -> job rows
        self._of: dict[int, tuple[Ints, Floats]] = {}

    def set_job(self, job: TrainingJob | None, row: int) -> list[int]:
        """Set a job's exchange (None: no longer any); returns the rows of jobs that share a link with it."""
        touched: dict[int, None] = {}
        links, load = self._of.pop(row, (None, None))
        if links is not None and load is not None:
            self.load[links] -= load
            for link in links.tolist():
                del self.users[link][row]
                touched.update(self.users[link])
        links, load = _uses(job)
        if len(links):
            self._of[row] = (links, load)
            self.load[links] += load
            for link in links.tolist():
                self.users.setdefault(link, {})[row] = None
                touched.update(self.users[link])
        touched.pop(row, None)
        return sorted(touched)

    def disturbed(self, job: TrainingJob) -> bool:
        """Whether anything else may slow the job's exchange."""
        if job.row not in self._of:
            return False
        links, _ = self._of[job.row]
        room = self.capacity_bytes_per_s[links] * (1.0 + 1e-9)
        return bool((self.transfers[links] > 0).any() or (self.load[links] > room).any())
