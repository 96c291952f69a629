"""Every key of a scenario with its meaning, unit, limits and default, read from the models."""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ForwardRef, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from equipoise.base.numerals import is_index
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.units import Quantity, format_bytes, format_bytes_per_s, format_seconds

TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false", dict: "section", tuple: "list"}
DERIVED = ("bound",)
"""Sections that loading works out, and no file gives."""
_SHOWN: dict[str, Callable[[float], tuple[str, ...]]] = {
    "s": lambda value: (format_seconds(value), f"{value:g} s"),
    "bytes": lambda value: (f"{value / 2**30:g} GiB", format_bytes(value)),
    "bytes/s": lambda value: (f"{8 * value / 1e9:g} Gbit/s", format_bytes_per_s(value)),
}
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True)
class Key:
    """One key. path: dotted, `[]` after a list, NAME for a name of the user's. default: "" when it is needed."""

    path: str
    kind: str
    default: str
    meaning: str

    @property
    def needed(self) -> bool:
        """Whether a scenario must give it wherever its section stands."""
        return not self.default


def all_keys() -> list[Key]:
    """All keys in the order of the models, sections before what is in them."""
    return list(_section(Scenario, ""))


def under(path: str) -> list[Key]:
    """The keys at and below `path`, where indices and names of a scenario may stand for [] and NAME."""
    found = [key for key in all_keys() if _matches(_parts(key.path), _parts(path))]
    if found or "[" in path:
        return found
    bare = [part for part in _parts(path) if not is_index(part)]  # as in messages, or without any brackets
    return [key for key in all_keys() if _matches([p for p in _parts(key.path) if p != "[]"], bare)]


def units(paths: Iterable[str]) -> dict[str, str]:
    """The base unit of each dotted path that is a quantity."""
    keys = [(_parts(key.path), key.kind.partition(", e.g. ")) for key in all_keys()]
    quantities = [(parts, kind[0]) for parts, kind in keys if kind[1]]
    found = {}
    for path in paths:
        wanted = _parts(path)
        for parts, unit in quantities:
            if len(parts) == len(wanted) and _matches(parts, wanted):
                found[path] = unit
                break
    return found


def _parts(path: str) -> list[str]:
    return [part for part in path.replace("[]", ".[]").split(".") if part]


def _matches(parts: list[str], wanted: list[str]) -> bool:
    if len(parts) < len(wanted):
        return False
    return all(
        w in (p, "[]") or p == "NAME" or (p == "[]" and w.isdigit()) for p, w in zip(parts, wanted, strict=False)
    )


def _section(model: type[BaseModel], path: str) -> Iterator[Key]:
    said = comments(model)
    for name, field in model.model_fields.items():
        if name in DERIVED:
            continue
        here = f"{path}.{name}" if path else name
        annotation = field.annotation
        if isinstance(annotation, ForwardRef):  # of a section that stands further down in its file
            annotation = get_type_hints(model, include_extras=True)[name]
        inner, steps = _inside(annotation)
        meaning = said.get(name, "") or (_docline(inner[0]) if len(inner) == 1 else "")
        yield Key(here + steps, _kind(field, inner), _default(field), meaning)
        for part in inner:
            yield from _section(part, here + steps)


def _docline(model: type[BaseModel]) -> str:
    """The first sentence of a section's docstring, without its full stop."""
    first = (model.__doc__ or "").strip().split("\n")[0]
    return re.split(r"(?<!\bal)\. ", first)[0].rstrip(".")


def _inside(annotation: Any) -> tuple[list[type[BaseModel]], str]:
    """(models of the section behind an annotation, the steps to get into it)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], ""
    origin, found, steps = get_origin(annotation), [], ""
    for part in get_args(annotation):
        if origin is Literal:
            break
        models, deeper = _inside(part)
        found += [model for model in models if model not in found]
        steps = steps or deeper
    if found and origin in (tuple, list):
        steps = "[]" + steps
    if found and origin is dict:
        steps = ".NAME" + steps
    return found, steps


def _kind(field: FieldInfo, inner: list[type[BaseModel]]) -> str:
    """Allowed values: a quantity with its unit and an example, numbers with limits, or a choice of words."""
    if inner:
        return "section" if len(inner) == 1 else f"section of {len(inner)} kinds"
    found = list(_walk(field.annotation)) + list(field.metadata)
    quantity = next((item for item in found if isinstance(item, Quantity)), None)
    if quantity is not None:
        return f"{quantity.base}, e.g. {quantity.example}"
    words = [str(item) for item in found if isinstance(item, str | int) and not isinstance(item, bool)]
    if words:
        return " or ".join(words)
    limits = [f"{text} {getattr(m, name):g}" for m in found for name, text in LIMITS.items() if hasattr(m, name)]
    kind = next((TYPES[item] for item in found if isinstance(item, type) and item in TYPES), "")
    return ", ".join(part for part in (kind, *limits) if part)


def _walk(annotation: Any) -> Iterator[Any]:
    """The types, words and limits inside an annotation."""
    origin = get_origin(annotation)
    if origin is None:
        yield from annotation.metadata if isinstance(annotation, FieldInfo) else (annotation,)
        return
    if isinstance(origin, type) and origin in (tuple, list, dict):
        yield tuple if origin is list else origin
        return
    for part in get_args(annotation):
        yield from _walk(part) if origin is not Literal else (part,)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _with_unit(field, value)
    if isinstance(value, tuple | list | dict):
        return ", ".join(map(str, value)) or "empty"
    return str(value) or "empty"


def _with_unit(field: FieldInfo, value: float) -> str:
    """A number as people write it, where that says exactly the same."""
    found = [*_walk(field.annotation), *field.metadata]
    quantity = next((item for item in found if isinstance(item, Quantity)), None)
    shown = _SHOWN.get(quantity.base) if quantity is not None and value else None
    for text in shown(value) if shown is not None else ():
        if quantity is not None and quantity.parse(text) == value:
            return text
    return f"{value:g}"


@cache
def comments(model: type[BaseModel]) -> dict[str, str]:
    """Comment of each field in the source: the one on its line, or those on the lines right above it."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            found |= _comments(textwrap.dedent(inspect.getsource(base)))
    return found


def _comments(source: str) -> dict[str, str]:
    lines: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# fmt:", "# noqa")):
            lines[token.start[0]] = token.string.lstrip("# ").strip()
    rows = source.splitlines()
    found: dict[str, str] = {}
    (section,) = ast.parse(source).body
    for node in section.body if isinstance(section, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            first = node.lineno
            while first - 1 in lines and rows[first - 2].lstrip().startswith("#"):
                first -= 1
            said = [lines[k] for k in range(first, (node.end_lineno or first) + 1) if k in lines]
            found[node.target.id] = " ".join(said)
    return found


def page() -> str:
    """The reference as Markdown: `docs/scenario.md`."""
    out = [
        "# Keys of a scenario",
        "",
        "Made by `equipoise schema --format markdown`; do not edit. `[]` stands for each entry of a list, NAME for",
        "a name that you choose. A bare number is in the unit shown first; text may use another unit.",
    ]
    section = None
    for key in all_keys():
        parts = _parts(key.path)
        deep = parts[0] in ("cluster", "workload") and len(parts) > 2
        plain = len(parts) == 1 and key.kind != "section"
        grouped = ".".join(parts[:2]) if deep else "top level" if plain else parts[0]
        if grouped != section:
            section = grouped
            out += ["", f"## {section}", "", "| key | may be | default | meaning |", "|---|---|---|---|"]
        cells = (f"`{key.path}`", key.kind, key.default or "**needed**", key.meaning)
        out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(out) + "\n"
