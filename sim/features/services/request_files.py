"""Times of requests from CSV files."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from equipoise.policies.observation import Floats
from equipoise.sim.features.services.section import services_of
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError, WrongValueError
from equipoise.sim.traces.table import TextTable

COLUMN = "time_s"


def request_times(scenario: Scenario) -> dict[str, Floats]:
    """Times (n,) of the requests of each service that has them in a file, ascending, by its name."""
    return {
        spec.name: read_times(spec.requests.file) for spec in services_of(scenario) if spec.requests.file is not None
    }


def with_paths(scenario: Scenario, base: Path | None) -> Scenario:
    """The scenario with the places of its files of requests, which stand beside it in `base`.

    Raises InputError, WrongValueError.
    """
    services = []
    for k, spec in enumerate(services_of(scenario)):
        file = spec.requests.file
        if file is not None:
            path = Path(os.path.normpath((base or Path()) / file))
            if not path.is_file():
                text = f"{file}: no such file in {base or Path()}"
                raise WrongValueError(("services", k, "requests", "file"), text)
            read_times(str(path))
            requests = spec.requests.model_copy(update={"file": str(path)})
            spec = spec.model_copy(update={"requests": requests})
        services.append(spec)
    return scenario.model_copy(update={"services": tuple(services)}) if services else scenario


def read_times(file: str) -> Floats:
    """The column time_s of a file, ascending. Raises InputError, a line per mistake."""
    return _read(file, os.stat(file).st_mtime_ns)


@lru_cache(maxsize=8)
def _read(file: str, changed_ns: int) -> Floats:
    table = TextTable(Path(file))
    table.need((COLUMN,))
    times = table.floats(COLUMN, low=0.0)
    if not len(times):
        raise InputError([f"{file}:1:1: no requests in it"])
    table.refuse(np.diff(times, prepend=0.0) < 0.0, COLUMN, lambda k: f"{times[k]:g} is earlier than the line above")
    times.flags.writeable = False
    return times
