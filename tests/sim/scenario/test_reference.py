"""The reference of the keys says what the models say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter

from equipoise.cli import main
from equipoise.exit_codes import OK, WRONG_INPUT
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.reference import all_keys, under
from equipoise.sim.scenario.reference import page as reference_page
from equipoise.sim.scenario.units import Section


def test_a_key_has_its_unit_limits_default_and_meaning() -> None:
    (speed,) = under("cluster.nodes.0.speed")
    assert speed.path == "cluster.nodes[].speed"
    assert (speed.kind, speed.default) == ("number, above 0", "1")
    assert speed.meaning == "relative to the accelerator's profile"
    (rate,) = under("cluster.nodes[].storage_rate")
    assert rate.kind == "bytes/s, e.g. 100 Gbit/s"
    assert rate.default == "24 Gbit/s"
    assert under("cluster.nodes.storage_rate") == [rate]  # brackets and indices may be left out
    assert under("cluster.nodes.host_memory")[0].default == "256 GiB"
    assert under("faults.spot.notice")[0].default == "2 min"


def test_the_command_shows_a_key_and_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "decide"]) == OK
    assert capsys.readouterr().out.startswith("key")
    assert main(["schema", "decide", "--format", "json"]) == OK
    assert json.loads(capsys.readouterr().out)[0]["path"] == "decide"
    assert main(["schema", "cluster.node"]) == WRONG_INPUT
    assert "did you mean 'cluster.nodes" in capsys.readouterr().err


def test_every_key_stands_in_the_page_once_per_kind_of_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--format", "markdown"]) == OK
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert len(lines) == len(all_keys())


def test_the_committed_page_is_what_the_models_say() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "scenario.md").read_text()
    assert page == reference_page(), "equipoise schema --format markdown > docs/scenario.md"


def test_every_default_is_an_allowed_value() -> None:
    """A scenario is written with its defaults and read again: `compare`, `size` and the run folder do so."""

    def below(kind: type[Section]) -> Iterator[type[Section]]:
        """All sections."""
        for own in kind.__subclasses__():
            yield own
            yield from below(own)

    assert Scenario.model_fields
    for section in set(below(Section)):
        for field in section.model_fields.values():
            if not field.is_required():
                kind = reduce(lambda kind, limit: Annotated[kind, limit], field.metadata, field.annotation)
                if "Annotated" in str(kind) or kind in (int, float, str, bool):  # others are sections themselves
                    TypeAdapter(kind).validate_python(field.get_default(call_default_factory=True))
