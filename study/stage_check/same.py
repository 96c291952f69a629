"""Comparing, freezing and reducing inputs and outputs of stages."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from equipoise.policies.observation import TABLES, Table, writable


def freeze(value: Any) -> Any:
    """Make every array inside `value` read-only and return it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict):
        for item in value.values():
            freeze(item)
    elif isinstance(value, list | tuple):
        for item in value:
            freeze(item)
    return value


def only(observation: Any, tables: Any) -> Any:
    """The observation with all tables empty except `tables`."""
    other = copy.deepcopy(observation)
    for name, kind in TABLES.items():
        if name not in tables:
            setattr(other, name, kind())
    return other


def same(one: Any, other: Any) -> Any:
    """Whether two plans, memories or tables are equal to the bit, NaN equal to NaN."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Table):
        # The arrays behind the columns: thousands of tables are compared, and no stage has read most columns.
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(same(writable(one, name)[: len(one)], writable(other, name)[: len(one)]) for name in one.columns)
        )
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__
        )
    return type(one) is type(other) and (one == other or (one != one and other != other))
