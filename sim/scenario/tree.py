"""Reads YAML text into plain data with the place of every value, by YAML 1.2 rules.

Scalars follow the YAML 1.2 core schema: `1e9` is a number, `on`, `yes`, `12:30` and dates are text. Of YAML 1.1 the
underscores between thousands stay: `40_000` is a number, `1_0` is text. Duplicate keys, custom tags, `.inf`,
`.nan`, self-references and texts that unfold beyond `MAX_VALUES` are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from equipoise.base.regular import YAML_BYTES, RefusedError, read_file

MAX_VALUES = 300_000
MAX_DEPTH = 60

Key = str | int
KeyPath = tuple[Key, ...]

_TAG = "tag:yaml.org,2002:"
_DIGITS = r"(?:[1-9][0-9]{0,2}(?:_[0-9]{3})+|[0-9]+)"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", rf"[-+]?{_DIGITS}|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        rf"[-+]?(?:\.[0-9]+|{_DIGITS}(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)
_PATTERN = {name: re.compile(pattern) for name, pattern, _ in _SCALARS}
_NOUN = {"null": "null", "bool": "true or false", "int": "a number", "float": "a number"}


class InputError(ValueError):
    """Wrong input from the user: one clear line per mistake, in `lines`."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


class WrongValueError(ValueError):
    """The value at a key is wrong; the caller that knows the file adds the place."""

    def __init__(self, path: KeyPath, text: object) -> None:
        super().__init__(str(text))
        self.path = path


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file with line and column (from 1), or an option of the command line."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass
class Tree:
    """Plain data (dict, list, str, int, float, bool, None) and the places of its keys and values by path."""

    data: Any
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    values: dict[KeyPath, Place] = field(default_factory=dict)

    def place(self, path: KeyPath, *, key: bool = False) -> Place:
        """Place of the value (or key) at `path`; of the nearest enclosing value when it does not exist."""
        while path and path not in self.values:
            path = path[:-1]
        whole = isinstance(self._value(path), dict | list)  # a section is shown by its name
        return (self.keys if key or whole else self.values).get(path) or self.values[path]

    def _value(self, path: KeyPath) -> Any:
        try:
            return self.get(path)
        except KeyError:
            return None

    def error(self, path: KeyPath, problem: str, *, key: bool = False) -> str:
        """One line `file:line:column: dotted.key: problem`."""
        name = ".".join(str(part) for part in path)
        return f"{self.place(path, key=key)}: {name + ': ' if name else ''}{problem}"

    def get(self, path: KeyPath) -> Any:
        """The value at `path`. Raises KeyError when there is none."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (TypeError, IndexError, KeyError):
                raise KeyError(path) from None
        return value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Composes nodes with the scalar rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own


class _Dumper(yaml.SafeDumper):
    """Quotes texts that YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: object) -> bool:
        """Write values out each time."""
        return True


def _text_node(dumper: _Dumper, text: str) -> ScalarNode:
    # Plain and single-quoted text cannot carry line ends of all kinds and control characters.
    return dumper.represent_scalar(_TAG + "str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _text_node)
for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_implicit_resolver(_TAG + "merge", re.compile("^<<$"), ["<"])


def read_text(path: Path) -> str:
    """Text of a UTF-8 file of at most YAML_BYTES. Raises InputError when it cannot be read."""
    try:
        return read_file(path, YAML_BYTES).decode("utf-8-sig")
    except RefusedError as error:
        hint = "; put long job lists into a CSV trace" if path.is_file() else ""
        raise InputError([f"{path}: {error}{hint}"]) from error
    except UnicodeDecodeError as error:
        raise InputError([f"{path}: not UTF-8 text (byte {error.start})"]) from error
    except OSError as error:
        raise InputError([f"{path}: cannot be read: {error.strerror}"]) from error


def read_tree(text: str, source: str) -> Tree:
    """Tree of one YAML document; `source` names it in errors. Raises InputError, all mistakes at once."""
    try:
        _check_depth(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
        problem = (error.problem or error.context or "cannot be parsed").replace("\n", " ")
        raise InputError([f"{place}: not valid YAML: {problem}"]) from error
    except yaml.YAMLError as error:
        raise InputError([f"{source}: not valid YAML: {' '.join(str(error).split())}"]) from error
    if node is None:
        raise InputError([f"{source}: empty"])
    builder = _Builder(source)
    builder.tree.data = builder.build(node, ())
    if builder.mistakes:
        raise InputError(builder.mistakes)
    return builder.tree


def _check_depth(text: str, source: str) -> None:
    """Raises InputError for deep nesting; composing it would exhaust the C stack and end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark = event.start_mark
                place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
                raise InputError([f"{place}: nested more than {MAX_DEPTH} deep"])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def write_tree(data: Any) -> str:
    """YAML text of plain data that `read_tree` reads back equal, whatever the strings look like."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _cut(before: str, key: ScalarNode, value: Node) -> bool:
    """Whether a key is the end of a number that a comma cut: the 000 of `{price: $30,000}`."""
    alone = isinstance(value, ScalarNode) and not value.value and not value.style
    return alone and re.match(r"\d{3}(?!\d)", key.value) is not None and re.search(r"\d$", before) is not None


class _Builder:
    """Turns nodes into data, noting places and mistakes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = Tree(None)
        self.parts: dict[KeyPath, list[KeyPath]] = {}  # of a section or list: where its values stand
        self.mistakes: list[str] = []
        self.count = 0
        self.merging = 0  # merges inside one another

    def build(self, node: Node, path: KeyPath) -> Any:
        """The plain value of a node, its place noted."""
        self.count += 1
        if path not in self.tree.values:
            self.tree.values[path] = self.at(node)
            self.parts.setdefault(path[:-1], []).append(path)
        if self.count > MAX_VALUES:
            raise InputError([f"{self.at(node)}: more than {MAX_VALUES} values; put long job lists into a CSV trace"])
        if len(path) > MAX_DEPTH:
            raise InputError([f"{self.at(node)}: an alias contains itself"])
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, k)) for k, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        return self.mistake(node, path, f"tag {node.tag.removeprefix(_TAG)!r} is not allowed")

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        """A section, merge keys first."""
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        number = ""  # the value before, as far as a comma cut it
        # Merges first, whatever the order in the text: own keys then replace what they brought.
        for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].tag != _TAG + "merge"):
            if key_node.tag == _TAG + "merge":
                merged = self.merge(value_node, path) | merged
                continue
            if not isinstance(key_node, ScalarNode):
                self.mistake(key_node, path, "a key must be text")
                continue
            key = key_node.value
            here = (*path, key)
            if _cut(number, key_node, value_node):
                if not self.mistakes or "a comma ends a value" not in self.mistakes[-1]:
                    told = "write the number without commas, or the value in quotes"
                    self.mistake(key_node, path, f"a comma ends a value inside braces: {told}")
                continue
            number = value_node.value if isinstance(value_node, ScalarNode) else ""
            if key in result:
                first = self.tree.keys[here].line
                self.mistake(key_node, here, f"duplicate key, already given in line {first}")
                continue
            self.forget(here)
            self.tree.keys[here] = self.at(key_node)
            result[key] = self.build(value_node, here)
        return merged | result

    def merge(self, node: Node, path: KeyPath) -> dict[str, Any]:
        """Entries merged by `<<: *anchor` or `<<: [*a, *b]`; earlier ones win, own keys win over all."""
        sources = list(reversed(node.value)) if isinstance(node, SequenceNode) else [node]
        result: dict[str, Any] = {}
        if self.merging > MAX_DEPTH:
            raise InputError([f"{self.at(node)}: an alias contains itself"])
        self.merging += 1
        for source in sources:
            if not isinstance(source, MappingNode):
                self.mistake(node, path, "'<<' needs a section or a list of sections")
                continue
            result |= self.mapping(source, path)
        self.merging -= 1
        return result

    def forget(self, path: KeyPath) -> None:
        """Drop places that a merge left below `path`, so that an own key's places stand alone."""
        if self.tree.values.pop(path, None) is not None:
            self.tree.keys.pop(path, None)
            for part in self.parts.pop(path, ()):
                self.forget(part)

    def scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        """A text, number, truth value or nothing."""
        text, tag = node.value, node.tag.removeprefix(_TAG)
        if tag == "str":
            return text
        if tag in _PATTERN and _PATTERN[tag].fullmatch(text) is None:  # of an explicit tag, as in !!int "1_0"
            return self.mistake(node, path, f"{text[:40]!r} is not {_NOUN[tag]}")
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        try:
            if tag == "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if tag == "float":
                value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                return value if math.isfinite(value) else self.mistake(node, path, f"{text} is not a finite number")
        except ValueError:
            return self.mistake(node, path, f"{text[:40]!r} is not a number")
        return self.mistake(node, path, f"tag {tag!r} is not allowed")

    def mistake(self, node: Node, path: KeyPath, problem: str) -> None:
        """Note what is wrong at a node."""
        name = ".".join(str(part) for part in path)
        self.mistakes.append(f"{self.at(node)}: {name + ': ' if name else ''}{problem}")

    def at(self, node: Node) -> Place:
        """Where a node stands in the text."""
        return Place(self.source, node.start_mark.line + 1, node.start_mark.column + 1)
