"""The report in a real browser: charts, hover, zoom, keyboard, the Gantt chart, decisions, themes, print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from equipoise.study.report.page import make_report
from tests.study.report.browser import Browser, chromium
from tests.study.report.report_data import make_run, write_journal, write_timeline
from tests.study.report.report_data import segments as made_segments
from tests.study.report.test_report import HOSTILE, make_comparison, run_folder

DOMAIN = "const v = Charts.views.find((v) => v.chart.id === arguments[0]); return [v.view.x0, v.view.x1]"
GANTT = "const g = Gantt.views[0]; "


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser")
    make_comparison(out, ["fifo", "easy"], 2, jobs=40, each=6, usd=50.0)
    write_journal(run_folder(out, "fifo", 0) / "journal.jsonl", 2000)
    tornado = (
        '{"metric": "makespan_s", "base": 10, "rows": '
        '[{"key": "k", "low_value": 1, "high_value": 2, "low": 9, "high": 12}]}'
    )
    (out / "sensitivity.json").write_text(tornado)
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return make_report(folder).path


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def test_offline_without_complaints(opened: Browser) -> None:
    ids = opened.js("return [...document.querySelectorAll('figure svg.drawing')].length")
    assert ids == len(opened.js("return Charts.views.map((v) => v.chart.id)")) == 8
    assert opened.js("return document.querySelector('.failed').textContent") == ""
    opened.js("document.getElementById('run').selectedIndex = 1; document.getElementById('run').onchange()")
    opened.until("return document.getElementById('closely').dataset.run === '1'")
    assert opened.js("return document.querySelector('.decisions').hidden") is True
    assert opened.complaints() == []
    assert opened.requests() == []


def test_hover_reads_every_curve(opened: Browser) -> None:
    box = opened.place("#chart-completion svg.drawing")
    opened.mouse("mouseMoved", box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2)
    text = opened.until(
        "const t = document.querySelector('#chart-completion .tip'); return t.hidden ? '' : t.innerText"
    )
    where, fifo, easy = text.splitlines()
    assert re.fullmatch(r"time from arrival to completion [\d.]+ min", where)
    assert fifo.startswith("fifo: 9")
    assert easy.startswith("easy: 9")
    opened.mouse("mouseMoved", box["x"] + box["width"] / 2, box["y"] - 60)
    assert opened.until("return document.querySelector('#chart-completion .tip').hidden")


def test_hover_finds_a_point(opened: Browser) -> None:
    opened.place("#chart-pareto svg.drawing")
    x, y = opened.js(
        "const v = Charts.views.find((v) => v.chart.id === 'pareto'); const s = v.chart.series[0];"
        "const b = v.svg.getBoundingClientRect(); const k = b.width / v.width;"
        "return [b.x + v.px(s.x[0]) * k, b.y + v.py(s.y[0]) * k]"
    )
    opened.mouse("mouseMoved", x, y)
    text = opened.until("const t = document.querySelector('#chart-pareto .tip'); return t.hidden ? '' : t.innerText")
    assert text.splitlines()[0] in ("fifo", "easy")
    assert "cost (USD): 50" in text


def test_dragging_zooms_and_a_double_click_shows_all(opened: Browser) -> None:
    full = opened.js(DOMAIN, "completion")
    box = opened.place("#chart-completion svg.drawing")
    middle = box["y"] + box["height"] / 2
    opened.drag(box["x"] + box["width"] * 0.4, middle, box["x"] + box["width"] * 0.6, middle)
    low, high = opened.js(DOMAIN, "completion")
    assert full[0] < low < high < full[1]
    assert high - low == pytest.approx((full[1] - full[0]) * 0.2, rel=0.25)
    box = opened.place("#chart-completion svg.drawing")
    for count in (1, 2):
        where = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        opened.mouse("mousePressed", *where, button="left", clickCount=count)
        opened.mouse("mouseReleased", *where, button="left", clickCount=count)
    assert opened.js(DOMAIN, "completion") == full


def test_charts_by_keyboard(opened: Browser) -> None:
    full = opened.js(DOMAIN, "completion")
    opened.js("document.querySelector('#chart-completion svg.drawing').focus()")
    opened.key("+")
    low, high = opened.js(DOMAIN, "completion")
    assert high - low == pytest.approx((full[1] - full[0]) / 2)
    opened.key("ArrowRight", modifiers=8)
    assert opened.js(DOMAIN, "completion")[0] > low
    opened.key("0")
    assert opened.js(DOMAIN, "completion") == full
    opened.key("ArrowRight")
    told = opened.js("return document.querySelector('#chart-completion [aria-live]').textContent")
    assert "fifo: " in told
    assert opened.js("return document.activeElement.classList.contains('drawing')")


def test_the_legend_hides_and_shows(opened: Browser) -> None:
    count = "return Charts.views.find((v) => v.chart.id === 'completion').layer.querySelectorAll('path').length"
    assert opened.js(count) == 2
    button = "document.querySelector('#chart-completion .legend button')"
    opened.js(f"{button}.click()")
    assert opened.js(count) == 1
    assert opened.js(f"return {button}.getAttribute('aria-pressed')") == "false"
    opened.js(f"{button}.click()")
    assert opened.js(count) == 2


# --- Gantt chart ------------------------------------------------------------------------------------


def test_hover_names_the_job_and_its_stretch(opened: Browser) -> None:
    opened.place(".gantt canvas")
    x, y, row = opened.js(
        GANTT + "const k = 1; const b = g.canvas.getBoundingClientRect();"
        "const r = g.bars.row[k]; const middle = g.bars.start[k] + g.bars.length[k] / 2;"
        "return [b.x + g.px(middle), b.y + g.py(g.lanes.of[r] + 0.5), r]"
    )
    opened.mouse("mouseMoved", x, y)
    text = opened.until("const t = document.querySelector('.gantt .tip'); return t.hidden ? '' : t.innerText")
    assert text.startswith(f"job-{row}\n")
    assert "GPUs" in text


def test_the_gantt_chart_by_keyboard(opened: Browser) -> None:
    view = GANTT + "return [g.x0, g.x1, g.y0, g.y1]"
    full = opened.js(view)
    opened.js("document.querySelector('.gantt canvas').focus()")
    opened.key("+")
    zoomed = opened.js(view)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (full[1] - full[0]))
    opened.key("ArrowRight")
    assert opened.js(view)[0] > zoomed[0]
    opened.key("*")
    assert opened.js(view)[3] - opened.js(view)[2] == pytest.approx(0.6 * (full[3] - full[2]))
    opened.key("0")
    assert opened.js(view) == full
    opened.key("n")
    first = opened.js("return document.querySelector('.gantt [aria-live]').textContent")
    opened.key("n")
    second = opened.js("return document.querySelector('.gantt [aria-live]').textContent")
    assert first.startswith("job-0, waiting")
    assert second.startswith("job-0, ran")


def test_the_gantt_chart_by_mouse(opened: Browser) -> None:
    view = GANTT + "return [g.x0, g.x1, g.y0, g.y1]"
    full = opened.js(view)
    box = opened.place(".gantt canvas")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100)
    assert opened.js(view) == full  # without the focus the wheel belongs to the page
    box = opened.place(".gantt canvas")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.js("document.querySelector('.gantt canvas').focus({preventScroll: true})")
    opened.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100)
    opened.until(GANTT + f"return g.x1 - g.x0 < {full[1] - full[0]}")
    before = opened.js(view)
    opened.drag(x, y, x - 120, y)
    assert opened.js(view)[0] > before[0]


def test_a_job_is_found_by_name(opened: Browser) -> None:
    opened.js("const f = document.querySelector('[data-act=find]'); f.value = 'JOB-17'; f.focus()")
    opened.key("Enter")
    told = opened.js("return document.querySelector('.gantt [aria-live]').textContent")
    assert told.startswith("job-17, ")
    opened.js("const f = document.querySelector('[data-act=find]'); f.value = 'nobody'; f.focus()")
    opened.key("Enter")
    assert opened.js("return document.querySelector('.found').textContent") == "no job of that name"


def test_packed_rows_never_overlap_and_are_as_few_as_can_be(opened: Browser) -> None:
    opened.js("const s = document.querySelector('[data-choose=order]'); s.value = 'packed'; s.onchange()")
    lane, start, length, row = (
        opened.js(GANTT + f"return Array.from(g.{name})")
        for name in ("lanes.of", "bars.start", "bars.length", "bars.row")
    )
    spans: dict[int, list[tuple[int, int]]] = {}
    for job in sorted(set(row)):
        of = [k for k, r in enumerate(row) if r == job]
        spans.setdefault(lane[job], []).append((start[of[0]], start[of[-1]] + length[of[-1]]))
    for jobs in spans.values():
        jobs.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(jobs))
    everything = [span for jobs in spans.values() for span in jobs]
    at_once = max(sum(a <= begun < b for a, b in everything) for begun, _ in everything)
    assert opened.js(GANTT + "return g.lanes.count") == at_once == len(spans)


def test_rows_are_grouped_by_size_and_by_node(opened: Browser, folder: Path) -> None:
    choose = "const s = document.querySelector('[data-choose=order]'); s.value = arguments[0]; s.onchange()"
    most = "const most = {}; g.bars.row.forEach((r, k) => { most[r] = Math.max(most[r] || 0, g.bars.gpus[k]); });"
    said = (
        "let at = ''; const of = {}; g.lanes.titles.forEach((t, k) => { at = t || at; of[k] = at; });"
        "const size = (n) => `${n} GPU${n === 1 ? '' : 's'}`;"
        "const own = (r) => arguments[0] === 'size' ? size(most[r]) : g.nodes[g.nodeOf[r]];"
        "return [g.lanes.titles.filter(Boolean),"
        " Object.fromEntries(Array.from(g.lanes.jobs, (r) => [r, [of[g.lanes.of[r]], own(r)]]))]"
    )
    for by in ("size", "node"):
        opened.js(choose, by)
        titles, group = opened.js(GANTT + most + said, by)
        assert len(titles) == len(set(titles)) > 2
        assert len(group) == 40
        assert all(is_in == belongs for is_in, belongs in group.values())


# --- decisions, themes, print, small screens, names -------------------------------------------------


def test_a_job_that_never_came_has_no_row(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path, jobs=5, each=2)
    rows = made_segments(5, 2, 64)
    write_timeline(tmp_path, {key: values[rows["job_id"] != 3] for key, values in rows.items()}, 64, 8)
    browser.open(make_report(tmp_path).path)
    assert browser.js(GANTT + "return Array.from(g.lanes.jobs)") == [0, 1, 2, 4]
    browser.js(GANTT + "g.select(3, 6)")
    assert browser.js("return document.querySelector('.gantt .tip .first').textContent") == "job-4"
    browser.js("const s = document.querySelector('[data-choose=order]'); s.value = 'long'; s.onchange()")
    assert sorted(browser.js(GANTT + "return Array.from(g.lanes.jobs)")) == [0, 1, 2, 4]
    assert browser.complaints() == []


def test_decisions_are_searched_and_only_those_in_view_exist(opened: Browser) -> None:
    count = "return document.querySelector('.decisions .count').textContent"
    assert opened.js(count) == "4200 of 4200 entries"
    assert opened.js("return document.querySelectorAll('.list .line').length") < 40
    opened.js(
        "const f = document.querySelector('.decisions input'); f.value = 'gpu 3 is DOWN';"
        "f.dispatchEvent(new Event('input'))"
    )
    assert opened.js(count) == "200 of 4200 entries"
    opened.js("document.querySelector('.list').focus()")
    opened.key("End")
    chosen = opened.js("return document.querySelector('.list .chosen').innerText")
    assert "refused" in chosen
    assert opened.js("return document.querySelector('.list').getAttribute('aria-activedescendant')") == "decision-199"
    assert "GPU 3 is down" in opened.js("return document.querySelector('.full').textContent")
    # Choosing a decision moves the chart to its time.
    span = opened.js(GANTT + "return (g.x1 - g.x0) / g.end")
    assert span == pytest.approx(0.25)


def test_a_small_screen_needs_no_sideways_scrolling(browser: Browser, page: Path) -> None:
    browser.open(page, width=390)
    wide = browser.js("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    assert browser.js("return Charts.views.every((v) => v.svg.getBoundingClientRect().right <= innerWidth)")


def test_everything_that_can_be_used_has_a_name(opened: Browser) -> None:
    opened.cdp("Accessibility.enable")
    nodes: list[dict[str, Any]] = opened.cdp("Accessibility.getFullAXTree")["nodes"]
    used = {
        "button",
        "link",
        "textbox",
        "searchbox",
        "combobox",
        "image",
        "img",
        "grid",
        "application",
        "table",
        "region",
    }
    roles: dict[str, int] = {}
    for node in nodes:
        role = str(node.get("role", {}).get("value", ""))
        roles[role] = roles.get(role, 0) + 1
        if role.lower() in used and not node.get("ignored"):
            assert node.get("name", {}).get("value"), node
    assert roles["main"] == roles["banner"] == roles["navigation"] == roles["contentinfo"] == 1
    assert roles["heading"] > 10


def test_the_skip_link_is_first_and_the_focus_is_seen(opened: Browser) -> None:
    opened.key("Tab")
    assert opened.js("return document.activeElement.className") == "skip"
    assert opened.js("return document.activeElement.getBoundingClientRect().left") >= 0
    opened.js("document.querySelector('#chart-completion button').focus({focusVisible: true})")
    assert opened.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_hostile_names_run_nothing(browser: Browser, tmp_path: Path) -> None:
    make_comparison(tmp_path, ["fifo", HOSTILE], 2, jobs=6, decisions=3, name=HOSTILE, job_name=HOSTILE)
    browser.open(make_report(tmp_path).path)
    browser.js("document.getElementById('run').selectedIndex = 1; document.getElementById('run').onchange()")
    browser.until("return document.getElementById('closely').dataset.run === '1'")
    browser.js("Gantt.views[0].select(0, 0)")
    assert browser.js("return document.querySelector('.gantt .tip .first').textContent") == f"{HOSTILE}-0"
    assert browser.js("return document.images.length") == 0
    assert browser.complaints() == []


def test_a_hundred_thousand_bars(browser: Browser, tmp_path: Path) -> None:
    make_run(tmp_path, jobs=20_000, each=5, buckets=64)
    browser.open(make_report(tmp_path).path)
    assert browser.js(GANTT + "return [g.bars.n, g.crisp]") == [100_000, False]
    drawn = browser.js(
        GANTT + "const d = g.canvas.getContext('2d').getImageData(g.left + 4, 40, 600, 300).data; let n = 0;"
        "for (let k = 0; k < d.length; k += 4) {"
        "const c = [d[k], d[k + 1], d[k + 2]]; if (Math.max(...c) - Math.min(...c) > 30) n++; } return n"
    )
    assert drawn > 20_000
    browser.js(GANTT + "g.zoom(0.01, 0.05); g.paint()")
    assert browser.js(GANTT + "return g.crisp")
    assert browser.complaints() == []
