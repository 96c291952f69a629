"""The index of a data set: which shards there are, where they lie, and what is wrong with one, in one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

from equipoise.live.data.formats import ShardError
from equipoise.live.data.index import main, read_index
from tests.live.data.store import tar_of


def entry(url: str = "a.tar", samples: Any = 3, size: Any = 40, **more: Any) -> dict[str, Any]:
    return {"url": url, "nsamples": samples, "filesize": size, **more}


def written(folder: Path, content: Any, name: str = "index.json") -> str:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not an index of shards: "),
        ({"shards": []}, "not an index of shards: KeyError: 'shardlist'"),
        ([3], "not an index of shards: TypeError: "),
        ({"shardlist": []}, "shardlist: needs a list of at least one shard"),
        ({"shardlist": {"a": 1}}, "shardlist: needs a list of at least one shard"),
        ({"shardlist": [entry(), 3]}, r"shardlist\[1\].url: a string is needed"),
        ({"shardlist": [{"nsamples": 3}]}, r"shardlist\[0\].url: a string is needed"),
        ({"shardlist": [entry(samples=0)]}, r"shardlist\[0\].nsamples: 0 is not allowed; needed: a whole number"),
        ({"shardlist": [entry(samples=True)]}, r"shardlist\[0\].nsamples: True is not allowed"),
        ({"shardlist": [entry(samples=2.0)]}, r"shardlist\[0\].nsamples: 2.0 is not allowed"),
        ({"shardlist": [entry(), entry(size=0)]}, r"shardlist\[1\].filesize: 0 is not allowed"),
        ({"shardlist": [entry(size=None)]}, r"shardlist\[0\].filesize: None is not allowed"),
        ({"shardlist": [entry(md5sum=7)]}, r"shardlist\[0\].md5sum: needs a string, or may be left out"),
    ],
)
def test_an_index_that_is_not_sound_is_refused(content: Any, why: str, tmp_path: Path) -> None:
    root = written(tmp_path, content)
    with pytest.raises(ShardError, match=f"^{root}/index.json: {why}"):
        read_index(root, {})


def test_an_index_that_is_not_there_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=rf"not found; make it with python -m equipoise.live.data.index {tmp_path}$"):
        read_index(str(tmp_path), {})
    with pytest.raises(ShardError, match=r"^nowhere://x/index.json: Protocol not known: nowhere"):
        read_index("nowhere://x", {})


def test_an_index_is_made_of_all_files_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = tar_of({"x": {"id": b"3"}, "y": {"id": b"4"}})
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.tar").write_bytes(two)
    (tmp_path / "a.bin").write_bytes(b"12345")
    (tmp_path / ".hidden").write_bytes(b"1")
    (tmp_path / "index.json").write_text("old")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/index.json\n"
    made = json.loads((tmp_path / "index.json").read_text())
    sums = [hashlib.md5(content).hexdigest() for content in (b"12345", two)]
    assert made == {
        "__kind__": "wids-shard-index-v1",
        "shardlist": [
            {"url": "a.bin", "nsamples": 1, "filesize": 5, "md5sum": sums[0]},
            {"url": "deep/b.tar", "nsamples": 2, "filesize": len(two), "md5sum": sums[1]},
        ],
    }
    assert [(s.url, s.samples) for s in read_index(str(tmp_path), {})] == [
        (f"{tmp_path}/a.bin", 1),
        (f"{tmp_path}/deep/b.tar", 2),
    ]
