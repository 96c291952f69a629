"""Making the run of an order, in any process; what all orders of a study have in common is in `Shared`."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.base.json_values import from_json
from equipoise.base.sources import code_hash
from equipoise.policies.contract import Policy
from equipoise.policies.parameters import AnyPolicy
from equipoise.policies.registry import make_policy
from equipoise.sim.inputs import run_identities
from equipoise.sim.loading.file import to_trace, trace_file
from equipoise.sim.record import Run
from equipoise.sim.run import RunFailed, run
from equipoise.sim.scenario.model import Scenario, TraceSpec
from equipoise.sim.traces.trace import Trace
from equipoise.study.breakdown import breakdown
from equipoise.study.folders import SUMMARY
from equipoise.study.runs.engine import failed
from equipoise.study.runs.orders import Order, Row, name_of
from equipoise.study.signals import heard_inside

UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Shared:
    """Data common to all runs of a study.

    folders: where traces are looked up. code: hash of the sources, to detect workers of another version. keep:
    folder of run directories, None for none. runner: function that makes a run. timeline, journal: also keep them.
    trace: the jobs of all runs, in place of the file that their scenario names. by_class: rows also hold
    `Run.by_class`. by: rows kept in memory also hold `groups`, the breakdown by these (study.breakdown).
    """

    folders: tuple[Path, ...] = ()
    code: str = field(default_factory=code_hash)
    keep: Path | None = None
    runner: Callable[..., Run] = run
    timeline: bool = False
    journal: bool = False
    trace: Trace | None = None
    by_class: bool = False
    by: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """A token that differs between studies on one worker."""
        text = f"{self.folders} {self.code} {self.keep} {self.timeline} {self.journal} {self.by_class} {self.by} "
        text += f"{self.runner.__module__}.{self.runner.__qualname__} "
        text += self.trace.digest().hex() if self.trace is not None else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check(self) -> None:
        """Raises RuntimeError when this process runs different code from the one that made the orders."""
        if self.code != code_hash():
            raise RuntimeError(f"a worker runs other code ({code_hash()}) than this sweep ({self.code})")

    def folder(self, order: Order) -> Path | None:
        """The run directory of an order, if one is kept."""
        return None if self.keep is None else self.keep / order.id

    def is_kept(self, order: Order) -> bool:
        """Whether all files to keep of a run exist."""
        folder = self.folder(order)
        if folder is None:
            return True
        timeline = not self.timeline or (folder / "timeline" / "usage.parquet").is_file()
        return timeline and (not self.journal or (folder / "journal.jsonl").is_file()) and _is_whole(folder)

    def perform(self, order: Order) -> Row:
        """Make one run and return its row; any error except Ctrl-C becomes a failed row."""
        began_wall_s, began_cpu_s = time.perf_counter(), time.process_time()
        try:
            scenario = scenario_of(order.scenario)
            trace = self.trace or trace_at(scenario.workload.trace, self.folders)
            more: dict[str, Any] = {"timeline": True} if self.timeline else {}  # runners need not know of it
            made = make_run(
                scenario,
                order.stages(),
                order.seed,
                trace,
                keep=self.folder(order),
                runner=self.runner,
                journal=self.journal,
                **more,
            )
            outcome = {"status": "done", **made.totals, **made.summary(), **(made.by_class() if self.by_class else {})}
            if self.by:
                outcome["groups"] = breakdown(made.jobs, self.by)
            if made.notes:
                outcome["notes"] = list(made.notes)
        except Exception as error:
            if heard_inside(error):
                raise KeyboardInterrupt from error  # the caller has ended the run
            told = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {error}"
            outcome = failed(told)
        spent = {"cpu_s": time.process_time() - began_cpu_s, "wall_s": time.perf_counter() - began_wall_s}
        return {**order.row(), **outcome, **spent}


def _is_whole(folder: Path) -> bool:
    """Whether a run was written completely, with an undamaged summary."""
    try:
        return "identity" in from_json((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def orders_at(
    scenario: Scenario,
    policies: Sequence[AnyPolicy],
    seeds: int,
    trace: Trace | None,
    *,
    point: int = 0,
    values: Mapping[str, Any] | None = None,
    number: int = 0,
) -> Iterator[Order]:
    """Orders of one scenario: policy by policy, each on the scenario's seed and the next ones.

    number: of the first order. values: the varied values of this point. Raises PolicyError.
    """
    text, numbers = scenario.model_dump_json(), range(scenario.seed, scenario.seed + seeds)
    for policy in policies:
        given = None if isinstance(policy, str) else policy
        keys = run_identities(scenario, given or make_policy(name_of(policy)), numbers, trace)
        for seed, key in zip(numbers, keys, strict=True):
            yield Order(key, number, point, name_of(policy), seed, text, values or {}, given)
            number += 1


def trace_at(spec: TraceSpec | None, folders: tuple[Path, ...]) -> Trace | None:
    """The trace that a scenario names; the last few are cached while their files are unchanged."""
    if spec is None:
        return None
    path = trace_file(spec, folders)
    if path is None:
        return to_trace(spec, folders)  # the error lists the folders searched
    now = path.stat()
    state = (str(path.resolve()), now.st_ino, now.st_size, now.st_mtime_ns)
    return _trace(spec.model_dump_json(), folders, state)


@lru_cache(maxsize=4)
def _trace(spec: str, folders: tuple[Path, ...], state: tuple[str | int, ...]) -> Trace:
    return to_trace(TraceSpec.model_validate_json(spec), folders)


@lru_cache(maxsize=4)
def scenario_of(text: str) -> Scenario:
    """The scenario of an order; the last few are cached."""
    return Scenario.model_validate_json(text)


def make_run(
    scenario: Scenario,
    policy: Policy | None,
    seed: int | None,
    trace: Trace | None,
    *,
    keep: Path | None = None,
    unfinished: Path | None = None,
    runner: Callable[..., Run] = run,
    journal: bool = False,
    **more: Any,
) -> Run:
    """Make one run; `keep` is its run directory.

    unfinished: folder for its growing journal and the records of a failed run, unless that is `keep`. journal: write
    every decision. more: further arguments of the runner. Raises the errors of the runner.
    """
    place = unfinished or keep
    if journal and place is not None:
        place.mkdir(parents=True, exist_ok=True)
        more["journal"] = place / "journal.jsonl"
        more["journal"].unlink(missing_ok=True)  # of a run that was killed: a journal is appended to
    try:
        made = runner(scenario, policy=policy, seed=seed, trace=trace, **more)
    except RunFailed as error:
        if place is not None:
            error.run.write(place, journal=journal)  # its records up to then, marked incomplete
        raise
    if keep is not None and place is not None:
        made.write(place, journal=journal)
        if place != keep:
            _take_place(place, keep)
        elif unfinished is not None:  # of one that was killed while it took its place
            shutil.rmtree(keep / UNFINISHED, ignore_errors=True)
    return made


def _take_place(new: Path, old: Path) -> None:
    """Move the run directory `new` over the finished one `old`: this takes no room on the disk."""
    (old / SUMMARY).unlink(missing_ok=True)
    (old / "journal.jsonl").unlink(missing_ok=True)
    shutil.rmtree(old / "timeline", ignore_errors=True)
    for path in sorted(new.iterdir(), key=lambda path: path.name == SUMMARY):  # it says that all is there
        os.replace(path, old / path.name)
    new.rmdir()
