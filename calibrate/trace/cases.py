"""Small pieces of training steps, and whole steps of small models, from which the rates of a CPU are fitted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Case = Callable[..., Callable[[], object]]


def _through(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], None]:
    """The passes of a function or module forward and backward, and no update."""
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def step() -> None:
        out = function(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        for x in [*inputs, *(function.parameters() if isinstance(function, nn.Module) else ())]:
            x.grad = None

    return step


OPTIMISERS: dict[str, Callable[..., Any]] = {
    "adam": partial(torch.optim.Adam, foreach=True),
    "adamw": torch.optim.AdamW,
    "fused": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "plain": partial(torch.optim.SGD, lr=0.01),
}
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelutanh": partial(nn.GELU, "tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def _optimised(kind: str, count: int, wide: int) -> Callable[[], object]:
    weights = [nn.Parameter(torch.randn(wide, wide)) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.randn(wide, wide)
    step: Callable[[], object] = OPTIMISERS[kind](weights).step
    return step


def _classified(rows: int, classes: int) -> Callable[[], None]:
    labels = torch.randint(classes, (rows,))
    return _through(lambda x: functional.cross_entropy(x, labels), (rows, classes))


def _looked_up(rows: int, wide: int, vocabulary: int) -> Callable[[], None]:
    table, which = nn.Embedding(vocabulary, wide), torch.randint(vocabulary, (rows,))
    return _through(lambda x: table(which) + x, (rows, wide))


def _moved(rows: int, wide: int) -> Callable[[], None]:
    """Copies of the kinds that attention makes of its heads."""
    return _through(lambda x: x.view(4, rows // 4, wide).transpose(1, 2).contiguous(), (rows, wide))


_POINTS = ((1024,), (65536,), (524288,), (4194304,))
PIECES: dict[str, tuple[Case, tuple[tuple[Any, ...], ...]]] = {
    "linear": (
        lambda m, k, n: _through(nn.Linear(k, n), (m, k)),
        (
            (1, 256, 256),
            (1, 1024, 1024),
            (4, 512, 2048),
            (8, 512, 512),
            (32, 1024, 1024),
            (64, 256, 1024),
            (256, 128, 512),
            (512, 512, 512),
            (1024, 256, 768),
            (2048, 64, 256),
        ),
    ),
    "deep": (
        lambda m, k, n: _through(nn.Sequential(*[nn.Linear(k, k) for _ in range(n)]), (m, k)),
        ((1, 512, 16), (8, 512, 16), (1, 1024, 8), (16, 1024, 8)),
    ),
    "bmm": (lambda b, m, k: _through(torch.bmm, (b, m, k), (b, k, m)), ((16, 64, 64), (64, 32, 32), (8, 256, 64))),
    "convolution": (
        lambda b, i, o, size, kernel, stride: _through(
            nn.Conv2d(i, o, kernel, stride, kernel // 2), (b, i, size, size)
        ),
        (
            (1, 3, 32, 32, 3, 1),
            (16, 3, 32, 32, 3, 1),
            (1, 32, 64, 16, 3, 2),
            (16, 32, 32, 32, 3, 1),
            (32, 64, 64, 16, 3, 2),
            (16, 128, 128, 8, 3, 1),
            (8, 64, 128, 16, 1, 1),
            (32, 16, 32, 32, 1, 1),
            (8, 3, 128, 64, 8, 8),
        ),
    ),
    "depthwise": (
        lambda b, i, size: _through(nn.Conv2d(i, i, 3, padding=1, groups=i), (b, i, size, size)),
        ((1, 32, 16), (16, 64, 16)),
    ),
    "batch_norm": (
        lambda b, i, size: _through(nn.BatchNorm2d(i), (b, i, size, size)),
        ((1, 16, 16), (16, 64, 16), (32, 32, 32)),
    ),
    "layer_norm": (lambda m, n: _through(nn.LayerNorm(n), (m, n)), ((64, 128), (1024, 128), (512, 768), (4096, 512))),
    "pool": (lambda b, i, size: _through(nn.MaxPool2d(2), (b, i, size, size)), ((1, 32, 16), (32, 32, 32))),
    "mean": (lambda b, i, size: _through(lambda x: x.mean((2, 3)), (b, i, size, size)), ((1, 64, 8), (32, 64, 16))),
    "softmax": (lambda m, n: _through(lambda x: x.softmax(-1), (m, n)), ((64, 64), (4096, 64), (2048, 512))),
    "cross_entropy": (_classified, ((4, 10), (64, 1000), (1024, 1024), (2048, 4096))),
    "embedding": (_looked_up, ((64, 128, 1000), (1024, 256, 4096), (2048, 256, 16384))),
    "copy": (_moved, ((64, 64), (1024, 256), (4096, 512))),
    "cat": (lambda m, n: _through(lambda x, y: torch.cat((x, y), -1), (m, n), (m, n)), ((64, 64), (2048, 512))),
    "dropout": (lambda n: _through(nn.Dropout(0.1), (n,)), ((1024,), (1048576,))),
    "attention": (
        lambda b, heads, length, size: _through(
            functional.scaled_dot_product_attention, *[(b, heads, length, size)] * 3
        ),
        ((1, 4, 32, 32), (8, 4, 64, 64), (2, 8, 256, 64), (32, 4, 65, 32)),
    ),
    "lstm": (
        lambda b, length, wide: _through(nn.LSTM(wide, wide, batch_first=True), (b, length, wide)),
        ((1, 16, 128), (16, 32, 128), (32, 16, 256)),
    ),
    "gru": (
        lambda b, length, wide: _through(nn.GRU(wide, wide, batch_first=True), (b, length, wide)),
        ((1, 16, 128), (16, 16, 256)),
    ),
    "add": (lambda n: _through(torch.add, (n,), (n,)), _POINTS),
    "bias": (lambda n: _through(lambda x, b: x + b, (n // 256, 256), (256,)), _POINTS),
    "mul": (lambda n: _through(torch.mul, (n,), (n,)), _POINTS),
    "relu": (lambda n: _through(torch.relu, (n,)), _POINTS),
    "gelu": (lambda n: _through(functional.gelu, (n,)), _POINTS),
    "gelu_tanh": (lambda n: _through(partial(functional.gelu, approximate="tanh"), (n,)), _POINTS[:3]),
    "silu": (lambda n: _through(functional.silu, (n,)), _POINTS),
    "tanh": (lambda n: _through(torch.tanh, (n,)), _POINTS),
    "sigmoid": (lambda n: _through(torch.sigmoid, (n,)), _POINTS),
    "adamw": (partial(_optimised, "adamw"), ((20, 16), (8, 256), (8, 1024))),
    "fused": (partial(_optimised, "fused"), ((20, 16), (8, 256), (8, 1024))),
    "sgd": (partial(_optimised, "sgd"), ((20, 16), (8, 256), (8, 1024))),
}
"""One or a few operations, forward and backward, by sizes."""


def _trained(net: nn.Module, x: torch.Tensor, classes: int, optimiser: str) -> Callable[[], None]:
    """A training step of a classifier of samples or of tokens."""
    updates = OPTIMISERS[optimiser](net.parameters())
    labels = torch.randint(classes, (len(x) if x.is_floating_point() else x.numel(),))

    def step() -> None:
        updates.zero_grad(set_to_none=True)
        functional.cross_entropy(net(x).flatten(0, -2), labels).backward()
        updates.step()

    return step


def _perceptron(batch: int, wide: int, deep: int, out: int, act: str, optimiser: str) -> Callable[[], None]:
    layers = [layer for _ in range(deep) for layer in (nn.Linear(wide, wide), ACTIVATIONS[act]())]
    return _trained(nn.Sequential(*layers, nn.Linear(wide, out)), torch.randn(batch, wide), out, optimiser)


class _Residual(nn.Module):  # type: ignore[misc] # PyTorch's types are not read
    """Two convolutions and a shortcut; groups 0: the second one is depthwise."""

    def __init__(self, i: int, o: int, stride: int, kernel: int, groups: int, act: str, norm: str) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(o) if norm == "batch" else nn.GroupNorm(8, o) for _ in range(2)]
        self.inner = nn.Sequential(
            nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=norm != "batch"),
            norms[0],
            ACTIVATIONS[act](),
            nn.Conv2d(o, o, 3, 1, 1, groups=groups or o),
            norms[1],
        )
        self.short = nn.Identity() if (i, stride) == (o, 1) else nn.Conv2d(i, o, 1, stride)
        self.act = ACTIVATIONS[act]()

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.inner(x) + self.short(x))


def _convolutional(
    batch: int, image: int, wide: int, deep: int, kernel: int, groups: int, act: str, norm: str, optimiser: str
) -> Callable[[], None]:
    first = nn.Conv2d(3, wide, 7, 2, 3) if image > 64 else nn.Conv2d(3, wide, 3, 1, 1)
    layers: list[nn.Module] = [first, ACTIVATIONS[act](), nn.MaxPool2d(2)]
    for k in range(deep):
        stride = 1 + k % 2
        layers.append(_Residual(wide, wide * stride, stride, kernel, groups, act, norm))
        wide *= stride
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(wide, 100)]
    return _trained(nn.Sequential(*layers), torch.randn(batch, 3, image, image), 100, optimiser)


class _Block(nn.Module):  # type: ignore[misc]
    """A block of a transformer, in the style of GPT-2, of Llama, or with its attention written out."""

    def __init__(self, wide: int, heads: int, act: str, style: str) -> None:
        super().__init__()
        self.heads, self.style, norm = heads, style, nn.RMSNorm if style == "llama" else nn.LayerNorm
        self.norms = nn.ModuleList([norm(wide), norm(wide)])
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.gate = nn.Linear(wide, 4 * wide) if style == "llama" else None
        self.act, self.drop = ACTIVATIONS[act](), nn.Dropout(0.1 if style == "explicit" else 0.0)

    def forward(self, x: torch.Tensor) -> Any:
        batch, length, wide = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, wide // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.style == "llama":  # about as much work as rotary positions
            q, k = (torch.cat(z.chunk(2, -1)[::-1], -1) * 0.5 + z * 0.5 for z in (q, k))
        if self.style == "explicit":
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            y = self.drop((q @ k.transpose(-2, -1) / 8.0).masked_fill(later, float("-inf")).softmax(-1)) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.style == "llama")
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(batch, length, wide)))
        z = self.norms[1](x)
        z = self.act(self.up(z)) if self.gate is None else self.act(self.gate(z)) * self.up(z)
        return x + self.drop(self.down(z))


class _Tokens(nn.Module):  # type: ignore[misc]
    """Tokens to logits: embeddings, an inner module, and products with the vocabulary."""

    def __init__(self, inner: nn.Module, wide: int, vocabulary: int, length: int = 0) -> None:
        super().__init__()
        self.tokens, self.inner, self.head = nn.Embedding(vocabulary, wide), inner, nn.Linear(wide, vocabulary)
        self.places = nn.Embedding(length, wide) if length else None

    def forward(self, x: torch.Tensor) -> Any:
        y = self.tokens(x)
        y = self.inner(y if self.places is None else y + self.places(torch.arange(x.shape[1])))
        return self.head(y[0] if isinstance(y, tuple) else y)


def _transformer(
    batch: int, length: int, wide: int, heads: int, deep: int, vocabulary: int, act: str, style: str, optimiser: str
) -> Callable[[], None]:
    if style == "torch":
        layer = nn.TransformerEncoderLayer(wide, heads, 4 * wide, 0.1, act, batch_first=True, norm_first=True)
        inner: nn.Module = nn.TransformerEncoder(layer, deep, enable_nested_tensor=False)
    else:
        inner = nn.Sequential(*[_Block(wide, heads, act, style) for _ in range(deep)])
    net = _Tokens(nn.Sequential(inner, nn.LayerNorm(wide)), wide, vocabulary, length)
    return _trained(net, torch.randint(vocabulary, (batch, length)), vocabulary, optimiser)


def _recurrent(
    batch: int, length: int, wide: int, deep: int, vocabulary: int, cell: str, optimiser: str
) -> Callable[[], None]:
    inner = (nn.LSTM if cell == "lstm" else nn.GRU)(wide, wide, deep, batch_first=True)
    tokens = torch.randint(vocabulary, (batch, length))
    return _trained(_Tokens(inner, wide, vocabulary), tokens, vocabulary, optimiser)


STEPS: dict[str, tuple[Case, tuple[tuple[Any, ...], ...]]] = {
    "perceptron": (
        _perceptron,
        (
            (1, 128, 6, 10, "relu", "adamw"),
            (1, 512, 4, 100, "gelu", "adamw"),
            (2, 1024, 3, 10, "tanh", "fused"),
            (4, 384, 5, 1000, "silu", "sgd"),
            (16, 256, 4, 10, "sigmoid", "adamw"),
            (16, 1024, 3, 10, "relu", "plain"),
            (48, 768, 3, 100, "relu", "adamw"),
            (64, 2048, 2, 10, "gelu", "sgd"),
            (1, 2048, 2, 10, "relu", "adamw"),
            (256, 512, 3, 10, "silu", "fused"),
            (1024, 256, 4, 100, "tanh", "sgd"),
            (8, 96, 8, 10, "gelutanh", "adam"),
        ),
    ),
    "convolutional": (
        _convolutional,
        (
            (1, 32, 32, 4, 3, 1, "relu", "batch", "sgd"),
            (4, 32, 16, 6, 3, 1, "relu", "batch", "adamw"),
            (16, 32, 64, 2, 3, 1, "relu", "batch", "sgd"),
            (32, 32, 32, 4, 1, 1, "relu", "batch", "sgd"),
            (8, 64, 24, 4, 1, 0, "silu", "batch", "adamw"),
            (2, 128, 32, 6, 3, 1, "relu", "batch", "sgd"),
            (1, 224, 64, 4, 3, 1, "relu", "batch", "sgd"),
            (16, 48, 32, 4, 3, 8, "gelu", "group", "adamw"),
            (64, 28, 16, 2, 3, 1, "relu", "batch", "fused"),
            (1, 64, 32, 6, 1, 0, "silu", "group", "sgd"),
            (4, 96, 64, 4, 1, 1, "relu", "batch", "sgd"),
        ),
    ),
    "transformer": (
        _transformer,
        (
            (1, 32, 128, 4, 4, 512, "gelu", "plain", "adamw"),
            (1, 128, 256, 4, 3, 4096, "relu", "plain", "adamw"),
            (4, 64, 256, 8, 2, 1000, "gelu", "torch", "adamw"),
            (2, 256, 128, 2, 3, 2048, "silu", "llama", "fused"),
            (8, 128, 128, 4, 2, 512, "gelutanh", "explicit", "adamw"),
            (1, 64, 512, 8, 3, 8192, "gelutanh", "explicit", "adamw"),
            (16, 32, 192, 3, 3, 1024, "relu", "torch", "sgd"),
            (1, 512, 384, 6, 2, 1000, "silu", "llama", "adamw"),
            (32, 64, 128, 2, 2, 4096, "gelu", "plain", "fused"),
            (64, 16, 64, 4, 4, 256, "relu", "torch", "adamw"),
        ),
    ),
    "recurrent": (
        _recurrent,
        (
            (1, 32, 128, 1, 500, "lstm", "adamw"),
            (16, 24, 256, 1, 2000, "lstm", "fused"),
            (64, 16, 128, 2, 1000, "lstm", "sgd"),
            (4, 64, 64, 1, 200, "lstm", "adamw"),
            (1, 20, 128, 1, 500, "gru", "adamw"),
            (16, 24, 192, 1, 1000, "gru", "sgd"),
            (2, 16, 384, 2, 8000, "lstm", "adamw"),
        ),
    ),
}
"""Whole training steps, by sizes; batches of 1 to 1024."""
CASES = PIECES | STEPS
