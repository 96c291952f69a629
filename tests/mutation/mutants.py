"""Changes of the code: which there are of a file, by Cosmic Ray, and which of them no test is asked to notice."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "policies/kernels": "kernels",
    "policies/stages": "stages",
    "policies": "policies, other",
    "sim/ledger": "ledger of time",
    "sim": "sim, other",
    "live": "live",
    "study/runs": "ledger of runs",
}
"""By the beginning of a path the room that is reported; a file belongs to the longest."""
_SILENT = (
    "dataclass",
    "cache",
    "lru_cache",
    "jit",
    "jit_in_place",
    "jit_in_place_for_both",
    "jit_inside",
    "overload",
    "abstractmethod",
)
"""Decorators that change the time alone, or nothing."""
_WORDS = ("__repr__", "__str__")

Place = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def name(self) -> str:
        """The same in every start."""
        return f"{self.path} {self.operator} {self.occurrence}"

    def lot(self, seed: str = "") -> float:
        """In 0 .. 1, by what the mutant is and the seed, so that every start chooses alike."""
        return int(hashlib.sha256((seed + self.name).encode()).hexdigest()[:8], 16) / 2**32

    def change(self, source: str) -> tuple[str, str]:
        """(the changed source, the line and what it became)."""
        # The library has optional parts that fail to import elsewhere; it is needed here alone.
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        if changed is None:
            raise LookupError(f"{self.name}: there is no such change")
        diff = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm="")
        lines = [line[1:].strip() for line in diff if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return changed, " -> ".join(lines)


def room_of(path: str) -> str:
    """The room that a file is reported under."""
    return ROOMS[max((room for room in ROOMS if path.startswith(room)), key=len)]


def files() -> list[str]:
    """The Python files of all rooms."""
    found = set[Path]()
    for room in ROOMS:
        found.update([ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.name != "__init__.py")


def mutants(path: str, source: str, kept: Path) -> list[Mutant]:
    """All of a file but those that `silent` tells of; kept in a folder, for it takes seconds."""
    digest = hashlib.sha256(source.encode() + Path(__file__).read_bytes()).hexdigest()[:16]
    list_file = kept / f"{path.replace('/', '-')}-{digest}.json"
    if not list_file.is_file():
        from cosmic_ray.ast import ast_nodes, get_ast
        from cosmic_ray.plugins import get_operator, operator_names

        nodes, quiet = list(ast_nodes(get_ast(source))), list(silent(ast.parse(source)))
        found = []
        for name in operator_names():
            operator = get_operator(name)
            if operator.arguments():
                continue
            places = [begin for node in nodes for begin, _ in operator().mutation_positions(node)]
            for occurrence, begin in enumerate(places):
                if not any(low <= tuple(begin) < high for low, high in quiet):
                    found.append((name, occurrence, begin[0]))
        kept.mkdir(parents=True, exist_ok=True)
        list_file.write_text(json.dumps(found))
    return [Mutant(path, *each) for each in json.loads(list_file.read_text())]


def silent(tree: ast.Module) -> Iterator[tuple[Place, Place]]:
    """(begin, end) as (line, column) of what decides no result: annotations, which stay text, names of types,
    decorators that only save time, words of errors, and how things are shown.
    """
    for node in ast.walk(tree):
        found: list[ast.AST | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            found = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found = [node.returns, *_decorators(node)]
            if node.name in _WORDS:
                found += node.body
        elif isinstance(node, ast.ClassDef):
            found = list(_decorators(node))
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found = [*node.exc.args, *node.exc.keywords]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("cast", "TypeVar"):
            found = list(node.args[:1])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found = [node]
        for each in found:
            if each is not None:
                begin = (each.lineno, each.col_offset)  # type: ignore[attr-defined]
                yield begin, (each.end_lineno, each.end_col_offset)  # type: ignore[attr-defined]
    for node in tree.body:  # `Rows = list[str] | None`: a name of a type
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and _is_type(node.value):
            yield (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[ast.AST]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).rpartition(".")[2] in _SILENT:
            # Taking a decorator away is found at its `@`, one column before.
            yield ast.Name(
                lineno=decorator.lineno, col_offset=0,
                end_lineno=decorator.end_lineno, end_col_offset=decorator.end_col_offset,
            )  # fmt: skip


def _is_type(node: ast.expr) -> bool:
    """Whether it is names, perhaps with brackets, parted by bars."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_type(node.left) and _is_type(node.right)
    return isinstance(node, ast.Name | ast.Subscript | ast.Attribute) or ast.unparse(node) == "None"


def statement(tree: ast.Module, line: int) -> tuple[range, bool]:
    """(lines of the innermost statement that holds a line, whether it runs when the file is imported).

    Of a statement with a body only the lines before the body count.
    """
    lines, inside = range(line, line + 1), False

    def look(body: list[ast.stmt], within: bool) -> None:
        nonlocal lines, inside
        for node in body:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if not first <= line <= (node.end_lineno or node.lineno):
                continue
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            for handler in getattr(node, "handlers", []):
                parts.append(handler.body)
                if handler.lineno == line:
                    lines, inside = range(line, line + 1), within
                    return
            for case in getattr(node, "cases", []):
                parts.append(case.body)
            begins = [part[0].lineno for part in parts if part]
            end = min(begins) - 1 if begins else (node.end_lineno or node.lineno)
            lines, inside = range(first, max(end, node.lineno) + 1), within
            for part in parts:
                look(part, within or function)

    look(tree.body, False)
    return lines, not inside
