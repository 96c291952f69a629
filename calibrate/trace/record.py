"""Record one training step: its operations in order, and the memory that they hold.

`record(make, batch)` calls the user's `make(batch)`, which returns a function that runs one step, under
`pretend.pretending()`. The first call makes the optimiser's states, the second one is recorded.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from equipoise.calibrate.trace.fuse import Flow, fused
from equipoise.calibrate.trace.memory import CachingAllocator
from equipoise.calibrate.trace.pretend import CannotTraceError, pretending
from equipoise.calibrate.trace.work import READ, Pass, Shape, TracedOperation, operation, workspace_bytes

MakeStep = Callable[[int], Callable[[], object]]
"""make(batch) returns a function that runs one training step of `batch` samples."""


READS = 5000
"""Numbers and conditions that a step may read: beyond that it waits for one that never comes. Integers are indices."""
COLLECTED = 100
"""Calls between two collections of cycles; Python's own threshold is reached about as often."""


COLLECTIVES = ("allgather", "all_gather", "reduce_scatter", "allreduce", "all_reduce", "alltoall", "all_to_all")


@dataclass(frozen=True)
class StepTrace:
    """One training step.

    operations: in the order of calls. peak_bytes, reserved_bytes: of the allocator, over the step; kept_bytes: held
    before it begins (parameters, states). host_reads: values that the host waited for. parameters: that are trained.
    gradients: (operations before it was complete, bytes) of each trained parameter's, in the order of completion.
    sent: (operations before it, collective, bytes of the whole tensor) of each exchange of a step of `ranks` ranks.
    compiled: operations are fused by the rule of `fuse`. saved_bytes: of kept_bytes without gradients, as a checkpoint.
    """

    operations: Sequence[TracedOperation]
    batch: int
    peak_bytes: float
    reserved_bytes: float
    kept_bytes: float
    host_reads: int
    parameters: int
    gradients: Sequence[tuple[int, int]] = ()
    ranks: int = 1
    sent: Sequence[tuple[int, str, int]] = ()
    compiled: bool = False
    saved_bytes: float = 0.0

    @property
    def exchanged(self) -> Mapping[str, float]:
        """Bytes by collective."""
        found: Counter[str] = Counter()
        for _, name, size in self.sent:
            found[name] += size
        return dict(found)


class StepRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes every operation, and allocates and frees the storages of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[TracedOperation] = []
        self.memory = CachingAllocator()
        self.host_reads = 0
        self._loading = False
        self.updating = False  # an optimiser steps: what it reads, its count of steps, is the host's own
        self.sent: list[tuple[int, str, int]] = []
        self.flows: list[Flow] = []
        self._known: weakref.WeakKeyDictionary[Any, weakref.finalize[..., Any]] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._later: list[Any] = []
        self._calls = self._count = self._looked = 0

    def __enter__(self) -> Any:
        # Cycles hold tensors until they are collected: at the same calls, whatever ran before, and about as often.
        # What was made before is left out, as looking through it takes longer than most traces.
        self._collects = gc.isenabled()
        gc.disable()
        gc.freeze()
        self._patches = ExitStack()
        self._patches.enter_context(patch.object(torch.UntypedStorage, "resize_", self._resize))
        for name in ("__init__", "__next__"):
            plain = getattr(_BaseDataLoaderIter, name)
            self._patches.enter_context(patch.object(_BaseDataLoaderIter, name, self._loads(plain)))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()
        gc.unfreeze()
        if self._collects:
            gc.enable()

    def _allocate(self, storage: Any, beside: int = 0) -> None:
        if storage not in self._known:
            block = self.memory.allocate(storage.nbytes() + beside)
            self._known[storage] = weakref.finalize(storage, self.memory.free, block)

    @property
    def _resize(self) -> Any:
        """`UntypedStorage.resize_`, by which sharded training frees and allocates whole parameters."""
        known, allocate, plain = self._known, self._allocate, torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            if storage in known:
                known.pop(storage)()
            out = plain(storage, size)
            if size:
                allocate(storage)
            return out

        return resize

    def _loads(self, plain: Any) -> Any:
        """A function of a loader of data, whose work other processes do; only its result counts."""

        def load(*args: Any) -> Any:
            self._loading = True
            try:
                found = plain(*args)
            finally:
                self._loading = False
            for x in tree_leaves(found):
                if isinstance(x, torch.Tensor):
                    self._allocate(x.untyped_storage())
            return found

        return load

    def _settle(self) -> None:
        """Allocate the sum of gradients that the autograd engine would have added in place."""
        for kept in self._later:
            storage = kept()
            if storage is not None:
                self._allocate(storage)
        self._later.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its local tensors come next
        self._settle()
        self._calls += 1
        if self._calls % COLLECTED == 0:
            gc.collect(1)
        namespace, _, rest = str(func).partition(".")
        name = rest.partition(".")[0]
        if name == "_local_scalar_dense":
            return self._read(args[0])
        out = func(*args, **(kwargs or {}))
        if self._loading:
            return out
        if namespace in ("c10d", "_c10d_functional") and name.strip("_").startswith(COLLECTIVES):
            whole = max((x.nbytes for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor)), default=0)
            plain = name.strip("_").removesuffix("_base_").removesuffix("_base")
            self.sent.append((len(self.operations), plain, whole))
        if namespace not in ("aten", "equipoise", "fsdp"):
            return out
        ins = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        outs = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if any(x.layout is not torch.strided for x in outs):
            raise CannotTraceError("a sparse tensor, whose size depends on data (sparse=True?): use a dense one")
        backward = torch._C._current_graph_task_id() != -1
        adds = backward and name == "add" and len(ins) == 2 and ins[0].shape == ins[1].shape
        beside = workspace_bytes(name, shapes(ins))
        for x in outs:
            storage = x.untyped_storage()
            if adds:
                self._later.append(weakref.ref(storage))
            else:
                self._allocate(storage, beside if x is outs[-1] else 0)
        scalars = [x for x in tree_leaves(args) if isinstance(x, bool | int | float)]
        during: Pass = "backward" if backward else "forward"
        changes = bool(func._schema.is_mutable)
        one = operation(name, shapes(ins), shapes(outs), during, changes, scalars)
        made = each_group(one) if name == "grouped_product" and one.kind != "product" else [one]
        self.operations.extend(made)
        written = [*outs, *ins[:1]] if changes else outs
        elements = max((x.numel() for x in (*ins, *outs)), default=0)
        self.flows.extend([Flow(self._storages(ins), self._storages(written), elements)] * len(made))
        return out

    def _storages(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """Bytes that are touched of each storage, by its number."""
        found: dict[int, int] = {}
        for one, shape in zip(tensors, shapes(tensors), strict=True):
            storage = one.untyped_storage()
            if storage not in self._numbers:
                self._count += 1
                self._numbers[storage] = self._count
            number = self._numbers[storage]
            found[number] = max(found.get(number, 0), shape.memory_bytes)
        return found

    def _read(self, tensor: Any) -> Any:
        """A value that the script reads: 1, as no value exists."""
        if not self.updating and not self._loading:
            self.host_reads += 1
            self._looked += tensor.dtype is torch.bool or tensor.dtype.is_floating_point
            if self._looked > READS:
                raise CannotTraceError(
                    f"it reads more than {READS} values in a step: in a loop until a value is reached? A trace has no "
                    "values and takes each to be 1; give the loop a number of turns"
                )
            self.operations.append(TracedOperation("item", READ, "forward"))
            self.flows.append(Flow({}, {}, 0))
        if tensor.dtype is torch.bool:
            return not getattr(tensor, "is_check", False)
        return 1.0 if tensor.dtype.is_floating_point else 1


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


def record(make: MakeStep, batch: int, ranks: int = 1, device: str = "cuda") -> StepTrace:
    """Record the second training step of `make(batch)` on the first of `ranks`. Raises CannotTraceError, one line."""
    trained: dict[int, torch.Tensor] = {}
    gradients: dict[int, tuple[int, int]] = {}

    recorder = StepRecorder()

    def complete(parameter: torch.Tensor) -> None:
        gradients.pop(id(parameter), None)  # of several passes the last one counts
        gradients[id(parameter)] = len(recorder.operations), parameter.grad.nbytes if parameter.grad is not None else 0

    def steps(optimiser: Any, *_: Any) -> None:
        for parameter in (p for group in optimiser.param_groups for p in group["params"]):
            if id(parameter) not in trained and parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(complete))
            trained[id(parameter)] = parameter
        recorder.updating = True

    def stepped(*_: Any) -> None:
        recorder.updating = False

    hooks: list[Any] = [register_optimizer_step_pre_hook(steps), register_optimizer_step_post_hook(stepped)]
    try:
        with pretending(ranks, device) as pretence, recorder:
            step = make(batch)
            if not callable(step):
                raise CannotTraceError(f"it returned {type(step).__name__}, not a function that does one step")
            step()
            recorder._settle()
            kept = recorder.memory.allocated_bytes
            saved = kept - sum(map(_gradient_bytes, trained.values()))
            recorder.operations.clear()
            recorder.flows.clear()
            recorder.memory.reset_peak()
            recorder.host_reads = 0
            recorder.sent.clear()
            step()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotTraceError(
            f"{error}: the shape or the value of a result depends on data, which a trace does not have; "
            "give the step a form without it"
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    memory, operations, complete_at = recorder.memory, recorder.operations, list(gradients.values())
    sent = recorder.sent
    if pretence.compiled:
        operations, done = fused(operations, recorder.flows)
        after = [0, *done]
        complete_at = [(after[min(at, len(done))], size) for at, size in complete_at]
        sent = [(after[min(at, len(done))], name, size) for at, name, size in sent]
    return StepTrace(
        tuple(operations),
        batch,
        memory.peak_bytes,
        memory.peak_reserved_bytes,
        kept,
        recorder.host_reads,
        sum(parameter.numel() for parameter in trained.values()),
        tuple(complete_at),
        ranks,
        tuple(sent),
        pretence.compiled,
        saved,
    )


def _gradient_bytes(parameter: torch.Tensor) -> int:
    """Bytes of a parameter's gradient that this rank holds now."""
    gradient: Any = parameter.grad
    if gradient is None:
        return 0
    return int((gradient.to_local() if hasattr(gradient, "to_local") else gradient).nbytes)
