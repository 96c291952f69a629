"""A heap, a search and a sort on plain arrays, for kernels."""

from __future__ import annotations

from equipoise.policies.kernels.jit import ZERO, jit_in_place
from equipoise.policies.observation import Floats, Ints


@jit_in_place
def position(ascending: Ints, value: int) -> int:
    """Insertion position of `value` in an ascending array."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@jit_in_place
def sift_down(keys: Floats, ids: Ints, size: int, hole: int) -> None:
    """Restore the order of a binary heap of (key, id), the least first, below position `hole`.

    Of equal keys the lower id comes first, so the first item does not depend on how the heap was built.
    """
    key, item = keys[hole], ids[hole]
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (keys[right] < keys[child] or (keys[right] == keys[child] and ids[right] < ids[child])):
            child = right
        if key < keys[child] or (key == keys[child] and item < ids[child]):
            break
        keys[hole], ids[hole] = keys[child], ids[child]
        hole = child
    keys[hole], ids[hole] = key, item


@jit_in_place
def heapify(keys: Floats, ids: Ints, size: int) -> None:
    """Make a heap of the first `size` pairs (Floyd 1964)."""
    for hole in range(size // 2 - 1, -1, -1):
        sift_down(keys, ids, size, hole)


@jit_in_place
def push(keys: Floats, ids: Ints, size: int, key: float, item: int) -> int:
    """Put (key, item) into a heap; returns its new size."""
    hole = size
    while hole > 0:
        parent = (hole - 1) // 2
        if keys[parent] < key or (keys[parent] == key and ids[parent] < item):
            break
        keys[hole], ids[hole] = keys[parent], ids[parent]
        hole = parent
    keys[hole], ids[hole] = key, item
    return size + 1


@jit_in_place
def pop(keys: Floats, ids: Ints, size: int) -> int:
    """Take the first item off a heap; returns the size that remains."""
    size -= 1
    keys[0], ids[0] = keys[size], ids[size]
    sift_down(keys, ids, size, ZERO)
    return size


@jit_in_place
def sort_by(key: Ints, order: Ints, spare: Ints, count: Ints) -> None:
    """Sort `order` (positions) stably by `key` (not negative).

    A radix sort, eleven bits a pass, over the bits that differ; `spare` is scratch like `order`, `count` has 2,048
    numbers.
    """
    first, differ = ZERO if order.size == 0 else key[order[0]], 0
    for at in order:
        differ |= key[at] ^ first
    for shift in range(0, 63, 11):
        if differ >> shift & 2047 == 0:
            continue
        for k in range(2048):
            count[k] = 0
        for at in order:
            count[key[at] >> shift & 2047] += 1
        end = 0
        for k in range(2048):
            end += count[k]
            count[k] = end - count[k]
        for i in range(order.size):
            spare[i] = order[i]
        for at in spare:
            digit = key[at] >> shift & 2047
            order[count[digit]] = at
            count[digit] += 1
