"""Public data sets by name, and the table of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from equipoise.study.validation import dense_llm, playbook, sailor, vtrain
from equipoise.study.validation.score import Line

DATA_SETS: dict[str, Callable[[Path], list[Line]]] = {
    "dense-llm": dense_llm.run,
    "vtrain": vtrain.run,
    "playbook": playbook.run,
    "sailor": sailor.run,
}

FILES: dict[str, tuple[str, ...]] = {
    "dense-llm": (dense_llm.FILE,),
    "vtrain": (vtrain.SINGLE, vtrain.MULTI),
    "playbook": (playbook.FILE,),
    "sailor": (sailor.FILE,),
}
"""The files that a data set needs, below the folder of the measurements."""


def run(name: str, data_dir: Path) -> list[Line]:
    """The lines of a data set under `data_dir`.

    Raises ValueError for an unknown name, FileNotFoundError where the data are absent.
    """
    if name not in DATA_SETS:
        raise ValueError(f"{name}: no such data set; allowed: {', '.join(sorted(DATA_SETS))}")
    return DATA_SETS[name](data_dir)


def as_text(lines: list[Line]) -> str:
    """The lines as a table of columns, shares in percent."""
    names = [f.name for f in fields(Line) if f.name != "points"]
    table = [names] + [[_cell(getattr(one, name)) for name in names] for one in lines]
    widths = [max(len(row[i]) for row in table) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{100 * value:.1f} %"
    return str(value)
