"""One folder holds one study: a run, a comparison or a sweep, so that nobody reads one for another."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from equipoise.sim.scenario.tree import InputError

Kind = Literal["run", "comparison", "sweep"]
_MARKS: dict[Kind, str] = {"sweep": "sweep.db", "comparison": "comparison.json", "run": "manifest.json"}


_OWN = (*_MARKS.values(), "summary.json", "config.yaml", "jobs.parquet", "runs.parquet", "journal.jsonl")


def check_target(path: str | Path, suffixes: tuple[str, ...]) -> None:
    """Raises InputError when writing `path` would destroy something else than an earlier output of the kind.

    suffixes: those that such an output has; a file that is there and has none of them is left alone.
    """
    target = Path(path)
    if not str(path).strip():
        raise InputError(["--out: a file name is needed"])
    inside = target.parent.name == "timeline"
    study = target.parent.parent if inside else target.parent
    own = (inside or target.name in _OWN) and any((study / mark).is_file() for mark in _MARKS.values())
    if target.is_file() and (own or not target.name.endswith(suffixes)):
        kind = " or ".join(suffixes)
        why = "is a part of a result" if own else f"is there and is no {kind} file"
        raise InputError([f"{target}: {why}, which would be lost; choose another name"])


def check_free(folder: str | Path, kind: Kind) -> None:
    """Raises InputError when the folder holds a study of another kind than the one that is to go there."""
    for other, mark in _MARKS.items():
        if other != kind and (Path(folder) / mark).is_file():
            raise InputError([f"{folder}: holds a {other} ({mark}), so no {kind}; choose another folder"])
