"""The record of a run, metrics, device telemetry, shares of a device: none of them may stop training."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.base.metrics_server import MetricsServer  # noqa: E402
from equipoise.live.decide.metrics import families  # noqa: E402
from equipoise.live.train.devices import GPU_COLUMNS, DeviceSampler  # noqa: E402
from equipoise.live.train.shares import DutyCycle, GreenContexts, MpsAtStart, make_backend  # noqa: E402
from equipoise.policies.contract import Kind, Memory, Plan, Policy, Stage  # noqa: E402
from equipoise.policies.observation import Observation  # noqa: E402
from equipoise.policies.record.journal import read  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- records -------------------------------------------------------------------------------------------------


# -- time ----------------------------------------------------------------------------------------------------


# -- metrics -------------------------------------------------------------------------------------------------


def test_metrics_are_served_in_prometheus_format() -> None:
    server = MetricsServer("127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.port}/metrics"
    newer = urllib.request.Request(address, headers={"Accept": "application/openmetrics-text;version=1.0.0,*/*;q=0.1"})
    try:
        server.update(families({"equipoise_samples_total": 12.0, "equipoise_step_seconds": [0.25, math.nan, 0.5]}))
        with urllib.request.urlopen(address, timeout=5) as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(newer, timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
            open_metrics = answer.read().decode()
    finally:
        server.close()
    assert "# TYPE equipoise_samples_total counter\nequipoise_samples_total 12.0\n" in text
    assert 'equipoise_step_seconds{rank="0"} 0.25\nequipoise_step_seconds{rank="2"} 0.5\n' in text
    assert 'rank="1"' not in text
    assert "# TYPE equipoise_samples counter\nequipoise_samples_total 12.0\n" in open_metrics
    assert open_metrics.endswith("\n# EOF\n")
    assert [line for line in open_metrics.splitlines() if not line.startswith("#")] == [
        line for line in text.splitlines() if not line.startswith("#")
    ]


# -- devices -------------------------------------------------------------------------------------------------


class FakeNvml:
    """Looks like pynvml; `broken` makes every call fail, as when the driver goes away."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        value = 999

    def __init__(self) -> None:
        self.broken, self.failed = False, 0

    def _alive(self) -> None:
        if self.broken:
            self.failed += 1
            raise OSError("the library has gone")

    def nvmlInit(self) -> None:
        self._alive()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self._alive()
        return 1000

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return 2000

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return 55


def until(condition: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_device_samples_and_a_vanished_library() -> None:
    nvml, problems = FakeNvml(), []  # type: ignore[var-annotated]
    sampler = DeviceSampler(nvml, 0, problems.append, period_s=0.02)
    until(lambda: sampler.latest()["clock_ratio"] == 0.5)
    latest = sampler.latest()
    assert latest["temperature_c"] == 55.0
    assert math.isnan(latest["power_w"])  # this device does not have it
    nvml.broken = True
    until(lambda: math.isnan(sampler.latest()["temperature_c"]))
    until(lambda: nvml.failed > 4)
    assert problems == ["NVML: OSError: the library has gone"]  # told once
    nvml.broken = False
    until(lambda: sampler.latest()["temperature_c"] == 55.0)
    sampler.close()
    assert set(latest) == set(GPU_COLUMNS)


# -- shares --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_a_duty_cycle_computes_that_share_of_the_time(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    backend = DutyCycle()
    assert backend.set(share) is None
    for _ in range(5):
        began_s = now_s
        backend.begin()
        for _ in range(3):  # one call per gradient
            now_s += 0.1
            backend.end()
    assert 0.3 / (now_s - began_s) == pytest.approx(share)


def test_an_mps_share_is_what_the_process_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    with pytest.raises(ValueError, match="is not set"):
        MpsAtStart()
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
    backend = make_backend("mps", torch.device("cpu"))
    assert backend.set(0.4) is None
    assert "restart with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=60%" in str(backend.set(0.6))


@dataclass(frozen=True)
class Unequal(Stage):
    """Gives the first worker three quarters of the device."""

    name: ClassVar[str] = "unequal"
    kind: ClassVar[Kind] = "sync"

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        return plan.with_(gpu_share=np.array([0.75, 0.25])), memory


def share_a_device(rank: int, folder: str) -> None:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    from equipoise.live.attach import attach

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            time.sleep(0.03)
            return self.layer(x)

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = Policy("unequal", (Unequal(),))
    runtime = attach(
        model, optimizer, policy, global_batch=4, decide_every=5, share_backend="duty-cycle", run_dir=folder
    )
    data = TensorDataset(torch.randn(80, 2), torch.randn(80, 1))
    for x, y in DataLoader(data, batch_sampler=runtime.sampler(data)):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        runtime.step()
    runtime.close()


@pytest.mark.long
def test_ranks_on_one_device_are_held_to_their_shares(tmp_path: Path) -> None:
    live_ranks.run(share_a_device, 2, str(tmp_path), EQUIPOISE_DEVICE="gpu")
    folder = live_ranks.record(tmp_path)
    rows = [[r for r in lines(folder / f"rounds-{k}.jsonl") if "round" in r] for k in (0, 1)]
    computed = [[float(np.median([r["compute_s"] for r in rank[a:b]])) for a, b in ((2, 5), (12, 20))] for rank in rows]
    first, second = (entry.decision.observation for entry in list(read(folder / "decisions-0.jsonl"))[:2])
    assert (first.workers.gpu_share.tolist(), second.workers.gpu_share.tolist()) == ([0.5, 0.5], [0.75, 0.25])
    assert first.gpus.job.tolist() == [-2]
    assert computed[1][1] > 1.5 * computed[0][1]  # three times on a quiet machine
    assert computed[1][1] > 1.25 * computed[1][0]  # twice


class FakeContext:
    made: list[int] = []  # noqa: RUF012 (shared on purpose)
    stack: list[int] = []  # noqa: RUF012

    def __init__(self, count: int) -> None:
        self.count = count

    @classmethod
    def create(cls, num_sms: int, device_id: int) -> FakeContext:
        if num_sms < 8:
            raise RuntimeError("too few")
        cls.made.append(num_sms)
        return cls(num_sms)

    def set_context(self) -> None:
        self.stack.append(self.count)

    def pop_context(self) -> None:
        assert self.stack.pop() == self.count


def test_green_contexts_are_made_once_per_share_and_switched_between_rounds() -> None:
    backend = GreenContexts(torch.device("cpu"), api=FakeContext, processors=132)
    for share, inside in ((0.5, [66]), (0.25, [33]), (0.5, [66]), (1.0, [])):
        assert backend.set(share) is None
        backend.begin()
        backend.begin()
        assert FakeContext.stack == inside
    assert FakeContext.made == [66, 33]
    assert "too few" in str(backend.set(0.01))
    assert backend.quantum == pytest.approx(1 / 132)
