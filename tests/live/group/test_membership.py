"""Who is in the job: in one process, where members that are elsewhere are what the store says of them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group import regroup  # noqa: E402
from equipoise.live.group.regroup import EvictedError, Membership, RegroupError, _Watch  # noqa: E402


class Store:
    """A dictionary with the verbs of PyTorch's stores."""

    def __init__(self, **values: str) -> None:
        self.values = {name.replace("_", "/"): value.encode() for name, value in values.items()}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        found = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(found).encode()
        return found

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        return self.values.setdefault(key, wanted.encode())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time stands still but for sleeping; `later` is called with every sleep."""
    made = SimpleNamespace(now_s=100.0, later=lambda: None)

    def sleep(seconds: float) -> None:
        """Time goes on."""
        assert 0.0 < seconds <= 0.05
        made.now_s += seconds
        made.later()

    monkeypatch.setattr(regroup, "time", SimpleNamespace(monotonic=lambda: made.now_s, sleep=sleep))
    return made


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Membership, Store]]:
    """Makes members that nobody watches."""
    monkeypatch.setattr(_Watch, "start", lambda self: None)

    def made(member: int = 2, members: Any = (), **values: str) -> tuple[Membership, Store]:
        """A member, in a group of these, and its store."""
        store: Any = Store(**values)
        found = Membership(store, store, member, "gloo", 30.0)
        found.members = list(members)
        return found, store

    return made


Join = Callable[..., tuple[Membership, Store]]


def test_a_member_begins_outside_of_every_group(join: Join) -> None:
    mine, store = join(5)
    assert (mine.member, mine.generation, mine.attempt, mine.members, mine.expected) == (5, -1, -1, [], [])
    assert (store.values, mine.is_connecting) == ({"beat/5": b"0"}, False)
    assert mine.joins_asked() == 0
    mine.members, mine.expected, mine._asked_for = [7, 5], [5, 4], {9}
    assert mine.followed() == [4, 7, 9]


def test_who_waits_and_who_is_parked(join: Join) -> None:
    """Of three founders and three who came; who is dead, or inside, does neither."""
    mine, store = join(0, [0, 2, 4], founders="3", joined="3")
    for key in ("join/3", "join/4", "join/5", "dead/5", "leave/4"):
        store.set(key, "1")
    assert mine.waiting() == [3]
    assert mine._asked_for == {3, 5}
    for member, value in ((1, "1"), (2, "1"), (3, "0"), (5, "1")):
        store.set(f"parked/{member}", value)
    assert mine.parked() == [1]
    assert mine._asked_for == {1, 3, 5}
    assert [mine.is_leaving(member) for member in (3, 4)] == [False, True]
    store.set("parked/6", "1")
    assert mine.parked() == [1]  # nobody has that number yet
    store.add("joined", 1)
    assert mine.parked() == [1, 6]
    store.set("join/6", "1")
    assert mine.waiting() == [3, 6]
    store.add("joining", 4)
    assert mine.joins_asked() == 4


def test_a_member_is_dead_when_it_was_silent_for_six_seconds(join: Join, clock: Any) -> None:
    mine, store = join(0)
    watch = mine._watch
    watch._follow(3, 100.0)
    assert watch._seen == {}  # not started yet
    store.set("beat/3", "1")
    watch._follow(3, 100.0)
    watch._follow(3, 102.0)
    assert watch._silent_s(3, 105.0) == 5.0
    assert watch._silent_s(4, 105.0) == 0.0
    for now_s, dead in ((106.0, False), (106.5, True)):
        clock.now_s = now_s
        assert watch.is_dead(3, store) == dead  # type: ignore[arg-type]
    store.set("beat/3", "2")
    watch._follow(3, 106.5)
    assert not watch.is_dead(3, store)  # type: ignore[arg-type]
    store.set("dead/3", "1")
    assert watch.is_dead(3, store)  # type: ignore[arg-type]
    assert not watch.is_dead(4, store)  # type: ignore[arg-type]


def test_a_wait_is_broken_when_a_member_is_lost_or_another_group_is_asked_for(join: Join, clock: Any) -> None:
    mine, store = join(0)
    mine.expected, mine.attempt, watch = [0, 3], 5, mine._watch
    assert watch.daemon  # it keeps no process alive
    watch._seen = {3: (b"1", 100.0)}
    assert not watch._is_broken(115.0)
    assert watch._is_broken(115.5)
    clock.now_s = 106.5
    assert not watch._is_broken(106.5)  # nothing else is being formed
    mine._before = frozenset()
    assert mine.is_connecting
    assert watch._is_broken(106.5)
    watch._seen = {}
    assert not watch._is_broken(106.5)
    store.set("ask/5", "0")
    assert not watch._is_broken(106.5)
    store.set("ask/6", "0")
    assert watch._is_broken(106.5)


# -- the next group --------------------------------------------------------------------------------------------


def test_whoever_leads_takes_those_who_are_here_and_the_furthest_first(join: Join, clock: Any) -> None:
    mine, store = join(1)
    for key, value in (("here/4/1", "7"), ("here/4/2", "9"), ("dead/3", "1")):
        store.set(key, value)

    def comes() -> None:
        """The last one does, in the second look."""
        store.set("here/4/5", "9")

    clock.later = comes
    assert mine._agree(4, [1, 2, 3, 5], None) == [2, 5, 1]
    assert json.loads(store.get("members/4")) == [2, 5, 1]
    assert store.get("leader/4") == b"1"
    assert not store.check(["planned/4"])
    assert clock.now_s == pytest.approx(100.01)


def test_a_plan_takes_whom_it_names_and_admits_who_comes(join: Join) -> None:
    mine, store = join(1, dead_8="1")
    for member, boundary in ((1, 7), (2, 9)):
        store.set(f"here/4/{member}", str(boundary))
    assert mine._agree(4, [1, 2], [8, 6, 1]) == [1, 6]
    assert (store.get("planned/4"), store.get("admit/6")) == (b"1", b"4")
    assert not store.check(["admit/1"])
    assert not store.check(["admit/8"])


def test_who_does_not_lead_waits_for_the_leader_while_it_lives(join: Join, clock: Any) -> None:
    mine, store = join(1, leader_4="3")
    clock.later = lambda: store.set("members/4", "[3, 1]")
    assert mine._agree(4, [1, 3], None) == [3, 1]
    mine, store = join(1, leader_4="3", dead_3="1")
    clock.later = lambda: None
    assert mine._agree(4, [1, 3], None) is None
    clock.later = lambda: store.set("members/4", "[3, 1]")  # it died after it had said so
    assert mine._agree(4, [1, 3], None) == [3, 1]


@pytest.mark.parametrize("planned", [False, True])
def test_a_member_that_is_left_out_ends(join: Join, planned: bool) -> None:
    mine, store = join(1, [1, 2])
    mine.generation = 3
    store.set("leader/4", "2")
    store.set("members/4", "[2, 5]")
    if planned:
        store.set("planned/4", "1")
    with pytest.raises(EvictedError) as ended:
        mine.regroup(6, [2, 5] if planned else None)
    assert (ended.value.planned, mine.generation, mine.attempt) == (planned, 4, 4)
    assert store.get("here/4/1") == b"6"
    assert store.check(["ask/4"]) != planned
    text = str(ended.value)
    if planned:
        assert text == "member 1 is not in the group of [2, 5]"
    else:
        assert text.startswith(
            "the others went on without member 1, as the group of members [2, 5]: it was silent"
        )
        assert " for 6 s, or reported dead." in text
    assert EvictedError("x").planned is False


def test_a_group_is_tried_again_until_it_forms(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the plan, and with what the last attempt agreed on."""
    mine, store = join(1, [1])
    mine.generation = 3
    formed: list[Any] = []
    answers = [None, [1, 4], [1, 4]]
    asked: list[Any] = []

    def agree(*what: Any) -> Any:
        """The leader dies at the first attempt."""
        asked.append(what)
        return answers[len(asked) - 1]

    def try_form(*what: Any) -> bool:
        """The second group that is agreed on forms."""
        formed.append(what)
        return len(formed) > 1

    monkeypatch.setattr(mine, "_agree", agree)
    monkeypatch.setattr(mine, "_try_form", try_form)
    mine.regroup(6, [1, 4])
    assert asked == [(4, [1], [1, 4]), (5, [1], None), (6, [1, 4], None)]
    assert formed == [(5, [1, 4]), (6, [1, 4])]
    assert [store.check([f"ask/{k}"]) for k in (4, 5, 6)] == [False, True, True]
    assert [store.get(f"here/{k}/1") for k in (4, 5, 6)] == [b"6"] * 3


def test_a_store_that_is_gone_is_told(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = join(1)

    def gone(*_: Any) -> None:
        """It is."""
        raise torch.distributed.DistNetworkError("gone")

    monkeypatch.setattr(mine, "_agree", gone)
    with pytest.raises(RegroupError, match="the job's store cannot be reached"):
        mine.regroup(3)


def test_the_same_group_without_a_new_round_is_formed_three_times(join: Join) -> None:
    mine, store = join(1)

    def counted(attempt: int, members: list[int], boundary: int | None, *, planned: bool = False) -> int:
        """How often nothing had changed."""
        if boundary is not None:
            store.set(f"here/{attempt}/{members[0]}", str(boundary))
        if planned:
            store.set(f"planned/{attempt}", "1")
        mine._count_repeats(attempt, members)
        return mine._repeats

    found = [
        counted(0, [1, 2], 5), counted(1, [1, 2], 5), counted(2, [2, 1], 5), counted(3, [1, 2], 6),
        counted(4, [1, 2], 6), counted(5, [1, 3], 6), counted(6, [1, 3], 4), counted(7, [1, 3], 4, planned=True),
        counted(8, [3, 1], None), counted(9, [3, 1], -1),
    ]  # fmt: skip
    assert found == [0, 1, 2, 0, 1, 0, 1, 0, 1, 2]
    with pytest.raises(RegroupError, match="the group of 2 was formed anew 3 times, nobody had left it"):
        mine._count_repeats(10, [3, 1])
    assert store.get("dead/1") == b"gave up"


# -- coming and going ------------------------------------------------------------------------------------------


def forming(mine: Membership, monkeypatch: pytest.MonkeyPatch, works: bool = True) -> list[Any]:
    """What groups a member tries to form, and how it goes on where that fails."""
    found: list[Any] = []

    def try_form(*what: Any) -> bool:
        """Note it."""
        found.append(what)
        return works

    monkeypatch.setattr(mine, "_try_form", try_form)
    monkeypatch.setattr(mine, "regroup", lambda boundary: found.append(("again", boundary)))
    return found


def test_founders_form_the_first_group(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    for works in (True, False):
        mine, store = join(1)
        found = forming(mine, monkeypatch, works)
        mine.found(3)
        assert store.get("founders") == b"3"
        assert found == [(0, [0, 1, 2]), *([] if works else [("again", -1)])]
        assert (mine.members, mine.generation) == (([], -1) if works else ([0, 1, 2], 0))


def test_who_joins_waits_for_a_group_with_it_in(
    join: Join, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, store = join(4, founders="2", joined="3")
    found = forming(mine, monkeypatch)
    mine.generation = 6
    steps: list[Callable[[], None]] = [
        lambda: store.set("admit/4", "6"), lambda: store.set("members/6", "[0, 4]"),
        lambda: store.set("admit/4", "7"), lambda: store.set("members/7", "[0, 1]"),
        lambda: store.set("members/7", "[0, 1, 4]"),
    ]  # fmt: skip
    clock.later = lambda: steps.pop(0)()
    mine.join()
    assert (found, steps) == ([(7, [0, 1, 4])], [])
    assert (store.get("join/4"), mine.joins_asked()) == (b"1", 1)
    assert clock.now_s == pytest.approx(100.25)


def test_who_is_parked_says_so_until_it_is_taken_in(
    join: Join, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, store = join(1, founders="2")
    forming(mine, monkeypatch)
    seen: list[bytes] = []

    def admit() -> None:
        """At the first look."""
        seen.append(store.get("parked/1"))
        store.set("admit/1", "0")
        store.set("members/0", "[1]")

    clock.later = admit
    mine.park()
    assert (seen, store.get("parked/1")) == ([b"1"], b"0")


@pytest.mark.parametrize("key", ["done", "leave/4"])
def test_who_waits_ends_with_training(join: Join, key: str) -> None:
    mine, store = join(4, founders="2", joined="3")
    store.set(key, "1")
    with pytest.raises(EvictedError, match="training ended") as ended:
        mine.join()
    assert ended.value.planned


def test_who_waits_alone_ends_the_job(join: Join) -> None:
    """Both founders and one who came are dead, another one never came in."""
    mine, store = join(4, founders="2", joined="3", dead_0="1", dead_2="1", admit_2="1", admit_6="1")
    assert not mine._is_deserted()
    assert mine._asked_for == {0, 1, 2}
    store.set("dead/1", "1")
    assert mine._is_deserted()
    with pytest.raises(SystemExit, match="equipoise: member 4 ends: nobody is left in the job to take it in"):
        mine.join()
    assert store.get(regroup.DESERTED) == b"1"


def test_whoever_closes_tells_those_who_wait(join: Join) -> None:
    for done in (False, True):
        mine, store = join(1)
        mine.close(done=done)
        assert store.check(["done"]) == done
        assert mine._watch._ending.is_set()


# -- connecting ------------------------------------------------------------------------------------------------


def test_all_are_waited_for_before_they_connect(
    join: Join, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connecting gets a second, twice as much each time that nobody had left; what it opened is the group's."""
    mine, store = join(1)
    opened = iter(({1, 2}, {1, 2, 3}, {5}, {5, 6}))
    monkeypatch.setattr(regroup, "open_sockets", lambda: frozenset(next(opened)))
    mine.attempt, mine.expected = 4, [1, 3]
    for links, repeats in ((1, 0), (2, 2)):
        mine._repeats = repeats
        clock.later = lambda links=links: store.set(f"ready/4/{links}/3", "1")
        with mine.connecting() as timeout:
            assert mine.is_connecting
            assert timeout == datetime.timedelta(seconds=2**repeats)
        assert store.get(f"ready/4/{links}/1") == b"1"
        assert not mine.is_connecting
    assert mine._sockets == {3, 6}


def test_who_does_not_come_is_told(join: Join, clock: Any) -> None:
    mine, store = join(1)
    mine.attempt, mine.expected = 4, [1, 3, 5]
    store.set("dead/1", "1")  # its own death is none
    with pytest.raises(RegroupError, match=r"the members \[1, 3, 5\] did not come within 30 s"):
        mine._call_roll()
    assert clock.now_s == pytest.approx(130.01, abs=0.011)
    store.set("dead/3", "1")
    with pytest.raises(RuntimeError, match=r"members \[3\] died"):
        mine._call_roll()
    store.values.pop("dead/3")
    store.set("ask/5", "3")
    with pytest.raises(RuntimeError, match="another member gave up"):
        mine._call_roll()


def test_a_group_that_does_not_form_is_left(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = join(1)
    left: list[int] = []
    monkeypatch.setattr(mine, "leave_group", lambda: left.append(1))

    def forms(error: Exception | None) -> Callable[..., None]:
        """A group that fails so, or not."""

        def form(*_: Any) -> None:
            """Try."""
            if error is not None:
                raise error

        return form

    for error, formed, count in ((None, True, 0), (RuntimeError("x"), False, 1)):
        monkeypatch.setattr(mine, "_form", forms(error))
        assert mine._try_form(4, [1]) == formed
        assert len(left) == count
    monkeypatch.setattr(mine, "_form", forms(RegroupError("y")))
    with pytest.raises(RegroupError, match="y"):
        mine._try_form(4, [1])
    assert len(left) == 1


def test_what_a_member_waits_for_is_broken(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of its group and, while it connects, all that were opened since; under NCCL the group, too."""
    broken: list[Any] = []
    aborted: list[str] = []
    monkeypatch.setattr(regroup, "shut", broken.append)
    monkeypatch.setattr(regroup, "open_sockets", lambda: frozenset({1, 2, 5, 7}))
    group = SimpleNamespace(abort=lambda: aborted.append("group"))
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_group", lambda: group)
    mine, _ = join(1)
    mine._sockets = frozenset({4, 7})  # type: ignore[arg-type]
    mine.break_exchange()
    mine._before = frozenset({1, 2})  # type: ignore[arg-type]
    mine.break_exchange()
    assert (broken, aborted) == ([{4, 7}, {4, 5, 7}], [])
    mine.backend = "cpu:gloo,cuda:nccl"
    mine.break_exchange()
    assert aborted == ["group"]


def started(
    monkeypatch: pytest.MonkeyPatch, store: Store, ended: Exception | None = None, **environment: str
) -> Any:
    """What a process that starts does, in such an environment."""
    done: list[Any] = []
    for name in ("EQUIPOISE_JOIN", "EQUIPOISE_STORE", "RANK", "WORLD_SIZE", regroup.WORKER):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def job_store(*hosts: bool) -> Store:
        """The one store, and who hosts it."""
        done.append(("store", *hosts))
        return store

    def reached(*where: Any) -> Any:
        """A connection to whoever hosts the store."""
        done.append(("reached", *where))
        return where

    def way(name: str) -> Callable[..., None]:
        """A way into the group."""

        def go(self: Membership, *what: Any) -> None:
            """Note it, and end where that is asked for."""
            done.append((name, self.member, *what))
            if ended is not None:
                raise ended

        return go

    monkeypatch.setattr(regroup, "gc", SimpleNamespace(freeze=lambda: done.append("frozen")))
    monkeypatch.setattr(regroup, "job_store", job_store)
    monkeypatch.setattr(regroup, "address", lambda: ("h", 29))
    monkeypatch.setattr(regroup, "is_hosted", lambda: "EQUIPOISE_STORE" in environment)
    monkeypatch.setattr(regroup, "reached", reached)
    monkeypatch.setattr(regroup, "_current", None)
    monkeypatch.setattr(Membership, "end_with", lambda self, line: done.append(("line", line)))
    for name in ("found", "join"):
        monkeypatch.setattr(Membership, name, way(name))
    try:
        regroup.start(timeout_s=7.0)
        mine = regroup.current()
        assert mine is not None
        assert (mine.backend, mine.timeout_s) == ("gloo", 7.0)
    except SystemExit as ending:
        done.append(("ended", ending.code))
    return done


def test_a_founder_starts_with_the_others_and_the_first_hosts_the_store(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("line", ("h", 29))
    first = started(monkeypatch, Store(), RANK="0", WORLD_SIZE="3")
    reached = ("reached", "h", 29)
    assert first == ["frozen", ("store", True), ("store",), reached, line, ("found", 0, 3)]
    hosted = {"EQUIPOISE_STORE": "h:29", "WORLD_SIZE": "3"}
    for rank in ("0", "2"):
        found = started(monkeypatch, Store(), RANK=rank, **hosted)
        assert found == ["frozen", reached, ("store", False), ("store",), line, ("found", int(rank), 3)]
    other = started(monkeypatch, Store(beat_2="5"), RANK="2", WORLD_SIZE="3")
    assert other == [
        "frozen",
        reached,
        ("store", False),
        ("store",),
        line,
        ("found", 2, 3),
    ]  # torchrun starts all of them again


def test_who_comes_gets_the_next_number(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(founders="4", joined="2")
    found = started(monkeypatch, store, EQUIPOISE_JOIN="1", EQUIPOISE_STORE="h:29", **{regroup.WORKER: "w"})
    assert found[-1] == ("join", 6)
    assert (store.get("joined"), store.get("worker/w"), store.get("beat/6")) == (b"3", b"6", b"0")
    for known in ("beat_2", "dead_2"):  # it was started again
        store = Store(joined="2", **{known: "1"})
        found = started(monkeypatch, store, RANK="2", WORLD_SIZE="4", EQUIPOISE_STORE="h:29")
        assert found[-1] == ("join", 6)
        assert store.get("founders") == b"4"


def test_who_is_not_taken_in_ends_well(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    found = started(monkeypatch, store, EvictedError("over"), RANK="0", WORLD_SIZE="3")
    assert found[-1] == ("ended", 0)
    assert not store.check(["done"])
    with pytest.raises(RuntimeError, match="broken"):
        started(monkeypatch, Store(), RuntimeError("broken"), RANK="0", WORLD_SIZE="3")


def test_a_store_that_went_before_ends_the_process(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Store):
        """Answers nobody."""

        def set(self, key: str, value: str) -> None:
            raise torch.distributed.DistNetworkError("gone")

    ((*_, (_, why)),) = [started(monkeypatch, Gone(), RANK="1", WORLD_SIZE="3")]
    assert why.startswith(
        "equipoise: this process ends: the job's store at h:29 went before it was taken in; start"
    )
