"""calibrate: measure this machine and fit a hardware profile. Large modules are imported when the command runs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.base.tables import aligned
from equipoise.calibrate.samples import SamplesError, SampleWriter, merge, read_samples
from equipoise.commands.hardware.fit_noise import fit_noise
from equipoise.commands.hardware.fit_steps import fit_steps
from equipoise.commands.types import FloatRange
from equipoise.exit_codes import OK, OUTSIDE
from equipoise.options import CommandState, WrongInputError, common, note, pass_state, progress

if TYPE_CHECKING:
    from equipoise.calibrate.check import ProfileDrift
    from equipoise.calibrate.fit.levels import LevelPrediction, Report
    from equipoise.calibrate.run import SessionOutcome
    from equipoise.calibrate.samples import SampleSet


@click.group(invoke_without_command=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--quick", is_flag=True, help="Under a minute instead of under ten.")
@click.option("--out", metavar="PROFILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--samples",
    "samples_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of raw samples; an interrupted session continues from it (default: next to the profile).",
)
@click.option(
    "--from",
    "origins",
    metavar="SAMPLES",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fit these samples without measuring. May be repeated.",
)
@click.option("--check", "checked", metavar="PROFILE", help="Measure three numbers of a profile again.")
@click.option("--only", metavar="KIND,KIND", help="Measure only these kinds, e.g. copy,gemm.")
@click.option("--seconds", type=FloatRange(0.5, 3600), help="Time spent on measuring.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Storage to measure.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
@pass_state
@click.pass_context
def calibrate(
    context: click.Context,
    state: CommandState,
    device: str,
    quick: bool,
    out: Path | None,
    samples_path: Path | None,
    origins: tuple[Path, ...],
    checked: str | None,
    only: str | None,
    seconds: float | None,
    folder: Path | None,
    form: str,
) -> int:
    """Measure this machine and fit a hardware profile with intervals; or fit measured steps (fit-steps, fit-noise).

    Raw samples are kept next to the profile. Exit code 5: --check found a number outside its interval.
    """
    if context.invoked_subcommand is not None:
        return OK

    measuring = {"--quick": quick, "--samples": samples_path, "--only": only, "--seconds": seconds}
    given = [name for name, value in (measuring | {"--folder": folder}).items() if value]
    if seconds is not None and math.isnan(seconds):
        raise click.UsageError("--seconds: nan is not in the range 0.5<=x<=3600")
    if given and (checked is not None or origins):
        raise click.UsageError(f"{given[0]} applies to measuring only; not allowed with --from or --check")
    try:
        if checked is not None:
            return _check(checked, form, state.quiet)
        if out is None:
            raise click.UsageError("needs --out PROFILE.yaml (or --check PROFILE)")
        for name, path in (("--out", out), ("--samples", samples_path or out)):
            _check_writable(name, path)
        if origins:
            return _fit(_read(origins), out, [], form, state.quiet)
        path = samples_path or out.with_suffix(".samples.jsonl")
        kinds = frozenset(k.strip() for k in (only or "").split(",") if k.strip())
        outcome = _measure(device, quick, path, kinds, seconds, folder, state.quiet)
        return _fit(outcome.samples, out, outcome.missing, form, state.quiet)
    except SamplesError as error:
        raise WrongInputError(str(error)) from None


calibrate.add_command(fit_noise)
calibrate.add_command(fit_steps)


_OTHER_FILES = re.compile(r"^(cluster|workload|scenario|policy|policies)\s*:", re.MULTILINE)  # not profiles


def _check_writable(option: str, path: Path) -> None:
    """Check before measuring that a file can be written. Raises WrongInputError."""
    if not path.name:
        raise WrongInputError(f"{option}: a file name is needed")
    folder = Path(os.path.realpath(path)).parent  # a circular link remains, and cannot be opened
    if not folder.is_dir():
        raise WrongInputError(f"{option} {path}: no such folder: {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise WrongInputError(f"{option} {path}: no write permission")
    if option == "--out" and path.is_file():
        found = _OTHER_FILES.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            raise WrongInputError(f"{option} {path}: not a profile (it has {found[1]!r}), and would be overwritten")


def _read(origins: tuple[Path, ...]) -> SampleSet:

    return merge(read_samples(path) for path in origins)


def _measure(
    device: str, quick: bool, path: Path, kinds: frozenset[str], seconds: float | None, folder: Path | None, quiet: bool
) -> SessionOutcome:
    from equipoise.calibrate.run import BUDGET_S, FULL_ROUNDS, QUICK_ROUNDS, DeviceKind, plan_for
    from equipoise.calibrate.run import calibrate as run_calibration

    kind: DeviceKind = "cpu" if device == "cpu" else "cuda"
    rounds, budget_s = QUICK_ROUNDS if quick else FULL_ROUNDS, BUDGET_S[kind, quick]
    seconds = seconds or budget_s
    with plan_for(kind, quick, kinds, folder, seconds / budget_s) as plan:
        writer = SampleWriter(path, plan.conditions, plan.versions)
        before = len(writer.done)
        if before:
            note(quiet, f"continuing with {before} samples of {path}")
        try:
            with progress(quiet, path.stem, "measured") as tell:
                outcome = run_calibration(plan, writer, rounds, seconds, tell)
        except KeyboardInterrupt:
            writer.close()
            kept = len(read_samples(path).samples)  # the current one may just have been written
            print(f"{kept} samples kept in {path}; the same command continues", file=sys.stderr)
            raise
        finally:
            writer.close()
    if before and len(writer.done) == before:
        outcome.missing.append(f"nothing measured: {path} is complete; remove it to measure again")
    return outcome


def _fit(samples: SampleSet, out: Path, missing: list[str], form: str, quiet: bool) -> int:
    from equipoise.calibrate.profile import build_profile
    from equipoise.sim.hardware.profile import save_profile

    try:
        profile, report = build_profile(samples, out.stem)
    except ValueError as error:  # SamplesError is one; fits raise it for samples that they cannot use
        raise SamplesError(str(error)) from None
    report.missing[:0] = missing
    try:
        save_profile(profile, out)
        if samples.of("operation"):
            report.notes.append(_fit_operations(samples, out, quiet))
    except OSError as error:
        raise WrongInputError(f"--out {out}: {error.strerror or error}") from None
    print(json.dumps(_as_json(report, out), indent=2) if form == "json" else _as_text(report, out))
    return OK


def _fit_operations(samples: SampleSet, out: Path, quiet: bool) -> str:
    """Write the rates of a CPU's operations next to its profile; returns a line that says so."""
    try:
        from equipoise.calibrate.trace.cpu import fit_operations
        from equipoise.calibrate.trace.rates import beside, write_rates
    except ImportError:
        return "rates of operations need PyTorch; not fitted"
    try:
        with progress(quiet, out.stem, "operations traced") as tell:
            rates = fit_operations(samples, out.stem, tell)
    except ValueError as error:
        return f"rates of operations not fitted: {error}"
    write_rates(rates, beside(out))
    return f"{beside(out)}: rates of operations, for predict --gpu {out}; a step is within {rates.error:.0%} (90 %)"


def _as_json(report: Report, out: Path) -> dict[str, Any]:
    fits = [
        {"name": line.name}
        | {k: getattr(line.estimate, k, None) for k in ("value", "low", "high", "n")}
        | {k: getattr(line, k) for k in ("unit", "residual_cov", "held_out_error", "remark")}
        for line in report.lines
    ]
    predictions = [
        {k: getattr(p, k) for k in ("workload", "precision", "framework", "batch")}
        | {f"predicted{k}_s": v for k, v in _ends(p.predicted).items()}
        | {f"measured{k}_s": v for k, v in _ends(p.measured).items()}
        | {"error": p.error}
        for p in report.predictions
    ]
    more = {"missing": report.missing, "notes": report.notes}
    return {"profile": str(out), "fits": fits, "predictions": predictions, **more}


def _ends(estimate: Any) -> dict[str, float]:
    """Value and interval by the suffix of their names."""
    return {"": estimate.value, "_low": estimate.low, "_high": estimate.high}


def _as_text(report: Report, out: Path) -> str:
    rows = [("fit", "value", "95 % interval", "n", "residual", "held out", "from")]
    for line in report.lines:
        e = line.estimate
        numbers = ("—", "—", "—") if e is None else (_si(e.value), f"{_si(e.low)} .. {_si(e.high)}", str(e.n))
        unit = "" if line.unit == "1" or e is None else f" {line.unit}"
        rows.append(
            (
                line.name,
                numbers[0] + unit,
                numbers[1],
                numbers[2],
                _percent(line.residual_cov),
                _percent(line.held_out_error),
                line.remark,
            )
        )
    text = "\n".join(aligned(rows))
    if report.predictions:
        steps = [("training step, from smaller batches", "predicted", "measured", "error")]
        for p in _largest(report.predictions):
            name = f"{p.workload}, {p.precision}, batch {p.batch}, {p.framework}"
            numbers = (_interval_ms(p.predicted), _interval_ms(p.measured), f"{p.error:+.1%}")
            steps.append((name, *numbers))
        text += "\n\n" + "\n".join(aligned(steps))
    for title, lines in (("not measured", report.missing), ("notes", report.notes)):
        if lines:
            text += f"\n\n{title}:\n" + "\n".join(f"  {line}" for line in lines)
    return f"{text}\n\nprofile: {out}"


def _largest(predictions: Iterable[LevelPrediction]) -> list[LevelPrediction]:
    """The largest batch of each model; the others are in the JSON report and in the held-out error."""
    found: dict[tuple[str, ...], LevelPrediction] = {}
    for p in predictions:
        kind = (p.workload, p.precision, p.framework)
        if kind not in found or p.batch > found[kind].batch:
            found[kind] = p
    return list(found.values())


def _si(value: float) -> str:
    """Three digits with an SI prefix."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix and ' ' + prefix}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _interval_ms(e: Any) -> str:
    return f"{1e3 * e.value:.3g} ms ({1e3 * e.low:.3g} .. {1e3 * e.high:.3g})"


def _check(name: str, form: str, quiet: bool) -> int:
    from equipoise.calibrate.check import check
    from equipoise.sim.hardware.profile import load_profile

    profile = load_profile(name)
    with progress(quiet, name, "measured") as tell:
        drifts, changed = check(profile, tell)
    drifted = any(drift.beyond for drift in drifts)
    print(_check_json(drifts, changed) if form == "json" else _check_text(drifts, changed))
    return OUTSIDE if drifted else OK


def _check_json(drifts: list[ProfileDrift], changed: list[str]) -> str:
    figures = [
        {"name": d.name}
        | {f"before{k}": v for k, v in _ends(d.before).items()}
        | {f"now{k}": v for k, v in _ends(d.now).items()}
        | {"change": d.change, "beyond": d.beyond}
        for d in drifts
    ]
    return json.dumps({"figures": figures, "conditions_changed": changed}, indent=2)


def _check_text(drifts: list[ProfileDrift], changed: list[str]) -> str:
    rows = [("figure", "profile", "now", "change", "")]
    for d in drifts:
        before = f"{_si(d.before.value)} ({_si(d.before.low)} .. {_si(d.before.high)})"
        now = f"{_si(d.now.value)} ({_si(d.now.low)} .. {_si(d.now.high)})"
        rows.append((d.name, before, now, f"{d.change:+.1%}", "DRIFTED" if d.beyond else "within"))
    text = "\n".join(aligned(rows))
    return text + "".join(f"\ncondition changed: {line}" for line in changed)
