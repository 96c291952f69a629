"""One training job: its state and its accounts, composed of parts that each know one thing.

Time passes in synchronisation periods: H local steps and one gradient exchange. A period runs to its end under
the configuration it began with; only a stop (crash, preemption, resize) acts at once and loses the period.
How a period's events unfold is the business of `job.event_by_event` and of what is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.policies.shards import next_batch
from equipoise.sim.cluster.cluster import Cluster, Holding
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.cost.measured import step_cov
from equipoise.sim.job.account import (
    BARRIER_WAIT,
    BUSY,
    EXPOSED_COMMUNICATION,
    HELD,
    INPUT_STALL,
    LOST_TO_FAULTS,
    PIPELINE_BUBBLE,
    RESTART,
    TENSOR_EXCHANGE,
)
from equipoise.sim.job.checkpoints import Checkpoints, State
from equipoise.sim.job.dataset import JobData, Snapshot
from equipoise.sim.job.listener import Listeners
from equipoise.sim.job.measurements import Measurements
from equipoise.sim.job.pending import Asked, Pending
from equipoise.sim.job.period import Ends, Outcome, Period
from equipoise.sim.job.progress import Progress
from equipoise.sim.randomness import noise_key, step_noise
from equipoise.sim.scenario.model import Data, Model, Noise, Restart
from equipoise.sim.scenario.model import Job as JobSpec


class Advance(Protocol):
    """What lets a job's time pass."""

    def begin(self, job: TrainingJob) -> None:
        """Let a job run that has been started or regrouped."""

    def halt(self, job: TrainingJob) -> None:
        """The job stops at once."""

    def settle(self, job: TrainingJob, *, before: bool = False) -> None:
        """Book all periods that have ended by now (`before`: strictly before now)."""

    def reconfigure(self, job: TrainingJob) -> None:
        """What a step costs has changed: acts from the next period on."""


class PowerMeter(Protocol):
    """What counts the energy of computing: told GPU-seconds by node."""

    @property
    def varies(self) -> bool:
        """Whether power differs over nodes or time; else nothing needs to be told."""

    def computed(self, row: int, nodes: Ints, gpu_s: Floats) -> None:
        """A job's workers have computed so long on their nodes; both (workers,)."""


class TrainingJob:
    """A data-parallel training job in the simulator; one kind of `Job`."""

    rigid = False

    def __init__(
        self,
        row: int,
        name: str,
        spec: JobSpec,
        model: Model,
        cluster: Cluster,
        advance: Advance,
        meter: PowerMeter,
        listeners: Listeners,
        load: Callable[[Data, list[int]], JobData],
        *,
        seed: int,
        noise: Noise,
        mtbf_s: float,
        restart: Restart,
    ) -> None:
        self.row, self.name, self.spec, self.model, self.cluster = row, name, spec, model, cluster
        self.advance, self.meter, self.listeners, self.load = advance, meter, listeners, load
        self.initialisation_s = restart.initialisation
        self._step_key = noise_key(seed, f"step:{name}")
        self.norm_key = noise_key(seed, f"norm:{name}")
        self.noise = noise
        self.config = Configuration(row, spec, model, cluster)
        self.progress = Progress(spec, model, asynchronous=self.config.asynchronous)
        self.checkpoints = Checkpoints(spec.checkpoint, model, cluster, mtbf_s, restart)
        self.measured, self.ends, self.asked = Measurements(), Ends(), Asked()
        self.data: JobData | None = None
        self.homes_before_start: list[list[int]] | None = None  # where its data lies; None: not known
        self.holding: Holding | None = None
        self.steps_ever = 0  # local steps begun, never rewound: the noise counter
        self.steps_of: dict[int, int] = {}  # the same by worker, of an asynchronous job
        self._round: Snapshot | None = None  # data as an asynchronous round began
        self.generation = 0  # raised by every stop: what was under way before is void
        self.undone_gpu_s = 0.0  # computing that counts as lost or as restart
        self.exchanged_bytes, self._traffic_seen = 0.0, (0, 0)

    # -- what the world does with it -----------------------------------------------------------------------

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and begin (or go on) `delay_s` from now, from the last checkpoint when there is one."""
        if self.data is None and self.spec.data is not None:
            self.data = self.load(self.spec.data, holding.nodes.tolist())
        self._place(holding, self.checkpoints.data)
        self._go_on(now_s, delay_s)
        self.checkpoints.last_s = self.ends.start_s
        self.advance.begin(self)

    def _place(self, holding: Holding, saved: Snapshot | None) -> None:
        self.holding = holding
        self.config.place(holding)
        self.progress.place(self.config.far_ratio)
        said = self.noise
        self.step_noise = step_noise(
            self._step_key, step_cov(said, self.model, self.config.accelerator), said.lasting_share,
            said.lasting_steps, said.common_share, said.tail_chance, said.tail_factor,
        )  # fmt: skip
        np.add.at(self.cluster.workers, self.config.nodes, 1)
        if self.data is not None:
            nodes = self.config.nodes.tolist()
            if saved is not None:
                self.data.restore(saved, nodes)
            else:
                self.data.assign(nodes)

    def _go_on(self, now_s: float, delay_s: float) -> None:
        begun_s = now_s + delay_s
        self.ends.resume_at(begun_s)
        self.measured.place(self.config.workers, now_s, begun_s)
        self._charge(RESTART, delay_s)
        self.config.work_out()

    def stop(self, now_s: float, *, lost: bool) -> float:
        """Stop at once. `lost`: back to the last checkpoint (crash); else what is trained is saved.

        The running period, or the part of a restart that was under way, goes to the account of what caused it.
        Returns the time to read the checkpoint back, and to write it first when nothing is lost (s).
        """
        self._halt(now_s, before=lost)
        save_s = self.save_s * (1 if lost else 2)
        self._end_partial(now_s, LOST_TO_FAULTS if lost else RESTART)
        if lost:
            self._roll_back()
        else:
            self.checkpoints.save(self._state())
        self.checkpoints.drop()
        if self.data is not None:
            self.data.release()
        self.report_traffic()
        self.asked = Asked()
        self._leave()
        self.holding = None
        return save_s

    def _halt(self, now_s: float, *, before: bool) -> None:
        """Nothing of what is under way happens any more; what has been computed is metered."""
        self.advance.settle(self, before=before)
        self.advance.halt(self)
        self._meter_all(now_s)
        self.generation += 1

    def finish(self) -> None:
        """The job is done."""
        self.advance.halt(self)
        self.generation += 1
        if self.data is not None:
            self.data.release()
        self.meter_booked()
        self.report_traffic()
        self._leave()

    def _leave(self) -> None:
        """Its workers share their nodes' cores and disks no more."""
        np.subtract.at(self.cluster.workers, self.config.nodes, 1)

    def close(self, now_s: float) -> None:
        """The run ends within a period (or a restart): its time counts as training that has come to nothing yet."""
        self.advance.settle(self)
        self.report_traffic()
        self._meter_all(now_s)
        self._end_partial(now_s, BUSY)

    def speed_changed(self) -> None:
        """From the next period on."""
        self.advance.reconfigure(self)

    @property
    def elastic(self) -> TrainingJob | None:
        """The job, if it may go on with fewer GPUs when a node dies."""
        return self if self.spec.on_worker_loss == "regroup" else None

    def survivors(self, lost: Bools) -> Bools | None:
        """Which of its GPUs stay of use when `lost` ones are gone; None: too few workers would be left."""
        per = self.config.gpus_per_worker
        alive = ~lost.reshape(-1, per).any(axis=1)  # a worker over several nodes needs them all
        return np.repeat(alive, per) if alive.sum() >= self.config.fewest else None

    def cut(self, now_s: float) -> None:
        """Some workers are gone: the running period is lost; `regroup` follows."""
        self._halt(now_s, before=True)
        self.report_traffic()
        self.checkpoints.drop()
        self._end_partial(now_s, LOST_TO_FAULTS)
        self._leave()

    def regroup(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Go on with the workers that are left."""
        self.asked = Asked()
        self._place(holding, None)
        self._go_on(now_s, delay_s)
        self.advance.begin(self)

    @property
    def runs(self) -> bool:
        """Whether it holds GPUs and is not done."""
        return self.holding is not None and not self.progress.done

    # -- what others ask -----------------------------------------------------------------------------------

    @property
    def gpu_s(self) -> Floats:
        """GPU-seconds by `Use`, up to the last period that was settled."""
        return self.progress.account.gpu_s

    @property
    def kept(self) -> float:
        """Useful samples that no fault can take back."""
        account = self.checkpoints.account if self.holding is None else self.progress.account
        return account.useful_samples

    @property
    def save_s(self) -> float:
        """Duration of writing a checkpoint (or reading one back)."""
        return self.checkpoints.save_s(self.config.nodes)

    @property
    def computed_gpu_s(self) -> float:
        """All its computing so far, whether it came to something or not."""
        return float(self.gpu_s[BUSY]) + self.undone_gpu_s

    @property
    def booked_until_s(self) -> float:
        """The end of the last period that was settled."""
        return self.ends.start_s

    @property
    def exchanges(self) -> int:
        """Gradient exchanges so far; a crash takes none back."""
        return self.progress.account.exchanges

    @property
    def traffic(self) -> tuple[int, int]:
        """Exchanges of all workers so far, and of near ones only; a crash takes none back."""
        account = self.progress.account
        return account.exchanges - account.near_exchanges, account.near_exchanges

    def on_links(self, since: tuple[int, int]) -> tuple[float, Ints, Floats]:
        """(bytes, links, bytes on each of these links) of the exchanges since those of `traffic`, as they are."""
        far, near = self.config.exchange, self.config.near
        volumes = [
            (now - then) * exchange.volume_bytes
            for now, then, exchange in zip(self.traffic, since, (far, near), strict=True)
        ]
        if not volumes[1]:
            return volumes[0], far.links, volumes[0] * far.usage
        links = np.concatenate((far.links, near.links))
        return sum(volumes), links, np.concatenate((volumes[0] * far.usage, volumes[1] * near.usage))

    def report_traffic(self) -> None:
        """Tell what exchanges have carried since this was last called; before the exchange changes."""
        volume, links, amounts = self.on_links(self._traffic_seen)
        self._traffic_seen = self.traffic
        self.exchanged_bytes += volume
        if volume:
            for tell in self.listeners.carried:
                tell(links, amounts)

    def fill_row(self, cells: Mapping[str, Any], factor: float) -> None:
        """Write what has been booked to its row of the jobs table; estimates are in its `duration_s` already."""
        row, progress = self.row, self.progress
        left = max(0.0, progress.target - progress.account.useful_samples)
        phi = progress.noise_scale
        for name, value in (
            ("progress", progress.ratio),
            ("remaining_samples", left),
            ("service_s", cells["duration_s"][row] * left / progress.target),
            ("sync_interval", progress.interval),
            ("far_every", progress.far_every),
            ("far_ratio", progress.far_ratio),
            ("global_batch", progress.global_batch),
            ("accumulation", progress.accumulation),
            ("attained_gpu_s", float(self.gpu_s[:HELD].sum())),
            ("input_bytes", left * (self.spec.data.sample_size if self.spec.data else 0.0)),
            ("compute_demand_flops", (self.model.flop_per_sample or 0.0) * left),
            ("noise_scale", math.nan if phi < 0 else phi),
        ):
            cells[name][row] = value

    def utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU it holds (GPUs held,), over the whole periods since this was last asked."""
        assert self.holding is not None
        self.meter_until_now()
        busy = self.measured.utilisation(now_s, self.ends.start_s)
        share: Floats = np.repeat(busy, self.config.gpus_per_worker) * self.holding.share
        return share

    # -- energy --------------------------------------------------------------------------------------------

    def meter_until_now(self) -> None:
        """Settle, and meter all that is booked."""
        self.advance.settle(self)
        self.meter_booked()

    def meter_booked(self) -> None:
        """Have the computing metered that is booked and was not metered before."""
        if self.meter.varies:
            busy_gpu_s = self.measured.take_busy_s() * self.config.busy_weight
            self.meter.computed(self.row, self.config.nodes, busy_gpu_s)

    def not_metered(self) -> tuple[Ints, Floats]:
        """(nodes, GPU-seconds of computing), (workers,) each, that are booked and not metered yet."""
        return self.config.nodes, self.measured.fresh_busy_s() * self.config.busy_weight

    def _meter_all(self, now_s: float) -> None:
        """As `meter_booked`, with the running period, which ends here and counts as computing."""
        self.meter_booked()
        partial_s = now_s - self.ends.start_s
        if self.meter.varies and partial_s > 0.0:
            self.meter.computed(self.row, self.config.nodes, partial_s * self.config.weight)

    # -- periods -------------------------------------------------------------------------------------------

    def next_period(self) -> Period:
        """Begin a period: how many steps, and who takes how many samples in each."""
        config, batch = self.config, self.progress.global_batch
        steps, last = min(self.progress.interval, self.progress.steps_to_target()), config.samples
        compute_s, input_s = config.compute_s, config.input_s
        if self.data is not None:
            if self.data.left == 0:
                self.data.next_epoch()
            left = self.data.left
            steps = min(steps, -(-left // batch))
            rest = left - (steps - 1) * batch
            if rest < batch:  # the last batch of an epoch deals what is left
                last = next_batch(rest, config.samples, self.spec.micro_batch)
                compute_s, input_s = config.step_s(last)
        first_step, self.steps_ever = self.steps_ever, self.steps_ever + steps
        period = Period(
            self.exchanges, self.ends.start_s, steps, first_step, config.samples, last,
            config.compute_s, config.input_s, compute_s, input_s, self.progress.far_next,
        )  # fmt: skip
        if self.data is not None and config.asynchronous:
            self._round = self.data.snapshot()
        elif self.data is not None:
            self.data.prepare(period.demand, config.seconds_per_sample())
        return period

    def end_period(self, period: Period, outcome: Outcome) -> None:
        """Book one finished period and find out when the next may begin."""
        self.ends.advance(outcome)
        demand = period.demand if outcome.samples is None else outcome.samples
        if self.data is not None and outcome.samples is None:
            self.data.consume(demand)
        self._round = None
        wait_s = outcome.arrival_s - outcome.finish_s
        gpu_s, weight = self.gpu_s, self.config.weight
        gpu_s[INPUT_STALL] += float(outcome.stall_s @ weight)
        gpu_s[BARRIER_WAIT] += float(wait_s @ weight)
        gpu_s[EXPOSED_COMMUNICATION] += (outcome.duration_s - outcome.arrival_s) * float(weight.sum())
        if outcome.exposed_s is not None:
            gpu_s[EXPOSED_COMMUNICATION] += float(outcome.exposed_s @ weight)
        busy_gpu_s = float(outcome.busy_s @ weight)
        if self.config.divided:
            bubble, inside = (
                float(outcome.busy_s @ part)
                for part in (self.config.bubble_weight, self.config.inside_weight)
            )
            gpu_s[PIPELINE_BUBBLE] += bubble
            gpu_s[TENSOR_EXCHANGE] += inside
            busy_gpu_s -= bubble + inside
        useful = self.progress.credit(period, busy_gpu_s, outcome.staleness, self.config.credit)
        self.measured.window.add(period, outcome, demand, wait_s, useful)

    def ask(self, asked: Pending, delay_rounds: int) -> None:
        """A plan asks for this: it acts when the running period ends, or `delay_rounds` steps from now.

        What is held so falls when the job is stopped or regrouped.
        """
        if delay_rounds and self.runs:
            self.asked.held.append((self.progress.account.steps + delay_rounds, asked))
        else:
            self.asked.pending = self.asked.pending.then(asked)

    def apply_pending(self) -> list[tuple[str, str]]:
        """Apply what plans asked for and what is due; returns (what, why) of what was refused."""
        pending, refused = self.asked.take(self.progress.account.steps), []
        if pending.samples is not None:
            self.config.set_samples(pending.samples)
        if pending.global_batch is not None:
            self.progress.global_batch = pending.global_batch
            self.config.set_batch(pending.global_batch)
        if pending.accumulation is not None:
            self.progress.accumulation = pending.accumulation
            self.config.set_accumulation(pending.accumulation)
        if pending.interval is not None:
            self.progress.interval = pending.interval
        if pending.far_every is not None:
            self.progress.far_every = pending.far_every if self.config.near.happens else 1
            self.config.stale = True  # other links may be in use from now on
        if self.data is not None:
            for piece, worker in pending.moves:
                why = self.data.move(piece, worker)
                if why:
                    refused.append((f"move of shard piece {piece} of job {self.name}", why))
            if pending.order:
                self.data.reorder(pending.order)
        if pending.weight is not None:
            self.config.set_gradient_weight(pending.weight)
        if pending.share is not None and not self._set_share(pending.share):
            refused.append((f"share of job {self.name}", "the GPU has no room for it any more"))
        return refused

    def _set_share(self, by_worker: Floats) -> bool:
        """Take another share of its GPUs; False: another job has come since this was decided."""
        share = np.repeat(by_worker, self.config.gpus_per_worker)
        if not self.cluster.has_room(self.row, share):
            return False
        self.meter_booked()  # at the share it had
        moved = np.abs(by_worker - self.config.share) > 0.01
        if self.cluster.gpus.mig[self.config.gpu[moved]].any():  # a slice is made anew without its process
            self._pause(self.initialisation_s + 2.0 * self.save_s)
        self.measured.open_window(self.ends.start_s)
        self.config.set_share(by_worker)
        self.cluster.set_share(self.row, share)
        return True

    # -- checkpoints ---------------------------------------------------------------------------------------

    def checkpoint_due_s(self) -> float:
        """When the next checkpoint is due, counted from the last."""
        return self.checkpoints.last_s + self.checkpoints.interval_s(self.config.nodes)

    def checkpoint_if_due(self, now_s: float) -> None:
        """Begin to write a checkpoint before the next period, when one is due."""
        interval_s = self.checkpoints.interval_s(self.config.nodes)
        if self.ends.start_s - self.checkpoints.last_s < interval_s:
            return
        for tell in self.listeners.checkpointing:
            tell(self, now_s)
        self._pause(self.save_s)
        self.checkpoints.begin(self._state(), self.ends.start_s)

    def checkpoint_written(self, now_s: float) -> None:
        """A checkpoint that was being written is complete: what it holds can no longer be lost."""
        if self.checkpoints.complete():
            for tell in self.listeners.checkpointed:
                tell(self, now_s)

    def _pause(self, seconds: float) -> None:
        """The next period begins so much later."""
        self._charge(RESTART, seconds)
        self.ends.resume_at(self.ends.start_s + seconds)

    def _state(self) -> State:
        return self.progress.account.copy(), self.data.snapshot() if self.data is not None else None

    def _roll_back(self) -> None:
        saved = self.checkpoints.account
        self.undone_gpu_s += float(self.gpu_s[BUSY] - saved.gpu_s[BUSY])
        self.progress.account = self.progress.account.back_to(saved)

    def _charge(self, use: int, seconds: float) -> None:
        """Book `seconds` of all held GPUs."""
        self.gpu_s[use] += seconds * float(self.config.weight.sum())

    def _end_partial(self, now_s: float, use: int) -> None:
        """Book the running period's time, or take back what a restart or checkpoint has not used."""
        if self._round is not None and self.data is not None:  # give back what an unfinished round has read
            self.data.restore(self._round, self.config.nodes.tolist())
        self._round = None
        partial_s = now_s - self.ends.start_s
        self._charge(RESTART if partial_s < 0.0 else use, partial_s)
        if partial_s > 0.0 and use != BUSY:
            self.undone_gpu_s += partial_s * float(self.config.weight.sum())
