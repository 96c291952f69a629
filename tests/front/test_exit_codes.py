"""Exit codes have names, which stand in one place."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise import exit_codes
from equipoise.base.sources import environment

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("equipoise/*.py"), *ROOT.glob("equipoise/commands/**/*.py"), *ROOT.glob("study/**/*.py")])
ENDS = {"exit", "_exit", "SystemExit", "Exit"}


def bare_numbers(tree: ast.AST, returns: bool) -> Iterator[int]:
    """Lines on which a process is ended, or a command returns, with a number instead of a name."""
    for node in ast.walk(tree):
        value: ast.expr | None = None
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            value = node.args[0] if name in ENDS and node.args else None
        elif (isinstance(node, ast.Assign) and "exit_code" in {getattr(t, "id", "") for t in node.targets}) or (
            isinstance(node, ast.Return) and returns
        ):
            value = node.value
        for part in ast.walk(value) if value is not None else ():
            if isinstance(part, ast.Constant) and type(part.value) is int:
                yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_process_ends_with_a_number_that_has_no_name(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    commands = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any("command" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]
    found = [*bare_numbers(tree, False), *(line for node in commands for line in bare_numbers(node, True))]
    assert found == []


def test_each_code_has_one_meaning() -> None:
    codes = {name: value for name, value in vars(exit_codes).items() if name.isupper()}
    assert len(set(codes.values())) == len(codes) == 8
    assert all(0 <= code <= 255 for code in codes.values())


def test_ctrl_c_within_a_text_of_python_that_c_code_runs_ends_with_the_exit_code_too(tmp_path: Path) -> None:
    """Started with `-m`, Python would end the process by the signal."""
    (tmp_path / "interrupted.py").write_text(
        "import ctypes, sys\nfrom equipoise import cli\n"
        "ctypes.pythonapi.PyRun_SimpleString(b'raise KeyboardInterrupt')\nsys.exit(cli._interrupted())\n"
    )
    own = environment()
    own |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{own['PYTHONPATH']}"}
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith("equipoise: interrupted\n")
