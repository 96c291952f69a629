"""The checkpoint of a running attachment: plain numbers and text, the same on every rank.

The values are opaque strings under fixed names, so that `torch.distributed.checkpoint` can load them on any number of
ranks, and `torch.load(weights_only=True)` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from equipoise.live.parts import Parts
from equipoise.live.stepping import Stepping
from equipoise.live.train import randomness

FORMAT = 2


def save(parts: Parts, stepping: Stepping) -> dict[str, Any]:
    """The state after the last finished round. Collective: with local steps, replicas are averaged here.

    Raises RuntimeError in the middle of a round, or of an optimiser step's accumulated rounds.
    """
    if parts.meter.in_round or parts.meter.in_window or parts.meter.lacks_step():
        raise RuntimeError(
            "runtime.state_dict() in the middle of an optimiser's step: call it after runtime.step(), when the "
            "optimiser has made its step (a script that accumulates gradients names `accumulation`, or says "
            "runtime.step(stepped=False))"
        )
    sampler, control = stepping.dealt(), parts.group.control
    parts.local.meet()
    leader = parts.agreement.leader
    policy = json.dumps(leader.state() if leader is not None else None).encode()
    return {
        "format": FORMAT,
        "round": stepping.round,
        "interval": parts.local.interval,
        "far_every": parts.local.far_every,
        "sampler": json.dumps(sampler.state()),
        "policy": control.broadcast(policy if leader is not None else None).decode(),
        "random": json.dumps(control.gather_text(randomness.state(parts.device))),
    }


def load(parts: Parts, stepping: Stepping, state: Mapping[str, Any]) -> None:
    """Resume from a state. Collective. Raises ValueError for a state of another version or other data."""
    if state.get("format") != FORMAT:
        raise ValueError(f"state: format {state.get('format')!r} is not allowed; needed: {FORMAT}")
    missing = [name for name in ("round", "interval", "sampler", "policy", "random") if name not in state]
    if missing:
        raise ValueError(f"state: {missing[0]} is missing; needed: the result of runtime.state_dict()")
    parts.group.same_on_all_ranks({"the round of the checkpoint": state["round"]})
    sampler = stepping.dealt()
    sampler.load(json.loads(state["sampler"]))
    stepping.round = stepping.first = sampler.trained
    parts.local.reset(state["interval"], state.get("far_every", 1))
    if parts.agreement.leader is not None:
        parts.agreement.leader.load(json.loads(state["policy"]))
    states, rank = json.loads(state["random"]), parts.group.rank

    def draw_on() -> None:
        """Restore this rank's random numbers, or seed new ones if none were saved."""
        if rank < len(states):
            randomness.load(states[rank], parts.device)
        else:
            randomness.seed(parts.options.seed, stepping.round, rank)

    # A loader draws a random number when it begins to iterate, also in the middle of an epoch.
    sampler.before_draw = draw_on
