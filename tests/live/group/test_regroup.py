"""The group changes while training goes on: every sample once, the result as if nothing had happened."""

from __future__ import annotations

import collections
import io
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group.group import Group  # noqa: E402
from equipoise.live.group.regroup import is_transport_error  # noqa: E402
from equipoise.live.group.sockets import open_sockets, shut  # noqa: E402
from equipoise.sim.scenario.tree import InputError  # noqa: E402
from equipoise.study.twin.record import read_run  # noqa: E402
from equipoise.study.twin.twin import replayed, twin  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, BATCH, FEATURES, EPOCHS = 480, 24, 6, 2


def make_net() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).double()


def make_data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * 2 - x[:, 1:2]


class Asked:
    """Who asks to join or to leave."""

    def __init__(self, waiting: list[int], leaving: tuple[int, ...]) -> None:
        self._waiting, self._leaving = waiting, leaving

    def joins_asked(self) -> int:
        return len(self._waiting) + len(self._leaving)

    def waiting(self) -> list[int]:
        return self._waiting

    def is_leaving(self, member: int) -> bool:
        return member in self._leaving


@pytest.mark.parametrize(
    ("planned", "resize_to", "waiting", "leaving", "wanted"),
    [
        (None, None, [], (), None),
        ((2, 0, 1), None, [], (), None),  # who is there already
        ((0, 1), None, [], (), (0, 1)),  # without the last
        ((1, 2), None, [], (), (1, 2)),  # without the first
        ((0, 1, 2, 3), None, [], (), (0, 1, 2, 3)),
        (None, 3, [], (), None),
        (None, 2, [], (), (0, 1)),
        (None, 4, [], (), (0, 1, 2, 3)),  # the parked one comes back
        ((2, 1), 3, [], (), (1, 2, 3)),
        (None, None, [5], (), (0, 1, 2, 5)),
        (None, 3, [5], (), None),  # no more than asked for
        (None, None, [], (2,), (0, 1)),
        (None, None, [5], (5,), None),
        (None, None, [], (0, 1, 2), None),  # somebody has to go on
    ],
)
def test_whom_the_next_group_takes(
    planned: tuple[int, ...] | None,
    resize_to: int | None,
    waiting: list[int],
    leaving: tuple[int, ...],
    wanted: tuple[int, ...] | None,
) -> None:
    """Of a group of members 0, 1 and 2 with 3 parked."""
    group = Group.__new__(Group)
    group.membership = Asked(waiting, leaving)  # type: ignore[assignment]
    group.places = [SimpleNamespace(member=m) for m in (0, 1, 2)]  # type: ignore[misc]
    group.parked = [SimpleNamespace(member=3)]  # type: ignore[list-item]
    group.joins_seen = 0
    assert group.wanted(planned, resize_to) == wanted
    if planned is None and resize_to is None:
        assert group.wanted(planned, resize_to) is None  # who asked has been heard


def train(rank: int, folder: str, resizes: dict[int, int], interval: int, victim: int, at: int) -> dict[str, Any]:
    """A script as a user writes it; `victim` kills itself in round `at`, -1 waits there for a newcomer."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.group import regroup
    from equipoise.live.train.change import RoundChange

    x, y = make_data()
    net = make_net()
    membership = regroup.start()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    runtime = attach(
        model,
        optimizer,
        policy="s2",
        global_batch=BATCH,
        mode="advise",
        decide_every=2,
        run_dir=folder,
        state={"schedule": schedule},
    )
    dataset = TensorDataset(x, y)
    sampler = runtime.sampler(dataset)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=0)
    if interval > 1 and membership.generation == 0:
        runtime._parts.local.change(interval)
    log: list[tuple[Any, ...]] = []
    with open(Path(folder) / f"log-{membership.member}.jsonl", "w") as file:
        for epoch in runtime.epochs(EPOCHS):
            for inputs, labels in runtime.batches(loader):
                current, number = sampler.current(), runtime.round
                assert current is not None
                if rank == victim and number == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                while victim < 0 and number == at and not membership.joins_asked():
                    time.sleep(0.01)
                if number in resizes:
                    runtime.resize(resizes[number])
                if number % 3 == 1 and runtime.ranks == 4:
                    sampler.schedule(RoundChange(sampler.drawn, shares=(3, 9, 4, 8)))
                loss, generation = None, runtime.generation
                with runtime.recover():
                    loss = torch.nn.functional.mse_loss(model(inputs), labels)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                whole = runtime.generation == generation
                runtime.step()
                entry = (number, epoch, current.epoch, whole, current.indices.tolist(), runtime.ranks)
                file.write(json.dumps(entry) + "\n")
                file.flush()
                log.append((*entry, float(loss.detach()) if whole and loss is not None else None))
    runtime.close()
    return {
        "log": log,
        "weights": [p.detach().clone() for p in net.parameters()],
        "members": list(membership.members),
        "generation": membership.generation,
        "finished": runtime.finished,
    }


def seen_per_epoch(logs: list[list[Any]]) -> dict[int, collections.Counter[int]]:
    counts: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for log in logs:
        for _, _, epoch, whole, indices, *_ in log:
            if whole:
                counts[epoch].update(indices)
    return counts


def loss_curve(logs: list[list[Any]]) -> list[float]:
    """Mean loss over the ranks, by round."""
    by_round: dict[int, list[float]] = collections.defaultdict(list)
    for log in logs:
        for number, *_, loss in log:
            if loss is not None:
                by_round[number].append(loss)
    return [sum(by_round[k]) / len(by_round[k]) for k in sorted(by_round)]


def exactly_once(logs: list[list[Any]]) -> None:
    counts = seen_per_epoch(logs)
    assert sorted(counts) == list(range(EPOCHS))
    for count in counts.values():
        assert count == collections.Counter(range(SAMPLES))


def single_process(logs: list[list[Any]]) -> list[Any]:
    """The same rounds, each on its whole batch, in one process."""
    batches: dict[int, list[int]] = collections.defaultdict(list)
    for log in logs:
        for number, _, _, whole, indices, *_ in log:
            if whole:
                batches[number] += indices
    x, y = make_data()
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for number in sorted(batches):
        batch = batches[number]
        torch.nn.functional.mse_loss(net(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in net.parameters()]


def equal_weights(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-12


@pytest.mark.long
def test_four_two_three_four_and_a_newcomer(tmp_path: Path) -> None:
    """4 -> 2 -> 3 -> 4, then a fifth process joins; as if one process had trained throughout."""
    ranks = live_ranks.Ranks(train, 4, str(tmp_path), {6: 2, 12: 3, 18: 4}, 1, -1, 24)
    deadline = time.monotonic() + 180
    while '"members":[0,1,2,3]' not in events(tmp_path, "regrouped") and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks.start(4, EQUIPOISE_JOIN="1")
    results = ranks.join(timeout_s=180)
    logs = [result["log"] for result in results]
    assert {entry[5] for entry in logs[0]} == {2, 3, 4, 5}
    assert results[4]["members"] == [0, 1, 2, 3, 4]
    assert 0 < len(logs[4]) < len(logs[0])
    exactly_once(logs)
    expected = single_process(logs)
    for result in results:
        equal_weights(result["weights"], expected)


@pytest.mark.long
def test_a_member_that_is_left_out_ends_with_the_others(tmp_path: Path) -> None:
    results = live_ranks.Ranks(train, 3, str(tmp_path), {4: 1}, 1, -2, -1).join(timeout_s=180)
    logs = [result["log"] for result in results]
    exactly_once(logs)
    equal_weights(results[0]["weights"], single_process(logs))
    assert [result["finished"] for result in results] == [False, True, True]
    assert len(logs[1]) < len(logs[0])


def events(folder: Path, kind: str) -> str:
    found = [line for path in folder.rglob("rounds-*.jsonl") for line in path.read_text().splitlines()]
    return "\n".join(line for line in found if f'"event":"{kind}"' in line)


@pytest.mark.long
@pytest.mark.parametrize(("interval", "victim", "reported"), [(1, 2, False), (4, 0, True)])
def test_a_killed_rank(tmp_path: Path, interval: int, victim: int, reported: bool) -> None:
    """SIGKILL in the middle of training; with `reported` the launcher says so, else the heartbeat does."""
    ranks = live_ranks.Ranks(train, 4, str(tmp_path), {}, interval, victim, 14)
    if reported:
        ranks.report_death(victim)
    results = ranks.join(timeout_s=180, killed=[victim])
    living = [result for result in results if result is not None]
    logs = [result["log"] for result in living]
    assert all(result["members"] == [m for m in range(4) if m != victim] for result in living)
    resumed = next(e[0] for k, e in enumerate(logs[0]) if k and e[5] == 3 and logs[0][k - 1][5] != 3)
    resumed = min(resumed, min(e[0] for e in logs[0][14:]))
    dead = [json.loads(line) for line in (tmp_path / f"log-{victim}.jsonl").read_text().splitlines()]
    kept = [entry for entry in dead if entry[0] < resumed]  # rounds whose result the others share
    exactly_once([*logs, kept])
    for other in living[1:]:
        assert all(torch.equal(a, b) for a, b in zip(living[0]["weights"], other["weights"], strict=True))
    losses = loss_curve(logs)
    assert sum(losses[14:22]) < 1.5 * sum(losses[6:14])  # no step up where a rank was lost
    if interval == 1:
        equal_weights(living[0]["weights"], single_process([*logs, kept]))
        assert resumed == 14
    if victim == 0:
        assert "policy-memory-restored" in events(tmp_path, "policy-memory-restored")
    run = read_run(tmp_path)  # what the twin is made of: the rounds before the group changed
    assert run.rounds <= 14
    assert "the group changed" in run.notes[0]
    assert run.points
    assert replayed(run.folder, run.policy) == ()  # also what another rank decided later


@pytest.mark.long
def test_a_run_dir_that_was_used_keeps_its_runs_apart(tmp_path: Path) -> None:
    """The leader of the second run dies before its first decision: there is nothing to take over."""
    live_ranks.run(train, 2, str(tmp_path), {}, 1, -2, -1)
    first = live_ranks.record(tmp_path)
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    job = live_ranks.Ranks(train, 2, str(tmp_path), {}, 1, 0, 1)
    job.report_death(0)
    job.join(timeout_s=180, killed=[0])
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before
    (second,) = (path.parent for path in tmp_path.glob("*/manifest.json") if path.parent != first)
    assert "policy-memory-lost" in events(second, "policy-memory-lost")
    assert json.loads((second / "manifest.json").read_text())["run"] == second.name > first.name
    assert twin(read_run(first)).run.rounds == SAMPLES * EPOCHS // BATCH
    with pytest.raises(InputError, match=f"holds the records of 2 runs; name one, the latest .* {second}$"):
        read_run(tmp_path)


def fail(rank: int, kind: str) -> tuple[str, int, str, list[int]]:
    """Rank 1's own code raises in round 3, each time it comes there; what the rank raised, said and had left."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.group import regroup

    sys.stderr = said = io.StringIO()
    x, y = make_data()
    net = make_net()
    membership = regroup.start()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    runtime = attach(model, optimizer, "none", global_batch=BATCH)
    loader = DataLoader(TensorDataset(x, y), batch_sampler=runtime.sampler(len(x)))
    raised = ""
    try:
        for inputs, labels in runtime.batches(loader):
            with runtime.recover():
                if rank == 1 and runtime.round == 3:
                    raise OWN_ERRORS[kind]
                torch.nn.functional.mse_loss(model(inputs), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
            runtime.step()
        runtime.close()
    except Exception as error:
        raised = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return raised, runtime.generation, said.getvalue(), membership.members


OWN_ERRORS = {
    "download": RuntimeError("S3 download: Connection reset by peer (socket)"),
    "reset": ConnectionResetError("Connection reset by peer"),
    "store": torch.distributed.DistNetworkError("the script's own store"),
}


@pytest.mark.parametrize("kind", [pytest.param("download", marks=pytest.mark.long), "reset"])
def test_an_error_of_the_script_reaches_the_script(kind: str) -> None:
    ranks = live_ranks.Ranks(fail, 2, kind)
    ranks.report_death(1)
    (_, generation, said, members), (raised, regroups, *_) = ranks.join(timeout_s=60)
    assert (raised, regroups) == (str(OWN_ERRORS[kind]), 0)
    assert (generation, members) == (1, [0])  # the other one goes on without it
    assert said == "equipoise: member 1 left; the group has 1 member now\n"


@pytest.mark.long
def test_a_group_that_nobody_leaves_is_formed_anew_three_times_at_most() -> None:
    (other, generation, said, _), (raised, regroups, *_) = live_ranks.Ranks(fail, 2, "store").join(timeout_s=60)
    assert generation == regroups == 3
    assert said.count("equipoise: no member left, the group of 2 members was formed anew: ") == 3
    assert said.count("\n") == 3
    note = "equipoise: the group of 2 was formed anew 3 times, no member had left it, and no round was finished"
    assert raised == f"the script's own store\n{note}"
    assert other.endswith(note)


def test_only_the_errors_of_communication_are_taken_for_a_broken_exchange() -> None:
    assert not is_transport_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_transport_error(ValueError("connection"))
    assert not is_transport_error(RuntimeError("S3 download: Connection reset by peer (socket)"))
    assert not is_transport_error(ConnectionResetError("Connection reset by peer"))
    assert is_transport_error(RuntimeError("[/build/gloo/transport/tcp/pair.cc:553] Connection closed by peer"))
    assert is_transport_error(torch.distributed.DistNetworkError("x"))


def test_only_the_named_connections_are_broken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        server.accept()
        before = open_sockets()
        mine = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        made = open_sockets() - before
        assert len(made) == 2
        descriptor = mine.fileno()
        assert shut(made) == 2
        assert peer.recv(1) == b""
        mine.close()
        again = socket.socket()  # the kernel gives the same number to another socket
        assert again.fileno() == descriptor
        again.connect(server.getsockname())
        third, _ = server.accept()
        assert shut(frozenset(entry for entry in made if entry[0] == descriptor)) == 0
        third.sendall(b"x")
        assert again.recv(1) == b"x"
        other.sendall(b"y")
        for handle in (again, third, other, peer):
            handle.close()
