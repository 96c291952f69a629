"""The table of ways to train in docs/live.md: `python -m tests.bench.live.exactness` tries each, and writes it."""

from __future__ import annotations

from pathlib import Path

from tests.live.train.test_losses import CASES, LONG, ON_FOUR, QUICK, error_of

PAGE = Path(__file__).parents[3] / "docs" / "live.md"
MARK = "<!-- cases -->\n"


def rows() -> list[str]:
    """The table, row by row."""
    found = ["", "| way to train | numbers | off by, 2 ranks | 4 ranks |", "|---|---|---|---|"]
    for name, case in CASES.items():
        two = error_of(name, 2, QUICK if name in QUICK else LONG)
        four = f"{error_of(name, 4, ON_FOUR):.0e}" if name in ON_FOUR else ""
        found.append(f"| {name} | {case.dtype} | {two:.0e} | {four} |")
    return [*found, ""]


def main() -> None:
    """Write the table between its marks."""
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}{chr(10).join(rows())}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
