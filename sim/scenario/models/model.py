"""Models of a scenario: the cost of a step, and the convergence."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from equipoise.sim.scenario.models.transformer import TransformerSpec
from equipoise.sim.scenario.section import Count, Section
from equipoise.sim.scenario.units import Bytes, BytesPerS, Float, Flop, Seconds, Share

ModelKind = Literal["convolutional", "small-transformer", "recommender", "diffusion", "large-products"]
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]


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
    # roofline: the kind of model, whose measured rate is used (large-products: of large matrix products, an upper
    # bound); `flop_per_sample` needs it or `efficiency`
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
    exchange: ExchangeSpec = ExchangeSpec()
    overlap: Annotated[Float, Field(ge=1)] = 1.0  # overlap exponent gamma; left out: that measured with `step`
    samples_per_pass: Count | None = None  # m_max
    preprocess_time: Seconds | None = None  # time of one host core per sample; none: unlimited rate
    parallel: Parallel = Parallel()
    memory: MemorySpec = MemorySpec()
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
