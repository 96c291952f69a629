"""The ranks that train together: their control channel, their places, and the hosts that several of them share."""

from __future__ import annotations

import datetime
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from equipoise.live.group.control import Control
from equipoise.live.group.places import my_place, places_from
from equipoise.live.train.shares import ShareBackend
from equipoise.live.train.sync import Near, groups_by_host
from equipoise.policies.record.export import ExportError


class Group:
    """The ranks of a job. PyTorch's process group, which the script made, never changes."""

    def __init__(
        self,
        device: torch.device,
        *,
        backend: ShareBackend,
        control_timeout_s: float,
        problem: str | None = None,
        levels: bool = False,
        exchanged: Sequence[torch.Tensor] = (),
    ) -> None:
        """`problem`: why this rank cannot begin, sent to all. `levels`: intra-node ranks may exchange tensors like
        `exchanged` among themselves; rank 0's value is used. Collective.

        Raises ExportError when some rank has a problem.
        """
        self.near: Near | None = None  # if there are two levels
        self.near_exchange_s = math.nan
        self.control = Control(control_timeout_s)
        self.rank, self.ranks = self.control.rank, self.control.ranks
        mine = my_place(self.rank, device, backend.quantum, backend.fixed)
        reports = self.control.gather_text({"run": _new_run(), "place": mine, "problem": problem, "levels": levels})
        for rank, report in enumerate(reports):
            if report["problem"] is not None:
                self.control.close()
                raise ExportError(f"rank {rank}: {report['problem']}")
        self.run: str = reports[0]["run"]  # the id of this run, the same on every rank
        self.places = places_from([report["place"] for report in reports])  # by rank
        backend.set(self.places[self.rank].share)
        found = groups_by_host([report["place"]["host"] for report in reports])
        if found is not None and reports[0]["levels"]:
            self.near = Near(found, datetime.timedelta(seconds=control_timeout_s))
            self.near_exchange_s = float(self.control.gather(np.array([self.near.exchange_s(exchanged)])).max())

    def same_on_all_ranks(self, values: Mapping[str, Any]) -> None:
        """Raise ValueError on every rank if a value differs between ranks. Collective."""
        reports = self.control.gather_text(dict(values))
        for name, first in reports[0].items():
            for rank, report in enumerate(reports):
                if report[name] != first:
                    raise ValueError(
                        f"{name} differs between ranks: rank 0 has {first}, rank {rank} has {report[name]}; "
                        "give every rank the whole dataset and the same options"
                    )


def _new_run() -> str:
    """A unique id; ids sort by start time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"
