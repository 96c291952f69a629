"""The core with the lowest versions of its dependencies that `pyproject.toml` allows: `make test-lowest`.

A virtual environment in `.lowest/`, made once for each list of versions; then a part of the suite that reaches
every dependency. Arguments are further ones of pytest.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from tests.named import path_of

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("report",)
TESTS = (
    "cli",
    "exit_codes",
    "sim/world",
    "units",
    "s2",
    "query",
    "store",
    "damaged",
    "export_rows",
    "sweep",
    "report",
    "small_sums",
)
TOOLS = ("pytest>=8", "hypothesis>=6.100")


def lowest() -> list[str]:
    """`name==version` of every dependency, at the version that is the least allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for e in EXTRAS for d in project["optional-dependencies"][e])]
    found = [re.match(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9.]+)", text) for text in wanted]
    return [f"{match[1]}=={match[2]}" for match in found if match is not None]


def main() -> int:
    """The exit code of pytest."""
    versions = lowest()
    key = hashlib.sha256(" ".join([*versions, *TOOLS]).encode()).hexdigest()[:12]
    place = ROOT / ".lowest" / key
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *versions, *TOOLS], check=True)
        subprocess.run([*pip, "-e", str(ROOT)], check=True)
        (place / "ready").touch()
    print("with", ", ".join(versions), flush=True)
    tests = [path_of(name) for name in TESTS]
    return subprocess.run([str(python), "-m", "pytest", *tests, *sys.argv[1:]], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
