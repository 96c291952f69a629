"""Types and bounds of the record of a live run, so that damage is reported with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from equipoise.policies.plan import RateRule
from equipoise.sim.scenario.tree import InputError

Count = Annotated[int, Field(ge=0, le=10**15)]
Seconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]


NEEDED = ("members", "policy", "global_batch", "micro_batch", "decide_every", "samples", "shards", "mode")
"""Keys of every manifest."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Place(_Part):
    member: Count
    host: str
    device: str
    model: str = ""
    share: Annotated[float, Field(ge=0.0, le=1e3, allow_inf_nan=False)] = 1.0  # of the device
    share_fixed: bool = False


class _Manifest(_Part):
    members: list[_Place] = Field(min_length=1)
    policy: str | None
    stages: list[Any] | None = None
    mode: str
    allow: list[str] = []
    global_batch: Count | None
    batch_max: Count | None = None
    learning_rate: RateRule | None = None
    micro_batch: Count | None
    accumulation: Count = 1
    decide_every: Count | None
    samples: Count | None
    sample_bytes: Seconds = 0.0
    shards: Count | None
    unix_s: Time = 0.0

    @model_validator(mode="after")
    def _is_whole(self) -> _Manifest:
        """Whether the manifest is complete; a run in mode observe needs no batch."""
        unknown = [k for k in NEEDED if k != "policy" and getattr(self, k) is None]
        if self.policy is not None and unknown:
            raise ValueError(f"{unknown[0]} is null")
        return self


class _Round(_Part):
    round: Count
    exchanged: bool
    samples: Seconds
    stall_s: Seconds | None
    compute_s: Seconds | None
    tail_s: Seconds | None
    update_s: Seconds | None


class _Event(_Part):
    event: str
    unix_s: Time


class _Decision(_Event):
    event: Literal["decision"]
    number: Count
    point: Count
    rounds: Count
    time_s: Time
    refused: list[str] = []


class _Device(_Event):
    event: Literal["device"]
    rounds: Count = 0
    queued_s: Seconds | None = None
    clock_ratio: Seconds | None = None
    temperature_c: Time | None = None


class _Regrouped(_Event):
    event: Literal["regrouped"]
    took_s: Seconds


_LINES: dict[str, type[_Part]] = {"decision": _Decision, "device": _Device, "regrouped": _Regrouped}


def check_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Raises InputError, one line with the key, when the manifest of a live run is damaged."""
    missing = [name for name in NEEDED if name not in manifest]
    if missing:
        raise InputError([f"{path}: {missing[0]}: is missing"])
    _check(_Manifest, str(path), manifest)
    members = [place["member"] for place in manifest["members"]]
    if len(set(members)) < len(members):
        raise InputError([f"{path}: members: a rank is listed twice"])


def check_line(place: str, line: dict[str, Any]) -> None:
    """Raises InputError, one line, when a line of a member's record is damaged."""
    event = line.get("event")
    kind = _Round if event is None else _LINES.get(event, _Event) if isinstance(event, str) else _Event
    _check(kind, place, line)


def _check(kind: type[_Part], place: str, value: dict[str, Any]) -> None:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError([": ".join(filter(None, (place, key, first["msg"])))]) from None
