"""The eight pages in Chromium on three screens, light and dark, held to docs/decisions/020-report-pages.md.

With EQUIPOISE_SCREENSHOTS=FOLDER the pictures are kept, to be looked at.
"""

from __future__ import annotations

import base64
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.cli import main
from equipoise.study.report.answers import answer_report
from equipoise.study.report.page import make_report
from tests.study.report.browser import Browser, chromium

pytestmark = pytest.mark.long
SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
SCREENS = ((1400, 900), (900, 700), (420, 900))
SWEEP = f"""\
schema_version: 1
name: made sweep
scenario: {SCENARIOS / "quickstart.yaml"}
policies: [none, s1+s2+s3]
seeds: 1
parameters: {{noise.step_cov: [0.05, 0.3], workload.models.vision.exchange.rate: [5 Gbit/s, 10 Gbit/s]}}
"""
QUEUE = """\
schema_version: 1
name: queue
cluster: {nodes: [{count: 4, gpus: 4, accelerator: a100_sxm_80gb, nic: 200 Gbit/s, nics: 4}]}
workload:
  generate:
    length: 2 d
    classes:
      - rate: 60/d
        duration: {kind: lognormal, median: 1 h, sigma: 1.2, low: 1 min, high: 1 d}
        gpus: {1: 50, 2: 30, 4: 20}
policy: las
"""
KEPT = ("--timeline", "--journal")
PAGES = {
    "one run": ("run", "faulty.yaml", *KEPT),
    "one job": ("compare", "quickstart.yaml", "--policy", "none", "--policy", "s1+s2+s3+s4", "--seeds", "2", *KEPT),
    "many jobs": ("compare", "many-jobs-faults.yaml", "--policy", "fifo", "--policy", "s4", "--seeds", "2", *KEPT),
    "sweep": ("sweep", "sweep.yaml"),
    "large model": ("run", "llm-13b.yaml", *KEPT),
    "size": (
        "size",
        "queue.yaml",
        "--vary",
        "cluster.nodes.0.count=2:6",
        "--target",
        "wait_p95<=30min",
        "--target",
        "cost<=2000USD",
        "--seeds",
        "3",
        "--rank",
    ),
    "tune": (
        "tune",
        "queue.yaml",
        "--vary",
        "policy.las.promote=1:1000:log",
        "--vary",
        "cluster.nodes.0.count=3:8",
        "--trials",
        "12",
        "--seeds",
        "2",
        "--fresh",
        "4",
    ),
}
WRITTEN = {"sweep.yaml": SWEEP, "queue.yaml": QUEUE}

WATCHED = "sweep under way"

CUT = """
const wrong = [];
for (const text of document.querySelectorAll('svg.drawing text')) {
  const [box, inside] = [text.getBoundingClientRect(), text.closest('svg').getBoundingClientRect()];
  if (box.width && (box.left < inside.left - 2 || box.right > inside.right + 2 || box.bottom > inside.bottom + 2))
    wrong.push(text.textContent);
}
for (const e of document.querySelectorAll('h1, h2, h3, p, dt, dd, figcaption, summary, button, label')) {
  const hides = getComputedStyle(e).overflowX === 'hidden' && getComputedStyle(e).position !== 'absolute';
  if (e.offsetParent && hides && e.scrollWidth > e.clientWidth + 1) wrong.push(e.textContent);
}
return wrong"""
FIRST = """
const at = (s) => { const e = document.querySelector(s); return e ? e.getBoundingClientRect().bottom : -1; };
const halves = [...document.querySelectorAll('.first > div')].map((e) => e.getBoundingClientRect());
return {answer: at('#answer .answer'), strip: at('#answer .strip'), drawing: at('#answer svg.drawing'),
        figures: document.querySelectorAll('#answer .strip > div').length,
        halves: halves.map((b) => [b.width, b.height])}"""
UNEXPLAINED = """
return [...document.querySelectorAll('#results tbody th')].filter((e) => e.closest('table').querySelector('th')
  .textContent === 'metric' && !e.title && !e.querySelector('[title]')).map((e) => e.textContent)"""
ABOVE_GANTT = """
const part = document.querySelector('.gantt-part');
return [...part.querySelectorAll('.controls > *')].filter((e) => e.offsetParent && !e.matches('.found')).length"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, (command, scenario, *more) in PAGES.items():
        folder = tmp_path_factory.mktemp("page") / name.replace(" ", "-")
        source = SCENARIOS / scenario
        if scenario in WRITTEN:
            source = folder.parent / scenario
            source.write_text(WRITTEN[scenario])
        if command == "tune" and importlib.util.find_spec("optuna") is None:
            continue
        assert main([command, str(source), *more, "--out", str(folder), "--quiet"]) == 0
        made[name] = (answer_report(folder) or make_report(folder)).path
        if command == "sweep":  # the page that `watch` keeps up to date
            made[WATCHED] = make_report(folder, folder / "watched.html", refresh_s=600.0).path
    return made


@pytest.mark.parametrize("name", [*PAGES, WATCHED])
def test_a_page_holds_to_the_checklist(browser: Browser, pages: dict[str, Path], name: str) -> None:
    if name not in pages:
        pytest.skip("needs Optuna")
    page = pages[name]
    assert page.stat().st_size < 1_000_000
    for width, height in SCREENS:
        for dark in (False, True):
            where = f"{name}, {width} x {height}, {'dark' if dark else 'light'}"
            browser.open(page, width=width, dark=dark)
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.cdp("Emulation.setDeviceMetricsOverride", **size)
            browser.until("return Charts.views.every((v) => Math.abs(v.width - v.stage.clientWidth) < 2)")
            _keep(browser, f"{name.replace(' ', '-')}-{width}-{'dark' if dark else 'light'}.png")
            assert browser.js("return document.documentElement.scrollWidth") <= width, where
            assert browser.js(CUT) == [], where
            assert browser.js(UNEXPLAINED) == [], where
            assert browser.complaints() == [], where
            found = browser.js(FIRST)
            asked = name in ("size", "tune")  # answers have no strip of figures
            assert asked or 3 <= found["figures"] <= 6, where
            if width == 1400:
                assert asked or found["answer"] < found["strip"] < found["drawing"], (where, found)
                assert 0 < found["answer"] < found["drawing"] < height, (where, found)
                assert all(w > 300 and h > 100 for w, h in found["halves"]), (where, found)
            if width == 420 and name in ("one run", "one job", "many jobs", "large model"):
                assert browser.js(ABOVE_GANTT) <= 2, where


def _keep(browser: Browser, name: str) -> None:
    folder = os.environ.get("EQUIPOISE_SCREENSHOTS")
    if folder:
        png = base64.b64decode(browser.cdp("Page.captureScreenshot")["data"])
        assert png.startswith(b"\x89PNG")
        (Path(folder) / name).write_bytes(png)
