"""An ascending list of job rows as one contiguous array, cheap at both ends."""

from __future__ import annotations

import numpy as np

from policies.observation import Ints


class RowQueue:
    """Rows in ascending order; `rows` is a read-only view that is valid until the next change."""

    def __init__(self) -> None:
        self._buffer = np.empty(64, dtype=np.int64)
        self._head = self._tail = 32

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def rows(self) -> Ints:
        """All rows, ascending."""
        view = self._buffer[self._head : self._tail]
        view.flags.writeable = False
        return view

    def add(self, row: int) -> None:
        """Insert a row that is not there."""
        buffer, head, tail = self._buffer, self._head, self._tail
        if tail == len(buffer) or head == 0:
            self._make_room()
            buffer, head, tail = self._buffer, self._head, self._tail
        if head == tail or row > buffer[tail - 1]:
            buffer[tail] = row
            self._tail = tail + 1
            return
        at = head + int(buffer[head:tail].searchsorted(row))
        if at - head < tail - at:
            buffer[head - 1 : at - 1] = buffer[head:at]
            buffer[at - 1] = row
            self._head = head - 1
        else:
            buffer[at + 1 : tail + 1] = buffer[at:tail]
            buffer[at] = row
            self._tail = tail + 1

    def remove(self, row: int) -> None:
        """Take out a row. Raises KeyError when it is not there."""
        buffer, head, tail = self._buffer, self._head, self._tail
        at = head
        if head < tail and buffer[head] != row:
            at += int(buffer[head:tail].searchsorted(row))
        if at >= tail or buffer[at] != row:
            raise KeyError(row)
        if at - head < tail - at:
            buffer[head + 1 : at + 1] = buffer[head:at]
            self._head = head + 1
        else:
            buffer[at : tail - 1] = buffer[at + 1 : tail]
            self._tail = tail - 1

    def _make_room(self) -> None:
        rows = self._buffer[self._head : self._tail].copy()
        size = max(64, 2 * len(rows))
        self._buffer = np.empty(len(rows) + size, dtype=np.int64)
        self._head = size // 2 if self._head == 0 else min(32, size // 2)
        self._tail = self._head + len(rows)
        self._buffer[self._head : self._tail] = rows
