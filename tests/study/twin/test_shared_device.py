"""The twin of a real run whose ranks hold fixed parts of one device; that decisions are alike: `test_injected`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise import cli  # noqa: E402
from equipoise.policies.record.journal import read  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402

MPS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ROUNDS, EVERY, BATCH = 30, 6, 12


def train(rank: int, folder: str, backend: str) -> None:
    """A rank that takes as much longer for a sample as its part of the device is smaller."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            time.sleep(len(x) * (5e-3, 1e-3)[rank])
            return self.layer(x)

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    runtime = attach(
        model,
        optimizer,
        "s1+s2+s3",
        global_batch=BATCH,
        decide_every=EVERY,
        share_backend=backend,
        decision_budget_s=600.0,
        warm_up_budget_s=600.0,
        run_dir=folder,
    )
    data = TensorDataset(torch.randn(ROUNDS * BATCH, 2), torch.randn(ROUNDS * BATCH, 1))
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
    runtime.close()


def trained(folder: Path, shares: tuple[str, str], backend: str = "mps") -> Path:
    """The record of two ranks on one device, started with these percentages of it."""
    job = live_ranks.Ranks(train, 0, str(folder), backend, EQUIPOISE_DEVICE="gpu", WORLD_SIZE="2")
    for rank, percentage in enumerate(shares):
        job.start(rank, RANK=str(rank), **{MPS: percentage})
    job.join()
    return live_ranks.record(folder)


def test_parts_of_a_device_that_cannot_change_have_a_twin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(tmp_path, ("40", "60"))
    assert cli.main(["twin", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["rounds"], found["replay_equal"]) == (2, ROUNDS, True)
    assert found["decisions"] == len(found["windows"]) >= ROUNDS // EVERY - 1
    decisions = [entry.decision for entry in read(folder / "decisions-0.jsonl")]
    assert len(decisions) >= found["decisions"] > 0
    for decision in decisions:
        seen = decision.observation
        assert seen.workers.gpu_share.tolist() == [0.4, 0.6]
        assert (seen.gpus.job.tolist(), seen.gpus.share_free.tolist()) == ([-2], [0.0])
        assert decision.plan.gpu_share is None
        assert seen.refused == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("shares", "backend", "says"),
    [
        (("40", "100"), "mps", "have 1.4 of it slow each other"),
        (("40", "60"), "duty-cycle", "in shares that may change"),
    ],
)
def test_other_ranks_of_one_device_have_none(
    shares: tuple[str, str], backend: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first compete; the others' shares may change."""
    folder = trained(tmp_path, shares, backend)
    assert cli.main(["twin", str(tmp_path)]) == cli.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{folder}/manifest.json: members: ranks that share a device (gpu)" in line
    assert says in line
