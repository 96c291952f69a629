"""What is drawn in which order, and what a checkpoint of it says: by value."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

from equipoise.live.train.change import Change
from equipoise.live.train.deal import Deal, LivePiece, block_owners
from equipoise.live.train.sampler import Files, Round, ShareSampler, in_passes

SIZES = np.array([4, 2, 3], dtype=np.int64)


def sampler(samples: int = 7, rank: int = 0, ranks: int = 1, batch: int = 4, **how: Any) -> ShareSampler:
    return ShareSampler(samples, rank=rank, ranks=ranks, global_batch=batch, **how)


def read(made: ShareSampler) -> list[int]:
    """An epoch that is trained on."""
    found = []
    for indices in made:
        found += indices
        made.finish(stepped=True)
        made.commit()
    return found


# -- in which order ------------------------------------------------------------------------------------------


def test_the_order_of_an_epoch_is_the_same_in_every_version() -> None:
    """Else a checkpoint of the last version would go on with other samples."""
    made = sampler(seed=3)
    made.set_epoch(2)
    assert read(made) == [4, 0, 2, 1, 6, 3, 5]
    files = sampler(9, batch=9, seed=3, files=Files(SIZES, "these"))
    files.set_epoch(2)
    assert read(files) == [4, 5, 6, 7, 8, 2, 0, 1, 3]  # the second file, the third and the first
    assert read(sampler(9, batch=2, shuffle=False, files=Files(SIZES, "these"))) == [*range(9)]
    assert read(sampler(shuffle=False)) == [*range(7)]
    assert sampler()._order(5).tolist() == sampler(seed=0)._order(5).tolist() != [*range(7)]


def test_what_a_sampler_begins_with() -> None:
    made = sampler(100, 1, 3, 12)
    assert (made.shards, made.shuffle, made.seed, made.drop_last, made.micro_batch) == (64, True, 0, False, 1)
    assert (made.epoch, made.drawn, made.trained, made.stepped, made.boundary) == (-1, 0, 0, 0, 0)
    assert (made.near_boundary, made.accumulation, made.rate, made.takes_passes) == (0, 1, 1.0, False)
    assert (made.members, made.shares.tolist(), made.resumes, made.deal) == (
        (0, 1, 2),
        [4, 4, 4],
        False,
        None,
    )
    assert sampler(7, shards=9).shards == 7
    assert sampler(9, shards=2, files=Files(SIZES, "these")).shards == 3
    preview = made.preview()
    assert preview is not None
    assert (preview.left, made.deal, preview.queues()[0][0].id) == (100, None, 0)
    plain = Round(0, 0, (), 0, np.array([5]), False)
    assert (plain.passes, plain.ends_step, plain.of_step, plain.rate, plain.stand_in) == (1, True, (), 1.0, 0)
    assert plain.read.tolist() == [5]
    assert Round(0, 0, (), 0, np.empty(0, dtype=np.int64), False, stand_in=8).read.tolist() == [8]


@pytest.mark.parametrize(
    ("samples", "how", "why"),
    [
        (0, {}, "the dataset is empty"),
        (7, {"batch": 3, "micro_batch": 4}, "global_batch 3 is less than one micro-batch of 4"),
        (7, {"batch": 0}, "global_batch 0 is less than one micro-batch of 1"),
        (3, {"drop_last": True}, "drop_last: leaves nothing of 3 samples, the global batch is 4"),
        (1, {}, None), (7, {"batch": 4, "micro_batch": 4}, None), (4, {"drop_last": True}, None),
        (7, {"batch": 1}, None),
    ],
)  # fmt: skip
def test_the_least_that_can_be_sampled(samples: int, how: dict[str, Any], why: str | None) -> None:
    if why is None:
        assert sorted(read(sampler(samples, **how))) == [*range(samples)]
    else:
        with pytest.raises(ValueError, match=f"^{why}$"):
            sampler(samples, **how)


def test_what_does_not_fill_a_batch_is_left_out_where_that_is_asked_for() -> None:
    assert read(sampler(11, shuffle=False, drop_last=True)) == [*range(8)]
    made = sampler(11)
    next(iter(made))
    assert len(made) == len(sampler(11)) == 3
    assert len(sampler(11, drop_last=True)) == 2
    assert len(sampler(8, drop_last=True)) == len(sampler(8)) == 2


def test_passes_are_cut_in_whole_micro_batches() -> None:
    def cut(demand: list[int], passes: int, unit: int) -> list[list[int]]:
        """By pass."""
        return [part.tolist() for part in in_passes(np.array(demand), passes, unit)]

    assert cut([7, 3], 2, 2) == [[4, 2], [3, 1]]
    assert cut([10, 4], 3, 2) == [[2, 0], [4, 2], [4, 2]]
    assert cut([7, 3], 1, 2) == [[7, 3]]
    assert cut([7, 3], 0, 2) == [[7, 3]]
    assert cut([5, 0], 9, 2) == [[2, 0], [2, 0], [1, 0]]  # no more than there are micro-batches
    assert cut([0, 0], 3, 2) == [[0, 0]]
    assert cut([], 3, 2) == [[]]


def test_many_ranks_read_and_many_files_move_as_few_do() -> None:
    assert read(sampler(600, 299, 300, 300, shuffle=False, shards=300)) == [598, 599]
    deal = Deal.whole(np.arange(300), 300, None, 2)
    assert deal.move(int("299"), 0) is None
    assert deal.owned.tolist() == [151, 149]


def test_rounds_of_a_step_say_so() -> None:
    made = sampler(20, ranks=2, batch=8, shuffle=False, shards=2)
    made.accumulation = 2
    seen = []
    for _ in made:
        one = made.current()
        assert one is not None
        seen.append((one.samples, one.total, one.passes, one.ends_step, one.of_step, one.last))
        made.finish(one.ends_step)
    assert seen == [
        ((2, 2), 4, 2, False, (4, 4), False), ((2, 2), 4, 2, True, (4, 4), False),
        ((2, 2), 4, 2, False, (4, 4), False), ((2, 2), 4, 2, True, (4, 4), False),
        ((1, 1), 2, 2, False, (2, 2), False), ((1, 1), 2, 2, True, (2, 2), True),
    ]  # fmt: skip
    assert (made.trained, made.stepped) == (6, 6)


def test_an_epoch_that_nobody_trained_on_is_told_where_it_begins_again() -> None:
    made = sampler()
    for _ in made:
        pass
    with pytest.warns(UserWarning, match=r"a whole epoch was read without runtime\.step") as told:
        next(iter(made))
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings(action="error"):
        next(iter(made))  # it was not read to its end


# -- what is watched and changed ----------------------------------------------------------------------------


def test_whoever_watches_is_told_of_every_round() -> None:
    made, told = sampler(shuffle=False), list[tuple[int, int]]()
    made.watch = lambda: told.append((made.drawn, made.trained))
    made.before_draw = lambda: told.append((-1, -1))
    drawn = iter(made)
    next(drawn)
    made.finish(stepped=False)
    next(drawn)
    assert told == [(0, 0), (-1, -1), (1, 0), (1, 1), (2, 1)]
    assert (made.trained, made.stepped) == (1, 0)


def test_a_change_holds_all_that_it_says() -> None:
    made = sampler(48, ranks=2, batch=6, shuffle=False, shards=4)
    drawn = iter(made)
    next(drawn)
    deal = made.deal
    assert deal is not None
    made.schedule(Change(2, (3, 5), global_batch=8, learning_rate=1.5))
    made.schedule(Change(2, moves=((1, 1), (0, 1), (99, 1)), order=(3, 1)))
    next(drawn)
    assert (made.global_batch, made.rate, made.shares.tolist()) == (6, 1.0, [3, 3])
    assert (made.planned_batch(), made.planned_rate(), made.planned_shares().tolist()) == (8, 1.5, [3, 5])
    next(drawn)
    assert (made.global_batch, made.rate, made.shares.tolist()) == (8, 1.5, [3, 5])
    assert made._rounds[-1].samples == (3, 5)
    assert [one.rate for one in made._rounds] == [1.0, 1.0, 1.5]
    assert made.refused == [
        "piece 0 to rank 1: its owner has started it meanwhile", "piece 99 to rank 1: it has been read meanwhile"
    ]  # fmt: skip
    assert made.owner.tolist() == [0, 1, 1, 1]
    assert [[p.id for p in queue] for queue in deal.queues()] == [[0], [2, 3, 1]]
    with pytest.raises(ValueError, match=r"^round 2 is dealt already \(next is 3\)$"):
        made.schedule(Change(2))
    made.schedule(Change(3))


# -- in a checkpoint -----------------------------------------------------------------------------------------


def at_the_second_round(**how: Any) -> ShareSampler:
    """One of two ranks; 6 of 24 samples are trained on, and 6 more are drawn."""
    made = sampler(24, ranks=2, batch=6, shuffle=False, shards=4, **how)
    drawn = iter(made)
    next(drawn)
    made.finish(stepped=True)
    made.commit()
    next(drawn)
    return made


def test_what_is_in_a_checkpoint() -> None:
    made = at_the_second_round()
    made.schedule(Change(2, (2, 6), global_batch=8, learning_rate=1.5, accumulation=3))
    state = made.state()
    queues = [[(0, 0, 3, 6), (1, 1, 6, 12)], [(2, 2, 15, 18), (3, 3, 18, 24)]]
    assert state == {
        "samples": 24, "shuffle": False, "seed": 0, "ranks": 2, "round": 1, "epoch": 0, "shares": [2, 6],
        "deal": {"order": None, "queues": queues, "next_id": 4, "begun": [0, 2]}, "global_batch": 8,
        "given_batch": 6, "rate": 1.5, "accumulation": 3, "owner": [0, 0, 1, 1],
    }  # fmt: skip
    assert sampler(9, files=Files(SIZES, "these")).state()["files"] == "these"
    fresh = sampler().state()
    assert (fresh["deal"], fresh["epoch"], fresh["round"]) == (None, -1, 0)


def test_a_checkpoint_is_gone_on_from() -> None:
    made = at_the_second_round()
    made.schedule(Change(2, (2, 6), global_batch=8, learning_rate=1.5, accumulation=3))
    made.owner[1] = 1
    state = json.loads(json.dumps(made.state()))
    again = sampler(24, ranks=2, batch=6, shuffle=False, shards=4)
    again.takes_passes = True
    again.load(state)
    assert (again.global_batch, again.rate, again.shares.tolist(), again.accumulation) == (8, 1.5, [2, 6], 3)
    assert (again.owner.tolist(), again.drawn, again.boundary, again.epoch) == ([0, 1, 1, 1], 1, 1, 0)
    assert (again.resumes, again.state()["deal"]["order"]) == (True, None)
    assert len(again) == 9  # 18 samples in three steps of three passes
    without = sampler(24, ranks=2, batch=6, shuffle=False, shards=4)
    without.load({**state, "owner": [0]})
    assert (without.accumulation, without.owner.tolist()) == (1, [0, 0, 1, 1])
    assert next(iter(without)) == [3, 4]


def test_a_checkpoint_is_gone_on_from_with_another_batch_or_other_ranks() -> None:
    state = {**at_the_second_round().state(), "rate": 1.5, "shares": [1, 5], "owner": [1, 1, 0, 0]}
    other = sampler(24, ranks=2, batch=8, shuffle=False, shards=4)
    other.load(state)  # the script wants another batch now
    assert (other.global_batch, other.rate, other.shares.tolist()) == (8, 1.0, [4, 4])
    assert other.owner.tolist() == [1, 1, 0, 0]
    more = sampler(24, ranks=3, batch=6, shuffle=False, shards=4)
    more.load(state)
    assert (more.shares.tolist(), more.rate, more.owner.tolist()) == ([2, 2, 2], 1.5, [0, 0, 1, 2])
    assert more.state()["deal"]["order"] is not None
    assert more.deal is not None
    assert more.deal.left == 18
    fewer = sampler(24, batch=6, shuffle=False, shards=4)
    fewer.load(state)
    assert fewer.deal is not None
    assert ([len(queue) for queue in fewer.deal.queues()], fewer.shares.tolist()) == ([4], [6])
    old = {k: v for k, v in at_the_second_round().state().items() if k not in ("rate", "accumulation")}
    early = sampler(24, ranks=2, batch=6, shuffle=False, shards=4)
    early.load(old)
    assert (early.rate, early.accumulation) == (1.0, 1)
    nothing = sampler(24, ranks=2, batch=6, shuffle=False, shards=4)
    nothing.load(sampler(24, ranks=2, batch=6, shuffle=False, shards=4).state())
    assert (nothing.deal, nothing.resumes, nothing._is_whole) == (None, False, True)


def test_a_checkpoint_is_one_of_the_same_data_wherever_it_was_written() -> None:
    sizes = np.array([400, 200, 360], dtype=np.int64)
    made = sampler(960, seed=1000, files=Files(sizes, "th" + "ese"))
    again = sampler(960, seed=1000, files=Files(sizes, "these"))
    again.load(json.loads(json.dumps(made.state())))
    assert again.boundary == 0
    many = [sampler(600, ranks=300, batch=300, shuffle=False) for _ in range(2)]
    next(iter(many[0]))
    many[1].load(json.loads(json.dumps(many[0].state())))
    assert many[1].state()["deal"]["order"] is None  # as many ranks as before
    asked = {
        **many[0].state(),
        "given_batch": 200,
        "shares": [2, 0] * 150,
    }  # the batch is the script's now
    other = sampler(600, ranks=300, batch=300, shuffle=False)
    other.load(json.loads(json.dumps(asked)))
    assert other.shares.tolist() == [2, 0] * 150


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"samples": 25}, "state: samples of 24 is not allowed, the job has 25"),
        ({"samples": 23}, "state: samples of 24 is not allowed, the job has 23"),
        ({"seed": 3}, "state: seed of 0 is not allowed, the job has 3"),
        ({"shuffle": True}, "state: shuffle of False is not allowed, the job has True"),
    ],
)
def test_a_checkpoint_of_other_data_is_refused(how: dict[str, Any], why: str) -> None:
    state = at_the_second_round().state()
    with pytest.raises(ValueError, match=f"^{why}$"):
        sampler(**{"samples": 24, "ranks": 2, "batch": 6, "shuffle": False, **how}).load(state)
    for late in (at_the_second_round(), sampler()):
        late.trained, late.drawn = (1, 0) if late.deal is None else (0, late.drawn)
        with pytest.raises(RuntimeError, match="a batch was drawn already"):
            late.load(state)


# -- deals ---------------------------------------------------------------------------------------------------


def test_files_are_dealt_in_their_sequence() -> None:
    made = Deal.whole(np.arange(9), 3, np.array([1, 0, 1]), 2, 5, sizes=SIZES, sequence=np.array([2, 0, 1]))
    assert [[(p.id, p.shard, p.begin, p.end) for p in queue] for queue in made.queues()] == [
        [(6, 1, 7, 9)], [(7, 2, 0, 3), (5, 0, 3, 7)]
    ]  # fmt: skip
    assert (made.next_id, made.left, made.any_sample()) == (8, 9, 0)
    some = Deal.whole(np.arange(6) + 2, 3, np.array([0, 1]), 2, sizes=np.array([4, 0, 2]))
    assert [[(p.shard, p.left) for p in queue] for queue in some.queues()] == [[(0, 4)], [(2, 2)]]
    assert (some.next_id, some.any_sample()) == (3, 2)
    assert [p.left for p in Deal.whole(np.arange(2), 5, None, 1).queues()[0]] == [1, 1]
    assert [p.left for p in Deal.whole(np.arange(5), 0, None, 1).queues()[0]] == [5]
    assert block_owners(7, 3).tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("demand", "most", "unit", "kept"),
    [
        ([4, 2], [9, 9], 1, True),  # 5 and 1 are there
        ([2, 4], [9, 9], 1, False),  # 5 are more than half as much again as 2
        ([4, 2], [5, 1], 1, True),
        ([4, 2], [4, 9], 1, False),
        ([4, 2], [9, 0], 1, False),
        ([4, 2], [9, 9], 2, False),  # no whole micro-batches
        ([4, 1], [9, 9], 1, False),  # not the last round
    ],
)
def test_the_last_samples_are_read_where_they_are(
    demand: list[int], most: list[int], unit: int, kept: bool
) -> None:
    made = Deal(np.arange(6), [[LivePiece(0, 0, 0, 5)], [LivePiece(1, 1, 5, 6)]], 2)
    found = made.kept(np.array(demand), np.array(most), unit).tolist()
    assert found == ([5, 1] if kept else demand)
    made = Deal(np.arange(4), [[LivePiece(0, 0, 0, 3)], [LivePiece(1, 1, 3, 4)]], 2)
    for asked, is_kept in (([2, 2], True), ([1, 3], False), ([3, 1], True), ([4, 0], True)):
        found = made.kept(np.array(asked), np.array([9, 9]), 1).tolist()
        assert found == ([3, 1] if is_kept else asked)


def test_a_deal_as_plain_data() -> None:
    made = Deal(np.array([7, 5, 6]), [[LivePiece(3, 1, 0, 2)], [LivePiece(4, 0, 2, 3)]], 8, frozenset({4}))
    for order in (True, False):
        data = json.loads(json.dumps(made.to_data(order=order)))
        assert (data["order"] is not None) == order
        again = Deal.from_data(data, None if order else made.order)
        assert again.to_data() == made.to_data()
        assert (again.order.tolist(), again.next_id, again.left) == ([7, 5, 6], 8, 3)
        assert [again.begun(queue[0]) for queue in again.queues()] == [False, True]
    assert made.to_data()["queues"] == [[(3, 1, 0, 2)], [(4, 0, 2, 3)]]


def test_the_rest_goes_to_who_has_least_without_what_was_trained() -> None:
    made = Deal(
        np.array([7, 5, 6, 2, 3, 0]),
        [[LivePiece(3, 1, 0, 3)], [LivePiece(4, 0, 3, 4), LivePiece(5, 2, 4, 6)]],
        8,
    )
    rest = made.without(np.array([5, 8]), 3)  # there is no sample of that number
    assert rest.order.tolist() == [7, 6, 2, 3, 0]
    assert [[(p.id, p.shard, p.begin, p.end) for p in queue] for queue in rest.queues()] == [
        [(8, 1, 0, 2)], [(9, 0, 2, 3)], [(10, 2, 3, 5)]
    ]  # fmt: skip
    assert rest.next_id == 11
    nothing = made.without(np.array([7, 5, 6, 2, 3, 0]), 2)
    assert (nothing.left, nothing.next_id, nothing.order.tolist()) == (0, 8, [])
