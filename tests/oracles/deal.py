"""The plain twin of `live.train.deal.Deal`: queues of pieces as lists of dataset indices, moved one by one."""

from __future__ import annotations

from collections.abc import Sequence


class NaiveDeal:
    """Queues of [piece id, indices, begun]. Every worker gets a block of shards, the first ones one more."""

    def __init__(self, order: Sequence[int], shards: int, workers: int) -> None:
        self.queues: list[list[list]] = [[] for _ in range(workers)]
        left, at = list(order), 0
        for worker in range(workers):
            for _ in range(shards // workers + (worker < shards % workers)):
                size = len(order) // shards + (at < len(order) % shards)
                self.queues[worker].append([at, left[:size], False])
                del left[:size]
                at += 1
        self.next_id = shards

    def owned(self, worker: int) -> int:
        return sum(len(piece[1]) for piece in self.queues[worker])

    def draw(self, demand: Sequence[int]) -> list[list[int]]:
        for thief, need in enumerate(demand):
            while self.owned(thief) < need:
                self._take(thief, need - self.owned(thief), demand)
        return [self._read(worker, need) for worker, need in enumerate(demand)]

    def _read(self, worker: int, need: int) -> list[int]:
        taken: list[int] = []
        queue = self.queues[worker]
        for _ in range(need):
            taken.append(queue[0][1].pop(0))
            queue[0][2] = True
            if not queue[0][1]:
                queue.pop(0)
        return taken

    def _take(self, thief: int, short: int, demand: Sequence[int]) -> None:
        def rounds_left(worker: int) -> float:
            return (self.owned(worker) - demand[worker]) * (1 / max(demand[worker], 1))

        others = sorted((w for w in range(len(demand)) if w != thief), key=lambda w: (-rounds_left(w), w))
        spare = [w for w in others if self.owned(w) > demand[w]]
        for victim in spare:
            last = self.queues[victim][-1]
            if not last[2] and self.owned(victim) - len(last[1]) >= demand[victim]:
                self.queues[thief].append(self.queues[victim].pop())
                return
        victim = spare[0]
        last = self.queues[victim][-1]
        count = min(short, self.owned(victim) - demand[victim], len(last[1]))
        if count == len(last[1]):  # the whole rest: it stays the piece that it is
            self.queues[thief].append(self.queues[victim].pop())
            return
        self.queues[thief].append([self.next_id, last[1][-count:], False])
        self.next_id += 1
        del last[1][-count:]

    def move(self, piece_id: int, target: int) -> bool:
        for queue in self.queues:
            for piece in queue:
                if piece[0] == piece_id and not piece[2]:
                    if queue is not self.queues[target]:
                        queue.remove(piece)
                        self.queues[target].append(piece)
                    return True
        return False

    def reorder(self, order: Sequence[int]) -> None:
        rank = {piece: place for place, piece in enumerate(order)}
        for queue in self.queues:
            begun = [p for p in queue if p[2]]
            rest = sorted((p for p in queue if not p[2]), key=lambda p: rank.get(p[0], len(rank)))
            queue[:] = begun + rest
