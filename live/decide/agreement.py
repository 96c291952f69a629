"""Every rank's part in a decision: report to rank 0, receive the change."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from equipoise.live.data.movement import DataPlane, DataView, FileData
from equipoise.live.decide.leader import Leader, pack
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.group.group import Group
from equipoise.live.group.places import samples_bound
from equipoise.live.options import Options
from equipoise.live.train.change import RoundChange
from equipoise.live.train.devices import GPU_COLUMNS, UNKNOWN, DeviceSampler
from equipoise.live.train.drift import Movement
from equipoise.live.train.rounds import RoundMeter
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.contract import Policy

_LOOK_S = 0.25


class Agreement:
    """Decisions that rank 0 makes and all ranks carry out at the same round."""

    def __init__(
        self, options: Options, policy: Policy | None, group: Group, recorder: Recorder, device: torch.device
    ) -> None:
        self._group, self._recorder = group, recorder
        self._device = device
        leads = group.rank == 0
        self.leader = Leader(options, policy, recorder, group.places) if leads else None  # on rank 0
        self._queued_s, self._queued_each_s = _queued_s(), math.nan  # at the last look; per round before it
        self._looked_s, self._rounds = time.monotonic(), 0  # when that was, and rounds since
        self.plane: DataPlane | None = None  # where the data lies in files
        self.devices: DeviceSampler | None = None
        if options.nvml and device.type == "cuda":
            self.devices = DeviceSampler.for_cuda(
                device.index or 0, lambda problem: recorder.event("nvml", problem=problem)
            )

    def move_data(self, data: FileData, sampler: ShareSampler) -> None:
        """Fetch the files of `data` in the order of `sampler`, and show them to the policy."""
        self.plane = DataPlane(data, sampler)
        if self.leader is not None:
            self.leader.world.data = DataView(data.size_bytes, data.sizes, data.store)

    def report(
        self,
        meter: RoundMeter,
        sampler: ShareSampler,
        *,
        intervals: tuple[int, int],
        gpu_share: float,
        movement: Movement | None,
        trained: int,
        checks: Sequence[float],
    ) -> None:
        """Report the rounds up to number `trained` to rank 0, where the policy starts to decide. Collective."""
        with self._recorder.holding():
            rows, infos = meter.take()
            self._recorder.rounds(rows, infos)
            device = self.devices.latest() if self.devices is not None else UNKNOWN
            self._look(len(infos))
            self._note_device(device, trained)
            free_bytes, bound = samples_bound(self._device, int(sampler.shares[self._group.rank]))
            moved = (math.nan, math.nan) if movement is None else movement.take()
            own = (float(sampler.drawn), free_bytes, bound, gpu_share, *moved, *checks, self._queued_each_s)
            data = self.plane.report() if self.plane is not None else np.empty(0)
            gathered = self._group.control.collect(pack((*own, *(device[n] for n in GPU_COLUMNS)), rows, data))
            if self.leader is not None and gathered is not None:
                self.leader.begin(gathered, infos, sampler, intervals)
                self.leader.show()
            sampler.refused.clear()

    def change(self, sampler: ShareSampler, *, later: bool) -> RoundChange | None:
        """The change decided on rank 0; None for none. `later`: rounds were drawn since the report. Collective."""
        with self._recorder.holding():
            drawn = self._group.control.collect(np.array([float(sampler.drawn)])) if later else None
            payload = None
            if self.leader is not None:
                known = self.leader.world.telemetry.first_free_round
                decided = self.leader.answer(known if drawn is None else drawn.max())
                payload = b"" if decided.is_empty() else decided.to_json().encode()
            agreed = self._group.control.broadcast(payload)
        return RoundChange.from_json(agreed.decode()) if agreed else None

    def _look(self, rounds: int) -> None:
        """Note how long this rank has waited for its processor; not more often than costs next to nothing."""
        self._rounds += rounds
        if time.monotonic() - self._looked_s >= _LOOK_S and self._rounds:
            before, self._queued_s = self._queued_s, _queued_s()
            self._queued_each_s = (self._queued_s - before) / self._rounds
            self._looked_s, self._rounds = time.monotonic(), 0

    def _note_device(self, device: Mapping[str, float], trained: int) -> None:
        """Record evidence for slow ranks: device readings and the rank's share of its processors."""
        if self._recorder.folder is None:
            return
        known = {name: value for name, value in device.items() if value == value}
        known |= {} if self._rounds or math.isnan(self._queued_s) else {"queued_s": self._queued_s}
        self._recorder.event("device", rounds=trained, cpu_s=time.process_time(), **known)

    def flush(self, meter: RoundMeter) -> None:
        """Record the rounds since the last decision."""
        rows, infos = meter.take(final=True)
        if infos:
            self._recorder.rounds(rows, infos)

    def close(self) -> None:
        """Stop the threads."""
        if self.devices is not None:
            self.devices.close()
        if self.plane is not None:
            self.plane.close()
        if self.leader is not None:
            self.leader.close()
        self.leader = None


def _queued_s() -> float:
    """Seconds for which this thread was ready and another one had its processor; NaN where the kernel keeps none."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return math.nan
