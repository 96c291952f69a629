"""Fits a hardware profile to samples: every number with its interval, sample count and method.

Pure: nothing is measured here, so old samples can be refitted on any machine. What the samples do not hold is
left out of the profile and named in the report.
"""

from __future__ import annotations

from pydantic import ValidationError

from equipoise.calibrate.fit.accelerator import accelerator_part, share_kappa
from equipoise.calibrate.fit.fabric import fabric_part
from equipoise.calibrate.fit.levels import (
    Convert,
    Report,
    best,
    by_parameters,
    gemm_rate,
    level,
    level_number,
    measured,
    rate,
    slug,
)
from equipoise.calibrate.fit.steps import step_part
from equipoise.calibrate.samples import NEEDED, SamplesError, SampleSet
from equipoise.sim.hardware.profile import HardwareProfile, Measured


def build_profile(samples: SampleSet, name: str) -> tuple[HardwareProfile, Report]:
    """Fit everything that the samples allow, with a report of the errors.

    Raises SamplesError without the minimum of a profile (an arithmetic rate and a memory bandwidth), or if
    a figure is outside the limits of a profile.
    """
    report = Report(notes=list(samples.notes))
    unused = [s.kind for s in samples.samples if s.kind not in NEEDED]
    if unused:
        report.notes.append(f"{len(unused)} samples of kinds that are not fitted: {', '.join(dict.fromkeys(unused))}")
    device = str(samples.conditions.get("device") or "device")
    accelerator = slug(device)
    profile = HardwareProfile(
        name=name,
        why=f"Calibrated on {device}.",
        kind="measured",
        source=f"equipoise calibrate, {samples.date}",
        date=samples.date,
        conditions=dict(samples.conditions),
        versions=dict(samples.versions),
        accelerators={accelerator: accelerator_part(samples, report)},
        fabrics=tuple(fabric_part(samples, accelerator, report)),
        steps=tuple(step_part(samples, accelerator, report)),
        figures=figures(samples, report),
        storage_read_bytes_per_s=best(samples.of("storage_read"), rate("bytes"), "storage read"),
    )
    _check(profile)
    return profile, report


def _check(profile: HardwareProfile) -> None:
    """Raise SamplesError for a figure outside the limits of a profile, e.g. from a broken clock."""
    try:
        HardwareProfile.model_validate(profile.model_dump(mode="json", exclude_none=True))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SamplesError(f"{place}: {first['msg'].splitlines()[0]}") from error


def figures(samples: SampleSet, report: Report) -> dict[str, Measured]:
    """Further numbers by name, the unit at the end; also what `check` measures again."""
    found: dict[str, Measured | None] = {}
    for kind in ("copy", "read", "triad", "add", "library_copy"):
        found[f"{kind}_bytes_per_s"] = _largest(samples, kind, "array_bytes", rate("bytes"))
    for kind in ("fma", "tensor"):
        for precision in samples.distinct(kind, "precision"):
            chosen = samples.of(kind, precision=precision)
            found[f"{kind}_{precision}_flop_per_s"] = best(chosen, rate("flop"), kind)
    for group in by_parameters(s for s in samples.of("gemm") if s["m"] == s["n"] == s["k"]).values():
        first = group[0]
        library = slug(str(first["library"]))
        estimate = level(group, gemm_rate)
        if estimate:
            name = f"gemm_{library}_{first['precision']}_{first['m']}_flop_per_s"
            found[name] = measured(estimate, str(first["library"]))
    found["launch_pipelined_s"] = level_number(samples.of("launch_pipelined"), "launch pipelined")
    for memory in samples.distinct("transfer", "memory"):
        for way in samples.distinct("transfer", "direction"):
            chosen = samples.of("transfer", memory=memory, direction=way)
            found[f"transfer_{way}_{memory}_bytes_per_s"] = best(chosen, rate("bytes"), "transfer")
    found["storage_write_bytes_per_s"] = best(samples.of("storage_write"), rate("bytes"), "storage write")
    found["preprocess_samples_per_s"] = best(samples.of("preprocess"), rate("samples"), "one core")
    found["share_kappa_memory_1"] = share_kappa(samples, "memory", report)
    for group in by_parameters(samples.of("interference")).values():
        name = f"slowdown_{group[0]['kernel']}_beside_{group[0]['neighbour']}_1"
        found[name] = level_number(group, "time together over time alone")
    return {name: number for name, number in found.items() if number is not None}


def _largest(samples: SampleSet, kind: str, size: str, convert: Convert) -> Measured | None:
    sizes = samples.distinct(kind, size)
    return best(samples.of(kind, **{size: max(sizes)}), convert, kind) if sizes else None
