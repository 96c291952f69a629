"""The dependency graph of a recorded step, rebuilt from starts and durations alone.

Operations of a lane follow one another; those that begin together (a send and a receive posted at once) end before
the next begins. Members of a group end together: at the latest start plus the shortest duration, since the others'
durations include waiting. An operation also waits for operations that ended on another lane of its rank just before
it began. The rest of an idle gap is host time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.formats.operations import Operation

Floats = npt.NDArray[np.float64]
TOGETHER_S = 2e-6
"""Operations of a lane that begin within this time were posted at once."""
TOUCH_S = 2e-5
"""An operation that begins within this time after one on another lane ends may have waited for it."""


@dataclass(frozen=True)
class Slot:
    """Operations of a lane that begin together. after: the slots whose ends it waits for."""

    rank: int
    lane: int
    place: int
    operations: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class StepGraph:
    """A step. order: slots (k) and groups (-1 - k), each after its dependencies.

    host_s: unexplained idle time before each slot. group_s: duration of each group. measured_s:
    from the first start to the last end.
    """

    operations: tuple[Operation, ...]
    slots: tuple[Slot, ...]
    groups: tuple[tuple[int, ...], ...]
    group_of: tuple[int, ...]
    order: tuple[int, ...]
    host_s: Floats
    group_s: Floats
    measured_s: float

    def key(self, slot: int) -> tuple[int, int, int]:
        """(rank, lane, place in its lane): the same slot in other steps."""
        found = self.slots[slot]
        return found.rank, found.lane, found.place


def graphs(operations: Sequence[Operation]) -> list[StepGraph]:
    """The graph of each step, in order. Raises ValueError for a cycle of dependencies."""
    by_step: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_step[operation.step].append(operation)
    return [_graph(sorted(found, key=_order)) for _, found in sorted(by_step.items())]


def _order(operation: Operation) -> tuple[int, int, float, str, str]:
    return operation.rank, operation.lane, operation.start_s, operation.kind, operation.group


def _graph(operations: Sequence[Operation]) -> StepGraph:
    slots = _slots(operations)
    members: dict[str, list[int]] = defaultdict(list)
    for k, operation in enumerate(operations):
        if operation.group:
            members[operation.group].append(k)
    groups = tuple(tuple(found) for found in members.values() if len(found) > 1)
    group_of = [-1] * len(operations)
    for number, found in enumerate(groups):
        for k in found:
            group_of[k] = number
    ends = [op.start_s + op.duration_s for op in operations]
    host = np.array(
        [
            operations[slot.operations[0]].start_s
            - max((ends[k] for before in slot.after for k in slots[before].operations), default=0.0)
            for slot in slots
        ]
    )
    return StepGraph(
        tuple(operations),
        tuple(slots),
        groups,
        tuple(group_of),
        tuple(_sorted(slots, groups, group_of)),
        host,
        np.array([min(operations[k].duration_s for k in found) for found in groups]),
        max(ends) - min(op.start_s for op in operations),
    )


def _slots(operations: Sequence[Operation]) -> list[Slot]:
    """Slots lane by lane; `operations` are in the order of rank, lane and start."""
    found: list[list[int]] = []
    for k, operation in enumerate(operations):
        last = operations[found[-1][0]] if found else None
        if (
            last is not None
            and (last.rank, last.lane) == (operation.rank, operation.lane)
            and operation.start_s - last.start_s < TOGETHER_S
            and operation.group
            and last.group
        ):
            found[-1].append(k)
        else:
            found.append([k])
    lanes: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, part in enumerate(found):
        lanes[operations[part[0]].rank][operations[part[0]].lane].append(number)
    starts = [operations[part[0]].start_s for part in found]
    ends = [max(operations[k].start_s + operations[k].duration_s for k in part) for part in found]
    slots = []
    for number, part in enumerate(found):
        first = operations[part[0]]
        mine = lanes[first.rank][first.lane]
        place = mine.index(number) if len(mine) < 64 else int(np.searchsorted(mine, number))
        after = [mine[place - 1]] if place else []
        after += _touching(lanes[first.rank], first.lane, starts[number], starts, ends)
        slots.append(Slot(first.rank, first.lane, place, tuple(part), tuple(after)))
    return slots


def _touching(
    lanes: Mapping[int, Sequence[int]], lane: int, start_s: float, starts: Sequence[float], ends: Sequence[float]
) -> list[int]:
    """Of each other lane the last slot that began before, where it ended just before this start."""
    found = []
    for other, slots in lanes.items():
        if other == lane:
            continue
        low, high = 0, len(slots)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if starts[slots[middle]] < start_s else (low, middle)
        for slot in slots[max(0, low - 2) : low]:
            if 0 <= start_s - ends[slot] <= TOUCH_S:
                found.append(slot)
    return found


def _sorted(slots: Sequence[Slot], groups: Sequence[Sequence[int]], group_of: Sequence[int]) -> list[int]:
    """Slots and groups in topological order (Kahn 1962). Raises ValueError for a cycle."""
    slot_of = {k: number for number, slot in enumerate(slots) for k in slot.operations}
    waits: dict[int, set[int]] = {}
    for number, slot in enumerate(slots):
        waits[number] = set(slot.after) | {
            -1 - group_of[k] for before in slot.after for k in slots[before].operations if group_of[k] >= 0
        }
    for number, members in enumerate(groups):
        waits[-1 - number] = {slot_of[k] for k in members}
    then: dict[int, list[int]] = defaultdict(list)
    for node, needed in waits.items():
        for other in needed:
            then[other].append(node)
    left = {node: len(needed) for node, needed in waits.items()}
    ready = [node for node, count in left.items() if not count]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for other in then[node]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    if len(order) < len(waits):
        stuck = next(node for node, count in left.items() if count)
        first = slots[stuck].operations[0] if stuck >= 0 else groups[-1 - stuck][0]
        raise ValueError(f"operations wait for each other in a cycle that contains number {first}")
    return order
