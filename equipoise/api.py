"""The public functions: from a scenario (file, plain data or object) to a run or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.given import called, path_of, texts_of, whole_of, wrong
from equipoise.policies.parameters import GivenPolicy, as_policies, as_policy
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping, read_scenario, to_trace
from equipoise.sim.loading.file import load as load_scenario
from equipoise.sim.record import Run
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario, TraceSpec
from equipoise.sim.traces.trace import Trace
from equipoise.study.folders import SUMMARY, check_free
from equipoise.study.questions.size import Answer, Question, read_vary
from equipoise.study.questions.size import size as find_size
from equipoise.study.questions.targets import read_target
from equipoise.study.runs.compare import compare as compare_policies
from equipoise.study.runs.comparison import Comparison
from equipoise.study.runs.make import Progress
from equipoise.study.runs.perform import UNFINISHED, make_run
from equipoise.study.runs.sweep import SweepOptions, SweepOutcome
from equipoise.study.runs.sweep import sweep as make_sweep
from equipoise.study.runs.until import read_until
from equipoise.study.runs.warm import warm

__all__ = ["AnyScenario", "compare", "load", "prepare", "run", "size", "sweep"]

AnyScenario = Scenario | str | Path | Mapping[str, Any]
"""A scenario, the path of its YAML file, or plain data as in such a file."""

_FILE = "the path of a scenario file, or the name of one that comes with the software"
_OVERRIDE = "cluster.nodes.0.count=16"


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario file with `dotted.key=value` overrides. Raises InputError, one line per mistake."""
    return load_scenario(path_of("path", path, _FILE), texts_of("overrides", overrides, _OVERRIDE))


def prepare(
    scenario: AnyScenario, trace: Trace | str | Path | None = None, overrides: Sequence[str] = ()
) -> tuple[Scenario, Trace | None, tuple[str, ...]]:
    """Return (scenario, its trace, one warning per doubtful value). Raises InputError, one line per mistake."""
    warnings: tuple[str, ...] = ()
    overrides = texts_of("overrides", overrides, _OVERRIDE)
    if trace is not None and not isinstance(trace, Trace):
        trace = path_of("trace", trace, "the path of a job trace, or a Trace")
    if not isinstance(scenario, Scenario | Mapping):
        scenario = path_of("scenario", scenario, f"{_FILE}; a mapping as in such a file; a Scenario")
        named = None if trace is None or isinstance(trace, Trace) else str(trace)
        file = read_scenario(scenario, overrides, named)
        scenario, warnings = file.scenario, file.warnings
        trace = trace if isinstance(trace, Trace) else file.trace()
    elif overrides:
        raise ValueError("overrides need a scenario file; change the scenario itself instead")
    elif isinstance(scenario, Mapping):
        scenario = from_mapping(scenario)
    if isinstance(trace, str | Path):
        from equipoise.sim.traces.read import read_trace  # slow to import, and most scenarios have no trace

        trace = read_trace(trace)
    if trace is None and scenario.workload.trace is not None:
        trace = to_trace(scenario.workload.trace, (Path(),))
    if trace is not None and scenario.workload.trace is None:
        workload = scenario.workload.model_copy(update={"trace": TraceSpec(file=trace.source)})
        scenario = scenario.model_copy(update={"workload": workload})
    return scenario, trace, warnings


def run(
    scenario: AnyScenario,
    *,
    policy: GivenPolicy | None = None,
    seed: int | None = None,
    trace: Trace | str | Path | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    progress: Callable[[float, int, int], None] | None = None,
    timeline: bool = False,
    journal: bool = False,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Simulate one scenario under one policy (default: the scenario's) and seed (default: the scenario's).

    policy: a string such as `s1+s2+easy`, a Policy, a stage or a list of stages. trace: a job trace, or the path of
    one, in place of the scenario's. overrides: `dotted.key=value` strings. out: folder for the run's records.
    progress: called as progress(simulated seconds, jobs done, total jobs). timeline: record what happens when
    (`Run.timeline`). journal: write every decision to `out/journal.jsonl`. stop: called before each event; true ends
    the run there.

    A finished run in `out` is replaced when this run finishes; until then this run's records are in
    `out/unfinished`.

    Raises InputError and PolicyError, one line per mistake, and RunFailed, with the records up to then,
    when a stage fails or no event can follow (RunInterrupted when `stop` returned true); ValueError for a journal
    without `out`.

    >>> import equipoise
    >>> job = {"gpus": 4, "duration": "1 h"}
    >>> case = {"schema_version": 1, "name": "one job", "cluster": {"gpus": 8}, "workload": {"jobs": [job]}}
    >>> equipoise.run(case).summary()["makespan_s"]
    3600.0
    """
    seed = None if seed is None else whole_of("seed", seed)
    keep = None if out is None else Path(path_of("out", out))
    called("progress", progress)
    called("stop", stop)
    if journal and keep is None:
        raise ValueError("journal needs out, the folder to write it to")
    if keep is not None:
        check_free(keep, "run")
    ready, jobs, _ = prepare(scenario, trace, overrides)
    given = None if policy is None else as_policy(policy)
    chosen = make_policy(given) if isinstance(given, str) else given
    warm([chosen if chosen is not None else make_policy(list(ready.policy))], ready)
    return make_run(
        ready,
        chosen,
        seed,
        jobs,
        keep=keep,
        unfinished=None if keep is None else unfinished(keep),
        journal=journal,
        runner=simulate,
        progress=progress,
        timeline=timeline,
        stop=stop,
    )


def unfinished(out: Path) -> Path:
    """Folder for the records of a run until it is finished, so that a finished run in `out` is not overwritten."""
    return out / UNFINISHED if (out / SUMMARY).is_file() else out


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
