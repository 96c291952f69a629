"""An ascending list of job rows as one contiguous array, cheap at both ends."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from equipoise.policies.observation import Ints
from equipoise.sim.cells import cells


class RowQueue:
    """Rows in ascending order; `rows` is a read-only view that is valid until the next change."""

    def __init__(self) -> None:
        self._hold(np.empty(64, dtype=np.int64))
        self._head = self._tail = 32

    def _hold(self, buffer: Ints) -> None:
        self._buffer, self._entries = buffer, cells(buffer)
        self._shown = buffer.view()
        self._shown.flags.writeable = False  # and whatever is sliced from it

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def rows(self) -> Ints:
        """All rows, ascending."""
        return self._shown[self._head : self._tail]

    def add(self, row: int) -> None:
        """Insert a row that is not there."""
        entries, head, tail = self._entries, self._head, self._tail
        if tail == len(entries) or head == 0:
            self._make_room()
            entries, head, tail = self._entries, self._head, self._tail
        if head == tail or row > entries[tail - 1]:
            entries[tail] = row
            self._tail = tail + 1
            return
        at = bisect_left(entries, row, head, tail)
        if at - head < tail - at:
            entries[head - 1 : at - 1] = entries[head:at]
            entries[at - 1] = row
            self._head = head - 1
        else:
            entries[at + 1 : tail + 1] = entries[at:tail]
            entries[at] = row
            self._tail = tail + 1

    def remove(self, row: int) -> None:
        """Take out a row. Raises KeyError when it is not there."""
        entries, head, tail = self._entries, self._head, self._tail
        at = bisect_left(entries, row, head, tail)
        if at >= tail or entries[at] != row:
            raise KeyError(row)
        if at - head < tail - at:
            entries[head + 1 : at + 1] = entries[head:at]
            self._head = head + 1
        else:
            entries[at : tail - 1] = entries[at + 1 : tail]
            self._tail = tail - 1

    def _make_room(self) -> None:
        rows = self._buffer[self._head : self._tail].copy()
        size = max(64, 2 * len(rows))
        self._hold(np.empty(len(rows) + size, dtype=np.int64))
        self._head = size // 2 if self._head == 0 else min(32, size // 2)
        self._tail = self._head + len(rows)
        self._buffer[self._head : self._tail] = rows
