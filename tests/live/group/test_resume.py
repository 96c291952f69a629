"""Stopped in the middle of an epoch, gone on with from a checkpoint: every sample once, as if never stopped."""

from __future__ import annotations

import collections
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train import randomness  # noqa: E402
from equipoise.live.train.change import RoundChange  # noqa: E402
from equipoise.live.train.sampler import ShareSampler  # noqa: E402
from equipoise.policies.record.journal import decode_memory, encode_memory  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, BATCH, FEATURES, EPOCHS, LR = 240, 12, 5, 2, 0.01
STOP, NEVER = 27, -9  # rounds; 20 an epoch


def make_data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * 2 - x[:, 1:2]


def make_net(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 8), torch.nn.Dropout(dropout), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).double()


def train(
    rank: int, path: str, stop: int, interval: int = 1, dropout: float = 0.0, distributed: bool = False
) -> dict[str, Any]:
    """A script with checkpoints, as a user writes it; it saves after `stop` rounds and breaks off soon after."""
    import torch.distributed.checkpoint as dcp
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    x, y = make_data()
    net = make_net(dropout)
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    runtime = attach(model, optimizer, "s2", global_batch=BATCH, mode="advise", decide_every=4)
    if not distributed and Path(path).exists():
        saved = torch.load(path, weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        runtime.load_state_dict(saved["runtime"])
    sampler = runtime.sampler(SAMPLES)
    if distributed and Path(path).exists():
        dcp.load({"net": net, "runtime": runtime}, checkpoint_id=path)
    if runtime.round == 0 and interval > 1:
        runtime._parts.local.change(interval)
    leader = runtime._parts.agreement.leader
    log: list[Any] = []
    found = {"log": log, "began_at": runtime.round, "memory": dict(leader.decider.memory) if leader else None}
    loader = DataLoader(TensorDataset(x, y), batch_sampler=sampler, num_workers=int(stop > 0))
    for epoch in runtime.epochs(EPOCHS):
        for inputs, labels in loader:
            current = sampler.current()
            if runtime.round == 3 and runtime.ranks == 2:
                sampler.schedule(RoundChange(9, shares=(5, 7)))
            loss = torch.nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            runtime.step()
            log.append((current.number, epoch, current.indices.tolist(), float(loss.detach()), current.total))
            if runtime.round == stop:
                state = runtime.state_dict()
                if distributed:
                    dcp.save({"net": net, "runtime": runtime}, checkpoint_id=path)
                elif rank == 0:
                    content = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "runtime": state}
                    torch.save(content, path)
                torch.distributed.barrier()
            if runtime.round == stop + 2:
                return found | {"weights": [p.detach().clone() for p in net.parameters()]}  # killed, as it were
    runtime.close()
    return found | {"weights": [p.detach().clone() for p in net.parameters()]}


def batches(*runs: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Indices of every round; of two runs that trained it, the later one's."""
    found: dict[int, list[int]] = {}
    for results in runs:
        rounds: dict[int, list[int]] = collections.defaultdict(list)
        for result in results:
            for number, _, indices, *_ in result["log"]:
                rounds[number] += indices
        found |= rounds
    return found


def exactly_once(found: dict[int, list[int]]) -> None:
    per_epoch = SAMPLES // BATCH
    assert sorted(found) == list(range(EPOCHS * per_epoch))
    for epoch in range(EPOCHS):
        seen = collections.Counter(i for k in range(per_epoch) for i in found[epoch * per_epoch + k])
        assert seen == collections.Counter(range(SAMPLES))


def loss_curve(results: list[dict[str, Any]]) -> dict[int, float]:
    rounds: dict[int, float] = collections.defaultdict(float)
    for result in results:
        for number, _, indices, loss, total in result["log"]:
            rounds[number] += loss * len(indices) / total
    return rounds


def one_process(found: dict[int, list[int]]) -> tuple[list[Any], dict[int, float]]:
    x, y = make_data()
    net, losses = make_net(), {}
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    for number in sorted(found):
        loss = torch.nn.functional.mse_loss(net(x[found[number]]), y[found[number]])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[number] = float(loss.detach())
    return [p.detach() for p in net.parameters()], losses


@pytest.mark.long
def test_two_ranks_stop_and_three_go_on(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint.pt")
    first = live_ranks.run(train, 2, path, STOP)
    rest = live_ranks.run(train, 3, path, NEVER)
    assert [result["began_at"] for result in rest] == [STOP] * 3
    assert rest[0]["memory"]  # what the policy had learnt goes on
    found = batches(first, rest)
    exactly_once(found)
    weights, losses = one_process(found)
    for result in rest:
        for a, b in zip(result["weights"], weights, strict=True):
            assert float((a - b).norm() / b.norm()) < 1e-12
    curve = loss_curve(first) | loss_curve(rest)
    assert curve == pytest.approx(losses, rel=1e-9)


@pytest.mark.long
def test_the_same_ranks_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    """Shares, deals and dropout's random numbers: equal to the bit."""
    path = str(tmp_path / "checkpoint.pt")
    live_ranks.run(train, 2, path, STOP, 1, 0.5)
    rest = live_ranks.run(train, 2, path, NEVER, 1, 0.5)
    whole = live_ranks.run(train, 2, str(tmp_path / "none.pt"), NEVER, 1, 0.5)
    for ours, theirs in zip(rest, whole, strict=True):
        assert [entry[:3] for entry in ours["log"]] == [entry[:3] for entry in theirs["log"][STOP:]]
        assert all(torch.equal(a, b) for a, b in zip(ours["weights"], theirs["weights"], strict=True))


@pytest.mark.long
def test_replicas_that_step_alone_meet_for_the_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint.pt")
    first = live_ranks.run(train, 2, path, STOP, 5)  # in the middle of a period
    rest = live_ranks.run(train, 3, path, NEVER, 5)
    exactly_once(batches(first, rest))
    for other in rest[1:]:
        assert all(torch.equal(a, b) for a, b in zip(rest[0]["weights"], other["weights"], strict=True))
    curve = loss_curve(first) | loss_curve(rest)
    before, after = [curve[k] for k in range(STOP - 8, STOP)], [curve[k] for k in range(STOP, STOP + 8)]
    assert sum(after) < 1.2 * sum(before)


@pytest.mark.long
def test_pytorchs_distributed_checkpoint_keeps_it(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    first = live_ranks.run(train, 2, path, STOP, 1, 0.0, True)
    rest = live_ranks.run(train, 3, path, NEVER, 1, 0.0, True)
    assert [result["began_at"] for result in rest] == [STOP] * 3
    exactly_once(batches(first, rest))


# -- the parts, without ranks --------------------------------------------------------------------------------


def sampler(rank: int = 0, ranks: int = 2, **options: Any) -> ShareSampler:
    return ShareSampler(options.pop("samples", 40), rank=rank, ranks=ranks, global_batch=8, shards=5, **options)


@pytest.mark.parametrize(("other", "says"), [({"samples": 41}, "samples of 40"), ({"seed": 1}, "seed of 0")])
def test_a_state_of_other_data_is_refused(other: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=f"state: {says} is not allowed"):
        sampler(**other).load(sampler().state())


def test_a_state_that_comes_too_late_is_refused() -> None:
    late = sampler()
    next(iter(late))
    with pytest.raises(RuntimeError, match="a batch was drawn already"):
        late.load(sampler().state())


def test_between_two_epochs_the_next_one_begins() -> None:
    first = sampler()
    for _ in first:
        first.finish()
    second = sampler()
    second.load(first.state())
    assert not second.resumes
    assert [len(batch) for batch in second] == [4] * 5
    assert second.epoch == 1


def test_random_numbers_go_on() -> None:
    device = torch.device("cpu")
    before = randomness.state(device)
    drawn = random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002
    randomness.load(before, device)
    assert (random.random(), np.random.random(), float(torch.rand(()))) == drawn  # noqa: NPY002
    randomness.seed(0, 5, 2)
    mine = float(torch.rand(()))
    randomness.seed(0, 5, 3)
    assert float(torch.rand(())) != mine
    randomness.load(before, device)


def test_what_a_policy_remembers_survives_the_file() -> None:
    memory = {"0:s1": {"rates": np.array([1.5, float("nan")]), "seen": (3, "x")}}
    back = decode_memory(encode_memory(memory))
    np.testing.assert_array_equal(back["0:s1"]["rates"], memory["0:s1"]["rates"])
    assert back["0:s1"]["seen"] == (3, "x")


def test_the_rest_that_makes_no_whole_batch_is_left_out_when_wanted() -> None:
    made = sampler(samples=43, drop_last=True)
    assert len(made) == 5
    assert [len(batch) for batch in made] == [4] * 5
    with pytest.raises(ValueError, match="drop_last: leaves nothing of 7 samples"):
        sampler(samples=7, drop_last=True)


def test_a_state_that_lacks_a_part_is_one_line() -> None:
    from equipoise.live import checkpoint

    nothing: Any = None
    with pytest.raises(ValueError, match=r"^state: round is missing; needed: the result of runtime\.state_dict\(\)$"):
        checkpoint.load(nothing, nothing, {"format": checkpoint.FORMAT})
