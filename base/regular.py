"""Reading of files named by the user: regular files only, up to a size limit."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

YAML_BYTES = 8_000_000
"""Most of a scenario, sweep, profile or price book."""

TABLE_BYTES = 256_000_000
"""Most of a job trace, unpacked: about eight million jobs."""

RECORD_BYTES = 1_000_000_000
"""Most of a profiled step, a member's record or a shard, unpacked."""

_GZIP = b"\x1f\x8b"


class RefusedError(ValueError):
    """The file is not a regular file or is too large; the message does not include its name."""


def read_file(path: Path, most_bytes: int) -> bytes:
    """Content of a regular file with a limit of bytes.

    Raises RefusedError for a device, a pipe or a larger file, OSError when it cannot be read.
    """
    with opened(path) as file:
        said_bytes = os.fstat(file.fileno()).st_size  # 0 of a file of the system's
        data = file.read(most_bytes + 1) if said_bytes <= most_bytes else b""
    if max(len(data), said_bytes) > most_bytes:
        raise RefusedError(f"larger than {most_bytes} bytes")
    return data


def opened(path: Path) -> BinaryIO:
    """A regular file to read from. Raises RefusedError for a device or a pipe, OSError when it cannot be read."""
    if "\0" in str(path):
        raise RefusedError("a file name cannot contain NUL")
    file = io.BufferedReader(_Regular(path, opener=_without_waiting))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RefusedError("not a regular file (a device or a pipe); write its output to a file")
    return file


class _Regular(io.FileIO):
    """A file that never blocks: a system file that waits for data (`/proc/kmsg`) raises OSError."""

    def readinto(self, buffer: WriteableBuffer) -> int:
        """As for a file, but raises OSError if no data is available yet."""
        found: int | None = super().readinto(buffer)
        return self._there(found)

    def readall(self) -> bytes:
        """As for a file, but raises OSError if no data is available yet."""
        found: bytes | None = super().readall()
        return self._there(found)

    def _there(self, found: T | None) -> T:
        if found is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(self.name))
        return found


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for somebody to write into a pipe


def read_unpacked(path: Path, most_bytes: int) -> bytes:
    """As `read_file`, but a gzip file is decompressed first, up to the same limit.

    Raises also gzip.BadGzipFile, EOFError or zlib.error for a damaged gzip file.
    """
    data = read_file(path, most_bytes)
    if data[:2] != _GZIP:
        return data
    with gzip.open(io.BytesIO(data)) as packed:
        data = packed.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise RefusedError(f"larger than {most_bytes} bytes when unpacked")
    return data
