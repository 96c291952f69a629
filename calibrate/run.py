"""A calibration session: measurements in rounds, saved one by one and continued after an interruption."""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from equipoise.calibrate.device import cuda, nvml, nvrtc
from equipoise.calibrate.measure import gemm, inventory, microbench, shares, sustained, tensor, verify
from equipoise.calibrate.measure.collectives import collective_measures, open_groups, overlap_measures
from equipoise.calibrate.measure.host import HostBench
from equipoise.calibrate.measure.measure import Measure, MeasureMissingError, Series
from equipoise.calibrate.measure.training import training_measures
from equipoise.calibrate.samples import (
    SMALLEST,
    Sample,
    SamplesError,
    SampleSet,
    SampleWriter,
    Scalar,
    differences,
    key_of,
)

DeviceKind = Literal["cuda", "cpu"]

# Seconds of pure measuring; start-up of processes and libraries comes on top.
BUDGET_S: dict[tuple[DeviceKind, bool], float] = {
    ("cpu", True): 20.0,
    ("cpu", False): 300.0,
    ("cuda", True): 16.0,
    ("cuda", False): 270.0,
}
"""By device and quick: under one minute (quick) or ten minutes in total."""

QUICK_ROUNDS, FULL_ROUNDS = 3, 5
LEAST_BUDGET_S, LARGEST_BUDGET_S = 0.01, 3.0
OVERRUN = 1.6

_HOST = ("storage_write", "storage_read", "preprocess", "training", "collective", "overlap")
_GPU = (
    "copy",
    "read",
    "triad",
    "library_copy",
    "fma",
    "tensor",
    "launch_pipelined",
    "transfer",
    "gemm",
    "share",
    "interference",
    "peer",
    "sustained",
)
KINDS: dict[DeviceKind, tuple[str, ...]] = {
    "cuda": (*_GPU, *_HOST),
    "cpu": ("copy", "read", "add", "gemm", "share", "interference", "operation", *_HOST),
}
"""What can be measured on each kind of device."""
BANDWIDTHS, RATES = frozenset(("copy", "triad", "add", "library_copy")), frozenset(("gemm", "fma", "tensor"))
"""Kinds of which a profile needs one each."""

Progress = Callable[[int, int, str], None]
"""Called as progress(measurements done, total, next measurement)."""


class ConditionsChangedError(RuntimeError):
    """Clocks, power limit or driver changed while measuring."""


@dataclass(frozen=True)
class SessionPlan:
    """All measurements of a device, with the conditions as they are now."""

    measures: list[Measure]
    conditions: dict[str, Scalar]
    versions: dict[str, str]
    conditions_now: Callable[[], dict[str, Scalar]]
    missing: tuple[str, ...] = ()


@dataclass
class SessionOutcome:
    """The result of a session: its samples, and the missing measurements with reasons."""

    samples: SampleSet
    missing: list[str] = field(default_factory=list)


@contextmanager
def plan_for(
    device: DeviceKind, quick: bool, only: frozenset[str] = frozenset(), folder: Path | None = None, part: float = 1.0
) -> Iterator[SessionPlan]:
    """All measurements of a device, or only those of the named kinds and the rate and bandwidth that profiles need.

    Frees processes and memory on exit.

    `part`: length of the session over the usual one; sustained loads are shortened by it.

    Raises SamplesError for an unknown kind; CudaUnavailableError, LibraryMissingError, VerificationError when
    a GPU is asked for and cannot be used.
    """
    unknown = only - set(KINDS[device])
    if unknown:
        raise SamplesError(f"unknown kind: {', '.join(sorted(unknown))}; known: {', '.join(KINDS[device])}")
    if only:
        only |= {"copy"} if not only & BANDWIDTHS else set()
        only |= {"gemm"} if not only & RATES else set()
    with ExitStack() as stack:
        if device == "cuda":
            plan = _cuda_plan(stack, quick, folder, only, part)
        else:
            plan = _cpu_plan(stack, quick, folder, only)
        kept = [m for m in plan.measures if not only or m.kind in only]
        missing = tuple(line for line in plan.missing if not only or re.split("[ ,:]", line)[0] in only)
        yield replace(plan, measures=kept, missing=missing)


def _training(device: DeviceKind, quick: bool, only: frozenset[str]) -> list[Measure]:
    """Training steps, if wanted: only then is PyTorch imported."""
    return training_measures(device, quick) if not only or "training" in only else []


def _operations() -> list[Measure]:
    """Kinds of operation of a training step, if PyTorch is installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    from equipoise.calibrate.trace.cpu import operation_measures

    return operation_measures()


def _cpu_plan(stack: ExitStack, quick: bool, folder: Path | None, only: frozenset[str]) -> SessionPlan:
    bench = HostBench(quick, folder)
    stack.callback(bench.close)
    groups = stack.enter_context(open_groups("cpu", 0))
    measures = [
        *bench.measures(),
        *(_operations() if not quick and (not only or "operation" in only) else []),
        *_training("cpu", quick, only),
        *collective_measures(groups, quick),
        *overlap_measures(groups, quick),
    ]
    conditions = inventory.cpu_conditions()
    missing = () if importlib.util.find_spec("torch") else ("training, operation: need PyTorch",)
    return SessionPlan(measures, conditions, inventory.software_versions(), inventory.cpu_conditions, missing)


def _cuda_plan(stack: ExitStack, quick: bool, folder: Path | None, only: frozenset[str], part: float) -> SessionPlan:
    count = cuda.device_count()
    device = cuda.Device(0)
    verify.check_all(device)
    kernels, refused = tensor.checked_kernels(device)
    gpu, versions = _nvml_side(stack, device.uuid)
    bench = microbench.Microbench(device, quick, kernels)
    host = HostBench(quick, folder)
    stack.callback(host.close)
    groups = stack.enter_context(open_groups("cuda", count))
    measures = [
        *bench.measures(),
        *gemm.gemm_measures(device, bench.timer, quick),
        *(gemm.torch_gemm_measures(quick) if not only or "gemm" in only else []),
        *(shares.share_measures(device, bench.arena_bytes, quick)),
        *(microbench.peer_measures(device, cuda.Device(1), quick) if count > 1 else []),
        *host.storage(),
        host.preprocessing(),
        *_training("cuda", quick, only),
        *collective_measures(groups, quick),
        *overlap_measures(groups, quick),
        *sustained.sustained_measures(device, gpu, kernels[0], quick, part),
    ]
    device.use()
    software = inventory.software_versions()
    software |= {"nvrtc": nvrtc.version(), "cuda_driver": cuda.driver_version()}

    def now() -> dict[str, Scalar]:
        """The conditions at this moment."""
        current = next((g for g in nvml.gpus() if gpu and g.uuid == gpu.uuid), None) if gpu else None
        return inventory.gpu_conditions(current, versions, device.name, float(device.memory_bytes), count)

    return SessionPlan(measures, now(), software, now, (*refused, *_absent(measures, count)))


def _absent(measures: list[Measure], gpus: int) -> Iterator[str]:
    """Measurements that a GPU session leaves out on this machine, with the reason."""
    kinds = {m.kind for m in measures}
    if "training" not in kinds:
        yield "training: needs PyTorch for CUDA"
    if gpus < 2:
        yield "peer, collective, overlap: need 2 or more GPUs"
    elif "collective" not in kinds:
        yield "collective, overlap: need PyTorch for CUDA"


def _nvml_side(stack: ExitStack, uuid: str) -> tuple[nvml.Gpu | None, nvml.Versions | None]:
    """The same GPU in NVML. (None, None) without NVML."""
    try:
        versions = stack.enter_context(nvml.session())
    except nvml.NvmlUnavailableError:
        return None, None
    return next((g for g in nvml.gpus() if g.uuid == uuid), None), versions


def calibrate(
    plan: SessionPlan, writer: SampleWriter, rounds: int, seconds: float, progress: Progress | None = None
) -> SessionOutcome:
    """Measure everything in `rounds` rounds of together about `seconds`, skipping what the writer has.

    Going through all of it several times, rather than repeating each thing in place, lets the spread between
    rounds show what changes with time. On a machine too busy to finish in OVERRUN x `seconds`, later rounds
    are left out, with a line that says so. Raises ConditionsChangedError; what was measured before stays in
    the file.
    """
    deadline = time.monotonic() + OVERRUN * seconds
    jobs = [(r, m) for r in range(rounds) for m in plan.measures if not (m.once and r)]
    total = sum(m.weight for _, m in jobs if not m.once)
    missing: dict[str, str] = {}
    for done, (round_, measure) in enumerate(jobs):
        if progress:
            progress(done, len(jobs), _shown(measure))
        key = key_of(measure.kind, measure.parameters, round_)
        if key in writer.done or _shown(measure) in missing:
            continue
        if round_ and time.monotonic() > deadline:
            missing[f"rounds from {round_ + 1} on"] = "time limit reached, the intervals are from fewer rounds"
            break
        budget_s = min(max(seconds * measure.weight / total, LEAST_BUDGET_S), LARGEST_BUDGET_S)
        started = time.monotonic()
        reason = _one(measure, round_, budget_s, writer)
        if measure.once:  # takes as long as it takes
            deadline += time.monotonic() - started
        if reason:
            missing[_shown(measure)] = reason
    if progress:
        progress(len(jobs), len(jobs), "done")
    changed = differences(plan.conditions, plan.conditions_now())
    if changed:
        raise ConditionsChangedError(f"conditions changed while measuring: {'; '.join(changed)}")
    samples = SampleSet(plan.conditions, plan.versions, tuple(writer))
    return SessionOutcome(samples, [*plan.missing, *_grouped(missing)])


def _grouped(missing: dict[str, str]) -> Iterator[str]:
    """One line per reason, however many things it keeps from being measured."""
    for why in dict.fromkeys(missing.values()):
        first, *others = [what for what, reason in missing.items() if reason == why]
        yield f"{first}{f' and {len(others)} more' if others else ''}: {why}"


def _shown(measure: Measure) -> str:
    parameters = " ".join(str(v) for v in measure.parameters.values())
    return f"{measure.kind} {parameters}".strip()


def _one(measure: Measure, round_: int, budget_s: float, writer: SampleWriter) -> str:
    """Do one measurement and save it; returns why it is missing, or "".

    One failure must not cost the rest of a session, so every error but an interruption or a full disk becomes
    a reason in the report.
    """
    try:
        outcome = measure.run(budget_s)
    except MeasureMissingError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
    columns = outcome.columns if isinstance(outcome, Series) else {}
    values = () if isinstance(outcome, Series) else tuple(outcome)
    if not columns and (not values or min(values) < SMALLEST):
        return "took less time than the clock resolves"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    writer.add(Sample(measure.kind, dict(measure.parameters), values, measure.unit, round_, at, columns))
    return ""
