"""One folder holds one study: a run, a comparison or a sweep, so that nobody reads one for another."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sim.yaml_tree import InputError

Kind = Literal["run", "comparison", "sweep"]
_MARKS: dict[Kind, str] = {"sweep": "sweep.db", "comparison": "comparison.json", "run": "manifest.json"}


def check_free(folder: str | Path, kind: Kind) -> None:
    """Raises InputError when the folder holds a study of another kind than the one that is to go there."""
    for other, mark in _MARKS.items():
        if other != kind and (Path(folder) / mark).is_file():
            raise InputError([f"{folder}: holds a {other} ({mark}), so no {kind}; choose another folder"])
