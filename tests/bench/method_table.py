"""What each sub-step is worth: `python -m tests.bench.method_table > docs/method.md`.

Every shipped scenario with all four stages, and the same with one sub-step frozen (`policies.stages.frozen`), on
the same seeds.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence

import click

from equipoise.policies.stages.frozen import STEPS
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import versions
from equipoise.study.runs.compare import Comparison, compare
from equipoise.study.runs.make import Progress
from equipoise.study.statistics import Interval, paired_ratio
from tests.bench.method_generator import generated

SCENARIOS = (
    "quickstart", "skewed-data", "congested", "weak-host", "remote-storage", "sick-gpu", "shared-gpus", "two-rooms",
    "full-memory", "many-jobs-faults",
)  # fmt: skip
JUDGED = "completion_mean_s"
HELPS = 1.02
"""A sub-step helps where freezing it makes the mean completion time at least this many times as long."""
ALL = "s1+s2+s3+s4"
STEP_NAMES = tuple(step for own in STEPS.values() for step in own)
ALIKE = {"S222": "S221", "S223": "S221", "S313": "S312", "S323": "S322"}
"""Sub-steps that are frozen as another one is, which is run for both."""


def frozen_policy(step: str) -> str:
    """All four stages with one sub-step frozen."""
    stages = ALL.split("+")
    return "+".join(f"{name}(frozen={step})" if step in STEPS[name] else name for name in stages)


def judge(ratio: Interval) -> str:
    """One cell: the ratio with its interval, and whether the sub-step helps, does harm, or neither."""
    if ratio.n > 1:
        low, high = ratio.low, ratio.high
        shown = f"{ratio.mean:.3f} ({low:.3f} to {high:.3f})"
    else:
        low = high = ratio.mean
        shown = f"{ratio.mean:.3f}"
    if ratio.mean >= HELPS and low > 1.0:
        return f"**{shown}**"
    if ratio.mean <= 2.0 - HELPS and high < 1.0:
        return f"{shown} harms"
    return "1" if low == high == 1.0 else shown


def worth(comparison: Comparison) -> dict[str, Interval]:
    """Mean completion time with each sub-step frozen over that with none, paired by seed."""
    times = {p: [r.metrics[JUDGED] for r in comparison.of(p)] for p in comparison.policies}
    return {
        step: paired_ratio(times[frozen_policy(ALIKE.get(step, step))], times[ALL]) for step in STEP_NAMES
    }


def page(
    found: Mapping[str, Mapping[str, Interval]], counts: Mapping[str, Sequence[int]], command: str, seeds: int
) -> str:
    """The page as Markdown; found: by scenario and sub-step; counts: see `counted`, empty without any."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# What each sub-step is worth",
        "",
        f"Made by `{command}`; do not edit.",
        f"Python {platform.python_version()}, {made_with}, {platform.machine()}.",
        "",
        "Mean completion time with one sub-step frozen over that with none, all else at its defaults, on the same",
        f"{seeds} seeds (one where nothing is random), with a 95 % interval. Bold: the sub-step helps by 2 % or",
        "more, and its interval is clear of 1. *harms*: jobs are done as much sooner without it. 1: no difference.",
        "What takes the place of a frozen sub-step is said in `policies/stages/frozen.py`; S221 to S223, S312 and",
        "S313, S322 and S323 are frozen alike and have one figure. S423 changes nothing: it is a table.",
        "",
        "| step | " + " | ".join(found) + " |",
        "|---" * (1 + len(found)) + "|",
    ]
    for own in STEPS.values():
        lines += [
            f"| {step} | " + " | ".join(judge(ratios[step]) for ratios in found.values()) + " |"
            for step in own
        ]
    nowhere = [
        step for own in STEPS.values() for step in own
        if not any(judge(ratios[step]).startswith("**") for ratios in found.values())
    ]  # fmt: skip
    lines += ["", "Without an effect of 2 % in these scenarios: " + (", ".join(nowhere) or "none") + ".", ""]
    if counts:
        lines += [
            f"In the first {sum(next(iter(counts.values())))} scenarios of `tests/bench/method_generator.py`,",
            "one run each: by 2 % or more freezing it makes jobs later (helps) or sooner (harms), else nothing.",
            "",
            "| step | helps | nothing | harms |",
            "|---|---|---|---|",
            *(f"| {step} | {' | '.join(map(str, counts[step]))} |" for step in STEP_NAMES),
            "",
        ]
    return "\n".join(lines)


def _say(scenario: str) -> Progress:
    def progress(done: int, of: int, label: str) -> None:
        print(f"{scenario}: {done}/{of} {label}", file=sys.stderr)

    return progress


POLICIES = [ALL, *(frozen_policy(step) for step in STEP_NAMES if step not in ALIKE)]


def counted(number: int, processes: int = 1) -> dict[str, list[int]]:
    """In how many of the first generated scenarios each sub-step helps, does nothing, harms."""
    counts = {step: [0, 0, 0] for step in STEP_NAMES}
    for k in range(number):
        comparison = compare(generated(k), POLICIES, 1, jobs_parallel=processes)
        for step, ratio in worth(comparison).items():
            counts[step][0 if ratio.mean >= HELPS else 2 if ratio.mean <= 2.0 - HELPS else 1] += 1
        print(f"generated {k + 1}/{number}", file=sys.stderr)
    return counts


def method_table(
    names: Sequence[str], seeds: int, processes: int = 1, command: str = "", number: int = 0
) -> str:
    """The page for shipped scenarios and so many generated ones."""
    found = {}
    for name in names:
        file = read_scenario(scenarios_dir() / f"{name}.yaml")
        comparison = compare(
            file.scenario, POLICIES, seeds, trace=file.trace(), jobs_parallel=processes, progress=_say(name)
        )
        found[name] = worth(comparison)
    return page(found, counted(number, processes) if number else {}, command, seeds)


@click.command()
@click.option("--seeds", default=10, show_default=True, help="Seeds per policy.")
@click.option("--jobs", "processes", default=1, show_default=True, help="Processes.")
@click.option("--generated", "number", default=0, show_default=True, help="Scenarios of the generator.")
@click.argument("scenarios", nargs=-1)
def main(seeds: int, processes: int, number: int, scenarios: tuple[str, ...]) -> None:
    """Print the table of sub-steps as Markdown."""
    names = scenarios or SCENARIOS
    more = (f"--generated {number}",) if number else ()
    command = " ".join(("python -m tests.bench.method_table", f"--seeds {seeds}", *more, *scenarios))
    click.echo(method_table(names, seeds, processes, command, number), nl=False)


if __name__ == "__main__":
    main()
