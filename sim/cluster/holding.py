"""The GPUs that a running job holds."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.policies.observation import Floats, Ints


@dataclass(slots=True)
class Holding:
    """The GPUs of one running job."""

    gpu: Ints
    share: Floats
    nodes: Ints  # distinct, ascending
    weight: float  # sum of the shares
