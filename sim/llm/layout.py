"""How a model is split over accelerators, and its batch into micro-batches.

Ranks are numbered as Megatron-LM does (Narayanan et al. 2021): tensor-parallel neighbours first, then context, then
data, then pipeline stages; so a tensor group lies inside a node wherever it fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.sim.llm.shape import Transformer

Schedule = Literal["1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp16", "fp8", "fp32"]
_DEGREES = ("data", "tensor", "context", "pipeline", "expert", "virtual")
_AT_LEAST_1 = (*_DEGREES, "micro_batch", "global_batch", "recompute_every")


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism and the batch. `global_batch` and `micro_batch` are in sequences.

    `zero` is the ZeRO stage (Rajbhandari et al. 2020): 0 none, 1 optimiser, 2 and gradients, 3 and parameters
    (FSDP); `shard` is the number of ranks over which that is spread (0: all data and context ranks).
    `expert_tensor_ranks` is the number over which one expert is split (0: the tensor ranks that other experts leave
    free). `virtual` is the number of model chunks per pipeline stage, above 1 only with the interleaved schedule. fp8
    applies to the layers' products alone; weights and gradients stay bf16. `offload` moves the optimiser and its state
    to the host, `offload_activations` what layers keep for their backward pass, all but two layers' at a time; full
    recomputation is of every `recompute_every`-th layer. Raises ValueError, one clear line, on a
    layout that cannot exist.
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    virtual: int = 1
    schedule: Schedule = "1f1b"
    sequence_parallel: bool = False
    zero: int = 0
    shard: int = 0
    recompute: Recompute = "none"
    recompute_every: int = 1
    precision: Precision = "bf16"
    micro_batch: int = 1
    global_batch: int = 1
    offload: bool = False
    offload_activations: bool = False
    expert_tensor_ranks: int = 0

    def __post_init__(self) -> None:
        for name in _AT_LEAST_1:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        for name, allowed in (("schedule", Schedule), ("recompute", Recompute), ("precision", Precision)):
            if getattr(self, name) not in get_args(allowed):
                choices = ", ".join(get_args(allowed))
                raise ValueError(f"{name}: {getattr(self, name)!r} is not known; allowed: {choices}")
        if not 0 <= self.zero <= 3:
            raise ValueError(f"zero: {self.zero} is not 0, 1, 2 or 3")
        if self.global_batch % (self.data * self.micro_batch):
            raise ValueError(
                f"global_batch: {self.global_batch} is not a multiple of data x micro_batch "
                f"({self.data} x {self.micro_batch})"
            )
        if (self.schedule == "interleaved") != (self.virtual > 1):
            raise ValueError(f"virtual: {self.virtual} is not possible with the schedule {self.schedule!r}")
        if self.virtual > 1 and self.pipeline == 1:
            raise ValueError("virtual: needs pipeline > 1")
        if self.recompute_every > 1 and self.recompute != "full":
            raise ValueError(f"recompute_every: {self.recompute_every} goes with 'recompute: full'")
        if self.shard and (self.data * self.context) % self.shard:
            raise ValueError(f"shard: {self.shard} does not divide data x context ({self.data * self.context})")

    @property
    def gpus(self) -> int:
        """Accelerators of the whole layout (expert parallelism reuses data ranks)."""
        return self.data * self.replica_gpus

    @property
    def replica_gpus(self) -> int:
        """Accelerators that hold one copy of the model's work."""
        return self.tensor * self.context * self.pipeline

    @property
    def micro_batches(self) -> int:
        """Passes of one replica per step."""
        return self.global_batch // (self.data * self.micro_batch)

    @property
    def shard_ranks(self) -> int:
        """Ranks over which ZeRO spreads its state."""
        return self.shard or self.data * self.context

    @property
    def expert_tensor(self) -> int:
        """Ranks that one expert is split over."""
        return self.expert_tensor_ranks or math.gcd(self.tensor, self.data * self.context * self.tensor // self.expert)

    @property
    def expert_copies(self) -> int:
        """Ranks of a pipeline stage that hold the same part of its experts."""
        return self.data * self.context * self.tensor // (self.expert * self.expert_tensor)

    @property
    def expert_shard_ranks(self) -> int:
        """Ranks over which ZeRO spreads the state of experts: never more than hold the same part."""
        return max(1, self.expert_copies * self.shard_ranks // (self.data * self.context))

    def check(self, shape: Transformer) -> None:
        """Raises ValueError, one clear line, when this layout cannot hold that shape."""
        if shape.heads % self.tensor:
            raise ValueError(f"tensor: {self.tensor} does not divide the {shape.heads} heads")
        if shape.sequence % self.context:
            raise ValueError(f"context: {self.context} does not divide the sequence of {shape.sequence} tokens")
        if self.expert > 1 and (not shape.experts or shape.experts % self.expert):
            raise ValueError(f"expert: {self.expert} does not divide the {shape.experts} experts")
        ranks = self.data * self.context * self.tensor
        if ranks % self.expert:
            raise ValueError(f"expert: {self.expert} does not divide the {ranks} ranks of a pipeline stage")
        if ranks % (self.expert * self.expert_tensor):
            text = f"{self.expert_tensor_ranks} x {self.expert} expert ranks do not divide the {ranks} ranks of a stage"
            raise ValueError(f"expert_tensor_ranks: {text}")
        if self.expert_tensor_ranks > 1 and self.tensor % self.expert_tensor_ranks:
            text = f"{self.expert_tensor_ranks} does not divide the {self.tensor} tensor ranks"
            raise ValueError(f"expert_tensor_ranks: {text}")
