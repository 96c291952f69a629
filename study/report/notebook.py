"""What notebooks show of a comparison: its table as HTML that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from equipoise.study.report.text import LABELS, show

if TYPE_CHECKING:
    from equipoise.study.runs.compare import Cell, Comparison

_CELL = "text-align:right;padding:0.2em 0.9em"
_SOFT = "opacity:0.65;font-size:0.9em"


def comparison_html(comparison: Comparison) -> str:
    """Metrics as rows, policies as columns, ratios to the first policy behind each value."""
    heads = "".join(
        f'<th scope="col" style="{_CELL}">{escape(policy)}</th>' for policy in comparison.policies
    )
    by: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        by.setdefault(cell.metric, []).append(cell)
    rows = "".join(
        _row(metric, cells)
        for metric, cells in by.items()
        if any(c.value.mean == c.value.mean for c in cells)
    )
    notes = "".join(f"<br>{escape(note)}" for note in comparison.notes)
    n = len(comparison.seeds)
    seeds = "one seed" if n == 1 else f"{n} seeds, mean and {100 * comparison.level:g} % interval"
    return (
        f"<table><caption>{escape(comparison.scenario_name)}: {seeds}{notes}</caption>"
        f'<thead><tr><th scope="col">metric</th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _row(metric: str, cells: list[Cell]) -> str:
    texts = "".join(f'<td style="{_CELL}">{_cell(cell, k > 0)}</td>' for k, cell in enumerate(cells))
    return (
        f'<tr><th scope="row" style="text-align:left">{escape(LABELS.get(metric, metric))}</th>{texts}</tr>'
    )


def _cell(cell: Cell, compared: bool) -> str:
    text = escape(show(cell.metric, cell.value.mean, cell.value.half_width))
    ratio = cell.ratio.mean
    if compared and ratio == ratio and cell.metric.endswith(("_s", "_usd", "_j", "goodput_ratio")):
        text += f' <span style="{_SOFT}">× {ratio:.3g}</span>'
    return text
