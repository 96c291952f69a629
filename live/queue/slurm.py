"""Slurm as a queue manager: `squeue` and `sinfo` are read as text, `scontrol` does what is asked.

Text, because its columns can be named: it is the same in every version from 20.02 on, has the nice value (the JSON
of 22.05 writes it as an unsigned number, or not at all), and 10,000 jobs take a tenth of the processor time.
"""

from __future__ import annotations

import contextlib
import difflib
import math
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
from equipoise.formats.slurm.values import ENDED
from equipoise.formats.text.errors import FormatError
from equipoise.live.queue.manager import (
    ManagerError,
    NotAllowedError,
    Phase,
    QueueChange,
    QueuedJob,
    QueueNode,
    QueueSnapshot,
    Verb,
)

_SQUEUE = {
    "JobArrayID": "JOBARRAYID",
    "JobID": "JOBID",
    "Partition": "PARTITION",
    "Account": "ACCOUNT",
    "QOS": "QOS",
    "State": "STATE",
    "PriorityLong": "PRIORITY",
    "Nice": "NICE",
    "tres-alloc": "TRES_ALLOC",
    "tres-per-node": "TRES_PER_NODE",
    "tres-per-job": "TRES_PER_JOB",
    "tres-per-task": "TRES_PER_TASK",
    "tres-per-socket": "TRES_PER_SOCKET",
    "sct": "SCT",
    "NumTasks": "NUM_TASKS",
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
# SQUEUE_ARRAY_UNIQUE: its option --array-unique is unknown to 24.11, which lists the tasks that wait as one without it.
_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "SQUEUE_ARRAY_UNIQUE": "1", "LC_ALL": "C"}
_FIRST_PRIORITY = 4294901760
"""priority/basic counts down from here."""
_UNSURE_S = 60.0
_SHOWN = re.compile(r"JobId=(\d+) .*?\bNice=(-?\d+)", re.DOTALL)
_FACTORS = "%i|%Y|%A|%F|%J|%P|%Q|%S"
_DESCRIPTION = {
    "config.txt": "scontrol show config",
    "nodes.txt": "scontrol show node",
    "partitions.txt": "scontrol show partition",
    "qos.txt": "sacctmgr --parsable2 show qos",
    "assoc.txt": "sacctmgr --parsable2 show assoc",
}
_DENIED = ("Access/permission denied", "Invalid user id")


class Slurm:
    """The jobs of one partition, of one account, or of both, through Slurm's own commands.

    timeout_s: of each command; one that takes longer counts as a lost connection.
    """

    name = "slurm"

    def __init__(self, partition: str = "", account: str = "", timeout_s: float = 10.0) -> None:
        for text in (partition, account):
            if not re.fullmatch(r"[\w.@+-]*", text):
                raise ValueError(f"{text!r} is not a name of a partition or an account")
        self.partition, self.account, self.timeout_s = partition, account, timeout_s
        self._squeue = ["squeue", "--noheader", "--states=all", "--Format=" + _fields(_SQUEUE)]
        where = [f"--partition={partition}"] if partition else []
        self._sinfo = ["sinfo", "--noheader", "--Node", *where, "--Format=" + _fields(_SINFO)]
        self._last: tuple[bytes, tuple[QueuedJob, ...]] = (b"", ())
        self._settings: dict[str, str] = {}
        self._allowed = False
        self._shown: dict[int, int] = {}  # nice by job, as it was shown right before our change
        self._made: list[tuple[float, QueueChange, QueuedJob]] = []  # (time, change of nice, job before it)

    def snapshot(self) -> QueueSnapshot:
        """Queue and nodes now; the nodes first, so that no GPU is seen free that a job in the queue holds."""
        nodes = self._run(self._sinfo)
        time_s = time.time()
        self._renew_holds(self._jobs())
        try:
            return QueueSnapshot(time_s, self._last[1], _nodes(nodes))
        except FormatError as error:
            raise ManagerError(f"sinfo: {error}") from error

    def _jobs(self) -> tuple[QueuedJob, ...]:
        text = self._run(self._squeue)
        try:
            if text != self._last[0]:
                columns = tuple(_SQUEUE.values())
                table = read_queue(text, columns=columns, delimiter="|", name="squeue") if text else None
                jobs = () if table is None else _jobs(table, self.partition, self.account)
                self._last = text, jobs
        except FormatError as error:
            raise ManagerError(f"squeue: {error}") from error
        return self._last[1]

    def settings(self) -> dict[str, str]:
        """Slurm's configuration by key. Raises ManagerError."""
        if not self._settings:
            config = self._run(["scontrol", "show", "config"]).decode(errors="replace")
            self._settings = dict(re.findall(r"(?m)^(\w+)\s*= (\S*)", config))
        return self._settings

    def cluster(self) -> str:
        """Name and port of the cluster. Raises ManagerError."""
        return "-".join(self.settings().get(key, "") for key in ("ClusterName", "SlurmctldPort"))

    def describe(self) -> dict[str, bytes]:
        """Configuration, nodes, partitions, QOS and accounts as Slurm prints them, by file name, as far as it does."""
        found = {}
        for name, command in _DESCRIPTION.items():
            with contextlib.suppress(ManagerError):
                found[name] = self._run(command.split())
        return found

    def unusable(self, *, act: bool) -> str:
        """Why this Slurm cannot be scheduled so, or "". Raises ManagerError."""
        partitions = self._run(["scontrol", "show", "partition", "--oneliner"]).decode(errors="replace")
        names = re.findall(r"(?m)^PartitionName=(\S+)", partitions)
        if self.partition and self.partition not in names:
            close = difflib.get_close_matches(self.partition, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
            return f"--partition: {self.partition!r} is not a partition of this cluster; {hint}"
        kinds = self.settings().get("SchedulerType"), self.settings().get("PriorityType")
        tiers = set(re.findall(r"\bPriorityTier=(\d+)", partitions))
        if not act or kinds != ("sched/builtin", "priority/basic") or len(tiers) > 1:
            return ""
        return (
            "sched/builtin with priority/basic starts jobs in order of submission, whatever their priority; "
            "use sched/backfill or priority/multifactor"
        )

    def set_directly(self) -> frozenset[int]:
        """Waiting jobs whose priority somebody has set to a number. Raises ManagerError.

        priority/multifactor shows no factors for them, priority/basic numbers that it does not give by itself.
        """
        if self._is_basic():
            usual = range(_FIRST_PRIORITY - 2**31, _FIRST_PRIORITY + 1)
            waiting = (job for job in self._last[1] if job.phase is Phase.WAITING and job.priority)
            return frozenset(job.id for job in waiting if job.priority + job.nice not in usual)
        found, niced = set(), {job.id for job in self._last[1] if job.nice}  # setting a priority takes the nice
        for line in self._run(["sprio", "--noheader", f"--format={_FACTORS}"]).decode(errors="replace").splitlines():
            job, priority, *factors = (_whole(cell.strip()) for cell in line.split("|"))
            if priority > 1 and not any(factors) and job not in niced:
                found.add(job)
        return frozenset(found)

    def _is_basic(self) -> bool:
        return self.settings().get("PriorityType") == "priority/basic"

    def carry_out(self, changes: Sequence[QueueChange]) -> str:
        """All changes that still apply, through one `scontrol` that reads them line by line."""
        if not changes:
            return ""
        self._shown.clear()
        jobs = {job.id: job for job in self._jobs()}
        lines = []
        for change in changes:
            job = jobs.get(change.job)
            if job is None:
                continue
            if change.verb is Verb.RESTORE and job.held and self._is_basic():
                lines += _past_hold(change, job)
            elif change.verb is not Verb.PRIORITY or (not job.held and job.nice == change.was):
                lines += [f"show job {job.id}"] * (change.verb is Verb.PRIORITY and not job.array) + _lines(change, job)
                if change.verb in (Verb.PRIORITY, Verb.RESTORE) and not job.held and self._is_basic():
                    self._made.append((time.monotonic(), change._replace(was=job.nice), job))
        said = ""
        if lines and not self._allowed:  # try one that needs the rights, before any that could not be taken back
            first = next((k for k, line in enumerate(lines) if "nice=-" in line), len(lines) - 1)
            said = self._scontrol(lines[first] + "\n")
            del lines[first]
            self._allowed = True
        if lines:
            said = "; ".join(filter(None, [said, self._scontrol("\n".join(lines) + "\n")]))
        # A nice that its user set after the look above is what Slurm showed right before ours: it gets it back.
        theirs = [
            c for c in changes if c.verb is Verb.PRIORITY and self._shown.get(c.job, c.was) not in (c.was, c.value)
        ]
        if theirs:
            self._scontrol("".join(f"update jobid={c.job} nice={self._shown[c.job]}\n" for c in theirs))
        if self._made:
            self._renew_holds(self._jobs())
        return said

    def _renew_holds(self, jobs: Sequence[QueuedJob]) -> None:
        """Hold again what was held between a look and our change of its nice.

        priority/basic takes nice from a held job's priority of 0, too, which frees it (22.05.8): such a job has a
        priority that no other has.
        """
        now_s = time.monotonic()
        self._made = [made for made in self._made if made[0] > now_s - _UNSURE_S]
        lines = []
        for _, change, before in self._made:
            freed = max(change.was - change.value, 2)
            for job in jobs if before.priority != freed else ():
                same = job.id == before.id or (job.array and job.array == before.array)
                if same and job.phase is Phase.WAITING and job.nice == change.value and job.priority == freed:
                    lines.append(f"uhold {job.ref}")
        if lines:
            self._scontrol("\n".join(dict.fromkeys(lines)) + "\n")
            self._jobs()

    def _scontrol(self, text: str) -> str:
        done = self._process(["scontrol"], text.encode())
        self._shown |= {int(job): int(nice) for job, nice in _SHOWN.findall(done.stdout.decode(errors="replace"))}
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        if any("Unable to contact" in line for line in said):
            raise ManagerError(said[0])
        if denied := next((line for line in said if line.startswith(_DENIED)), ""):
            raise NotAllowedError(
                f"scontrol: {denied}; --mode act needs the rights of a Slurm operator "
                "(sacctmgr modify user NAME set adminlevel=operator)"
            )
        return "; ".join(dict.fromkeys(said))

    def _run(self, command: list[str]) -> bytes:
        done = self._process(command, b"")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"ended with {done.returncode}"]
            raise ManagerError(f"{command[0]}: {said[-1]}")
        return done.stdout

    def _process(self, command: list[str], text: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            env, limit_s = os.environ | _ENVIRONMENT, self.timeout_s
            return subprocess.run(command, input=text, capture_output=True, timeout=limit_s, env=env, check=False)
        except subprocess.TimeoutExpired as error:
            raise ManagerError(f"{command[0]}: no answer within {self.timeout_s:g} s") from error
        except OSError as error:
            raise ManagerError(f"{command[0]}: {error.strerror}") from error


def _fields(columns: dict[str, str]) -> str:
    return ",".join(f"{name}:|" if name != "Name" else "Name:256" for name in columns)


def _lines(change: QueueChange, job: QueuedJob) -> list[str]:
    """What `scontrol` reads for a change."""
    ref = job.ref or str(job.id)
    if change.verb in (Verb.PRIORITY, Verb.RESTORE):
        return [f"update jobid={ref} nice={change.value}"]
    if change.verb is Verb.RELEASE:
        return [f"update jobid={ref} StartTime=now"]
    return [f"requeue {ref}"]


def _past_hold(change: QueueChange, job: QueuedJob) -> list[str]:
    """Lines that give a held job its nice where that frees it: its start is put off until it is held again."""
    begin_s = job.eligible_s if job.eligible_s > time.time() else math.nan
    begin = "now" if math.isnan(begin_s) else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin_s))
    return [
        f"update jobid={job.ref} StartTime=now+3600",
        *_lines(change, job),
        f"{'hold' if job.reason == 'JobHeldAdmin' else 'uhold'} {job.ref}",
        f"update jobid={job.ref} StartTime={begin}",
    ]


def _phase(state: str) -> Phase:
    if state in ENDED:
        return Phase.ENDED
    return Phase.WAITING if state in _WAITING else Phase.ENDING if state in _ENDING else Phase.RUNNING


def _whole(text: str) -> int:
    return int(text) if is_index(text.removeprefix("-")) else 0


def _jobs(table: JobTable, partition: str, account: str) -> tuple[QueuedJob, ...]:
    states = {state: _phase(state) for state in table.state.values}
    places = {text: expand_hosts(text) for text in table.node_list.values}
    other = {name: table.other[name].tolist() for name in ("NICE", "REQUEUE", "HET", "JOBID")}
    priority = np.nan_to_num(table.priority).astype(np.int64).tolist()
    columns: list[Any] = [
        other["JOBID"],
        table.name,
        table.user,
        table.state,
        np.maximum(table.gpus, 0).tolist(),
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
        table.partition,
        table.account,
        table.qos,
        table.job_id,
        table.array_id.tolist(),
    ]
    jobs = []
    for row in zip(*columns, strict=True):
        job, name, user, state, gpus, nodes, submit_s, eligible_s, start_s, end_s, limit_s, rank, why, *rest = row
        nice, requeue, het, where, charged, qos, shown, array = rest
        phase = states[state]
        times_s = submit_s, eligible_s, start_s, end_s, limit_s
        held, limited = rank == 0 and phase is Phase.WAITING, why.startswith(_LIMITS)
        whose = _whole(job), name.strip(), user, phase, state, gpus, places[nodes]
        mine = partition in ("", *where.split(",")) and account in ("", charged)
        ref = re.sub(r"%\d+", "", shown)  # scontrol knows no limit of tasks
        known = rank, _whole(nice), held, limited, mine and not _whole(het), requeue == "1", why, where, qos
        jobs.append(QueuedJob._make((*whose, *times_s, *known, ref, array if "_" in shown else 0, charged)))
    return tuple(jobs)


def _nodes(text: bytes) -> tuple[QueueNode, ...]:
    """Each node once, although `sinfo` lists it for every partition."""
    rows = read_sinfo(text, columns=tuple(_SINFO.values()), name="sinfo") if text.strip() else ()
    return tuple({row.names[0]: _node(row) for row in rows if row.names and row.gpus > 0}.values())


def _node(row: NodeRow) -> QueueNode:
    up = row.state in _UP and not _NOT_UP & set(row.flags)
    used = max(row.gpus_allocated, 0)
    return QueueNode(row.names[0], row.gpus, used, up, row.cpus, max(row.memory_bytes, 0), row.gpu_type)
