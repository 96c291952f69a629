"""Exactly once per epoch, whatever happens to the shares; the deal against its plain twin."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.live.train.change import RoundChange
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.physics import deal
from tests.oracles.deal import NaiveDeal


def _same(deal: EpochSplit, naive: NaiveDeal) -> None:
    ours = [[(p.id, deal.order[p.begin : p.end].tolist()) for p in queue] for queue in deal.queues()]
    assert ours == [[(p[0], p[1]) for p in queue] for queue in naive.queues]
    assert deal.owned.tolist() == [naive.owned(w) for w in range(len(naive.queues))]
    assert [[deal.begun(p) for p in queue] for queue in deal.queues()] == [
        [p[2] for p in queue] for queue in naive.queues
    ]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_deal_equals_its_plain_twin(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 4))
    samples = data.draw(st.integers(1, 80))
    shards = data.draw(st.integers(1, 12))
    order = np.random.default_rng(data.draw(st.integers(0, 9))).permutation(samples)
    deal = EpochSplit.whole(order, shards, None, workers)
    naive = NaiveDeal(order.tolist(), min(shards, samples), workers)
    while deal.left:
        match data.draw(st.sampled_from(["draw", "draw", "draw", "move", "reorder", "copy"])):
            case "draw":
                shares = np.array(data.draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers)))
                shares = shares if shares.any() else np.ones(workers, dtype=np.int64)
                demand = deal.demand(shares, 1)
                taken = naive.draw(demand.tolist())
                watched = data.draw(st.integers(0, workers - 1))
                assert deal.draw(demand, watched).tolist() == taken[watched]
            case "move":
                piece = data.draw(st.integers(0, naive.next_id))
                target = data.draw(st.integers(0, workers - 1))
                assert (deal.move(piece, target) is None) == naive.move(piece, target)
            case "reorder":
                some = data.draw(st.lists(st.integers(0, naive.next_id), unique=True))
                deal.reorder({piece: place for place, piece in enumerate(some)})
                naive.reorder(some)
            case "copy":
                deal = deal.copy()
        if data.draw(st.booleans()):
            _same(deal, naive)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_rest_for_other_workers(data: st.DataObject) -> None:
    samples, workers = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 4))
    deal = EpochSplit.whole(np.random.default_rng(1).permutation(samples), 7, None, workers)
    first = deal.demand(np.full(workers, 3), 1)
    drawn = deal.copy().draw(first, 0)
    for worker in range(1, workers):
        other = deal.copy()
        drawn = np.concatenate([drawn, other.draw(first, worker)])
    deal.draw(first, 0)
    unread = np.concatenate([deal.order[p.begin : p.end] for q in deal.queues() for p in q] or [[]])
    assert sorted([*drawn.tolist(), *unread.tolist()]) == list(range(samples))
    new = data.draw(st.integers(1, 5))
    rest = deal.for_workers(new)
    left = [int(i) for q in rest.queues() for p in q for i in rest.order[p.begin : p.end]]
    assert sorted(left) == sorted(unread.tolist())
    assert len(rest.queues()) == new


def test_many_samples_are_dealt_as_few_are() -> None:
    """Whole pieces go without a rest, parts get the next ids, and what a queue lacks comes from the longest."""
    deal = EpochSplit.whole(np.arange(1200), 3, np.array([0, 0, 1]), 2, first_id=5)
    assert [[(p.id, p.shard, p.begin, p.end) for p in queue] for queue in deal.queues()] == [
        [(5, 0, 0, 400), (6, 1, 400, 800)],
        [(7, 2, 800, 1200)],
    ]
    assert deal.next_id == 8
    assert deal.draw(np.array([400, 400]), 0).tolist() == list(range(400))
    assert [[(p.id, p.begin, p.end) for p in queue] for queue in deal.queues()] == [[(6, 400, 800)], []]
    assert deal.draw(np.array([100, 200]), 1).tolist() == list(range(600, 800))
    assert [[(p.id, p.begin, p.end) for p in queue] for queue in deal.queues()] == [[(6, 500, 600)], []]
    assert deal.next_id == 9
    rest = deal.for_workers(2)
    assert [[(p.id, p.shard, p.begin, p.end) for p in queue] for queue in rest.queues()] == [[(6, 1, 500, 600)], []]


# -- samplers ------------------------------------------------------------------------------------------------


def samplers(ranks: int, samples: int = 100, batch: int = 12, **settings: object) -> list[ShareSampler]:
    return [
        ShareSampler(samples, rank=r, ranks=ranks, global_batch=batch, **settings)  # type: ignore[arg-type]
        for r in range(ranks)
    ]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_sample_once_with_prefetching_and_changing_shares(data: st.DataObject) -> None:
    """Each rank draws ahead by a depth of its own; changes name the first round no rank has drawn."""
    ranks = data.draw(st.integers(1, 4))
    samples, batch = data.draw(st.integers(1, 150)), data.draw(st.integers(4, 30))
    unit = data.draw(st.integers(1, 3))
    depth = [data.draw(st.integers(1, 5)) for _ in range(ranks)]
    some = samplers(ranks, samples, batch, shards=9, micro_batch=unit, seed=data.draw(st.integers(0, 5)))
    for _ in range(2):
        streams = [iter(s) for s in some]
        ahead: list[list[list[int]]] = [[] for _ in some]
        seen: list[int] = []
        while True:
            for stream, waiting, deep in zip(streams, ahead, depth, strict=True):
                while len(waiting) < deep and (drawn := next(stream, None)) is not None:
                    waiting.append(drawn)
            if not any(ahead):
                break
            rounds = [s.current() for s in some]
            demand = np.array(rounds[0].samples)  # type: ignore[union-attr]
            for sampler, waiting, current in zip(some, ahead, rounds, strict=True):
                assert current is not None
                assert current.samples == tuple(demand.tolist())
                batch_here = waiting.pop(0)
                assert len(current.indices) == demand[sampler.rank]
                assert batch_here == current.indices.tolist() or (len(batch_here) == 1 and not len(current.indices))
                seen += current.indices.tolist()
                sampler.finish()
                sampler.commit()
            left = samples - len(seen) + demand.sum()
            assert min(batch, left) <= demand.sum() < batch + ranks * unit
            if data.draw(st.booleans()):
                weights = np.array(data.draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks)))
                change = RoundChange(max(s.drawn for s in some), tuple(deal(batch, weights, unit).tolist()))
                for sampler in some:
                    sampler.schedule(change)
        assert sorted(seen) == list(range(samples))


def plain(**settings: object) -> ShareSampler:
    """The first of two ranks; of 24 samples in their order it has the first half, 4 in each of three rounds."""
    return samplers(2, 24, 8, shards=2, shuffle=False, **settings)[0]


def test_rounds_that_are_not_safe_are_kept_and_an_epoch_that_is_broken_off_is_forgotten() -> None:
    sampler = plain()
    list(sampler)
    sampler.finish()
    sampler.commit()
    assert [each.number for each in sampler._rounds] == [1, 2]
    assert next(iter(sampler)) == [0, 1, 2, 3]
    current = sampler.current()
    assert current is not None
    assert (current.number, current.epoch, current.indices.tolist()) == (1, 1, [0, 1, 2, 3])
    sampler.set_epoch(8)
    next(iter(sampler))
    assert sampler.epoch == 8
    sampler = plain()
    list(sampler)
    with pytest.warns(UserWarning, match="the last 3 batches of an epoch were read without runtime"):
        next(iter(sampler))


@pytest.mark.parametrize(
    ("left", "resumes", "dropped"),
    [(9, True, True), (8, True, True), (7, True, False), (1, True, False), (0, False, False)],
)
def test_the_rest_of_an_epoch_is_gone_on_with(left: int, resumes: bool, dropped: bool) -> None:
    """Where less than a global batch of 8 is left, nothing of it where such rounds are left out."""
    for drop_last, goes_on in ((False, resumes), (True, dropped)):
        sampler = plain(drop_last=drop_last)
        next(iter(sampler))
        rest = EpochSplit.whole(np.arange(24 - left, 24), 1, np.array([0]), 2, first_id=40) if left else None
        sampler.resume(3, rest, 0)
        assert (sampler.current(), sampler.to_read(), sampler.resumes) == (None, [], goes_on)
        assert sampler.whole_deal(4).queues()[0][0].id == (41 if left else 2)
        if not goes_on:
            continue
        assert next(iter(sampler))[0] == 24 - left
        assert (sampler.epoch, sampler.drawn) == (3, 1)
    assert plain().state()["deal"] is None


@pytest.mark.parametrize(
    ("samples", "drop_last", "passes", "rounds"),
    [(24, False, 1, 3), (25, False, 1, 3), (26, False, 1, 4), (25, True, 1, 3), (26, False, 3, 12), (1, False, 1, 1)],
)
def test_batches_of_an_epoch(samples: int, drop_last: bool, passes: int, rounds: int) -> None:
    sampler = samplers(2, samples, 8, drop_last=drop_last)[0]
    sampler.accumulation = passes
    assert len(sampler) == rounds


def test_what_is_planned_is_what_was_scheduled_last() -> None:
    sampler = plain()
    assert sampler.planned_shares().tolist() == [4, 4]
    sampler.schedule(RoundChange(1, (5, 3), global_batch=8, learning_rate=1.5, accumulation=2))
    sampler.schedule(RoundChange(2, (9, 7), global_batch=16, learning_rate=2.0, accumulation=3))
    sampler.schedule(RoundChange(3, order=(1,)))
    assert sampler.planned_shares().tolist() == [9, 7]
    assert (sampler.planned_batch(), sampler.planned_rate(), sampler.planned_accumulation()) == (16, 2.0, 3)


def test_a_change_holds_from_its_round_on() -> None:
    (sampler,) = samplers(1)
    first, second = samplers(2)
    stream = iter(first)
    for _ in range(3):
        next(stream)
    with pytest.raises(ValueError, match="round 2 is already drawn"):
        first.schedule(RoundChange(2, (6, 6)))
    first.schedule(RoundChange(4, (2, 10)))
    assert first.planned_shares().tolist() == [2, 10]
    sizes = []
    for _ in range(3):
        sizes.append(len(next(stream)))
    assert sizes == [6, 2, 2]
    assert len(sampler) == len(second) == 9


def test_owners_are_kept_for_the_next_epoch() -> None:
    (first, _) = samplers(2, 96, shards=4)
    stream = iter(first)
    next(stream)
    assert first.deal is not None
    piece = first.deal.queues()[1][-1]
    first.schedule(RoundChange(first.drawn, moves=((piece.id, 0),)))
    for _ in stream:
        first.finish()
        first.commit()
    assert first.owner[piece.shard] == 0
    next(iter(first))
    assert first.deal.owned[0] > first.deal.owned[1]


def test_a_move_that_comes_too_late_is_reported() -> None:
    (first, _) = samplers(2, 96, shards=4)
    stream = iter(first)
    next(stream)
    assert first.deal is not None
    started = first.deal.queues()[0][0]
    first.schedule(RoundChange(1, moves=((started.id, 1),)))
    next(stream)
    assert first.refused == [f"piece {started.id} to rank 1: its owner has started it meanwhile"]


def test_a_script_may_break_off_an_epoch() -> None:
    some = samplers(2)
    for sampler in some:
        stream = iter(sampler)
        for _ in range(4):
            next(stream)
        sampler.finish()
        sampler.commit()
    seen = [i for sampler in some for part in sampler for i in part]
    assert sorted(seen) == list(range(100))


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    a, b = samplers(1, seed=3), samplers(1, seed=3)
    epochs = []
    for _ in range(2):
        epochs.append([])
        for part in a[0]:
            epochs[-1] += part
            a[0].finish()
    assert epochs[0] != epochs[1]
    assert [i for part in b[0] for i in part] == epochs[0]
    (plain,) = samplers(1, shuffle=False)
    assert [i for part in plain for i in part] == list(range(100))


@pytest.mark.parametrize(("samples", "batch", "unit"), [(0, 4, 1), (10, 0, 1), (10, 2, 4)])
def test_impossible_samplers_are_refused(samples: int, batch: int, unit: int) -> None:
    with pytest.raises(ValueError, match=r"empty|micro-batch"):
        ShareSampler(samples, rank=0, ranks=1, global_batch=batch, micro_batch=unit)


def test_a_change_survives_the_wire() -> None:
    change = RoundChange(7, (3, 5), ((4, 1), (5, 0)), (9, 8), 3, (0.5, 0.25), (300.0, 250.5), 8, 2, 1.5, 3)
    assert None not in dataclasses.astuple(change)
    assert RoundChange.from_json(change.to_json()) == change
    assert RoundChange(7).is_empty()
    assert not change.is_empty()


# -- a job that is started again -----------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_sample_once_through_checkpoints_on_other_ranks(data: st.DataObject) -> None:
    """Rounds after the last checkpoint are lost and trained again, on any number of ranks."""
    samples, batch = data.draw(st.integers(1, 120)), data.draw(st.integers(4, 24))
    some = samplers(data.draw(st.integers(1, 4)), samples, batch, shards=7)
    counted, since, saved = [], [], None
    streams = [iter(s) for s in some]
    while all([next(stream, None) is not None for stream in streams]):  # noqa: C419  # each is drawn from
        since += [i for s in some for i in s.current().indices.tolist()]  # type: ignore[union-attr]
        for sampler in some:
            sampler.finish()
            sampler.commit()
        if data.draw(st.booleans()):
            saved, counted, since = json.dumps(some[0].state()), counted + since, []
        if saved is not None and data.draw(st.integers(0, 3)) == 0:
            some, since = samplers(data.draw(st.integers(1, 4)), samples, batch, shards=7), []
            for sampler in some:
                sampler.load(json.loads(saved))
            if not some[0].resumes:
                break
            streams = [iter(s) for s in some]
    assert sorted(counted + since) == list(range(samples))
