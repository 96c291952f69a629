"""The orders of the runs of a study.

An order is small, plain and complete, so it can be sent to another machine; its id is the identity of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.policies.contract import Policy
from equipoise.policies.parameters import AnyPolicy
from equipoise.policies.registry import make_policy
from equipoise.sim.scenario.model import Scenario

Row = dict[str, Any]
"""One run in flat columns: those of its order, `status`, `error`, its metrics and totals, `notes`, times."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run to make. `scenario` is its scenario as JSON, shared by all orders of one point."""

    id: str
    number: int
    point: int
    policy: str
    seed: int
    scenario: str
    values: Mapping[str, Any]
    given: Policy | None = None  # the policy itself, where it is not made from its name

    def stages(self) -> Policy:
        """The policy. Raises PolicyError."""
        return self.given if self.given is not None else make_policy(self.policy)

    def row(self) -> Row:
        """The columns that identify the run."""
        which = {"id": self.id, "number": self.number, "point": self.point}
        return {**which, "policy": self.policy, "seed": self.seed, **self.values}


def name_of(policy: AnyPolicy) -> str:
    """The name of a policy in results."""
    return policy if isinstance(policy, str) else policy.name


def policy_text(scenario: Scenario, chosen: str | None) -> str:
    """The requested policy, else the scenario's, as text. Raises PolicyError for an unknown one."""
    if chosen is not None:
        make_policy(chosen)
        return chosen
    return make_policy(list(scenario.policy)).name
