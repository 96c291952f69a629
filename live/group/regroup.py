"""Membership of the training job, and forming the group anew inside the running processes.

Member ids are permanent; a rank is a position in the present group. A group is formed anew when a member
dies (the others notice a broken exchange, or a missing heartbeat) or when the members agree to take in or
leave out some. Each formation is one numbered attempt, agreed on through a store that outlives every member.

    membership = live.group.regroup.start()       instead of torch.distributed.init_process_group
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from equipoise.base.numerals import strict_int
from equipoise.live.group.hosting import DESERTED, WORKER, address, is_hosted, job_store
from equipoise.live.group.lifeline import Lifeline, reached
from equipoise.live.group.sockets import Sockets, open_sockets, shut

HEARTBEAT_S = 0.25
DEAD_AFTER_S = 6.0  # without a heartbeat, when a group is being formed: gloo's shutdown blocks Python for seconds
LOST_AFTER_S = 15.0  # without a heartbeat, without other signs (power loss, a frozen process)
_CONNECT_TIMEOUT_S = 1.0  # to peers that are all present; gloo tries 5 times; doubled if no member had left
_REPEATS_MAX = 2  # groups of the same members formed without a finished round
_GLOO_PLACE = re.compile(
    r"\bgloo/\S+\.(cc|h):\d+\]"
)  # gloo's errors are plain RuntimeErrors that name their source file


class EvictedError(RuntimeError):
    """The others continued without this member, or training ended while it waited.

    `planned`: by decision; the member may wait to be taken in again.
    """

    def __init__(self, text: str, planned: bool = False) -> None:
        super().__init__(text)
        self.planned = planned


class RegroupError(RuntimeError):
    """A group cannot be formed, or is formed repeatedly although no member left."""


class _FormingError(RuntimeError):
    """A member died or gave up while the group was being formed."""


def is_transport_error(error: BaseException) -> bool:
    """Whether PyTorch's communication raised this error: its own types, or errors that name a source file of gloo."""
    if isinstance(error, dist.DistError | _FormingError):
        return True
    return isinstance(error, RuntimeError) and _GLOO_PLACE.search(str(error)) is not None


class _Watch(threading.Thread):
    """Sends this member's heartbeat, watches the others', and interrupts waits when a new group is requested."""

    def __init__(self, owner: Membership, store: dist.Store) -> None:
        super().__init__(name="equipoise-heartbeat", daemon=True)
        self._owner, self._store = owner, store
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._ending = threading.Event()  # `_stop` is a method of Thread, called in every forked child

    def run(self) -> None:
        """Send heartbeats until stopped or until the store is gone."""
        count = 0
        with contextlib.suppress(RuntimeError):
            while not self._ending.wait(HEARTBEAT_S):
                count += 1
                self._store.set(f"beat/{self._owner.member}", str(count))
                now = time.monotonic()
                followed = self._owner.followed()
                self._seen = {member: seen for member, seen in self._seen.items() if member in followed}
                for member in followed:
                    self._follow(member, now)
                if self._is_broken(now):
                    self._owner.break_exchange()

    def stop(self) -> None:
        """Stop beating."""
        self._ending.set()

    def _is_broken(self, now: float) -> bool:
        owner = self._owner
        if owner.is_connecting and any(self.is_dead(m, self._store) for m in owner.expected):
            return True
        lost = any(self._silent_s(m, now) > LOST_AFTER_S for m in owner.expected)
        return lost or self._store.check([f"ask/{owner.attempt + 1}"])

    def _follow(self, member: int, now: float) -> None:
        if not self._store.check([f"beat/{member}"]):
            return  # not started yet
        beat = self._store.get(f"beat/{member}")
        if member not in self._seen or self._seen[member][0] != beat:
            self._seen[member] = (beat, now)

    def _silent_s(self, member: int, now: float) -> float:
        return now - self._seen[member][1] if member in self._seen else 0.0

    def is_dead(self, member: int, store: dist.Store) -> bool:
        """Whether a member was reported dead, or sent no heartbeat for `DEAD_AFTER_S` while watched."""
        if store.check([f"dead/{member}"]):
            return True
        return self._silent_s(member, time.monotonic()) > DEAD_AFTER_S


class Membership:
    """This process's membership of the job. Create it with `start`."""

    def __init__(self, store: dist.Store, watch_store: dist.Store, member: int, backend: str, timeout_s: float):
        self.member, self.backend, self.timeout_s = member, backend, timeout_s
        self.generation = self.attempt = -1  # of the present group; of the group being formed
        self.members: list[int] = []  # by rank
        self._store = store
        self._sockets: Sockets = frozenset()
        self._before: Sockets | None = None  # open before the present group began to connect
        self._links = 0  # of the present group
        self.expected: list[int] = []  # members of the group being formed, or of the present one
        self._agreed: tuple[frozenset[int], int] = (frozenset(), -1)  # members and round agreed on
        self._repeats = 0
        self._asked_for: set[int] = set()
        store.set(f"beat/{member}", "0")
        self._watch = _Watch(self, watch_store)
        self._watch.start()
        self._lifeline: Lifeline | None = None

    # -- seen by the watch ---------------------------------------------------------------------------------

    def followed(self) -> list[int]:
        """Members whose heartbeats are watched now."""
        return sorted({*self.members, *self.expected, *self._asked_for} - {self.member})

    @property
    def is_connecting(self) -> bool:
        """Whether this process is making connections of the present group."""
        return self._before is not None

    def break_exchange(self) -> None:
        """Make pending waits of this process in the present group fail, also while it connects."""
        before = self._before
        shut(self._sockets if before is None else self._sockets | (open_sockets() - before))
        if "nccl" in self.backend:
            with contextlib.suppress(RuntimeError, ValueError):
                dist.distributed_c10d._get_default_group().abort()

    # -- joining and leaving -------------------------------------------------------------------------------

    def found(self, ranks: int) -> None:
        """Form the first group of members 0 .. ranks-1."""
        self._store.set("founders", str(ranks))  # all founders write the same value; the first may be dead already
        self._form_or_retry(0, list(range(ranks)))

    def join(self) -> None:
        """Ask to join, and wait until admitted. Raises EvictedError when training ends first."""
        self._store.set(f"join/{self.member}", "1")
        self._store.add("joining", 1)
        self._await_admission()

    def park(self) -> None:
        """Wait outside the group until taken in again. Raises EvictedError when training ends first."""
        self._store.set(f"parked/{self.member}", "1")
        self._await_admission()
        self._store.set(f"parked/{self.member}", "0")

    def parked(self) -> list[int]:
        """Living members that wait outside after they were in the group."""
        everyone = int(self._store.get("founders")) + int(self._store.add("joined", 0))
        outside = [m for m in range(everyone) if m not in self.members and self._has(f"parked/{m}", b"1")]
        self._asked_for |= set(outside)
        return [m for m in outside if not self._watch.is_dead(m, self._store)]

    def _has(self, key: str, value: bytes) -> bool:
        return bool(self._store.check([key]) and self._store.get(key) == value)

    def _await_admission(self) -> None:
        while True:
            key = f"admit/{self.member}"
            if self._store.check([key]):
                attempt = int(self._store.get(key))
                if attempt > self.generation and self._store.check([f"members/{attempt}"]):
                    members = [int(m) for m in json.loads(self._store.get(f"members/{attempt}"))]
                    if self.member in members:
                        self._form_or_retry(attempt, members)
                        return
            if self._store.check(["done"]) or self.is_leaving(self.member):
                raise EvictedError("training ended", planned=True)
            if self._is_deserted():
                self._store.set(DESERTED, "1")
                raise SystemExit(
                    f"equipoise: member {self.member} ends: no member is left in the job to admit it; start the "
                    "whole job again to resume from its last checkpoint"
                )
            time.sleep(0.05)

    def _is_deserted(self) -> bool:
        """Whether all members that were ever in the group are dead, so that none can admit others."""
        founders, joined = int(self._store.get("founders")), int(self._store.add("joined", 0))
        taken_in = [m for m in range(founders, founders + joined) if self._store.check([f"admit/{m}"])]
        inside = {*range(founders), *taken_in} - {self.member}
        self._asked_for |= inside  # so that their heartbeats are watched
        return all(self._watch.is_dead(m, self._store) for m in inside)

    def waiting(self) -> list[int]:
        """Members that asked to join, are not in the group, and are alive."""
        founders, joined = int(self._store.get("founders")), int(self._store.add("joined", 0))
        asked = [m for m in range(founders, founders + joined) if self._store.check([f"join/{m}"])]
        self._asked_for = set(asked) - set(self.members)
        return [m for m in sorted(self._asked_for) if not self._watch.is_dead(m, self._store)]

    def is_leaving(self, member: int) -> bool:
        """Whether the launcher told a member to leave, because its host is no longer on the list."""
        return bool(self._store.check([f"leave/{member}"]))

    def joins_asked(self) -> int:
        """Counter of join and leave requests; a cheap check for new ones."""
        return int(self._store.add("joining", 0))

    def end_with(self, line: socket.socket) -> None:
        """End this process when the connection `line` to the store's host breaks."""
        self._lifeline = Lifeline(line, f"member {self.member}", self.break_exchange)

    def wait_for_end(self) -> None:
        """After an error: if the store is gone, wait for this process to be ended."""
        if self._lifeline is not None:
            self._lifeline.wait_for_end()

    def outlive_store(self) -> None:
        """Stop watching the store's host, since training has ended here."""
        if self._lifeline is not None:
            self._lifeline.release()

    def close(self, *, done: bool = True) -> None:
        """Stop the heartbeat; `done`: tell waiting members that training ended."""
        self.outlive_store()
        self._watch.stop()
        with contextlib.suppress(RuntimeError):
            if done:
                self._store.set("done", "1")

    # -- forming a group -----------------------------------------------------------------------------------

    def leave_group(self) -> None:
        """Destroy the present group, also a half-formed one. The caller has released everything that uses it."""
        if not dist.is_initialized():
            # Leftovers of a failed start (PyTorch counts and names groups) are removed with a group.
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        shut(self._sockets)  # remaining references must not keep peers waiting
        self._sockets = frozenset()

    def regroup(self, boundary: int, target: Sequence[int] | None = None) -> None:
        """Form the next group, of `target` or (None) of all living members.

        `boundary` is the last round whose result this member shares with all: the members that are furthest come
        first, so rank 0 holds the state to resume from. Collective over the living members; with a target it
        must be called by all of them at the same round. Raises EvictedError when this member is left out,
        RegroupError when the same members regrouped several times without a round, or the store is gone.
        """
        try:
            self._regroup(boundary, target)
        except dist.DistError as problem:
            self.wait_for_end()
            raise RegroupError("the job's store cannot be reached") from problem

    def _regroup(self, boundary: int, target: Sequence[int] | None) -> None:
        base, self.attempt = list(self.members), self.generation
        while True:
            self.attempt += 1
            attempt = self.attempt
            if target is None:
                self._store.set(f"ask/{attempt}", str(self.member))
            self._store.set(f"here/{attempt}/{self.member}", str(boundary))
            members = self._agree(attempt, base, target)
            target = None
            if members is None:
                continue
            if self.member not in members:
                self.generation = attempt
                planned = self._has(f"planned/{attempt}", b"1")
                raise EvictedError(_why_left_out(self.member, members, planned), planned)
            self._count_repeats(attempt, members)
            if self._try_form(attempt, members):
                return
            base = members

    def _agree(self, attempt: int, base: list[int], target: Sequence[int] | None) -> list[int] | None:
        """The members of an attempt by rank; None when its leader died."""
        first = int(self._store.compare_set(f"leader/{attempt}", "", str(self.member)))
        if first == self.member:
            return self._lead(attempt, base, target)
        key, dead = f"members/{attempt}", False
        while not self._store.check([key]):
            if dead:  # it died before it was looked for, and will not come
                return None
            dead = self._watch.is_dead(first, self._store)
            time.sleep(0.01)
        return [int(m) for m in json.loads(self._store.get(key))]

    def _lead(self, attempt: int, base: list[int], target: Sequence[int] | None) -> list[int]:
        boundary: dict[int, int] = {}
        missing = set(base)
        while missing:
            for member in sorted(missing):
                if self._store.check([f"here/{attempt}/{member}"]):
                    boundary[member] = int(self._store.get(f"here/{attempt}/{member}"))
                    missing.discard(member)
                elif self._watch.is_dead(member, self._store):
                    missing.discard(member)
            if missing:
                time.sleep(0.01)
        wanted = list(boundary) if target is None else list(target)
        chosen = [m for m in wanted if m in boundary or not self._watch.is_dead(m, self._store)]
        members = sorted(chosen, key=lambda m: (-boundary.get(m, -1), m))
        if target is not None:
            self._store.set(f"planned/{attempt}", "1")
        for member in members:
            if member not in boundary:
                self._store.set(f"admit/{member}", str(attempt))
        self._store.set(f"members/{attempt}", json.dumps(members))
        return members

    def _count_repeats(self, attempt: int, members: list[int]) -> None:
        """Raise RegroupError when the same members agreed on the same round too often."""
        first = f"here/{attempt}/{members[0]}"
        furthest = int(self._store.get(first)) if self._store.check([first]) else -1
        who, (before, reached) = frozenset(members), self._agreed
        is_new = who != before or furthest > reached or self._has(f"planned/{attempt}", b"1")
        self._agreed = who, furthest
        self._repeats = 0 if is_new else self._repeats + 1
        if self._repeats > _REPEATS_MAX:
            self._store.set(f"dead/{self.member}", "gave up")
            raise RegroupError(
                f"the group of {len(members)} was formed anew {_REPEATS_MAX + 1} times, no member had left it, "
                "and no round was finished"
            )

    def _try_form(self, attempt: int, members: list[int]) -> bool:
        try:
            self._form(attempt, members)
        except RegroupError:
            raise
        except RuntimeError:
            self.leave_group()
            return False
        return True

    def _form_or_retry(self, attempt: int, members: list[int]) -> None:
        if not self._try_form(attempt, members):
            self.members, self.generation = members, attempt
            self.regroup(-1)

    def _form(self, attempt: int, members: list[int]) -> None:
        self.attempt, self.expected, self._links = attempt, members, 0
        with self.connecting() as timeout:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore(f"group/{attempt}", job_store()),  # a separate client, which can be interrupted
                rank=members.index(self.member),
                world_size=len(members),
                timeout=timeout,
            )
            set_timeout(self.timeout_s)
        self.members, self.generation = members, attempt

    @contextlib.contextmanager
    def connecting(self) -> Iterator[datetime.timedelta]:
        """Connections made inside the block belong to the present group, and are closed with it.

        Waits until all its members are here, so that a short time-out, the yielded value, is enough for connecting.
        Raises RuntimeError when one of them died or gave up, RegroupError when they do not come.
        """
        self._call_roll()
        before = self._before = open_sockets()
        try:
            yield datetime.timedelta(seconds=_CONNECT_TIMEOUT_S * 2**self._repeats)
        finally:
            self._sockets |= open_sockets() - before
            self._before = None

    def _call_roll(self) -> None:
        self._links += 1
        here = f"ready/{self.attempt}/{self._links}"
        self._store.set(f"{here}/{self.member}", "1")
        deadline = time.monotonic() + self.timeout_s
        while not self._store.check([f"{here}/{member}" for member in self.expected]):
            dead = [m for m in self.expected if m != self.member and self._watch.is_dead(m, self._store)]
            if dead or self._store.check([f"ask/{self.attempt + 1}"]):
                raise _FormingError(f"members {dead} died" if dead else "another member gave up")
            if time.monotonic() > deadline:
                raise RegroupError(f"the members {self.expected} did not come within {self.timeout_s:g} s")
            time.sleep(0.01)


def _why_left_out(member: int, members: Sequence[int], planned: bool) -> str:
    if planned:
        return f"member {member} is not in the group of {list(members)}"
    return (
        f"the others continued without member {member}, as the group of members {list(members)}: no heartbeat for "
        f"{DEAD_AFTER_S:g} s, or reported dead. Its samples since then are assigned again; let this process end, "
        "and start a new one with --join"
    )


def set_timeout(timeout_s: float, group: dist.ProcessGroup | None = None) -> None:
    """Bound every further exchange in `group` (None: the default one)."""
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout_s), group)


def wrap(module: torch.nn.Module, **settings: Any) -> DistributedDataParallel:
    """DistributedDataParallel(module, **settings), by the remaining members if one dies meanwhile. Collective.

    Raises EvictedError and RegroupError as `Membership.regroup`.
    """
    while True:
        try:
            return DistributedDataParallel(module, **settings)
        except Exception as error:
            if _current is None or not is_transport_error(error):
                raise
        gc.collect()  # a half-made wrapper holds the group
        _current.leave_group()
        _current.regroup(-1)


_current: Membership | None = None


def current() -> Membership | None:
    """The membership that `start` made in this process, if any."""
    return _current


def start(backend: str = "gloo", *, timeout_s: float = 1800.0) -> Membership:
    """Join the training job that the environment names, and form or enter its group.

    `EQUIPOISE_STORE` (host:port) is a store that outlives every member, as `live.group.launch` provides, and
    `EQUIPOISE_TOKEN` the job's token; without a store the one of `MASTER_ADDR`/`MASTER_PORT` serves, hosted by
    rank 0 unless a launcher hosts it, and a token is used if there is one.
    `RANK` and `WORLD_SIZE` name a founder. A restarted one, and a process with `EQUIPOISE_JOIN=1`, ask to join
    the running job, which happens at its next decision. `timeout_s` bounds every exchange. Raises KeyError when a
    variable is missing, SystemExit when training ends before this process is admitted (code 0), when there is no
    store, or no member left to admit it.
    Later, a rank ends by SIGTERM when the host of the store is gone. Objects imported so far are excluded from
    Python's garbage collection, which would delay the heartbeat for seconds when a group is formed anew.
    """
    global _current
    gc.freeze()
    joins = os.environ.get("EQUIPOISE_JOIN") == "1"
    rank, ranks = (-1, -1) if joins else (strict_int(os.environ["RANK"]), strict_int(os.environ["WORLD_SIZE"]))
    hosts = rank == 0 and not is_hosted()
    line = None if hosts else reached(*address())
    try:
        store, watch_store = job_store(hosts), job_store()
        # A restarted rank; torchrun restarts all of them, as founders.
        known = [f"beat/{rank}", f"dead/{rank}"] if "EQUIPOISE_STORE" in os.environ else []
        if not joins and any(store.check([key]) for key in known):
            joins = True
            store.set("founders", str(ranks))  # it may have died before writing this
        member = int(store.get("founders")) + int(store.add("joined", 1)) - 1 if joins else rank
        if WORKER in os.environ:
            store.set(f"worker/{os.environ[WORKER]}", str(member))
        _current = Membership(store, watch_store, member, backend, timeout_s)
    except dist.DistError:
        where = "{}:{}".format(*address())
        raise SystemExit(
            f"equipoise: this process ends: the job's store at {where} was lost before it was admitted; start the job "
            "again to resume from its last checkpoint"
        ) from None
    _current.end_with(line or reached(*address()))
    try:
        if joins:
            _current.join()
        else:
            _current.found(ranks)
    except EvictedError as ended:
        _current.close(done=False)
        raise SystemExit(0) from ended
    except RuntimeError:
        _current.wait_for_end()
        raise
    return _current
