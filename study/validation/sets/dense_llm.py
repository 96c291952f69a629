"""Dense LLM training, 266 measured steps of four sources (MosaicML, NVIDIA recipes, NeMo, Megatron-LM).

A row is used when its model is a dense one of `published_models`, its GPU an A100 or H100, and its layout is
printed; fine-tuning, experts and other GPUs are left out, and rows that two pages repeat count once. What a
source leaves unsaid is as in its public recipes: sequence parallelism with tensor parallelism, a sharded
optimiser (not Megatron-LM), virtual stages of `_VIRTUAL`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.sim.llm.fit import fit
from equipoise.sim.llm.hardware import ACCELERATORS, Network
from equipoise.sim.llm.interval import spread
from equipoise.sim.llm.layout import Layout, Precision
from equipoise.sim.llm.published import SHAPES, with_sequence
from equipoise.sim.llm.quantities import Plan
from equipoise.sim.llm.shape import Transformer
from equipoise.study.validation.predict import predicted, score
from equipoise.study.validation.rows import Row, divided, labels, read_csv, seconds, stacked
from equipoise.study.validation.score import Line, Score, judge, line
from equipoise.study.validation.splits import SPLITS, fitted_half

FILE = "throughput/llm_training_throughput.csv"

_FAMILIES = (
    (r"^mpt-(\w+)$", "mpt-{}"),
    (r"^gpt3-(\w+)$", "gpt3-{}"),
    (r"^llama2-(\w+)$", "llama2-{}"),
    (r"^llama3-(\w+)$", "llama3-{}"),
    (r"^llama 3\.1 (\w+)\b", "llama3-{}"),
    (r"^nemotron-(\w+)$", "nemotron-{}"),
    (r"^nemotron4 (\w+)\b", "nemotron-{}"),
    (r"^nemo megatron\b()", "gpt3-175b"),
    (r"^(megatron-22b|turing-530b|megatron-1t)$", "{}"),
)
_SOURCES = {
    "mosaicml+llm-foundry": "fsdp",
    "NVIDIA+dgxc-benchmarking": "nemo-recipes",
    "NVIDIA+NeMo-Framework-Launcher": "nemo",
    "calculon-ai+calculon": "megatron",
}
_GPUS = {
    "a100_40gb": ("A100-40GB", 200e9),
    "a100_80gb": ("A100-80GB", 200e9),
    "A100-80GB": ("A100-80GB", 200e9),
    "h100_80gb": ("H100", 400e9),
    "H100": ("H100", 400e9),
}
"""Accelerator and bytes/s of a node's NICs: 1.6 Tb/s RoCE (MosaicML A100, as its page says), 8 x 200 Gb/s (Selene),
8 x 400 Gb/s (DGX H100)."""
_PRECISIONS: dict[str, Precision] = {
    "bf16": "bf16", "amp_bf16": "bf16", "BF16": "bf16", "fp16": "fp16", "FP8": "fp8", "amp_fp8": "fp8",
    "FP8 (see README)": "fp8",
}  # fmt: skip
_VIRTUAL = {
    ("nemo", "gpt3-175b"): 12, ("nemo", "llama2-13b"): 10, ("nemo", "llama2-70b"): 20,
    ("nemo", "nemotron-22b"): 10, ("nemo", "llama3-70b"): 5, ("megatron", "gpt3-175b"): 3,
    ("megatron", "turing-530b"): 3,
}  # fmt: skip
_MICRO_BATCH = {("megatron", "megatron-22b"): 4}


def read(data: Path) -> list[Row]:
    """The usable rows of the file under `data`. Raises FileNotFoundError where it is absent."""
    found: dict[str, Row] = {}
    for text in read_csv(data / FILE):
        row = _row(text)
        if row is not None:
            found.setdefault(f"{row.key} {row.seconds:.6g}", row)
    return list(found.values())


def family_of(model: str) -> str:
    """The family that a source's name of a model means; "" for one that is not a known dense model."""
    for pattern, name in _FAMILIES:
        match = re.match(pattern, model.strip().lower())
        if match:
            return name.format(match.group(1))
    return ""


def _row(text: dict[str, str]) -> Row | None:
    family, stack = family_of(text["model"]), _SOURCES.get(text["source_repo"], "")
    if family not in SHAPES or not stack or text["gpu"] not in _GPUS or "finetuning" in text["heading"]:
        return None
    if text["precision"] not in _PRECISIONS or not text["num_gpus"]:
        return None
    shape = _shape(family, text)
    layout = _layout(family, stack, shape, text)
    if layout is None:
        return None
    accelerator, node_bytes_per_s = _GPUS[text["gpu"]]
    plan = Plan(shape, layout, ACCELERATORS[accelerator], Network(8, node_bytes_per_s))
    tokens = layout.global_batch * shape.sequence
    rate = float(text["tokens_per_s_per_gpu"] or 0) * layout.gpus
    seconds = float(text["step_s"]) if text["step_s"] else tokens / rate
    configuration = _configuration(family, stack, plan)
    page = f"{configuration} {text['commit'][:8]}"
    return Row(plan, seconds, family, f"{configuration} {layout}", stack, page)


def _shape(family: str, text: dict[str, str]) -> Transformer:
    shape = SHAPES[family]
    layers = re.match(r"layers=(\d+)$", text["notes"])
    if layers:
        shape = replace(shape, layers=int(layers.group(1)))
    return with_sequence(shape, int(float(text["seq_len"]))) if text["seq_len"] else shape


def _layout(family: str, stack: str, shape: Transformer, text: dict[str, str]) -> Layout | None:
    gpus = int(float(text["num_gpus"]))
    if stack == "fsdp":
        return _fsdp_layout(gpus, text)
    if not text["tp"] or not (text["mbs"] or stack == "megatron"):
        return None
    t, p, c = int(text["tp"]), int(text["pp"] or 1), int(text["cp"] or 1)
    micro = int(float(text["mbs"])) if text["mbs"] else _MICRO_BATCH.get((stack, family), 1)
    data = gpus // (t * p * c)
    virtual = int(text["vp"] or _VIRTUAL.get((stack, family), 1)) if p > 1 else 1
    full = text["notes"].startswith("full")
    return Layout(
        data=data,
        tensor=t,
        context=c,
        pipeline=p,
        virtual=virtual,
        schedule="interleaved" if virtual > 1 else "1f1b",
        sequence_parallel=t > 1 and not full,
        zero=0 if stack == "megatron" else 1,
        recompute="full" if full else "selective" if stack == "megatron" else "none",
        precision=_PRECISIONS[text["precision"]],
        micro_batch=micro,
        global_batch=_global_batch(text, gpus, data * micro, shape.sequence),
    )


def _global_batch(text: dict[str, str], gpus: int, unit: int, sequence: int) -> int:
    """The printed batch, or the tokens of a step that the printed step and rate mean, in whole micro-batches."""
    if text["gbs"]:
        return int(float(text["gbs"]))
    tokens = float(text["tokens_per_s_per_gpu"]) * gpus * float(text["step_s"])
    return max(1, round(tokens / sequence / unit)) * unit


def _fsdp_layout(gpus: int, text: dict[str, str]) -> Layout:
    notes = dict(item.split("=", 1) for item in text["notes"].split(";"))
    return Layout(
        data=gpus,
        zero={"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[notes["shard"]],
        recompute="full" if notes["act_ckpt"] == "True" else "none",
        precision=_PRECISIONS[text["precision"]],
        micro_batch=int(float(text["mbs"])),
        global_batch=int(float(text["gbs"])),
    )


def _configuration(family: str, stack: str, plan: Plan) -> str:
    """Everything but the scale: the number of replicas and the batch that grows with it."""
    la, s = plan.layout, plan.shape
    model = (stack, plan.accelerator.name, family, s.layers, s.sequence, la.precision)
    parts = (*model, la.tensor, la.context, la.pipeline, la.virtual, la.zero, la.recompute, la.micro_batch)
    return " ".join(str(part) for part in parts)


def run(data: Path) -> list[Line]:
    """The two lines of this data set: unseen families, and larger scales from one step of each configuration."""
    rows = read(data)
    halves = [divided(rows, split, fitted_half, "family") for split in SPLITS]
    return [
        line("dense LLM: half of the families -> the others", 0.05, [score(a, b) for a, b in halves]),
        line(
            "dense LLM: other sources, one step of a configuration -> its larger scales", 0.018, _scales(rows)
        ),
    ]


def _scales(rows: list[Row]) -> list[Score]:
    """Per source: constants of the other sources, and a factor from the smallest scale of every configuration."""
    guesses, naive, measured, kept = [], [], [], []
    for source in sorted({r.stack for r in rows}):
        own = [r for r in rows if r.stack == source]
        others = [r for r in rows if r.stack != source]
        fitted = fit(stacked(others), seconds(others), labels(others))
        for known, asked in _by_configuration(own):
            factor = known.seconds / predicted(fitted, [known])[0]
            guesses += (predicted(fitted, asked) * factor).tolist()
            naive += [known.seconds * _tokens(r) / _tokens(known) for r in asked]
            measured += [r.seconds for r in asked]
            kept += asked
    guess, truth = np.array(guesses), np.array(measured)
    residuals = np.log(truth / guess)
    low, high = np.zeros(len(kept)), np.zeros(len(kept))
    families = np.array([r.family for r in kept])
    for family in sorted(set(families)):
        own = families == family
        low[own], high[own] = spread(residuals[~own], families[~own].tolist())
    return [judge([r.key for r in kept], guess, np.array(naive), truth, (low, high))]


def _tokens(row: Row) -> float:
    return row.plan.layout.global_batch * row.plan.shape.sequence / row.plan.layout.gpus


def _by_configuration(rows: list[Row]) -> list[tuple[Row, list[Row]]]:
    """The smallest scale of every configuration, and its larger ones where there are any."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.configuration, []).append(row)
    pairs = []
    for members in groups.values():
        first = min(members, key=lambda r: r.plan.layout.gpus)
        larger = [r for r in members if r.plan.layout.gpus > first.plan.layout.gpus]
        if larger:
            pairs.append((first, larger))
    return pairs
