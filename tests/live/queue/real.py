"""A real Slurm on this machine, in a temporary folder: nodes on one host, GPUs that are empty files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "munged")

_CONF = """\
ClusterName=test
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={socket}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType={scheduler}
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=5,bf_continue,bf_resolution=1
PriorityType={priority}
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
{more}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:64 {billing}
PartitionName=other Nodes=ALL PriorityTier={tier} MaxTime=INFINITE State=UP OverSubscribe=FORCE:64 {billing}
"""


_ACCOUNTS = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
PriorityWeightAge=1000
PriorityMaxAge=0-1
PriorityWeightQOS=10000
PriorityWeightFairshare=2000
PriorityDecayHalfLife=0-1
PriorityCalcPeriod=1
"""
_DATABASE = """\
AuthType=auth/munge
DbdHost=localhost
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StoragePort={sql}
StorageUser=slurm
StoragePass=x
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""
_SOCKET = Path("/run/munge/munge.socket.2")
USERS = ("nobody", "daemon", "bin", "sys")


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
        self,
        folder: Path,
        scheduler: str = "sched/builtin",
        priority: str = "priority/basic",
        tier: int = 2,
        nodes: Mapping[str, int] | None = None,
        more: str = "",
        accounts: str | None = None,
    ) -> None:
        """tier: of a second partition; equal to the first's (1), sched/builtin does not look at priorities.

        nodes: GPUs by name, else one node of eight; more: further lines of slurm.conf. accounts: with slurmdbd, USERS
        in two accounts, QOS urgent before normal, and this limit (TRES) of each user in normal.
        """
        self.nodes = nodes or {socket.gethostname().split(".")[0]: 8}
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        port, self._sql, self._dbd, *ports = _free_ports(3 + len(self.nodes))
        self._started: list[subprocess.Popen[bytes]] = []
        storage = (
            _ACCOUNTS.format(port=self._dbd)
            if accounts is not None
            else "AccountingStorageType=accounting_storage/none"
        )
        text = _CONF.format(
            folder=folder,
            host=host,
            port=port,
            more="\n".join(
                [more, storage]
                + [
                    f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} CPUs=64 RealMemory=20000 "
                    f"Gres=gpu:{gpus} State=UNKNOWN"
                    for (name, gpus), own in zip(self.nodes.items(), ports, strict=True)
                ]
            ),
            user="root",
            socket=folder / "munge.sock" if accounts is None else _SOCKET,
            scheduler=scheduler,
            priority=priority,
            tier=tier,
            billing="" if accounts is None else "TRESBillingWeights=CPU=0,GRES/gpu=1",  # usage is GPU time
        )
        (folder / "slurm.conf").write_text(text)
        gres = ""
        for name, gpus in self.nodes.items():
            for gpu in range(gpus):
                (folder / f"{name}-gpu{gpu}").touch()
            gres += f"NodeName={name} Name=gpu File={folder}/{name}-gpu[0-{gpus - 1}]\n"
        (folder / "gres.conf").write_text(gres)
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
        try:
            if accounts is None:
                self._munge()
            else:
                self._database()
            self.start_controller()
            if accounts:
                self._succeeds("sacctmgr", "-i", "modify", "qos", "normal", "set", f"maxtresperuser={accounts}")
            for name in self.nodes:
                subprocess.run(["slurmd", "-N", name], env=self.env, check=True, timeout=30)
            self.wait_for(lambda: set(self.run("sinfo", "-h", "-o", "%T").split()) == {"idle"}, 60.0, "nodes are idle")
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

    def _database(self) -> None:
        """MariaDB and slurmdbd, with the accounts."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as munge:  # slurmdbd knows no other
            if munge.connect_ex(str(_SOCKET)):
                subprocess.run(["runuser", "-u", "munge", "--", "munged", "--force"], env=self.env, check=True)
        folder, data, sock = self.folder, self.folder / "db", self.folder / "sql.sock"
        install = ["mariadb-install-db", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal"]
        subprocess.run(install, check=True, capture_output=True)
        server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={sock}"]
        self._started.append(subprocess.Popen([*server, f"--port={self._sql}"], stderr=subprocess.DEVNULL))
        grant = "create user slurm@localhost identified by 'x'; grant all on *.* to slurm@localhost"
        self._succeeds("mariadb", "-S", str(sock), "-e", grant)
        conf = folder / "slurmdbd.conf"
        conf.write_text(_DATABASE.format(folder=folder, port=self._dbd, sql=self._sql))
        conf.chmod(0o600)
        env = self.env | {"MYSQL_UNIX_PORT": str(sock)}
        self._started.append(subprocess.Popen(["slurmdbd", "-D"], env=env, stderr=subprocess.DEVNULL))
        self._succeeds("sacctmgr", "-i", "add", "cluster", "test")
        self._succeeds("sacctmgr", "-i", "add", "account", "a,b", "cluster=test")
        self._succeeds("sacctmgr", "-i", "add", "qos", "urgent", "priority=1000")
        for k, user in enumerate(USERS):
            qos = ("cluster=test", "qos=normal,urgent", "defaultqos=normal")
            self._succeeds("sacctmgr", "-i", "add", "user", user, f"account={'ab'[k // 2]}", *qos)

    def _succeeds(self, *command: str) -> None:
        def done() -> bool:
            """Whether the command ends with 0."""
            return subprocess.run(command, env=self.env, capture_output=True, timeout=60).returncode == 0

        self.wait_for(done, 60.0, " ".join(command))

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
        daemons = [*(f"slurmd-{name}" for name in self.nodes), "slurmctld", "munged"]
        pids = [pid for name in daemons if (pid := self._pid(name))]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30.0, "all three have ended")
        for process in reversed(self._started):
            process.terminate()
            process.wait(60)

    def run(self, *command: str, check: bool = False) -> str:
        """What a command says on stdout."""
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=check, timeout=60, cwd=self.folder
        )
        return done.stdout

    def submit(self, until: float | str | Path, gpus: int, name: str, *options: str, by: str = "--gres") -> int:
        """A job that sleeps so many seconds, or until a file is there; returns its id."""
        waits = f"until [ -e {until} ]; do sleep 0.1; done" if isinstance(until, Path) else f"exec sleep {until}"
        out = self.run(
            "sbatch",
            "--parsable",
            f"{by}={'gpu:' if by == '--gres' else ''}{gpus}",
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
        fields = (
            "JobID",
            "State",
            "PriorityLong",
            "Nice",
            "Reason",
            "SubmitTime",
            "StartTime",
            "EndTime",
            "QOS",
            "Name",
        )
        form = ",".join(f"{name}:|" for name in fields)
        env = ("env", "SLURM_TIME_FORMAT=%s", "SQUEUE_ARRAY_UNIQUE=1")  # 24.11 knows neither this nor its option
        text = self.run(*env, "squeue", "-h", "-t", "all", "-O", form)
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


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]
