"""Public data sets by name, and the table of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from equipoise.study.validation import (
    collectives,
    dense_llm,
    jitter,
    mig,
    playbook,
    pollux,
    power,
    replayed,
    sailor,
    storage,
    train_time,
    vtrain,
)
from equipoise.study.validation.score import Line

DATA_SETS: dict[str, Callable[[Path], list[Line]]] = {
    "dense-llm": dense_llm.run,
    "vtrain": vtrain.run,
    "playbook": playbook.run,
    "sailor": sailor.run,
    "pollux": pollux.run,
    "train-time": train_time.run,
    "staging": storage.run_staging,
    "mig": mig.run,
    "jitter": jitter.run,
    "power": power.run,
    "storage": storage.run_input,
    "replay": replayed.run,
}

FILES: dict[str, tuple[str, ...]] = {
    "dense-llm": (dense_llm.FILE,),
    "vtrain": (vtrain.SINGLE, vtrain.MULTI),
    "playbook": (playbook.FILE,),
    "sailor": (sailor.FILE,),
    "nccl": (collectives.FILE,),
    "pollux": (pollux.FILE,),
    "train-time": (train_time.FILE,),
    "staging": (storage.STAGING,),
    "mig": (mig.FILE,),
    "jitter": (jitter.PATTERN,),
    "power": (power.FILE,),
    "storage": (storage.INPUT,),
    "replay": (replayed.PATTERN,),
}
"""The files that a data set needs, below the folder of the measurements."""


def run(name: str, data_dir: Path, fit: collectives.Fit | None = None) -> list[Line]:
    """The lines of a data set under `data_dir`; `fit` is the fit of a collective's curve, which "nccl" needs.

    Raises ValueError for an unknown name, FileNotFoundError where the data are absent.
    """
    if name not in FILES:
        raise ValueError(f"{name}: no such data set; allowed: {', '.join(sorted(FILES))}")
    if name == "nccl":
        if fit is None:
            raise ValueError("nccl: needs the fit of a curve")
        return collectives.run(data_dir, fit)
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
