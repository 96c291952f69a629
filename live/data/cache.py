"""A node's cache of fetched shards: shared by all its processes, never larger than its limit.

A file is written under a temporary name and has its full size from the beginning, so that running fetches
count as well; it is renamed when complete. Locks (flock) mark files in use, and end with the process that holds
them: an unlocked temporary file was left by a dead process; an unlocked file may be evicted, the least
recently used first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.base.files import put_in_place

PART = ".part"
_LOCK = ".lock"


class NoRoomError(OSError):
    """The cache has no room for another file, because its files are in use."""


@dataclass(slots=True)
class Pin:
    """A lock on a file: it is not evicted before `release`."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Release the file; forked children that inherited the lock lose it as well."""
        if self.descriptor >= 0:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
            self.descriptor = -1


class NodeCache:
    """A folder on a local disk that holds at most `limit_bytes`, for any number of writing processes."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Raises OSError when the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.limit_bytes = folder, limit_bytes
        self._mine = threading.Lock()  # flock does not separate the threads of one process

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _mine=threading.Lock())

    def path(self, key: str) -> Path:
        """The path of the file with that key."""
        return self.folder / key

    def keys(self) -> set[str]:
        """Keys of all complete files."""
        return {e.name for e in os.scandir(self.folder) if not e.name.endswith(PART) and e.name != _LOCK}

    def fetching(self) -> int:
        """How many files the processes of this node are fetching now, at least 1."""
        return max(1, sum(e.name.endswith(PART) for e in os.scandir(self.folder)))

    def pin(self, key: str, size_bytes: int) -> Pin | None:
        """Lock a file in the cache; None if it is not there. A file of another size is damaged, and is deleted."""
        with self._locked():
            path = self.path(key)
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            if os.fstat(descriptor).st_size != size_bytes:
                os.close(descriptor)
                path.unlink()
                return None
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            os.utime(path)
            return Pin(path, descriptor)

    def reserve(self, key: str, size_bytes: int) -> Pin | None:
        """Reserve room for a file, locked for writing; None if it is there or another process fetches it.

        Raises NoRoomError when too much is in use.
        """
        with self._locked():
            part = self.path(key + PART)
            if self.path(key).exists() or (part.exists() and not _abandoned(part)):
                return None
            self._make_room(size_bytes)
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.truncate(descriptor, size_bytes)
            return Pin(part, descriptor)

    def commit(self, part: Pin) -> Pin:
        """Rename a complete file to its final name; it stays locked."""
        with self._locked():
            path = part.path.with_name(part.path.name.removesuffix(PART))
            put_in_place(part.path, path)
            fcntl.flock(part.descriptor, fcntl.LOCK_SH)
            return Pin(path, part.descriptor)

    def discard(self, part: Pin) -> None:
        """Delete an incomplete file."""
        with self._locked():
            part.path.unlink(missing_ok=True)
            part.release()

    def _files(self) -> list[tuple[float, int, Path]]:
        """(last use, bytes, path) of everything in the folder."""
        found = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
        return found

    def _make_room(self, size_bytes: int) -> None:
        files = sorted(self._files())
        free = self.limit_bytes - sum(size for _, size, _ in files)
        going = list[Path]()
        for _, size, path in files:
            if free >= size_bytes:
                break
            if path.name != _LOCK and _abandoned(path):
                going.append(path)
                free += size
        if free < size_bytes:  # evicting would not be enough
            raise NoRoomError(
                f"{self.folder}: no room for {size_bytes} bytes, the rest of its {self.limit_bytes} bytes is in use"
            )
        for path in going:
            path.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive access to the folder among all threads and processes of the node."""
        with self._mine:
            descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def _abandoned(path: Path) -> bool:
    """Whether no process holds the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
