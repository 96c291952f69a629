"""What each sub-step is worth: `python -m tests.bench.method_table > docs/method.md`.

Every shipped scenario with all four stages, and the same with one sub-step frozen (`policies.stages.frozen`), on
the same seeds.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

import equipoise.policies
import equipoise.sim
from equipoise.policies.registry import make_policy
from equipoise.policies.stages.frozen import STEPS
from equipoise.sim.hardware.profile import scenarios_dir
from equipoise.sim.loading.file import read_scenario
from equipoise.sim.record import versions
from equipoise.sim.run import run
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.seeds import is_random
from equipoise.sim.traces.trace import Trace
from equipoise.study.statistics import Interval, paired_ratio
from tests.bench.method_generator import generated

SCENARIOS = (
    "quickstart",
    "skewed-data",
    "congested",
    "weak-host",
    "remote-storage",
    "sick-gpu",
    "shared-gpus",
    "two-rooms",
    "full-memory",
    "worn-nodes",
    "unequal-demand",
    "slow-uplinks",
    "shared-hosts",
    "two-racks",
    "slow-pushes",
    "faulty",
)
JUDGED = "completion_mean_s"
JUDGED_BY = {"S324": "energy_j"}
"""What a sub-step is judged by in the scenario that stands for it, where that is no time."""
HELPS = 1.02
"""A sub-step helps where freezing it makes the mean completion time at least this many times as long."""
ALL = "s1+s2+s3+s4"
PROOF = {
    "S111": "sick-gpu",
    "S112": "skewed-data",
    "S113": "skewed-data",
    "S211": "two-rooms",
    "S212": "two-rooms",
    "S213": "two-rooms",
    "S221": "quickstart",
    "S311": "full-memory",
    "S312": "quickstart",
    "S313": "two-racks",
    "S321": "shared-gpus",
    "S322": "shared-gpus",
    "S324": "power-slack",
    "S411": "worn-nodes",
    "S412": "unequal-demand",
    "S413": "slow-uplinks",
    "S421": "shared-hosts",
    "S422": "shared-hosts",
}
"""For each sub-step a scenario that shows it, chosen after two seeds of all of them."""
SAME_AFTER = 2
"""A sub-step without which so many seeds give the same times to the bit is not run on the others."""
HARMS = """\
## Where a sub-step harms, and why

One run of a generated scenario and two seeds of `faulty` say little. With 55 seeds, in `faulty` S422 helps
(1.163, 1.095 to 1.236), S411 (0.980, 0.943 to 1.019) and S313 (0.991, 0.978 to 1.005) cannot be told from 1. Nor
can, with ten, S311 in generated scenario 0 (1.006, 0.969 to 1.044) and 29 (1.054, 0.959 to 1.158), S211 to S213
in 29 (1.099, 1.052, 0.979; S113 helps there: 1.250, 1.008 to 1.550), and S422 in 7 (1.005, 0.993 to 1.017).

What remains is S422's, in 39 (0.884), 34 (0.894), 52 (0.899) and some like them. In 39 a job takes free GPUs of
nodes that turn out slow, where it would have shared faster ones: nobody had trained on those nodes before, no
inventory says so, and a job of fixed size stays where it is. In 34 an elastic job holds the fast GPUs that were
free, and who comes later gets slow ones. In 52 a job that is nearly done outweighs one that waits, since A_i
grows as 1 / time left. Three mends were tried. Contention that counts a running job only for the part of a
waiting one's time that it will last (the mean of min(1, its time left / the other's)): the same times to the bit
in all three, for what decides is which nodes are free. A_i by its root, for who runs on which GPU model: the
same to the bit, these have one model. Moving jobs of fixed size that share no GPU to faster free nodes of their
model once they are measured, where that saves more than two restarts: the same in 39, where GPUs are shared, and
in 52, and 34 worse by 3 %. For 39 it would take moves of shares of GPUs, for 34 an elastic job that hands fast
GPUs on to who comes.
"""
"""What was found out about the harms that the tables show; by hand, with the seeds that it names."""
STEP_NAMES = tuple(step for own in STEPS.values() for step in own)
ALIKE = {"S222": "S221", "S223": "S221", "S323": "S322"}
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


def worth(times: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    """Mean completion time with each sub-step frozen over that with none, paired by seed; times: by policy."""
    return {step: paired_ratio(times[frozen_policy(ALIKE.get(step, step))], times[ALL]) for step in STEP_NAMES}


def proofs(kept: Kept, seeds: int) -> list[str]:
    """Lines of the table of sub-steps, each in the scenario that stands for it."""
    lines = [f"| step | in | with it frozen over with it, {seeds} seeds |", "|---|---|---|"]
    for step, name in PROOF.items():
        file, alike = (read_scenario(scenarios_dir() / f"{name}.yaml"), [k for k, v in ALIKE.items() if v == step])
        numbers, by = range(file.scenario.seed, file.scenario.seed + seeds), JUDGED_BY.get(step, JUDGED)
        frozen, whole = (
            [kept.value(name, file.scenario, file.trace(), policy, seed, by) for seed in numbers]
            for policy in (frozen_policy(step), ALL)
        )
        lines.append(f"| {', '.join([step, *alike])} | {name} | {judge(paired_ratio(frozen, whole))} |")
    return lines


def cannot_act(scenario: Scenario) -> set[str]:
    """Sub-steps that have nothing to decide: no data to move, or no GPU that is shared."""
    jobs, steps = scenario.workload.jobs, set[str]()
    traced = scenario.workload.trace is not None
    if not traced and not any(job.data for job in jobs):
        steps |= {"S112", "S113", "S211", "S212", "S213"}
    if not traced and all(job.gpu_share == 1.0 for job in jobs):
        steps |= {"S321", "S322"}
    if not scenario.energy.policy_caps:
        steps.add("S324")
    return steps


class Kept:
    """What runs made with this code are judged by, in a file of lines: a long run goes on."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.code = path, code_hash()
        self.found: dict[str, float] = {}
        if path is not None and path.exists():
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            self.found = {line["run"]: line["s"] for line in lines if line["code"] == self.code}

    def time_s(self, name: str, scenario: Scenario, trace: Trace | None, policy: str, seed: int) -> float:
        """Mean completion time of one run, made if need be."""
        return self.value(name, scenario, trace, policy, seed, JUDGED)

    def value(self, name: str, scenario: Scenario, trace: Trace | None, policy: str, seed: int, by: str) -> float:
        """What a run is judged by, which is made if need be."""
        key = f"{name} {policy} {seed}" + (f" {by}" if by != JUDGED else "")
        if key not in self.found:
            made = run(scenario, trace=trace, policy=make_policy(policy), seed=seed)
            self.found[key] = made.summary()[by]
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    print(json.dumps({"code": self.code, "run": key, "s": self.found[key]}), file=file)
            print(key, self.found[key], file=sys.stderr)
        return self.found[key]


def code_hash() -> str:
    """A hash of the code that results depend on."""
    rooms = (Path(equipoise.policies.__file__).parent, Path(equipoise.sim.__file__).parent)
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def times_of(kept: Kept, name: str, scenario: Scenario, trace: Trace | None, seeds: int) -> dict[str, list[float]]:
    """Mean completion times (s) by policy and seed; those frozen forms that decide as ALL does are not run on."""
    first, idle = scenario.seed, cannot_act(scenario)
    numbers = range(first, first + (seeds if is_random(scenario) else 1))
    times = {ALL: [kept.time_s(name, scenario, trace, ALL, seed) for seed in numbers]}
    for step in STEP_NAMES:
        policy = frozen_policy(step)
        if step in ALIKE:
            continue
        if step in idle:
            times[policy] = times[ALL]
            continue
        tried = [kept.time_s(name, scenario, trace, policy, seed) for seed in numbers[:SAME_AFTER]]
        if tried == times[ALL][:SAME_AFTER]:
            times[policy] = times[ALL]
        else:
            rest = [kept.time_s(name, scenario, trace, policy, seed) for seed in numbers[SAME_AFTER:]]
            times[policy] = tried + rest
    return times


def page(
    proof: Sequence[str],
    found: Mapping[str, Mapping[str, Interval]],
    counts: Mapping[str, Sequence[int]],
    command: str,
    seeds: int,
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
        "seeds, with a 95 % interval. Bold: the sub-step helps by 2 % or more, and its interval is clear of 1.",
        "*harms*: jobs are done as much sooner without it. What takes the place of a frozen sub-step is said in",
        "`policies/stages/frozen.py`; S221 to S223, and S322 and S323, are frozen alike and have one figure. S423",
        "changes nothing: it is a table. S324 is judged by energy in the first table: it is to cost no time.",
        "",
        *proof,
        "",
        f"Every sub-step in every scenario, {seeds} seed{'s' * (seeds > 1)} (one where nothing is random). 1: no",
        f"difference; one without which the first {SAME_AFTER} seeds end as they do with it, to the bit, is not",
        "run on the others. *harms* and bold of one seed are of that seed only.",
        "",
        "| step | " + " | ".join(found) + " |",
        "|---" * (1 + len(found)) + "|",
    ]
    for own in STEPS.values():
        lines += [f"| {step} | " + " | ".join(judge(ratios[step]) for ratios in found.values()) + " |" for step in own]
    lines.append("")
    if counts:
        lines += [
            f"In the first {sum(next(iter(counts.values())))} scenarios of `tests/bench/method_generator.py`,",
            "one run each: by 2 % or more freezing it makes jobs later (helps) or sooner (harms), else nothing.",
            "",
            "| step | helps | nothing | harms |",
            "|---|---|---|---|",
            *(f"| {step} | {' | '.join(map(str, counts[step]))} |" for step in STEP_NAMES),
            "",
            *HARMS.splitlines(),
            "",
        ]
    return "\n".join(lines)


def counted(kept: Kept, number: int) -> dict[str, list[int]]:
    """In how many of the first generated scenarios each sub-step helps, does nothing, harms."""
    counts = {step: [0, 0, 0] for step in STEP_NAMES}
    for k in range(number):
        ratios = worth(times_of(kept, f"generated-{k}", generated(k), None, 1))
        for step, ratio in ratios.items():
            counts[step][0 if ratio.mean >= HELPS else 2 if ratio.mean <= 2.0 - HELPS else 1] += 1
    return counts


def method_table(
    names: Sequence[str], seeds: int, grid: int, command: str = "", number: int = 0, path: Path | None = None
) -> str:
    """The page for shipped scenarios and so many generated ones; runs are kept in the file at `path`.

    seeds: of the proofs, grid: of every sub-step in every scenario.
    """
    found, kept = {}, Kept(path)
    proof = proofs(kept, seeds) if seeds else []
    for name in names:
        file = read_scenario(scenarios_dir() / f"{name}.yaml")
        found[name] = worth(times_of(kept, name, file.scenario, file.trace(), grid))
    return page(proof, found, counted(kept, number) if number else {}, command, grid)


@click.command()
@click.option("--seeds", default=10, show_default=True, help="Seeds of each sub-step in its scenario.")
@click.option("--grid", default=10, show_default=True, help="Seeds of every sub-step in every scenario.")
@click.option("--keep", "path", type=click.Path(path_type=Path), help="Go on from the runs in this file.")
@click.option("--generated", "number", default=0, show_default=True, help="Scenarios of the generator.")
@click.argument("scenarios", nargs=-1)
def main(seeds: int, grid: int, path: Path | None, number: int, scenarios: tuple[str, ...]) -> None:
    """Print the table of sub-steps as Markdown."""
    names = scenarios or SCENARIOS
    more = (f"--generated {number}",) if number else ()
    command = " ".join(("python -m tests.bench.method_table", f"--seeds {seeds} --grid {grid}", *more, *scenarios))
    click.echo(method_table(names, seeds, grid, command, number, path), nl=False)


if __name__ == "__main__":
    main()
