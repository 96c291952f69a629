"""The report of a live run: result, uses of GPU time, slow ranks, and decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.base.files import write_whole
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import format_seconds, format_share, format_usd
from equipoise.study.live.account import USES, LiveAccount, read_account
from equipoise.study.report.chart import Axis, Chart, ChartSeries, time_unit
from equipoise.study.report.first import Figure, figures_html
from equipoise.study.report.page import composed, figure, section
from equipoise.study.report.tables import table
from equipoise.study.twin.ranks import RankDiagnosis, diagnose

_LABELS = {
    "busy": "computing",
    "input_stall": "waiting for data",
    "barrier_wait": "waiting for other ranks",
    "exposed_communication": "exchange",
    "other": "not timed (pauses, checkpoints, start)",
}
_COLOURS = {use: use for use in USES} | {"other": "idle"}
_POINTS_MAX = 2000
_EVENTS_MAX = 200
_TOLD = {
    "decision-failed": "a decision failed or was late",
    "refused": "a change was refused",
    "warning": "warning",
    "policy-memory-lost": "policy memory was lost",
}


def live_report(folder: Path, out: Path, gpu_hour_usd: float | None = None) -> tuple[int, tuple[str, ...]]:
    """Write the page of a live run; returns (size in bytes, notes on omitted parts).

    gpu_hour_usd: price of one GPU per hour; each rank counts as one GPU. Raises InputError without a record, OSError.
    """
    account = read_account(folder)
    if not account.ranks or not account.rounds:
        raise InputError([f"{account.folder}: no round is on record"])
    notes = []
    try:
        ranks: RankDiagnosis | None = diagnose(account.folder)
    except InputError as error:
        ranks = None
        notes.append(f"the slow rank cannot be determined: {error.lines[0]}")
    if gpu_hour_usd is None:
        notes.append("no costs: give the price of a GPU with --gpu-hour-usd")
    charts = [_uses(account), *_by_round(account)]
    title = str(account.manifest.get("run", account.folder.name))
    sections = [
        ("answer", "", _answer(account, ranks, gpu_hour_usd, title, notes)),
        ("use", "GPU time", section("use", "Where the GPU time went", figure(charts[0], "measured"))),
        ("rounds", "Rounds", section("rounds", "Round by round", _pair(charts[1:]))),
        ("ranks", "Ranks", section("ranks", "Which rank is slow, and why", _ranks(account, ranks))),
        ("events", "Events", section("events", "What happened", _events(account))),
        ("provenance", "Provenance", section("provenance", "What the run was", _manifest(account))),
    ]
    foot = f"Equipoise report of the live run {title}. This file asks nothing from any network."
    content = composed(title, sections, charts, foot).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, content)
    return len(content), tuple(notes)


def _pair(charts: Sequence[Chart]) -> str:
    return f'<div class="pair">{"".join(figure(chart, "measured") for chart in charts)}</div>'


def _answer(
    account: LiveAccount, ranks: RankDiagnosis | None, gpu_hour_usd: float | None, title: str, notes: Sequence[str]
) -> str:
    """The first screen: one sentence, and figures."""
    seconds = account.seconds()
    total_s = math.fsum(seconds.values())
    wasted = max((use for use in USES if use != "busy"), key=lambda use: seconds[use])
    lead = (
        f"{format_share(seconds['busy'] / total_s)} of {format_seconds(total_s)} of GPU time went into computing; "
        f"most of the rest into {_LABELS[wasted]} ({format_share(seconds[wasted] / total_s)})."
    )
    slow = [rank for rank in ranks.ranks if rank.cause] if ranks is not None else []
    because = "".join(
        f'<p class="because">Rank {r.member} is {r.slower:.2f} times slower: {escape(r.cause or "")} '
        f"({escape(r.evidence)}).</p>"
        for r in sorted(slow, key=lambda r: -r.slower)
    )
    decided = sum(line["event"] == "decision" for _, _, line in account.events)
    per_s = account.samples / max(account.span_s, 1e-9)
    figures = [
        Figure("Samples", f"{account.samples:,}", f"in {len(account.rounds):,} rounds"),
        Figure("Samples per second", f"{per_s:,.4g}", f"over {format_seconds(account.span_s)}"),
        Figure("GPU time", format_seconds(total_s), f"{len(account.ranks)} ranks"),
        Figure("Decisions", f"{decided:,}", ""),
    ]
    if gpu_hour_usd is not None and account.samples:
        cost = total_s / 3600 * gpu_hour_usd
        per_million = format_usd(1e6 * cost / account.samples)
        figures.append(Figure("Cost", format_usd(cost), f"{per_million} per million samples"))
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<section id="answer" aria-label="The answer"><h1>{escape(f"Live run: {title}")}</h1>'
        f'<p class="answer">{escape(lead)}</p>{figures_html(figures)}{because}'
        f'<ul class="note">{listed}</ul></section>'
    )


def _uses(account: LiveAccount) -> Chart:
    """GPU seconds by use: of all, and of each rank."""
    rows = [("all ranks", account.seconds()), *((f"rank {r.member}", r.seconds()) for r in account.ranks)]
    shares = {name: {use: 100 * s[use] / max(math.fsum(s.values()), 1e-9) for use in USES} for name, s in rows}
    places = [float(k) for k in range(len(rows))]
    used = [use for use in USES if any(seconds[use] > 0 for _, seconds in rows)]
    series = tuple(
        ChartSeries(_LABELS[use], places, [shares[name][use] for name, _ in rows], _COLOURS[use]) for use in used
    )
    numbers = tuple((name, *(format_seconds(seconds[use]) for use in used)) for name, seconds in rows)
    text = ", ".join(f"{_LABELS[use]} {shares['all ranks'][use]:.3g} %" for use in used)
    return Chart(
        "live-uses",
        "bars",
        "Shares of GPU time",
        text,
        Axis("share of GPU time (%)", high=100.0),
        Axis("", ticks=tuple(zip(places, (name for name, _ in rows), strict=True))),
        series,
        ("", *(_LABELS[use] for use in used)),
        numbers,
        "Each rank counts as one GPU, from its first round to its last record.",
    )


def _by_round(account: LiveAccount) -> list[Chart]:
    """Time of a round, and samples by rank."""
    numbers = sorted(account.rounds)
    numbers = numbers[:: max(1, math.ceil(len(numbers) / _POINTS_MAX))]
    times = [max((_length(line) for line in account.rounds[k].values()), default=math.nan) for k in numbers]
    known = [t for t in times if math.isfinite(t)]
    unit = time_unit(float(np.median(known)) if known else 0.0)
    x = [float(k) for k in numbers]
    members = [rank.member for rank in account.ranks]
    shares = [
        ChartSeries(f"rank {m}", x, [float(account.rounds[k].get(m, {}).get("samples") or 0) for k in numbers], colour)
        for colour, m in enumerate(members)
    ]
    took = ChartSeries("a round", x, [t / unit.seconds for t in times])
    return [
        Chart(
            "live-rounds",
            "line",
            "Time of a round",
            "the longest of its ranks, round by round",
            Axis("round", zero=False),
            Axis(f"time ({unit.name})"),
            (took,),
            note="Rounds delayed by a pause are left out.",
        ),
        Chart(
            "live-shares",
            "step",
            "Samples of each rank",
            "samples per round, by rank",
            Axis("round", zero=False),
            Axis("samples per round"),
            tuple(shares),
        ),
    ]


def _length(line: Any) -> float:
    parts = [line.get(name) for name in ("stall_s", "compute_s", "tail_s", "update_s")]
    return math.nan if any(part is None for part in parts) else math.fsum(parts)


def _ranks(account: LiveAccount, found: RankDiagnosis | None) -> str:
    seconds = {rank.member: rank.seconds() for rank in account.ranks}
    judged = {rank.member: rank for rank in found.ranks} if found is not None else {}
    rows = []
    for rank in account.ranks:
        one = judged.get(rank.member)
        why = "-" if one is None else one.cause or "no"  # the evidence stands in the first screen
        per_sample = "-" if one is None else format_seconds(one.per_sample_s)
        wait = format_share(seconds[rank.member]["barrier_wait"] / max(rank.end_s - rank.begin_s, 1e-9))
        rows.append((str(rank.member), rank.host, f"{rank.rounds:,}", f"{rank.samples:,}", per_sample, wait, why))
    head = ("rank", "host", "rounds", "samples", "time per sample", "waits for others", "slow?")
    return table("The ranks of the run", head, rows)


def _events(account: LiveAccount) -> str:
    """Events other than rounds and decisions, and the decisions that changed something."""
    rows = []
    for at_s, member, line in account.events:
        what = line["event"]
        more = {k: v for k, v in line.items() if k not in ("event", "unix_s")}
        if what == "decision" and (line.get("change") or line.get("refused")):
            told = line.get("change") or f"refused: {'; '.join(line['refused'])}"
            rows.append((format_seconds(at_s), str(member), f"decision {line.get('number')}", str(told)))
        elif what in _TOLD:
            rows.append(
                (format_seconds(at_s), str(member), _TOLD[what], ", ".join(_said(k, v) for k, v in more.items()))
            )
    if not rows:
        return '<p class="note">Only rounds, and no decision that changed anything.</p>'
    cut = len(rows) - _EVENTS_MAX
    left = f'<p class="note">{cut} more are in the files of {escape(str(account.folder))}.</p>' if cut > 0 else ""
    return table("Events", ("time", "rank", "what", "more"), rows[:_EVENTS_MAX], "texts") + left


def _said(key: str, value: Any) -> str:
    """One fact of an event; a sentence has no key."""
    return str(value) if key in ("text", "problem", "error") else f"{key.replace('_', ' ')} {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _manifest(account: LiveAccount) -> str:
    rows = [(key, _plain(value)) for key, value in account.manifest.items() if key not in ("members", "stages")]
    members = [
        (str(p["member"]), str(p["host"]), str(p["device"]), str(p.get("model", "-")))
        for p in account.manifest["members"]
    ]
    return table("Ranks at the start", ("rank", "host", "device", "model"), members) + table(
        "The run", ("", ""), rows, "texts"
    )
