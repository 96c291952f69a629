"""What a run depends on: its jobs, and the hashes of all its inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields

from equipoise.base.sources import COMPUTING, code_hash, combined
from equipoise.policies.contract import Policy
from equipoise.policies.record.foreign import foreign_sources
from equipoise.sim.feature import with_jobs
from equipoise.sim.hardware.carbon import load_carbon
from equipoise.sim.hardware.prices import load_book
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.traces.generate import generate
from equipoise.sim.traces.trace import Trace


def trace_of(scenario: Scenario) -> Trace | None:
    """The trace that a scenario names, read from its file."""
    spec = scenario.workload.trace
    if spec is None:
        return None
    from equipoise.sim.traces.read import read_spec  # takes a while, and most scenarios name no trace

    return read_spec(spec, spec.file)


def drawn_jobs(scenario: Scenario, seed: int, trace: Trace | None = None) -> Trace | None:
    """The jobs of a seed: of the trace, or as described; None without any."""
    spec = scenario.workload.generate
    if trace is not None or spec is None:
        return trace
    return generate(spec, sum(group.count * group.gpus for group in scenario.cluster.groups), seed)


def run_identities(scenario: Scenario, policy: Policy, seeds: Iterable[int], trace: Trace | None) -> list[str]:
    """Identities of runs that differ only in their seeds; shared inputs are hashed once."""
    shared = _inputs(scenario, policy, trace)
    return [combined({**shared, "seed": str(seed)}.items()) for seed in seeds]


def run_inputs(scenario: Scenario, policy: Policy, seed: int, trace: Trace | None) -> dict[str, str]:
    """Hash or version of everything that the run's records depend on; the run's identity is their hash."""
    return {**_inputs(scenario, policy, trace), "seed": str(seed)}


def _inputs(scenario: Scenario, policy: Policy, trace: Trace | None) -> dict[str, str]:
    scenario = with_jobs(scenario, 0)  # jobs of features follow from the seed, which counts by itself
    texts = {
        "scenario with its defaults": scenario.model_dump_json(exclude={"policy", "seed"}),  # those that ran count
        "hardware profile": load_profile(scenario.cluster.hardware).model_dump_json(),
        "price book": load_book(scenario.cost.book).model_dump_json(),
        **({} if (carbon := load_carbon(scenario.energy)) is None else {"carbon": carbon[0].model_dump_json()}),
        "parameters of the stages": json.dumps(
            [[type(s).__qualname__, {f.name: getattr(s, f.name) for f in fields(s)}] for s in policy.stages],
            default=lambda value: type(value).__qualname__,
        ),
    }
    return {
        **{name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()},
        "trace": trace.digest().hex()[:16] if trace is not None else "none",
        "policy": policy.name,
        f"all files of {' and '.join(COMPUTING)}": code_hash(),
        **{f"stage: {name}": value for name, value in foreign_sources(policy)},
    }
