"""Results in MLflow: a run there for each run of a folder, with parameters, metrics and artefacts."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from equipoise.sim.record import MissingError
from equipoise.sim.scenario.tree import read_tree
from equipoise.study.folders import LEDGER, reading
from equipoise.study.runs.store import FIXED, connect
from equipoise.study.runs.sweep_spec import varied_keys

CHARS = 250
"""Longest names and values that MLflow accepts."""
_PARAMETERS = ("policy", "seed", "point")
_NO_PARAMETER = (*FIXED, "notes")


class TrackError(RuntimeError):
    """MLflow rejected the results; the message says why, and where they are."""


def track(folder: Path, experiment: str, artefacts: Iterable[Path] = ()) -> int:
    """Log every finished run of a folder (of a run, comparison or sweep) to MLflow; returns how many.

    Several are children of one run named after the folder. The server is set by MLflow (MLFLOW_TRACKING_URI). Texts
    and varied keys are parameters, other numbers metrics; unknown values are left out. artefacts: files attached to
    the run, or to the parent of several. Raises MissingError without MLflow, TrackError when it rejects the results,
    InputError when the folder holds no results.
    """
    try:
        import mlflow  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        why = "is not installed" if error.name == "mlflow" else f"cannot be loaded ({error})"
        raise MissingError(f"--mlflow needs MLflow, which {why}: pip install 'equipoise[track]'") from error
    with connect(folder) as connection:
        found = connection.execute("SELECT * FROM runs")
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    done = [row for row in rows if row.get("status", "done") == "done"]
    try:
        mlflow.set_experiment(experiment)
        _log(mlflow, done, folder, artefacts)
    except Exception as error:
        if type(error).__module__.split(".")[0] != "mlflow":
            raise
        why = str(error).split(". ")[0]
        raise TrackError(f"--mlflow: the results are in {folder}, but MLflow rejected them: {why}") from error
    return len(done)


def _log(mlflow: Any, done: list[dict[str, Any]], folder: Path, artefacts: Iterable[Path]) -> None:
    given = {*_PARAMETERS, *_varied(folder)}
    with ExitStack() as above:
        if len(done) > 1:
            above.enter_context(mlflow.start_run(run_name=folder.resolve().name))
            _log_files(mlflow, artefacts)
        for row in done:
            with mlflow.start_run(run_name=f"{row['policy']}, seed {row['seed']}", nested=len(done) > 1):
                mlflow.log_params(_parameters(row, given))
                mlflow.log_metrics(_metrics(row, given))
                if len(done) == 1:
                    _log_files(mlflow, artefacts)


def _log_files(mlflow: Any, artefacts: Iterable[Path]) -> None:
    for path in artefacts:
        mlflow.log_artifact(str(path))


def _varied(folder: Path) -> list[str]:
    """The keys that a sweep varies; none of a run or a comparison."""
    if not (folder / LEDGER).is_file():
        return []
    with reading(folder / LEDGER) as ledger:
        about = dict(ledger.execute("SELECT key, value FROM about").fetchall())
    spec = read_tree(about.get("sweep", "{}"), "the sweep").data
    return varied_keys(spec) if isinstance(spec, Mapping) else []


def _parameters(row: Mapping[str, Any], given: Container[str]) -> dict[str, str]:
    told = {k: v for k, v in row.items() if k in given or (isinstance(v, str) and k not in _NO_PARAMETER)}
    return {_allowed(k): str(v)[:CHARS] for k, v in told.items() if v is not None}


def _metrics(row: Mapping[str, Any], given: Container[str]) -> dict[str, float]:
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k not in FIXED and k not in given}
    return {_allowed(k): float(v) for k, v in numbers.items() if math.isfinite(v)}


def _allowed(name: str) -> str:
    """A valid MLflow name: letters, digits, spaces and _ - . /"""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)[:CHARS]
