"""Accounts, users and QOS as `sacctmgr` writes them: `show assoc -P`, `dump`, and scripts of `add` lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.formats.slurm.hardware import SlurmQos, qos_of
from equipoise.formats.slurm.tables import ASSOCIATIONS, read_table
from equipoise.formats.slurm.values import parse_tres, whole
from equipoise.formats.text.numbers import decimal
from equipoise.formats.text.tally import RowTally, TextChange
from equipoise.formats.text.textfile import TextFile

_OWN = frozenset(
    {
        "account",
        "user",
        "parentname",
        "parent",
        "share",
        "fairshare",
        "rawshares",
        "name",
        "defaultaccount",
        "normshares",
        "rawusage",
        "normusage",
        "effectvusage",
        "levelfs",
    }
)


@dataclass(frozen=True)
class Association:
    """An account (user "") or a user in one. shares: None for `parent`, whose users share the account's.

    limits and counts: as in `SlurmQos`, by the column's name in lower case. other: what else is filled. default:
    False where the user's DefaultAccount is another one.
    """

    account: str
    user: str
    parent: str
    shares: float | None
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, str] = field(default_factory=dict)
    default: bool = True


@dataclass(frozen=True)
class Accounts:
    """The declarations of a file, in order."""

    associations: tuple[Association, ...]
    qos: tuple[SlurmQos, ...] = ()
    changes: tuple[TextChange, ...] = ()


def read_associations(source: str | Path | bytes, *, name: str = "") -> Accounts:
    """Rows of `sacctmgr show assoc` or `sshare`. Raises FormatError without its header.

    Without a column of parents, blanks before the accounts tell the tree (`sacctmgr show assoc tree`, `sshare`);
    without those accounts stand directly below the root.
    """
    file = TextFile(source, name)
    rows = [
        {title.replace(" ", "").lower(): cell for title, cell in row.items()}
        for row in read_table(file, ASSOCIATIONS | {"account", "user"})
    ]
    if not rows or not {"account", "user"} <= set(rows[0]):
        raise file.error(1, "no header `Cluster|Account|User|...` of `sacctmgr show assoc -P`, or no row below it")
    above: list[tuple[int, str]] = []
    for row in rows:
        account = row["account"].lstrip()
        depth = len(row["account"]) - len(account)
        if not row["user"].strip():
            above = [*(pair for pair in above if pair[0] < depth), (depth, account.rstrip())]
            row.setdefault("parentname", above[-2][1] if len(above) > 1 else "")
    stripped = [{key: cell.strip() for key, cell in row.items()} for row in rows]
    return Accounts(
        tuple(_association(row, row["account"], row["user"]) for row in stripped if row["account"] != "root")
    )


def _association(values: Mapping[str, str], account: str, user: str) -> Association:
    parent = values.get("parentname", values.get("parent", ""))
    told = next((values[key] for key in ("share", "rawshares", "fairshare") if values.get(key)), "1")
    filled = {key: value for key, value in values.items() if value and key not in _OWN}
    limits = {key: parse_tres(value) for key, value in filled.items() if "=" in value}
    counts = {key: whole(value) for key, value in filled.items() if key not in limits and whole(value) >= 0}
    return Association(
        account,
        user,
        "" if parent == "root" else parent,
        None if told == "parent" else decimal(told),
        limits,
        counts,
        {key: value for key, value in filled.items() if key not in limits and key not in counts},
        values.get("defaultaccount", account) == account,
    )


def read_dump(source: str | Path | bytes, *, name: str = "") -> Accounts:
    """A file of `sacctmgr dump CLUSTER`. Raises FormatError for a line that is none of it."""
    file, tally, found, parent = TextFile(source, name), RowTally(), list[Association](), ""
    for number, line in enumerate(file.text(tally).split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.match(r"(Cluster|Parent|Account|User)\s*-\s*('[^']*'|[^:]*)(?::(.*))?$", line.strip())
        if match is None:
            raise file.error(number, "no line `Parent - 'NAME'`, `Account - ...` or `User - ...` of `sacctmgr dump`")
        kind, title = match[1], match[2].strip().strip("'")
        pairs = (part.partition("=") for part in _fields(match[3] or ""))
        values = {key.strip().lower(): value.strip().strip("'") for key, _, value in pairs}
        if kind == "Parent":
            parent = title
        elif kind == "Account" and title != "root":
            found.append(_association({**values, "parent": parent}, title, ""))
        elif kind == "User" and parent != "root":
            found.append(_association(values, parent, title))
    return Accounts(tuple(found), (), tally.changes())


def _fields(text: str) -> list[str]:
    """The parts of `Fairshare=1:GrpTRES='gres/gpu:a100=8'`; a colon within quotes or a TRES type does not cut."""
    return re.split(r":(?=[A-Za-z ]+=)(?=(?:[^']*'[^']*')*[^']*$)", text)


def read_script(source: str | Path | bytes, *, name: str = "") -> Accounts:
    """Lines `add|modify account|user|QOS ...` of a script for sacctmgr; others are counted."""
    file, tally = TextFile(source, name), RowTally()
    accounts, qos = dict[tuple[str, str], dict[str, str]](), dict[str, dict[str, str]]()
    for number, line in enumerate(file.text(tally).split("\n"), start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise file.error(number, "quotes that do not match") from error
        if not words:
            continue
        what = " ".join(words[:2]).lower()
        if words[0].lower() not in ("add", "modify", "create") or len(words) < 3:
            tally.add("left out", f"line {what}", number)
            continue
        for key, values in _entries(words[1].lower(), words[2:]):
            if words[1].lower() == "qos":
                qos.setdefault(key[0], {}).update(values)
            elif words[1].lower() in ("account", "user") and (words[0].lower() != "modify" or key in accounts):
                accounts.setdefault(key, {}).update(values)
            else:
                tally.add("left out", f"line {what}", number)
    made = tuple(_association(values, account, user) for (account, user), values in accounts.items())
    return Accounts(made, tuple(qos_of({"Name": title, **values}) for title, values in qos.items()), tally.changes())


def _entries(kind: str, words: list[str]) -> Iterator[tuple[tuple[str, str], dict[str, str]]]:
    """(account and user, or the name of a QOS; its values) of one line; `where` and `set` join its halves."""
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            pairs[key.lower()] = value
        elif word.lower() not in ("where", "set"):
            pairs["name"] = word
    names = pairs.get("name", pairs.get("names", "")).split(",")
    if kind == "qos":
        columns = {key: value for key, value in pairs.items() if key not in ("name", "names")}
        yield from (((title, ""), {_QOS.get(key, key): value for key, value in columns.items()}) for title in names)
    elif kind == "user":
        account = pairs.get("account", pairs.get("accounts", pairs.get("defaultaccount", "")))
        yield from (((account, title), pairs) for title in names)
    else:
        yield from (((title, ""), pairs) for title in names)


_QOS = {
    "priority": "Priority",
    "grptres": "GrpTRES",
    "maxtresperuser": "MaxTRESPU",
    "maxtresperaccount": "MaxTRESPA",
    "maxtresperjob": "MaxTRES",
    "grpjobs": "GrpJobs",
    "maxjobsperuser": "MaxJobsPU",
    "flags": "Flags",
    "maxjobsperaccount": "MaxJobsPA",
    "preempt": "Preempt",
    "preemptmode": "PreemptMode",
    "maxwall": "MaxWall",
}
