"""A sweep: every run of a plan made once, whatever is killed in between.

Runs are known by the hash of their inputs. A second start with the same file makes what is missing; a changed
file or changed code makes other runs, and what no longer belongs is put aside, not deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from equipoise.policies.contract import CONTRACT_VERSION
from equipoise.policies.sources import code_hash
from equipoise.sim.record import Run, versions
from equipoise.sim.run import run
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import check_free
from equipoise.study.runs.engines import Engine, engine
from equipoise.study.runs.orders import Order, Row, Shared, of_shard, orders_of
from equipoise.study.runs.shards import FOLDER, ShardFile
from equipoise.study.runs.store import LEDGER, PARQUET, Ledger, only_writer
from equipoise.study.runs.sweep_spec import RUNS_MOST, read_sweep
from equipoise.study.runs.sweep_until import how_it_ended, looks, whole_points
from equipoise.study.runs.until import MOST, Until, check_policies, read_until
from equipoise.study.runs.warm import warm

Progress = Callable[[int, int, int], None]
"""Called as progress(runs done, runs in all, runs failed)."""
RUNS = "runs"
_RUN_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: numbers of runs, the failed ones, and points that are less sure than was asked for."""

    runs: int
    made: int
    reused: int
    failed: tuple[Row, ...]
    notes: tuple[str, ...]
    unsure: tuple[int, ...] = ()


@dataclass(frozen=True)
class Options:
    """How to make a sweep.

    jobs: processes here. dask: address of a scheduler instead. shard: (i, n), make the i-th of n parts.
    fresh: forget what is there. retry: make failed runs again. keep: write a run directory per run.
    timeline: keep that, too, in each run directory. until: a condition as in study.runs.until; each point gets
    seeds, from the file's `seeds` up to `max_seeds`, until it holds there.
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


def sweep(
    file: Path,
    out: Path,
    options: Options = Options(),
    *,
    progress: Progress | None = None,
    runner: Callable[..., Run] = run,
) -> Outcome:
    """Make the runs of the sweep in `file` that `out` does not have yet.

    Raises InputError or PolicyError before anything is run when the sweep is wrong or `out` holds another kind of
    study, StoreError when `out`
    cannot be used or written, EngineError when the workers cannot be started or have gone away. A run that
    fails does not raise: it is kept with its error.
    """
    check_free(out, "sweep")
    orders, shared, notes, until = planned(file, options)
    unsure: tuple[int, ...] = ()
    keep = (out / RUNS).resolve() if options.keep else None
    shared = replace(shared, runner=runner, keep=keep, timeline=options.timeline)
    lock = "sweep.lock" if options.shard is None else f"shard-{options.shard[0]}-of-{options.shard[1]}.lock"
    with only_writer(out, lock):
        if options.fresh:
            forget(out, options.shard)
        with _store(out, options.shard) as store:
            if away := store.keep_only(order.id for order in orders):
                notes.append(f"{away} runs of an earlier file or earlier code were put aside")
            store.set_about(**_about(file, until))
            chosen, made = _make(store, orders, until, shared, options, progress)
            if until is not None:
                store.keep_only(order.id for order in chosen)
                more, unsure = how_it_ended(store, chosen, until)
                notes += more
            failed = tuple(store.failures())
            copied = store.export() if isinstance(store, Ledger) else None
        if copied is not None:
            os.utime(copied)  # closing the ledger has written it once more
    return Outcome(len(chosen), made, len(chosen) - made, failed, tuple(notes), unsure)


def planned(file: Path, options: Options) -> tuple[list[Order], Shared, list[str], Until | None]:
    """All runs that the sweep (or its shard) may make, what they share, notes, and when to stop adding seeds.

    Raises InputError and PolicyError as `orders_of` does.
    """
    spec, _ = read_sweep(file)
    until = None
    if options.until is not None:
        until = read_until(options.until, spec.seeds, options.max_seeds)
        check_policies(until, spec.policies)
        spec = spec.model_copy(update={"seeds": until.most})
        if spec.runs_most > RUNS_MOST:
            raise InputError([f"{file}: {spec.runs_most:,} runs; at most {RUNS_MOST:,} are possible"])
    orders, shared, notes = orders_of(spec, file.parent, str(file))
    if options.shard is not None:
        part = of_shard if until is None else whole_points  # a point's seeds are looked at together
        orders = list(part(orders, *options.shard))
    return orders, shared, notes, until


Store = Ledger | ShardFile


def _store(out: Path, shard: tuple[int, int] | None) -> AbstractContextManager[Store]:
    return Ledger(out) if shard is None else ShardFile(out, *shard)


def _missing(
    store: Store, orders: Sequence[Order], shared: Shared, options: Options
) -> tuple[list[Order], dict[str, int]]:
    """Orders to make, and how often each has been tried before; also those without what is to be kept."""
    status = store.status()
    ready = {"done"} if options.retry else {"done", "failed"}
    missing = [
        order
        for order in orders
        if (state := status.get(order.id, ("", 0))[0]) not in ready
        or (state == "done" and not _is_kept(order, shared))
    ]
    return missing, {order.id: status.get(order.id, ("", 0))[1] for order in missing}


def _is_kept(order: Order, shared: Shared) -> bool:
    """Whether the run directory is there and complete, if it is to be kept at all."""
    if shared.keep is None:
        return True
    folder = shared.keep / order.id
    timeline = not shared.timeline or (folder / "timeline" / "segments.parquet").is_file()
    return (folder / "summary.json").is_file() and timeline


def _make(
    store: Store,
    orders: Sequence[Order],
    until: Until | None,
    shared: Shared,
    options: Options,
    progress: Progress | None,
) -> tuple[Sequence[Order], int]:
    """Make what is missing, look after look; each run is put into the store as soon as it is there.

    Returns the runs that belong to the sweep as it ended, and how many of them were made now.
    """
    chosen: Sequence[Order] = orders
    tried: set[str] = set()
    with ExitStack() as stack:
        workers: Engine | None = None
        for chosen in looks(store, orders, until):
            missing, attempts = _missing(store, chosen, shared, options)
            missing = [order for order in missing if order.id not in tried]
            if missing and workers is None:
                workers = stack.enter_context(_engine(missing, shared, options, many=until is not None))
            done, failed = len(chosen) - len(missing), 0
            for row in workers.rows(missing) if workers is not None and missing else ():
                store.put({**row, "attempts": attempts[row["id"]] + 1})
                done, failed = done + 1, failed + (row["status"] == "failed")
                if progress is not None:
                    progress(done, len(chosen), failed)
            tried.update(order.id for order in missing)
    return chosen, len(tried)


def _engine(
    missing: Sequence[Order], shared: Shared, options: Options, *, many: bool
) -> AbstractContextManager[Engine]:
    """Who makes the runs; `many`: more will come than these."""
    if options.jobs > 1 and shared.runner is run:
        warm(order.policy for order in missing)  # once, before several processes would all compile
    return engine(shared, options.jobs if many else min(options.jobs, len(missing)), options.dask)


def forget(out: Path, shard: tuple[int, int] | None) -> None:
    """Delete what an earlier sweep (or this shard of it) left in `out`."""
    if shard is not None:
        for kind in ("jsonl", "former"):
            (out / FOLDER / f"shard-{shard[0]}-of-{shard[1]}.{kind}").unlink(missing_ok=True)
        return
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
