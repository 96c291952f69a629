import math

import pytest
import yaml

from equipoise.study.runs.warm import _SMALL
from equipoise.study.statistics import Interval, paired_ratio
from tests.bench.stages_table import ADDED, POLICIES, judge, stages_table


@pytest.mark.parametrize(
    ("ratio", "says"),
    [
        (Interval(0.8, 0.75, 0.85, 5), "**helps**: x0.800 (0.750 to 0.850)"),
        (Interval(1.2, 1.1, 1.3, 5), "**hurts**: x1.20 (1.10 to 1.30)"),
        (Interval(0.97, 0.9, 1.04, 5), "does not help: x0.970 (0.900 to 1.04), no difference can be told"),
        (Interval(0.9995, 0.9994, 0.9996, 5), "does not help"),
        (Interval(0.7, math.nan, math.nan, 1), "**helps**: x0.700"),
        (Interval(1.0, math.nan, math.nan, 1), "changes nothing"),
        (paired_ratio([3.0, 4.0], [3.0, 4.0]), "changes nothing"),
    ],
)
def test_verdicts(ratio, says):
    assert judge(ratio).startswith(says)


def test_page_of_a_small_scenario(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(_SMALL | {"why": "a small case"}))
    page = stages_table([path], seeds=2, command="make the page")
    assert page == stages_table([path], seeds=2, command="make the page")
    assert "Made by `make the page`" in page
    assert "## warm-up\n\na small case\n\n2 seeds." in page
    verdicts = [line for line in page.splitlines() if line.startswith("- S")]
    assert [line.split()[1] for line in verdicts] == list(ADDED)
    for line, target in zip(
        verdicts, ("input stall", "barrier wait", "exposed comm.", "waiting mean"), strict=True
    ):
        assert ("**helps**" in line) != line.endswith(" without it")
        assert "**helps**" in line or f"; {target} was " in line
    assert any(line.endswith(" without it") for line in verdicts)
    header = next(line for line in page.splitlines() if line.startswith("| metric"))
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert all(f"`{policy}`" in header for policy in POLICIES)
    assert {row.count("|") for row in rows} == {len(POLICIES) + 2}
