"""Hosts of a list, the memory of a device, and where a new group goes on from: by hand, without ranks."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from equipoise.live.group import hosts, places, resync  # noqa: E402
from equipoise.live.group.hosts import HostList, parse_hosts  # noqa: E402
from equipoise.live.group.packing import pack, unpack  # noqa: E402
from equipoise.live.group.resync import Replica, kept_shares, lineage  # noqa: E402

# -- hosts -----------------------------------------------------------------------------------------------------


def test_a_list_of_hosts() -> None:
    text = "\n# a comment\na\nb:2  # two\n  c:16\n"
    assert parse_hosts(text, "list") == {"a": 1, "b": 2, "c": 16}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("a:0", "is not HOST or HOST:RANKS with at least 1 rank"),
        *((line, "is not HOST") for line in ("a:-1", "a:1.5", "a:1_0", ":2", "-a", "a c")),
        ("b:2", "stands there twice"),
    ],
)  # fmt: skip
def test_a_line_that_names_no_host(line: str, why: str) -> None:
    with pytest.raises(ValueError, match=rf"^list:3:1: '{line}' {why}"):
        parse_hosts(f"b\n\n{line}\n", "list")


def test_an_empty_list_names_no_host() -> None:
    with pytest.raises(ValueError, match="list:1:1: no host is named"):
        parse_hosts("# nobody\n", "list")


def test_a_list_is_looked_at_every_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, file = SimpleNamespace(now_s=0.0), tmp_path / "hosts"
    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    file.write_text("a\n")
    listed = HostList(file, None)
    file.write_text("b\n")
    for now_s, changed, ranks in ((0.0, False, "a"), (1.9, False, "a"), (2.0, True, "b"), (4.0, False, "b")):
        clock.now_s = now_s
        assert (listed.changed(), listed.ranks) == (changed, {ranks: 1})
    for now_s, text in ((6.0, "b:0"), (8.0, "b:0"), (10.0, "a:0"), (12.0, "c")):
        clock.now_s = now_s
        file.write_text(text)
        assert listed.changed() == (text == "c")
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" is not")[0] for line in told] == [
        f"equipoise: {file}:1:1: '{name}:0'" for name in "ba"
    ]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"--host-command 'echo \"a': No closing quotation; needed is a command"
    ):
        HostList(None, 'echo "a')
    with pytest.raises(ValueError, match="it is empty; needed is a command"):
        HostList(None, " ")


# -- memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "allocated", "peak", "reserved", "samples", "most"),
    [
        (
            500.0,
            200.0,
            300.0,
            260.0,
            20,
            (500.0 + 60.0 - 100.0) / 5.0,
        ),  # 5 bytes for a sample, a tenth of 1000 stays
        (40.0, 200.0, 300.0, 200.0, 20, 1.0),  # at least what it cannot do without
        (500.0, 200.0, 200.0, 260.0, 20, math.nan),  # nothing grows with the samples
        (500.0, 200.0, 300.0, 260.0, 0, None),
    ],
)
def test_how_many_samples_memory_holds(
    free: float, allocated: float, peak: float, reserved: float, samples: int, most: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in (
        ("mem_get_info", (free, 1000.0)), ("memory_allocated", allocated), ("max_memory_allocated", peak),
        ("memory_reserved", reserved),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    device = torch.device("cuda", 0)
    expected = (math.nan, math.nan) if most is None else (free, most)
    assert places.samples_bound(device, samples) == pytest.approx(expected, nan_ok=True)
    assert np.isnan(places.samples_bound(torch.device("cpu"), 20)).all()


def test_ranks_of_one_device_have_equal_parts_of_it() -> None:
    def raw(
        member: int, host: str, device: str, share: float | None = None, memory: float | None = None
    ) -> Any:
        return {"member": member, "host": host, "device": device, "share": share, "memory_bytes": memory}

    found = places.places_from(
        [raw(0, "a", "x"), raw(1, "a", "x", 0.25), raw(2, "b", "x", None, 8.0), raw(3, "a", "x")]
    )
    assert [place.share for place in found] == pytest.approx([1 / 3, 0.25, 1.0, 1 / 3])
    assert [place.memory_bytes for place in found] == pytest.approx(
        [math.nan, math.nan, 8.0, math.nan], nan_ok=True
    )


# -- a new group -----------------------------------------------------------------------------------------------


def member(boundary: int, trained: Any, near: int = -1, met: int = -1, shared: Any = ()) -> dict[str, Any]:
    return {"boundary": boundary, "near": near, "met": met, "shared": list(shared), "trained": list(trained)}


@pytest.mark.parametrize(
    ("reports", "works", "done"),
    [
        ([member(4, range(3)), member(4, range(5, 6)), member(3, range(9))], [3, 1, 0], {0, 1, 2, 5}),
        ([member(4, ()), member(-1, ())], [0, 0], set()),
        # Of two near ranks that both met last: three shared samples are dealt out by what each trained on since.
        ([member(4, [1, 2], 0, 6, [7, 8, 9]), member(4, [3], 0, 6, [7, 8, 9])], [4, 2], {1, 2, 3, 7, 8, 9}),
        ([member(4, [], 0, 6, [7, 8]), member(4, [], 0, 6, [7, 8])], [1, 1], {7, 8}),
        # One that had not met last has nothing that counts; another near group counts for itself.
        (
            [member(4, [1], 0, 5, [7]), member(4, [2], 0, 6, [7, 8]), member(4, [3], 1, 5, [9])],
            [0, 3, 2],
            {2, 7, 8, 3, 9},
        ),
    ],
)
def test_what_replicas_stand_for(reports: Any, works: list[float], done: set[int]) -> None:
    assert lineage(reports) == (pytest.approx(works), done)


@pytest.mark.parametrize(
    ("works", "rank", "weight", "merge"),
    [((3, 1), 0, 0.75, True), ((3, 1), 1, 0.25, True), ((3, 0), 1, 0.0, True), ((0, 0), 0, 0.0, False)],
)
def test_replicas_are_averaged_by_what_they_trained_on(
    works: tuple[int, int], rank: int, weight: float, merge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that stands for nothing gives nothing; what rank 0 says is where all go on."""
    agreed: list[Any] = []
    monkeypatch.setattr(resync.rebuild, "agree", lambda *given: agreed.append(given[3:]))
    reports = [member(4, range(n)) for n in works]
    state = (
        '{"global_batch": 8, "accumulation": 2, "rate": 1.5, "shares": [6, 2], "deal": null, "epoch": 3,'
        '"round": 7, "joins_seen": 5, "interval": 4, "far_every": 2}'
    )
    control = SimpleNamespace(gather_text=lambda mine: reports, broadcast=lambda content: state)
    group: Any = SimpleNamespace(
        rank=rank, ranks=2, control=control, members=[0, 4], near="near", joins_seen=0
    )
    done: list[Any] = []
    sampler: Any = SimpleNamespace(
        set_world=lambda *place: done.append(place), resume=lambda *where: done.append(where), members=(0, 4),
        planned_shares=lambda: np.array([4, 4]), global_batch=8, micro_batch=1, accumulation=1, rate=1.0,
    )  # fmt: skip
    local: Any = SimpleNamespace(reset=lambda *steps: done.append(steps), interval=1, far_every=1)
    tensors: Any = ["tensor"]
    resync.resync(group, sampler, None, None, local, {}, Replica(boundary=4, tensors=tensors))  # type: ignore[arg-type]
    assert agreed == [(tensors if weight else None, weight, merge)]
    assert done == [(rank, 2), (3, None, 7), (4, 2)]
    assert (sampler.shares.tolist(), sampler.members, sampler.rate, sampler.accumulation) == (
        [6, 2],
        (0, 4),
        1.5,
        2,
    )
    assert (group.joins_seen, local.near) == (5, "near")


def test_near_ranks_are_remembered_where_there_are_two_levels() -> None:
    near = SimpleNamespace(group=np.array([0, 1, 1]), peers=lambda rank: [1, 2])
    sampler: Any = SimpleNamespace(
        boundary=4, near_boundary=6, rest_at=lambda boundary: np.arange(boundary),
        trained_since=lambda boundary: np.array([boundary]), trained_near=lambda peers: np.array(peers),
    )  # fmt: skip
    model: Any = SimpleNamespace(module=torch.nn.Linear(1, 1))
    for far_every, found, shared in ((1, -1, ()), (2, 1, (1, 2))):
        local: Any = SimpleNamespace(near=near, far_every=far_every, has_apart=False)
        made = resync.replica_of(model, sampler, local, 2)
        assert (made.near, made.shared, made.met, made.trained) == (found, shared, 6, (6,))
        assert (made.boundary, made.rest.tolist(), made.tensors) == (4, [0, 1, 2, 3], None)


def test_a_member_that_comes_has_nothing() -> None:
    fresh = Replica()
    assert (fresh.boundary, fresh.near, fresh.met, fresh.rest, fresh.tensors) == (-1, -1, -1, None, None)
    sampler: Any = SimpleNamespace(
        members=(3, 5), planned_shares=lambda: np.array([6, 1]), global_batch=14, micro_batch=2
    )
    assert kept_shares(sampler, [5, 3, 9]).tolist() == [2, 8, 4]  # 1, 6 and their mean, 4, in pairs of 14


def test_numbers_of_numpy_travel_as_numbers() -> None:
    sent = {"a": np.float64(0.5), "b": [np.int64(3), np.bool_(True)], "c": torch.tensor([1.0, 2.0])}
    found = unpack(pack(sent))
    assert (found["a"], found["b"], found["c"].tolist()) == (0.5, [3, True], [1.0, 2.0])
    for wrong, place in (({"x": [np.zeros(2)]}, r"\['x'\]\[0\]: a ndarray"), (object(), ": a object")):
        with pytest.raises(TypeError, match=f"^{place} is not allowed in a state dict"):
            pack(wrong)
