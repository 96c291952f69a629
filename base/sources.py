"""Paths of the source files, and the hash of those that determine results.

The one place that knows how the package is laid out on disk.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

PACKAGE = "equipoise"
COMPUTING = ("base", "policies", "sim")
"""Rooms that decide what a run computes."""
BY_HAND = "__main__"

Part = tuple[str, str]
"""(file or package, hash or version)."""


class NoSourcesError(RuntimeError):
    """No source files to hash, so runs cannot be identified."""


def root() -> Path:
    """The folder of the package `equipoise`; in a checkout its rooms are links to the folders beside it."""
    return Path(__file__).absolute().parent.parent


def search_path() -> Path:
    """The folder from which Python imports the package, for processes that are started elsewhere."""
    return root().parent


def environment() -> dict[str, str]:
    """Environment of a Python subprocess: it finds the package, and imports nothing from the working folder."""
    ours, others = str(search_path()), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [ours, *(other for other in others if other not in ("", ours))]  # an empty one is that folder
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}


@contextmanager
def in_environment() -> Iterator[None]:
    """As `environment`, for what starts processes with the environment of this one."""
    before = dict(os.environ)
    os.environ.update(environment())
    try:
        yield
    finally:
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def source_files(rooms: Iterable[str] = COMPUTING) -> list[tuple[str, Path]]:
    """(name below `root`, path) of every Python file of these rooms, sorted. Raises NoSourcesError for none."""
    found = []
    for room in rooms:
        files = sorted((root() / room).rglob("*.py"))
        if not files:
            raise NoSourcesError(f"no source files of {room!r} in {root()}; runs cannot be identified")
        found += [(path.relative_to(root()).as_posix(), path) for path in files]
    return found


@cache
def code_hash() -> str:
    """First 16 hex digits of a SHA-256 over the source files that decide what a run computes."""
    return combined((name, digest_of(path)) for name, path in source_files())


_IMPORT = re.compile(rb"^\s*(?:from|import)\s+(equipoise[\w.]*)(?:\s+import\s+(\([^)]*\)|[^\n]*))?", re.MULTILINE)


def with_imported(files: Iterable[Path]) -> list[Path]:
    """These files of the package and all others of it that they import, one through another, sorted."""
    waiting, here = [*map(str, files)], str(root())
    seen, found = {*waiting}, []
    while waiting:
        path = waiting.pop()
        try:
            with open(path, "rb") as file:
                text = file.read()
        except (FileNotFoundError, NotADirectoryError):
            continue  # a name inside a module, which is no file of its own
        found.append(Path(path))
        for module, names in _IMPORT.findall(text):
            base = "/".join([here, *module.decode().split(".")[1:]])
            fresh = {f"{base}.py", *(f"{base}/{name}.py" for name in re.findall(r"\w+", names.decode()))} - seen
            seen |= fresh
            waiting += fresh
    return sorted(found)


def combined(parts: Iterable[Part]) -> str:
    """First 16 hex digits of a SHA-256 over these, in that order. Raises NoSourcesError when there are none."""
    digest, nothing = hashlib.sha256(), True
    for name, value in parts:
        nothing = False
        for text in (name.encode(), value.encode()):
            digest.update(len(text).to_bytes(8, "big") + text)
    if nothing:
        raise NoSourcesError("no source files to hash; runs cannot be identified")
    return digest.hexdigest()[:16]


def digest_of(path: Path) -> str:
    """First 16 hex digits of the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def file_parts(file: Path, module: str) -> list[Part]:
    """(name below the folder that Python imports it from, hash) of `files_with`."""
    folder = _folder(file, module)
    return [
        (path.relative_to(folder).as_posix(), _digest(path, path.stat().st_mtime_ns, path.stat().st_size))
        for path in files_with(file, module)
    ]


def _folder(file: Path, module: str) -> Path:
    """The folder from which Python imports the top-level package of `module`."""
    above = 0 if module == BY_HAND else module.count(".") + (file.name == "__init__.py")
    return file.resolve().parents[above]


def files_with(file: Path, module: str) -> list[Path]:
    """Sorted Python files of the top-level package (or module) that contains `file`, and of what they import
    from the same folder; folders of installed packages are left out.
    """
    folder = _folder(file, module)
    waiting = [file.stem if module == BY_HAND else module.partition(".")[0]]
    seen, found = {*waiting, PACKAGE}, {file.resolve()}
    while waiting:
        files = _files_of(folder, waiting.pop())
        found.update(files)
        names = {name for path in files for name in _imports(path, path.stat().st_mtime_ns)}
        fresh = set() if folder in _installed() else {n for n in names - seen if _files_of(folder, n)}
        seen |= fresh
        waiting += sorted(fresh)
    return sorted(found)


def _files_of(folder: Path, top: str) -> list[Path]:
    package, module = folder / top, folder / f"{top}.py"
    return [*package.rglob("*.py")] if package.is_dir() else [module] if module.is_file() else []


@lru_cache(maxsize=4096)
def _digest(path: Path, mtime_ns: int, size_bytes: int) -> str:
    return digest_of(path)


@lru_cache(maxsize=4096)
def _imports(path: Path, mtime_ns: int) -> frozenset[str]:
    """Top-level names that a file imports, wherever in it; none of a file that is not Python of this version."""
    try:
        nodes = list(_statements(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return frozenset()
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    of = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return frozenset(name.partition(".")[0] for name in (*plain, *of) if name)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements; expressions import nothing."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from _statements(node)


@cache
def _installed() -> frozenset[Path]:
    names = ("purelib", "platlib", "stdlib", "platstdlib")
    return frozenset(Path(sysconfig.get_path(name)).resolve() for name in names)
