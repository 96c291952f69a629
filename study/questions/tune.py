"""Search for the best values of a scenario and parameters of its stages, verified on fresh seeds.

Optuna's tree-structured Parzen estimator (Bergstra et al. 2011; of several objectives Ozaki et al. 2022) proposes
points and receives their results. Each is run on the same seeds through the engine and the ledger of a sweep, so a
second call makes only the missing runs and proposes the same points. The first point is the unchanged scenario. The
best point, or for several objectives each point of the Pareto front, is then compared with the start on seeds that no
trial has used: it counts as found when it is better there with p < 0.01 (one-sided paired t-test on log ratios,
Student 1908; after Holm over points and objectives).
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

from equipoise.base.json_values import plain
from equipoise.base.numerals import strict_float
from equipoise.policies.parameters import check_used, split_point, with_parameters
from equipoise.policies.registry import PolicyError
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import MissingError, undone
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import LARGEST
from equipoise.sim.seeds import is_random
from equipoise.study.display import LABELS, METRICS, MORE_IS_BETTER, show
from equipoise.study.findings import Findings, FindingsTable
from equipoise.study.folders import check_free
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Order, policy_text
from equipoise.study.runs.perform import Shared, orders_at, trace_at
from equipoise.study.runs.store import MemoryStore, Store, ledger_with_copy, only_writer
from equipoise.study.statistics import Interval, holm, paired_ratio

SURE = 0.01
Values = Mapping[str, Sequence[float]]
"""Results by objective: one per seed, or infinite where the run failed."""


@dataclass(frozen=True)
class ParameterRange:
    """Numbers from low to high; whole: integers; scale: linear or log."""

    low: float
    high: float
    whole: bool
    scale: Literal["linear", "log"]


Varied = Mapping[str, ParameterRange | Sequence[str]]
"""Ranges or choices by key: of the scenario, or `policy.STAGE.PARAMETER`."""


@dataclass(frozen=True)
class ParameterSearch:
    """A search. seeds: per trial; fresh: seeds of the final comparison, not used by any trial. metrics: objectives."""

    file: Path
    vary: Varied
    policy: str | None = None
    metrics: tuple[str, ...] = ("completion_mean_s",)
    trials: int = 30
    seeds: int = 3
    fresh: int = 10
    overrides: tuple[str, ...] = ()
    jobs: int = 1
    out: Path | None = None


@dataclass(frozen=True)
class ParameterTrial:
    """One point, and the means of the objectives over the seeds of the trials; infinite: a run failed."""

    values: dict[str, Any]
    means: dict[str, float]


@dataclass(frozen=True)
class Choice:
    """A point compared with the start on fresh seeds, by objective. p: that it is no better, after Holm; NaN: no
    test."""

    trial: ParameterTrial
    means: dict[str, float]
    ratios: dict[str, Interval]
    p: dict[str, float]

    def better_in(self) -> tuple[str, ...]:
        """Objectives in which it is significantly better than the start."""
        return tuple(
            metric
            for metric, p in self.p.items()
            if (p < SURE if not math.isnan(p) else (self.ratios[metric].mean < 1.0) != (metric in MORE_IS_BETTER))
            and self.ratios[metric].mean != 1.0
        )


@dataclass(frozen=True)
class FoundParameters:
    """Result of a search. choices: the best point, or the Pareto front of several objectives."""

    policy: str
    trials: tuple[ParameterTrial, ...]
    choices: tuple[Choice, ...]
    start: dict[str, float]  # the scenario as it is, on the fresh seeds
    notes: tuple[str, ...]
    scenario: str  # its name
    vary: dict[str, Any]
    seeds: int  # of each trial

    @property
    def metrics(self) -> tuple[str, ...]:
        """The objectives."""
        return tuple(self.start)

    @property
    def better(self) -> bool:
        """Whether some choice is significantly better than the start, in some objective."""
        return any(choice.trial is not self.trials[0] and choice.better_in() for choice in self.choices)

    def answer(self) -> str:
        """What the best point wins on fresh seeds, by the first objective, or that none does."""
        metric = next(iter(self.start))
        what = f"{LABELS.get(metric, metric).strip()} of {self.scenario} under {self.policy}"
        others = [choice for choice in self.choices if choice.trial is not self.trials[0]]
        better = sorted((c for c in others if c.better_in()), key=lambda c: -_sign(metric) * c.ratios[metric].mean)
        if not better:
            tried = f"of {len(self.trials)} points none is certainly better on fresh seeds"
            return f"Keep the scenario as it is: {tried} ({what}: {show(metric, self.start[metric])})."
        best = better[0]
        ratio, values = best.ratios[metric], ", ".join(f"{key}={value}" for key, value in best.trial.values.items())
        interval = f" ({ratio.low:.3g} to {ratio.high:.3g})" if ratio.n > 1 else ""
        seeds = "fresh seed" if ratio.n == 1 else "fresh seeds"
        text = f"Set {values}: {what} is {ratio.mean:.3g} times{interval} that of now on {ratio.n} {seeds}"
        for other in list(self.start)[1:]:
            text += f", {LABELS.get(other, other).strip()} {best.ratios[other].mean:.3g} times"
        more = len(better) - 1
        return text + (f"; {more} other points are better in some objective." if more else ".")

    def findings(self) -> Findings:
        """The answer, with a table of the choices on the trials' seeds and on fresh ones, and all trials."""
        names = [LABELS.get(metric, metric).strip() for metric in self.metrics]
        start = self.trials[0]
        rows = [["", *names, *(f"{name}, fresh seeds" for name in names)]]
        rows.append(["unchanged", *self._shown(start), *("" for _ in names)])
        for choice in (choice for choice in self.choices if choice.trial is not start):
            fresh = [_ratio(choice, metric) for metric in self.metrics]
            rows.append([point_text(choice.trial.values), *self._shown(choice.trial), *fresh])
        best = sorted(self.trials, key=lambda trial: -_sign(self.metrics[0]) * trial.means[self.metrics[0]])
        tried = [["trial", *names], *([point_text(trial.values), *self._shown(trial)] for trial in best)]
        right = [False, *(True for _ in names)]
        what = f"{' and '.join(names)} under {self.policy}"
        many = f"{len(self.trials)} trials of {self.seeds} seed{'s' * (self.seeds > 1)}"
        return Findings(
            f"Tuning: {self.scenario}",
            (self.answer(),),
            (
                FindingsTable(f"{what}, the best points", rows, [*right, *right[1:]]),
                FindingsTable(f"{what}, {many}, the best first", tried, right, more=True),
            ),
            self.notes,
            tuple((key, _range_text(allowed)) for key, allowed in self.vary.items()),
        )

    def _shown(self, trial: ParameterTrial) -> list[str]:
        return [show(metric, trial.means[metric]) for metric in self.metrics]

    def as_dict(self) -> dict[str, Any]:
        """All results as plain data."""
        found = {"schema_version": 2, "answer": self.answer(), "better": self.better, **asdict(self)}
        data: dict[str, Any] = plain(found)
        return data


def _sign(metric: str) -> float:
    """1 where more of a metric is better, -1 where less is."""
    return 1.0 if metric in MORE_IS_BETTER else -1.0


def _ratio(choice: Choice, metric: str) -> str:
    ratio, p = choice.ratios[metric], choice.p[metric]
    if ratio.n < 2:
        return f"x{ratio.mean:.3f}"
    return f"x{ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), p {p:.2g}"


def point_text(values: Mapping[str, Any]) -> str:
    """The values of a point as short text."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values.items()) or "unchanged"


def _range_text(allowed: ParameterRange | Sequence[str]) -> str:
    if isinstance(allowed, ParameterRange):
        return f"{allowed.low:g} to {allowed.high:g} ({allowed.scale})"
    return ", ".join(allowed)


def p_better(metric: str, mine: Sequence[float], other: Sequence[float]) -> float:
    """One-sided p of a paired t-test (Student 1908) that `mine` is no better than `other`; NaN for one pair."""
    if len(mine) < 2:
        return math.nan
    if not (np.isfinite(mine).all() and np.isfinite(other).all()):
        return 1.0
    x, y = (np.maximum(np.asarray(values, dtype=np.float64), 1e-300) for values in (mine, other))
    log = -_sign(metric) * (np.log(x) - np.log(y))  # above 0: worse
    spread = float(log.std(ddof=1))
    if spread == 0.0:
        return 0.0 if log.mean() < 0 else 1.0
    from scipy.special import stdtr

    return float(stdtr(len(log) - 1, log.mean() / (spread / math.sqrt(len(log)))))


def front(means: Sequence[Mapping[str, float]]) -> list[int]:
    """Points that no other dominates (Pareto front); of equals the first."""
    costs = [[-_sign(metric) * value for metric, value in of.items()] for of in means]

    def beaten(k: int) -> bool:
        """Whether another point dominates this one."""
        return any(
            all(a <= b for a, b in zip(other, costs[k], strict=True)) and (other != costs[k] or j < k)
            for j, other in enumerate(costs)
            if j != k
        )

    return [k for k, cost in enumerate(costs) if all(map(math.isfinite, cost)) and not beaten(k)]


def read_range(text: str) -> tuple[str, ParameterRange | tuple[str, ...]]:
    """`KEY=LOW:HIGH`, `KEY=LOW:HIGH:log` or `KEY=A,B,C`. Raises InputError."""
    key, equals, values = text.partition("=")
    parts = values.replace("..", ":").split(":")
    if equals and key.strip() and len(parts) in (2, 3) and parts[2:] in ([], ["log"]):
        try:
            low, high = map(strict_float, parts[:2])
        except ValueError:
            low, high = 1.0, 0.0
        scale: Literal["linear", "log"] = "log" if parts[2:] else "linear"
        if -LARGEST <= low < high <= LARGEST and (scale == "linear" or low > 0):
            whole = all(part.strip().lstrip("-").isdigit() for part in parts[:2])
            return key.strip(), ParameterRange(low, high, whole, scale)
    elif equals and key.strip() and len(parts) == 1 and values.strip():
        return key.strip(), tuple(value.strip() for value in values.split(","))
    raise InputError([f"--vary {text!r}: write KEY=LOW:HIGH, KEY=LOW:HIGH:log (LOW above 0) or KEY=A,B,C"])


def tune(search: ParameterSearch, progress: Progress | None = None) -> FoundParameters:
    """Search, then compare the best point with the start on fresh seeds.

    progress: called as progress(trials done, trials in total, label of the last run) after each run.

    Raises InputError and PolicyError for a wrong scenario, key, metric or count, MissingError without
    Optuna, RuntimeError when the scenario as it is cannot be run.
    """
    _check(search)
    first = _orders(search, {}, 0, 1)[0]
    scenario = read_scenario(search.file, search.overrides).scenario
    random = is_random(scenario)
    seeds, notes = (search.seeds if random else 1), []
    if not random:
        notes.append("not random: there are no unseen seeds, and the figure holds for this scenario only")
    study = _study(search)
    with _store(search.out) as store:
        trials = list[ParameterTrial]()
        for number in range(search.trials):
            asked = study.ask()
            trial = _trial(store, search, {} if number == 0 else _suggest(asked, search.vary), seeds, number, progress)
            if number == 0 and not all(map(math.isfinite, trial.means.values())):
                raise RuntimeError(f"the scenario as it is cannot be run: {store.failures()[0]['error']}")
            study.tell(asked, [_told(metric, mean) for metric, mean in trial.means.items()])
            trials.append(trial)
        best = [trials[k] for k in front([trial.means for trial in trials])]
        fresh = range(seeds, seeds + search.fresh) if random else range(1)
        start, *found = [
            _values(store, search, values, fresh, search.trials + k, _of_trials(progress, search, search.trials))
            for k, values in enumerate(({}, *(trial.values for trial in best)))
        ]
    if len(fresh) > 1 and all(len(set(own)) == 1 for values in (start, *found) for own in values.values()):
        start, *found = [{metric: own[:1] for metric, own in values.items()} for values in (start, *found)]
        notes.append(f"all {len(fresh)} fresh seeds gave the same: the runs are not random and count as one")
    if failed := sum(math.inf in map(abs, trial.means.values()) for trial in trials):
        notes.append(f"{failed} of {len(trials)} points could not be run")
    return FoundParameters(
        first.policy,
        tuple(trials),
        _choices(search.metrics, best, found, start),
        _means(start),
        tuple(notes),
        scenario.name,
        dict(search.vary),
        seeds,
    )


def _of_trials(progress: Progress | None, search: ParameterSearch, done: int) -> Progress | None:
    """Progress in trials done, because the number of runs of a trial is unknown."""
    if progress is None:
        return None
    what = "" if done < search.trials else "fresh seeds, "
    return lambda runs, of, run: progress(done, search.trials, what + run)


def _means(values: Values) -> dict[str, float]:
    return {metric: float(np.mean(found)) for metric, found in values.items()}


def _told(metric: str, mean: float) -> float:
    """The value reported to Optuna, which does not accept infinite numbers."""
    return mean if math.isfinite(mean) else -_sign(metric) * 1e300


def _choices(
    metrics: Sequence[str], best: Sequence[ParameterTrial], found: Sequence[Values], start: Values
) -> tuple[Choice, ...]:
    """The best trials compared with the start on fresh seeds."""
    raw = [
        p_better(metric, values[metric], start[metric]) if trial.values else math.nan  # the start against itself
        for trial, values in zip(best, found, strict=True)
        for metric in metrics
    ]
    p = holm(np.array(raw)).reshape(len(best), len(metrics))
    return tuple(
        Choice(
            trial,
            _means(values),
            {metric: paired_ratio(values[metric], start[metric]) for metric in metrics},
            dict(zip(metrics, of.tolist(), strict=True)),
        )
        for trial, values, of in zip(best, found, p, strict=True)
    )


def _trial(
    store: Store, search: ParameterSearch, values: dict[str, Any], seeds: int, number: int, progress: Progress | None
) -> ParameterTrial:
    """A point on all seeds; infinite where it makes no scenario, or a run failed."""
    told = _of_trials(progress, search, number)
    try:
        found = _values(store, search, values, range(seeds), number, told)
    except (InputError, PolicyError):
        if not values:
            raise
        found = {}
    if not found or not all(np.isfinite(of).all() for of in found.values()):
        return ParameterTrial(values, {metric: _worst(metric) for metric in search.metrics})
    return ParameterTrial(values, _means(found))


def _worst(metric: str) -> float:
    return -_sign(metric) * math.inf


def _check(search: ParameterSearch) -> None:
    for metric in search.metrics:
        if metric not in METRICS:
            raise InputError([f"--metric {metric!r}: allowed: {', '.join(METRICS)}"])
        if search.metrics.count(metric) > 1:
            raise InputError([f"--metric {metric!r} is given twice"])
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
    for key, values in search.vary.items():
        _check_key(search, key, values)


def _check_key(search: ParameterSearch, key: str, values: ParameterRange | Sequence[str]) -> None:
    """Raises an error when none of the values, or of the ends, is allowed."""
    tried = (
        [int(v) if values.whole else v for v in (values.low, values.high)]
        if isinstance(values, ParameterRange)
        else values
    )
    refused: list[InputError | PolicyError] = []
    for value in tried:
        try:
            _orders(search, {key: value}, 0, 1)
            return
        except (InputError, PolicyError) as error:
            refused.append(error)
    raise refused[0]


def _study(search: ParameterSearch) -> Any:
    """An Optuna study that proposes the same points for the same results."""
    try:
        import optuna
    except ImportError as error:
        raise MissingError("tune needs Optuna: pip install 'equipoise[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    start = min(10, max(3, search.trials // 3))
    ways = ["maximize" if metric in MORE_IS_BETTER else "minimize" for metric in search.metrics]
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=start)
    return optuna.create_study(directions=ways, sampler=sampler)


def _suggest(trial: Any, vary: Varied) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, allowed in vary.items():
        if not isinstance(allowed, ParameterRange):
            values[key] = trial.suggest_categorical(key, list(allowed))
        elif allowed.whole:
            values[key] = trial.suggest_int(key, int(allowed.low), int(allowed.high), log=allowed.scale == "log")
        else:
            found = trial.suggest_float(key, allowed.low, allowed.high, log=allowed.scale == "log")
            values[key] = float(f"{found:.6g}")
    return values


def _orders(search: ParameterSearch, values: Mapping[str, Any], first: int, count: int, number: int = 0) -> list[Order]:
    """Runs of one point on the scenario's seeds `first`, ... Raises InputError and PolicyError."""
    changed, own = split_point({key: _read(value) for key, value in values.items()})
    changes = [*search.overrides, *(f"{key}={json.dumps(value)}" for key, value in changed.items())]
    file = read_scenario(search.file, changes)
    scenario = file.scenario.model_copy(update={"seed": file.scenario.seed + first})
    policy = with_parameters(policy_text(file.scenario, search.policy), own)
    trace = trace_at(file.scenario.workload.trace, file.folders)
    return list(orders_at(scenario, [policy], count, trace, point=number, values=values, number=number * 1000 + first))


def _read(value: Any) -> Any:
    """A choice given as text, as a number if it is one."""
    if not isinstance(value, str):
        return value
    try:
        number = strict_float(value)
    except ValueError:
        return {"true": True, "false": False}.get(value, value)
    return int(number) if value.lstrip("-").isdigit() else number


def _values(
    store: Store,
    search: ParameterSearch,
    values: Mapping[str, Any],
    seeds: range,
    number: int,
    progress: Progress | None,
) -> dict[str, list[float]]:
    """The objectives of one point on each seed; infinite if the run failed or left jobs unfinished.

    Raises InputError and PolicyError where the point is not a valid scenario.
    """
    orders = _orders(search, values, seeds.start, len(seeds), number)
    folders = read_scenario(search.file, search.overrides).folders
    how = How(search.jobs, retry=True, progress=progress, label=lambda row: f"trial {row['point']} seed {row['seed']}")
    make(store, orders, Shared(folders), how)
    rows = {row["id"]: row for row in store.rows()}
    return {metric: [_metric(rows[order.id], metric) for order in orders] for metric in search.metrics}


def _metric(row: Mapping[str, Any], metric: str) -> float:
    """The metric of a run; infinite if it failed or left jobs unfinished."""
    done = row["status"] == "done" and undone(row) == 0.0
    return float(row[metric]) if done and row[metric] is not None else _worst(metric)


@contextmanager
def _store(out: Path | None) -> Iterator[Store]:
    if out is None:
        yield MemoryStore()
        return
    check_free(out, "sweep")
    with only_writer(out), ledger_with_copy(out) as ledger:
        ledger.set_about(study="sweep", name="tune")
        yield ledger
