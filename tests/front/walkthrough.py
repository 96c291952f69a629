"""Runs the pages of docs/ that are walk-throughs, and writes what comes out into them.

A page has fenced blocks: `yaml`, `python` and `csv` blocks that begin with `# file: NAME` are files; `console`
blocks hold commands after `$ ` with what they print. `...` stands for lines left out. A command is `equipoise
...` or `python FILE`, and may end with `; echo $?`.

    python -m tests.front.walkthrough docs/planning.md     # makes every command again and writes its output
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import runpy
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from equipoise.cli import main

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# file: (\S+)\n")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")
LEFT_OUT = "..."


@dataclass(frozen=True)
class Step:
    """A file to write (`name`), or a command with its expected lines."""

    name: str | None
    text: str
    expected: tuple[str, ...] = ()


def steps_of(page: str) -> list[Step]:
    """Files and commands of a page, in their order."""
    return [step for kind, body in FENCE.findall(page) for step in _block(kind, body)]


def _block(kind: str, body: str) -> list[Step]:
    named = FILE.match(body)
    if kind in ("yaml", "python") and named is not None:
        return [Step(named[1], body)]
    if kind == "csv" and named is not None:  # a table has no comments
        return [Step(named[1], body[named.end() :])]
    return [step for _, step in _commands(body)] if kind == "console" else []


def _commands(body: str) -> list[tuple[str, Step]]:
    """(the command as it stands, the step) of each command of a console block."""
    found = []
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        lines = part.splitlines()
        taken = 1
        while lines[taken - 1].endswith("\\"):
            taken += 1
        raw = "$ " + "".join(f"{line}\n" for line in lines[:taken])
        command = " ".join(line.rstrip("\\").strip() for line in lines[:taken])
        found.append((raw, Step(None, command, tuple(line.rstrip() for line in lines[taken:]))))
    return found


def perform(step: Step) -> list[str]:
    """Write the file, or run the command in the working folder; lines of its stdout."""
    if step.name is not None:
        Path(step.name).write_text(step.text, encoding="utf-8")
        return []
    command, _, echo = step.text.partition(";")
    words = shlex.split(command)
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as said:
        if words[0] == "equipoise":
            code = main(words[1:])
        elif words[0] == "python":
            _run_program(words[1])
        else:
            raise AssertionError(f"{words[0]!r} is no command that a page may have")
    if not echo:
        assert code == 0, f"{step.text}: exit code {code}: {said.getvalue()}"
    return [line.rstrip() for line in (out.getvalue() + (f"{code}\n" if echo else "")).splitlines()]


def _run_program(name: str) -> None:
    """Run a Python file as its folder's main program; what it imports from there is forgotten afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(Path.cwd()))
    try:
        runpy.run_path(name, run_name="__main__")
    finally:
        sys.path.pop(0)
        for module in set(sys.modules) - before:
            if Path(getattr(sys.modules[module], "__file__", None) or "/").parent == Path.cwd():
                del sys.modules[module]


def alike(expected: str, actual: str, tolerance: float) -> bool:
    """Whether two lines have the same words, and numbers within `tolerance` of each other."""

    def skeleton(line: str) -> str:
        return " ".join(NUMBER.sub("#", line).split())

    def numbers(line: str) -> list[float]:
        return [float(text.replace(",", "")) for text in NUMBER.findall(line)]

    return skeleton(expected) == skeleton(actual) and all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=0.02)
        for a, b in zip(numbers(expected), numbers(actual), strict=True)
    )


def missing(expected: tuple[str, ...], actual: list[str], tolerance: float) -> str | None:
    """The first expected line that the output does not have in its place; None when all is well."""
    place, anywhere = 0, False
    for line in expected:
        if line == LEFT_OUT:
            anywhere = True
            continue
        found = range(place, len(actual)) if anywhere else range(place, min(place + 1, len(actual)))
        hit = next((k for k in found if alike(line, actual[k], tolerance)), None)
        if hit is None:
            return line
        place, anywhere = hit + 1, False
    return None if anywhere or place == len(actual) else f"(the end; there is more: {actual[place]!r})"


def rewrite(page: str) -> str:
    """The page with every output as it is now, cut where it was cut."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return FENCE.sub(lambda match: f"```{match[1]}\n{_rewritten(match[1], match[2])}```", page)


def _rewritten(kind: str, body: str) -> str:
    if kind != "console":
        for step in _block(kind, body):
            perform(step)
        return body
    parts = [raw + "".join(f"{line}\n" for line in kept(step.expected, perform(step))) for raw, step in _commands(body)]
    return "".join(parts)


def kept(expected: tuple[str, ...], actual: list[str]) -> tuple[str, ...]:
    """The new output; where lines were left out, the first and the last lines, and as many from each kept label on."""
    parts: list[list[str]] = [[]]
    for line in expected:
        parts[-1].append(line)
        if line == LEFT_OUT:
            parts.append([])
    if len(parts) == 1:
        return tuple(actual)
    found: list[str] = []
    for number, part in enumerate(parts):
        lines = [line for line in part if line != LEFT_OUT]
        if number == 0 or not lines:
            start = 0
        elif number == len(parts) - 1:
            start = max(0, len(actual) - len(lines))
        else:
            start = _place(lines[0], actual)
        found += [*actual[start : start + len(lines)], *(LEFT_OUT for line in part if line == LEFT_OUT)]
    return tuple(found)


def _place(line: str, actual: list[str]) -> int:
    """Where the line with this one's label stands, else the one with its words, else with its first word."""
    for of in (_label, _words, lambda text: text.split()[:1]):
        for place, new in enumerate(actual):
            if of(new) == of(line):
                return place
    raise ValueError(f"no line of the output is like {line!r}; write the page anew")


def _words(line: str) -> object:
    return NUMBER.sub("#", line).split()


def _label(line: str) -> object:
    """What stands before the first column of results."""
    return re.split(r"\s{2,}", line.strip())[0]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        target = Path(name).resolve()
        target.write_text(rewrite(target.read_text(encoding="utf-8")), encoding="utf-8")
