"""Selection of rows of a trace: `state=COMPLETED,FAILED`, and the virtual clusters of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from equipoise.formats.text.columns import Text
from equipoise.sim.scenario.names import nearest
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.traces.trace import Bools, Column, column_name

_CLUSTERS = ("cluster", "account", "partition", "queue")
"""Columns that tell virtual clusters apart: the first of them that a trace has."""


def chosen(columns: Mapping[str, Column], keep: Sequence[str], clusters: Sequence[str], file: str) -> dict[str, Bools]:
    """Masks of selected rows, by the reason for excluding others.

    keep: `column=value`, or several values with commas; all of them must hold. Raises InputError, one line, for a
    column that is not there or a value that no row has.
    """
    found = {}
    for wanted in keep:
        name, equals, values = wanted.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise InputError([f"--keep {wanted}: write column=value, or column=value,value"])
        texts = _texts(columns, name.strip(), f"--keep {wanted}", file)
        found[f"not {wanted}"] = _among(texts, [v.strip() for v in values.split(",")], name.strip(), file)
    if clusters:
        name = next((name for name in _CLUSTERS if name in columns), "cluster")
        texts = _texts(columns, name, "clusters cannot be chosen", file)
        found["of other clusters"] = _among(texts, clusters, "cluster", file)
    return found


def _texts(columns: Mapping[str, Column], name: str, why: str, file: str) -> Text:
    column = columns.get(name, columns.get(column_name(name)))  # `State` and `JobName` as the file has them
    if isinstance(column, Text):
        return column
    known = ", ".join(name for name, column in columns.items() if isinstance(column, Text)) or "none"
    raise InputError([f"{file}: column {name!r} is missing, {why}; columns: {known}"])


def _among(texts: Text, wanted: Sequence[str], name: str, file: str) -> Bools:
    known = sorted(set(texts.values) - {""})
    absent = [value for value in wanted if value not in known]
    if absent:
        raise InputError([f"{file}: no {name} {value!r}; {nearest(value, known)}" for value in absent])
    marks = np.array([value in wanted for value in texts.values], dtype=np.bool_)
    return marks[texts.codes]
