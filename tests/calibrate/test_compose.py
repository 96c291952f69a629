"""Steps composed from operations: what is noted, what it costs, and models that no fit has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.calibrate.fit.compose import DEFAULT_PRIOR, FACTORS, PRIOR_CENTRE, SMS, UnitCosts, fit_step_model
from equipoise.calibrate.fit.compose_fits import composed_part, prior_of, unit_costs
from equipoise.calibrate.fit.gemm import fit_gemm_efficiency
from equipoise.calibrate.fit.levels import Report
from equipoise.calibrate.fit.pieces import fit_collective
from equipoise.calibrate.measure.operations import COLUMNS, KINDS, TimedOperation, as_columns, from_columns, trace
from equipoise.calibrate.samples import Sample, SampleSet
from equipoise.commands.hardware.calibrate import calibrate as command
from equipoise.sim.hardware.profile import load_profile

RATE, BANDWIDTH, CALL_S = 50e9, 10e9, 1e-6


def product_s(m: float, n: float, k: float) -> float:
    return CALL_S + 2.0 * m * n * k / RATE


def traffic_s(moved_bytes: float) -> float:
    return CALL_S + moved_bytes / BANDWIDTH


SHAPES = [(m, n, k) for m in (8, 64, 512) for n in (64, 512) for k in (64, 512)]
SIZES = [3.0 * 4**e for e in range(4, 13)]


def costs(overlapped: bool = False) -> UnitCosts:
    m, n, k = np.array(SHAPES, dtype=float).T
    fit = fit_gemm_efficiency(m, n, k, [product_s(*s) for s in SHAPES], RATE, 4.0)
    moved = fit_collective(SIZES, [traffic_s(s) for s in SIZES], intervals=False)
    return UnitCosts({("product", 4): fit}, {"memory": moved, "function": moved}, CALL_S, overlapped)


# -- what is noted ----------------------------------------------------------------------------------------


def linear_step(batch: int) -> Callable[[], Any]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.Linear(32, 10))
    x, y = torch.randn(batch, 24), torch.randint(0, 10, (batch,))

    def step() -> None:
        torch.nn.functional.cross_entropy(model(x), y).backward()

    return step


def conv_step(batch: int) -> Callable[[], Any]:
    import torch

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 6, 3, stride=2, padding=1)
    )
    x = torch.randn(batch, 3, 12, 12)
    return lambda: model(x).sum().backward()


def one_backward(layer: Any, x: Any) -> None:
    layer(x).square().sum().backward()


@pytest.mark.parametrize("make", [linear_step, conv_step])
@pytest.mark.parametrize("batch", [2, 7])
def test_products_are_those_that_pytorch_s_own_counter_finds(make: Any, batch: int) -> None:
    counter = pytest.importorskip("torch.utils.flop_counter")
    step = make(batch)
    found = trace(step)
    with counter.FlopCounterMode(display=False) as counted:
        step()
    work = sum(2 * o.m * o.n * o.k * o.count for o in found)
    assert work == counted.get_total_flops()
    assert {o.kind for o in found} >= {"memory", "product" if make is linear_step else "convolution_weight"}


def test_traffic_is_what_each_operation_reads_and_writes_and_views_are_free() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.randn(10, 20), torch.randn(10, 20)

    def step() -> None:
        c = (a + b).t().reshape(-1)[3:]  # the transpose makes reshape copy
        torch.exp(c)
        torch.empty(1000)
        c.mul_(2.0)

    found = trace(step)
    assert {(o.kind, o.moved_bytes, o.count) for o in found} == {
        ("memory", 3 * 800, 1),
        ("transposed", 2 * 800, 1),
        ("function", 2 * 788, 1),
        ("memory", 2 * 788, 1),
    }


def test_equal_operations_are_counted_apart_before_in_and_after_the_backward_pass() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(100, requires_grad=True)

    def step() -> None:
        y = (x * 2.0 * 3.0).sum()
        y.backward()
        with torch.no_grad():
            x.mul_(0.5)

    found = [(o.kind, o.moved_bytes, o.count) for o in trace(step) if o.moved_bytes == 800]
    assert found == [("memory", 800, 2), ("memory", 800, 1), ("memory", 800, 1)]


def test_what_a_kernel_does_besides_its_operation_is_noted() -> None:
    torch = pytest.importorskip("torch")
    images, scores = torch.randn(2, 3, 8, 8), torch.randn(4, 16, 40)
    for bias in (False, True):
        layer = torch.nn.Conv2d(3, 6, 3, padding=1, bias=bias)
        step = partial(one_backward, layer, images)
        forward, *_, weight = (o for o in trace(step) if o.kind.startswith("convolution"))
        assert (forward.moved_bytes, weight.moved_bytes) == (8 * 768 * bias, 4 * 768 * bias)
    copied, softmax = trace(lambda: torch.log_softmax(scores.transpose(1, 2), 1))
    assert (copied.kind, copied.moved_bytes, softmax.kind) == ("transposed", 8 * scores.numel(), "softmax")
    (copied,) = trace(lambda: scores.view(4, 4, 4, 40).transpose(1, 2).contiguous())
    assert copied.kind == "strided", "elements that lie together stay together"
    norm = torch.nn.BatchNorm2d(3)
    assert next(o.n for o in trace(lambda: norm(images)) if o.kind == "batch_norm") == 3


def test_updates_in_place_without_a_result_are_counted() -> None:
    torch = pytest.importorskip("torch")
    weights, gradients = ([torch.randn(n) for n in (100, 50)] for _ in range(2))
    (update,) = trace(lambda: torch._foreach_add_(weights, gradients, alpha=-0.1))
    assert (update.kind, update.moved_bytes) == ("list", 3 * 4 * 150), "both read, the weights written"


@pytest.mark.parametrize(("masked", "causal"), [(False, False), (True, False), (False, True)])
def test_attention_and_lookups_are_seen_as_such(masked: bool, causal: bool) -> None:
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, 3, 16, 6, requires_grad=True) for _ in range(3))
    mask = torch.zeros(2, 3, 16, 16) if masked else None
    table, index = torch.randn(5000, 4), torch.tensor([1, 2, 3])

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal).sum().backward()
        torch.nn.functional.embedding(index, table)

    found = trace(step)
    rows = 2 * 3 * 16
    attention = {(o.kind, o.m, o.n, o.k): o.count for o in found if "attention" in o.kind}
    seen, depth = 8 if causal else 16, 6
    assert attention == {
        ("attention", rows, seen, depth): 1,
        ("attention", rows, depth, seen): 1,
        ("attention_backward", rows, seen, depth): 2,
        ("attention_backward", rows, depth, seen): 3,
    }
    assert ("memory", 2 * 3 * 4 * 4) in {(o.kind, o.moved_bytes) for o in found}, "the rows, not the table"


@pytest.mark.parametrize(("dim", "loads"), [(-1, 0), (2, 0), (1, 40), (-3, 4)])
def test_a_softmax_along_another_dimension_makes_each_thread_wait_in_turn(dim: int, loads: int) -> None:
    torch = pytest.importorskip("torch")
    x, dy = torch.randn(4, 40, 16), torch.randn(4, 40, 16)
    y = torch.log_softmax(x, dim)
    (forward,) = trace(lambda: torch.log_softmax(x, dim))
    (backward,) = trace(lambda: torch.ops.aten._log_softmax_backward_data(dy, y, dim, torch.float32))
    assert (forward.kind, forward.k, forward.moved_bytes) == ("softmax", 3 * loads, 2 * 4 * x.numel())
    assert (backward.kind, backward.k, backward.moved_bytes) == ("softmax_backward", 2 * loads, 3 * 4 * x.numel())
    slow = replace(costs(overlapped=True), load_s=1e-3).totals([forward, backward])
    assert slow[4] == pytest.approx(max(5 * loads * 1e-3, float(costs().totals([forward, backward])[4])))


def test_what_is_given_twice_or_repeated_by_a_stride_is_read_once() -> None:
    torch = pytest.importorskip("torch")
    mean, slope = ([torch.randn(100)] for _ in range(2))
    (square,) = trace(lambda: torch._foreach_addcmul_(mean, slope, slope, value=0.1))
    assert square.moved_bytes == 4 * (100 + 100 + 100), "the mean read and written, the slope read"
    mask, scores = torch.zeros(1, 8, 8).expand(6, 8, 8), torch.randn(6, 8, 8)
    (masked,) = trace(lambda: scores + mask)
    assert (masked.kind, masked.moved_bytes) == ("memory", 4 * (2 * 6 * 64 + 64))


def test_a_loss_reads_one_element_of_each_row() -> None:
    torch = pytest.importorskip("torch")
    scores, picked = torch.randn(10, 5000, requires_grad=True), torch.randint(0, 5000, (10,))
    forward = trace(lambda: torch.nn.functional.nll_loss(scores, picked))
    assert sum(o.moved_bytes for o in forward) < 400
    loss = torch.nn.functional.nll_loss(scores, picked)
    assert sum(o.moved_bytes for o in trace(loss.backward)) == pytest.approx(4 * 50_000, rel=0.01)


whole = st.integers(0, 10**6)
operations = st.builds(
    TimedOperation,
    st.sampled_from(KINDS),
    whole,
    whole,
    whole,
    st.sampled_from([1, 2, 4, 8]),
    whole,
    st.integers(1, 99),
)


@given(st.lists(operations, max_size=8))
@settings(max_examples=50, deadline=None)
def test_columns_hold_everything(found: list[TimedOperation]) -> None:
    assert from_columns(as_columns(found)) == found


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {name: [1.0] for name in COLUMNS[1:]},
        {name: [1.0] * (2 if name == "m" else 1) for name in COLUMNS},
        {name: [99.0] for name in COLUMNS},
    ],
)
def test_columns_that_are_no_operations_are_refused(columns: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="operations"):
        from_columns(columns)


# -- what it costs ----------------------------------------------------------------------------------------


def naive_totals(found: list[TimedOperation]) -> list[float]:
    """Plain sum over operations, one after the other, from the constants that the samples were made of."""
    totals = [0.0] * len(FACTORS)
    for o in found:
        for _ in range(o.count):
            if o.kind in ("memory", "function"):
                totals[FACTORS.index(o.kind)] += traffic_s(o.moved_bytes)
            else:
                totals[FACTORS.index(o.kind)] += product_s(o.m, o.n, o.k)
            totals[-1] += CALL_S
    return totals


products = st.builds(
    TimedOperation,
    st.sampled_from(["product", "convolution", "attention"]),
    *(st.integers(8, 512) for _ in range(3)),
    count=st.integers(1, 5),
)
moves = st.builds(
    TimedOperation, st.sampled_from(["memory", "function"]), moved_bytes=st.integers(0, 10**7), count=st.integers(1, 5)
)


@given(st.lists(products | moves, max_size=10))
@settings(max_examples=40, deadline=None)
def test_totals_equal_the_plain_sum(found: list[TimedOperation]) -> None:
    assert costs().totals(found) == pytest.approx(naive_totals(found), rel=0.1, abs=1e-12)


def test_batch_normalisation_takes_as_long_as_its_largest_share_of_channels() -> None:
    fit = costs().moves["memory"]
    slow = fit_collective(SIZES, [8.0 * traffic_s(s) for s in SIZES], intervals=False)
    every = replace(costs(True), moves={"memory": fit, "function": fit, "batch_norm": slow})
    few, usual, many = (
        float(every.totals([TimedOperation("batch_norm", n=n, moved_bytes=10**7)])[1]) for n in (32, 64, 4096)
    )
    assert few == pytest.approx(2.0 * usual, rel=0.05)
    assert many == pytest.approx(usual * 64 / SMS, rel=0.05)


@given(st.lists(products | moves, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_step_on_a_gpu_is_played_operation_by_operation(found: list[TimedOperation]) -> None:
    """The twin: the host queues one after the other, the device begins each when it is queued and free."""
    every = costs(True)
    queued_s = done_s = 0.0
    for o in found:
        each_s = float(every.totals([replace(o, count=1)])[:5].sum())
        for _ in range(o.count):
            queued_s += every.overhead_s
            done_s = max(done_s, queued_s) + each_s
    played_s = float(every.rows(found).sum(axis=1).max())
    slack_s = max(o.count for o in found) * every.overhead_s  # within equal ones, which are taken as one
    assert played_s <= done_s * (1.0 + 1e-9)
    assert played_s >= done_s - slack_s


def test_an_element_size_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no products of 2-byte elements were measured; known: 4"):
        costs().totals([TimedOperation("product", 8, 8, 8, 2)])


# -- the factors ------------------------------------------------------------------------------------------

TRUE = np.array([1.15, 0.7, 1.0, 1.2, 1.1, 5.0])


def synthetic_totals(random: np.random.Generator, mix: list[float], count: int) -> np.ndarray:
    scale = np.geomspace(1.0, 16.0, count)[:, None] * np.array(mix) * random.uniform(0.9, 1.1, (count, 6))
    scale[:, 3:] = np.array(mix[3:]) * np.linspace(1.0, 2.0, count)[:, None]
    return np.asarray(scale * 1e-3)


def combine(totals: np.ndarray, factors: np.ndarray, overlapped: bool) -> np.ndarray:
    device, host = totals[:, :5] @ factors[:5], totals[:, 5] * factors[5]
    return np.asarray(np.maximum(device, host) if overlapped else device + host)


def rows_of(totals: np.ndarray, overlapped: bool) -> np.ndarray:
    """(steps, rows, 6): the host's part in a row of its own where it overlaps."""
    device, host = totals * [1, 1, 1, 1, 1, 0], totals * [0, 0, 0, 0, 0, 1]
    return np.stack([device, host], axis=1) if overlapped else totals[:, None]


MIXES = {"a": [0.1, 2.0, 0.0, 0.3, 0.3, 0.1], "b": [3.0, 0.0, 0.3, 0.8, 0.4, 0.3]}
THIRD = [1.5, 0.0, 0.0, 2.5, 0.1, 0.07]


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_model_that_was_not_fitted_is_predicted_within_its_interval(overlapped: bool) -> None:
    """Three per cent noise: far closer than the sum of isolated kernels, and the intervals hold the truth."""
    errors, plain, held = [], [], 0
    for seed in range(3):
        random = np.random.default_rng(seed)
        totals = np.concatenate([synthetic_totals(random, mix, 6) for mix in MIXES.values()])
        steps = combine(totals, TRUE, overlapped) * random.normal(1.0, 0.03, len(totals))
        model = fit_step_model(rows_of(totals, overlapped), steps)
        third = synthetic_totals(random, THIRD, 5)
        truth = combine(third, TRUE, overlapped)
        rows = rows_of(third, overlapped)
        errors += np.abs(model.predict(rows) / truth - 1.0).tolist()
        plain += np.abs(combine(third, np.ones(6), overlapped) / truth - 1.0).tolist()
        held += sum(model.predict_interval(r).contains(s) for r, s in zip(rows, truth, strict=True))
    assert np.median(errors) < 0.07
    assert np.median(errors) < 0.5 * np.median(plain)
    assert held >= 0.9 * len(errors)


def test_what_the_steps_say_nothing_of_stays_as_it_was_known() -> None:
    totals = synthetic_totals(np.random.default_rng(1), MIXES["b"], 6)
    model = fit_step_model(rows_of(totals, False), combine(totals, TRUE, False))
    assert model.factors[1] == pytest.approx(np.exp(PRIOR_CENTRE[1]))
    assert model.residual_cov < 0.02
    told = DEFAULT_PRIOR.with_convolutions([0.6, 0.62, 0.65])
    again = fit_step_model(rows_of(totals, False), combine(totals, TRUE, False), told)
    assert again.factors[1] == pytest.approx(0.62)
    assert np.ptp(np.log(again.replicates[:, 1])) < np.ptp(np.log(model.replicates[:, 1]))
    assert DEFAULT_PRIOR.with_convolutions([]) is DEFAULT_PRIOR


def test_an_interrupted_step_moves_the_factors_little() -> None:
    totals = np.concatenate([synthetic_totals(np.random.default_rng(2), mix, 6) for mix in MIXES.values()])
    steps = combine(totals, TRUE, False)
    slow = steps.copy()
    slow[4] *= 3.0
    rows = rows_of(totals, False)
    clean, disturbed = (fit_step_model(rows, s) for s in (steps, slow))
    assert disturbed.predict(rows) == pytest.approx(clean.predict(rows), rel=0.05)


def test_steps_that_cannot_be_fitted_are_refused() -> None:
    good = synthetic_totals(np.random.default_rng(0), MIXES["a"], 4)
    for totals, steps in (
        (good[:2], np.ones(2)),
        (good[:, :4], np.ones(4)),
        (good, np.zeros(4)),
        (np.full_like(good, np.nan), np.ones(4)),
    ):
        with pytest.raises(ValueError, match="step model: "):
            fit_step_model(rows_of(totals, False) if totals.shape[1] == 6 else totals, steps)


# -- from samples -----------------------------------------------------------------------------------------

FRAMEWORK = "test, one core"
MODELS: dict[str, Callable[[int], list[TimedOperation]]] = {
    "wide": lambda b: [
        TimedOperation("product", b, 512, 512, count=6),
        TimedOperation("memory", moved_bytes=3_000_000),
    ],
    "deep": lambda b: [TimedOperation("product", b, 64, 64, count=40), TimedOperation("function", moved_bytes=900 * b)],
    "image": lambda b: [
        TimedOperation("convolution", 64 * b, 64, 72, count=4),
        TimedOperation("memory", moved_bytes=10**5),
    ],
}


def samples(without: str = "") -> SampleSet:
    found = []

    def add(kind: str, seconds: float, **parameters: Any) -> None:
        found.append(Sample(kind, parameters, (seconds, seconds, 1.3 * seconds), "s", 0, "2030-01-02"))

    for m, n, k in SHAPES:
        add("gemm", product_s(m, n, k), precision="fp32", m=m, n=n, k=k, library=FRAMEWORK)
    for size in SIZES:
        for operation in ("add", "exp"):
            add(
                "elementwise",
                traffic_s(size),
                operation=operation,
                bytes=size,
                array_bytes=size / 3,
                framework=FRAMEWORK,
            )
    three = product_s(512, 64, 64) + product_s(512, 64, 64) + product_s(64, 64, 512)
    add("convolution", 0.7 * three, precision="fp32", m=512, n=64, k=64, framework=FRAMEWORK)
    for workload, make in MODELS.items():
        for batch in (4, 8, 16, 32):
            what = {"workload": workload, "precision": "fp32", "batch": batch, "framework": FRAMEWORK}
            row = np.array(naive_totals(make(batch)))
            add("training", float(row @ [1.05, 0.7, 1.0, 1.1, 1.1, 4.0]), **what)
            found.append(Sample("operations", what, (), "s", 0, "2030-01-02", as_columns(make(batch))))
    return SampleSet({"device": "test"}, {}, tuple(s for s in found if s.kind != without))


def test_every_model_is_predicted_from_the_others() -> None:
    report = Report()
    composed_part(samples(), report)
    assert report.missing == []
    assert {p.workload for p in report.predictions} == set(MODELS)
    assert len(report.predictions) == 12
    assert np.median([abs(p.error) for p in report.predictions]) < 0.05
    (line,) = [line for line in report.lines if line.name.startswith("image step")]
    assert line.remark == "steps of wide and deep"
    assert line.held_out_error == pytest.approx(
        np.median([abs(p.error) for p in report.predictions if p.workload == "image"])
    )


def test_single_convolutions_say_what_convolutions_cost() -> None:
    found = samples()
    prior = prior_of(found, unit_costs(found, "fp32", FRAMEWORK), "fp32", FRAMEWORK)
    assert np.exp(prior.centre[1]) == pytest.approx(0.7, rel=0.1)


@pytest.mark.parametrize(
    ("without", "line"),
    [
        ("gemm", "composed steps, fp32: fewer than 6 shapes of products were measured"),
        ("elementwise", "composed steps: fewer than 3 sizes of memory traffic were measured"),
    ],
)
def test_what_is_missing_for_composing_is_said(without: str, line: str) -> None:
    report = Report()
    composed_part(samples(without), report)
    assert (report.missing, report.predictions) == ([line], [])


def test_without_noted_operations_nothing_is_composed() -> None:
    report = Report()
    composed_part(samples("operations"), report)
    assert (report.missing, report.predictions, report.lines) == ([], [], [])


def gpu_samples() -> SampleSet:
    """As a GPU session leaves them: products by the library, copies by size, launches; host and device overlap."""
    found = []

    def add(kind: str, seconds: float, **parameters: Any) -> None:
        found.append(Sample(kind, parameters, (seconds, 1.1 * seconds), "s", 0, "2030-01-02"))

    for precision in ("bf16", "tf32"):
        for m, n, k in SHAPES:
            add("gemm", product_s(m, n, k), precision=precision, m=m, n=n, k=k, library="cublasLt")
        add("gemm", 1.0, precision=precision, m=512, n=512, k=512, library="torch")
    for size in SIZES:
        add("copy", traffic_s(size), bytes=size, array_bytes=size / 2)
    add("launch_pipelined", 4e-6)
    for workload, make in MODELS.items():
        for batch in (4, 16, 64, 256):
            what = {"workload": workload, "precision": "bf16", "batch": batch, "framework": "PyTorch"}
            noted = [replace(o, element_bytes=2) for o in make(batch)]
            totals = np.array(naive_totals(noted))
            device = float(totals[:5] @ [1.05, 0.7, 1.0, 1.1, 1.1])
            host = 2.5 * 4e-6 * sum(o.count for o in noted)
            add("training", max(device, host), **what)
            found.append(Sample("operations", what, (), "s", 0, "2030-01-02", as_columns(noted)))
    return SampleSet({"device": "test"}, {}, tuple(found))


def test_on_a_gpu_a_step_takes_the_longer_of_host_and_device() -> None:
    found = gpu_samples()
    costs = unit_costs(found, "bf16", "PyTorch")
    assert costs.overlapped
    assert costs.overhead_s == pytest.approx(4e-6)
    assert set(costs.products) == {("product", 2), ("product", 4)}, (
        "what autocast leaves in single precision is costed in TF32"
    )
    report = Report()
    composed_part(found, report)
    assert report.missing == []
    errors = {w: [abs(p.error) for p in report.predictions if p.workload == w] for w in MODELS}
    assert np.median(errors["wide"] + errors["deep"]) < 0.05
    assert np.median(errors["image"]) < 0.5, "no convolution was seen, neither in a step nor by itself"


# -- a model of one's own ---------------------------------------------------------------------------------

OWN = """
import torch

def make(batch):
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1024))
    x = torch.randn(batch, 512)
    return lambda: model(x).square().mean().backward()

def double(batch):
    model = torch.nn.Linear(8, 8).double()
    return lambda: model(torch.randn(batch, 8).double()).sum().backward()

def fails(batch):
    raise RuntimeError("two\\nlines")
"""
SAMPLES = Path(__file__).resolve().parents[1] / "data" / "amd_epyc_2_cores.samples.jsonl.gz"


def composed(folder: Path, place: str) -> Any:
    (folder / "own.py").write_text(OWN)
    out = folder / "p.yaml"
    arguments = ["--from", str(SAMPLES), "--out", str(out), "--compose", place.format(folder=folder)]
    return CliRunner().invoke(command, arguments), out


@pytest.mark.long
def test_a_model_of_one_s_own_becomes_a_step_that_a_scenario_can_name(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done, out = composed(tmp_path, "mine={folder}/own.py:make")
    assert done.exit_code == 0, done.output
    assert "mine step, composed, fp32" in done.stdout
    step = load_profile(str(out)).accelerator("amd_epyc").step("mine", "fp32")
    assert step.alpha_s.kind == "fitted"
    assert step.alpha_s.source.startswith("composed from its operations; factors from 18 timed steps")
    products = 6.0 * (512 * 1024 + 1024 * 1024) / 100e9  # s per sample at 100 GFLOP/s, forward and backward
    assert 0.5 * products < step.beta_s.value < 4.0 * products
    assert step.beta_s.low is not None
    assert step.beta_s.high is not None
    assert step.beta_s.low < step.beta_s.value < step.beta_s.high


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("mine", "--compose mine: must be NAME=FILE.py:FUNCTION"),
        ("mine={folder}/none.py:make", "there is no file"),
        ("mine={folder}/own.py:nothing", "own.py has no function nothing"),
        ("mine={folder}/own.py:fails", "composing mine, batch 4: RuntimeError: two lines"),
        ("mine={folder}/own.py:double", "elements of 8 bytes, in which no steps were timed"),
    ],
)
def test_what_cannot_be_composed_is_one_line(tmp_path: Path, place: str, line: str) -> None:
    pytest.importorskip("torch")
    done, out = composed(tmp_path, place)
    assert done.exit_code == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert not out.exists()
