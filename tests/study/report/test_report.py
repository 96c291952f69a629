"""The report as a file: structure, safety, size, and what it says when things are missing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise import cli
from equipoise.sim.scenario.tree import InputError
from equipoise.study.needs import LowerBound
from equipoise.study.report.html import embedded
from equipoise.study.report.metrics import PAGE, definitions
from equipoise.study.report.page import make_report
from equipoise.study.runs.comparison import Comparison, Result
from tests.study.report.report_data import make_run
from tests.study.report.report_reader import Page

HOSTILE = """</script><script>alert("1")</script><img src=x onerror='alert(2)'>&amp;\u2028${title}"""
ROOT = Path(__file__).resolve().parents[3]


def identity(policy: str, seed: int) -> str:
    """What stands for the hash of a run's inputs."""
    return hashlib.sha256(f"{policy} {seed}".encode()).hexdigest()[:16]


def run_folder(out: Path, policy: str, seed: int) -> Path:
    """The run directory in a comparison."""
    return out / "runs" / identity(policy, seed)


def make_comparison(out: Path, policies: list[str], seeds: int, *, timeline: bool = True, **more: Any) -> Comparison:
    """A comparison directory; run directories, with timelines for the first seed."""
    results = []
    for policy in policies:
        for seed in range(seeds):
            run = make_run(run_folder(out, policy, seed), policy, seed, timeline=timeline and seed == 0, **more)
            results.append(Result(policy, seed, identity(policy, seed), run.summary(), (), dict(run.totals)))
    name = str(more.get("name", "made"))
    made = Comparison(
        name, tuple(policies), tuple(range(seeds)), tuple(results), LowerBound(60.0, 30.0, False), ("a note",)
    )
    (out / "comparison.json").write_text(made.as_json(), encoding="utf-8")
    return made


def page_of(folder: Path) -> Page:
    return Page(make_report(folder).path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    make_comparison(out, ["fifo", "easy"], 3, jobs=12, decisions=4)
    return out


@pytest.fixture(scope="module")
def page_text(compared: Path) -> str:
    """The page of `compared`."""
    return make_report(compared).path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(page_text: str) -> Page:
    """The same, read."""
    return Page(page_text)


# --- structure ------------------------------------------------------------------------------------


def test_landmarks_headings_and_names(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    for tag in ("header", "main", "footer", "nav", "h1"):
        assert len(page.named(tag)) == 1
    assert page.named("html")[0]["lang"] == "en"
    links = [str(a["href"])[1:] for a in page.named("a")]
    assert links[0] == "main"  # the skip link comes first
    assert set(links) <= set(page.ids)
    assert {"results", "completion", "tradeoff", "closely", "provenance", "definitions"} <= set(page.ids)
    for section in page.named("section"):
        assert section.get("aria-labelledby") in page.ids or section.get("aria-label")
    depths = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in pairwise(depths))


def test_it_asks_nothing_from_any_network(page_text: str, page: Page) -> None:
    text = page_text
    policy = next(m["content"] for m in page.named("meta") if m.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'")
    assert not [a for _, attributes in page.tags for a in attributes if a in ("src", "srcset")]
    assert page.named("link") == []
    code = text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, not an address
    assert not re.search(
        r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//|url\((?!#)|@import|\bfetch\(|XMLHttp|WebSocket", code
    )


# --- safety ---------------------------------------------------------------------------------------


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fifo", HOSTILE], 2, jobs=4, decisions=2, name=HOSTILE, job_name=HOSTILE)
    folder = run_folder(tmp_path, HOSTILE, 0)
    (tmp_path / "sensitivity.json").write_text(
        json.dumps(
            {
                "metric": "makespan_s",
                "base": 10.0,
                "rows": [{"key": HOSTILE, "low_value": HOSTILE, "high_value": "<b>", "low": 9.0, "high": 11.0}],
            }
        )
    )
    (folder / "manifest.json").write_text(
        json.dumps({**json.loads((folder / "manifest.json").read_text()), "status": HOSTILE})
    )
    page = page_of(tmp_path)
    assert HOSTILE in page.text
    assert page.named("img") == []
    scripts = page.named("script")
    plain = [s for s in scripts if s.get("type") is None]
    assert len(plain) == 1
    assert "alert" not in page.scripts["code"]
    assert any(s["name"] == HOSTILE for chart in page.data["charts"] for s in chart["series"])
    assert json.loads(page.blob("names-1"))["names"][0] == f"{HOSTILE}-0"


@pytest.mark.parametrize("text", ["</script>", "<!--", "<script", "]]>", "&lt;", "\u2028\u2029", "\ud800", "'\"\\"])
def test_embedded_json_cannot_end_its_element(text: str) -> None:
    found = embedded({text: [text]})
    assert not set("<>&") & set(found)
    assert found.isascii()
    assert json.loads(found) == {text: [text]}


# --- what is missing ------------------------------------------------------------------------------


def test_decisions_name_the_jobs_that_they_change(tmp_path: Path) -> None:
    """Each start of a job is an entry with its name, at the time and with the GPUs that its record says."""
    scenario = {
        "schema_version": 1,
        "name": "named",
        "cluster": {"nodes": [{"name": "n", "count": 2, "gpus": 4}]},
        "workload": {
            "jobs": [
                {"name": "small", "count": 3, "spacing": "5 min", "gpus": 2, "duration": "30 min"},
                {"name": "wide", "gpus": 8, "arrival": "1 min", "duration": "10 min"},
            ]
        },
    }
    made = equipoise.run(scenario, policy="fifo", out=tmp_path, journal=True)
    found = json.loads(page_of(tmp_path).blob("run-0"))["decisions"]
    entries = [
        (found["time"][k], found["texts"][found["text"][k]])
        for k in range(len(found["time"]))
        if found["stages"][found["stage"][k]] == "job"
    ]
    starts = {text.partition(": ")[0]: (at_s, text) for at_s, text in entries if ": started on" in text}
    names = [str(name) for name in made.jobs["name"]]
    assert sorted(starts) == sorted(names) == ["small-0", "small-1", "small-2", "wide"]
    for k, name in enumerate(names):
        assert starts[name][0] == pytest.approx(made.jobs["start_s"][k])
        assert f"started on {made.jobs['gpus'][k]} GPUs of node" in starts[name][1]
    assert starts["wide"][1].endswith("of nodes 0-1")


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=3, stopped="stage s9 at 1 s: out of <luck>")
    page = page_of(tmp_path)
    assert "The run did not end: stage s9 at 1 s: out of <luck>." in page.text
    assert "There are no results." in page.text
    assert page.data["runs"][0]["bars"]["count"] == 12  # what was recorded up to then is shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no results here; a run (manifest.json), a comparison (comparison.json) or a sweep"),
        (lambda p: (p / "shards").mkdir(), "shards of a sweep"),
        (lambda p: (p / "comparison.json").write_text("{"), "comparison.json: is damaged"),
        (lambda p: (p / "comparison.json").write_text('{"policies": 3}'), "is damaged: TypeError"),
        (lambda p: (p / "sweep.db").write_text("no database, only text" * 100), "sweep.db: cannot be read"),
        (lambda p: (p / "manifest.json").write_bytes(b"\xff"), "manifest.json: is damaged"),
    ],
)
def test_wrong_folders_are_one_line_and_code_2(
    make: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not (tmp_path / "report.html").exists()


def test_damaged_parts_are_named(tmp_path: Path) -> None:
    make_run(tmp_path, jobs=2, decisions=2)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], '{"time_s": 3}', *lines[1:]]) + "\n")
    with pytest.raises(InputError, match=r"journal\.jsonl:2: is damaged"):
        make_report(tmp_path)
    journal.unlink()
    (tmp_path / "sensitivity.json").write_text('{"rows": [{"key": 1}]}')
    with pytest.raises(InputError, match=r"sensitivity\.json: is damaged"):
        make_report(tmp_path)


# --- size, bytes, command -------------------------------------------------------------------------


@pytest.mark.long
def test_a_hundred_runs_stay_below_5_mb(tmp_path: Path) -> None:
    policies = [f"policy-{k}" for k in range(10)]
    small, large = tmp_path / "small", tmp_path / "large"
    run = make_run(small, jobs=12, timeline=False)
    make_run(large, jobs=6000, each=10, buckets=1024)  # eight of these are too many
    results = []
    for policy in policies:
        for seed in range(10):
            folder = run_folder(tmp_path, policy, seed)
            shutil.copytree(small if seed else large, folder, copy_function=os.link)
            manifest = json.loads((folder / "manifest.json").read_text()) | {"policy": policy, "seed": seed}
            (folder / "manifest.json").unlink()
            (folder / "manifest.json").write_text(json.dumps(manifest))
            results.append(Result(policy, seed, identity(policy, seed), run.summary(), (), dict(run.totals)))
    made_of = Comparison("made", tuple(policies), tuple(range(10)), tuple(results), LowerBound(60.0, 30.0, False), ())
    (tmp_path / "comparison.json").write_text(made_of.as_json())
    made = make_report(tmp_path)
    assert made.size_bytes < 5e6
    shown = [run["label"] for run in Page(made.path.read_text()).data["runs"]]
    assert 1 <= len(shown) < 8
    (note,) = made.notes
    left = [f"policy-{k}, seed 0" for k in range(8) if f"policy-{k}, seed 0" not in shown]
    assert note.startswith("not in detail")
    assert all(label in note for label in left)


def test_the_same_folder_gives_the_same_bytes_in_another_process(compared: Path, tmp_path: Path) -> None:
    here = make_report(compared, tmp_path / "here.html").path.read_bytes()
    call = f"make_report({str(compared)!r}, {str(tmp_path / 'there.html')!r})"
    code = f"from equipoise.study.report.page import make_report; {call}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
    assert (tmp_path / "there.html").read_bytes() == here


def test_the_command_writes_and_says_where(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "r.html"
    assert cli.main(["report", str(compared), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert out.is_file()
    (tmp_path / "file").write_text("")
    assert cli.main(["report", str(compared), "--out", str(tmp_path / "file" / "r.html")]) == 2
    assert "'--out'" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_metrics_page_is_one_source(page: Page) -> None:
    assert PAGE.read_text(encoding="utf-8") == (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert all(name in page.text for name in definitions())
    assert definitions()["completion_p95_s"] == definitions()["completion_p50_s"]
