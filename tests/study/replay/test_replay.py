"""Replay gives back what was recorded, and a what-if equals a recording made that way."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cli import main
from equipoise.exit_codes import OK, WRONG_INPUT
from equipoise.formats.operations import COLUMNS, Operation, read_operations
from equipoise.study.replay.graph import graphs
from equipoise.study.replay.replay import NOTHING, STRAGGLER_FREE, ReplayChange, host_times, step_times, typical
from equipoise.study.replay.summary import summarise

SEND_S, SYNC_S, HOST_S = 0.01, 0.2, 0.003
Time = Callable[[int, int, int, int], float]


def recorded(forward: Time, replicas: int = 2, micro: int = 3, steps: int = 2) -> list[dict[str, Any]]:
    """Rows of a two-stage pipeline simulated by hand: stage 0 computes and sends, stage 1 receives and computes.

    forward(step, replica, stage, k): seconds. All ranks end in one all-reduce per stage after `HOST_S`.
    """
    rows: list[dict[str, Any]] = []

    def add(step: int, replica: int, stage: int, what: str, start: float, end: float, k: int) -> None:
        rank = 2 * replica + stage
        values = (step, rank, replica, stage, what, start, end - start, k)
        rows.append(dict(zip(COLUMNS, values, strict=True)))

    for step in range(steps):
        done: dict[tuple[int, int], float] = {}
        for replica in range(replicas):
            first = second = 0.0
            for k in range(micro):
                begin = first
                first += forward(step, replica, 0, k)
                add(step, replica, 0, "forward-compute", begin, first, k)
                met = max(first, second) + SEND_S
                add(step, replica, 0, "forward-send", first, met, k)
                add(step, replica, 1, "forward-recv", second, met, k)
                first = met
                second = met + forward(step, replica, 1, k)
                add(step, replica, 1, "forward-compute", met, second, k)
            done[replica, 0], done[replica, 1] = first, second
        for stage in (0, 1):
            posts = {replica: done[replica, stage] + HOST_S for replica in range(replicas)}
            for replica, post in posts.items():
                add(step, replica, stage, "grads-reduce-scatter", post, max(posts.values()) + SYNC_S, 0)
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def measured(rows: list[dict[str, Any]]) -> list[float]:
    steps = sorted({row["step"] for row in rows})
    return [max(r["start_ts"] + r["duration"] for r in rows if r["step"] == step) for step in steps]


TIMES = st.lists(st.floats(0.05, 2.0), min_size=24, max_size=24)


def forward_of(values: list[float]) -> Time:
    return lambda step, replica, stage, k: values[12 * step + 6 * replica + 3 * stage + k]


@settings(max_examples=20, deadline=None)
@given(TIMES)
def test_what_was_recorded_comes_out_again(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    rows = recorded(forward_of(values))
    path = write(tmp_path_factory.mktemp("replay") / "ops.csv", rows)
    found = graphs(read_operations([path]))
    assert [graph.measured_s for graph in found] == pytest.approx(measured(rows))
    times = step_times(found, [NOTHING], typical(found))
    # A send that waits hides the wait in its duration on one side only; the other side has what it takes.
    assert times[:, 0] == pytest.approx(measured(rows), rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(TIMES, st.floats(0.2, 3.0))
def test_a_what_if_equals_a_recording_made_that_way(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], factor: float
) -> None:
    base = forward_of(values)
    path = write(tmp_path_factory.mktemp("replay") / "ops.csv", recorded(base))
    found = graphs(read_operations([path]))
    change = ReplayChange("rank 3", kinds=("forward-compute",), rank=3, factor=factor)
    slow = recorded(lambda step, r, s, k: base(step, r, s, k) * (factor if (r, s) == (1, 1) else 1.0))
    times = step_times(found, [change], typical(found))
    assert times[:, 0] == pytest.approx(measured(slow), rel=1e-6)


def test_without_stragglers_all_take_the_mean_and_no_host_time(tmp_path: Path) -> None:
    path = write(tmp_path / "ops.csv", recorded(lambda step, r, s, k: 1.5 if (r, s, k) == (0, 0, 1) else 1.0))
    found = graphs(read_operations([path]))
    mean = (23 * 1.0 + 1.0 + 2 * 0.5) / 24
    free = step_times(found, [STRAGGLER_FREE], typical(found))[:, 0]
    by_hand = measured(recorded(lambda *_: mean))[0] - HOST_S
    assert free == pytest.approx([by_hand, by_hand])


def test_host_time_is_the_least_gap_of_other_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "ops.csv", recorded(lambda *_: 1.0, steps=3))
    found = graphs(read_operations([path]))
    host = host_times(found[:1])
    last = {key: gap for key, gap in host.items() if gap > 1e-9}
    assert sorted(last.values()) == pytest.approx([HOST_S] * 4)
    assert step_times(found[1:], [NOTHING], typical(found), host)[:, 0] == pytest.approx(
        [graph.measured_s for graph in found[1:]]
    )


def test_the_slow_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "ops.csv", recorded(lambda step, r, s, k: 2.0 if (r, s) == (1, 1) else 1.0))
    summary = summarise(graphs(read_operations([path])))
    assert summary.slow_ranks[0].name == "rank 3"
    assert summary.slow_ranks[0].saved > 0.2
    assert summary.free_s < summary.measured_s
    assert main(["replay", str(path), "--what-if", "forward-compute=0.5"]) == OK
    out = capsys.readouterr().out
    assert "2 steps of 4 ranks" in out
    assert "forward-compute=0.5" in out


@pytest.mark.parametrize(("ranks", "steps"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_what_all_have_is_no_straggling(
    ranks: int, steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 ms of computing, a gap of 980 ms, 10 ms: nobody is slower than another, and the step takes 1 s."""
    rows = ["step,rank,dp_rank,stage,optype,start_ts,duration,seq_id"]
    rows += [
        f"{step},{rank},{rank},0,forward-compute,{2 * step + at},0.01,{k}"
        for step in range(steps)
        for rank in range(ranks)
        for k, at in enumerate((0.0, 0.99))
    ]
    (tmp_path / "ops.csv").write_text("\n".join(rows))
    assert main(["replay", str(tmp_path / "ops.csv")]) == OK
    told = "one rank: there are no others" if ranks == 1 else "stragglers cost 0 % of the step, 1.00x"
    assert told in capsys.readouterr().out
    assert summarise(graphs(read_operations([tmp_path / "ops.csv"]))).free_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("forward-compute", "write CLASS=FACTOR"),
        ("nothing=2", "no class 'nothing'; there are forward, forward-compute, grads-reduce-scatter"),
        ("@9=typical", "no rank '9'; there are 4, from 0"),
        ("@²=typical", "no rank '²'"),
        ("@١=typical", "no rank '١'"),
        ("@1_0=typical", "no rank '1_0'"),
        ("forward-compute=fast", "'fast' is neither a factor"),
        ("forward-compute=-1", "at least 0"),
    ],
)
def test_a_wrong_what_if_is_one_line(
    change: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "ops.csv", recorded(lambda *_: 1.0))
    assert main(["replay", str(path), "--what-if", change]) == WRONG_INPUT
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


# -- PyTorch profiler ------------------------------------------------------------------------------------------


def kineto(rank: int, clock_us: float, compute_us: float) -> dict[str, Any]:
    """Two steps: a kernel, a copy on another stream right after it, an all-reduce of both ranks until 900 us."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        at = clock_us + 1000.0 * step
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 900})
        x = {"ph": "X", "cat": "kernel"}
        events.append(x | {"name": "void gemm<1>(float)", "ts": at + 10, "dur": compute_us, "tid": 7})
        copied = at + 15 + compute_us
        events.append(x | {"name": "copy", "ts": copied, "dur": 50, "tid": 8})
        group = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
        begin = copied + 50
        events.append(x | {"name": "ncclAllReduce", "ts": begin, "dur": at + 900 - begin, "tid": 9, "args": group})
    return {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}


def test_profiler_files_of_two_ranks(tmp_path: Path) -> None:
    paths = []
    for rank, (clock_us, compute_us) in enumerate(((0.0, 300.0), (5e6, 700.0))):
        path = tmp_path / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(kineto(rank, clock_us, compute_us)).encode()))
        paths.append(path)
    operations = read_operations(paths)
    assert {op.kind for op in operations} == {"gemm", "copy", "collective allreduce"}
    found = graphs(operations)
    assert len(found) == 2
    times = step_times(
        found, [NOTHING, ReplayChange("fast", rank=1, kinds=("gemm",), factor=300 / 700)], typical(found)
    )
    assert times[:, 0] == pytest.approx([890e-6] * 2)
    # Then both post the all-reduce 400 us earlier; it takes what it took the slow rank.
    assert times[:, 1] == pytest.approx([490e-6] * 2)


def test_a_circle_is_refused() -> None:
    make = [
        Operation(0, 0, 0, "a", 0.0, 1.0, "g1"),
        Operation(0, 0, 0, "b", 1.0, 1.0, "g2"),
        Operation(0, 1, 0, "b", 0.0, 1.0, "g2"),
        Operation(0, 1, 0, "a", 1.0, 1.0, "g1"),
    ]
    with pytest.raises(ValueError, match="cycle"):
        graphs(make)
    assert np.isfinite(step_times(graphs(make[:2]), [NOTHING], typical(graphs(make[:2])))).all()
