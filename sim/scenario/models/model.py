"""Models of a scenario: the cost of a step, and the convergence."""

from __future__ import annotations

from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from equipoise.sim.llm.memory_stack import FITTED, GENERAL, MEMORY_STACKS, STAGE_MEASURED, UNFITTED, MemoryStack
from equipoise.sim.llm.published import SHAPES, with_sequence
from equipoise.sim.llm.shape import LatentAttention, Layout, Transformer
from equipoise.sim.llm.shape import Precision as Numbers
from equipoise.sim.llm.stack import STACKS, Stack
from equipoise.sim.scenario.units import Bytes, BytesPerS, Count, Float, Flop, Int, Seconds, Section, Share, Span

Natural = Annotated[Int, Field(ge=0)]
Positive = Annotated[Float, Field(gt=0)]
NAMES = {"data": "dp", "tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "expert_tensor_ranks": "etp"}
"""Key of the scenario by field of `Layout`."""
NEEDED = ("layers", "hidden", "heads", "vocab", "sequence")


class LayoutSpec(Section):
    """How a model is spread. One replica takes tp x cp x pp GPUs; the job's GPUs make dp."""

    tp: Count = 1  # tensor parallelism
    pp: Count = 1  # pipeline parallelism
    cp: Count = 1  # context parallelism
    ep: Count = 1  # expert parallelism
    etp: Count | None = (
        None  # ranks that one expert is split over; none: the tensor ranks that other experts leave free
    )
    virtual: Count = 1  # model chunks per pipeline stage
    schedule: Literal["1f1b", "interleaved", "zero-bubble"] | None = None  # none: interleaved with virtual > 1
    sequence_parallel: bool | None = None  # sequence parallelism; none: on with tp > 1
    zero: Literal[0, 1, 2, 3] = 0  # ZeRO stage
    recompute: Literal["none", "selective", "full"] = "none"  # of activations
    recompute_every: Count = 1  # with full recomputation: only every n-th block is computed again
    micro_batch: Count = 1  # sequences of a micro-batch
    # ranks over which ZeRO spreads, with a copy for each such group (HSDP); 0: all data and context ranks
    shard: Natural = 0
    offload: bool = False  # offload the optimiser state to host memory
    overlap_experts: bool = False  # all-to-alls of experts run beside the computing of other tokens
    # false where the software has no fused kernel, as for learned sinks (NVIDIA TransformerEngine, issue 2318)
    fused_attention: bool = True
    offload_activations: bool = False  # keep activations in host memory between forward and backward pass

    @property
    def replica_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.cp * self.pp

    def layout(self, dp: int, global_batch: int, precision: str) -> Layout:
        """The layout of `dp` replicas. Raises ValueError, its first word the key that is wrong."""
        given: dict[str, Any] = {name: getattr(self, NAMES.get(name, name)) for name in LAYOUT}
        given["expert_tensor_ranks"] = self.etp or 0
        given["schedule"] = self.schedule or ("interleaved" if self.virtual > 1 else "1f1b")
        if self.sequence_parallel is None:
            given["sequence_parallel"] = self.tp > 1
        with _renamed():
            return Layout(data=dp, global_batch=global_batch, precision=precision_of(precision), **given)


LAYOUT = [NAME for NAME in (f.name for f in fields(Layout)) if NAMES.get(NAME, NAME) in LayoutSpec.model_fields]


class LatentSpec(Section):
    """Multi-head latent attention; sizes per head, ranks per layer."""

    query_rank: Natural  # rank of the compressed query; 0: not compressed
    key_value_rank: Count  # rank of the compressed keys and values
    nope_size: Natural  # size per head of the key part without position
    rope_size: Natural  # size per head of the key part with rotary position
    value_size: Count  # size per head of the value


class MeasuredStep(Section):
    """One measured step: it sets one factor on every predicted time of the model."""

    time: Span  # time of the step
    accelerator: Annotated[str, Field(min_length=1)]  # accelerator that it ran on
    gpus: Count  # how many of them
    global_batch: Count  # sequences of the step


class StackSpec(Section):
    """A software stack's constants, by name, as `equipoise calibrate fit-steps` writes them."""

    name: str = ""  # name of a built-in software stack
    constants: dict[str, Positive]  # constants of the step time, in place of the named stack's
    memory: dict[str, Positive] = Field(default_factory=dict)  # constants of its memory
    spread: tuple[Positive, Positive] | None = None  # 5 % and 95 % quantiles of measured / predicted for unseen models

    @model_validator(mode="after")
    def _known(self) -> Self:
        for section, allowed in (("constants", [f.name for f in fields(Stack)]), ("memory", FITTED)):
            for key in getattr(self, section):
                if key not in allowed:
                    raise ValueError(f"{section}.{key}: unknown constant; allowed: {', '.join(allowed)}")
        return self


class Bound(Section):
    """Values that loading derives from the section, the jobs and the cluster."""

    layout: LayoutSpec
    dp: Count
    global_batch: Count
    node_gpus: Count
    nic: BytesPerS
    gpu_nic: Annotated[Float, Field(ge=0)] = 0.0  # what one GPU drives of the node's network; 0: its part
    rack_gpus: Natural = 0  # of a rack; 0: there are none
    rack: Annotated[Float, Field(ge=0)] = 0.0  # of its uplink
    factor: Positive = 1.0
    why: str = ""


class TransformerSpec(Section):
    """A decoder-only transformer. Either `config` (a published name, or the path of a config.json) or its shape."""

    config: str | None = None  # config.json of a published model, in place of the shape
    layers: Natural = 0  # transformer blocks
    hidden: Natural = 0  # width of the model
    heads: Natural = 0  # attention heads
    kv_heads: Natural = 0  # 0: as many as heads
    head_size: Natural = 0  # 0: hidden / heads
    ffn: Natural = 0  # width of the feed-forward layer
    vocab: Natural = 0  # tokens of the vocabulary
    sequence: Natural = 0  # tokens
    gated: bool = False  # feed-forward with a gate (SwiGLU)
    tied: bool = False  # input and output embeddings are one
    norm: Literal["layer", "rms"] = "rms"  # kind of normalisation
    norms: Natural = 2  # normalisations of a block
    bias: bool = False  # biases in every linear layer
    qkv_bias: bool = False  # biases in the attention's input projections
    qk_norm: bool = False  # normalises queries and keys
    learned_positions: Natural = 0  # positions with a learned embedding
    embedding_norm: bool = False  # normalises the embedding
    experts: Natural = 0  # experts of a mixture of experts; 0: dense
    top_k: Natural = 0  # active experts per token
    expert_ffn: Natural = 0  # width of an expert
    shared_experts: Natural = 0  # experts that are active for every token
    dense_layers: Natural = 0  # first blocks without experts
    latent: LatentSpec | None = None  # multi-head latent attention
    window: Natural = 0  # tokens that a local block attends to (sliding window)
    local_layers: Natural = 0  # blocks with such attention
    linear_layers: Natural = 0  # blocks with linear attention or a state space in place of attention
    linear_weights: Natural = 0  # parameters of such a block's projections
    mtp_layers: Natural = 0  # further blocks that predict further tokens (multi-token prediction)
    layout: LayoutSpec | None = None  # how the model is split over GPUs
    plan: Literal["auto"] | None = None  # auto: the fastest layout that fits
    stack: str | StackSpec = Field(examples=list(STACKS))  # software stack: a name, or a file written by `fit-steps`
    # adam-16bit: gradients and moments in 16 bits and no 32-bit weights; muon: one moment of the layers' matrices
    optimizer: Literal["adam", "adam-16bit", "muon"] = "adam"
    measured_step: MeasuredStep | None = None  # one measured step, which scales all predicted times
    replica_links: Positive = 1.0  # what-if factor on the rate of the links inside a replica
    bound: Bound | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if (self.layout is None) == (self.plan is None):
            raise ValueError("needs either 'layout' (tp, pp, ...) or 'plan: auto' (the fastest layout that fits)")
        if isinstance(self.stack, str) and not is_file(self.stack) and self.stack not in STACKS:
            raise ValueError(f"stack: unknown stack {self.stack!r}; known: {', '.join(STACKS)}, or the path of a file")
        if self.config is not None:
            self._only_config()
        if self.config is None or not is_file(self.config):
            shape = self.shape()
            if self.layout is not None:
                self._check(self.layout, shape)
        return self

    def _only_config(self) -> None:
        for name in _SHAPE:
            if (
                name not in ("sequence", "mtp_layers")
                and getattr(self, name) != TransformerSpec.model_fields[name].default
            ):
                raise ValueError(f"{name}: 'config' already sets it; leave one of the two out")
        if not is_file(str(self.config)) and self.config not in SHAPES:
            close = get_close_matches(str(self.config).lower(), SHAPES, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ";"
            raise ValueError(
                f"config: unknown model {self.config!r}{meant} known: {', '.join(SHAPES)}, or a config.json"
            )

    def _check(self, layout: LayoutSpec, shape: Transformer) -> None:
        """What does not need the number of GPUs; expert ranks are checked with it."""
        try:
            dp = layout.ep * max(1, layout.shard)  # whole groups of any kind
            made = layout.layout(dp, dp * layout.micro_batch, "bf16")
            with _renamed():
                made.check(shape)
                if layout.pp * layout.virtual > shape.layers:
                    chunks = layout.pp * layout.virtual
                    raise ValueError(f"pipeline: {chunks} chunks are more than the {shape.layers} layers")
        except ValueError as error:
            raise ValueError(f"layout.{error}") from None

    def shape(self) -> Transformer:
        """The model's shape. Raises ValueError, its first word the key that is wrong."""
        if self.config is not None:
            if is_file(self.config):
                raise ValueError(f"config: {self.config} has not been read; load the scenario from its file")
            shape = replace(SHAPES[self.config], mtp_layers=self.mtp_layers)
            return with_sequence(shape, self.sequence) if self.sequence else shape
        for name in NEEDED:
            if not getattr(self, name):
                raise ValueError(f"needs {name!r} of the shape, or 'config'")
        values = {name: getattr(self, name) for name in _SHAPE}
        if self.latent is not None:
            values["latent"] = LatentAttention(**self.latent.model_dump())
        return Transformer(**values)

    def constants(self) -> Stack:
        """The stack's constants. Raises ValueError for a file that has not been read."""
        if isinstance(self.stack, StackSpec):
            return Stack(**self.stack.constants)
        if self.stack not in STACKS:
            raise ValueError(f"stack: {self.stack} has not been read; load the scenario from its file")
        return STACKS[self.stack]

    def memory_constants(self) -> MemoryStack:
        """Memory constants of the stack; general values for a stack without measured peaks."""
        if isinstance(self.stack, StackSpec):
            return GENERAL[0].with_bytes(self.stack.memory)
        return MEMORY_STACKS.get(self.stack, (UNFITTED.get(self.stack, GENERAL[0]), GENERAL[1]))[0]

    @property
    def memory_measured(self) -> bool:
        """Whether peaks of the stack were measured."""
        return bool(self.stack.memory) if isinstance(self.stack, StackSpec) else self.stack in MEMORY_STACKS

    @property
    def memory_spread(self) -> tuple[float, float]:
        """Measured over predicted peak, at 5 % and at 95 %, of layouts that were measured; general for other stacks."""
        return GENERAL[1] if isinstance(self.stack, StackSpec) else MEMORY_STACKS.get(self.stack, GENERAL)[1]

    @property
    def memory_stage(self) -> int | None:
        """The stage whose peaks were measured, None: the fullest."""
        return STAGE_MEASURED.get(self.stack) if isinstance(self.stack, str) else None

    def alone(self, model: Model) -> None:
        """Raises ValueError where the model states what follows from this section. What loading wrote may stay."""
        if self.bound is not None:
            return
        for name in DERIVED:
            if getattr(model, name) != type(model).model_fields[name].default:
                raise ValueError(f"{name}: follows from 'transformer'; leave it out")
        if model.exchange.algorithm != "ring":
            raise ValueError("exchange.algorithm: a 'transformer' exchanges its gradients in rings")

    def with_shape(self, shape: Transformer) -> TransformerSpec:
        """With a shape that was read from `config`."""
        values = {name: getattr(shape, name) for name in _SHAPE} | {"mtp_layers": self.mtp_layers}
        if shape.latent is not None:
            values["latent"] = LatentSpec(**{f.name: getattr(shape.latent, f.name) for f in fields(shape.latent)})
        return self.model_copy(update={**values, "config": None})


_SHAPE = [f.name for f in fields(Transformer)]
DERIVED = (
    "sample_time",
    "fixed_time",
    "flop_per_sample",
    "step",
    "bytes_per_sample",
    "parameters",
    "gradient",
    "overlap",
    "samples_per_pass",
    "parallel",
    "memory",
    "tokens_per_sample",
    "efficiency",
)
"""Keys of a model that follow from its `transformer`."""


def is_file(text: str) -> bool:
    """Whether the text is a path, not a built-in name."""
    return text.endswith((".json", ".yaml", ".yml")) or text.startswith((".", "/"))


def precision_of(text: str) -> Numbers:
    """A model's precision as a layout has it. Raises ValueError."""
    for allowed in get_args(Numbers):
        if text == allowed:
            return allowed  # type: ignore[no-any-return]
    raise ValueError(
        f"precision: {text!r} is not possible for a 'transformer'; allowed: {', '.join(get_args(Numbers))}"
    )


class _renamed:  # noqa: N801 (used as a function)
    """Gives the errors of a `Layout` the keys of the scenario."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            key, colon, rest = str(error).partition(": ")
            if colon and key in NAMES:
                raise ValueError(f"{NAMES[key]}: {rest}") from None


ModelKind = Literal[
    "convolutional", "small-transformer", "large-transformer", "recommender", "diffusion", "large-products"
]
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]


class ExchangeSpec(Section):
    """How gradients are exchanged. alpha and rate default to the hardware profile's fabric."""

    # algorithm of the gradient exchange
    algorithm: Literal["ring", "tree", "hierarchical", "parameter-server", "async-parameter-server"] = "ring"
    alpha: Seconds | None = None  # per message
    rate: BytesPerS | None = None  # highest rate (B) of a flow
    servers: Count = 1  # parameter servers, if the algorithm uses them
    compression: Annotated[Float, Field(gt=0, le=1)] = 1.0  # bytes sent divided by bytes of the gradient
    compression_time: Seconds = 0.0  # extra compute per exchange; ZeRO 2 and 3 exchange every micro-batch


class Parallel(Section):
    """Model parallelism of one replica."""

    tensor: Count = 1  # GPUs that share each layer
    pipeline: Count = 1  # stages of layers
    pipeline_microbatches: Count = 8  # micro-batches in the pipeline
    zero: Literal[0, 1, 2, 3] = 0  # ZeRO stage: the state split over replicas
    tensor_bytes_per_sample: Bytes = 0.0  # all-reduced inside a tensor-parallel group, per step


class MemorySpec(Section):
    """Device memory of one replica, for the check before the run."""

    optimizer_bytes_per_parameter: Annotated[Float, Field(ge=0)] = 12.0  # 12 for Adam in mixed precision
    activation_per_sample: Bytes = 0.0  # activations kept for the backward pass
    recompute: bool = False  # recompute activations instead of keeping them
    layers: Count = 24  # with recomputation, 1 / sqrt(layers) of the activations are kept


class Model(Section):
    """One training workload: the cost of a step, and the convergence."""

    fixed_time: Seconds | None = None  # alpha_c: per pass, on the reference accelerator
    sample_time: Seconds | None = None  # beta_c: per sample
    flop_per_sample: Flop | None = None  # roofline instead of a fit
    # roofline: the kind of model, whose measured rate is used (large-transformer: of whole steps of large decoders;
    # large-products: of large matrix products, an upper bound); `flop_per_sample` needs it or `efficiency`
    kind: ModelKind | None = None
    efficiency: Annotated[Share, Field(gt=0)] | None = None  # roofline: share of the peak rate, in place of `kind`
    step: str | None = None  # name of a measured step in the hardware profile, in the precision below
    transformer: TransformerSpec | None = None  # a large model given by its shape; all costs follow from it
    bytes_per_sample: Bytes = 0.0  # memory traffic of a pass per sample, for the roofline
    precision: Precision = "bf16"  # precision of the pass
    # share of the dynamic power range (highest minus idle) that its GPUs draw while computing; none: that of `kind`
    # where it was measured, else all
    power_share: Annotated[Share, Field(gt=0, le=1)] | None = None
    tokens_per_sample: Count | None = None  # tokens of a sample, for tokens/s and cost per token
    # parameters of the model; gradients, memory and checkpoints follow from them
    parameters: Annotated[Float, Field(ge=0)] = 0.0
    gradient: Bytes | None = None  # bytes exchanged; none: parameters x bytes of the precision
    exchange: ExchangeSpec = ExchangeSpec.model_construct()
    overlap: Annotated[Float, Field(ge=1)] = 1.0  # overlap exponent gamma; left out: that measured with `step`
    samples_per_pass: Count | None = None  # m_max
    preprocess_time: Seconds | None = None  # time of one host core per sample; none: unlimited rate
    parallel: Parallel = Parallel.model_construct()
    memory: MemorySpec = MemorySpec.model_construct()
    share_kappa: Annotated[Float, Field(gt=0)] | None = None  # none: the profile's, else proportional
    interference: Annotated[Float, Field(ge=0)] | None = None  # slowdown iota; none: the profile's, else 0
    noise_scale: Annotated[Float, Field(ge=0)] | None = None  # gradient noise scale phi in samples; none: efficiency 1
    drift: Annotated[Float, Field(ge=0)] | None = None  # kappa_d; without it a run loses nothing, and s3 keeps H
    staleness: Annotated[Float, Field(ge=0)] = 0.0  # penalty per missed update, asynchronous only

    @property
    def tokens(self) -> int:
        """Tokens of a sample; 0 for a model without."""
        if self.transformer is not None:
            return self.transformer.shape().sequence
        return self.tokens_per_sample or 0

    @model_validator(mode="after")
    def _cost_given(self) -> Self:
        if self.kind is not None and self.flop_per_sample is None:
            raise ValueError("'kind' goes with 'flop_per_sample'")
        if self.kind not in (None, "large-products") and self.efficiency is not None:
            raise ValueError(f"'kind: {self.kind}' is used in place of 'efficiency'; give one")
        if self.transformer is not None:
            self.transformer.alone(self)
            return self
        costs = (self.sample_time, self.flop_per_sample, self.step)
        if sum(cost is not None for cost in costs) != 1:
            names = (
                "'sample_time' (a fit), 'flop_per_sample' (a roofline), 'step' (of the hardware profile), "
                "'transformer' (a shape)"
            )
            raise ValueError(f"needs exactly one of {names}")
        if self.flop_per_sample is not None and self.kind is None and self.efficiency is None:
            raise ValueError(
                f"'flop_per_sample' needs 'kind', one of {', '.join(get_args(ModelKind))} (of large matrix products "
                "alone, an upper bound), or 'efficiency', a measured share of the peak rate"
            )
        if self.step is not None and self.fixed_time is not None:
            raise ValueError("'fixed_time' is part of the 'step' of the hardware profile; leave it out")
        return self
