"""Megatron-DeepSpeed on A100 nodes: 859 steps within one node, 71 on 8 to 64 nodes (VIA-Research/vTrain).

All rows recompute their activations in full and run without sequence parallelism; the vocabulary is Megatron's
51,200. A node has eight A100-80GB and four 200 Gb/s NICs, 12.5e9 bytes/s for each of its GPUs: the only thing
about more than one node that the prediction of many nodes is told.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.sim.llm.hardware import ACCELERATORS, Network
from equipoise.sim.llm.layout import Layout
from equipoise.sim.llm.published import gpt
from equipoise.sim.llm.quantities import Plan
from equipoise.study.validation.predict import score
from equipoise.study.validation.rows import Row, divided, read_csv
from equipoise.study.validation.score import Line, line
from equipoise.study.validation.splits import SPLITS, fitted_half, fitted_tenth

SINGLE = "throughput/vtrain_a100_single_node.csv"
MULTI = "throughput/vtrain_a100_multi_node.csv"
VOCABULARY = 51_200
NETWORK = Network(8, 8 * 12.5e9)


def read_single(data: Path) -> list[Row]:
    """The single-node rows; a family is a model. Raises FileNotFoundError."""
    return [_row(text) for text in read_csv(data / SINGLE)]


def read_multi(data: Path) -> list[Row]:
    """The multi-node rows; a family is a model. Raises FileNotFoundError."""
    return [_row(text) for text in read_csv(data / MULTI)]


def _row(text: dict[str, str]) -> Row:
    def count(name: str) -> int:
        """A whole number of the row."""
        return int(text[name])

    shape = gpt(
        count("# layers"),
        count("hidden size"),
        count("attention heads"),
        VOCABULARY,
        count("sequence length"),
    )
    layout = Layout(
        data=count("data parallelism"), tensor=count("tensor parallelism"),
        pipeline=count("pipeline parallelism"), recompute="full", precision="fp16",
        micro_batch=count("micro batch"), global_batch=count("global batch"),
    )  # fmt: skip
    plan = Plan(shape, layout, ACCELERATORS["A100-80GB"], NETWORK)
    key = " ".join(value for name, value in text.items() if "time" not in name)
    family = f"{shape.layers} layers of {shape.hidden}, sequence {shape.sequence}"
    return Row(plan, float(text["iteration time (ms)"]) / 1e3, family, key, "megatron-deepspeed", family)


def run(data: Path) -> list[Line]:
    """One tenth of the single-node rows predicts the rest; half of them predict all multi-node rows."""
    single, multi = read_single(data), read_multi(data)
    tenths = [divided(single, split, fitted_tenth, "key") for split in SPLITS]
    halves = [divided(single, split, fitted_half, "key")[0] for split in SPLITS]
    return [
        line("vTrain one node: a tenth -> the rest", 0.06, [score(a, b, by="key") for a, b in tenths]),
        line("vTrain: one node and a NIC figure -> many nodes", 0.10, [score(a, multi) for a in halves]),
    ]
