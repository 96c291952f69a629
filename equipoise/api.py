"""The public functions that read a scenario (file, plain data or object) and make one run of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.given import called, path_of, texts_of, whole_of
from equipoise.policies.parameters import GivenPolicy, as_policy
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping, read_scenario, to_trace
from equipoise.sim.loading.file import load as load_scenario
from equipoise.sim.record import Run
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario, TraceSpec
from equipoise.sim.traces.trace import Trace
from equipoise.study.folders import SUMMARY, check_free
from equipoise.study.runs.perform import UNFINISHED, make_run
from equipoise.study.runs.warm import warm

__all__ = ["AnyScenario", "load", "prepare", "run"]

AnyScenario = Scenario | str | Path | Mapping[str, Any]
"""A scenario, the path of its YAML file, or plain data as in such a file."""

_FILE = "the path of a scenario file, or the name of one that comes with the software"
_OVERRIDE = "cluster.nodes.0.count=16"


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario file with `dotted.key=value` overrides. Raises InputError, one line per mistake.

    A trace that lies beside the file is named by its absolute path, so that the scenario runs from any folder.
    """
    file = path_of("path", path, _FILE)
    scenario = load_scenario(file, texts_of("overrides", overrides, _OVERRIDE))
    spec = scenario.workload.trace
    if spec is None or not (beside := Path(file).resolve().parent / spec.file).is_file():
        return scenario
    trace = spec.model_copy(update={"file": str(beside)})
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"trace": trace})})


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
