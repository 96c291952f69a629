"""A failing input made smaller, as long as it fails alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import yaml

from tests.fuzz.grammar import dumped, places


def shrunk(text: str, fails: Callable[[str], bool], seconds: float = 60.0) -> str:
    """The smallest text found in that time of which `fails` still says so: parts of the data go, then lines."""
    until_s = time.monotonic() + seconds
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        tree = None
    if isinstance(tree, dict) and fails(dumped(tree)):
        text = dumped(_smaller(tree, lambda data: fails(dumped(data)), until_s))
    return _fewer_lines(text, fails, until_s)


def _smaller(tree: Any, fails: Callable[[Any], bool], until_s: float) -> Any:
    again = True
    while again:
        again = False
        for path in sorted(places(tree), key=len):
            less = copy.deepcopy(tree)
            holder = less
            try:
                for key in path[:-1]:
                    holder = holder[key]
                del holder[path[-1]]
            except (KeyError, IndexError, TypeError):
                continue  # a part of what has just gone
            if time.monotonic() > until_s:
                return tree
            if fails(less):
                tree, again = less, True
    return tree


def _fewer_lines(text: str, fails: Callable[[str], bool], until_s: float) -> str:
    lines = text.splitlines(keepends=True)
    width = len(lines) // 2
    while width:
        k = 0
        while k < len(lines) and time.monotonic() < until_s:
            less = lines[:k] + lines[k + width :]
            if fails("".join(less)):
                lines = less
            else:
                k += width
        width //= 2
    return "".join(lines)
