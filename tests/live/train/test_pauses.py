"""Evaluation and checkpoints are no part of a step: rounds that they hold up are not timed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.rounds import Pauses  # noqa: E402
from equipoise.study.twin.ranks import diagnose  # noqa: E402
from equipoise.study.twin.record import read_run  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

SAMPLES, BATCH, PAUSE_S = 240, 8, 0.25
PARTS = ("stall", "compute", "tail", "update")
STEPS = {"validation": 7, "in a block": 13, "checkpoint": 19}  # by kind: the round behind which it comes


def test_a_pause_holds_up_its_round_and_the_exchange_behind_it() -> None:
    pauses = Pauses()
    # The first round of a group sets up its connections, up to the first exchange.
    assert [pauses.end_round(k > 0) for k in range(3)] == [True, True, False]
    pauses.note(computing=False)
    assert [pauses.end_round(True), pauses.end_round(True)] == [True, False]
    pauses.note(computing=True)  # the others wait in the next round
    assert [pauses.end_round(True), pauses.end_round(True), pauses.end_round(True)] == [True, True, False]
    pauses.note(computing=False)  # with local steps they wait where the replicas meet
    assert [pauses.end_round(k == 2) for k in range(4)] == [True, True, True, False]


def test_what_happens_in_every_round_is_no_pause() -> None:
    pauses, held_up = Pauses(), []
    for _ in range(6):
        pauses.notice(computing=False)
        held_up.append(pauses.end_round(True))
    assert held_up == [True, False, False, False, False, False]


def train(rank: int, folder: str) -> list[int]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runtime = attach(
        model, optimizer, "s2", global_batch=BATCH, mode="advise", decide_every=5, run_dir=folder, nvml=False
    )
    data = TensorDataset(torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 1))
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        (Path(folder) / f"{rank} in {runtime.round}").touch()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
        if rank == 0 and runtime.round in STEPS.values():
            pause(runtime, model, Path(folder) / f"1 in {runtime.round}")
    runtime.close()
    return [runtime.round]


def still(waits: Path) -> None:
    """A pause, which begins when the other rank has come to its exchange."""
    while not waits.exists():
        time.sleep(0.002)
    time.sleep(PAUSE_S)


def pause(runtime: Any, model: Any, waits: Path) -> None:
    """One rank does it; the other one waits for it in the next exchange."""
    if runtime.round == STEPS["validation"]:
        model.eval()
        with torch.no_grad():
            model.module(torch.zeros(1, 4))  # past the wrapper, which tells nothing
            model(torch.zeros(1, 4))
        still(waits)
        model.train()
    if runtime.round == STEPS["in a block"]:
        with runtime.pause():
            still(waits)
    if runtime.round == STEPS["checkpoint"]:
        model.module.state_dict()
        still(waits)


def test_rounds_that_a_pause_held_up_are_left_out(tmp_path: Path) -> None:
    assert live_ranks.run(train, 2, str(tmp_path)) == [[SAMPLES // BATCH]] * 2
    folder = live_ranks.record(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    of_the_model = manifest["parameters"], manifest["gradient_bytes"]
    assert of_the_model == (5, 20)  # four weights and what is added, four bytes each
    lines = [json.loads(line) for line in (folder / "rounds-0.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if "round" in line]
    assert {line["round"] for line in rounds if line.get("paused")} == {0, *STEPS.values()}
    times = [[line[f"{part}_s"] for part in PARTS] for line in rounds]
    for line, parts in zip(rounds, times, strict=True):
        assert (parts == [None] * len(PARTS)) if line.get("paused") else (None not in parts)
    run = read_run(folder)
    waited = run.tail_s[1, list(STEPS.values())]
    assert (waited > 0.8 * PAUSE_S).all()  # so the other rank's times are no better
    left_out = (run.round_s != run.round_s).nonzero()[0].tolist()
    assert left_out == [0, *sorted(STEPS.values())]


def train_late(rank: int, folder: str) -> None:
    """Rank 1 sleeps for 20 ms after its last gradient, when its exchange has begun."""
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.distributed.init_process_group("gloo")
    net = torch.nn.Linear(4, 1)
    model = torch.nn.parallel.DistributedDataParallel(net)
    if rank == 1:
        net.register_full_backward_hook(lambda *_: time.sleep(0.02))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runtime = attach(model, optimizer, "s2", mode="observe", global_batch=12, run_dir=folder, nvml=False)
    data = TensorDataset(torch.randn(240, 4))
    for (batch,) in DataLoader(data, batch_sampler=runtime.sampler(data)):
        model(batch.requires_grad_()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
    runtime.close()


def test_what_a_rank_does_after_its_last_gradient_is_computing(tmp_path: Path) -> None:
    """Each rank has 4 of the 12 samples, so rank 1 computes for more than 20 / 4 = 5 ms a sample."""
    live_ranks.run(train_late, 3, str(tmp_path))
    slow = diagnose(live_ranks.record(tmp_path)).ranks[1]
    assert (slow.cause, slow.compute_s > 0.005) == ("compute", True)
