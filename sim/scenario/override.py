"""Changing a YAML tree from the command line: `dotted.key=value`, with errors that name the option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from equipoise.base.numerals import is_index
from equipoise.sim.scenario.tree import InputError, Key, KeyPath, Place, Tree, read_tree


def override(tree: Tree, assignment: str) -> None:
    """Set one value: `dotted.key=value`, list indices as numbers, value in YAML. Raises InputError.

    Sections that do not exist are made; at each level the longest existing key that matches is taken, so
    keys with dots in them can be reached.
    """
    source = f"--set {assignment}"
    try:  # in a locale without UTF-8 the bytes of an argument come one by one
        assignment = assignment.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        raise InputError([f"{source}: is not UTF-8 text"]) from None
    name, equals, text = assignment.partition("=")
    if not equals or not name.strip():
        raise InputError([f"{source}: write dotted.key=value"])
    try:
        value = read_tree(text, "").data if text.strip() else ""
    except InputError as error:
        raise InputError([f"{source}: {line.partition(': ')[2]}" for line in error.lines]) from error
    assign(tree, _path_of(tree, name.strip().split("."), source), value, Place(source))


def assign(tree: Tree, path: KeyPath, value: Any, place: Place) -> None:
    """Set the value at `path`, creating its sections; errors in it then refer to `place`."""
    holder = tree.data
    for key in path[:-1]:
        if isinstance(holder, dict) and not isinstance(holder.get(key), dict | list):
            holder[key] = {}
        holder = holder[key]
    holder[path[-1]] = value
    for places in (tree.keys, tree.values):
        for old in [p for p in places if p[: len(path)] == path]:
            del places[old]
    for inner in _paths(value, path):
        tree.keys[inner] = tree.values[inner] = place


def _paths(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from _paths(inner, (*path, key))


def _path_of(tree: Tree, parts: Sequence[str], source: str) -> KeyPath:
    """The key path of dotted parts."""
    path: KeyPath = ()
    holder: Any = tree.data
    while parts:
        key, parts = _next_key(holder, parts, source, path)
        path = (*path, key)
        holder = {} if isinstance(holder, dict) and not isinstance(holder.get(key), dict | list) else holder[key]
    return path


def _next_key(holder: Any, parts: Sequence[str], source: str, path: KeyPath) -> tuple[Key, list[str]]:
    if isinstance(holder, dict):
        for k in range(len(parts), 0, -1):
            if ".".join(parts[:k]) in holder:
                return ".".join(parts[:k]), list(parts[k:])
        return parts[0], list(parts[1:])
    if isinstance(holder, list):
        if is_index(parts[0]) and int(parts[0]) < len(holder):
            return int(parts[0]), list(parts[1:])
        allowed = f"0 to {len(holder) - 1}" if holder else "none, the list is empty"
        first = holder[0] if holder and isinstance(holder[0], dict) else {}
        if first and not is_index(parts[0]) and (len(parts) == 1 or parts[0] in first):
            meant = ".".join(map(str, (*path, 0, *parts)))
            raise InputError([f"{source}: {'.'.join(map(str, path))} is a list; did you mean {meant}?"])
        raise InputError([f"{source}: {'.'.join(map(str, path))}: no entry {parts[0]!r}; allowed: {allowed}"])
    raise InputError([f"{source}: {'.'.join(map(str, path)) or 'the file'} is not a section"])
