"""Forms the group anew after a broken exchange or by decision, and resumes training."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from equipoise.live.group import rebuild
from equipoise.live.group.group import Group
from equipoise.live.group.regroup import EvictedError, RegroupError, is_transport_error
from equipoise.live.group.resync import ModelReplica


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the training job when its group is formed anew."""

    leave: Callable[[], ModelReplica]  # this member's state, before it leaves its group
    agree: Callable[[ModelReplica], None]  # agree on one state; collective in the new group
    resumed: Callable[[float], None]  # called with the seconds that it took
    note: Callable[..., None]  # records an event: its kind, and values by name


class Recovery:
    """Turns broken exchanges into regroups."""

    def __init__(self, group: Group, model: DistributedDataParallel, hooks: Hooks) -> None:
        self._group, self._model, self._hooks = group, model, hooks
        regroups = group.membership is not None
        self._wrapping: Mapping[str, Any] = rebuild.wrapping(model) if regroups else {}
        self.generation = 0  # regroups so far
        self.finished = False  # training ended while this member waited outside

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Turn a broken exchange inside the block into a regroup of the remaining members."""
        try:
            yield
        except Exception as error:
            if self._group.membership is None or not is_transport_error(error):
                raise
            why = str(error).partition("\n")[0]
            self._hooks.note("exchange-broken", error=why)
            try:
                self.regroup(None, why)
            except Exception as problem:
                if not (isinstance(problem, RegroupError) or is_transport_error(problem)):
                    raise
                self._group.membership.wait_for_end()
                error.add_note(f"equipoise: {problem}")
                raise error from problem

    def regroup(self, target: Sequence[int] | None, why: str = "as planned") -> None:
        """Form the group anew (of `target`, or of the remaining members) and agree on one state. Collective."""
        began_s, before = time.perf_counter(), self._group.members
        self.finished = not self._reformed(self._hooks.leave(), target)
        self.generation += 1
        if self.finished:
            return
        took_s = time.perf_counter() - began_s
        self._hooks.resumed(took_s)
        if self._group.rank == 0:
            print(f"equipoise: {self._group.what_changed(before, why)}", file=sys.stderr)
        self._hooks.note("regrouped", members=self._group.members, took_s=took_s)

    def _reformed(self, replica: ModelReplica, target: Sequence[int] | None) -> bool:
        """Whether this member continues training; False if training ended while it waited outside."""
        while True:
            try:
                self._group.reform(self._model, self._wrapping, replica.boundary, target)
                self._hooks.agree(replica)
                return True
            except EvictedError as left_out:
                if not left_out.planned:
                    raise
                return False
            except Exception as error:
                if not is_transport_error(error):
                    raise
                target = None
