"""Record one training step: its operations in order, and the memory that they hold.

`record(make, batch)` calls the user's `make(batch)`, which returns a function that runs one step, under
`pretend.pretending()`. The first call makes the optimiser's states, the second one is recorded.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from equipoise.calibrate.trace.memory import CachingAllocator
from equipoise.calibrate.trace.pretend import pretending
from equipoise.calibrate.trace.work import READ, Pass, Shape, TracedOperation, operation

MakeStep = Callable[[int], Callable[[], object]]
"""make(batch) returns a function that runs one training step of `batch` samples."""


COLLECTED = 100
"""Calls between two collections of cycles; Python's own threshold is reached about as often."""


class CannotTraceError(ValueError):
    """The script cannot be traced; one line that says why and what to do."""


@dataclass(frozen=True)
class StepTrace:
    """One training step.

    operations: in the order of calls. peak_bytes, reserved_bytes: of the allocator, over the step; kept_bytes: held
    before it begins (parameters, states). host_reads: values that the host waited for. parameters: that are trained.
    gradients: (operations before it was complete, bytes) of each trained parameter's, in the order of completion.
    """

    operations: Sequence[TracedOperation]
    batch: int
    peak_bytes: float
    reserved_bytes: float
    kept_bytes: float
    host_reads: int
    parameters: int
    gradients: Sequence[tuple[int, int]] = ()


class StepRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes every operation, and allocates and frees the storages of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[TracedOperation] = []
        self.memory = CachingAllocator()
        self.host_reads = 0
        self.updating = False  # an optimiser steps: what it reads, its count of steps, is the host's own
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._later: list[Any] = []
        self._calls = 0

    def __enter__(self) -> Any:
        # Cycles hold tensors until they are collected: at the same calls, whatever ran before, and about as often.
        self._collects = gc.isenabled()
        gc.collect()
        gc.disable()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._collects:
            gc.enable()

    def _allocate(self, storage: Any) -> None:
        if storage not in self._known:
            block = self._known[storage] = self.memory.allocate(storage.nbytes())
            weakref.finalize(storage, self.memory.free, block)

    def _settle(self) -> None:
        """Allocate the sum of gradients that the autograd engine would have added in place."""
        for kept in self._later:
            storage = kept()
            if storage is not None:
                self._allocate(storage)
        self._later.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._settle()
        self._calls += 1
        if self._calls % COLLECTED == 0:
            gc.collect(1)
        namespace, _, rest = str(func).partition(".")
        name = rest.partition(".")[0]
        if name == "_local_scalar_dense":
            return self._read(args[0])
        out = func(*args, **(kwargs or {}))
        if namespace not in ("aten", "equipoise"):
            return out
        ins = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        backward = torch._C._current_graph_task_id() != -1
        adds = backward and name == "add" and len(ins) == 2 and ins[0].shape == ins[1].shape
        for x in outs:
            storage = x.untyped_storage()
            if adds:
                self._later.append(weakref.ref(storage))
            else:
                self._allocate(storage)
        scalars = [x for x in tree_leaves(args) if isinstance(x, bool | int | float)]
        during: Pass = "backward" if backward else "forward"
        changes = bool(func._schema.is_mutable)
        one = operation(name, shapes(ins), shapes(outs), during, changes, scalars)
        self.operations.extend(each_group(one) if name == "grouped_product" and one.kind != "product" else [one])
        return out

    def _read(self, tensor: Any) -> Any:
        """A value that the script reads: 1, as no value exists."""
        if not self.updating:
            self.host_reads += 1
            self.operations.append(TracedOperation("item", READ, "forward"))
        return True if tensor.dtype is torch.bool else 1.0 if tensor.dtype.is_floating_point else 1


def each_group(one: TracedOperation) -> list[TracedOperation]:
    """A grouped product of 32-bit numbers: PyTorch reads the groups' ends on the host and calls one product each."""
    assert one.product is not None
    groups, m, n, k = one.product
    part = replace(one, flop=one.flop / groups, bytes=one.bytes / groups, product=(1, m, n, k))
    return [TracedOperation("item", READ, one.during), *[part] * groups]


def shapes(tensors: Sequence[torch.Tensor]) -> list[Shape]:
    """The shapes of tensors."""
    return [
        Shape(tuple(x.shape), tuple(x.stride()), x.element_size(), x.dtype.is_floating_point and x.element_size() >= 4)
        for x in tensors
    ]


def record(make: MakeStep, batch: int) -> StepTrace:
    """Record the second training step of `make(batch)`. Raises CannotTraceError, one line."""
    trained: dict[int, int] = {}
    gradients: dict[int, tuple[int, int]] = {}

    recorder = StepRecorder()

    def complete(parameter: torch.Tensor) -> None:
        gradients.pop(id(parameter), None)  # of several passes the last one counts
        gradients[id(parameter)] = len(recorder.operations), parameter.grad.nbytes if parameter.grad is not None else 0

    def steps(optimiser: Any, *_: Any) -> None:
        for parameter in (p for group in optimiser.param_groups for p in group["params"]):
            if id(parameter) not in trained and parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(complete))
            trained[id(parameter)] = parameter.numel()
        recorder.updating = True

    def stepped(*_: Any) -> None:
        recorder.updating = False

    hooks: list[Any] = [register_optimizer_step_pre_hook(steps), register_optimizer_step_post_hook(stepped)]
    try:
        with pretending(), recorder:
            step = make(batch)
            step()
            recorder._settle()
            kept = recorder.memory.allocated_bytes
            recorder.operations.clear()
            recorder.memory.reset_peak()
            recorder.host_reads = 0
            step()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotTraceError(
            f"{error}: the shape or the value of a result depends on data, which a trace does not have; "
            "give the step a form without it"
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    memory = recorder.memory
    return StepTrace(
        tuple(recorder.operations),
        batch,
        memory.peak_bytes,
        memory.peak_reserved_bytes,
        kept,
        recorder.host_reads,
        sum(trained.values()),
        tuple(gradients.values()),
    )
