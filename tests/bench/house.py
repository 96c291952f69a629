"""The size and structure of the code in figures: python -m tests.bench.house

Depth counts the modules of the longest chain of imports. A feature is spread over the files that hold its word.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("base", "policies", "formats", "sim", "study", "calibrate", "live", "equipoise")
FEATURES = ("service", "shard", "queue", "share", "checkpoint")


def main() -> None:
    """Print a Markdown table, a row per figure."""
    print("| figure | now |\n| --- | --- |")
    for name, value in figures().items():
        print(f"| {name} | {value} |")


def figures() -> dict[str, str]:
    """The figures as text, by name."""
    sources = {path: (ROOT / path).read_text(encoding="utf-8") for path in product_files()}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    lines = {path: len(source.splitlines()) for path, source in sources.items()}
    own = [count for path, count in lines.items() if not path.endswith("__init__.py")]
    folders = Counter(str(Path(path).parent) for path in sources if not path.endswith("__init__.py"))
    longest = max(lines, key=lambda path: lines[path])
    inside = {path: sum(1 for _ in imports_inside_functions(tree)) for path, tree in trees.items()}
    shared = shared_class_names(trees)
    tests = sum(len(path.read_bytes().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    return {
        "lines of the product": f"{sum(lines.values()):,}",
        "lines of the tests": f"{tests:,}",
        "files, in folders": f"{len(own)}, {len(folders)}",
        "files in the largest folder": "{1} (`{0}`)".format(*folders.most_common(1)[0]),
        "median file [lines]": f"{statistics.median(own):.0f}",
        "longest file [lines]": f"{lines[longest]} (`{longest}`)",
        "depth of imports": str(depth_of_imports()),
        "imports inside functions": str(sum(inside.values())),
        "of these in commands and live training": str(
            sum(count for path, count in inside.items() if path.startswith(("equipoise/", "live/")))
        ),
        "class names that two classes bear": f"{len(shared)} ({', '.join(shared[:6])})",
        "`fmt: skip` and `fmt: off`": str(sum(len(re.findall(r"fmt: (skip|off)", s)) for s in sources.values())),
        **{f"files with '{word}', in folders": spread(word, sources) for word in FEATURES},
    }


def product_files() -> list[str]:
    """Every Python file of the product, by its path; links are not followed."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    paths = sorted(path for path in found if not any(part.is_symlink() for part in path.parents))
    return [path.relative_to(ROOT).as_posix() for path in paths]


def depth_of_imports() -> int:
    """Modules in the longest chain of imports, imports for types alone included."""
    graph = grimp.build_graph("equipoise", cache_dir=None)
    below = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    depth: dict[str, int] = {}
    for module in TopologicalSorter(below).static_order():
        depth[module] = 1 + max((depth[other] for other in below[module]), default=0)
    return max(depth.values())


def imports_inside_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Every import statement in the body of a function."""
    for node in ast.iter_child_nodes(tree):
        if inside and isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from imports_inside_functions(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def shared_class_names(trees: dict[str, ast.Module]) -> list[str]:
    """Public class names that two classes or more bear."""
    names = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def spread(word: str, sources: dict[str, str]) -> str:
    """Files and folders in which the word stands, in the singular or the plural."""
    found = [path for path, source in sources.items() if re.search(rf"\b{word}s?\b", source, re.IGNORECASE)]
    return f"{len(found)}, {len({Path(path).parent for path in found})}"


if __name__ == "__main__":
    main()
