"""Steps on a GPU: the single operations that are timed there, and what they say of models that no fit has seen."""

from __future__ import annotations

from functools import partial

import pytest

from equipoise.calibrate.fit.compose_fits import ALONE, unit_costs
from equipoise.calibrate.measure import kernels
from equipoise.calibrate.measure.measure import Measure
from equipoise.calibrate.measure.operations import KINDS, PRODUCTS, TimedOperation, trace
from equipoise.calibrate.samples import Sample, SampleSet

RATE, BANDWIDTH = 50e9, 10e9


@pytest.mark.parametrize(
    ("precision", "operation"),
    [*(("fp32", name) for name in kernels.MOVED), *(("bf16", name) for name in kernels.IN_BF16)],
)
def test_a_timed_operation_is_noted_as_its_kind_and_moves_what_it_says(precision: str, operation: str) -> None:
    torch = pytest.importorskip("torch")
    dtype, part = {"fp32": (torch.float32, 1.0), "bf16": (torch.bfloat16, 0.5)}[precision]
    (found,) = trace(kernels.moving(operation, 2**16, "cpu", dtype))
    assert found.kind == {"add": "memory", "exp": "function"}.get(operation, operation)
    assert found.moved_bytes == pytest.approx(part * kernels.MOVED[operation] * 2**16, rel=0.05)


@pytest.mark.parametrize("part", kernels.PARTS)
def test_timed_products_are_noted_as_the_shapes_they_are_kept_under(part: str) -> None:
    torch = pytest.importorskip("torch")
    (product,) = trace(kernels.linear(part, 32, 48, 16, "cpu", torch.float32))
    assert ALONE[product.kind][:2] == ("gemm", part)
    assert (product.m, product.n, product.k) == kernels.product_of(part, 32, 48, 16)
    (product,) = trace(kernels.convolution(part, (2, 4, 8, 8, 2), "cpu", torch.float32))
    assert ALONE[product.kind][:2] == ("convolution", part)
    assert (product.m, product.n, product.k) == kernels.product_of(part, 32, 8, 36)


@pytest.mark.parametrize(
    ("part", "kind", "count"), [("forward", "attention", 2), ("backward", "attention_backward", 5)]
)
def test_timed_attention_is_so_many_products(part: str, kind: str, count: int) -> None:
    torch = pytest.importorskip("torch")
    found = trace(kernels.attention(part, (2, 3, 32, 8), "cpu", torch.float32))
    assert {o.kind for o in found} == {kind}
    assert sum(o.count for o in found) == count == ALONE[kind][2]
    assert {o.m * o.n * o.k for o in found} == {2 * 3 * 32 * 16 * 8}


def planned(monkeypatch: pytest.MonkeyPatch) -> list[Measure]:
    """What would be timed, as on a machine with CUDA."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return kernels.kernel_measures(quick=False)


def test_every_operation_that_is_timed_is_what_steps_are_composed_from(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Sample("load_latency", {"bytes": b}, (1e-9 * b,)) for b in (10, 400)]
    for measure in planned(monkeypatch):
        p, seconds = measure.parameters, 1e-6
        if "m" in p:
            work = float(p["m"]) * float(p["n"]) * float(p["k"])  # type: ignore[arg-type]
            seconds += {"gemm": 2.0, "convolution": 4.0, "attention": 6.0}[measure.kind] * work / RATE
        elif measure.kind == "elementwise":
            seconds += (1 + len(str(p["operation"]))) * float(p["bytes"]) / BANDWIDTH  # type: ignore[arg-type]
        found.append(Sample(measure.kind, p, (seconds,) * 3))
        assert measure.once
    assert len({s.key for s in found}) == len(found)
    for precision in ("fp32", "bf16"):
        size = 2 if precision == "bf16" else 4
        every = unit_costs(SampleSet({}, {}, tuple(found)), precision, "PyTorch")
        assert set(every.moves) == set(KINDS) - set(PRODUCTS)
        assert {kind for kind, s in every.products if s == size} == set(PRODUCTS)
        assert (every.overhead_s, every.load_s) == pytest.approx((1e-6, 4e-7))
        row = every.totals(
            [TimedOperation("norm", moved_bytes=10**8), TimedOperation("convolution", 8192, 512, 512, size)]
        )
        assert row[4] == pytest.approx(5 * 1e8 / BANDWIDTH, rel=0.05)
        assert row[1] == pytest.approx(4.0 * 8192 * 512 * 512 / RATE, rel=0.05)


def test_kernels_are_timed_one_call_at_a_time_where_there_is_no_gpu() -> None:
    pytest.importorskip("torch")
    add = partial(kernels.moving, "add", 2**16)
    assert min(kernels._times("cpu", "fp32", 12 * 2**16, add, 0.01)) > 0.0
    assert min(kernels._dispatch("cpu", "fp32", 0.01)) > 0.0


def test_calls_are_timed_between_two_events_while_the_device_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device without a clock of its own: each call takes it 2 ms, whatever the host needs to queue it."""
    torch = pytest.importorskip("torch")
    device = {"at_s": 0.0, "held": 0}

    class Event:
        """Remembers how far the device was."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_s = device["at_s"]

        def synchronize(self) -> None:
            assert device["held"] > 0

        def elapsed_time(self, end: Event) -> float:
            return 1e3 * (end.at_s - self.at_s)

    def hold(clocks: int) -> None:
        device["held"] += clocks

    def call() -> None:
        device["at_s"] += 2e-3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", hold)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = kernels._queued_s(call, 0.0)
    assert len(found) == 5
    assert found == pytest.approx([2e-3] * 5)
