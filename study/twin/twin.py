"""The simulated twin of a live run: the same policy on a scenario made from the run's own record.

    found = twin(read_run(Path("runs/night")))
    print(render(found))

The scenario says how fast each rank was in each round, and what an exchange and the fixed part of a step took. The
policy decides again in the simulation, and the decisions and resulting step times are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from equipoise.study.twin.ranks import diagnose, verdicts
from equipoise.study.twin.record import DecisionPoint, LiveRun, journals

CLOSE = 0.05  # relative error of a step time
OTHERWISE = "an earlier decision came out otherwise, so ranks had other samples than live"
APART = "ranks left an exchange at different times, which is neither computing nor simulated"
PAUSED = "rounds were delayed by a pause, and their speeds are not known"
UNKNOWN = "the cause is not known"
_MEETINGS = 12  # simulations until the changes of speed come at their rounds, at most
_MET = 1e-9  # relative, and s; so near is met
_ROUNDING = 1e-6  # relative; a smaller change of speed is none


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
    why: str  # the prediction is further off than `CLOSE`; empty: it is not

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
    slow: tuple[str, ...]  # which rank is slow and why, as `equipoise ranks` says; empty: too few rounds

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
    pairs = [(p, simulated[p.point - 1]) for p in run.points if p.point <= len(simulated)]
    live = [point.entry.decision for point, _ in pairs]
    other = [decision for _, decision in pairs]
    same = identical(live, other)
    return Twin(
        run,
        measured,
        scenario,
        tuple(_windows(run, pairs, simulated)),
        same,
        parting(run.policy, live, other),
        replayed(run.folder, run.policy),
        tuple(_slow(run.folder)),
    )


def _slow(folder: Path) -> list[str]:
    try:
        return verdicts(diagnose(folder))
    except InputError:
        return []


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
    begins_s = _begins_s(run, measured, [])
    for _ in range(_MEETINGS):
        scenario, found = _decisions(run, measured, _events(run, measured, begins_s), seed)
        before_s, begins_s = begins_s, _begins_s(run, measured, found)
        if np.allclose(begins_s, before_s, rtol=_MET, atol=_MET):
            break
    return scenario, found


def _begins_s(run: LiveRun, measured: MeasuredSpeeds, simulated: Sequence[Decision]) -> Floats:
    """Begin of each piece in the simulation, counted from the decision before it with the shares simulated then."""
    samples, delay = run.samples.astype(np.float64), int(run.manifest.get("delay_rounds") or 0)
    known = [(p.rounds, simulated[p.point - 1].observation) for p in run.points if p.point <= len(simulated)]
    first = 0
    for rounds, seen in known:
        shares = seen.workers.samples_per_step
        samples[:, first:rounds] = (shares / shares.sum())[:, None] * samples[:, first:rounds].sum(axis=0)
        first = rounds + delay
    work = np.add.reduceat(measured.fixed_samples + samples, measured.pieces, axis=1)
    exchanges = np.add.reduceat(run.exchanged.astype(np.float64), measured.pieces)
    # An exchange is as fast as its link was at the period's begin, and slows down if the link does: see `_events`.
    slower_s = np.maximum(measured.exchanges_s, np.concatenate((measured.exchanges_s[:1], measured.exchanges_s[:-1])))
    took_s = (measured.per_sample_s * work).max(axis=0) + slower_s * exchanges
    ends_s = np.concatenate(([0.0], np.cumsum(took_s)[:-1]))
    later_s = np.zeros_like(ends_s)
    for rounds, seen in known:
        k = int(np.searchsorted(measured.pieces, rounds))
        if k < len(ends_s):
            later_s[k:] = seen.time_s - ends_s[k]
    return ends_s + later_s


def _node(run: LiveRun, rank: int) -> str:
    return f"rank-{run.members[rank]}-0"


def _events(run: LiveRun, measured: MeasuredSpeeds, begins_s: Floats) -> list[dict[str, Any]]:
    """The speeds and exchanges of all pieces as planned events, where they change.

    A period keeps the speed at its begin, so it is set in the period before; a link in the period that it begins with.
    """
    lasts_s = np.diff(begins_s, append=begins_s[-1] + 1.0)
    early_s = np.maximum(0.0, begins_s - 0.5 * np.concatenate(([0.0], lasts_s[:-1])))
    slower = measured.per_sample_s / measured.fastest_s[:, None]
    links, least_s = measured.exchanges_s, float(measured.exchanges_s.min())
    found = [("slow", rank, early_s, row) for rank, row in enumerate(slower)]
    if least_s > 0.0:
        links_s = np.concatenate(([0.0], (begins_s + 0.5 * np.maximum(0.0, lasts_s - links))[1:]))
        found += [("link", rank, links_s, least_s / links) for rank in range(run.ranks)]
    events = []
    for kind, rank, at_s, factors in found:
        changes = np.flatnonzero(np.abs(np.diff(factors, prepend=1.0)) > _ROUNDING * factors)
        ends_s = np.append(at_s, math.inf)[np.append(changes, len(at_s))[1:]]
        for at, end, factor in zip(at_s[changes], ends_s, factors[changes], strict=True):
            if abs(factor - 1.0) > _ROUNDING and end > at:
                node, lasts = _node(run, rank), min(1e9, float(end - at))
                events.append({"kind": kind, "node": node, "at": float(at), "duration": lasts, "factor": float(factor)})
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
    run: LiveRun, pairs: Sequence[tuple[DecisionPoint, Decision]], simulated: Sequence[Decision]
) -> Iterator[TwinWindow]:
    """The rounds before each decision, where some of them were timed."""
    batch, round_s, first, before = float(run.manifest["global_batch"]), run.round_s, 0, 0
    for point, decision in pairs:
        part, live = slice(first, point.rounds), point.entry.decision
        timed = np.isfinite(round_s[part])  # without the rounds that a pause held up
        trained = float(run.samples[:, part][:, timed].sum())
        if trained > 0:
            measured_s = float(round_s[part][timed].sum()) * batch / trained
            # Several simulated decisions where one failed live.
            predicted_s = _mean_step_s(simulated[before : point.point], batch)
            yield TwinWindow(
                decision=point.point,
                first_round=first,
                last_round=point.rounds - 1,
                samples=tuple(run.samples[:, point.rounds - 1].tolist()),
                interval=int(live.observation.jobs.sync_interval[0]),
                measured_s=measured_s,
                noise=_standard_error(round_s[part][timed]),
                predicted_s=predicted_s,
                equal=first_difference(actions(live), actions(decision)) is None,
                why=_why(run, part, live, decision, measured_s, predicted_s),
            )
        first, before = point.rounds, point.point


def _why(run: LiveRun, part: slice, live: Decision, simulated: Decision, measured_s: float, predicted_s: float) -> str:
    """Why a prediction is further off than `CLOSE`."""
    error = abs(predicted_s / measured_s - 1.0)
    if error <= CLOSE:
        return ""
    here, there = live.observation, simulated.observation
    if not np.array_equal(here.workers.samples_per_step, there.workers.samples_per_step):
        return OTHERWISE
    timed = np.isfinite(run.round_s[part])
    # Until the last rank arrives, and for the shortest exchange: what the leading rank measured besides is apart.
    tail_s, took_s = run.tail_s[:, part][:, timed], run.round_s[part][timed]
    busy_s = (run.stall_s + run.compute_s + run.update_s)[:, part][:, timed]
    apart = abs(float((busy_s.max(axis=0) + tail_s.min(axis=0)).sum() / took_s.sum()) - 1.0)
    return APART if apart > 0.5 * error else UNKNOWN if timed.all() else PAUSED
