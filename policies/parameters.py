"""Keys of a sweep or a search that name a parameter of a stage: `policy.STAGE.PARAMETER`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from equipoise.policies.contract import Policy
from equipoise.policies.registry import PolicyError, make_policy, make_stage

AnyPolicy = str | Policy
"""A policy, or its name."""

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


def with_parameters(policy: AnyPolicy, own: Parameters) -> AnyPolicy:
    """The policy with these values in those of its stages that they name; its name says so. Raises PolicyError."""
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
            raise PolicyError(
                f"policy.{stage}: no policy has that stage; those that are: {', '.join(sorted(known))}"
            )
