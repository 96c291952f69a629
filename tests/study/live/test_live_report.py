"""A live run's GPU time, page and timeline, from a record written by hand."""

from __future__ import annotations

import gzip
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from equipoise import cli
from equipoise.study.live.account import USES, read_account

START_S = 1000.0


def line(number: int, tail_s: float | None, compute_s: float = 0.5, stall_s: float = 0.1) -> dict[str, Any]:
    times = {"stall_s": stall_s, "compute_s": compute_s, "tail_s": tail_s, "update_s": 0.1}
    if tail_s is None:
        times = dict.fromkeys(times)
    return {"round": number, "exchanged": True, "local": False, "ranks": 2, "samples": 8.0, **times}


def at(seconds: float, kind: str, **more: Any) -> dict[str, Any]:
    return {"event": kind, "unix_s": START_S + seconds, **more}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Two ranks, 10 rounds of 1 s; rank 1 computes less and waits, and pauses in round 7."""
    folder = tmp_path / "run" / "20261122T000000Z-00000000"
    folder.mkdir(parents=True)
    members = [{"member": m, "host": f"h{m}", "device": f"cpu-{m}", "model": "cpu"} for m in (0, 1)]
    manifest = {
        "format": 2,
        "run": folder.name,
        "policy": "s1",
        "mode": "act",
        "global_batch": 16,
        "micro_batch": 1,
        "decide_every": 5,
        "samples": 160,
        "shards": 4,
        "members": members,
        "unix_s": START_S,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for member in (0, 1):
        own = (0.3, 0.5) if member == 0 else (0.5, 0.3)
        lines = [line(k, *own) for k in range(5)] + [at(5.0, "device", rounds=5, cpu_s=1.0, preempted=0)]
        lines += [at(5.0, "warning", text="<b>reset</b>")]
        after = [line(k, *own) for k in range(5, 10)]
        if member == 1:
            after[2] = line(7, None)
        lines += [*after, at(10.0, "device", rounds=10, cpu_s=2.0, preempted=0)]
        text = "".join(json.dumps(entry) + "\n" for entry in lines)
        (folder / f"rounds-{member}.jsonl").write_text(text)
    return tmp_path / "run"


def test_gpu_time_by_use_sums_to_the_time_of_the_ranks(record: Path) -> None:
    account = read_account(record)
    assert account.samples == 2 * 8 * 10
    first, second = (rank.seconds() for rank in account.ranks)
    assert sum(first.values()) == pytest.approx(10.0)
    assert sum(second.values()) == pytest.approx(10.0)
    assert [first[use] for use in USES] == pytest.approx([6.0, 1.0, 0.0, 3.0, 0.0])
    # Nine timed rounds; the paused one is what is left.
    assert [second[use] for use in USES] == pytest.approx([3.6, 0.9, 1.8, 2.7, 1.0])


def test_slices_of_a_rank_do_not_overlap(record: Path) -> None:
    for rank in read_account(record).ranks:
        for before, after in pairwise(rank.slices):
            assert before.end_s <= after.begin_s + 1e-9


def test_the_page_says_where_time_went_what_it_cost_and_what_happened(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", str(record), "--gpu-hour-usd", "3.6"]) == 0
    path = Path(capsys.readouterr().out.rpartition(": ")[0])
    page = path.read_text()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "48 % of 20 s of GPU time went into computing" in text  # 9.6 of 20
    assert "0.02 USD" in text
    assert "125 USD per million samples" in text  # 20 s at 0.1 cent, 160 samples
    assert "<b>reset" not in page
    assert "http" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL).replace("http-equiv", "")
    assert cli.main(["report", str(record)]) == 0
    assert "note: no costs: " in capsys.readouterr().err


def test_the_timeline_holds_every_slice_and_what_happened(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json.gz"
    assert cli.main(["timeline", str(record), "--out", str(out)]) == 0
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    account = read_account(record)
    assert len(slices) == sum(len(rank.slices) for rank in account.ranks)
    assert sum(e["dur"] for e in slices) / 1e6 == pytest.approx(19.0)
    assert [e["name"] for e in events if e["ph"] == "i" and e["tid"] == 0] == ["warning"]
    before = out.read_bytes()
    assert cli.main(["timeline", str(record), "--out", str(out)]) == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "says"),
    [("", "no round is on record"), ('{"round":', "is not JSON"), ("{}", "is neither a round nor an event")],
)
def test_a_record_without_rounds_or_with_damage_is_one_line(
    record: Path, damage: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in record.glob("*/rounds-*.jsonl"):
        path.write_text(f"{damage}\n" if damage else "")
    assert cli.main(["report", str(record)]) == cli.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said


def test_a_price_is_for_live_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path), "--gpu-hour-usd", "1"]) == cli.WRONG_INPUT
    assert "not a live run" in capsys.readouterr().err
