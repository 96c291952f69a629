"""What happens in one run of the campaign, by its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PHASES = {
    "before it votes": ("equipoise.live.group.regroup:Membership.regroup", 1),
    "after it voted": ("equipoise.live.group.regroup:Membership._agree", 1),
    "as it leads the vote": ("equipoise.live.group.regroup:Membership._lead", 1),
    "before it connects": ("equipoise.live.group.regroup:Membership._form", 2),  # the first time is the start
    "as it connects": ("torch.distributed:init_process_group", 2),
    "before the model is wrapped": ("equipoise.live.group.rebuild:rewrap", 1),
    "before the control group": ("equipoise.live.group.control:dist.new_group", 2),
    "before the state is shared": ("equipoise.live.runtime:resync", 1),
    "as a checkpoint is saved": ("equipoise.live.checkpoint:randomness.state", 1),
    "after the state was shared": ("equipoise.live.train.sampler:ShareSampler.resume", 1),
}
"""Before which call of a process, as module:name, and which one of them."""

EARLY = {
    "before the first wrap": ("equipoise.live.group.regroup:wrap", 1),
    "before the first control group": ("equipoise.live.parts:Group", 1),
    "before the first deal": ("equipoise.live.stepping:Stepping.deal", 1),
}
"""The same, before the first round; they befall the seeds from `EARLY_FROM` on."""
EARLY_FROM = 200
LEVELS_FROM = 2000  # from this seed on near ranks meet more often than all, and a fault may befall any round

ROUNDS = 40  # of one epoch
STOPS = ("launcher", "store", "net")  # what may end a run, so that it has to be started again


@dataclass(frozen=True)
class Fault:
    """What befalls whom, and when.

    what: kill, stop, cut (the rank's connections), disk (full), join, launcher, store (killed), net (cut for all).
    who: a founder's number, -1: whoever gets there first. where: a round ("12") or one of `PHASES` or `EARLY`.
    """

    what: str
    who: int
    where: str
    seconds: float = 0.0  # of stop and net


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    ranks: int
    interval: int
    restarts: int
    apart: bool  # the store is a process of its own
    slow_s: float  # what each message to the store and back is held up
    faults: tuple[Fault, ...] = field(default=())
    far_every: int = 1  # of so many exchanges one is of all ranks, the others of those of one of two hosts

    @property
    def alone(self) -> bool:
        """Whether ranks make local steps."""
        return self.interval * self.far_every > 1

    @property
    def may_stop(self) -> bool:
        """Whether the run may end before training does."""
        deaths = sum(f.what in ("kill", "stop", "cut") for f in self.faults)
        long_cut = any(f.what == "net" and f.seconds > 8 for f in self.faults)
        return long_cut or deaths >= self.ranks or any(f.what in ("launcher", "store") for f in self.faults)


def _late(draw: random.Random) -> str:
    return draw.choice([str(draw.randint(6, ROUNDS - 4)), *PHASES])


def make(seed: int, net: bool = True) -> Plan:
    """The plan of a seed; `net`: the network can be cut."""
    draw = random.Random(seed)
    ranks, interval = draw.randint(2, 4), draw.choice([1, 1, 1, 4])
    first = str(draw.randint(4, 12))
    who = draw.randrange(ranks)
    faults = [Fault("kill", who, first)]
    kinds = ["kill", "kill", "kill", "launcher", "store", "stop", "stop", "join", "disk", "cut", "net", "none"]
    if EARLY_FROM <= seed < LEVELS_FROM:
        faults = [Fault(draw.choice(["kill", "kill", "stop"]), who, draw.choice([*EARLY]), 8.0)]
    kind = draw.choice(kinds)
    others = [k for k in range(ranks) if k != who]
    if kind == "kill":
        faults.append(Fault("kill", -1, _late(draw)))
        if ranks == 4 and draw.random() < 0.5:
            faults.append(Fault("kill", -1, _late(draw)))
    elif kind == "stop":
        seconds = round(5.0 * 12.0 ** draw.random(), 1)
        faults.append(Fault("stop", draw.choice(others), _late(draw), seconds))
    elif kind == "net" and net:
        faults.append(Fault("net", -1, _late(draw), draw.choice([2.0, 5.0, 40.0])))
    elif kind in ("launcher", "store", "join", "disk", "cut"):
        faults.append(Fault(kind, -1, _late(draw)))
    if draw.random() < 0.2 and kind != "kill":
        faults = faults[1:] if len(faults) > 1 and faults[1].where.isdigit() else faults
    far_every = 1
    if seed >= LEVELS_FROM:
        ranks, interval, far_every = 4, draw.choice([1, 2]), draw.choice([2, 3])
    elif interval > 1:  # one death
        ranks = max(ranks, 3)
        faults = [f for k, f in enumerate(faults) if f.what not in ("kill", "stop", "cut") or k == 0]
    return Plan(
        seed,
        ranks,
        interval,
        draw.choice([0, 0, 1, 3]),
        kind == "store" or draw.random() < 0.3,
        draw.choice([0.0, 0.0, 0.0, 0.001, 0.02]),
        tuple(faults),
        far_every,
    )
