"""Which stage helps where: `python -m tests.bench.stages_table > docs/stages.md`.

Four scenarios, each with no stage, then with S1, S2, S3 and S4 added one after the other, on the same seeds.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

import click
import numpy as np

from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import versions
from equipoise.study.display import LABELS, PER_JOB, digits, show
from equipoise.study.runs.compare import compare
from equipoise.study.runs.comparison import Comparison
from equipoise.study.runs.make import Progress
from equipoise.study.statistics import Interval, paired_ratio
from equipoise.study.table import Cell

SCENARIOS = ("quickstart", "skewed-data", "congested", "many-jobs-faults")
POLICIES = ("none", "s1", "s1+s2", "s1+s2+s3", "s1+s2+s3+s4")
ADDED = ("S1", "S2", "S3", "S4")
JUDGED = "completion_mean_s"
TARGET = {
    "S1": "input_stall_ratio",
    "S2": "barrier_wait_ratio",
    "S3": "exposed_communication_ratio",
    "S4": "queueing_mean_s",
}
"""What each stage can win most from: where it does not help, the table says how much of it there was."""
TOLERANCE = 1e-3
"""A change of the mean completion time that is smaller counts as none."""


def judge(ratio: Interval) -> str:
    """What one stage added, in words, from the ratio of mean completion times with and without it."""
    if ratio.mean == 1.0 and (ratio.n < 2 or ratio.half_width == 0.0):
        return "changes nothing"
    low, high = (ratio.low, ratio.high) if ratio.n > 1 else (ratio.mean, ratio.mean)
    shown = f"x{digits(ratio.mean)}" + (f" ({digits(low)} to {digits(high)})" if ratio.n > 1 else "")
    if high < 1.0 - TOLERANCE:
        return f"**helps**: {shown}"
    if low > 1.0 + TOLERANCE:
        return f"**hurts**: {shown}"
    return f"does not help: {shown}, no difference can be told"


def added_by_stage(comparison: Comparison) -> list[tuple[str, Interval]]:
    """For each stage the mean completion time with it over that without it, paired by seed."""
    times = [[r.metrics[JUDGED] for r in comparison.of(policy)] for policy in comparison.policies]
    return [(stage, paired_ratio(new, old)) for stage, (old, new) in zip(ADDED, pairwise(times), strict=True)]


def left_to_win(comparison: Comparison, stage: str) -> str:
    """How much there was of what a stage can win from, in the runs without it: "input stall was 0 %"."""
    before = POLICIES[ADDED.index(stage)]
    values = [r.metrics[TARGET[stage]] for r in comparison.of(before)]
    return f"{LABELS[TARGET[stage]]} was {show(TARGET[stage], sum(values) / len(values))} without it"


def verdict(comparison: Comparison, stage: str, ratio: Interval) -> str:
    """One line: what a stage added, and where it did not help how much there was to win."""
    said = judge(ratio)
    return said if "helps" in said else f"{said}; {left_to_win(comparison, stage)}"


def ratio_table(comparison: Comparison) -> list[str]:
    """Markdown lines: times as a mean without stages and as ratios to it with them, shares as means."""
    lines = [
        "| metric | " + " | ".join(f"`{policy}`" for policy in comparison.policies) + " |",
        "|---" * (1 + len(comparison.policies)) + "|",
    ]
    one_job = comparison.results[0].metrics["jobs"] == 1
    for metric, group in groupby(comparison.cells, key=lambda cell: cell.metric):
        row = list(group)
        if (one_job and metric in PER_JOB) or not any(np.nan_to_num(cell.value.mean) for cell in row):
            continue  # percentiles of one job say nothing new, a row of zeros or of nothing known nothing at all
        lines.append(_row(LABELS.get(metric, metric), [_cell(cell, k == 0) for k, cell in enumerate(row)]))
        if math.isfinite(row[0].over_bound):
            lines.append(_row(f"{LABELS[metric]} over its lower bound", [digits(c.over_bound) for c in row]))
    return lines


def _row(label: str, cells: Sequence[str]) -> str:
    return f"| {label} | " + " | ".join(cells) + " |"


def _cell(cell: Cell, first: bool) -> str:
    if cell.metric.endswith("_s") and not first and math.isfinite(cell.ratio.mean):
        return f"x{digits(cell.ratio.mean)}"
    return show(cell.metric, cell.value.mean, cell.value.half_width)


def section(comparison: Comparison, why: str) -> list[str]:
    """Markdown lines of one scenario."""
    verdicts = [f"- {stage} {verdict(comparison, stage, ratio)}" for stage, ratio in added_by_stage(comparison)]
    seeds = f"{len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else "one seed"
    return [
        f"## {comparison.scenario_name}",
        "",
        *([why.strip(), ""] if why.strip() else []),
        f"{seeds[0].upper()}{seeds[1:]}. What each stage adds to those before it, in mean completion time:",
        "",
        *verdicts,
        "",
        *ratio_table(comparison),
        "",
    ]


def heading(command: str, seeds: int) -> list[str]:
    """Markdown lines: what the page is, how it was made, with which versions."""
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [
        "# Which stage helps where",
        "",
        f"Made by `{command}`; do not edit.",
        f"Python {platform.python_version()}, {made_with}, {platform.machine()}.",
        "",
        f"Every policy meets the same seeds ({seeds}, or one where nothing is random). Times are ratios to",
        "the first column (below 1 is better), shares of GPU time are means, ± half a 95 % interval. Every",
        "metric is defined in [metrics.md](metrics.md). Without S4 jobs start in order of arrival.",
        "",
    ]


def _say(scenario: str) -> Progress:
    def progress(done: int, of: int, label: str) -> None:
        print(f"{scenario}: {done}/{of} {label}", file=sys.stderr)

    return progress


def stages_table(paths: Sequence[Path], seeds: int, processes: int = 1, command: str = "") -> str:
    """The page for the scenarios in `paths`."""
    lines = heading(command, seeds)
    for path in paths:
        file = read_scenario(path)
        comparison = compare(
            file.scenario, POLICIES, seeds, trace=file.trace(), jobs_parallel=processes, progress=_say(path.stem)
        )
        lines += section(comparison, file.scenario.why)
    return "\n".join(lines).rstrip() + "\n"


@click.command()
@click.option("--seeds", default=5, show_default=True, help="Seeds per policy.")
@click.option("--jobs", "processes", default=1, show_default=True, help="Processes.")
def main(seeds: int, processes: int) -> None:
    """Print the table of stages as Markdown."""
    paths = [scenarios_dir() / f"{name}.yaml" for name in SCENARIOS]
    click.echo(stages_table(paths, seeds, processes, f"python -m tests.bench.stages_table --seeds {seeds}"), nl=False)


if __name__ == "__main__":
    main()
