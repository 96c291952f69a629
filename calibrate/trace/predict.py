"""What a training step costs on a GPU that is not here: time with an interval, memory, and what limits it."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from equipoise.calibrate.trace import fuse
from equipoise.calibrate.trace.pretend import CannotTraceError
from equipoise.calibrate.trace.rates import OperationRates, rates_of
from equipoise.calibrate.trace.record import MakeStep, StepTrace, record
from equipoise.calibrate.trace.step import StepTimes, step_times
from equipoise.sim.hardware.profile import Accelerator, load_profile

CONTEXT_BYTES = 0.6e9
"""Memory of the driver and of libraries beside PyTorch's allocator: about 0.5 GB on an H100; assumed elsewhere."""
MOST = 65536
"""Largest batch that is tried."""
LENGTH = 2048


@dataclass(frozen=True)
class StepPrediction:
    """One step of a batch on one GPU. low_s, high_s: 90 % interval, from models that the rates have not seen."""

    model: str
    trace: StepTrace
    rates: OperationRates
    times: StepTimes
    accelerator: Accelerator
    place: str  # the accelerator's name in the hardware profile
    largest: int | None = None  # largest batch that fits, where it was asked for

    @property
    def error(self) -> float:
        """Relative half-width of the step's 90 % interval; the time of kinds that were not measured may be double."""
        by_kind, unknown = self.times.by_kind, self.rates.unmeasured(self.trace.operations)
        guessed = sum(by_kind.get(kind, 0.0) for kind in unknown) / max(sum(by_kind.values()), 1e-12)
        return math.hypot(self.rates.error, fuse.ERROR if self.trace.compiled else 0.0, guessed)

    @property
    def low_s(self) -> float:
        """Lower end of the step's 90 % interval (s)."""
        return self.times.step_s / (1.0 + self.error)

    @property
    def high_s(self) -> float:
        """Upper end of the step's 90 % interval (s)."""
        return self.times.step_s * (1.0 + self.error)

    @property
    def usable_bytes(self) -> float:
        """Memory that PyTorch's allocator can have."""
        return self.accelerator.memory_bytes.value - CONTEXT_BYTES

    @property
    def fits(self) -> bool:
        """Whether what is allocated fits, if need be with cached blocks given back."""
        return self.trace.peak_bytes <= self.usable_bytes

    @property
    def mfu(self) -> float:
        """FLOP of products, convolutions and attention over the dense 16-bit peak of the data sheet (CPU: 32-bit)."""
        flop = sum(one.flop for one in self.trace.operations)
        precision = next(one for one in ("bf16", "fp16", "fp32") if one in self.accelerator.flop_per_s)
        return flop / self.times.step_s / self.accelerator.peak_flop_per_s(precision)

    @property
    def usd_per_million(self) -> float | None:
        """Price of a million samples at the catalogue's price of the GPU."""
        price = self.accelerator.price_usd_per_gpu_h
        return None if price is None else price.value / 3600.0 * self.times.step_s / self.trace.batch * 1e6

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "model": self.model,
            "gpu": self.rates.name,
            "batch": self.trace.batch,
            "step_s": self.times.step_s,
            "step_low_s": self.low_s,
            "step_high_s": self.high_s,
            "samples_per_s": self.trace.batch / self.times.step_s,
            "host_s": self.times.host_s,
            "gpu_s": self.times.gpu_s,
            "limit": self.times.limit,
            "mfu": self.mfu,
            "peak_bytes": self.trace.peak_bytes,
            "reserved_bytes": self.trace.reserved_bytes,
            "usable_bytes": self.usable_bytes,
            "fits": self.fits,
            "largest_batch": self.largest,
            "usd_per_million_samples": self.usd_per_million,
            "gpu_s_by_kind": self.times.by_kind,
            "not_measured": self.rates.unmeasured(self.trace.operations),
            "kept_bytes": self.trace.kept_bytes,
            "host_reads": self.trace.host_reads,
            "parameters": self.trace.parameters,
            "compiled": self.trace.compiled,
            "ranks": self.trace.ranks,
            "exchanged_bytes": self.trace.exchanged,
            "origin": self.rates.origin,
        }


def predict(
    name: str,
    make: MakeStep,
    batches: Sequence[int],
    gpus: Sequence[str],
    *,
    largest: bool = False,
    hardware: str = "catalogue",
    ranks: int = 1,
) -> list[StepPrediction]:
    """StepTrace each batch once and cost it on every GPU.

    Raises CannotTraceError when the step cannot be traced, ValueError for an unknown GPU; both are one line.
    """
    rates = [rates_of(gpu, hardware) for gpu in gpus]
    traced: dict[str, list[StepTrace]] = {}
    found = []
    for gpu_name, of in zip(gpus, rates, strict=True):
        profile = load_profile(gpu_name if gpu_name.endswith(".yaml") else hardware)
        names = (of.name, f"{of.name}_sxm", *profile.accelerators)  # a calibrated profile has one
        place = next(name for name in names if name in profile.accelerators)
        gpu, device = profile.accelerator(place), "cpu" if of.serial else "cuda"
        if device not in traced:
            traced[device] = [record(make, batch, ranks, device) for batch in batches]
        traces = traced[device]
        tracing = partial(record, make, ranks=ranks, device=device)
        most = largest_batch(tracing, traces, gpu.memory_bytes.value - CONTEXT_BYTES) if largest else None
        found += [
            StepPrediction(name, trace, of, step_times(trace.operations, of), gpu, place, most) for trace in traces
        ]
    return found


def largest_batch(tracing: Callable[[int], StepTrace], traces: Sequence[StepTrace], usable_bytes: float) -> int:
    """The largest batch whose peak fits: along the line of two traces, then checked by tracing; 0: none fits."""
    known = {trace.batch: trace.peak_bytes for trace in traces}
    for batch in (1, 2):
        if len(known) < 2 and batch not in known:
            known[batch] = tracing(batch).peak_bytes
    for _ in range(8):
        (a, at_a), (b, at_b) = sorted(known.items())[-2:]
        per_sample = max((at_b - at_a) / (b - a), 1.0)
        guess = min(MOST, max(1, int(a + (usable_bytes - at_a) / per_sample)))
        if guess in known:
            break
        known[guess] = tracing(guess).peak_bytes
        if known[guess] <= usable_bytes and _no_longer_fits(tracing, guess + 1, usable_bytes, known):
            return guess
    return max((batch for batch, peak in known.items() if peak <= usable_bytes), default=0)


def _no_longer_fits(
    tracing: Callable[[int], StepTrace], batch: int, usable_bytes: float, known: dict[int, float]
) -> bool:
    """Whether the next batch no longer fits."""
    known[batch] = tracing(batch).peak_bytes
    return known[batch] > usable_bytes


def load_step(text: str, length: int = LENGTH) -> tuple[str, MakeStep]:
    """(name, make) of "FILE.py:FUNCTION", or of a Hugging Face model by its config.json, its folder or its name.

    Raises CannotTraceError, one line.
    """
    file, _, function = text.rpartition(":")
    if file.endswith(".py"):
        return function, _function(file, function)
    if text.endswith(".py"):
        raise CannotTraceError(f"{text}: which function? Write {text}:make")
    path = Path(text)
    name = (path.parent if path.name == "config.json" else path).resolve().name if path.exists() else text
    return name, hugging_face(text, length)


def _function(file: str, name: str) -> MakeStep:
    path = Path(file)
    if not path.is_file():
        raise CannotTraceError(f"{file}: there is no such file")
    spec = importlib.util.spec_from_file_location("equipoise_traced", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises is named in one line
        raise CannotTraceError(f"{file}: {type(error).__name__}: {_first_line(error)}") from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        raise CannotTraceError(f"{file}: has no function {name!r}")
    make: MakeStep = found
    return make


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def hugging_face(name: str, length: int) -> MakeStep:
    """A training step of a causal language model given by its configuration: AdamW, products in bf16 by autocast."""
    try:
        import transformers  # only for models by their configuration
    except ImportError:
        raise CannotTraceError(f"{name}: a model by its configuration needs the package transformers") from None
    try:
        config = transformers.AutoConfig.from_pretrained(name if Path(name).is_dir() else _config_folder(name))
    except Exception as error:  # the hub, a file or its contents
        raise CannotTraceError(f"{name}: {_first_line(error)}") from None

    def make(batch: int) -> Callable[[], object]:
        with torch.device("cuda"):
            net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
        net.config.use_cache = False
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(config.vocab_size, (batch, length), device="cuda")

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = net(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimiser.step()

        return step

    return make


def _config_folder(name: str) -> str:
    """The folder of a config.json, or a name as it is."""
    return str(Path(name).parent) if Path(name).name == "config.json" else name
