"""Lines of a text file, packed or not, in any of the encodings that such files come in."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from equipoise.base.regular import opened
from equipoise.formats.text.errors import FormatError
from equipoise.formats.text.tally import RowTally

CHUNK_BYTES = 1 << 20
MOST_BYTES = 8 << 30
"""Most of a file, unpacked: a packed file of zeros must not fill the memory."""

MOST_COLUMNS = 1 << 14
"""Most columns of a table, as many as a spreadsheet has: each costs memory and time, however short."""

_PACKED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_UTF8_MARK = b"\xef\xbb\xbf"


class TextFile:
    """A file (or the bytes of one) that can be read once. `name` is its name in error lines.

    head_bytes: reading ends after about so many, 0 for all of it.
    """

    def __init__(self, source: str | Path | bytes, name: str = "", head_bytes: int = 0) -> None:
        """Raises FormatError when the file cannot be opened, or is a device or a pipe."""
        self.name, self.head_bytes = called(source, name), head_bytes
        try:
            self._stream = _unpacked(_opened(source))
        except (OSError, ValueError) as error:
            raise self.error(0, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error

    def error(self, line: int, message: str) -> FormatError:
        """An error at a line of this file (0: the file as a whole)."""
        return FormatError(f"{self.name}:{line}: {message}" if line else f"{self.name}: {message}")

    def check_width(self, columns: int) -> None:
        """Raises FormatError for a table of too many columns."""
        if columns > MOST_COLUMNS:
            raise self.error(1, f"more than {MOST_COLUMNS:,} columns: not a table of jobs or nodes")

    def chunks(self, tally: RowTally) -> Iterator[tuple[int, list[str]]]:
        """(number of the first line, lines without their ends), some megabytes at a time.

        Lines end in LF, in CR LF, or all of them in a bare CR. A line that is not UTF-8 is read as Latin-1 and
        counted. Raises FormatError for damaged or binary data.
        """
        line = 1
        rest: list[bytes] = []
        bare = False
        for data in self._blocks():
            bare = bare or (line == 1 and not rest and b"\r" in data and b"\n" not in data)
            data = data.replace(b"\r", b"\n") if bare else data
            cut = data.rfind(b"\n") + 1
            if not cut:
                rest.append(data)
                continue
            lines = self._decoded(b"".join([*rest, data[: cut - 1]]), line, tally)
            rest = [data[cut:]] if cut < len(data) else []
            yield line, lines
            line += len(lines)
        if rest:
            yield line, self._decoded(b"".join(rest), line, tally)

    def text(self, tally: RowTally) -> str:
        """The whole file, lines joined by newlines. Raises FormatError."""
        return "\n".join(line for _, lines in self.chunks(tally) for line in lines)

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self._stream as stream:
                data = stream.read(CHUNK_BYTES)
                if data[:2] in _WIDE:
                    data = (data + stream.read()).decode(_WIDE[data[:2]]).encode()
                data = data.removeprefix(_UTF8_MARK)
                total = 0
                while data:
                    yield data
                    total += len(data)
                    if self.head_bytes and total >= self.head_bytes:
                        return
                    if total > MOST_BYTES:
                        raise self.error(0, f"larger than {MOST_BYTES} bytes when unpacked")
                    data = stream.read(CHUNK_BYTES)
        except UnicodeDecodeError as error:
            raise self.error(0, f"starts as UTF-16 text, byte {error.start} is not") from error
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise self.error(0, f"damaged or not readable: {error}") from error

    def _decoded(self, data: bytes, line: int, tally: RowTally) -> list[str]:
        if b"\0" in data:
            at = line + data[: data.index(b"\0")].count(b"\n")
            raise self.error(at, "holds a zero byte: binary data, not text")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        try:
            return data.decode().split("\n")
        except UnicodeDecodeError:
            return [_decoded_line(part, line + k, tally) for k, part in enumerate(data.split(b"\n"))]


def _decoded_line(data: bytes, line: int, tally: RowTally) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        tally.add("changed", "bytes that are not UTF-8 read as Latin-1", line)
        return data.decode("latin-1")


def called(source: str | Path | bytes, name: str = "") -> str:
    """The name of an input in error lines."""
    return name or ("<input>" if isinstance(source, bytes) else str(source))


def _opened(source: str | Path | bytes) -> IO[bytes]:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    return opened(Path(source))


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    start = raw.read(8)
    raw.seek(0)
    for magic, opener in _PACKED.items():
        if start.startswith(magic):
            return opener(raw, "rb")  # type: ignore[operator, no-any-return] # the three share this call
    return raw
