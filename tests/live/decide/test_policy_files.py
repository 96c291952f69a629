"""What `attach` takes from a policy file: stages of installed packages when asked to, all or nothing if strict."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.policies.record.export import ExportedPolicy, ExportError, write_policy  # noqa: E402
from equipoise.policies.registry import make_policy  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.faulty_policies import faulty  # noqa: E402


def attached(policy: str, **options: Any) -> tuple[str | None, str, int]:
    """(the name of the policy that rank 0 asks, what was said, rounds trained)."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        runtime = attach(model, optimizer, policy, global_batch=10, decide_every=2, **options)
    data = TensorDataset(torch.randn(40, 2), torch.randn(40, 1))
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
    decider = runtime._parts.agreement.leader.decider if runtime._parts.agreement.leader is not None else None
    runtime.close()
    return None if decider is None else decider.policy.name, said.getvalue(), runtime.round


def with_a_plugin(rank: int, folder: str) -> list[tuple[str | None, str, int]]:
    sys.path.insert(0, folder)
    torch.distributed.init_process_group("gloo")
    return [attached(f"{folder}/policy.yaml", plugins=plugins) for plugins in (False, True)]


def test_stages_of_installed_packages_are_deployed_from_a_file_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "mine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[equipoise.stages]\nfaulty = tests.live.faulty_policies:Faulty\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    write_policy(ExportedPolicy(faulty("nothing")), tmp_path / "policy.yaml")
    ((without, asked),) = live_ranks.run(with_a_plugin, 1, str(tmp_path))
    assert without[0] is None
    assert "stage 'faulty' is not built in" in without[1]
    assert "training continues without a policy" in without[1]
    assert asked == ("faulty(what=nothing)", "", 4)


def strictly(rank: int, folder: str) -> list[str]:
    """What each rank is told when the file is there for all, for rank 0 only, for none."""
    torch.distributed.init_process_group("gloo")
    os.chdir(folder)
    told = []
    for path in ("policy.yaml", "policy.yaml" if rank == 0 else "plicy.yaml", "nowhere.yaml"):
        try:
            told.append(f"{attached(path, strict=True)[2]} rounds")
        except ExportError as error:
            told.append(str(error))
    return told


@pytest.mark.long
def test_strictly_a_file_that_one_rank_cannot_use_is_an_error_on_all(tmp_path: Path) -> None:
    write_policy(ExportedPolicy(make_policy("s2")), tmp_path / "policy.yaml")
    found = live_ranks.run(strictly, 2, str(tmp_path))
    missing = "No such file or directory"
    assert found == [["4 rounds", f"rank 1: plicy.yaml: {missing}", f"rank 0: nowhere.yaml: {missing}"]] * 2
