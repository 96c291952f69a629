"""The page of all public data sets: predictions, the table, and a scatter plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from textwrap import wrap

import numpy as np

from equipoise.study.validation.score import Line, Points
from equipoise.study.validation.splits import SPLITS

COLUMNS = 3
SIDE, GAP = 230, 74
MOST_POINTS = 300
HEAD = (
    "| predicted | rows | naive | median of splits | worst split | 90th percentile | wanted | in the 90 % interval "
    "| its width | order of plans | picked plan |"
)
INTRO = """# Predictions held against public measurements

Written by `equipoise validate-against --all --data FOLDER --write docs/validation-public.md`. The measurements are
other people's and not part of this project; each data set is read from its file alone, so that more rows of the
same form work unchanged.

Every figure is of rows that the fit has not seen. Which rows may be fitted on is decided by a hash of the row's key
and the number of the split (`study/validation/splits.py`), never by a measured value; there are {splits} splits.
Errors are medians of |predicted / measured - 1|. *naive* is the plainest model on the same rows, *order of plans*
Spearman's correlation within a family, *picked plan* how much slower the plan predicted fastest is than the best.
"""

NOTES = "\n## What was chosen after looking"
"""Where the part of the page begins that is written by hand, and kept."""


def page(found: Mapping[str, Sequence[Line]], picture: str, left_out: Sequence[str] = (), before: str = "") -> str:
    """The Markdown text.

    `picture` is the scatter plot's file name, in the page's folder; `left_out` the unused rows of each data set;
    `before`: the page as it was, whose notes are kept.
    """
    out = [INTRO.format(splits=len(SPLITS)), HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for lines in found.values():
        out += [_row(one) for one in lines]
    missed = [one for lines in found.values() for one in lines if one.median > one.target]
    out += ["", f"![predicted against measured]({picture})", ""]
    out += ["Each dot is a held-out row of the first split, the grey line its 90 % interval; logarithmic axes."]
    if missed:
        out += ["", "## Missed", ""]
        out += [f"- {one.what}: {_percent(one.median)}, wanted {_percent(one.target)}" for one in missed]
    if left_out:
        out += ["", "## Rows left out", "", *(f"- {text}" for text in left_out)]
    _, heading, notes = before.partition(NOTES)
    return "\n".join(out) + "\n" + heading + notes


def _row(one: Line) -> str:
    cells = [one.what, f"{one.rows:,}", *(_percent(v) for v in (one.naive, one.median, one.worst, one.p90, one.target))]
    order = "-" if np.isnan(one.spearman) else f"{one.spearman:.2f}"
    wide = "-" if np.isnan(one.width) else f"{one.width:.2g}x"
    picked = "-" if np.isnan(one.picked) else f"+{_percent(one.picked)}"
    return "| " + " | ".join([*cells, _percent(one.covered), wide, order, picked]) + " |"


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{100 * share:.1f} %"


def scatter(lines: Sequence[Line]) -> str:
    """An SVG with a panel of predicted against measured for each line that has rows."""
    drawn = [(one, one.points) for one in lines if one.points is not None and len(one.points.measured)]
    rows = -(-len(drawn) // COLUMNS)
    width, height = COLUMNS * (SIDE + GAP) + 20, rows * (SIDE + GAP) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="predicted against measured, {len(drawn)} panels">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (one, points) in enumerate(drawn):
        x, y = 50 + index % COLUMNS * (SIDE + GAP), 40 + index // COLUMNS * (SIDE + GAP)
        parts += [f'<g transform="translate({x} {y})">', *_panel(one, points), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(one: Line, points: Points) -> list[str]:
    step = -(-len(points.measured) // MOST_POINTS)
    chosen = slice(None, None, step)
    values = np.concatenate([points.measured[chosen], points.predicted[chosen]])
    low, high = np.log10(values.min() / 1.2), np.log10(values.max() * 1.2)

    def at(value: float) -> float:
        """Place on the axis."""
        return float(np.clip((np.log10(value) - low) / (high - low), 0, 1) * SIDE)

    out = [
        f'<rect width="{SIDE}" height="{SIDE}" fill="none" stroke="#999999"/>',
        f'<path d="M0 {SIDE}L{SIDE} 0" stroke="#999999" stroke-dasharray="4 3"/>',
        *(f'<text x="0" y="{12 * k - 20}">{escape(part)}</text>' for k, part in enumerate(wrap(one.what, 40)[:2])),
        f'<text x="{SIDE / 2}" y="{SIDE + 26}" text-anchor="middle">measured</text>',
        f'<text transform="translate(-34 {SIDE / 2}) rotate(-90)" text-anchor="middle">predicted</text>',
    ]
    for tick in _ticks(low, high):
        out.append(f'<text x="{at(tick):.0f}" y="{SIDE + 12}" text-anchor="middle">{tick:.4g}</text>')
        out.append(f'<text x="-4" y="{SIDE - at(tick) + 4:.0f}" text-anchor="end">{tick:.4g}</text>')
    for k in range(0, len(points.measured), step):
        x, y = at(points.measured[k]), SIDE - at(points.predicted[k])
        bottom, top = (SIDE - at(v) for v in (points.low[k], points.high[k]))
        out.append(f'<path d="M{x:.1f} {bottom:.1f}V{top:.1f}" stroke="#bbbbbb" stroke-opacity="0.5"/>')
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.6" fill="#2f6f4f" fill-opacity="0.7"/>')
    return out


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two logarithms; where there are fewer than two, the ends rounded inwards."""
    powers = [10.0**k for k in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    return (
        powers if len(powers) > 1 else [float(f"{10**v:.1g}") for v in (low * 0.8 + high * 0.2, low * 0.2 + high * 0.8)]
    )
