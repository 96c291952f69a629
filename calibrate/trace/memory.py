"""PyTorch's caching allocator of CUDA memory, for sizes without addresses.

Follows c10/cuda/CUDACachingAllocator.cpp: blocks are multiples of 512 bytes; requests up to 1 MiB come from segments
of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones from segments of their own, a multiple of 2 MiB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 2**20
ROUND = 512
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
LARGE, LARGE_SEGMENT, SEGMENT_ROUND = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass(eq=False, slots=True)
class _Block:
    """A piece of a segment and its neighbours in it."""

    size: int
    small: bool
    free: bool = False
    before: _Block | None = None
    after: _Block | None = None


class CachingAllocator:
    """Allocated and reserved bytes, and their peaks."""

    def __init__(self) -> None:
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_bytes = self.peak_reserved_bytes = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, key), by pool
        self._pieces: dict[int, _Block] = {}
        self._next = 0

    def reset_peak(self) -> None:
        """Begin the peaks anew."""
        self.peak_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes

    def _offer(self, block: _Block) -> None:
        block.free = True
        self._next += 1
        self._pieces[self._next] = block
        insort(self._free[block.small], (block.size, self._next))

    def _withdraw(self, block: _Block) -> None:
        pool = self._free[block.small]
        at = bisect_left(pool, (block.size, 0))
        while self._pieces[pool[at][1]] is not block:
            at += 1
        del self._pieces[pool.pop(at)[1]]
        block.free = False

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes; returns the key to free them with."""
        need = max(ROUND, -(-size // ROUND) * ROUND)
        small = need <= SMALL
        pool = self._free[small]
        at = bisect_left(pool, (need, 0))
        if at < len(pool):
            block = self._pieces[pool[at][1]]
            self._withdraw(block)
        else:
            whole = (
                SMALL_SEGMENT if small else LARGE_SEGMENT if need < LARGE else -(-need // SEGMENT_ROUND) * SEGMENT_ROUND
            )
            block = _Block(whole, small)
            self.reserved_bytes += whole
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        rest = block.size - need
        if rest >= ROUND if small else rest > SMALL:
            left = _Block(rest, small, before=block, after=block.after)
            if block.after is not None:
                block.after.before = left
            block.size, block.after = need, left
            self._offer(left)
        self.allocated_bytes += block.size
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        self._next += 1
        self._blocks[self._next] = block
        return self._next

    def free(self, key: int) -> None:
        """Free what `allocate` returned; adjacent free pieces of a segment merge."""
        block = self._blocks.pop(key)
        self.allocated_bytes -= block.size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._withdraw(other)
                first, last = (other, block) if other is block.before else (block, other)
                first.size += last.size
                first.after = last.after
                if last.after is not None:
                    last.after.before = first
                block = first
        self._offer(block)
