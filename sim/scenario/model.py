"""The scenario: what a YAML file may say, with units, defaults and allowed values.

`load` (in `sim.loading.file`) turns a file into a `Scenario`, or into one line per mistake. Every quantity is
in SI base units once loaded. A value that is left out takes the default written here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from equipoise.sim.scenario.faults import FaultsSpec as FaultsSpec
from equipoise.sim.scenario.generate import Generate
from equipoise.sim.scenario.jobs import Checkpoint as Checkpoint
from equipoise.sim.scenario.jobs import Data as Data
from equipoise.sim.scenario.jobs import Even as Even
from equipoise.sim.scenario.jobs import JobSpec as JobSpec
from equipoise.sim.scenario.jobs import OnNodes as OnNodes
from equipoise.sim.scenario.jobs import Redraw as Redraw
from equipoise.sim.scenario.jobs import Skewed as Skewed
from equipoise.sim.scenario.jobs import SpreadSizes as SpreadSizes
from equipoise.sim.scenario.jobs import TraceSpec as TraceSpec
from equipoise.sim.scenario.jobs import TrainingJobs as TrainingJobs
from equipoise.sim.scenario.models.model import MemorySpec as MemorySpec
from equipoise.sim.scenario.models.model import Model as Model
from equipoise.sim.scenario.models.model import Parallel as Parallel
from equipoise.sim.scenario.money import Cost as Cost
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.pools import Autoscale, Available
from equipoise.sim.scenario.queues import QueuesSpec
from equipoise.sim.scenario.section import Count, Positive, Section, Span
from equipoise.sim.scenario.services import Service as Service
from equipoise.sim.scenario.throughputs import Throughputs as Throughputs
from equipoise.sim.scenario.units import (
    Bytes,
    BytesPerS,
    Celsius,
    Float,
    GramsPerKwh,
    Int,
    Rate,
    Seconds,
    Share,
    UsdPerHour,
    UsdPerJoule,
    Watts,
)


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
    fabric: BytesPerS | None = None  # of a GPU to those of its node, one direction; none: the accelerator's link
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


class TreeTopology(Section):
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


class ClusterSpec(Section):
    """Nodes and how they are connected. `gpus: N` alone is one pool of N counted GPUs."""

    hardware: str = "catalogue"  # a profile that comes with the software, or a file
    nodes: tuple[NodeGroup, ...] = ()  # groups of identical nodes
    gpus: Count | None = None  # one pool of so many counted GPUs, without network
    # how the nodes are connected
    topology: Annotated[Star | TreeTopology | Explicit, Field(discriminator="kind")] = Star()
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


class Workload(Section):
    """Models by name, and jobs from the scenario's list, beside them from a trace or a description."""

    models: dict[str, Model] = Field(default_factory=dict)
    jobs: tuple[JobSpec, ...] = ()
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
                f"delay_rounds: {self.delay_rounds} is not allowed; it must be below every_steps, {self.every_steps}"
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
            raise ValueError("a tail needs both 'tail_chance' above 0 and 'tail_factor' above 1")
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
            raise ValueError("needs 'rate', the rate at which all nodes together write to the shared file system")
        if self.kind == "object" and self.node_rate is None:
            raise ValueError("needs 'node_rate', the rate at which one node writes to the object store")
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
    region: str | None = None  # in place of `carbon`: a region of `carbon_book`, by the hour where it has hours
    carbon_book: str = "carbon"  # file of regions that comes with the software, or one of yours
    begin: Seconds = 0.0  # local time of day at which the simulated time begins, for the hours of the region
    pue: Annotated[Float, Field(ge=1)] = 1.3  # power of the site over that of its nodes
    ambient: Celsius = 25.0  # temperature of the room
    power_cap: Watts | None = None  # of each GPU
    policy_caps: bool = False  # a policy may cap the GPUs of each node, under `power_cap`
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
    cluster: ClusterSpec
    workload: Workload
    services: tuple[Service, ...] = ()  # that answer requests beside the jobs
    # stages in order; a stage with parameters is {name: {...}}; none: nothing is changed
    policy: tuple[str | dict[str, dict[str, Any] | None], ...] = ("fifo",)
    decide: Decide = Decide()
    noise: Noise = Noise()
    faults: FaultsSpec = FaultsSpec()
    restart: Restart = Restart()
    energy: Energy = Energy()
    thermal: Thermal | None = None
    cost: Cost = Cost()
    queues: QueuesSpec = QueuesSpec()
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
