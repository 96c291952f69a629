"""docs/policies.md is what the docstrings say now, and leaves nothing blank."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise import api
from equipoise.policies.contract import Policy
from equipoise.study.stage_check import rules_for
from tests.bench import policies_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    made = "python -m tests.bench.policies_page"
    assert policies_page.PAGE.read_text(encoding="utf-8") == policies_page.text(), f"make it anew: {made}"


def test_every_field_says_what_it_means():
    rows = [line.split(" | ") for line in policies_page.text().splitlines() if line.startswith("| ")]
    blank = [row[0] for row in rows if not row[-1].rstrip("|").strip()]
    assert blank == [], "say in a comment behind the field what it means"


def test_the_example_that_looks_at_speeds_holds_to_the_contract_and_leaves_a_slow_node():
    code = next(text for text in re.findall(r"```python\n(.*?)```", policies_page.HEAD, re.S) if "Fastest" in text)
    names = {"__name__": "fastest"}
    exec(compile(code, "fastest.py", "exec", dont_inherit=True), names)
    stage = names["FastestNodes"]()
    for rule in rules_for(stage):
        rule(stage)
    nodes = [{"name": "slow", "gpus": 1, "speed": 0.5}, {"name": "fast", "gpus": 1}]
    train = {"model": "m", "gpus": 1, "steps": 100}
    spec = {
        "schema_version": 1,
        "name": "two",
        "cluster": {"nodes": nodes},
        "workload": {"models": {"m": {"sample_time": 1.0}}, "jobs": [train, train, train | {"arrival": "1 h"}]},
    }
    found = api.run(spec, policy=Policy("fastest", (stage,))).jobs
    assert (found["completion_s"] - found["start_s"]).tolist() == pytest.approx([200.0, 100.0, 100.0])


def test_the_example_runs_on_standard_input_and_holds_to_the_contract(tmp_path):
    code = re.search(r"^```python\n(.*?)^```$", policies_page.HEAD, re.M | re.S)[1]
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rarely(interval=8)+easy" in done.stdout
    assert "rarely on quickstart" in done.stdout or "rarely" in done.stdout.splitlines()[-1]
