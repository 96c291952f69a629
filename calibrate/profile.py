"""Samples in, hardware profile out: every number with its interval, its count and how it was found.

Pure: nothing is measured here, so old samples can be refitted on any machine. What the samples do not hold is
left out of the profile and named in the report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrate.fit import (
    CollectiveFit,
    Estimate,
    GemmFit,
    LineFit,
    fit_collective,
    fit_gemm_efficiency,
    fit_interference,
    fit_level,
    fit_share_curve,
    fit_step_time,
    fit_thermal,
    fit_throttle,
    leave_one_size_out,
    leave_shapes_out,
)
from calibrate.robust import Floats
from calibrate.samples import Sample, SampleSet, SamplesError
from sim.hardware import Accelerator, EfficiencyPoint, Fabric, HardwareProfile, Measured, Piece, StepTime

LINK_QUANTILE = 0.1
"""Collectives are fitted at a low quantile: the link without other processes' interruptions."""

BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
BRIDGE_STEPS = 4


@dataclass(frozen=True)
class FitLine:
    """One line of the report: what was fitted, to how many samples, and how well it predicts.

    `residual_cov` is the spread of measured over fitted; `held_out_error` the median relative error for sizes
    that the fit had not seen (None where there are too few).
    """

    name: str
    estimate: Estimate | None
    unit: str
    residual_cov: float | None = None
    held_out_error: float | None = None
    remark: str = ""


@dataclass
class Report:
    """What became of the samples."""

    lines: list[FitLine] = field(default_factory=list)
    predictions: list[Prediction] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Prediction:
    """A training step that was not used in the fit, predicted and measured."""

    workload: str
    precision: str
    batch: int
    framework: str
    predicted: Estimate
    measured: Estimate

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted.value / self.measured.value - 1.0


def build_profile(samples: SampleSet, name: str) -> tuple[HardwareProfile, Report]:
    """Fit everything that the samples allow. Raises SamplesError when the least that a profile needs is missing.

    The least: one arithmetic rate and one memory bandwidth.
    """
    report = Report(notes=list(samples.notes))
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
        accelerators={accelerator: _accelerator(samples, report)},
        fabrics=tuple(_fabrics(samples, accelerator, report)),
        steps=tuple(_steps(samples, accelerator, report)),
        figures=_figures(samples, report),
    )
    return profile, report


def slug(text: str) -> str:
    """A name for YAML keys: lower case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower().replace("(r)", "").replace("(tm)", "")).strip("_")


def measured(estimate: Estimate, source: str, kind: str = "measured") -> Measured:
    """The number as it stands in a profile, rounded to six digits (its interval outwards enough to hold it)."""
    value = float(f"{estimate.value:.6g}")
    low, high = (float(f"{v:.6g}") for v in (estimate.low, estimate.high))
    return Measured.model_validate(
        {
            "value": value,
            "low": min(low, value),
            "high": max(high, value),
            "n": estimate.n,
            "source": source,
            "kind": kind,
        }
    )


def level(
    samples: Iterable[Sample], convert: Callable[[Sample, Floats], Floats] | None = None
) -> Estimate | None:
    """The typical value over rounds of samples of one thing; None without any."""
    values, rounds = [], []
    for sample in samples:
        data = np.asarray(sample.values)
        converted = data if convert is None else convert(sample, data)
        values.append(converted)
        rounds.append(np.full(len(converted), sample.round))
    return fit_level(np.concatenate(values), np.concatenate(rounds)) if values else None


def rate(amount: str) -> Callable[[Sample, Floats], Floats]:
    """Converts seconds into a rate of the sample's parameter `amount`."""
    return lambda sample, seconds: float(sample[amount]) / seconds


def gemm_rate(sample: Sample, seconds: Floats) -> Floats:
    """FLOP/s of a matrix product."""
    return np.asarray(2.0 * sample["m"] * sample["n"] * sample["k"] / seconds)


def by_parameters(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Samples of one thing over its rounds, in order of appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(repr(sorted(sample.parameters.items())), []).append(sample)
    return groups


# -- accelerator ------------------------------------------------------------------------------------------------


def _accelerator(samples: SampleSet, report: Report) -> Accelerator:
    peaks = _peaks(samples, report)
    bandwidth = _bandwidth(samples, report)
    if not peaks or bandwidth is None:
        raise SamplesError("the samples hold no arithmetic rate or no memory bandwidth; a profile needs both")
    fields: dict[str, Any] = {
        "vendor": _vendor(str(samples.conditions.get("device") or "")),
        "flop_per_s": peaks,
        "hbm_bytes_per_s": bandwidth,
        "memory_bytes": _memory(samples),
        "link_bytes_per_s": _best(samples.of("peer"), rate("bytes"), "peer copy"),
        "launch_latency_s": _level(samples.of("launch_pipelined"), "launches queued one by one"),
        "efficiency": tuple(_efficiency(samples, peaks, report)),
        "share_kappa": _share(samples, report),
        "interference": _interference(samples, report),
        **_heat(samples, report),
    }
    for name in ("link_bytes_per_s", "launch_latency_s", "share_kappa", "interference", "idle_w", "tau_s"):
        if fields.get(name) is None:
            report.missing.append(f"{name}: not in the samples")
    return Accelerator.model_validate({k: v for k, v in fields.items() if v is not None})


def _vendor(device: str) -> str:
    known = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
    return next((vendor for key, vendor in known.items() if key in device.lower()), "")


def _memory(samples: SampleSet) -> Measured:
    size = samples.conditions.get("memory_bytes")
    if not isinstance(size, int | float):
        raise SamplesError("the samples' conditions do not state memory_bytes")
    return Measured(value=float(size), source="as the system reports it", kind="measured")


def _level(found: list[Sample], source: str) -> Measured | None:
    estimate = level(found)
    return None if estimate is None else measured(estimate, source)


def _best(found: list[Sample], convert: Callable[[Sample, Floats], Floats], source: str) -> Measured | None:
    """The highest typical rate among several things measured (sizes, algorithms)."""
    levels = [(level(group, convert), group[0]) for group in by_parameters(found).values()]
    known = [(estimate, sample) for estimate, sample in levels if estimate is not None]
    if not known:
        return None
    estimate, sample = max(known, key=lambda pair: pair[0].value)
    shown = ", ".join(f"{k} {v}" for k, v in sample.parameters.items() if k not in ("flop", "precision"))
    return measured(estimate, f"{source} ({shown})" if shown else source)


def _peaks(samples: SampleSet, report: Report) -> dict[str, Measured]:
    """The highest rate reached by precision: by a matrix product, a tensor-core or a multiply-add kernel."""
    sources = (("gemm", gemm_rate), ("tensor", rate("flop")), ("fma", rate("flop")))
    peaks: dict[str, Measured] = {}
    for kind, convert in sources:
        for precision in samples.distinct(kind, "precision"):
            found = _best(samples.of(kind, precision=precision), convert, kind)
            if found and (precision not in peaks or found.value > peaks[precision].value):
                peaks[precision] = found
    for precision, peak in peaks.items():
        report.lines.append(_line(f"{precision} peak", peak, "FLOP/s"))
    return dict(sorted(peaks.items()))


def _line(name: str, number: Measured, unit: str, **more: Any) -> FitLine:
    low = number.value if number.low is None else number.low
    high = number.value if number.high is None else number.high
    return FitLine(name, Estimate(number.value, low, high, number.n), unit, **more, remark=number.source)


def _bandwidth(samples: SampleSet, report: Report) -> Measured | None:
    """Bytes read plus bytes written per second, the best of the kernels that do both, past the caches."""
    found = []
    for kind in ("copy", "triad", "add"):
        sizes = samples.distinct(kind, "array_bytes")
        if sizes:
            best = _best(samples.of(kind, array_bytes=max(sizes)), rate("bytes"), kind)
            found += [best] if best else []
    if not found:
        return None
    best = max(found, key=lambda number: number.value)
    report.lines.append(_line("memory bandwidth", best, "bytes/s"))
    return best


def main_precision(samples: SampleSet) -> str | None:
    """The precision whose efficiency the profile's table shows: the first of bf16, fp16, fp32 that was timed."""
    timed = samples.distinct("gemm", "precision")
    return next((p for p in ("bf16", "fp16", "fp32") if p in timed), None)


def gemm_fit(samples: SampleSet, precision: str, peak: float) -> tuple[GemmFit, float | None]:
    """The fit of one precision's matrix products and its held-out error. Raises ValueError for too few."""
    m, n, k, seconds = _gemm_arrays(samples, precision)
    fit = fit_gemm_efficiency(m, n, k, seconds, peak, BYTES[precision])
    shapes = len(np.unique(np.stack([m, n, k]), axis=1).T)
    if shapes < 8:
        return fit, None
    errors = leave_shapes_out(m, n, k, seconds, peak, BYTES[precision], folds=shapes)
    return fit, float(np.median(errors))


def _gemm_arrays(samples: SampleSet, precision: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Shapes and the typical time of each round, of the library measured on most shapes."""
    found = samples.of("gemm", precision=precision)
    libraries = [str(s.parameters.get("library")) for s in found]
    main = max(dict.fromkeys(libraries), key=libraries.count, default=None)
    chosen = [s for s in found if str(s.parameters.get("library")) == main]
    columns = [[float(s[name]) for s in chosen] for name in ("m", "n", "k")]
    return (*(np.array(c) for c in columns), np.array([np.median(s.values) for s in chosen]))  # type: ignore[return-value]


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


def _share(samples: SampleSet, report: Report) -> Measured | None:
    """kappa of the compute-bound kernel; that of the memory-bound one is among the figures."""
    return _kappa(samples, "compute", report)


def _kappa(samples: SampleSet, kernel: str, report: Report) -> Measured | None:
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
    """iota over all pairs of kernels; each pair's own slow-down is among the figures."""
    others, slow = [], []
    for sample in samples.of("interference"):
        others += [float(sample["others_utilisation"])] * len(sample.values)
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
        fields["throttle_c"] = Measured(
            value=float(threshold), source="as the driver reports it", kind="measured"
        )
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
    hot = power[working[len(working) // 3 :]]
    found = {"max_w": measured(fit_level(hot), "tensor cores under sustained load, energy counter")}
    if first >= 2:
        found["idle_w"] = measured(fit_level(power[:first]), "idle before the load, energy counter")
    return dict(found)


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


# -- fabrics ----------------------------------------------------------------------------------------------------


def messages(collective: str, ranks: int) -> tuple[float, float]:
    """(messages in sequence, share of S that each link carries) of a ring (Thakur et al. 2005)."""
    n = float(ranks)
    rounds = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}[collective]
    return rounds * (n - 1.0), rounds * (n - 1.0) / n


def _fabrics(samples: SampleSet, accelerator: str, report: Report) -> list[Fabric]:
    """One fabric per collective, from the largest group measured."""
    found = []
    for collective in samples.distinct("collective", "collective"):
        groups = [s["ranks"] for s in samples.of("collective", collective=collective)]
        chosen = samples.of("collective", collective=collective, ranks=max(groups))
        sizes = [float(s["bytes"]) for s in chosen for _ in s.values]
        seconds = [v for s in chosen for v in s.values]
        backend = chosen[0]["backend"]
        try:
            fit = fit_collective(sizes, seconds, LINK_QUANTILE)
        except ValueError as reason:
            report.missing.append(f"{collective} over {backend}: {reason}")
            continue
        held = leave_one_size_out(sizes, seconds, _at_link_quantile)
        name = f"{collective}, {max(groups)} ranks, {backend}"
        first = fit.pieces[0].alpha_s
        error = _level_error(held.size, held.measured, held.predicted)
        report.lines.append(
            FitLine(
                name, first, "s", fit.residual_cov, error, f"{len(fit.pieces)} pieces, alpha of the first"
            )
        )
        found.append(as_fabric(fit, collective, max(groups), accelerator, f"{backend}, {max(groups)} ranks"))
    return found


def _at_link_quantile(sizes: Floats, seconds: Floats) -> CollectiveFit:
    return fit_collective(sizes, seconds, LINK_QUANTILE)


def _level_error(size: Floats, seconds: Floats, predicted: Floats) -> float:
    """Median over sizes of the error against the same quantile of what was measured."""
    errors = [
        abs(predicted[size == s][0] / np.quantile(seconds[size == s], LINK_QUANTILE) - 1.0)
        for s in np.unique(size)
    ]
    return float(np.median(errors))


def as_fabric(fit: CollectiveFit, collective: str, ranks: int, accelerator: str, source: str) -> Fabric:
    """alpha per message and rate B such that the ring's closed form gives back the fitted times."""
    sequence, carried = messages(collective, ranks)
    pieces = [
        Piece.model_validate(
            {
                "from_bytes": Measured(value=start, source=source, kind="fitted"),
                "alpha_s": measured(alpha.map(lambda a: a / sequence), source, "fitted"),
                "bytes_per_s": measured(_rate_of(beta, carried, alpha, start), source, "fitted"),
            }
        )
        for start, alpha, beta in _profile_pieces(fit)
    ]
    cov = fit.residual_cov
    return Fabric.model_validate(
        {
            "tier": "intra",
            "collective": collective,
            "accelerator": accelerator,
            "alpha_s": pieces[0].alpha_s,
            "bytes_per_s": max((p.bytes_per_s for p in pieces[-1:]), key=lambda b: b.value),
            "pieces": tuple(pieces),
            "residual_cov": Measured(value=float(f"{cov:.4g}"), source=source, kind="fitted", n=fit.n),
        }
    )


def _rate_of(beta: Estimate, carried: float, alpha: Estimate, size: float) -> Estimate:
    """carried / beta; a flat piece gets a rate so high that it adds a millionth of alpha."""
    least = 1e-6 * max(alpha.value, 1e-9) / max(size, 1.0)
    return Estimate(
        carried / max(beta.value, least),
        carried / max(beta.high, least),
        carried / max(beta.low, least),
        beta.n,
    )


def _profile_pieces(fit: CollectiveFit) -> list[tuple[float, Estimate, Estimate]]:
    """(from_bytes, alpha, beta) of the fitted pieces and of the bridges between them.

    A bridge steeper than proportional would need a negative alpha; it becomes a few pieces through the origin.
    """
    found: list[tuple[float, Estimate, Estimate]] = []
    for piece, following in zip(fit.pieces, [*fit.pieces[1:], None], strict=True):
        found.append((0.0 if not found else piece.from_bytes, piece.alpha_s, piece.beta_s_per_byte))
        if following is not None:
            n = piece.alpha_s.n
            found += _bridge(
                piece.to_bytes,
                piece.at(piece.to_bytes),
                following.from_bytes,
                following.at(following.from_bytes),
                n,
            )
    return found


def _bridge(
    left: float, left_s: float, right: float, right_s: float, n: int
) -> list[tuple[float, Estimate, Estimate]]:
    slope = (right_s - left_s) / (right - left)
    alpha = left_s - slope * left
    just_after = math.nextafter(left, math.inf) if left > 1e15 else left + 1.0
    if alpha >= 0.0 and slope >= 0.0:
        return [(just_after, _exactly(alpha, n), _exactly(slope, n))]
    edges = np.linspace(just_after, right, BRIDGE_STEPS + 1)
    middles = (edges[:-1] + edges[1:]) / 2.0
    return [
        (float(edge), _exactly(0.0, n), _exactly(float((left_s + slope * (middle - left)) / middle), n))
        for edge, middle in zip(edges[:-1], middles, strict=True)
    ]


def _exactly(value: float, n: int) -> Estimate:
    return Estimate(value, value, value, n)


# -- training steps ---------------------------------------------------------------------------------------------


def _steps(samples: SampleSet, accelerator: str, report: Report) -> list[StepTime]:
    found = []
    for group in by_parameters(
        Sample("training", {k: v for k, v in s.parameters.items() if k != "batch"}, ())
        for s in samples.of("training")
    ).values():
        chosen = samples.of("training", **group[0].parameters)
        step = _step(chosen, accelerator, report)
        found += [step] if step else []
    return found


def _step(chosen: list[Sample], accelerator: str, report: Report) -> StepTime | None:
    workload, precision, framework = (str(chosen[0][k]) for k in ("workload", "precision", "framework"))
    batches, seconds = step_arrays(chosen)
    name = f"{workload} step, {precision}, {framework}"
    try:
        fit = fit_step_time(batches, seconds)
    except ValueError as reason:
        report.missing.append(f"{name}: {reason}")
        return None
    error = None
    if len(np.unique(batches)) >= 3:
        error = leave_one_size_out(batches, seconds, fit_step_time).median_error()
        report.predictions.append(predict_largest(chosen))
    report.lines.append(FitLine(name, fit.per_unit_s, "s/sample", fit.residual_cov, error))
    source = f"{framework}, batches {', '.join(str(int(b)) for b in np.unique(batches))}"
    return StepTime.model_validate(
        {
            "workload": workload,
            "accelerator": accelerator,
            "precision": precision,
            "alpha_s": measured(fit.fixed_s, source, "fitted"),
            "beta_s": measured(fit.per_unit_s, source, "fitted"),
            "residual_cov": Measured(
                value=float(f"{fit.residual_cov:.4g}"), source=source, kind="fitted", n=fit.n
            ),
        }
    )


def step_arrays(chosen: list[Sample]) -> tuple[Floats, Floats]:
    """(batch, seconds) of every single step."""
    batches = np.array([float(s["batch"]) for s in chosen for _ in s.values])
    return batches, np.array([v for s in chosen for v in s.values])


def predict_largest(chosen: list[Sample]) -> Prediction:
    """Predict the largest batch of a workload from a fit to the smaller ones, and compare."""
    batches, seconds = step_arrays(chosen)
    largest = batches.max()
    rest: LineFit = fit_step_time(batches[batches < largest], seconds[batches < largest])
    truth = level(s for s in chosen if s["batch"] == largest)
    assert truth is not None
    return Prediction(
        str(chosen[0]["workload"]),
        str(chosen[0]["precision"]),
        int(largest),
        str(chosen[0]["framework"]),
        rest.predict_interval(float(largest)),
        truth,
    )


# -- further figures --------------------------------------------------------------------------------------------


def _figures(samples: SampleSet, report: Report) -> dict[str, Measured]:
    """Further numbers by name, the unit at the end; also what `check` measures again."""
    found: dict[str, Measured | None] = {}
    for kind in ("copy", "read", "triad", "add", "library_copy"):
        found[f"{kind}_bytes_per_s"] = _largest(samples, kind, "array_bytes", rate("bytes"))
    for kind in ("fma", "tensor"):
        for precision in samples.distinct(kind, "precision"):
            chosen = samples.of(kind, precision=precision)
            found[f"{kind}_{precision}_flop_per_s"] = _best(chosen, rate("flop"), kind)
    for group in by_parameters(s for s in samples.of("gemm") if s["m"] == s["n"] == s["k"]).values():
        first = group[0]
        library = slug(str(first["library"]))
        estimate = level(group, gemm_rate)
        if estimate:
            name = f"gemm_{library}_{first['precision']}_{first['m']}_flop_per_s"
            found[name] = measured(estimate, str(first["library"]))
    for kind in ("launch_pipelined", "launch_round_trip"):
        found[f"{kind}_s"] = _level(samples.of(kind), kind.replace("_", " "))
    for size in samples.distinct("load_latency", "bytes"):
        chosen = samples.of("load_latency", bytes=size)
        found[f"load_latency_{size}_bytes_s"] = _level(chosen, f"pointer chase through {size} bytes")
    for memory in samples.distinct("transfer", "memory"):
        for way in samples.distinct("transfer", "direction"):
            chosen = samples.of("transfer", memory=memory, direction=way)
            found[f"transfer_{way}_{memory}_bytes_per_s"] = _best(chosen, rate("bytes"), "transfer")
    for way in ("storage_write", "storage_read"):
        found[f"{way}_bytes_per_s"] = _best(samples.of(way), rate("bytes"), way.replace("_", " "))
    found["preprocess_samples_per_s"] = _best(samples.of("preprocess"), rate("samples"), "one core")
    found["share_kappa_memory_1"] = _kappa(samples, "memory", report)
    for group in by_parameters(samples.of("interference")).values():
        name = f"slowdown_{group[0]['kernel']}_beside_{group[0]['neighbour']}_1"
        found[name] = _level(group, "time together over time alone")
    return {name: number for name, number in found.items() if number is not None}


def _largest(
    samples: SampleSet, kind: str, size: str, convert: Callable[[Sample, Floats], Floats]
) -> Measured | None:
    sizes = samples.distinct(kind, size)
    return _best(samples.of(kind, **{size: max(sizes)}), convert, kind) if sizes else None
