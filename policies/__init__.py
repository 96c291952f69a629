"""Built-in stages by name, and the stages of other packages (entry point group `equipoise.stages`)."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.metadata
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies.contract import Policy, Stage

BUILT_IN: dict[str, str] = {
    "s1": "policies.s1_dataflow:DataFlow",
    "s2": "policies.s2_tasks:Tasks",
    "s3": "policies.s3_sync:Synchronisation",
    "s4": "policies.s4_allocation:NodeAllocation",
    "static": "policies.baselines.data:Static",
    "locality": "policies.baselines.data:Locality",
    "equal": "policies.baselines.tasks:Equal",
    "every-step": "policies.baselines.sync:EveryStep",
    "fixed-h": "policies.baselines.sync:FixedInterval",
    "fifo": "policies.baselines.allocation:Fifo",
    "fifo-greedy": "policies.baselines.allocation:FifoGreedy",
    "sjf": "policies.baselines.allocation:Sjf",
    "sjf-greedy": "policies.baselines.allocation:SjfGreedy",
    "easy": "policies.baselines.allocation:Easy",
    "srtf": "policies.baselines.allocation:Srtf",
    "las": "policies.baselines.allocation:Las",
}


class PolicyError(ValueError):
    """A policy names a stage or parameter that does not exist; the message is one clear line."""


def available() -> dict[str, str]:
    """Names of all stages and where they are defined; built-in names cannot be replaced."""
    plugins = {p.name: p.value for p in importlib.metadata.entry_points(group="equipoise.stages")}
    return plugins | BUILT_IN


def stage_class(name: str) -> type[Stage]:
    """The stage class of that name. Raises PolicyError with a suggestion when there is none."""
    found = BUILT_IN if name in BUILT_IN else available()  # looking for installed stages takes ms
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(found))}"
        raise PolicyError(f"unknown stage {name!r}; {hint}")
    module, _, attribute = found[name].partition(":")
    from policies.contract import Stage

    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"stage {name!r} ({found[name]}) cannot be loaded: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Stage) and dataclasses.is_dataclass(cls)):
        raise PolicyError(f"{found[name]} is not a stage")
    return cls


def make_stage(name: str, parameters: Mapping[str, Any] | None = None) -> Stage:
    """A stage with parameters. Raises PolicyError for an unknown, ill-typed or refused parameter."""
    cls, given = stage_class(name), dict(parameters or {})
    allowed = {f.name: f for f in dataclasses.fields(cls)}
    for key, value in given.items():
        if key not in allowed:
            close = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"allowed: {', '.join(allowed) or 'none'}"
            raise PolicyError(f"{name}: unknown parameter {key!r}; {hint}")
        default = allowed[key].default
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            given[key] = float(value)
        elif isinstance(default, tuple) and isinstance(value, list):
            given[key] = tuple(value)
        elif default is not dataclasses.MISSING and default is not None and type(value) is not type(default):
            raise PolicyError(f"{name}.{key}: {value!r} is not a {type(default).__name__}")
        numbers = given[key] if isinstance(given[key], tuple) else (given[key],)
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise PolicyError(f"{name}.{key}: {value!r} is not a finite number")
    try:
        return cls(**given)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{name}: {error}") from error


def _entries(text: str) -> list[Mapping[str, Any]]:
    """Stages of a text such as `s1+s2(mode=optimal,limit=3)`; values are numbers, true, false or text."""
    entries: list[Mapping[str, Any]] = []
    for part in re.split(r"\+(?![^()]*\))", text):
        match = re.fullmatch(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", part)
        if match is None:
            raise PolicyError(
                f"{text!r} is not a policy; write stages joined by +, e.g. s1+s2(mode=optimal)+easy"
            )
        pairs = [pair.partition("=") for pair in (match[2] or "").split(",") if pair.strip()]
        entries.append({match[1]: {key.strip(): _value(value.strip()) for key, _, value in pairs}})
    return entries


def _value(text: str) -> Any:
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def make_policy(spec: str | Sequence[Any]) -> Policy:
    """A policy from YAML (`[s1, {s2: {mode: optimal}}, fifo]`) or text (`s1+s2(mode=optimal)+fifo`, `none`).

    A policy's name is such a text, so `make_policy(policy.name)` gives the same policy again.
    Without an allocation stage `fifo` is appended, because jobs must be started by something.
    """
    from policies.contract import Policy

    if isinstance(spec, str):
        spec = [] if spec == "none" else _entries(spec)
    stages, names = [], []
    for entry in spec:
        pairs = entry.items() if isinstance(entry, Mapping) else [(str(entry), None)]
        for name, parameters in pairs:
            stages.append(make_stage(name.strip(), parameters))
            if any(type(stage) is type(stages[-1]) for stage in stages[:-1]):
                raise PolicyError(f"stage {name.strip()!r} is listed twice; give each stage once")
            shown = ",".join(f"{k}={v}" for k, v in (parameters or {}).items())
            names.append(f"{name}({shown})" if shown else name.strip())
    if not any(stage.kind == "allocation" for stage in stages):
        stages.append(make_stage("fifo"))
    return Policy("+".join(names) or "none", tuple(stages))
