"""A real Slurm on this machine, in a temporary folder: one node, eight GPUs that are empty files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "munged")

_CONF = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={slurmd_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType={scheduler}
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PriorityType={priority}
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
NodeName={host} CPUs=64 RealMemory=20000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:64
PartitionName=other Nodes=ALL PriorityTier={tier} MaxTime=INFINITE State=UP OverSubscribe=FORCE:64
"""


def why_not() -> str:
    """Why there can be no real Slurm here, "" where there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"{missing[0]} is not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class RealSlurm:
    """Starts munged, slurmctld and slurmd with what they write in `folder`; `stop` ends these three."""

    def __init__(
        self, folder: Path, scheduler: str = "sched/builtin", priority: str = "priority/basic", tier: int = 2
    ) -> None:
        """tier: of a second partition; equal to the first's (1), sched/builtin does not look at priorities."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        port, slurmd_port = _free_ports()
        text = _CONF.format(
            folder=folder,
            host=host,
            port=port,
            slurmd_port=slurmd_port,
            user="root",
            scheduler=scheduler,
            priority=priority,
            tier=tier,
        )
        (folder / "slurm.conf").write_text(text)
        for gpu in range(8):
            (folder / f"gpu{gpu}").touch()
        (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-7]\n")
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        try:
            self._munge()
            self.start_controller()
            subprocess.run(["slurmd"], env=self.env, check=True, timeout=30)
            self.wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), 30.0, "the node is idle")
        except BaseException:
            self.stop()
            raise

    def _munge(self) -> None:
        """Its own key and socket, so that a munge of the machine is left alone."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.folder.chmod(0o755)
        command = [
            "munged",
            "--force",
            f"--key-file={key}",
            f"--socket={self.folder}/munge.sock",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munge.seed",
            "--num-threads=2",
        ]
        subprocess.run(command, env=self.env, check=True, timeout=30, capture_output=True)

    def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        subprocess.run(["slurmctld"], env=self.env, check=True, timeout=30)
        self.wait_for(lambda: "is UP" in self.run("scontrol", "ping"), 30.0, "slurmctld answers")

    def kill(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one of the programs and wait until it is gone."""
        pid = self._pid(name)
        if pid:
            os.kill(pid, number)
            self.wait_for(lambda: not Path(f"/proc/{pid}").exists(), 30.0, f"{name} has ended")

    def _pid(self, name: str) -> int:
        try:
            return int((self.folder / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return 0

    def stop(self) -> None:
        """End all jobs, then the three programs, at once: each of them takes seconds."""
        self.run("scancel", "--state=PENDING", "--partition=main,other")
        self.run("scancel", "--partition=main,other")
        pids = [pid for name in ("slurmd", "slurmctld", "munged") if (pid := self._pid(name))]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30.0, "all three have ended")

    def run(self, *command: str, check: bool = False) -> str:
        """What a command says on stdout."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=check, timeout=60, cwd=self.folder
        )
        return done.stdout

    def submit(self, until: float | Path, gpus: int, name: str, *options: str) -> int:
        """A job that sleeps so many seconds, or until a file is there; returns its id."""
        waits = f"until [ -e {until} ]; do sleep 0.1; done" if isinstance(until, Path) else f"exec sleep {until}"
        out = self.run(
            "sbatch",
            "--parsable",
            f"--gres=gpu:{gpus}",
            f"--job-name={name}",
            "--output=/dev/null",
            *options,
            "--wrap",
            waits,
            check=True,
        )
        return int(out.split(";")[0])

    def jobs(self) -> dict[int, dict[str, str]]:
        """Every job that Slurm remembers, by id: state, priority, nice, reason, submit, start and end."""
        fields = ("JobID", "State", "PriorityLong", "Nice", "Reason", "SubmitTime", "StartTime", "EndTime", "Name")
        form = ",".join(f"{name}:|" for name in fields)
        text = self.run("env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-t", "all", "-O", form)
        rows = (dict(zip(fields, line.split("|"), strict=False)) for line in text.splitlines())
        return {int(row["JobID"]): row for row in rows}

    @staticmethod
    def wait_for(true: object, limit_s: float, what: str) -> None:
        """Wait until `true()` is; raises TimeoutError."""
        end_s = time.monotonic() + limit_s
        while not true():  # type: ignore[operator]
            if time.monotonic() > end_s:
                raise TimeoutError(f"not within {limit_s:g} s: {what}")
            time.sleep(0.1)


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on now."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("", 0))
        two.bind(("", 0))
        return one.getsockname()[1], two.getsockname()[1]
