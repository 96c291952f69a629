"""The rules of shard queues by hand, and the simulated and the live queues against each other, move for move."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.live.train.epoch_split import EpochSplit
from equipoise.policies.shards import next_batch
from equipoise.sim.job.dataset import JobData


def simulated(sizes: list[int], owners: list[int], workers: int) -> JobData:
    """A dataset without bytes, so that nothing is ever on its way: no transfers are needed."""
    homes = [[owner] for owner in owners]
    data = JobData(np.array(sizes), 0.0, homes, cast(Any, None), np.zeros(workers))
    data.assign(list(range(workers)))
    return data


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_simulated_and_live_queues_are_the_same_move_for_move(draw: st.DataObject) -> None:
    workers, samples = draw.draw(st.integers(1, 4)), draw.draw(st.integers(1, 80))
    shards, unit = draw.draw(st.integers(1, min(10, samples))), draw.draw(st.integers(1, 3))
    owners = draw.draw(st.lists(st.integers(0, workers - 1), min_size=shards, max_size=shards))
    live = EpochSplit.whole(np.arange(samples), shards, np.array(owners), workers)
    starts = {p.shard: p.begin for queue in live.queues() for p in queue}
    sizes = {p.shard: p.left for queue in live.queues() for p in queue}
    data = simulated([sizes[k] for k in range(shards)], owners, workers)
    while live.left:
        match draw.draw(st.sampled_from(["read", "read", "read", "move", "reorder"])):
            case "read":
                weights = draw.draw(st.lists(st.integers(0, 9), min_size=workers, max_size=workers))
                shares = np.array(weights if any(weights) else [1] * workers) * unit
                demand = next_batch(data.left, shares, unit)
                assert live.demand(shares, unit).tolist() == demand.tolist()
                live.draw(demand, 0)
                data.prepare(demand, 1.0 / np.maximum(demand, 1))
                data.consume(demand)
            case "move":
                piece, target = draw.draw(st.integers(0, 30)), draw.draw(st.integers(0, workers - 1))
                assert live.move(piece, target) == data.move(piece, target)
            case "reorder":
                order = draw.draw(st.lists(st.integers(0, 30), unique=True))
                rank = {piece: place for place, piece in enumerate(order)}
                live.reorder(rank)
                data.reorder(rank)
        assert [
            [(p.id, p.shard, p.begin - starts[p.shard], p.end - starts[p.shard], live.begun(p)) for p in queue]
            for queue in live.queues()
        ] == [[(p.id, p.shard, p.cursor, p.end, p.started) for p in queue] for queue in data.queues]
    data.next_epoch()  # every sample exactly once
