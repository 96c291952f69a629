"""The table of ways to train: `python -m tests.bench.live.exactness` writes it into docs/live-measured.md."""

from __future__ import annotations

from pathlib import Path

from tests.live.train.test_losses import CASES, ON, QUICK, error_of

PAGE = Path(__file__).parents[3] / "docs" / "live-measured.md"
MARK = "<!-- cases -->\n"


def rows() -> list[str]:
    """The table, row by row."""
    found = ["", "| way to train | numbers | off by, 2 ranks | 3 ranks | 4 ranks |", "|---|---|---|---|---|"]
    for name, case in CASES.items():
        tried = {ranks: names for ranks, names in ON.items() if name in names}
        if name in QUICK:
            tried[2] = QUICK
        errors = [f"{error_of(name, ranks, tried[ranks]):.0e}" if ranks in tried else "" for ranks in ON]
        found.append(f"| {name} | {case.dtype} | {' | '.join(errors)} |")
    return [*found, ""]


def main() -> None:
    """Write the table between its marks."""
    table = "\n".join(rows())  # takes minutes; the page is read behind that
    before, _, after = PAGE.read_text(encoding="utf-8").split(MARK)
    PAGE.write_text(f"{before}{MARK}{table}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
