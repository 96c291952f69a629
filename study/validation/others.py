"""Predictions of others on the rows of a data set: a CSV of them, or a Python callable."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from equipoise.base.numerals import strict_float
from equipoise.study.validation.score import Line, relative_error

Predictor = Callable[[str, str], float | None]


def read_predictor(given: str) -> Predictor:
    """Predictions by (line, key): of a CSV with columns line, key, predicted, else of MODULE:FUNCTION.

    Raises ValueError, one line, for a file or a callable that cannot be used.
    """
    if given.endswith(".csv"):
        with Path(given).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := {"line", "key", "predicted"} - set(reader.fieldnames or ()):
                raise ValueError(f"{given}: no column {min(missing)}")
            known = {(row["line"], row["key"]): strict_float(row["predicted"]) for row in reader}
        return lambda line, key: known.get((line, key))
    module, colon, name = given.partition(":")
    try:
        found: Predictor = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{given}: {error}; give a .csv, or MODULE:FUNCTION") from None
    if not colon or not callable(found):
        raise ValueError(f"{given}: give a .csv with line, key, predicted, or MODULE:FUNCTION")
    return found


def against(lines: Sequence[Line], predictor: Predictor) -> list[str]:
    """A row for each line with rows that the other predicts: how many, our median error on them, and the other's."""
    table = [f"{'rows':>6}  {'ours':>8}  {'other':>8}  line"]
    for one in lines:
        if one.points is None:
            continue
        p, named = one.points, [predictor(one.what, key) for key in one.points.keys]
        rows = [k for k, value in enumerate(named) if value is not None and 0.0 < value < np.inf]
        if rows:
            other = np.array([float(named[k] or 0.0) for k in rows])
            errors = (relative_error(p.predicted[rows], p.measured[rows]), relative_error(other, p.measured[rows]))
            table.append("  ".join([f"{len(rows):6}", *(f"{100 * e:6.1f} %" for e in errors), one.what]))
    return table
