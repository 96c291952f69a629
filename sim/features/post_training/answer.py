"""How many GPUs should roll out and how many should train: every possible split of a loop's GPUs, and the best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.sim.features.post_training.certainty import certainty_of, errors
from equipoise.sim.features.post_training.checks import trainer_memory_bytes
from equipoise.sim.features.post_training.decode import DRAWN
from equipoise.sim.features.post_training.phases import Phases, StepParts, parts, phases
from equipoise.sim.features.post_training.section import Loop, loops_of
from equipoise.sim.hardware.prices import make_prices
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.llm.certainty import StepCertainty
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_seconds, format_usd
from equipoise.sim.shown import Answered

DAY_S = 86400.0
SPLITS_MOST = 31


def _time(value_s: float) -> str:
    """Seconds up to ten minutes, so that times of one table compare at sight."""
    return f"{value_s:.{0 if value_s >= 9.95 else 1}f} s" if value_s < 600.0 else format_seconds(value_s)


@dataclass(frozen=True)
class Split:
    """A loop with its GPUs split in one way, its phases and its step. usd: a day of it. fits: in memory."""

    loop: Loop
    phases: Phases
    step: StepParts
    usd: float
    fits: bool

    @property
    def name(self) -> str:
        """In words."""
        if self.loop.colocated or not self.loop.generates:
            return "all in turn" if self.loop.generates else "all train"
        return f"{self.loop.rollout_gpus} + {self.loop.trainer_gpus}"

    @property
    def tokens_a_day(self) -> float:
        """Tokens trained on, with prompts."""
        return self.step.tokens * DAY_S / self.step.step_s


def answer(scenario: Scenario, name: str | None = None) -> Answered:
    """Of the loop of this name, or the only one. Raises InputError without it, or where no split is possible."""
    loops = {loop.name: loop for loop in loops_of(scenario)}
    if name not in loops and (name is not None or len(loops) != 1):
        said = f"--loop {name!r}: no such loop" if name is not None else f"has {len(loops) or 'no'} loops"
        wanted = f"allowed: {', '.join(loops)} (--loop)" if loops else "it needs a section 'post_training'"
        raise InputError([f"{scenario.name}: post_training: {said}; {wanted}"])
    loop = loops[name] if name is not None else next(iter(loops.values()))
    every = sorted(splits(loop, scenario), key=lambda split: (split.step.step_s, split.loop.rollout_gpus))
    if not every:
        raise InputError([f"{scenario.name}: post_training: no split of {loop.gpus} GPUs suits the layouts"])
    found = [split for split in every if split.fits] or every  # it is warned of where none fits
    larger = ", ".join(split.name for split in every if split not in found)
    sure = certainty_of(loop, scenario)
    best, likely = found[0], _likely(found, sure)
    return Answered(
        f"Post-training: {scenario.name}, loop {loop.name}",
        tuple(_sentences(loop, found, likely, sure)),
        _rows(found, likely),
        (
            *([f"not shown: training needs more memory than a GPU has: {larger}"] if larger else ()),
            *sure.lines(),
            f"lengths: drawn for {min(DRAWN, loop.steps)} steps, seed {scenario.seed}",
        ),
        _data(found, likely, sure),
        "GPUs that roll out" if best.loop.generates else "",
        _lines(found),
    )


def _lines(found: list[Split]) -> dict[str, dict[float, float]]:
    """The step and both of its sides by GPUs that roll out, and the step with all GPUs in turn."""
    lines: dict[str, dict[float, float]] = {"step": {}, "rollout": {}, "scoring and training": {}, "all in turn": {}}
    for split in found:
        gpus, step = float(split.loop.rollout_gpus), split.step
        if split.loop.colocated:
            lines["all in turn"] = dict.fromkeys((0.0, gpus), step.step_s)
        else:
            sides = (step.step_s, step.rollout_s, split.phases.trainer_s)
            for name, value in zip(lines, sides, strict=False):
                lines[name][gpus] = value
    return {name: line for name, line in lines.items() if line}


def splits(loop: Loop, scenario: Scenario) -> Iterator[Split]:
    """All in turn, where it rolls out, and each number of GPUs that roll out, of which the layouts can use both."""
    profile = load_profile(scenario.cluster.hardware)
    prices = make_prices(scenario, profile)
    day_usd = float(np.average(prices.usd_per_gpu_s, weights=prices.gpus)) * DAY_S
    for tried in _tried(loop):
        try:
            found = phases(tried, scenario, scenario.seed)
        except ValueError:  # the layout of the trainers cannot use as many
            continue
        need, has = trainer_memory_bytes(tried, scenario, profile)
        yield Split(tried, found, parts(tried, found), day_usd * loop.gpus, need <= has)


def _tried(loop: Loop) -> Iterator[Loop]:
    if not loop.generates:
        yield loop
        return
    whole = {"gpus": None, "stream": False}
    if loop.gpus % loop.rollout.tensor == 0:
        yield loop.model_copy(update={"rollout": loop.rollout.model_copy(update=whole), "behind": 0})
    every = loop.rollout.tensor * max(1, math.ceil(loop.gpus / loop.rollout.tensor / (SPLITS_MOST + 1)))
    for gpus in sorted({*range(every, loop.gpus, every), *filter(None, (loop.rollout.gpus,))}):
        yield loop.model_copy(update={"rollout": loop.rollout.model_copy(update={"gpus": gpus})})


def _likely(found: list[Split], sure: StepCertainty) -> dict[int, float]:
    """Chance of each split, by its place in `found`, to be the fastest, over errors of rollouts and of training."""
    drawn = errors(sure)
    steps = np.array([[parts(s.loop, s.phases.times(a, b)).step_s for a, b in drawn] for s in found])
    first = Counter(steps.argmin(axis=0).tolist())
    return {k: first[k] / len(drawn) for k in range(len(found))}


def _sentences(loop: Loop, found: list[Split], likely: Mapping[int, float], sure: StepCertainty) -> Iterator[str]:
    """The best split with its interval; what else could be best, and what the others cost; what waits."""
    best, step = found[0], found[0].step
    low, high = sure.spread.interval()
    between = f"(90 %: {_time(step.step_s * low)} .. {_time(step.step_s * high)})"
    fastest = (
        f"Of {loop.gpus} GPUs, {best.loop.rollout_gpus} for rollouts and {best.loop.trainer_gpus} for training are "
    )
    fastest += f"fastest with rollouts {loop.behind} step{'s' * (loop.behind > 1)} ahead" if loop.behind else "fastest"
    if best.loop.colocated or not loop.generates:
        fits = "are fastest where all roll out and train in turn" if loop.generates else "train on given responses"
        fastest = f"{loop.gpus} GPUs {fits}"
        if loop.gpus == 1:
            fastest = "1 GPU rolls out and trains in turn" if loop.generates else "1 GPU trains on given responses"
    yield (
        f"{fastest}: a step takes {_time(step.step_s)} {between}, {DAY_S / step.step_s:,.0f} steps and "
        f"{best.tokens_a_day / 1e9:.3g} billion tokens a day, for {format_usd(best.usd)} a day."
    )
    if loop.generates and len(found) > 1:
        gpus = sorted((found[k].loop.rollout_gpus, chance) for k, chance in likely.items())
        reached = np.cumsum([chance for _, chance in gpus])
        least, most = (gpus[int(np.searchsorted(reached, share - 1e-9))][0] for share in (0.05, 0.95))
        ends = f"{least} to {most} GPUs for rollouts (90 %)" if least < most else "that split (90 %)"
        others = [f"second is {found[1].name}, {_time(found[1].step.step_s)}"]
        others += [f"all in turn take {_time(s.step.step_s)}" for s in found[2:] if s.loop.colocated]
        yield f"As phases are predicted, the best is {ends}; {'; '.join(others)}."
    yield _waits(best)


def _waits(best: Split) -> str:
    """What waits in the best split, and for what."""
    step = best.step
    if not best.loop.generates:
        scored = f", scoring {_time(step.scoring_s)}" if step.scoring_s else ""
        return f"Training takes {_time(step.training_s)} of it{scored}."
    longest_s = float(best.phases.longest_s.mean())
    tail = f", and replicas are done {_time(step.tail_s)} before the last response in the mean" if step.tail_s else ""
    if longest_s > 0.7 * step.rollout_s:
        tail += f"; the longest response alone takes {_time(longest_s)}, which no GPU shortens"
    if best.loop.colocated:
        return f"GPUs wait {100 * step.waiting:.0f} % of the time{tail and ': '}{tail[2:].removeprefix('and ')}."
    waits = f"trainers wait {_time(step.trainers_wait_s)} of a step for rollouts"
    if step.replicas_wait_s > step.trainers_wait_s:
        waits = f"replicas wait {_time(step.replicas_wait_s)} of a step for trained weights"
    return f"GPUs wait {100 * step.waiting:.0f} % of the time: {waits}{tail}."


def _rows(found: list[Split], likely: Mapping[int, float]) -> tuple[tuple[str, ...], ...]:
    head = ("rollout + training", "step", "best", "rollout", "scoring", "training", "handover", "replicas wait")
    rows: list[tuple[str, ...]] = [(*head, "trainers wait", "waiting", "steps a day", "per 1e9 tokens")]
    for k, s in enumerate(found):
        step, times = s.step, ("rollout", "scoring", "training", "handover", "replicas_wait", "trainers_wait")
        phases_ = [_time(getattr(step, f"{name}_s")) for name in times]
        chance = f"{100 * likely[k]:.0f} %"
        cost = format_usd(1e9 * s.usd / s.tokens_a_day)
        if s.loop.colocated:
            phases_[-2:] = "", ""  # the same GPUs do both
        waits = f"{100 * step.waiting:.0f} %"
        rows.append((s.name, _time(step.step_s), chance, *phases_, waits, f"{DAY_S / step.step_s:,.0f}", cost))
    return tuple(rows)


def _data(found: list[Split], likely: Mapping[int, float], sure: StepCertainty) -> dict[str, Any]:
    """The result as plain data."""
    low, high = sure.spread.interval()
    rows = [
        {
            "rollout_gpus": s.loop.rollout_gpus,
            "trainer_gpus": s.loop.trainer_gpus,
            "colocated": s.loop.colocated,
            **asdict(s.step),
            "step_interval_s": [s.step.step_s * low, s.step.step_s * high],
            "chance_best": likely[k],
            "tokens_a_day": s.tokens_a_day,
            "usd_a_day": s.usd,
        }
        for k, s in enumerate(found)
    ]
    nearest = str(sure.nearest) if sure.nearest is not None else ""
    return {"splits": rows, "rests_on": sure.rests_on, "outside": list(sure.outside), "nearest_measurement": nearest}
