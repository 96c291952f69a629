"""Steps of PyTorch in 32 bits on nine kinds of GPU (NeuSight): from shapes and data sheets, no step seen.

Constants are counts of what eager PyTorch moves, at `STREAM` of the memory's rate: a score is written by its
product, scaled, masked, normalised, dropped and read, 41 bytes; a GELU in Python moves its input eight times.
Products reach 0.75 of the peak rate, as wherever no fit says more. A second line sets one factor for every GPU that
has inference latencies: the median of measured over predicted forward passes. Variants with fused kernels are other
software and left out, and so are encoder-decoders with experts, which have no shape here. Naive: model FLOP at half
of the peak.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from equipoise.sim.llm.hardware import AcceleratorRates, NetworkRates
from equipoise.sim.llm.published import gpt
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout
from equipoise.sim.llm.stack import Stack
from equipoise.sim.llm.step_time import StepEstimate, step_time
from equipoise.study.validation.rows import Cells, Row, read_rows, seconds
from equipoise.study.validation.score import Line, judge, line, spread_of_others

FILE = "throughput/neusight_e2e_latency.csv"
GPUS = {
    "MI100": (46.1, 1228.8),
    "MI210": (45.3, 1638.4),
    "MI250": (45.3, 1638.4),
    "P4": (5.5, 192),
    "T4": (8.1, 320),
    "P100": (9.3, 732),
    "V100-PCIE": (14.0, 897),
    "V100-SXM": (15.7, 897),
    "L4": (30.3, 300),
    "A100-PCIE-40GB": (19.5, 1555),
    "A100-SXM4-40GB": (19.5, 1555),
    "A100_80GB_PCIe": (19.5, 1935),
    "A100-SXM4-80GB": (19.5, 2039),
    "H100_PCIe": (51.0, 2000),
    "H100_80GB_HBM3": (67.0, 3350),
}
"""Data sheets: 32-bit TFLOP/s (AMD: of the matrix cores; MI250: of one die, which is what a process sees), GB/s."""
SHAPES = {
    "bert_large": (24, 1024, 16, 30_522),
    "gpt2_med": (24, 1024, 16, 50_257),
    "gpt2_large": (36, 1280, 20, 50_257),
    "gpt2_xl": (48, 1600, 25, 50_257),
    "gpt3_xl": (24, 3072, 24, 50_257),
    "gpt3_27": (32, 2560, 32, 50_257),
    "gpt3_67": (32, 4096, 32, 50_257),
    "opt_13": (24, 2048, 32, 50_272),
}
"""Layers, width, heads, tokens, as the models' published configurations say."""
STREAM = 0.8
PYTHON_GELU, FUSED = 111.0, 35.0
"""Bytes moved per element of a layer, forward."""


def stack(model: str) -> Stack:
    """What eager PyTorch in 32 bits moves; a step is forward and backward, without an optimiser."""
    moved = PYTHON_GELU if model.startswith("gpt") else FUSED
    return Stack(
        matmul_efficiency=0.75,
        attention_efficiency=0.35,
        score_bytes=41 / STREAM,
        elementwise_bytes=moved / STREAM,
        accumulate_bytes=8 / STREAM,
        head_bytes=40 / STREAM,
        optimizer_bytes=0.0,
        step_s=0.0,
    )


def read(data: Path) -> list[tuple[Row, StepEstimate, bool]]:
    """Rows of known models and GPUs (a row's stack), predicted time by part, and whether they train.

    Raises ValueError where none trains, FileNotFoundError, KeyError.
    """
    found = read_rows(data / FILE, _read)
    if not any(trains for _, _, trains in found):
        raise ValueError("no row trains a known model on a known GPU")
    return found


def _read(text: Cells) -> tuple[Row, StepEstimate, bool]:
    sheet = next((found for name, found in GPUS.items() if _names(name, text["gpu"])), None)
    if sheet is None:
        raise ValueError(f"gpu: {text['gpu']} has no data sheet here")
    if text["model"] not in SHAPES:
        raise ValueError(f"model: {text['model']} has no shape here")
    if "fusion" in text["variant"]:
        raise ValueError("variant: fused kernels are other software")
    row = _row(text, *sheet)
    return row, step_time(row.plan, stack(text["model"])), text["mode"] == "train"


def _names(name: str, gpu: str) -> bool:
    """Whether a GPU's full name holds this one as whole words."""
    return re.search(rf"(^|[_-]){name}($|[_-])", gpu) is not None


def _row(text: Cells, tflop_per_s: float, gb_per_s: float) -> Row:
    degrees = {"dp": 1, "tp": 1, "pp": 1}
    if parallel := re.match(r"(dp|tp|pp)(\d+)", text["variant"]):
        degrees[parallel.group(1)] = int(parallel.group(2))
    batch = text.whole("batch")
    layout = Layout(
        data=degrees["dp"],
        tensor=degrees["tp"],
        pipeline=degrees["pp"],
        precision="fp32",
        micro_batch=max(1, batch // degrees["dp"]),
        global_batch=batch,
    )
    accelerator = AcceleratorRates(text["gpu"], 2e12 * tflop_per_s, 0, 80e9, 1e9 * gb_per_s, 300e9)
    plan = ShardingPlan(gpt(*SHAPES[text["model"]], text.whole("seq")), layout, accelerator, NetworkRates(8, 100e9))
    key = " ".join(text[name] for name in ("gpu", "model", "mode", "seq", "batch", "variant"))
    return Row(plan, text.measured("e2e_latency") / 1e3, text["model"], key, text["gpu"])


def _forward_s(times: StepEstimate) -> float:
    """The forward pass of a step on one GPU: see the shares in `step_time`."""
    return float(times.products / 3 + times.attention / 3.5 + times.elementwise / 3 + times.head / 4)


def run(data: Path) -> list[Line]:
    """Training steps from shapes and data sheets alone, and with a factor by GPU from its inference latencies."""
    rows = read(data)
    trained = [(row, times) for row, times, trains in rows if trains]
    ratios: dict[str, list[float]] = defaultdict(list)
    for row, times, trains in rows:
        if not trains:
            ratios[row.stack].append(row.seconds / _forward_s(times))
    asked, measured = [row for row, _ in trained], seconds([row for row, _ in trained])
    guess = np.array([float(times.total) for _, times in trained])
    factor = np.array([float(np.median(ratios[row.stack])) if ratios[row.stack] else 1.0 for row in asked])
    flop = np.array([row.plan.shape.train_flop_per_token() * row.plan.shape.sequence for row in asked])
    flop *= [row.plan.layout.global_batch / row.plan.layout.gpus for row in asked]
    naive = flop / np.array([0.25 * row.plan.accelerator.flop_per_s for row in asked])
    names, keys, lines = [row.stack for row in asked], [row.key for row in asked], []
    for what, predicted in (
        ("NeuSight: shapes and data sheets -> training steps", guess),
        ("NeuSight: and inference latencies -> training steps", guess * factor),
    ):
        factors = spread_of_others(np.log(measured / predicted), names)
        lines.append(line(what, 0.10, [judge(keys, predicted, naive, measured, factors)]))
    return lines
