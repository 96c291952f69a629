"""Messages on names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 8
_COMPARED = 10_000  # names; comparing with each takes some 10 us


def alike(name: str, known: list[str]) -> list[str]:
    """At most four similar names: nearly the same spelling, or longer names with this prefix (H100)."""
    listed = {one.lower(): one for one in reversed(known[:_COMPARED])}
    text = name[:100].lower().replace("-", "_").replace(" ", "_")
    found = [text] if text in listed else [one for one in listed if one.startswith(f"{text}_")][::-1]
    return [listed[one] for one in (found or difflib.get_close_matches(text, listed, n=1))][:4]


def nearest(name: str, known: Iterable[str]) -> str:
    """A phrase with similar names, else the first known names (those of a set sorted)."""
    listed = sorted(known) if isinstance(known, set | frozenset) else list(known)
    close = alike(name, listed)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f", ... ({len(listed)} in all)" if len(listed) > _LISTED else ""
    return f"known: {', '.join(listed[:_LISTED]) or 'none'}{more}"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One phrase on a name that does not exist, with the nearest that does."""
    shown = repr(name)
    return f"unknown {what} {shown if len(shown) <= 60 else shown[:57] + '...'}; {nearest(name, known)}"
