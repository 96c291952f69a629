"""Power caps of real GPUs: set through NVML where the driver lets this process, else one line; put back at last."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from equipoise.live.train.power import UNCAPPED, PowerCap, make_power
from equipoise.policies.contract import UNCHANGED
from equipoise.policies.observation import writable
from equipoise.policies.registry import make_stage
from tests.live.decide.test_world import places, world


class FakeNvml:
    """One GPU of 100 to 300 W, whose limits only a process with leave may set."""

    def __init__(self, *, leave: bool = True) -> None:
        self.leave, self.limit_mw = leave, 250_000
        self.asked: list[int] = []

    def nvmlInit(self) -> None:
        """Nothing to do."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        assert handle == "GPU-1"
        return self.limit_mw

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: str) -> tuple[int, int]:
        return 100_000, 300_000

    def nvmlDeviceSetPowerManagementLimit(self, handle: str, limit_mw: int) -> None:
        self.asked.append(limit_mw)
        if not self.leave:
            raise RuntimeError("Insufficient Permissions")
        self.limit_mw = limit_mw


def test_a_cap_is_set_and_put_back() -> None:
    nvml, told = FakeNvml(), list[str]()
    power = PowerCap(nvml, "GPU-1", told.append)
    assert power.state == (100.0, 300.0, 250.0)
    power.set(175.5)
    assert (power.state[2], nvml.limit_mw) == (175.5, 175_500)
    power.set(math.nan)
    nvml.leave = False
    power.set(120.0)
    assert power.state[2] == 175.5
    assert told == ["power: a cap of 120 W was refused, NVML: Insufficient Permissions"]
    nvml.leave = True
    power.close()
    assert nvml.limit_mw == 250_000


def test_without_leave_there_is_one_line_and_no_cap() -> None:
    nvml, told = FakeNvml(leave=False), list[str]()
    power = PowerCap(nvml, "GPU-1", told.append)
    power.set(150.0)
    power.close()
    assert told == ["power: GPUs cannot be capped here, NVML: Insufficient Permissions"]
    assert nvml.asked == [250_000], "only what it had, to see whether it may"
    assert all(math.isnan(v) for v in power.state)
    other = make_power(True, torch.device("cpu"), told.append)
    assert told[1:] == ["power: a cpu device cannot be capped"]
    assert (other.state, make_power(False, torch.device("cpu"), told.append).state) == (UNCAPPED, UNCAPPED)
    assert len(told) == 2


def capped(cap_w: float, **options: Any) -> Any:
    """Two ranks on one host and one on another, all of GPUs of 100 to 300 W."""
    made = world(places(0, 1, 2, hosts="aab"), allow={"power", "samples"}, **options)
    made.power = [np.full(3, 100.0), np.full(3, 300.0), np.full(3, cap_w)]
    made.telemetry.gpu = {"power_w": np.full(3, 0.9 * cap_w)}
    return made


def test_zeus_tries_caps_of_a_live_job() -> None:
    stage, cap_w, tried = make_stage("zeus", {"step_w": 100.0}), 300.0, []
    memory = stage.initial()
    for _ in range(4):
        made = capped(cap_w)
        seen = made.observe()
        writable(seen.jobs, "throughput_samples_per_s")[:] = {300.0: 10.0, 200.0: 9.5, 100.0: 3.0}[cap_w]
        plan, memory = stage.refine(seen, UNCHANGED, memory)
        made.apply(plan)
        if made.change.power_cap_w is not None:
            cap_w = made.change.power_cap_w[0]
        tried.append(cap_w)
    assert tried == [300.0, 200.0, 100.0, 200.0]


def test_s3_caps_a_host_whose_ranks_wait_and_lifts_it_when_they_do_not() -> None:
    """Ranks on two hosts; rank 0 needs 0.6 s of the 1 s that rank 1 needs, until that needs less."""
    stage, cap_w, tried = make_stage("s3"), 300.0, []
    memory = stage.initial()
    for other_s in (1.0, 1.0, 1.0, 1.0, 0.6):
        made = world(places(0, 1, hosts="ab"), allow={"power"})
        made.power = [np.full(2, 100.0), np.full(2, 300.0), np.array([cap_w, 300.0])]
        seen, clock = made.observe(), math.cbrt((cap_w - 100.0) / 200.0)
        writable(seen.workers, "step_s")[:] = 0.6 / clock, other_s
        writable(seen.workers, "wait_s")[:] = max(other_s - 0.6 / clock, 0.0), 0.0
        seen.time_s, seen.window_s = 100.0 + 10.0 * len(tried), 10.0
        plan, memory = stage.refine(seen, UNCHANGED, memory)
        made.apply(plan)
        if made.change.power_cap_w is not None:
            cap_w = made.change.power_cap_w[0]
        tried.append(cap_w)
    assert tried == [300.0, 146.0, 146.0, 146.0, 300.0]
