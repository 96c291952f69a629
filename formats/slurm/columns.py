"""Names of the columns that Slurm's tools print, and their allowed values."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.formats.text.delimited import FREE, MANY, ONE, Kind

FIELDS: dict[str, tuple[str, ...]] = {
    "job_id": ("jobarrayid", "jobid", "jobidraw"),
    "cluster": ("cluster",),
    "user": ("user", "username"),
    "account": ("account",),
    "partition": ("partition",),
    "qos": ("qos",),
    "name": ("jobname", "name"),
    "state": ("state", "jobstate", "st", "statecompact"),
    "reason": ("reason",),
    "node_list": ("nodelist",),
    "submit": ("submit", "submittime"),
    "eligible": ("eligible", "eligibletime"),
    "start": ("start", "starttime"),
    "end": ("end", "endtime"),
    "elapsed_raw": ("elapsedraw",),
    "elapsed": ("elapsed", "timeused", "time"),
    "limit": ("timelimit",),
    "limit_raw": ("timelimitraw",),
    "nodes": ("nnodes", "numnodes", "nodes"),
    "nodes_allocated": ("allocnodes",),
    "nodes_requested": ("reqnodes",),
    "cpus": ("ncpus", "numcpus", "cpus"),
    "cpus_allocated": ("alloccpus",),
    "cpus_requested": ("reqcpus",),
    "tres": ("alloctres", "tresalloc"),
    "tres_requested": ("reqtres",),
    "gres": ("allocgres",),
    "gres_per_node": ("reqgres", "trespernode", "gres"),
    "gres_per_job": ("tresperjob",),
    "gres_per_task": ("trespertask",),
    "gres_per_socket": ("trespersocket",),
    "tasks": ("numtasks", "ntasks", "tasks"),
    "sockets": ("socketspernode", "sct", "reqs:c:t"),
    "memory": ("reqmem",),
    "memory_per_node": ("minmemory", "minmemorynode"),
    "priority": ("priority", "prioritylong"),
}
"""What a table is made of, and the names (as `canonical` gives them) under which columns bring it, best first."""

DEFAULT = ("JobID", "JobName", "Partition", "Account", "AllocCPUS", "State", "ExitCode")
"""What `sacct` prints when no format is given."""

_XDMOD_BEGIN = "Account Group GID User UID Submit Eligible Start End Elapsed ExitCode State NNodes NCPUS ReqCPUS ReqMem"
_APEL = "JobID JobName User Group Start End Elapsed CPUTimeRAW Partition NCPUS NNodes NodeList MaxRSS MaxVMSize State"
_XDMOD_ENDS = ("ReqTRES AllocTRES", "ReqGRES ReqTRES", "ReqGRES ReqTRES AllocTRES")


def _xdmod() -> list[tuple[str, ...]]:
    """The `--format` lists that Open XDMoD asks sites to export with, without a header."""
    layouts = []
    for qos in ("QOS ", ""):
        for resources in _XDMOD_ENDS:
            text = f"JobID JobIDRaw Cluster Partition {qos}{_XDMOD_BEGIN} {resources} Timelimit NodeList JobName"
            layouts.append(tuple(text.split()))
    return layouts


HEADERLESS: tuple[tuple[str, ...], ...] = (DEFAULT, *_xdmod(), tuple(_APEL.split()))
"""Column lists of `sacct --noheader` that are published: the default, Open XDMoD's, APEL's."""

_DATE = r"[0-9]{4}[-/][0-9]{1,2}[-/][0-9]{1,2}[T ][0-9:.,]{4,16}(?:Z| ?[+-][0-9:]{2,6})?"
_TIME = rf"(?:|Unknown|None|NONE|N/A|{_DATE}|[0-9]{{1,11}})"
_CLOCK = r"(?:[0-9]{1,9}(?:-| days?,? ?))?(?:[0-9]{1,9}(?::[0-9]{1,2}){0,2}(?:\.[0-9]+)?)?"
_COUNT = r"[0-9.]*[KMGTP]?[cn]?"
_WORD = r"[^\s|]*"
_FORMS: dict[str, str] = {
    "job_id": r"[0-9]+(?:_[0-9]+|_\[[^\]]*\]?\+?)?(?:\+[0-9]+)?(?:\.[0-9A-Za-z_+]+)?",
    "state": r"[A-Za-z_]{1,20}(?: by [0-9]+)?(?:,[A-Z_]+)*[+]?",
    "submit": _TIME,
    "eligible": _TIME,
    "start": _TIME,
    "end": _TIME,
    "elapsed_raw": r"[0-9]*",
    "elapsed": _CLOCK,
    "limit": rf"(?:[A-Za-z_/]+|{_CLOCK})",
    "limit_raw": r"[0-9A-Za-z_]*",
    "nodes": _COUNT,
    "nodes_allocated": _COUNT,
    "nodes_requested": r"[0-9.KM-]*",
    "cpus": _COUNT,
    "cpus_allocated": _COUNT,
    "cpus_requested": _COUNT,
    "memory": r"[0-9.]*[KMGTP]?[cn]?\??",
    "memory_per_node": _COUNT,
    "priority": r"[0-9.eE+-]*",
    "cluster": _WORD,
    "user": _WORD,
    "account": _WORD,
    "qos": _WORD,
    "exitcode": r"(?:[0-9]+:[0-9]+)?",
}
_TRES_MEMBER = r"[A-Za-z][A-Za-z0-9_/:.\-]*=[^=,\s]*"
_TRES_FORM = rf"(?:{_TRES_MEMBER}(?:,{_TRES_MEMBER})*,?)?"
_HOSTS_FORM = r"(?:None assigned|\(null\)|[^\s()=]*)"
_LISTS = {"tres": _TRES_FORM, "tres_requested": _TRES_FORM, "node_list": _HOSTS_FORM, "partition": r"\S*"}
_WEIGHTS = {"jobname": 1, "name": 1, "submitline": 1, "comment": 1, "workdir": 2, "constraints": 2}
_TARGET = {name: target for target, names in FIELDS.items() for name in names}


def canonical(name: str) -> str:
    """A column's name without case, blanks, dashes and underscores: `TRES_PER_NODE` is `trespernode`."""
    return re.sub(r"[\s_\-\"]", "", name).lower()


def known_names() -> frozenset[str]:
    """Canonical names that identify a header of Slurm's tools."""
    more = "group gid uid exitcode derivedexitcode cputime cputimeraw totalcpu maxrss workdir comment wckey"
    return frozenset(_TARGET) | frozenset(more.split())


def kinds(names: Sequence[str]) -> list[Kind]:
    """The kind of value of each column."""
    return [_kind(canonical(name)) for name in names]


def _kind(name: str) -> Kind:
    target = _TARGET.get(name, name)
    if target in _LISTS:
        return Kind(MANY, re.compile(_LISTS[target]))
    if target in _FORMS:
        return Kind(ONE, re.compile(_FORMS[target]))
    return Kind(FREE, None, _WEIGHTS.get(name, 3))


def sources(names: Sequence[str]) -> dict[str, int]:
    """The column (by position) of each of FIELDS."""
    place: dict[str, int] = {}
    for k, name in enumerate(names):
        place.setdefault(canonical(name), k)
    found = {}
    for target, aliases in FIELDS.items():
        here = [place[alias] for alias in aliases if alias in place]
        if here:
            found[target] = here[0]
    return found
