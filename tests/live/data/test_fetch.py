"""Fetching: whole or not at all, tried again, refused in one line, in the order asked for."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec")

from equipoise.live.data import fetch
from equipoise.live.data.cache import NodeCache
from equipoise.live.data.dataset import ShardDataset
from equipoise.live.data.fetch import Fetcher, Source
from equipoise.live.data.formats import ShardError
from equipoise.live.data.index import main, read_index
from tests.live.data.store import taken_bytes, tar_of, write_shards

SIZES = (3, 4, 2, 1)  # files of 10240 bytes each


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "store", SIZES, 10)
    return tmp_path / "store"


def source(root: Path, retries: int = 0, limit: int = 10**6) -> Source:
    return Source(NodeCache(root.parent / "cache", limit), read_index(str(root), {}), {}, retries)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-512])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def other(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut_off, r"001.tar: 9728 bytes received, the index lists 10240: truncated, or changed since \(2 attempts\)$"),
        (longer, r"001.tar: more bytes received, the index lists 10240: "),
        (other, r"001.tar: content differs from the index \(md5\): damaged, or changed since"),
        (Path.unlink, r"001.tar: no longer exists \(2 attempts\)$"),
    ],
)
def test_a_shard_that_is_not_what_the_index_says_is_refused_in_one_line(
    root: Path, harm: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_BACK_OFF_S", 0.0)
    harm(root / "001.tar")
    made = source(root, retries=1)
    with pytest.raises(ShardError, match=said) as refused:
        made.fetch(1, lambda: True)
    assert "\n" not in str(refused.value)
    assert taken_bytes(made.cache.folder) == 0


def test_a_store_that_breaks_off_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([OSError("reset"), OSError("reset")])
    opened = fetch.open_store

    def flaky(url: str, options: Any) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return opened(url, options)

    slept: list[float] = []
    monkeypatch.setattr(fetch, "open_store", flaky)
    monkeypatch.setattr(fetch, "time", SimpleNamespace(sleep=slept.append, perf_counter=time.perf_counter))
    got = source(root, retries=2).fetch(1, lambda: True)
    assert slept == [0.2, 0.4]
    assert got is not None
    pin, fetched = got
    assert pin.path.read_bytes() == (root / "001.tar").read_bytes()
    assert fetched.size_bytes == pin.path.stat().st_size


def test_a_cache_full_of_others_files_says_so(root: Path) -> None:
    made = source(root, limit=10240)
    others = made.cache.reserve("others", 5000)
    assert others is not None
    fetcher = Fetcher(made, 1, 0.3)
    fetcher.want([0], [], 10240)
    with pytest.raises(ShardError, match=r"000.tar: no bytes received for 0.3 s: .*no room for 10240 bytes"):
        fetcher.wait(0)
    fetcher.close()


# -- what is in a shard --------------------------------------------------------------------------------------


def dataset(root: Path, **options: Any) -> ShardDataset:
    return ShardDataset(root, cache=root.parent / "cache", **{"cache_bytes": 1e6, **options})


def test_samples_are_numbered_shard_by_shard(root: Path) -> None:
    data = dataset(root, cache_bytes=3 * 10240, decode=lambda sample: int(sample["id"]))
    assert [data[k] for k in range(len(data))] == list(range(sum(SIZES)))
    assert taken_bytes(data.source.cache.folder) <= 3 * 10240


def test_an_index_is_made_of_tar_files_and_plain_ones(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "store" / "more").mkdir(parents=True)
    (tmp_path / "store" / "a.tar").write_bytes(tar_of({"x/1": {"txt": b"a", "seg.png": b"b"}, "2": {"txt": b"c"}}))
    (tmp_path / "store" / "more" / "b.jpg").write_bytes(b"picture")
    assert main([str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out.strip().endswith("index.json")
    data = dataset(tmp_path / "store")
    assert [data[k] for k in range(3)] == [
        {"__key__": "x/1", "txt": b"a", "seg.png": b"b"},
        {"__key__": "2", "txt": b"c"},
        {"__key__": "b", "jpg": b"picture"},
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tar", b"no tar file" * 100, "a.tar: not a tar file, or truncated"),
        ("a.tar.gz", b"x", "a.tar.gz: a compressed tar file has no random access; unpack it to .tar"),
        ("a.parquet", b"x", "a.parquet: "),
        ("a.tar", tar_of({"1": {"t": b"a"}}), "a.tar: has 1 samples, the index lists 2; make the index again"),
    ],
)
def test_a_shard_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    entry = {"url": name, "nsamples": 2, "filesize": len(content)}
    (tmp_path / "index.json").write_text(json.dumps({"shardlist": [entry]}))
    with pytest.raises(ShardError, match=said):
        dataset(tmp_path)[0]


def test_parquet_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"n": [1, 2], "text": ["a", "b"]}), out)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.parquet").write_bytes(out.getvalue())
    assert main([str(tmp_path / "store")]) == 0
    assert dataset(tmp_path / "store")[1] == {"n": 2, "text": "b"}


@pytest.mark.parametrize(("later", "fetched"), [({2}, 1), ({1, 2}, 2), (None, 2)])
def test_a_file_that_went_to_another_rank_is_fetched_no_further(
    root: Path, monkeypatch: pytest.MonkeyPatch, later: set[int] | None, fetched: int
) -> None:
    begun, goes_on, opened = threading.Event(), threading.Event(), fetch.open_store

    class Held:
        """A file on a store, of which the first bytes come when the test says so."""

        def __init__(self, url: str, options: Any) -> None:
            self.system, self.path = opened(url, options)

        def open(self, *arguments: Any, **named: Any) -> Any:
            begun.set()
            assert goes_on.wait(30)
            return self.system.open(*arguments, **named)

    def held(url: str, options: Any) -> Any:
        made = Held(url, options)
        return made, made.path

    monkeypatch.setattr(fetch, "open_store", held)
    monkeypatch.setattr(fetch, "_CHUNK_BYTES", 1024)
    made = Fetcher(source(root), 1, 30.0)
    made.want([], [1, 2], 10**6)
    assert begun.wait(30)
    made.want([], [2], 10**6, later)
    goes_on.set()
    made.wait(2)
    assert len(made.take()) == fetched
    held_here = set(made.source.cache.keys())
    assert (made.source.keys[1] in held_here) == (fetched == 2)
    assert made.busy() == []
    made.close()
