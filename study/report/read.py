"""Reading a folder of results: a run, a comparison or a sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.base.json_values import number
from equipoise.sim.scenario.tree import InputError
from equipoise.study.folders import COMPARISON, LEDGER, MANIFEST, RUNS, SUMMARY, read_json, read_manifest
from equipoise.study.report.study import (
    FailedRun,
    RunFolder,
    Study,
    StudyRow,
    first_of_each_policy,
    read_config,
    read_run_folder,
    read_tornado,
)
from equipoise.study.report.sweep import read_sweep_study
from equipoise.study.runs.across import across
from equipoise.study.runs.comparison import Comparison
from equipoise.study.statistics import CONFIDENCE, Interval

_NAMED = 3  # folders, in one line


def read_study(folder: str | Path) -> Study:
    """The study in a folder. Raises InputError, one line, when it holds no results or damaged ones."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError([f"{folder}: no such folder"])
    if (path / COMPARISON).is_file():
        return _comparison(path, read_json(path / COMPARISON))
    if (path / LEDGER).is_file():
        return read_sweep_study(path)
    if (path / "shards").is_dir():
        raise InputError([f"{folder}: shards of a sweep; start it without --shard, which takes what they made"])
    if (path / MANIFEST).is_file():
        return _run(path)
    if within := sorted(child for child in path.iterdir() if (child / COMPARISON).is_file()):
        return _traces(path, within)
    wanted = f"a run ({MANIFEST}), a comparison ({COMPARISON}) or a sweep ({LEDGER})"
    raise InputError([f"{folder}: no results here; {wanted} is needed"])


def _single(value: float) -> Interval:
    return Interval(value, math.nan, math.nan, 1)


def _run(path: Path) -> Study:
    folder = read_run_folder(path)
    manifest = read_manifest(path)
    summary = path / SUMMARY
    rows: list[StudyRow] = []
    notes: tuple[str, ...] = ()
    policy, gpus = str(manifest.get("policy", "")), math.nan
    failures: tuple[FailedRun, ...] = ()
    if summary.is_file():
        content = read_json(summary)
        skipped = ("identity", "policy", "seed", "totals", "notes")
        rows = [StudyRow(key, policy, _single(number(v))) for key, v in content.items() if key not in skipped]
        with _damage(summary):
            notes = tuple(str(note) for note in content.get("notes", ()))
            gpus = number((content.get("totals") or {}).get("gpus"))
    else:
        failures = (FailedRun(f"{policy}, seed {manifest.get('seed')}", str(manifest.get("status", "unknown"))),)
    folders = (folder,) if folder is not None else ()
    title = str(manifest.get("scenario", path.name))
    return Study(
        "run",
        path,
        title,
        (policy,),
        1,
        tuple(rows),
        folders,
        folders,
        failures,
        len(failures),
        notes,
        gpus=gpus,
        tornado=read_tornado(path),
        config=read_config(folders),
    )


def _traces(path: Path, within: Sequence[Path]) -> Study:
    """The comparisons in the subfolders as one, with traces in place of seeds."""
    contents, made = ({folder.name: read_json(folder / COMPARISON) for folder in within}, dict[str, Comparison]())
    for folder in within:
        with _damage(folder / COMPARISON):
            made[folder.name] = Comparison.read(contents[folder.name])
    if len({one.scenario_name for one in made.values()}) > 1:
        listed = ", ".join(map(str, within[:_NAMED])) + (", ..." if len(within) > _NAMED else "")
        raise InputError([f"{path}: comparisons of several scenarios; make a report of one of them: {listed}"])
    try:
        together = across(made)
    except ValueError as error:
        raise InputError([f"{path}: {error}: {', '.join(made)}"]) from error
    title = f"{within[0].name}" if len(within) == 1 else f"{len(within)} traces"
    content = json.loads(together.as_json()) | {"scenario": f"{next(iter(made.values())).scenario_name}, {title}"}
    study = _comparison(path, content)
    folders = tuple(
        found
        for folder in within
        for run in contents[folder.name]["runs"]
        if str(run["policy"]) in together.policies
        for found in [_folder_of(folder, run, f"{folder.name}: {run['policy']}, seed {run['seed']}")]
        if found is not None
    )
    common = set.intersection(*(set(one.notes) for one in made.values()))
    notes = [note if note in common else f"{name}: {note}" for name, one in made.items() for note in one.notes]
    open_ones = (child for child in sorted(path.iterdir()) if child not in within and (child / LEDGER).is_file())
    notes += [f"{child.name}: not a finished comparison, left out" for child in open_ones]
    return replace(
        study,
        folders=folders,
        detail=first_of_each_policy(folders),
        config=read_config(folders),
        unit="trace",
        notes=tuple(dict.fromkeys(notes)),
    )


def _folder_of(path: Path, run: Mapping[str, Any], label: str = "") -> RunFolder | None:
    """The run directory of a comparison's run."""
    return read_run_folder(path / RUNS / Path(str(run["identity"])).name, str(run["policy"]), label)


def _comparison(path: Path, content: Mapping[str, Any]) -> Study:
    with _damage(path / COMPARISON):
        policies, seeds = tuple(map(str, content["policies"])), tuple(map(int, content["seeds"]))
        rows = tuple(_row(row) for row in content["rows"])
        noise_free = bool(content["bound"]["noise_free"])
        level = float((content.get("until") or {}).get("level") or content.get("confidence") or CONFIDENCE)
        found = [_folder_of(path, run) for run in content["runs"]]
        exact = content.get("random") is False
        scenario, notes = str(content["scenario"]), tuple(map(str, content.get("notes", ())))
        gpus = {number((run.get("totals") or {}).get("gpus")) for run in content["runs"]}
    folders = tuple(folder for folder in found if folder is not None)

    failures = _failures(content, folders)
    return Study(
        "comparison",
        path,
        scenario,
        policies,
        len(seeds),
        rows,
        folders,
        first_of_each_policy(folders),
        failures,
        len(failures),
        notes,
        noise_free,
        exact,
        gpus.pop() if len(gpus) == 1 else math.nan,
        level,
        tornado=read_tornado(path),
        config=read_config(folders),
        answer=str(content.get("answer") or ""),
    )


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raises InputError where a part of a file is missing or has the wrong type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError([f"{path}: is damaged: {type(error).__name__}: {error}"]) from error


def _failures(content: Mapping[str, Any], folders: Sequence[RunFolder]) -> tuple[FailedRun, ...]:
    """Failed runs: as listed by the comparison, else from their folders."""
    listed = content.get("failures")
    if isinstance(listed, list) and listed:
        parts = (str(line).partition(" failed: ") for line in listed)
        return tuple(FailedRun(what, why) for what, _, why in parts)
    stopped = [folder for folder in folders if folder.manifest.get("status") != "complete"]
    return tuple(FailedRun(folder.label, str(folder.manifest.get("status"))) for folder in stopped)


def _row(row: Mapping[str, Any]) -> StudyRow:
    n = int(row["seeds"])
    value = Interval(number(row["mean"]), number(row["low"]), number(row["high"]), n)
    ratio = Interval(number(row["ratio"]), number(row["ratio_low"]), number(row["ratio_high"]), n)
    return StudyRow(
        str(row["metric"]), str(row["policy"]), value, ratio, number(row["bound"]), number(row["over_bound"])
    )
