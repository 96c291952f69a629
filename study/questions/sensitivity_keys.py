"""The default keys and ranges of a sensitivity study.

Ranges are the usual errors of a planner's numbers: a factor 1.25 for speeds, 2 for rates and
times between faults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from equipoise.base.numerals import is_index, strict_float
from equipoise.sim.scenario.model import JobSpec, Model, Scenario, TreeTopology
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_bytes_per_s, format_scaled, format_seconds


@dataclass(frozen=True)
class KeyRange:
    """A key with a low and a high value.

    low, high: `key=value` texts, several if other keys must follow. low_shown, high_shown: for display.
    asked: named by the user, so that a value that is not allowed is an error.
    """

    key: str
    low: tuple[str, ...]
    high: tuple[str, ...]
    low_shown: str
    high_shown: str
    asked: bool = False


_SHOWN = {
    "nic": format_bytes_per_s,
    "rate": format_bytes_per_s,
    "storage_rate": lambda value: format_scaled(value, "B/s"),
    "gradient": lambda value: format_scaled(value, "B"),
    **dict.fromkeys(
        ("mtbf", "repair", "duration", "every", "interval", "initialisation", "sample_time"), format_seconds
    ),
}


_EXAMPLE = "cluster.nodes.0.nic"
_FIXED = ("seed", "policy", "schema_version")  # every change meets the same seeds under the same policy


def read_range(text: str, scenario: Scenario) -> KeyRange:
    """`KEY=LOW..HIGH`; LOW and HIGH are values, or `xF` for F times the scenario's value.

    Raises InputError, one line with the allowed forms.
    """
    key, equals, values = text.partition("=")
    low, dots, high = values.partition(".." if ".." in values else ":")
    key, low, high = key.strip(), low.strip(), high.strip()
    if not (equals and dots and key and low and high):
        raise InputError([f"--vary {text!r}: write KEY=LOW..HIGH, e.g. noise.step_cov=0..0.3 or {_EXAMPLE}=x0.5..x2"])
    if key.partition(".")[0] in _FIXED:
        raise InputError([f"--vary {text!r}: {key!r} is the same in all runs of a study; vary another key"])
    ends = [_times(end, key, scenario, text) for end in (low, high)]
    shown = [end if isinstance(end, str) else _shown(key, end) for end in ends]
    given = [end if isinstance(end, str) else _number(end) for end in ends]
    return KeyRange(key, (f"{key}={given[0]}",), (f"{key}={given[1]}",), shown[0], shown[1], asked=True)


def _shown(key: str, value: float) -> str:
    """A value as text, in the unit of the key."""
    return _SHOWN.get(key.rpartition(".")[2], lambda number: f"{number:g}")(value)


def _times(end: str, key: str, scenario: Scenario, text: str) -> str | float:
    """`xF` as a number; any other text unchanged."""
    if not end.startswith("x"):
        return end
    try:
        factor = strict_float(end[1:])
    except ValueError:
        factor = math.nan
    if not 0.0 <= factor < math.inf:
        raise InputError([f"--vary {text!r}: {end!r} is not a factor such as x0.5"])
    value = value_at(scenario, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        why = f"{key} is not a number that {end!r} can multiply; write the whole key, such as {_EXAMPLE}"
        raise InputError([f"--vary {text!r}: {why}"])
    return _whole_like(value, factor * value)


def value_at(scenario: Scenario, key: str) -> Any:
    """The value at a dotted key, defaults included; None where there is none."""
    holder: Any = json.loads(scenario.model_dump_json())
    parts = key.split(".")
    while parts:
        if isinstance(holder, list) and is_index(parts[0]) and int(parts[0]) < len(holder):
            holder, parts = holder[int(parts[0])], parts[1:]
            continue
        known = holder if isinstance(holder, dict) else {}
        width = next((k for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in known), 0)
        if width == 0:
            return None
        holder, parts = known[".".join(parts[:width])], parts[width:]
    return holder


def default_ranges(scenario: Scenario) -> list[KeyRange]:
    """Ranges for the parts of the scenario: nodes, network, models, jobs, noise, faults, decisions."""
    parts = (_nodes, _network, _models, _jobs, _faults, _others)
    return [found for part in parts for found in part(scenario)]


def _scaled(key: str, value: float, low: float, high: float, least: float = 0.0) -> Iterator[KeyRange]:
    """From `low` to `high` times the value, whole if the value is, at least `least`; empty if all are equal."""
    ends = [max(least, _whole_like(value, factor * value)) for factor in (low, high)]
    if ends[0] != ends[1]:
        yield _between(key, ends[0], ends[1])


def _between(key: str, low: float, high: float, also: tuple[tuple[str, ...], ...] = ((), ())) -> KeyRange:
    ends = [(f"{key}={_number(value)}", *more) for value, more in zip((low, high), also, strict=True)]
    return KeyRange(key, ends[0], ends[1], _shown(key, low), _shown(key, high))


def _whole_like(value: float, changed: float) -> float:
    return round(changed) if isinstance(value, int) else changed


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _nodes(scenario: Scenario) -> Iterator[KeyRange]:
    reads = any(job.data is not None and job.data.sample_size > 0 for job in scenario.workload.jobs)
    if scenario.cluster.gpus is not None:
        yield from _scaled("cluster.gpus", scenario.cluster.gpus, 0.8, 1.25, least=1)
    for k, group in enumerate(scenario.cluster.nodes):
        key = f"cluster.nodes.{k}"
        few, many = (min(group.count - 1, round(0.75 * group.count)), max(group.count + 1, round(1.25 * group.count)))
        yield _between(f"{key}.count", max(1, few), many)
        yield from _scaled(f"{key}.speed", group.speed, 0.8, 1.25)
        yield from _scaled(f"{key}.nic", group.nic, 0.5, 2.0)
        if reads:
            yield from _scaled(f"{key}.storage_rate", group.storage_rate, 0.5, 2.0)
        if group.ingest is not None:
            yield from _scaled(f"{key}.ingest", group.ingest, 0.5, 2.0)


def _network(scenario: Scenario) -> Iterator[KeyRange]:
    if isinstance(scenario.cluster.topology, TreeTopology):
        key = "cluster.topology.oversubscription"
        yield from _scaled(key, scenario.cluster.topology.oversubscription, 0.5, 2.0, least=1.0)
    for k, slow in enumerate(scenario.cluster.slow_links):
        yield from _scaled(f"cluster.slow_links.{k}.rate", slow.rate, 0.5, 2.0)


def _models(scenario: Scenario) -> Iterator[KeyRange]:
    for name, model in scenario.workload.models.items():
        if "=" not in name:  # such a name cannot stand in KEY=VALUE
            yield from _model(f"workload.models.{name}", model)


def _model(key: str, model: Model) -> Iterator[KeyRange]:
    if model.transformer is None:
        yield from _typed(key, model)
    if model.exchange.rate is not None:
        yield from _scaled(f"{key}.exchange.rate", model.exchange.rate, 0.5, 2.0)
    if model.noise_scale is not None:
        yield from _scaled(f"{key}.noise_scale", model.noise_scale, 0.5, 2.0)
    if model.drift is not None:
        yield from _scaled(f"{key}.drift", model.drift, 0.5, 2.0)


def _typed(key: str, model: Model) -> Iterator[KeyRange]:
    """Ranges of keys derived from a `transformer` section."""
    for cost in ("sample_time", "flop_per_sample"):
        if (value := getattr(model, cost)) is not None:
            yield from _scaled(f"{key}.{cost}", value, 0.8, 1.25)
    if model.gradient is not None:
        yield from _scaled(f"{key}.gradient", model.gradient, 0.5, 2.0)
    if model.gradient or model.parameters:  # something is exchanged
        yield from _scaled(f"{key}.overlap", model.overlap, 0.5, 2.0, least=1.0)


def _jobs(scenario: Scenario) -> Iterator[KeyRange]:
    for k, job in enumerate(scenario.workload.jobs):
        key = f"workload.jobs.{k}"
        if job.model is not None:
            yield from _batch(f"{key}", job)
        if scenario.faults.crash is not None and isinstance(job.checkpoint.interval, float):
            yield from _scaled(f"{key}.checkpoint.interval", job.checkpoint.interval, 0.5, 2.0)
    if scenario.workload.trace is not None:
        yield from _scaled("workload.trace.time_scale", scenario.workload.trace.time_scale, 0.8, 1.25)


def _batch(key: str, job: JobSpec) -> Iterator[KeyRange]:
    """Half and twice the batch; a job that counts steps then takes twice and half as many, for equal work."""
    unit = job.micro_batch
    low, high = max(unit, job.global_batch // 2 // unit * unit), 2 * job.global_batch
    if job.batch_reference is not None:
        low = max(low, job.batch_reference)
    steps: list[tuple[str, ...]] = [(), ()]
    if job.steps is not None:
        counts = [max(1, round(job.steps * job.global_batch / batch)) for batch in (low, high)]
        steps = [(f"{key}.steps={count}",) for count in counts]
    if low < job.global_batch:
        yield _between(f"{key}.global_batch", low, high, (steps[0], steps[1]))


def _faults(scenario: Scenario) -> Iterator[KeyRange]:
    faults = scenario.faults
    for kind in ("crash", "fail_slow", "link", "rack", "spot"):
        found = getattr(faults, kind)
        if found is not None and found.mtbf is not None:
            yield from _scaled(f"faults.{kind}.mtbf", found.mtbf, 0.5, 2.0)
    if faults.crash is not None:
        yield from _scaled("faults.crash.repair", faults.crash.repair, 0.5, 2.0)
        yield from _scaled("restart.initialisation", scenario.restart.initialisation, 0.5, 2.0)
    if faults.fail_slow is not None:
        yield from _scaled("faults.fail_slow.duration", faults.fail_slow.duration, 0.5, 2.0)


def _others(scenario: Scenario) -> Iterator[KeyRange]:
    cov = scenario.noise.step_cov
    if any(job.model is not None for job in scenario.workload.jobs):
        yield _between("noise.step_cov", 0.0, 2.0 * cov if cov else 0.1)
    if scenario.decide.every is not None:
        yield from _scaled("decide.every", scenario.decide.every, 0.5, 2.0)
    if scenario.decide.every_steps is not None:
        yield from _scaled("decide.every_steps", scenario.decide.every_steps, 0.5, 2.0, least=1)
