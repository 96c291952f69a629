"""The scenario: what a YAML file may say, with units, defaults and allowed values.

`load` (in `sim.loading.file`) turns a file into a `Scenario`, or into one line per mistake. Every quantity is
in SI base units once loaded. A value that is left out takes the default written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from equipoise.sim.scenario.convolutional import Convolutional
from equipoise.sim.scenario.faults import Faults as Faults
from equipoise.sim.scenario.generate import Generate
from equipoise.sim.scenario.lighter import Lighter
from equipoise.sim.scenario.money import Cost as Cost
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.pools import Autoscale, Available
from equipoise.sim.scenario.queues import Queues
from equipoise.sim.scenario.section import Count, Positive, Section, Span
from equipoise.sim.scenario.services import Service as Service
from equipoise.sim.scenario.throughputs import Throughputs as Throughputs
from equipoise.sim.scenario.transformer import TransformerSpec
from equipoise.sim.scenario.units import (
    Bytes,
    BytesPerS,
    Celsius,
    Float,
    Flop,
    GramsPerKwh,
    Int,
    Rate,
    Seconds,
    Share,
    UsdPerHour,
    UsdPerJoule,
    Watts,
)

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"]


class NodeGroup(Section):
    """Identical nodes."""

    name: str = "node"  # nodes are NAME-0, NAME-1, ...
    count: Count = 1  # nodes of the group
    gpus: Annotated[Int, Field(ge=0)] = 1  # 0: it only stores data, for whoever reads from it
    accelerator: str = "generic"  # name in the hardware profile
    speed: Positive = 1.0  # relative to the accelerator's profile
    cores: Count = 32  # that prepare samples (`preprocess_time`), for all workers of the node alike
    host_memory: Bytes = 256 * 2.0**30  # of a node
    cache: Bytes = 0.0  # of the host memory, for shards fetched from elsewhere
    host_power: Watts | None = None  # a node without its GPUs; none: the profile's, else 0
    storage: Bytes = 4e12  # room on a node's own disk
    storage_rate: BytesPerS = 3e9  # reading for other nodes
    local_read: BytesPerS | None = None  # for its own workers; none: as measured, else never the limit
    nic: BytesPerS = 12.5e9  # one NIC, one direction
    nics: Count = 1  # of a node
    fabric: BytesPerS | None = (
        None  # of a GPU to those of its node, one direction; none: the accelerator's link
    )
    ingest: Rate | None = None  # samples/s the host can prepare; none: never the limit
    price: UsdPerHour | None = None  # per node; none: by GPU, from `cost` or the price book
    # How jobs that ask for a part of a GPU share it: by percentages, by slices, or in turns of equal length.
    sharing: Literal["mps", "mig", "time-slice"] = "mps"
    available: Available | None = None  # how many of its nodes can be had, over time; none: all, always
    autoscale: Autoscale | None = None  # nodes come when jobs wait and go when idle; none: all stay

    @property
    def may_be_away(self) -> bool:
        """Whether its nodes come and go, and are paid for only while there."""
        return self.available is not None or self.autoscale is not None

    @property
    def network(self) -> float:
        """Bytes/s of a node's NICs together, one direction."""
        return self.nic * self.nics


class Star(Section):
    """Every node on one non-blocking switch."""

    kind: Literal["star"] = "star"  # one switch
    latency: Seconds = 0.0  # between two nodes, one way


class Tree(Section):
    """Racks under one core switch; each rack's uplink carries its nodes' NICs over `oversubscription`."""

    kind: Literal["tree"]  # racks
    nodes_per_rack: Count  # nodes under one rack switch
    oversubscription: Annotated[Float, Field(ge=1)] = 1.0  # NIC capacity of a rack over that of its uplink
    latency: Seconds = 0.0  # between nodes of a rack, one way
    core_latency: Seconds = 0.0  # added between racks, one way


class LinkSpec(Section):
    """One directed link of an explicit topology; `both: true` adds the way back."""

    source: str  # node or switch
    target: str  # node or switch
    rate: BytesPerS  # capacity, one direction
    latency: Seconds = 0.0  # one way
    both: bool = True  # also the way back


class Explicit(Section):
    """Links by name. Nodes are `NAME-0`, `NAME-1`, ...; any other name is a switch. Shortest path routing."""

    kind: Literal["explicit"]  # named links
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1)]


class SlowLink(Section):
    """A node whose NICs are slower than its group's; `rate` is that of all of them together."""

    node: str  # name of the node
    rate: BytesPerS  # of all of its NICs together, one direction


class Cluster(Section):
    """Nodes and how they are connected. `gpus: N` alone is one pool of N counted GPUs."""

    hardware: str = "catalogue"  # a profile that comes with the software, or a file
    nodes: tuple[NodeGroup, ...] = ()  # groups of identical nodes
    gpus: Count | None = None  # one pool of so many counted GPUs, without network
    # how the nodes are connected
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

    # of the gradient exchange
    algorithm: Literal["ring", "tree", "hierarchical", "parameter-server", "async-parameter-server"] = "ring"
    alpha: Seconds | None = None  # per message
    rate: BytesPerS | None = None  # highest rate a flow reaches (B)
    servers: Count = 1  # parameter servers, where the algorithm has them
    compression: Annotated[Float, Field(gt=0, le=1)] = 1.0  # bytes sent over bytes of gradient
    compression_time: Seconds = 0.0  # extra compute per exchange


class Parallel(Section):
    """Model parallelism of one replica."""

    tensor: Count = 1  # GPUs that share each layer
    pipeline: Count = 1  # stages of layers
    pipeline_microbatches: Count = 8  # micro-batches that fill the pipeline
    zero: Literal[0, 1, 2, 3] = 0  # ZeRO stage: what is split over replicas
    tensor_bytes_per_sample: Bytes = 0.0  # all-reduced inside a tensor-parallel group, per step


class Memory(Section):
    """Device memory of one replica, for the check before the run."""

    optimizer_bytes_per_parameter: Annotated[Float, Field(ge=0)] = 12.0  # Adam in mixed precision has 12
    activation_per_sample: Bytes = 0.0  # kept for the backward pass
    recompute: bool = False  # recompute activations instead of keeping them
    layers: Count = 24  # with recomputation, 1 / sqrt(layers) of the activations are kept


class Evaluation(Section):
    """Evaluation of a model while it trains, on the GPUs that train it; its time is spread over the steps."""

    every: Count  # samples of training between two evaluations
    samples: Annotated[Int, Field(ge=0)] = 0  # each costs a forward pass, a third of a training sample
    time: Seconds = 0.0  # of each evaluation, beside them, which no number of GPUs shortens


class Model(Section):
    """One training workload: what a step costs and how it learns."""

    fixed_time: Seconds | None = None  # alpha_c: per pass, on the reference accelerator
    sample_time: Seconds | None = None  # beta_c: per sample
    flop_per_sample: Flop | None = None  # roofline instead of a fit
    efficiency: Annotated[Share, Field(gt=0)] | None = None  # of that roofline; none: the accelerator's
    step: str | None = None  # a step that the hardware profile has, in the precision below
    transformer: TransformerSpec | None = None  # a large model by its shape; all costs follow from it
    convolutional: Convolutional | None = None  # an image model by its layers; its work follows from them
    bytes_per_sample: Bytes = 0.0  # read from memory by a pass, for the roofline
    precision: Precision = "bf16"  # of the pass
    tokens_per_sample: Count | None = None  # of a language model, for tokens/s and money per token
    # of the model: gradients, memory and checkpoints follow from it
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
    evaluation: Evaluation | None = None  # while it trains; none: it takes no time
    lighter: Lighter = Lighter()  # compressed gradients, pruning, quantisation, distillation

    @property
    def tokens(self) -> int:
        """Tokens of a sample; 0 for a model without."""
        if self.transformer is not None:
            return self.transformer.shape().sequence
        return self.tokens_per_sample or 0

    @model_validator(mode="after")
    def _cost_given(self) -> Self:
        if self.lighter.moments == "int8" and self.memory.optimizer_bytes_per_parameter < 8:
            raise ValueError(
                "lighter.moments: int8 needs 'memory.optimizer_bytes_per_parameter' of 8 or more"
            )
        if self.transformer is not None:
            self.transformer.alone(self)
            return self
        if self.convolutional is not None:
            self.convolutional.alone(self)
            return self
        costs = (self.sample_time, self.flop_per_sample, self.step)
        if sum(cost is not None for cost in costs) != 1:
            names = (
                "'sample_time' (a fit), 'flop_per_sample' (a roofline), 'step' (of the hardware profile), "
                "'transformer' (a shape), 'convolutional' (layers)"
            )
            raise ValueError(f"needs exactly one of {names}")
        if self.step is not None and self.fixed_time is not None:
            raise ValueError("'fixed_time' is part of the 'step' of the hardware profile; leave it out")
        return self


class Even(Section):
    """Shards dealt round robin over the nodes of the job (or over all nodes)."""

    kind: Literal["even"] = "even"  # equally
    over: Literal["job", "cluster"] = "job"  # the nodes of the job, or all of the cluster


class Skewed(Section):
    """Shards by a Zipf law over the nodes: node k holds a share proportional to 1/(k+1)^exponent."""

    kind: Literal["skewed"]  # by a power law
    exponent: Annotated[Float, Field(ge=0)] = 1.0  # of the power law; 0 is even
    over: Literal["job", "cluster"] = "job"  # the nodes of the job, or all of the cluster


class OnNodes(Section):
    """All shards on the named nodes, round robin."""

    kind: Literal["nodes"]  # on named nodes
    nodes: Annotated[tuple[str, ...], Field(min_length=1)]  # names of nodes


class SpreadSizes(Section):
    """Sizes of shards drawn from a log-normal distribution, anew for each seed."""

    kind: Literal["lognormal"]  # distribution of the sizes
    cov: Annotated[Float, Field(gt=0, le=5)]  # coefficient of variation


class Data(Section):
    """A job's dataset."""

    samples: Count  # of the dataset
    sample_size: Bytes = 0.0  # bytes to read for a sample
    shards: Count = 64  # pieces that are stored, owned and moved
    shard_sizes: tuple[Positive, ...] | SpreadSizes | None = None  # relative, one per shard; none: equal
    prefetch: Annotated[Int, Field(ge=0)] = 1  # shards that are fetched before a worker gets to them
    replicas: Count = 1  # copies of every shard, on different nodes
    # where shards are stored at first
    placement: Annotated[Even | Skewed | OnNodes, Field(discriminator="kind")] = Even()

    @model_validator(mode="after")
    def _a_size_each(self) -> Self:
        if isinstance(self.shard_sizes, tuple) and len(self.shard_sizes) != self.shards:
            raise ValueError(f"'shard_sizes' has {len(self.shard_sizes)} sizes for {self.shards} 'shards'")
        return self


class Checkpoint(Section):
    """Saving and restoring."""

    size: Bytes | None = None  # none: parameters x (4 + optimiser bytes)
    # between two saves; young-daly: from what a save and a failure cost
    interval: Span | Literal["young-daly", "never"] = "young-daly"


class Job(Section):
    """One job, or `count` of them `spacing` apart. With `model` it trains; with `duration` it is rigid."""

    name: str = "job"  # copies are NAME-0, NAME-1, ...
    count: Count = 1  # copies of the job
    arrival: Seconds = 0.0  # of the first copy
    spacing: Seconds = 0.0  # between the arrivals of copies
    priority: Positive = 1.0  # higher is served earlier, where the policy heeds it
    gpus: Count = 1  # asked for
    gpu_share: Annotated[Share, Field(gt=0, le=1)] = 1.0  # of each GPU, for jobs that share
    duration: Seconds | None = None  # of a job known by its time only
    time_limit: Seconds | None = None  # a duration job is ended when it has run for so long
    job_type: str = ""  # of a duration job: whose rates it has in `workload.throughputs`
    # its GPUs may be of several models
    mix_gpus: bool = (
        False  # a duration job may hold GPUs of several models, and runs at the pace of the slowest
    )
    model: str | None = None  # name in workload.models, of a training job
    gpus_min: Count | None = (
        None  # a duration job may start with fewer GPUs; it then runs longer in proportion
    )
    workers_min: Count | None = None  # default: what `gpus` makes; fewer and more makes the job elastic
    workers_max: Count | None = None  # most workers; none: as asked for
    steps: Count | None = None  # target; or epochs, samples or tokens
    epochs: Positive | None = None  # target; or steps, samples or tokens
    samples: Count | None = None  # target; or steps, epochs or tokens
    # target, of a language model: as many samples as hold them, which loading puts in its place
    tokens: Count | None = Field(default=None, exclude=True)
    global_batch: Count = 1  # samples of a step, over all workers
    batch_reference: Count | None = None  # M0; none: global_batch
    batch_max: Count | None = None  # a policy may raise the batch up to this; none: it stays as it is
    micro_batch: Count = 1  # batches are dealt in multiples of it
    sync_interval: Count = 1  # local steps between two gradient exchanges
    data: Data | None = None  # the dataset; none: input costs nothing
    checkpoint: Checkpoint = Checkpoint()  # when it is saved
    # restart from the checkpoint, or go on with the others
    on_worker_loss: Literal["restart", "regroup"] = "restart"
    user: str = ""  # who submitted it
    account: str = ""  # of the user
    partition: str = ""  # that it asks for
    qos: str = ""  # quality of service that it asks for
    queue: str = ""  # that it goes to
    gpu_types: tuple[str, ...] = ()  # accelerators or groups of nodes, any of them; none: all
    # how close its GPUs must, or should, be
    together: Literal["rack-preferred", "rack-required", "node-preferred", "node-required"] | None = None
    cpus: Count | None = None  # cores that it asks for; counted by limits only
    host_memory: Bytes | None = None  # that it asks for; counted by limits only
    nodes: Count | None = None  # that it asks for; counted by limits only

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.duration is None) == (self.model is None):
            raise ValueError("needs either 'duration' (a rigid job) or 'model' (a training job)")
        if self.gpus_min is not None and self.gpus_min > self.gpus:
            raise ValueError(f"'gpus_min' {self.gpus_min} must not exceed 'gpus' {self.gpus}")
        if self.model is not None:
            of_duration = (
                self.job_type,
                self.mix_gpus,
                self.time_limit is not None,
                self.gpus_min is not None,
            )
            if any(of_duration):
                raise ValueError(
                    "'job_type', 'mix_gpus', 'time_limit' and 'gpus_min' are of jobs with 'duration'; this one has "
                    "a 'model'"
                )
            targets = [k for k in ("steps", "epochs", "samples", "tokens") if getattr(self, k) is not None]
            if len(targets) != 1:
                raise ValueError("needs exactly one of 'steps', 'epochs', 'samples', 'tokens'")
            if self.epochs is not None and self.data is None:
                raise ValueError("'epochs' needs 'data'")
            if self.batch_reference is not None and self.batch_reference > self.global_batch:
                raise ValueError("'batch_reference' must not exceed 'global_batch'")
            if self.batch_max is not None and self.batch_max < self.global_batch:
                raise ValueError("'batch_max' must not be below 'global_batch'")
        return self


class Redraw(Section):
    """Other jobs on each seed that are like those of the trace: its sessions, in another order.

    Sessions (jobs of one user and size, each soon after the one before) stay whole and change places with others
    that begin in the same window, so that the load of each window stays what it was.
    """

    window: Span = 86400.0  # in which sessions change places; shorter ones keep more of the trace
    together: Span = 600.0  # a session ends when its next job takes longer to come
    scale: Positive = 1.0  # as many times the jobs: sessions are taken twice, or not at all


class TraceSpec(Section):
    """Jobs from a file. `training` turns every k-th job into a training job of the named models."""

    file: str  # beside the scenario, or where it is run
    format: str = "auto"  # one of the formats that `equipoise.sim.traces.read` knows
    # Of a CSV file: arrival, gpus, duration (or start and end), by column.
    columns: dict[str, str] = Field(default_factory=dict)
    zone: str = ""  # of the clock that wrote times without one; none: UTC, or the one of a published trace
    keep: tuple[str, ...] = ()  # only jobs with `column=value`
    count: Literal["gpus", "cpus"] = "gpus"  # cpus: each core counts as a GPU of the cluster
    limit: Count | None = None  # first jobs only
    clusters: tuple[str, ...] = ()  # keep only these virtual clusters
    time_scale: Positive = 1.0  # multiplies arrivals: below 1 raises the load
    mix_gpus: bool = False  # as of a job; a column job_type names the rates of `workload.throughputs`
    checkpoint: Checkpoint = Checkpoint()  # of all jobs of the trace
    redraw: Redraw | None = None  # none: the jobs of the trace as they came, on every seed
    # which jobs of the trace train a model
    training: TrainingJobs = Field(default_factory=lambda: TrainingJobs())


class TrainingJobs(Section):
    """Gives some jobs of a trace a workload, so that their ideal duration equals the trace's.

    `count` jobs, evenly spread over the trace, take `models` in turn; a job whose trace names a model has that.
    """

    count: Annotated[Int, Field(ge=0)] = 0  # jobs of the trace that train; the others are known by duration
    models: tuple[str, ...] = ()  # of `workload.models`, taken in turn
    global_batch: Count = 64  # samples of a step, over all workers
    micro_batch: Count = 1  # batches are dealt in multiples of it
    shards: Count = 16  # pieces of each job's dataset
    sample_size: Bytes = 0.0  # of a sample; 0: reading takes no time
    steps_max: Count = 2000  # longer jobs get longer steps, by more samples a step

    @model_validator(mode="after")
    def _models_named(self) -> Self:
        if self.count and not self.models:
            raise ValueError("'count' needs 'models', the names of some of the workload's models")
        return self


class Workload(Section):
    """Models by name, and jobs from the scenario's list, beside them from a trace or a description."""

    models: dict[str, Model] = Field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    trace: TraceSpec | None = None
    generate: Generate | None = None
    throughputs: Throughputs | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if self.trace is not None and self.generate is not None:
            raise ValueError("generate: has both a 'trace' and 'generate'; give one")
        for k, job in enumerate(self.jobs):
            if job.model is not None and job.model not in self.models:
                raise ValueError(f"jobs.{k}.model: {unknown('model', job.model, sorted(self.models))}")
        return self


class Decide(Section):
    """When policies decide. Events: arrivals, completions, faults, repairs."""

    every: Annotated[Span, Field(ge=1e-3)] | None = None  # between decisions; none: on events only
    every_steps: Count | None = None  # of any one training job
    # steps that a training job goes on for while policies decide; then what the plan asks of its workers acts
    delay_rounds: Annotated[Int, Field(ge=0)] = 0
    on_events: bool = True  # also at arrivals, completions and faults
    estimate_error: Annotated[Float, Field(ge=0)] = 0.0  # log-normal spread of duration estimates
    # what policies take a duration job to need: about its true time, or its time limit where it has one
    estimate: Literal["duration", "time-limit"] = "duration"
    # starts, stops and refusals that a scheduler writes down; none: at once. `kueue` then decides cycle by cycle
    writes_per_s: Annotated[Float, Field(gt=0)] | None = None
    writes_burst: Count = 1  # of them, at once after a pause

    @model_validator(mode="after")
    def _in_turn(self) -> Self:
        if self.every_steps is not None and self.delay_rounds >= self.every_steps:
            raise ValueError(
                f"delay_rounds: {self.delay_rounds} is not allowed, under every_steps of {self.every_steps} is"
            )
        return self


class Noise(Section):
    """Randomness of steps."""

    # none: of a model with a measured `step` the profile's, else 0
    step_cov: Annotated[Float, Field(ge=0, le=5)] | None = None
    lasting_share: Annotated[Share, Field(ge=0, le=1)] = 0.0  # of a worker's own variance, that stays a while
    lasting_steps: Count = 16  # local steps that the lasting part stays
    common_share: Annotated[Share, Field(ge=0, le=1)] = 0.0  # of the variance, that a job's workers share
    tail_chance: Annotated[Share, Field(ge=0, lt=1)] = 0.0  # of a rare long step, beside `step_cov`
    tail_factor: Annotated[Float, Field(ge=1)] = 1.0  # how many times as long that step is
    gpu_cov: Annotated[Float, Field(ge=0, le=1)] = 0.0  # of the persistent speeds of single GPUs

    @model_validator(mode="after")
    def _whole_tail(self) -> Self:
        if (self.tail_chance > 0.0) != (self.tail_factor > 1.0):
            raise ValueError(
                "'tail_chance' above 0 and 'tail_factor' above 1 make a tail together; give both"
            )
        if (self.lasting_share or self.common_share) and self.step_cov == 0.0:
            raise ValueError("'lasting_share' and 'common_share' are parts of 'step_cov', which is 0")
        return self


class Storage(Section):
    """Where checkpoints go: each node's own disk, a file system that all share, or an object store.

    rate: of all writers together. node_rate: of one node (none: its NICs). latency: of a request.
    """

    kind: Literal["local", "shared", "object"] = "local"  # where checkpoints go
    rate: BytesPerS | None = None  # of all writers together
    node_rate: BytesPerS | None = None  # of one node; none: its NICs
    latency: Seconds = 0.0  # of a request

    @model_validator(mode="after")
    def _rates(self) -> Self:
        given = {name for name in ("rate", "node_rate", "latency") if getattr(self, name)}
        if self.kind == "local" and given:
            raise ValueError(f"{min(given)}: local disks have their 'storage_rate' in 'cluster.nodes'")
        if self.kind == "shared" and self.rate is None:
            raise ValueError("needs 'rate', what all nodes together write to the shared file system")
        if self.kind == "object" and self.node_rate is None:
            raise ValueError("needs 'node_rate', what one node writes to the object store")
        return self


class Restart(Section):
    """What it takes to get going again, beside reading the checkpoint."""

    detection: Seconds = 30.0  # until a loss is noticed
    rescheduling: Seconds = 0.0  # until a job is queued again
    initialisation: Seconds = 30.0  # until a started job trains
    checkpoint_write: Seconds | None = None  # none: from size and storage; of a rigid job without a size 60 s
    storage: Storage = Storage()  # of checkpoints


class Energy(Section):
    """Power: its price, and caps that slow computing. What GPUs draw comes from the hardware profile."""

    tariff: UsdPerJoule | None = None  # none: the price book's
    carbon: GramsPerKwh | None = None  # CO2 of the site's electricity
    region: str | None = (
        None  # in place of `carbon`: a region of `carbon_book`, by the hour where it has hours
    )
    carbon_book: str = "carbon"  # file of regions that comes with the software, or one of yours
    begin: Seconds = 0.0  # local time of day at which the simulated time begins, for the hours of the region
    pue: Annotated[Float, Field(ge=1)] = 1.3  # power of the site over that of its nodes
    ambient: Celsius = 25.0  # temperature of the room
    power_cap: Watts | None = None  # of each GPU
    cluster_power_cap: Watts | None = None  # of all nodes together, shared by the GPUs that are held

    @model_validator(mode="after")
    def _one_carbon(self) -> Self:
        if self.carbon is not None and self.region is not None:
            raise ValueError("carbon: give either 'carbon' or a 'region'")
        return self


class Thermal(Section):
    """Heat acts: GPUs warm up, and slow down above the throttle temperature of their profile."""

    every: Span = 10.0  # between two looks at the temperatures
    clock_min: Annotated[Share, Field(gt=0, le=1)] = 0.3  # throttling goes no further


class Scenario(Section):
    """A whole case: cluster, workload, policy, faults."""

    schema_version: Literal[1]  # of this format
    name: str  # in results and file names
    why: str = ""  # the question that the scenario asks
    expect: str = ""  # the answer that is expected, in words
    cluster: Cluster
    workload: Workload
    services: tuple[Service, ...] = ()  # that answer requests beside the jobs
    # stages in order; a stage with parameters is {name: {...}}; none: nothing is changed
    policy: tuple[str | dict[str, dict[str, Any] | None], ...] = ("fifo",)
    decide: Decide = Decide()
    noise: Noise = Noise()
    faults: Faults = Faults()
    restart: Restart = Restart()
    energy: Energy = Energy()
    thermal: Thermal | None = None
    cost: Cost = Cost()
    queues: Queues = Queues()
    seed: Annotated[Int, Field(ge=0)] = 0  # of all that is random
    horizon: Span | None = None  # stop here; none: run until every job is done. Services go on until here

    @field_validator("policy", mode="before")
    @classmethod
    def _one_stage_is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [] if value == "none" else value.split("+")
        return [value] if isinstance(value, dict) else value

    @model_serializer(mode="wrap")
    def _without_no_services(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A scenario without services is written as it was before there were any."""
        written: dict[str, Any] = write(self)
        if not self.services:
            written.pop("services", None)
        return written
