"""Two runs side by side: differing keys of the scenario, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base.json_values import number
from equipoise.sim.scenario.reference import units
from equipoise.sim.scenario.tree import InputError, read_text, read_tree
from equipoise.sim.scenario.units import format_bytes, format_bytes_per_s, format_scaled, format_seconds, format_share
from equipoise.study.display import LABELS
from equipoise.study.folders import MANIFEST, SUMMARY, read_json

ABSENT, GIVEN, NONE = "absent", "given", "none"
_FACTS = ("scenario", "policy", "seed", "code", "versions")


@dataclass(frozen=True)
class Difference:
    """What differs between two runs.

    inputs: (key, value in the first, value in the second). metrics: (metric, first, second), all of `LABELS`
    that either run has, NaN where one does not.
    """

    inputs: tuple[tuple[str, str, str], ...]
    metrics: tuple[tuple[str, float, float], ...]
    keys: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())  # all that each run has

    def readable(self) -> list[tuple[str, str, str]]:
        """The inputs as text: values with units, a section that only one run has in one line."""
        unit = units(key for key, _, _ in self.inputs)
        rows: dict[str, tuple[str, str, str]] = {}
        for key, a, b in self.inputs:
            if {a, b} == {ABSENT, NONE} and any(inner.startswith(f"{key}.") for inner in self.keys[a == NONE]):
                continue  # the section that the other run has is named by itself
            if ABSENT in (a, b) and (section := _alone(key, self.keys[a == ABSENT], self.keys[a != ABSENT])):
                mine, other = (ABSENT if value == ABSENT else GIVEN for value in (a, b))
                rows.setdefault(section, (section, mine, other))
            else:
                rows[key] = (key, _with_unit(a, unit.get(key, "")), _with_unit(b, unit.get(key, "")))
        return list(rows.values())


def _alone(key: str, here: frozenset[str], there: frozenset[str]) -> str:
    """The largest section around a key that the other run does not have; "" if only the key is missing."""
    parts = key.split(".")
    for k in range(1, len(parts)):
        section = ".".join(parts[:k])
        if not any(other.startswith(f"{section}.") for other in there):
            many = sum(other.startswith(f"{section}.") for other in here)
            return section if many > 1 else ""
    return ""


_SHOWN: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "bytes": format_bytes,
    "bytes/s": format_bytes_per_s,
    "(0 to 1)": format_share,
    "W": lambda value: format_scaled(value, "W"),
    "FLOP": lambda value: format_scaled(value, "FLOP"),
    "USD/h": lambda value: f"{value:g} USD/h",
}


def _with_unit(text: str, unit: str) -> str:
    """A number with its unit; other text unchanged."""
    try:
        value = float(text)
    except ValueError:
        return text
    return _SHOWN[unit](value) if unit in _SHOWN else f"{value:.12g}"


def difference(first: Path, second: Path) -> Difference:
    """Compares two run directories. Raises InputError for a folder that is not one, is damaged or has not ended."""
    a, b = (_inputs(path) for path in (first, second))
    names = [*a, *(key for key in b if key not in a)]
    inputs = tuple((k, a.get(k, ABSENT), b.get(k, ABSENT)) for k in names if a.get(k) != b.get(k))
    x, y = (_json(path, SUMMARY) for path in (first, second))
    metrics = tuple((m, number(x.get(m)), number(y.get(m))) for m in LABELS if m in x or m in y)
    return Difference(inputs, metrics, (frozenset(a), frozenset(b)))


def _inputs(folder: Path) -> dict[str, str]:
    manifest = _json(folder, MANIFEST)
    facts = {key: manifest[key] for key in _FACTS if key in manifest}
    facts |= {"trace": manifest["inputs"]["trace"]} if manifest.get("inputs", {}).get("trace", "none") != "none" else {}
    config = read_tree(read_text(folder / "config.yaml"), str(folder / "config.yaml")).data
    of_case = {key: value for key, value in config.items() if key not in ("policy", "seed")}
    return dict(_flat("run", facts)) | dict(_flat("", of_case))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a tree by their dotted paths."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), part)
    elif isinstance(value, list) and value:
        for k, part in enumerate(value):
            yield from _flat(f"{path}.{k}", part)
    else:
        yield path, NONE if value is None else str(value)


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        why = "has not ended" if (folder / MANIFEST).is_file() else "is no run directory"
        raise InputError([f"{folder}: {why} (no {name})"])
    return read_json(path)
