"""Check whether the machine has changed since its profile was made, by measuring three numbers again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from equipoise.calibrate.fit.levels import Report
from equipoise.calibrate.fit.robust import Estimate
from equipoise.calibrate.measure.measure import Measure
from equipoise.calibrate.profile import figures
from equipoise.calibrate.run import DeviceKind, Progress, calibrate, plan_for
from equipoise.calibrate.samples import SamplesError, SampleWriter, Scalar, differences
from equipoise.sim.hardware.profile import HardwareProfile, Measured

ROUNDS = 3
SECONDS = 3.0
# Kind of device: (kind to measure, its parameters as far as they matter, the figure to compare).
CHECKS: dict[DeviceKind, tuple[tuple[str, dict[str, Scalar], str], ...]] = {
    "cuda": (
        ("copy", {}, "copy_bytes_per_s"),
        ("tensor", {"precision": "fp16"}, "tensor_fp16_flop_per_s"),
        ("launch_pipelined", {}, "launch_pipelined_s"),
    ),
    "cpu": (
        ("copy", {}, "copy_bytes_per_s"),
        ("gemm", {"precision": "fp32", "m": 1024, "k": 1024}, "gemm_numpy_blas_fp32_1024_flop_per_s"),
        ("preprocess", {}, "preprocess_samples_per_s"),
    ),
}


@dataclass(frozen=True)
class ProfileDrift:
    """One figure, in the profile and measured now."""

    name: str
    before: Estimate
    now: Estimate

    @property
    def beyond(self) -> bool:
        """Whether the two 95 % intervals do not overlap."""
        return not self.before.overlaps(self.now)

    @property
    def change(self) -> float:
        """now / before - 1."""
        return self.now.value / self.before.value - 1.0


def device_of(profile: HardwareProfile) -> DeviceKind:
    """What kind of device a measured profile describes. Raises SamplesError for one that was not measured."""
    names = [name for _, _, name in CHECKS["cuda"]]
    if profile.kind != "measured" or not profile.figures:
        raise SamplesError(f"profile {profile.name!r} was not measured but {profile.kind}; nothing to check")
    return "cuda" if any(name in profile.figures for name in names[1:]) else "cpu"


def as_estimate(number: Measured) -> Estimate:
    """A profile's number with its interval."""
    low = number.value if number.low is None else number.low
    high = number.value if number.high is None else number.high
    return Estimate(number.value, low, high, number.n)


def compare(profile: HardwareProfile, device: DeviceKind, now: dict[str, Measured]) -> list[ProfileDrift]:
    """The figures that both the profile and the check have. Raises SamplesError if there are none."""
    names = [name for _, _, name in CHECKS[device] if name in profile.figures and name in now]
    if not names:
        raise SamplesError(f"profile {profile.name!r} has none of the figures that are checked")
    return [ProfileDrift(name, as_estimate(profile.figures[name]), as_estimate(now[name])) for name in names]


def _is_checked(device: DeviceKind, measure: Measure) -> bool:
    return any(
        measure.kind == kind and all(measure.parameters.get(k) == v for k, v in parameters.items())
        for kind, parameters, _ in CHECKS[device]
    )


def check(profile: HardwareProfile, progress: Progress | None = None) -> tuple[list[ProfileDrift], list[str]]:
    """(figures then and now, conditions that differ). Raises SamplesError on another device."""
    device = device_of(profile)
    kinds = frozenset(kind for kind, _, _ in CHECKS[device])
    with TemporaryDirectory(prefix="equipoise-") as folder, plan_for(device, True, kinds) as plan:
        changed = differences(profile.conditions, plan.conditions)
        if any(line.startswith("device:") for line in changed):
            raise SamplesError(f"profile {profile.name!r} is of another device: {changed[0]}")
        writer = SampleWriter(Path(folder) / "samples.jsonl", plan.conditions, plan.versions)
        try:
            wanted = replace(plan, measures=[m for m in plan.measures if _is_checked(device, m)])
            outcome = calibrate(wanted, writer, ROUNDS, SECONDS, progress)
        finally:
            writer.close()
    return compare(profile, device, figures(outcome.samples, Report())), changed
