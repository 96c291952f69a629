"""Inputs that are nearly right: shipped files whose values, keys, shape or text were changed, by a number."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from equipoise.policies.record.export import ExportedPolicy, write_policy
from equipoise.policies.registry import make_policy

ROOT = Path(__file__).resolve().parents[2]
# The parser and the writer in C where there are any: thousands of inputs are made.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
LARGE = 10_000
"""Characters from which on a source is tried in one round of ten only."""
NUMBERS = (0, -1, 1, 2, 3, 7, 1e-300, 1e-30, 1e-9, 0.5, 1e6, 1e9, 2**31, 2**63, 10**30, 1e30, 1e300, -0.0, 1.7e308)
TEXTS = (
    "",
    " ",
    "x",
    "none",
    "1e400",
    "-1e400",
    "nan",
    "inf",
    "1_0",
    "0x10",
    "١٢",
    "1 h",
    "-1 h",
    "1e300 d",
    "10 Gbit/s",
    "1 USD/h",
    "5 MB",
    "1e999 MB",
    "\x1b[31m",
    "a\nb",
    "0-3",
    "..",
    "/dev/zero",
    "case.yaml",
    "*",
    "ring",
    "s1+s2",
    "9" * 400,
    "é" * 300,
)
WHOLE = ([], {}, None, True, False, [[]], {"a": {}}, [None], {"kind": "x"})
LINES = (
    "a: &a {<<: *a}",
    "? [1, 2]\n: x",
    "\tx: 1",
    "x: !!python/object:os.system {}",
    "- - -",
    "---\na: 1",
    "%YAML 9.9",
)

TRACES = {
    "plain.csv": "job_id,arrival_s,gpus,duration_s,priority,model\n"
    + "".join(f"{k},{10 * k},{1 + k % 4},{100 + k},1,\n" for k in range(8)),
    "philly.csv": "timestamp,duration,num_gpus,cluster\n"
    + "".join(f"2017-10-09 07:0{k}:55,{66 + k},{1 + k % 8},b\n" for k in range(8)),
    "sacct.txt": "JobIDRaw|Submit|Start|End|AllocTRES|State|Timelimit\n"
    + "".join(
        f"{k}|2024-01-01T00:0{k}:00|2024-01-01T00:1{k}:00|2024-01-01T01:0{k}:00|"
        f"cpu=8,gres/gpu={1 + k}|COMPLETED|02:00:00\n"
        for k in range(8)
    ),
}


WITH_TRACE = """schema_version: 1
name: traced
cluster: {{nodes: [{{count: 2, gpus: 8}}]}}
workload:
  models: {{m: {{sample_time: 0.01, exchange: {{alpha: 1e-5, rate: 1e9}}}}}}
  trace: {{file: {file}, time_scale: 0.5, limit: 6, training: {{count: 2, models: [m], steps_max: 50}}}}
policy: [easy]
"""


@dataclass(frozen=True)
class Source:
    """A right input: its kind says who reads it."""

    kind: str
    name: str
    text: str

    @cached_property
    def tree(self) -> Any:
        """The text as plain data."""
        return yaml.load(self.text, Loader=_Loader)


def chosen(known: Sequence[Source], number: int) -> Source:
    """The source of the input of that number: each in turn, a large one in one round of ten."""
    rounds, k = divmod(number, len(known))
    if len(known[k].text) < LARGE or rounds % 10 == 0:
        return known[k]
    small = [source for source in known if len(source.text) < LARGE]
    return small[number % len(small)]


def dumped(tree: Any) -> str:
    """YAML text of plain data."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def sources(folder: Path) -> list[Source]:
    """Every shipped scenario, sweep, profile and price book, a policy file, traces.

    folder: of what is made, and of what these name.
    """
    found = []
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        found.append(Source("yaml", path.name, path.read_text(encoding="utf-8")))
        (folder / path.name).write_text(found[-1].text, encoding="utf-8")
    for name, text in TRACES.items():
        (folder / name).write_text(text, encoding="utf-8")
        found.append(Source("yaml", f"with-{Path(name).stem}.yaml", WITH_TRACE.format(file=name)))
    written = folder / "policy.yaml"
    write_policy(ExportedPolicy(make_policy("s1+s2(damping=0.1)+s3")), written)
    found.append(Source("policy", "policy.yaml", written.read_text(encoding="utf-8")))
    return found + [Source("trace", name, text) for name, text in TRACES.items()]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below the top of plain data."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def _holder(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


Change = Callable[[Any, tuple[Any, ...], random.Random, Any], None]


def _number(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    old = holder[path[-1]]
    scaled = isinstance(old, int | float) and not isinstance(old, bool) and dice.random() < 0.5
    holder[path[-1]] = old * dice.choice((-1, 0, 1e-12, 0.1, 10, 1000, 1e12)) if scaled else dice.choice(NUMBERS)


def _in_text(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    """Another number where the text has one, as in `10 Gbit/s`."""
    number = str(dice.choice(NUMBERS))
    holder[path[-1]] = re.sub(r"-?[0-9][0-9.e+-]*", lambda _: number, str(holder[path[-1]]), count=1)


def _text(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    holder[path[-1]] = dice.choice(TEXTS)


def _shape(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    old = holder[path[-1]]
    holder[path[-1]] = copy.deepcopy(dice.choice((*WHOLE, [old], {"value": old}, [old] * 30, str(old))))


def _gone(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    del holder[path[-1]]


def _renamed(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    if isinstance(holder, dict):
        holder[dice.choice((str(path[-1]) + "s", "", "x", 3, "<<"))] = holder.pop(path[-1])


def _grafted(holder: Any, path: tuple[Any, ...], dice: random.Random, tree: Any) -> None:
    """Another part of the same file."""
    other = dice.choice(list(places(tree)))
    holder[path[-1]] = copy.deepcopy(_holder(tree, other)[other[-1]])


CHANGES: tuple[Change, ...] = (_number, _number, _in_text, _in_text, _text, _shape, _gone, _renamed, _grafted)


def mutate(tree: Any, dice: random.Random) -> None:
    """One change of plain data, in place."""
    known = list(places(tree))
    if known:
        path = dice.choice(known)
        dice.choice(CHANGES)(_holder(tree, path), path, dice, tree)


def mutated_text(text: str, dice: random.Random) -> str:
    """The text with one change that knows nothing of its grammar."""
    lines = text.splitlines(keepends=True)
    k = dice.randrange(len(lines)) if lines else 0
    kind = dice.randrange(6)
    if kind == 0:
        return text[: dice.randrange(len(text) + 1)]
    if kind == 1:
        at = dice.randrange(len(text) + 1)
        return (
            text[:at]
            + dice.choice(("\0", "\ufeff", "\r", '"', "'", "{", "]", ",", "|", ":", "\t", "\ud800"))
            + text[at:]
        )
    if kind == 2:
        return "".join([*lines[:k], *lines[k + 1 :]])
    if kind == 3:
        return "".join([*lines[:k], dice.choice(LINES) + "\n", *lines[k:]])
    if kind == 4:
        return "".join([*lines[:k], *lines[k : k + 1] * dice.choice((2, 1000)), *lines[k + 1 :]])
    return re.sub(r"[0-9]+", lambda found: found[0] if dice.random() < 0.9 else str(dice.choice(NUMBERS)), text)


def mutated_cell(text: str, dice: random.Random) -> str:
    """A table with one cell changed."""
    lines = text.splitlines()
    mark = "|" if "|" in lines[0] else ","
    k = dice.randrange(len(lines))
    cells = lines[k].split(mark)
    cells[dice.randrange(len(cells))] = str(dice.choice((*NUMBERS, *TEXTS)))
    lines[k] = mark.join(cells)
    return "\n".join(lines) + "\n"


def make(source: Source, seed: int) -> str:
    """The input of that number made of a source: one to three changes."""
    dice = random.Random(f"{source.name} {seed}")
    text = source.text
    changes = dice.randint(1, 3)
    if source.kind == "trace":
        for _ in range(changes):
            text = mutated_cell(text, dice) if text.strip() and dice.random() < 0.7 else mutated_text(text, dice)
        return text
    if dice.random() < 0.2:
        return mutated_text(text, dice)
    tree = copy.deepcopy(source.tree)
    for _ in range(changes):
        mutate(tree, dice)
    return dumped(tree)
