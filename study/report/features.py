"""What features show in a report: a table of the first run of each policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from equipoise.sim.record import read_parquet
from equipoise.sim.shown import Shown, all_shown
from equipoise.study.display import texts
from equipoise.study.report.study import RunFolder, Study, first_of_each_policy
from equipoise.study.report.tables import table


def feature_tables(study: Study) -> Iterator[tuple[tuple[str, str, str], str]]:
    """(key, name and title of its section; table as HTML) of each feature that a run has used."""
    folders = first_of_each_policy(study.folders)
    for shown in all_shown():
        found = [(folder.policy, texts(shown.rows(feature_columns(folder, shown)))) for folder in folders]
        rows = sorted((first, policy, *rest) for policy, lines in found for first, *rest in lines[1:])
        if rows:
            (first, *rest), *_ = next(lines for _, lines in found if lines)
            caption = f"{shown.heading[1]}, of the first run of each policy"
            yield shown.heading, table(caption, (first, "policy", *rest), rows)


def feature_columns(folder: RunFolder, shown: Shown) -> dict[str, Mapping[str, NDArray[Any]]]:
    """The columns of a feature's tables in a run directory, by table."""
    paths = {name: folder.path / f"{name}.parquet" for name in shown.tables}
    return {name: read_parquet(path) for name, path in paths.items() if path.is_file()}
