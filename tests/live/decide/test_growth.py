"""What of a round does not grow with its samples: learnt, so that shares do not drift apart without gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.decide.window import LiveWindow, Telemetry, measure
from equipoise.live.decide.world import LiveWorld
from equipoise.live.group.places import RankPlace
from equipoise.live.options import Options
from equipoise.live.train.rounds import COLUMNS, COMPUTE, SAMPLES, TAIL
from equipoise.policies.contract import refine
from equipoise.policies.growth import Growth
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.registry import make_policy

BATCH, ROUNDS, NOISE, DECISIONS = 64, 6, 0.02, 60


def window(shares: Ints, fixed: float, slow: Floats, rng: np.random.Generator) -> LiveWindow:
    """Rounds that take `slow` times as long as (fixed + samples) ms, and a little more or less."""
    rows = np.zeros((len(shares), ROUNDS, len(COLUMNS)))
    rows[:, :, SAMPLES] = shares[:, None]
    times_s = slow * (fixed + shares) * 1e-3
    rows[:, :, COMPUTE] = times_s[:, None] * (1 + NOISE * rng.standard_normal((len(shares), ROUNDS)))
    rows[:, :, TAIL] = 1e-3
    return measure(rows, [True] * ROUNDS)


def trained(fixed: float, slow: float, last: int, *, learns: bool = True) -> list[int]:
    """Shares of two ranks in the end, where rank 1 was `slow` at the decisions from the tenth to the `last`."""
    rng, part = np.random.default_rng(1), Growth()
    world = LiveWorld(Options(global_batch=BATCH), [RankPlace(k, f"h{k}", "cpu") for k in range(2)])
    policy, memory, shares = make_policy("s2"), {}, np.array([32, 32])
    for k in range(DECISIONS):
        seen = window(shares, fixed, np.array([1.0, slow if 10 <= k < last else 1.0]), rng)
        part.learn(seen.each(), seen.step_s)
        fixed_s = part.fixed_s(seen.each(), seen.step_s, seen.fixed_s)
        seen = replace(seen, fixed_s=fixed_s) if learns else seen
        world.started_s -= seen.span_s  # so long ago did it begin
        unknown = np.full(2, np.nan)
        world.shares, world.telemetry = shares, Telemetry(seen, unknown, unknown, unknown, first_free_round=k)
        decision = refine(policy, world.observe(), memory)
        memory = dict(decision.memory)
        world.apply(decision.plan)
        shares = shares if world.change.shares is None else np.array(world.change.shares)
    return shares.tolist()


def test_shares_do_not_drift_apart_where_a_round_takes_equally_long_whatever_is_dealt() -> None:
    assert trained(1e4, 2.0, DECISIONS, learns=False) == [63, 1]  # what it is about: nothing is gained by it
    assert trained(1e4, 2.0, DECISIONS) == [42, 22]  # the first two new deals, which teach that


@pytest.mark.parametrize(("fixed", "best"), [(0.0, 42.7), (16.0, 48.0), (100.0, 63.0)])
def test_a_slow_rank_is_still_dealt_what_it_can_do(fixed: float, best: float) -> None:
    """Twice as slow: with f samples' worth of fixed time, both take as long at n = (2 * 64 + f) / 3, or 63."""
    assert trained(fixed, 2.0, DECISIONS)[0] == pytest.approx(best, abs=3.5)


@pytest.mark.parametrize("fixed", [0.0, 16.0, 100.0, 250.0])
def test_what_was_learnt_of_a_slow_rank_does_not_keep_it_from_its_share_later(fixed: float) -> None:
    assert trained(fixed, 2.0, 20)[0] == pytest.approx(32, abs=2)
