"""Launchers that start the dead again, and follow a list of hosts that changes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from equipoise.live.group import hosts, launch
from equipoise.live.group.hosting import DESERTED, Eras, host_store
from equipoise.live.group.launcher import Launcher

ROOT = Path(__file__).resolve().parents[3]
FAILS_ONCE = 'echo "$RANK $EQUIPOISE_TOKEN" >> said; test -e m-$RANK && exit 0; touch m-$RANK; exit 3'
WAITS_FOR_1 = "if [ $RANK = 1 ]; then test -e m && touch n; test -e n && exit 0; touch m; exit 3; fi; "
WAITS_FOR_1 += "until [ -e n ]; do sleep 0.02; done"


def launched(script: str, ranks: int, restarts: int) -> int:
    launcher = Launcher(restarts=restarts)
    launcher.start(["sh", "-c", script], ranks)
    return launcher.wait()


def test_a_dead_worker_is_started_again_while_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert launched(WAITS_FOR_1, 2, 1) == 0
    assert capsys.readouterr().err == "equipoise: rank 1 died (exit code 3)\n"


@pytest.mark.parametrize(("restarts", "code"), [(0, 3), (1, 0)])
def test_when_all_are_dead_the_job_begins_again_where_the_old_one_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EQUIPOISE_TOKEN", "x")
    launcher = Launcher(restarts=restarts)
    launcher.start(["sh", "-c", FAILS_ONCE], 2)
    for process in launcher.processes:  # both are dead before the launcher looks for the first time
        process.wait()
    assert launcher.wait() == code
    again = ["0 x.1", "1 x.1"] * restarts
    assert sorted(Path("said").read_text().splitlines()) == sorted(["0 x", "1 x", *again])


def test_all_launchers_of_a_deserted_job_meet_in_the_same_next_era() -> None:
    server = host_store("127.0.0.1")
    first, second = Eras(server, "x"), Eras(server, "x")
    first.store.set(DESERTED, "1")
    first.next(), second.next()
    late = Eras(server, "x")  # of a pod that was replaced meanwhile
    assert first.token == second.token == late.token == "x.1"
    late.store.set(DESERTED, "1")
    assert Eras(server, "x").token == "x.2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a\nb:0\n", "hosts:2:1: 'b:0' is not HOST or HOST:RANKS with at least 1 rank"),
        ("a:x", "hosts:1:1: 'a:x' is not HOST or HOST:RANKS"),
        ("a b", "hosts:1:1: 'a b' is not"),
        ("-oProxyCommand=x", "hosts:1:1: '-oProxyCommand=x' is not"),  # no option of ssh
        ("a\n\na:2", "hosts:3:1: 'a:2' is listed twice"),
        ("# none\n", "hosts:1:1: no hosts"),
    ],
)
def test_a_list_of_hosts_that_is_none(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text(text)
    assert launch.main(["--hosts", "hosts", "train.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"equipoise: {says}")


def test_a_list_that_is_lost_stays_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "LOOK_EVERY_S", 0.0)
    (tmp_path / "hosts").write_text("a:2 # with two\nb\n")
    listed = hosts.HostList(None, f"cat {tmp_path}/hosts")
    assert listed.ranks == {"a": 2, "b": 1}
    (tmp_path / "hosts").unlink()
    assert [listed.changed(), listed.changed()] == [False, False]
    assert listed.ranks == {"a": 2, "b": 1}
    assert capsys.readouterr().err.count("the hosts are unchanged") == 1
    (tmp_path / "hosts").write_text("a:2")
    assert listed.changed()


def remote(folder: Path) -> str:
    """Stands for ssh: notes the host, and what its command line shows; the rest is done here."""
    path = folder / "remote"
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/reached; host=$1; shift; HOST=$host exec "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_ranks_follow_the_list_of_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "LOOK_EVERY_S", 0.0)
    Path("hosts").write_text("near:1\nfar:1\n")
    launcher = Launcher(remote=remote(tmp_path))
    script = 'echo "$HOST ${RANK:-joins}" >> started; until [ -e end ]; do sleep 0.02; done'
    launcher.start(["sh", "-c", script], 1, listed=hosts.HostList(Path("hosts"), None))
    codes: list[int] = []
    waits = threading.Thread(target=lambda: codes.append(launcher.wait()))
    waits.start()

    def started(count: int) -> list[str]:
        """What has started, once it is so many."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = Path("started").read_text().splitlines() if Path("started").exists() else []
            if len(lines) == count:
                return sorted(lines)
            time.sleep(0.02)
        raise AssertionError(lines)

    assert started(2) == ["far 1", "near 0"]
    Path("draft").write_text("near:1\nnew:2\n")
    Path("draft").rename("hosts")
    assert started(4)[1:] == ["near 0", "new joins", "new joins"]
    deadline = time.monotonic() + 60  # looked at again and again: a wait of the store would hold up the launcher's
    while not launcher._store.check(["leave/1"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert launcher._store.check(["leave/1"])
    assert not launcher._store.check(["leave/0"])
    Path("end").touch()
    waits.join(60)
    assert codes == [0]
    assert launcher.token not in Path("reached").read_text()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sh -c 'echo gone >&2; exit 4'", "sh -c 'echo gone >&2; exit 4': exit code 4: gone"),
        ("nobody-has-this", "--host-command 'nobody-has-this': No such file"),
        ("", "--host-command '': it is empty"),
        ("echo 'a", '--host-command "echo \'a": No closing quotation'),
        ("echo a:0", "echo a:0:1:1: 'a:0' is not HOST or HOST:RANKS with at least 1 rank"),
    ],
)
def test_a_command_that_names_no_hosts(command: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--host-command", command, "train.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"equipoise: {says}")


def test_a_command_that_does_not_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "_COMMAND_MAX_S", 0.1)
    assert launch.main(["--host-command", "sleep 600", "train.py"]) == 2
    assert capsys.readouterr().err == "equipoise: sleep 600: no output within 0.1 s\n"


NOTES = """
import os, pathlib, time
with open("started", "a") as file:
    file.write(f"{os.environ.get('HOST')} {os.environ.get('RANK', 'joins')} {os.environ['EQUIPOISE_STORE']}\\n")
if os.environ.get("RANK") == "0":
    pathlib.Path("draft").write_text("localhost:1\\nnew:1\\n")
    pathlib.Path("draft").rename("list")  # whoever looks meanwhile sees one list or the other
until = time.monotonic() + 60
while len(open("started").readlines()) < 3 and time.monotonic() < until:
    time.sleep(0.02)
"""


def test_a_command_says_where_ranks_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--host-command` on the command line: asked at the start, and again while the job runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "LOOK_EVERY_S", 0.0)
    monkeypatch.delenv("HOST", raising=False)
    Path("train.py").write_text(NOTES)
    Path("list").write_text("localhost:1\nfar:1\n")
    options = ["--host-command", "cat list", "--remote-shell", remote(tmp_path)]
    assert launch.main([*options, "train.py"]) == 0
    lines = [line.split() for line in Path("started").read_text().splitlines()]
    assert sorted(line[:2] for line in lines) == [["None", "0"], ["far", "1"], ["new", "joins"]]
    assert len({store for _, _, store in lines}) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"equipoise: store on {lines[0][2]}"
    assert said[1:] == ["equipoise: hosts now: localhost:1, new:1"]


TRAINS = """
import json, os, pathlib, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
import equipoise
from equipoise.live.group import regroup

torch.set_num_threads(1)
member = regroup.start().member
data = TensorDataset(torch.randn(640, 4), torch.randn(640, 1))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
runtime = equipoise.attach(model, optimizer, policy="none", global_batch=8, decide_every=2)
sampler = runtime.sampler(data)
seen = []
for epoch in runtime.epochs(1):
    for inputs, labels in runtime.batches(DataLoader(data, batch_sampler=sampler)):
        indices, generation = sampler.current().indices.tolist(), runtime.generation
        with runtime.recover():
            torch.nn.functional.mse_loss(model(inputs), labels).backward()
            optimizer.step()
        seen += indices if runtime.generation == generation else []
        runtime.step()
        if runtime.round == 6 and member == 0:
            pathlib.Path("draft").write_text("localhost:1\\nnew:1\\n")
            os.replace("draft", "hosts")
        while runtime.round == 8 and not pathlib.Path("changed").exists():
            time.sleep(0.05)
runtime.close()
pathlib.Path(f"seen-{member}").write_text(json.dumps(seen))
"""


@pytest.mark.long
def test_hosts_come_and_go_while_a_job_trains(tmp_path: Path) -> None:
    """One of two hosts leaves the list and another comes: every sample once, nobody dies."""
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "hosts").write_text("localhost:1\nfar:1\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "equipoise.live.group.launch", "--hosts", "hosts"]
    command += ["--remote-shell", remote(tmp_path), "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stderr is not None
        said = []
        for line in launcher.stderr:
            said.append(line)
            if "hosts now: localhost:1, new:1" in line:
                (tmp_path / "changed").touch()
        assert launcher.wait(timeout=120) == 0, said
    assert "member 1 left" in "".join(said)
    assert not any("died" in line for line in said)
    seen = [i for path in tmp_path.glob("seen-*") for i in json.loads(path.read_text())]
    assert sorted(seen) == list(range(640))
