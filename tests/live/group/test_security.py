"""Who may reach a job, and what they can do to it: every line of SECURITY.md."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from equipoise.base import metrics_server  # noqa: E402
from equipoise.live.group import admission as doormen  # noqa: E402
from equipoise.live.group import launch  # noqa: E402
from equipoise.live.group.admission import AdmissionLog, strange_keys  # noqa: E402
from equipoise.live.group.hosting import host_store, job_store, of_job, reach_store  # noqa: E402
from equipoise.live.group.packing import pack, unpack  # noqa: E402
from equipoise.live.group.rebuild import share_states  # noqa: E402
from equipoise.live.group.sockets import unanswered  # noqa: E402
from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.group.test_regroup import exactly_once, train  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def listening_on(port: int) -> set[str]:
    """The addresses, as the kernel writes them, on which this machine listens at that port."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {address for address, number in local if int(number, 16) == port}


LONG_KEY = b"\x00\xce\xf7\x85\x3c" + b"\x09" + b"\xff" * 7 + b"\x7f"
"""What PyTorch's clients begin with, and then a key of 2**63 bytes."""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux only")
def test_a_store_listens_on_the_host_that_it_prints_and_nowhere_else() -> None:
    launcher = launch.Launcher()
    assert listening_on(int(launcher.address.rpartition(":")[2])) == {"0100007F"}
    command = [sys.executable, "-m", "equipoise.live.group.store", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        port = int(said.removeprefix("equipoise: store on 127.0.0.1:"))
        assert listening_on(port) == {"0100007F"}
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
            stranger.sendall(LONG_KEY)
            assert stranger.recv(1) == b""  # hung up on
        process.terminate()
        assert process.communicate()[1] == ""
    with pytest.raises(OSError, match="assign requested address"):
        host_store("192.0.2.1")  # nobody's, by RFC 5737


GARBAGE = (b"", b"\x00" * 64, b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n", pickle.dumps(print))
CONNECTIONS = 300


@pytest.mark.parametrize(("connections", "letters"), [(5, 20), pytest.param(300, 60, marks=pytest.mark.long)])
def test_a_stranger_without_the_token_does_not_stop_training(tmp_path: Path, connections: int, letters: int) -> None:
    """It writes all keys that would end the members, or the training, for those who know the token.

    It also holds connections open, each of which PyTorch's store gives 0.1 s before its next, and sends garbage.
    """
    job = live_ranks.Ranks(train, 2, str(tmp_path), {}, 1, -2, -1)
    where = ("127.0.0.1", job._server.port)
    silent = [socket.create_connection(where, timeout=60) for _ in range(connections)]
    for token in ("", "another"):
        stranger = of_job(job._server, token)
        for key in ("dead/0", "dead/1", "done", *(f"ask/{attempt}" for attempt in range(9))):
            stranger.set(key, "1")
    for number in range(letters):
        with socket.create_connection(where, timeout=60) as other, contextlib.suppress(OSError):
            other.sendall(GARBAGE[number % len(GARBAGE)])
    results = job.join()
    exactly_once([result["log"] for result in results])
    assert [(result["generation"], result["members"]) for result in results] == [(0, [0, 1])] * 2
    for connection in silent:
        connection.close()


def test_who_joins_needs_the_token_which_only_its_owner_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EQUIPOISE_TOKEN", raising=False)
    script, secret = tmp_path / "shows.py", tmp_path / "token"
    script.write_text("import os; print(os.environ['EQUIPOISE_TOKEN'])")
    with pytest.raises(SystemExit) as stop:
        launch.main(["--join", "127.0.0.1:1", str(script)])
    assert stop.value.code == 2
    assert "--join: needs the job's token, by --token-file or EQUIPOISE_TOKEN" in capfd.readouterr().err
    secret.write_text("of another job")
    assert launch.main(["--token-file", str(secret), str(script)]) == 0
    out, err = capfd.readouterr()
    token = secret.read_text().strip()
    assert (len(token), out.strip()) == (32, token)
    assert token not in err
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    server = host_store("127.0.0.1")
    assert launch.main(["--join", f"127.0.0.1:{server.port}", "--token-file", str(secret), str(script)]) == 0
    assert capfd.readouterr().out.strip() == token


class Harm:
    """Its pickle runs a command of its sender's when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)

    def state_dict(self) -> Any:
        """Itself."""
        return {"state": self}

    def load_state_dict(self, state: Any) -> None:
        """Whatever."""


def harm(rank: int, folder: str) -> str:
    """Rank 0 sends what would harm, as an object and then as bytes of a pickle."""
    dist.init_process_group("gloo")
    device, owner = torch.device("cpu"), {"harm": Harm(f"{folder}/harmed")}
    if rank == 0:
        with contextlib.suppress(TypeError):
            share_states(owner, owner, device)
        raw = torch.frombuffer(bytearray(pickle.dumps(owner["harm"])), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(raw)]), src=0)
        dist.broadcast(raw, src=0)
        return ""
    try:
        share_states(owner, owner, device)
    except ValueError as error:
        return str(error)
    return "read"


def test_what_a_peer_sends_is_not_run(tmp_path: Path) -> None:
    said = live_ranks.run(harm, 2, str(tmp_path))[1]
    assert said not in ("", "read")
    assert not (tmp_path / "harmed").exists()


def test_state_dicts_travel_as_they_are() -> None:
    net = torch.nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3).bfloat16()).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 5])
    odd = {"empty": torch.empty(0, 3), "bool": torch.tensor(True), "complex": torch.tensor([1 + 2j])}
    whole = [optimizer.state_dict(), schedule.state_dict(), odd, (float("inf"), None, {1, 2})]
    found = unpack(pack(whole))
    torch.testing.assert_close(found[0], whole[0], rtol=0, atol=0)
    assert found[1] == schedule.state_dict()
    assert type(found[1]["milestones"]) is type(schedule.state_dict()["milestones"])
    torch.testing.assert_close(found[2], odd, rtol=0, atol=0)
    assert found[3] == whole[3]
    with pytest.raises(TypeError, match=r"^\['a'\]\[0\]: a Harm is not allowed in a state dict"):
        pack({"a": [Harm("")]})


@pytest.mark.parametrize(
    "content", [b"", b"x" * 20, pack({"a": 1}) + b"1", pack(torch.ones(3))[:-1], pack([1]).replace(b"list", b"exec")]
)
def test_bytes_that_are_no_state_dict_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack(content)


def test_metrics_are_for_this_machine_and_a_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", None)
    server = metrics_server.MetricsServer("127.0.0.1", 0)
    handle = server._server.finish_request

    def counted(*arguments: Any) -> None:
        taken.release()
        handle(*arguments)

    taken = threading.Semaphore(0)
    monkeypatch.setattr(server._server, "finish_request", counted)
    where = ("127.0.0.1", server.port)
    try:
        assert listening_on(server.port) == {"0100007F"}
        silent = [socket.create_connection(where) for _ in range(metrics_server.CONNECTIONS_MAX)]
        for _ in silent:
            assert taken.acquire(timeout=60)
        with socket.create_connection(where, timeout=60) as further:
            assert further.recv(1) == b""  # hung up on
        for connection in silent:
            connection.close()
        assert server._server._free.acquire(timeout=60)  # one of them is done
        server._server._free.release()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
            assert answer.status == 200
    finally:
        server.close()


def test_a_silent_connection_to_the_metrics_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics_server.SILENCE_MAX_S == 5.0
    monkeypatch.setattr(metrics_server._QuietHandler, "timeout", 0.05)
    server = metrics_server.MetricsServer("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
            assert silent.recv(1) == b""
    finally:
        server.close()


def test_groups_that_a_script_forms_itself_are_no_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in told.items() | {("TORCHELASTIC_USE_AGENT_STORE", "True")}:  # as the launcher does
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo")
    try:
        dist.new_group([0], backend="gloo")
        dist.barrier()
        assert server.num_keys() > 1
        assert strange_keys(server.list_keys(), "secret") == []
    finally:
        dist.destroy_process_group()


def test_the_host_says_in_one_line_what_it_refuses(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = host_store("127.0.0.1")
    of_job(server, "secret.1").set("dead/0", "1")
    with monkeypatch.context() as patched:  # it looks when it is told to, not in between
        patched.setattr(threading.Thread, "start", lambda thread: None)
        doorman = AdmissionLog(server, "secret", lambda: 2)
    doorman.look(server)
    assert capfd.readouterr().err == ""
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS)]
    for token in ("", "another"):
        for key in ("dead/0", "dead/1", "done", "ask/0"):
            of_job(server, token).set(key, "1")
    server.set("done", "1")
    for _ in range(3):
        doorman.look(server)
    connections, keys = sorted(capfd.readouterr().err.splitlines())
    assert keys == ("equipoise: store: 9 keys written without the job's token, ignored, e.g. 'done'")
    assert re.fullmatch(
        r"equipoise: store: 30\d connections more than the job's members need; the job continues", connections
    )
    for connection in silent:
        connection.close()


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux only")
def test_a_connection_that_sends_garbage_is_closed_and_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = host_store("127.0.0.1")
    member, idle = reach_store("127.0.0.1", server.port), socket.create_connection(("127.0.0.1", server.port))
    strangers = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in GARBAGE[1:]]
    for stranger, content in zip(strangers, GARBAGE[1:], strict=True):
        stranger.sendall(content)
    limit_s = time.monotonic() + 60.0
    while len(unanswered(server.port)) < len(strangers):
        assert time.monotonic() < limit_s
        time.sleep(0.001)
    monkeypatch.setattr(AdmissionLog, "_run", lambda _: None)  # no looks but those of this test
    doorman = AdmissionLog(server, None)
    doorman.look(server)
    assert capfd.readouterr().err == ""  # a busy store has some time to answer
    monkeypatch.setattr(doormen, "_UNANSWERED_S", 0.0)
    for _ in range(2):
        doorman.look(server)
    assert capfd.readouterr().err == (
        "equipoise: store: 4 connections with invalid data, closed, e.g. from 127.0.0.1\n"
    )
    for stranger in strangers:
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    member.set("k", "v")
    assert member.get("k") == b"v"
    idle.setblocking(False)
    with pytest.raises(BlockingIOError):
        idle.recv(1)


def test_who_reaches_the_store_can_list_its_keys() -> None:
    server = host_store("127.0.0.1")
    of_job(server, "secret").set("k", "v")
    stranger = reach_store("127.0.0.1", server.port)
    if not hasattr(stranger, "list_keys"):
        pytest.skip("PyTorch's store got this later")
    assert stranger.list_keys() == ["equipoise/secret/k"]


def test_without_a_launcher_of_ours_a_token_is_used_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    server = host_store("127.0.0.1")
    for name in ("EQUIPOISE_STORE", "EQUIPOISE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    job_store().set("k", "without")
    monkeypatch.setenv("EQUIPOISE_TOKEN", "secret")
    job_store().set("k", "with")
    assert (server.get("equipoise/k"), server.get("equipoise/secret/k")) == (b"without", b"with")
    monkeypatch.delenv("EQUIPOISE_TOKEN")
    monkeypatch.setenv("EQUIPOISE_STORE", f"127.0.0.1:{server.port}")
    with pytest.raises(KeyError, match="EQUIPOISE_TOKEN"):
        job_store()


def test_sockets_without_a_port_are_passed_over() -> None:
    mine, other = socket.socketpair()  # in the file system's family on Linux
    with mine, other:
        other.sendall(b"x")
        assert unanswered(1) == {}
