"""Real training steps of PyTorch over batch sizes and precisions: forward, backward, optimiser."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from equipoise.calibrate.measure.measure import Measure, Outcome
from equipoise.calibrate.measure.timing import time_calls
from equipoise.calibrate.samples import Scalar

if TYPE_CHECKING:
    import torch

WORKLOADS = ("mlp", "conv", "transformer")


@dataclass(frozen=True)
class Size:
    """Dimensions of the workloads on one kind of device."""

    batches: tuple[int, ...]
    width: int
    layers: int
    sequence: int
    image: int
    channels: int
    vocabulary: int


SIZES = {
    ("cpu", True): Size((4, 8, 16, 32, 64), 128, 2, 32, 16, 8, 512),
    ("cpu", False): Size((4, 8, 16, 32, 48, 64), 128, 2, 32, 32, 16, 512),
    ("cuda", True): Size((4, 8, 16, 32, 64), 768, 6, 512, 128, 64, 8192),
    ("cuda", False): Size((4, 8, 16, 32, 64, 96), 1024, 8, 512, 128, 64, 8192),
}
SLOW, LARGEST_SLOW = ("cuda", "transformer", "fp32"), 32
"""Without tensor cores, larger batches take as long as all other steps together, and show nothing new."""
LEAST_STEPS = 4
Prepared = tuple[Callable[[], None], Any]
FRAMEWORK, ONE_CORE = "PyTorch", "PyTorch on one core, CPU time"


def training_measures(device: str, quick: bool) -> list[Measure]:
    """Steps of each workload over batch sizes; on a GPU in fp32, tf32 and bf16."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return []
    size = SIZES[device, quick]
    framework = FRAMEWORK if device == "cuda" else ONE_CORE
    precisions = ("fp32",) if device == "cpu" else ("tf32", "bf16") if quick else ("fp32", "tf32", "bf16")
    found = []
    for workload in WORKLOADS:
        for precision in precisions:
            for batch in size.batches:
                if (device, workload, precision) == SLOW and batch > LARGEST_SLOW:
                    continue
                what: dict[str, Scalar] = {"workload": workload, "precision": precision, "batch": batch}
                what["framework"] = framework
                make = partial(prepared_step, device, quick, workload, precision, batch)
                found.append(Measure("training", what, partial(_timed, make, device)))
    return found


def _timed(make: Callable[[], Prepared], device: str, budget_s: float) -> Outcome:
    step, _ = make()
    for _ in range(3):  # optimiser state, autotuning, clocks
        step()
    clock = time.perf_counter if device == "cuda" else time.process_time
    times = time_calls(step, budget_s, LEAST_STEPS, clock=clock)
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()  # measurements past PyTorch need the memory too
    return times


def prepared_step(
    device: str,
    quick: bool,
    workload: str,
    precision: str,
    batch: int,
    wrap: Callable[[Any], Any] = lambda model: model,
) -> Prepared:
    """A function that does one training step and waits for its end, and the model, wrapped."""
    import torch

    use_precision(device, precision)
    torch.manual_seed(0)
    with torch.device(device):  # a GPU draws the first weights far faster than its host
        model, inputs, targets = _workload(workload, SIZES[device, quick], batch)
    model = wrap(model)
    return one_step(device, precision, model, inputs, targets), model


def one_step(
    device: str, precision: str, model: Any, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], None]:
    """A function that does one training step of a classifier and waits for its end."""
    import torch

    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        """Forward, backward, optimiser."""
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model(inputs), targets)
        loss.backward()
        optimiser.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def use_precision(device: str, precision: str) -> None:
    """Let PyTorch use TF32 in products where that is the precision; on a CPU, one thread."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if device == "cpu":
        torch.set_num_threads(1)  # a rank a core, as data-parallel jobs on CPUs run


def _workload(name: str, size: Size, batch: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    import torch

    if name == "mlp":
        widths = [4 * size.width, 8 * size.width, 8 * size.width, 10]
        return _mlp(widths), torch.randn(batch, widths[0]), torch.randint(0, 10, (batch,))
    if name == "conv":
        images = torch.randn(batch, 3, size.image, size.image)
        return _conv(size.channels, size.layers), images, torch.randint(0, 10, (batch,))
    tokens = torch.randint(0, size.vocabulary, (batch, size.sequence))
    return _transformer(size), tokens, torch.randint(0, size.vocabulary, (batch, size.sequence))


def _mlp(widths: list[int]) -> torch.nn.Module:
    from torch import nn

    layers: list[nn.Module] = []
    for k, (wide, out) in enumerate(pairwise(widths)):
        layers += [nn.GELU()] * (k > 0) + [nn.Linear(wide, out)]
    return nn.Sequential(*layers)


def _conv(channels: int, layers: int) -> torch.nn.Module:
    """Convolution, normalisation and ReLU; twice the channels at half the resolution every second layer."""
    from torch import nn

    parts: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for k in range(layers):
        stride = 1 + k % 2
        parts += [nn.Conv2d(channels, channels * stride, 3, stride, 1), nn.BatchNorm2d(channels * stride)]
        parts.append(nn.ReLU())
        channels *= stride
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def _transformer(size: Size) -> torch.nn.Module:
    """A decoder-only transformer in the style of GPT-2 (Radford et al. 2019), pre-norm."""
    import torch
    from torch import nn

    class Decoder(nn.Module):  # type: ignore[misc] # PyTorch's types are not read
        """Tokens and places to logits."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(size.vocabulary, size.width)
            self.places = nn.Embedding(size.sequence, size.width)
            heads = max(size.width // 64, 1)
            layer = nn.TransformerEncoderLayer(
                size.width, heads, 4 * size.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
            self.head = nn.Linear(size.width, size.vocabulary, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """Logits, shape (batch, vocabulary, sequence)."""
            length = tokens.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
            x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
            logits: torch.Tensor = self.head(self.layers(x, mask=mask, is_causal=True))
            return logits.transpose(1, 2)

    return Decoder()
