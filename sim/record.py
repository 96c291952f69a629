"""The records of a run: one row per job, the cluster's totals, and the identity of its inputs."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.base.files import replacing, write_whole
from equipoise.base.json_values import plain
from equipoise.policies.observation import Columns
from equipoise.sim.fairness import fairness
from equipoise.sim.job.account import WASTED_USES
from equipoise.sim.scenario.tree import write_tree
from equipoise.sim.shown import all_shown

SCHEMA_VERSION = 1

TIMELINE_TABLES = (
    "segments",
    "holdings",
    "usage",
    "links",
    "events",
    "gpus",
    *(t for s in all_shown() for t in s.of_timeline),
)
"""Files of the folder `timeline`; those of features only where the scenario uses them."""
TABLES = tuple(name for shown in all_shown() for name in shown.tables)
"""Further files of a run, of features that its scenario uses."""
WASTE = ("idle", *(use.label for use in WASTED_USES))
"""GPU-seconds that were wasted. With `busy`, and what features hold, they sum to GPUs x makespan."""


@dataclass(frozen=True, repr=False)
class Run:
    """One finished (or stopped) simulation.

    jobs: equal-length columns, in order of (arrival, id): job_id, name, arrival_s, start_s (first start),
        completion_s (when it ended; NaN: it has not), gpus, queueing_s, samples, useful_samples, lost_samples,
        steps, preemptions, restarts, and GPU-seconds by use (busy_gpu_s, input_stall_gpu_s, barrier_wait_gpu_s,
        exposed_communication_gpu_s, pipeline_bubble_gpu_s, tensor_exchange_gpu_s, restart_gpu_s,
        lost_to_faults_gpu_s, useful_gpu_s), energy_j and cost_usd (NaN: not known); ran_on, the types of its GPUs,
        where the cluster has several; status (completed, timeout or "" of what has not ended), where jobs have
        time limits.
    config: the scenario with every default, as JSON.
    totals: numbers of the whole cluster: gpus, nodes, end_s, makespan_s, idle_gpu_s, idle_late_gpu_s (after the
        last arrival), down_gpu_s, decisions,
        refusals, exchanged_bytes (by gradients), transferred_bytes (of data), energy_j, cost_usd and its parts
        gpu_usd, energy_usd and storage_usd, and what of gpu_usd went to each use of GPU time that trains nothing
        (idle_usd, input_stall_usd, ...); tokens trained on, their model_flop, and the peak_flop of the GPUs held
        (0: no model says them); carbon_kg where the scenario says where it runs; committed_usd and upfront_usd
        where a contract binds for a term; where nodes come and go, away_gpu_s in which they were not paid for, and
        node_h[GROUP] and gpu_usd[GROUP] of each group; and what features add.
    tables: those of the features that the scenario uses, by name.
    inputs: hash or version by file or package of all that the records depend on; `identity` is the hash of these.
    cpu_s: processor time of the run; not part of its records, because it differs between equal runs.
    """

    scenario_name: str
    policy_name: str
    seed: int
    identity: str
    config: str
    jobs: Mapping[str, NDArray[Any]]
    totals: Mapping[str, float]
    notes: tuple[str, ...] = ()
    stopped: str | None = None
    cpu_s: float = 0.0
    inputs: Mapping[str, str] = field(default_factory=dict)
    timeline: Mapping[str, Mapping[str, NDArray[Any]]] | None = None
    tables: Mapping[str, Columns] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """The run in one flat row; a metric without any completed job is NaN."""
        jobs, totals = self.jobs, self.totals
        done = ~np.isnan(jobs["completion_s"])
        late = {"timeouts": float((jobs["status"] == "timeout").sum())} if "status" in jobs else {}
        span_s = jobs["completion_s"][done] - jobs["arrival_s"][done]
        away_gpu_s = totals.get("away_gpu_s", 0.0)
        gpu_s = max(totals["gpus"] * totals["makespan_s"] - away_gpu_s, math.ulp(0.0))
        row: dict[str, float] = {
            "jobs": float(done.size),
            "completed": float(done.sum()) - late.get("timeouts", 0.0),
            **late,
            "makespan_s": totals["makespan_s"],
            "completion_mean_s": float(span_s.mean()) if done.any() else math.nan,
        }
        for q in (50, 95, 99):
            row[f"completion_p{q}_s"] = float(np.percentile(span_s, q)) if done.any() else math.nan
        row["queueing_mean_s"] = float(jobs["queueing_s"].mean()) if done.size else math.nan
        for q in (50, 95, 99):
            row[f"queueing_p{q}_s"] = float(np.percentile(jobs["queueing_s"], q)) if done.size else math.nan
        row["goodput_ratio"] = float(jobs["useful_gpu_s"].sum()) / gpu_s
        row["gpu_busy_ratio"] = float(jobs["busy_gpu_s"].sum()) / gpu_s
        row["idle_ratio"] = max(0.0, totals["idle_gpu_s"] - away_gpu_s) / gpu_s
        row["idle_late_ratio"] = min(totals.get("idle_late_gpu_s", math.nan) / gpu_s, row["idle_ratio"])
        for use in WASTE[1:]:
            row[f"{use}_ratio"] = float(jobs[f"{use}_gpu_s"].sum()) / gpu_s
        told = self.by_class() if _classes(self.jobs) is not None else {}
        row |= self._energy_and_money() | fairness(self.jobs) | told
        for shown in all_shown():
            row |= shown.summary(self.tables, totals, gpu_s)
        return row

    def by_class(self) -> dict[str, float]:
        """Percentiles of waiting and completion of each class of jobs, as `queueing_p95_s[NAME]`.

        A class is one of `workload.generate`, each number of GPUs ("8 GPUs"), and each type that jobs ran on.
        """
        jobs, found = self.jobs, dict[str, float]()
        span_s = jobs["completion_s"] - jobs["arrival_s"]
        groups = {gpus_class(int(n)): jobs["gpus"] == n for n in np.unique(jobs["gpus"])}
        for names in (_classes(jobs), jobs.get("ran_on")):
            if names is not None:
                groups |= {str(name): names == name for name in sorted(set(names.tolist()) - {""})}
        for name, rows in groups.items():
            done = rows & ~np.isnan(span_s)
            for q in (50, 95, 99):
                found[f"queueing_p{q}_s[{name}]"] = float(np.percentile(jobs["queueing_s"][rows], q))
                known = float(np.percentile(span_s[done], q)) if done.any() else math.nan
                found[f"completion_p{q}_s[{name}]"] = known
        return found

    def pools(self) -> list[dict[str, Any]]:
        """Node hours that were paid for, and their price, by group of nodes; empty where none comes and goes."""
        named = [(key[7:-1], hours) for key, hours in self.totals.items() if key.startswith("node_h[")]
        return [{"group": name, "node_h": h, "gpu_usd": self.totals[f"gpu_usd[{name}]"]} for name, h in named]

    def _energy_and_money(self) -> dict[str, float]:
        """Energy and cost from the totals; a missing number is unknown."""
        useful = float(self.jobs["useful_samples"].sum()) if "useful_samples" in self.jobs else 0.0
        of = {name: self.totals.get(name, math.nan) for name in ("energy_j", "carbon_kg", "cost_usd")}
        waste = {f"{use}_usd": self.totals.get(f"{use}_usd", math.nan) for use in WASTE}
        return {
            **of,
            **{name: self.totals[name] for name in ("committed_usd", "upfront_usd") if name in self.totals},
            "waste_usd": math.fsum(waste.values()),
            **waste,
            **self._model_work(of["cost_usd"]),
            "energy_per_useful_sample_j": of["energy_j"] / useful if useful > 0.0 else math.nan,
            "cost_per_useful_sample_usd": of["cost_usd"] / useful if useful > 0.0 else math.nan,
        }

    def _model_work(self, cost_usd: float) -> dict[str, float]:
        """Model FLOP utilisation of the GPU time held (Chowdhery et al. 2022, appendix B), and by token."""
        flop, peak, tokens = (self.totals.get(name, math.nan) for name in ("model_flop", "peak_flop", "tokens"))
        return {
            "mfu_ratio": flop / peak if peak > 0.0 else math.nan,
            "tokens_per_s": tokens / self.totals["makespan_s"] if tokens > 0.0 else math.nan,
            "cost_per_million_tokens_usd": 1e6 * cost_usd / tokens if tokens > 0.0 else math.nan,
        }

    def to_df(self) -> Any:
        """One row per job, as a pandas DataFrame. Raises MissingError where pandas is not installed."""
        return data_frame(dict(self.jobs))

    def __repr__(self) -> str:
        done = int((~np.isnan(self.jobs["completion_s"])).sum())
        end = "" if self.stopped is None else f", stopped: {self.stopped}"
        jobs = f"{done} of {len(self.jobs['completion_s'])} jobs done in {self.totals['makespan_s']:.6g} s"
        return f"<Run {self.scenario_name!r}, {self.policy_name}, seed {self.seed}: {jobs}{end}>"

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(name)}</th><td>{value:.6g}</td></tr>'
            for name, value in self.summary().items()
            if not math.isnan(value)
        )
        end = "" if self.stopped is None else f"; stopped: {escape(self.stopped)}"
        title = f"{escape(self.scenario_name)}: {escape(self.policy_name)}, seed {self.seed}{end}"
        return f"<table><caption>{title}</caption><tbody>{rows}</tbody></table>"

    def write(self, folder: Path, *, journal: bool = True) -> None:
        """Write the run directory; `summary.json` comes last, so its presence means the run is complete.

        A timeline of another run that was here is removed; so is a journal, unless it is this run's (`journal`).
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").unlink(missing_ok=True)
        if not journal:
            (folder / "journal.jsonl").unlink(missing_ok=True)
        write_whole(folder / "config.yaml", write_tree(json.loads(self.config)))
        write_parquet(folder / "jobs.parquet", self.jobs)
        for name in TABLES:
            if columns := self.tables.get(name):
                write_parquet(folder / f"{name}.parquet", columns)
            else:
                (folder / f"{name}.parquet").unlink(missing_ok=True)
        self._write_timeline(folder / "timeline")
        _write_json(folder / "manifest.json", self._manifest())
        if self.stopped is None:
            row = {"identity": self.identity, "policy": self.policy_name, "seed": self.seed, **self.summary()}
            _write_json(folder / "summary.json", row | {"totals": dict(self.totals), "notes": list(self.notes)})

    def _write_timeline(self, folder: Path) -> None:
        for name in TIMELINE_TABLES:
            if name not in (self.timeline or {}):
                (folder / f"{name}.parquet").unlink(missing_ok=True)
        if self.timeline is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        for name, columns in (self.timeline or {}).items():
            folder.mkdir(exist_ok=True)
            write_parquet(folder / f"{name}.parquet", columns)

    def _manifest(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "identity": self.identity,
            "scenario": self.scenario_name,
            "policy": self.policy_name,
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "status": "complete" if self.stopped is None else self.stopped,
            "cpu_s": self.cpu_s,
            "python": sys.version.split()[0],
            "machine": platform.machine(),
            "versions": versions(),
        }


def undone(row: Mapping[str, Any]) -> float:
    """Jobs of a run's row that have neither completed nor run into their time limit."""
    return float(row["jobs"] - row["completed"] - (row.get("timeouts") or 0.0))


def gpus_class(gpus: int) -> str:
    """Name of the class of all jobs on `gpus` GPUs."""
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _classes(jobs: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """Class of each job (jobs,), where the scenario describes more than one."""
    column = jobs.get("class")
    return None if column is None or len(set(column.tolist())) < 2 else np.asarray(column)


class MissingError(ImportError):
    """An optional package is not installed; the message names it and the remedy."""


def data_frame(columns: Any) -> Any:
    """A pandas DataFrame of columns by name, or of rows. Raises MissingError."""
    try:
        import pandas
    except ImportError as error:
        raise MissingError("to_df needs pandas, which is not installed: pip install pandas") from error
    return pandas.DataFrame(columns)


def versions() -> dict[str, str]:
    """Versions of the packages that a result depends on; "from source" for one that is not installed."""
    found = {}
    for name in ("equipoise", "numpy", "numba", "simpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "from source"
    return found


def write_parquet(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write equal-length columns as Parquet, through a temporary file; equal columns give equal bytes."""
    from equipoise.base.database import database, writing  # loads DuckDB, which a run without files never needs

    # An empty column of texts has no type of its own.
    listed = [f'"{k}"' if v.dtype != object else f'CAST("{k}" AS VARCHAR) AS "{k}"' for k, v in columns.items()]
    with replacing(path) as draft, database() as connection:
        connection.register("columns_", dict(columns))
        target = str(draft).replace("'", "''")
        with writing(path):
            connection.execute(
                f"COPY (SELECT {', '.join(listed)} FROM columns_) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
            )


def read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a file that `write_parquet` wrote; texts as objects, what is not there NaN."""
    from equipoise.base.database import database

    with database() as connection:
        found = connection.execute("SELECT * FROM read_parquet(?)", [str(path)]).fetchnumpy()
    return {name: _filled(column) for name, column in found.items()}


def _filled(column: NDArray[Any]) -> NDArray[Any]:
    """A column without a mask; a number that is not there is NaN (numpy's own filling would be 1e20)."""
    if not np.ma.isMaskedArray(column):
        return column
    return np.ma.filled(column, np.nan) if column.dtype.kind == "f" else np.ma.filled(column)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(plain(content), indent=2) + "\n")
