"""The command `sensitivity`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from equipoise.base.tables import aligned
from equipoise.commands.variants import Given, variant_options
from equipoise.exit_codes import OK

if TYPE_CHECKING:
    from equipoise.study.questions.sensitivity import Bar, End, Sensitivity

SHOWN = 18  # bars
_HALF = 14  # characters of the bar on each side of the base


@click.command()
@variant_options
@click.option(
    "--vary", multiple=True, metavar="KEY=LOW..HIGH", help="Values, or factors: cluster.nodes.0.nic=x0.5..x2."
)
@click.option("--default-set", is_flag=True, help="Vary the default set as well (used alone without --vary).")
@click.option("--metric", default="completion_mean_s", show_default=True, help="Result to compare.")
def sensitivity(given: Given, vary: tuple[str, ...], default_set: bool, metric: str) -> int:
    """Change one value of SCENARIO at a time, low and high, and rank the values by their effect on the result.

    All runs have the same arrivals, faults and noise. Longest bars first (a tornado chart); ratios are to the
    unchanged scenario, with 95 % intervals.
    """
    from equipoise.study.questions.sensitivity import FILE
    from equipoise.study.questions.sensitivity import sensitivity as find

    with given.run_options() as options:
        found = find(
            Path(given.scenario),
            metric,
            vary=vary,
            defaults=default_set or not vary,
            policy=given.policy,
            overrides=given.overrides,
            trace=given.trace,
            options=options,
        )
    given.tell(found.as_dict(), FILE, as_text(found), found.notes)
    return OK


def as_text(found: Sensitivity) -> Iterator[str]:
    """The answer, and the tornado chart as text: key, low and high values, ratios, and a bar around the base."""
    from equipoise.study.questions.sensitivity import answer

    yield answer(found)
    yield ""
    reach = max((abs(_log(end)) for bar in found.bars for end in (bar.low, bar.high)), default=0.0)
    rows = [("", "low", "high", "at low", "at high", f"{'less':>{_HALF}} | more")]
    rows += [
        (bar.key, bar.low.shown, bar.high.shown, _ratio(bar.low), _ratio(bar.high), _drawn(bar, reach))
        for bar in found.bars[:SHOWN]
    ]
    cells = aligned([row[:5] for row in rows], [False, *[True] * 4])
    for cell, row in zip(cells, rows, strict=True):
        yield f"{cell}  {row[5]}".rstrip()
    seeds = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
    more = f"; {len(found.bars) - SHOWN} shorter bars are in the JSON" if len(found.bars) > SHOWN else ""
    yield f"{seeds}, ratios to the unchanged scenario{more}"


def _ratio(end: End) -> str:
    from equipoise.study.display import digits

    if not math.isfinite(end.ratio.mean):
        return "-"
    half = end.ratio.half_width
    return f"x{digits(end.ratio.mean)}" + (f" ±{digits(half, 2)}" if half >= 5e-4 else "")


def _log(end: Any) -> float:
    return math.log(end.ratio.mean) if end.ratio.mean > 0 else 0.0


def _drawn(bar: Bar, reach: float) -> str:
    """The bar: `L` cells up to the result at the low value, `H` cells up to that at the high value, log scale."""
    cells = [" "] * (2 * _HALF + 1)
    cells[_HALF] = "|"
    ends = sorted((("L", _log(bar.low)), ("H", _log(bar.high))), key=lambda end: -abs(end[1]))
    for letter, log in ends:  # the shorter one last, so that both can be seen on one side
        length = round(_HALF * abs(log) / reach) if reach > 0 else 0
        for k in range(1, length + 1):
            cells[_HALF + (k if log > 0 else -k)] = letter
    return "".join(cells)
