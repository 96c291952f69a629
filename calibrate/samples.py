"""Raw measurements as JSON lines: immutable, with the conditions under which they were taken.

The first line holds the conditions; every other line one sample. A file can be read again and refitted
without the hardware. Samples of different conditions are never mixed.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from equipoise.base.files import naming
from equipoise.base.json_values import from_json
from equipoise.base.regular import RefusedError, opened

SCHEMA_VERSION = 1
MAX_LINE_CHARACTERS = 4_000_000
MAX_FILE_BYTES = 500_000_000
DIGITS = 7  # far below any timer's resolution; what is fitted is what the file holds

CPU_TIME = "CPU time"
"""As the parameter `clock`: what other processes took is left out; never a rate of the whole machine."""

Scalar = str | int | float | bool | None
Parameters = Mapping[str, Scalar]

# Conditions that decide how fast a device is: samples that differ in one of these are not comparable.
DECISIVE = (
    "device",
    "architecture",
    "count",
    "driver",
    "cuda_driver",
    "power_limit_w",
    "max_sm_clock_hz",
    "application_sm_clock_hz",
    "ecc",
    "mig",
    "cores",
    "threads",
    "blas",
    "governor",
)


class SamplesError(ValueError):
    """A sample file is damaged, or samples do not belong together; one clear line."""


@dataclass(frozen=True)
class Sample:
    """Repeated measurements of one quantity: `values` in `unit`, or a time series in `columns`.

    `parameters` say what was measured (sizes, precision, ...); `round` counts the passes of a session.
    """

    kind: str
    parameters: Parameters
    values: tuple[float, ...]
    unit: str = "s"
    round: int = 0
    at: str = ""
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What was measured in which round; two samples with one key are the same measurement."""
        return key_of(self.kind, self.parameters, self.round)

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]


def key_of(kind: str, parameters: Parameters, round_: int) -> str:
    """The identity of a measurement, whatever the order of its parameters."""
    return json.dumps([kind, dict(sorted(parameters.items())), round_])


@dataclass(frozen=True)
class SampleSet:
    """Samples taken under one set of conditions."""

    conditions: Mapping[str, Scalar]
    versions: Mapping[str, str]
    samples: tuple[Sample, ...]
    notes: tuple[str, ...] = ()

    def of(self, kind: str, **parameters: Scalar) -> list[Sample]:
        """Samples of a kind whose parameters have these values."""
        wanted = parameters.items()
        return [s for s in self.samples if s.kind == kind and all(s.parameters.get(k) == v for k, v in wanted)]

    def distinct(self, kind: str, parameter: str) -> list[Any]:
        """The values that a parameter takes among the samples of a kind, in order of appearance."""
        return list(dict.fromkeys(s.parameters[parameter] for s in self.of(kind) if parameter in s.parameters))

    @property
    def date(self) -> str:
        """Day of the last sample (ISO 8601)."""
        return max((s.at[:10] for s in self.samples), default="")


def differences(a: Mapping[str, Scalar], b: Mapping[str, Scalar]) -> list[str]:
    """Decisive conditions in which two sets differ, each as "name: this and that"."""
    return [f"{name}: {a.get(name)!r} and {b.get(name)!r}" for name in DECISIVE if not _same(a.get(name), b.get(name))]


def _same(a: Scalar, b: Scalar) -> bool:
    if isinstance(a, float) and isinstance(b, float | int):
        return math.isclose(a, b, rel_tol=1e-6)
    return a == b


def merge(sets: Iterable[SampleSet]) -> SampleSet:
    """One set from several.

    Raises SamplesError when their decisive conditions differ, when one measurement is in two of them (it would
    count twice, and make the intervals too narrow), or when there is none.
    """
    all_sets = list(sets)
    if not all_sets:
        raise SamplesError("no samples given")
    first = all_sets[0]
    for other in all_sets[1:]:
        found = differences(first.conditions, other.conditions)
        if found:
            raise SamplesError(f"samples of different conditions are not mixed: {'; '.join(found)}")
    # Rounds of different sessions stay apart: they differ in more than samples of one round do.
    samples, shift = [], 0
    known: set[tuple[str, str, tuple[float, ...]]] = set()
    for one in all_sets:
        mine = {(s.key, s.at, s.values) for s in one.samples if s.at}
        twice = sorted(known & mine)
        if twice:
            raise SamplesError(f"{len(twice)} samples are given twice, such as {twice[0][0]}")
        known |= mine
        samples += [replace(s, round=s.round + shift) for s in one.samples]
        shift += 1 + max((s.round for s in one.samples), default=0)
    notes = tuple(note for one in all_sets for note in one.notes)
    return SampleSet(first.conditions, first.versions, tuple(samples), notes)


def read_samples(path: str | Path) -> SampleSet:
    """Read a sample file, gzip-compressed when its name ends in .gz.

    A last line that was cut off is left out, with a note.

    Raises SamplesError, `file:line: what is wrong`, for anything else that is not a sample file.
    """
    lines = _lines(Path(path))
    if not lines:
        raise SamplesError(f"{path}:1: empty; needed: a header line with the conditions")
    header = _parsed(lines[0], path, 1)
    _checked_header(header, path)
    samples, notes = [], []
    for number, line in enumerate(lines[1:], start=2):
        try:
            samples.append(_sample(_parsed(line, path, number), path, number))
        except SamplesError:
            if number != len(lines):
                raise
            notes.append(f"{path}:{number}: cut off, left out")
    return SampleSet(header["conditions"], header.get("versions") or {}, tuple(samples), tuple(notes))


def _lines(path: Path) -> list[str]:
    try:
        with opened(path) as file, gzip.open(file) if path.suffix == ".gz" else nullcontext(file) as unpacked:
            content = unpacked.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except RefusedError as error:
        raise SamplesError(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise SamplesError(f"{path}: not a text file") from None
    except (EOFError, zlib.error):
        raise SamplesError(f"{path}: the compressed file is damaged") from None
    except OSError as error:
        raise SamplesError(f"{path}: {error.strerror or error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise SamplesError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return text.splitlines()


def _parsed(line: str, path: str | Path, number: int) -> dict[str, Any]:
    if len(line) > MAX_LINE_CHARACTERS:
        raise SamplesError(f"{path}:{number}: longer than {MAX_LINE_CHARACTERS} characters")
    try:
        value = from_json(line)
    except ValueError as error:
        raise SamplesError(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SamplesError(f"{path}:{number}: not a JSON object")
    return value


# What each kind of measurement must state: numbers above 0, and texts. Other kinds are read and not fitted.
NEEDED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("copy", "read", "triad", "add", "library_copy"), (("bytes", "array_bytes"), ())),
    **dict.fromkeys(("fma", "tensor"), (("flop",), ("precision",))),
    **dict.fromkeys(("launch_pipelined", "sustained"), ((), ())),
    "gemm": (("m", "n", "k"), ("precision", "library")),
    "transfer": (("bytes",), ("direction", "memory")),
    "peer": (("bytes",), ()),
    "share": (("share",), ("kernel",)),
    "interference": (("others_utilisation",), ("kernel", "neighbour")),
    "collective": (("bytes", "ranks"), ("collective", "backend")),
    "overlap": (("batch", "ranks"), ("workload", "precision", "backend")),
    "operation": (("threads",), ("case", "size")),
    "training": (("batch",), ("workload", "precision", "framework")),
    "storage_write": (("bytes",), ()),
    "storage_read": (("bytes",), ()),
    "preprocess": (("samples",), ()),
}
SMALLEST, LARGEST = 1e-15, 1e30  # so that no rate overflows


def _sample(raw: dict[str, Any], path: str | Path, number: int) -> Sample:
    where = f"{path}:{number}"
    kind, parameters, values = raw.get("kind"), raw.get("parameters"), raw.get("values")
    if not isinstance(kind, str) or not isinstance(parameters, dict) or not isinstance(values, list):
        raise SamplesError(f"{where}: needs kind, parameters and values")
    columns, round_ = raw.get("columns") or {}, raw.get("round", 0)
    if not _are_columns(columns) or not all(_is_number(v) and v >= SMALLEST for v in values):
        raise SamplesError(f"{where}: values must be finite numbers above 0, columns equally long lists of them")
    if not columns and not values:
        raise SamplesError(f"{where}: holds no value")
    if type(round_) is not int or round_ < 0:
        raise SamplesError(f"{where}: round must be a whole number, at least 0")
    _check_parameters(kind, parameters, where)
    unit, at = str(raw.get("unit", "s")), str(raw.get("at", ""))
    return Sample(kind, parameters, tuple(float(v) for v in values), unit, round_, at, columns)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _are_columns(columns: object) -> bool:
    """Equally long lists of finite numbers by name."""
    if not isinstance(columns, dict) or not all(isinstance(c, list) for c in columns.values()):
        return False
    return len({len(c) for c in columns.values()}) <= 1 and all(_is_number(v) for c in columns.values() for v in c)


def _check_parameters(kind: str, parameters: Mapping[str, object], where: str) -> None:
    for name, value in parameters.items():
        if not (value is None or isinstance(value, str | bool) or _is_number(value)):
            raise SamplesError(f"{where}: parameter {name}: needs a string or a finite number")
    numbers, texts = NEEDED.get(kind, ((), ()))
    for name in numbers:
        value = parameters.get(name)
        if not _is_number(value) or not value >= SMALLEST:  # type: ignore[operator] # it is a number
            raise SamplesError(f"{where}: {kind} needs the parameter {name}, a number above 0")
    for name in texts:
        if not isinstance(parameters.get(name), str):
            raise SamplesError(f"{where}: {kind} needs the parameter {name}, a text")


def _checked_header(header: dict[str, Any], path: str | Path) -> None:
    conditions, versions = header.get("conditions"), header.get("versions") or {}
    if not isinstance(conditions, dict) or header.get("schema_version") != SCHEMA_VERSION:
        raise SamplesError(f"{path}:1: no header with conditions and schema_version {SCHEMA_VERSION}")
    for name, value in conditions.items():
        if not (value is None or isinstance(value, str | bool) or _is_number(value)):
            raise SamplesError(f"{path}:1: condition {name}: needs a string or a finite number")
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        raise SamplesError(f"{path}:1: versions must be texts by name")


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


class SampleWriter:
    """Appends samples to a file, each flushed, so that an interruption loses at most the one under way."""

    def __init__(self, path: Path, conditions: Mapping[str, Scalar], versions: Mapping[str, str]) -> None:
        """Opens or continues the file.

        Raises SamplesError when it was begun under other conditions, or when another process writes into it.
        """
        self.path = path
        self.done: dict[str, Sample] = {}
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._begin(conditions, versions)
        except BlockingIOError:
            self._file.close()
            raise SamplesError(
                f"{path}: another calibration writes to this file; wait for it, or choose another file with --samples"
            ) from None
        except BaseException:
            self._file.close()
            raise

    def _begin(self, conditions: Mapping[str, Scalar], versions: Mapping[str, str]) -> None:
        path = self.path
        if path.stat().st_size:
            before = read_samples(path)
            found = differences(before.conditions, conditions)
            if found:
                raise SamplesError(f"{path}: begun under other conditions: {'; '.join(found)}")
            self.done = {s.key: s for s in before.samples}
            self._drop_cut_line()
            return
        header = {"schema_version": SCHEMA_VERSION, "conditions": dict(conditions), "versions": dict(versions)}
        self._line(header)

    def _drop_cut_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            os.truncate(self.path, whole)

    def _line(self, record: Mapping[str, Any]) -> None:
        with naming(self.path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def add(self, sample: Sample) -> None:
        """Append one sample, rounded to DIGITS. Raises OSError when the disk refuses, ValueError for NaN."""
        values = tuple(_rounded(v) for v in sample.values)
        columns = {name: [_rounded(v) for v in column] for name, column in sample.columns.items()}
        kept = replace(sample, values=values, columns=columns)
        record: dict[str, Any] = {
            "kind": kept.kind,
            "parameters": dict(kept.parameters),
            "unit": kept.unit,
            "round": kept.round,
            "at": kept.at,
            "values": list(values),
        }
        self._line(record | ({"columns": columns} if columns else {}))
        self.done[kept.key] = kept

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.done.values())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
