"""A stream of samples without numbers: each rank trains on what it is dealt, every sample once."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from equipoise.live.train.change import RoundChange  # noqa: E402
from equipoise.live.train.stream import ENDLESS, Reader, StreamLoader, StreamSampler, length_of  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

BATCH = 8


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Numbers from `100 * epoch` on."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch, self.opened = samples, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.opened += 1
        return iter(range(100 * self.epoch, 100 * self.epoch + self.samples))


def loader(rank: int, ranks: int, samples: int, **options: Any) -> tuple[StreamLoader, StreamSampler]:
    reader = Reader(Stream(samples))
    sampler = StreamSampler(reader, None, rank=rank, ranks=ranks, global_batch=BATCH, **options)
    return StreamLoader(reader, sampler, lambda batch: batch), sampler


def shares(ranks: int) -> st.SearchStrategy[list[int]]:
    cuts = st.lists(st.integers(0, BATCH), min_size=ranks - 1, max_size=ranks - 1).map(sorted)
    return cuts.map(lambda c: np.diff([0, *c, BATCH]).tolist())


def train(all_ranks: list[tuple[StreamLoader, StreamSampler]], deals: list[list[int]], stop: int) -> list[list[int]]:
    """What all ranks together train on, round by round, up to `stop` rounds of one epoch."""
    batches = [iter(made) for made, _ in all_ranks]
    rounds: list[list[int]] = []
    while len(rounds) < stop:
        drawn = [next(batch, None) for batch in batches]
        if None in drawn:
            assert drawn == [None] * len(drawn), "the ranks see the end at different rounds"
            break
        rounds.append([])
        for (_, sampler), mine in zip(all_ranks, drawn, strict=True):
            current = sampler.current()
            assert current is not None
            assert mine is not None
            rounds[-1] += mine if len(current.indices) else []
            if deals:
                sampler.schedule(RoundChange(sampler.drawn, shares=tuple(deals[len(rounds) % len(deals)])))
            sampler.finish()
    return rounds


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 45), st.lists(shares(3), max_size=4), st.booleans())
def test_every_sample_once_in_every_epoch_whatever_the_shares(
    samples: int, deals: list[list[int]], drop_last: bool
) -> None:
    whole = samples // BATCH * BATCH if drop_last else samples
    ranks = [loader(rank, 3, samples, drop_last=drop_last and samples >= BATCH) for rank in range(3)]
    if drop_last and samples < BATCH:
        whole = samples
    for epoch in range(2):
        rounds = train(ranks, deals, 100)
        assert [k for r in rounds for k in r] == [100 * epoch + k for k in range(whole)]
        assert [len(r) for r in rounds[:-1]] == [BATCH] * (len(rounds) - 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 45), st.integers(1, 5), st.integers(1, 4), st.lists(shares(2), max_size=3))
def test_another_number_of_ranks_goes_on_from_a_checkpoint(
    samples: int, stop: int, ranks: int, deals: list[list[int]]
) -> None:
    first = [loader(rank, 2, samples) for rank in range(2)]
    before = train(first, deals, stop)
    done = sum(len(part) for part in before)  # a rest too small for all ranks is in the last one
    states = [sampler.state() for _, sampler in first]
    assert states[0] == states[1]
    second = [loader(rank, ranks, samples) for rank in range(ranks)]
    for _, sampler in second:
        sampler.load(states[0])
        assert sampler.resumes == (done < samples)
    after = train(second, [], 100) if done < samples else []
    assert [k for r in before + after for k in r] == list(range(samples))


def test_a_stream_is_not_read_before_it_is_asked_for_nor_further_than_a_round_ahead() -> None:
    source = Stream(1000)
    reader = Reader(source)
    sampler = StreamSampler(reader, None, rank=0, ranks=2, global_batch=BATCH)
    assert source.opened == 0
    made = StreamLoader(reader, sampler, lambda batch: batch)
    for _, _ in zip(range(10), made, strict=False):
        sampler.finish()
        assert len(reader._held) <= 2 * BATCH
    assert source.opened == 1
    assert (length_of(Stream(3)), sampler.samples) == (None, ENDLESS)


def on_a_rank(rank: int, path: str, stop: int) -> list[tuple[list[int], float]]:
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    runtime = attach(model, optimizer, "s1+s2", global_batch=BATCH, mode="advise", decide_every=2)
    if Path(path).exists():
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        runtime.load_state_dict(saved["runtime"])
    seen = []
    made = runtime.stream(Stream(50))
    for _ in runtime.epochs(1):
        for x in made:
            current = runtime._stepping.current()
            loss = model(x.double()[:, None]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            runtime.step()
            seen.append((x.tolist() if len(current.indices) else [], runtime.mean(loss)))
            if runtime.round == stop:
                state = runtime.state_dict()
                if rank == 0:
                    torch.save({"model": model.module.state_dict(), "runtime": state}, path)
                torch.distributed.barrier()
                return seen
    runtime.close()
    return seen


@pytest.mark.long
def test_two_ranks_stop_in_a_stream_and_three_go_on(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint.pt")
    first = live_ranks.run(on_a_rank, 2, path, 4)
    rest = live_ranks.run(on_a_rank, 3, path, -1)
    seen = [k for result in first + rest for batch, _ in result for k in batch]
    assert collections.Counter(seen) == collections.Counter(range(50))
    assert len(rest[0]) == 3
