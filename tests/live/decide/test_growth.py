"""What of a round does not grow with its samples: learnt, so that shares do not drift apart without gain."""

from __future__ import annotations

import math
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
from equipoise.policies.growth import Growth, Law
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
        fixed_s = np.fmax(seen.fixed_s, part.sure.fixed_s(seen.each(), seen.step_s))
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


PAIRS = ((32, 32), (40, 24), (28, 36), (40, 24))


@pytest.mark.parametrize(
    ("fixed", "noise", "least", "most"),
    [(1e4, 0.02, 300.0, math.inf), (32.0, 0.02, 20.0, 33.0), (0.0, 0.02, 0.0, 0.1), (1e4, 0.5, 0.0, 100.0)],
)
def test_what_does_not_grow_is_said_only_as_far_as_it_is_sure(
    fixed: float, noise: float, least: float, most: float
) -> None:
    rng, growth = np.random.default_rng(2), Growth()
    assert not growth.is_known
    for pair in PAIRS:
        seen = window(np.array(pair), fixed, np.exp(noise * rng.standard_normal(2)), rng)
        growth.learn(seen.each(), seen.step_s)
    assert growth.is_known
    assert least <= growth.sure.fixed_samples <= most
    assert growth.law.fixed_samples >= growth.sure.fixed_samples


@pytest.mark.parametrize("fixed", [0.0, 3.0, 32.0, 150.0])
def test_the_law_is_found_where_nothing_varies(fixed: float) -> None:
    """Two workers of other speeds, t = speed * (fixed + n)."""
    growth = Growth()
    for pair in PAIRS:
        samples = np.array(pair, dtype=float)
        growth.learn(samples, np.array([1.0, 3.0]) * (fixed + samples))
    assert growth.law.fixed_samples == pytest.approx(fixed, rel=1e-3, abs=1e-3)
    assert growth.sure.fixed_s(np.array([10.0]), np.array([2.0])) == pytest.approx(
        [2.0 * fixed / (fixed + 10.0)], rel=1e-3, abs=1e-3
    )


def test_an_old_change_of_shares_is_forgotten_so_that_one_is_tried_again() -> None:
    growth = Growth()
    for pair in ((32, 32), (40, 24), (28, 36), *[(40, 24)] * 203):
        growth.learn(np.array(pair, dtype=float), np.ones(2))
    assert not growth.is_known
    assert growth.sure.fixed_samples == 0.0


def test_what_is_sure_is_the_least_fixed_time_within_two_standard_errors() -> None:
    """Four changes between 40 and 80 samples, so 4 / 3 more squares than the best law may be left."""
    part, answers, noise = Growth(), [], (0.0, 0.1, 0.0, -0.1, 0.1)
    took_s = [(60.0 + (40.0, 80.0)[k % 2]) * math.exp(noise[k]) for k in range(5)]
    for k, took in enumerate(took_s):
        part.learn(np.array([(40.0, 80.0)[k % 2]]), np.array([took]))
    answers = [(-1) ** k * math.log(took_s[k + 1] / took_s[k]) for k in range(4)]

    def left(fixed: float) -> float:
        return sum((answer - math.log((fixed + 80.0) / (fixed + 40.0))) ** 2 for answer in answers)

    def growing_more(fixed: float, by: float) -> float:
        usual = math.sqrt(40.0 * 80.0)
        growing = usual / (usual + fixed) + by
        return usual * (1.0 - growing) / growing

    most = left(part.law.fixed_samples) * (1.0 + 4.0 / 3.0)
    sure = part.sure.fixed_samples
    assert 0.0 < sure < part.law.fixed_samples
    assert left(sure) <= most < left(growing_more(sure, 0.0101))


def test_what_grows_exactly_is_sure_to_grow() -> None:
    part = Growth()
    for samples in (40.0, 80.0, 40.0, 80.0, 40.0):
        part.learn(np.array([samples]), np.array([samples]))
    assert (part.law, part.sure) == (Law(), Law())
