"""The simulated twin of a live run: the same policy on a scenario made from the run's own record.

    found = twin(read_run(Path("runs/night")))
    print(render(found))

The scenario says how fast each rank was (with the rounds at which that changed), what an exchange and the fixed
part of a step took, and how much steps vary. Everything else follows from the policy, which decides anew. So
what is compared are the decisions, and the step times that they lead to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Policy
from equipoise.policies.record.journal import JournalError, replay
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.compare import Parting, actions, first_difference, identical, parting
from equipoise.study.twin.eyes import AsLive, levers
from equipoise.study.twin.fit import MeasuredSpeeds, measure, scenario_data
from equipoise.study.twin.record import LiveRun, Point, journals

SEEDS = 5  # noise of the prediction itself is averaged away over so many
_NOISY = 0.002  # variation of steps; below it, one will do


@dataclass(frozen=True)
class TwinWindow:
    """The rounds up to one decision, live and simulated. Step times are per global batch, in seconds."""

    decision: int
    first_round: int
    last_round: int
    samples: tuple[int, ...]  # per rank, live
    interval: int  # live
    measured_s: float
    predicted_s: float
    equal: bool  # the decision at its end is the same on both sides

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True)
class Twin:
    """A live run beside its simulated twin."""

    run: LiveRun
    measured: MeasuredSpeeds
    scenario: Scenario
    windows: tuple[TwinWindow, ...]
    decisions_identical: int  # from the first on
    parted: Parting | None
    replay_differences: tuple[str, ...]  # of the journals, decided on again; none: they replay

    @property
    def step_error_median(self) -> float:
        """Median relative error of the predicted step times; NaN without any decision."""
        return float(np.median([w.error for w in self.windows])) if self.windows else math.nan


def twin(run: LiveRun, seed: int = 0) -> Twin:
    """Build the twin of a live run, simulate it, and compare.

    Raises InputError when the record is too short, damaged, or of a run that cannot be simulated.
    """
    if not run.points:
        raise InputError([f"{run.folder}: no decision is on record, there is nothing to compare"])
    measured = measure(run)
    scenario, simulated = _simulated(run, measured, seed)
    others = range(1, SEEDS) if measured.step_cov > _NOISY else ()
    everywhere = [simulated, *(_simulated(run, measured, seed + k)[1] for k in others)]
    pairs = [(p, simulated[p.point - 1]) for p in run.points if all(p.point <= len(s) for s in everywhere)]
    live = [point.entry.decision for point, _ in pairs]
    other = [decision for _, decision in pairs]
    same = identical(live, other)
    return Twin(
        run, measured, scenario, tuple(_windows(run, pairs, everywhere)), same,
        parting(run.policy, live, other), replayed(run.folder, run.policy),
    )  # fmt: skip


def replayed(folder: Path, policy: Policy) -> tuple[str, ...]:
    """Differences when the policy decides again on every journal of a run. Raises InputError."""
    try:
        return tuple(line for path in journals(folder) for line in replay(policy, path))
    except JournalError as error:
        raise InputError([str(error)]) from error


# -- the simulation ------------------------------------------------------------------------------------------


def _simulated(run: LiveRun, measured: MeasuredSpeeds, seed: int) -> tuple[Scenario, list[Decision]]:
    """The scenario, and what the policy decides in it, in order, without the start of the job.

    A change of speed came at a round; its time in the simulation depends on all that came before it. So the
    scenario is built change by change: simulate, see when that round begins, add the change.
    """
    changes = measured.changes()
    events: list[dict[str, Any]] = []
    for begin in sorted({begin for begin, _, _ in changes}):
        at_s = _begin_of_round(begin, run, _decisions(run, measured, events, seed)[1])
        for event in events:
            if event["node"] in {_node(run, rank) for k, rank, _ in changes if k == begin}:
                event["duration"] = min(event["duration"], at_s - event["at"])
        events += [
            _event(run, rank, at_s, factor) for k, rank, factor in changes if k == begin and factor != 1.0
        ]
    return _decisions(run, measured, events, seed)


def _node(run: LiveRun, rank: int) -> str:
    return f"rank-{run.members[rank]}-0"


def _event(run: LiveRun, rank: int, at_s: float, factor: float) -> dict[str, Any]:
    return {"kind": "slow", "node": _node(run, rank), "at": at_s, "duration": 1e9, "factor": factor}


def _decisions(
    run: LiveRun, measured: MeasuredSpeeds, events: list[dict[str, Any]], seed: int
) -> tuple[Scenario, list[Decision]]:
    stages = run.manifest.get("stages") or ["fifo"]
    scenario = from_mapping(scenario_data(run, measured, events, stages))
    allowed = run.manifest.get("allow", ()) if run.manifest["mode"] == "act" else ()
    found: list[Decision] = []
    eyes = AsLive(
        run.policy,
        found,
        levers() - set(allowed),
        run.unheard,
        measured.fixed_samples,
        measured.update_samples,
    )
    simulate(scenario, policy=Policy(run.policy.name, (eyes,)), seed=seed)
    return scenario, found


def _begin_of_round(begin: int, run: LiveRun, simulated: Sequence[Decision]) -> float:
    """When round `begin` begins in the simulation, less half a round: a period keeps the speed it began with.

    Rounds are told by the samples before them: the last of an epoch may be short.
    """
    each = run.samples.sum(axis=0)
    wanted = float(each[:begin].sum()) - 0.5 * float(each[begin])
    at_s = trained = 0.0
    for decision in simulated:
        new = _trained(decision)
        if trained + new > wanted:
            return at_s + (wanted - trained) * (decision.observation.time_s - at_s) / new
        at_s, trained = decision.observation.time_s, trained + new
    batch = float(run.manifest["global_batch"])
    return at_s + (wanted - trained) / batch * (_step_s(simulated[-1], batch) if simulated else 0.0)


def _trained(decision: Decision) -> float:
    """Samples of the window before a decision."""
    o = decision.observation
    return float(o.jobs.throughput_samples_per_s[0]) * o.window_s


def _step_s(decision: Decision, batch: float) -> float:
    """Time per global batch in the window before a decision."""
    return batch / float(decision.observation.jobs.throughput_samples_per_s[0])


def _mean_step_s(decisions: Sequence[Decision], batch: float) -> float:
    """Time per global batch in the windows before these decisions."""
    return sum(d.observation.window_s for d in decisions) * batch / sum(map(_trained, decisions))


# -- the comparison ------------------------------------------------------------------------------------------


def _windows(
    run: LiveRun, pairs: Sequence[tuple[Point, Decision]], simulated: Sequence[Sequence[Decision]]
) -> Iterator[TwinWindow]:
    """The rounds before each decision, where some of them were timed; `simulated` on several seeds: their mean."""
    batch, round_s, first, before = float(run.manifest["global_batch"]), run.round_s, 0, 0
    for point, decision in pairs:
        part, live = slice(first, point.rounds), point.entry.decision
        timed = np.isfinite(round_s[part])  # without the rounds that a pause held up
        trained = float(run.samples[:, part][:, timed].sum())
        if trained > 0:
            yield TwinWindow(
                decision=point.point,
                first_round=first,
                last_round=point.rounds - 1,
                samples=tuple(run.samples[:, point.rounds - 1].tolist()),
                interval=int(live.observation.jobs.sync_interval[0]),
                measured_s=float(round_s[part][timed].sum()) * batch / trained,
                # Several simulated decisions where one failed live.
                predicted_s=float(np.mean([_mean_step_s(s[before : point.point], batch) for s in simulated])),
                equal=first_difference(actions(live), actions(decision)) is None,
            )
        first, before = point.rounds, point.point
