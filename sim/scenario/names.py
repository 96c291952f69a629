"""What to say of a name that does not exist, however many there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 8
_COMPARED = 10_000  # names; comparing with each takes some 10 us


def nearest(name: str, known: Iterable[str]) -> str:
    """The name that was meant, else the first that there are; those of a set by the alphabet."""
    listed = sorted(known) if isinstance(known, set | frozenset) else list(known)
    close = difflib.get_close_matches(name[:100], listed[:_COMPARED], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f", ... ({len(listed)} in all)" if len(listed) > _LISTED else ""
    return f"known: {', '.join(listed[:_LISTED]) or 'none'}{more}"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One phrase on a name that does not exist, with the nearest that does."""
    shown = repr(name)
    return f"unknown {what} {shown if len(shown) <= 60 else shown[:57] + '...'}; {nearest(name, known)}"
