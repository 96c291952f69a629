"""A sweep: every run of a plan made once, whatever is killed in between.

Runs are known by the hash of their inputs. A second start with the same file makes what is missing; a changed
file or changed code makes other runs, and what no longer belongs is put aside, not deleted.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from policies.contract import CONTRACT_VERSION
from sim.record import Run, code_hash, versions
from sim.run import run
from study.engines import engine
from study.orders import Order, Row, Shared, of_shard, orders_of
from study.shards import FOLDER, ShardFile
from study.store import LEDGER, PARQUET, Ledger, only_writer
from study.sweep_spec import read_sweep
from study.warm import warm

Progress = Callable[[int, int, int], None]
"""Called as progress(runs done, runs in all, runs failed)."""
RUNS = "runs"


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: numbers of runs, and the failed ones."""

    runs: int
    made: int
    reused: int
    failed: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """How to make a sweep.

    jobs: processes here. dask: address of a scheduler instead. shard: (i, n), make the i-th of n parts.
    fresh: forget what is there. retry: make failed runs again. keep: write a run directory per run.
    """

    jobs: int = 1
    dask: str | None = None
    shard: tuple[int, int] | None = None
    fresh: bool = False
    retry: bool = False
    keep: bool = False


def sweep(
    file: Path,
    out: Path,
    options: Options = Options(),
    *,
    progress: Progress | None = None,
    runner: Callable[..., Run] = run,
) -> Outcome:
    """Make the runs of the sweep in `file` that `out` does not have yet.

    Raises InputError or PolicyError before anything is run when the sweep is wrong, StoreError when `out`
    cannot be used or written, EngineError when the workers cannot be started or have gone away. A run that
    fails does not raise: it is kept with its error.
    """
    spec, _ = read_sweep(file)
    orders, shared, notes = orders_of(spec, file.parent, str(file))
    if options.shard is not None:
        orders = list(of_shard(orders, *options.shard))
    shared = replace(shared, runner=runner, keep=(out / RUNS).resolve() if options.keep else None)
    lock = "sweep.lock" if options.shard is None else f"shard-{options.shard[0]}-of-{options.shard[1]}.lock"
    with only_writer(out, lock):
        if options.fresh:
            forget(out, options.shard)
        with _store(out, options.shard) as store:
            away = store.keep_only(order.id for order in orders)
            if away:
                notes.append(f"{away} runs of an earlier file or earlier code were put aside")
            store.set_about(**_about(file))
            missing, attempts = _missing(store, orders, options)
            _make(store, missing, attempts, shared, options, len(orders), progress)
            failed = tuple(store.failures())
            if isinstance(store, Ledger):
                store.export()
    return Outcome(len(orders), len(missing), len(orders) - len(missing), failed, tuple(notes))


Store = Ledger | ShardFile


def _store(out: Path, shard: tuple[int, int] | None) -> AbstractContextManager[Store]:
    return Ledger(out) if shard is None else ShardFile(out, *shard)


def _missing(store: Store, orders: Sequence[Order], options: Options) -> tuple[list[Order], dict[str, int]]:
    """Orders to make, and how often each has been tried before."""
    status = store.status()
    ready = {"done"} if options.retry else {"done", "failed"}
    missing = [order for order in orders if status.get(order.id, ("", 0))[0] not in ready]
    return missing, {order.id: status.get(order.id, ("", 0))[1] for order in missing}


def _make(
    store: Store,
    missing: Sequence[Order],
    attempts: dict[str, int],
    shared: Shared,
    options: Options,
    total: int,
    progress: Progress | None,
) -> None:
    """Make the missing runs and put each into the store as soon as it is there."""
    if not missing:
        return
    if options.jobs > 1 and shared.runner is run:
        warm(order.policy for order in missing)  # once, before several processes would all compile
    done, failed = total - len(missing), 0
    with engine(shared, min(options.jobs, len(missing)), options.dask) as made:
        for row in made.rows(missing):
            store.put({**row, "attempts": attempts[row["id"]] + 1})
            done, failed = done + 1, failed + (row["status"] == "failed")
            if progress is not None:
                progress(done, total, failed)


def forget(out: Path, shard: tuple[int, int] | None) -> None:
    """Delete what an earlier sweep (or this shard of it) left in `out`."""
    if shard is not None:
        (out / FOLDER / f"shard-{shard[0]}-of-{shard[1]}.jsonl").unlink(missing_ok=True)
        return
    for name in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm", PARQUET):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / RUNS, ignore_errors=True)


def _about(file: Path) -> dict[str, str]:
    text = file.read_text(encoding="utf-8")
    plan = hashlib.sha256(f"{text}\0{code_hash()}".encode()).hexdigest()[:16]
    facts = {"sweep": text, "plan": plan, "code": code_hash(), "contract": str(CONTRACT_VERSION)}
    return facts | {f"version of {name}": text for name, text in versions().items()}
