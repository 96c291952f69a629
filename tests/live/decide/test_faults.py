"""Whatever goes wrong beside it, training ends with the weights that it would have had anyway."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.train.devices import DeviceSampler  # noqa: E402
from equipoise.policies.record.export import ExportedPolicy, write_policy  # noqa: E402
from equipoise.policies.registry import make_policy  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.decide.test_telemetry import FakeNvml, until  # noqa: E402
from tests.live.faulty_policies import KINDS, faulty  # noqa: E402

BATCH, ROUNDS = 8, 12


def train(policy: Any, folder: str | None = None, *, plain: bool = False, **options: Any) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    torch.manual_seed(0)
    x = torch.randn(BATCH * ROUNDS, 5)
    net = torch.nn.Linear(5, 1)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"global_batch": BATCH, "decide_every": 2, "decision_budget_s": 0.05, "warm_up_budget_s": 0.2}
    dataset = TensorDataset(x, x[:, :1])
    runtime = nvml = None
    if plain:  # the same batches without the adapter
        from equipoise.live.train.sampler import ShareSampler

        rank = torch.distributed.get_rank()
        sampler = ShareSampler(len(x), rank=rank, ranks=2, global_batch=BATCH)
    else:
        nvml = options.pop("nvml_module", None)
        runtime = attach(model, optimizer, policy, run_dir=folder, **{**settings, **options})
        if nvml is not None:
            report = runtime._parts.recorder.event
            runtime._parts.agreement.devices = DeviceSampler(
                nvml, 0, lambda problem: report("nvml", problem=problem), 0.005
            )
        sampler = runtime.sampler(dataset)
    for number, (inputs, labels) in enumerate(DataLoader(dataset, batch_sampler=sampler)):
        if nvml is not None:  # there for some rounds, then gone
            seen_s = 55.0 if number < ROUNDS // 2 else math.nan
            nvml.broken = number >= ROUNDS // 2
            until(lambda wanted=seen_s: _same(runtime._parts.agreement.devices.latest()["temperature_c"], wanted))
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if runtime is None:
            sampler.finish()
        else:
            runtime.step()
    failures = 0
    if runtime is not None:
        failures = runtime._parts.agreement.leader.failures if runtime._parts.agreement.leader is not None else 0
        runtime.close()
    return {"weights": [p.detach().clone() for p in net.parameters()], "failures": failures}


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def train_on_a_full_disk(folder: str) -> dict[str, Any]:
    """What the run's files are is known before the run only if its id is."""
    from equipoise.live.group import group

    named = group._new_run
    group._new_run = lambda: "run"
    try:
        return train("none", folder)
    finally:
        group._new_run = named


def all_faults(rank: int, damaged: str, signed: str, full: str, records: str) -> dict[str, dict[str, Any]]:
    torch.distributed.init_process_group("gloo")
    results = {"plain": train(None, plain=True), "none": train("none")}
    for what in KINDS:
        results[what] = train(faulty(what), f"{records}/{what}")
    results["damaged"] = train(damaged)
    results["missing"] = train("/nowhere/policy.yaml")
    results["full disk"] = train_on_a_full_disk(full)
    results["another key"] = train(signed, key=b"not the right one")
    results["vanished NVML"] = train("none", f"{records}/nvml", nvml_module=FakeNvml())
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("faults")
    damaged, full = folder / "damaged.yaml", folder / "full"
    write_policy(ExportedPolicy(make_policy("s2")), damaged)
    damaged.write_text(damaged.read_text().replace("0.5", "0.9"))
    signed = folder / "signed.yaml"
    write_policy(ExportedPolicy(make_policy("s2")), signed, b"the key of somebody")
    full.mkdir()
    (full / "run").mkdir()
    for name in ("rounds-0.jsonl", "rounds-1.jsonl", "decisions-0.jsonl"):
        (full / "run" / name).symlink_to("/dev/full")
    return live_ranks.run(all_faults, 2, str(damaged), str(signed), str(full), str(folder))


@pytest.mark.long
@pytest.mark.parametrize("what", ["none", *KINDS, "damaged", "missing", "full disk", "another key", "vanished NVML"])
def test_the_weights_are_those_of_training_without_it(results: Any, what: str) -> None:
    for rank in results:
        for found, expected in zip(rank[what]["weights"], rank["plain"]["weights"], strict=True):
            assert torch.equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("what", [k for k in KINDS if k not in ("interval", "unjournaled")])
def test_the_failure_was_met_and_not_waited_for(results: Any, what: str) -> None:
    assert results[0][what]["failures"] >= 1


@pytest.mark.long
def test_failures_are_on_record(results: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = next(Path(tmp_path_factory.getbasetemp()).glob("faults*"))
    for run, text in {
        "nvml": "the library has gone",
        "raises": "on purpose",
        "interval": "interval: 1000000000 is above the bound of 64",
    }.items():
        assert text in (live_ranks.record(folder / run) / "rounds-0.jsonl").read_text()


def refuse_a_share(rank: int) -> list[float]:
    """Rank 1's device takes no other share; what rank 0 holds for true at the next decision."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach
    from equipoise.live.train.change import RoundChange

    torch.distributed.init_process_group("gloo")
    x = torch.randn(BATCH * 2, 5)
    model = DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backend = "duty-cycle" if rank == 0 else "none"
    runtime = attach(model, optimizer, "none", global_batch=BATCH, decide_every=2, share_backend=backend)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_sampler=runtime.sampler(len(x)))
    runtime._stepping.carry_out(RoundChange(0, gpu_share=(0.5, 0.5)))
    for inputs, labels in loader:
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        runtime.step()
    found = (
        runtime._parts.agreement.leader.world.shares_of_gpu.tolist()
        if runtime._parts.agreement.leader is not None
        else []
    )
    runtime.close()
    return found


def test_a_share_that_one_rank_refused_is_not_taken_for_its_own() -> None:
    assert live_ranks.run(refuse_a_share, 2)[0] == [0.5, 1.0]
