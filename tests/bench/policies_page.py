"""The page of a stage's author, from the docstrings: `python -m tests.bench.policies_page`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from equipoise.commands.scenario.listing import stages
from equipoise.policies.contract import Plan
from equipoise.policies.observation import TABLES, Observation
from equipoise.policies.registry import BUILT_IN

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
HEAD = '''# What a stage sees and plans

Made by `python -m tests.bench.policies_page`; do not edit.

A stage is a frozen dataclass with `refine(observation, plan, memory) -> (plan, memory)`. Tables are columns of
equal length, read-only, valid while `refine` runs. Unknown values are NaN, or -1 for an index. A stage
reads only the tables that its `needs` names. The README has an example that allocates; here is one for
training jobs:

```python
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import equipoise
from equipoise.policies.contract import Stage
from equipoise.study.stage_check import rules_for


@dataclass(frozen=True)
class Rarely(Stage):
    """Exchanges gradients after every `interval` local steps."""

    name: ClassVar[str] = "rarely"
    kind: ClassVar[str] = "sync"
    needs: ClassVar[frozenset[str]] = frozenset({"jobs", "workers"})
    interval: int = 4

    def refine(self, observation, plan, memory):
        intervals, rows = plan.intervals(observation).copy(), np.unique(observation.workers.job)
        if (intervals[rows] == self.interval).all():  # a plan says only what changes
            return plan.because(self.name, "nothing to do"), memory
        intervals[rows] = self.interval
        return plan.with_(sync_interval=intervals).because(self.name, f"every {self.interval} steps"), memory


if __name__ == "__main__":
    for rule in rules_for(Rarely()):
        rule(Rarely())  # an AssertionError says what is broken
    policies = ["none", Rarely(), [Rarely(interval=8), "easy"]]
    found = equipoise.compare("quickstart", policies, seeds=2)
    print(found.as_table())
    print(equipoise.run("quickstart", policy=Rarely()))
```

It runs from a file, from a notebook and on standard input. `run`, `compare`, `sweep` and `size` take stages, lists
of them and `Policy` objects; where none allocates, `fifo` starts the jobs. `run.to_df()` has a row per job,
`found.to_df()` a row per metric and policy (both need pandas). An error in a stage reports its file and line, and the
id of the job.

The command line takes stages by name: register the class in the `pyproject.toml` of a package of your own, install
that, and `equipoise check-stage rarely` and `equipoise compare SCENARIO --policy 'rarely(interval=8)'` know it:

```toml
[project.entry-points."equipoise.stages"]
rarely = "my_package:Rarely"
```

The speed of a job on each GPU model is in `speeds`, and the measured speed of a node over its hardware profile in
`nodes.speed_ratio`, once a training job has run on it. This stage takes the fastest nodes first:

```python
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.policies.contract import Allocation, AllocationStage


@dataclass(frozen=True)
class FastestNodes(AllocationStage):
    """Starts jobs in order of arrival, on the nodes that were measured to be fastest."""

    name: ClassVar[str] = "fastest-nodes"
    order: ClassVar[str] = "arrival, then id"
    blocking: ClassVar[str] = "passes over what does not fit"
    preemption: ClassVar[str] = "never"
    placement: ClassVar[str] = "GPUs of one model, the fastest nodes first"

    def refine(self, observation, plan, memory):
        nodes, gpus, jobs = observation.nodes, observation.gpus, observation.jobs
        pace = np.nan_to_num(nodes.speed_ratio, nan=1.0)  # not measured yet: as its hardware profile says
        order = np.argsort(-pace[gpus.node], kind="stable")
        free = order[(gpus.share_free[order] == 1) & nodes.up[gpus.node[order]]]
        starts = []
        for job in observation.waiting.tolist():
            for model in np.unique(gpus.model[free]):  # a gang does not mix GPU models
                chosen = free[gpus.model[free] == model][: jobs.gpus_requested[job]]
                if len(chosen) == jobs.gpus_requested[job]:
                    starts.append((job, chosen.tolist()))
                    free = free[~np.isin(free, chosen)]
                    break
        if not starts:
            return plan.because(self.name, "no waiting job fits"), memory
        return plan.with_(allocation=Allocation.of(starts)).because(self.name, f"{len(starts)} jobs"), memory
```
'''


def text() -> str:
    """The whole page."""
    parts = [HEAD, "## Observation\n", _fields(Observation, skip=TABLES)]
    for name, table in TABLES.items():
        parts += [f"### {name}\n", f"{inspect.getdoc(table)}\n"]
        rows = [(c.name, c.dtype.__name__, f"{c.default:g}", c.meaning) for c in table.columns.values()]
        parts.append(_table(("column", "type", "default", "meaning"), rows))
    parts += ["## Plan\n", f"{inspect.getdoc(Plan)} `None` leaves all as it is.\n", _fields(Plan)]
    parts.append("## Stages\n")
    for row in stages():
        if row["name"] in BUILT_IN:
            parts += [f"### {row['name']}\n", f"{row['what']}\n"]
            facts = ("kind", "order", "blocking", "preemption", "starvation", "fidelity", "placement", "parameters")
            parts.append("\n".join(f"- {key}: {row[key]}" for key in facts if row.get(key)) + "\n")
    return "\n".join(parts)


def _fields(cls: type, skip: object = ()) -> str:
    """Fields of a dataclass with what the comments behind them say."""
    comment = dict(re.findall(r"^    (\w+): [^#\n]*?# (.+)$", inspect.getsource(cls), re.M))
    rows = [(f.name, str(f.type), comment.get(f.name, "")) for f in dataclasses.fields(cls) if f.name not in skip]
    return _table(("field", "type", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(c.replace("|", "\\|") for c in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
