"""Listeners to events, called with plain values at the instant of the event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.job.job import Job
from equipoise.sim.network.transfers import Transfer


class Listener:
    """Events of a listener; each listener implements those that it needs. Times in s."""

    def began(self, job: Job, holding: Holding, now_s: float) -> None:
        """A job has taken GPUs; it does not count them as held yet."""

    def ended(self, job: Job, reason: str, now_s: float) -> None:
        """A job has given back its GPUs: completed, timeout, preempted, resized, fault; `open`: the run ends."""

    def rolled_back(self, job: Job) -> None:
        """A fault has stopped a job, and that is all done."""

    def looked_at(self, job: Job, now_s: float) -> None:
        """The account of a running job has been brought up to date."""

    def checkpointing(self, job: Job, now_s: float) -> None:
        """A checkpoint of all that is booked begins to be written."""

    def checkpointed(self, job: Job, now_s: float) -> None:
        """A checkpoint is written, so its work can no longer be lost."""

    def carried(self, row: int, links: Ints, amounts: Floats) -> None:
        """Exchanges of a job (by row) have sent these bytes over each of these links."""

    def transferred(self, transfer: Transfer, now_s: float) -> None:
        """A transfer of data has arrived."""

    def node_leaving(self, node: int) -> None:
        """A node is about to go down, its jobs have been stopped."""

    def node_down(self, node: int, now_s: float) -> None:
        """A node has gone down."""

    def node_up(self, node: int, now_s: float) -> None:
        """A node is back."""

    def speeds_changing(self) -> None:
        """Nodes are about to compute at other speeds."""

    def speeds_changed(self) -> None:
        """Nodes compute at other speeds from now on."""

    def shares_changed(self, gpus: Ints) -> None:
        """Jobs have taken or released a part of these GPUs."""

    def gpus_released(self) -> None:
        """A job has ended, or policies are about to decide: GPUs may be free."""

    def decided(self) -> None:
        """Policies have decided, and what they planned is begun."""

    def add_utilisation(self, busy: Floats, now_s: float) -> None:
        """Add the busy share of each GPU since the last call to (gpus,)."""

    def happened(self, kind: str, subject: str, value: float, now_s: float) -> None:
        """An event for the reader of the run."""


_EVENTS = [name for name in vars(Listener) if not name.startswith("_")]


class Listeners:
    """The callbacks of the listeners for each event, in order.

    `for tell in listeners.began: tell(job, holding, now_s)`: without listeners nothing is called.
    """

    began: tuple[Any, ...]
    ended: tuple[Any, ...]
    rolled_back: tuple[Any, ...]
    looked_at: tuple[Any, ...]
    checkpointing: tuple[Any, ...]
    checkpointed: tuple[Any, ...]
    carried: tuple[Any, ...]
    transferred: tuple[Any, ...]
    node_leaving: tuple[Any, ...]
    node_down: tuple[Any, ...]
    node_up: tuple[Any, ...]
    speeds_changing: tuple[Any, ...]
    speeds_changed: tuple[Any, ...]
    shares_changed: tuple[Any, ...]
    gpus_released: tuple[Any, ...]
    decided: tuple[Any, ...]
    add_utilisation: tuple[Any, ...]
    happened: tuple[Any, ...]

    def __init__(self, listeners: Iterable[Listener]) -> None:
        for name in _EVENTS:
            setattr(self, name, ())
        for listener in listeners:
            self.add(listener)

    def add(self, listener: Listener) -> None:
        """Tell this listener, too, after the others."""
        for name in _EVENTS:
            if getattr(type(listener), name) is not getattr(Listener, name):
                setattr(self, name, (*getattr(self, name), getattr(listener, name)))
