"""Fetches shards into the node's cache in the requested order, timed, completely or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from equipoise.live.data.cache import PART, NodeCache, NoRoomError, Pin
from equipoise.live.data.formats import ShardError
from equipoise.live.data.index import Shard, open_store

_CHUNK_BYTES = 1 << 18
_POLL_S = 0.05
_BACK_OFF_S = 0.2  # before the second attempt; doubled each time
_ERROR = ".error"  # tells the loader's worker processes why a fetch failed


@dataclass(frozen=True, slots=True)
class Fetched:
    """A successful fetch; see `policies.paths.PathSpeeds.finished`."""

    store: int
    size_bytes: int
    alone_s: float  # without the time taken by the node's other fetches
    delay_s: float  # before the first byte


class _StoppedError(Exception):
    """The fetcher was closed during a fetch, or the shard moved to another rank."""


class Source:
    """Reads shards from their stores into one cache."""

    def __init__(self, cache: NodeCache, shards: Sequence[Shard], options: Mapping[str, Any], retries: int) -> None:
        self.cache, self.shards, self._options, self._retries = cache, shards, options, retries
        self.keys = [shard.key() for shard in shards]
        self._come_bytes: dict[int, int] = {}  # of shards that this process fetches now

    def pin(self, number: int) -> Pin | None:
        """Lock a shard in the cache; None if it is not there."""
        return self.cache.pin(self.keys[number], self.shards[number].size_bytes)

    def fetch(self, number: int, goes_on: Callable[[], bool]) -> tuple[Pin, Fetched] | None:
        """Fetch a shard and lock it in the cache; None if another process fetches it now, or just did.

        Raises NoRoomError when the cache is full of files in use, ShardError after the last failed attempt.
        """
        shard = self.shards[number]
        part = self.cache.reserve(self.keys[number], shard.size_bytes)
        if part is None:
            return None
        try:
            self.forget_error(number)
            for attempt in range(self._retries + 1):
                try:
                    fetched = self._read(number, part, goes_on)
                    return self.cache.commit(part), fetched
                except (OSError, ShardError) as error:
                    why = _in_one_line(shard, error)
                    if attempt == self._retries:
                        raise ShardError(f"{why} ({attempt + 1} attempts)") from None
                time.sleep(_BACK_OFF_S * 2**attempt)
            raise AssertionError
        except BaseException:
            self.cache.discard(part)
            raise
        finally:
            self._come_bytes.pop(number, None)

    def come_bytes(self) -> int:
        """Bytes received so far of the shards that this process is fetching."""
        return sum(list(self._come_bytes.values()))  # other threads write to it

    def _read(self, number: int, part: Pin, goes_on: Callable[[], bool]) -> Fetched:
        shard = self.shards[number]
        system, path = open_store(shard.url, self._options)
        streams = {"block_size": 0} if shard.url.startswith(("http://", "https://")) else {}
        begun_s = last_s = time.perf_counter()
        done, first, alone_s, delay_s, checksum = 0, 0, 0.0, 0.0, hashlib.md5(usedforsecurity=False)
        with system.open(path, "rb", **streams) as file:
            while chunk := file.read(_CHUNK_BYTES):
                now_s = time.perf_counter()
                if done == 0:
                    first, delay_s = len(chunk), now_s - begun_s
                else:
                    alone_s += (now_s - last_s) / self.cache.fetching()
                last_s = now_s
                done += len(chunk)
                self._come_bytes[number] = done
                if done > shard.size_bytes:
                    break
                os.pwrite(part.descriptor, chunk, done - len(chunk))
                checksum.update(chunk)
                if not goes_on():
                    raise _StoppedError
        if done != shard.size_bytes:
            got = f"{done} bytes received" if done < shard.size_bytes else "more bytes received"
            raise ShardError(f"{got}, the index lists {shard.size_bytes}: truncated, or changed since")
        if shard.md5 is not None and checksum.hexdigest() != shard.md5:
            raise ShardError("content differs from the index (md5): damaged, or changed since")
        return _timed(shard, first, alone_s, delay_s)

    def progress_s(self, number: int) -> float:
        """Time (`time.time()`) at which this node last received bytes of a shard; 0 while no process fetches it."""
        try:
            return self.cache.path(self.keys[number] + PART).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def error(self, number: int) -> str | None:
        """Why this node's last fetch of a shard failed for good, as reported to other processes."""
        try:
            return self.cache.path(self.keys[number] + _ERROR).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def tell_error(self, number: int, why: str) -> None:
        """Report a failed fetch to the node's other processes, which would otherwise wait until their time-out."""
        with contextlib.suppress(OSError):
            self.cache.path(self.keys[number] + _ERROR).write_text(why, encoding="utf-8")

    def forget_error(self, number: int) -> None:
        """Clear the error before the next attempt."""
        self.cache.path(self.keys[number] + _ERROR).unlink(missing_ok=True)


def _timed(shard: Shard, first: int, alone_s: float, delay_s: float) -> Fetched:
    """Timing of a fetch: the first chunk's time beyond the rate of the other chunks is the delay."""
    behind = shard.size_bytes - first
    if behind <= 0 or alone_s <= 0.0:
        return Fetched(shard.store, shard.size_bytes, delay_s, 0.0)
    chunk_s = alone_s * first / behind
    return Fetched(shard.store, shard.size_bytes, alone_s + chunk_s, max(0.0, delay_s - chunk_s))


def _in_one_line(shard: Shard, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{shard.url}: no longer exists"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{shard.url}: {text}"


class Fetcher:
    """Fetches the wanted shards in order of need, in separate threads, and locks them."""

    def __init__(self, source: Source, connections: int, stalled_s: float) -> None:
        """`stalled_s`: waiting for a shard fails after this time without received bytes."""
        self.source, self._stalled_s = source, stalled_s
        self._changed = threading.Condition()
        self._held: dict[int, Pin] = {}
        self._now: tuple[int, ...] = ()
        self._ahead: tuple[int, ...] = ()
        self._quota_bytes = 0
        self._busy: set[int] = set()
        self._gone: set[int] = set()  # of those, the shards that this rank will not read
        self._full: dict[int, str] = {}  # why there was no room for it
        self._failed: dict[int, str] = {}
        self._done: list[Fetched] = []
        self._closed = False
        for _ in range(connections):
            threading.Thread(target=self._run, name="equipoise-fetch", daemon=True).start()

    def want(
        self, now: Sequence[int], ahead: Sequence[int], quota_bytes: int, later: Collection[int] | None = None
    ) -> None:
        """Lock the shards `now`, and the first of those `ahead` that fit into `quota_bytes` together with them.

        `later`: shards that may be wanted afterwards; fetches of any others are stopped. None: any
        may be wanted.
        """
        with self._changed:
            order = (tuple(now), tuple(ahead))
            wanted = {*now, *ahead}
            self._gone = set() if later is None else {n for n in self._busy if n not in wanted and n not in later}
            if order == (self._now, self._ahead) and quota_bytes == self._quota_bytes:
                return
            before = self._now
            (self._now, self._ahead), self._quota_bytes = order, quota_bytes
            keep = {*self._now, *self._within_quota()}
            for number in set(self._now) & self._failed.keys() - set(before):
                # Try again, now that it is needed.
                del self._failed[number]
                self.source.forget_error(number)
            for number in [n for n in self._held if n not in keep]:
                self._held.pop(number).release()
            for number in [n for n in self._failed if n not in keep]:
                del self._failed[number]
            self._changed.notify_all()

    def _within_quota(self) -> list[int]:
        shards = self.source.shards
        left = self._quota_bytes - sum(shards[n].size_bytes for n in set(self._now))
        kept = []
        for number in self._ahead:
            if number not in self._now:
                left -= shards[number].size_bytes
                if left < 0:
                    break
                kept.append(number)
        return kept

    def wait(self, number: int) -> Pin:
        """Wait for the shard and lock it. Raises ShardError if the fetch fails."""
        with self._changed:
            if number not in self._now:
                self._now = (number, *self._now)
                self._changed.notify_all()
            asked_s = time.time()
            while number not in self._held:
                if number in self._failed:
                    raise ShardError(self._failed[number])
                if time.time() - max(asked_s, self.source.progress_s(number)) > self._stalled_s:
                    url, why = self.source.shards[number].url, self._full.get(number)
                    told = f": {why}" if why is not None else ""
                    raise ShardError(f"{url}: no bytes received for {self._stalled_s:g} s{told}")
                self._changed.wait(1.0)
            return self._held[number]

    def take(self) -> list[Fetched]:
        """Fetches that ended since the last call."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def busy(self) -> list[int]:
        """Shards that are being fetched."""
        with self._changed:
            return list(self._busy)

    def close(self) -> None:
        """Stop fetching, and release all shards."""
        with self._changed:
            self._closed = True
            for pin in self._held.values():
                pin.release()
            self._held.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (number := self._next()) is None:
                    self._changed.wait()
                if self._closed:
                    return
                assert number is not None
                self._busy.add(number)
            self._bring(number)

    def _next(self) -> int | None:
        """The first wanted shard that is neither here nor being fetched."""
        for number in (*self._now, *self._within_quota()):
            if number not in self._held and number not in self._busy and number not in self._failed:
                return number
        return None

    def _bring(self, number: int) -> None:
        pin, fetched, why = None, None, None
        try:
            pin = self.source.pin(number)
            if pin is None:
                got = self.source.fetch(number, lambda: not self._closed and number not in self._gone)
                pin, fetched = got if got is not None else (None, None)
        except NoRoomError as error:
            self._make_room(number, str(error))
        except _StoppedError:
            with self._changed:
                self._busy.discard(number)
                self._gone.discard(number)
            return
        except ShardError as error:
            why = str(error)
        except Exception as error:  # a thread that died silently would leave its shard pending for ever
            why = _in_one_line(self.source.shards[number], error)
        if pin is None and why is None:
            time.sleep(_POLL_S)  # another process is fetching it, or there is no room yet
        with self._changed:
            self._busy.discard(number)
            if pin is not None and self._closed:
                pin.release()
            elif pin is not None:
                self._held[number] = pin
            if why is not None:
                self._failed[number] = why
                self.source.tell_error(number, why)
            if fetched is not None:
                self._done.append(fetched)
            self._changed.notify_all()

    def _make_room(self, number: int, why: str) -> None:
        """Make room for a shard needed now: release the shard held ahead that is needed last."""
        with self._changed:
            self._full[number] = why
            spare = [n for n in self._ahead if n in self._held and n not in self._now]
            if number in self._now and spare:
                self._held.pop(spare[-1]).release()
                self._ahead = self._ahead[: self._ahead.index(spare[-1])]  # not again before the next `want`
