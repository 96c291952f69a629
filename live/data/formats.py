"""Formats of a shard: a WebDataset tar file, a Parquet file, or any other file, which is one sample.

A sample is a dict: for a tar file the parts by extension and `__key__`; for Parquet a row by column; for
any other file the content by extension, and `__key__`.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

Sample = dict[str, Any]
Read = Callable[[int], Sample]
"""Returns the sample of that number in an open shard."""


class ShardError(RuntimeError):
    """A shard or an index of shards that cannot be fetched or read; one line that names it and the reason."""


def open_shard(path: Path, name: str) -> tuple[Read, int]:
    """Open a local shard: (function that reads a sample, number of samples); `name` is used in errors.

    Raises ShardError for a truncated file or an unsupported format.
    """
    with path.open("rb") as file:
        return _open(file, path, name)


def count_samples(content: bytes, name: str) -> int:
    """Number of samples in a shard's content. Raises ShardError as `open_shard` does."""
    return _open(io.BytesIO(content), None, name)[1]


def _open(file: IO[bytes], path: Path | None, name: str) -> tuple[Read, int]:
    if name.endswith(".tar"):
        return _tar(file, path, name)
    if name.endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")):
        raise ShardError(f"{name}: a compressed tar file has no random access; unpack it to .tar")
    if name.endswith(".parquet"):
        return _parquet(file, path, name)
    key, _, extension = name.rpartition("/")[2].partition(".")

    def whole(_: int) -> Sample:
        """The file itself."""
        return {"__key__": key, extension or "data": path.read_bytes() if path is not None else b""}

    return whole, 1


def _tar(file: IO[bytes], path: Path | None, name: str) -> tuple[Read, int]:
    """Tar members with the same name up to the first dot are one sample, in the file's order."""
    samples: dict[str, list[tuple[str, int, int]]] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isfile():
                    folder, _, base = member.name.rpartition("/")
                    key, _, extension = base.partition(".")
                    full = f"{folder}/{key}" if folder else key
                    samples.setdefault(full, []).append((extension, member.offset_data, member.size))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ShardError(f"{name}: not a tar file, or truncated: {error}") from None
    file.seek(0, os.SEEK_END)
    if any(at + size > file.tell() for parts in samples.values() for _, at, size in parts):
        raise ShardError(f"{name}: truncated: its last sample extends beyond the file")
    ordered = list(samples.items())

    def read(number: int) -> Sample:
        """One sample's members."""
        key, parts = ordered[number]
        sample: Sample = {"__key__": key}
        assert path is not None
        with path.open("rb") as local:
            for extension, at, size in parts:
                local.seek(at)
                sample[extension] = local.read(size)
        return sample

    return read, len(ordered)


def _parquet(file: IO[bytes], path: Path | None, name: str) -> tuple[Read, int]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ShardError(f"{name}: a Parquet file needs pyarrow: pip install pyarrow") from None
    try:
        table = pyarrow.parquet.read_table(file) if path is not None else None
        rows = table.num_rows if table is not None else pyarrow.parquet.ParquetFile(file).metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise ShardError(f"{name}: not a Parquet file, or truncated: {error}") from None

    def read(number: int) -> Sample:
        """One row."""
        assert table is not None
        row: Sample = table.slice(number, 1).to_pylist()[0]
        return row

    return read, int(rows)
