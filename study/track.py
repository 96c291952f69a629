"""Results in MLflow: a run there for each run of a folder, with parameters, metrics and artefacts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.sim.record import MissingError
from equipoise.study.runs.store import FIXED, connect

CHARS = 250
"""MLflow takes no longer names and values."""
_PARAMETERS = ("policy", "seed", "point")
_NO_PARAMETER = (*FIXED, "notes")


def track(folder: Path, experiment: str, artefacts: Iterable[Path] = ()) -> int:
    """Log every finished run of a folder (of a run, comparison or sweep) to MLflow; returns how many.

    Where to is what MLflow's own settings say (MLFLOW_TRACKING_URI). Texts are parameters, numbers metrics; what is
    not known is left out. artefacts: files that go with every run. Raises MissingError without MLflow, InputError
    when the folder holds no results.
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
    mlflow.set_experiment(experiment)
    done = [row for row in rows if row.get("status", "done") == "done"]
    files = list(artefacts)
    for row in done:
        with mlflow.start_run(run_name=f"{row['policy']}, seed {row['seed']}"):
            mlflow.log_params(_parameters(row))
            mlflow.log_metrics(_metrics(row))
            for path in files:
                mlflow.log_artifact(str(path))
    return len(done)


def _parameters(row: Mapping[str, Any]) -> dict[str, str]:
    told = {
        k: v for k, v in row.items() if k in _PARAMETERS or (isinstance(v, str) and k not in _NO_PARAMETER)
    }
    return {_allowed(k): str(v)[:CHARS] for k, v in told.items() if v is not None}


def _metrics(row: Mapping[str, Any]) -> dict[str, float]:
    numbers = {k: v for k, v in row.items() if isinstance(v, int | float) and k not in (*FIXED, *_PARAMETERS)}
    return {_allowed(k): float(v) for k, v in numbers.items() if math.isfinite(v)}


def _allowed(name: str) -> str:
    """Names of MLflow hold letters, digits, spaces and _ - . /"""
    return "".join(c if c.isalnum() or c in "_-./ " else "_" for c in name)[:CHARS]
