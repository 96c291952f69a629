"""The values of Slurm's fields: job ids, states, trackable resources (TRES), generic resources, memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from equipoise.formats.accelerators import GRES, gres_name
from equipoise.formats.slurm.hostlist import split_list
from equipoise.formats.text.numbers import integer, scaled

NOT_GIVEN = -1
"""Stands in whole-number columns for a value that the file does not have."""

ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States of a job (or of one attempt of it) that is over."""

_SHORT = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "LF": "LAUNCH_FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "SI": "SIGNALING",
    "SE": "SPECIAL_EXIT",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
STATES = ENDED | frozenset(_SHORT.values()) | {"RECONFIG_FAIL", "POWER_UP_NODE", "UPDATE_DB", "EXPEDITING"}

_JOB_ID = re.compile(
    r"([0-9]{1,12})"
    r"(?:_(?:([0-9]{1,12})|\[([0-9,:%x.\-]*)\]?\+?))?"
    r"(?:\+([0-9]{1,6}))?"
    r"(\.[0-9A-Za-z_+]+)?"
)
_TASKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MEMORY = re.compile(r"([0-9.]+[KMGTP]?)([cn]?)", re.IGNORECASE)
_GPU_ID = "7696487"
"""What versions before 21.08 print for `gpu`: its letters as the bytes of a number."""
_GRES = re.compile(rf"(?:(?:per_[a-z]+|gres)[:/])*({'|'.join(sorted(GRES))}|{_GPU_ID})(?:[:/=](.*))?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+[KMG]?")
_MOST = 10**9
"""Nodes, CPUs or GPUs beyond this are a broken number."""
_MAX_TASKS = 4_000_001
_FLAG_MB = 1 << 31
"""Slurm's "per CPU" flag bit and what it makes of a number of MB when a tool prints it by mistake."""


@dataclass(frozen=True)
class JobId:
    """The parts of `12`, `12_3` (array task), `12_[4-10%2]` (tasks not started), `12+1` (part 1), `12.batch`.

    index and part are NOT_GIVEN where there is none; tasks: how many array tasks the row stands for.
    """

    job: int
    index: int = NOT_GIVEN
    tasks: int = 1
    part: int = NOT_GIVEN
    step: str = ""


def parse_job_id(text: str) -> JobId | None:
    """The parts of a job id, None for anything else."""
    match = _JOB_ID.fullmatch(text)
    if match is None:
        return None
    index = NOT_GIVEN if match[2] is None else int(match[2])
    part = NOT_GIVEN if match[4] is None else int(match[4])
    tasks = 1 if match[3] is None else max(sum(map(len, _task_ranges(match[3]))), 1)
    return JobId(int(match[1]), index, tasks, part, (match[5] or "")[1:])


def _task_ranges(text: str) -> list[range]:
    """The ranges of task numbers, no more tasks in all than Slurm allows."""
    ranges, room = [], _MAX_TASKS
    for part in text.split("%")[0].split(","):
        if match := _TASKS.fullmatch(part):
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            ranges.append(range(low, high + 1, max(step, 1))[:room])
            room -= len(ranges[-1])
    return ranges


def parse_state(text: str) -> str | None:
    """The full name of a job's state: of `CANCELLED by 1001`, `CANCELLED+`, `CA`. None for what is no state."""
    word = text.split(" ")[0].split(",")[0].upper()
    if word in STATES:
        return word
    if word in _SHORT:
        return _SHORT[word]
    begin = word.removesuffix("+")
    found = [state for state in STATES if len(begin) > 2 and state.startswith(begin)]
    return found[0] if word.endswith("+") and len(found) == 1 else None


def parse_tres(text: str) -> dict[str, str]:
    """The members of `cpu=4,mem=8G,gres/gpu:a100=2`. What has no `=` is left out."""
    pairs = (member.partition("=") for member in text.split(","))
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals}


def tres_number(tres: dict[str, str], name: str, unit: str = "") -> float | None:
    """A resource's amount, None where it is not there or not a number."""
    return scaled(tres[name], unit) if name in tres else None


def tres_gpus(text: str) -> tuple[int, str]:
    """(GPUs, their types) of a TRES text. `gres/gpu` is the total, `gres/gpu:TYPE` are its parts; so of `gres/npu`.

    NOT_GIVEN for an empty text; types are joined by commas, "" where they are not named.
    """
    tres = parse_tres(text)
    if not tres:
        return NOT_GIVEN, ""
    whole: dict[str, float] = {}
    typed: dict[str, dict[str, float]] = {}
    for name, value in tres.items():
        if (found := gres_name(name)) is not None:
            (typed.setdefault(found[0], {}) if found[1] else whole)[found[1] or found[0]] = scaled(value) or 0.0
    total = sum(whole.values()) + sum(sum(own.values()) for kind, own in typed.items() if kind not in whole)
    types = {label for own in typed.values() for label, count in own.items() if count > 0}
    types |= {kind for kind, count in whole.items() if count > 0 and kind != "gpu" and kind not in typed}
    return _count(total), ",".join(sorted(types))


def gres_gpus(text: str) -> tuple[int, str]:
    """(GPUs, their types) of a GRES text: `gpu:8`, `gpu:a100:4(S:0-1)`, `gres/gpu:2`, `PER_NODE:gpu:8`.

    NOT_GIVEN for an empty text.
    """
    if text.strip().lower() in ("", "n/a", "(null)", "none"):
        return NOT_GIVEN, ""
    total, types = 0.0, set()
    for member in split_list(text):
        if match := _GRES.fullmatch(member.split("(")[0]):
            parts = [part for part in re.split("[:=]", match[2] or "") if part != "no_consume"]
            number = scaled(parts[-1]) if parts and _NUMBER.fullmatch(parts[-1]) else None
            name = ":".join(parts if number is None else parts[:-1])
            total += 1 if number is None else number
            kind = match[1].lower()
            types.add(name or ("" if kind in ("gpu", _GPU_ID) or number == 0 else kind))
    return _count(total), ",".join(sorted(types - {""}))


def gres_known(text: str) -> bool:
    """Whether one member of a GRES text is no accelerator, or has at most a type and a count."""
    match = _GRES.fullmatch(text.split("(")[0])
    parts = [part for part in re.split("[:=]", match[2] or "") if part != "no_consume"] if match else []
    return len(parts) < 2 or (len(parts) == 2 and _NUMBER.fullmatch(parts[1]) is not None)


def gres_by_type(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs by type of a GRES text, see `gres_gpus`; members without a type count under ""."""
    counts: dict[str, int] = {}
    for member in split_list(text):
        count, kind = gres_gpus(member)
        if count > 0:
            counts[kind] = counts.get(kind, 0) + count
    return tuple(counts.items())


def parse_memory(text: str) -> tuple[int, str] | None:
    """(bytes, per what) of a `ReqMem`: `4Gn` per node, `500Mc` per CPU, `64G` of the whole job (from 21.08 on).

    per what: `n`, `c` or "". Slurm counts MB where there is no unit. None for a broken text and for a bare flag.
    """
    match = _MEMORY.fullmatch(text)
    value = scaled(match[1], "M") if match else None
    if match is None or value is None or value >= _FLAG_MB * 2.0**20:
        return None
    return int(value), match[2].lower()


def whole(text: str) -> int:
    """A whole number or a count with a binary suffix (`1K` nodes), NOT_GIVEN for anything else."""
    number = integer(text)
    value = scaled(text) if number is None else number
    return NOT_GIVEN if value is None else _count(value)


def _count(value: float) -> int:
    return int(value) if 0 <= value <= _MOST else NOT_GIVEN
