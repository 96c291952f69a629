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

from equipoise.calibrate.fit.fits import fit_share_curve
from equipoise.calibrate.measure.measure import MissingError
from equipoise.calibrate.samples import SampleSet

CONTROL = "nvidia-cuda-mps-control"
ROOT = Path(__file__).resolve().parents[3]
PERCENTAGES = (25, 50, 75, 100)
HELD_OUT = 50
TIMEOUT_S = 90.0


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """An MPS daemon of our own; its environment for clients. Raises MissingError, one line."""
    program = shutil.which(CONTROL)
    if program is None:
        raise MissingError(f"{CONTROL} is not on this machine")
    with tempfile.TemporaryDirectory(prefix="equipoise-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **own}
        # Into a file: the daemon keeps what it inherits, so a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile("w+") as said:
            begun = subprocess.run([program, "-d"], env=environment, stdout=said, stderr=said, timeout=20)
            said.seek(0)
            message = said.read()
        if begun.returncode != 0:
            raise MissingError(f"{CONTROL} does not start: {_last_line(message)}")
        try:
            yield environment
        finally:
            subprocess.run(
                [program], input="quit\n", env=environment, capture_output=True, text=True, timeout=30
            )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def _start(
    environment: dict[str, str], percentage: int, device: str, seconds: float, *more: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.gpu.training", "step", "--device", device]
    command += ["--seconds", str(seconds), *more]
    own = {**environment, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=own, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def _result(process: subprocess.Popen[str]) -> float:
    """Median seconds of a step. Raises MissingError when the worker failed."""
    out, errors = process.communicate(timeout=TIMEOUT_S)
    if process.returncode != 0:
        raise MissingError(f"a training process ended: {_last_line(errors)}")
    return float(statistics.median(json.loads(out.splitlines()[-1])["steps_s"]))


def alone(environment: dict[str, str], percentage: int, device: str, seconds: float) -> float:
    """Median seconds of a step with a percentage of the SMs and nobody else."""
    return _result(_start(environment, percentage, device, seconds))


def together(environment: dict[str, str], percentage: int, device: str, seconds: float) -> list[float]:
    """Median seconds of a step of two trainings, each with the percentage, that begin at once."""
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        go = Path(folder) / "go"
        pair = [_start(environment, percentage, device, seconds, "--wait-for", str(go)) for _ in range(2)]
        try:
            for process in pair:
                assert process.stdout is not None
                process.stdout.readline()  # "ready", or nothing when it died
            go.touch()
            return [_result(process) for process in pair]
        finally:
            for process in pair:
                if process.poll() is None:
                    process.kill()
                    process.wait()


def measure_training(environment: dict[str, str], device: str, seconds: float) -> dict[str, Any]:
    """Steps by percentage, two at 50 % together, and what the other percentages predict for 50 %."""
    start = time.monotonic()
    steps = {p: alone(environment, p, device, seconds) for p in PERCENTAGES}
    others = [p for p in PERCENTAGES if p != HELD_OUT]
    fit = fit_share_curve([p / 100.0 for p in others], [1.0 / steps[p] for p in others])
    predicted = 1.0 / (fit.full_rate * float(fit.predict(HELD_OUT / 100.0)))
    return {
        "step_s": {str(p): s for p, s in steps.items()},
        "kappa": fit.kappa.value,
        "predicted_half_s": predicted,
        "together_s": together(environment, HELD_OUT, device, seconds),
        "took_s": time.monotonic() - start,
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
