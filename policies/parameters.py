"""Keys of a sweep or a search that name a parameter of a stage: `policy.STAGE.PARAMETER`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from equipoise.policies.contract import Policy, Stage
from equipoise.policies.registry import PolicyError, make_policy, make_stage

AnyPolicy = str | Policy
"""A policy, or its name."""
GivenPolicy = str | Policy | Stage | Sequence[Stage | str]
"""What callers may pass as a policy: also one stage or several."""

PREFIX = "policy."
Parameters = dict[str, dict[str, Any]]
"""Values by stage and parameter."""


def split_point(point: Mapping[str, Any]) -> tuple[dict[str, Any], Parameters]:
    """(values by key of the scenario, values by stage and parameter). Raises PolicyError for half a key."""
    own: Parameters = {}
    for key, value in point.items():
        if key.startswith(PREFIX):
            stage, dot, parameter = key.removeprefix(PREFIX).partition(".")
            if not dot or not parameter:
                raise PolicyError(f"{key}: write policy.STAGE.PARAMETER, e.g. policy.las.promote")
            own.setdefault(stage, {})[parameter] = value
    return {key: value for key, value in point.items() if not key.startswith(PREFIX)}, own


def as_policy(given: GivenPolicy) -> AnyPolicy:
    """A policy from a caller's argument: a text, a policy, a stage or a list of stages.

    `fifo` is appended where no stage allocates. Raises PolicyError for any other argument.
    """
    if isinstance(given, str | Policy):
        return given
    entries = given if isinstance(given, Sequence) else [given]
    if not entries:  # as in a scenario
        return "none"
    stages, names = list[Stage](), list[str]()
    for entry in entries:
        if isinstance(entry, str):
            made = make_stage(entry)
        elif isinstance(entry, Stage):
            made = entry
        else:
            what = f"{entry.__name__} itself" if isinstance(entry, type) else repr(entry)
            raise PolicyError(
                f"{what} is not a policy: give a text such as 's1+easy', a stage such as {_an_object(entry)}, a list "
                "of stages, or Policy('name', (stage, ...))"
            )
        stages.append(made)
        names.append(entry if isinstance(entry, str) else _shown(made))
    if not any(stage.kind == "allocation" for stage in stages):
        stages.append(make_stage("fifo"))
    return Policy("+".join(names), tuple(stages))


def as_policies(given: GivenPolicy | Sequence[GivenPolicy]) -> list[AnyPolicy]:
    """Policies from a list or a single one. Raises PolicyError."""
    alone = isinstance(given, str | Policy | Stage) or not isinstance(given, Sequence)
    return [as_policy(one) for one in ([given] if alone else given)]  # type: ignore[arg-type, union-attr]


def _an_object(entry: object) -> str:
    return f"{entry.__name__}()" if isinstance(entry, type) else "SmallestFirst()"


def _shown(stage: Stage) -> str:
    """The name of a stage with those of its parameters that are not the default."""
    own = []
    for f in dataclasses.fields(stage) if dataclasses.is_dataclass(stage) else ():
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if getattr(stage, f.name) != default:
            own.append(f"{f.name}={getattr(stage, f.name)}")
    return stage.name + (f"({','.join(own)})" if own else "")


def with_parameters(policy: AnyPolicy, own: Parameters) -> AnyPolicy:
    """The policy with these parameter values, which its name then includes. Raises PolicyError."""
    if not own:
        return policy
    if isinstance(policy, Policy):
        stages = tuple(dataclasses.replace(stage, **own.get(stage.name, {})) for stage in policy.stages)
        shown = "".join(f"[{k}={v}]" for s in policy.stages for k, v in own.get(s.name, {}).items())
        return Policy(policy.name + shown, stages)
    entries = []
    for stage in make_policy(policy).stages:
        given = {f.name: getattr(stage, f.name) for f in dataclasses.fields(stage)}
        default = make_stage(stage.name)
        changed = {k: v for k, v in given.items() if v != getattr(default, k)}
        entries.append({stage.name: changed | own.get(stage.name, {})})
    return make_policy(entries)


def check_used(keys: Iterable[str], policies: Iterable[AnyPolicy]) -> None:
    """Raises PolicyError for a key whose stage no policy has."""
    made = [make_policy(policy) if isinstance(policy, str) else policy for policy in policies]
    known = {stage.name for policy in made for stage in policy.stages}
    for stage in split_point(dict.fromkeys(keys, 0))[1]:
        if stage not in known:
            raise PolicyError(f"policy.{stage}: no policy has that stage; allowed: {', '.join(sorted(known))}")
