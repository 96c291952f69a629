"""The present group of ranks: its control channel, its members and their places, and forming it anew."""

from __future__ import annotations

import contextlib
import datetime
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.group import rebuild
from equipoise.live.group.control import Control
from equipoise.live.group.places import RankPlace, my_place, places_from
from equipoise.live.group.regroup import EvictedError, Membership, is_transport_error, set_timeout
from equipoise.live.train.host_groups import Near, groups_by_host
from equipoise.live.train.shares import ShareBackend
from equipoise.policies.record.export import ExportError


class Group:
    """The ranks that train together; without a membership the group never changes."""

    def __init__(
        self,
        membership: Membership | None,
        device: torch.device,
        *,
        backend: ShareBackend,
        control_timeout_s: float,
        problem: str | None = None,
        model: DistributedDataParallel | None = None,
        levels: bool = False,
        exchanged: Sequence[torch.Tensor] = (),
    ) -> None:
        """`problem`: why this rank cannot begin, sent to all. `model`: wrapped anew if a member dies meanwhile.
        `levels`: intra-node ranks may exchange tensors like `exchanged` among themselves; rank 0's value is used.

        Raises ExportError when some rank has a problem.
        """
        self._levels, self._exchanged = levels, exchanged
        self.near: Near | None = None  # if there are two levels
        self.near_exchange_s = math.nan
        self.membership = membership
        self._device, self._backend, self._timeout_s = device, backend, control_timeout_s
        self.member = membership.member if membership is not None else dist.get_rank()
        self.places: list[RankPlace] = []  # by rank
        self.parked: list[RankPlace] = []
        self.joins_seen = 0
        self.run = ""  # the id of this run, the same on every rank and in every later group
        self.joined = False  # this member joined a running job
        self._problem = problem
        self._control: Control | None = None
        try:
            reports = self.connect()
        except Exception as error:
            if membership is None or model is None or not is_transport_error(error):
                raise
            reports = self.reform(model, rebuild.wrapping(model), -1, None)
        self._begin(reports)

    def _begin(self, reports: Sequence[Mapping[str, Any]]) -> None:
        self._problem = None
        for rank, report in enumerate(reports):
            if report["problem"] is not None:
                self.control.close()
                raise ExportError(f"rank {rank}: {report['problem']}")

    @property
    def control(self) -> Control:
        """The channel between the ranks of the present group."""
        assert self._control is not None
        return self._control

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

    def connect(self) -> Sequence[Mapping[str, Any]]:
        """Open the control channel of the new group and exchange the members' places; reports by rank. Collective."""
        linking = self.membership.connecting() if self.membership is not None else contextlib.nullcontext()
        with linking as connect_timeout:
            self._control = Control(self._timeout_s, connect_timeout)
            mine = my_place(self.member, self._device, self._backend.quantum, self._backend.fixed)
            reports = self.control.gather_text(
                {"run": self.run, "next": _new_run(), "place": mine, "problem": self._problem, "levels": self._levels}
            )
            self.near = self._find_near(reports, connect_timeout)
        first = reports[0]  # rank 0 was in the run before, if any rank was
        self.joined = self.joined or (not self.run and bool(first["run"]))
        self.run = first["run"] or first["next"]
        known = {p.member: p for p in [*self.places, *self.parked]}
        self.places = places_from([report["place"] for report in reports])
        self._backend.set(self.places[self.rank].share)
        inside = set(self.members)
        outside = self.membership.parked() if self.membership is not None else []
        self.parked = [known[m] for m in outside if m in known and m not in inside]
        return reports

    def _find_near(
        self, reports: Sequence[Mapping[str, Any]], connect_timeout: datetime.timedelta | None
    ) -> Near | None:
        """Set up intra-node exchanges, if there are several hosts. Collective."""
        found = groups_by_host([report["place"]["host"] for report in reports])
        if found is None or not reports[0]["levels"]:
            return None
        near = Near(found, connect_timeout or datetime.timedelta(seconds=self._timeout_s))
        set_timeout(self._timeout_s, near.own)
        self.near_exchange_s = float(self.control.gather(np.array([near.exchange_s(self._exchanged)])).max())
        return near

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

    def wanted(self, planned: Sequence[int] | None, resize_to: int | None) -> tuple[int, ...] | None:
        """Members of the next group, or None for no change: as planned, plus members that asked to join, resized.

        On rank 0 only.
        """
        if self.membership is None:
            return None
        members = list(planned if planned is not None else self.members)
        asked = self.membership.joins_asked()
        if asked > self.joins_seen:
            self.joins_seen = asked
            members += [m for m in self.membership.waiting() if m not in members]
            members = [m for m in members if not self.membership.is_leaving(m)] or members
        if resize_to is not None:
            members = sorted(members) + [p.member for p in self.parked if p.member not in members]
            members = members[:resize_to]
        return None if sorted(members) == sorted(self.members) else tuple(members)

    def what_changed(self, before: Sequence[int], why: str) -> str:
        """Members that left and joined since `before`; the reason `why` the group broke if none did."""
        left = [str(m) for m in sorted(before) if m not in self.members]
        came = [str(m) for m in sorted(self.members) if m not in before]
        parts = [f"{_members(left)} left"] * bool(left) + [f"{_members(came)} came"] * bool(came)
        count = f"{len(self.members)} member{'s' * (len(self.members) != 1)}"
        if not parts:
            return f"no member left, the group of {count} was formed anew: {why}"
        return f"{', '.join(parts)}; the group has {count} now"

    def reform(
        self, model: DistributedDataParallel, wrapping: Mapping[str, Any], boundary: int, target: Sequence[int] | None
    ) -> Sequence[Mapping[str, Any]]:
        """Form the next group, of `target` or of all living members, and wrap `model` on it; reports as `connect`.

        Collective.

        A member that is not in the target waits here until it is taken in again. Raises EvictedError,
        `planned` if training ends meanwhile, else if the others continued without this member.
        """
        assert self.membership is not None
        while True:
            if self._control is not None:
                self._control.close()
            if self.near is not None:
                self.near.close()
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
                return self.connect()
            except Exception as error:
                if not is_transport_error(error):
                    raise
                target = None


def _new_run() -> str:
    """A unique id; ids sort by start time."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def _members(names: Sequence[str]) -> str:
    return f"member{'s' * (len(names) != 1)} {', '.join(names)}"
