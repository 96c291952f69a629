"""A sweep: every planned run is made once, despite killed processes.

Runs are identified by the hash of their inputs. A second start with the same file makes the missing runs; a changed
file or changed code makes new runs, and old ones are set aside, not deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.base.sources import code_hash
from equipoise.policies.contract import CONTRACT_VERSION
from equipoise.policies.parameters import AnyPolicy, check_used, split_point, with_parameters
from equipoise.policies.registry import PolicyError, make_policy, parameters_of
from equipoise.sim.assumptions import curve_origins, unlike_curves
from equipoise.sim.hardware.profile import is_path
from equipoise.sim.loading.checks import trace_problems
from equipoise.sim.loading.file import ScenarioFile, read_scenario, scenario_file
from equipoise.sim.record import Run, versions
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError, Tree, read_text, read_tree
from equipoise.sim.seeds import is_random
from equipoise.study.folders import LEDGER, RUNS, SHARDS, check_free
from equipoise.study.runs.make import How, Progress, make
from equipoise.study.runs.orders import Order, Row, name_of
from equipoise.study.runs.perform import Shared, orders_at, trace_at
from equipoise.study.runs.store import PARQUET, Ledger, ledger_with_copy, only_writer
from equipoise.study.runs.sweep_spec import RUNS_MOST, Point, SweepSpec, place_of, read_sweep, what_can_be_read
from equipoise.study.runs.until import MOST, Until, check_policies, how_it_ended, read_until, whole_points

_RUN_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class SweepOutcome:
    """Outcome of a sweep: numbers of runs, the failed ones, and points below the requested precision."""

    runs: int
    made: int
    reused: int
    failed: tuple[Row, ...]
    notes: tuple[str, ...]
    unsure: tuple[int, ...] = ()


@dataclass(frozen=True)
class SweepOptions:
    """How to make a sweep.

    jobs: processes here. dask: address of a scheduler instead. shard: (i, n), make the i-th of n parts.
    fresh: delete existing results. retry: make failed runs again. keep: write a run directory per run. timeline:
    also keep the timeline in each run directory. until: a condition as in study.runs.until; each point gets seeds,
    from the file's `seeds` up to `max_seeds`, until it holds there. policies: in place of the file's.
    """

    jobs: int = 1
    dask: str | None = None
    shard: tuple[int, int] | None = None
    fresh: bool = False
    retry: bool = False
    keep: bool = False
    timeline: bool = False
    until: str | None = None
    max_seeds: int = MOST
    policies: tuple[AnyPolicy, ...] = ()


def sweep(
    file: Path,
    out: Path,
    options: SweepOptions = SweepOptions(),
    *,
    progress: Progress | None = None,
    runner: Callable[..., Run] = run,
) -> SweepOutcome:
    """Make the runs of the sweep in `file` that `out` does not have yet.

    Raises InputError or PolicyError before anything is run when the sweep is wrong or `out` holds another kind of
    study, StoreError when `out` cannot be used or written, EngineError when the workers cannot be started or are
    lost. A failed run does not raise: it is kept with its error.
    """
    check_free(out, "sweep")
    orders, shared, notes, until = planned(file, options)
    unsure: tuple[int, ...] = ()
    keep = (out / RUNS).resolve() if options.keep else None
    shared = replace(shared, runner=runner, keep=keep, timeline=options.timeline)
    how = How(options.jobs, options.dask, options.retry, progress, _label)
    folder = out if options.shard is None else out / SHARDS / "{}-of-{}".format(*options.shard)
    with only_writer(folder):
        if options.fresh:
            forget(folder)
        with ledger_with_copy(folder) as store:
            if away := store.keep_only(order.id for order in orders):
                notes.append(f"{away} runs of an earlier file or earlier code were set aside")
            store.set_about(**_about(file, until), scenario=orders[0].scenario)
            store.set_about(planned=str(len(orders)))
            if options.shard is None and not options.fresh:
                take_shards(store, out, {order.id for order in orders})
            chosen, made = make(store, orders, shared, how, until)
            if until is not None:
                store.keep_only(order.id for order in chosen)
                more, unsure = how_it_ended(store, chosen, until)
                notes += more
            failed = tuple(store.failures())
    return SweepOutcome(len(chosen), len(made), len(chosen) - len(made), failed, tuple(notes), unsure)


def _label(row: Row) -> str:
    return f"point {row['point']}, {row['policy']} seed {row['seed']}"


def planned(file: Path, options: SweepOptions) -> tuple[list[Order], Shared, list[str], Until | None]:
    """All possible runs of the sweep (or its shard), their shared data, notes, and the stopping condition.

    Raises InputError and PolicyError as `orders_of` does.
    """
    spec, _ = read_sweep(file)
    if options.policies:
        spec = spec.model_copy(update={"policies": tuple(map(name_of, options.policies))})
    until = None
    if options.until is not None:
        until = read_until(options.until, spec.seeds, options.max_seeds)
        check_policies(until, spec.policies)
        spec = spec.model_copy(update={"seeds": until.most})
        if spec.runs_most > RUNS_MOST:
            raise InputError([f"{file}: {spec.runs_most:,} runs; at most {RUNS_MOST:,} are possible"])
    try:
        orders, shared, notes = orders_of(spec, file.parent, str(file), options.policies)
    except (InputError, PolicyError):
        check(file)  # says all that is wrong, and where
        raise
    if options.shard is not None:
        part = of_shard if until is None else whole_points  # a point's seeds are looked at together
        orders = list(part(orders, *options.shard))
    return orders, shared, notes, until


def orders_of(
    spec: SweepSpec, base: Path, source: str, policies: Sequence[AnyPolicy] = ()
) -> tuple[list[Order], Shared, list[str]]:
    """All runs of a sweep in a fixed order, their shared data, and notes.

    base: folder that the scenario is named from. source: the sweep file, for messages. policies: in place of its.
    Raises InputError (a point that cannot be run) and PolicyError before anything is run.
    """
    given = policies or spec.policies
    for policy in given:
        if isinstance(policy, str):
            make_policy(policy)
    check_used(dict.fromkeys(key for point in spec.points() for key in point), given)
    orders: list[Order] = []
    sure = 0
    folders: tuple[Path, ...] = ()
    origins: dict[str, str] = {}
    for number, whole in enumerate(spec.points()):
        point, own = split_point(whole)
        file = _at_point(spec, base, point, f"{source}: {_named(number, point)}")
        origins |= curve_origins(file.scenario)
        trace = trace_at(file.scenario.workload.trace, file.folders)
        if trace is not None and (wrong := trace_problems(file.scenario, trace, trace.source)):
            raise InputError(f"{source}: {_named(number, point)}: {line}" for line in wrong)
        seeds = spec.seeds if is_random(file.scenario) else 1
        sure, folders = sure + (seeds < spec.seeds), file.folders
        for policy in given:  # goes by its own name at every point
            here = [with_parameters(policy, own)]
            made = orders_at(file.scenario, here, seeds, trace, point=number, values=whole, number=len(orders))
            orders += [replace(order, policy=name_of(policy)) for order in made]
    notes = [f"{sure} points are not random and are run on one seed"] if sure else []
    notes += unlike_curves(origins)
    return _distinct(orders), Shared(folders), notes


def check(file: Path) -> None:
    """Raises InputError with everything that is wrong with the sweep in `file`: policies, scenario, points."""
    lines: list[str] = []
    found: SweepSpec | None
    try:
        found = read_sweep(file)[0]
    except InputError as error:
        lines += error.lines
        found = what_can_be_read(file)
    if found is None:
        raise InputError(lines)
    spec, tree = found, read_tree(read_text(file), str(file))
    policies = []
    for k, policy in enumerate(spec.policies):
        try:
            make_policy(policy)
            policies.append(policy)
        except PolicyError as error:
            lines.append(tree.error(("policies", k), str(error)))
    points = spec.points()[:_CHECKED]
    try:
        read_text(scenario_file(_scenario_of(spec, file.parent)))
    except InputError as error:
        lines += [tree.error(("scenario",), line) for line in error.lines]
        points = []
    try:
        if points:
            read = read_scenario(_scenario_of(spec, file.parent), (), spec.trace)
            trace_at(read.scenario.workload.trace, read.folders)
    except InputError as error:
        lines += error.lines
        points = []
    told = dict[str, None]()
    for number, point in enumerate(points):
        told |= dict.fromkeys(_wrong_at(spec, tree, file.parent, number, point))
        told |= dict.fromkeys(_wrong_parameters(spec, tree, policies, number, point))
    if lines := [*lines, *told]:
        raise InputError(lines)


def _wrong_at(spec: SweepSpec, tree: Tree, base: Path, number: int, whole: Point) -> Iterator[str]:
    """Errors of the scenario at a point, located at the value that causes them if there is only one."""
    try:
        point, _ = split_point(whole)
    except PolicyError:
        return  # said with the parameters
    try:
        _at_point(spec, base, point, "")
    except InputError as error:
        for line in error.lines:
            text = line.removeprefix(": ")
            key = next((k for k in point if text.startswith(f"{_override(k, point[k])}: ")), None)
            if key is None:
                yield tree.error(place_of(spec, number), f"{_named(number, point)}: {text}")
            else:
                told = text.removeprefix(f"{_override(key, point[key])}: ").removeprefix(f"{key}: ")
                yield tree.error(place_of(spec, number, key, point[key]), told)


def _wrong_parameters(spec: SweepSpec, tree: Tree, policies: Sequence[str], number: int, point: Point) -> Iterator[str]:
    """Errors of the parameters of stages at a point."""
    for key, value in point.items():
        try:
            own = split_point({key: value})[1]
            if policies:
                check_used([key], policies)
        except PolicyError as error:
            yield tree.error(place_of(spec, number, key), str(error))
            continue
        try:
            for policy in policies:
                with_parameters(policy, own)
        except PolicyError as error:
            known = all(given.keys() <= parameters_of(stage) for stage, given in own.items())
            yield tree.error(place_of(spec, number, key, *([value] if known else [])), str(error))


_CHECKED = 200
"""Number of points checked before the sweep starts."""


def _named(number: int, point: Point) -> str:
    values = ", ".join(f"{key}={value}" for key, value in point.items())
    return f"point {number} ({values})" if values else "the scenario"


def _distinct(orders: list[Order]) -> list[Order]:
    """Each run once: two points can stand for the same scenario."""
    return list({order.id: order for order in reversed(orders)}.values())[::-1]


def _scenario_of(spec: SweepSpec, base: Path) -> Path:
    """The scenario of a sweep in the folder `base`: a file in that folder, else a built-in one."""
    beside = base / spec.scenario
    return Path(spec.scenario) if not is_path(spec.scenario) and not beside.exists() else beside


def _at_point(spec: SweepSpec, base: Path, point: Point, where: str) -> ScenarioFile:
    try:
        overrides = [_override(key, value) for key, value in point.items()]
        return read_scenario(_scenario_of(spec, base), overrides, spec.trace)
    except InputError as error:
        raise InputError(f"{where}: {line.removeprefix('--set ')}" for line in error.lines) from error


def _override(key: str, value: object) -> str:
    return f"{key}={json.dumps(value)}"


def take_shards(store: Ledger, out: Path, planned: set[str]) -> None:
    """Take the planned runs that shards in `out` have made and the ledger lacks, or has as failed."""
    for path in sorted((out / SHARDS).glob(f"*/{LEDGER}")):
        known = store.status()
        with Ledger(path.parent) as shard:
            made = [row for row in shard.rows() if row["id"] in planned]
        missing = [row for row in made if row["id"] not in known]
        better = [row for row in made if row["status"] == "done" and known.get(row["id"], ("", 0))[0] == "failed"]
        store.put_all(missing + better)


def of_shard(orders: Sequence[Order], shard: int, shards: int) -> Iterator[Order]:
    """Every `shards`-th order, beginning with the `shard`-th (from 1), so that shards are alike in size."""
    yield from orders[shard - 1 :: shards]


def forget(out: Path) -> None:
    """Delete the results of an earlier sweep, or of a shard, in its folder."""
    for name in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm", PARQUET):
        (out / name).unlink(missing_ok=True)
    for folder in (out / RUNS).glob("*"):
        if _RUN_ID.fullmatch(folder.name):  # whatever else lies there is not ours
            shutil.rmtree(folder, ignore_errors=True)


def _about(file: Path, until: Until | None) -> dict[str, str]:
    text = file.read_text(encoding="utf-8")
    stop = "" if until is None else f"\0{until}"
    plan = hashlib.sha256(f"{text}\0{code_hash()}{stop}".encode()).hexdigest()[:16]
    facts = {"sweep": text, "plan": plan, "code": code_hash(), "contract": str(CONTRACT_VERSION)}
    if until is not None:
        facts |= {"until": until.text, "level of intervals": repr(until.level)}
    return facts | {f"version of {name}": text for name, text in versions().items()}
