"""The fewest or cheapest nodes that meet a planner's targets, with confidence.

Candidates are tried from the best on; the first that meets every target is the answer, so nothing is assumed about
how results change with size (more nodes can be slower). A candidate that cannot meet a target by the lower bounds,
by its price or by its power is not run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from equipoise.base.numerals import is_index
from equipoise.policies.contract import Policy
from equipoise.sim.assumptions import assumed_draw, by_curve, curve_origin, unlike_curves
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import ScenarioFile, changed_tree, read_scenario
from equipoise.sim.record import undone
from equipoise.sim.scenario.model import FaultsSpec, NodeGroup
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.seeds import is_random
from equipoise.sim.traces.trace import Trace
from equipoise.study.bounds import lower_bound
from equipoise.study.questions.targets import Target, power_w, price_usd_per_h, standing_usd_per_h, supplied
from equipoise.study.questions.trials import Answer, Candidate, Objective, Question, Trial, named, needed
from equipoise.study.runs.engine import Engine
from equipoise.study.runs.make import Progress, workers
from equipoise.study.runs.orders import Order, policy_text
from equipoise.study.runs.perform import Shared, orders_at

_ROOM = 1e-9
_RANGE = re.compile(r"\s*\d+\s*(?:-|to)\s*\d+\s*")  # 4-8 is not a value of any key
SIZES_MOST = 10_000
"""Most sizes; each is read and checked before the first is run."""


def size(question: Question, progress: Progress | None = None) -> Answer:
    """Answer a question; with faults, also how many of the nodes are spares (see `Answer.spares`).

    progress: called as progress(candidates looked at, candidates in all, "values of the candidate").

    Raises InputError for a wrong scenario, key or target, PolicyError for an unknown stage.
    """
    answer = _search(question, progress, faults=True)
    if answer.best is None or answer.best.candidate.scenario.faults == FaultsSpec():
        return answer
    calm = _search(replace(question, every=False), None, faults=False)  # only its best is needed
    nodes = calm.best.candidate.nodes if calm.best is not None else answer.best.candidate.nodes
    fewer = next((trial for trial in answer.trials if trial.candidate.nodes == nodes), None)
    return replace(answer, spares=answer.best.candidate.nodes - nodes, without_spares=fewer)


def _search(question: Question, progress: Progress | None, *, faults: bool) -> Answer:
    impossible: list[str] = []
    candidates, trace, folders = read_candidates(question, faults=faults, impossible=impossible)
    candidates.sort(key=lambda c: c.score(question.objective))
    random = any(is_random(candidate.scenario) for candidate in candidates)
    best: Trial | None = None
    missed: list[Trial] = []
    trials: list[Trial] = []
    excluded: list[Candidate] = []
    classes = any("[" in target.measure.key for target in question.targets)
    shared = Shared(folders, runner=question.runner, by_class=classes)
    with workers(shared, _orders(candidates[0], question, trace, random), question.jobs) as made:
        for number, candidate in enumerate(candidates):
            if best is not None and not question.every and not _can_beat(candidate, best, question.objective):
                break
            if progress is not None:
                progress(number, len(candidates), named(candidate.values))
            if candidate.missing:
                impossible.append(f"{named(candidate.values)}: {candidate.missing}")
                continue
            if not question.every and _cannot(candidate, question.targets, random):
                excluded.append(candidate)
                continue
            trial = try_out(candidate, question, made, trace, random)
            trials.append(trial)
            if trial.met < needed(question.confidence, trial.runs):
                missed.append(trial)
            elif best is None or _better(trial, best, question.objective):
                best = trial
    closest = None if best is not None else _closest(missed, excluded, question.targets)
    return Answer(
        best,
        closest,
        len(trials),
        len(excluded),
        not random,
        len(candidates),
        impossible=tuple(impossible),
        trials=tuple(trials),
    )


def _better(trial: Trial, best: Trial, objective: Objective) -> bool:
    """Whether a size that meets the targets, and comes later, takes the place of the best so far.

    Of sizes with equal objective the cheaper one, else the one with fewer GPUs, else the first.
    """
    if objective != "cost" and not _alike(trial.candidate, best.candidate, objective):
        return False
    for key in ("cost_usd", "gpus"):
        one, other = trial.mean(key), best.mean(key)
        if not math.isclose(one, other, rel_tol=_ROOM) and not math.isnan(one + other):
            return one < other
    return False


def _alike(one: Candidate, other: Candidate, objective: Objective) -> bool:
    """Whether two sizes have the same objective before they are run."""
    return one.score(objective)[0] == other.score(objective)[0]


def _can_beat(candidate: Candidate, best: Trial, objective: Objective) -> bool:
    """Whether a candidate that comes later can be better than the best so far."""
    if objective == "cost":
        return candidate.known["cost_usd"] < best.mean("cost_usd")
    return _alike(candidate, best.candidate, objective)


def _cannot(candidate: Candidate, targets: Sequence[Target], random: bool) -> bool:
    """Whether some target cannot be met by any run; the bounds hold for runs without noise."""
    for target in targets:
        key = target.measure.key
        known = target.measure.of_cluster or (not random and key in candidate.known)
        beyond = known and candidate.known[key] > target.limit * (1.0 + _ROOM)
        if known and target.at_most and beyond:
            return True
        if known and not target.at_most and target.measure.of_cluster and not target.met(candidate.known):
            return True
    return False


def try_out(candidate: Candidate, question: Question, made: Engine, trace: Trace | None, random: bool) -> Trial:
    """Run a candidate on its seeds until it is clear that it misses.

    With `Question.every` all sizes get all seeds, because means over different seeds cannot be ranked.
    """
    orders = _orders(candidate, question, trace, random)
    allowed = len(orders) - needed(question.confidence, len(orders))
    results: dict[int, dict[str, float]] = {}
    met = 0
    step = max(1, question.jobs)
    for first in range(0, len(orders), step):
        for row in made.rows(orders[first : first + step]):
            if row["status"] != "done":
                raise RuntimeError(f"{named(candidate.values)}, seed {row['seed']}: {row['error']}")
            known = {"price_usd_per_h": candidate.price_usd_per_h, "power_w": candidate.power_w}
            known["done_s"] = candidate.after_s + row["makespan_s"]
            _check_classes(row, question.targets)
            results[row["seed"]] = {**row, **known}
        met = sum(_meets_all(result, question.targets) for result in results.values())
        if len(results) - met > allowed and not question.every:
            break
    return Trial(candidate, tuple(results[seed] for seed in sorted(results)), met)


def _check_classes(row: Mapping[str, Any], targets: Sequence[Target]) -> None:
    """Raises InputError for a target of a class that no job is in."""
    for target in targets:
        name, bracket, _ = target.measure.key.partition("[")
        if bracket and target.measure.key not in row:
            there = [key[len(name) + 1 : -1] for key in row if key.startswith(f"{name}[")]
            raise InputError([f"target {target.text!r}: no job of that class; allowed: {', '.join(there)}"])


def _orders(candidate: Candidate, question: Question, trace: Trace | None, random: bool) -> list[Order]:
    """The runs of a candidate."""
    given = question.policy
    policy = given if isinstance(given, Policy) else policy_text(candidate.scenario, given)
    return list(orders_at(candidate.scenario, [policy], question.seeds if random else 1, trace))


def _meets_all(result: Mapping[str, float], targets: Sequence[Target]) -> bool:
    """Whether all targets are met with every job completed; a run with unfinished jobs does not count."""
    return undone(result) == 0.0 and all(target.met(result) for target in targets)


def _closest(missed: Sequence[Trial], excluded: Sequence[Candidate], targets: Sequence[Target]) -> Trial | None:
    """The candidate that misses its worst target least; candidates with runs first, since bounds are optimistic."""
    if missed:
        return min(missed, key=lambda trial: math.fsum(_worst(r, targets) for r in trial.results) / trial.runs)
    known = [target for target in targets if target.measure.key in excluded[0].known] if excluded else []
    nearest = min(excluded, key=lambda candidate: _worst(candidate.known, known), default=None)
    return None if nearest is None else Trial(nearest, (), 0)


def _worst(result: Mapping[str, float], targets: Sequence[Target]) -> float:
    return max(target.excess(result) for target in targets)


def read_candidates(
    question: Question, *, faults: bool = True, impossible: list[str] | None = None
) -> tuple[list[Candidate], Trace | None, tuple[Path, ...]]:
    """All combinations of the varied values that are valid, their trace and the folders of files.

    impossible: collects the errors of the others.
    Raises InputError with the error of the first when none is valid.
    """
    if (many := math.prod(map(len, question.vary.values()))) > SIZES_MOST:
        raise InputError([f"--vary: {many:,} sizes; at most {SIZES_MOST:,} are possible"])
    found: list[Candidate] = []
    problem: InputError | None = None
    trace: Trace | None = None
    folders: tuple[Path, ...] = ()
    for chosen in product(*question.vary.values()):
        values = dict(zip(question.vary, chosen, strict=True))
        changes = [*question.overrides, *(f"{key}={value}" for key, value in values.items())]
        if question.grow:
            changes += grown(question.file, question.overrides, changes)
        try:
            file = read_scenario(question.file, changes, question.trace)
            trace = trace if trace is not None else file.trace()
            found.append(_candidate(file, values, trace, faults, question))
        except InputError as error:
            problem = problem or error  # e.g. a job that is larger than this few nodes
            if impossible is not None:
                impossible.append(error.lines[0])
            continue
        folders = file.folders
    if found and (
        wrong := set(question.available) - set(load_profile(found[0].scenario.cluster.hardware).accelerators)
    ):
        raise InputError([f"--available: {min(wrong)!r} is not an accelerator of the hardware profile"])
    if not found:
        raise problem or InputError(["nothing to vary: give --vary KEY=LOW:HIGH"])
    return found, trace, folders


def doubts(question: Question) -> list[str]:
    """Warnings on a question: allowed, but probably not intended. Raises InputError."""
    found = [one.doubt for one in question.targets if one.doubt]
    tree = changed_tree(question.file, question.overrides)
    workload = tree.get("workload") if isinstance(tree, dict) else None
    generate = workload.get("generate") if isinstance(workload, dict) else None
    classes = generate.get("classes") if isinstance(generate, dict) else None
    loads = [c for c in classes or () if isinstance(c, dict) and c.get("load") is not None]
    if loads and any(key.startswith("cluster.") for key in question.vary):
        found.append(
            "workload.generate: 'load' is a share of each size, so larger clusters get more jobs; "
            "give 'rate' to keep the jobs as they are"
        )
    return [*found, *_doubtful_values(question)]


_LOOKED_AT = 20  # values of each key


def _doubtful_values(question: Question) -> list[str]:
    """Warnings of `validate` for the scenario and for each varied value alone, and values without effect."""
    found: list[str] = []
    for key, values in question.vary.items():
        for value in values[:_LOOKED_AT]:
            changes = [*question.overrides, f"{key}={value}"]
            try:
                if question.grow:
                    changes += grown(question.file, question.overrides, changes)
                file = read_scenario(question.file, changes, question.trace, fits=False)
            except InputError:
                continue  # said where sizes are read
            found += [line.removeprefix("warning: ") for line in file.warnings]
            found += assumed_draw(file.scenario)
        if key.endswith(".accelerator") and len(values) > 1:
            found += [*_same_on_all(question), *_unlike_rates(question, values)]
    return list(dict.fromkeys(found))


def _same_on_all(question: Question) -> list[str]:
    """A warning that jobs of fixed duration take equally long on every accelerator, if there are any."""
    workload = read_scenario(question.file, question.overrides, question.trace, fits=False).scenario.workload
    fixed = any(job.duration is not None for job in workload.jobs)
    if not fixed and workload.generate is None and workload.trace is None:
        return []
    return [
        "jobs given by their duration take as long on every accelerator: vary the 'speed' of the node group "
        "with it, or describe the jobs by a model"
    ]


def _unlike_rates(question: Question, accelerators: Sequence[str]) -> Iterator[str]:
    """A warning that shares of the peak rate have different origins, if models use them."""
    scenario = read_scenario(question.file, question.overrides, question.trace, fits=False).scenario
    known = load_profile(scenario.cluster.hardware).accelerators
    if by_curve(scenario):
        yield from unlike_curves({name: curve_origin(known[name]) for name in accelerators if name in known})


def grown(file: Path, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Changes that keep each training job's share of the cluster."""
    trees = [changed_tree(file, changes) for changes in (before, after)]
    old, new = (sum(g.get("count", 1) * g.get("gpus", 1) for g in tree["cluster"].get("nodes", [])) for tree in trees)
    if not old or not new:
        raise InputError([f"{file}: jobs can grow with 'cluster.nodes' only"])
    jobs = trees[1]["workload"].get("jobs", [])
    return [
        f"workload.jobs.{k}.gpus={max(1, job.get('gpus', 1) * new // old)}"
        for k, job in enumerate(jobs)
        if job.get("model")
    ]


def _candidate(
    file: ScenarioFile, values: dict[str, Any], trace: Trace | None, faults: bool, question: Question
) -> Candidate:
    scenario = file.scenario
    if not faults:
        scenario = scenario.model_copy(update={"faults": FaultsSpec()})
    profile = load_profile(scenario.cluster.hardware)
    bound = lower_bound(scenario, trace)
    bound_s = {"makespan_s": bound.makespan_s, "completion_mean_s": bound.completion_mean_s}
    bound_s = {key: 0.0 if math.isnan(value) else value for key, value in bound_s.items()}
    nodes = sum(group.count for group in scenario.cluster.groups)
    priced = question.asks_for("price_usd_per_h", "cost_usd")
    price = price_usd_per_h(scenario, profile) if priced else math.nan
    standing = standing_usd_per_h(scenario, profile) if priced else math.nan
    power = power_w(scenario, profile) if question.asks_for("power_w", "energy_j") else math.nan
    return Candidate(values, scenario, nodes, price, standing, power, bound_s, *supplied(scenario, question.available))


_NODE_KEYS = {key: key for key in NodeGroup.model_fields} | {"nodes": "count"}
"""Full keys for the bare name of a node group's key."""


def read_vary(text: str) -> tuple[str, list[Any]]:
    """`KEY=LOW:HIGH`, `KEY=LOW:HIGH:STEP` (whole numbers) or `KEY=A,B,C` as (key, values)."""
    key, equals, values = text.partition("=")
    if (name := key.strip()) in _NODE_KEYS:
        raise InputError([f"--vary {text!r}: did you mean cluster.nodes.0.{_NODE_KEYS[name]}={values}?"])
    parts = values.replace("..", ":").split(":")
    if equals and key and len(parts) in (2, 3) and all(is_index(part.strip()) for part in parts):
        low, high, step = [int(part) for part in parts] + ([1] if len(parts) == 2 else [])
        if low <= high and step >= 1:
            if (many := (high - low) // step + 1) > SIZES_MOST:
                raise InputError([f"--vary {text!r}: {many:,} sizes; at most {SIZES_MOST:,} are possible"])
            return key.strip(), list(range(low, high + 1, step))
    elif equals and key and values.strip() and ".." not in values and not _RANGE.fullmatch(values):
        return key.strip(), [value.strip() for value in values.split(",")]
    wanted = "KEY=LOW:HIGH, KEY=LOW:HIGH:STEP (LOW first) or KEY=A,B,C"
    raise InputError([f"--vary {text!r}: write {wanted}, such as cluster.nodes.0.count=2:8"])
