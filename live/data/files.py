"""A data set of files on a store, fetched ahead with fsspec into a folder of the rank.

    data = ShardDataset("s3://bucket/train", cache="/local/cache", cache_bytes=200e9, decode=decode)
    loader = DataLoader(data, batch_sampler=runtime.sampler(data))

Samples are numbered file by file in the index's order. The index is that of wids (WebDataset): `{"shardlist": [{"url",
"nsamples", "filesize", "md5sum"}, ...]}`, of which md5sum may be left out; URLs are relative to it or whole.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import tarfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import torch.utils.data
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.live.data.movement import FileReport
from equipoise.live.rules import Count, Positive, Whole, follow
from equipoise.policies.observation import Ints

Sample = dict[str, Any]
Samples = Sequence[Any]
"""The samples of an open file, by position."""

_CHUNK_BYTES = 1 << 18
_POLL_S = 0.02
_BACK_OFF_S = 0.2  # before the second attempt; doubled each time
_OPEN_MOST = 4  # files whose tables of contents a process keeps


class ShardError(RuntimeError):
    """A file or an index that cannot be fetched or read; one line that names it and the reason."""


@dataclass(frozen=True)
class FetchOptions:
    """How files are fetched; see `ShardDataset`. Raises ValueError for what is not allowed."""

    cache_bytes: Positive
    prefetch: Whole
    connections: Annotated[Count, Field(le=64)]
    retries: Annotated[Whole, Field(le=20)]
    stalled_s: Positive

    def __post_init__(self) -> None:
        follow(self)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)
    url: str
    nsamples: Annotated[int, Field(ge=1)]
    filesize: Annotated[int, Field(ge=1)]
    md5sum: str | None = None


class _Index(BaseModel):
    shardlist: list[_Entry] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of samples."""

    url: str
    samples: int
    size_bytes: int
    md5: str | None
    store: int  # number of its store: 0 is that of the index

    def key(self) -> str:
        """Its name in the cache; a changed file has a different one."""
        told = json.dumps([self.url, self.samples, self.size_bytes, self.md5])
        return hashlib.sha256(told.encode()).hexdigest()[:32]


def _opened(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """(fsspec file system, path on it) of a URL. Raises ShardError if the store cannot be opened."""
    try:
        import fsspec.core
    except ImportError:
        raise ShardError(f"{url}: files on a store need fsspec: pip install 'equipoise[live]'") from None
    try:
        return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise ShardError(f"{url}: {error}") from None


def read_index(root: str, options: Mapping[str, Any]) -> list[Shard]:
    """The files that the index of `root` lists: a folder with an index.json, or the index itself. Raises ShardError."""
    where = root if root.endswith(".json") else f"{root.rstrip('/')}/index.json"
    system, path = _opened(where, options)
    try:
        entries = _Index.model_validate_json(system.cat_file(path)).shardlist
    except FileNotFoundError:
        raise ShardError(f"{where}: not found; `widsindex create` of webdataset makes one") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ShardError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except OSError as error:
        raise ShardError(f"{where}: {error}") from None
    base, stores = where.rpartition("/")[0], dict[str, int]()
    found = []
    for entry in entries:
        parts = urlsplit(entry.url) if "://" in entry.url else None
        store = 0 if parts is None else stores.setdefault(parts.netloc, len(stores) + 1)
        url = f"{base}/{entry.url}" if parts is None else entry.url
        found.append(Shard(url, entry.nsamples, entry.filesize, entry.md5sum, store))
    return found


class TarSamples(Sequence[Sample]):
    """Members of a tar file with the same name up to the first dot are one sample, in the file's order."""

    def __init__(self, path: Path) -> None:
        """Raises TarError, EOFError or OSError for a file that is no tar file, or cut off."""
        self._file = path.open("rb")
        members: dict[str, list[tuple[str, int, int]]] = {}
        with tarfile.open(fileobj=self._file, mode="r:") as archive:
            for member in archive:
                if member.isfile():
                    folder, slash, base = member.name.rpartition("/")
                    key, _, extension = base.partition(".")
                    parts = members.setdefault(folder + slash + key, [])
                    parts.append((extension, member.offset_data, member.size))
        self._samples = list(members.items())

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: Any) -> Any:
        key, parts = self._samples[number]
        descriptor = self._file.fileno()
        return {"__key__": key, **{extension: os.pread(descriptor, size, at) for extension, at, size in parts}}


def open_samples(path: Path, name: str) -> Samples:
    """The samples of a fetched file: those of a tar file, or the whole file as one. Raises ShardError."""
    if name.endswith((".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")):
        raise ShardError(f"{name}: a compressed tar file has no random access; unpack it to .tar")
    if not name.endswith(".tar"):
        key, _, extension = name.rpartition("/")[2].partition(".")
        return [{"__key__": key, extension or "data": path.read_bytes()}]
    try:
        return TarSamples(path)
    except FileNotFoundError:
        raise
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ShardError(f"{name}: not a tar file, or truncated: {error}") from None


class ShardDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """The samples of the files that an index lists; a `live.data.movement.FileData`."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str],
        cache_bytes: float,
        decode: Callable[[Any], Any] | None = None,
        opens: Callable[[Path, str], Samples] = open_samples,
        prefetch: int = 2,
        connections: int = 1,
        retries: int = 4,
        stalled_s: float = 60.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`root`: a folder with an index, or the index file, on any store that fsspec reads. It may differ by rank.

        cache, cache_bytes   folder on a local disk, in which each rank has one of its own, and the limit of each
        decode               makes a sample from its raw parts; default: the parts
        opens                makes the samples of a fetched file (path, name), by position; default: tar, or one sample
        prefetch             files to fetch ahead; connections: files that a rank fetches concurrently
        retries              attempts after a failed one; stalled_s: longest wait without any bytes
        storage_options      for fsspec: credentials, endpoints

        Raises ValueError for an option that is not allowed, ShardError for an index or store that cannot be read.
        """
        self.fetching = FetchOptions(cache_bytes, prefetch, connections, retries, stalled_s)
        self.prefetch, self.decode, self.opens = self.fetching.prefetch, decode, opens
        self._options = dict(storage_options or {})
        self.shards = read_index(os.fspath(root), self._options)
        largest = max(self.shards, key=lambda shard: shard.size_bytes)
        if 2 * largest.size_bytes > self.fetching.cache_bytes:
            raise ValueError(
                f"cache_bytes: {self.fetching.cache_bytes:.0f} is not allowed; needed: two files of the largest size "
                f"({largest.size_bytes} bytes, {largest.url})"
            )
        self.sizes: Ints = np.array([shard.samples for shard in self.shards], dtype=np.int64)
        self.size_bytes = np.array([shard.size_bytes for shard in self.shards], dtype=np.float64)
        self.store: Ints = np.array([shard.store for shard in self.shards], dtype=np.int64)
        named = [(s.url.rpartition("/")[2], s.samples, s.size_bytes, s.md5) for s in self.shards]
        self.digest = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
        self._ends = np.cumsum(self.sizes)
        self.folder = Path(cache) / f"rank-{os.environ.get('LOCAL_RANK', '0')}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._places = [self.folder / shard.key() for shard in self.shards]
        self._waited_s = multiprocessing.RawValue("d", 0.0)  # shared with its loader's worker processes
        self._owner = 0  # the process that fetches
        self._begin()

    def _begin(self) -> None:
        self._open: OrderedDict[int, Samples] = OrderedDict()
        self._lock = threading.Lock()
        self._wanted: tuple[int, ...] = ()
        self._jobs: dict[int, Future[None]] = {}  # of files that are here, coming, or could not be fetched
        self._fetches: list[tuple[int, float, float, float]] = []

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_lock", "_pool", "_jobs", "_open")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __getitem__(self, index: int) -> Any:
        """One sample, after waiting for its file. Raises ShardError if that cannot be fetched or read."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        if number not in self._open:
            self._open[number] = self._opened(number)
            if len(self._open) > _OPEN_MOST:
                self._open.popitem(last=False)
        sample = self._open[number][index - int(self._ends[number] - self.sizes[number])]
        return sample if self.decode is None else self.decode(sample)

    def _opened(self, number: int) -> Samples:
        """The samples of a file, which the process of the training fetches; without a training job, this one."""
        shard, place, began_s = self.shards[number], self._places[number], time.time()
        if self._owner in (0, os.getpid()) and number not in self._wanted:
            self.want((number, *self._wanted))
        while True:
            if place.exists():
                try:
                    found = self.opens(place, shard.url)
                    break
                except FileNotFoundError:  # deleted just now, and wanted again
                    continue
            if (error := _beside(place, ".error")).exists():
                raise ShardError(error.read_text(encoding="utf-8"))
            if time.time() - max(began_s, _touched_s(_beside(place, ".part"))) > self.fetching.stalled_s:
                raise ShardError(f"{shard.url}: no bytes received for {self.fetching.stalled_s:g} s")
            time.sleep(_POLL_S)
        self._waited_s.value += time.time() - began_s
        if len(found) != shard.samples:
            raise ShardError(f"{shard.url}: has {len(found)} samples, the index lists {shard.samples}")
        return found

    def want(self, files: Sequence[int]) -> None:
        """See `FileData`; of those that exceed the cache's limit, the last are left out."""
        with self._lock:
            if self._owner != os.getpid():
                self._start()
            fits = int((np.cumsum(self.size_bytes[list(files)]) <= self.fetching.cache_bytes).sum())
            before, self._wanted = self._wanted, tuple(files[: max(1, fits)])
            for number, job in list(self._jobs.items()):
                again = number in self._wanted and (number not in before or number == self._wanted[0])
                if job.cancel() or (again and job.done() and job.exception() is not None):
                    del self._jobs[number]
            self._make_room()
            for number in self._wanted:
                if number not in self._jobs:
                    _beside(self._places[number], ".error").unlink(missing_ok=True)
                    self._jobs[number] = self._pool.submit(self._bring, number)

    def _make_room(self) -> None:
        """Delete files that are not wanted, those first that came first, as far as the wanted ones need their room."""
        free = self.fetching.cache_bytes - float(self.size_bytes[list({*self._jobs, *self._wanted})].sum())
        for number in [n for n, job in self._jobs.items() if n not in self._wanted and job.done()]:
            if free < 0:
                del self._jobs[number]
                self._places[number].unlink(missing_ok=True)
                free += float(self.size_bytes[number])

    def _start(self) -> None:
        """Take over what an earlier process left in the folder."""
        for left in (*self.folder.glob("*.part"), *self.folder.glob("*.error")):
            left.unlink(missing_ok=True)
        for number, place in enumerate(self._places):
            if place.exists() and place.stat().st_size == self.size_bytes[number]:
                self._jobs[number] = Future()
                self._jobs[number].set_result(None)
        self._pool = ThreadPoolExecutor(self.fetching.connections, thread_name_prefix="equipoise-fetch")
        self._owner = os.getpid()

    def report(self) -> FileReport:
        """See `FileData`."""
        with self._lock:
            fetches, self._fetches = self._fetches, []
            here, coming = np.zeros((2, len(self.shards)), dtype=np.bool_)
            for number, job in self._jobs.items():
                here[number] = job.done() and job.exception() is None
                coming[number] = job.running()
        waited_s, self._waited_s.value = self._waited_s.value, 0.0
        return FileReport(float(waited_s), fetches, here, coming)

    def close(self) -> None:
        """Stop fetching."""
        with self._lock:
            if self._owner == os.getpid():
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._owner, self._wanted = 0, ()

    def _bring(self, number: int) -> None:
        """Fetch a file. Raises ShardError after the last attempt, which other processes find beside its place."""
        shard, place = self.shards[number], self._places[number]
        part = _beside(place, ".part")
        for attempt in range(self.fetching.retries + 1):
            try:
                self._copy(number, part)
                os.replace(part, place)
                return
            except Exception as error:
                part.unlink(missing_ok=True)
                if number not in self._wanted:
                    raise
                gone = isinstance(error, FileNotFoundError)
                text = "no longer exists" if gone else " ".join(str(error).split()) or type(error).__name__
            if attempt < self.fetching.retries:
                time.sleep(_BACK_OFF_S * 2**attempt)
        why = f"{shard.url}: {text} ({self.fetching.retries + 1} attempts)"
        _beside(place, ".error").write_text(why, encoding="utf-8")
        raise ShardError(why)

    def _copy(self, number: int, part: Path) -> None:
        """Copy a file from its store, whole. Raises ShardError for another content than the index lists."""
        shard, checksum = self.shards[number], hashlib.md5(usedforsecurity=False)
        system, path = _opened(shard.url, self._options)
        streams = {"block_size": 0} if shard.url.startswith(("http://", "https://")) else {}
        began_s, first_s, first, done = time.perf_counter(), 0.0, 0, 0
        with system.open(path, "rb", **streams) as source, part.open("wb", buffering=0) as target:
            while done <= shard.size_bytes and (chunk := source.read(_CHUNK_BYTES)):
                if not done:
                    first, first_s = len(chunk), time.perf_counter() - began_s
                done += len(chunk)
                target.write(chunk)
                checksum.update(chunk)
                if number not in self._wanted:
                    raise ShardError("not wanted any more")
        if done != shard.size_bytes:
            got = f"{done} bytes received" if done < shard.size_bytes else "more bytes received"
            raise ShardError(f"{got}, the index lists {shard.size_bytes}: truncated, or changed since")
        if shard.md5 not in (None, checksum.hexdigest()):
            raise ShardError("content differs from the index (md5): damaged, or changed since")
        took_s = time.perf_counter() - began_s
        # The first chunk's time beyond the rate of the others is the delay.
        copying_s = min(took_s, (took_s - first_s) * done / (done - first)) if done > first else took_s
        self._fetches.append((shard.store, float(done), copying_s, took_s - copying_s))


def _beside(place: Path, suffix: str) -> Path:
    return place.with_name(place.name + suffix)


def _touched_s(path: Path) -> float:
    """When bytes were last written (`time.time()`); 0 if there is no such file."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
