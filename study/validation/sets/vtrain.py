"""Megatron-DeepSpeed on A100 nodes: 859 steps within one node, 71 on 8 to 64 nodes (VIA-Research/vTrain).

All rows recompute their activations in full and run without sequence parallelism; the vocabulary is Megatron's
51,200. A node has eight A100-80GB and four 200 Gb/s NICs, 12.5e9 bytes/s for each of its GPUs: the only thing
about more than one node that the prediction of many nodes is told.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.published import gpt
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout
from equipoise.study.validation.predict import score
from equipoise.study.validation.rows import Cells, Row, divided, read_rows
from equipoise.study.validation.score import Line, line, of_splits
from equipoise.study.validation.splits import fitted_half, fitted_tenth

SINGLE = "throughput/vtrain_a100_single_node.csv"
MULTI = "throughput/vtrain_a100_multi_node.csv"
VOCABULARY = 51_200
NETWORK = NetworkRates(8, 8 * 12.5e9)


def read_single(data: Path) -> list[Row]:
    """The single-node rows; a family is a model. Raises FileNotFoundError."""
    return read_rows(data / SINGLE, _row)


def read_multi(data: Path) -> list[Row]:
    """The multi-node rows; a family is a model. Raises FileNotFoundError."""
    return read_rows(data / MULTI, _row)


def _row(text: Cells) -> Row:
    count = text.whole
    shape = gpt(count("# layers"), count("hidden size"), count("attention heads"), VOCABULARY, count("sequence length"))
    layout = Layout(
        data=count("data parallelism"),
        tensor=count("tensor parallelism"),
        pipeline=count("pipeline parallelism"),
        recompute="full",
        precision="fp16",
        micro_batch=count("micro batch"),
        global_batch=count("global batch"),
    )
    plan = ShardingPlan(shape, layout, ACCELERATORS["A100-80GB"], NETWORK)
    key = " ".join(value for name, value in text.items() if "time" not in name)
    family = f"{shape.layers} layers of {shape.hidden}, sequence {shape.sequence}"
    return Row(plan, text.measured("iteration time (ms)") / 1e3, family, key, "megatron-deepspeed", family)


def run(data: Path) -> list[Line]:
    """One tenth of the single-node rows predicts the rest; half of them predict all multi-node rows."""
    single, multi = read_single(data), read_multi(data)
    tenths = of_splits(lambda split: score(*divided(single, split, fitted_tenth, "key"), by="key"))
    halves = of_splits(lambda split: score(divided(single, split, fitted_half, "key")[0], multi))
    return [
        line("vTrain one node: a tenth -> the rest", 0.06, tenths),
        line("vTrain: one node and a NIC figure -> many nodes", 0.10, halves),
    ]
