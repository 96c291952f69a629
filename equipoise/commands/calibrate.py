"""`equipoise monitor` and `equipoise calibrate`. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.commands.fit_steps import fit_steps
from equipoise.commands.types import FloatRange, IntRange
from equipoise.policies.numerals import is_index

if TYPE_CHECKING:
    from equipoise.calibrate.check import Drift
    from equipoise.calibrate.fit.levels import Prediction, Report
    from equipoise.calibrate.run import Outcome
    from equipoise.calibrate.samples import SampleSet

WRONG_INPUT, DRIFTED = 2, 5
LINE_EVERY_S = 15.0


class WrongInputError(click.ClickException):
    """Samples or options that cannot be used; one line, without the command's usage."""

    exit_code = WRONG_INPUT


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """--debug and --quiet as every command has them; the caller's state, if any, learns of them."""

    def note(name: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
        """A callback that notes the option in the caller's state."""

        def set_state(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
            """Note it, if it is set and there is a caller."""
            if value and context.obj is not None:
                setattr(context.obj, name, True)
            return value

        return set_state

    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=note("debug"),
        help="Show the traceback of a failure.",
    )
    quiet = click.option("--quiet", "-q", is_flag=True, callback=note("quiet"), help="No progress on stderr.")
    return debug(quiet(command))


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """ "PORT" or "HOST:PORT"; without a host only this machine can read it."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not is_index(port) or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is neither PORT nor HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@click.option(
    "--interval", "interval_s", default=1.0, show_default=True, type=FloatRange(0.1), help="Seconds."
)
@click.option("--count", type=IntRange(1), help="Stop after so many readings (default: never).")
@click.option("--format", "form", type=click.Choice(["table", "jsonl"]), default="table", show_default=True)
@click.option("--listen", metavar="[HOST:]PORT", callback=_address, help="Also serve Prometheus at /metrics.")
@click.option("--price", type=FloatRange(0), help="USD per GPU and hour: what does the idle part cost?")
@click.option("--gpu", "only", multiple=True, type=IntRange(0), help="Only this GPU; may be repeated.")
@_common
def monitor(
    interval_s: float,
    count: int | None,
    form: str,
    listen: tuple[str, int] | None,
    price: float | None,
    only: tuple[int, ...],
    quiet: bool,
) -> None:
    """Show what the GPUs' cores really do, and what limits them.

    Per GPU and MIG instance: SM activity, occupancy, tensor, FP64, FP32 and FP16 pipes, memory and link
    traffic (hardware counters on Hopper and later; column "from" says gpm), power, temperature, clock,
    memory, processes. A dash means that the device does not give the value.
    """
    from equipoise.calibrate.monitor.exposition import ListenError
    from equipoise.calibrate.monitor.view import show

    if not math.isfinite(interval_s) or math.isnan(price or 0.0):
        raise click.UsageError("--interval must be finite, and --price a number")
    try:
        show(
            interval_s=interval_s,
            count=count,
            output=form,
            price_usd_per_h=price,
            listen=listen,
            only=frozenset(only) or None,
        )
    except ListenError as error:
        raise WrongInputError(f"--listen {error}") from None


@click.group(invoke_without_command=True)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--quick", is_flag=True, help="Under a minute instead of under ten.")
@click.option("--out", metavar="PROFILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--samples",
    "samples_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Raw samples; an interrupted session continues from them (default: beside the profile).",
)
@click.option(
    "--from",
    "origins",
    metavar="SAMPLES",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Fit these samples again; nothing is measured. May be repeated.",
)
@click.option("--check", "checked", metavar="PROFILE", help="Measure three numbers of a profile again.")
@click.option(
    "--compose",
    "composed",
    metavar="NAME=FILE.py:FUNCTION",
    multiple=True,
    help="Add the step of a model that was not timed; FUNCTION(batch) gives a function that does one step.",
)
@click.option("--only", metavar="KIND,KIND", help="Measure only these kinds, e.g. copy,gemm.")
@click.option("--seconds", type=FloatRange(0.5, 3600), help="Time for measuring itself.")
@click.option(
    "--folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Storage to measure."
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_common
@click.pass_context
def calibrate(
    context: click.Context,
    device: str,
    quick: bool,
    out: Path | None,
    samples_path: Path | None,
    origins: tuple[Path, ...],
    checked: str | None,
    composed: tuple[str, ...],
    only: str | None,
    seconds: float | None,
    folder: Path | None,
    form: str,
    quiet: bool,
) -> int:
    """Measure this machine, fit a hardware profile, and say how sure; or fit measured steps (fit-steps).

    Raw samples are kept beside the profile. Exit code 5: --check found a number beyond its interval.
    """
    if context.invoked_subcommand is not None:
        return 0
    from equipoise.calibrate.samples import SamplesError

    measuring = {"--quick": quick, "--samples": samples_path, "--only": only, "--seconds": seconds}
    given = [name for name, value in (measuring | {"--folder": folder}).items() if value]
    if seconds is not None and math.isnan(seconds):
        raise click.UsageError("--seconds: nan is not in the range 0.5<=x<=3600")
    if given and (checked is not None or origins):
        raise click.UsageError(f"{given[0]} is for measuring; it does nothing with --from or --check")
    try:
        if checked is not None:
            return _check(checked, form, quiet)
        if out is None:
            raise click.UsageError("needs --out PROFILE.yaml (or --check PROFILE)")
        for name, path in (("--out", out), ("--samples", samples_path or out)):
            _check_writable(name, path)
        if origins:
            return _fit(_read(origins), out, [], form, composed)
        path = samples_path or out.with_suffix(".samples.jsonl")
        kinds = frozenset(k.strip() for k in (only or "").split(",") if k.strip())
        _check_composed(composed)
        outcome = _measure(device, quick, path, kinds, seconds, folder, quiet)
        return _fit(outcome.samples, out, outcome.missing, form, composed)
    except SamplesError as error:
        raise WrongInputError(str(error)) from None


calibrate.add_command(fit_steps)


_OTHER_FILES = re.compile(r"^(cluster|workload|scenario|policy|policies)\s*:", re.MULTILINE)  # not profiles


def _check_writable(option: str, path: Path) -> None:
    """Before anything is measured: what cannot be written must not show after ten minutes."""
    if not path.name:
        raise WrongInputError(f"{option}: a file name is needed")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise WrongInputError(f"{option} {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise WrongInputError(f"{option} {path}: may not be written")
    if option == "--out" and path.is_file():
        found = _OTHER_FILES.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            raise WrongInputError(f"{option} {path}: is no profile (it has {found[1]!r}), and would be lost")


def _read(origins: tuple[Path, ...]) -> SampleSet:
    from equipoise.calibrate.samples import merge, read_samples

    return merge(read_samples(path) for path in origins)


def _check_composed(composed: tuple[str, ...]) -> None:
    """Mistakes in --compose show before the measuring, not after."""
    from equipoise.calibrate.fit.compose_step import load_make

    for text in composed:
        load_make(text)


def _measure(
    device: str,
    quick: bool,
    path: Path,
    kinds: frozenset[str],
    seconds: float | None,
    folder: Path | None,
    quiet: bool,
) -> Outcome:
    from equipoise.calibrate.run import BUDGET_S, FULL_ROUNDS, QUICK_ROUNDS, DeviceKind, plan_for
    from equipoise.calibrate.run import calibrate as run_calibration
    from equipoise.calibrate.samples import SampleWriter, read_samples

    kind: DeviceKind = "cpu" if device == "cpu" else "cuda"
    rounds, budget_s = QUICK_ROUNDS if quick else FULL_ROUNDS, BUDGET_S[kind, quick]
    with plan_for(kind, quick, kinds, folder) as plan:
        writer = SampleWriter(path, plan.conditions, plan.versions)
        before = len(writer.done)
        if before and not quiet:
            print(f"continuing with {before} samples of {path}", file=sys.stderr)
        try:
            with _progress(quiet) as progress:
                outcome = run_calibration(plan, writer, rounds, seconds or budget_s, progress)
        except KeyboardInterrupt:
            writer.close()
            kept = len(read_samples(path).samples)  # the one under way may have been written just before
            print(f"{kept} samples kept in {path}; the same command continues", file=sys.stderr)
            raise
        finally:
            writer.close()
    if before and len(writer.done) == before:
        outcome.missing.append(f"nothing new: {path} has it all; remove it to measure again")
    return outcome


def _fit(samples: SampleSet, out: Path, missing: list[str], form: str, composed: tuple[str, ...]) -> int:
    from equipoise.calibrate.fit.compose_step import composed_steps, load_make
    from equipoise.calibrate.profile import build_profile
    from equipoise.calibrate.samples import SamplesError
    from equipoise.sim.hardware.profile import save_profile

    makes = [load_make(text) for text in composed]
    try:
        profile, report = build_profile(samples, out.stem)
    except ValueError as error:  # SamplesError is one; fits raise it for samples that they cannot use
        raise SamplesError(str(error)) from None
    (accelerator,) = profile.accelerators
    added = [
        step for name, make in makes for step in composed_steps(samples, name, make, accelerator, report)
    ]
    report.missing[:0] = missing
    try:
        save_profile(profile.model_copy(update={"steps": (*profile.steps, *added)}), out)
    except OSError as error:
        raise WrongInputError(f"--out {out}: {error.strerror or error}") from None
    print(json.dumps(_as_json(report, out), indent=2) if form == "json" else _as_text(report, out))
    return 0


def _as_json(report: Report, out: Path) -> dict[str, Any]:
    return {
        "profile": str(out),
        "fits": [
            {
                "name": line.name,
                "value": line.estimate.value if line.estimate else None,
                "low": line.estimate.low if line.estimate else None,
                "high": line.estimate.high if line.estimate else None,
                "n": line.estimate.n if line.estimate else None,
                "unit": line.unit,
                "residual_cov": line.residual_cov,
                "held_out_error": line.held_out_error,
                "remark": line.remark,
            }
            for line in report.lines
        ],
        "predictions": [
            {
                "workload": p.workload,
                "precision": p.precision,
                "framework": p.framework,
                "batch": p.batch,
                "predicted_s": p.predicted.value,
                "predicted_low_s": p.predicted.low,
                "predicted_high_s": p.predicted.high,
                "measured_s": p.measured.value,
                "measured_low_s": p.measured.low,
                "measured_high_s": p.measured.high,
                "error": p.error,
                "fitted_on": p.fitted_on,
            }
            for p in report.predictions
        ],
        "missing": report.missing,
        "notes": report.notes,
    }


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
    text = _columns(rows)
    if report.predictions:
        steps = [("training step not used in the fit", "fitted on", "predicted", "measured", "error")]
        for p in _largest(report.predictions):
            name = f"{p.workload}, {p.precision}, batch {p.batch}, {p.framework}"
            numbers = (_interval_ms(p.predicted), _interval_ms(p.measured), f"{p.error:+.1%}")
            steps.append((name, p.fitted_on, *numbers))
        text += "\n\n" + _columns(steps)
    for title, lines in (("not measured", report.missing), ("notes", report.notes)):
        if lines:
            text += f"\n\n{title}:\n" + "\n".join(f"  {line}" for line in lines)
    return f"{text}\n\nprofile: {out}"


def _largest(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Of each model the largest batch; the others are in the JSON report and in the held-out error."""
    found: dict[tuple[str, ...], Prediction] = {}
    for p in predictions:
        kind = (p.workload, p.precision, p.framework, p.fitted_on)
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


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _check(name: str, form: str, quiet: bool) -> int:
    from equipoise.calibrate.check import check
    from equipoise.sim.hardware.profile import load_profile

    profile = load_profile(name)
    with _progress(quiet) as progress:
        drifts, changed = check(profile, progress)
    drifted = any(drift.beyond for drift in drifts)
    print(_check_json(drifts, changed) if form == "json" else _check_text(drifts, changed))
    return DRIFTED if drifted else 0


def _check_json(drifts: list[Drift], changed: list[str]) -> str:
    figures = [
        {
            "name": d.name,
            "before": d.before.value,
            "before_low": d.before.low,
            "before_high": d.before.high,
            "now": d.now.value,
            "now_low": d.now.low,
            "now_high": d.now.high,
            "change": d.change,
            "beyond": d.beyond,
        }
        for d in drifts
    ]
    return json.dumps({"figures": figures, "conditions_changed": changed}, indent=2)


def _check_text(drifts: list[Drift], changed: list[str]) -> str:
    rows = [("figure", "profile", "now", "change", "")]
    for d in drifts:
        before = f"{_si(d.before.value)} ({_si(d.before.low)} .. {_si(d.before.high)})"
        now = f"{_si(d.now.value)} ({_si(d.now.low)} .. {_si(d.now.high)})"
        rows.append((d.name, before, now, f"{d.change:+.1%}", "DRIFTED" if d.beyond else "within"))
    text = _columns(rows)
    return text + "".join(f"\ncondition changed: {line}" for line in changed)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on a terminal, a line now and then elsewhere, nothing when quiet; all on stderr."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


def _lines() -> Callable[[int, int, str], None]:
    last = [time.monotonic()]

    def update(done: int, total: int, text: str) -> None:
        """A line when the last one is long enough ago."""
        if time.monotonic() - last[0] >= LINE_EVERY_S:
            last[0] = time.monotonic()
            print(f"{done} of {total} measured, now {text}", file=sys.stderr)

    return update
