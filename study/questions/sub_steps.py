"""Observations, results and actions of the sub-steps of S1 to S4 at a decision as text, and the changes of one job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.policies.contract import Decision, Reason
from equipoise.policies.observation import Floats, Ints, Observation
from equipoise.sim.scenario.units import format_bytes, format_seconds, format_share

Name = Callable[[int], str]
Values = Mapping[str, Any]
_LISTED = 6
_SETTLED = 0.05  # a coefficient nearer to 0 than this hardly moves the interval


def in_words(reason: Reason, observation: Observation, name: Name) -> tuple[list[str], set[str]]:
    """Lines on the sub-steps of one stage, and the values that they use; `name`: name of a job by row."""
    tell = {"s1": _s1, "s2": _s2, "s3": _s3, "s4": _s4}.get(reason.stage)
    if tell is None or not any(key.startswith(reason.stage) for key in reason.values):
        return [], set()
    lines = [f"{step} {text}" for step, text in tell(reason.values, observation, name) if text]
    return lines, {key for key in reason.values if key[:2] == reason.stage and key[2:4].isdigit()}


def _s1(v: Values, o: Observation, name: Name) -> Iterable[tuple[str, str]]:
    unsound, suspect = v["s111_unhealthy"], v["s111_suspect"]
    all_of = _count(len(o.workers), "gradient")
    text = f"{unsound} of {all_of} unsound" if unsound else f"all of {all_of} sound"
    text += f", {_count(suspect, 'GPU')} suspect" if suspect else ""
    varies = f", give or take {format_share(v['s111_rate_cov'])}" if v["s111_rate_cov"] > 0.0 else ""
    yield "S111", f"{text}; forecast {v['s111_forecast_gradients_per_s']:.4g} gradients/s in all{varies}"
    if _known(v, "s112_imbalance"):
        text = f"most uneven is {name(v['s112_job'])}: {format_share(v['s112_imbalance'])} out of balance"
        more = abs(v["s112_demand_bytes"])
        acts = f"data is balanced in {_count(v['s112_acting'], 'job')}" if v["s112_acting"] else "unchanged"
        yield "S112", f"{text}, {format_bytes(more)} owned by the wrong workers of all jobs; {acts}"
    else:
        yield "S112", "no job has data to balance at a known speed"
    if v["s113_moves"]:
        text = f"{_count(v['s113_moves'], 'shard')} of {format_bytes(v['s113_bytes'])} get another owner"
        kept = v.get("s113_not_worth_it", 0)
        yield "S113", text + (f"; {kept} more do not pay for their transfer" if kept else "")
    elif v.get("s113_not_worth_it"):
        yield "S113", f"no shard moves: {v['s113_not_worth_it']} would not pay for their transfer"


def _s2(v: Values, o: Observation, name: Name) -> Iterable[tuple[str, str]]:
    waiting = v["s212_waiting"]
    if waiting:
        yield "S211", f"a shard takes {format_seconds(v['s211_fetch_s'])} to fetch, on average"
        text = f"{_count(waiting, 'shard')} not fetched yet, fetched in "
        text += "a new order" if v["s212_reordered"] else "the present order"
        first = np.flatnonzero(o.shards.id == v.get("s212_critical", -1))
        if len(first):
            text += f"; most urgent one of {name(int(o.shards.job[first[0]]))}, priority {v['s212_priority']:.3g}"
        yield "S212", text
        late, moved = v["s213_late"], v["s213_moved"]
        yield (
            "S213",
            f"{late or 'none'} would come late"
            + (f", {moved or 'none'} of them given to a worker that gets it in time" if late else ""),
        )
    if not v["s221_known_jobs"]:
        yield "S221", "no job's speeds are known yet"
        return
    yield (
        "S221",
        (
            f"speeds of {_count(v['s221_known_jobs'], 'job')} known; "
            f"the fastest worker sustains {v['s221_fastest_samples_per_s']:.4g} samples/s"
        ),
    )
    where = f"in {name(v['s222_job'])}"
    yield ("S222", f"most to gain {where}: its fastest worker should have {format_share(v['s222_largest_share'])}")
    gain = f"a new split makes its slowest step {format_share(v['s223_gain'])} shorter"
    if not v["s223_gain"] > 0.0:
        gain = "no split makes its slowest step shorter"
    elif math.isfinite(v["s223_step_s"]):
        gain += f" ({format_seconds(v['s223_step_s'])})"
    done = f"dealt anew in {_count(v['s223_jobs'], 'job')}" if v["s223_jobs"] else "within noise, so not applied"
    yield "S223", gain + (f"; {done}" if v["s223_gain"] > 0.0 or v["s223_jobs"] else "")


def _s3(v: Values, o: Observation, name: Name) -> Iterable[tuple[str, str]]:
    if _known(v, "s311_speed_per_s"):
        text = f"the slowest worker runs {v['s311_speed_per_s']:.4g} steps/s"
        if v["s311_speed_after_per_s"] != v["s311_speed_per_s"]:
            text += f", {v['s311_speed_after_per_s']:.4g} after the new split"
        if _known(v, "s311_spread"):
            text += f"; steps spread by {format_share(v['s311_spread'])}"
        for key, what in (
            ("undone", "splits rolled back in"),
            ("backed_off", "no new split so soon after a rollback in"),
            ("held", "intervals wait for the new split in"),
        ):
            text += f"; {what} {_count(v[f's311_{key}'], 'job')}" if v.get(f"s311_{key}") else ""
        yield "S311", text
    if _known(v, "s312_coefficient_min"):
        low, high = v["s312_coefficient_min"], v["s312_coefficient_max"]
        text = f"K is {low:.3g}" if low == high else f"K from {low:.3g} to {high:.3g} over the jobs"
        wants = [what for what, is_so in (("less", low < -_SETTLED), ("more", high > _SETTLED)) if is_so]
        some = "some should " if low != high else ""
        text += f": {' and '.join(f'{some}exchange {what} often' for what in wants) or 'settled'}"
        yield "S312", text
    text = f"intervals up to {_count(v['s313_interval_max'], 'step')}, {v['s313_changed'] or 'none'} changed"
    text += f"; near exchanges in {_count(v['s313_levels'], 'job')}" if v["s313_levels"] else ""
    if _known(v, "s313_push_interval_max"):
        text += f"; pushes up to {_count(v['s313_push_interval_max'], 'step')} apart"
    yield "S313", text
    if v["s321_virtual_gpus"]:
        text = f"{_count(v['s321_virtual_gpus'], 'worker')} on shared GPUs"
        if _known(v, "s321_capability_min"):
            text += f"; the least capable worker gets {format_share(v['s321_capability_min'])} from its share"
        yield "S321", text
        yield "S322", f"other shares on {_count(v['s322_changed_gpus'], 'GPU')}"
        if v["s323_kept"] or v["s323_rolled_back"]:
            yield "S323", f"of earlier changes {v['s323_kept']} kept, {v['s323_rolled_back']} undone"
    if v.get("s324_capped") or v.get("s324_changed"):
        text = f"power of {_count(v['s324_capped'], 'node')} capped, the least at {v['s324_least_w']:.0f} W a GPU"
        text += f"; caps of {_count(v['s324_changed'], 'node')} changed" if v["s324_changed"] else ""
        text += f"; full clocks restored in {_count(v['s324_rolled_back'], 'job')}" if v["s324_rolled_back"] else ""
        yield "S324", text


def _s4(v: Values, o: Observation, name: Name) -> Iterable[tuple[str, str]]:
    if "s411_slowest_node" in v:
        text = f"slowest is node {v['s411_slowest_node']}, {format_share(v['s411_slowest_speed'])} of the fastest"
        if _known(v, "s411_efficiency"):
            text += f"; GPUs that are held are busy {format_share(v['s411_efficiency'])} of the time"
        yield "S411", text
    order = np.asarray(v.get("s422_order", ()), dtype=np.int64)
    if len(order):
        claims = zip(order.tolist(), np.asarray(v["s412_priority"]).tolist(), strict=True)
        yield "S412", f"first in line, with A: {_some(f'{name(k)} {a:.3g}' for k, a in claims)}"
    replaced = np.asarray(v.get("s413_replaced", ()), dtype=np.int64).tolist()
    if "s413_watched" in v:
        text = f"{_count(v['s413_watched'], 'change')} watched"
        for key, what in (("kept", "kept"), ("rejected", "found harmful"), ("undone", "undone")):
            rows = np.asarray(v[f"s413_{key}"], dtype=np.int64)
            text += f"; {what}: {_some(name(k) for k in rows.tolist())}" if len(rows) else ""
        text += f"; suspect GPUs replaced of: {_some(name(k) for k in replaced)}" if replaced else ""
        yield "S413", text
    if _known(v, "s421_used_ratio"):
        text = f"{format_share(v['s421_used_ratio'])} of GPUs held, {v['s421_free']} free"
        yield (
            "S421",
            f"{text} (most on one node: {v['s421_largest_block']}), {_count(v['s421_waiting'], 'job')} waiting",
        )
    done = []
    for key, what in (
        ("moved", "moved to another GPU model"),
        ("stopped", "stopped for others"),
        ("grown", "gets more or other GPUs"),
        ("shrunk", "gives up GPUs"),
    ):
        rows = np.asarray(v.get(f"s422_{key}", ()), dtype=np.int64)
        done += [f"{what}: {_some(name(k) for k in rows.tolist())}"] if len(rows) else []
    if v.get("s422_overdue", -1) >= 0:
        done.append(f"nothing may delay the overdue job {name(int(v['s422_overdue']))}")
    if "s422_fallback" in v:
        done.append(f"the formula decided: {v['s422_fallback']}")
    yield "S422", "; ".join(done)
    if _known(v, "s423_efficiency_before"):
        text = f"efficiency of parallel work {format_share(v['s423_efficiency_before'])}"
        if v["s423_efficiency_after"] != v["s423_efficiency_before"]:
            text += f", {format_share(v['s423_efficiency_after'])} expected after"
        yield "S423", text


def touched(decision: Decision) -> list[int]:
    """Rows of the jobs of which a decision changes more than the order of fetching, ascending."""
    o, plan = decision.observation, decision.plan
    found = [np.empty(0, dtype=np.int64)]
    if plan.allocation is not None:
        found.append(plan.allocation.job)
    if plan.moves is not None:
        found.append(o.shards.job[plan.moves.shard])
    for new, old in (
        (plan.samples_per_step, o.workers.samples_per_step),
        (plan.gpu_share, o.workers.gpu_share),
        (plan.gradient_weight, o.workers.gradient_weight),
        (plan.push_interval, o.workers.push_interval),
    ):
        found += [] if new is None else [o.workers.job[new != old]]
    for new, old in (
        (plan.sync_interval, o.jobs.sync_interval),
        (plan.far_every, o.jobs.far_every),
        (plan.global_batch, o.jobs.global_batch),
        (plan.learning_rate, o.jobs.learning_rate),
    ):
        found += [] if new is None else [np.flatnonzero(new != old)]
    rows: list[int] = np.unique(np.concatenate(found)).tolist()
    return rows


def done_to(decision: Decision, row: int) -> str:
    """The changes of one job by a decision, with their sub-steps; empty without any."""
    o, plan, done = decision.observation, decision.plan, []
    mine = np.flatnonzero(o.workers.job == row)
    if plan.moves is not None:
        moved = int((o.shards.job[plan.moves.shard] == row).sum())
        done += [f"{_count(moved, 'shard')} to another worker (S113, S213)"] if moved else []
    if plan.fetch_order is not None and (o.shards.job[plan.fetch_order] == row).any():
        done.append("order of fetching (S212)")
    if plan.samples_per_step is not None:
        done += _changed("samples", o.workers.samples_per_step[mine], plan.samples_per_step[mine], "S223")
    if plan.push_interval is not None:
        done += _changed("steps between pushes", o.workers.push_interval[mine], plan.push_interval[mine], "S313")
    if plan.gradient_weight is not None:
        left_out = int((plan.gradient_weight[mine] < o.workers.gradient_weight[mine]).sum())
        done += [f"{_count(left_out, 'gradient')} left out (S111)"] if left_out else []
    for what, new, old, step in (
        ("interval", plan.sync_interval, o.jobs.sync_interval, "S313"),
        ("exchanges per exchange of all workers", plan.far_every, o.jobs.far_every, "S313"),
        ("global batch", plan.global_batch, o.jobs.global_batch, ""),
        ("factor on the learning rate", plan.learning_rate, o.jobs.learning_rate, ""),
    ):
        done += [] if new is None else _changed(what, old[[row]], new[[row]], step)
    if plan.gpu_share is not None:
        held, share = o.workers.gpu_share[mine], plan.gpu_share[mine]
        if not np.array_equal(held, share):
            done.append(f"shares of GPUs {_list(np.round(held, 3))} to {_list(np.round(share, 3))} (S323)")
    if plan.allocation is not None and row in plan.allocation.job:
        new_gpus = plan.allocation.gpus_of(int(np.flatnonzero(plan.allocation.job == row)[-1]))
        done.append(_given(decision, row, new_gpus))
    return "; ".join(done)


def _given(decision: Decision, row: int, gpus: Ints) -> str:
    held = int(decision.observation.jobs.gpus_held[row])
    asked = ""
    for reason in decision.plan.reasons:
        rows = np.asarray(reason.values.get("s423_changed", ()), dtype=np.int64).tolist()
        asked = reason.values["s423_asked"][rows.index(row)] if row in rows else asked
    why = f" ({asked})" if asked else ""
    if not len(gpus):
        return f"stopped{why}"
    where = f"{_count(len(gpus), 'GPU')} of {_places(decision, np.unique(decision.observation.gpus.node[gpus]))}{why}"
    return f"from {held} to {where}" if held else f"started on {where}"


def _places(decision: Decision, nodes: Ints) -> str:
    """Nodes as ranges, by rack where they are of several: "12 nodes of rack 0 (0-11), 12 of rack 1 (17-28)"."""
    of = f"{'nodes' if len(nodes) > 1 else 'node'} {_ranges(nodes)}"
    rack = decision.observation.nodes.rack[nodes]
    racks, counts = np.unique(rack, return_counts=True)
    if len(racks) < 2:
        return of
    parts = [f"{n} of rack {r} ({_ranges(nodes[rack == r])})" for r, n in zip(racks, counts, strict=True)]
    return f"{_count(len(nodes), 'node')}, {', '.join(parts)}"


def _ranges(numbers: Ints) -> str:
    """Ascending numbers, those in a row as a range: "0-11/17"."""
    rows = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return "/".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows)


def _changed(what: str, old: Ints | Floats, new: Ints | Floats, step: str) -> list[str]:
    why = f" ({step})" if step else ""
    return [] if np.array_equal(old, new) else [f"{what} {_list(old)} to {_list(new)}{why}"]


def _list(values: Any) -> str:
    return "/".join(f"{v:g}" for v in values.tolist())


def _some(texts: Iterable[str]) -> str:
    known = list(texts)
    return ", ".join(known[:_LISTED]) + (f" and {len(known) - _LISTED} more" if len(known) > _LISTED else "")


def _count(number: int, what: str) -> str:
    return f"{int(number)} {what}{'s' * (int(number) != 1)}"


def _known(values: Values, key: str) -> bool:
    return key in values and not math.isnan(values[key])
