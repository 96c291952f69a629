"""Jobs of a scenario: their data and checkpoints, listed jobs, and jobs of a trace."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from equipoise.policies.rate_rules import RateRule
from equipoise.sim.scenario.units import Bytes, Count, Float, Int, Positive, Seconds, Section, Share, Span


class Even(Section):
    """Shards placed round robin over the nodes of the job (or over all nodes)."""

    kind: Literal["even"] = "even"  # equally
    over: Literal["job", "cluster"] = "job"  # the nodes of the job, or of the whole cluster


class Skewed(Section):
    """Shards by a Zipf law over the nodes: node k holds a share proportional to 1/(k+1)^exponent."""

    kind: Literal["skewed"]  # by a power law
    exponent: Annotated[Float, Field(ge=0)] = 1.0  # exponent of the power law; 0: even
    over: Literal["job", "cluster"] = "job"  # the nodes of the job, or of the whole cluster


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

    samples: Count  # samples of the dataset
    sample_size: Bytes = 0.0  # bytes to read for a sample
    shards: Count = 64  # pieces that are stored, owned and moved
    shard_sizes: tuple[Positive, ...] | SpreadSizes | None = None  # relative, one per shard; none: equal
    prefetch: Annotated[Int, Field(ge=0)] = 1  # shards that are fetched before a worker gets to them
    replicas: Count = 1  # copies of every shard, on different nodes
    # where shards are stored initially
    placement: Annotated[Even | Skewed | OnNodes, Field(discriminator="kind")] = Even.model_construct()

    @model_validator(mode="after")
    def _a_size_each(self) -> Self:
        if isinstance(self.shard_sizes, tuple) and len(self.shard_sizes) != self.shards:
            raise ValueError(f"'shard_sizes' has {len(self.shard_sizes)} sizes for {self.shards} 'shards'")
        return self


class Checkpoint(Section):
    """Saving and restoring."""

    size: Bytes | None = None  # size of a checkpoint; none: parameters x (4 + optimiser bytes)
    # time between two checkpoints; young-daly: optimum from write time and failure rate
    interval: Span | Literal["young-daly", "never"] = "young-daly"
    # time that training stops for a checkpoint that is written beside it (asynchronous); none: until it is written. A
    # crash during the writing is taken to lose no more
    stall: Seconds | None = None


class JobSpec(Section):
    """One job, or `count` of them `spacing` apart. With `model` it trains; with `duration` it is rigid."""

    name: str = "job"  # copies are NAME-0, NAME-1, ...
    count: Count = 1  # copies of the job
    arrival: Seconds = 0.0  # arrival of the first copy
    spacing: Seconds = 0.0  # time between the arrivals of copies
    priority: Positive = 1.0  # higher is served earlier, if the policy uses priorities
    gpus: Count = 1  # asked for
    gpu_share: Annotated[Share, Field(gt=0, le=1)] = 1.0  # share of each GPU, for jobs that share GPUs
    duration: Seconds | None = None  # running time of a rigid job
    # a duration job is ended after this running time without restarts; a crash resets it
    time_limit: Seconds | None = None
    job_type: str = ""  # duration jobs: the job type in `workload.throughputs`
    mix_gpus: bool = False  # duration jobs: may use GPUs of several models, at the pace of the slowest
    model: str | None = None  # training jobs: a name in workload.models
    gpus_min: Count | None = None  # duration jobs: fewest GPUs to start with; the job then runs proportionally longer
    workers_min: Count | None = None  # fewest workers; none: as many as `gpus` make
    workers_max: Count | None = None  # most workers; none: as many as `gpus` make
    steps: Count | None = None  # target; or epochs, samples or tokens
    epochs: Positive | None = None  # target; or steps, samples or tokens
    samples: Count | None = None  # target; or steps, epochs or tokens
    # target of a language model, converted to samples when loaded
    tokens: Count | None = Field(default=None, exclude=True)
    global_batch: Count = 1  # samples of a step over all workers
    batch_reference: Count | None = None  # reference batch size M0; none: global_batch
    batch_max: Count | None = None  # largest batch that a policy may set; none: the batch is fixed
    # how its learning rate follows a batch that a policy changes: by the gain of AdaScale (SGD), the square root
    # (adaptive optimizers), in proportion, or not; script: its script sees to it
    learning_rate: RateRule = "adascale"
    micro_batch: Count = 1  # batches are split in multiples of it
    sync_interval: Count = 1  # local steps between gradient exchanges, or per round of asynchronous workers
    data: Data | None = None  # the dataset; none: input costs nothing
    checkpoint: Checkpoint = Checkpoint.model_construct()  # its checkpoints
    user: str = ""  # user that submitted it
    account: str = ""  # account of the user
    partition: str = ""  # partition that it requests
    qos: str = ""  # QOS that it requests
    queue: str = ""  # queue that it is submitted to
    gpu_types: tuple[str, ...] = ()  # allowed accelerators or node groups; none: all
    # required or preferred placement of its GPUs
    together: Literal["rack-preferred", "rack-required", "node-preferred", "node-required"] | None = None
    segment: Count | None = None  # GPUs of each part of it that must be in one rack; the last may be smaller
    cpus: Count | None = None  # CPU cores that it requests; used by limits only
    host_memory: Bytes | None = None  # host memory that it requests; used by limits only
    nodes: Count | None = None  # nodes that it requests; used by limits only

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.duration is None) == (self.model is None):
            raise ValueError("needs either 'duration' (a rigid job) or 'model' (a training job)")
        if self.gpus_min is not None and self.gpus_min > self.gpus:
            raise ValueError(f"'gpus_min' {self.gpus_min} must not exceed 'gpus' {self.gpus}")
        if self.model is not None:
            of_duration = (self.job_type, self.mix_gpus, self.time_limit is not None, self.gpus_min is not None)
            if any(of_duration):
                raise ValueError(
                    "'job_type', 'mix_gpus', 'time_limit' and 'gpus_min' need 'duration'; this job has a 'model'"
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


class TraceSpec(Section):
    """Jobs from a file. `training` turns every k-th job into a training job of the named models."""

    file: str  # path relative to the scenario, or to the working folder
    format: str = "auto"  # one of the formats that `equipoise.sim.traces.read` knows
    # For a CSV file: column names for arrival, gpus, duration (or start and end).
    columns: dict[str, str] = Field(default_factory=dict)
    zone: str = ""  # time zone of times without one; none: UTC, or that of a published trace
    keep: tuple[str, ...] = ()  # only jobs with `column=value`
    count: Literal["gpus", "cpus"] = "gpus"  # cpus: each core counts as a GPU of the cluster
    limit: Count | None = None  # number of first jobs to read
    clusters: tuple[str, ...] = ()  # keep only these virtual clusters
    time_scale: Positive = 1.0  # multiplies arrivals: below 1 raises the load
    mix_gpus: bool = False  # as for a job; a column job_type names the rates of `workload.throughputs`
    checkpoint: Checkpoint = Checkpoint.model_construct()  # checkpoints of all jobs of the trace
    # jobs of the trace that train a model
    training: TrainingJobs = Field(default_factory=lambda: TrainingJobs())


class TrainingJobs(Section):
    """Gives some jobs of a trace a workload, so that their ideal duration equals the trace's.

    `count` jobs, evenly spread over the trace, take `models` in turn; a job whose trace names a model has that.
    """

    count: Annotated[Int, Field(ge=0)] = 0  # jobs of the trace that train; the others are known by duration
    models: tuple[str, ...] = ()  # models of `workload.models`, used in turn
    global_batch: Count = 64  # samples of a step over all workers
    micro_batch: Count = 1  # batches are split in multiples of it
    shards: Count = 16  # pieces of each job's dataset
    sample_size: Bytes = 0.0  # size of a sample; 0: reading takes no time
    steps_max: Count = 2000  # most steps of a job; longer jobs get more samples per step

    @model_validator(mode="after")
    def _models_named(self) -> Self:
        if self.count and not self.models:
            raise ValueError("'count' needs 'models', the names of some of the workload's models")
        return self
