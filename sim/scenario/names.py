"""What to say of a name that does not exist, however many there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 8
_COMPARED = 10_000  # names; comparing with each takes some 10 us


def alike(name: str, known: list[str]) -> list[str]:
    """Names that were probably meant, at most four: spelled nearly so, or longer ones that begin so (H100)."""
    listed = {one.lower(): one for one in reversed(known[:_COMPARED])}
    text = name[:100].lower().replace("-", "_").replace(" ", "_")
    found = [text] if text in listed else [one for one in listed if one.startswith(f"{text}_")][::-1]
    return [listed[one] for one in (found or difflib.get_close_matches(text, listed, n=1))][:4]


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was meant, else the first that there are; those of a set by the alphabet."""
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
