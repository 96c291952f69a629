"""Atomic writing of files: a file appears complete or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def draft_of(target: Path) -> Path:
    """The absolute path of the temporary file for `target`, in the same folder."""
    return target.absolute().with_name(f".{target.name}.{os.getpid()}")


def check_regular(path: Path | str) -> None:
    """Raises OSError for a device or a pipe, which might never end."""
    if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file (a device or a pipe)", str(path))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Gives the draft of `target` to write to; it takes its place at the end, and goes when anything is raised.

    Raises OSError that names `target`, not the draft, where it cannot be written.
    """
    draft = draft_of(target)
    try:
        with _naming_the_target(draft, target):
            yield draft
        put_in_place(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def put_in_place(draft: Path, target: Path) -> None:
    """Move a complete temporary file to `target`, replacing an older file. Raises OSError that names `target`."""
    with _naming_the_target(draft, target):
        os.replace(draft, target)


@contextmanager
def _naming_the_target(draft: Path, target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(draft)):
            error.filename, error.filename2 = str(target), None
        raise


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An OSError that is raised inside without a name (disk full) names the file `path`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8. Raises OSError that names it."""
    with replacing(target) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
