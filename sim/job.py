"""One training job: its workers, its configuration, its progress, and where its GPU-seconds went.

Time passes in synchronisation periods: H local steps and one gradient exchange. A period runs to its end under
the configuration it began with; only a stop (crash, preemption, resize) acts at once and loses the period.
How a period's events unfold is the business of `sim.advance`; this file holds the state and the accounts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from policies.observation import Floats, Ints
from sim.cluster import Cluster, Holding
from sim.data import JobData, Snapshot
from sim.randomness import lognormal_parameters, noise_key
from sim.scenario import Job as JobSpec
from sim.scenario import Model
from sim.workload import (
    Exchange,
    checkpoint_bytes,
    deal,
    efficiency,
    make_exchange,
    make_push,
    replica_cost_s,
    share_speed,
)

if TYPE_CHECKING:
    from sim.energy import Meter
    from sim.timeline import Timeline

BUSY, STALL, WAIT, EXPOSED, RESTART, LOST, USEFUL = range(7)
"""Rows of `Account.gpu_s`."""

DONE_TOLERANCE = 1e-9


@dataclass(slots=True)
class Account:
    """Where a job's GPU-seconds and samples went."""

    gpu_s: Floats = field(default_factory=lambda: np.zeros(7))
    samples: int = 0
    useful_samples: float = 0.0
    lost_samples: int = 0
    steps: int = 0
    exchanges: int = 0

    def copy(self) -> Account:
        """An independent copy."""
        return Account(
            self.gpu_s.copy(),
            self.samples,
            self.useful_samples,
            self.lost_samples,
            self.steps,
            self.exchanges,
        )


@dataclass(slots=True)
class Window:
    """What was measured since the last observation, per worker."""

    busy_s: Floats
    busy_square: Floats
    stall_s: Floats
    wait_s: Floats
    samples: Floats
    steps: int = 0
    periods: int = 0
    exchange_s: float = 0.0
    useful_samples: float = 0.0
    since_s: float = 0.0

    @classmethod
    def empty(cls, workers: int, since_s: float) -> Window:
        """A window that begins now."""
        a, b, c, d, e = np.zeros((5, workers))
        return cls(a, b, c, d, e, since_s=since_s)


@dataclass(frozen=True, slots=True)
class Period:
    """One period as it begins: samples per step and worker; all steps alike but perhaps the last."""

    index: int
    start_s: float
    steps: int
    first_step: int
    samples: Ints
    last_samples: Ints
    compute_s: Floats
    input_s: Floats
    last_compute_s: Floats
    last_input_s: Floats

    @property
    def demand(self) -> Ints:
        """Samples of the whole period per worker."""
        return self.samples * (self.steps - 1) + self.last_samples

    @property
    def batch(self) -> int:
        """Samples of the whole period."""
        return int(self.demand.sum())


@dataclass(slots=True)
class Outcome:
    """How a period went: per worker in seconds, and when it ended."""

    duration_s: float
    arrival_s: float  # offset at which the last worker reached the barrier
    finish_s: Floats  # offsets of all workers
    busy_s: Floats
    busy_square: Floats
    stall_s: Floats
    exchange_s: float
    end_s: float | None  # absolute end, when it is not start + duration (a wait or contention)
    samples: Ints | None = None  # of an asynchronous round: what each worker really took,
    exposed_s: Floats | None = None  # its time on the network,
    staleness: float = 0.0  # and the mean staleness of a sample


@dataclass
class Pending:
    """Changes that a plan asks for, applied when the running period ends."""

    samples: Ints | None = None
    interval: int | None = None
    moves: list[tuple[int, int]] = field(default_factory=list)  # piece id, worker
    order: dict[int, int] | None = None
    share: Floats | None = None

    @property
    def asked(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.moves) or any(
            value is not None for value in (self.samples, self.interval, self.order, self.share)
        )


class TrainingJob:
    """A data-parallel training job in the simulator."""

    def __init__(
        self,
        row: int,
        name: str,
        spec: JobSpec,
        model: Model,
        cluster: Cluster,
        *,
        seed: int,
        step_cov: float,
        mtbf_s: float,
    ) -> None:
        self.row, self.name, self.spec, self.model, self.cluster = row, name, spec, model, cluster
        self.noise_key = noise_key(seed, f"step:{name}")
        self.noise_mu, self.noise_sigma = lognormal_parameters(step_cov)
        self.gpus_per_worker = model.parallel.tensor * model.parallel.pipeline
        self.global_batch, self.interval = spec.global_batch, spec.sync_interval
        self.reference = spec.batch_reference or spec.global_batch
        self.data: JobData | None = None
        self.target = self._target_samples()
        self.account, self.saved_account = Account(), Account()
        self.saved_data: Snapshot | None = None
        self._unwritten: tuple[Account, Snapshot | None] | None = None
        self.steps_ever = 0  # local steps begun, never rewound: the noise counter
        self._steps_of: dict[int, int] = {}
        self._round: Snapshot | None = None  # data as an asynchronous round began
        self.steps_since_decision = 0
        self.mtbf_s = mtbf_s
        self.done = False
        self.stale = True  # configure() before the next period
        self.generation = 0  # raised by every stop: what was under way before is void
        self.holding: Holding | None = None
        self.pending = Pending()
        self.size_bytes = (
            spec.checkpoint.size if spec.checkpoint.size is not None else checkpoint_bytes(model)
        )
        self.fabric_bytes_per_s = float(cluster.topology.fabric_bytes_per_s.min())
        self._cost = lru_cache(maxsize=4096)(self._cost_uncached)
        self.workers = 0
        self.nodes: Ints = np.zeros(1, dtype=np.int64)  # until it is placed, node 0 stands for any
        self.exchanged_bytes = 0.0
        self.undone_gpu_s = 0.0  # computing that counts as lost or as restart
        self.meter: Meter | None = None
        self.timeline: Timeline | None = None
        self._exchanges_seen = 0
        self.period_start_s = self.begun_s = 0.0

    def _target_samples(self) -> float:
        spec = self.spec
        if spec.steps is not None:
            return float(spec.steps * spec.global_batch)
        if spec.samples is not None:
            return float(spec.samples)
        assert spec.epochs is not None
        assert spec.data is not None
        return spec.epochs * spec.data.samples

    # -- configuration -------------------------------------------------------------------------------------

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and begin (or go on) `delay_s` from now, from the last checkpoint when there is one."""
        self.holding = holding
        self._set_workers(holding)
        self.samples = deal(self.global_batch, np.ones(self.workers, np.int64), self.spec.micro_batch)
        if self.data is not None:
            if self.saved_data is not None:
                self.data.restore(self.saved_data, self.nodes.tolist())
            else:
                self.data.assign(self.nodes.tolist())
        self.begun_s = now_s + delay_s
        self.resume_at(self.begun_s)
        self.open_window(now_s)
        self.last_checkpoint_s = self.period_start_s
        self.charge(RESTART, delay_s)
        self.configure()

    def _set_workers(self, holding: Holding) -> None:
        per = self.gpus_per_worker
        self.workers = len(holding.gpu) // per
        self.gpu = holding.gpu[::per]
        self.share = holding.share[::per].copy()
        self.weight = self.share * per  # GPU-seconds per second and worker
        self.nodes = self.cluster.gpus.node[self.gpu]
        self.fabric_bytes_per_s = float(self.cluster.topology.fabric_bytes_per_s[self.nodes].min())
        self._cost.cache_clear()
        self.busy_total_s = np.zeros(self.workers)

    def open_window(self, since_s: float) -> None:
        """Measure anew from here on."""
        self.window = Window.empty(self.workers, since_s)
        self._busy_taken_s = np.zeros(self.workers)

    def fresh_busy_s(self) -> Floats:
        """Computing time of each worker (workers,) since `take_busy_s` was last asked."""
        fresh: Floats = self.window.busy_s - self._busy_taken_s
        return fresh

    def take_busy_s(self) -> Floats:
        """Computing time of each worker since this was last asked; ask before the window changes."""
        fresh = self.fresh_busy_s()
        self._busy_taken_s = self.window.busy_s.copy()
        self.busy_total_s += fresh
        return fresh

    def resume_at(self, time_s: float) -> None:
        """Anchor the next period at an absolute time."""
        self.anchor_s, self.period_start_s = time_s, time_s
        self._run_base = self._run_period = 0.0
        self._run_count = 0

    def configure(self) -> None:
        """Work out what a step costs now: speeds, shares, neighbours, exchange."""
        cluster, model = self.cluster, self.model
        speed = cluster.node_speed[self.nodes] / cluster.slow[self.nodes]
        kappa = model.share_kappa
        for i in range(self.workers):
            if self.share[i] < 1.0:
                speed[i] *= share_speed(float(self.share[i]), kappa)
            if model.interference:
                speed[i] /= 1.0 + model.interference * cluster.co_located(int(self.gpu[i]), self.row)
        self.scale = 1.0 / speed
        per_node = np.bincount(self.nodes)
        self.ingest = cluster.nodes.ingest_samples_per_s[self.nodes] / per_node[self.nodes]
        self.exchange = self.exchange_over(self.nodes)
        self.compute_s, self.input_s = self.step_s(self.samples)
        self.pushes = self._pushes() if self.asynchronous else []
        self.stale = False

    @property
    def asynchronous(self) -> bool:
        """Whether workers go on without a barrier."""
        return self.model.exchange.algorithm == "async-parameter-server"

    def _pushes(self) -> list[Exchange]:
        """Push and pull of each worker."""
        nodes = self.nodes.tolist()
        name = self.cluster.gpu_models[int(self.cluster.node_model[nodes[0]])]
        servers = [
            nodes[k * len(nodes) // self.model.exchange.servers] for k in range(self.model.exchange.servers)
        ]
        return [
            make_push(self.model, node, servers, self.cluster.topology, self.cluster.profile, name)
            for node in nodes
        ]

    def count_step(self, worker: int) -> int:
        """Number of the worker's next local step of an asynchronous job; never rewound."""
        step = self._steps_of.get(worker, 0)
        self._steps_of[worker] = step + 1
        return step

    def exchange_over(self, nodes: Ints) -> Exchange:
        """The gradient exchange of workers on these nodes."""
        return make_exchange(
            self.model,
            nodes.tolist(),
            self.cluster.topology,
            self.cluster.profile,
            self.cluster.gpu_models[int(self.cluster.node_model[nodes[0]])],
        )

    def step_s(self, samples: Ints) -> tuple[Floats, Floats]:
        """(compute, input) seconds per worker of one local step, before noise."""
        return self._costs(samples, 1) * self.scale, samples / self.ingest

    def _costs(self, samples: Ints, which: int) -> Floats:
        """Fixed (0) or total (1) cost per worker at speed 1; most workers are alike."""
        kinds, inverse = np.unique(
            np.stack((self.cluster.node_model[self.nodes], samples)), axis=1, return_inverse=True
        )
        costs = np.array([self._cost(int(m), int(b))[which] for m, b in kinds.T])
        per_worker: Floats = costs[inverse]
        return per_worker

    def _cost_uncached(self, model: int, samples: int) -> tuple[float, float]:
        return replica_cost_s(self.model, self.cluster.accelerators[model], samples, self.fabric_bytes_per_s)

    def cost_s(self, gpu_model: int, samples: int) -> tuple[float, float]:
        """(fixed, total) seconds of one step of one worker on a GPU model at speed 1."""
        fixed_s, total_s = self._cost(gpu_model, samples)
        return fixed_s, total_s

    def fixed_s(self) -> Floats:
        """The part of each worker's step that does not grow with its samples (s)."""
        return self._costs(self.samples, 0) * self.scale

    # -- periods -------------------------------------------------------------------------------------------

    @property
    def noise_scale(self) -> float:
        """Gradient noise scale now (samples); -1 when the job has none."""
        phi = self.model.noise_scale
        return -1.0 if phi is None else phi * (1.0 + self.model.noise_scale_growth * self.progress)

    @property
    def progress(self) -> float:
        """Share of the target reached."""
        return min(1.0, self.account.useful_samples / self.target)

    def efficiency(self, batch: float, interval: int) -> float:
        """Statistical efficiency of a batch at an interval, now; asynchronous workers have no interval."""
        interval = 1 if self.asynchronous else interval
        return efficiency(float(batch), interval, self.noise_scale, float(self.reference), self.model.drift)

    def steps_to_target(self) -> int:
        """Steps until the job ends, at the present efficiency."""
        missing = self.target * (1.0 - DONE_TOLERANCE) - self.account.useful_samples
        per_step = self.global_batch * self.efficiency(self.global_batch, self.interval)
        return max(1, math.ceil(missing / per_step))

    def next_period(self) -> Period:
        """Begin a period: how many steps, and who takes how many samples in each."""
        steps, last = min(self.interval, self.steps_to_target()), self.samples
        compute_s, input_s = self.compute_s, self.input_s
        if self.data is not None:
            if self.data.left == 0:
                self.data.next_epoch()
            left = self.data.left
            steps = min(steps, -(-left // self.global_batch))
            rest = left - (steps - 1) * self.global_batch
            if rest < self.global_batch:  # the last batch of an epoch deals what is left
                last = deal(rest, self.samples)
                compute_s, input_s = self.step_s(last)
        first_step, self.steps_ever = self.steps_ever, self.steps_ever + steps
        period = Period(
            self.account.exchanges, self.period_start_s, steps, first_step, self.samples, last,
            self.compute_s, self.input_s, compute_s, input_s,
        )  # fmt: skip
        if self.data is not None and self.asynchronous:
            self._round = self.data.snapshot()
        elif self.data is not None:
            self.data.prepare(period.demand, self.seconds_per_sample())
        return period

    def seconds_per_sample(self) -> Floats:
        """Work per sample and worker at the present shares; infinite for a worker without samples."""
        work = np.maximum(self.compute_s, self.input_s)
        infinite: Floats = np.full(self.workers, np.inf)
        np.divide(work, self.samples, out=infinite, where=self.samples > 0)
        return infinite

    def end_period(self, period: Period, outcome: Outcome) -> None:
        """Book one finished period and find out when the next may begin."""
        self._advance_clock(outcome)
        demand = period.demand if outcome.samples is None else outcome.samples
        if self.data is not None and outcome.samples is None:
            self.data.consume(demand)
        self._round = None
        waiting = outcome.arrival_s - outcome.finish_s
        window, gpu_s, weight = self.window, self.account.gpu_s, self.weight
        busy_gpu_s = float(outcome.busy_s @ weight)
        gpu_s[BUSY] += busy_gpu_s
        gpu_s[STALL] += float(outcome.stall_s @ weight)
        gpu_s[WAIT] += float(waiting @ weight)
        gpu_s[EXPOSED] += (outcome.duration_s - outcome.arrival_s) * float(weight.sum())
        if outcome.exposed_s is not None:
            gpu_s[EXPOSED] += float(outcome.exposed_s @ weight)
        self.credit(period, busy_gpu_s, 1.0 / (1.0 + self.model.staleness * outcome.staleness))
        window.busy_s += outcome.busy_s
        window.busy_square += outcome.busy_square
        window.stall_s += outcome.stall_s
        window.wait_s += waiting
        window.samples += demand
        window.steps += period.steps
        window.periods += 1
        window.exchange_s += outcome.exchange_s

    def credit(self, period: Period, busy_gpu_s: float, fresh: float) -> None:
        """Count the samples of one period, each at the efficiency of its batch times `fresh`."""
        account, useful = self.account, 0.0
        whole = int(period.samples.sum()) if period.steps > 1 else 0
        last = int(period.last_samples.sum())
        if whole:
            useful += (period.steps - 1) * whole * self.efficiency(whole, self.interval)
        useful += last * self.efficiency(max(last, self.reference), self.interval)
        useful *= fresh
        account.samples += period.batch
        account.useful_samples += useful
        account.steps += period.steps
        account.exchanges += 1
        account.gpu_s[USEFUL] += busy_gpu_s * useful / max(1, period.batch)
        self.window.useful_samples += useful
        self.steps_since_decision += period.steps
        self.done = account.useful_samples >= self.target * (1.0 - DONE_TOLERANCE)

    def period_end_s(self, outcome: Outcome) -> float:
        """When the running period ends: anchor + count * period, or anchor + running sum, never drifting."""
        if outcome.end_s is not None:
            return outcome.end_s
        base_s, count = self._run_with(outcome.duration_s)
        return self.anchor_s + (base_s + count * outcome.duration_s)

    def _run_with(self, duration_s: float) -> tuple[float, int]:
        """What precedes the run of equally long periods that one of this length ends (s), and their number."""
        if duration_s == self._run_period:
            return self._run_base, self._run_count + 1
        return self._run_base + self._run_count * self._run_period, 1

    def _advance_clock(self, outcome: Outcome) -> None:
        end_s = self.period_end_s(outcome)
        if outcome.end_s is not None:
            self.resume_at(end_s)
            return
        self._run_base, self._run_count = self._run_with(outcome.duration_s)
        self._run_period, self.period_start_s = outcome.duration_s, end_s

    def take_traffic(self) -> float:
        """Volume of the exchanges since this was last asked (bytes); ask before the exchange changes."""
        volume = (self.account.exchanges - self._exchanges_seen) * self.exchange.volume_bytes
        self._exchanges_seen = self.account.exchanges
        self.exchanged_bytes += volume
        return volume

    # -- checkpoints, stops, changes -----------------------------------------------------------------------

    @property
    def storage_bytes_per_s(self) -> float:
        """Rate at which the workers' nodes write or read a checkpoint together."""
        groups = {int(node): self.cluster.group(int(node)).storage_rate for node in self.nodes}
        return float(sum(groups.values()))

    @property
    def save_s(self) -> float:
        """Duration of writing a checkpoint (or reading one back)."""
        return self.size_bytes / self.storage_bytes_per_s

    def checkpoint_interval_s(self) -> float:
        """Time between checkpoints; Young/Daly: sqrt(2 * write time * mean time between failures)."""
        interval = self.spec.checkpoint.interval
        if interval == "never":
            return math.inf
        if interval == "young-daly":
            mtbf_s = self.mtbf_s / len(set(self.nodes.tolist()))
            return math.sqrt(2.0 * self.save_s * mtbf_s) if mtbf_s < math.inf else math.inf
        return float(interval)

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is to be written before the next period."""
        return self.period_start_s - self.last_checkpoint_s >= self.checkpoint_interval_s()

    def checkpoint(self) -> None:
        """Begin to write a checkpoint; it counts once it is written, see `written`."""
        if self.timeline is not None:
            self.timeline.checkpointing(self)
        save_s = self.save_s
        self.charge(RESTART, save_s)
        self._unwritten = self._state()
        self.resume_at(self.period_start_s + save_s)
        self.last_checkpoint_s = self.period_start_s

    def written(self) -> None:
        """A checkpoint that was being written is complete: what it holds can no longer be lost."""
        if self._unwritten is not None:
            self.saved_account, self.saved_data = self._unwritten
            self._unwritten = None
            if self.timeline is not None:
                self.timeline.checkpointed(self)

    def _state(self) -> tuple[Account, Snapshot | None]:
        return self.account.copy(), self.data.snapshot() if self.data is not None else None

    def charge(self, use: int, seconds: float) -> None:
        """Book `seconds` of all held GPUs."""
        self.account.gpu_s[use] += seconds * float(self.weight.sum())

    def stop(self, now_s: float, *, lost: bool) -> None:
        """Stop at once. `lost`: back to the last checkpoint (crash); else what is trained is saved.

        The running period, or the part of a restart that was under way, goes to the account of what caused it.
        """
        self.generation += 1
        self._end_partial(now_s, LOST if lost else RESTART)
        if lost:
            self._roll_back()
        else:
            self.saved_account, self.saved_data = self._state()
        self._unwritten = None
        if self.data is not None:
            self.data.release()
        self.pending = Pending()
        self.holding = None

    def _undo_round(self) -> None:
        """Give back what an unfinished asynchronous round has read."""
        if self._round is not None and self.data is not None:
            self.data.restore(self._round, self.nodes.tolist())
        self._round = None

    def _end_partial(self, now_s: float, use: int) -> None:
        """Book the running period's time, or take back what a restart or checkpoint has not used."""
        self._undo_round()
        partial_s = now_s - self.period_start_s
        self.charge(RESTART if partial_s < 0.0 else use, partial_s)
        if partial_s > 0.0 and use != BUSY:
            self.undone_gpu_s += partial_s * float(self.weight.sum())

    def book_unfinished(self, now_s: float) -> None:
        """The run ends within a period (or a restart): its time counts as training that has come to nothing yet."""
        self._end_partial(now_s, BUSY)

    def _roll_back(self) -> None:
        now, saved = self.account, self.saved_account
        wasted = float((now.gpu_s[BUSY : EXPOSED + 1] - saved.gpu_s[BUSY : EXPOSED + 1]).sum())
        self.undone_gpu_s += float(now.gpu_s[BUSY] - saved.gpu_s[BUSY])
        restored = saved.copy()
        restored.gpu_s[RESTART] = now.gpu_s[RESTART]
        restored.gpu_s[LOST] = now.gpu_s[LOST] + wasted
        restored.lost_samples = now.lost_samples + now.samples - saved.samples
        restored.exchanges = now.exchanges
        self.account = restored

    def cut(self, now_s: float) -> None:
        """Some workers are gone: the running period is lost; `regroup` follows."""
        self.generation += 1
        self._unwritten = None
        self._end_partial(now_s, LOST)

    def regroup(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Go on with the workers that are left."""
        self.holding = holding
        self._set_workers(holding)
        self.samples = deal(self.global_batch, np.ones(self.workers, np.int64), self.spec.micro_batch)
        if self.data is not None:
            self.data.assign(self.nodes.tolist())
        self.pending = Pending()
        self.open_window(now_s)
        self.begun_s = now_s + delay_s
        self.resume_at(self.begun_s)
        self.charge(RESTART, delay_s)
        self.configure()

    def apply_pending(self) -> list[tuple[str, str]]:
        """Apply what plans asked for during the last period; returns (what, why) of what was refused."""
        pending, refused = self.pending, []
        self.pending = Pending()
        if pending.samples is not None:
            self.samples, self.stale = pending.samples, True
        if pending.interval is not None:
            self.interval = pending.interval
        if self.data is not None:
            for piece, worker in pending.moves:
                why = self.data.move(piece, worker)
                if why:
                    refused.append((f"move of shard piece {piece} of job {self.name}", why))
            if pending.order:
                self.data.reorder(pending.order)
        if pending.share is not None:
            if self.meter is not None:
                self.meter.training(self)  # at the share it had
            self.share, self.stale = pending.share, True
            self.weight = self.share * self.gpus_per_worker
            self.cluster.set_share(self.row, np.repeat(self.share, self.gpus_per_worker))
        return refused
