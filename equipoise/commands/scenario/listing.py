"""equipoise list: list stages, profiles, scenarios and other files by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from equipoise.options import common, say
from equipoise.policies.registry import BUILT_IN, PolicyError, available, stage_class

WHAT = ("stages", "hardware", "scenarios", "sweeps", "prices", "carbon")
_BY_KEY = {"scenario": "sweeps", "cluster": "scenarios", "regions": "carbon"}


@click.command("list")
@click.argument("what", required=False, type=click.Choice(WHAT))
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
@common
def list_(what: str | None, form: str) -> None:
    """List stages, hardware, scenarios, sweeps, price books and CO2 of regions; one kind with its descriptions."""
    from equipoise.study.findings import WIDTH

    makers = {"stages": stages, "hardware": hardware}
    found = {name: makers[name]() if name in makers else files(name) for name in ([what] if what else WHAT)}
    if form == "json":
        say(json.dumps(found, indent=2))
        return
    if what:
        width = max((len(row["name"]) for row in found[what]), default=0) + 2
        say("\n".join(f"{row['name']:{width}}{_line(row)}" for row in found[what]))
        return
    say("`equipoise run NAME` runs a scenario, `--policy NAME` takes a stage; `equipoise list stages` describes these.")
    width = max(map(len, found)) + 2
    for name, rows in found.items():
        texts = wrap(", ".join(row["name"] for row in rows), WIDTH - width, break_on_hyphens=False) or ["none"]
        say("\n".join(f"{name if k == 0 else '':{width}}{text}" for k, text in enumerate(texts)))


def _line(row: Mapping[str, Any]) -> str:
    """The row's first value, and its other values one per line below."""
    facts = [(k, v) for k, v in row.items() if k not in ("name", "what") and v not in ("", None)]
    return "\n".join([str(row["what"]), *(f"{'':16}{k}: {v}" for k, v in facts)])


def stages() -> list[dict[str, Any]]:
    """Every stage: kind, parameters with defaults; for allocation stages also their guarantees."""

    rows = []
    for name, where in sorted(available().items(), key=lambda item: (item[0] not in BUILT_IN, item[0])):
        try:
            cls = stage_class(name)
            rows.append(_stage(name, cls, "built in" if name in BUILT_IN else where))
        except PolicyError as error:
            rows.append({"name": name, "what": f"cannot be used: {error}"})
    return rows


def _stage(name: str, cls: Any, origin: str) -> dict[str, Any]:
    from equipoise.policies.kernels.placement import PLACEMENTS

    parameters = {f.name: f.default for f in dataclasses.fields(cls)}
    doc = (cls.__doc__ or "").strip().split("\n\n")[0]
    row = {"name": name, "what": " ".join(doc.split()), "kind": cls.kind, "from": origin}
    for promise in ("order", "blocking", "preemption", "starvation", "fidelity"):
        row[promise] = getattr(cls, promise, "")
    row["placement"] = ", ".join(PLACEMENTS) if "placement" in parameters else getattr(cls, "places", "")
    row["of queues"] = ", ".join(getattr(cls, "honours", ()))
    row["parameters"] = ", ".join(f"{k}={v!r}" for k, v in parameters.items())
    return row


def hardware() -> list[dict[str, Any]]:
    """Every hardware profile included in the package, with its accelerators."""
    from equipoise.sim.hardware.profile import list_profiles, load_profile

    profiles = [(name, load_profile(name)) for name in list_profiles()]
    return [{"name": n, "what": p.why, "kind": p.kind, "accelerators": ", ".join(p.accelerators)} for n, p in profiles]


def files(kind: str) -> list[dict[str, Any]]:
    """Every scenario, sweep, price book or file of CO2 included in the package."""
    from equipoise.sim.hardware.profile import shipped
    from equipoise.sim.scenario.tree import read_text, read_tree

    rows = []
    for path in shipped():
        data = read_tree(read_text(path), path.name).data
        found = next((of for key, of in _BY_KEY.items() if key in data), "prices")
        if found == kind:
            row = {"name": path.stem, "what": " ".join(data.get("why", "").split()), "file": str(path)}
            rows.append(row | (_amounts(path) if kind == "prices" else {}))
    return rows


def _amounts(path: Path) -> dict[str, str]:
    """The prices of a book, with their date."""
    from equipoise.sim.hardware.prices import load_book

    book = load_book(str(path))
    rents = ", ".join(f"{name} {price.value:g}" for name, price in book.gpu_hour.items())
    off = ", ".join(f"{name} {100 * share.value:g} %" for name, share in book.discounts.items())
    return {"date": book.date, "USD per GPU hour": rents, "off it, by contract": off, "source": book.source}
