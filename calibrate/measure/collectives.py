"""How long an all-reduce (and its relatives) takes over message sizes, between real processes.

PyTorch's NCCL between GPUs, its gloo between processes of a CPU. Where PyTorch is missing, a ring over shared
memory stands in on a CPU and is labelled as what it is: it measures this machine's memory and scheduler, not
a network library.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from equipoise.base.sources import environment as own_environment
from equipoise.calibrate.measure.collective_worker import SLOT_BYTES
from equipoise.calibrate.measure.measure import Measure, MeasureMissingError, Outcome, Series
from equipoise.calibrate.measure.training import SIZES, WORKLOADS
from equipoise.calibrate.samples import Scalar

KIB, MIB = 2**10, 2**20
QUICK_SIZES = tuple(4 * KIB * 8**k for k in range(5))  # 4 KiB to 16 MiB
FULL_SIZES = tuple(KIB * 2**k for k in range(18))  # 1 KiB to 128 MiB
NCCL_EXTRA = (256 * MIB, 512 * MIB)
KINDS = ("all_reduce", "all_gather", "reduce_scatter")


def has_torch() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


class WorkerProcesses:
    """Worker processes of one backend that live as long as the session, started on first use."""

    def __init__(self, backend: str, ranks: int) -> None:
        self.backend, self.ranks = backend, ranks
        self._processes: list[subprocess.Popen[str]] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="equipoise-")
        environment = {**own_environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for rank in range(self.ranks):
            command = [sys.executable, "-m", "equipoise.calibrate.measure.collective_worker", self.backend]
            command += [str(rank), str(self.ranks), str(Path(self._folder.name) / "meeting")]
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )

    def times(self, what: Mapping[str, Scalar], budget_s: float) -> tuple[float, ...]:
        """Seconds of each call, the slowest rank's; `what` is for `prepared` or `overlapped` of the worker's rank.

        Raises MissingError when a worker died.
        """
        if not self._processes:
            self._start()
        request = json.dumps({"what": dict(what), "budget_s": budget_s})
        answers = []
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(request + "\n")
                process.stdin.flush()
            for process in self._processes:
                assert process.stdout is not None
                answers.append(json.loads(process.stdout.readline()))
        except (BrokenPipeError, ValueError):
            raise MeasureMissingError(f"{self.backend} between {self.ranks} processes: {self._last_words()}") from None
        return tuple(max(times) for times in zip(*answers, strict=True))

    def overlap(self, what: Mapping[str, Scalar], budget_s: float) -> Outcome:
        """Columns step_s, exchange_s and together_s of a training step on every rank."""
        columns = np.array(self.times(what, budget_s)).reshape(-1, 3).T
        return Series(dict(zip(("step_s", "exchange_s", "together_s"), columns.tolist(), strict=True)))

    def _last_words(self) -> str:
        for process in self._processes:
            process.kill()
        lines = [
            line for process in self._processes for line in (process.communicate()[1] or "").strip().splitlines()[-1:]
        ]
        self._processes = []
        return lines[0] if lines else "a worker died"

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()  # the end of its input ends a worker
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._processes = []
        if self._folder is not None:
            self._folder.cleanup()


def collective_measures(groups: list[WorkerProcesses], quick: bool) -> list[Measure]:
    """Collectives over sizes in each group; all-reduce only when quick."""
    found = []
    for group in groups:
        sizes = QUICK_SIZES if quick else FULL_SIZES + (NCCL_EXTRA if group.backend == "nccl" else ())
        if group.backend == "shared memory":
            sizes = tuple(size for size in sizes if size <= SLOT_BYTES)
        kinds = KINDS if not quick and group.backend != "shared memory" else KINDS[:1]
        found += [
            Measure(
                "collective",
                {"collective": kind, "backend": group.backend, "ranks": group.ranks, "bytes": size},
                partial(group.times, {"collective": kind, "size_bytes": size}),
                weight=0.5,
            )
            for kind in kinds
            for size in sizes
        ]
    return found


def overlap_measures(groups: list[WorkerProcesses], quick: bool) -> list[Measure]:
    """Training steps with and without their exchange on the largest group, over batch sizes."""
    found: list[Measure] = []
    for group in groups[-1:] if has_torch() else []:
        device, precision = ("cuda", "bf16") if group.backend == "nccl" else ("cpu", "fp32")
        for workload, batch in product(WORKLOADS, SIZES[device, quick].batches[::2]):
            what: dict[str, Scalar] = {"workload": workload, "precision": precision, "batch": batch}
            run = partial(group.overlap, {**what, "quick": quick})
            found.append(Measure("overlap", {**what, "backend": group.backend, "ranks": group.ranks}, run))
    return found


@contextmanager
def open_groups(device: str, gpus: int) -> Iterator[list[WorkerProcesses]]:
    """The groups that make sense here: NCCL over 2, 4, ... and all GPUs; on a CPU two processes (and four).

    More processes than cores would measure the scheduler. Workers are ended when the block is left.
    """
    if device == "cuda":
        counts = sorted({n for n in (2, 4, 8, gpus) if 2 <= n <= gpus}) if has_torch() else []
        groups = [WorkerProcesses("nccl", n) for n in counts]
    else:
        backend = "gloo" if has_torch() else "shared memory"
        groups = [WorkerProcesses(backend, n) for n in (2, 4) if n <= max(len(os.sched_getaffinity(0)), 2)]
    try:
        yield groups
    finally:
        for group in groups:
            group.close()
