"""docs/policies.md is what the docstrings say now, and leaves nothing blank."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise import api
from equipoise.policies.contract import Policy
from equipoise.study.stage_check.rules import rules_for
from tests.bench import policies_compared, policies_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    made = "python -m tests.bench.policies_page"
    assert policies_page.PAGE.read_text(encoding="utf-8") == policies_page.text(), f"make it anew: {made}"


def test_every_field_says_what_it_means():
    rows = [line.split(" | ") for line in policies_page.text().splitlines() if line.startswith("| ")]
    blank = [row[0] for row in rows if not row[-1].rstrip("|").strip()]
    assert blank == [], "say in a comment behind the field what it means"


def test_what_is_compared_can_be_named_on_its_page():
    policies = (*policies_compared.INSIDE, *policies_compared.QUEUE)
    assert {policies_compared.starves(policy) for policy in policies} == {"", "no", "may"}
    assert policies_compared.starves("none") == ""


def compared(**minutes):
    """A comparison with these mean completion times on three seeds, by policy."""
    runs = {
        policy: [
            SimpleNamespace(metrics={"completion_mean_s": minute * 60.0 * noise}) for noise in (1, 1.1, 1.2)
        ]
        for policy, minute in minutes.items()
    }
    return SimpleNamespace(policies=tuple(runs), of=runs.get)


FREE = f"s4({policies_compared.FREE})"


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ({"s4": 106, "easy": 100}, "`s4` loses to `easy`: x1.06 (1.06 to 1.06); the other bounds how long a job "
         "waits, more than 5 %: a defect."),
        ({"s4": 104, "easy": 100}, "`s4` loses to `easy`: x1.04 (1.04 to 1.04); the other bounds how long a job "
         "waits, at most 5 %."),
        ({"s4": 150, "srtf": 100}, "`s4` loses to `srtf`: x1.50 (1.50 to 1.50); it bounds how long a job waits, "
         "the other does not."),
        ({FREE: 150, "srtf": 100}, f"`{FREE}` loses to `srtf`: x1.50 (1.50 to 1.50); neither bounds how long a job "
         "waits, more than 5 %: a defect."),
        ({"s1+s2+s3+s4": 150, "none": 100}, "`s1+s2+s3+s4` loses to `none`: x1.50 (1.50 to 1.50); no job waits "
         "here, more than 5 %: a defect."),
    ],
)  # fmt: skip
def test_the_page_says_where_the_stages_lose(minutes, said):
    lines = policies_compared.losses(compared(**minutes), {"formula": "because."})
    assert lines == [f"- {said}", "- What differs in mode formula: because."]


def test_the_page_says_where_they_lose_nothing():
    found = compared(s4=99, srtf=100, easy=110)
    assert policies_compared.losses(found, {}) == ["- s1-s4 loses to none of the others in mean completion."]
    assert policies_compared.losses(compared(s4=101, srtf=100), {})[-1].endswith("not known yet.")


def test_the_example_that_looks_at_speeds_holds_to_the_contract_and_leaves_a_slow_node():
    code = next(
        text for text in re.findall(r"```python\n(.*?)```", policies_page.HEAD, re.S) if "Fastest" in text
    )
    names = {"__name__": "fastest"}
    exec(compile(code, "fastest.py", "exec", dont_inherit=True), names)
    stage = names["FastestNodes"]()
    for rule in rules_for(stage):
        rule(stage)
    nodes = [{"name": "slow", "gpus": 1, "speed": 0.5}, {"name": "fast", "gpus": 1}]
    train = {"model": "m", "gpus": 1, "steps": 100}
    spec = {
        "schema_version": 1, "name": "two", "cluster": {"nodes": nodes},
        "workload": {
            "models": {"m": {"sample_time": 1.0}},
            "jobs": [train, train, train | {"arrival": "1 h"}],
        },
    }  # fmt: skip
    found = api.run(spec, policy=Policy("fastest", (stage,))).jobs
    assert (found["completion_s"] - found["start_s"]).tolist() == pytest.approx([200.0, 100.0, 100.0])


def test_the_example_runs_on_standard_input_and_holds_to_the_contract(tmp_path):
    code = re.search(r"^```python\n(.*?)^```$", policies_page.HEAD, re.M | re.S)[1]
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=code, text=True, capture_output=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "rarely(interval=8)+easy" in done.stdout
    assert "rarely on quickstart" in done.stdout or "rarely" in done.stdout.splitlines()[-1]
