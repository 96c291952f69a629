"""The pages of `size` and `tune`: what they say is what the commands found."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli import main

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
    page = text_of(out / "report.html")
    lead = content["page"]["answer"][0]
    assert " ".join(told).startswith(lead)
    assert html.escape(lead) in page
    assert "Waiting p95 against cost" in page
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


def test_a_damaged_answer_is_one_line(tmp_path, capsys):
    (tmp_path / "tune.json").write_text('{"trials": []}')
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "tune.json: is damaged, or of another version: it has no 'page'" in line
