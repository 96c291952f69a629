"""predict: what a training step of any PyTorch model takes on a GPU, traced on this machine without one."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.base.tables import aligned
from equipoise.commands.types import IntRange
from equipoise.exit_codes import OK, SOME_FAILED
from equipoise.options import CommandState, WrongInputError, common, pass_state, progress, say, wide_option

if TYPE_CHECKING:
    from equipoise.calibrate.trace.predict import StepPrediction  # loads PyTorch, which may be missing

LISTED = 6
"""Kinds of operations of the first screen."""
LONGEST = 300
"""Characters of an error of a script or of PyTorch."""


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--batch", "batches", type=IntRange(1, 65536), multiple=True, help="Samples of a step; may be repeated.")
@click.option("--gpu", "gpus", multiple=True, help="h100, h200, an accelerator of the profile, or a CPU.yaml.")
@click.option(
    "--length",
    type=IntRange(1, 1 << 20),
    default=2048,
    show_default=True,
    help="Tokens of a sample, for models by their configuration.",
)
@click.option("--largest", is_flag=True, help="Also find the largest batch that fits (traces a few more).")
@click.option(
    "--ranks",
    type=IntRange(1, 1 << 16),
    default=1,
    show_default=True,
    help="Ranks of the script's process group (fully_shard); the first one is traced.",
)
@click.option("--hardware", default="catalogue", show_default=True, help="Profile with memory, prices and data sheets.")
@click.option(
    "--scenario",
    "folder",
    type=click.Path(path_type=Path),
    help="Also write a scenario of each model here, for run, size, limits and compare; needs --batch twice.",
)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@wide_option
@common
@pass_state
def predict(
    state: CommandState,
    models: tuple[str, ...],
    batches: tuple[int, ...],
    gpus: tuple[str, ...],
    length: int,
    largest: bool,
    ranks: int,
    hardware: str,
    folder: Path | None,
    form: str,
    wide: bool,
) -> int:
    """Predict the time and the memory of a training step on a GPU that is not here.

    MODEL is FILE.py:FUNCTION, where FUNCTION(batch) returns a function that does one step on "cuda", or a Hugging Face
    model by its config.json, folder or name. Nothing is computed and no weight is allocated. Exit code 3: some of
    the models could not be traced; the others are complete.
    """
    try:
        from equipoise.calibrate.trace.predict import load_step
        from equipoise.calibrate.trace.predict import predict as predicted
        from equipoise.calibrate.trace.rates import rates_of
        from equipoise.calibrate.trace.scenario import write_scenario
    except ImportError:
        raise WrongInputError("predict needs PyTorch: pip install 'equipoise[live]'") from None

    wanted = gpus or ("h100",)
    try:
        for gpu in wanted:
            rates_of(gpu, hardware)
    except ValueError as error:
        raise WrongInputError(f"--gpu: {error}") from None
    found: list[StepPrediction] = []
    failed: list[str] = []
    written: list[Path] = []
    if folder is not None and len(set(batches)) < 2:
        raise WrongInputError("--scenario: needs two batches, between which steps are known best: give --batch twice")
    # What scripts print is not the command's answer.
    with progress(state.quiet, "predict", "traced") as tell, warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
        for k, model in enumerate(models):
            tell(k, len(models), model)
            try:
                name, make = load_step(model, length)
                of = predicted(name, make, batches or (1,), wanted, largest=largest, hardware=hardware, ranks=ranks)
                if folder is not None:
                    written.append(write_scenario(of, folder, hardware))
                found += of
            except (Exception, SystemExit) as error:  # one model's fault costs no other model its result
                if state.debug:
                    raise
                line = textwrap.shorten((str(error).splitlines() or [""])[0], LONGEST, placeholder=" ...")
                failed.append(line if line.startswith(model) else f"{model}: {line or type(error).__name__}")
        tell(len(models), len(models), "")
    for line in failed:
        print(line, file=sys.stderr)
    if not found:
        raise WrongInputError("no model could be traced")
    for path in written:
        print(f"scenario: {path}", file=sys.stderr)
    say(json.dumps([one.as_dict() for one in found], indent=2) if form == "json" else _text(found, wide))
    return SOME_FAILED if failed else OK


def _text(found: list[StepPrediction], wide: bool) -> str:
    from equipoise.study.findings import WIDTH, first_screen

    lines = [line for one in found[:3] for line in textwrap.wrap(_sentence(one), WIDTH)] if len(found) <= 3 else []
    if len(found) > 3:
        none = [f"{one.model} with batch {one.trace.batch} on {one.rates.name}" for one in found if not one.fits]
        left = (
            f"; {len(none)} do not fit: {', '.join(none[:3])}{', ...' if len(none) > 3 else ''}"
            if none
            else "; all fit"
        )
        short, long_ = (f"{1e3 * pick(one.times.step_s for one in found):.4g} ms" for pick in (min, max))
        lines = textwrap.wrap(f"{len(found)} steps of {short} to {long_}{left}.", WIDTH)
    rows = [
        (
            "model",
            "GPU",
            "batch",
            "step",
            "90 %",
            "samples/s",
            "MFU",
            "limit",
            "peak",
            "of",
            "fits",
            "largest",
            "USD/1e6",
        )
    ]
    for one in found:
        rows.append(
            (
                one.model,
                one.rates.name,
                str(one.trace.batch),
                f"{1e3 * one.times.step_s:.4g} ms",
                f"{1e3 * one.low_s:.3g} .. {1e3 * one.high_s:.3g}",
                f"{one.trace.batch / one.times.step_s:.4g}",
                f"{100 * one.mfu:.0f} %",
                one.times.limit,
                f"{one.trace.peak_bytes / 1e9:.2f} GB",
                f"{one.usable_bytes / 1e9:.1f}",
                "yes" if one.fits else "no",
                "" if one.largest is None else str(one.largest),
                "" if one.usd_per_million is None else f"{one.usd_per_million:.3g}",
            )
        )
    lines += ["", *aligned(rows, [False, False, *[True] * 5, False, *[True] * 2, False, True, True])]
    kinds = found[0].times.by_kind
    most = sorted(kinds, key=lambda kind: -kinds[kind])[:LISTED]
    shares = ", ".join(f"{kind.replace('_', ' ')} {100 * kinds[kind] / found[0].times.gpu_s:.0f} %" for kind in most)
    lines += ["", f"time of {found[0].model} by kind: {shares}"]
    for origin in dict.fromkeys(f"{one.rates.name}: {one.rates.origin}" for one in found):
        lines.append(origin)
    missing = sorted({kind for one in found for kind in one.rates.unmeasured(one.trace.operations)})
    if missing:
        lines.append(f"not measured, a rate is assumed: {', '.join(kind.replace('_', ' ') for kind in missing)}")
    for name, trace in {one.model: one.trace for one in found}.items():
        if trace.ranks > 1:
            each = ", ".join(f"{size / 1e9:.3g} GB by {what}" for what, size in trace.exchanged.items())
            lines.append(
                f"{name}: {trace.ranks} ranks exchange {each or 'their gradients'} in a step; the step is without the "
                "time for it"
            )
    if any(one.trace.compiled for one in found):
        lines.append(
            "compiled: pointwise chains are counted as fused by a rule, not by Inductor; memory as not compiled"
        )
    if reads := found[0].trace.host_reads:
        lines.append(f"the script reads {reads} values in a step; each was taken to be 1")
    return "\n".join(first_screen(lines, wide))


def _sentence(one: StepPrediction) -> str:
    what = {"host": "the host, which queues operations,", "products": "products", "memory": "memory traffic"}
    fits = "fits" if one.fits else "does not fit"
    return (
        f"A step of {one.model} with batch {one.trace.batch} takes {1e3 * one.times.step_s:.4g} ms on {one.rates.name} "
        f"(90 %: {1e3 * one.low_s:.3g} to {1e3 * one.high_s:.3g}); {what[one.times.limit]} limit"
        f"{'s' if one.times.limit != 'products' else ''} it. It {fits}: {one.trace.peak_bytes / 1e9:.1f} GB of "
        f"{one.usable_bytes / 1e9:.1f} GB."
    )
