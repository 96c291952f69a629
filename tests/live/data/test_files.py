"""Files on a store: fetched whole or not at all, refused in one line, never more than the cache holds."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec")

from equipoise.live.data import files
from equipoise.live.data.files import ShardDataset, ShardError, read_index
from tests.live.data.store import tar_of, write_shards

SIZES = (3, 4, 2, 1)  # samples of files of 10240 bytes each


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_shards(tmp_path / "store", SIZES, 10)
    return tmp_path / "store"


def dataset(root: Path, **options: Any) -> ShardDataset:
    return ShardDataset(root, cache=root.parent / "cache", **{"cache_bytes": 1e6, **options})


def taken_bytes(data: ShardDataset) -> int:
    return sum(path.stat().st_size for path in data.folder.iterdir())


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
def test_a_file_that_is_not_what_the_index_says_is_refused_in_one_line(
    root: Path, harm: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BACK_OFF_S", 0.0)
    harm(root / "001.tar")
    data = dataset(root, retries=1)
    with pytest.raises(ShardError, match=said) as refused:
        data[SIZES[0]]
    assert "\n" not in str(refused.value)
    assert not data._places[1].exists()
    data.close()


def test_a_store_that_breaks_off_is_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, failures, opened = dataset(root, retries=2), iter([OSError("reset"), OSError("reset")]), files._opened

    def flaky(url: str, options: Any) -> Any:
        error = next(failures, None)
        if error is not None:
            raise error
        return opened(url, options)

    monkeypatch.setattr(files, "_opened", flaky)
    monkeypatch.setattr(files, "_BACK_OFF_S", 0.0)
    assert data[SIZES[0]]["id"] == b"3"
    ((store, size_bytes, _, _),) = data.report().fetches
    assert (store, size_bytes) == (0, 10240)
    data.close()


def test_samples_are_numbered_file_by_file_and_the_cache_stays_within_its_limit(root: Path) -> None:
    data = dataset(root, cache_bytes=2 * 10240, decode=lambda sample: int(sample["id"]))
    for k in range(len(data)):
        assert data[k] == k
        assert taken_bytes(data) <= 2 * 10240
    data.close()
    again = dataset(root, cache_bytes=2 * 10240)
    again.want([3])
    assert again.report().here[3]  # from the folder, without the store
    again.close()
    with pytest.raises(ValueError, match="cache_bytes: 20479 is not allowed; needed: two files of the largest"):
        dataset(root, cache_bytes=2 * 10240 - 1)


def test_a_file_that_went_to_another_rank_is_fetched_no_further(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, opened = threading.Event(), threading.Event(), files._opened

    class Held:
        """A file on a store, of which the first bytes come when the test says so."""

        def __init__(self, system: Any) -> None:
            self.system = system

        def open(self, *arguments: Any, **named: Any) -> Any:
            begun.set()
            assert goes_on.wait(30)
            return self.system.open(*arguments, **named)

    data = dataset(root)
    monkeypatch.setattr(files, "_opened", lambda url, options: (Held((got := opened(url, options))[0]), got[1]))
    data.want([1, 2])
    assert begun.wait(30)
    assert data.report().coming.tolist() == [False, True, False, False]
    data.want([2])
    goes_on.set()
    for _ in range(500):
        if (found := data.report()).here[2]:
            break
        time.sleep(0.02)
    assert found.here.tolist() == [False, False, True, False]
    data.close()


def test_a_store_that_stands_still_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(root, stalled_s=0.2)
    monkeypatch.setattr(files, "_opened", lambda url, options: time.sleep(30))
    with pytest.raises(ShardError, match=r"000.tar: no bytes received for 0.2 s$"):
        data[0]
    data.close()


def one_file(folder: Path, name: str, content: bytes, samples: int) -> Path:
    (folder / name).write_bytes(content)
    entry = {"url": name, "nsamples": samples, "filesize": len(content)}
    (folder / "index.json").write_text(json.dumps({"shardlist": [entry]}))
    return folder


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tar", b"no tar file" * 100, "a.tar: not a tar file, or truncated"),
        ("a.tar.gz", b"x", "a.tar.gz: a compressed tar file has no random access; unpack it to .tar"),
        ("a.tar", tar_of({"1": {"t": b"a"}}), "a.tar: has 1 samples, the index lists 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    data = dataset(one_file(tmp_path, name, content, 2))
    with pytest.raises(ShardError, match=said):
        data[0]
    data.close()


def test_what_a_sample_is(tmp_path: Path) -> None:
    content = tar_of({"x/1": {"txt": b"a", "seg.png": b"b"}, "2": {"txt": b"c"}})
    data = dataset(one_file(tmp_path, "a.tar", content, 2))
    assert [data[k] for k in range(2)] == [
        {"__key__": "x/1", "txt": b"a", "seg.png": b"b"},
        {"__key__": "2", "txt": b"c"},
    ]
    picture = dataset(one_file(tmp_path, "b.jpg", b"picture", 1))
    assert picture[0] == {"__key__": "b", "jpg": b"picture"}
    rows = dataset(one_file(tmp_path, "c.rows", b"3 4", 2), opens=lambda path, name: path.read_text().split())
    assert [rows[k] for k in range(2)] == ["3", "4"]
    for made in (data, picture, rows):
        made.close()


def entry(url: str = "a.tar", samples: Any = 3, size: Any = 40, **more: Any) -> dict[str, Any]:
    return {"url": url, "nsamples": samples, "filesize": size, **more}


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("{", ""),
        ({"shards": []}, "shardlist: "),
        ({"shardlist": []}, "shardlist: "),
        ({"shardlist": [entry(), 3]}, "shardlist.1: "),
        ({"shardlist": [{"nsamples": 3, "filesize": 4}]}, "shardlist.0.url: "),
        ({"shardlist": [entry(samples=0)]}, "shardlist.0.nsamples: "),
        ({"shardlist": [entry(samples=True)]}, "shardlist.0.nsamples: "),
        ({"shardlist": [entry(), entry(size=None)]}, "shardlist.1.filesize: "),
        ({"shardlist": [entry(md5sum=7)]}, "shardlist.0.md5sum: "),
    ],
)
def test_an_index_that_is_not_sound_is_refused(content: Any, key: str, tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ShardError, match=f"^{tmp_path}/index.json: {key}"):
        read_index(str(tmp_path), {})


def test_where_files_lie(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"index\.json: not found"):
        read_index(str(tmp_path), {})
    with pytest.raises(ShardError, match=r"^nowhere://x/index.json: Protocol not known: nowhere"):
        read_index("nowhere://x", {})
    listed = [entry(), entry("http://one/b.tar"), entry("http://two/c.tar"), entry("http://one/d.tar")]
    (tmp_path / "index.json").write_text(json.dumps({"shardlist": listed}))
    found = read_index(str(tmp_path), {})
    assert [(s.url, s.store) for s in found][:2] == [(f"{tmp_path}/a.tar", 0), ("http://one/b.tar", 1)]
    assert [s.store for s in found] == [0, 1, 2, 1]
