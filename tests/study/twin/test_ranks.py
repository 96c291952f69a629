"""Which rank is slow and why, from records whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise import cli
from equipoise.study.twin.ranks import diagnose, render

USUAL = {"samples": 8, "stall_s": 0.008, "compute_s": 0.08, "tail_s": 0.02, "update_s": 0.008}


def write(folder: Path, ranks: list[dict[str, Any]], devices: list[dict[str, Any]] | None = None) -> Path:
    """A record of 20 rounds: what each rank has beside `USUAL`, and its device's notes."""
    folder.mkdir()
    members = [{"member": m, "host": f"h{m}", "device": f"d{m}"} for m in range(len(ranks))]
    needed = dict.fromkeys(("policy", "global_batch", "micro_batch", "decide_every", "samples", "shards"))
    manifest = {"format": 2, "members": members, "mode": "observe", **needed}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for m, own in enumerate(ranks):
        rounds = [{"round": k, "exchanged": True, **USUAL, **own} for k in range(20)]
        for line in rounds:  # what is given by round
            line.update({name: value[line["round"]] for name, value in line.items() if isinstance(value, list)})
        rounds[5] = {**rounds[5], "stall_s": None, "paused": True}  # and is left out
        device = {"event": "device", "queued_s": 0.0, **(devices[m] if devices else {})}
        notes = [{**device, "rounds": n, "unix_s": 0.0, "queued_s": device["queued_s"] * n} for n in (0, 20)]
        lines = [json.dumps(line) for line in [*rounds, *notes]]
        (folder / f"rounds-{m}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("own", "device", "cause", "says"),
    [
        ({"compute_s": 0.2}, {}, "compute", "25 ms per sample, the others 10 ms"),
        ({"stall_s": 0.2}, {}, "input", "25 ms per sample, the others 1 ms"),
        ({"update_s": 0.2}, {}, "compute", "25 ms per sample, the others 1 ms after the gradients' exchange"),
        ({"compute_s": 0.2}, {"queued_s": 0.07}, "host", "other programs had its processor for 70 ms per round"),
        # It takes 0.2 - 0.08 = 0.12 s longer than the others; half of that is 0.06 s.
        ({"compute_s": 0.2}, {"queued_s": 0.05}, "compute", "25 ms per sample, the others 10 ms"),
        ({"compute_s": 0.2}, {"clock_ratio": 0.6, "temperature_c": 91}, "thermal", "; clock at 60% of its highest"),
    ],
)
def test_the_slow_rank_is_named_with_its_cause(
    tmp_path: Path, own: dict[str, Any], device: dict[str, Any], cause: str, says: str
) -> None:
    good = {"clock_ratio": 0.98, "temperature_c": 60}
    folder = write(tmp_path / "run", [{}, own, {}], [good, {**good, **device}, good])
    found = diagnose(folder)
    assert [rank.cause for rank in found.ranks] == [None, cause, None]
    assert found.rounds == 19
    line = " ".join(render(found).split("\n\n")[0].split())
    assert says in line


def test_a_rank_with_more_samples_is_not_slow(tmp_path: Path) -> None:
    double = {name: 2 * value for name, value in USUAL.items() if name != "tail_s"}
    found = diagnose(write(tmp_path / "run", [{}, double]))
    assert [rank.cause for rank in found.ranks] == [None, None]
    assert "No rank is slow" in render(found)


def dealt(samples: list[int], slow: float, fixed_s: float, each_s: float) -> dict[str, Any]:
    """Rounds of so many samples that take slow * (fixed + each * samples)."""
    return {"samples": samples, "compute_s": [slow * (fixed_s + each_s * n) for n in samples], "stall_s": 0.0}


def test_a_rank_with_few_samples_is_not_slow_for_what_does_not_grow(tmp_path: Path) -> None:
    few, many = [8] * 6 + [6] * 7 + [4] * 7, [8] * 6 + [10] * 7 + [12] * 7
    own = [dealt(few, 1.0, 0.016, 0.001), dealt(many, 1.0, 0.016, 0.001)]
    found = diagnose(write(tmp_path / "equal", own))
    assert [rank.cause for rank in found.ranks] == [None, None]
    assert found.ranks[0].fixed_s == pytest.approx(0.024, rel=0.02)
    slow = [dealt(few, 2.0, 0.016, 0.001), dealt(many, 1.0, 0.016, 0.001)]
    found = diagnose(write(tmp_path / "slow", slow))
    assert [rank.cause for rank in found.ranks] == ["compute", None]
    assert "per round of 6 samples" in found.ranks[0].evidence
    assert found.ranks[0].slower > 1.6


def test_shares_that_never_changed_leave_open_whether_a_rank_is_slow(tmp_path: Path) -> None:
    same = [dealt([4] * 20, 1.0, 0.1, 0.0), dealt([12] * 20, 1.0, 0.1, 0.0)]
    found = diagnose(write(tmp_path / "same", same))
    assert [rank.cause for rank in found.ranks] == ["unclear", None]
    assert "cannot be told from a slow rank" in render(found)
    slow = [dealt([4] * 20, 2.0, 0.1, 0.0), dealt([12] * 20, 1.0, 0.1, 0.0)]
    found = diagnose(write(tmp_path / "slow", slow))
    assert [rank.cause for rank in found.ranks] == ["compute", None]  # it is slower per round, too


def test_speeds_over_time_are_shown(tmp_path: Path) -> None:
    times = [0.084] * 10 + [0.184] * 10
    found = diagnose(write(tmp_path / "run", [{"compute_s": times}, {}]))
    first, second = found.speeds
    assert (first.first_round, second.last_round) == (0, 19)
    assert first.samples_per_s == pytest.approx((80.0, 8 / 0.096), rel=1e-6)
    assert second.samples_per_s == pytest.approx((40.0, 8 / 0.096), rel=1e-6)
    assert "11-19" in render(found)
    assert "40 (8)" in render(found)


def test_a_slow_network_is_the_jobs(tmp_path: Path) -> None:
    found = diagnose(write(tmp_path / "run", [{"tail_s": 0.3}, {"tail_s": 0.31}]))
    assert [rank.cause for rank in found.ranks] == [None, None]
    told = render(found)
    assert "exchange takes 300 ms" in told
    assert "on all ranks: the network" in told


def test_the_command_needs_no_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", [{}, {"compute_s": 0.4}])
    assert cli.main(["ranks", str(folder), "--format", "json"]) == 0
    assert [rank["cause"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [None, "compute"]
    assert cli.main(["ranks", str(folder), "--last", "30"]) == 0
    (folder / "rounds-1.jsonl").write_text("")
    assert cli.main(["ranks", str(folder)]) == cli.WRONG_INPUT
    assert "0 rounds were timed on every rank, 8 are needed" in capsys.readouterr().err
