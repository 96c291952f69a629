"""The shape of a decoder-only transformer (parameters, FLOP per token by part, bytes) and its layout over GPUs.

Parameters follow the published architectures (Vaswani et al. 2017; GPT-2: Radford et al. 2019; Llama: Touvron et
al. 2023; Mixtral: Jiang et al. 2024; DeepSeek-V2/V3: latent attention). A product of an (n x k) weight costs
2 n k FLOP per token forward (Kaplan et al. 2020, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

Norm = Literal["layer", "rms"]


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): low-rank queries and keys/values.

    `query_rank` 0: the queries are not compressed. Sizes are per head, ranks per layer.
    """

    query_rank: int
    key_value_rank: int
    nope_size: int
    rope_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class FlopPerToken:
    """Forward FLOP of one token, by part; the scores count the causal half only."""

    projections: float
    scores: float
    feed_forward: float
    head: float

    @property
    def total(self) -> float:
        """All parts together [FLOP]."""
        return self.projections + self.scores + self.feed_forward + self.head


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer. Sizes are counts of elements; `sequence` is in tokens.

    `kv_heads` 0: as many as `heads`. `head_size` 0: hidden / heads. `gated`: three feed-forward matrices
    (SwiGLU, Shazeer 2020) instead of two. `experts` 0: dense; else `experts` routed feed-forwards of width
    `expert_ffn` with `top_k` active per token, `shared_experts` always active ones of the same width, and
    `dense_layers` first layers with the plain feed-forward. `norms` counts the norms of a layer; `qk_norm` adds
    one of queries and one of keys (Qwen3). `local_layers` attend to the last `window` tokens (and linear ones to a
    state of that size); `linear_layers` have `linear_weights` parameters in place of an attention's. `mtp_layers`
    more layers, each with a pass of the head, predict further tokens (DeepSeek-V3, section 2.2).
    Raises ValueError, one clear line, on a shape that cannot exist.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    sequence: int
    kv_heads: int = 0
    head_size: int = 0
    gated: bool = False
    tied: bool = False
    norm: Norm = "rms"
    norms: int = 2
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    learned_positions: int = 0
    embedding_norm: bool = False
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    latent: LatentAttention | None = None
    window: int = 0
    local_layers: int = 0
    linear_layers: int = 0
    linear_weights: int = 0
    mtp_layers: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "vocab", "sequence"):
            _require(getattr(self, name) >= 1, f"{name}: {getattr(self, name)} is not at least 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int):
                _require(value >= 0, f"{field.name}: {value} is negative")
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_size:
            _require(self.hidden % self.heads == 0, f"hidden: {self.hidden} is not a multiple of heads ({self.heads})")
            object.__setattr__(self, "head_size", self.hidden // self.heads)
        _require(
            self.heads % self.kv_heads == 0, f"heads: {self.heads} is not a multiple of kv_heads ({self.kv_heads})"
        )
        _require((self.window > 0) == (self.local_layers > 0), "window: goes with local_layers")
        _require((self.linear_weights > 0) == (self.linear_layers > 0), "linear_weights: goes with linear_layers")
        for name in ("local_layers", "linear_layers"):
            _require(getattr(self, name) <= self.layers, f"{name}: {getattr(self, name)} of {self.layers} layers")
        _check_experts(self)

    @property
    def attended(self) -> float:
        """Tokens that a token attends to in the mean of all layers, times two: the sequence under causality alone."""
        near = min(self.window, self.sequence)
        local = near * (2.0 - near / self.sequence)
        return (local * self.local_layers + self.sequence * (self.layers - self.local_layers)) / self.layers

    @property
    def query_width(self) -> int:
        """Elements of all queries of a token."""
        return self.heads * self.head_size

    @property
    def key_value_width(self) -> int:
        """Elements of all keys (or of all values) of a token."""
        return self.kv_heads * self.head_size

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def attention_products(self) -> tuple[tuple[float, float], ...]:
        """(outputs, inputs) of a layer's attention weights, of layers of several kinds in their mean."""
        products = self._full_products()
        if not self.linear_layers:
            return products
        full = (self.layers - self.linear_layers) * sum(n * k for n, k in products)
        share = (full + self.linear_layers * self.linear_weights) / self.layers / sum(n * k for n, k in products)
        return tuple((n * share, k) for n, k in products)

    def _full_products(self) -> tuple[tuple[int, int], ...]:
        h = self.hidden
        if self.latent is None:
            return ((self.query_width + 2 * self.key_value_width, h), (h, self.query_width))
        a = self.latent
        wide = self.heads * (a.nope_size + a.rope_size)
        query = ((a.query_rank, h), (wide, a.query_rank)) if a.query_rank else ((wide, h),)
        return (
            *query,
            (a.key_value_rank + a.rope_size, h),
            (self.heads * (a.nope_size + a.value_size), a.key_value_rank),
            (h, self.heads * a.value_size),
        )

    def feed_forward_products(self, width: int) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of a feed-forward of this width; gate and up projection count as one product."""
        return ((width * (2 if self.gated else 1), self.hidden), (self.hidden, width))

    @property
    def layer_norm_parameters(self) -> int:
        """Parameters of the norms of one layer."""
        each = self.hidden * (2 if self.norm == "layer" else 1)
        latent = (self.latent.query_rank + self.latent.key_value_rank) if self.latent else 0
        return self.norms * each + latent + (2 * self.head_size if self.qk_norm else 0)

    @property
    def attention_parameters(self) -> float:
        """Parameters of one layer's attention, without norms; of layers of several kinds in their mean."""
        weights = sum(n * k for n, k in self.attention_products())
        joint = self.query_width + 2 * self.key_value_width if self.bias or self.qkv_bias else 0
        return weights + joint + (self.hidden if self.bias else 0)

    def feed_forward_parameters(self, width: int) -> int:
        """Parameters of one feed-forward of this width."""
        products = self.feed_forward_products(width)
        return sum(n * k for n, k in products) + (sum(n for n, _ in products) if self.bias else 0)

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router; 0 for a dense model."""
        return self.experts * self.hidden

    @property
    def dense_layer_parameters(self) -> float:
        """Parameters of a layer with the plain feed-forward."""
        return self.layer_norm_parameters + self.attention_parameters + self.feed_forward_parameters(self.ffn)

    @property
    def moe_layer_parameters(self) -> float:
        """Parameters of a layer with routed experts, all experts counted."""
        expert = self.feed_forward_parameters(self.expert_ffn)
        experts = (self.experts + self.shared_experts) * expert
        return self.layer_norm_parameters + self.attention_parameters + self.router_parameters + experts

    @property
    def embedding_parameters(self) -> int:
        """Parameters in front of the first layer."""
        norm = 2 * self.hidden if self.embedding_norm else 0
        return (self.vocab + self.learned_positions) * self.hidden + norm

    @property
    def head_parameters(self) -> int:
        """Parameters behind the last layer: the final norm, and the output matrix unless it is tied."""
        norm = self.hidden * (2 if self.norm == "layer" else 1)
        return norm + (0 if self.tied else self.vocab * self.hidden)

    @property
    def parameters(self) -> int:
        """All parameters, every expert counted."""
        dense = (self.layers - self.moe_layers) * self.dense_layer_parameters
        moe = self.moe_layers * self.moe_layer_parameters if self.experts else 0
        more = self.mtp_layers * (self.moe_layer_parameters if self.experts else self.dense_layer_parameters)
        return round(self.embedding_parameters + dense + moe + more + self.head_parameters)

    def forward_flop_per_token(self) -> FlopPerToken:
        """Forward FLOP of one token of a full sequence; backward is twice that (Kaplan et al. 2020)."""
        attention = sum(n * k for n, k in self.attention_products())
        plain = sum(n * k for n, k in self.feed_forward_products(self.ffn))
        expert = sum(n * k for n, k in self.feed_forward_products(self.expert_ffn))
        active = (self.top_k + self.shared_experts) * expert + self.router_parameters
        moe = self.moe_layers + (self.mtp_layers if self.experts else 0)
        layers = self.layers + self.mtp_layers
        feed_forward = (layers - moe) * plain + moe * active
        return FlopPerToken(
            projections=2.0 * layers * attention,
            scores=2.0 * layers * self.attended * self.score_width,
            feed_forward=2.0 * feed_forward,
            head=2.0 * self.vocab * self.hidden * (1 + self.mtp_layers),
        )

    @property
    def score_width(self) -> float:
        """Mean width of queries and values: one token costs 2 x sequence x this, forward, under causality."""
        if self.latent is None:
            return float(self.query_width)
        return self.heads * (self.latent.nope_size + self.latent.rope_size + self.latent.value_size) / 2

    def train_flop_per_token(self) -> float:
        """Model FLOP of one training step per token: forward and backward, no recomputation."""
        return 3.0 * self.forward_flop_per_token().total


def _require(true: bool, message: str) -> None:
    if not true:
        raise ValueError(message)


def _check_experts(shape: Transformer) -> None:
    if not shape.experts:
        _require(shape.ffn >= 1, f"ffn: {shape.ffn} is not at least 1")
        for name in ("top_k", "expert_ffn", "shared_experts", "dense_layers"):
            _require(getattr(shape, name) == 0, f"{name}: needs experts >= 1")
        return
    _require(shape.expert_ffn >= 1, "expert_ffn: routed experts need a width of at least 1")
    _require(1 <= shape.top_k <= shape.experts, f"top_k: {shape.top_k} is not between 1 and experts ({shape.experts})")
    _require(shape.dense_layers < shape.layers, f"dense_layers: {shape.dense_layers} leaves no layer for the experts")
    _require(shape.dense_layers == 0 or shape.ffn >= 1, "ffn: the dense layers need a width of at least 1")


Schedule = Literal["1f1b", "interleaved", "zero-bubble"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"]
NARROW = {"fp8": 1.0, "mxfp8": 0.88, "nvfp4": 1.5}
"""Rate of products in formats of 8 and 4 bits over that of FP8 with one scale a tensor. NVFP4: large products on a B200
in the kernel table of NVIDIA aiconfigurator; MXFP8, with its casts: steps of Llama 3.1 405B on GB200, 1.08 times as
long (NVIDIA Megatron-Bridge 26.02 to 26.06)."""
_DEGREES = ("data", "tensor", "context", "pipeline", "expert", "virtual")
_AT_LEAST_1 = (*_DEGREES, "micro_batch", "global_batch", "recompute_every")


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism and the batch. `global_batch` and `micro_batch` are in sequences.

    `zero` is the ZeRO stage (Rajbhandari et al. 2020): 0 none, 1 optimiser, 2 and gradients, 3 and parameters
    (FSDP); `shard` is the number of ranks over which that is spread (0: all data and context ranks).
    `expert_tensor_ranks` is the number over which one expert is split (0: the tensor ranks that other experts leave
    free). `virtual` is the number of model chunks per pipeline stage, above 1 only with the interleaved schedule. fp8,
    mxfp8 and nvfp4 apply to the layers' products alone; weights and gradients stay bf16. `overlap_experts` hides
    all-to-alls behind computing; without `fused_attention` scores are written to memory. `offload` moves the optimiser
    and its state to the host, `offload_activations` what layers keep for their backward pass, all but two layers' at a
    time; full recomputation is of every `recompute_every`-th layer. Raises ValueError, one clear line, on a
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
    overlap_experts: bool = False
    fused_attention: bool = True

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
