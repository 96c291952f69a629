"""Built-in stages by name, and the stages of other packages (entry point group `equipoise.stages`)."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.base.numerals import strict_float, strict_int

if TYPE_CHECKING:
    from equipoise.policies.contract import Policy, Stage

BUILT_IN: dict[str, str] = {
    "s1": "equipoise.policies.stages.s1:DataFlow",
    "s2": "equipoise.policies.stages.s2:Tasks",
    "s3": "equipoise.policies.stages.s3:Synchronisation",
    "s4": "equipoise.policies.stages.s4:NodeAllocation",
    "static": "equipoise.policies.baselines.data:Static",
    "locality": "equipoise.policies.baselines.data:Locality",
    "equal": "equipoise.policies.baselines.tasks:Equal",
    "every-step": "equipoise.policies.baselines.sync:EveryStep",
    "fixed-h": "equipoise.policies.baselines.sync:FixedInterval",
    "fifo": "equipoise.policies.baselines.allocation:Fifo",
    "fifo-greedy": "equipoise.policies.baselines.allocation:FifoGreedy",
    "sjf": "equipoise.policies.baselines.allocation:Sjf",
    "sjf-greedy": "equipoise.policies.baselines.allocation:SjfGreedy",
    "easy": "equipoise.policies.baselines.allocation:Easy",
    "srtf": "equipoise.policies.baselines.allocation:Srtf",
    "las": "equipoise.policies.baselines.allocation:Las",
    "multifactor": "equipoise.policies.queues.multifactor:Multifactor",
    "kueue": "equipoise.policies.queues.kueue:Kueue",
    "tiresias": "equipoise.policies.baselines.themis:Tiresias",
    "themis": "equipoise.policies.baselines.themis:Themis",
    "gavel": "equipoise.policies.baselines.gavel:Gavel",
    "pollux": "equipoise.policies.baselines.goodput:Pollux",
    "sia": "equipoise.policies.baselines.goodput:Sia",
    "lb-bsp": "equipoise.policies.baselines.tasks:LbBsp",
    "linear": "equipoise.policies.baselines.linear:Linear",
    "drf": "equipoise.policies.baselines.optimus:Drf",
    "optimus": "equipoise.policies.baselines.optimus:Optimus",
    "shockwave-like": "equipoise.policies.baselines.shockwave:Shockwave",
    "lucid": "equipoise.policies.baselines.lucid:Lucid",
    "best-fit": "equipoise.policies.baselines.shares:BestFit",
    "fgd": "equipoise.policies.baselines.shares:Fgd",
    "hierarchical-local-sgd": "equipoise.policies.baselines.sync:HierarchicalLocalSgd",
    "diloco": "equipoise.policies.baselines.sync:DiLoCo",
    "zeus": "equipoise.policies.baselines.power:Zeus",
    "adacomm": "equipoise.policies.baselines.sync:AdaComm",
}


class PolicyError(ValueError):
    """A policy names a stage or parameter that does not exist; the message is one clear line."""


def available() -> dict[str, str]:
    """Names of all stages with their definitions (module:class); built-in names cannot be replaced."""
    import importlib.metadata  # takes longer than all that a command needs to show its help

    plugins = {p.name: p.value for p in importlib.metadata.entry_points(group="equipoise.stages")}
    return plugins | BUILT_IN


def stage_class(name: str) -> type[Stage]:
    """The stage class of that name. Raises PolicyError with a suggestion when there is none."""
    found = BUILT_IN if name in BUILT_IN else available()  # looking for installed stages takes ms
    if name not in found:
        close = difflib.get_close_matches(name.lower(), found, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(found))}"
        if "," in name:
            hint = f"stages are joined by +: {'+'.join(part.strip() for part in name.split(','))}"
        raise PolicyError(f"unknown stage {name!r}; {hint}")
    module, _, attribute = found[name].partition(":")
    from equipoise.policies.contract import Stage  # loads Numba, which names of stages do without

    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise PolicyError(f"stage {name!r} ({found[name]}) cannot be loaded: {_renamed(error) or error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Stage) and dataclasses.is_dataclass(cls)):
        raise PolicyError(f"{found[name]} is not a stage")
    return cls


def _renamed(error: Exception) -> str:
    """The new module name when an error names an old one of this package; else ""."""
    old = error.name if isinstance(error, ModuleNotFoundError) else None
    if (old or "").split(".")[0] not in ("policies", "sim", "study", "calibrate", "live"):
        return ""
    return f"there is no module {old!r}: our modules are now below 'equipoise' (equipoise.policies.contract, ...)"


def parameters_of(name: str) -> set[str]:
    """Names of the parameters of a stage. Raises PolicyError for an unknown stage."""
    return {f.name for f in dataclasses.fields(stage_class(name))}


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
    """Stages of a text such as `s1+s2(mode=optimal,limit=3)+las(thresholds_gpu_s=[60, 600])`; values: `_value`."""
    entries: list[Mapping[str, Any]] = []
    for part in re.split(r"\+(?![^()]*\))", text):
        match = re.fullmatch(r"\s*([^()\s]+)\s*(?:\((.*)\))?\s*", part)
        if match is None:
            raise PolicyError(f"{text!r} is not a policy; write stages joined by +, e.g. s1+s2(mode=optimal)+easy")
        pairs = [pair.partition("=") for pair in re.split(_COMMA, match[2] or "") if pair.strip()]
        entries.append({match[1]: {key.strip(): _value(value.strip()) for key, _, value in pairs}})
    return entries


_COMMA = r",(?![^\[\]]*\])"  # not within a list


def _value(text: str) -> Any:
    """A list in brackets, true, false, None, a number, or else text."""
    if text.startswith("[") and text.endswith("]"):
        return [_value(entry.strip()) for entry in text[1:-1].split(",") if entry.strip()]
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if text == "None":
        return None
    for read in (strict_int, strict_float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _shown(value: Any) -> str:
    """The text that `_value` reads as this value again."""
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list | tuple) else str(value)


def stages_of(name: str) -> tuple[str | dict[str, Any], ...]:
    """The stages of a policy's name as they stand in a scenario."""
    return tuple(
        name if not parameters else {name: dict(parameters)}
        for entry in ([] if name == "none" else _entries(name))
        for name, parameters in entry.items()
    )


def make_policy(spec: str | Sequence[Any]) -> Policy:
    """A policy from YAML (`[s1, {s2: {mode: optimal}}, fifo]`) or text (`s1+s2(mode=optimal)+fifo`, `none`).

    A policy's name is such a text, so `make_policy(policy.name)` gives the same policy again.
    Without an allocation stage `fifo` is appended, because some stage must start the jobs.
    """
    from equipoise.policies.contract import Policy  # as in `stage_class`

    if isinstance(spec, str):
        spec = [] if spec == "none" else _entries(spec)
    stages, names = [], []
    for entry in spec:
        pairs = entry.items() if isinstance(entry, Mapping) else [(str(entry), None)]
        for name, parameters in pairs:
            stages.append(make_stage(name.strip(), parameters))
            if any(type(stage) is type(stages[-1]) for stage in stages[:-1]):
                raise PolicyError(f"stage {name.strip()!r} is listed twice; give each stage once")
            shown = ",".join(f"{k}={_shown(v)}" for k, v in (parameters or {}).items())
            names.append(f"{name}({shown})" if shown else name.strip())
    if not any(stage.kind == "allocation" for stage in stages):
        stages.append(make_stage("fifo"))
    return Policy("+".join(names) or "none", tuple(stages))
