"""The page of all public data sets: the table of predictions, and what is missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.study.validation.score import Line
from equipoise.study.validation.splits import SPLITS

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


def page(found: Mapping[str, Sequence[Line]], left_out: Sequence[str] = (), before: str = "") -> str:
    """The Markdown text.

    left_out: the unused rows of each data set. before: the page as it was, whose notes are kept.
    """
    out = [INTRO.format(splits=len(SPLITS)), HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    for lines in found.values():
        out += [_row(one) for one in lines]
    missed = [one for lines in found.values() for one in lines if one.median > one.target]
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
