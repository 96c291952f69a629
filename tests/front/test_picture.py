from __future__ import annotations

import xml.etree.ElementTree as ET

from tests.bench.picture import USES, draw

SVG = "{http://www.w3.org/2000/svg}"


def run(makespan_s: float, busy: float) -> dict[str, float]:
    return dict.fromkeys(USES, 0.0) | {
        "makespan_s": makespan_s,
        "gpu_busy_ratio": busy,
        "barrier_wait_ratio": 1 - busy,
    }


def test_bars_are_as_long_as_the_runs_and_colours_as_the_shares() -> None:
    picture = draw("a < b", {"none": [run(1200, 0.5)], "s1": [run(600, 0.8), run(600, 0.6)]})
    root = ET.fromstring(picture)
    widths = [float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("height") == "30"]
    first, second = widths[:2], widths[2:]
    assert first[0] == first[1]
    assert abs(sum(second) - sum(first) / 2) < 0.2
    assert abs(second[0] / sum(second) - 0.7) < 1e-3
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "a < b" in texts
    assert "20.0 min" in texts
    assert "idle" not in texts
