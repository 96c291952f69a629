"""The scenario: what a YAML file may say, with units, defaults and allowed values.

`load` (in `sim.loading.file`) turns a file into a `Scenario`, or into one line per mistake. Every quantity is
in SI base units once loaded. A value that is left out takes the default written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from equipoise.sim.scenario.faults import Faults as Faults
from equipoise.sim.scenario.section import Count, Positive, Section, Span
from equipoise.sim.scenario.transformer import TransformerSpec
from equipoise.sim.scenario.units import (
    Bytes,
    BytesPerS,
    Celsius,
    Float,
    Flop,
    Int,
    Rate,
    Seconds,
    Share,
    Usd,
    UsdPerByteSecond,
    UsdPerHour,
    UsdPerJoule,
    Watts,
)

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]


class NodeGroup(Section):
    """Identical nodes."""

    name: str = "node"
    count: Count = 1
    gpus: Annotated[Int, Field(ge=0)] = 1  # 0: it only stores data, for whoever reads from it
    accelerator: str = "generic"
    speed: Positive = 1.0  # relative to the accelerator's profile
    cores: Count = 32  # that prepare samples (`preprocess_time`), for all workers of the node alike
    host_memory: Bytes = 256 * 2.0**30
    cache: Bytes = 0.0  # of the host memory, for shards fetched from elsewhere
    host_power: Watts | None = None  # a node without its GPUs; none: the profile's, else 0
    storage: Bytes = 4e12
    storage_rate: BytesPerS = 3e9  # reading for other nodes
    local_read: BytesPerS | None = None  # for its own workers; none: as measured, else never the limit
    nic: BytesPerS = 12.5e9
    fabric: BytesPerS = 300e9  # between the GPUs of one node, one direction; left out: as measured, if it was
    ingest: Rate | None = None  # samples/s the host can prepare; none: never the limit
    price: UsdPerHour | None = None  # per node; none: by GPU, from `cost` or the price book


class Star(Section):
    """Every node on one non-blocking switch."""

    kind: Literal["star"] = "star"
    latency: Seconds = 0.0


class Tree(Section):
    """Racks under one core switch; each rack's uplink carries its nodes' NICs over `oversubscription`."""

    kind: Literal["tree"]
    nodes_per_rack: Count
    oversubscription: Annotated[Float, Field(ge=1)] = 1.0
    latency: Seconds = 0.0
    core_latency: Seconds = 0.0


class LinkSpec(Section):
    """One directed link of an explicit topology; `both: true` adds the way back."""

    source: str
    target: str
    rate: BytesPerS
    latency: Seconds = 0.0
    both: bool = True


class Explicit(Section):
    """Links by name. Nodes are `NAME-0`, `NAME-1`, ...; any other name is a switch. Shortest path routing."""

    kind: Literal["explicit"]
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1)]


class SlowLink(Section):
    """A node whose NIC is slower than its group's."""

    node: str
    rate: BytesPerS


class Cluster(Section):
    """Nodes and how they are connected. `gpus: N` alone is one pool of N counted GPUs."""

    hardware: str = "catalogue"
    nodes: tuple[NodeGroup, ...] = ()
    gpus: Count | None = None
    topology: Annotated[Star | Tree | Explicit, Field(discriminator="kind")] = Star()
    slow_links: tuple[SlowLink, ...] = ()

    @model_validator(mode="after")
    def _some_nodes(self) -> Self:
        if bool(self.nodes) == (self.gpus is not None):
            raise ValueError("needs either 'nodes' (at least one group) or 'gpus' (a counted pool), not both")
        if self.nodes and not any(group.gpus for group in self.nodes):
            raise ValueError("no group of 'nodes' has GPUs")
        return self

    @property
    def groups(self) -> tuple[NodeGroup, ...]:
        """Node groups; a counted pool is one node that holds all GPUs."""
        return self.nodes or (NodeGroup(name="pool", gpus=self.gpus or 1),)


class Exchange(Section):
    """How gradients are exchanged. alpha and rate default to the hardware profile's fabric."""

    algorithm: Literal["ring", "tree", "hierarchical", "parameter-server", "async-parameter-server"] = "ring"
    alpha: Seconds | None = None  # per message
    rate: BytesPerS | None = None  # highest rate a flow reaches (B)
    servers: Count = 1
    compression: Annotated[Float, Field(gt=0, le=1)] = 1.0  # bytes sent over bytes of gradient
    compression_time: Seconds = 0.0  # extra compute per exchange


class Parallel(Section):
    """Model parallelism of one replica."""

    tensor: Count = 1
    pipeline: Count = 1
    pipeline_microbatches: Count = 8
    zero: Literal[0, 1, 2, 3] = 0
    tensor_bytes_per_sample: Bytes = 0.0  # all-reduced inside a tensor-parallel group, per step


class Memory(Section):
    """Device memory of one replica, for the check before the run."""

    optimizer_bytes_per_parameter: Annotated[Float, Field(ge=0)] = 12.0
    activation_per_sample: Bytes = 0.0
    recompute: bool = False
    layers: Count = 24  # with recomputation, 1 / sqrt(layers) of the activations are kept


class Model(Section):
    """One training workload: what a step costs and how it learns."""

    fixed_time: Seconds | None = None  # alpha_c: per pass, on the reference accelerator
    sample_time: Seconds | None = None  # beta_c: per sample
    flop_per_sample: Flop | None = None  # roofline instead of a fit
    step: str | None = None  # a step that the hardware profile has, in the precision below
    transformer: TransformerSpec | None = None  # a large model by its shape; all costs follow from it
    bytes_per_sample: Bytes = 0.0
    precision: Precision = "bf16"
    parameters: Annotated[Float, Field(ge=0)] = 0.0
    gradient: Bytes | None = None  # bytes exchanged; none: parameters x bytes of the precision
    exchange: Exchange = Exchange()
    overlap: Annotated[Float, Field(ge=1)] = 1.0  # gamma; left out: of a `step` as measured, if it was
    samples_per_pass: Count | None = None  # m_max
    preprocess_time: Seconds | None = None  # of one host core for a sample; none: never the limit
    parallel: Parallel = Parallel()
    memory: Memory = Memory()
    share_kappa: Annotated[Float, Field(gt=0)] | None = None  # none: the profile's, else in proportion
    interference: Annotated[Float, Field(ge=0)] | None = None  # iota; none: the profile's, else 0
    noise_scale: Annotated[Float, Field(ge=0)] | None = None  # phi in samples; none: efficiency 1
    noise_scale_growth: Annotated[Float, Field(ge=0)] = 0.0  # phi grows by this factor over the run
    drift: Annotated[Float, Field(ge=0)] = 0.0  # kappa_d
    staleness: Annotated[Float, Field(ge=0)] = 0.0  # penalty per update missed, asynchronous only

    @model_validator(mode="after")
    def _cost_given(self) -> Self:
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
        if self.step is not None and self.fixed_time is not None:
            raise ValueError("'fixed_time' is part of the 'step' of the hardware profile; leave it out")
        return self


class Even(Section):
    """Shards dealt round robin over the nodes of the job (or over all nodes)."""

    kind: Literal["even"] = "even"
    over: Literal["job", "cluster"] = "job"


class Skewed(Section):
    """Shards by a Zipf law over the nodes: node k holds a share proportional to 1/(k+1)^exponent."""

    kind: Literal["skewed"]
    exponent: Annotated[Float, Field(ge=0)] = 1.0
    over: Literal["job", "cluster"] = "job"


class OnNodes(Section):
    """All shards on the named nodes, round robin."""

    kind: Literal["nodes"]
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]


class SpreadSizes(Section):
    """Sizes of shards drawn from a log-normal distribution, anew for each seed."""

    kind: Literal["lognormal"]
    cov: Annotated[Float, Field(gt=0, le=5)]  # coefficient of variation


class Data(Section):
    """A job's dataset."""

    samples: Count
    sample_size: Bytes = 0.0
    shards: Count = 64
    shard_sizes: tuple[Positive, ...] | SpreadSizes | None = None  # relative, one per shard; none: equal
    prefetch: Annotated[Int, Field(ge=0)] = 1  # shards that are fetched before a worker gets to them
    replicas: Count = 1  # copies of every shard, on different nodes
    placement: Annotated[Even | Skewed | OnNodes, Field(discriminator="kind")] = Even()

    @model_validator(mode="after")
    def _a_size_each(self) -> Self:
        if isinstance(self.shard_sizes, tuple) and len(self.shard_sizes) != self.shards:
            raise ValueError(f"'shard_sizes' has {len(self.shard_sizes)} sizes for {self.shards} 'shards'")
        return self


class Checkpoint(Section):
    """Saving and restoring."""

    size: Bytes | None = None  # none: parameters x (4 + optimiser bytes)
    interval: Span | Literal["young-daly", "never"] = "young-daly"


class Job(Section):
    """One job, or `count` of them `spacing` apart. With `model` it trains; with `duration` it is rigid."""

    name: str = "job"
    count: Count = 1
    arrival: Seconds = 0.0
    spacing: Seconds = 0.0
    priority: Positive = 1.0
    gpus: Count = 1
    gpu_share: Annotated[Share, Field(gt=0, le=1)] = 1.0
    duration: Seconds | None = None
    model: str | None = None
    workers_min: Count | None = None  # default: what `gpus` makes; fewer and more makes the job elastic
    workers_max: Count | None = None
    steps: Count | None = None
    epochs: Positive | None = None
    samples: Count | None = None
    global_batch: Count = 1
    batch_reference: Count | None = None  # M0; none: global_batch
    micro_batch: Count = 1
    sync_interval: Count = 1
    data: Data | None = None
    checkpoint: Checkpoint = Checkpoint()
    on_worker_loss: Literal["restart", "regroup"] = "restart"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.duration is None) == (self.model is None):
            raise ValueError("needs either 'duration' (a rigid job) or 'model' (a training job)")
        if self.model is not None:
            targets = [k for k in ("steps", "epochs", "samples") if getattr(self, k) is not None]
            if len(targets) != 1:
                raise ValueError("needs exactly one of 'steps', 'epochs', 'samples'")
            if self.epochs is not None and self.data is None:
                raise ValueError("'epochs' needs 'data'")
            if self.batch_reference is not None and self.batch_reference > self.global_batch:
                raise ValueError("'batch_reference' must not exceed 'global_batch'")
        return self


class TraceSpec(Section):
    """Jobs from a file. `training` turns every k-th job into a training job of the named models."""

    file: str
    format: str = "auto"  # one of the formats that `equipoise.sim.traces.read` knows
    # Of a CSV file: arrival, gpus, duration (or start and end), by column.
    columns: dict[str, str] = Field(default_factory=dict)
    zone: str = ""  # of the clock that wrote times without one; none: UTC, or the one of a published trace
    keep: tuple[str, ...] = ()  # only jobs with `column=value`
    count: Literal["gpus", "cpus"] = "gpus"  # cpus: each core counts as a GPU of the cluster
    limit: Count | None = None
    clusters: tuple[str, ...] = ()  # keep only these virtual clusters
    time_scale: Positive = 1.0  # multiplies arrivals: below 1 raises the load
    checkpoint: Checkpoint = Checkpoint()
    training: TrainingJobs = Field(default_factory=lambda: TrainingJobs())


class TrainingJobs(Section):
    """Gives some jobs of a trace a workload, so that their ideal duration equals the trace's.

    `count` jobs, evenly spread over the trace, take `models` in turn; a job whose trace names a model has that.
    """

    count: Annotated[Int, Field(ge=0)] = 0
    models: tuple[str, ...] = ()
    global_batch: Count = 64
    micro_batch: Count = 1
    shards: Count = 16
    sample_size: Bytes = 0.0
    steps_max: Count = 2000  # longer jobs get longer steps, by more samples a step

    @model_validator(mode="after")
    def _models_named(self) -> Self:
        if self.count and not self.models:
            raise ValueError("'count' needs 'models', the names of some of the workload's models")
        return self


class Workload(Section):
    """Models by name, and jobs from the scenario, from a trace, or from both."""

    models: dict[str, Model] = Field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    trace: TraceSpec | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        for k, job in enumerate(self.jobs):
            if job.model is not None and job.model not in self.models:
                known = ", ".join(sorted(self.models)) or "none are defined"
                raise ValueError(f"jobs.{k}.model: unknown model {job.model!r}; known: {known}")
        return self


class Decide(Section):
    """When policies decide. Events: arrivals, completions, faults, repairs."""

    every: Annotated[Span, Field(ge=1e-3)] | None = None
    every_steps: Count | None = None  # of any one training job
    on_events: bool = True
    estimate_error: Annotated[Float, Field(ge=0)] = 0.0  # log-normal spread of duration estimates


class Noise(Section):
    """Randomness of steps."""

    # none: of a model with a measured `step` the profile's, else 0
    step_cov: Annotated[Float, Field(ge=0, le=5)] | None = None


class Restart(Section):
    """What it takes to get going again, beside reading the checkpoint."""

    detection: Seconds = 30.0
    rescheduling: Seconds = 0.0
    initialisation: Seconds = 30.0
    checkpoint_write: Seconds = 60.0  # of a job whose checkpoint size is not known (rigid jobs)


class Energy(Section):
    """Power: its price, and caps that slow computing. What GPUs draw comes from the hardware profile."""

    tariff: UsdPerJoule | None = None  # none: the price book's
    pue: Annotated[Float, Field(ge=1)] = 1.3  # power of the site over that of its nodes
    ambient: Celsius = 25.0
    power_cap: Watts | None = None  # of each GPU
    cluster_power_cap: Watts | None = None  # of all nodes together, shared by the GPUs that are held


class Thermal(Section):
    """Heat acts: GPUs warm up, and slow down above the throttle temperature of their profile."""

    every: Span = 10.0  # between two looks at the temperatures
    clock_min: Annotated[Share, Field(gt=0, le=1)] = 0.3  # throttling goes no further


class Capex(Section):
    """GPUs that are owned, each with its share of node and network."""

    price: Usd
    life: Span = 4 * 365 * 86400.0
    utilisation: Annotated[Share, Field(gt=0, le=1)] = 1.0  # share of its life in which it is in use


class Cost(Section):
    """Prices in place of those of the price book. Keys of `gpu_hour` and `capex` are accelerators."""

    book: str = "prices"
    gpu_hour: dict[str, UsdPerHour] = Field(default_factory=dict)
    capex: dict[str, Capex] = Field(default_factory=dict)
    storage: UsdPerByteSecond | None = None
    network: UsdPerHour | None = None  # per node, beyond what GPU prices include
    energy: Literal["auto", "included", "separate"] = "auto"  # auto: separate when some GPUs are owned

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if both := sorted(set(self.gpu_hour) & set(self.capex)):
            raise ValueError(f"{both[0]!r} has both a 'gpu_hour' and a 'capex' price; give one")
        return self


class Scenario(Section):
    """A whole case: cluster, workload, policy, faults."""

    schema_version: Literal[1]
    name: str
    why: str = ""
    expect: str = ""
    cluster: Cluster
    workload: Workload
    policy: tuple[str | dict[str, dict[str, Any] | None], ...] = ("fifo",)
    decide: Decide = Decide()
    noise: Noise = Noise()
    faults: Faults = Faults()
    restart: Restart = Restart()
    energy: Energy = Energy()
    thermal: Thermal | None = None
    cost: Cost = Cost()
    seed: Annotated[Int, Field(ge=0)] = 0
    horizon: Span | None = None  # stop here; none: run until every job is done

    @field_validator("policy", mode="before")
    @classmethod
    def _one_stage_is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [] if value == "none" else value.split("+")
        return [value] if isinstance(value, dict) else value
