"""Exactly once per epoch, whatever happens to the shares; the deal against its plain twin."""

from __future__ import annotations

import json

import numpy as np
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
    shares, watched = np.ones(workers, dtype=np.int64), 0
    while deal.left:
        match data.draw(st.sampled_from(["draw", "draw", "draw", "move", "reorder", "copy"])):
            case "draw":
                if data.draw(st.booleans()):  # else the same once more, as in nearly all rounds
                    shares = np.array(data.draw(st.lists(st.integers(0, 6), min_size=workers, max_size=workers)))
                    shares = shares if shares.any() else np.ones(workers, dtype=np.int64)
                    watched = data.draw(st.integers(0, workers - 1))
                demand = deal.demand(shares, 1)
                taken = naive.draw(demand.tolist())
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
            left = samples - len(seen) + demand.sum()
            assert min(batch, left) <= demand.sum() < batch + ranks * unit
            if data.draw(st.booleans()):
                weights = np.array(data.draw(st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks)))
                change = RoundChange(max(s.drawn for s in some), tuple(deal(batch, weights, unit).tolist()))
                for sampler in some:
                    sampler.schedule(change)
        assert sorted(seen) == list(range(samples))


def test_a_script_may_break_off_an_epoch() -> None:
    some = samplers(2)
    for sampler in some:
        stream = iter(sampler)
        for _ in range(4):
            next(stream)
        sampler.finish()
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
