"""Lines that the processes of a test reach: ranks that are forked, commands that are started.

Coverage.py begins anew in each of them, and writes a file when it ends, also by `os._exit`; one that is killed is
not heard of.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SETTINGS = "COVERAGE_PROCESS_START"
"""In the environment: the file of settings of coverage for a process that is started."""


def follow(tree: Path, folder: Path) -> None:
    """Have processes that are started from now on write what they reach below `tree` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "settings"
    settings.write_text(
        f"[run]\ndata_file = {folder}/lines\nparallel = true\npatch = _exit\n"
        f"include = {tree}/*\nomit = */tests/*\ndisable_warnings = no-data-collected\n"
    )
    os.environ[SETTINGS] = str(settings)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).with_name("start")), str(tree)])
    os.register_at_fork(after_in_child=begin)


def begin() -> None:
    """Look at this process, which was started by another."""
    from coverage import Coverage, process_startup

    if (of_parent := Coverage.current()) is not None:
        of_parent._auto_save = False
        of_parent.stop()
    process_startup(force=True)


def reached(tree: Path, folder: Path) -> dict[str, int]:
    """By file the mask of lines, of all that wrote since the last call."""
    from coverage import CoverageData
    from coverage.exceptions import CoverageException

    masks: dict[str, int] = {}
    for path in folder.glob("lines.*"):
        with suppress(CoverageException):  # a process that was killed while it wrote
            data = CoverageData(basename=str(path))
            data.read()
            for name in data.measured_files():
                file = Path(name).resolve().relative_to(tree).as_posix()
                masks[file] = masks.get(file, 0) | sum(1 << line for line in data.lines(name) or ())
            data.close()
        path.unlink(missing_ok=True)
    return masks
