"""Every command that writes, killed at random times, on a disk that fails at any write, beside itself, by a clock
that is set back: nothing lost, nothing hung, no traceback, and the same command afterwards ends as if nothing had
been."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from equipoise import cli
from equipoise.exit_codes import INTERRUPTED, TERMINATED
from tests.kills.commands import COMMANDS, MEASURES, drafts, held
from tests.kills.lab import FULL, READ_ONLY, SIGNALS, Ended, Lab

HOW_ENDED = {
    signal.SIGINT: (0, INTERRUPTED),
    signal.SIGTERM: (0, TERMINATED, INTERRUPTED, -signal.SIGTERM),
    signal.SIGKILL: (0, -signal.SIGKILL),
}
FEW = ("run over another", "compare more", "shard", "query csv", "import")
KEPT = ("case.yaml", "sweep.yaml", "slurm.conf", "live/manifest.json", "compared/comparison.json")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


ONLY_READ = {"query", "watch"}
"""Commands whose --out is read; of them `query --to` writes, and `watch --page`."""
ELSEWHERE = {"validate-against", "schedule", "post-train", "bench"}
"""Commands whose input is not in this folder: public data and loops (written as `import` writes, a whole file at once),
a Slurm (tests/live/queue), and the benchmark, whose runs are a sweep's (tests/study/test_benchmark.py)."""


WRITES_TO = {"out", "to", "page", "timeline", "figures", "write", "rows", "journal"}
"""Options that name what is written."""


def test_every_command_that_writes_is_here() -> None:
    context = click.Context(cli.cli)
    writing = set()
    for name in cli.COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command is not None
        if WRITES_TO & {parameter.name for parameter in command.params if parameter.type.name != "boolean"}:
            writing.add(name)
    assert writing - ONLY_READ - ELSEWHERE <= {line.split()[0] for line in COMMANDS.values()}


def recovers(lab: Lab, name: str, folder: Path, ended: Ended) -> None:
    """What was there before is there or was replaced as a whole, and the command, given again, does its work."""
    assert ended.clean, ended.said
    wanted, _, _ = lab.undisturbed(name)
    base = held(lab.base)
    there = held(folder)
    for path in KEPT:
        assert there[path] in (base[path], wanted[path]), path
    if name == "import":
        (folder / "site.yaml").unlink(missing_ok=True)  # it asks for --force
    again = lab.do(name, folder)
    assert (again.code, again.clean) == (0, True), (again, ended)
    found = {path: content for path, content in held(folder).items() if Path(path).name not in drafts(folder)}
    if name in MEASURES:
        assert set(wanted) == set(found)
        return
    different = {
        path: (path in wanted, path in found) for path in wanted.keys() | found if wanted.get(path) != found.get(path)
    }
    assert not different, (ended, different)


def killed(lab: Lab, name: str, number: int, dice: random.Random) -> None:
    _, _, seconds = lab.undisturbed(name)
    folder = lab.fresh()
    pid = lab.start(name, folder)
    until_s = time.monotonic() + dice.uniform(0.0, seconds)
    while time.monotonic() < until_s and Path(f"/proc/{pid}").exists():
        time.sleep(0.002)
    with suppress(ProcessLookupError):  # it may have ended
        os.kill(pid, number)
    told(lab, name, folder, lab.wait(folder), number)


def told(lab: Lab, name: str, folder: Path, ended: Ended, number: int) -> None:
    """A command that got a signal ended as it should, and recovers."""
    assert ended.code in HOW_ENDED[signal.Signals(number)], ended
    if ended.code == TERMINATED:
        assert ended.said.endswith("equipoise: ended by SIGTERM\n")
    if number != signal.SIGKILL:
        assert not drafts(folder)
    recovers(lab, name, folder, ended)


def full(lab: Lab, name: str, nth: int, code: int) -> None:
    wanted, _, _ = lab.undisturbed(name)
    folder = lab.fresh()
    before = held(folder)
    ended = lab.do(name, folder, disk=[nth, code])
    assert ended.code in (0, 1, 2, 3), ended
    if ended.code:
        last = ended.said.splitlines()[-1]
        assert os.strerror(code) in last or "full" in last or "cannot be" in last or name == "sweep", ended
        assert any(
            part in ended.said
            for part in (
                str(folder),
                f"stdout: {os.strerror(code)}",
                *(w for w in COMMANDS[name].split() if "." in w),
                *(path for path in wanted if path not in before),  # what it writes
            )
        ) or ("new" in last or "kept" in last or "compared" in last or "shards" in last or "drawn" in last), ended
    assert not drafts(folder)
    if code == READ_ONLY:
        assert held(folder) == before
    recovers(lab, name, folder, ended)


@pytest.mark.parametrize("name", FEW)
def test_killed(lab: Lab, name: str) -> None:
    dice = random.Random(name)
    killed(lab, name, dice.choice(SIGNALS), dice)


@pytest.mark.parametrize("name", FEW[:3])
def test_a_full_disk(lab: Lab, name: str) -> None:
    _, changes, _ = lab.undisturbed(name)
    full(lab, name, random.Random(name).randint(1, changes), FULL)


@pytest.mark.parametrize("name", ["query parquet", "report", "run"])
def test_a_disk_that_can_only_be_read(lab: Lab, name: str) -> None:
    full(lab, name, 1, READ_ONLY)


def test_results_are_read_from_a_folder_that_cannot_be_written(lab: Lab) -> None:
    folder = lab.fresh()
    (folder / "compared" / "runs.parquet").unlink()
    before = held(folder)
    for words in (
        ["query", "--out", "compared", "SELECT count(*) FROM runs"],
        ["report", "compared", "--out", f"{folder}.html"],
        ["report", "kept", "--out", f"{folder}.html"],
    ):
        lab.start("query parquet", folder, arguments=words, disk=[1, errno.EROFS])
        ended = lab.wait(folder)
        assert ended.code == 0, ended
    assert held(folder) == before


@pytest.mark.parametrize("name", ["run", "compare more", "query parquet"])
def test_two_at_once(lab: Lab, name: str) -> None:
    together(lab, name)


def together(lab: Lab, name: str) -> None:
    folder = lab.fresh()
    lab.start(name, folder, beside=True, label="two")
    ended = lab.do(name, folder)
    other = lab.wait(folder, "two")
    assert ended.clean, ended
    assert other.clean, other
    for each in (ended, other):
        assert each.code == 0 or "writ" in each.said or "there already" in each.said, each
    assert 0 in (ended.code, other.code) or name == "import", (ended, other)
    recovers(lab, name, folder, ended)


@pytest.mark.parametrize("name", ["compare more", "run over another"])
def test_a_clock_that_is_set_back(lab: Lab, name: str) -> None:
    set_back(lab, name)


def set_back(lab: Lab, name: str) -> None:
    folder = lab.fresh()
    ended = lab.do(name, folder, clock=[3, 86_400])
    assert ended.code == 0, ended
    recovers(lab, name, folder, ended)


# -- the campaign ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", COMMANDS)
def test_many_kills(lab: Lab, name: str, number: int) -> None:
    for turn in range(KILLS):
        killed(lab, name, number, random.Random(f"{name} {number} {turn}"))


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS[:2])
@pytest.mark.parametrize("name", COMMANDS)
def test_signals_at_any_call(lab: Lab, name: str, number: signal.Signals) -> None:
    """Half of them in the first fifth, while modules load."""
    dice = random.Random(f"{name} {number}")
    calls = int(lab.at_call(name, lab.fresh(), NEVER, number).said.splitlines()[-1])
    for turn in range(KILLS):
        folder = lab.fresh()
        nth = dice.randrange(1, calls // (5 if turn % 2 else 1))
        told(lab, name, folder, lab.at_call(name, folder, nth, number), number)


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full_at_every_write(lab: Lab, name: str) -> None:
    _, changes, _ = lab.undisturbed(name)
    for nth in sorted(random.Random(name).sample(range(1, changes + 1), min(changes, WRITES))):
        full(lab, name, nth, FULL)


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_on_what_can_only_be_read_beside_itself_and_by_a_clock_set_back(lab: Lab, name: str) -> None:
    full(lab, name, 1, READ_ONLY)
    together(lab, name)
    set_back(lab, name)


NEVER = 10**15
KILLS = int(os.environ.get("EQUIPOISE_KILLS", "8"))
WRITES = int(os.environ.get("EQUIPOISE_WRITES", "60"))
"""Kills of each kind and writes of each command in one run of the campaign."""
