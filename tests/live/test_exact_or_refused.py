"""Scripts that would train on wrong weights end in an error of one line; others are exact."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.checks import BatchCheck  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, BATCH = 65, 16


def start(model: Any = None, optimizer: Any = None, **options: Any) -> tuple[Any, Any, Any]:
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4) if model is None else model
    wrapped = DistributedDataParallel(net)
    optimizer = (optimizer or torch.optim.SGD)(net.parameters(), lr=0.01)
    settings = {"policy": "none", "global_batch": BATCH, "decide_every": 2, **options}
    return wrapped, optimizer, attach(wrapped, optimizer, **settings)


def step(model: Any, optimizer: Any, x: Any) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def skips_a_batch() -> None:
    """`continue` without `step()`."""
    model, optimizer, runtime = start()
    for k, x in enumerate(torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=runtime.sampler(SAMPLES))):
        if k == 1:
            continue
        step(model, optimizer, x)
        runtime.step()


def shards_again() -> None:
    """Every second batch of the sampler, as a wrapper that shards batches among ranks takes."""
    model, optimizer, runtime = start()
    loader = torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=runtime.sampler(SAMPLES))
    for k, x in enumerate(loader):
        if k % 2:
            step(model, optimizer, x)
            runtime.step()


def drops_samples() -> None:
    """Another batch than the one that was drawn."""
    model, optimizer, runtime = start()
    loader = torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=runtime.sampler(SAMPLES))
    for k, x in enumerate(loader):
        step(model, optimizer, x[: len(x) - (k == 1)])
        runtime.step()


def wraps_a_part() -> None:
    from torch.nn.parallel import DistributedDataParallel

    from equipoise.live.attach import attach

    groups = [torch.distributed.new_group([rank]) for rank in range(2)]
    model = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=groups[torch.distributed.get_rank()])
    attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "none", global_batch=4)


def changes_a_replica() -> None:
    model, optimizer, runtime = start()
    loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_sampler=runtime.sampler(400))
    for k, x in enumerate(loader):
        step(model, optimizer, x)
        if k == 3 and runtime.rank == 1:
            with torch.no_grad():
                model.module.weight.mul_(1.01)
        runtime.step()


def shuffles_by_rank() -> None:
    """A buffer of the stream is shuffled with a seed of the rank's own: the first batches are the same."""
    model, optimizer, runtime = start()
    first = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    data = torch.randn(336, 4, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))
    for x in runtime.stream([*first, *data]):
        step(model, optimizer, x)
        runtime.step()


def counts_by_itself() -> None:
    """An optimiser step for every third batch, which `attach` does not know: a checkpoint would lose gradients."""
    model, optimizer, runtime = start()
    loader = torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=runtime.sampler(SAMPLES))
    for k, x in enumerate(loader, 1):
        model(x).square().mean().backward()
        if k % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        runtime.step()
    runtime.state_dict()


def resumes_the_loader_alone() -> None:
    _, _, runtime = start()
    runtime.sampler(SAMPLES).load_state_dict({"trained": 3})


def shares_sequences() -> None:
    """PyTorch's context parallel over all ranks, each of which draws sequences of its own."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    model, optimizer, runtime = start()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for x in torch.utils.data.DataLoader(torch.randn(64, 4, 4), batch_sampler=runtime.sampler(64)):
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
            step(model, optimizer, x)
        runtime.step()


class Exchanges(torch.nn.Module):  # type: ignore[misc]
    """A layer whose output is exchanged between two ranks, as by context or tensor parallel code of a script's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.group, _ = torch.distributed.new_subgroups(size)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(self.layer(x), group=self.group)


def exchanges_in_pairs() -> None:
    model, optimizer, runtime = start(Exchanges(2))
    for x in torch.utils.data.DataLoader(torch.randn(64, 4), batch_sampler=runtime.sampler(64)):
        step(model, optimizer, x)
        runtime.step()


REFUSED = {
    skips_a_batch: "more batches were drawn than rounds trained",
    shards_again: "more batches were drawn|were forwarded",
    drops_samples: "has 8 samples for this rank, but 7 were forwarded",
    wraps_a_part: r"DistributedDataParallel over ranks \[0\] of 2 is not supported",
    changes_a_replica: r"the replicas of ranks \[1\] differ from that of rank 0",
    counts_by_itself: "middle of an optimiser's step: .* names `accumulation`",
    resumes_the_loader_alone: r"load runtime\.state_dict\(\) as well",
    shuffles_by_rank: r"the stream of rank 0 differs from that of ranks \[1\]",
    shares_sequences: "its forward pass is shared by some ranks",
    exchanges_in_pairs: "its forward pass is shared by some ranks",
}


def said(rank: int, script: str) -> str:
    torch.distributed.init_process_group("gloo")
    try:
        globals()[script]()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("script", REFUSED, ids=lambda script: script.__name__)
def test_wrong_weights_are_an_error(script: Any) -> None:
    first, *_ = live_ranks.run(said, 4 if script is exchanges_in_pairs else 2, script.__name__)
    assert re.search(REFUSED[script], first), first
    assert "\n" not in first


def last_batch(rank: int) -> tuple[list[list[int]], int]:
    torch.distributed.init_process_group("gloo")
    model, optimizer, runtime = start()
    sampler, seen = runtime.sampler(SAMPLES), []
    loader = torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=sampler)
    for x in loader:
        seen.append(sampler.current().indices.tolist())
        step(model, optimizer, x)
        runtime.step()
    return seen, len(sampler)


def test_a_rest_of_fewer_samples_than_ranks_is_part_of_the_last_batch() -> None:
    """65 samples are batches of 16, 16, 16 and 17: no rank is ever without a sample."""
    results = live_ranks.run(last_batch, 2)
    assert [sum(map(len, parts)) for parts in zip(*(seen for seen, _ in results), strict=True)] == [16, 16, 16, 17]
    assert collections.Counter(i for seen, _ in results for part in seen for i in part) == collections.Counter(
        range(SAMPLES)
    )
    assert [length for _, length in results] == [4, 4]


def factored(rank: int) -> list[Any]:
    """Adafactor keeps sums by row and by column: local steps make them differ, the exchange makes them equal."""
    torch.distributed.init_process_group("gloo")
    model, optimizer, runtime = start(optimizer=torch.optim.Adafactor, drift=0.01)
    runtime._parts.local.change(2)
    for x in torch.utils.data.DataLoader(torch.randn(SAMPLES, 4), batch_sampler=runtime.sampler(SAMPLES)):
        step(model, optimizer, x)
        runtime.step()
    runtime.state_dict()
    states = [kept for p in model.parameters() for kept in (optimizer.state[p][k] for k in sorted(optimizer.state[p]))]
    return [*model.parameters(), *(kept for kept in states if isinstance(kept, torch.Tensor))]


def test_local_steps_exchange_an_optimizers_whole_state() -> None:
    first, second = live_ranks.run(factored, 2)
    assert len(first) > 4
    assert all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(first, second, strict=True))


def other_weights(rank: int) -> float:
    torch.distributed.init_process_group("gloo")
    _, _, runtime = start()
    return float(runtime.mean(rank + 1.0, weight=1 + 2 * rank))


def test_a_mean_over_an_epoch_takes_its_own_weights() -> None:
    assert live_ranks.run(other_weights, 2) == [(1 * 1 + 3 * 2) / 4] * 2


def test_sequences_in_front_of_samples_are_no_wrong_batch() -> None:
    """Inputs (16 steps, samples, 4): 16 is twice the 8 samples of the first rounds, and no multiple of 10."""
    check = BatchCheck()
    for samples in (8, 8, 8, 8, 10, 12):
        check.forward((torch.zeros(16, samples, 4),), {})
        check.end_round(samples)
    check = BatchCheck()
    for samples in (8, 8, 8, 8):
        check.forward((torch.zeros(samples, 16, 4),), {})
        check.end_round(samples)
    check.forward((torch.zeros(6, 16, 4),), {})
    with pytest.raises(RuntimeError, match="the round has 8 samples for this rank, but 6 were forwarded"):
        check.end_round(8)
