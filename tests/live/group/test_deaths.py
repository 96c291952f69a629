"""Ranks that are killed while the group re-forms after another's death: the rest go on, whoever is left."""

from __future__ import annotations

import importlib
import json
import multiprocessing.connection
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.live import ranks as live_ranks  # noqa: E402
from tests.live.group.test_regroup import equal_weights, exactly_once, single_process, train  # noqa: E402

AT = 5  # round in which the first one dies
Deaths = dict[int, tuple[str, int]]
"""By rank (-1: whoever gets there first): before which call, "module:name", and which one in that process."""

PHASES = {
    "before it votes": ("equipoise.live.group.regroup:Membership.regroup", 1),
    "after it voted": ("equipoise.live.group.regroup:Membership._agree", 1),
    "before it connects": ("equipoise.live.group.regroup:Membership._form", 2),  # the first time is the start
    "as it connects": ("torch.distributed:init_process_group", 2),
    "before the model is wrapped": ("equipoise.live.group.rebuild:rewrap", 1),
    "before the control group": ("equipoise.live.group.control:dist.new_group", 2),
    "before the state is shared": ("equipoise.live.runtime:resync", 1),
    "as the state is shared": ("equipoise.live.group.rebuild:average", 1),
    "after the state was shared": ("equipoise.live.train.sampler:ShareSampler.resume", 1),
}


def die_at(where: str, call: int, mark: Path) -> None:
    """This process kills itself instead of making that call, unless another one did: it left its mark."""
    module, _, path = where.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not mark.exists():
            mark.write_text(os.environ["RANK"])
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, name, counted)


def train_and_die(rank: int, folder: str, interval: int, first: int, deaths: Deaths) -> dict[str, Any]:
    who = rank if rank in deaths else -1
    if who in deaths:
        die_at(*deaths[who], Path(folder) / f"death-{who}")
    return train(rank, folder, {}, interval, first, AT if first >= 0 else -1)


def survive(
    folder: Path, ranks: int, interval: int, first: int, deaths: Deaths, told: bool = True
) -> list[dict[str, Any]]:
    """Results of those who are left, which were checked."""
    job = live_ranks.Ranks(train_and_die, ranks, str(folder), interval, first, deaths)
    for rank in range(ranks) if told else ():
        job.report_death(rank)
    deadline = time.monotonic() + 90
    for process in job.processes:
        multiprocessing.connection.wait([process.sentinel], max(0.0, deadline - time.monotonic()))
    killed = {int(mark.read_text()) for mark in folder.glob("death-*")} | ({first} if first >= 0 else set())
    assert len(killed) == len(deaths) + (first >= 0)
    results = [result for result in job.join(0.1, sorted(killed)) if result is not None]
    members = sorted(set(range(ranks)) - killed)
    assert all(sorted(result["members"]) == members for result in results)
    logs = [result["log"] for result in results]
    resumed = min(entry[0] for log in logs for entry in log if entry[5] == len(members))
    for member in killed:
        lines = (folder / f"log-{member}.jsonl").read_text().splitlines() if first >= 0 else []
        logs.append([entry for entry in map(json.loads, lines) if entry[0] < resumed])
    exactly_once(logs)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0]["weights"], other["weights"], strict=True))
    if interval == 1:
        equal_weights(results[0]["weights"], single_process(logs))
    return results


SHORT = ("before it votes",)  # the others take 5 s each, too


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(phase, marks=() if phase in SHORT else pytest.mark.long)
        for phase in PHASES
        if phase != "as the state is shared"
    ],
)
def test_another_dies_while_the_group_re_forms(tmp_path: Path, phase: str) -> None:
    survive(tmp_path, 4, 1, 3, {2: PHASES[phase]})


@pytest.mark.long
def test_another_dies_while_local_steps_are_merged(tmp_path: Path) -> None:
    survive(tmp_path, 4, 4, 3, {2: PHASES["as the state is shared"]})


@pytest.mark.long
def test_the_leader_of_the_vote_dies(tmp_path: Path) -> None:
    survive(tmp_path, 4, 1, 0, {-1: ("equipoise.live.group.regroup:Membership._lead", 1)})


@pytest.mark.long
def test_three_die_one_after_another_in_silence(tmp_path: Path) -> None:
    """Also rank 0 of the group that had just formed."""
    deaths = {3: PHASES["before it connects"], 0: PHASES["before the state is shared"]}
    survive(tmp_path, 5, 1, 4, deaths, told=False)


@pytest.mark.long
def test_one_dies_before_the_first_group(tmp_path: Path) -> None:
    survive(tmp_path, 3, 1, -2, {1: ("equipoise.live.group.regroup:Membership._form", 1)})


def train_slowly(rank: int, folder: str) -> dict[str, Any]:
    """The heartbeat looks for the dead twice while the group connects."""
    from equipoise.live.group import regroup

    looks = threading.Semaphore(0)
    look, connect = regroup._Watch._is_broken, torch.distributed.init_process_group

    def counted(*arguments: Any) -> bool:
        looks.release()
        return look(*arguments)

    def slow(*arguments: Any, **options: Any) -> None:
        while looks.acquire(blocking=False):
            pass
        for _ in range(3):  # begun, so two are over
            looks.acquire()
        connect(*arguments, **options)

    regroup._Watch._is_broken = counted
    torch.distributed.init_process_group = slow
    return train(rank, folder, {}, 1, 2, AT)


@pytest.mark.long
def test_who_is_gone_already_does_not_break_the_group_without_it(tmp_path: Path) -> None:
    job = live_ranks.Ranks(train_slowly, 3, str(tmp_path))
    job.report_death(2)
    assert [result["generation"] for result in job.join(timeout_s=90, killed=[2])[:2]] == [1, 1]
