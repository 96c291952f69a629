"""The command `limits`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from equipoise.commands.types import IntRange
from equipoise.commands.variants import Given, variant_options
from equipoise.exit_codes import OK

if TYPE_CHECKING:
    from equipoise.sim.llm.certainty import StepCertainty
    from equipoise.study.questions.limits import Effect, Limited, LimitReport

_SMALL_SHARE = 0.005


@click.command()
@variant_options
@click.option(
    "--try",
    "tried",
    multiple=True,
    metavar="POLICY",
    help="Another policy to try as a lever. Default: s1+s2+s3, s1+s2+s3+s4.",
)
@click.option("--most", type=IntRange(1), default=10, show_default=True, help="Maximum number of job groups to report.")
@click.option("--all", "every", is_flag=True, help="Show every lever, also those that do not help.")
def limits(given: Given, tried: tuple[str, ...], most: int, every: bool) -> int:
    """Find what limits the jobs of SCENARIO, and what would help most.

    The limit (compute, memory, input, barrier, network, queue or faults) takes the largest part of a job's time; the
    levers are found by running the scenario with each of them on the same seeds: resources doubled, faults and noise
    removed, other policies.
    """
    from equipoise.study.questions.levers import POLICIES
    from equipoise.study.questions.limits import FILE
    from equipoise.study.questions.limits import limits as find

    with given.run_options() as options:
        found = find(
            Path(given.scenario),
            policy=given.policy,
            policies=tried or POLICIES,
            overrides=given.overrides,
            trace=given.trace,
            most=most,
            options=options,
        )
    given.tell(found.as_dict(), FILE, as_text(found, every), found.notes)
    return OK


def as_text(found: LimitReport, every: bool = False) -> Iterator[str]:
    """Each group as text: where its time goes, and the levers that help, best first."""
    seeds = "one seed" if found.seeds == 1 else f"{found.seeds} seeds"
    yield f"{found.scenario}: what limits its jobs under {found.policy}, {seeds}"
    if found.certainty is not None:
        yield from (f"  {line}" for line in found.certainty.lines())
    for group in found.groups:
        yield ""
        yield from _group(group, every, found.certainty)


def _group(group: Limited, every: bool, sure: StepCertainty | None) -> Iterator[str]:
    from equipoise.study.display import show
    from equipoise.study.sure import between

    jobs = "1 job" if group.jobs == 1 else f"{group.jobs} jobs"
    time = show("time_s", group.time_s.mean, group.time_s.half_width)
    if sure is not None and (ends := between("completion_mean_s", group.time_s.mean, sure.spread)):
        time += f" (90 %: {ends})"
    yield f"{group.name} ({jobs}, {time} from arrival to completion): limited by {group.limit}" + (
        "" if group.limit == group.account else f", which makes workers wait for others ({group.account})"
    )
    shares = sorted(group.shares.items(), key=lambda item: -item[1])
    yield "  time: " + ", ".join(f"{limit} {100 * s:.1f} %" for limit, s in shares if s >= _SMALL_SHARE)
    if group.host:
        yield f"  host: {group.host}"
    yield _stage(group)
    if group.best is None:
        yield "  no change helps"
    for effect in [e for e in group.effects if not e.idle] if every else _worth_showing(group):
        yield f"  {_mark(effect, group)} {effect.lever.name}: {_effect(effect, sure)}"
    if every and (idle := [e.lever.name for e in group.effects if e.idle]):
        yield f"  no effect: {', '.join(idle)}"


def _stage(group: Limited) -> str:
    """Whether a stage that the policy does not use reduces the limit."""
    if group.stage is not None:
        return f"  stage {group.stage.lever.name} reduces it: {_effect(group.stage)}"
    left = any(e.lever.against == "stage" for e in group.effects)
    return "  no stage (s1 to s4) reduces it" if left else "  all four stages are already in use"


def _worth_showing(group: Limited) -> list[Effect]:
    """The three best levers, and the best one against the named limit."""
    best = [e for e in group.effects if e.helps and e.lever.against != "stage"][:3]
    against = group.best_against(group.limit)
    return best if against is None or against in best else [*best, against]


def _mark(effect: Effect, group: Limited) -> str:
    return "*" if effect is group.best else "-"


def _effect(effect: Effect, certainty: StepCertainty | None = None) -> str:
    from equipoise.study.display import digits

    if effect.problem is not None:
        return effect.problem
    half = effect.ratio.half_width
    sure = f" ±{digits(half, 2)}" if half >= 5e-4 else ""
    ends = effect.between(certainty)
    between = f" (90 %: x{digits(ends[0])} .. x{digits(ends[1])})" if ends else ""
    doubt = ", not certain" if ends and ends[0] < 1.0 < ends[1] else ""
    return f"time x{digits(effect.ratio.mean)}{sure}{between}{doubt}"
