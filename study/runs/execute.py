"""Runs of one scenario under several policies and seeds: one after the other, or in several processes.

Every run is a pure function of (scenario, policy, seed, trace), so neither the number of processes nor a
stop and a second start changes a result. With a folder, each run is kept in `POLICY/seed-N/`; one that is
complete there and has the same identity is read instead of computed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from equipoise.policies.registry import make_policy
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run, run_identity
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.read import Trace
from equipoise.study.runs.warm import warm, warming
from equipoise.study.signals import uninterrupted

Runner = Callable[..., Run]
Progress = Callable[[int, int, str], None]
"""Called as progress(runs done, runs in all, "POLICY seed N") when a run is done."""


@dataclass(frozen=True)
class Task:
    """One run to make."""

    policy: str
    seed: int

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.policy} seed {self.seed}"

    def folder(self, out: Path) -> Path:
        """Where the run is kept below `out`; names that are no file names get a hash."""
        name = re.sub(r"[^A-Za-z0-9+._=,()-]", "_", self.policy)
        if name != self.policy or name.startswith("."):
            name = f"{name[:60].lstrip('.')}-{hashlib.sha256(self.policy.encode()).hexdigest()[:8]}"
        return out / name / f"seed-{self.seed}"


@dataclass(frozen=True)
class Result:
    """What a comparison keeps of one run: its metrics, not its tables."""

    policy: str
    seed: int
    identity: str
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()
    totals: Mapping[str, float] = field(default_factory=dict)
    reused: bool = False

    def row(self) -> dict[str, Any]:
        """The result as plain data; whether it was reused is left out, so that it depends on inputs alone."""
        return {
            "policy": self.policy,
            "seed": self.seed,
            "identity": self.identity,
            "metrics": dict(self.metrics),
            "totals": dict(self.totals),
        }


@dataclass(frozen=True)
class Job:
    """What all runs share; sent to each process once."""

    scenario: Scenario
    trace: Trace | None
    out: Path | None
    runner: Runner = run
    timeline: bool = False
    journal: bool = False

    def identity(self, task: Task) -> str:
        """Hash of everything that the run's records depend on."""
        return run_identity(self.scenario, make_policy(task.policy), task.seed, self.trace)

    def make(self, task: Task) -> Result:
        """Read the run when it is there, else make it and keep it."""
        kept = None if self.out is None else self._read(task.folder(self.out), task)
        if kept is not None:
            return kept
        try:
            made = self.runner(
                self.scenario,
                policy=make_policy(task.policy),
                seed=task.seed,
                trace=self.trace,
                **self._more(task),
            )
        except RunFailed as failed:
            self._keep(task, failed.run)  # its records up to then, marked incomplete
            raise
        self._keep(task, made)
        return Result(task.policy, task.seed, made.identity, made.summary(), made.notes, dict(made.totals))

    def _read(self, folder: Path, task: Task) -> Result | None:
        """The run in `folder` when it is complete, with all that is to be kept."""
        missing = self.timeline and not (folder / "timeline" / "usage.parquet").is_file()
        missing |= self.journal and not (folder / "journal.jsonl").is_file()
        return None if missing else read_result(folder, self.identity(task))

    def _more(self, task: Task) -> dict[str, Any]:
        """Arguments for what else is to be kept."""
        more: dict[str, Any] = {"timeline": True} if self.timeline else {}
        if self.journal and self.out is not None:
            folder = task.folder(self.out)
            folder.mkdir(parents=True, exist_ok=True)
            more["journal"] = folder / "journal.jsonl"
        return more

    def _keep(self, task: Task, made: Run) -> None:
        if self.out is not None:
            made.write(task.folder(self.out), journal=self.journal)


def read_result(folder: Path, identity: str) -> Result | None:
    """The complete run of that identity in `folder`, or None when there is none."""
    try:
        row = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if row.pop("identity") != identity:
            return None
        policy, seed, totals, notes = (row.pop(key) for key in ("policy", "seed", "totals", "notes"))
        metrics = {name: math.nan if value is None else float(value) for name, value in row.items()}
        return Result(policy, seed, identity, metrics, tuple(notes), dict(totals), True)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or damaged: it is made again


@dataclass(frozen=True)
class Failure:
    """A run that failed; its records up to then are kept when the job has a folder."""

    task: Task
    error: RunFailed

    @property
    def line(self) -> str:
        """What failed and why, in one line."""
        return f"{self.task.label} failed: {' '.join(str(self.error).split())}"


def execute(
    job: Job, tasks: Sequence[Task], processes: int = 1, progress: Progress | None = None
) -> tuple[dict[Task, Result], list[Failure]]:
    """(results, failures) of all tasks, in the order of `tasks` whatever order they end in.

    A run that fails (RunFailed) does not keep the others from running; anything else is raised at once.
    """
    results: dict[Task, Result] = {}
    failures: dict[Task, Failure] = {}
    for task, made in _serial(job, tasks) if processes == 1 else _parallel(job, tasks, processes):
        if isinstance(made, RunFailed):
            failures[task] = Failure(task, made)
        else:
            results[task] = made
        if progress is not None:
            progress(len(results) + len(failures), len(tasks), task.label)
    return (
        {task: results[task] for task in tasks if task in results},
        [failures[task] for task in tasks if task in failures],
    )


def _serial(job: Job, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result | RunFailed]]:
    with warming((task.policy for task in tasks), job.scenario):
        for task in tasks:
            try:
                yield task, job.make(task)
            except RunFailed as failed:
                yield task, failed


def _parallel(job: Job, tasks: Sequence[Task], processes: int) -> Iterator[tuple[Task, Result | RunFailed]]:
    warm((task.policy for task in tasks), job.scenario)
    others, completed = set(active_children()), False
    pool = ProcessPoolExecutor(
        min(processes, len(tasks)), mp_context=get_context("spawn"), initializer=_share, initargs=(job,)
    )
    try:
        with uninterrupted():
            pending: dict[Future[Result], Task] = {pool.submit(_make, task): task for task in tasks}
        for done in as_completed(pending):
            error = done.exception()
            yield pending[done], error if isinstance(error, RunFailed) else done.result()
        completed = True
    finally:
        if not completed:  # nobody waits for the runs that are under way
            for process in set(active_children()) - others:
                process.kill()
        pool.shutdown(wait=True, cancel_futures=True)


_shared: list[Any] = []  # the job of this process, set once when it starts


def _share(job: Job) -> None:
    _shared[:] = [job]


def _make(task: Task) -> Result:
    return _shared[0].make(task)  # type: ignore[no-any-return]
