"""Tables of `sacctmgr` and `sshare`: cut at a delimiter (`-P`), or in columns of fixed width below dashes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from equipoise.formats.slurm.columns import canonical
from equipoise.formats.text.delimited import header_delimiter
from equipoise.formats.text.errors import shown
from equipoise.formats.text.tally import RowTally
from equipoise.formats.text.textfile import TextFile

DASHES = re.compile(r"-{2,}(?: +-{2,})* *")

_QOS = (
    "priority gracetime preempt preemptmode flags usagefactor usagethres grptres grpjobs maxwall maxtres maxtrespu "
    "maxjobspu maxsubmitpu maxtrespa maxjobspa maxsubmitpa mintres grptresmins grpwall"
)
_ASSOCIATIONS = (
    "share rawshares normshares fairshare parentname grptres grpjobs maxjobs maxtres maxwall defqos rawusage"
)
_JOBS = "jobid jobidraw state elapsed submit start end nodelist avail"
QOS, ASSOCIATIONS, _OF_JOBS = (frozenset(names.split()) for names in (_QOS, _ASSOCIATIONS, _JOBS))
"""Names that tell these tables, and such that they do not have."""


def which_table(line: str) -> str:
    """`sacctmgr-qos` or `sacctmgr-assoc` by the names in a header, "" for neither."""
    names = [canonical(name) for name in re.split(r"[|\s,;]+", line.strip().replace("Def QOS", "DefQOS"))]
    if _OF_JOBS & set(names):
        return ""
    if names[0] == "name" and QOS & set(names):
        return "sacctmgr-qos"
    return "sacctmgr-assoc" if {"account", "user"} <= set(names) and ASSOCIATIONS & set(names) else ""


def cut(line: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The texts at these positions with leading blanks; none when there is text between the positions."""
    gaps = [*((a[1], b[0]) for a, b in pairwise(spans)), (spans[-1][1], len(line))]
    return [] if any(line[a:b].strip() for a, b in gaps) else [line[a:b].rstrip() for a, b in spans]


def read_table(file: TextFile, known: Collection[str]) -> list[dict[str, str]]:
    """Rows by the names of their columns, leading blanks kept, because they give the depth in a tree.

    known: names as `canonical` gives them, of which the header has some; no rows without. Raises FormatError for
    a text that its column was too narrow for.
    """
    lines = [(k, line) for k, line in enumerate(file.text(RowTally()).split("\n"), 1) if line.strip()]
    lines = [(k, line) for k, line in lines if not line.lstrip().startswith("#")]
    if len(lines) > 1 and DASHES.fullmatch(lines[1][1]):
        spans = [match.span() for match in re.finditer("-+", lines[1][1])]
        header = [lines[0][1][a:b].strip() for a, b in spans]
        rows = [(k, cut(line, spans)) for k, line in lines[2:]]
        if wrong := [k for k, row in rows if not row]:
            raise file.error(wrong[0], "text between the columns that the dashed line marks; print the table with -P")
        for place, (a, b) in enumerate(spans):
            column = [row[place] for _, row in rows]
            for (k, _), cell in zip(rows, column, strict=True):
                if cell.endswith("+") and len(cell) == b - a:
                    told = f"{header[place]} {shown(cell.strip())} is truncated"
                    raise file.error(k, f"{told}; print the table with -P")
            if all(len(cell) == b - a for cell in column if cell):  # blanks that only fill up
                for _, row in rows:
                    row[place] = row[place].lstrip()
    else:
        mark = header_delimiter(lines[0][1], lambda name: canonical(name) in known) if lines else ""
        if not mark:
            return []
        header = [name.strip() for name in lines[0][1].split(mark)]
        rows = [(k, line.split(mark)) for k, line in lines[1:]]
    blank = dict.fromkeys(header, "")
    return [{**blank, **dict(zip(header, row, strict=False))} for _, row in rows]
