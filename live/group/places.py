"""Where this rank runs, and how many samples fit into its memory."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

_MEMORY_IN_USE = 0.9  # fraction of device memory that a larger share may fill


@dataclass(frozen=True)
class RankPlace:
    """Where a member of the job runs; `device` names one accelerator of `host` (or one CPU rank)."""

    member: int
    host: str
    device: str
    model: str = "cpu"
    memory_bytes: float = math.nan
    cores: int = 1
    share: float = 1.0  # of the device
    share_quantum: float = 0.01
    share_fixed: bool = False  # the share is that of the process, and cannot change


def my_place(member: int, device: torch.device, share_quantum: float, share: float | None) -> dict[str, Any]:
    """This process's place as plain data; `share` None: an equal part of the remaining device.

    `EQUIPOISE_DEVICE` names the device of a CPU rank, so that several ranks can stand for co-located ones, and
    `EQUIPOISE_HOST` its node, so that ranks of one machine can stand for several.
    """
    place = RankPlace(
        member,
        host=os.environ.get("EQUIPOISE_HOST", socket.gethostname()),
        device=os.environ.get("EQUIPOISE_DEVICE", f"cpu-{member}"),
        cores=os.cpu_count() or 1,
        share_quantum=share_quantum,
    )
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        place = replace(
            place,
            device=str(getattr(properties, "uuid", device.index)),
            model=properties.name,
            memory_bytes=float(properties.total_memory),
        )
    raw = asdict(place)
    raw["memory_bytes"] = None if math.isnan(place.memory_bytes) else place.memory_bytes
    raw["share"] = share
    return raw


def places_from(raw: Sequence[Mapping[str, Any]]) -> list[RankPlace]:
    """Places by rank; ranks on one device begin with equal shares of it, unless their shares are fixed."""
    on = [(r["host"], r["device"]) for r in raw]
    places = []
    for r, where in zip(raw, on, strict=True):
        memory = math.nan if r["memory_bytes"] is None else r["memory_bytes"]
        fixed = r["share"] is not None
        share = r["share"] if fixed else 1.0 / on.count(where)
        places.append(RankPlace(**{**r, "memory_bytes": memory, "share": share, "share_fixed": fixed}))
    return places


def samples_bound(device: torch.device, samples: int) -> tuple[float, float]:
    """(free device memory in bytes, most samples that fit into memory); NaN if unknown.

    The peak above the standing allocation is assumed proportional to the samples.
    """
    if device.type != "cuda" or samples < 1:
        return math.nan, math.nan
    free, total = torch.cuda.mem_get_info(device)
    standing = torch.cuda.memory_allocated(device)
    per_sample = (torch.cuda.max_memory_allocated(device) - standing) / samples
    cached = torch.cuda.memory_reserved(device) - standing
    room = free + cached - (1.0 - _MEMORY_IN_USE) * total
    return float(free), max(1.0, room / per_sample) if per_sample > 0 else math.nan
