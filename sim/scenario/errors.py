"""Pydantic's validation errors as lines: `file:line:column: key: what is wrong, what is allowed`."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from equipoise.base.numerals import is_index
from equipoise.sim.scenario.tree import InputError, Key, KeyPath, Tree, read_text, read_tree

M = TypeVar("M", bound=BaseModel)

HINTS = 500
"""Unknown keys of a file that are told what was meant; more of them are a mistake of another kind."""


def read_model(path: Path, model: type[M]) -> M:
    """A YAML file as that model. Raises InputError, one line per mistake."""
    tree = read_tree(read_text(path), str(path))
    try:
        return model.model_validate(tree.data)
    except ValidationError as error:
        raise InputError(describe(error, tree, model)) from error


def describe(error: ValidationError, tree: Tree, model: type[BaseModel]) -> list[str]:
    """One line per mistake, in the order of the file.

    Errors of the branches of one union are merged into one line.
    """
    found: dict[tuple[KeyPath, bool], list[str]] = {}
    hints = HINTS
    for item in error.errors(include_url=False):
        loc, kind = item["loc"], item["type"]
        if kind == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # its entries are there, and wrong: their own lines say so
        path = _path(loc, tree, missing=kind == "missing")
        hints -= kind == "extra_forbidden"
        text, path = ("unknown key", path) if hints < 0 else _text(item, loc, path, tree, model)
        texts = found.setdefault((path, kind == "extra_forbidden"), [])
        if text not in texts:
            texts.append(text)
    deeper = {path[:k] for path, _ in found for k in range(len(path))}
    for path, key in [p for p in found if p[0] in deeper and not _useful(found[p], strict=True)]:
        del found[path, key]  # the branch of a union that was not meant; the one that was says more, deeper
    lines = [
        (tree.place(path, key=key), tree.error(path, ", or ".join(_useful(texts)), key=key))
        for (path, key), texts in found.items()
    ]
    return [line for _, line in sorted(lines, key=lambda x: (x[0].source, x[0].line, x[0].column))]


def _useful(texts: Sequence[str], *, strict: bool = False) -> Sequence[str]:
    """Errors of the intended branch of a union; all (strict: none) if no branch was intended."""
    meant = [t for t in texts if not t.startswith(_WRONG_SHAPE)]
    return meant if meant or strict else texts


def _path(loc: Sequence[Key], tree: Tree, *, missing: bool) -> KeyPath:
    """The part of a pydantic location that exists in the file; union tags are left out."""
    path: KeyPath = ()
    for k, part in enumerate(loc):
        try:
            tree.get((*path, part))
        except KeyError:
            if not (missing and k == len(loc) - 1):
                continue
        path = (*path, part)
    return path


def _text(item: Any, loc: Sequence[Key], path: KeyPath, tree: Tree, model: type[BaseModel]) -> tuple[str, KeyPath]:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(str(loc[-1]), loc[:-1], model), path
    if kind in ("value_error", "assertion_error"):
        return _refine(str(context["error"]), path, tree)
    if kind == "union_tag_not_found":
        key = context["discriminator"].strip("'")
        return f"needs {key!r}, one of {', '.join(_tags_at(model, loc))}", path
    if kind == "union_tag_invalid":
        text = f"{context['tag']!r} is not allowed; allowed: {context['expected_tags']}"
        return text + _also_called(context["tag"], text), (*path, "kind")
    if kind == "missing" and (examples := _examples(model, loc)):
        return f"is missing; known: {', '.join(examples)}", path
    shown = _shown(item["input"])
    if kind in _MESSAGES:
        text = _MESSAGES[kind].format(value=shown, **context)
        return text + (_also_called(item["input"], text) if kind == "literal_error" else ""), path
    return f"{shown}: {item['msg'][:1].lower()}{item['msg'][1:]}", path


_ALSO_CALLED = {
    "tree": ("fattree", "leafspine", "clos", "dragonfly", "rails", "railoptimized"),
    "object": ("s3", "gcs", "blob"),
    "shared": ("nfs", "lustre", "gpfs", "weka", "vast", "sharedfilesystem"),
    "local": ("nvme", "ssd", "disk"),
}


def _also_called(given: object, text: str) -> str:
    """The allowed value for a common synonym, or ""."""
    word = re.sub(r"[^a-z0-9]", "", str(given).lower())
    allowed = re.findall("'([^']+)'", text.partition("allowed: ")[2])
    meant = [own for own in allowed if word in (re.sub(r"[^a-z0-9]", "", own.lower()), *_ALSO_CALLED.get(own, ()))]
    return f"; did you mean {meant[0]!r}?" if meant else ""


_WRONG_SHAPE = ("a section is needed", "a list is needed", "text is needed")
_MESSAGES = {
    "missing": "is missing",
    "int_type": "{value} is not a whole number",
    "int_parsing": "{value} is not a whole number",
    "int_parsing_size": "{value} is too large",
    "int_from_float": "{value} is not a whole number",
    "float_type": "{value} is not a number",
    "float_parsing": "{value} is not a number",
    "finite_number": "{value} is not a finite number",
    "bool_type": "{value} is neither true nor false",
    "bool_parsing": "{value} is neither true nor false",
    "string_type": "text is needed, not {value} (put it in quotes)",
    "literal_error": "{value} is not allowed; allowed: {expected}",
    "greater_than": "{value} is not allowed, must be above {gt:g}",
    "greater_than_equal": "{value} is not allowed, must be at least {ge:g}",
    "less_than": "{value} is not allowed, must be below {lt:g}",
    "less_than_equal": "{value} is not allowed, must be at most {le:g}",
    "too_short": "is empty, at least {min_length} is needed",
    "model_type": "a section is needed, not {value}",
    "model_attributes_type": "a section is needed, not {value}",
    "dict_type": "a section is needed, not {value}",
    "tuple_type": "a list is needed, not {value}",
    "list_type": "a list is needed, not {value}",
}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(key: str, section: Sequence[Key], model: type[BaseModel]) -> str:
    allowed = sorted(_keys_at(model, section))
    close = difflib.get_close_matches(key, allowed, n=1)
    if close:
        return f"unknown key; did you mean {close[0]!r}?"
    inner = [name for name in allowed if key in _keys_at(model, (*section, name)) - set(allowed)]
    belongs = f"; {key!r} is a key of {' and of '.join(map(repr, inner))}" if inner else ""
    return f"unknown key; allowed: {', '.join(allowed)}{belongs}"


def _refine(message: str, path: KeyPath, tree: Tree) -> tuple[str, KeyPath]:
    """A check of a whole section may begin with `dotted.key: `; the line then points at that key."""
    head, colon, rest = message.partition(": ")
    if colon and " " not in head:
        inner: tuple[Key, ...] = tuple(int(p) if is_index(p) else p for p in head.split("."))
        try:
            tree.get(path + inner)
            return rest, path + inner
        except KeyError:
            pass
    return message, path


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every section class that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _models(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        for inner in get_args(annotation):
            yield from _models(inner)


def _tag_of(model: type[BaseModel]) -> str | None:
    """The value of `kind` that chooses this class in a union."""
    field = model.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    return str(get_args(field.annotation)[0])


def _classes_at(model: type[BaseModel], loc: Sequence[Key]) -> list[type[BaseModel]]:
    classes: list[type[BaseModel]] = [model]
    for part in loc:
        tagged = [cls for cls in classes if len(classes) > 1 and _tag_of(cls) == part]
        fields = [cls.model_fields[part] for cls in classes if isinstance(part, str) and part in cls.model_fields]
        if tagged:
            classes = tagged
        elif fields:
            classes = [inner for field in fields for inner in _models(field.annotation)]
    return classes


def _keys_at(model: type[BaseModel], loc: Sequence[Key]) -> frozenset[str]:
    """Keys that the section at a pydantic location may have."""
    return _keys_of(model, tuple(part if isinstance(part, str) else 0 for part in loc))


@lru_cache(maxsize=1024)
def _keys_of(model: type[BaseModel], loc: tuple[Key, ...]) -> frozenset[str]:
    return frozenset(name for cls in _classes_at(model, loc) for name in cls.model_fields)


def _examples(model: type[BaseModel], loc: Sequence[Key]) -> list[str]:
    """Example values of the field at a pydantic location, if its class lists some."""
    fields = (cls.model_fields.get(str(loc[-1])) for cls in _classes_at(model, loc[:-1]))
    return [str(text) for field in fields if field is not None for text in field.examples or ()]


def _tags_at(model: type[BaseModel], loc: Sequence[Key]) -> list[str]:
    return [repr(tag) for cls in _classes_at(model, loc) if (tag := _tag_of(cls))]
