"""The public functions that make many runs: comparisons, sweeps and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.api import _FILE, AnyScenario, prepare
from equipoise.given import called, path_of, texts_of, whole_of, wrong
from equipoise.policies.parameters import GivenPolicy, as_policies, as_policy
from equipoise.sim.traces.trace import Trace
from equipoise.study.questions.size import read_vary
from equipoise.study.questions.size import size as find_size
from equipoise.study.questions.targets import read_target
from equipoise.study.questions.trials import Answer, Question
from equipoise.study.runs.compare import compare as compare_policies
from equipoise.study.runs.comparison import Comparison
from equipoise.study.runs.make import Progress
from equipoise.study.runs.sweep import SweepOptions, SweepOutcome
from equipoise.study.runs.sweep import sweep as make_sweep
from equipoise.study.runs.until import read_until

__all__ = ["compare", "size", "sweep"]


def compare(
    scenario: AnyScenario,
    policies: GivenPolicy | Sequence[GivenPolicy],
    seeds: int = 5,
    *,
    trace: Trace | str | Path | None = None,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    out: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    until: str | None = None,
    max_seeds: int = 100,
    timeline: bool = False,
    journal: bool = False,
    by: Sequence[str] = (),
) -> Comparison:
    """Simulate every policy (string, Policy or stage) on the same seeds; ratios refer to the first policy.

    jobs: number of processes. out: folder for the runs; a second call with the same inputs reuses them. The rest
    as in `run`; progress is called as progress(runs done, total runs, "POLICY seed N"). until:
    `ci:SHARE[:METRIC[:ratio]]` adds seeds, from `seeds` up to `max_seeds`, until the 95 % interval of the metric
    under every policy (or of the ratios to the first) is within that fraction of its middle. timeline, journal: keep
    them as well, with each run in `out`. by: also group jobs by these (`gpus`, `ran_on`, `class`, `user`,
    `account`, `queue`, `partition`). A policy with a failed run is left out and listed in `failures`.

    Raises InputError and PolicyError, one line per mistake; ValueError for a journal or timeline without
    `out`.
    """
    seeds, jobs, max_seeds = (
        whole_of("seeds", seeds, 1),
        whole_of("jobs", jobs, 1),
        whole_of("max_seeds", max_seeds, 1),
    )
    keep, by = None if out is None else Path(path_of("out", out)), texts_of("by", by, "gpus")
    called("progress", progress)
    if until is not None and not isinstance(until, str):
        raise wrong("until", until, "a string such as 'ci:2%'")
    if keep is None and (journal or timeline):
        raise ValueError("journal and timeline need out, the folder to write them to")
    ready, read, _ = prepare(scenario, trace, overrides)
    return compare_policies(
        ready,
        as_policies(policies),
        seeds,
        trace=read,
        jobs_parallel=jobs,
        out=keep,
        progress=progress,
        until=None if until is None else read_until(until, seeds, max_seeds),
        timeline=timeline,
        journal=journal,
        by=by,
    )


def sweep(
    file: str | Path,
    out: str | Path,
    *,
    policies: GivenPolicy | Sequence[GivenPolicy] = (),
    jobs: int = 1,
    progress: Progress | None = None,
) -> SweepOutcome:
    """Run all runs of a sweep file that are not in folder `out` yet; `policies` replaces those in the file.

    jobs: number of processes. progress: called as progress(runs done, total runs, label of the last run).

    Raises InputError and PolicyError, one line per mistake, StoreError when `out` cannot be used.
    """
    called("progress", progress)
    options = SweepOptions(jobs=whole_of("jobs", jobs, 1), policies=tuple(as_policies(policies)))
    source, keep = Path(path_of("file", file, "the path of a sweep file")), Path(path_of("out", out))
    return make_sweep(source, keep, options, progress=progress)


def size(
    scenario: str | Path,
    vary: Sequence[str],
    targets: Sequence[str],
    *,
    policy: GivenPolicy | None = None,
    seeds: int = 5,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Answer:
    """The fewest nodes with which a scenario file meets all targets, under `policy` (default: the scenario's).

    vary: as `cluster.nodes.0.count=4:16`. targets: as `makespan<=10h`. seeds, jobs and progress as in `compare`.

    Raises InputError and PolicyError, one line per mistake.
    """
    called("progress", progress)
    file = Path(path_of("scenario", scenario, _FILE))
    varied = dict(map(read_vary, texts_of("vary", vary, "cluster.nodes.0.count=4:16")))
    wanted = tuple(map(read_target, texts_of("targets", targets, "makespan<=10h")))
    chosen = None if policy is None else as_policy(policy)
    seeds, jobs = whole_of("seeds", seeds, 1), whole_of("jobs", jobs, 1)
    return find_size(Question(file, varied, wanted, chosen, seeds, jobs=jobs), progress)
