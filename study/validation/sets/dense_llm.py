"""Dense LLM training, 266 measured steps of four sources (MosaicML, NVIDIA recipes, NeMo, Megatron-LM).

A row is used when its model is a dense one of `published_models`, its GPU an A100 or H100, and its layout is
printed; fine-tuning, experts and other GPUs are left out, and rows that two pages repeat count once. What a
source leaves unsaid is as in its public recipes: sequence parallelism with tensor parallelism, a sharded
optimiser (not Megatron-LM), virtual stages of `_VIRTUAL`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from equipoise.sim.llm.fit import fit
from equipoise.sim.llm.hardware import ACCELERATORS, NetworkRates
from equipoise.sim.llm.published import SHAPES, with_sequence
from equipoise.sim.llm.quantities import ShardingPlan
from equipoise.sim.llm.shape import Layout, Precision, Transformer
from equipoise.study.validation.predict import learn, predicted, score
from equipoise.study.validation.rows import Cells, Row, divided, labels, read_rows, seconds, stacked
from equipoise.study.validation.score import Line, Score, judge, line, of_splits, spread_of_others
from equipoise.study.validation.splits import fitted_half

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
    "bf16": "bf16",
    "amp_bf16": "bf16",
    "BF16": "bf16",
    "fp16": "fp16",
    "FP8": "fp8",
    "amp_fp8": "fp8",
    "FP8 (see README)": "fp8",
}
_VIRTUAL = {
    ("nemo", "gpt3-175b"): 12,
    ("nemo", "llama2-13b"): 10,
    ("nemo", "llama2-70b"): 20,
    ("nemo", "nemotron-22b"): 10,
    ("nemo", "llama3-70b"): 5,
    ("megatron", "gpt3-175b"): 3,
    ("megatron", "turing-530b"): 3,
}
_MICRO_BATCH = {("megatron", "megatron-22b"): 4}


def read(data: Path) -> list[Row]:
    """The usable rows of the file under `data`. Raises FileNotFoundError where it is absent."""
    found: dict[str, Row] = {}
    for row in read_rows(data / FILE, _row):
        found.setdefault(f"{row.key} {row.seconds:.6g}", row)
    return list(found.values())


def family_of(model: str) -> str:
    """The family that a source's name of a model means; "" for one that is not a known dense model."""
    for pattern, name in _FAMILIES:
        match = re.match(pattern, model.strip().lower())
        if match:
            return name.format(match.group(1))
    return ""


def _row(text: Cells) -> Row:
    family, stack = family_of(text["model"]), _SOURCES.get(text["source_repo"], "")
    for usable, what in (
        (family in SHAPES, "model: not a dense one of a shape that is known"),
        (stack, "source_repo: not one of the four sources"),
        (text["gpu"] in _GPUS, "gpu: not an A100 or H100"),
        ("finetuning" not in text["heading"], "heading: fine-tuning"),
        (text["precision"] in _PRECISIONS, "precision: not one that is known"),
        (stack == "fsdp" or text["tp"], "tp: no layout is printed"),
        (stack == "megatron" or text["mbs"], "mbs: no layout is printed"),
    ):
        if not usable:
            raise ValueError(what)
    shape = _shape(family, text)
    layout = _layout(family, stack, shape, text)
    accelerator, node_bytes_per_s = _GPUS[text["gpu"]]
    plan = ShardingPlan(shape, layout, ACCELERATORS[accelerator], NetworkRates(8, node_bytes_per_s))
    tokens = layout.global_batch * shape.sequence
    told = "step_s" if text["step_s"] else "tokens_per_s_per_gpu"
    seconds = text.measured(told) if text["step_s"] else tokens / (text.measured(told) * layout.gpus)
    configuration = _configuration(family, stack, plan)
    page = f"{configuration} {text['commit'][:8]}"
    return Row(plan, seconds, family, f"{configuration} {layout}", stack, page)


def _shape(family: str, text: Cells) -> Transformer:
    shape = SHAPES[family]
    layers = re.match(r"layers=(\d+)$", text["notes"])
    if layers:
        shape = replace(shape, layers=int(layers.group(1)))
    return with_sequence(shape, text.whole("seq_len")) if text["seq_len"] else shape


def _layout(family: str, stack: str, shape: Transformer, text: Cells) -> Layout:
    gpus = text.whole("num_gpus")
    if stack == "fsdp":
        return _fsdp_layout(gpus, text)
    t, p, c = text.whole("tp"), _whole(text, "pp", 1), _whole(text, "cp", 1)
    micro = _whole(text, "mbs", _MICRO_BATCH.get((stack, family), 1))
    data = gpus // (t * p * c)
    virtual = _whole(text, "vp", _VIRTUAL.get((stack, family), 1)) if p > 1 else 1
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


def _whole(text: Cells, name: str, unsaid: int) -> int:
    return text.whole(name) if text[name] else unsaid


def _global_batch(text: Cells, gpus: int, unit: int, sequence: int) -> int:
    """The printed batch, or the tokens of a step that the printed step and rate mean, in whole micro-batches."""
    if text["gbs"]:
        return text.whole("gbs")
    tokens = text.measured("tokens_per_s_per_gpu") * gpus * text.measured("step_s")
    return max(1, round(tokens / sequence / unit)) * unit


def _fsdp_layout(gpus: int, text: Cells) -> Layout:
    notes = dict(item.partition("=")[::2] for item in text["notes"].split(";"))
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}.get(notes.get("shard", ""))
    if zero is None:
        raise ValueError("notes: do not say how parameters are sharded")
    return Layout(
        data=gpus,
        zero=zero,
        recompute="full" if notes.get("act_ckpt") == "True" else "none",
        precision=_PRECISIONS[text["precision"]],
        micro_batch=text.whole("mbs"),
        global_batch=text.whole("gbs"),
    )


def _configuration(family: str, stack: str, plan: ShardingPlan) -> str:
    """Everything but the scale: the number of replicas and the batch that grows with it."""
    la, s = plan.layout, plan.shape
    model = (stack, plan.accelerator.name, family, s.layers, s.sequence, la.precision)
    parts = (*model, la.tensor, la.context, la.pipeline, la.virtual, la.zero, la.recompute, la.micro_batch)
    return " ".join(str(part) for part in parts)


def run(data: Path) -> list[Line]:
    """The lines of this data set: unseen families, those in fp8, and larger scales of a configuration."""
    rows = read(data)
    learned = lru_cache(maxsize=None)(lambda split: learn(divided(rows, split, fitted_half, "family")[0]))

    def half(split: int, *, fp8: bool) -> Score:
        known, asked = divided(rows, split, fitted_half, "family")
        chosen = [row for row in asked if not fp8 or row.plan.layout.precision == "fp8"]
        return score(known, chosen, learned=learned(split))

    halves, narrow = of_splits(partial(half, fp8=False)), of_splits(partial(half, fp8=True))
    return [
        line("dense LLM: half of the families -> the others", 0.05, halves),
        line("dense LLM in fp8: half of the families -> the others", 0.08, narrow),
        line("dense LLM: other sources, one step of a configuration -> its larger scales", 0.018, _scales(rows)),
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
    factors = spread_of_others(np.log(truth / guess), [r.family for r in kept])
    return [judge([r.key for r in kept], guess, np.array(naive), truth, factors)]


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
