"""Published training runs, peaks of memory, and FSDP on ordinary networks, by the shipped constants.

Nothing is fitted to these rows: the interval of a step is that of runs of other models of its group, of a peak that of
layouts that no stack was measured on. Naive: the share of the peak rate that other models reach in the median; of a
peak 16 bytes a parameter over all GPUs.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from equipoise.sim.llm.certainty import CALIBRATED, FEWEST, GENERATIONS, PublishedRun, gpu_name, spread_of, widest
from equipoise.sim.llm.memory_stack import GENERAL
from equipoise.sim.llm.published import SHAPES
from equipoise.sim.scenario.tree import InputError
from equipoise.study.questions.fits import Fits, fits
from equipoise.study.validation.rows import Cells, read_csv, read_rows
from equipoise.study.validation.score import Line, Score, judge, line, of_splits
from equipoise.study.validation.splits import bucket

FILE = "throughput/published_runs.csv"
PEAKS = "throughput/peak_memory_public.csv"
NETWORKS = "throughput/fsdp_on_ordinary_networks.csv"
LLM = "throughput/llm_training_throughput.csv"
WANTED = {"dense, A100 and H100": 0.06}
OTHERS = 0.12
GIB = 2**30


@dataclass(frozen=True)
class PublishedRow:
    """A row: its key, model, group, GPU, the measured value and what `fit` predicts."""

    key: str
    model: str
    group: tuple[str, str]
    gpu: str
    measured: float
    found: Fits

    @property
    def run(self) -> PublishedRun:
        """The row as a run whose ratio intervals are made from."""
        gpus, ratio = self.found.plan.layout.gpus, self.measured / self.step_s
        return PublishedRun(self.key, self.model, self.group[0], self.gpu, gpus, self.measured, ratio, "")

    @property
    def step_s(self) -> float:
        """The predicted step [s]."""
        return self.found.step_s

    @property
    def share(self) -> float:
        """Of the peak rate, as measured."""
        return self.found.utilisation * self.step_s / self.measured


def _fit(
    model: Mapping[str, Any], accelerator: str, gpus: int, nic: str, batch: int, precision: str, **node: object
) -> Fits:
    """What `fit` says of one job. Raises ValueError where no scenario can be made of it."""
    each = int(str(node.pop("each", 8)))
    group = {"count": max(1, gpus // each), "gpus": min(each, gpus), "accelerator": accelerator, "nic": nic, **node}
    job = {"name": "j", "model": "m", "gpus": gpus, "global_batch": batch, "steps": 1}
    models = {"m": {"precision": precision, "transformer": dict(model)}}
    tree = {"schema_version": 1, "name": "row", "cluster": {"nodes": [group]}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "row.yaml")
        path.write_text(yaml.safe_dump({**tree, "workload": {"models": models, "jobs": [job]}}))
        try:
            (found,) = fits(path)
        except InputError as error:
            raise ValueError(error.lines[0].rpartition(": ")[2]) from None
    return found


def _layout(text: str) -> dict[str, Any]:
    given = json.loads(text)
    if "recompute" in given:
        given["recompute"] = str(given["recompute"]).partition(",")[0]
    return {"layout": given}


def _of(key: str, model: object, accelerator: str, measured: float, found: Fits) -> PublishedRow:
    gpu = gpu_name(accelerator)
    kind = "experts" if found.plan.shape.experts else "dense"
    return PublishedRow(key, str(model), (kind, GENERATIONS.get(gpu, "")), gpu, measured, found)


def _run(row: Cells) -> PublishedRow | None:
    if "not published" in row["note"]:
        return None
    gpus, shape = row.whole("gpus"), json.loads(row["shape"])
    nics = re.match(r"(\d+)x (\d+) Gbit/s", row["nic"])
    if nics is None:
        raise ValueError(f"nic: {row['nic']!r} is not such as 8x 400 Gbit/s")
    more = {"fabric": row["fabric"]} if row["fabric"] else {}
    plan = _layout(row["layout"]) if row["layout"] else {"plan": "auto"}
    model = {**shape, "stack": row["stack_tried"], **plan}
    nic, batch = f"{int(nics[1]) * int(nics[2])} Gbit/s", row.whole("sequences_per_step")
    each = row.whole("gpus_per_node")
    found = _fit(model, row["accelerator"], gpus, nic, batch, row["precision"], each=min(each, gpus), **more)
    return _of(row["run"], (shape["hidden"], shape["layers"]), row["accelerator"], row.measured("step_s"), found)


def _network(row: Cells) -> PublishedRow:
    shape: dict[str, Any] = {"config": row["model"]}
    if row["model"] not in SHAPES:
        sizes = re.match(r"34B \((\d+) x (\d+); (\d+) heads; (\d+) kv; ffn (\d+)\)", row["model"])
        if sizes is None:
            raise ValueError(f"model: {row['model']} has no shape here")
        names = ("layers", "hidden", "heads", "kv_heads", "ffn")
        shape = {**dict(zip(names, map(int, sizes.groups()), strict=True)), "vocab": 32_000, "gated": True}
    every = {"every other block": ("full", 2), "full": ("full", 1), "none": ("none", 1)}
    recompute, n = every[row["recompute"]]
    gpus, micro, gpu = row.whole("gpus"), row.whole("micro_batch"), gpu_name(row["accelerator"])
    software = "eager" if "torchtitan" in row["source"] else "compiled"
    layout = {"zero": 3, "micro_batch": micro, "recompute": recompute, "recompute_every": n}
    model = {**shape, "sequence": row.whole("sequence"), "stack": f"fsdp-{software}/{gpu}", "layout": layout}
    nic = " ".join(row["network_a_node"].split()[:2])
    measured = micro * row.whole("sequence") / row.measured("tokens_per_s_per_gpu")
    found = _fit(model, row["accelerator"], gpus, nic, gpus * micro, "bf16")
    return _of(f"{row['model']} on {gpus}", row["model"], row["accelerator"], measured, found)


def _peak(row: Cells) -> PublishedRow:
    if row["model"] not in SHAPES and not row["model"].startswith("{"):
        raise ValueError(f"model: {row['model']} has no shape here")
    shape = {"config": row["model"]} if row["model"] in SHAPES else {**json.loads(row["model"]), "gated": True}
    layout = _layout(row["layout"])["layout"]
    gpus, half = row.whole("gpus"), row["precision"].startswith("bf16 ")  # weights and moments in 16 bits
    stack = {"litgpt": "pytorch/H200"}.get(row["software"])
    stack = stack or f"fsdp-{'compiled' if 'compiled' in row['software'] else 'eager'}/H100"
    model = {**shape, "sequence": row.whole("sequence"), "stack": stack, "layout": layout}
    model |= {"optimizer": "adam-16bit"} if half else {}
    accelerator = row["accelerator"].split()[0]
    precision = row["precision"].split()[0]
    found = _fit(model, accelerator, gpus, "400 Gbit/s", row.whole("global_batch"), precision, nics=8)
    return _of(row["case"], row["model"], accelerator, GIB * row.measured("peak_GiB"), found)


_RECIPES = {
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b",
    "DeepSeekV3": "DeepSeek-V3",
    "GPT OSS 120B": "GPT-OSS 120B",
    "Qwen3_30B_a3B": "Qwen3-30B",
    "Qwen3_235B_a22B": "Qwen3-235B",
}
"""Names of models in NVIDIA's recipes: a shape's, or with what the runs of `FILE` begin whose shape it is."""
NEW_RELEASE, SINKS = "26.06", "GPT-OSS 120B"
"""From when on all-to-alls in a rack are hidden, and the model whose learned sinks had no fused kernel before."""


def _recipe(row: Cells, shapes: Mapping[str, Any]) -> tuple[str, PublishedRow] | None:
    """Group and row of a recipe of NVIDIA Megatron-Bridge; None for what is not one of pre-training."""
    if row["source_repo"] != "NVIDIA-NeMo+Megatron-Bridge" or "Pre-Training" not in row["heading"]:
        return None
    if row["model"] not in _RECIPES:
        raise ValueError("model: not named, or without a shape here")
    gpu, release, name = row["gpu"].removeprefix("DGX-"), row["heading"].partition(" ")[0], _RECIPES[row["model"]]
    gpus, batch, sequence = (row.whole(key) for key in ("num_gpus", "gbs", "seq_len"))
    rack = {"fabric": "900 GB/s"} if gpu.startswith("GB") else {}
    each = min(64 if rack else 8, gpus)
    columns = {"tp": "tp", "pp": "pp", "cp": "cp", "vp": "virtual", "ep": "ep"}
    layout = {key: row.whole(column) for column, key in columns.items() if row[column]}
    new = release >= NEW_RELEASE
    layout |= {"overlap_experts": new and bool(rack), "fused_attention": new or name != SINKS}
    layout |= {"zero": 3 if re.search("fsdp=[1-9]", row["notes"]) else 1, "micro_batch": row.whole("mbs")}
    shape = {"config": name} if name in SHAPES else shapes[name]
    model = {**shape, "sequence": sequence, "stack": "megatron-core/H100", "layout": layout}
    found = _fit(model, gpu.lower(), gpus, f"{400 * each} Gbit/s", batch, row["precision"].lower(), each=each, **rack)
    measured = batch * sequence / (row.measured("tokens_per_s_per_gpu") * gpus)
    key, sizes = f"{row['model']} {row['precision']} on {gpus} {gpu}, {release}", found.plan.shape
    made = _of(key, (sizes.hidden, sizes.layers), gpu, measured, found)
    return f"{made.group[0]}, releases {'from' if new else 'before'} {NEW_RELEASE}", made


def run_recipes(data: Path) -> list[Line]:
    """Steps of NVIDIA's recipes on Blackwell, by kind and release; intervals are those of published runs.

    Then, for each kind, steps when one of the same model, GPU and precision was measured, which scales the others.
    """
    known = [(row["run"], row["shape"]) for row in read_csv(data / FILE)]
    shapes: dict[str, Any] = {
        name: next((json.loads(s) for run, s in known if run.startswith(name)), {}) for name in _RECIPES.values()
    }
    groups = defaultdict[str, list[PublishedRow]](list)
    for group, row in read_rows(data / LLM, lambda row: _recipe(row, shapes)):
        groups[group].append(row)
    others = read_rows(data / FILE, _run)
    lines = [line(f"Blackwell, {name}: step", OTHERS, [_steps(groups[name], others)]) for name in sorted(groups)]
    for kind in ("dense", "experts"):
        rows = [row for name in sorted(groups) for row in groups[name] if row.group[0] == kind]
        if len({row.model for row in rows}) > 1:
            what = f"Blackwell, {kind}: one measured step -> other layouts and releases"
            lines.append(line(what, 0.04, of_splits(partial(_by_one_step, rows))))
    return lines


def _by_one_step(rows: Sequence[PublishedRow], split: int) -> Score:
    """The score of scaling by one step of each model, GPU and precision, chosen by a hash; naive: its time a sample.

    The interval is the shipped one, which these rows gave.
    """
    alike = defaultdict[tuple[str, str, str], list[PublishedRow]](list)
    for row in rows:
        alike[str(row.model), row.gpu, row.found.plan.layout.precision].append(row)
    asked, factors, naive = list[PublishedRow](), list[float](), list[float]()
    for members in alike.values():
        known = min(members, key=lambda row: bucket(row.key, split, 2**32))
        for row in members:
            if row is not known:
                asked.append(row)
                factors.append(known.measured / known.step_s)
                naive.append(known.measured * _sequences(row) / _sequences(known))
    predicted, measured = np.array([r.step_s for r in asked]) * factors, np.array([r.measured for r in asked])
    return judge([row.key for row in asked], predicted, np.array(naive), measured, CALIBRATED[rows[0].group].interval())


def _sequences(row: PublishedRow) -> float:
    return row.found.plan.layout.global_batch / row.found.plan.layout.gpus


def _steps(rows: Sequence[PublishedRow], others: Sequence[PublishedRow]) -> Score:
    """The score of steps; intervals and the naive share of the peak rate are those of other models in `others`."""
    low, high, naive = list[float](), list[float](), list[float]()
    for row in rows:
        rest = [other for other in others if other.model != row.model]
        alike = [other.run for other in rest if other.group == row.group]
        spread = spread_of([o.run for o in rest], row.group) if len({r.family for r in alike}) >= FEWEST else widest()
        ends = spread.interval()
        low, high = [*low, ends[0]], [*high, ends[1]]
        usual = float(np.median([other.share for other in rest] or [row.share]))
        naive.append(row.measured * row.share / usual)
    predicted, measured = np.array([r.step_s for r in rows]), np.array([r.measured for r in rows])
    keys = [row.key for row in rows]
    return judge(keys, predicted, np.array(naive), measured, (np.array(low), np.array(high)))


def run(data: Path) -> list[Line]:
    """Steps of published runs, by group. Raises FileNotFoundError, ValueError."""
    rows = read_rows(data / FILE, _run)
    found = []
    for group in sorted({row.group for row in rows}):
        name = ", ".join(group)
        mine = [row for row in rows if row.group == group]
        found.append(line(f"published runs, {name}: step", WANTED.get(name, OTHERS), [_steps(mine, rows)]))
    return found


def run_networks(data: Path) -> list[Line]:
    """FSDP on ordinary networks; intervals are those of published runs, where their file is there."""
    rows = read_rows(data / NETWORKS, _network)
    known = read_rows(data / FILE, _run) if (data / FILE).exists() else rows
    return [line("FSDP, 400 Gbit/s a node: step", 0.10, [_steps(rows, known)])]


def run_peaks(data: Path) -> list[Line]:
    """Peaks of software whose memory was counted and not fitted."""
    rows = read_rows(data / PEAKS, _peak)
    return [line("torchtitan, litgpt: peak memory", 0.08, [_peaks(rows)])]


def _peaks(rows: Sequence[PublishedRow]) -> Score:
    plans = [row.found.plan for row in rows]
    naive = np.array([16.0 * plan.shape.parameters / plan.layout.gpus for plan in plans])
    predicted = np.array([row.found.memory.peak for row in rows])
    measured = np.array([row.measured for row in rows])
    return judge([row.key for row in rows], predicted, naive, measured, GENERAL[1])
