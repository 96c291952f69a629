"""Two runs side by side: which keys of the scenario differ, and what that did to the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.policies.plain import number
from equipoise.sim.scenario.tree import InputError, read_text, read_tree
from equipoise.study.display import LABELS
from equipoise.study.folders import MANIFEST, SUMMARY, read_json

ABSENT = "absent"
_FACTS = ("scenario", "policy", "seed", "code", "versions")


@dataclass(frozen=True)
class Difference:
    """What differs between two runs.

    inputs: (key, value in the first, value in the second). metrics: (metric, first, second), all of `LABELS`
    that either run has, NaN where one has not.
    """

    inputs: tuple[tuple[str, str, str], ...]
    metrics: tuple[tuple[str, float, float], ...]


def difference(first: Path, second: Path) -> Difference:
    """Compares two run directories. Raises InputError where one is none, is damaged or has not ended."""
    a, b = (_inputs(path) for path in (first, second))
    names = [*a, *(key for key in b if key not in a)]
    inputs = tuple((k, a.get(k, ABSENT), b.get(k, ABSENT)) for k in names if a.get(k) != b.get(k))
    x, y = (_json(path, SUMMARY) for path in (first, second))
    metrics = tuple((m, number(x.get(m)), number(y.get(m))) for m in LABELS if m in x or m in y)
    return Difference(inputs, metrics)


def _inputs(folder: Path) -> dict[str, str]:
    manifest = _json(folder, MANIFEST)
    facts = {key: manifest[key] for key in _FACTS if key in manifest}
    config = read_tree(read_text(folder / "config.yaml"), str(folder / "config.yaml")).data
    return dict(_flat("run", facts)) | dict(_flat("", config))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a tree by their dotted paths."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), part)
    elif isinstance(value, list) and value:
        for k, part in enumerate(value):
            yield from _flat(f"{path}.{k}", part)
    else:
        yield path, "none" if value is None else str(value)


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        why = "has not ended" if (folder / MANIFEST).is_file() else "is no run directory"
        raise InputError([f"{folder}: {why} (no {name})"])
    return read_json(path)
