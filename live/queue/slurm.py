"""Slurm as a queue manager: `squeue` and `sinfo` are read as text, `scontrol` does what is asked.

Text, because its columns can be named: it is the same in every version from 20.02 on, has the nice value (the JSON
of 22.05 writes it as an unsigned number, or not at all), and 10,000 jobs take a tenth of the processor time.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.base.numerals import is_index
from equipoise.formats.slurm.hostlist import expand_hosts
from equipoise.formats.slurm.jobs import JobTable
from equipoise.formats.slurm.nodes import NodeRow, read_sinfo
from equipoise.formats.slurm.queue import read_queue
from equipoise.formats.slurm.values import ENDED, gres_gpus
from equipoise.formats.text.errors import FormatError
from equipoise.live.queue.manager import ManagerError, Phase, QueueChange, QueuedJob, QueueNode, QueueSnapshot, Verb

_SQUEUE = {
    "JobID": "JOBID",
    "State": "STATE",
    "PriorityLong": "PRIORITY",
    "Nice": "NICE",
    "tres-alloc": "TRES_ALLOC",
    "tres-per-node": "TRES_PER_NODE",
    "tres-per-job": "PER_JOB",
    "tres-per-task": "PER_TASK",
    "NumTasks": "TASKS",
    "NumNodes": "NODES",
    "SubmitTime": "SUBMIT_TIME",
    "EligibleTime": "ELIGIBLE_TIME",
    "StartTime": "START_TIME",
    "EndTime": "END_TIME",
    "TimeLimit": "TIME_LIMIT",
    "Reason": "REASON",
    "NodeList": "NODELIST",
    "UserName": "USER",
    "Requeue": "REQUEUE",
    "HetJobID": "HET",
    "Name": "NAME",
}
"""Fields of `squeue --Format` and the columns they are read as; the name last, since it may hold anything."""
_SINFO = {
    "NodeList": "NODELIST",
    "StateLong": "STATE",
    "Gres": "GRES",
    "GresUsed": "GRES_USED",
    "Memory": "MEMORY",
    "CPUs": "CPUS",
}
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD"})
_UP = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED", "POWERED_DOWN", "POWERING_UP"})
_NOT_UP = frozenset({"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "REBOOT_ISSUED", "POWERING_DOWN"})
_LIMITS = (
    "Assoc",
    "QOS",
    "Partition",
    "Max",
    "JobArray",
    "Licenses",
    "Reservation",
    "ReqNodeNotAvail",
    "BadConstraints",
)
_TIMES = {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


class Slurm:
    """The jobs of one partition, of one account, or of both, through Slurm's own commands.

    timeout_s: of each command; one that takes longer counts as a lost connection.
    """

    name = "slurm"

    def __init__(self, partition: str = "", account: str = "", timeout_s: float = 10.0) -> None:
        for text in (partition, account):
            if not re.fullmatch(r"[\w.@+-]*", text):
                raise ValueError(f"{text!r} is not a name of a partition or an account")
        self.timeout_s = timeout_s
        chosen = [f"--{key}={text}" for key, text in (("partition", partition), ("account", account)) if text]
        self._squeue = ["squeue", "--noheader", "--states=all", *chosen, "--Format=" + _fields(_SQUEUE)]
        where = [f"--partition={partition}"] if partition else []
        self._sinfo = ["sinfo", "--noheader", "--Node", *where, "--Format=" + _fields(_SINFO)]
        self._last: tuple[bytes, tuple[QueuedJob, ...]] = (b"", ())

    def snapshot(self) -> QueueSnapshot:
        """Queue and nodes now; the nodes first, so that no GPU is seen free that a job in the queue holds."""
        nodes = self._run(self._sinfo)
        time_s = time.time()
        text = self._run(self._squeue)
        try:
            if text != self._last[0]:
                columns = tuple(_SQUEUE.values())
                table = read_queue(text, columns=columns, delimiter="|", name="squeue") if text else None
                self._last = text, () if table is None else _jobs(table)
            return QueueSnapshot(time_s, self._last[1], _nodes(nodes))
        except FormatError as error:
            raise ManagerError(f"squeue or sinfo: {error}") from error

    def deaf(self) -> str:
        """Why this Slurm ignores priorities, or "". Raises ManagerError."""
        config = self._run(["scontrol", "show", "config"]).decode(errors="replace")
        values = dict(re.findall(r"(?m)^(\w+)\s*= (\S*)", config))
        kinds = values.get("SchedulerType"), values.get("PriorityType")
        partitions = self._run(["scontrol", "show", "partition", "--oneliner"]).decode(errors="replace")
        tiers = set(re.findall(r"\bPriorityTier=(\d+)", partitions))
        if kinds != ("sched/builtin", "priority/basic") or len(tiers) > 1:
            return ""
        return (
            "sched/builtin with priority/basic starts jobs in order of submission, whatever their priority; "
            "use sched/backfill or priority/multifactor, or jobs submitted held with --held"
        )

    def carry_out(self, changes: Sequence[QueueChange]) -> str:
        """All changes through one `scontrol` that reads them line by line."""
        lines = [line for change in changes for line in _lines(change)]
        return self._scontrol("\n".join(lines) + "\n") if lines else ""

    def _scontrol(self, text: str) -> str:
        done = self._process(["scontrol"], text.encode())
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        if any("Unable to contact" in line for line in said):
            raise ManagerError(said[0])
        return "; ".join(dict.fromkeys(said))

    def _run(self, command: list[str]) -> bytes:
        done = self._process(command, b"")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"ended with {done.returncode}"]
            raise ManagerError(f"{command[0]}: {said[-1]}")
        return done.stdout

    def _process(self, command: list[str], text: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                command, input=text, capture_output=True, timeout=self.timeout_s, env=os.environ | _TIMES, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ManagerError(f"{command[0]}: no answer within {self.timeout_s:g} s") from error
        except OSError as error:
            raise ManagerError(f"{command[0]}: {error.strerror}") from error


def _fields(columns: dict[str, str]) -> str:
    return ",".join(f"{name}:|" if name != "Name" else "Name:256" for name in columns)


def _lines(change: QueueChange) -> list[str]:
    """What `scontrol` reads for a change."""
    job = change.job
    if change.verb is Verb.PRIORITY:
        return [f"update jobid={job} nice={change.value}"]
    if change.verb is Verb.HOLD:  # first the time, then the hold that was submitted goes
        return [f"update jobid={job} StartTime=now+{change.value}", *([f"release {job}"] if change.was else [])]
    if change.verb is Verb.RELEASE:
        return [f"update jobid={job} StartTime=now"]
    return [f"requeue {job}"]


def _phase(state: str) -> Phase:
    if state in ENDED:
        return Phase.ENDED
    return Phase.WAITING if state in _WAITING else Phase.ENDING if state in _ENDING else Phase.RUNNING


def _whole(text: str) -> int:
    return int(text) if is_index(text.removeprefix("-")) else 0


def _gpus(table: JobTable) -> list[int]:
    """GPUs of each job: of what it was given, else of what it asks for per node, job or task; 0 for none."""
    per_job = table.other["PER_JOB"].floats(lambda text: float(gres_gpus(text)[0]))
    per_task = table.other["PER_TASK"].floats(lambda text: float(gres_gpus(text)[0]))
    tasks = table.other["TASKS"].floats(lambda text: float(_whole(text)))
    asked = np.where(per_job > 0, per_job, np.where(per_task > 0, per_task * tasks, 0.0))
    return [int(gpus) for gpus in np.where(table.gpus > 0, table.gpus, asked)]


def _jobs(table: JobTable) -> tuple[QueuedJob, ...]:
    states = {state: _phase(state) for state in table.state.values}
    places = {text: expand_hosts(text) for text in table.node_list.values}
    other = {name: table.other[name].tolist() for name in ("NICE", "REQUEUE", "HET")}
    priority = np.nan_to_num(table.priority).astype(np.int64).tolist()
    columns: list[Any] = [
        table.array_id.tolist(),
        table.name,
        table.user,
        table.state,
        _gpus(table),
        table.node_list,
        table.submit_s.tolist(),
        table.eligible_s.tolist(),
        table.start_s.tolist(),
        table.end_s.tolist(),
        table.time_limit_s.tolist(),
        priority,
        table.reason,
        other["NICE"],
        other["REQUEUE"],
        other["HET"],
    ]
    jobs = []
    for row in zip(*columns, strict=True):
        job, name, user, state, gpus, nodes, submit_s, eligible_s, start_s, end_s, limit_s, rank, why, *rest = row
        nice, requeue, het = rest
        phase = states[state]
        times_s = submit_s, eligible_s, start_s, end_s, limit_s
        held, limited = rank == 0 and phase is Phase.WAITING, why.startswith(_LIMITS)
        whose = job, name.strip(), user, phase, state, gpus, places[nodes]
        jobs.append(
            QueuedJob(*whose, *times_s, rank, _whole(nice), held, limited, not _whole(het), requeue == "1", why)
        )
    return tuple(jobs)


def _nodes(text: bytes) -> tuple[QueueNode, ...]:
    """Each node once, although `sinfo` lists it for every partition."""
    rows = read_sinfo(text, columns=tuple(_SINFO.values()), name="sinfo") if text.strip() else ()
    return tuple({row.names[0]: _node(row) for row in rows if row.names and row.gpus > 0}.values())


def _node(row: NodeRow) -> QueueNode:
    up = row.state in _UP and not _NOT_UP & set(row.flags)
    used = max(row.gpus_allocated, 0)
    return QueueNode(row.names[0], row.gpus, used, up, row.cpus, max(row.memory_bytes, 0), row.gpu_type)
