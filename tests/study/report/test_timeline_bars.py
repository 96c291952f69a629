"""Packing a timeline for the browser: read back by a plain reader, bar for bar."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.sim.scenario.tree import InputError
from equipoise.study.report.timeline import KINDS, TICKS, USES, bars, pack, usage_shares
from tests.study.report.report_data import make_run
from tests.study.report.report_data import segments as made_segments


def unpack(packed: bytes, n: int) -> list[tuple[int, int, int, int, int, int, int]]:
    """(row, start, length, gpus, kind, use, busy) of each bar, one byte after the other."""
    raw = gzip.decompress(packed)
    assert len(raw) == 19 * n

    def word(column: int, k: int) -> int:
        base = 4 * n * column
        value = sum(raw[base + plane * n + k] << (8 * plane) for plane in range(4))
        return value - 2**32 if value >= 2**31 else value

    found: list[tuple[int, int, int, int, int, int, int]] = []
    row = begun = 0
    for k in range(n):
        step, gap, length, gpus = (word(column, k) for column in range(4))
        fresh = k == 0 or step != 0
        row += step
        start = gap + (begun if fresh else found[-1][1] + found[-1][2])
        begun = start if fresh else begun
        kind, use, busy = (raw[(16 + column) * n + k] for column in range(3))
        found.append((row, start, length, gpus, kind, use, busy))
    return found


@st.composite
def columns(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Bars in order of row, anywhere in time, with gaps."""
    n = draw(st.integers(0, 30))
    floats = st.floats(0, 1e6, allow_nan=False)
    row = np.sort(np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), dtype=np.int64))
    start = np.array(draw(st.lists(floats, min_size=n, max_size=n)), dtype=float)
    length = np.array(draw(st.lists(floats, min_size=n, max_size=n)), dtype=float)
    used = {u: np.array(draw(st.lists(floats, min_size=n, max_size=n)), dtype=float) for u in USES}
    kind = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), dtype=np.int64)
    gpus = np.array(draw(st.lists(st.integers(0, 2**20), min_size=n, max_size=n)), dtype=np.int64)
    return {"row": row, "start_s": start, "end_s": start + length, "gpus": gpus, "kind": kind, **used}


@given(columns())
def test_packed_bars_come_back_to_the_tick(given_columns: dict[str, np.ndarray]) -> None:
    tick_s = 2e6 / TICKS
    n = len(given_columns["row"])
    found = unpack(pack(given_columns, 0.0, tick_s), n)
    for k, (row, start, length, gpus, kind, use, busy) in enumerate(found):
        assert row == given_columns["row"][k]
        assert gpus == given_columns["gpus"][k]
        assert kind == given_columns["kind"][k]
        assert abs(start * tick_s - given_columns["start_s"][k]) <= 0.51 * tick_s
        assert abs((start + length) * tick_s - given_columns["end_s"][k]) <= 0.51 * tick_s
        used = [float(given_columns[u][k]) for u in USES]
        assert used[use] == max(used)
        share = used[0] / sum(used) if sum(used) else 0.0
        assert abs(busy / 255 - share) <= 0.5001 / 255


def test_bars_of_a_run_directory(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=7, each=4)
    found = bars(tmp_path)
    rows = made_segments(7, 4, 64)
    assert (found.count, found.total, found.rows) == (28, 28, 7)
    assert json.loads(gzip.decompress(found.names))["names"] == [f"job-{k}" for k in range(7)]
    for k, (row, start, _, gpus, kind, _, _) in enumerate(unpack(found.packed, 28)):
        assert row == rows["job_id"][k]
        assert gpus == rows["gpus"][k]
        expected = "queued" if rows["state"][k] == "queued" else rows["end_reason"][k]
        assert KINDS[kind] == expected
        assert found.start_s + start * found.tick_s == pytest.approx(rows["start_s"][k], abs=found.tick_s)


def test_what_is_missing_or_damaged_is_one_line(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=2, timeline=False)
    with pytest.raises(InputError, match=r"no timeline here .*--timeline"):
        bars(tmp_path)
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "usage.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"usage\.parquet: cannot be read"):
        usage_shares(tmp_path)
