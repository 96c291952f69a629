"""Fit the rates of operations on a GPU to what `popular.py` measured there, and print how well each model is told.

    python -m tests.bench.gpu.rates h100 [--write | --predict]

Traces the same operations and training steps on this machine (PyTorch, transformers and torchvision, no GPU), joins
them with `tests/data/NAME/popular_*`, and prints for each step the error of the fit to all, and of the fit without
its family. `--write` writes `calibrate/trace/measured/NAME.yaml`; `--predict` prints what the rates there say of steps
that none of this was fitted to, as lines for `tests/data/popular_predicted.csv`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.calibrate.trace.pretend import pretending
from equipoise.calibrate.trace.rates import FOLDER, HostRates, OperationRates, rates_of, write_rates
from equipoise.calibrate.trace.record import StepRecorder, StepTrace, record
from equipoise.calibrate.trace.step import step_times
from equipoise.calibrate.trace.work import TracedOperation
from tests.bench.gpu import popular
from tests.bench.gpu.fit_rates import LAUNCH_S, TimedWork, fit_host, fit_kinds, fit_products

Key = tuple[str, int, int, int]
SINGLE = 0.3
"""Weight of an operation by itself: there are many, and repeated ones find their inputs in the cache."""
DATA = Path(__file__).parents[2] / "data"
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("product", ("mm", "addmm", "bmm", "baddbmm")),
    ("optimiser", ("_fused_adamw_", "_fused_sgd_")),
    ("copy", ("copy_", "fill_", "zero_")),
    ("scatter", ("index_put_", "_index_put_impl_", "scatter", "index_add_", "scatter_add_")),
    ("gather", ("index", "gather", "index_select")),
    ("reduction", ("sum", "mean", "max", "min", "amax", "any", "all", "cumsum", "norm")),
    ("concatenation", ("cat",)),
    ("sort", ("sort", "topk", "histc")),
    ("embedding", ("embedding_dense_backward",)),
)
PARTS = ("convolution", "attention", "batch_norm", "layer_norm", "softmax", "pool", "dropout", "conv_depthwise")


def group_of(name: str) -> str:
    """The group of an operation of the profiler; groups are what both sides can tell apart."""
    for group, names in GROUPS:
        if name in names:
            return group
    back = " backward" if "backward" in name else ""
    for part in PARTS:
        if part in name:
            return ("convolution" if part == "conv_depthwise" else part) + back
    return "elementwise"


def our_group(kind: str) -> str:
    """The group of a kind of operation."""
    for group, start in (("copy", "fill"), ("embedding", "embedding"), *((g, g) for g, _ in GROUPS)):
        if kind.startswith(start):
            return group
    return group_of(kind)


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


def key_of(row: Mapping[str, str]) -> Key:
    return row["model"], int(row["batch"]), int(row["length"]), int(row["checkpointing"])


def family(name: str) -> str:
    return name.split("-")[0].rstrip("0123456789").replace("resnext", "resnet").split("_")[0]


def single_operations(gpu: str) -> list[TimedWork]:
    """Rows of single operations: traced, with their measured seconds."""
    traced: dict[tuple[str, ...], list[TracedOperation]] = {}
    cases = (
        popular.language_cases,
        popular.attention_cases,
        popular.expert_cases,
        popular.vision_cases,
        popular.optimiser_cases,
    )
    with pretending(), StepRecorder() as recorder:
        for one in cases:
            for kind, shape, dtype, make in one():
                try:
                    forward, inputs = make()
                    recorder.operations.clear()
                    with torch.no_grad():
                        forward()
                except (RuntimeError, AssertionError) as error:
                    print(f"{kind} {shape}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                traced[kind, shape, dtype, "forward"] = list(recorder.operations)
                wants = [x for x in inputs if x.requires_grad]
                if wants:
                    recorder.operations.clear()
                    out = forward()
                    torch.autograd.grad(out, wants, torch.ones_like(out))
                    traced[kind, shape, dtype, "forward and backward"] = list(recorder.operations)
    found = []
    for row in rows_of(DATA / gpu / "popular_operations.csv.gz"):
        key = row["kind"], row["shape"], row["dtype"], row["pass"]
        if key in traced:
            found.append(TimedWork("single", traced[key], float(row["device_s"]), SINGLE))
    return found


def traced_steps(steps: Sequence[tuple[str, int, int, bool, Any]]) -> dict[Key, StepTrace]:
    """Traces of steps; one that cannot be traced is left out, with a line."""
    found = {}
    for name, batch, length, checkpointing, make in steps:
        try:
            found[name, batch, length, int(checkpointing)] = record(lambda _, make=make: make(), batch)
            print(f"traced {name} {batch}", file=sys.stderr, flush=True)
        except Exception as error:
            print(f"{name} {batch}: {str(error).splitlines()[0]}", file=sys.stderr)
    return found


def print_predicted(gpu: str) -> None:
    """Steps and peaks of `popular.UNSEEN_STEPS` on a GPU, by its rates, as CSV."""
    rates = rates_of(gpu)
    for key, trace in traced_steps(popular.UNSEEN_STEPS).items():
        step_s = step_times(trace.operations, rates).step_s
        print(gpu, *key, f"{step_s:.6g}", f"{rates.error:.3g}", trace.peak_bytes, trace.reserved_bytes, sep=",")


def joined(
    gpu: str, traces: Mapping[Key, StepTrace]
) -> tuple[dict[Key, list[TimedWork]], list[tuple[int, int, int, float]]]:
    """Rows of each step by group of operations, and products (m, n, k, seconds)."""
    inside: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    products: dict[tuple[int, int, int], float] = {}
    for row in rows_of(DATA / gpu / "popular_inside.csv.gz"):
        if not row["operation"].startswith("aten::"):
            continue
        name, seconds = row["operation"][6:], float(row["device_s"])
        inside[key_of(row)][group_of(name)] += seconds
        pair = [s for s in json.loads(row["inputs"]) if len(s) == 2] if name in ("mm", "addmm") else []
        if len(pair) == 2 and seconds > 0.0 and not row["model"].startswith("mixtral"):  # its experts' are in 32 bits
            shape = pair[0][0], pair[1][1], pair[0][1]
            products[shape] = max(products.get(shape, 0.0), seconds / int(row["calls"]))
    rows = {}
    for key, trace in traces.items():
        by_group: dict[str, list[TracedOperation]] = defaultdict(list)
        for one in trace.operations:
            if one.kind:
                by_group[our_group(one.kind)].append(one)
        label = family(key[0])
        rows[key] = [TimedWork(label, ops, inside[key][g]) for g, ops in by_group.items() if inside[key][g] > 3e-5]
    return rows, [(m, n, k, s) for (m, n, k), s in products.items() if s > 3e-6]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpu")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--predict", action="store_true")
    given = parser.parse_args()
    if given.predict:
        print_predicted(given.gpu)
        return
    traces = traced_steps(popular.STEPS)
    single = single_operations(given.gpu)
    rows, products = joined(given.gpu, traces)
    measured = {key_of(row): row for row in rows_of(DATA / given.gpu / "popular_steps.csv")}
    steps = {key: float(row["step_s"]) for key, row in measured.items()}

    def fitted(without: str | None) -> OperationRates:
        used = [r for found in rows.values() for r in found if r.label != without] + single
        product = fit_products(products)
        rates = OperationRates(
            given.gpu, LAUNCH_S, product, fit_kinds(used, product), HostRates(3e-5, 1e-5, 5e-6), 0.0, ""
        )
        whole = [
            TimedWork("", traces[key].operations, math.sqrt(s * float(measured[key]["step_queued_s"])))
            for key, s in steps.items()
            if family(key[0]) != without
        ]
        return replace(rates, host=fit_host(whole, rates))

    everything, errors, known = fitted(None), list[list[float]](), list[float]()
    print(f"{'step':28} {'measured':>9} {'fit':>7} {'left out':>9} {'GPU left out':>13} {'peak':>7} {'reserved':>9}")
    without = {name: fitted(name) for name in {family(key[0]) for key in traces}}
    for key, trace in traces.items():
        all_in, out = (step_times(trace.operations, r) for r in (everything, without[family(key[0])]))
        gpu_s = sum(row.seconds for row in rows[key])
        if not without[family(key[0])].unmeasured(trace.operations):
            known.append(abs(out.step_s / steps[key] - 1))
        errors.append([all_in.step_s / steps[key] - 1, out.step_s / steps[key] - 1, out.gpu_s / gpu_s - 1])
        peaks = [
            trace.peak_bytes / float(measured[key]["peak_allocated_bytes"]) - 1,
            trace.reserved_bytes / float(measured[key]["peak_reserved_bytes"]) - 1,
        ]
        texts = [f"{100 * e:+.1f} %" for e in (*errors[-1], *peaks)]
        print(
            f"{key[0] + ' ' + str(key[1]):28} {1e3 * steps[key]:6.1f} ms {texts[0]:>7} {texts[1]:>9} {texts[2]:>13} "
            f"{texts[3]:>7} {texts[4]:>9}",
            all_in.limit,
        )
    size = np.abs(errors)
    print(
        "median", np.round(100 * np.median(size, axis=0), 1), "90 %", np.round(100 * np.quantile(size, 0.9, axis=0), 1)
    )
    print("host", everything.host, everything.product)
    if given.write:
        rates = replace(
            everything,
            error=float(np.quantile(known, 0.9)),
            origin=f"{len(single)} operations, {len(steps)} steps measured on one; error: of families left out",
        )
        write_rates(rates, FOLDER / f"{given.gpu}.yaml")


if __name__ == "__main__":
    main()
