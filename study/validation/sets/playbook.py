"""The Ultra-Scale Playbook's sweep: nanotron on nodes of eight H100 (EFA, 3.2 Tb/s), sequences of 4,096 tokens.

Shapes as in nanotron's scaling script and as its printed utilisation implies: as many key as query heads, 131,072
tokens, tied embeddings below 4B; gradients are accumulated in 32 bits, tensor parallelism scatters the sequence.
nanotron assigns layers to stages by their FLOP, the head as one block (`nanotron_stages`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.memory import memory
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout, Transformer
from equipoise.sim.llm.stack import STACKS
from equipoise.sim.llm.step_time import step_times
from equipoise.study.validation.predict import fit_rows, memory_score, score
from equipoise.study.validation.rows import Cells, Row, partition, read_rows, seconds, stacked
from equipoise.study.validation.score import Line, Score, line, of_splits, relative_error
from equipoise.study.validation.splits import fitted_half

FILE = "throughput/ultrascale_playbook_h100.csv.gz"
NETWORK = NetworkRates(8, 400e9)
SEQUENCE = 4096
SMALLEST, NODES = "1B", 4
MEMORY = MemoryStack(gradient_bytes=6.0, optimizer_bytes=12.0)
"""nanotron keeps gradients in 16 bits and their sum in 32; Adam's moments and master weights in 32."""
STATES = ("gradient_bytes", "optimizer_bytes")


def _shape(layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    return Transformer(layers, hidden, heads, ffn, 131_072, SEQUENCE, gated=True, tied=ffn < 10_000)


SHAPES = {
    "1B": _shape(16, 2048, 32, 8192),
    "3B": _shape(28, 3072, 32, 8192),
    "8B": _shape(32, 4096, 32, 14_336),
    "70B": _shape(80, 8192, 64, 28_672),
    "80B": _shape(80, 8192, 64, 28_672),
}


def read(data: Path) -> list[Row]:
    """The rows that ran. Raises FileNotFoundError."""
    return [row for row, ran in read_all(data) if ran]


def read_all(data: Path) -> list[tuple[Row, bool]]:
    """Every row and whether it ran; a row that did not has 0 for its step and memory."""
    return read_rows(data / FILE, lambda text: (_row(text), text["ran"] == "1"))


def nanotron_stages(shape: Transformer, pipeline: int) -> tuple[tuple[int, ...], int, int]:
    """Layers of every stage, the stage of the head and that of the loss, as nanotron assigns blocks by their cost.

    A block, costing its weight products, goes to the current stage; a stage is full when the running cost exceeds
    its equal share. The loss costs nothing and comes after the head.
    """
    layer = 4 * shape.query_width * shape.hidden + 3 * shape.ffn * shape.hidden
    blocks = [layer] * shape.layers + [shape.vocab * shape.hidden]
    total, running, stage = sum(blocks), 0, 0
    counts, head = [0] * pipeline, pipeline - 1
    for index, cost in enumerate(blocks):
        running += cost
        if index < shape.layers:
            counts[stage] += 1
        else:
            head = stage
        if running * pipeline > total * (stage + 1):
            stage = min(stage + 1, pipeline - 1)
    return tuple(counts), head, stage


def _row(text: Cells) -> Row:
    if text["model"] not in SHAPES:
        raise ValueError(f"model: {text['model']} is not one of {', '.join(SHAPES)}")
    shape, ran = SHAPES[text["model"]], text["ran"] == "1"
    pipeline, tensor, data = text.whole("pp"), text.whole("tp"), text.whole("dp")
    micro = text.whole("micro_batch")
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        sequence_parallel=tensor > 1,
        zero=text.whole("zero_stage"),
        micro_batch=micro,
        global_batch=micro * text.whole("grad_accumulation") * data,
    )
    stages, head, loss = nanotron_stages(shape, pipeline)
    plan = ShardingPlan(shape, layout, ACCELERATORS["H100"], NETWORK, stages, head, loss)
    tokens = layout.global_batch * shape.sequence
    family = f"{text['model']} tensor {tensor} pipeline {pipeline} zero {layout.zero}"
    key = " ".join(f"{name}={value}" for name, value in text.items() if name in _KEY)
    seconds = tokens / (text.measured("tokens_per_s_per_gpu") * layout.gpus) if ran else 0.0
    memory = text.measured("gpu_memory_GB") * 2**30 if ran else 0.0
    return Row(plan, seconds, family, key, "nanotron", f"{family} micro {micro}", memory)


_KEY = ("model", "nodes", "gpus", "micro_batch", "grad_accumulation", "dp", "pp", "tp", "zero_stage")


def model_of(row: Row) -> str:
    """The model's name of a row."""
    return row.family.split()[0]


def run(data: Path) -> list[Line]:
    """The smallest model on at most four nodes predicts other models and more nodes: step, memory, whether it
    fits."""
    everything = read_all(data)
    rows = [row for row, ran in everything if ran]
    small, asked = partition(rows, _fitted)
    if not small:
        return [line("playbook: constants of equipoise.sim.llm.stack -> all rows, step", 0.08, [_shipped(rows)])]

    def half(split: int) -> list[Row]:
        """The fitted half of the smallest model's rows."""
        return [r for r in small if fitted_half(r.family, split)]

    name = f"{SMALLEST} on <= {NODES} nodes"
    steps = of_splits(lambda split: score(half(split), asked))
    memories = of_splits(lambda split: memory_score(half(split), asked, MEMORY, 0, STATES))
    return [
        line(f"playbook: {name} -> the rest, step", 0.08, [score(small, asked)]),
        line(f"playbook: half of {name} -> the rest, step", 0.08, steps),
        line(f"playbook: {name} -> the rest, memory", 0.05, [memory_score(small, asked, MEMORY, 0, STATES)]),
        line(f"playbook: half of {name} -> the rest, memory", 0.05, memories),
        line("playbook: fits or not, share wrong", 0.05, [_fits(small, everything)]),
    ]


def _shipped(rows: list[Row]) -> Score:
    """The score of the shipped constants, for a file without rows to fit on; no naive model, no interval."""
    guess = np.asarray(step_times(stacked(rows), STACKS["nanotron/H100"]).total)
    return Score(len(rows), relative_error(guess, seconds(rows)), float("nan"), float("nan"))


def _fitted(row: Row) -> bool:
    return model_of(row) == SMALLEST and row.plan.layout.gpus <= NODES * NETWORK.node_gpus


def _fits(known: list[Row], everything: list[tuple[Row, bool]]) -> Score:
    """Share of certain labels that the memory model gets wrong, against calling everything fitting.

    Certain: a row that ran fits. A row that did not run is certainly too large only where its layout ran with some
    smaller micro-batch and with none as large.
    """
    ran = [row for row, ok in everything if ok]
    stack = fit_rows(known, MEMORY, 0, STATES)
    largest: dict[tuple[str, int], int] = {}
    for row in ran:
        place = (row.family, row.plan.layout.data)
        largest[place] = max(largest.get(place, 0), row.plan.layout.micro_batch)
    asked = []
    for row, ok in everything:
        most = largest.get((row.family, row.plan.layout.data), 0)
        if not _fitted(row) and (ok or 0 < most < row.plan.layout.micro_batch):
            asked.append((memory(row.plan, stack).fits, ok))
    wrong = [guess != ok for guess, ok in asked]
    return Score(len(asked), float(np.mean(wrong)), float(np.mean([not ok for _, ok in asked])), float("nan"))
