"""Data-sheet numbers of accelerators and networks that determine a training step.

Sources: NVIDIA data sheets of V100, A100, H100, H200, GH200, B200, GB200; rates are dense (no sparsity), bytes/s of
links are one direction, memory is what the driver shows (its origins: `scenarios/hardware/catalogue.yaml`; GH200:
litgpt#1892; GB200: as B200). A shape can be predicted by them without a profile, which overrides them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceleratorRates:
    """One accelerator: dense peak FLOP/s in 16 bits and in fp8 (0: has none), memory bytes and bytes/s, link
    bytes/s.

    `link_bytes_per_s` is one direction to the other accelerators of its node, all links together.
    """

    name: str
    flop_per_s: float
    fp8_flop_per_s: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class GroupLinks:
    """Bytes/s that every rank sends within its tensor, context and expert group and to the next stage, when all
    groups of a job do so at once."""

    tensor: float
    context: float
    expert: float
    send: float


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """Nodes of `node_gpus` accelerators with `node_bytes_per_s` of network each, one direction, all NICs
    together.

    One accelerator drives `gpu_bytes_per_s` of them (0: its part). Racks of `rack_gpus` accelerators (0: there are
    none) send `rack_bytes_per_s` to others. `links`: of ranks that have been placed; None: one after the other.
    """

    node_gpus: int
    node_bytes_per_s: float
    gpu_bytes_per_s: float = 0.0
    rack_gpus: int = 0
    rack_bytes_per_s: float = 0.0
    links: GroupLinks | None = None

    @property
    def gpu_nic_bytes_per_s(self) -> float:
        """Network rate of one accelerator, out of its node's network."""
        return self.gpu_bytes_per_s or self.node_bytes_per_s / self.node_gpus


_GB = 1e9
_TF = 1e12

ACCELERATORS = {
    a.name: a
    for a in (
        AcceleratorRates("V100-32GB", 125 * _TF, 0, 31.74 * 2**30, 897 * _GB, 150 * _GB),
        AcceleratorRates("A100-40GB", 312 * _TF, 0, 39.5 * 2**30, 1555 * _GB, 300 * _GB),
        AcceleratorRates("A100-80GB", 312 * _TF, 0, 79.2 * 2**30, 2039 * _GB, 300 * _GB),
        AcceleratorRates("H100", 989 * _TF, 1979 * _TF, 79.18 * 2**30, 3350 * _GB, 450 * _GB),
        AcceleratorRates("H200", 989 * _TF, 1979 * _TF, 139.8 * 2**30, 4800 * _GB, 450 * _GB),
        AcceleratorRates("GH200", 989 * _TF, 1979 * _TF, 94.88 * 2**30, 4000 * _GB, 450 * _GB),
        AcceleratorRates("B200", 2250 * _TF, 4500 * _TF, 178.2 * 2**30, 7700 * _GB, 900 * _GB),
        AcceleratorRates("GB200", 2500 * _TF, 5000 * _TF, 184.1 * 2**30, 8000 * _GB, 900 * _GB),
    )
}
