"""Training on a share of a GPU, and two trainings beside each other, through MPS: predicted and measured."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise import run
from equipoise.calibrate.fit.fits import fit_share_curve
from equipoise.calibrate.measure.measure import MeasureMissingError
from equipoise.calibrate.samples import SampleSet
from equipoise.policies.record.journal import read
from tests.bench.gpu.training import KINDS

CONTROL = "nvidia-cuda-mps-control"
ROOT = Path(__file__).resolve().parents[3]
PERCENTAGES = (30, 50, 70, 100)
PAIRS = ((50, 50), (30, 70), (70, 30), (100, 100))
"""Of the first and the second kind; without a limit both may use all of it."""
HELD_OUT = 50
TIMEOUT_S = 90.0


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """An MPS daemon of our own; its environment for clients. Raises MissingError, one line."""
    program = shutil.which(CONTROL)
    if program is None:
        raise MeasureMissingError(f"{CONTROL} is not on this machine")
    with tempfile.TemporaryDirectory(prefix="equipoise-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **own}
        # Into a file: the daemon keeps what it inherits, so a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile("w+") as said:
            begun = subprocess.run([program, "-d"], env=environment, stdout=said, stderr=said, timeout=20)
            said.seek(0)
            message = said.read()
        if begun.returncode != 0:
            raise MeasureMissingError(f"{CONTROL} does not start: {_last_line(message)}")
        try:
            yield environment
        finally:
            subprocess.run([program], input="quit\n", env=environment, capture_output=True, text=True, timeout=30)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


class Worker:
    """A training in a process of its own, on a percentage of the multiprocessors."""

    def __init__(self, environment: dict[str, str], percentage: int, kind: str, device: str) -> None:
        command = [sys.executable, "-m", "tests.bench.gpu.training", "serve", "--device", device, "--kind", kind]
        own = {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
        pipe = subprocess.PIPE
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 # as long as the process; closed by `close`
        self._process = subprocess.Popen(
            command, env=own, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )

    def ready(self) -> None:
        """Wait until it has prepared its training. Raises MissingError, one line, when it ended instead."""
        self._line()

    def ask(self, seconds: float) -> None:
        """Let it train for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def answer(self) -> list[float]:
        """Seconds of every step of the training last asked for. Raises MissingError."""
        return [float(s) for s in json.loads(self._line())["steps_s"]]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(timeout=TIMEOUT_S)
            self._errors.seek(0)
            raise MeasureMissingError(f"a training process ended: {_last_line(self._errors.read())}")
        return line

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()


def measure_training(environment: dict[str, str], device: str, seconds: float) -> dict[str, Any]:
    """Seconds of the steps of two kinds of training, alone by percentage of the GPU, and in pairs.

    `alone` by kind and percentage; `together` by the first kind's percentage, the second having PAIRS' other one.
    """
    start = time.monotonic()
    workers = {
        (kind, percentage): Worker(environment, percentage, kind, device)
        for percentage in PERCENTAGES
        for kind in KINDS
    }
    try:
        for worker in workers.values():
            worker.ready()
        alone: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
        for (kind, percentage), worker in workers.items():
            worker.ask(seconds)
            alone[kind][str(percentage)] = worker.answer()
        together = {
            "/".join(map(str, pair)): _together([workers[key] for key in zip(KINDS, pair, strict=True)], seconds)
            for pair in PAIRS
        }
        chosen = s3_percentages({"alone": alone, "together": together})
        for key in zip(KINDS, chosen, strict=True):
            if key not in workers:
                workers[key] = Worker(environment, key[1], key[0], device)
                workers[key].ready()
        both = [workers[key] for key in zip(KINDS, chosen, strict=True)]
        together["/".join(map(str, chosen))] = _together(both, seconds)
    finally:
        for worker in workers.values():
            worker.close()
    took_s = time.monotonic() - start
    return {"alone": alone, "together": together, "s3": "/".join(map(str, chosen)), "took_s": took_s}


def _together(workers: list[Worker], seconds: float) -> list[list[float]]:
    for worker in workers:
        worker.ask(2.0 * seconds)
    return [worker.answer() for worker in workers]


def s3_percentages(found: dict[str, Any]) -> tuple[int, ...]:
    """The parts of the GPU that S3 gives the two trainings, simulated with the curves that were measured."""
    models = {}
    for k, (kind, curve) in enumerate(curves(found["alone"]).items()):
        beside = statistics.median(found["together"]["50/50"][k]) / curve["measured_s"] - 1.0
        models[kind] = {
            "sample_time": curve["whole_s"],
            "parameters": 1e8,
            "share_kappa": max(curve["kappa"], 1e-3),
            "interference": max(beside, 0.0),
        }
    jobs = [
        {"name": kind, "gpus": 1, "gpu_share": 0.5, "model": kind, "steps": 1000, "global_batch": 1} for kind in models
    ]
    scenario = {
        "schema_version": 1,
        "name": "pair",
        "cluster": {"nodes": [{"count": 1, "gpus": 1}]},
        "workload": {"models": models, "jobs": jobs},
        "policy": ["s3"],
        "decide": {"every_steps": 20},
    }
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        run(scenario, out=folder, journal=True)
        held = [entry.decision.observation.workers.gpu_share for entry in read(Path(folder, "journal.jsonl"))]
    return tuple(round(100 * share) for share in [both for both in held if len(both) == 2][-1])


def curves(alone: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """By kind: seconds of a step on all of the GPU, kappa, the step on HELD_OUT % and that from the others."""
    found = {}
    for kind, by_percentage in alone.items():
        steps = {int(p): statistics.median(values) for p, values in by_percentage.items()}
        others = [p for p in steps if p != HELD_OUT]
        held_out = fit_share_curve([p / 100.0 for p in others], [1.0 / steps[p] for p in others])
        whole = fit_share_curve([p / 100.0 for p in steps], [1.0 / s for s in steps.values()])
        predicted = 1.0 / (held_out.full_rate * float(held_out.predict(HELD_OUT / 100.0)))
        found[kind] = {
            "whole_s": steps[100],
            "kappa": whole.kappa.value,
            "measured_s": steps[HELD_OUT],
            "predicted_s": predicted,
        }
    return found


def pair_goodput(found: dict[str, Any]) -> dict[str, list[float]]:
    """By pair of percentages: each training's steps per second over those it does alone on all of the GPU."""
    whole = [statistics.median(found["alone"][kind]["100"]) for kind in KINDS]
    return {
        pair: [w / statistics.median(steps) for w, steps in zip(whole, both, strict=True)]
        for pair, both in found["together"].items()
    }


def held_out_shares(samples: SampleSet) -> dict[str, list[dict[str, float]]]:
    """For each kernel every share between the least and all, predicted from the other shares."""
    found: dict[str, list[dict[str, float]]] = {}
    for kernel in samples.distinct("share", "kernel"):
        times: dict[float, list[float]] = {}
        for sample in samples.of("share", kernel=kernel):
            times.setdefault(float(sample["share"]), []).extend(sample.values)
        level = {share: statistics.median(values) for share, values in times.items()}
        rows = []
        for share in sorted(level)[1:-1]:
            others = [s for s in level if s != share]
            if len(others) < 2 or 1.0 not in others:
                continue
            fit = fit_share_curve(others, [1.0 / level[s] for s in others])
            predicted = 1.0 / (fit.full_rate * float(fit.predict(share)))
            rows.append({"share": share, "predicted_s": predicted, "measured_s": level[share]})
        found[str(kernel)] = rows
    return found
