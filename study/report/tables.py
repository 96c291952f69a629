"""The tables of a report as HTML. Every text from outside goes through `escape`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from equipoise.sim.hardware.profile import HardwareProfile, Measured, load_profile
from equipoise.sim.record import WASTE
from equipoise.sim.scenario.tree import InputError
from equipoise.study.display import LABELS, PER_JOB, digits, show
from equipoise.study.display import folded as left_out
from equipoise.study.report.metrics import definitions
from equipoise.study.report.study import Study, StudyRow
from equipoise.study.report.words import best_policy

RUNS_LISTED = 300
POINTS_LISTED = 400
_LESS_IS_BETTER = ("_s", "_usd", "_j")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of texts: the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in header)
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>{"".join(map(_data, row[1:]))}</tr>' for row in rows)
    return _frame(caption, head, body, kind)


def _data(text: str) -> str:
    """A cell; text after a line break is shown below, smaller."""
    first, _, below = text.partition("\n")
    under = f'<span class="of">{escape(below)}</span>' if below else ""
    return f"<td>{escape(first)}{under}</td>"


def _frame(caption: str, head: str, body: str, kind: str = "", mark: str = "") -> str:
    """A table that scrolls sideways by mouse and keyboard; `head`, `body` and `mark` are HTML already."""
    named = escape(caption)
    opened = f'<table class="{kind}">' if kind else "<table>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{named}">{opened}'
        f"<caption><span>{named}{mark}</span></caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    """Content that opens on request."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def tag(kind: str) -> str:
    """The origin of a number as a tag."""
    return f'<span class="tag {escape(kind)}">{escape(kind)}</span>'


# --- results --------------------------------------------------------------------------------------


def results(study: Study) -> str:
    """The comparison table: metrics as rows, policies as columns; totals folded away below."""
    if not study.rows:
        return "<p>There are no results.</p>"
    known = [m for m in study.metrics if any(math.isfinite(study.mean(m, p)) for p in study.policies)]
    priced = {f"{use}_usd" for use in WASTE}  # their sum is in the table, they are below it
    shown = [m for m in known if m in LABELS and m not in priced]
    shown = [m for m in shown if not left_out(m, *(study.mean(m, p) for p in study.policies))]
    if max((study.mean("jobs", p) for p in study.policies), default=0.0) == 1:
        shown = [m for m in shown if m not in PER_JOB]
    rest = [m for m in known if m not in shown and m not in PER_JOB]
    nothing = [m for m in shown if m not in ("jobs", "completed") and _all_zero(study, m)]
    shown = [m for m in shown if m not in nothing]
    if len(study.policies) == 1:  # one column of numbers reads better as two of half the height
        half = (len(shown) + 1) // 2
        parts = (_results(study, part, _caption(study)) for part in (shown[:half], shown[half:]) if part)
        made = f'<div class="pair narrow">{"".join(parts)}</div>'
    else:
        made = _results(study, shown, _caption(study))
    if nothing:
        named = ", ".join(LABELS[m].strip() for m in nothing)
        made += f'<p class="note">0 everywhere: {escape(named)}.</p>'
    return made + (folded("Further totals", _results(study, rest, "Further totals")) if rest else "")


def _all_zero(study: Study, metric: str) -> bool:
    return all(show(metric, study.mean(metric, p)).split()[0] in ("0", "0.00", "-") for p in study.policies)


def columns(study: Study) -> list[str]:
    """The policies in the order of the columns: the best, the baseline, the others."""
    return list(dict.fromkeys((best_policy(study), *study.policies)))


def _caption(study: Study) -> str:
    if study.kind == "run":
        return "Metrics of the run"
    level = f"{100 * study.level:g} % interval"
    seeds = f"one {study.unit}" if study.seeds == 1 else f"{study.seeds} {study.unit}s, mean ± {level}"
    numbers = len({point.number for point in study.points})
    seeds = f"means over {numbers} points; {seeds}" if numbers > 1 else seeds
    ratios = f"; × is the ratio to {study.policies[0]}, paired by {study.unit}" if len(study.policies) > 1 else ""
    return f"{seeds[0].upper()}{seeds[1:]}{ratios}"


def _results(study: Study, metrics: Sequence[str], caption: str) -> str:
    best = best_policy(study) if len(study.policies) > 1 else ""
    heads = "".join(
        f'<th scope="col"{_best(p == best)}>{escape(p)}{"<br>shortest" if p == best else ""}</th>'
        for p in columns(study)
    )
    rows = "".join(_metric_row(study, metric) for metric in metrics)
    return _frame(caption, f'<th scope="col">metric</th>{heads}', rows, mark=f" {tag('simulated')}")


def _best(best: bool) -> str:
    return ' class="best"' if best else ""


def _metric_row(study: Study, metric: str) -> str:
    found = [study.row(metric, policy) for policy in columns(study)]
    means = [row.value.mean if row is not None else math.nan for row in found]
    judged = metric.endswith(_LESS_IS_BETTER) or metric == "goodput_ratio"
    choose = max if metric == "goodput_ratio" else min
    known = [value for value in means if math.isfinite(value)]
    top = choose(known) if judged and len(study.policies) > 1 and len(set(known)) > 1 else math.nan
    cells = "".join(f"<td{_best(mean == top)}>{_cell(row, study)}</td>" for row, mean in zip(found, means, strict=True))
    return f'<tr><th scope="row">{_named(metric)}</th>{cells}</tr>'


def _named(metric: str) -> str:
    text = escape(LABELS.get(metric, metric).strip())
    meaning = definitions().get(metric)
    return f'<abbr title="{escape(meaning)}">{text}</abbr>' if meaning else text


def _cell(row: StudyRow | None, study: Study) -> str:
    if row is None:
        return "-"
    text = escape(show(row.metric, row.value.mean, row.value.half_width))
    compared = row.metric.endswith(_LESS_IS_BETTER) or row.metric == "goodput_ratio"
    if compared and len(study.policies) > 1 and row.policy != study.policies[0] and math.isfinite(row.ratio.mean):
        span = ""
        if math.isfinite(row.ratio.low) and math.isfinite(row.ratio.high):
            span = f" ({digits(row.ratio.low)} to {digits(row.ratio.high)})"
        text += f'<span class="of">× {digits(row.ratio.mean)}{span}</span>'
    if row.over_bound > 0:
        text += f'<span class="of">{digits(row.over_bound)}× the bound</span>'
    return text


def failures(study: Study) -> str:
    """The runs that failed, or nothing."""
    if not study.failed:
        return ""
    rows = [(failure.what, failure.error) for failure in study.failures]
    more = study.failed - len(rows)
    note = f'<p class="note">and {more} more.</p>' if more > 0 else ""
    made = table(f"{study.failed} failed: not counted in this report", ("run", "error"), rows, "texts")
    return f'<div class="failures"><h3>Failed runs</h3>{made}{note}</div>'


def points(study: Study) -> str:
    """The points of a sweep with the main metric under each policy; the best of a point is marked by name."""
    if not study.points:
        return ""
    metric = study.main_metric
    of: dict[int, dict[str, float]] = {}
    values: dict[int, Mapping[str, str]] = {}
    for point in study.points:
        of.setdefault(point.number, {})[point.policy] = point.means.get(metric, math.nan)
        values[point.number] = point.values
    keys = list(study.points[0].values)
    rows = []
    for number, means in list(of.items())[:POINTS_LISTED]:
        known = {p: v for p, v in means.items() if math.isfinite(v)}
        best = min(known, key=lambda p: known[p]) if known else "-"
        shown = [show(metric, means.get(p, math.nan)) for p in study.policies]
        rows.append([str(number), *(values[number].get(k, "-") for k in keys), *shown, best])
    header = ["point", *keys, *study.policies, "best"]
    made = table(f"Mean {LABELS.get(metric, metric)} at each point", header, rows)
    search = (
        '<div class="controls"><label>Filter <input type="search" size="28" data-filter="points-table" '
        'placeholder="values or a policy"></label><span class="count" role="status"></span></div>'
    )
    left = len(of) - len(rows)
    note = f'<p class="note">The first {len(rows)} points; {left} more are in table runs.</p>' if left > 0 else ""
    return folded(f"All {len(of)} points", f'{search}<div id="points-table">{made}</div>{note}')


# --- where numbers come from ------------------------------------------------------------------------


def provenance(study: Study) -> str:
    """Identity, versions, machine, command, inputs."""
    parts = [table("What made these results", ("fact", "value"), _facts(study), "texts")]
    runs = [
        (folder.label, str(folder.manifest.get("identity", "-")), str(folder.manifest.get("status", "-")))
        for folder in study.folders
    ]
    if len(runs) > 1:
        listed = table("Runs", ("run", "identity", "status"), runs[:RUNS_LISTED], "texts")
        more = f'<p class="note">and {len(runs) - RUNS_LISTED} more.</p>' if len(runs) > RUNS_LISTED else ""
        parts.append(folded(f"{len(runs)} run directories", listed + more))
    return "".join(parts)


def _facts(study: Study) -> list[tuple[str, str]]:
    facts = [("kind", study.kind), ("name", study.title)]
    if study.folders:
        manifest = dict(study.folders[0].manifest)
        if len(study.folders) > 1:
            manifest = {k: v for k, v in manifest.items() if k not in ("identity", "policy", "seed", "cpu_s", "status")}
        facts += [fact for key, value in manifest.items() for fact in _flat(key, value)]
    facts += [(key, value) for key, value in study.about.items() if key != "sweep" and len(value) < 200]
    return [fact for fact in dict(facts).items() if fact[1]]


def _flat(key: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(f"{key}: {name}", part)
    elif isinstance(value, list):
        yield key.replace("_", " "), " ".join(map(str, value))
    else:
        yield key.replace("_", " "), "" if value is None else str(value)


def origins(study: Study) -> str:
    """The hardware numbers used by the simulation, each with its origin."""
    cluster = (study.config or {}).get("cluster")
    if not isinstance(cluster, Mapping) or not study.folders:
        return '<p class="note">No run directory was kept, so the hardware that was simulated is not listed.</p>'
    name = str(cluster.get("hardware", ""))
    try:
        profile = load_profile(name, study.folders[0].path)
    except InputError:
        return f'<p class="note">Hardware profile {escape(name)} is not installed any more: origins are not known.</p>'
    used = {str(node.get("accelerator")) for node in cluster.get("nodes") or () if isinstance(node, Mapping)}
    rows = _origin_rows(profile, used)
    if not rows:
        why = "No accelerator of a hardware profile was simulated: all speeds come from the scenario."
        return f'<p class="note">{why}</p>'
    heads = ("number", "value (SI units)", "origin", "source")
    body = "".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td>'
        f"<td>{tag(kind)}</td><td>{escape(source)}</td></tr>"
        for what, value, kind, source in rows
    )
    caption = f"Numbers of hardware profile {name} that were used, as these read now"
    return _frame(caption, "".join(f'<th scope="col">{text}</th>' for text in heads), body, "texts")


def _origin_rows(profile: HardwareProfile, used: set[str]) -> list[tuple[str, str, str, str]]:
    rows = []
    for name in sorted(used & profile.accelerators.keys()):
        rows += [_origin(f"{name}: {what}", m) for what, m in _measured(profile.accelerators[name])]
    for fabric in profile.fabrics:
        if fabric.accelerator in used or not fabric.accelerator:
            whose = f" ({fabric.accelerator})" if fabric.accelerator else ""
            label = f"fabric {fabric.tier} {fabric.collective}{whose}"
            rows += [_origin(f"{label}: {what}", m) for what, m in _measured(fabric)]
    return rows


def _measured(part: Any) -> Iterable[tuple[str, Measured]]:
    for name in type(part).model_fields:
        value = getattr(part, name)
        if name == "price_usd_per_gpu_h":  # that of the scenario or its book comes before it
            continue
        if isinstance(value, Measured):
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name} {key}", item) for key, item in value.items() if isinstance(item, Measured))


def _origin(what: str, measured: Measured) -> tuple[str, str, str, str]:
    value = f"{measured.value:.6g}"
    if measured.low is not None and measured.high is not None:
        times = f", n = {measured.n}" if measured.n else ""
        value += f" ({measured.low:.6g} to {measured.high:.6g}{times})"
    return what, value, measured.kind, measured.source
