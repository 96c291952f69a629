"""The simulated twin of a live run: the same policy on a scenario made from the run's own record.

    found = twin(read_run(Path("runs/night")))
    print(render(found))

The scenario says how fast each rank was (with the rounds at which that changed), what an exchange and the fixed
part of a step took, and how much steps vary. The policy decides again in the simulation, and the decisions and
resulting step times are compared.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Policy
from equipoise.policies.observation import Floats, Observation
from equipoise.policies.record.journal import JournalError, replay
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.run import run as simulate
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.study.twin.compare import Parting, actions, first_difference, identical, parting
from equipoise.study.twin.fit import MeasuredSpeeds, measure, scenario_data
from equipoise.study.twin.live_policy import AsLive, levers
from equipoise.study.twin.record import DecisionPoint, LiveRun, journals

SEEDS = 5  # noise of the prediction itself is averaged away over so many
_MEETINGS = 12  # simulations until the changes of speed come at their rounds, at most
_MET = 1e-9  # relative; so near is met
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
    noise: float  # relative standard error of that, by how its rounds vary; NaN of a single round
    predicted_s: float
    equal: bool  # the decision at its end is the same on both sides

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True)
class Twin:
    """A live run with its simulated twin."""

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

    @property
    def noise_median(self) -> float:
        """Median relative standard error of the measured step times; NaN where none is known."""
        known = [w.noise for w in self.windows if math.isfinite(w.noise)]
        return float(np.median(known)) if known else math.nan


def twin(run: LiveRun, seed: int = 0) -> Twin:
    """Build the twin of a live run, simulate it, and compare.

    Raises InputError when the record is too short, damaged, or of a run that cannot be simulated.
    """
    if not run.points:
        raise InputError([f"{run.folder}: no decision is recorded, there is nothing to compare"])
    measured = measure(run)
    scenario, simulated = _simulated(run, measured, seed)
    others = range(1, SEEDS) if measured.step_cov > _NOISY else ()
    everywhere = [simulated, *(_simulated(run, measured, seed + k)[1] for k in others)]
    pairs = [(p, simulated[p.point - 1]) for p in run.points if all(p.point <= len(s) for s in everywhere)]
    live = [point.entry.decision for point, _ in pairs]
    other = [decision for _, decision in pairs]
    same = identical(live, other)
    return Twin(
        run,
        measured,
        scenario,
        tuple(_windows(run, pairs, everywhere)),
        same,
        parting(run.policy, live, other),
        replayed(run.folder, run.policy),
    )


def replayed(folder: Path, policy: Policy) -> tuple[str, ...]:
    """Differences when the policy decides again on every journal of a run. Raises InputError."""
    try:
        return tuple(line for path in journals(folder) for line in replay(policy, path))
    except JournalError as error:
        raise InputError([str(error)]) from error


# -- the simulation ------------------------------------------------------------------------------------------


def _simulated(run: LiveRun, measured: MeasuredSpeeds, seed: int) -> tuple[Scenario, list[Decision]]:
    """The scenario, and the policy's decisions in it, in order, without the start of the job.

    A change of speed came at a round; its time in the simulation depends on all that came before it. So it is
    simulated until the decisions before the changes are made when the changes say that they are.
    """
    changes = measured.changes()
    begins = sorted({*(begin for begin, _, _ in changes), *(begin for begin, _ in measured.exchanges)})
    at_s = _begins(run, begins, [])
    for _ in range(_MEETINGS if begins else 1):
        scenario, found = _decisions(run, measured, _events(run, measured, at_s), seed)
        before_s, at_s = at_s, _begins(run, begins, found)
        if all(abs(at_s[k] - before_s[k]) <= _MET * max(at_s[k], 1.0) for k in begins):
            break
    return scenario, found


def _begins(run: LiveRun, begins: Sequence[int], simulated: Sequence[Decision]) -> dict[int, float]:
    """Begin of these rounds in the simulation, less half a round: a period keeps the speed at its begin. The time
    since the decision before them, or the start, is that of the live run.
    """
    took_s = np.where(np.isfinite(run.round_s), run.round_s, np.nanmean(run.round_s))
    ends_s = np.concatenate(([0.0], np.cumsum(took_s)))
    anchors = [(0, 0.0)]
    anchors += [(p.rounds, simulated[p.point - 1].observation.time_s) for p in run.points if p.point <= len(simulated)]
    rounds = [first for first, _ in anchors]
    found = {}
    for begin in begins:
        first, at_s = anchors[bisect.bisect_right(rounds, begin) - 1]
        half_s = 0.5 * took_s[begin - 1] if begin else 0.0
        found[begin] = max(0.0, at_s + float(ends_s[begin] - ends_s[first] - half_s))
    return found


def _node(run: LiveRun, rank: int) -> str:
    return f"rank-{run.members[rank]}-0"


def _events(run: LiveRun, measured: MeasuredSpeeds, at_s: Mapping[int, float]) -> list[dict[str, Any]]:
    """The changes of speed and of exchanges as planned events, each until the next one of its rank."""
    events: list[dict[str, Any]] = []
    changes, usual_s = measured.changes(), float(np.nanmean(run.round_s))
    slower = [("slow", rank, at_s[begin], factor) for begin, rank, factor in changes]
    # The round before ends with an exchange of its own.
    least = measured.least_exchange
    links = [(at_s[begin] + 0.75 * usual_s, least / factor) for begin, factor in measured.exchanges]
    links = [(0.0, least), *links] if least < 1.0 else links
    slower += [("link", rank, at, factor) for rank in range(run.ranks) for at, factor in links]
    for kind, rank in itertools.product(("slow", "link"), range(run.ranks)):
        mine = [(at, factor) for what, of, at, factor in slower if (what, of) == (kind, rank)]
        ends_s = [*(at for at, _ in mine), math.inf][1:]
        events += [
            {"kind": kind, "node": _node(run, rank), "at": at, "duration": min(1e9, end - at), "factor": factor}
            for (at, factor), end in zip(mine, ends_s, strict=True)
            if factor != 1.0 and end > at
        ]
    return sorted(events, key=lambda event: float(event["at"]))


def _decisions(
    run: LiveRun, measured: MeasuredSpeeds, events: list[dict[str, Any]], seed: int
) -> tuple[Scenario, list[Decision]]:
    stages = run.manifest.get("stages") or ["fifo"]
    scenario = from_mapping(scenario_data(run, measured, events, stages))
    allowed = set(run.manifest.get("allow", ()) if run.manifest["mode"] == "act" else ())
    shares = _shares(run)
    if shares is not None:
        allowed -= {"share", "resize"}  # MPS refuses the one; what follows the other is not simulated
    found: list[Decision] = []
    eyes = AsLive(
        run.policy, found, levers() - allowed, run.unheard, measured.fixed_samples, measured.update_samples, shares
    )
    simulate(scenario, policy=Policy(run.policy.name, (eyes,)), seed=seed)
    return scenario, found


def _shares(run: LiveRun) -> Observation | None:
    """The first live observation, if ranks held shares of devices. Raises InputError."""
    if not run.has_fixed_shares:
        return None
    first = run.points[0].entry.decision.observation
    gpu = first.workers.gpu
    if len(gpu) != run.ranks or gpu.min() < 0 or gpu.max() >= len(first.gpus):
        raise InputError([f"{run.folder}: the first recorded decision is not of the ranks in the manifest"])
    return first


def _trained(decision: Decision) -> float:
    """Samples of the window before a decision."""
    o = decision.observation
    return float(o.jobs.throughput_samples_per_s[0]) * o.window_s


def _mean_step_s(decisions: Sequence[Decision], batch: float) -> float:
    """Time per global batch in the windows before these decisions."""
    return math.fsum(d.observation.window_s for d in decisions) * batch / math.fsum(map(_trained, decisions))


# -- the comparison ------------------------------------------------------------------------------------------


def _standard_error(values: Floats) -> float:
    """Relative standard error of the mean of `values`; NaN for a single one."""
    return float(values.std(ddof=1) / math.sqrt(len(values)) / values.mean()) if len(values) > 1 else math.nan


def _windows(
    run: LiveRun, pairs: Sequence[tuple[DecisionPoint, Decision]], simulated: Sequence[Sequence[Decision]]
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
                noise=_standard_error(round_s[part][timed]),
                # Several simulated decisions where one failed live.
                predicted_s=float(np.mean([_mean_step_s(s[before : point.point], batch) for s in simulated])),
                equal=first_difference(actions(live), actions(decision)) is None,
            )
        first, before = point.rounds, point.point
