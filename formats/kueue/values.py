"""Values of Kubernetes objects: quantities, times, requests of pods; a wrong type is reported with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equipoise.formats.accelerators import is_accelerator
from equipoise.formats.text.errors import FormatError, shown
from equipoise.formats.text.times import parse_times

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18}))(?:([eE][+-]?[0-9]{1,2})|([a-zA-Z]{0,2}))"
)
_SUFFIX = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


_UNSET: tuple[Any, ...] = (None, "", "None", "Never", {}, [])


@dataclass(frozen=True)
class Thing:
    """A part of an object and its path, such as `ClusterQueue main: spec.resourceGroups[0]`."""

    value: Any
    where: str

    def fail(self, message: str) -> FormatError:
        """An error at this place."""
        return FormatError(f"{self.where}: {message}")

    def get(self, *keys: str) -> Thing:
        """The part under these keys; its value is None if it is missing. Raises FormatError in a scalar."""
        thing = self
        for key in keys:
            if thing.value is not None and not isinstance(thing.value, dict):
                raise thing.fail(f"{shown(str(thing.value))} where a mapping with {key!r} is needed")
            value = None if thing.value is None else thing.value.get(key)
            thing = Thing(value, f"{thing.where}.{key}" if not thing.where.endswith(": ") else thing.where + key)
        return thing

    def members(self) -> list[Thing]:
        """The members of a list; none where there is no list. Raises FormatError for another value."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.fail(f"{shown(str(self.value))} where a list is needed")
        return [Thing(value, f"{self.where}[{k}]") for k, value in enumerate(self.value)]

    def text(self, default: str = "") -> str:
        """A text, or a number or a flag as text. Raises FormatError for another value."""
        if isinstance(self.value, (dict, list)):
            raise self.fail("a list or a mapping where text is needed")
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return default if self.value is None else str(self.value)

    def whole(self, default: int) -> int:
        """A whole number. Raises FormatError for another value."""
        if self.value is None:
            return default
        if type(self.value) is not int or abs(self.value) > 2**53:
            raise self.fail(f"{shown(str(self.value))} where a whole number is needed")
        return self.value

    def amount(self, default: float | None = None) -> float | None:
        """A quantity of 0 or above. Raises FormatError for another value."""
        number = self.quantity(default)
        if number is not None and number < 0:
            raise self.fail(f"{shown(str(self.value))} is below 0")
        return number

    def rest(self, known: str) -> tuple[str, ...]:
        """Further settings of a mapping, one `key: value` each; known: keys that are read."""
        found = self.value if isinstance(self.value, dict) else {}
        said = {key: value for key, value in found.items() if key not in known.split() and value not in _UNSET}
        return tuple(f"{key} {shown(json.dumps(value, default=str))}" for key, value in said.items())

    def quantity(self, default: float | None = None) -> float | None:
        """A quantity such as `100m`, `36Gi`, 8. Raises FormatError for another value."""
        if self.value is None:
            return default
        number = quantity(self.value)
        if number is None:
            raise self.fail(f"{shown(str(self.value))} where a quantity such as 8, 500m, 36Gi is needed")
        return number

    def texts(self) -> dict[str, str]:
        """A mapping of texts. Raises FormatError for another value."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.fail(f"{shown(str(self.value))} where a mapping is needed")
        return {str(key): Thing(value, f"{self.where}.{key}").text() for key, value in self.value.items()}

    def time_s(self) -> float:
        """UTC seconds of an RFC 3339 time, NaN for none. Raises FormatError for another value."""
        seconds, _, bad = parse_times([self.text()])
        if bad[0]:
            raise self.fail(f"{shown(self.text())} where a time such as 2024-03-01T10:00:00Z is needed")
        return float(seconds[0])


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity as a number, None for anything else."""
    if type(value) in (int, float):
        return float(value) if abs(value) < 1e30 else None
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[3] or "") not in _SUFFIX:
        return None
    return float(match[1] + (match[2] or "")) * _SUFFIX[match[3] or ""]


def pod_requests(spec: Thing) -> dict[str, float]:
    """Requests of one pod by resource: the sum of its containers, or the largest initial container if more.

    A resource without a request has its limit (Kubernetes, "Resource Management for Pods and Containers").
    """
    total: dict[str, float] = {}
    for container in spec.get("containers").members():
        for name, amount in _requests(container).items():
            total[name] = total.get(name, 0.0) + amount
    for container in spec.get("initContainers").members():
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, 0.0), amount)
    return total


def _requests(container: Thing) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in ("limits", "requests"):
        amounts = container.get("resources", part)
        for name in amounts.value if isinstance(amounts.value, dict) else ():
            amount = amounts.get(str(name)).quantity()
            found |= {} if amount is None else {str(name): amount}
    return found


def gpus_of(requests: Mapping[str, float]) -> float:
    """GPUs among the requests, see `is_accelerator`."""
    return sum(amount for name, amount in requests.items() if is_accelerator(name))
