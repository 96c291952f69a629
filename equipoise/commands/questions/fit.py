"""The command `fit`: whether a large model fits into memory, and what would make it fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.commands.types import IntRange
from equipoise.exit_codes import IMPOSSIBLE, OK
from equipoise.options import common, say

if TYPE_CHECKING:
    from equipoise.study.questions.fits import Fits

_COLUMNS = ("weights", "gradients", "optimizer", "activations", "logits", "base", "total")


@click.command()
@click.argument("scenario", type=click.Path(dir_okay=False))
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Change a value of the scenario.")
@click.option("--plans", type=IntRange(0, 1000), default=0, help="Also list this many of the fastest layouts that fit.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
def fit(scenario: str, overrides: tuple[str, ...], plans: int, form: str) -> int:
    """Show the memory that each job of a large model needs, and what would make it fit.

    SCENARIO has models with a `transformer` section. Per pipeline stage: weights, gradients, optimiser state,
    activations, logits, and the overhead of the process. The interval of the peak holds 90 % of measured peaks of
    models that the constants were not fitted to. Exit code 4: a job does not fit.
    """
    from equipoise.study.questions.fits import as_dict, fits

    found = fits(Path(scenario), overrides, plans)
    if form == "json":
        say(json.dumps([as_dict(one) for one in found], indent=2))
    else:
        say("\n\n".join("\n".join(_text(one, plans)) for one in found))
    return OK if all(one.memory.fits for one in found) else IMPOSSIBLE


def _text(found: Fits, plans: int) -> Iterator[str]:
    from equipoise.sim.llm.search import describe

    la, estimate = found.plan.layout, found.memory
    yield f"{found.job}: {found.model} on {la.gpus} GPUs, {la.global_batch:,} sequences a step: {describe(la)}"
    yield from _stages(found)
    interval = f"{_gb(estimate.low)} .. {_gb(estimate.high)}"
    verb = "fits" if estimate.fits else "does not fit"
    yield f"{verb}: {_gb(estimate.peak)} (90 %: {interval}) of {_gb(estimate.capacity)} usable"
    yield f"  the interval is {found.memory_rests_on}"
    if estimate.fits and estimate.high > estimate.capacity:
        yield f"  not certain: it fits with {100 * found.fits_chance:.0f} %, as the interval exceeds the memory"
    if found.change is None:
        yield "no single change makes it fit"
    elif found.change:
        yield "smallest change: " + ", ".join(f"{k} {a} -> {b}" for k, (a, b) in found.change.items())
    ends = found.step_interval_s
    between = f" (90 %: {ends[0]:.4g} .. {ends[1]:.4g} s)" if ends is not None else ""
    yield f"step {found.step_s:.4g} s{between}, {100 * found.utilisation:.1f} % of the peak rate: {_parts(found)}"
    if found.certainty is not None:
        yield from (f"  {line}" for line in found.certainty.lines())
    yield from (f"note: {note}" for note in found.notes)
    if found.other is not None:
        yield from _plans(found, plans)


def _stages(found: Fits) -> Iterator[str]:
    """One line per stage; equal neighbouring stages share a line."""
    yield "stage    " + "".join(f"{name:>12}" for name in _COLUMNS) + "   GB"
    lines: list[tuple[int, int, str]] = []
    for index, stage in enumerate(found.memory.stages):
        text = "".join(f"{getattr(stage, name) / 1e9:12.2f}" for name in _COLUMNS)
        if lines and lines[-1][2] == text:
            lines[-1] = (lines[-1][0], index, text)
        else:
            lines.append((index, index, text))
    for first, last, text in lines:
        yield f"{first if first == last else f'{first}-{last}':<9}{text}"


def _parts(found: Fits) -> str:
    shares = {name: part_s / found.step_s for name, part_s in found.parts_s.items()}
    largest = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in largest if share >= 0.005)


def _plans(found: Fits, plans: int) -> Iterator[str]:
    from equipoise.sim.llm.search import describe, why

    other = found.other
    assert other is not None
    if not other.found:
        yield f"none of {other.tried} layouts fits: the smallest needs {_gb(other.smallest_bytes)}"
        return
    yield why(other)
    for one in other.found[:plans]:
        seconds = found.factor * one.seconds
        yield f"  {seconds:8.4g} s  {_gb(one.peak_bytes):>9}  {describe(one.plan.layout)}"


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
