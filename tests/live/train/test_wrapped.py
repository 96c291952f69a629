"""A process group lives as long as what exchanges gradients in it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group.rebuild import rewrap, wrapping  # noqa: E402
from equipoise.live.train.wrapped import wrapped  # noqa: E402


@pytest.fixture
def model() -> Iterator[Any]:
    import torch.distributed.nn  # else the first group, which is then a default of its functions, lives for good
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(torch.nn.Linear(2, 1))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("begin", [wrapped, lambda model: rewrap(model, wrapping(model))])
def test_a_script_that_ends_its_group_first_ends_its_reducer_before_it(model: Any, begin: Callable[[Any], Any]) -> None:
    begin(model)
    group = weakref.ref(model.process_group)
    torch.distributed.destroy_process_group()
    model.process_group = None  # as when the model goes: its attributes in the order in which they were set
    gc.collect()
    assert group() is not None
    model.reducer = model.logger = None
    gc.collect()
    assert group() is None
