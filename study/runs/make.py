"""Making runs: orders in, rows out, each stored as soon as it is complete.

A single comparison is a sweep of one point; a question such as `limits` is a sweep whose rows are not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from equipoise.policies.contract import Policy
from equipoise.policies.parameters import AnyPolicy
from equipoise.sim.run import run
from equipoise.study.runs.engine import Engine, EngineError
from equipoise.study.runs.orders import Order, Row
from equipoise.study.runs.perform import Shared, scenario_of
from equipoise.study.runs.store import Store
from equipoise.study.runs.until import Until, looks
from equipoise.study.runs.warm import processors, warm, warming

Progress = Callable[[int, int, str], None]
"""Called as progress(runs done, runs in total, label of the last one)."""


@dataclass(frozen=True)
class How:
    """jobs: processes here. dask: address of a scheduler instead. retry: make failed runs again.

    label: name of a row in the progress, by default its policy and seed.
    """

    jobs: int = 1
    dask: str | None = None
    retry: bool = False
    progress: Progress | None = None
    label: Callable[[Row], str] = lambda row: f"{row['policy']} seed {row['seed']}"

    def __post_init__(self) -> None:
        """Raises EngineError for fewer than one process."""
        if self.jobs < 1:
            raise EngineError(f"jobs: {self.jobs!r} processes; at least 1 is needed")


class InProcess:
    """Makes one run after the other in this process."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def rows(self, orders: Sequence[Order]) -> Iterator[Row]:
        """Rows in the order of `orders`."""
        for order in orders:
            yield self.shared.perform(order)


@contextmanager
def engine(shared: Shared, jobs: int = 1, dask: str | None = None) -> Iterator[Engine]:
    """The engine for `jobs` processes here (1: this one), or for the Dask scheduler at address `dask`.

    Raises EngineError when Dask is needed and not installed, or does not answer.
    """
    if dask is not None:
        try:
            from equipoise.study.runs.dask_cluster import on_cluster  # Dask need not be installed
        except ImportError as error:
            raise EngineError("Dask is not installed: pip install 'equipoise[dist]'") from error
        with on_cluster(dask, shared) as cluster:
            yield cluster
    elif jobs == 1:
        yield InProcess(shared)
    else:
        from equipoise.study.runs.processes import Processes  # loads multiprocessing

        with Processes(shared, jobs) as processes:
            yield processes


@contextmanager
def workers(shared: Shared, orders: Sequence[Order], jobs: int, dask: str | None = None) -> Iterator[Engine]:
    """The engine for these runs. Their kernels are compiled once, not by each of several processes.

    Simulations get at most one process per processor, but at least two, so that one may be killed.
    """
    policies = list({order.policy: order.given or order.policy for order in orders}.values())
    if jobs > 1 or dask is not None:
        _check_can_travel(policies)
    compiled = dask is None and (shared.runner is run or getattr(shared.runner, "simulates", False))
    if compiled:
        jobs = _at_most(jobs, max(processors(), 2))
    with ExitStack() as stack:
        if compiled and orders:
            scenario = scenario_of(orders[0].scenario)
            if jobs == 1:
                stack.enter_context(warming(policies, scenario))
            else:
                warm(policies, scenario)
        yield stack.enter_context(engine(shared, jobs, dask))


@cache  # told once: a search asks for workers at each trial
def _at_most(jobs: int, useful: int) -> int:
    """Limit the processes, because each further one loads the kernels again without a gain in speed."""
    if jobs > useful:
        told = "more processes than processors take memory and save no time"
        print(f"{useful} processes instead of {jobs}: {told}", file=sys.stderr)
    return min(jobs, useful)


def _check_can_travel(policies: Sequence[AnyPolicy]) -> None:
    """Raises EngineError for a stage that no other process can import."""
    for policy in policies:
        for stage in policy.stages if isinstance(policy, Policy) else ():
            if getattr(sys.modules.get(type(stage).__module__), "__file__", None) is None:
                raise EngineError(
                    f"stage {stage.name!r} is not in a file, so other processes cannot import it: use one process, "
                    "or put it in a module"
                )


def make(
    store: Store, orders: Sequence[Order], shared: Shared, how: How, until: Until | None = None
) -> tuple[Sequence[Order], set[str]]:
    """Make the runs missing in `store`, in steps of `until` (one step without it).

    Returns the orders of the finished study, and the ids of those that were made now.
    Raises StoreError and EngineError; a run that fails is kept with its error.
    """
    chosen: Sequence[Order] = orders
    tried: set[str] = set()
    with ExitStack() as stack:
        makers: Engine | None = None
        for chosen in looks(store, orders, until):
            status = store.status()
            needed = (o for o in chosen if o.id not in tried and _is_missing(o, status, shared, how.retry))
            missing = list({order.id: order for order in needed}.values())
            if missing and makers is None:
                jobs = how.jobs if until is not None else min(how.jobs, len(missing))
                makers = stack.enter_context(workers(shared, missing, jobs, how.dask))
            done, failed = len(chosen) - len(missing), 0
            for row in makers.rows(missing) if makers is not None and missing else ():
                store.put({**row, "attempts": status.get(row["id"], ("", 0))[1] + 1})
                done, failed = done + 1, failed + (row["status"] == "failed")
                if how.progress is not None:
                    how.progress(done, len(chosen), how.label(row) + (f", {failed} failed" if failed else ""))
            tried.update(order.id for order in missing)
    return chosen, tried


def _is_missing(order: Order, status: Mapping[str, tuple[str, int]], shared: Shared, retry: bool) -> bool:
    """Whether a run is to be made: missing, failed, or without the files to keep."""
    state = status.get(order.id, ("", 0))[0]
    if state == "done":
        return not shared.is_kept(order)
    return state != "failed" or retry
