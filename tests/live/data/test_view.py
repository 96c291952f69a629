"""What rank 0 knows of files and paths, what a rank fetches next, what a cache keeps: by hand, without a store."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from equipoise.live.data.at_hand import _in_time
from equipoise.live.data.cache import NodeCache, NoRoomError, _abandoned
from equipoise.live.data.index import Shard, read_index
from equipoise.live.data.plane import DataPlane, packed, unpacked
from equipoise.live.data.view import DataView
from equipoise.live.train.deal import LivePiece

FILES = ((10, 1000, 0), (20, 2000, 0), (10, 1000, 1), (30, 3000, 1))  # samples, bytes, store
SHARDS = [Shard(f"{k}.tar", samples, size, None, store) for k, (samples, size, store) in enumerate(FILES)]
P0, P1, P2, P3 = (LivePiece(k, k, 0, samples) for k, (samples, _, _) in enumerate(FILES))


def flags(*on: int) -> Any:
    return packed(np.isin(np.arange(4), on))


@pytest.fixture
def view() -> DataView:
    """Rank 0 on host a reads 100 bytes/s of store 0 and 200 of store 1, rank 1 on host b 30 of store 1.

    Host a holds file 0, and file 1 is on its way to rank 0; host b holds file 3.
    """
    made = DataView(SHARDS)
    reports = [
        [2.0, 500.0, *(1000.0, 10.0, 0.5, 1.0), *(2000.0, 10.0, 2.0, 2.0), *flags(0), *flags(1)],
        [1.0, 0.0, *(0.0, 0.0, 0.0, 0.0), *(300.0, 10.0, 1.5, 1.0), *flags(3), *flags()],
    ]
    assert made.length == len(reports[0]) == 12
    made.update(np.array(reports), ["a", "b"])
    return made


def test_paths_are_those_that_were_measured_else_the_fastest_of_their_store(view: DataView) -> None:
    expected = [[100.0, 0.5], [100.0, 0.5], [200.0, 1.0], [30.0, 1.5]]
    assert np.array([view.path(s, h) for s in (0, 1) for h in "ab"]) == pytest.approx(np.array(expected))
    found = view.paths(["a", "b"])
    assert found.source.tolist() == [2, 2, 3, 3]
    assert found.target.tolist() == [0, 1, 0, 1]
    assert found.bytes_per_s.tolist() == pytest.approx([100.0, 100.0, 200.0, 30.0])
    assert view.blank().length == 12
    assert len(view.blank().paths(["a", "b"]).source) == 0
    assert np.isnan(view.blank().path(0, "a")).all()


def test_what_is_here_and_what_travels(view: DataView) -> None:
    held = [[view.is_local(rank, shard) for shard in range(4)] for rank in (0, 1, 2)]
    assert held == [[True, False, False, False], [False, False, False, True], [False] * 4]
    coming = [[view.is_on_its_way(rank, shard) for shard in range(4)] for rank in (0, 1, 2)]
    assert coming == [[False, True, False, False], [False] * 4, [False] * 4]
    some = LivePiece(9, 0, 6, 10)
    assert [view.left_bytes(rank, some) for rank in (0, 1)] == [400.0, 1000.0]
    assert view.arrivals_s(0, "a", [P0, P1, P2]).tolist() == pytest.approx([0.0, 15.0, 21.0])
    assert view.arrivals_s(1, "b", [P2, P3, P0]).tolist() == pytest.approx(
        [1.5 + 1000 / 30] * 2 + [12.0 + 1000 / 30]
    )


def test_how_fast_a_rank_reads_what_it_still_has_to(view: DataView) -> None:
    """A sample has 100 bytes on average; what a rank lacks comes from the store that has most files, the first."""
    for queue, part, rate in (
        ([P0, P1], 40.0, 40 / (20.0 + 10.0)), ([P0, P1], 25.0, 30 / 20.0), ([P0, P1], 30.0, 1.5),
        ([P0], 10.0, math.inf), ([P0], 10.5, 10.5 / 0.5), ([P2], 0.0, 10 / 5.0), ([], 0.0, math.inf),
    ):  # fmt: skip
        assert view.reading_samples_per_s(0, "a", queue, part) == pytest.approx(rate)
    for rank, host, queues, rate in (
        (0, "a", [[P0], [P2, P3]], 40 / 20.0), (1, "b", [[P0], [P2, P3]], 10 / 10.0),
        (0, "a", [[P2], [P0]], math.inf), (1, "b", [[P0, P3], []], 40 / 10.0),
    ):  # fmt: skip
        assert view.taking_samples_per_s(rank, host, queues) == pytest.approx(rate)
    assert math.isnan(view.blank().taking_samples_per_s(0, "a", [[], [P0]]))


def test_waiting_for_files_is_no_part_of_a_step(view: DataView) -> None:
    """Over four rounds rank 0 waited 2 s for files, of 3 s that it stalled, and computed for the rest of 10 s."""
    samples, busy_s, stall_s = np.array([40.0, 0.0]), np.array([10.0, 0.0]), np.array([3.0, math.nan])
    found = view.worker_columns(samples, busy_s, stall_s, 4, np.array([8.0, math.inf]))
    assert found["step_s"].tolist() == [2.0, 0.0]
    assert found["gradient_rate_per_s"].tolist() == [0.5, math.inf]
    assert found["capacity_samples_per_s"].tolist() == pytest.approx([5.0, math.nan], nan_ok=True)
    assert found["response_s_per_sample"][0] == pytest.approx(0.25)  # 10 s for 40 samples
    slow = view.worker_columns(samples, busy_s, np.array([1.0, 0.0]), 4, np.array([3.0, math.inf]))
    assert slow["step_s"][0] == pytest.approx(9.0 / 4)  # it stalled for no more than a second
    assert slow["capacity_samples_per_s"][0] == 3.0
    assert slow["response_s_per_sample"][0] == pytest.approx(1.0 / 3.0)
    other = view.worker_columns(
        np.array([40.0] * 3), np.array([10.0] * 3), np.ones(3), 4, np.full(3, math.inf)
    )
    assert other["step_s"].tolist() == [2.5] * 3  # of another number of ranks nothing was reported


def test_a_made_up_report_has_the_last_path_slowest(view: DataView) -> None:
    reports = view.made_up(2)
    assert reports.shape == (2, 12)
    assert reports[:, 2:10].tolist() == [[1750.0, 1.0, 0.01, 1.0] * 2, [1750.0, 11.0, 0.01, 1.0] * 2]
    assert not reports[:, :2].any()


@pytest.mark.parametrize(("count", "numbers"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_flags_are_packed_into_as_few_numbers_as_hold_them(count: int, numbers: int) -> None:
    some = np.arange(count) % 3 == 0
    assert len(packed(some)) == numbers
    assert (unpacked(packed(some), count) == some).all()
    view = DataView([SHARDS[0]] * count)
    assert view.length == 2 + 4 + 2 * numbers
    view.update(np.array([[0.0, 0.0, 5.0, 10.0, 0.0, 1.0, *packed(some), *packed(~some)]]), ["a"])
    assert [view.is_local(0, k) for k in range(count)] == some.tolist()
    assert [view.is_on_its_way(0, k) for k in range(count)] == (~some).tolist()
    assert view.paths(["a", "b"]).bytes_per_s.tolist() == pytest.approx([0.5, 0.5])


def test_how_many_samples_a_rank_can_have_until_its_file_comes() -> None:
    """It is due in round before / b, on average half a round earlier, and b samples of 10 ms before its end."""
    rank, before, arrival_s = np.array([0, 0, 2]), np.array([20.0, 0.0, 8.0]), np.array([1.0, 0.3, 9.0])
    found = _in_time(rank, before, arrival_s, np.full(3, 0.01), 0.1, 0.9, 4)
    # Rank 0: b * 0.01 + 1.0 + 0.1 - 0.45 = 20 * 0.9 / b, or its first file: 0.9 - 0.4 s of computing.
    assert found[0] == pytest.approx((math.sqrt(0.65**2 + 4 * 0.01 * 20 * 0.9) - 0.65) / 0.02)
    assert math.isinf(found[1])
    assert found[2] == 2.0  # in four rounds it cannot get to it
    assert _in_time(rank[1:2], before[1:2], arrival_s[1:2], np.array([0.01]), 0.1, 0.9, 4).tolist() == [
        pytest.approx(50.0)
    ]
    late = _in_time(rank[1:2], before[1:2], np.array([2.0]), np.array([0.01]), 0.1, 0.9, 4)
    assert late.tolist() == [0.0]


# -- what a rank fetches ---------------------------------------------------------------------------------------


def plane(ranks: int, cache_bytes: float, to_read: list[list[int]], queue: list[int]) -> list[Any]:
    """What the fetcher is told to want."""
    asked: list[Any] = []
    data: Any = SimpleNamespace(
        shards=SHARDS, cache_bytes=cache_bytes, prefetch=2, shards_of=lambda indices: [i // 10 for i in indices],
        start=lambda: SimpleNamespace(want=lambda *what: asked.extend(what)),
    )  # fmt: skip
    deal = SimpleNamespace(queues=lambda: [[], [LivePiece(k, k, 0, 1) for k in queue]])
    made = DataPlane(data, SimpleNamespace(deal=deal, rank=1, to_read=lambda: to_read), lambda: ranks)  # type: ignore[arg-type]
    made.refresh()
    assert made.stores == 2
    return asked


def test_what_was_drawn_comes_first_and_then_the_next_of_the_queue() -> None:
    queue = [0, 1, 2, 3, 4, 5, 6]
    assert plane(1, 6000.0, [[3, 12], [14, 25], [31]], queue) == [[0, 1], [2, 3, 4, 5], 6000, set(queue)]
    assert plane(2, 13000.0, [[3, 12]], queue) == [[0, 1], [2, 3], 6500, None]
    assert plane(1, 6000.0, [], [3, 2, 1, 0]) == [[3], [2, 1], 6000, {0, 1, 2, 3}]
    assert plane(1, 6000.0, [], []) == [[], [], 6000, set()]
    with pytest.raises(
        ValueError, match="11999 is not allowed, 2 ranks on this node need room for two of the la"
    ):
        plane(2, 11999.0, [], [])
    assert plane(2, 12000.0, [], [])[2] == 6000


@pytest.mark.parametrize(
    ("wanted", "left"),
    [(30, {"old", "new"}), (31, {"new"}), (70, {"new"}), (71, set()), (100, set()), (101, None)],
)
def test_no_more_goes_than_a_file_needs_room(tmp_path: Path, wanted: int, left: set[str] | None) -> None:
    cache = NodeCache(tmp_path, 100)
    for name, size, used_s in (("new", 30, 2e9), ("old", 40, 1e9)):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (used_s, used_s))
    assert cache.fetching() == 1
    if left is None:
        with pytest.raises(NoRoomError, match=f"no room for {wanted} bytes, the rest of the 100 is in use"):
            cache.reserve("x", wanted)
        assert cache.keys() == {"old", "new"}  # nothing goes in vain
        return
    pin = cache.reserve("x", wanted)
    assert pin is not None
    assert cache.keys() == left
    assert cache.fetching() == 1
    assert cache.reserve("x", wanted) is None  # somebody fetches it
    assert (tmp_path / "x.part").stat().st_size == wanted
    assert not (tmp_path / "x.part").stat().st_mode & 0o111
    held = cache.commit(pin)
    with pytest.raises(NoRoomError):
        cache.reserve("y", 100)
    assert not _abandoned(tmp_path / "x")
    held.release()
    held.release()
    assert _abandoned(tmp_path / "x")
    assert cache.keys() == left | {"x"}
    assert cache.reserve("x", wanted) is None  # it is there
    assert cache.pin("x", wanted + 1) is None  # of another size it is damaged
    assert cache.keys() == left
    assert cache.reserve("y", 100) is not None  # nobody holds anything any more
    assert cache.keys() == set()


def test_stores_are_numbered_by_name_behind_that_of_the_index(tmp_path: Path) -> None:
    urls = ["s3://b/x.tar", "a.tar.gz", "gs://a/y", "s3://b/.z.tar", "s3://c/x.tar", ".hidden"]
    listed = [{"url": url, "nsamples": 1, "filesize": 1} for url in urls]
    (tmp_path / "index.json").write_text(json.dumps({"shardlist": listed}))
    pytest.importorskip("fsspec")
    shards = read_index(str(tmp_path), {})
    assert [shard.store for shard in shards] == [2, 0, 1, 2, 3, 0]
    assert [shard.url for shard in shards][1:3] == [f"{tmp_path}/a.tar.gz", "gs://a/y"]
    keys = [shard.key() for shard in shards]
    assert [key[32:] for key in keys] == [".tar", ".tar.gz", "", ".z.tar", ".tar", ""]
    assert len(set(keys)) == 6
    int("".join(key[:32] for key in keys), 16)
    assert replace(shards[0], store=5).key() == keys[0]  # wherever it lies
    assert replace(shards[0], md5="1" * 32).key() != keys[0]
