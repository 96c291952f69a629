"""What the GPU validation found, as rows of a table: what was wanted, what was measured, whether it holds."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from equipoise.calibrate.check import as_estimate
from equipoise.calibrate.samples import SampleSet
from equipoise.sim.hardware.profile import Accelerator, HardwareProfile, Measured, load_profile
from tests.bench.gpu.predicted import FITTED, Stacks, from_shape, measured_s
from tests.bench.gpu.ranks import throughput
from tests.bench.gpu.shares import HELD_OUT, curves, held_out_shares, pair_goodput

Verdict = Literal["holds", "FAILS", "stated", "not run"]
SECOND_METHOD, STEP_ERROR = 0.05, 0.05
TRACED_STEP, TRACED_PEAK = 0.10, 0.08
OVERHEAD = {"observe": 0.003, "act": 0.01}  # where a GPU bounds the step, observe's limit holds for act, too
INTERVALS_LEAST = 0.9
LARGE_PRODUCT = 4096

# Part of the device's name: the data sheet in the catalogue. The first that matches counts.
DATA_SHEETS = (
    ("H100 PCIe", "h100_pcie"),
    ("H200", "h200_sxm"),
    ("H100", "h100_sxm"),
    ("B200", "b200"),
    ("A100-SXM4-80GB", "a100_sxm_80gb"),
    ("A100-SXM4-40GB", "a100_sxm_40gb"),
    ("V100-SXM2-32GB", "v100_sxm2_32gb"),
    ("L40S", "l40s"),
    ("A10", "a10"),
    ("T4", "t4"),
)

ORDINARY_FP64 = dict.fromkeys(("a100_sxm_80gb", "a100_sxm_40gb", "h100_sxm", "h100_pcie", "h200_sxm"), 0.5)
"""fp64 on the ordinary pipes over the catalogue's rate, where that is the tensor cores' (data sheets)."""
TENSOR_CLOCK_HZ = dict.fromkeys(("h100_sxm", "h200_sxm"), 1.83e9)
"""Clock at which a data sheet's tensor rates hold: 989.4e12 FLOP/s = 132 SMs * 4096 FLOP a clock * 1.83e9 Hz."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    wanted: str
    found: str
    verdict: Verdict


def not_run(what: str, why: object) -> Row:
    """A line for what could not be run, with the reason."""
    return Row(what, "-", " ".join(str(why).split()), "not run")


def _judged(what: str, wanted: str, found: str, good: bool) -> Row:
    return Row(what, wanted, found, "holds" if good else "FAILS")


def _ratio_row(what: str, one: Measured, other: Measured) -> Row:
    ratio = one.value / other.value
    good = abs(ratio - 1.0) <= SECOND_METHOD
    return _judged(
        what, f"within {SECOND_METHOD:.0%}", f"{ratio - 1.0:+.1%} ({one.value:.4g} / {other.value:.4g})", good
    )


def second_method_rows(profile: HardwareProfile) -> list[Row]:
    """Our copy against the driver's, the library's products against PyTorch's."""
    figures, rows = profile.figures, []
    if {"copy_bytes_per_s", "library_copy_bytes_per_s"} <= figures.keys():
        one, other = figures["copy_bytes_per_s"], figures["library_copy_bytes_per_s"]
        rows.append(_ratio_row("copy kernel against the driver's copy, bytes/s", one, other))
    else:
        rows.append(not_run("copy kernel against the driver's copy", "not in the samples"))
    pairs = [(n, n.replace("gemm_cublaslt_", "gemm_torch_")) for n in figures if n.startswith("gemm_cublaslt_")]
    both = [(name, second) for name, second in pairs if second in figures]
    for name, second in both:
        row = _ratio_row(f"{name} against PyTorch's", figures[name], figures[second])
        if int(name.split("_")[3]) < LARGE_PRODUCT:  # PyTorch's figure is then that of its launches
            row = replace(row, wanted="-", verdict="stated")
        rows.append(row)
    if not both:
        rows.append(not_run("products of cuBLASLt against PyTorch's", "needs PyTorch for CUDA"))
    return rows


def data_sheet(device: str) -> tuple[str, Accelerator] | None:
    """The catalogue's entry for a device's name, with its own; None when there is none."""
    name = next((entry for part, entry in DATA_SHEETS if part.lower() in device.lower()), None)
    found = load_profile("catalogue").accelerators
    return (name, found[name]) if name in found else None


def physical_rows(profile: HardwareProfile) -> list[Row]:
    """Share of the data sheet's rate that each kernel reaches."""
    device = str(profile.conditions.get("device") or "")
    named = data_sheet(device)
    if named is None:
        return [not_run("share of the data sheet", f"the catalogue has no {device or 'unnamed device'}")]
    entry, sheet = named
    rows = []
    for kind in ("copy", "read", "triad", "library_copy"):
        number = profile.figures.get(f"{kind}_bytes_per_s")
        if number is not None:
            rows.append(_share(f"{kind}, memory", number.value, sheet.hbm_bytes_per_s.value))
    clock_hz = float(str(profile.conditions.get("max_sm_clock_hz") or 0.0))
    for name, number in profile.figures.items():
        kind, _, rest = name.partition("_")
        precision = rest.removesuffix("_flop_per_s")
        if kind in ("fma", "tensor") and precision in sheet.flop_per_s:
            if kind == "fma" and precision == "fp16":
                continue  # the data sheet's rate is that of the tensor cores
            limit, faster = sheet.flop_per_s[precision].value, 1.0
            if precision == "fp64":
                limit *= ORDINARY_FP64.get(entry, 1.0) if kind == "fma" else 1.0
            elif kind == "tensor":
                faster = max(clock_hz / TENSOR_CLOCK_HZ.get(entry, math.inf), 1.0)
            rows.append(_share(f"{kind} {precision}", number.value, limit, faster))
    (accelerator,) = profile.accelerators.values()
    for precision, peak in accelerator.flop_per_s.items():
        if precision in sheet.flop_per_s:
            rows.append(_share(f"best product {precision}", peak.value, sheet.flop_per_s[precision].value))
    return rows


def _share(what: str, value: float, limit: float, faster: float = 1.0) -> Row:
    """`faster`: the device's highest clock over that of the data sheet's rate."""
    most = 1.02 * faster
    text = f"at most {most:.2f}" + (" (the sheet's clock is lower)" if faster > 1.0 else "")
    return _judged(f"{what}, share of the data sheet", text, f"{value / limit:.1%}", value <= most * limit)


def _numbers(profile: HardwareProfile) -> dict[str, Measured]:
    """Figures, and the constants of training steps."""
    found = dict(profile.figures)
    for step in profile.steps:
        found[f"{step.workload} {step.precision} per sample"] = step.beta_s
    return found


def agreement_row(first: HardwareProfile, second: HardwareProfile) -> Row:
    """Whether the intervals of two calibrations have a point in common, number by number."""
    what = "two calibrations agree within their intervals"
    one, other = _numbers(first), _numbers(second)
    names = [name for name in one if name in other]
    if not names:
        return not_run(what, "no number in common")
    apart = [n for n in names if not as_estimate(one[n]).overlaps(as_estimate(other[n]))]
    shown = f"; apart: {', '.join(apart)}" if apart else ""
    share = 1.0 - len(apart) / len(names)
    found = f"{len(names) - len(apart)} of {len(names)} numbers{shown}"
    return _judged(what, f"{INTERVALS_LEAST:.0%} of them", found, share >= INTERVALS_LEAST)


def step_rows(predictions: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Training steps not used in the fit: the largest batch of each model."""
    if not predictions:
        return [not_run("training steps not used in the fit", "no steps were timed (needs PyTorch for CUDA)")]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for p in predictions:
        groups.setdefault(p["precision"], []).append(p)
    return [_step_row(f"largest batch from smaller batches, {name}", chosen) for name, chosen in groups.items()]


def _step_row(what: str, chosen: Sequence[Mapping[str, Any]]) -> Row:
    error = statistics.median(abs(p["error"]) for p in chosen)
    within = sum(
        p["predicted_low_s"] <= p["measured_high_s"] and p["measured_low_s"] <= p["predicted_high_s"] for p in chosen
    )
    found = f"{error:.1%} median of {len(chosen)}, intervals meet in {within}"
    return _judged(f"step of {what}", f"median at most {STEP_ERROR:.0%}", found, error <= STEP_ERROR)


def share_rows(samples: SampleSet) -> list[Row]:
    """Throughput on a share of the SMs, each share from the others."""
    found = held_out_shares(samples)
    rows = []
    for kernel, points in found.items():
        for p in points:
            error = p["predicted_s"] / p["measured_s"] - 1.0
            what = f"{kernel}-bound kernel on {p['share']:.1%} of the SMs, from the other shares"
            rows.append(Row(what, "-", f"{error:+.1%}", "stated"))
    return rows or [not_run("throughput by share of the SMs", "no shares in the samples")]


def training_share_rows(found: Mapping[str, Any]) -> list[Row]:
    """Each kind of training on half of the GPU from the other shares, and what pairs make of it."""
    rows = []
    for kind, c in curves(found["alone"]).items():
        error = c["predicted_s"] / c["measured_s"] - 1.0
        others = " and ".join(p for p in found["alone"][kind] if p != str(HELD_OUT))
        what = f"training step ({kind}) on {HELD_OUT} % of the SMs (MPS), from {others} %"
        rows.append(Row(what, "-", f"{error:+.1%} (kappa {c['kappa']:.3g})", "stated"))
    for pair, goodput in pair_goodput(found).items():
        each = " + ".join(f"{part:.3f}" for part in goodput)
        whose = ", as S3 gives them," if pair == found.get("s3") else ""
        what = f"two trainings beside each other{whose} {pair} % ({' / '.join(found['alone'])})"
        rows.append(Row(what, "-", f"{sum(goodput):.3f} of a GPU each by itself ({each})", "stated"))
    return rows


def large_rows(found: Mapping[str, Any], hardware: str, stacks: Stacks) -> list[Row]:
    """Steps and peak memory of a large transformer against what its shape and a profile say."""
    cases, size = found["cases"], found["name"]
    by_shape = from_shape(found, hardware, stacks)
    rows = []
    for compiled, recompute in ((False, False), (False, True), (True, False), (True, True)):
        chosen = [
            k
            for k, c in enumerate(cases)
            if (c["compiled"], c["recompute"]) == (compiled, recompute) and "steps_s" in c
        ]
        if not chosen:
            continue
        how = f"{'compiled' if compiled else 'as written'}, activations {'recomputed' if recompute else 'kept'}"
        steps = [by_shape[k]["step_s"] / float(measured_s(cases[k]) or 0.0) - 1.0 for k in chosen]
        what = f"step of {size} parameters, {how}, from its shape ({stacks[compiled]})"
        if stacks is FITTED:
            good = statistics.median(map(abs, steps)) <= STEP_ERROR
            rows.append(_judged(what, f"median at most {STEP_ERROR:.0%}", _errors(steps), good))
        else:
            rows.append(Row(what, "-", _errors(steps), "stated"))
        peaks = [(by_shape[k], cases[k]["device_bytes"]) for k in chosen if "device_bytes" in cases[k]]
        if peaks:
            errors = [p["peak_bytes"] / real - 1.0 for p, real in peaks]
            inside = sum(p["peak_low_bytes"] <= real <= p["peak_high_bytes"] for p, real in peaks)
            text = f"{_errors(errors)}; in its interval {inside} of {len(peaks)}"
            rows.append(Row(f"peak memory of {size} parameters, {how}, from its shape", "-", text, "stated"))
    return rows


def _errors(errors: Sequence[float]) -> str:
    size = statistics.median(abs(e) for e in errors)
    return f"{size:.1%} median of {len(errors)}, {min(errors):+.1%} to {max(errors):+.1%}"


def rank_rows(found: Mapping[str, Any]) -> list[Row]:
    """What the stages make of two unequal ranks, against equal work."""
    runs = found["ranks"][0]
    plain = statistics.mean(throughput(run) for run in runs if run["policy"] == "plain")
    parts = " and ".join(f"{p} %" for p in found["percentages"])
    return [
        Row(
            f"two ranks on {parts} of one GPU, {run['policy']} against equal work",
            "-",
            f"{throughput(run) / plain:.3f} times the samples/s",
            "stated",
        )
        for run in runs
        if run["policy"] != "plain"
    ]


def twin_rows(twins: Mapping[str, tuple[str, float, int, int, bool]]) -> list[Row]:
    """How far the simulated twins of those runs are off."""
    return [
        _judged(
            f"twin of the two ranks under {policy}: step times",
            f"median at most {STEP_ERROR:.0%}",
            f"{error:.2%} median of {windows} windows, the first {alike} decisions alike, "
            f"{'all' if replayed else 'not all'} replayed",
            error <= STEP_ERROR and replayed,
        )
        for policy, error, alike, windows, replayed in twins.values()
    ]


def adapter_rows(found: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Row]:
    """What the adapter costs, by case and mode: the median over blocks of the ratio to the plain block beside it."""
    rows = []
    for case, by_mode in found.items():
        plain_s = by_mode["plain"]
        for mode, times_s in by_mode.items():
            if mode == "plain":
                continue
            limit = OVERHEAD["observe" if mode == "observe" or case.startswith("GPU") else "act"]
            over = statistics.median(b / a - 1.0 for a, b in zip(plain_s, times_s, strict=True))
            text = f"{over:+.2%} of {1e3 * statistics.median(plain_s):.1f} ms, median of {len(times_s)} pairs of blocks"
            rows.append(_judged(f"adapter, one rank, {case}, {mode}", f"at most {limit:.1%}", text, over <= limit))
    return rows


def popular_rows(found: Mapping[str, Any], predicted: Path) -> list[Row]:
    """Steps that were predicted before any of them was measured; a GPU of another name than the rates' is left out."""
    rows = [Row("popular models", "-", f"{len(found['steps'])} steps, {found['operations']} operations", "stated")]
    with predicted.open(encoding="utf-8") as file:
        known = {(r["gpu"], r["model"], int(r["batch"]), int(r["length"])): r for r in csv.DictReader(file)}
    for step in found["steps"]:
        gpu = "h200" if "H200" in step.get("gpu", "") else "h100" if "H100" in step.get("gpu", "") else ""
        given = known.get((gpu, step["model"], int(step["batch"]), int(step["length"])))
        if given is None:
            continue
        error = float(given["step_s"]) / float(step["step_s"]) - 1.0
        peak = float(given["peak_bytes"]) / float(step["peak_allocated_bytes"]) - 1.0
        text = f"{error:+.1%} of {1e3 * float(step['step_s']):.1f} ms, peak {peak:+.1%}"
        holds = abs(error) <= TRACED_STEP and abs(peak) <= TRACED_PEAK
        wanted = f"at most {TRACED_STEP:.0%}, {TRACED_PEAK:.0%}"
        rows.append(_judged(f"{step['model']}, batch {step['batch']}, predicted by its trace", wanted, text, holds))
    return rows


def as_markdown(rows: Iterable[Row], heading: str) -> str:
    """The table, under a line that says where and when."""
    lines = [heading, "", "| what | wanted | found | verdict |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {r.what} | {r.wanted} | {r.found} | {r.verdict} |" for r in rows)]) + "\n"
