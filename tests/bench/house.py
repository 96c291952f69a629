"""The house in figures, now and at another commit, side by side: python -m tests.bench.house [COMMIT ...]

Files that are read are those of the product (no tests, no docs). A circle is a set of files that import each other,
directly or by others. Depth counts the files of the longest chain of imports, a circle as one. A branch on the kind
of job is a condition in `sim/` that asks whether a job is rigid or training, or a look-up that gives None for one.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tests.policies.test_physics import LAWS, nodes_of, within

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("policies", "formats", "sim", "study", "calibrate", "live", "equipoise")
KINDS = {"rigid", "is_rigid", "TrainingJob", "RigidJob"}
Import = tuple[str, bool, bool]
"""A module by its name, whether in a function, and whether for types alone."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a column per commit, and one for the working tree."""
    parser = argparse.ArgumentParser(description="The house in figures.")
    parser.add_argument(
        "commits", nargs="*", metavar="COMMIT", help="Commits to compare with, the oldest first."
    )
    asked = parser.parse_args(arguments).commits
    columns = [measure_commit(commit) for commit in asked] + [measure(ROOT)]
    print(table([*asked, "now"], columns))


def table(heads: Sequence[str], columns: Sequence[dict[str, str]]) -> str:
    """A Markdown table, a row per figure."""
    rows = [["", *heads], ["---"] * (len(heads) + 1)]
    rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def measure_commit(commit: str) -> dict[str, str]:
    """The figures of a commit, from an archive of it."""
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="tar")
        return measure(Path(folder))


def measure(root: Path) -> dict[str, str]:
    """The figures of a tree, as texts by name."""
    trees = {path: ast.parse((root / path).read_bytes()) for path in product_files(root)}
    lines = {path: len((root / path).read_text(encoding="utf-8").splitlines()) for path in trees}
    own = [count for path, count in lines.items() if not path.endswith("__init__.py")]
    folders = Counter(str(Path(path).parent) for path in trees if not path.endswith("__init__.py"))
    imports = {path: list(imports_of(tree)) for path, tree in trees.items()}
    known = {module_of(path): path for path in trees}
    links = {
        types: {p: {known[m] for m, _, t in found if m in known and (types or not t)} - {p} for p, found in
                with_packages(imports, known).items()}
        for types in (False, True)
    }  # fmt: skip
    largest, most = folders.most_common(1)[0]
    longest = max(lines, key=lambda path: lines[path])
    tests = sum(len(p.read_bytes().splitlines()) for p in (root / "tests").rglob("*.py"))
    return {
        "files, in folders": f"{len(own)}, {len(folders)}",
        "files in the largest folder": f"{most} (`{largest}`)",
        "median file [lines]": f"{statistics.median(own):.0f}",
        "longest file [lines]": f"{lines[longest]} (`{longest}`)",
        "lines of the product": f"{sum(lines.values()):,}",
        "lines of the tests": f"{tests:,}",
        "circles, and files in them": circles(links[False]),
        "the same with imports for types": circles(links[True]),
        "depth of imports": str(depth(links[True])),
        "imports inside functions": str(inside_functions(imports, ROOMS)),
        "of these in commands and live training": str(inside_functions(imports, ("equipoise", "live"))),
        "branches on the kind of job": str(sum(branches(trees[p]) for p in trees if p.startswith("sim/"))),
        **{f"definitions: {law}": str(definitions(law, trees)) for law in LAWS},
    }


def product_files(root: Path) -> list[str]:
    """Every Python file of the product, by its path; links are not followed."""
    found = [path for room in ROOMS for path in (root / room).rglob("*.py")]
    paths = sorted(path for path in found if not any(part.is_symlink() for part in path.parents))
    return [path.relative_to(root).as_posix() for path in paths]


def module_of(path: str) -> str:
    """Its dotted name without the package that all rooms are in."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(node: ast.AST, inside: bool = False, typed: bool = False) -> Iterator[Import]:
    """Every module that is imported, and what may be one: `from a import b` gives `a` and `a.b`."""
    if isinstance(node, ast.Import):
        yield from ((plain(alias.name), inside, typed) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield plain(node.module), inside, typed
        yield from ((f"{plain(node.module)}.{alias.name}", False, typed) for alias in node.names)
    inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    body = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) else ()
    for child in ast.iter_child_nodes(node):
        yield from imports_of(child, inside, typed or child in body)


def inside_functions(imports: dict[str, list[Import]], rooms: Sequence[str]) -> int:
    """Imports inside functions of these rooms."""
    return sum(
        inside for path, found in imports.items() if path.split("/")[0] in rooms for _, inside, _ in found
    )


def plain(module: str) -> str:
    """A module's name as in the folders, installed in one package or not."""
    return (
        module.removeprefix("equipoise.")
        if module.split(".")[1:2] and module.split(".")[1] in ROOMS
        else module
    )


def with_packages(imports: dict[str, list[Import]], known: dict[str, str]) -> dict[str, list[Import]]:
    """Without `from package import module` counted as an import of the package itself."""
    names = {path: {m for m, _, _ in found} for path, found in imports.items()}
    return {
        path: [
            one for one in found
            if not (known.get(one[0], "").endswith("__init__.py")
                    and any(m.startswith(one[0] + ".") and m in known for m in names[path]))
        ]
        for path, found in imports.items()
    }  # fmt: skip


def components(links: dict[str, set[str]]) -> tuple[list[str], list[int]]:
    """(files, the number of each one's circle); a file that is in none has a number of its own."""
    files = sorted(links)
    at = {path: k for k, path in enumerate(files)}
    pairs = [(at[a], at[b]) for a in files for b in links[a]]
    rows, columns = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in (0, 1))
    graph = csr_array((np.ones(len(pairs)), (rows, columns)), shape=(len(files), len(files)))
    return files, connected_components(graph, directed=True, connection="strong")[1].tolist()


def circles(links: dict[str, set[str]]) -> str:
    """How many circles, and how many files are in them."""
    sizes = [size for size in Counter(components(links)[1]).values() if size > 1]
    return f"{len(sizes)}, {sum(sizes)}"


def depth(links: dict[str, set[str]]) -> int:
    """Files in the longest chain of imports."""
    files, number = components(links)
    of = dict(zip(files, number, strict=True))
    below = {k: {of[b] for a in files if of[a] == k for b in links[a]} - {k} for k in set(number)}
    found: dict[int, int] = {}
    for k in TopologicalSorter(below).static_order():
        found[k] = 1 + max((found[b] for b in below[k]), default=0)
    return max(found.values())


def branches(tree: ast.AST) -> int:
    """Conditions that ask what kind of job it is."""
    tests = [n.test for n in ast.walk(tree) if isinstance(n, ast.If | ast.IfExp | ast.While | ast.Assert)]
    tests += [test for n in ast.walk(tree) if isinstance(n, ast.comprehension) for test in n.ifs]
    calls = [ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    looked_up = sum(call.endswith("training.get") for call in calls)
    return looked_up + sum(any(asks_kind(n) for n in ast.walk(test)) for test in tests)


def asks_kind(node: ast.AST) -> bool:
    """`job.rigid`, `isinstance(job, TrainingJob)`, `row in roster.training`; not arrays of rows named `rigid`."""
    if isinstance(node, ast.Compare):
        names = {getattr(c, "attr", getattr(c, "id", "")) for c in node.comparators}
        return isinstance(node.ops[0], ast.In | ast.NotIn) and bool(names & {"training"})
    if isinstance(node, ast.Attribute):
        return node.attr in KINDS
    return isinstance(node, ast.Name) and node.id in KINDS - {"rigid"}


def definitions(law: str, trees: dict[str, ast.Module]) -> int:
    """Functions that write the law down."""
    matches = LAWS[law][0]
    return len({place for path, tree in trees.items() for place in within(nodes_of(tree), path, matches)})


if __name__ == "__main__":
    main()
