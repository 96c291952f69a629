"""The accelerator's part of a profile: rates, efficiency, shares, power and heat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from equipoise.calibrate.fit.fits import fit_interference, fit_share_curve
from equipoise.calibrate.fit.gemm import GemmFit, fit_gemm_efficiency, leave_shapes_out
from equipoise.calibrate.fit.levels import (
    LOW_QUANTILE,
    FitLine,
    Report,
    best,
    gemm_rate,
    level_number,
    measured,
    number_line,
    rate,
)
from equipoise.calibrate.fit.robust import Floats, fit_level, low_quantile
from equipoise.calibrate.fit.thermal import fit_thermal, fit_throttle
from equipoise.calibrate.samples import CPU_TIME, Sample, SamplesError, SampleSet
from equipoise.sim.hardware.profile import Accelerator, EfficiencyPoint, Measured

HALF = 0.5
"""Fraction of the device on which the neighbour runs when interference is measured."""
ENERGY_PERIOD_S = 2.0
"""Averaging time over which the energy counter's steps (0.1 s on an H200) change a mean power by at most 5 %."""
BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}


def accelerator_part(samples: SampleSet, report: Report) -> Accelerator:
    """Fit the accelerator's values from the samples. Raises SamplesError without a rate or a bandwidth."""
    peaks = _peaks(samples, report)
    bandwidth = _bandwidth(samples, report)
    if not peaks or bandwidth is None:
        raise SamplesError("the samples hold no arithmetic rate or no memory bandwidth; a profile needs both")
    fields: dict[str, Any] = {
        "vendor": _vendor(str(samples.conditions.get("device") or "")),
        "flop_per_s": peaks,
        "hbm_bytes_per_s": bandwidth,
        "memory_bytes": _memory(samples),
        "link_bytes_per_s": best(samples.of("peer"), rate("bytes"), "peer copy"),
        "launch_latency_s": level_number(samples.of("launch_pipelined"), "launches queued one by one"),
        "efficiency": tuple(_efficiency(samples, peaks, report)),
        "share_kappa": share_kappa(samples, "compute", report),
        "interference": _interference(samples, report),
        **_heat(samples, report),
    }
    for name, unit in (("launch_latency_s", "s"), ("idle_w", "W"), ("max_w", "W")):
        if fields.get(name) is not None:
            report.lines.append(number_line(name[:-2].replace("_", " "), fields[name], unit))
    for name in ("link_bytes_per_s", "launch_latency_s", "share_kappa", "interference", "idle_w"):
        if fields.get(name) is None:
            report.missing.append(f"{name}: no samples")
    return Accelerator.model_validate({k: v for k, v in fields.items() if v is not None})


def _vendor(device: str) -> str:
    known = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
    return next((vendor for key, vendor in known.items() if key in device.lower()), "")


def _memory(samples: SampleSet) -> Measured:
    size = samples.conditions.get("memory_bytes")
    if not isinstance(size, int | float):
        raise SamplesError("the samples' conditions do not state memory_bytes")
    return Measured(value=float(size), source="as the system reports it", kind="measured")


def _peaks(samples: SampleSet, report: Report) -> dict[str, Measured]:
    """The highest rate of a matrix product by precision; where none was timed, that of a kernel.

    Work is sized in products, and their efficiency is relative to this number. What the instructions alone can do,
    a fifth to a third more on recent GPUs, stands among the figures.
    """
    peaks: dict[str, Measured] = {}
    for kinds in (("gemm",), ("tensor", "fma")):
        found: dict[str, Measured] = {}
        for kind in kinds:
            for precision in samples.distinct(kind, "precision"):
                whole = [s for s in samples.of(kind, precision=precision) if _whole(s)]
                number = best(whole, gemm_rate if kind == "gemm" else rate("flop"), kind)
                if number and (precision not in found or number.value > found[precision].value):
                    found[precision] = number
        peaks = found | peaks
    for precision, peak in peaks.items():
        report.lines.append(number_line(f"{precision} peak", peak, "FLOP/s"))
    return dict(sorted(peaks.items()))


def _bandwidth(samples: SampleSet, report: Report) -> Measured | None:
    """Bytes read plus bytes written per second past the caches: the best of all that do both, the driver too.

    It is the memory's rate that later models divide traffic by, not one kernel's. A kernel that only reads is
    faster (the bus need not turn round), but what training does writes as well.
    """
    found = []
    for kind in ("copy", "triad", "add", "library_copy"):
        sizes = samples.distinct(kind, "array_bytes")
        if sizes:
            number = best(samples.of(kind, array_bytes=max(sizes)), rate("bytes"), kind)
            found += [number] if number else []
    if not found:
        return None
    highest = max(found, key=lambda number: number.value)
    report.lines.append(number_line("memory bandwidth", highest, "bytes/s"))
    return highest


def _whole(sample: Sample) -> bool:
    """Whether a rate is the whole machine's: older files hold products of one core and of single layers too."""
    return sample.parameters.get("clock") != CPU_TIME and "part" not in sample.parameters


def main_precision(samples: SampleSet) -> str | None:
    """The precision whose efficiency the profile's table shows: bf16, fp16 or fp32."""
    timed = samples.distinct("gemm", "precision")
    return next((p for p in ("bf16", "fp16", "fp32") if p in timed), None)


def gemm_fit(samples: SampleSet, precision: str, peak: float) -> tuple[GemmFit, float | None]:
    """The fit of one precision's matrix products and its held-out error. Raises ValueError for too few."""
    m, n, k, seconds = gemm_samples(samples, precision)
    fit = fit_gemm_efficiency(m, n, k, seconds, peak, BYTES[precision])
    shapes = len(np.unique(np.stack([m, n, k]), axis=1).T)
    if shapes < 8:
        return fit, None
    errors = leave_shapes_out(m, n, k, seconds, peak, BYTES[precision], folds=shapes)
    return fit, float(np.median(errors))


def gemm_samples(samples: SampleSet, precision: str) -> tuple[Floats, Floats, Floats, Floats]:
    """m, n, k and seconds of products by the library with most shapes: the low quantile of each round's times."""
    found = [s for s in samples.of("gemm", precision=precision) if _whole(s)]
    libraries = [str(s.parameters.get("library")) for s in found]
    wanted = max(dict.fromkeys(libraries), key=libraries.count, default=None)
    chosen = [s for s in found if str(s.parameters.get("library")) == wanted]
    m, n, k = (np.array([float(s[name]) for s in chosen]) for name in ("m", "n", "k"))
    return m, n, k, np.array([float(low_quantile(np.asarray(s.values), LOW_QUANTILE)) for s in chosen])


def _efficiency(samples: SampleSet, peaks: dict[str, Measured], report: Report) -> list[EfficiencyPoint]:
    """Share of the peak by FLOP of a square product, at octaves of the size that were spanned."""
    precision = main_precision(samples)
    if precision is None:
        return []
    peak = peaks[precision].value
    try:
        fit, error = gemm_fit(samples, precision, peak)
    except ValueError as reason:
        report.missing.append(f"efficiency by size: {reason}")
        return []
    remark = f"{precision}, {len(fit.shapes)} shapes"
    report.lines.append(FitLine("matrix products", fit.flop_per_s, "FLOP/s", fit.residual_cov, error, remark))
    squares = fit.shapes[(fit.shapes == fit.shapes[:, :1]).all(axis=1), 0]
    if len(squares) < 2:
        return []
    sizes = 2.0 ** np.arange(math.ceil(squares.min()), math.floor(squares.max()) + 1)
    shares = np.minimum(fit.efficiency(sizes, sizes, sizes), 1.0)
    source = f"{precision} matrix products, fitted"
    return [
        EfficiencyPoint.model_validate(
            {
                "flop": Measured(value=2.0 * size**3, source=source, kind="fitted"),
                "efficiency": Measured(value=float(f"{share:.4g}"), source=source, kind="fitted", n=fit.n),
            }
        )
        for size, share in zip(sizes.tolist(), shares.tolist(), strict=True)
    ]


def share_kappa(samples: SampleSet, kernel: str, report: Report) -> Measured | None:
    """kappa of the share curve of the compute- or the memory-bound kernel."""
    shares, rates = [], []
    for sample in samples.of("share", kernel=kernel):
        shares += [float(sample["share"])] * len(sample.values)
        rates += [1.0 / seconds for seconds in sample.values]
    if not shares:
        return None
    try:
        fit = fit_share_curve(shares, rates)
    except ValueError as reason:
        report.missing.append(f"share curve, {kernel}: {reason}")
        return None
    name = f"share kappa, {kernel}-bound kernel"
    report.lines.append(FitLine(name, fit.kappa, "1", fit.residual_cov))
    return measured(fit.kappa, f"{kernel}-bound kernel over shares", "fitted")


def _interference(samples: SampleSet, report: Report) -> Measured | None:
    """iota over all pairs of kernels, by the share of the device that the neighbour keeps busy."""
    others, slow = [], []
    for sample in samples.of("interference"):
        others += [HALF * float(sample["others_utilisation"])] * len(sample.values)
        slow += list(sample.values)
    if len(slow) < 2:
        return None
    fit = fit_interference(others, slow)
    report.lines.append(FitLine("interference iota", fit.slope, "1", fit.residual_cov))
    return measured(fit.slope, "pairs of kernels on disjoint halves", "fitted")


def _heat(samples: SampleSet, report: Report) -> dict[str, Measured | None]:
    """Power and heat from the sustained load; the throttle temperature is the driver's."""
    found = samples.of("sustained")
    fields: dict[str, Measured | None] = {}
    threshold = samples.conditions.get("slowdown_c")
    if isinstance(threshold, int | float):
        fields["throttle_c"] = Measured(value=float(threshold), source="as the driver reports it", kind="measured")
    if not found:
        return fields
    columns = {k: np.asarray(v, dtype=np.float64) for k, v in found[-1].columns.items()}
    fields |= _power(columns)
    fields |= _thermal(columns, report)
    fields["throttle_slope"] = _throttle(columns, threshold)
    return fields


def _power(columns: dict[str, Floats]) -> dict[str, Measured | None]:
    power, loaded = columns.get("power_w"), columns["loaded"] > 0
    if power is None or not loaded.any() or loaded.all():
        return {}
    first = int(np.argmax(loaded))
    working = np.flatnonzero(loaded)
    hot = working[len(working) // 3 :]
    time_s = columns["time_s"]
    level = fit_level(_over_periods(power[hot], time_s[hot]))
    found = {"max_w": measured(level, "tensor cores under sustained load, energy counter")}
    if first >= 2:
        level = fit_level(_over_periods(power[:first], time_s[:first]))
        found["idle_w"] = measured(level, "idle before the load, energy counter")
    return dict(found)


def _over_periods(power: Floats, time_s: Floats) -> Floats:
    """Mean power over ENERGY_PERIOD_S each: the counter moves in steps, of which readings hold more or fewer."""
    each = max(round(ENERGY_PERIOD_S / float(np.median(np.diff(time_s)))), 1) if len(time_s) > 1 else 1
    whole = max(len(power) // each, 1)
    return np.array([part.mean() for part in np.array_split(power, whole)])


def _thermal(columns: dict[str, Floats], report: Report) -> dict[str, Measured | None]:
    if not {"power_w", "temperature_c"} <= columns.keys():
        return {}
    # A reading's power is the mean since the reading before; the model wants what follows a reading.
    ahead = np.append(columns["power_w"][1:], columns["power_w"][-1])
    try:
        fit = fit_thermal(columns["time_s"], ahead, columns["temperature_c"])
    except ValueError as reason:
        report.missing.append(f"thermal constants: {reason}")
        return {}
    remark = f"residual {fit.residual_c:.2g} C"
    report.lines.append(FitLine("thermal resistance", fit.resistance_c_per_w, "C/W", remark=remark))
    report.lines.append(FitLine("thermal time constant", fit.tau_s, "s", remark=remark))
    source = "temperature under load and after it"
    return {
        "thermal_c_per_w": measured(fit.resistance_c_per_w, source, "fitted"),
        "tau_s": measured(fit.tau_s, source, "fitted"),
    }


def _throttle(columns: dict[str, Floats], threshold: object) -> Measured | None:
    if not isinstance(threshold, int | float) or not {"temperature_c", "sm_clock_hz"} <= columns.keys():
        return None
    loaded = columns["loaded"] > 0
    clock = columns["sm_clock_hz"][loaded]
    if not len(clock):
        return None
    fit = fit_throttle(columns["temperature_c"][loaded], clock / clock.max(), float(threshold))
    return None if fit is None else measured(fit.slope_per_c, "clock above the threshold", "fitted")
