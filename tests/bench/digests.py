"""Digests of results, by table and column, and what differs between two sets of them.

A column is a list of parts, one per record (a run's table, or one line of a journal): its number and its values.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from equipoise.base.database import database

Values = NDArray[Any]
Columns = dict[str, list[tuple[int, Values]]]
Tables = dict[str, Columns]
RECORDS = 1_000_000
"""Numbers of records between one run and the next."""


class Name(NamedTuple):
    """Where a digest belongs."""

    case: str
    table: str
    column: str


class Digest(NamedTuple):
    """Of one column: values in it, 16 hex digits of SHA-256, and the sum of what is finite ("": no floats)."""

    rows: int
    sha256: str
    sum: str


class Difference(NamedTuple):
    """A column that is not as it was; `size` is relative to the larger sum, infinite where there is none."""

    name: Name
    size: float
    text: str


# -- digests -------------------------------------------------------------------------------------------------


def digest(parts: Iterable[tuple[int, Values]]) -> Digest:
    """The digest of one column."""
    hashed, rows, floats = hashlib.sha256(), 0, list[float]()
    for record, values in parts:
        hashed.update(struct.pack("<qq", record, len(values)) + _bytes(values))
        rows += len(values)
        floats += [value for value in values.tolist() if isinstance(value, float)]
    try:
        total = repr(math.fsum(filter(math.isfinite, floats))) if floats else ""
    except OverflowError:
        total = "inf"
    return Digest(rows, hashed.hexdigest()[:16], total)


def _bytes(values: Values) -> bytes:
    if values.dtype.kind == "f":
        return b"f" + values.astype("<f8").tobytes()
    if values.dtype.kind in "biu":
        return b"i" + values.astype("<i8").tobytes()
    return b"o" + b"".join(map(_cell_bytes, values.tolist()))


def _cell_bytes(value: Any) -> bytes:
    if value is None:
        return b"-"
    if isinstance(value, float):
        return b"f" + struct.pack("<d", value)
    if isinstance(value, int):
        return b"i" + struct.pack("<q", value)
    text = value.encode()
    return b"t" + struct.pack("<q", len(text)) + text


def digests(case: str, tables: Tables, renamed: Mapping[str, str], without: Collection[str] = ()) -> dict[Name, Digest]:
    """The digests of one case, of every column that has values.

    renamed: `table:column` now, and what it was. without: names now that are left out. Both may also say the
    beginning of a name, up to `:` or `.`, for all below it.
    """
    found: dict[Name, Digest] = {}
    for table, columns in tables.items():
        for column, parts in columns.items():
            name = f"{table}:{column}"
            before = Name(case, *old_name(name, renamed).split(":", 1))
            if before in found:
                raise ValueError(f"{case}: two columns are {before.table}:{before.column}; see what is renamed")
            made = digest(parts)
            if made.rows and not any(_below(name, head) for head in without):
                found[before] = made
    return found


def old_name(name: str, renamed: Mapping[str, str]) -> str:
    """The name before: the longest beginning of `name` that was renamed, put back."""
    for now in sorted(renamed, key=len, reverse=True):
        if _below(name, now):
            return renamed[now] + name[len(now) :]
    return name


def _below(name: str, head: str) -> bool:
    return name == head or (name.startswith(head) and name[len(head)] in ":.")


# -- tables --------------------------------------------------------------------------------------------------


def cells(values: list[Any]) -> Values:
    """A list of plain values as an array: of objects, unless all are integers or all are floats."""
    kinds = {type(value) for value in values}
    return np.array(values, dtype={frozenset({float}): "f8", frozenset({int}): "i8"}.get(frozenset(kinds), object))


def add_record(columns: Columns, record: int, value: Any) -> None:
    """Add what JSON or YAML says to columns with dotted names."""
    for name, values in _leaves(value, ""):
        columns.setdefault(name, []).append((record, values))


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Values]]:
    """Dotted names and values; a journal's marks ($array, $map, ...) are no part of a name."""
    if isinstance(value, dict):
        if "$array" in value:
            yield name, _array(value)
        elif "$float" in value:
            yield name, np.array([float(value["$float"])])
        else:
            if not value:
                yield name, cells([])
            for key, item in value.items():
                yield from _leaves(item, name if key.startswith("$") else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        yield name, cells([len(value)])
        for item in value:
            yield from _leaves(item, name)
    else:
        yield name, cells(value if isinstance(value, list) else [value])


def _array(value: dict[str, Any]) -> Values:
    """An array of a journal."""
    held = [value["all"]] * value["rows"] if "all" in value else value["values"]
    kind = value["$array"] if not value["$array"].startswith("<U") else object
    return np.array([float(v["$float"]) if isinstance(v, dict) else v for v in held], dtype=kind)


def read_tables(folder: Path, run: int) -> Tables:
    """Every Parquet, JSON, JSON lines and YAML file in `folder`."""
    tables: Tables = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in READERS:
            table = path.relative_to(folder).with_suffix("").as_posix()
            READERS[path.suffix](tables.setdefault(table, {}), run * RECORDS, path)
    return tables


def _read_parquet(columns: Columns, record: int, path: Path) -> None:
    with database() as connection:
        found = connection.read_parquet(str(path)).fetchnumpy()
    for name, values in found.items():
        missing = np.ma.is_masked(values)
        plain = np.ma.filled(values.astype(object), None) if missing else np.asarray(values)
        columns[name] = [(record, plain)]


def _read_lines(columns: Columns, record: int, path: Path) -> None:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            add_record(columns, record + number, json.loads(line))


def _read_json(columns: Columns, record: int, path: Path) -> None:
    add_record(columns, record, json.loads(path.read_text(encoding="utf-8")))


def _read_yaml(columns: Columns, record: int, path: Path) -> None:
    add_record(columns, record, yaml.safe_load(path.read_text(encoding="utf-8")))


READERS = {".parquet": _read_parquet, ".jsonl": _read_lines, ".json": _read_json, ".yaml": _read_yaml}


def join(tables: Tables, more: Tables) -> None:
    """Put the records of `more` behind those of `tables`."""
    for table, columns in more.items():
        for column, parts in columns.items():
            tables.setdefault(table, {}).setdefault(column, []).extend(parts)


# -- comparing -----------------------------------------------------------------------------------------------


def differences(then: Mapping[Name, Digest], now: Mapping[Name, Digest]) -> list[Difference]:
    """What is not as it was, the largest difference first."""
    found = []
    for name in {**then, **now}:
        if name not in now:
            found.append(Difference(name, math.inf, "is missing"))
        elif name not in then:
            found.append(Difference(name, math.inf, "is new"))
        elif then[name] != now[name]:
            found.append(Difference(name, *_change(then[name], now[name])))
    return sorted(found, key=lambda difference: -difference.size)


def _change(then: Digest, now: Digest) -> tuple[float, str]:
    if then.rows != now.rows:
        return math.inf, f"had {then.rows} values, has {now.rows}"
    if not (then.sum and now.sum):
        return math.inf, f"{then.rows} values differ"
    a, b = float(then.sum), float(now.sum)
    size = abs(b - a) / max(abs(a), abs(b)) if a != b else 0.0
    return size, f"sum {then.sum} is now {now.sum} ({b - a:+.3g}, {100 * size:.2g} %)"


def write(path: Path, digests: Mapping[Name, Digest], about: str) -> None:
    """Write digests as CSV below a line `about` where they were made."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {about}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Name._fields, *Digest._fields])
        writer.writerows([*name, *found] for name, found in sorted(digests.items()))


def read(path: Path) -> tuple[str, dict[Name, Digest]]:
    """What `write` wrote: where they were made, and the digests."""
    with path.open(encoding="utf-8", newline="") as file:
        about = file.readline().removeprefix("# ").rstrip("\n")
        _, *rows = csv.reader(file)
    return about, {Name(*row[:3]): Digest(int(row[3]), *row[4:]) for row in rows}
