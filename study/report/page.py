"""A report: one self-contained HTML file without network access.

The same folder gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from equipoise.base.files import write_whole
from equipoise.study.report.chart import Chart
from equipoise.study.report.charts.study import USE_LABELS, study_charts
from equipoise.study.report.detail import Detail, read_detail
from equipoise.study.report.features import feature_tables
from equipoise.study.report.first import context_html, picture, strip_html
from equipoise.study.report.html import Made, composed, figure, section, template
from equipoise.study.report.metrics import definitions
from equipoise.study.report.read import read_study
from equipoise.study.report.study import Study
from equipoise.study.report.tables import failures, folded, origins, points, provenance, results, table
from equipoise.study.report.timeline import HELD_BESIDE
from equipoise.study.report.words import headline

DETAIL_BYTES = 3_000_000
"""Total size of run details when there are several: the file stays below 5 MB."""
BARS_EACH = 100_000
KIND_LABELS = {
    "queued": "waiting",
    "completed": "ran to completion",
    "timeout": "ran until its time limit",
    "preempted": "ran until preempted",
    "resized": "ran until resized",
    "fault": "ran until a fault",
    "open": "still running at the end",
}
CONFIG_CHARS = 200_000
NOTES_SHOWN = 4


def make_report(folder: str | Path, out: str | Path | None = None, refresh_s: float | None = None) -> Made:
    """Write the report of a run, a comparison or a sweep; default: `report.html` in the folder.

    refresh_s: the page reloads at this interval (s) while its study runs.

    Raises InputError when the folder holds no results or damaged ones, OSError when it cannot be written.
    """
    study = read_study(folder)
    target = Path(out) if out is not None else Path(folder) / "report.html"
    page, notes = render_report(study, refresh_s)
    content = page.encode("utf-8")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
    return Made(target, len(content), notes, headline(study)[0].text)


def render_report(study: Study, refresh_s: float | None = None) -> tuple[str, tuple[str, ...]]:
    """(the page, notes on omitted parts). Raises InputError when files of the study are damaged."""
    details, notes = _details(study)
    charts = study_charts(study)
    for detail in details:
        if detail.header["bars"] is not None:
            detail.header["bars"]["words"] = {**KIND_LABELS, "beside": HELD_BESIDE, **USE_LABELS}
    sections = _sections(study, charts, details, notes)
    return composed(study.title, sections, [chart.plain() for chart in charts], _foot(study), details, refresh_s), notes


def _details(study: Study) -> tuple[list[Detail], tuple[str, ...]]:
    """The runs shown in detail, as many as fit, and a note for each other one."""
    alone = len(study.detail) == 1
    details: list[Detail] = []
    left: list[str] = []
    bare = 0
    room = DETAIL_BYTES
    for number, folder in enumerate(study.detail):
        found = read_detail(folder, str(number), None if alone else BARS_EACH)
        if found is None:
            bare += 1
        elif alone or found.size_bytes <= room:
            details.append(found)
            room -= found.size_bytes
        else:
            left.append(folder.label)
    notes = [f"not in detail, to keep the file small: {', '.join(left)}; report its run directory"] if left else []
    if not details and not left:
        why = "No run directory was kept" if not study.detail else "No timeline was kept"
        notes.append(f"{why}, so there is no Gantt chart; make the runs with --timeline (and --journal for decisions)")
    return details, tuple(notes)


def _sections(
    study: Study, charts: Sequence[Chart], details: Sequence[Detail], notes: Sequence[str]
) -> list[tuple[str, str, str]]:
    """(identifier, name in the navigation, HTML) of each part of the page."""
    by = {chart.id: chart for chart in charts}
    shown = picture(study, by)
    if shown is not None:
        del by[shown.id]
    trends = [chart for chart in by.values() if chart.id.startswith("trend-")]
    return [
        ("answer", "", _answer(study, shown)),
        ("results", "Results", section("results", "Results", _results(study, by.get("ranking")))),
        *(part for heading, content in feature_tables(study) for part in _charts(*heading, [], content)),
        *_charts("use", "GPU time", "Where the GPU time goes", [by.get("uses")]),
        *_charts("completion", "Completion", "When jobs are done", [by.get("completion")], _no_jobs(study)),
        *_charts("tradeoff", "Trade-off", "What it takes", [by.get("pareto")]),
        *_charts("depends", "Sensitivity", "What the result depends on", [*trends, by.get("tornado")], points(study)),
        *([("closely", "One run", _closely(details, notes))] if details else []),
        ("provenance", "Provenance", section("provenance", "Where these numbers come from", _provenance(study, notes))),
        ("definitions", "Definitions", section("definitions", "What each metric means", _definitions())),
    ]


def _charts(
    key: str, name: str, title: str, charts: Sequence[Chart | None], more: str = ""
) -> list[tuple[str, str, str]]:
    """A section of charts; empty without charts."""
    found = [chart for chart in charts if chart is not None]
    if not found and not more:
        return []
    inner = "".join(figure(chart.plain()) for chart in found)
    return [(key, name, section(key, title, (f'<div class="pair">{inner}</div>' if len(found) > 1 else inner) + more))]


def _wrapping(text: str) -> str:
    """Text as HTML in which long dotted keys break after their dots, on phones."""
    return re.sub(r"(?<=[\w\]])\.(?=[a-z])", ".<wbr>", escape(text))


def _answer(study: Study, shown: Chart | None) -> str:
    """The first screen: one sentence, the figures, one picture, the simulated case; then the assumptions."""
    kinds = {"run": "One run", "comparison": f"{len(study.policies)} policies compared", "sweep": "Sweep"}
    told = headline(study)
    lead = "".join(f'<p class="answer">{_wrapping(s.text)}</p>' for s in told if s.strong)
    rest = "".join(f'<p class="because">{escape(s.text)}</p>' for s in told if not s.strong)
    listed = _noted(study.notes)
    drawn = figure(shown.plain()) if shown is not None else ""
    about = context_html(study)
    left, right = (drawn + rest, about + listed) if about else (drawn, rest + listed)
    what = escape(f"{kinds[study.kind]}: {study.title}")
    return (
        f'<section id="answer" aria-label="The answer"><h1>{what}</h1>{lead}{strip_html(study)}'
        f'<div class="first"><div>{left}</div><div>{right}</div></div></section>'
    )


def _definitions() -> str:
    """Metrics and the values of comparisons with their meaning."""
    return table("Metrics", ("metric", "meaning"), list(definitions().items()), "texts")


def _noted(notes: Sequence[str]) -> str:
    """The notes as a list; notes beyond the first screen are folded."""
    items = [f"<li>{escape(note)}</li>" for note in notes]
    if not items:
        return ""
    listed = f'<ul class="note">{"".join(items[:NOTES_SHOWN])}</ul>'
    rest = items[NOTES_SHOWN:]
    return listed + (folded(f"{len(rest)} more notes", f'<ul class="note">{"".join(rest)}</ul>') if rest else "")


def _results(study: Study, ranked: Chart | None) -> str:
    chart = figure(ranked.plain()) if ranked is not None else ""
    made = results(study) + failures(study)
    if 1 < len(study.policies) <= POLICIES_BESIDE and chart:
        return f'<div class="pair"><div>{made}</div><div>{chart}</div></div>'
    return made + chart


POLICIES_BESIDE = 3
"""Most policies for which a chart fits next to the table."""


def _no_jobs(study: Study) -> str:
    if study.folders:
        return ""
    how = "--keep" if study.kind == "sweep" else "--out"
    return f'<p class="note">No run directory was kept, so there are no curves; make the runs with {how}.</p>'


def _closely(details: Sequence[Detail], notes: Sequence[str]) -> str:
    options = "".join(f"<option>{escape(d.header['label'])}</option>" for d in details)
    return template("closely.html").substitute(options=options, note=escape(" ".join(notes)))


def _provenance(study: Study, notes: Sequence[str]) -> str:
    legend = (
        "<p>All results are <strong>simulated</strong>. They depend on hardware numbers, marked measured "
        "or fitted (on a machine, by calibration), catalogue (a vendor's published figure) or assumed, and on "
        "the prices of the scenario or of its price book; everything else is what the scenario says.</p>"
    )
    missing = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return legend + origins(study) + provenance(study) + _config(study) + missing


def _config(study: Study) -> str:
    parts = []
    if study.about.get("sweep"):
        parts.append(folded("The sweep file", f"<pre>{escape(study.about['sweep'][:CONFIG_CHARS])}</pre>"))
    path = study.folders[0].path / "config.yaml" if study.folders else None
    if path is not None and path.is_file():
        text = path.read_text(encoding="utf-8")
        cut = f"\n(cut; the rest is in {path.name})" if len(text) > CONFIG_CHARS else ""
        parts.append(folded("The scenario with every default", f"<pre>{escape(text[:CONFIG_CHARS] + cut)}</pre>"))
    return "".join(parts)


def _foot(study: Study) -> str:
    return f"Equipoise report of the {study.kind} {study.title}. This file asks nothing from any network."
