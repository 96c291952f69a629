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

from equipoise.live.data import dataset as dataset_module
from equipoise.live.data import fetch
from equipoise.live.data.cache import NodeCache
from equipoise.live.data.dataset import ShardDataset
from equipoise.live.data.fetch import Fetched, Fetcher, Source
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


class Gated(Source):
    """Fetches only what the test lets through; says what was asked for."""

    def __init__(self, given: Source) -> None:
        self.__dict__.update(given.__dict__)
        self.asked: list[int] = []
        self.begun, self.through = threading.Semaphore(0), threading.Semaphore(0)

    def fetch(self, number: int, goes_on: Any) -> Any:
        self.asked.append(number)
        self.begun.release()
        assert self.through.acquire(timeout=20)
        return super().fetch(number, goes_on)


def test_what_is_wanted_first_is_fetched_first_also_when_the_order_changes(root: Path) -> None:
    gated = Gated(source(root))
    fetcher = Fetcher(gated, 1, 20.0)
    fetcher.want([3], [0, 1, 2], 10**6)
    assert gated.begun.acquire(timeout=20)  # 3 is on its way
    fetcher.want([3], [2, 1, 0], 10**6)  # the policy's order
    gated.through.release(4)
    for number in (3, 2, 1, 0):
        fetcher.wait(number)
    assert gated.asked == [3, 2, 1, 0]
    assert len(fetcher.take()) == 4
    fetcher.close()


def test_what_failed_ahead_is_tried_again_once_it_is_needed(root: Path) -> None:
    content = (root / "001.tar").read_bytes()
    (root / "001.tar").unlink()
    made = source(root)
    fetcher = Fetcher(made, 1, 20.0)
    fetcher.want([0], [1, 2], 10**6)
    fetcher.wait(0)
    while not (made.error(1) or "").endswith("no longer exists (1 attempts)"):
        threading.Event().wait(0.01)
    (root / "001.tar").write_bytes(content)
    fetcher.want([1], [2], 10**6)
    assert fetcher.wait(1).path.read_bytes() == content
    assert made.error(1) is None
    fetcher.close()


def test_nothing_is_held_beyond_the_quota_but_what_is_needed_now(root: Path) -> None:
    made = source(root, limit=2 * 10240)
    fetcher = Fetcher(made, 1, 20.0)
    fetcher.want([0], [1, 2], 2 * 10240)
    fetcher.wait(0)
    fetcher.wait(1)
    fetcher.want([3], [1, 2], 2 * 10240)
    fetcher.wait(3)
    assert taken_bytes(made.cache.folder) <= 2 * 10240
    assert fetcher._held.keys() == {1, 3}
    fetcher.close()
    held = made.cache.reserve("another", 2 * 10240)  # nothing is in use any more
    assert held is not None


def test_a_cache_full_of_others_files_says_so(root: Path) -> None:
    made = source(root, limit=10240)
    others = made.cache.reserve("others", 5000)
    assert others is not None
    fetcher = Fetcher(made, 1, 0.3)
    fetcher.want([0], [], 10240)
    with pytest.raises(ShardError, match=r"000.tar: no bytes received for 0.3 s: .*no room for 10240 bytes"):
        fetcher.wait(0)
    fetcher.close()


def test_the_first_chunk_came_at_the_rate_of_the_others(root: Path) -> None:
    shard = source(root).shards[0]
    timed = fetch._timed(shard, 1024, 0.9, 0.35)
    assert timed == Fetched(0, 10240, pytest.approx(1.0), pytest.approx(0.25))
    assert fetch._timed(shard, 10240, 0.0, 0.5) == Fetched(0, 10240, 0.5, 0.0)


# -- what is in a shard --------------------------------------------------------------------------------------


def dataset(root: Path, **options: Any) -> ShardDataset:
    return ShardDataset(root, cache=root.parent / "cache", **{"cache_bytes": 1e6, **options})


@pytest.mark.parametrize(("progress_s", "comes"), [(0.0, False), (100.0, True)])
def test_a_loaders_process_waits_while_bytes_come(
    root: Path, progress_s: float, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own process fetches nothing; the file is there after two looks, 3 s apart, or never."""
    data, now_s = dataset(root), [100.0]

    def sleep(_: float) -> None:
        now_s[0] += 3.0
        if comes and now_s[0] > 105.0:
            path.touch()

    monkeypatch.setattr(dataset_module, "time", SimpleNamespace(time=lambda: now_s[0], sleep=sleep))
    monkeypatch.setattr(data.source, "progress_s", lambda number: progress_s and now_s[0])
    data.stalled_s = 2.0
    path = data.source.cache.path(data.source.keys[1])
    if comes:
        assert data._fetched_by_trainer(1) == path
        return
    with pytest.raises(ShardError, match=r"001.tar: no bytes received for 2 s"):
        data._fetched_by_trainer(1)
    assert now_s == [103.0]


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
    ("content", "said"),
    [
        (None, "index.json: not found; make it with python -m equipoise.live.data.index"),
        ("{", "index.json: not an index of shards: "),
        ('{"shardlist": []}', "index.json: shardlist: needs a list of at least one shard"),
        ('{"shardlist": [{"url": "a.tar", "nsamples": 0, "filesize": 1}]}', r"\[0\].nsamples: 0 is not allowed"),
        ('{"shardlist": [{"nsamples": 1, "filesize": 1}]}', r"\[0\].url: a string is needed"),
    ],
)
def test_an_index_that_is_not_sound_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    with pytest.raises(ShardError, match=said):
        dataset(tmp_path)


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


@pytest.mark.parametrize(("option", "value"), [("cache_bytes", 0), ("prefetch", -1), ("connections", 0), ("decode", 3)])
def test_options_out_of_range_are_refused(root: Path, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option}: {value} is not allowed"):
        dataset(root, **{option: value})


def test_what_has_come_of_a_file_is_told_while_it_is_fetched(tmp_path: Path) -> None:
    size = 3 * fetch._CHUNK_BYTES
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "one.bin").write_bytes(bytes(size))
    assert main([str(tmp_path / "store")]) == 0
    made, seen = source(tmp_path / "store"), list[int]()

    def note() -> bool:
        seen.append(made.come_bytes())
        return True

    assert made.fetch(0, note) is not None
    assert seen == [size // 3, 2 * size // 3, size]
    assert made.come_bytes() == 0


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
