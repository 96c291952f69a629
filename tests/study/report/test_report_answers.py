"""The pages of `size` and `tune`: what they say is what the commands found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main
from equipoise.study.questions.targets import read_target
from equipoise.study.report.answers.size import against_cost, against_target
from equipoise.study.report.answers.tune import importance, tune_page

QUEUE = """\
schema_version: 1
name: queue
cluster: {nodes: [{count: 3, gpus: 4, accelerator: a100_sxm_80gb, nic: 200 Gbit/s, nics: 4}]}
workload:
  generate:
    length: 12 h
    classes: [{rate: 80/d, duration: {kind: lognormal, median: 1 h, sigma: 1}, gpus: {1: 50, 4: 50}}]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    return tmp_path / "queue.yaml"


def text_of(page: Path) -> str:
    body = page.read_text().partition("<main")[2].partition("<script")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_page_of_size_has_the_answer_and_the_sizes(scenario, capsys):
    out = scenario.parent / "answer"
    question = ["size", str(scenario), "--vary", "cluster.nodes.0.count=1:4", "--target", "wait_p95<=30min"]
    code = main([*question, "--objective", "cost", "--rank", "--seeds", "2", "--out", str(out), "--quiet"])
    told = capsys.readouterr().out.splitlines()
    assert main(["report", str(out)]) == 0
    content = json.loads((out / "size.json").read_text())
    assert content["said"][0] == told[0]
    page = text_of(out / "report.html")
    met = re.match(r"([0-9]+) nodes? meets? ", told[0])
    lead = f"{met[0]}waiting p95 ≤ 30 min" if met is not None else "No size meets waiting p95 ≤ 30 min"
    assert lead in page
    assert "Waiting p95 against cost" in page
    assert "a100_sxm_80gb (" in page  # the cluster that the answer is about
    assert "2 USD per GPU hour (catalogue, 2026-05)" in page
    assert len(content["ranking"]) == 4
    for row in content["ranking"]:
        assert row["values"] in page
        assert len(row["results"]["queueing_p95_s"]) <= 2
        assert np.mean(row["results"]["queueing_p95_s"]) == pytest.approx(row["queueing_p95_s"])
    assert (code == 0) == content["met"]
    again = (out / "report.html").read_bytes()
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").read_bytes() == again
    capsys.readouterr()
    assert main(["run", str(scenario), "--out", str(out), "--quiet"]) == 2  # a folder holds one study
    assert "holds a size" in capsys.readouterr().err


def size_row(name: str, wait_s: float, cost: float, *, meets: bool) -> dict:
    results = {"queueing_p95_s": [wait_s - 60, wait_s + 60], "cost_usd": [cost, cost]}
    return {
        "values": name,
        "queueing_p95_s": wait_s,
        "results": results,
        "meets": meets,
        "cost_usd": cost,
        "makespan_s": 3600.0 + wait_s,
    }


def test_sizes_are_drawn_against_the_limit_with_the_range_of_their_runs():
    targets = [read_target(text) for text in ("wait_p95<=1h", "cost<=25USD")]
    rows = [
        size_row("b", 1800, 20, meets=True),
        size_row("c", 900, 30, meets=False),
        size_row("a", 7200, 10, meets=False),
        size_row("d", 7200, 40, meets=False),
        size_row("e", 3590, 10, meets=False),  # one of its two runs takes longer than an hour
    ]
    chart = against_target(rows, targets)
    assert chart is not None
    mean, low, high, limit = (list(series.y) for series in chart.series)
    assert (mean, limit) == (pytest.approx([0.5, 0.25, 2.0, 2.0, 3590 / 3600]), [1.0])
    assert low == pytest.approx([m - 1 / 60 for m in mean])
    assert high == pytest.approx([m + 1 / 60 for m in mean])
    assert chart.series[0].labels == [
        "30 min",
        "15 min (misses cost)",
        "2 h (over the limit)",
        "2 h (over the limit, misses cost)",
        "59.8 min (1 of 2 runs meet the targets)",
    ]
    assert chart.series[0].colour == 0  # ranked first
    trade = against_cost(rows[:3], read_target("makespan<=1d"))
    assert trade is not None
    assert list(trade.series[-1].x) == [10, 20, 30]  # none beats another in both
    assert against_target([], targets) is None
    assert against_cost(rows[:1], targets[0]) is None
    waits = against_cost(rows[:3], targets[0])  # what people trade where jobs queue
    assert waits is not None
    assert waits.title == "Waiting p95 against cost"
    assert list(waits.series[-1].y) == [2.0, 0.5, 0.25]


def trials(count: int, effect: float) -> list[dict]:
    random = np.random.default_rng(1)
    found = [{"values": {}, "means": {"makespan_s": 5.0}, "seeds": 1, "pruned": False}]
    for _ in range(count):
        a, b = float(random.random()), str(random.choice(["x", "y"]))
        mean = effect * a + float(random.normal(0.0, 0.1))
        found.append({"values": {"a": a, "b": b}, "means": {"makespan_s": mean}, "seeds": 1, "pruned": False})
    return found


def test_the_parameter_that_matters_is_named():
    (first, share), (second, rest) = importance(trials(60, 1.0), "makespan_s")
    assert (first, second) == ("a", "b")
    assert share > 0.7
    assert rest < 0.1
    assert max(share for _, share in importance(trials(60, 0.0), "makespan_s")) < 0.15  # noise alone explains nothing
    assert importance(trials(5, 1.0), "makespan_s") == []
    whole = [{**t, "values": t["values"] and {"n": round(4 * t["values"]["a"])}} for t in trials(60, 1.0)]
    assert importance(whole, "makespan_s")[0][1] > 0.7  # few whole numbers are groups of their own


def tuned(folder: Path, *, better: bool) -> None:
    made = trials(20, 1.0)
    best = min(made[1:], key=lambda trial: trial["means"]["makespan_s"])
    ratio = {"mean": 0.8, "low": 0.7, "high": 0.9, "n": 5}
    choice = {"trial": best, "means": {"makespan_s": 4.0}, "ratios": {"makespan_s": ratio}, "p": {"makespan_s": 0.001}}
    content = {
        "schema_version": 2,
        "scenario": "<mine>",
        "policy": "fifo",
        "better": better,
        "trials": made,
        "vary": {"a": {"low": 0, "high": 1, "whole": False, "scale": "linear"}, "b": ["x", "y"]},
        "choices": [choice],
        "start": {"makespan_s": 5.0},
        "notes": [],
    }
    (folder / "tune.json").write_text(json.dumps(content))


def test_the_page_of_tune_says_what_was_found_and_what_was_not(tmp_path):
    tuned(tmp_path, better=True)
    page = tune_page(tmp_path)
    assert "&lt;mine&gt;" in page
    assert "makespan x 0.800 of what it is now, on unseen seeds" in page
    assert "95 % interval 0.700 to 0.900" in page
    assert page.count("trial ") >= 20
    tuned(tmp_path, better=False)
    assert "Nothing was found that is significantly better" in tune_page(tmp_path)


def test_a_damaged_answer_is_one_line(tmp_path, capsys):
    (tmp_path / "tune.json").write_text('{"trials": []}')
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "tune.json: is damaged, or of another version: it has no 'scenario'" in line
