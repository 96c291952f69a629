"""A live run as Chrome trace JSON, for Perfetto: process = host, thread = rank, slice = use of time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from equipoise.base.files import replacing
from equipoise.study.live.account import LiveAccount, read_account

_SHOWN = ("decision", "decision-failed", "refused", "warning")


def write_live_trace(folder: Path, out: Path) -> tuple[int, int]:
    """Write the gzipped trace; returns (slices, instants). Raises InputError without a record, OSError."""
    account = read_account(folder)
    events, slices, instants = _events(account)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as draft, open(draft, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        file.write(f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'.encode())
    return slices, instants


def _events(account: LiveAccount) -> tuple[list[dict[str, Any]], int, int]:
    hosts = sorted({rank.host for rank in account.ranks})
    of = {rank.member: hosts.index(rank.host) + 1 for rank in account.ranks}
    events: list[dict[str, Any]] = []
    for number, host in enumerate(hosts, start=1):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": host}})
    for rank in account.ranks:
        where = {"pid": of[rank.member], "tid": rank.member}
        events.append({"ph": "M", "name": "thread_name", **where, "args": {"name": f"rank {rank.member}"}})
    slices = [
        {
            "ph": "X",
            "name": part.use,
            "cat": part.use,
            "pid": of[rank.member],
            "tid": rank.member,
            "ts": _us(part.begin_s),
            "dur": _us(part.end_s - part.begin_s),
            "args": {"round": part.round},
        }
        for rank in account.ranks
        for part in rank.slices
    ]
    instants = [
        {
            "ph": "i",
            "s": "t",
            "name": line["event"],
            "pid": of[member],
            "tid": member,
            "ts": _us(at_s),
            "args": {key: value for key, value in line.items() if key not in ("event", "unix_s")},
        }
        for at_s, member, line in account.events
        if line["event"] in _SHOWN and member in of
    ]
    return [*events, *slices, *instants], len(slices), len(instants)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
