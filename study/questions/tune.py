"""Values of a scenario, and parameters of its stages, under which a policy does best; proved on fresh seeds.

Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) asks for points and is told what they gave. Each is
run on the same seeds through the engine and the ledger of a sweep, so a second call makes only what is missing and,
being told the same, asks for the same points. The first point is the scenario as it is. The best one is then held
against that on seeds that no trial has seen: it counts as found when it is better there with p < 0.01 (one-sided
paired t-test on log ratios, Student 1908).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from equipoise.policies.files import write_whole
from equipoise.policies.numerals import strict_float
from equipoise.policies.parameters import check_used, split_point, with_parameters
from equipoise.policies.plain import plain
from equipoise.policies.registry import PolicyError
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import MissingError
from equipoise.sim.run import is_random
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import METRICS
from equipoise.study.folders import check_free
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Order, Shared, orders_at, trace_at
from equipoise.study.runs.store import Memory, Store, ledger_with_copy, only_writer
from equipoise.study.runs.variants import policy_text
from equipoise.study.statistics import Interval, paired_ratio

FILE = "tune.json"
SURE = 0.01


@dataclass(frozen=True)
class Range:
    """Numbers from low to high; whole: whole numbers; scale: how they are spread."""

    low: float
    high: float
    whole: bool
    scale: Literal["linear", "log"]


Varied = Mapping[str, Range | Sequence[str]]
"""Ranges or choices by key: of the scenario, or `policy.STAGE.PARAMETER`."""


@dataclass(frozen=True)
class Search:
    """What to search. seeds: of each trial; fresh: seeds of the final figure, none of which a trial has seen."""

    file: Path
    vary: Varied
    policy: str | None = None
    metric: str = "completion_mean_s"
    trials: int = 30
    seeds: int = 3
    fresh: int = 10
    overrides: tuple[str, ...] = ()
    jobs: int = 1
    out: Path | None = None


@dataclass(frozen=True)
class Trial:
    """One point and the mean of the metric on the seeds of the trials; infinite where a run failed."""

    values: dict[str, Any]
    mean: float


@dataclass(frozen=True)
class Found:
    """How a search ended. ratio: best over start on fresh seeds; p: that this is chance; NaN: nothing is random."""

    metric: str
    policy: str
    trials: tuple[Trial, ...]
    best: Trial
    ratio: Interval
    p: float
    notes: tuple[str, ...]

    @property
    def better(self) -> bool:
        """Whether the best point is better than the start for sure."""
        if self.best is self.trials[0]:
            return False
        return self.p < SURE if not math.isnan(self.p) else self.ratio.mean < 1.0

    def as_json(self) -> str:
        """Everything, for programs."""
        content = {"schema_version": 1, "better": self.better, **asdict(self)}
        return json.dumps(plain(content), indent=2, allow_nan=False) + "\n"


def read_range(text: str) -> tuple[str, Range | tuple[str, ...]]:
    """`KEY=LOW:HIGH`, `KEY=LOW:HIGH:log` or `KEY=A,B,C`. Raises InputError."""
    key, equals, values = text.partition("=")
    parts = values.replace("..", ":").split(":")
    if equals and key.strip() and len(parts) in (2, 3) and parts[2:] in ([], ["log"]):
        try:
            low, high = map(strict_float, parts[:2])
        except ValueError:
            low, high = 1.0, 0.0
        scale: Literal["linear", "log"] = "log" if parts[2:] else "linear"
        if low < high and (scale == "linear" or low > 0):
            whole = all(part.strip().lstrip("-").isdigit() for part in parts[:2])
            return key.strip(), Range(low, high, whole, scale)
    elif equals and key.strip() and len(parts) == 1 and values.strip():
        return key.strip(), tuple(value.strip() for value in values.split(","))
    raise InputError([f"--vary {text!r}: write KEY=LOW:HIGH, KEY=LOW:HIGH:log (LOW above 0) or KEY=A,B,C"])


def tune(search: Search, progress: Progress | None = None) -> Found:
    """Search, then hold the best point against the start on fresh seeds.

    progress: called as progress(runs done, runs in all, what the last one was) within each trial.

    Raises InputError and PolicyError for what is wrong with scenario, key, metric or counts, MissingError without
    Optuna, RuntimeError when the scenario as it is cannot be run.
    """
    _check(search)
    first = _orders(search, {}, 0, 1)[0]
    random = is_random(read_scenario(search.file, search.overrides).scenario)
    seeds, notes = (search.seeds if random else 1), []
    if not random:
        notes.append(
            "nothing in this scenario is random: there are no unseen seeds, and the figure holds for it alone"
        )
    study = _study(search)
    with _store(search.out) as store:
        trials = []
        for number in range(search.trials):
            asked = study.ask()
            values = {} if number == 0 else _suggest(asked, search.vary)
            mean = _mean(store, search, values, range(seeds), number, progress)
            if number == 0 and mean == math.inf:
                raise RuntimeError(f"the scenario as it is cannot be run: {store.failures()[0]['error']}")
            study.tell(asked, mean if math.isfinite(mean) else 1e300)
            trials.append(Trial(values, mean))
        best = min(trials, key=lambda trial: trial.mean)
        fresh = range(seeds, seeds + search.fresh) if random else range(1)
        pair = [
            _values(store, search, values, fresh, search.trials + k, progress)
            for k, values in enumerate(({}, best.values))
        ]
        start, found = np.array(pair[0]), np.array(pair[1])
    if failed := sum(trial.mean == math.inf for trial in trials):
        notes.append(f"{failed} of {len(trials)} points could not be run")
    answer = Found(
        search.metric,
        first.policy,
        tuple(trials),
        best,
        paired_ratio(found, start),
        _p_less(found, start),
        tuple(notes),
    )
    if search.out is not None:
        write_whole(search.out / FILE, answer.as_json())
    return answer


def _check(search: Search) -> None:
    if search.metric not in METRICS:
        raise InputError([f"--metric {search.metric!r}: allowed: {', '.join(METRICS)}"])
    if not search.vary:
        raise InputError(["nothing to vary: give --vary KEY=LOW:HIGH"])
    for name, count, least in (
        ("--trials", search.trials, 2),
        ("--seeds", search.seeds, 1),
        ("--fresh", search.fresh, 2),
    ):
        if count < least:
            raise InputError([f"{name} {count}: at least {least} are needed"])
    scenario = read_scenario(search.file, search.overrides).scenario
    check_used(search.vary, [policy_text(scenario, search.policy)])


def _study(search: Search) -> Any:
    """A study of Optuna that asks for the same points when it is told the same."""
    try:
        import optuna
    except ImportError as error:
        raise MissingError("tune needs Optuna: pip install 'equipoise[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start = min(10, max(3, search.trials // 3))
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=start))


def _suggest(trial: Any, vary: Varied) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, allowed in vary.items():
        if not isinstance(allowed, Range):
            values[key] = trial.suggest_categorical(key, list(allowed))
        elif allowed.whole:
            values[key] = trial.suggest_int(
                key, int(allowed.low), int(allowed.high), log=allowed.scale == "log"
            )
        else:
            found = trial.suggest_float(key, allowed.low, allowed.high, log=allowed.scale == "log")
            values[key] = float(f"{found:.6g}")
    return values


def _orders(
    search: Search, values: Mapping[str, Any], first: int, count: int, number: int = 0
) -> list[Order]:
    """Runs of one point on the scenario's seeds `first`, ... Raises InputError and PolicyError."""
    changed, own = split_point({key: _read(value) for key, value in values.items()})
    changes = [*search.overrides, *(f"{key}={json.dumps(value)}" for key, value in changed.items())]
    file = read_scenario(search.file, changes)
    scenario = file.scenario.model_copy(update={"seed": file.scenario.seed + first})
    policy = with_parameters(policy_text(file.scenario, search.policy), own)
    trace = trace_at(file.scenario.workload.trace, file.folders)
    return list(
        orders_at(scenario, [policy], count, trace, point=number, values=values, number=number * 1000)
    )


def _read(value: Any) -> Any:
    """A choice given as text: a number where it is one."""
    if not isinstance(value, str):
        return value
    try:
        number = strict_float(value)
    except ValueError:
        return {"true": True, "false": False}.get(value, value)
    return int(number) if value.lstrip("-").isdigit() else number


def _values(
    store: Store,
    search: Search,
    values: Mapping[str, Any],
    seeds: range,
    number: int,
    progress: Progress | None,
) -> list[float]:
    """The metric of one point on each seed; nothing where the point is not a valid scenario; infinite: failed."""
    orders = _orders(search, values, seeds.start, len(seeds), number)
    folders = read_scenario(search.file, search.overrides).folders
    how = How(
        search.jobs,
        retry=True,
        progress=progress,
        label=lambda row: f"trial {row['point']} seed {row['seed']}",
    )
    make(store, orders, Shared(folders), how)
    rows = {row["id"]: row for row in store.rows()}
    return [_metric(rows[order.id], search.metric) for order in orders]


def _metric(row: Mapping[str, Any], metric: str) -> float:
    """Infinite for a run that failed or left jobs undone: it is early for the wrong reason."""
    done = row["status"] == "done" and row["completed"] == row["jobs"]
    return float(row[metric]) if done and row[metric] is not None else math.inf


def _mean(
    store: Store,
    search: Search,
    values: Mapping[str, Any],
    seeds: range,
    number: int,
    progress: Progress | None,
) -> float:
    try:
        return float(np.mean(_values(store, search, values, seeds, number, progress)))
    except (InputError, PolicyError):
        if not values:
            raise
        return math.inf  # a combination that makes no scenario


def _p_less(found: Any, start: Any) -> float:
    """One-sided p of a paired t-test that `found` is less than `start`, on log ratios; NaN with one pair."""
    if len(found) < 2 or not (np.isfinite(found).all() and np.isfinite(start).all()):
        return math.nan if len(found) < 2 else 1.0
    log = np.log(np.maximum(found, 1e-300) / np.maximum(start, 1e-300))
    spread = float(log.std(ddof=1))
    if spread == 0.0:
        return 0.0 if log.mean() < 0 else 1.0
    from scipy.special import stdtr

    return float(stdtr(len(log) - 1, log.mean() / (spread / math.sqrt(len(log)))))


@contextmanager
def _store(out: Path | None) -> Iterator[Store]:
    if out is None:
        yield Memory()
        return
    check_free(out, "sweep")
    with only_writer(out), ledger_with_copy(out) as ledger:
        ledger.set_about(study="sweep", name="tune")
        yield ledger
