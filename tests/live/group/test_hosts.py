"""Where ranks may be started, how they are, and where each says that it is."""

from __future__ import annotations

import math
import os
import shlex
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group import hosts, places  # noqa: E402
from equipoise.live.group.hosts import HostList, is_here, parse_hosts, start  # noqa: E402


def test_a_host_may_be_named_in_any_line_with_any_number_of_ranks() -> None:
    assert parse_hosts("a:3\nb#:7\n\nh-1:12", "x") == {"a": 3, "b": 1, "h-1": 12}
    assert parse_hosts("a:", "x") == {"a": 1}


def test_this_machine_has_three_names() -> None:
    assert [is_here(name) for name in ("localhost", "127.0.0.1", socket.gethostname())] == [True] * 3
    assert not is_here("elsewhere-" + socket.gethostname())


# -- a command that prints hosts ------------------------------------------------------------------------------


def printing(monkeypatch: pytest.MonkeyPatch, *said: Any) -> list[Any]:
    """Commands print these in turn; returns how they were run."""
    asked, left = list[Any](), iter(said)

    def run(words: list[str], **how: Any) -> Any:
        """Print the next."""
        asked.append((words, how))
        one = next(left)
        if isinstance(one, Exception):
            raise one
        code, out, err = one
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    real = hosts.subprocess
    monkeypatch.setattr(
        hosts, "subprocess", SimpleNamespace(run=run, TimeoutExpired=real.TimeoutExpired, Popen=real.Popen)
    )
    return asked


def test_a_command_prints_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = printing(monkeypatch, (0, "a:2\nb\n", "not read"))
    assert HostList(None, "list 'all of them'").ranks == {"a": 2, "b": 1}
    assert asked == [(["list", "all of them"], {"capture_output": True, "text": True, "timeout": 20.0})]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((3, "a\n", "first\nsecond\nlast \n"), r"^list it: exit code 3: last$"),
        ((-9, "a\n", ""), r"^list it: exit code -9$"),
        ((0, "a:0\n", ""), r"^list it:1:1: 'a:0' is not HOST"),
        (FileNotFoundError(2, "gone"), r"^--host-command 'list it': gone; needed: a command that prints hosts"),
    ],
)
def test_a_command_that_prints_none_is_refused(said: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printing(monkeypatch, said)
    with pytest.raises(ValueError, match=why):
        HostList(None, "list it")


def test_a_command_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    printing(monkeypatch, hosts.subprocess.TimeoutExpired("list", 20.0))
    with pytest.raises(ValueError, match=r"^list it: no output within 20 s$"):
        HostList(None, "list it")


def test_hosts_stay_while_their_list_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same trouble is told once, and what comes back is news."""
    clock, file = SimpleNamespace(now_s=5.0), tmp_path / "hosts"
    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    file.write_text("a:3\n")
    listed, found = HostList(file, None), []
    file.unlink()
    for clock.now_s in (7.0, 8.5, 9.0, 10.5):
        found.append((listed.changed(), listed.ranks))
    file.write_text("a:4\n")
    for clock.now_s in (10.9, 11.0, 12.9, 13.0):
        found.append((listed.changed(), listed.ranks))
    old, new = {"a": 3}, {"a": 4}
    assert found == [(False, old)] * 5 + [(True, new), (False, new), (False, new)]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].endswith("the hosts are unchanged")


# -- starting ranks ------------------------------------------------------------------------------------------


def test_a_rank_is_started_here_with_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(hosts.subprocess, "Popen", lambda *words, **how: asked.append((words, how)))
    start(("python", "-m", "x"), {"A": "1", "B": "2"}, {"B": "0", "C": "3"}, ())
    assert asked == [((["python", "-m", "x"],), {"env": {"A": "1", "B": "2", "C": "3"}})]


def test_a_rank_elsewhere_is_told_what_it_is_on_its_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this folder, with every value quoted; nothing of it is in the words of the command."""
    asked, told = list[Any](), list[bytes]()

    class Pipe:
        """What is written, until it is closed."""

        def __enter__(self) -> Pipe:
            return self

        def __exit__(self, *_: object) -> None:
            told.append(b"closed")

        def write(self, content: bytes) -> None:
            """Keep it."""
            told.append(content)

    def popen(words: list[str], **how: Any) -> Any:
        """A process that was started."""
        asked.append((words, how))
        return SimpleNamespace(stdin=Pipe())

    monkeypatch.setattr(hosts.subprocess, "Popen", popen)
    start(("py thon", "-u"), {"A": "it's", "B": "2"}, {"C": "3"}, ("ssh", "far"))
    ((words, how),) = asked
    assert words == ["ssh", "far", "sh"]
    assert how == {"stdin": hosts.subprocess.PIPE, "env": {"C": "3"}}
    here = shlex.quote(os.getcwd())
    script = f"export A='it'\"'\"'s'\nexport B=2\ncd {here} &&\nexec 'py thon' -u </dev/null\n"
    assert told == [script.encode(), b"closed"]


# -- places --------------------------------------------------------------------------------------------------


def test_where_a_rank_says_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EQUIPOISE_HOST", "EQUIPOISE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places.os, "cpu_count", lambda: 6)
    cpu = torch.device("cpu")
    common = {"model": "cpu", "memory_bytes": None, "cores": 6, "share_fixed": False}
    assert places.my_place(3, cpu, 0.25, None) == {
        **common,
        "member": 3,
        "host": socket.gethostname(),
        "device": "cpu-3",
        "share_quantum": 0.25,
        "share": None,
    }
    monkeypatch.setenv("EQUIPOISE_HOST", "h")
    monkeypatch.setenv("EQUIPOISE_DEVICE", "d")
    monkeypatch.setattr(places.os, "cpu_count", lambda: None)
    assert places.my_place(4, cpu, 0.5, 0.75) == {
        **common,
        "cores": 1,
        "member": 4,
        "host": "h",
        "device": "d",
        "share_quantum": 0.5,
        "share": 0.75,
    }


def test_an_accelerator_is_named_by_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_DEVICE", "not this")
    properties = SimpleNamespace(name="H100", total_memory=80, uuid="u-7")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = places.my_place(3, torch.device("cuda", 2), 0.25, None)
    assert (found["device"], found["model"], found["memory_bytes"]) == ("u-7", "H100", 80.0)
    del properties.uuid
    assert places.my_place(3, torch.device("cuda", 2), 0.25, None)["device"] == "2"


def test_a_share_that_is_given_is_fixed_and_the_others_are_equal_parts() -> None:
    raw = [
        {"member": k, "host": host, "device": "x", "share": share, "memory_bytes": memory}
        for k, (host, share, memory) in enumerate(
            [("a", None, 8.0), ("a", None, None), ("b", 0.625, 0.0), ("b", None, 4.0), ("b", None, 4.0)]
        )
    ]
    found = places.places_from(raw)
    assert [(p.share, p.share_fixed) for p in found] == [
        (0.5, False),
        (0.5, False),
        (0.625, True),
        (1 / 3, False),
        (1 / 3, False),
    ]
    assert [p.memory_bytes for p in found] == pytest.approx([8.0, math.nan, 0.0, 4.0, 4.0], nan_ok=True)
    plain = places.RankPlace(2, "a", "x")
    assert (plain.model, plain.cores, plain.share, plain.share_quantum, plain.share_fixed) == (
        "cpu",
        1,
        1.0,
        0.01,
        False,
    )
    assert math.isnan(plain.memory_bytes)


def test_one_sample_tells_what_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("mem_get_info", (500.0, 1000.0)),
        ("memory_allocated", 200.0),
        ("max_memory_allocated", 203.0),
        ("memory_reserved", 260.0),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert places.samples_bound(torch.device("cuda", 0), 1) == pytest.approx((500.0, 460.0 / 3.0))
