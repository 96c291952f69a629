"""OPT-350M and GPT-Neo-2.7B on GH200 nodes of four, Megatron-DeepSpeed, with measured step and peak memory.

`layers_per_stage` counts the embedding and the head as one layer each; a node has four 200 Gb/s NICs.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.memory_stack import MemoryStack
from equipoise.sim.llm.published import GPT_NEO_2_7B, OPT_350M
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout, Transformer
from equipoise.study.validation.predict import KEEPS_SCORES, memory_score, score
from equipoise.study.validation.rows import Cells, Row, divided, read_rows
from equipoise.study.validation.score import Line, Score, line, of_splits
from equipoise.study.validation.splits import fitted_half

FILE = "throughput/sailor_plans_gh200.csv.gz"
NETWORK = NetworkRates(4, 4 * 25e9)
MEMORY = MemoryStack(score_bytes=5.0, base_bytes=4e9)
"""Where the memory fit starts: attention keeps its scores (Korthikanti et al. 2022: 5 bytes each)."""


def read(data: Path) -> list[Row]:
    """The rows of models whose shape is known. Raises FileNotFoundError, ValueError, KeyError."""
    return read_rows(data / FILE, _row)


def _shape(model: str) -> Transformer:
    for start, shape in (("OPT-350", OPT_350M), ("GPT-Neo", GPT_NEO_2_7B)):
        if model.startswith(start):
            return shape
    raise ValueError(f"model: {model} is not OPT-350M or GPT-Neo-2.7B")


def _row(text: Cells) -> Row:
    if not text["gpus"].startswith("GH-96x"):
        raise ValueError(f"gpus: {text['gpus']} is not GH-96, a GH200")
    shape = _shape(text["model"])
    layout = Layout(
        data=_first(text, "dp"),
        tensor=_first(text, "tp"),
        pipeline=text.whole("pp"),
        precision="fp16",
        micro_batch=text.whole("micro_batch"),
        global_batch=text.whole("global_batch"),
    )
    plan = ShardingPlan(shape, layout, ACCELERATORS["GH200"], NETWORK, _stages(text, shape.layers))
    key = " ".join(value for name, value in text.items() if not name.startswith("measured"))
    return Row(
        plan,
        text.measured("measured_step_s"),
        text["model"],
        key,
        "megatron-deepspeed",
        text["model"],
        text.measured("measured_peak_bytes"),
    )


def _first(text: Cells, name: str) -> int:
    """The number of the first stage, of those that `4/2` lists."""
    return Cells({name: text[name].split("/")[0]}).whole(name)


def _stages(text: Cells, layers: int) -> tuple[int, ...]:
    """Transformer layers of every stage, without the embedding in front and the head behind."""
    counts = [Cells(layers=n).whole("layers") for n in text["layers_per_stage"].split("/")]
    counts[0] -= 1
    counts[-1] -= 1
    if sum(counts) != layers:
        raise ValueError(f"layers_per_stage: {text['layers_per_stage']} is not {layers} layers, embedding and head")
    return tuple(counts)


def run(data: Path) -> list[Line]:
    """Half of the plans predict the other half: step, and peak memory."""
    rows = read(data)

    def step(split: int) -> Score:
        """Steps of one half from the other."""
        return score(*divided(rows, split, fitted_half, "key"), KEEPS_SCORES)

    def memory(split: int) -> Score:
        """Peaks of one half from the other."""
        return memory_score(*divided(rows, split, fitted_half, "key"), MEMORY)

    return [
        line("Sailor plans: half -> half, step", 0.05, of_splits(step)),
        line("Sailor plans: half -> half, memory", 0.05, of_splits(memory)),
    ]
