"""The page of an answer: of `size` or of `tune`."""

from __future__ import annotations

from pathlib import Path

from equipoise.base.files import write_whole
from equipoise.study.folders import SIZE, TUNE
from equipoise.study.report.answers.size import size_page
from equipoise.study.report.answers.tune import tune_page
from equipoise.study.report.page import Made


def answer_report(folder: str | Path, out: str | Path | None = None) -> Made | None:
    """Write the page of the answer in a folder; default: `report.html` there. None where there is no answer.

    Raises InputError when the answer is damaged, OSError when the page cannot be written.
    """
    path = Path(folder)
    made = next((make for file, make in ((SIZE, size_page), (TUNE, tune_page)) if (path / file).is_file()), None)
    if made is None:
        return None
    target = path / "report.html" if out is None else Path(out)
    content = made(path).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
    return Made(target, len(content), ())
