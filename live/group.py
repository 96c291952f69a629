"""The present group of ranks: its control channel, who is in it and where, and how it is formed anew."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from live import rebuild
from live.control import Control
from live.places import Place, my_place, places_from
from live.regroup import EvictedError, Membership, is_transport_error
from live.shares import ShareBackend


class Group:
    """Ranks that train together. Without a membership it never changes."""

    def __init__(
        self,
        membership: Membership | None,
        device: torch.device,
        *,
        backend: ShareBackend,
        control_timeout_s: float,
    ) -> None:
        self.membership = membership
        self._device, self._backend, self._timeout_s = device, backend, control_timeout_s
        self.member = membership.member if membership is not None else dist.get_rank()
        self.places: list[Place] = []  # by rank
        self.parked: list[Place] = []
        self.joins_seen = 0
        self.connect()

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.control.rank

    @property
    def ranks(self) -> int:
        """Ranks in the group."""
        return self.control.ranks

    @property
    def members(self) -> list[int]:
        """Member ids by rank."""
        return [place.member for place in self.places]

    def connect(self) -> None:
        """Open the control channel of the group just formed and learn who is where. Collective."""
        linking = self.membership.connecting() if self.membership is not None else contextlib.nullcontext()
        with linking:
            self.control = Control(self._timeout_s)
            mine = my_place(self.member, self._device, self._backend.quantum, self._backend.fixed)
            raw = self.control.gather_text(mine)
        known = {p.member: p for p in [*self.places, *self.parked]}
        self.places = places_from(raw)
        self._backend.set(self.places[self.rank].share)
        inside = set(self.members)
        outside = self.membership.parked() if self.membership is not None else []
        self.parked = [known[m] for m in outside if m in known and m not in inside]

    def same_on_all_ranks(self, values: Mapping[str, Any]) -> None:
        """Raises ValueError, on every rank, when ranks hold different `values` under one name. Collective."""
        reports = self.control.gather_text(dict(values))
        for name, first in reports[0].items():
            for rank, report in enumerate(reports):
                if report[name] != first:
                    raise ValueError(
                        f"the ranks disagree on {name}: rank 0 has {first}, rank {rank} has {report[name]}; "
                        "give every rank the whole dataset and the same options"
                    )

    def wanted(self, planned: Sequence[int] | None, resize_to: int | None) -> tuple[int, ...] | None:
        """Members of the next group, or None to stay: as planned, with those who ask to join, resized.

        On rank 0 only.
        """
        if self.membership is None:
            return None
        members = list(planned if planned is not None else self.members)
        asked = self.membership.joins_asked()
        if asked > self.joins_seen:
            self.joins_seen = asked
            members += [m for m in self.membership.waiting() if m not in members]
        if resize_to is not None:
            members = sorted(members) + [p.member for p in self.parked if p.member not in members]
            members = members[:resize_to]
        return None if sorted(members) == sorted(self.members) else tuple(members)

    def reform(
        self,
        model: DistributedDataParallel,
        wrapping: Mapping[str, Any],
        boundary: int,
        target: Sequence[int] | None,
    ) -> None:
        """Form the next group, of `target` or of all who are alive, and wrap `model` on it. Collective.

        A member that the target leaves out waits here until it is taken in again. Raises EvictedError,
        `planned` when training ends meanwhile, else when the others went on without this member.
        """
        assert self.membership is not None
        while True:
            self.control.close()
            rebuild.release(model)
            self.membership.leave_group()
            try:
                self.membership.regroup(boundary, target)
            except EvictedError as left_out:
                if not left_out.planned:
                    raise
                self.membership.park()
                boundary = -1
            try:
                rebuild.rewrap(model, wrapping)
                self.connect()
                return
            except Exception as error:
                if not is_transport_error(error):
                    raise
                target = None
