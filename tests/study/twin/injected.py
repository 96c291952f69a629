"""Records of live runs whose times are given: the code of a live run decides and writes, nothing is trained."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch

from equipoise.live.decide.leader import HEADER, Leader, pack
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.group.places import RankPlace, my_place, places_from
from equipoise.live.options import Options
from equipoise.live.train.rounds import COLUMNS, RoundInfo
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage
from equipoise.policies.observation import Floats, Observation
from equipoise.policies.registry import make_policy

EVERY = 6  # rounds between decisions


@dataclass(frozen=True)
class Raises(Stage):
    """Always fails."""

    name: ClassVar[str] = "raises"
    kind: ClassVar[Kind] = "tasks"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        raise RuntimeError("no")


@dataclass
class Given:
    """Ranks whose rounds take slow * (fixed + each * samples) seconds, computing and waiting for data apart."""

    fixed_s: float = 20e-3
    update_part: float = 0.5  # of the fixed time
    each_s: float = 2e-3
    stall_part: float = 0.1  # of what grows with the samples
    exchange_s: float = 8e-3
    slow: Callable[[int], Floats] = lambda k: np.array([2.0 if k >= 150 else 1.0, 1.0])  # by round and rank
    behind_s: Callable[[int], Floats] = lambda k: np.zeros(1)  # a sample behind the last gradient, by round and rank
    pause: Callable[[int], float] = lambda k: 0.0  # seconds that rank 0 does something else before round k
    step_cov: float = 0.0  # of each rank's steps on its own,
    common_cov: float = 0.0  # and of all ranks' together
    rounds: int = 240
    samples: int = 4096
    policy: str = "s1+s2"
    fails: frozenset[int] = frozenset()  # points at which the policy raises
    options: dict[str, Any] = field(default_factory=dict)
    shares: tuple[float, ...] | None = None  # of one device, fixed; none: each rank has a whole one


def write(given: Given, folder: Path, seed: int = 0) -> Path:
    """Make the run of `given`; returns its folder."""
    ranks = len(given.slow(0))
    options = Options(**{"global_batch": 32, "decide_every": EVERY, "decision_budget_s": 600.0, **given.options})
    recorders = [Recorder(folder, rank) for rank in range(ranks)]
    places = [RankPlace(rank, f"h{rank}", "cpu") for rank in range(ranks)]
    if given.shares is not None:
        raw = [my_place(rank, torch.device("cpu"), 1.0, share) for rank, share in enumerate(given.shares)]
        places = places_from([place | {"device": "gpu"} for place in raw])
    leader = Leader(options, make_policy(given.policy), recorders[0], places)
    sampler = ShareSampler(
        given.samples,
        rank=0,
        ranks=ranks,
        global_batch=options.global_batch,
        micro_batch=options.micro_batch,
        shards=options.shards,
        seed=options.seed,
    )
    with patch("torch.distributed.get_backend", return_value="gloo"):
        leader.write_manifest("run", sampler, [], inside=False)
    clock_s, random = 0.0, np.random.default_rng(seed)
    leader.world.now_s = lambda: clock_s  # type: ignore[method-assign]
    leader._cadence.is_due = lambda *_: True  # type: ignore[method-assign]  # in other seconds
    leader.world.started_s = 0.0
    rows: list[Floats] = []
    infos: list[RoundInfo] = []
    begun_at: int | None = None
    changed = False
    update_s, batches = np.zeros(ranks), iter(sampler)
    for k in range(given.rounds):
        try:
            next(batches)
        except StopIteration:
            batches = iter(sampler)
            next(batches)
        drawn = sampler.current()
        assert drawn is not None
        n = np.array(drawn.samples, dtype=np.float64)
        scale = given.slow(k) * np.exp(given.step_cov * random.standard_normal(ranks))
        if given.common_cov:
            scale = scale * math.exp(given.common_cov * random.standard_normal())
        stall_s = scale * given.stall_part * given.each_s * n
        compute_s = scale * ((1 - given.stall_part) * given.each_s * n + (1 - given.update_part) * given.fixed_s)
        pause_s = np.zeros(ranks)
        pause_s[0] = given.pause(k)
        arrives_s = update_s + pause_s + stall_s + compute_s
        tail_s = arrives_s.max() - arrives_s + given.exchange_s
        clock_s += float(arrives_s.max()) + given.exchange_s
        update_s = scale * given.update_part * given.fixed_s + given.behind_s(k) * n
        nothing = np.full(ranks, math.nan)
        paused = bool(pause_s.any())
        row = np.stack([n, stall_s + pause_s, compute_s, tail_s, update_s, nothing, nothing], axis=1)
        infos.append(RoundInfo(k, int(n[0]), True, False, drawn.samples, paused, tuple(n.tolist())))
        rows.append(row)
        assert row.shape == (ranks, len(COLUMNS))
        sampler.finish()
        if begun_at is not None and k + 1 - begun_at >= options.delay_rounds:
            begun_at, changed = None, _act(leader, sampler)
        if begun_at is None and len(infos) >= (options.half if changed else options.every):
            with _failing(leader, leader.points + 1 in given.fails):
                _report(leader, recorders, sampler, rows, infos, [place.share for place in places])
            rows, infos, begun_at = [], [], k + 1
            if not options.delay_rounds:
                begun_at, changed = None, _act(leader, sampler)
    for recorder in recorders:
        recorder.close()
    return folder


@contextlib.contextmanager
def _failing(leader: Leader, fails: bool) -> Iterator[None]:
    """The policy that is asked inside raises, where it `fails`."""
    decider = leader.decider
    assert decider is not None
    asked = patch.object(decider._worker, "_policy", Policy("raises", (Raises(),)))
    with asked if fails else contextlib.nullcontext():
        yield
        limit_s = time.monotonic() + 60.0
        while fails and decider._worker._answered.empty():  # the policy is asked in a thread
            assert time.monotonic() < limit_s
            time.sleep(0.001)


def _report(
    leader: Leader,
    recorders: list[Recorder],
    sampler: ShareSampler,
    rows: list[Floats],
    infos: list[RoundInfo],
    shares: list[float],
) -> None:
    table, gathered = np.stack(rows, axis=1), []
    for rank, recorder in enumerate(recorders):
        own = table[rank]
        # Only the rank that pauses knows it.
        own[[info.paused and rank == 0 for info in infos], 1:5] = math.nan
        recorder.rounds(own, infos)
        header = {"drawn": float(sampler.drawn), "gpu_share": shares[rank]}
        gathered.append(pack([header.get(name, math.nan) for name in HEADER], own))
    leader.begin(np.stack(gathered), infos, sampler, (1, 1))


def _act(leader: Leader, sampler: ShareSampler) -> bool:
    """Whether something changes."""
    change = leader.answer(float(sampler.drawn))
    if not change.is_empty():
        sampler.schedule(change)
    return not change.is_empty()
