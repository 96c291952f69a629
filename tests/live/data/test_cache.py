"""The node's cache: never above its limit, never without what is in use, whoever dies."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import pytest

from equipoise.live.data.cache import PART, NodeCache, NoRoomError, Pin
from tests.live.data.store import taken_bytes

LIMIT = 100


def add(cache: NodeCache, key: str, size: int) -> Pin:
    part = cache.reserve(key, size)
    assert part is not None
    return cache.commit(part)


def use_at_random(folder: Path, draw: random.Random) -> int:
    """Two ranks do as they like; returns how often there was no room."""
    ranks = [NodeCache(folder, LIMIT) for _ in range(2)]
    size_of = {f"{k}.tar": draw.randint(1, 60) for k in range(8)}
    held: list[Pin] = []
    parts: list[tuple[NodeCache, Pin]] = []
    refused = 0
    for _ in range(60):
        cache, key = draw.choice(ranks), draw.choice(list(size_of))
        match draw.choice(["fetch", "finish", "fail", "pin", "release"]):
            case "fetch":
                used = {pin.path.name.removesuffix(PART) for pin in held + [part for _, part in parts]}
                in_use = sum(size_of[name] for name in used)
                try:
                    part = cache.reserve(key, size_of[key])
                    parts += [(cache, part)] if part is not None else []
                except NoRoomError:
                    refused += 1
                    assert in_use + size_of[key] > LIMIT
            case "finish" if parts:
                owner, part = parts.pop(draw.randrange(len(parts)))
                held.append(owner.commit(part))
            case "fail" if parts:
                owner, part = parts.pop(draw.randrange(len(parts)))
                owner.discard(part)
            case "pin":
                pin = cache.pin(key, size_of[key])
                assert (pin is not None) == cache.path(key).exists()
                held += [pin] if pin is not None else []
            case "release" if held:
                held.pop(draw.randrange(len(held))).release()
        assert taken_bytes(ranks[0].folder) <= LIMIT
        assert all(pin.path.exists() for pin in held)
    return refused


def test_two_ranks_never_exceed_the_limit_nor_lose_what_they_hold(tmp_path: Path) -> None:
    assert sum(use_at_random(tmp_path / str(seed), random.Random(seed)) for seed in range(20)) > 20


def test_the_one_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    for at, key in enumerate("abc"):
        add(cache, key, 30).release()
        os.utime(cache.path(key), (at, at))
    again = cache.pin("a", 30)
    assert again is not None
    again.release()
    add(cache, "d", 30).release()
    assert cache.keys() == {"a", "c", "d"}


def test_what_a_dead_process_left_is_room(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    cache.path("x" + PART).write_bytes(bytes(90))
    part = cache.reserve("y", 50)
    assert part is not None
    assert cache.reserve("y", 50) is None  # somebody fetches it
    assert taken_bytes(cache.folder) == 50
    cache.path("z" + PART).write_bytes(bytes(10))
    assert cache.reserve("z", 10) is not None  # nobody fetches it any more


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    add(cache, "a", 30).release()
    cache.path("a").write_bytes(bytes(29))
    assert cache.pin("a", 30) is None
    assert cache.keys() == set()


def test_a_limit_is_met_to_the_byte(tmp_path: Path) -> None:
    """What fits exactly is taken; one byte more is not, and nothing goes for it."""
    cache = NodeCache(tmp_path / "deep" / "er", LIMIT)
    held = add(cache, "a", 40)
    add(cache, "b", 25).release()
    for size, fits in ((61, False), (60, True)):
        if fits:
            part = cache.reserve("c", size)
            assert part is not None
            assert part.path.stat().st_size == 60
            assert cache.keys() == {"a"}
        else:
            with pytest.raises(NoRoomError, match=rf"^{cache.folder}: no room for 61 bytes"):
                cache.reserve("c", size)
            assert cache.keys() == {"a", "b"}
    held.release()
    held.release()  # once more does nothing


def test_no_more_goes_than_there_must(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    for at, (key, size) in enumerate((("a", 20), ("b", 30), ("c", 40))):
        add(cache, key, size).release()
        os.utime(cache.path(key), (9 - at, 9 - at))  # c was used longest ago
    add(cache, "d", 10).release()
    assert cache.keys() == {"a", "b", "c", "d"}  # there was room
    os.utime(cache.path("d"), (9.5, 9.5))
    add(cache, "e", 40).release()
    assert cache.keys() == {"a", "b", "d", "e"}
    os.utime(cache.path("e"), (9.7, 9.7))
    add(cache, "f", 31).release()
    assert cache.keys() == {"d", "e", "f"}


def test_what_is_fetched_is_counted_and_is_no_key(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    assert (cache.fetching(), cache.keys()) == (1, set())
    add(cache, "a", 5).release()
    parts = []
    for n, key in enumerate(("x", "y", "z"), start=1):
        parts.append(cache.reserve(key, 10))
        assert (cache.fetching(), cache.keys()) == (n, {"a"})
    assert parts[0] is not None
    assert parts[0].path == cache.path("x" + PART)
    cache.discard(parts[0])
    assert (cache.fetching(), parts[0].descriptor) == (2, -1)
    assert cache.reserve("a", 5) is None  # it is there
    assert cache.pin("x", 10) is None
    again = cache.reserve("x", 10)
    assert again is not None
    os.write(again.descriptor, b"0123456789")
    whole = cache.commit(again)
    assert (whole.path, whole.path.read_bytes()) == (cache.path("x"), b"0123456789")
    assert cache.keys() == {"a", "x"}


def test_a_file_that_two_hold_stays_until_both_let_it_go(tmp_path: Path) -> None:
    cache = pickle.loads(pickle.dumps(NodeCache(tmp_path, LIMIT)))
    first = add(cache, "a", 70)
    os.utime(cache.path("a"), (5, 5))
    second = cache.pin("a", 70)
    assert second is not None
    assert cache.path("a").stat().st_mtime > 5  # it is used now
    for pin in (first, second):
        with pytest.raises(NoRoomError):
            cache.reserve("b", 31)
        pin.release()
        assert pin.descriptor == -1
    assert cache.reserve("b", 31) is not None
    assert (cache.folder, cache.limit_bytes) == (tmp_path, LIMIT)
