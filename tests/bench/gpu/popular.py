"""Operations and whole training steps of popular models, measured on one GPU.

    python3 -P tests/bench/gpu/popular.py OUT

Needs PyTorch with CUDA (transformers and torchvision for the steps) and nothing of this project. Writes three CSV
files into the folder OUT, a row as soon as it is measured:
- operations.csv: one operation at one shape: seconds on the device (a CUDA graph replayed) and on the host;
- steps.csv: one training step: seconds alone and queued, peak bytes, mean power and clock;
- inside.csv: what the profiler saw in one such step: operations by the shapes of their inputs, and the kernels that
  they launched (without inputs; these add up to the device's time).

No setting of the GPU is changed. `--seconds` bounds each half; what no longer fits is left out.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own pages use

DEVICE = "cuda"
BF16, FP32 = torch.bfloat16, torch.float32
HOLD_CYCLES = 40_000_000  # about 20 ms in which the device waits and the host only queues

Call = Callable[[], Any]
Case = tuple[str, str, str, Callable[[], tuple[Call, list[torch.Tensor]]]]
"""Kind, shape in words, type; and what makes the forward call with the tensors that want a gradient."""


def tensor(*shape: int, dtype: torch.dtype = BF16, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_(grad)


def replayed_s(call: Call, repeats: int = 5) -> tuple[float, float]:
    """Median and spread (half of the range) of the device's seconds for one call, launches apart."""
    try:
        return _graph_s(call, repeats)
    except RuntimeError:  # what cannot be captured (it waits for the device) is queued behind a wait
        torch.cuda.synchronize()
        return _queued_s(call, repeats)


def _graph_s(call: Call, repeats: int) -> tuple[float, float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    inner = max(1, min(20, int(0.01 / max(time.perf_counter() - began, 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    times = []
    for _ in range(repeats + 1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3 / inner)
    times = times[1:]
    return statistics.median(times), (max(times) - min(times)) / 2


def _queued_s(call: Call, repeats: int, inner: int = 10) -> tuple[float, float]:
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HOLD_CYCLES)
        first.record()
        for _ in range(inner):
            call()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3 / inner)
    return statistics.median(times), (max(times) - min(times)) / 2


def queueing_s(call: Call, calls: int = 20) -> float:
    """Host seconds to queue one call while the device is held up."""
    torch.cuda.synchronize()
    torch.cuda._sleep(HOLD_CYCLES)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    taken = (time.perf_counter() - began) / calls
    torch.cuda.synchronize()
    return taken


def operation(case: Case) -> Iterator[dict[str, Any]]:
    """Rows of the forward and of the backward pass of one case."""
    kind, shape, dtype, make = case
    forward, inputs = make()
    wants = [one for one in inputs if one.requires_grad]
    with torch.no_grad():
        device_s, spread_s = replayed_s(forward)
        host_s = queueing_s(forward)
    row = {"kind": kind, "shape": shape, "dtype": dtype}
    yield row | {"pass": "forward", "device_s": device_s, "spread_s": spread_s, "host_s": host_s}
    if not wants:
        return

    def both() -> None:
        out = forward()
        torch.autograd.grad(out, wants, torch.ones_like(out))

    device_s, spread_s = replayed_s(both)
    yield row | {"pass": "forward and backward", "device_s": device_s, "spread_s": spread_s, "host_s": queueing_s(both)}


def of(kind: str, dtype: str, shape: str, function: Callable[..., Any], *make: Callable[[], torch.Tensor]) -> Case:
    """A case whose inputs are made when it is measured."""

    def made() -> tuple[Call, list[torch.Tensor]]:
        inputs = [one() for one in make]
        return (lambda: function(*inputs)), inputs

    return kind, shape, dtype, made


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the way that Hugging Face writes it."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def gelu_written(x: torch.Tensor) -> torch.Tensor:
    """GELU by tanh in the way that GPT-2 writes it: eight operations."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def rms_written(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm in the way that Llama writes it: up to 32 bits and back."""
    wide = x.to(FP32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def language_cases() -> Iterator[Case]:
    for tokens in (2048, 8192, 32768):
        for vocab, width in ((32000, 4096), (50257, 1024), (128256, 2048)):
            yield of(
                "embedding",
                "bf16",
                f"tokens {tokens} vocabulary {vocab} width {width}",
                lambda table, ids: F.embedding(ids, table),
                partial(tensor, vocab, width),
                partial(torch.randint, vocab, (tokens,), device=DEVICE),
            )
    for tokens in (1024, 4096, 8192):
        for vocab in (32000, 128256):
            for dtype, name in ((FP32, "fp32"), (BF16, "bf16")):
                yield of(
                    "cross entropy",
                    name,
                    f"tokens {tokens} vocabulary {vocab}",
                    lambda logits, ids: F.cross_entropy(logits, ids),
                    partial(tensor, tokens, vocab, dtype=dtype),
                    partial(torch.randint, vocab, (tokens,), device=DEVICE),
                )
    for rows in (2048, 8192, 32768):
        for heads, size in ((16, 64), (32, 128)):
            yield of(
                "rotary",
                "bf16",
                f"tokens {rows} heads {heads} size {size}",
                rotate,
                partial(tensor, 1, heads, rows, size),
                partial(tensor, rows, size, grad=False),
                partial(tensor, rows, size, grad=False),
            )
        for width in (1024, 4096):
            shape = f"rows {rows} width {width}"
            wide = partial(tensor, rows, width)
            scale = partial(tensor, width)
            yield of("rms norm as written", "bf16", shape, rms_written, wide, scale)
            yield of("rms norm", "bf16", shape, lambda x, g: F.rms_norm(x, x.shape[-1:], g), wide, scale)
            yield of(
                "layer norm", "bf16", shape, lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b), wide, scale, scale
            )
            yield of(
                "layer norm",
                "fp32",
                shape,
                lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b),
                partial(tensor, rows, width, dtype=FP32),
                partial(tensor, width, dtype=FP32),
                partial(tensor, width, dtype=FP32),
            )
            yield of("gelu", "bf16", shape, F.gelu, wide)
            yield of("gelu as written", "bf16", shape, gelu_written, wide)
            yield of("silu times", "bf16", shape, lambda a, b: F.silu(a) * b, wide, wide)
            yield of("dropout", "bf16", shape, lambda x: F.dropout(x, 0.1), wide)
            yield of("add", "bf16", shape, torch.add, wide, wide)
            yield of("cast to bf16", "fp32", shape, lambda x: x.to(BF16), partial(tensor, rows, width, dtype=FP32))
            yield of("transposed copy", "bf16", shape, lambda x: x.t().contiguous(), wide)
            yield of("concatenate", "bf16", shape, lambda a, b: torch.cat((a, b), -1), wide, wide)
            yield of("softmax", "bf16", shape, lambda x: x.softmax(-1), wide)


def attention_cases() -> Iterator[Case]:
    for batch, length in ((32, 512), (8, 2048), (2, 8192), (1, 16384)):
        for heads, kv_heads, size in ((16, 16, 64), (32, 8, 128), (16, 16, 96), (8, 8, 256)):
            for causal in (True, False):

                def attend(q: Any, k: Any, v: Any, causal: bool = causal, grouped: bool = heads != kv_heads) -> Any:
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

                key = partial(tensor, batch, kv_heads, length, size)
                yield of(
                    "attention",
                    "bf16",
                    f"batch {batch} length {length} heads {heads} kv_heads {kv_heads} size {size} causal {int(causal)}",
                    attend,
                    partial(tensor, batch, heads, length, size),
                    key,
                    key,
                )


def shuffled(tokens: int, picks: int) -> torch.Tensor:
    """Rows of a random permutation in which each token stands `picks` times."""
    return torch.randperm(tokens * picks, device=DEVICE) // picks


def expert_cases() -> Iterator[Case]:
    """Products of many small experts: by one call for all, and one call each; permutation of the tokens."""
    for experts, width, inner in ((8, 4096, 14336), (64, 2048, 1408), (128, 2048, 768)):
        for tokens in (16, 128, 1024):
            if experts * tokens * inner * 2 > 6e9:
                continue
            shape = f"experts {experts} tokens_each {tokens} width {width} inner {inner}"
            step = {"device": DEVICE, "dtype": torch.int32}
            ends = partial(torch.arange, tokens, experts * tokens + 1, tokens, **step)
            x = partial(tensor, experts * tokens, width)
            w = partial(tensor, experts, width, inner)
            grouped = getattr(F, "grouped_mm", None) or torch._grouped_mm
            yield of("grouped product", "bf16", shape, lambda a, b, o, g=grouped: g(a, b, offs=o), x, w, ends)
            yield of(
                "product each",
                "bf16",
                shape,
                lambda a, b, e=experts: torch.cat([p @ q for p, q in zip(a.chunk(e), b.unbind(), strict=True)]),
                x,
                w,
            )
            yield of("batched product", "bf16", shape, torch.bmm, partial(tensor, experts, tokens, width), w)
    for tokens, width, picks in ((8192, 4096, 2), (8192, 2048, 8), (32768, 2048, 8)):
        shape = f"tokens {tokens} width {width} picks {picks}"
        order = partial(shuffled, tokens, picks)
        yield of("permute tokens", "bf16", shape, lambda a, o: a[o], partial(tensor, tokens, width), order)
        yield of(
            "combine tokens",
            "bf16",
            shape,
            lambda y, o, t=tokens: torch.zeros(t, y.shape[1], device=DEVICE, dtype=y.dtype).index_add(0, o, y),
            partial(tensor, tokens * picks, width),
            order,
        )


def vision_cases() -> Iterator[Case]:
    shapes = (
        (64, 3, 224, 64, 7, 2, 1),
        (64, 64, 56, 64, 3, 1, 1),
        (64, 256, 56, 64, 1, 1, 1),
        (64, 128, 28, 128, 3, 1, 1),
        (64, 256, 14, 256, 3, 1, 1),
        (64, 512, 7, 512, 3, 1, 1),
        (64, 1024, 14, 2048, 1, 2, 1),
        (64, 128, 56, 128, 7, 1, 128),
        (64, 512, 14, 512, 7, 1, 512),
        (64, 256, 28, 256, 3, 1, 32),
        (8, 320, 64, 320, 3, 1, 1),
        (8, 640, 32, 640, 3, 1, 1),
    )
    for images, channels, side, out, kernel, stride, groups in shapes:
        for form, layout in ((torch.channels_last, "last"), (torch.contiguous_format, "first")):

            def image(n: int = images, c: int = channels, s: int = side, form: Any = form) -> torch.Tensor:
                return torch.randn(n, c, s, s, device=DEVICE, dtype=BF16).to(memory_format=form).requires_grad_()

            def weight(o: int = out, c: int = channels // groups, k: int = kernel, form: Any = form) -> torch.Tensor:
                return torch.randn(o, c, k, k, device=DEVICE, dtype=BF16).to(memory_format=form).requires_grad_()

            place = f"images {images} channels {channels} side {side}"
            yield of(
                "convolution",
                "bf16",
                f"{place} out {out} kernel {kernel} stride {stride} groups {groups} channels_{layout}",
                lambda x, w, s=stride, k=kernel, g=groups: F.conv2d(x, w, stride=s, padding=k // 2, groups=g),
                image,
                weight,
            )
            if kernel == 3 and groups == 1:
                scale = partial(tensor, channels, dtype=FP32)
                run = partial(torch.ones, channels, device=DEVICE)
                yield of(
                    "batch norm",
                    "bf16",
                    f"{place} channels_{layout}",
                    lambda x, m, v, g, b: F.batch_norm(x, m, v, g, b, training=True),
                    image,
                    run,
                    run,
                    scale,
                    scale,
                )
                half = partial(tensor, channels)
                yield of(
                    "group norm",
                    "bf16",
                    f"{place} channels_{layout}",
                    lambda x, g, b: F.group_norm(x, 32, g, b),
                    image,
                    half,
                    half,
                )
                yield of("relu", "bf16", f"{place} channels_{layout}", F.relu, image)
        if kernel == 7 and groups == 1:
            yield of(
                "max pool",
                "bf16",
                f"images {images} channels 64 side 112",
                lambda x: F.max_pool2d(x, 3, 2, 1),
                partial(tensor, images, 64, 112, 112),
            )


def optimiser_cases() -> Iterator[Case]:
    for count, width in ((16, 4096), (300, 1024), (1000, 128)):
        for name, kind in (("AdamW", "fused"), ("AdamW", "foreach"), ("SGD", "fused"), ("SGD", "foreach")):

            def made(count: int = count, width: int = width, name: str = name, kind: str = kind) -> Any:
                parameters = [torch.nn.Parameter(torch.randn(width, width, device=DEVICE)) for _ in range(count)]
                for one in parameters:
                    one.grad = torch.randn_like(one)
                extra = {"capturable": True} if name == "AdamW" else {"momentum": 0.9}
                optimiser = getattr(torch.optim, name)(parameters, lr=1e-4, **{kind: True}, **extra)
                return optimiser.step, []

            yield f"{name} {kind}", f"tensors {count} width {width}", "fp32", made
        yield "norm of gradients", f"tensors {count} width {width}", "fp32", partial(norms, count, width)


def norms(count: int, width: int) -> tuple[Call, list[torch.Tensor]]:
    gradients = [torch.randn(width, width, device=DEVICE) for _ in range(count)]
    return partial(torch._foreach_norm, gradients), []


def measured_operations(writer: Callable[[dict[str, Any]], None], until: float) -> None:
    """Every case in turn, kinds mixed so that an early end leaves some of each."""
    lists = [list(f()) for f in (language_cases, attention_cases, expert_cases, vision_cases, optimiser_cases)]
    order = sorted(
        ((k / len(cases), n, case) for n, cases in enumerate(lists) for k, case in enumerate(cases)),
        key=lambda one: one[:2],
    )
    for _, _, case in order:
        if time.monotonic() > until:
            print(f"time is up before {case[0]} {case[1]}", flush=True)
            return
        try:
            for row in operation(case):
                writer(row)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            print(f"{case[0]} {case[1]}: {str(error).splitlines()[0][:120]}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def _language(net: Any, vocabulary: int, batch: int, length: int) -> Call:
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(vocabulary, (batch, length), device=DEVICE)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", BF16):
            loss = net(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()

    return step


def hugging_face(kind: str, batch: int, length: int, checkpointing: bool, **keys: Any) -> Call:
    """A step of a causal or masked language model built on the device."""
    import transformers

    shape = getattr(transformers, f"{kind}Config")(attn_implementation="sdpa", **keys)
    head = "ForMaskedLM" if kind == "Bert" else "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    with torch.device(DEVICE):
        net = getattr(transformers, kind + head)(shape).train()
    net.config.use_cache = False
    if checkpointing:
        net.gradient_checkpointing_enable()
    return _language(net, shape.vocab_size, batch, length)


def vision(name: str, batch: int, channels_last: bool) -> Call:
    """A step of a torchvision classifier built on the device."""
    import torchvision

    with torch.device(DEVICE):
        net = getattr(torchvision.models, name)().train()
    form = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=form)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(batch, 3, 224, 224, device=DEVICE).contiguous(memory_format=form)
    labels = torch.randint(1000, (batch,), device=DEVICE)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", BF16):
            loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimiser.step()

    return step


LLAMA_1B = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 16384,
}
LLAMA_300M = LLAMA_1B | {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 32000}
QWEN = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 16384,
}
GPT2_SMALL = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
GPT2_LARGE = {"n_embd": 1280, "n_layer": 36, "n_head": 20, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MIXTRAL = {
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}

STEPS: list[tuple[str, int, int, bool, Callable[[], Call]]] = [
    ("llama-1b", 1, 2048, False, lambda: hugging_face("Llama", 1, 2048, False, **LLAMA_1B)),
    ("resnet50", 32, 0, False, lambda: vision("resnet50", 32, True)),
    ("gpt2-small", 16, 1024, False, lambda: hugging_face("GPT2", 16, 1024, False, **GPT2_SMALL)),
    ("mixtral-8-blocks", 4, 2048, False, lambda: hugging_face("Mixtral", 4, 2048, False, **MIXTRAL)),
    ("bert-large", 8, 512, False, lambda: hugging_face("Bert", 8, 512, False, **BERT_LARGE)),
    ("convnext_base", 64, 0, False, lambda: vision("convnext_base", 64, False)),
    ("vit_b_16", 64, 0, False, lambda: vision("vit_b_16", 64, False)),
    ("llama-1b", 4, 2048, True, lambda: hugging_face("Llama", 4, 2048, True, **LLAMA_1B)),
    ("qwen2.5-0.5b", 4, 2048, False, lambda: hugging_face("Qwen2", 4, 2048, False, **QWEN)),
    ("resnet50", 256, 0, False, lambda: vision("resnet50", 256, True)),
    ("resnet50-channels-first", 128, 0, False, lambda: vision("resnet50", 128, False)),
    ("gpt2-large", 4, 1024, False, lambda: hugging_face("GPT2", 4, 1024, False, **GPT2_LARGE)),
    ("llama-300m", 2, 8192, False, lambda: hugging_face("Llama", 2, 8192, False, **LLAMA_300M)),
    ("efficientnet_b4", 64, 0, False, lambda: vision("efficientnet_b4", 64, True)),
    ("resnext50_32x4d", 64, 0, False, lambda: vision("resnext50_32x4d", 64, True)),
    ("swin_b", 64, 0, False, lambda: vision("swin_b", 64, False)),
    ("bert-large", 32, 512, False, lambda: hugging_face("Bert", 32, 512, False, **BERT_LARGE)),
    ("mixtral-8-blocks", 1, 2048, False, lambda: hugging_face("Mixtral", 1, 2048, False, **MIXTRAL)),
]

QWEN3 = QWEN | {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
}
OPT = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "ffn_dim": 8192,
    "max_position_embeddings": 2048,
    "dropout": 0.1,
    "vocab_size": 50272,
}
PHI = {
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "intermediate_size": 8192,
    "vocab_size": 51200,
}
LLAMA_3B = LLAMA_1B | {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24}
# Measured by none so far and fitted by nothing: predicted before (tests/data/popular_predicted.csv).
UNSEEN_STEPS: list[tuple[str, int, int, bool, Callable[[], Call]]] = [
    ("qwen3-0.6b", 2, 4096, False, lambda: hugging_face("Qwen3", 2, 4096, False, **QWEN3)),
    ("opt-1.3b", 4, 2048, False, lambda: hugging_face("OPT", 4, 2048, False, **OPT)),
    ("phi-1.5", 4, 2048, False, lambda: hugging_face("Phi", 4, 2048, False, **PHI)),
    ("llama-3b", 2, 4096, True, lambda: hugging_face("Llama", 2, 4096, True, **LLAMA_3B)),
    ("densenet121", 128, 0, False, lambda: vision("densenet121", 128, True)),
    ("vit_l_16", 32, 0, False, lambda: vision("vit_l_16", 32, False)),
]


class PowerMeter:
    """Mean power and clock of the device while a block runs; None where NVML is missing."""

    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._device = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:  # whatever keeps NVML away leaves the two columns empty
            self._nvml = None
        self._on, self.readings = threading.Event(), []

    def _read(self) -> None:
        while self._on.is_set():
            power = self._nvml.nvmlDeviceGetPowerUsage(self._device) / 1e3
            clock = self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)
            self.readings.append((power, clock))
            time.sleep(0.02)

    def over(self, call: Call) -> tuple[float | None, float | None]:
        if self._nvml is None:
            call()
            return None, None
        self.readings.clear()
        self._on.set()
        thread = threading.Thread(target=self._read)
        thread.start()
        call()
        self._on.clear()
        thread.join()
        late = self.readings[len(self.readings) // 2 :] or [(None, None)]
        if late[0][0] is None:
            return None, None
        return statistics.fmean(p for p, _ in late), statistics.fmean(c for _, c in late)


def whole_step(step: Call, meter: PowerMeter) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    alone = []
    for _ in range(8):
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - began)
    count = max(8, int(1.5 / statistics.median(alone)))
    queued_s = [0.0]

    def many() -> None:
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        queued_s[0] = (time.perf_counter() - began) / count

    power, clock = meter.over(many)
    return {
        "step_s": statistics.median(alone),
        "step_queued_s": queued_s[0],
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": reserved,
        "power_w": power,
        "sm_clock_mhz": clock,
    }


def inside(step: Call) -> Iterator[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as seen:
        step()
        torch.cuda.synchronize()
    for event in seen.key_averages(group_by_input_shape=True):
        device_s = event.self_device_time_total / 1e6
        if device_s > 0 or event.self_cpu_time_total > 50:
            yield {
                "operation": event.key[:80],
                "inputs": str(event.input_shapes)[:160],
                "calls": event.count,
                "device_s": device_s,
                "host_s": event.self_cpu_time_total / 1e6,
            }


def measured_steps(
    write_step: Callable[[dict[str, Any]], None], write_inside: Callable[[dict[str, Any]], None], until: float
) -> None:
    meter = PowerMeter()
    for name, batch, length, checkpointing, make in (*UNSEEN_STEPS, *STEPS):
        if time.monotonic() > until:
            print(f"time is up before {name} {batch}", flush=True)
            return
        who: dict[str, Any] = {"model": name, "batch": batch, "length": length, "checkpointing": int(checkpointing)}
        who["gpu"] = torch.cuda.get_device_name(0)
        try:
            began = time.monotonic()
            step = make()
            built_s = time.monotonic() - began
            row = who | whole_step(step, meter)
            write_step(row)
            for one in inside(step):
                write_inside(who | one)
            print(f"{name} {batch}: {row['step_s'] * 1e3:.1f} ms, built in {built_s:.1f} s", flush=True)
        except Exception as error:  # one model that fails does not cost the others
            print(f"{name} {batch}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
        step = None
        gc.collect()
        torch.cuda.empty_cache()


def appender(path: Path) -> Callable[[dict[str, Any]], None]:
    def write(row: dict[str, Any]) -> None:
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(row), lineterminator="\n")
            if new:
                table.writeheader()
            table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0, help="of each half, at most")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    properties = torch.cuda.get_device_properties(0)
    print(torch.__version__, properties.name, properties.total_memory, torch.cuda.mem_get_info(), flush=True)
    torch.manual_seed(0)
    write = [appender(given.out / f"{name}.csv") for name in ("operations", "steps", "inside")]
    measured_steps(write[1], write[2], time.monotonic() + given.seconds)
    measured_operations(write[0], time.monotonic() + given.seconds)


if __name__ == "__main__":
    sys.exit(main())
