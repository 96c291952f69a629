"""The shards of a data set: `python -m equipoise.live.data.index ROOT` counts them once and writes ROOT/index.json.

The index is that of wids (WebDataset): `{"shardlist": [{"url", "nsamples", "filesize", "md5sum"}, ...]}`, of which
md5sum may be left out. URLs are relative to the index or whole, on any store that fsspec reads.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import urlsplit

from equipoise.base.json_values import from_json
from equipoise.live.data.formats import ShardError, count_samples

INDEX = "index.json"
_KIND = "wids-shard-index-v1"


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of samples."""

    url: str
    samples: int
    size_bytes: int
    md5: str | None
    store: int  # number of its store: 0 is that of the index

    def key(self) -> str:
        """Its name in a cache; a changed file has a different key."""
        return hashlib.sha256(json.dumps(astuple(self)[:4]).encode()).hexdigest()[:32] + _suffix(self.url)


def open_store(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """(fsspec file system, path on it) of a URL. Raises ShardError if the store cannot be opened."""
    try:
        import fsspec.core
    except ImportError:
        raise ShardError(f"{url}: file shards need fsspec: pip install 'equipoise[live]'") from None
    try:
        return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:
        raise ShardError(f"{url}: {error}") from None


def read_index(root: str, options: Mapping[str, Any]) -> list[Shard]:
    """The shards that the index of `root` (a folder, or the index itself) lists.

    Raises ShardError, which names the place, for a missing or invalid index.
    """
    where = root if root.endswith(".json") else f"{root.rstrip('/')}/{INDEX}"
    system, path = open_store(where, options)
    try:
        entries = from_json(system.cat_file(path))["shardlist"]
    except FileNotFoundError:
        raise ShardError(f"{where}: not found; make it with python -m equipoise.live.data.index {root}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{where}: not an index of shards: {type(error).__name__}: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise ShardError(f"{where}: shardlist: needs a list of at least one shard")
    base = where.rpartition("/")[0]
    for k, entry in enumerate(entries):
        _check(entry, f"{where}: shardlist[{k}]")
    urls = [e["url"] if "://" in e["url"] else f"{base}/{e['url']}" for e in entries]
    elsewhere = sorted({_netloc(url) for e, url in zip(entries, urls, strict=True) if "://" in e["url"]})
    stores = {name: k for k, name in enumerate(elsewhere, start=1)}
    numbers = [stores[_netloc(url)] if "://" in e["url"] else 0 for e, url in zip(entries, urls, strict=True)]
    return [
        Shard(url, e["nsamples"], e["filesize"], e.get("md5sum"), store)
        for e, url, store in zip(entries, urls, numbers, strict=True)
    ]


def digest(shards: Sequence[Shard]) -> str:
    """Hash of the shards, by which ranks and runs check that their data is equal; URLs may differ."""
    told = [(_name(s.url), s.samples, s.size_bytes, s.md5) for s in shards]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _check(entry: Any, where: str) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        raise ShardError(f"{where}.url: a string is needed")
    for key in ("nsamples", "filesize"):
        value = entry.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ShardError(f"{where}.{key}: {value!r} is not allowed; needed: a whole number of at least 1")
    if not isinstance(entry.get("md5sum"), str | None):
        raise ShardError(f"{where}.md5sum: needs a string, or may be left out")


def _netloc(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _suffix(url: str) -> str:
    name = _name(url)
    return name[name.index(".") :] if "." in name.lstrip(".") else ""


def make_index(root: str, options: Mapping[str, Any]) -> str:
    """Read every shard below `root` once and write its index there; returns the index's URL.

    Raises ShardError for a folder without files, and for a file that cannot be counted.
    """
    system, base = open_store(root, options)
    entries = []
    for path in sorted(system.find(base)):
        if _name(path) == INDEX or _name(path).startswith("."):
            continue
        content = system.cat_file(path)
        name = path[len(base) :].lstrip("/")
        entries.append(
            {
                "url": name,
                "nsamples": count_samples(content, name),
                "filesize": len(content),
                "md5sum": hashlib.md5(content, usedforsecurity=False).hexdigest(),
            }
        )
    if not entries:
        raise ShardError(f"{root}: no files")
    where = f"{base.rstrip('/')}/{INDEX}"
    system.pipe_file(where, json.dumps({"__kind__": _KIND, "shardlist": entries}, indent=1).encode())
    return where


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m equipoise.live.data.index ROOT", file=sys.stderr)
        return 2
    try:
        print(make_index(arguments[0], {}))
    except (ShardError, OSError) as error:
        print(f"equipoise: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
