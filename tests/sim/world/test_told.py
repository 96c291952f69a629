"""What a trace tells of jobs beside the usual reaches policies, of jobs that have arrived, and the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.contract import Memory, Plan, Policy, Stage
from equipoise.policies.observation import Labels, Observation
from equipoise.policies.record.journal import read
from equipoise.policies.registry import make_policy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run
from equipoise.sim.traces.read import read_trace

CASE = {"schema_version": 1, "name": "told", "cluster": {"nodes": [{"count": 1, "gpus": 1}]}}
TRACE = """job_id,arrival_s,gpus,duration_s,user,colour
1,0,1,60,ann,blue
2,10,1,60,bob,
3,200,1,60,ann,pink
"""


@dataclass(frozen=True)
class Looks(Stage):
    """Notes what it is told."""

    name = "looks"
    seen: list[dict[str, Any]] = field(default_factory=list, compare=False)

    def refine(self, observation: Observation, plan: Plan, memory: Memory) -> tuple[Plan, Memory]:
        """Nothing changes."""
        found: dict[str, Any] = {}
        for name, told in observation.told.items():
            texts = np.array(told.names)[told.codes] if isinstance(told, Labels) else told
            found[name] = texts.tolist()
        self.seen.append(found)
        return plan.because(self.name, "looked"), memory


def test_columns_that_nobody_knows_reach_a_stage(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    trace = read_trace(tmp_path / "jobs.csv")
    looks = Looks()
    journal = tmp_path / "journal.jsonl"
    made = run(
        from_mapping({**CASE, "workload": {"trace": {"file": "jobs.csv"}}}),
        policy=Policy("fifo, looks", (*make_policy("fifo").stages, looks)),
        trace=trace,
        journal=journal,
    )
    assert made.jobs["colour"].tolist() == ["blue", "", "pink"]
    first, last = looks.seen[0], looks.seen[-1]
    assert (first["user"], first["colour"]) == (["ann"], ["blue"])  # of no job that is still to come
    assert (last["user"], last["colour"]) == (["ann", "bob", "ann"], ["blue", "", "pink"])
    kept = [entry.decision.observation.told for entry in read(journal)]
    assert [told["colour"].names for told in kept if len(told)] == [("", "blue", "pink")] * len(looks.seen)
    assert kept[-1]["colour"].codes.tolist() == [1, 0, 2]
