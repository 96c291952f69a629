"""Scenario files: load with every mistake at its line, dump, and the JSON schema for editors."""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from equipoise.sim.feature import with_jobs
from equipoise.sim.hardware.carbon import carbon_path
from equipoise.sim.hardware.prices import book_path
from equipoise.sim.hardware.profile import HardwareProfile, Measured, is_path, load_profile, profile_path, shipped
from equipoise.sim.loading.availability import with_availability
from equipoise.sim.loading.checks import doubts, problems, trace_problems
from equipoise.sim.loading.throughputs import with_rates
from equipoise.sim.loading.transformers import bound_scenario, has_transformers, read_files, with_samples
from equipoise.sim.scenario.errors import describe
from equipoise.sim.scenario.model import Model, NodeGroup, Scenario, TraceSpec
from equipoise.sim.scenario.override import assign, override
from equipoise.sim.scenario.tree import InputError, Place, Tree, WrongValueError, read_text, read_tree, write_tree
from equipoise.sim.traces.trace import Trace

_Section = TypeVar("_Section", Model, NodeGroup)


def with_measured(scenario: Scenario) -> Scenario:
    """With the measured storage and overlap where the scenario names none; data sheets do not count."""
    profile = load_profile(scenario.cluster.hardware)
    groups = tuple(_group(group, profile) for group in scenario.cluster.nodes)
    models = {name: _model(model, scenario, profile) for name, model in scenario.workload.models.items()}
    return scenario.model_copy(
        update={
            "cluster": scenario.cluster.model_copy(update={"nodes": groups}),
            "workload": scenario.workload.model_copy(update={"models": models}),
        }
    )


def _group(group: NodeGroup, profile: HardwareProfile) -> NodeGroup:
    read = profile.storage_read_bytes_per_s if group.gpus else None
    return _filled(group, {"local_read": read, "storage_rate": read})


def _model(model: Model, scenario: Scenario, profile: HardwareProfile) -> Model:
    """With the overlap measured on the first group's accelerator that has the model's step."""
    if model.step is None:
        return model
    names = [group.accelerator for group in scenario.cluster.groups if group.gpus]
    step = profile.accelerator(names[0]).step(model.step, model.precision)
    return _filled(model, {"overlap": step.overlap})


def _filled(section: _Section, found: dict[str, Measured | None]) -> _Section:
    """The section with the found values for keys that it does not set."""
    update = {
        key: number.value
        for key, number in found.items()
        if number is not None and number.kind in ("measured", "fitted") and key not in section.model_fields_set
    }
    return section.model_copy(update=update) if update else section


__all__ = ["InputError", "ScenarioFile", "dump", "from_mapping", "json_schema", "load", "read_scenario", "to_trace"]

_TRACE_FILE = ("workload", "trace", "file")


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario, where it looks for files, one line per doubtful value, and where it names a trace."""

    path: Path
    scenario: Scenario
    folders: tuple[Path, ...]
    warnings: tuple[str, ...]
    trace_place: str

    def trace(self) -> Trace | None:
        """The trace that the scenario names; None when it only has listed jobs.

        Raises InputError when the file is missing or wrong, and when there is nothing to run at all.
        """
        workload = self.scenario.workload
        if workload.trace is None:
            if not workload.jobs and workload.generate is None:
                raise InputError([f"{self.path}: workload: no jobs in it; give a trace (--trace FILE)"])
            return None
        trace = to_trace(workload.trace, self.folders, self.trace_place)
        if wrong := trace_problems(self.scenario, trace, workload.trace.file):
            raise InputError(wrong)
        return trace


def read_scenario(
    path: str | Path,
    overrides: Sequence[str] = (),
    trace: str | None = None,
    *,
    fits: bool = True,
    tree: Tree | None = None,
) -> ScenarioFile:
    """Read a scenario file, or one that comes with the software by its name.

    `overrides` are `dotted.key=value` texts, `trace` sets `workload.trace.file`. `fits`: jobs must fit into memory.
    `tree`: what the file says, if it has been read already.

    Raises InputError with all mistakes, each `file:line:column: key: what is wrong, what is allowed`.
    """
    source = scenario_file(path)
    tree = _changed(source, overrides, tree)
    if trace is not None:
        assign(tree, _TRACE_FILE, trace, Place(f"--trace {trace}"))
    scenario = _scenario(tree, source.parent, fits=fits)
    # A file named on the command line is meant from the working folder, one named in a scenario beside it.
    place = tree.place(_TRACE_FILE)
    folders = (source.parent, Path()) if place.line else (Path(), source.parent)
    named = f"{place}: workload.trace.file: " if place.line else ""  # else the line begins with the option's value
    warnings = tuple(f"warning: {line}" for line in _lines(tree, doubts(scenario, tree)))
    return ScenarioFile(source, scenario, folders, warnings, named)


def changed_tree(path: str | Path, overrides: Sequence[str]) -> Any:
    """The plain data of a scenario file with `dotted.key=value` changes. Raises InputError."""
    return _changed(scenario_file(path), overrides).data


def _changed(source: Path, overrides: Sequence[str], tree: Tree | None = None) -> Tree:
    tree = read_tree(read_text(source), str(source)) if tree is None else tree
    if not isinstance(tree.data, dict):
        raise InputError([tree.error((), "a scenario is a section with keys such as 'name' and 'cluster'")])
    for text in overrides:
        override(tree, text)
    return tree


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario in a file. Raises InputError, one line per mistake."""
    return read_scenario(path, overrides).scenario


def from_mapping(data: Mapping[str, Any]) -> Scenario:
    """A scenario from plain data as in a file, units and all. Raises InputError, one line per mistake."""
    return _scenario(Tree(dict(data), {}, {(): Place("scenario")}), None)


def dump(scenario: Scenario) -> str:
    """The scenario as YAML with every default written out, in base units; `load` reads it back equal."""
    return write_tree(scenario.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """JSON schema of a scenario file, for editors (`# yaml-language-server: $schema=FILE`)."""
    schema = Scenario.model_json_schema()
    policy = schema["properties"]["policy"]
    single = [{"type": "string"}, {"type": "object"}]
    schema["properties"]["policy"] = {"anyOf": [{k: policy.pop(k) for k in ("type", "items")}, *single], **policy}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def to_trace(spec: TraceSpec, folders: Sequence[Path], place: str = "") -> Trace:
    """Jobs of the trace that a scenario names, looked up in `folders` in order.

    Raises InputError, its line begun with `place`.
    """
    path = trace_file(spec, folders)
    if path is not None:
        from equipoise.sim.traces.read import read_spec  # takes a while, and most scenarios name no trace

        return read_spec(spec, path)
    if there := [str(folder / spec.file) for folder in folders if (folder / spec.file).exists()]:
        raise InputError([f"{place}{there[0]}: not a regular file (a folder, a device or a pipe)"])
    looked = ", ".join(sorted({str(folder) for folder in folders}))
    raise InputError([f"{place}{spec.file}: no such trace file (looked in: {looked})"])


def trace_file(spec: TraceSpec, folders: Sequence[Path]) -> Path | None:
    """The file of a trace that a scenario names: the first that is there."""
    paths = (Path(os.path.normpath(folder / spec.file)) for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def scenario_file(path: str | Path) -> Path:
    """The path itself, or the built-in scenario of that name."""
    if is_path(str(path)) or Path(path).exists():
        return Path(path)
    named = {file.stem: file for file in shipped()}
    if str(path) in named:
        return named[str(path)]
    close = difflib.get_close_matches(str(path), named, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see: equipoise list scenarios"
    raise InputError([f"{path}: no such file, and no scenario of that name; {hint}"])


def _scenario(tree: Tree, base: Path | None, *, fits: bool = True) -> Scenario:
    try:
        scenario = Scenario.model_validate(tree.data)
    except ValidationError as error:
        lines = [*describe(error, tree, Scenario), *_also_wrong(tree, base, error)]
        raise InputError(sorted(dict.fromkeys(lines), key=_line_and_column)) from error
    if has_transformers(scenario):
        scenario, wrong = read_files(scenario, base)
        if wrong:
            raise InputError(_lines(tree, [*wrong, *problems(_plain(scenario), base, shapes=False)]))
    scenario, wrong = with_samples(scenario)
    if wrong:
        raise InputError(_lines(tree, wrong))
    try:
        scenario = with_availability(with_rates(scenario, base), base)
    except WrongValueError as error:
        raise InputError(_lines(tree, [(error.path, str(error))])) from None
    if wrong := problems(scenario, base, fits=fits):
        raise InputError(_lines(tree, wrong))
    hardware = scenario.cluster.hardware
    if base is not None and is_path(hardware):  # a run knows nothing of the scenario's folder
        cluster = scenario.cluster.model_copy(update={"hardware": str(profile_path(hardware, base))})
        scenario = scenario.model_copy(update={"cluster": cluster})
    book = scenario.cost.book
    if base is not None and is_path(book):
        cost = scenario.cost.model_copy(update={"book": str(book_path(book, base))})
        scenario = scenario.model_copy(update={"cost": cost})
    energy = scenario.energy
    if base is not None and is_path(energy.carbon_book):
        found = str(carbon_path(energy.carbon_book, base))
        scenario = scenario.model_copy(update={"energy": energy.model_copy(update={"carbon_book": found})})
    return with_jobs(bound_scenario(with_measured(scenario)), scenario.seed)


def _also_wrong(tree: Tree, base: Path | None, error: ValidationError) -> list[str]:
    """Further problems of a file with unreadable values: the other checks, with these values left out."""
    data, left, found = copy.deepcopy(tree.data), error, list[str]()
    gone: set[tuple[str | int, ...]] = set()
    for attempt in range(ATTEMPTS):
        for item in left.errors(include_url=False):
            loc = item["loc"][:1] if attempt >= ATTEMPTS // 2 else item["loc"]  # at last, the whole section
            gone.add(loc)
            if loc in _STAND_INS and loc[0] in data:
                data[loc[0]] = _STAND_INS[loc]
            elif not _replaced(data, loc):
                leave_out(data, loc)
        try:
            scenario = Scenario.model_validate(data)
        except ValidationError as again:
            left = again
            whole = {item["loc"] for item in again.errors(include_url=False)} == {("workload",)}
            if whole and not any(loc[:2] == ("workload", "jobs") for loc in gone):
                found += describe(again, tree, Scenario)  # such as the name of a model that is not there
            continue
        away = {loc[0] for loc in gone & _STAND_INS.keys()}
        if "cluster" in away or any(loc[0] == "cluster" and loc[-1] in ("count", "gpus") for loc in gone):
            away |= {"workload", "faults"}  # what fits into a cluster of unknown size, nobody can say
        wrong = problems(_plain(scenario), base, shapes=not has_transformers(scenario))
        return found + _lines(tree, [p for p in wrong if p[0][0] not in away])
    return found


def _replaced(data: Any, loc: tuple[str | int, ...]) -> bool:
    """Put a placeholder in place of an unreadable job or model; False elsewhere."""
    if len(loc) != 3 or loc[:2] not in (("workload", "models"), ("workload", "jobs")):
        return False
    entries, key = (data.get("workload", {}).get(loc[1]), loc[2])  # nothing is left of a section that went before
    there = key in entries if isinstance(entries, dict) else isinstance(key, int) and key < len(entries or ())
    if there:
        entries[key] = {"sample_time": 1.0} if loc[1] == "models" else {"duration": 1.0}
    return there


def _plain(scenario: Scenario) -> Scenario:
    """Replace models given by their shape with placeholders, without reading their files and layouts."""
    models = dict(scenario.workload.models)
    for name, model in models.items():
        if model.transformer is not None:
            models[name] = Model(sample_time=1.0)
    workload = scenario.workload.model_copy(update={"models": models})
    return scenario.model_copy(update={"workload": workload})


ATTEMPTS = 6
_STAND_INS: dict[tuple[str | int, ...], Any] = {("workload",): {"jobs": [{"duration": 1.0}]}, ("cluster",): {"gpus": 1}}
"""In place of a section that cannot be read and must be there."""


def leave_out(data: Any, loc: tuple[str | int, ...]) -> None:
    """Remove the value at a pydantic location, if it exists."""
    holder, key = None, None
    for part in loc:  # tags of unions stand in a location, but not in the data
        inner = data.get(part) if isinstance(data, dict) else None
        if isinstance(data, list) and isinstance(part, int) and part < len(data):
            inner = data[part]
        if inner is not None:
            holder, key, data = data, part, inner
    if isinstance(holder, dict):
        del holder[key]


def _line_and_column(text: str) -> tuple[int, int]:
    """Sort key of an error line: command-line options first, then line and column."""
    place = re.match(r"[^:]*:([0-9]+):([0-9]+): ", text)
    return (int(place[1]), int(place[2])) if place is not None else (0, 0)


def _lines(tree: Tree, found: Sequence[tuple[tuple[str | int, ...], str]]) -> list[str]:
    """Lines of problems, in the order of the file."""
    placed = [(tree.place(path), tree.error(path, text)) for path, text in found]
    return [line for _, line in sorted(placed, key=lambda x: (x[0].source, x[0].line, x[0].column))]
