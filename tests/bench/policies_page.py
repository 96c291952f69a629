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
HEAD = """# What a stage sees and plans

Made by `python -m tests.bench.policies_page`; do not edit.

A stage is a frozen dataclass with `refine(observation, plan, memory) -> (plan, memory)`; the README has an example.
`equipoise check-stage NAME` holds it to the contract. Tables are columns of equal length, read-only, valid while
`refine` runs. What a world cannot know is NaN, or -1 for an index. A stage reads only the tables that its `needs`
names.
"""


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
            facts = ("kind", "order", "blocking", "preemption", "starvation", "placement", "parameters")
            parts.append("\n".join(f"- {key}: {row[key]}" for key in facts if row.get(key)) + "\n")
    return "\n".join(parts)


def _fields(cls: type, skip: object = ()) -> str:
    """Fields of a dataclass with what the comments behind them say."""
    comment = dict(re.findall(r"^    (\w+): [^#\n]*?# (.+)$", inspect.getsource(cls), re.M))
    rows = [
        (f.name, str(f.type), comment.get(f.name, "")) for f in dataclasses.fields(cls) if f.name not in skip
    ]
    return _table(("field", "type", "meaning"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(c.replace("|", "\\|") for c in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
