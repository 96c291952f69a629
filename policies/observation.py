"""The observation of a policy: read-only struct-of-arrays tables with the unit in each column's name.

A world (the simulator or a live training job) owns the tables and updates them in place; a stage reads
columns as plain NumPy arrays that cannot be written. Columns are valid only while a stage runs: copy what
is kept. What a world cannot know is NaN (floats) or -1 (indices), never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.declared_queues import EMPTY, Queues

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Columns = Mapping[str, NDArray[Any]]
S = TypeVar("S", bound=np.generic)


class JobState(IntEnum):
    """State of a job; stored as an integer in `Jobs.state`."""

    WAITING = 0
    RUNNING = 1
    DONE = 2
    HELD = 3  # waits, but a limit of its queue blocks its start now (`policies.queues.within`)


WAITING, RUNNING, DONE = int(JobState.WAITING), int(JobState.RUNNING), int(JobState.DONE)
HELD = int(JobState.HELD)


class Column(Generic[S]):
    """One named column of a `Table`: its dtype, its default, and what it means."""

    def __init__(self, dtype: type[S], default: float, meaning: str) -> None:
        self.dtype, self.default, self.meaning = dtype, default, meaning
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def filled(self, size: int) -> NDArray[S]:
        """An array of this many defaults; `np.full` takes four times as long for a few values."""
        values: NDArray[S] = np.empty(size, dtype=self.dtype)
        values.fill(self.default)
        return values

    @overload
    def __get__(self, table: None, owner: type) -> Column[S]: ...
    @overload
    def __get__(self, table: Table, owner: type) -> NDArray[S]: ...
    def __get__(self, table: Table | None, owner: type) -> Column[S] | NDArray[S]:
        if table is None:
            return self
        whole: NDArray[S] | None = table._shown.get(self.name)
        if whole is None:
            whole = table._shown[self.name] = table._arrays[self.name].view()
            whole.flags.writeable = False  # slow, so done once; nor can be written what is sliced from it
        # Kept in the instance, where Python finds it first next time; `resize` renews it.
        view = table.__dict__[self.name] = whole[: table.rows]
        return view


def _float(meaning: str, default: float = np.nan) -> Column[np.float64]:
    return Column(np.float64, default, meaning)


def _int(meaning: str, default: int = -1) -> Column[np.int64]:
    return Column(np.int64, default, meaning)


def _bool(meaning: str, default: bool = False) -> Column[np.bool_]:
    return Column(np.bool_, default, meaning)


class Table:
    """Equal-length columns. Attribute access gives a read-only view of the first `rows` entries."""

    columns: ClassVar[dict[str, Column[Any]]] = {}

    def __init_subclass__(cls) -> None:
        cls.columns = {k: v for k, v in vars(cls).items() if isinstance(v, Column)}

    def __init__(self, rows: int = 0, capacity: int | None = None) -> None:
        size = max(rows, capacity or 0)
        self._arrays = {k: c.filled(size) for k, c in self.columns.items()}
        self._shown: dict[str, NDArray[Any]] = {}  # whole columns that have been read, read-only
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getstate__(self) -> tuple[dict[str, NDArray[Any]], int]:
        # A copy must not inherit views of the original's arrays.
        return self._arrays, self.rows

    def __setstate__(self, state: tuple[dict[str, NDArray[Any]], int]) -> None:
        self._arrays, self.rows = state
        self._shown = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # What deepcopy itself would make, in a tenth of the time.
        copied = type(self).__new__(type(self))
        copied.__setstate__(({name: array.copy() for name, array in self._arrays.items()}, self.rows))
        return copied

    @classmethod
    def of(cls, **columns: Any) -> Self:
        """Build a table from given columns (equal lengths); the others take their defaults."""
        unknown = set(columns) - set(cls.columns)
        if unknown:
            raise KeyError(f"{cls.__name__} has no column {sorted(unknown)}")
        lengths = {len(v) for v in columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"{cls.__name__}: columns of unequal length {sorted(lengths)}")
        table = cls(lengths.pop() if lengths else 0)
        for name, values in columns.items():
            table._arrays[name][:] = values
        return table

    def replaced(self, **columns: NDArray[Any]) -> Self:
        """A table with other values in some columns (rows,); the other columns are shared, not copied."""
        table = type(self).__new__(type(self))
        shared = {name: array[: self.rows] for name, array in self._arrays.items()}
        table.__setstate__((shared | columns, self.rows))
        return table

    def as_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of all columns by name."""
        return {name: self._arrays[name][: self.rows].copy() for name in self.columns}


def writable(table: Table, name: str) -> NDArray[Any]:
    """The whole backing array of a column, for the world that owns the table. Not for stages."""
    return table._arrays[name]


def resize(table: Table, rows: int) -> None:
    """Set the number of visible rows, growing the backing arrays when needed. Not for stages."""
    table.rows, shown = rows, table.__dict__
    capacity = len(next(iter(table._arrays.values())))
    if rows > capacity:
        for name in table._shown:
            del shown[name]
        table._shown.clear()
        grown = max(rows, 2 * capacity)
        for name, column in table.columns.items():
            array = column.filled(grown)
            array[:capacity] = table._arrays[name]
            table._arrays[name] = array
    for name, whole in table._shown.items():  # columns are mostly read repeatedly; single views take longer
        shown[name] = whole[:rows]


class Nodes(Table):
    """One row per node."""

    gpus = _int("GPUs in the node", 0)
    first_gpu = _int("row in `gpus` of the node's first GPU; its GPUs are consecutive")
    gpus_free = _int("free GPUs, 0 when the node is down", 0)
    up = _bool("node is alive", True)
    rack = _int("rack number", 0)
    cores = _float("host cores")
    memory_bytes = _float("host memory")
    storage_free_bytes = _float("free local storage")
    nic_bytes_per_s = _float("network interface capacity, one direction")
    nic_busy_ratio = _float("share of the interface's capacity in use over the window, 0..1")
    ingest_samples_per_s = _float("samples the host can prepare per second")
    speed_ratio = _float(
        "last measured speed of training jobs on whole GPUs, over that of the hardware profile (live: "
        "over the fastest node with its GPU model); NaN: none was measured"
    )
    power_idle_w = _float("idle power of one of its GPUs, where a plan may cap it")
    power_max_w = _float("highest power cap of its GPUs; NaN: a plan cannot cap them")
    power_cap_w = _float("power cap of each of its GPUs now, where a plan may set it")
    power_draw_w = _float("power of one of its GPUs computing at the highest clock; NaN: the highest cap")


class Gpus(Table):
    """One row per GPU, grouped by node."""

    node = _int("row in `nodes`")
    model = _int("index into `Observation.gpu_models`", 0)
    job = _int("job row that holds all of it; -1 free; -2 shared (see `workers`); -3 held by a feature beside the jobs")
    memory_bytes = _float("device memory")
    share_free = _float("unallocated fraction, 0..1; 0 when the node is down", 1.0)
    suspect = _bool("marked suspect by a plan and not repaired since")
    share_quantum = _float("smallest step of a share on this device (MPS 0.01); 1: shares cannot be chosen", 0.01)
    mig = _bool("cut into MIG slices: a share is a slice, and another slice costs the worker's job a restart")
    sm_active_ratio = _float("share of time the multiprocessors were busy, 0..1 (DCGM sm_active)")
    dram_active_ratio = _float("share of time the memory interface was busy, 0..1 (DCGM dram_active)")
    power_w = _float("electrical power")
    temperature_c = _float("temperature")
    clock_ratio = _float("clock over its nominal value", 1.0)


class Workers(Table):
    """One row per data-parallel worker of a running training job, sorted by (job, index)."""

    job = _int("row in `jobs`")
    index = _int("rank within the job")
    gpu = _int("row in `gpus` of its (first) GPU")
    node = _int("row in `nodes`")
    gpu_share = _float("fraction of the GPU it may use", 1.0)
    share_kappa = _float("kappa of its speed on a share f of that GPU, (1 + kappa) f / (f + kappa); inf: speed f")
    samples_per_step = _int("its share of the global batch, in samples", 0)
    samples_max = _int("most samples it can take per step, in any number of passes", 2**62)
    samples_per_pass = _int("most samples of one pass (memory bound); more need further passes", 2**62)
    samples_owned = _float("untrained samples of the epoch that it owns")
    capacity_samples_per_s = _float("samples/s it can sustain: minimum of computing, preprocessing and reading")
    input_samples_per_s = _float("samples/s that preprocessing and reading its data can sustain", np.inf)
    fixed_s = _float("part of its step that does not grow with samples", 0.0)
    step_s = _float("mean duration of a local step over the window, without waiting")
    step_cov = _float("coefficient of variation of `step_s`")
    wait_s = _float("mean time per step spent at the barrier")
    input_stall_s = _float("mean time per step spent waiting for data")
    response_s_per_sample = _float("computing time and all input waits, per sample")
    gradient_rate_per_s = _float("gradients (local steps) per busy second")
    gradient_norm = _float("norm of its local gradient, before the exchange")
    gradient_weight = _float("weight of its gradient in the mean, from 0 (left out) to 1 (full)", 1.0)
    push_interval = _int("local steps between two pushes of its gradient, where workers do not wait", 1)
    push_s = _float("time of one push and pull (asynchronous training); NaN: workers exchange synchronously")
    memory_free_bytes = _float("free device memory")
    load_ratio = _float("share of its node's interface used by other jobs over the window, 0..1")

    @property
    def id(self) -> Ints:
        """Stable identity of a worker: job row * 2**20 + rank."""
        return self.job * (1 << 20) + self.index


class Jobs(Table):
    """One row per job that has arrived, in order of (arrival, id); a row number never changes."""

    id = _int("the job's number in its trace or scenario")
    arrival_s = _float("submission time")
    state = Column(np.int8, JobState.WAITING, "see `JobState`")
    rigid = _bool("known by duration only: no steps, fixed GPU count (fewer where workers_min is below workers_max)")
    priority = _float("weight, 1 is normal", 1.0)
    gpus_requested = _int("GPUs asked for", 1)
    gpus_held = _int("GPUs held now", 0)
    gpu_share_requested = _float("requested fraction of each GPU", 1.0)
    one_gpu_model = _bool("its GPUs must all be of one model")
    gpus_per_worker = _int("GPUs of one data-parallel replica (tensor x pipeline parallel)", 1)
    workers_min = _int("fewest workers", 1)
    workers_max = _int("most workers", 1)
    global_batch = _int("samples per step over all workers", 0)
    batch_reference = _int("reference batch M0 of the statistical efficiency; the smallest global batch", 0)
    batch_max = _int("largest global batch that a plan may set; 0: its global batch is fixed", 0)
    batch_given = _int("global batch set by its user, to which its own learning rate belongs", 0)
    learning_rate = _float("factor on the learning rate set by its user", 1.0)
    rate_rule = Column(np.int8, 0, "how its learning rate follows its batch: index into `plan.RULES`")
    micro_batch = _int("granularity of samples_per_step", 1)
    accumulation = _int("fewest passes per step (gradient accumulation); 0: a plan cannot set it", 1)
    sync_interval = _int("local steps per gradient exchange (H)", 1)
    work_s = _float("duration of a local step without waiting, mean over workers")
    far_every = _int("gradient exchanges per exchange of all workers; the others are among near workers only", 1)
    far_ratio = _float("part of the drift left by exchanges of near workers: (groups - 1) / (workers - 1)", 1.0)
    exchange_s = _float("duration of a gradient exchange, measured mean, contention included")
    far_exchange_s = _float("duration of an exchange of all workers, measured, contention included")
    near_exchange_s = _float("duration of an exchange of near workers, measured or else estimated; NaN: one level only")
    exchange_alone_s = _float("duration of a gradient exchange without contention")
    gamma = _float("overlap exponent, 1 none, large full", 1.0)
    drift = _float("kappa_d, efficiency lost per extra local step", 0.0)
    noise_scale = _float("gradient noise scale phi, in samples")
    throughput_samples_per_s = _float("samples trained per second over the window")
    goodput_samples_per_s = _float("throughput times statistical efficiency")
    progress = _float("share of the target reached, 0..1", 0.0)
    remaining_samples = _float("samples left to train at efficiency 1")
    duration_s = _float("estimated time of the whole job on the requested GPUs")
    service_s = _float("estimated remaining time on the requested GPUs, at most `limit_left_s`")
    limit_left_s = _float("time after which its limit ends it, on any GPUs; inf: no limit", np.inf)
    attained_gpu_s = _float("GPU-seconds received so far", 0.0)
    queued_since_s = _float("time at which it last began to wait", 0.0)
    waited_s = _float("time spent waiting before `queued_since_s`", 0.0)
    started_s = _float("last start")
    data_demand_bytes = _float("bytes of training data it reads per epoch", 0.0)
    input_bytes = _float("training data left to read, over all epochs", 0.0)
    prepare_core_s = _float("time that one host core takes to prepare a sample; 0 none, or unknown", 0.0)
    compute_demand_flops = _float("FLOP left to compute", 0.0)
    memory_bytes = _float("device memory it needs per GPU", 0.0)
    checkpoint_bytes = _float("size of a checkpoint", 0.0)
    restart_s = _float("cost of a preemption or resize: save, reload, initialise", 0.0)
    claim = _int("row in `Observation.queues.claims` (user, account, partition, QOS, queue); -1 not declared")
    gpu_types = _int("bit mask of the GPU models that it may run on, by index; -1 any")
    together = Column(np.int8, 0, "0 anywhere; in one rack: 1 preferred, 2 required; in one node: 3, 4")
    segment = Column(np.int64, 0, "GPUs of each part of it that must be in one rack; 0 no parts")


class Speeds(Table):
    """Estimated throughput of jobs on GPU models and counts; unlisted combinations are unknown.

    Rigid jobs are listed on clusters with several GPU models; a second of their duration counts as a sample.
    """

    job = _int("row in `jobs`")
    gpu_model = _int("index into `Observation.gpu_models`")
    gpus = _int("number of GPUs")
    samples_per_s = _float("estimated throughput, exchanges excluded")
    exchange_s = _float("estimated time of one gradient exchange without contention")
    apart_exchange_s = _float("`exchange_s` with half of the workers on one node and half on others")


class Shards(Table):
    """One row per data shard (or unread rest of one) of running training jobs."""

    id = _int("identity, stable while it lasts")
    job = _int("row in `jobs`")
    worker = _int("row in `workers` of its owner, -1 none")
    node = _int("node that stores it, -1 none alive")
    bytes = _float("size of the unread part")
    samples = _int("samples of the unread part", 0)
    started = _bool("its owner has begun to train on it, so it cannot move")
    local = _bool("stored on its owner's node, or already fetched to it")
    needed_in_s = _float("estimated time until its owner needs it")


class Stores(Table):
    """Where the data of waiting and running jobs is stored; a job whose data follows its placement has no rows."""

    job = _int("row in `jobs`, ascending")
    node = _int("row in `nodes`")
    ratio = _float("share of the job's data that the node stores, 0..1")


class Paths(Table):
    """Measured or estimated transfer speed between nodes that hold data and nodes that need it."""

    source = _int("row in `nodes`")
    target = _int("row in `nodes`")
    bytes_per_s = _float("rate of a transfer")
    latency_s = _float("delay before the first byte", 0.0)


_NO_ROWS: Ints = np.empty(0, dtype=np.int64)
_NO_ROWS.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """One part of a plan that a world could not carry out, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Labels:
    """A text field of jobs as codes (jobs,) with their names: the value of a row is `names[codes[row]]`."""

    codes: Ints
    names: tuple[str, ...]


@dataclass(slots=True)
class Observation:
    """Everything a stage may read. `waiting` and `running` are job rows; `waiting` in (arrival, id) order.

    `refused` are the parts of earlier plans refused since the last observation. `told` holds labels
    or numbers (jobs,) recorded for jobs; some are known only at a job's end (its state, its waiting at the site), and a
    stage that reads those uses information that no scheduler has.
    """

    time_s: float  # now
    window_s: float  # time since the last observation: the window of all measurements
    nodes: Nodes
    gpus: Gpus
    jobs: Jobs
    workers: Workers
    shards: Shards
    paths: Paths
    speeds: Speeds
    stores: Stores
    waiting: Ints  # rows of waiting jobs, in order of (arrival, id)
    running: Ints  # rows of running jobs
    gpu_models: tuple[str, ...] = ("gpu",)  # names of the GPU models
    refused: tuple[Refusal, ...] = ()  # parts of earlier plans refused since the last observation
    queues: Queues = EMPTY  # queues that the site declares, with their usage
    held: Ints = field(default_factory=lambda: _NO_ROWS)  # jobs that are not in `waiting` because of a limit
    told: Mapping[str, Labels | Floats] = field(default_factory=dict)  # other columns of a job trace
    beside: Mapping[str, Columns] = field(default_factory=dict)  # tables of features that share the cluster, by name

    @classmethod
    def of(
        cls,
        time_s: float = 0.0,
        window_s: float = 1.0,
        *,
        nodes: Nodes | None = None,
        gpus: Gpus | None = None,
        jobs: Jobs | None = None,
        workers: Workers | None = None,
        shards: Shards | None = None,
        paths: Paths | None = None,
        speeds: Speeds | None = None,
        stores: Stores | None = None,
        gpu_models: tuple[str, ...] = ("gpu",),
        queues: Queues = EMPTY,
    ) -> Observation:
        """Build an observation from some tables; `waiting` and `running` follow from `jobs.state`."""
        jobs = jobs if jobs is not None else Jobs()
        return cls(
            time_s=time_s,
            window_s=window_s,
            nodes=nodes if nodes is not None else Nodes(),
            gpus=gpus if gpus is not None else Gpus(),
            jobs=jobs,
            workers=workers if workers is not None else Workers(),
            shards=shards if shards is not None else Shards(),
            paths=paths if paths is not None else Paths(),
            speeds=speeds if speeds is not None else Speeds(),
            stores=stores if stores is not None else Stores(),
            waiting=np.flatnonzero(jobs.state == JobState.WAITING).astype(np.int64),
            running=np.flatnonzero(jobs.state == JobState.RUNNING).astype(np.int64),
            gpu_models=gpu_models,
            queues=queues,
        )

    def snapshot(self) -> Observation:
        """A copy that does not change when the world goes on."""
        tables = {name: table.replaced(**table.as_dict()) for name, table in self.tables().items()}
        return replace(self, **tables, waiting=self.waiting.copy(), running=self.running.copy())  # type: ignore[arg-type]

    def tables(self) -> Mapping[str, Table]:
        """The tables by name, in a fixed order."""
        return {name: getattr(self, name) for name in TABLES}

    def workers_of(self, job: int) -> slice:
        """Rows of `workers` that belong to job row `job` (they are consecutive)."""
        first, last = np.searchsorted(self.workers.job, (job, job + 1))
        return slice(int(first), int(last))


TABLES: dict[str, type[Table]] = {
    "nodes": Nodes,
    "gpus": Gpus,
    "jobs": Jobs,
    "workers": Workers,
    "shards": Shards,
    "paths": Paths,
    "speeds": Speeds,
    "stores": Stores,
}
