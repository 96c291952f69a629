"""Traced training steps: their work by hand, their memory, the law of a step, and the command."""

from __future__ import annotations

import csv
import importlib.util
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import equipoise  # noqa: E402
from equipoise.api import prepare  # noqa: E402
from equipoise.calibrate.samples import Sample, SampleWriter  # noqa: E402
from equipoise.calibrate.trace.cpu import operation_measures, traced  # noqa: E402
from equipoise.calibrate.trace.memory import MIB, CachingAllocator  # noqa: E402
from equipoise.calibrate.trace.predict import largest_batch, load_step, predict  # noqa: E402
from equipoise.calibrate.trace.pretend import CannotTraceError  # noqa: E402
from equipoise.calibrate.trace.rates import HostRates, KindRates, OperationRates, ProductRates, rates_of  # noqa: E402
from equipoise.calibrate.trace.record import record  # noqa: E402
from equipoise.calibrate.trace.step import step_times  # noqa: E402
from equipoise.calibrate.trace.work import READ, TracedOperation  # noqa: E402
from equipoise.cli import main  # noqa: E402
from equipoise.sim.cost.step import memory_need_bytes  # noqa: E402
from tests.bench.gpu.fit_rates import TimedWork, fit_kinds, fit_products  # noqa: E402

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

def linear(batch, wide=1024):
    net = torch.nn.Linear(wide, wide, bias=False).cuda()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    x = torch.randn(batch, wide, device="cuda")
    def step():
        optimiser.zero_grad()
        net(x).sum().backward()
        optimiser.step()
    return step

def attending(batch):
    q = torch.randn(batch, 4, 128, 64, device="cuda", requires_grad=True)
    def step():
        with torch.autocast("cuda", torch.bfloat16):
            out = F.layer_norm(F.scaled_dot_product_attention(q, q, q, is_causal=True), (64,))
        assert out.dtype == torch.float32
        out.sum().backward()
    return step

def deep(batch):
    net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)]).to("cuda")
    optimiser = torch.optim.AdamW(net.parameters(), fused=True)
    x = torch.randn(batch, 2048, device="cuda")
    def step():
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(x).square().mean()
        loss.backward()
        optimiser.step()
    return step

def blocks(batch, again=False):
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(6)]
    net = torch.nn.ModuleList(layers).to("cuda")
    optimiser = torch.optim.AdamW(net.parameters())
    def step():
        x = torch.ones(batch, 512, device="cuda")
        for layer in net:
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        loss = x.sum()
        loss.backward()
        optimiser.step()
        return loss.item()
    return step

def sharded(batch):
    from torch.distributed.fsdp import fully_shard
    torch.distributed.init_process_group("nccl")
    net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]).to("cuda")
    for layer in (*net, net):
        fully_shard(layer)
    optimiser = torch.optim.AdamW(net.parameters(), fused=True)
    x = torch.randn(batch, 1024, device="cuda")
    def step():
        optimiser.zero_grad()
        net(x).sum().backward()
        optimiser.step()
    return step

def replicated(batch):
    torch.distributed.init_process_group("nccl")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024, bias=False).to("cuda"))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(batch, 1024, device="cuda")
    def step():
        optimiser.zero_grad()
        with net.no_sync():
            net(x).sum().backward()
        net(x).sum().backward()
        optimiser.step()
    return step

def chained(batch, compiled=True):
    x = torch.randn(batch, 1024, device="cuda")
    function = lambda x: (x.relu() * 2 + 1).sum()
    function = torch.compile(function) if compiled else function
    return lambda: function(x)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

def updated(net, batch, *shape):
    net, x, labels = net.to(DEVICE), torch.randn(batch, *shape, device=DEVICE), torch.zeros(batch, dtype=torch.long)
    optimiser = torch.optim.AdamW(net.parameters())
    def step():
        optimiser.zero_grad()
        F.cross_entropy(net(x).flatten(1), labels.to(DEVICE)).backward()
        optimiser.step()
    return step

def perceptron(batch):
    net = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    return updated(net, batch, 784)

def convolutional(batch):
    first, pool = torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.MaxPool2d(2)
    net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(24), torch.nn.ReLU(), pool, torch.nn.Conv2d(24, 48, 3, 4))
    return updated(net, batch, 3, 32, 32)

def encoder(batch):
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return updated(torch.nn.TransformerEncoder(layer, 3), batch, 32, 128)

def decoder(batch):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = torch.nn.ModuleList([torch.nn.Linear(512, n, bias=False) for n in (512, 256, 256)])
            self.out, self.down = torch.nn.Linear(512, 512, bias=False), torch.nn.Linear(1024, 512, bias=False)
            self.ups = torch.nn.ModuleList([torch.nn.Linear(512, 1024, bias=False) for _ in range(2)])
            self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(512) for _ in range(2)])
        def forward(self, x):
            y = self.norms[0](x)
            q, k, v = (f(y).unflatten(-1, (-1, 64)).transpose(1, 2) for f in self.inputs)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            y = self.norms[1](x)
            return x + self.down(F.silu(self.ups[0](y)) * self.ups[1](y))
    net = torch.nn.Sequential(torch.nn.Embedding(1000, 512), *[Block() for _ in range(3)], torch.nn.RMSNorm(512))
    net = net.append(torch.nn.Linear(512, 1000, bias=False)).to("cuda")
    x = torch.randint(1000, (batch, 128), device="cuda")
    optimiser = torch.optim.AdamW(net.parameters())
    def step():
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimiser.step()
    return step

def scaled(batch):
    net = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(batch, 1024).pin_memory().to("cuda", non_blocking=True)
    def step():
        with torch.cuda.stream(torch.cuda.Stream()):
            loss = net(x).sum()
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            raise RuntimeError("no number")
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
    return step

def no_step(batch):
    return batch

def by_data(batch):
    x = torch.randn(batch, device="cuda")
    return lambda: x[x > 0]

def loaded(batch):
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 9000
        def __getitem__(self, k):
            return torch.randn(1024) * 2
    loader = torch.utils.data.DataLoader(Samples(), batch, shuffle=True, num_workers=2)
    net = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
    def step():
        x = next(iter(loader)).to("cuda")
        loss = net(x).sum()
        assert len(loss.expand(3000).tolist()) == 3000
    return step

def waiting(batch):
    x = torch.randn(batch, device="cuda")
    def step():
        while x.norm() > 0.5:
            print("not yet")
    return step

def sparse(batch):
    net = torch.nn.Embedding(1000, 8, sparse=True).to("cuda")
    return lambda: net(torch.arange(batch, device="cuda")).sum().backward()

def recurrent(batch):
    net = torch.nn.LSTM(64, 96, 2, bidirectional=True, dropout=0.1, batch_first=True).to("cuda")
    x = torch.randn(batch, 50, 64, device="cuda")
    def step():
        out, (state, _) = net(x)
        (out.sum() + state.sum()).backward()
    return step
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traced") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def made(script: Path) -> object:
    spec = importlib.util.spec_from_file_location("traced_script", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_work_of_a_linear_layer(made: object) -> None:
    trace = record(made.linear, 256)
    products = [one for one in trace.operations if one.product is not None]
    # y = x W, and dW = x^T dy; x wants no gradient: 2 x 2 x 256 x 1024 x 1024 FLOP.
    assert sum(one.flop for one in products) == 2 * 2 * 256 * 1024**2
    assert {one.kind for one in products} == {"product_fp32"}
    assert [one.during for one in products] == ["forward", "backward"]
    (update,) = [one for one in trace.operations if one.kind == "optimiser_fused"]
    assert update.bytes == 4 * 1024**2 * 2 * 5 / 3  # parameter and gradient; without momentum, see the law of SGD
    assert trace.parameters == 1024**2


def test_attention_is_one_operation_and_norms_are_wide(made: object) -> None:
    trace = record(made.attending, 2)
    flop = {one.kind: one.flop for one in trace.operations if one.kind.startswith("attention")}
    # Two products of 2 x 128 x 128 x 64 FLOP a head, half of them by the causal mask; five in the backward pass.
    forward = 2 * 2 * (2 * 4) * 128 * 128 * 64 / 2
    assert flop == {"attention": forward, "attention_backward": 2.5 * forward}


def test_recomputation_trades_work_for_memory(made: object) -> None:
    plain, again = (record(lambda batch, again=again: made.blocks(batch, again), 8192) for again in (False, True))
    flop = [sum(one.flop for one in trace.operations) for trace in (plain, again)]
    assert flop[1] - flop[0] == 6 * 2 * 8192 * 512**2  # each forward product once more
    # Of each block but the last its input and what GELU wants, 8192 x 512 x 4 bytes each, are no longer both kept.
    assert plain.peak_bytes - again.peak_bytes > 4 * 8192 * 512 * 4
    assert plain.host_reads == 1
    assert [one.kind for one in plain.operations][-1] == READ
    # Parameters, gradients and two moments of 6 x (512 x 512 + 512) numbers in 32 bits are there before the step.
    assert plain.kept_bytes == pytest.approx(4 * 4 * 6 * (512**2 + 512), rel=0.01)


def test_allocator_rounds_caches_and_splits() -> None:
    memory = CachingAllocator()
    small = memory.allocate(1)  # 512 bytes of a segment of 2 MiB
    assert (memory.allocated_bytes, memory.reserved_bytes) == (512, 2 * MIB)
    large = memory.allocate(3 * MIB)  # of a segment of 20 MiB
    assert memory.reserved_bytes == 22 * MIB
    memory.allocate(15 * MIB)  # fits into the rest, whose last 2 MiB stay free
    assert memory.reserved_bytes == 22 * MIB
    whole = memory.allocate(31 * MIB)  # a segment of its own, of a multiple of 2 MiB
    assert memory.reserved_bytes == 54 * MIB
    for key in (small, large, whole):
        memory.free(key)
    assert memory.allocated_bytes == 15 * MIB
    assert memory.reserved_bytes == 54 * MIB
    memory.allocate(30 * MIB)
    assert memory.peak_reserved_bytes == 54 * MIB


def rates(host_s: float) -> OperationRates:
    kinds = {"elementwise": KindRates(1e12)}
    return OperationRates(
        "x", 0.0, ProductRates(1e15, 0.0, 0.3, 0.1, 1e15), kinds, HostRates(host_s, host_s, 0.0), 0.1, ""
    )


def test_law_of_a_step() -> None:
    work = [TracedOperation("add", "elementwise", "forward", 0.0, 1e9)] * 10  # 1 ms each on the GPU
    assert step_times(work, rates(1e-4)).step_s == pytest.approx(10e-3)  # the host runs ahead
    assert step_times(work, rates(3e-3)).step_s == pytest.approx(30e-3)  # the GPU waits
    assert step_times(work, rates(3e-3)).limit == "host"
    # A value is read after each operation: 0.1 ms of queueing and 1 ms of work take turns.
    each = [one for op in work for one in (op, TracedOperation("item", READ, "forward"))]
    assert step_times(each, rates(1e-4)).step_s == pytest.approx(10 * (1e-3 + 2e-4), rel=0.1)


def test_products_want_multiples_of_eight() -> None:
    law = rates(0.0).product
    assert law.seconds(1, 4096, 4096, 4096) == pytest.approx(2 * 4096**3 / 1e15)
    assert law.seconds(1, 4096, 50257, 1024) > 9 * law.seconds(1, 4096, 50240, 1024)


def test_fit_finds_the_rates_it_was_made_of() -> None:
    truth = rates_of("h100")
    shapes = [(m, n, k) for m in (512, 4096, 50257) for n in (1024, 8192) for k in (512, 4096, 16384)]
    seconds = [(*s, truth.launch_s + truth.product.seconds(1, *s)) for s in shapes]
    found = fit_products(seconds)
    assert found.flop_per_s == pytest.approx(truth.product.flop_per_s, rel=0.02)
    sizes = [(f"{kind}", b) for kind in ("elementwise", "layer_norm") for b in (1e8, 1e9)]
    rows = [TimedWork("", [TracedOperation("", kind, "forward", 0.0, b)], 1.5e-6 + b / 2e12) for kind, b in sizes]
    assert fit_kinds(rows, found)["layer_norm"].bytes_per_s == pytest.approx(2e12, rel=0.01)


def test_shards_and_their_exchanges(made: object) -> None:
    """Of 4 x 1024 x 1024 parameters in 32 bits, one of 8 ranks keeps an eighth, with two moments, and its input."""
    whole = 4 * 1024**2 * 4
    trace = record(made.sharded, 16, ranks=8)
    assert trace.kept_bytes == pytest.approx(whole / 8 * 4, rel=0.02)  # and the gradient's eighth
    # Every layer but the last is gathered again for the backward pass; all gradients are reduced once.
    assert trace.exchanged == {"allgather": pytest.approx(2 * whole, rel=0.26), "reduce_scatter": whole}
    assert trace.kept_bytes < trace.peak_bytes < trace.kept_bytes + whole
    assert not torch.distributed.is_initialized()


def test_replicas_exchange_once_and_hold_their_buckets(made: object) -> None:
    """A gradient of 1024 x 1024 numbers in 32 bits; the first of two passes accumulates without an exchange."""
    alone, many = (record(made.replicated, 16, ranks=ranks) for ranks in (1, 8))
    assert (alone.exchanged, many.exchanged) == ({}, {"allreduce": 4 * 1024**2})
    assert many.kept_bytes - alone.kept_bytes == 4 * 1024**2


def test_a_compiled_chain_reads_once_and_writes_what_is_used(made: object) -> None:
    traces = [record(lambda batch, c=c: made.chained(batch, c), 512) for c in (False, True)]
    moved = [sum(one.bytes for one in trace.operations) for trace in traces]
    size = 512 * 1024 * 4
    assert moved == [pytest.approx(7 * size, rel=1e-3), pytest.approx(size, rel=1e-3)]
    assert [one.name for one in traces[1].operations] == ["fused"]


@pytest.mark.parametrize("name", ["perceptron", "convolutional", "encoder"])
def test_peak_as_the_allocator_of_the_cpu_recorded_it(made: object, name: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    mark = 12347  # bytes that nothing else allocates: the second step begins
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step = getattr(made, name)(32)
        step()
        torch.zeros(mark, dtype=torch.uint8)
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    now, peak, second = 0, 0, False
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        second = second or event.nbytes() == mark
        peak = max(peak, now) if second else 0
    assert record(getattr(made, name), 32, device="cpu").peak_bytes == pytest.approx(peak, rel=0.05)


def test_largest_batch_is_the_last_that_fits(made: object) -> None:
    traces = [record(made.blocks, batch) for batch in (64, 128)]
    most = largest_batch(lambda batch: record(made.blocks, batch), traces, 5e8)
    assert record(made.blocks, most).peak_bytes <= 5e8 < record(made.blocks, most + 1).peak_bytes


def test_values_that_a_script_checks_are_sound(made: object) -> None:
    """No loss is NaN, and no gradient is infinite: the scaler lets the optimiser step."""
    trace = record(made.scaled, 16)
    assert [one.kind for one in trace.operations].count("optimiser_fused") == 1
    assert trace.host_reads == 2  # both checks; a fused optimiser reads on the GPU
    with pytest.raises(CannotTraceError, match="returned int"):
        record(made.no_step, 16)


def test_what_depends_on_data_is_refused(made: object) -> None:
    for name, why in (("by_data", "depends on data"), ("sparse", "a sparse tensor"), ("waiting", "until a value is")):
        with pytest.raises(CannotTraceError, match=why):
            record(getattr(made, name), 4)


def test_samples_are_made_elsewhere(made: object) -> None:
    """A loader's workers make the samples: of a step the host queues the product and the sum, and reads once."""
    trace = record(made.loaded, 16)
    assert [one.name for one in trace.operations if one.kind][:2] == ["mm", "sum"]
    assert trace.host_reads == 1


def test_a_recurrent_layer_takes_one_time_after_another(made: object) -> None:
    """2 layers, 2 directions, 50 times, forward and backward: 400 small products of 15 us or more, queued at once."""
    found = step_times(record(made.recurrent, 16).operations, rates_of("h100"))
    assert found.by_kind["recurrence"] == pytest.approx(400 * 15e-6)
    assert found.host_s < 0.5 * found.gpu_s


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no LSTM of oneDNN")
def test_an_lstm_keeps_gates_and_states_on_a_cpu() -> None:
    """What PyTorch's own operation returns for its backward pass, beside the trace that has no such tensor."""
    times, batch, inner, state = 20, 32, 96, 192
    x, hidden = torch.randn(times, batch, inner), torch.zeros(batch, state)
    gates = [torch.randn(4 * state, wide) for wide in (inner, state)] + [torch.randn(4 * state)] * 2
    more = (False, [], 2, state, 1, True, False, False, True)
    kept = torch.ops.aten.mkldnn_rnn_layer(x, *gates, hidden, hidden, *more)[3].nbytes

    def make(samples: int) -> Callable[[], object]:
        net = torch.nn.LSTM(inner, state)
        return lambda: net(torch.randn(times, samples, inner))[0].sum().backward()

    trace = record(make, batch, device="cpu")
    assert kept == pytest.approx(trace.peak_bytes, rel=0.5)  # most of the peak
    assert trace.peak_bytes > kept


def test_command_keeps_what_could_be_traced(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = [f"{script}:linear", f"{script}:by_data", f"{script}:missing"]
    assert main(["predict", *models, "--batch", "64", "--gpu", "h100", "--gpu", "b200", "--format", "json", "-q"]) == 3
    out, err = capsys.readouterr()
    here, there = json.loads(out)
    assert here["step_low_s"] < here["step_s"] < here["step_high_s"]
    assert there["step_high_s"] / there["step_s"] > here["step_high_s"] / here["step_s"]  # b200 was not measured
    assert len(err.strip().splitlines()) == 2
    assert main(["predict", f"{script}:by_data", "-q"]) == 2
    assert main(["predict", f"{script}:linear", "--gpu", "h1000", "-q"]) == 2
    capsys.readouterr()
    assert main(["predict", f"{script}:linear", "--batch", "64", "-q"]) == 0
    assert capsys.readouterr().out.startswith("A step of linear with batch 64 takes")


GPU = Path(__file__).parents[4] / "shared" / "data" / "gpu"


@pytest.mark.skipif(not GPU.is_dir(), reason="needs the public measurements")
def test_models_of_others_that_no_rate_has_seen() -> None:
    try:
        import torchvision  # noqa: F401 - builds against another PyTorch fail while they load
        import transformers  # noqa: F401
    except (ImportError, RuntimeError):
        pytest.skip("needs transformers, and a torchvision that loads")
    spec = importlib.util.spec_from_file_location("popular_models", GPU / "popular_models.py")
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    steps, peaks = [], []
    for row in csv.DictReader((GPU / "h100_popular_models.csv").open()):
        (found,) = predict(row["model"], getattr(models, row["model"]), [int(row["batch"])], ["h100"])
        steps.append(abs(found.times.step_s / float(row["step_s"]) - 1))
        peaks.append(abs(found.trace.peak_bytes / float(row["peak_allocated_bytes"]) - 1))
    assert statistics.median(steps) < 0.1
    assert statistics.median(peaks) < 0.08


def test_a_traced_model_trains_on_many_gpus(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One GPU takes the traced step at both batches; 24 layers of 2048 x 2049 have 100.7 M parameters of 4 bytes."""
    arguments = ["predict", f"{script}:deep", "--batch", "512", "--batch", "4096", "--gpu", "h100", "--format", "json"]
    assert main([*arguments, "--scenario", str(tmp_path / "out")]) == 0
    few, many = json.loads(capsys.readouterr().out)
    path = tmp_path / "out" / "deep.yaml"
    for one in (few, many):
        alone = {"workload.jobs.0.gpus": 1, "workload.jobs.0.global_batch": one["batch"], "workload.jobs.0.steps": 10}
        alone["workload.models.deep.memory.optimizer_bytes_per_parameter"] = 8  # no buckets
        found = equipoise.run(path, policy="fifo", overrides=[f"{k}={v}" for k, v in alone.items()])
        assert found.summary()["makespan_s"] == pytest.approx(10 * one["step_s"], rel=1e-3)
    # What rests on the step is as sure as the step: the wider interval of both batches, in proportion.
    assert main(["run", str(path), "--format", "json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["sure"]["rests_on"] == "operations traced at batches 512 and 4096, rates of h100"
    factors = [few[end] / few["step_s"] for end in ("step_low_s", "step_high_s")]
    ends = [factor * run["makespan_s"] for factor in factors]
    assert run["sure"]["intervals"]["makespan_s"] == pytest.approx(ends)
    workload = prepare(path)[0].workload
    model = workload.models["deep"]
    assert model.gradient == 24 * 2048 * 2049 * 4
    assert workload.jobs[0].checkpoint.size == pytest.approx(3 * model.gradient, rel=0.03)  # and Adam's moments
    held, each = memory_need_bytes(model, 0, 16), memory_need_bytes(model, 1, 16)
    # In data-parallel training the buckets hold the gradient once more.
    assert held + 512 * (each - held) == pytest.approx(few["peak_bytes"] + model.gradient, rel=1e-3)


def test_a_sharded_model_in_a_scenario(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ring of 8 ranks sends 7/8 of each tensor that is gathered or reduced; memory is the traced one."""
    arguments = ["predict", f"{script}:sharded", "--ranks", "8", "--format", "json", "--batch", "512", "--batch"]
    arguments.append("4096")
    assert main([*arguments, "--scenario", str(tmp_path)]) == 0
    few, _ = json.loads(capsys.readouterr().out)
    path = tmp_path / "sharded.yaml"
    model = prepare(path)[0].workload.models["sharded"]
    assert memory_need_bytes(model, 512, 8) == pytest.approx(few["peak_bytes"], rel=0.01)
    found = equipoise.run(path, policy="fifo", overrides=["workload.jobs.0.steps=10"])
    assert found.totals["exchanged_bytes"] == pytest.approx(10 * 7 / 8 * sum(few["exchanged_bytes"].values()), rel=1e-3)
    assert found.summary()["makespan_s"] > 10 * few["step_s"]


def test_blocks_that_repeat_are_the_layers_of_a_transformer(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three blocks of 8 heads of 64 that share 4 keys and values, with a gate; its other layouts can be simulated."""
    arguments = ["predict", f"{script}:decoder", "--batch", "2", "--batch", "8", "--format", "json", "-q"]
    assert main([*arguments, "--scenario", str(tmp_path)]) == 0
    few, _ = json.loads(capsys.readouterr().out)
    path = tmp_path / "decoder.yaml"
    section = prepare(path)[0].workload.models["decoder-layers"].transformer
    assert section is not None
    shape = section.shape()
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn) == (3, 512, 8, 4, 1024)
    assert (shape.gated, shape.tied, shape.norm, shape.parameters) == (True, False, "rms", few["parameters"])
    by_layers = ["workload.jobs.0.model=decoder-layers", "workload.jobs.0.steps=10"]
    by_layers.append("workload.models.decoder-layers.transformer.layout.tp=2")
    assert equipoise.run(path, policy="fifo", overrides=by_layers).totals["exchanged_bytes"] > 0


def test_rates_of_a_cpu_from_its_samples(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases timed by a known law tell a step of another model: 2 us an operation, 10 GB/s, 50 GFLOP/s."""

    def seconds(operations: Sequence[TracedOperation]) -> float:
        return sum(2e-6 + one.bytes / 1e10 + one.flop / 5e10 for one in operations)

    wanted = ("linear", "add", "relu", "adamw", "cross_entropy", "perceptron")
    writer = SampleWriter(tmp_path / "samples.jsonl", {"device": "x", "cores": 1, "memory_bytes": 8e9}, {})
    writer.add(Sample("copy", {"bytes": 2e9, "array_bytes": 1e9}, (0.1,) * 5))
    writer.add(Sample("gemm", {"precision": "fp32", "m": 512, "n": 512, "k": 512, "library": "x"}, (0.01,) * 5))
    for measure in operation_measures():
        case, size = str(measure.parameters["case"]), str(measure.parameters["size"])
        if case in wanted:
            writer.add(Sample("operation", measure.parameters, (seconds(traced(case, size)),)))
    writer.close()
    profile = tmp_path / "cpu.yaml"
    assert main(["calibrate", "--from", str(writer.path), "--out", str(profile)]) == 0
    capsys.readouterr()
    model = f"{script}:perceptron"
    assert main(["predict", model, "--batch", "96", "--gpu", str(profile), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    truth = seconds(record(load_step(model)[1], 96, device="cpu").operations)
    assert found["step_s"] == pytest.approx(truth, rel=0.05)
