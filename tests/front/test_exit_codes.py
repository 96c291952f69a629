"""Exit codes have names, which stand in one place."""

import os
import subprocess
import sys
from pathlib import Path

from equipoise import exit_codes
from equipoise.base.sources import environment


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
