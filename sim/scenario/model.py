"""The scenario: the keys of a YAML file, with units, defaults and allowed values.

`load` (in `sim.loading.file`) turns a file into a `Scenario`, or into one line per mistake. Every quantity is
in SI base units once loaded. A value that is left out takes the default written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from equipoise.sim.discover import parts
from equipoise.sim.scenario.faults import FaultsSpec as FaultsSpec
from equipoise.sim.scenario.generate import Generate
from equipoise.sim.scenario.jobs import Checkpoint as Checkpoint
from equipoise.sim.scenario.jobs import Data as Data
from equipoise.sim.scenario.jobs import Even as Even
from equipoise.sim.scenario.jobs import JobSpec as JobSpec
from equipoise.sim.scenario.jobs import OnNodes as OnNodes
from equipoise.sim.scenario.jobs import Skewed as Skewed
from equipoise.sim.scenario.jobs import SpreadSizes as SpreadSizes
from equipoise.sim.scenario.jobs import TraceSpec as TraceSpec
from equipoise.sim.scenario.jobs import TrainingJobs as TrainingJobs
from equipoise.sim.scenario.models.model import MemorySpec as MemorySpec
from equipoise.sim.scenario.models.model import Model as Model
from equipoise.sim.scenario.models.model import Parallel as Parallel
from equipoise.sim.scenario.money import Cost as Cost
from equipoise.sim.scenario.names import unknown
from equipoise.sim.scenario.pools import Available
from equipoise.sim.scenario.queues import QueuesSpec
from equipoise.sim.scenario.throughputs import Throughputs as Throughputs
from equipoise.sim.scenario.units import (
    Bytes,
    BytesPerS,
    Celsius,
    Count,
    Float,
    GramsPerKwh,
    Int,
    Positive,
    Rate,
    Seconds,
    Section,
    Share,
    Span,
    UsdPerHour,
    UsdPerJoule,
    Watts,
)


class PlainGroup(Section):
    """Identical nodes; without the keys of features."""

    name: str = "node"  # nodes are NAME-0, NAME-1, ...
    count: Count = 1  # nodes of the group
    gpus: Annotated[Int, Field(ge=0)] = 1  # 0: the node only stores data that others read
    accelerator: str = "generic"  # its name in the hardware profile
    speed: Positive = 1.0  # relative to the accelerator's profile
    cores: Count = 32  # CPU cores that prepare samples (`preprocess_time`), shared equally by the workers
    host_memory: Bytes = 256 * 2.0**30  # memory of a node's host
    cache: Bytes = 0.0  # part of the host memory that caches shards fetched from other nodes
    host_power: Watts | None = None  # power of a node without its GPUs; none: the profile's, else 0
    storage: Bytes = 4e12  # capacity of a node's local disk
    storage_rate: BytesPerS = 3e9  # rate at which it reads its disk for other nodes
    local_read: BytesPerS | None = None  # disk read rate for the node's own workers; none: as measured, else unlimited
    nic: BytesPerS = 12.5e9  # rate of one NIC, one direction
    nics: Count = 1  # NICs of a node
    fabric: BytesPerS | None = None  # rate from a GPU to others of its node, one direction; none: its link
    ingest: Rate | None = None  # samples/s that the host can prepare; none: unlimited
    price: UsdPerHour | None = None  # per node; none: per GPU, from `cost` or the price book
    sharing: Literal["mps", "mig"] = "mps"  # how jobs that request a part of a GPU share it: by percentages or slices
    available: Available | None = None  # how many of its nodes are available over time; none: always all

    @property
    def rented(self) -> bool:
        """Whether its nodes are there only while they are needed; a feature may say so."""
        return False

    @property
    def may_be_away(self) -> bool:
        """Whether its nodes come and go, and are paid for only while present."""
        return self.available is not None or self.rented

    @property
    def network(self) -> float:
        """Bytes/s of a node's NICs together, one direction."""
        return self.nic * self.nics


_OF_GROUPS = tuple(module.GROUP_KEYS for module in parts("section") if hasattr(module, "GROUP_KEYS"))
GROUPS_WITHOUT_FEATURES = {name: field.default for keys in _OF_GROUPS for name, field in keys.model_fields.items()}
"""The values of features' keys of a group where none is used."""
if TYPE_CHECKING:
    _GroupKeys = PlainGroup
else:

    class _GroupKeys(*_OF_GROUPS, PlainGroup):
        """The keys of features, too."""


class NodeGroup(_GroupKeys):
    """Identical nodes."""


class Star(Section):
    """Every node on one non-blocking switch."""

    kind: Literal["star"] = "star"  # one switch
    latency: Seconds = 0.0  # between two nodes, one way


class TreeTopology(Section):
    """Racks under one core switch; each rack's uplink carries its nodes' NICs over `oversubscription`."""

    kind: Literal["tree"]  # racks
    nodes_per_rack: Count  # nodes under one rack switch
    oversubscription: Annotated[Float, Field(ge=1)] = 1.0  # NIC capacity of a rack over that of its uplink
    nvlink: BytesPerS | None = None  # rate from a GPU to those of other nodes of its rack; none: through NICs
    latency: Seconds = 0.0  # between nodes of a rack, one way
    core_latency: Seconds = 0.0  # added between racks, one way


class LinkSpec(Section):
    """One directed link of an explicit topology; `both: true` adds the reverse link."""

    source: str  # node or switch
    target: str  # node or switch
    rate: BytesPerS  # capacity in one direction
    latency: Seconds = 0.0  # one way
    both: bool = True  # also add the reverse link


class Explicit(Section):
    """Links by name. Nodes are `NAME-0`, `NAME-1`, ...; any other name is a switch. Shortest path routing."""

    kind: Literal["explicit"]  # named links
    links: Annotated[tuple[LinkSpec, ...], Field(min_length=1)]


Topology = Star | TreeTopology | Explicit


class SlowLink(Section):
    """A node whose NICs are slower than its group's; `rate` is that of all of them together."""

    node: str  # name of the node
    rate: BytesPerS  # rate of all its NICs together, one direction


class ClusterSpec(Section):
    """Nodes and how they are connected. `gpus: N` alone is one pool of N counted GPUs."""

    hardware: str = "catalogue"  # a profile that comes with the software, or a file
    nodes: tuple[NodeGroup, ...] = ()  # groups of identical nodes
    gpus: Count | None = None  # a single pool of this many GPUs, without a network
    # how the nodes are connected
    topology: Annotated[Topology, Field(discriminator="kind")] = Star.model_construct()
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
    """Models by name, and jobs from a list, and from a trace or a description."""

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

    every: Annotated[Span, Field(ge=1e-3)] | None = None  # time between decisions; none: on events only
    every_steps: Count | None = None  # also decide after this many steps of any training job
    first_steps: tuple[
        Count, ...
    ] = ()  # steps before each of its first decisions, where they differ from `every_steps`
    # steps that a training job runs on while policies decide; then the plan takes effect for its workers
    delay_rounds: Annotated[Int, Field(ge=0)] = 0
    on_events: bool = True  # also at arrivals, completions and faults
    estimate_error: Annotated[Float, Field(ge=0)] = 0.0  # log-normal spread of duration estimates
    # what policies assume a duration job needs: about its true time, or its time limit if it has one
    estimate: Literal["duration", "time-limit"] = "duration"
    # rate at which a scheduler writes starts, stops and refusals; none: at once. `kueue` then decides in cycles
    writes_per_s: Annotated[Float, Field(gt=0)] | None = None
    writes_burst: Count = 1  # number of writes that may come at once after a pause

    @model_validator(mode="after")
    def _in_turn(self) -> Self:
        if self.every_steps is not None and self.delay_rounds >= self.every_steps:
            raise ValueError(
                f"delay_rounds: {self.delay_rounds} is not allowed; it must be below every_steps, {self.every_steps}"
            )
        return self


class Noise(Section):
    """Randomness of steps."""

    # coefficient of variation of a step; none: the profile's for a measured `step`, else 0
    step_cov: Annotated[Float, Field(ge=0, le=5)] | None = None
    lasting_share: Annotated[Share, Field(ge=0, le=1)] = 0.0  # share of a worker's variance that persists
    lasting_steps: Count = 16  # local steps for which the lasting part persists
    common_share: Annotated[Share, Field(ge=0, le=1)] = 0.0  # share of the variance that is common to a job's workers
    tail_chance: Annotated[Share, Field(ge=0, lt=1)] = 0.0  # probability of a rare long step, in addition to `step_cov`
    tail_factor: Annotated[Float, Field(ge=1)] = 1.0  # how many times as long that step is
    gpu_cov: Annotated[Float, Field(ge=0, le=1)] = 0.0  # coefficient of variation of the persistent speeds of GPUs
    slow_nodes: Annotated[Share, Field(ge=0, lt=1)] = 0.0  # probability that a node is a slow one
    slow_speed: Annotated[Float, Field(gt=0, le=1)] = 1.0  # speed of a slow node

    @model_validator(mode="after")
    def _whole_tail(self) -> Self:
        if (self.tail_chance > 0.0) != (self.tail_factor > 1.0):
            raise ValueError("a tail needs both 'tail_chance' above 0 and 'tail_factor' above 1")
        if (self.slow_nodes > 0.0) != (self.slow_speed < 1.0):
            raise ValueError("slow nodes need both 'slow_nodes' above 0 and 'slow_speed' below 1")
        if (self.lasting_share or self.common_share) and self.step_cov == 0.0:
            raise ValueError("'lasting_share' and 'common_share' are parts of 'step_cov', which is 0")
        return self


class Storage(Section):
    """Where checkpoints go: each node's own disk, a file system that all share, or an object store.

    rate: of all writers together. node_rate: of one node (none: its NICs). latency: of a request.
    """

    kind: Literal["local", "shared", "object"] = "local"  # where checkpoints are stored
    rate: BytesPerS | None = None  # write rate of all nodes together
    node_rate: BytesPerS | None = None  # write rate of one node; none: that of its NICs
    latency: Seconds = 0.0  # latency of a request

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
    """Times of a restart, in addition to reading the checkpoint."""

    detection: Seconds = 30.0  # time until a failure is detected
    rescheduling: Seconds = 0.0  # time until a job is queued again
    initialisation: Seconds = 30.0  # time until a started job trains
    checkpoint_write: Seconds | None = None  # none: from size and storage; 60 s for a rigid job without a size
    storage: Storage = Storage.model_construct()  # of checkpoints


class Energy(Section):
    """Power: its price, and power caps. What GPUs draw comes from the hardware profile."""

    tariff: UsdPerJoule | None = None  # price of electricity; none: the price book's
    carbon: GramsPerKwh | None = None  # CO2 of the site's electricity
    region: str | None = None  # in place of `carbon`: a region of `carbon_book`, hourly where the file has hours
    carbon_book: str = "carbon"  # file of regions: one that comes with the software, or a path
    begin: Seconds = 0.0  # local time of day at which the simulated time begins, for the hours of the region
    pue: Annotated[Float, Field(ge=1)] = 1.3  # power of the site divided by that of its nodes
    ambient: Celsius = 25.0  # temperature of the room
    power_cap: Watts | None = None  # cap of each GPU
    policy_caps: bool = False  # a policy may cap the GPUs of each node, under `power_cap`
    cluster_power_cap: Watts | None = None  # cap of all nodes together, shared by the GPUs in use

    @model_validator(mode="after")
    def _one_carbon(self) -> Self:
        if self.carbon is not None and self.region is not None:
            raise ValueError("carbon: give either 'carbon' or a 'region'")
        return self


class Thermal(Section):
    """Thermal model: GPUs warm up, and slow down above the throttle temperature of their profile."""

    every: Span = 10.0  # time between two temperature updates
    clock_min: Annotated[Share, Field(gt=0, le=1)] = 0.3  # lowest relative clock of throttling


class CaseKeys(Section):
    """What every scenario says."""

    schema_version: Literal[1]  # version of this format
    name: str  # used in results and file names
    why: str = ""  # the question that the scenario asks
    expect: str = ""  # the answer that is expected, in words
    cluster: ClusterSpec
    workload: Workload


_FEATURES = tuple(module.KEYS for module in parts("section") if hasattr(module, "KEYS"))
WITHOUT_FEATURES = {name: field.default for keys in _FEATURES for name, field in keys.model_fields.items()}
"""The values of features' keys where none is used."""
if TYPE_CHECKING:
    _Keys = CaseKeys
else:

    class _Keys(*_FEATURES, CaseKeys):
        """The keys of features, too."""


class Scenario(_Keys):
    """A whole case: cluster, workload, policy, faults."""

    # stages in order; a stage with parameters is {name: {...}}; none: changes nothing
    policy: tuple[str | dict[str, dict[str, Any] | None], ...] = ("fifo",)
    decide: Decide = Decide.model_construct()
    noise: Noise = Noise.model_construct()
    faults: FaultsSpec = FaultsSpec.model_construct()
    restart: Restart = Restart.model_construct()
    energy: Energy = Energy.model_construct()
    thermal: Thermal | None = None
    cost: Cost = Cost.model_construct()
    queues: QueuesSpec = QueuesSpec.model_construct()
    seed: Annotated[Int, Field(ge=0)] = 0  # seed of all random numbers
    # end of the run; none: run until every job is done. Features may run until then
    horizon: Span | None = None

    @property
    def unused_features(self) -> frozenset[str]:
        """Names of the features none of whose keys is set."""
        found = set()
        for module in parts("section"):
            own, of_groups = (getattr(module, name, Section).model_fields for name in ("KEYS", "GROUP_KEYS"))
            used = any(getattr(self, name) != field.default for name, field in own.items()) or any(
                getattr(group, name) != field.default
                for group in self.cluster.groups
                for name, field in of_groups.items()
            )
            if not used:
                found.add(module.__name__.split(".")[-2])
        return frozenset(found)

    @field_validator("policy", mode="before")
    @classmethod
    def _one_stage_is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [] if value == "none" else value.split("+")
        return [value] if isinstance(value, dict) else value

    @model_serializer(mode="wrap")
    def _without_unused(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys of features that are not used when a scenario is written."""
        written: dict[str, Any] = write(self)
        for name, unused in WITHOUT_FEATURES.items():
            if getattr(self, name) == unused:
                written.pop(name, None)
        return written
