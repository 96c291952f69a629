"""Problems of a job trace, and their effects on a simulation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from equipoise.formats.text.columns import Text, TextBuilder
from equipoise.sim.scenario.model import ClusterSpec, TraceSpec
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.scenario.units import MAX_TIME_S
from equipoise.sim.traces.read import FORMATS, check_format, read_spec, trace_format
from equipoise.sim.traces.rows import Rows, chosen, moment
from equipoise.sim.traces.site import JOB_FORMATS, read_rows
from equipoise.sim.traces.trace import Floats

_BACK_S = 60.0
"""Smaller differences between submissions in the order of job numbers come from the clocks of two machines."""
_MOST_BACK = 0.01
"""Share of jobs out of order from which on numbers say nothing of the order of submission."""
_SILENCE_S = 86_400.0
_MOST_UNITS = 1e9
"""GPUs beyond which a number is a mistake; sums stay finite."""


@dataclass(frozen=True)
class Finding:
    """`count` rows (or seconds, as `what` says), the first at `line` (0: nowhere), and the effect on a result."""

    what: str
    count: int
    line: int
    effect: str

    def as_dict(self) -> dict[str, str | int]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Checked:
    """rows of the file, jobs that would be simulated, and what was found, in no order of weight."""

    file: str
    rows: int
    jobs: int
    findings: tuple[Finding, ...]


def check_trace(spec: TraceSpec, path: Path, cluster: ClusterSpec | None = None) -> Checked:
    """Check a trace. cluster: for capacity checks. Raises InputError when the file cannot be read."""
    check_format(spec.format)
    form = "columns" if spec.columns else trace_format(path) if spec.format == "auto" else spec.format
    unit = "CPUs" if spec.count == "cpus" else "GPUs"
    if form in FORMATS and form not in JOB_FORMATS:
        rows = _of_trace(spec, path)
    else:
        rows = read_rows(path, form, unit, spec.zone, spec.columns)
        for reason, wanted in chosen(rows.columns, spec.keep, spec.clusters, rows.path).items():
            rows.drop(reason, ~wanted)
    lasts_s = np.minimum(np.nan_to_num(np.maximum(rows.duration_s, 0.0), posinf=0.0), MAX_TIME_S)
    every_s = np.minimum(np.nan_to_num(rows.units), _MOST_UNITS) * lasts_s
    if not len(rows.line) and not rows.changes:
        raise InputError([f"{path}: no jobs in it"])
    rows.sift(unit)
    found = [*_left_out(rows, every_s, unit), *_clock(rows), *_twice(rows, every_s)]
    if rows.keep.any():
        found += _silence(rows)
        if "site_queueing_s" in rows.columns:  # without starts nothing is known of what the site held
            found += [*_edges(rows, every_s), *_load(rows, unit, cluster)]
        found += _too_large(rows, unit, cluster) if cluster is not None else []
    return Checked(path.name, rows.read, int(rows.keep.sum()), tuple(found))


def _of_trace(spec: TraceSpec, path: Path) -> Rows:
    """Rows of the formats that are read strictly."""
    trace = read_spec(spec, path)
    builder = TextBuilder()
    builder.add([trace.name_of(k) for k in range(len(trace))])
    share = np.ones(len(trace)) if trace.gpu_share is None else trace.gpu_share
    return Rows(
        name=builder.finish(),
        arrival_s=trace.arrival_s,
        duration_s=trace.duration_s,
        units=trace.gpus * share,
        line=trace.line,
        columns=dict(trace.columns),
        changes=trace.left_out,
        path=str(path),
    )


def _left_out(rows: Rows, every_s: Floats, unit: str) -> Iterator[Finding]:
    """What the reader and the sieve left out, merged or changed."""
    lost = float(every_s[~rows.keep].sum())
    share = lost / max(float(every_s.sum()), 1e-9)
    for change in rows.tally.changes():
        if change.action == "left out":
            yield Finding(f"left out: {change.reason}", change.count, change.first_line, _why(change.reason))
        elif change.action != "noted":
            effect = "the job is simulated with the corrected value"
            yield Finding(f"{change.action}: {change.reason}", change.count, change.first_line, effect)
    if lost > 0:
        hours = f"{lost / 3600:.6g} {unit[:-1]}-hours"
        effect = f"the load is lower by {100 * share:.3g} %: simulated waits are too short"
        yield Finding(f"{hours} of rows left out or merged", int((~rows.keep).sum()), 0, effect)


def _why(reason: str) -> str:
    known = {
        "no submit time": "not simulated; where such jobs held GPUs, the simulated waits of others are too short",
        "had not ended": "not simulated: the load towards the end is too low",
        "never started": "not simulated: they waited but held no GPUs",
        "no duration": "not simulated: the time on its GPUs is unknown",
        "zero duration": "not simulated: they held no GPUs",
        "no GPUs": "not simulated: they take no GPUs from others",
    }
    return next((text for key, text in known.items() if reason.startswith(key)), "not simulated")


def _clock(rows: Rows) -> Iterator[Finding]:
    """Find submissions out of the order of job numbers, and starts before submission."""
    if rows.submit_s is not None:
        numbers = np.array([_number(text) for text in rows.name.values], dtype=np.float64)[rows.name.codes]
        there = np.flatnonzero(np.isfinite(numbers) & np.isfinite(rows.submit_s))
        order = there[np.lexsort((rows.submit_s[there], numbers[there]))]
        times_s = rows.submit_s[order]
        back_s = -np.diff(times_s)
        wrong = back_s > _BACK_S
        few = 0 < wrong.sum() <= _MOST_BACK * len(order)
        alone = wrong.copy()  # the job after it is where the job before it was: only this one is late
        alone[1:] &= times_s[2:] >= times_s[:-2] - _BACK_S
        alone[:1] = False
        wrong &= ~alone
        if few and alone.any():
            yield Finding(
                "submitted later than jobs with higher numbers",
                int(alone.sum()),
                int(rows.line[order[:-1][alone]].min()),
                "a requeue resets the submit time: the earlier wait of such a job is unknown",
            )
        if few and wrong.any():  # more: numbers do not follow submission at this site
            most = float(back_s[wrong].max())
            hour = "; about an hour: probably a change of daylight saving time" if abs(most - 3600) < 120 else ""
            yield Finding(
                "clock jumps: submitted before the job with the number before",
                int(wrong.sum()),
                int(rows.line[order[1:][wrong]].min()),
                f"later arrivals and waits may be wrong by up to {most:g} s{hour}",
            )
    waited = rows.columns.get("site_queueing_s")
    if isinstance(waited, np.ndarray) and (early := waited < 0).any():
        effect = "the recorded wait of the site is negative; the simulated wait is not affected"
        yield Finding("started before it could run", int(early.sum()), int(rows.line[early].min()), effect)


def _number(text: str) -> float:
    match = re.match(r"[0-9]{1,15}(?=$|[_+.])", text)
    return float(match[0]) if match else np.nan


def _twice(rows: Rows, every_s: Floats) -> Iterator[Finding]:
    """Find repeated ids, and jobs that differ only in the id."""
    kept = np.flatnonzero(rows.keep)
    keys = {"several jobs with one id": [rows.name.codes[kept].astype(np.float64)]}
    user = rows.columns.get("user")
    alike = [rows.arrival_s[kept], rows.duration_s[kept], rows.units[kept]]
    alike += [user.codes[kept].astype(np.float64)] if isinstance(user, Text) else []
    keys["jobs alike in arrival, duration, GPUs and user"] = alike
    for what, columns in keys.items():
        if not kept.size:
            continue
        _, first = np.unique(np.stack(columns, axis=1), axis=0, return_index=True)
        again = np.ones(len(kept), dtype=np.bool_)
        again[first] = False
        if again.any():
            share = float(every_s[kept[again]].sum()) / max(float(every_s[kept].sum()), 1e-9)
            effect = f"if they are the same jobs, {100 * share:.3g} % of the load is counted twice"
            yield Finding(what, int(again.sum()), int(rows.line[kept[again]].min()), effect)


def _edges(rows: Rows, every_s: Floats) -> Iterator[Finding]:
    """Find jobs that were running when the record began."""
    start_s, kept = _start_s(rows), rows.keep
    end_s = start_s + rows.duration_s
    if not np.isfinite(end_s[kept]).any():
        return
    begin_s = float(np.nanmin(end_s[kept]))
    early = kept & (start_s < begin_s)
    if not early.any():  # durations too short to be seen beside the times
        return
    share = float(every_s[early].sum()) / max(float(every_s[kept].sum()), 1e-9)
    effect = (
        f"{100 * share:.3g} % of the load; jobs that ended before {moment(begin_s)} are not in the record: the "
        "simulated cluster starts emptier than the site, so leave the first hours out of averages"
    )
    yield Finding("began before the first end in the record", int(early.sum()), int(rows.line[early].min()), effect)


def _start_s(rows: Rows) -> Floats:
    """When the site started each job; its arrival where the file does not say."""
    waited = rows.columns.get("site_queueing_s")
    return rows.arrival_s + (np.nan_to_num(waited) if isinstance(waited, np.ndarray) else 0.0)


def _silence(rows: Rows) -> Iterator[Finding]:
    """Find gaps of more than a day without submissions."""
    arrival_s = np.sort(rows.arrival_s[rows.keep])
    gaps_s = np.diff(arrival_s)
    long = np.flatnonzero(gaps_s > _SILENCE_S)
    if long.size:
        k = int(long[np.argmax(gaps_s[long])])
        effect = f"the longest from {moment(float(arrival_s[k]))}, {gaps_s[k] / 3600:.4g} h: are records missing?"
        effect += " check for missing records"
        yield Finding("more than a day without a submission", int(long.size), 0, effect)


def _load(rows: Rows, unit: str, cluster: ClusterSpec | None) -> Iterator[Finding]:
    """Compare the site's concurrent use with the cluster's capacity."""
    start_s, kept = _start_s(rows), np.flatnonzero(rows.keep)
    times = np.concatenate((start_s[kept], start_s[kept] + rows.duration_s[kept]))
    change = np.concatenate((rows.units[kept], -rows.units[kept]))
    order = np.lexsort((change, times))
    held, times = np.cumsum(change[order]), times[order]
    peak = float(held.max())
    if cluster is None:
        effect = f"a cluster with fewer {unit} makes jobs wait longer than at the site; name a scenario to compare"
        yield Finding(f"the site held up to {peak:.6g} {unit} at once", int(np.ceil(peak)), 0, effect)
        return
    total = sum(group.count * group.gpus for group in cluster.groups)
    over = held[:-1] > total + 1e-6
    if over.any():
        over_s = float(np.diff(times)[over].sum())
        when = moment(float(times[:-1][over][0]))
        held_most = f"{over_s / 3600:.4g} h, first at {when}: up to {peak:.6g} {unit}, the scenario has {total}"
        what = "over capacity: seconds in which the site held more than the scenario has"
        yield Finding(what, round(over_s), 0, f"{held_most}; simulated waits are too long")


def _too_large(rows: Rows, unit: str, cluster: ClusterSpec) -> Iterator[Finding]:
    """Find jobs for which the cluster, or every node, is too small."""
    sizes: Sequence[int] = [group.gpus for group in cluster.groups]
    total = sum(group.count * group.gpus for group in cluster.groups)
    beyond = rows.keep & (rows.units > total)
    if beyond.any():
        effect = f"a run refuses them: the scenario has {total} {unit}"
        yield Finding("larger than the cluster", int(beyond.sum()), int(rows.line[beyond].min()), effect)
    nodes = rows.columns.get("nodes")
    if isinstance(nodes, np.ndarray):
        each = np.divide(rows.units, nodes, out=np.zeros(len(nodes)), where=nodes > 0)
        wide = rows.keep & ~beyond & (each > max(sizes))
        if wide.any():
            effect = f"no node here has more than {max(sizes)} {unit}: they run on more nodes than at the site"
            yield Finding("no node can hold its GPUs", int(wide.sum()), int(rows.line[wide].min()), effect)
