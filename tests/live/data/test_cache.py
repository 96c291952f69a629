"""The node's cache: never above its limit, never without what is in use, whoever dies."""

from __future__ import annotations

import random
from pathlib import Path

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


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, LIMIT)
    add(cache, "a", 30).release()
    cache.path("a").write_bytes(bytes(29))
    assert cache.pin("a", 30) is None
    assert cache.keys() == set()
