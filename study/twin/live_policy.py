"""A policy in the simulator with the observations and actions of the live job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import UNCHANGED, Decision, Kind, Memory, Plan, Policy, Stage, refine
from equipoise.policies.growth import LEAST_ROUNDS, Growth
from equipoise.policies.observation import Observation, writable

_FIELDS = {
    "samples": ("samples_per_step",),
    "moves": ("moves",),
    "order": ("fetch_order",),
    "batch": ("global_batch", "learning_rate"),
    "interval": ("sync_interval",),
    "share": ("gpu_share",),
    "accumulation": ("accumulation",),
    "resize": ("allocation",),
    "power": ("power_cap_w",),
}
"""Levers of a live run with the plan fields that use them."""

_OF_SHARES = ("job", "memory_bytes", "share_free", "share_quantum")
"""Columns of GPUs about holders and shares."""

_NEVER = ("gradient_weight", "suspect")  # a live job carries out neither


@dataclass(frozen=True)
class AsLive(Stage):
    """All stages of a policy, run as in a live job.

    It observes the fixed part of a step as a live job measures it (the update, and the fit from changes of shares),
    and the live shares of GPUs, where in the simulation each rank has its own slower GPU. Decisions that were lost
    live are skipped, and changes that the live job did not apply are undone.
    """

    name: ClassVar[str] = "as-live"
    kind: ClassVar[Kind] = "tasks"

    policy: Policy
    decided: list[Decision]  # filled: what the policy wanted at each point, the start of the job left out
    held: frozenset[str]  # levers that were not pulled live, whatever the plan
    unheard: frozenset[int]  # points, from 1 on, at which there was no decision live
    fixed_samples: float  # fixed part of a step, in samples
    update_samples: float  # of these, what a live job measures as the update
    shares: Observation | None = None  # a live one, whose ranks held parts of GPUs; none: all had whole ones

    def initial(self) -> Memory:
        """Memory of the policy, and of the fit of steps."""
        return {"policy": self.policy.initial(), "growth": Growth()}

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """The part of the policy's plan that the live job would apply; a live job starts as its script sets."""
        if not len(observation.workers):
            begun = refine(self.policy, observation, memory["policy"]).plan
            others = {field for fields in _FIELDS.values() for field in fields} - {"allocation"}
            return without(begun, [*_NEVER, *others]), memory
        seen = self._seen(observation.snapshot(), memory["growth"])
        if len(self.decided) + 1 in self.unheard:
            before = memory["policy"]
            self.decided.append(Decision(seen, UNCHANGED, before, before))
            return plan, memory
        decision = refine(self.policy, seen, memory["policy"])
        self.decided.append(decision)
        fields = [*_NEVER, *(field for lever in self.held for field in _FIELDS[lever])]
        weight = decision.plan.gradient_weight
        if weight is not None and (weight != 1.0).any():
            fields.append("samples_per_step")  # as `live.decide.world` refuses what belongs to it
        kept = [field for field in fields if not (field == "allocation" and len(observation.waiting))]
        return without(decision.plan, kept), {**memory, "policy": decision.memory}

    def _seen(self, observation: Observation, growth: Growth) -> Observation:
        """The observation with the fixed part of a step as a live job knows it."""
        workers = observation.workers
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = workers.step_s / workers.response_s_per_sample
            update_s = workers.step_s * self.update_samples / (self.fixed_samples + samples)
        batch = float(observation.jobs.global_batch[0])
        rounds = float(observation.jobs.throughput_samples_per_s[0]) * observation.window_s / batch
        if rounds > LEAST_ROUNDS - 0.5:
            growth.learn(samples, workers.step_s)
        fixed_s = np.nan_to_num(growth.fixed_s(samples, workers.step_s, update_s))
        changed = type(workers).of(**workers.as_dict())
        writable(changed, "fixed_s")[:] = fixed_s
        seen = replace(observation, workers=changed)
        return seen if self.shares is None else _with_shares(seen, self.shares)


def _with_shares(observation: Observation, live: Observation) -> Observation:
    """GPUs and the workers' shares of them as in `live`; a GPU is on the node of its first worker."""
    held, first, gpu = np.unique(live.workers.gpu, return_index=True, return_inverse=True)
    there = observation.workers.gpu[first]
    gpus = {name: values[there] for name, values in observation.gpus.as_dict().items()}
    gpus |= {name: getattr(live.gpus, name)[held] for name in _OF_SHARES}
    count, row = (np.zeros(len(observation.nodes), dtype=np.int64) for _ in range(2))
    count[gpus["node"]], row[gpus["node"]] = 1, np.arange(len(held))
    return replace(
        observation,
        nodes=observation.nodes.replaced(gpus=count, first_gpu=row, gpus_free=np.zeros_like(count)),
        gpus=type(observation.gpus).of(**gpus),
        workers=observation.workers.replaced(gpu=gpu, gpu_share=live.workers.gpu_share),
        speeds=observation.speeds if len(live.speeds) else type(live.speeds)(),
    )


def without(plan: Plan, fields: Sequence[str]) -> Plan:
    """The plan with some fields unchanged."""
    return plan.with_(**dict.fromkeys(fields))


def levers() -> frozenset[str]:
    """All levers of a live run."""
    return frozenset(_FIELDS)
