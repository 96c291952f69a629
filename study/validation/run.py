"""Public data sets by name, and the table of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from equipoise.base.tables import aligned
from equipoise.study.validation.score import Line
from equipoise.study.validation.sets import (
    collectives,
    dense_llm,
    jitter,
    neusight,
    playbook,
    power_caps,
    published,
    replayed,
    sailor,
    shockwave,
    vtrain,
)

_SETS: dict[str, tuple[Callable[..., list[Line]], tuple[str, ...]]] = {
    "published": (published.run, (published.FILE,)),
    "peaks": (published.run_peaks, (published.PEAKS,)),
    "networks": (published.run_networks, (published.NETWORKS,)),
    "recipes": (published.run_recipes, (published.LLM, published.FILE)),
    "dense-llm": (dense_llm.run, (dense_llm.FILE,)),
    "vtrain": (vtrain.run, (vtrain.SINGLE, vtrain.MULTI)),
    "playbook": (playbook.run, (playbook.FILE,)),
    "sailor": (sailor.run, (sailor.FILE,)),
    "neusight": (neusight.run, (neusight.FILE,)),
    "nccl": (collectives.run, (collectives.FILE,)),
    "jitter": (jitter.run, (jitter.PATTERN,)),
    "power-caps": (power_caps.run, (power_caps.FILE,)),
    "shockwave": (shockwave.run, (shockwave.TRACE, shockwave.TIMES, shockwave.RATES)),
    "replay": (replayed.run, (replayed.PATTERN,)),
}

FILES: dict[str, tuple[str, ...]] = {name: files for name, (_, files) in _SETS.items()}
"""The files that a data set needs, below the folder of the measurements."""

NEEDS_FIT = ("nccl", "jitter")
"""Data sets whose lines come from a fit of calibration, which is handed in."""


def run(name: str, data_dir: Path, fits: Mapping[str, Any] | None = None) -> list[Line]:
    """The lines of a data set under `data_dir`; `fits` are calibration's, by data set of `NEEDS_FIT`.

    Raises ValueError for an unknown name or a fit that is needed, FileNotFoundError where the data are absent.
    """
    if name not in _SETS:
        raise ValueError(f"{name}: no such data set; allowed: {', '.join(sorted(_SETS))}")
    make, _ = _SETS[name]
    if name not in NEEDS_FIT:
        return make(data_dir)
    if name not in (fits or {}):
        raise ValueError(f"{name}: needs the fit of calibration")
    return make(data_dir, (fits or {})[name])


def as_text(lines: list[Line]) -> str:
    """The lines as a table of columns, shares in percent."""
    names = [f.name for f in fields(Line) if f.name != "points"]
    table = [names] + [[_cell(name, getattr(one, name)) for name in names] for one in lines]
    return "\n".join(aligned(table))


def _cell(name: str, value: object) -> str:
    if isinstance(value, float) and name == "width":
        return "-" if value != value else f"{value:.2g}x"
    if isinstance(value, float):
        return "-" if value != value else f"{100 * value:.1f} %"
    return str(value)
