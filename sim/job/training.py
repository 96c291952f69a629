"""A training job: its parts, GPUs and accounts; start, stop and close.

How its rounds begin and end stands in `job.rounds`. How a period's events unfold is the business of
`advance.event_by_event` and of what is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from equipoise.policies.observation import Floats, Ints
from equipoise.sim.cluster.cluster import Cluster
from equipoise.sim.cluster.holding import Holding
from equipoise.sim.cluster.meter import Meter
from equipoise.sim.cost.configuration import Configuration
from equipoise.sim.cost.measured import step_cov
from equipoise.sim.job.account import BUSY, HELD, LOST_TO_FAULTS, RESTART
from equipoise.sim.job.checkpoints import Checkpoints, State
from equipoise.sim.job.dataset import JobData, Snapshot
from equipoise.sim.job.listener import Listeners
from equipoise.sim.job.measurements import Measurements
from equipoise.sim.job.pending import Asked
from equipoise.sim.job.period import Ends
from equipoise.sim.job.progress import Progress
from equipoise.sim.randomness import noise_key, step_noise
from equipoise.sim.scenario.model import Data, JobSpec, Model, Noise, Restart


class Advance(Protocol):
    """The interface of a time advance."""

    def begin(self, job: TrainingJob) -> None:
        """Run a job that was started."""

    def halt(self, job: TrainingJob) -> None:
        """The job stops at once."""

    def settle(self, job: TrainingJob, *, before: bool = False) -> None:
        """Book all periods that have ended by now (`before`: strictly before now)."""

    def reconfigure(self, job: TrainingJob) -> None:
        """Note that the cost of a step has changed, from the next period on."""


class TrainingJob:
    """A data-parallel training job in the simulator; one kind of `Job`. Its periods begin and end in `job.rounds`."""

    rigid = False

    def __init__(
        self,
        row: int,
        name: str,
        spec: JobSpec,
        model: Model,
        cluster: Cluster,
        advance: Advance,
        meter: Meter,
        listeners: Listeners,
        load: Callable[[Data, list[int]], JobData],
        *,
        drawn_as: str,
        seed: int,
        noise: Noise,
        mtbf_s: Callable[[Ints], float],
        restart: Restart,
    ) -> None:
        self.row, self.name, self.spec, self.model, self.cluster = row, name, spec, model, cluster
        self.advance, self.meter, self.listeners, self.load = advance, meter, listeners, load
        self.initialisation_s = restart.initialisation
        self.step_key = noise_key(seed, f"step:{drawn_as}")
        self.norm_key = noise_key(seed, f"norm:{drawn_as}")
        self.noise = noise
        self.config = Configuration(row, spec, model, cluster)
        self.progress = Progress(spec, model, asynchronous=self.config.asynchronous)
        self.checkpoints = Checkpoints(spec.checkpoint, model, cluster, mtbf_s, restart)
        self.checkpoints.place(np.arange(min(len(cluster.nodes), math.ceil(spec.gpus / cluster.node_gpus))))
        self.measured, self.ends, self.asked = Measurements(), Ends(), Asked()
        self.data: JobData | None = None
        self.homes_before_start: list[list[int]] | None = None  # where its data lies; None: not known
        self.holding: Holding | None = None
        self.steps_ever = 0  # local steps begun, never rewound: the noise counter
        self.steps_of: dict[int, int] = {}  # the same by worker, of an asynchronous job
        self.pushed = 0.0  # pushes of an asynchronous job, mean over its workers; a crash takes none back
        self.round: Snapshot | None = None  # data as an asynchronous round began
        self.generation = 0  # raised by every stop: what was under way before is void
        self.undone_gpu_s = 0.0  # computing that counts as lost or as restart
        self.exchanged_bytes = 0.0
        self._traffic_seen: tuple[float, int] = (0, 0)

    @property
    def runs(self) -> bool:
        """Whether it holds GPUs and is not done."""
        return self.holding is not None and not self.progress.done

    # -- start and stop --------------------------------------------------------------------------------------

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and start or continue `delay_s` from now, from the last checkpoint when there is one."""
        if self.data is None and self.spec.data is not None:
            self.data = self.load(self.spec.data, holding.nodes.tolist())
        self._place(holding)
        begun_s = now_s + delay_s
        self.ends.resume_at(begun_s)
        self.measured.place(self.config.workers, now_s, begun_s)
        self.charge(RESTART, delay_s)
        self.config.work_out()
        self.checkpoints.last_s = self.ends.start_s
        self.advance.begin(self)

    def _place(self, holding: Holding) -> None:
        self.holding = holding
        self.config.place(holding)
        self.checkpoints.place(holding.nodes)
        self.progress.place(self.config.far_ratio)
        said = self.noise
        self.step_noise = step_noise(
            self.step_key,
            step_cov(said, self.model, self.config.accelerator),
            said.lasting_share,
            said.lasting_steps,
            said.common_share,
            said.tail_chance,
            said.tail_factor,
        )
        np.add.at(self.cluster.workers, self.config.nodes, 1)
        if self.data is not None:
            nodes = self.config.nodes.tolist()
            if self.checkpoints.data is not None:
                self.data.restore(self.checkpoints.data, nodes)
            else:
                self.data.assign(nodes)

    def stop(self, now_s: float, *, lost: bool) -> float:
        """Stop at once. `lost`: back to the last checkpoint (crash); else what is trained is saved.

        The running period, or the part of a restart that was under way, goes to the account of what caused it.
        Returns the time to read the checkpoint back, and to write it first when nothing is lost (s).
        """
        self.advance.settle(self, before=lost)
        self.advance.halt(self)
        self.meter_all(now_s)
        self.generation += 1
        save_s = self.save_s * (1 if lost else 2)
        self._end_partial(now_s, LOST_TO_FAULTS if lost else RESTART)
        if lost:
            self._roll_back()
        else:
            self.checkpoints.save(self.saved_state())
        self.checkpoints.drop()
        if self.data is not None:
            self.data.release()
        self.report_traffic()
        self.asked = Asked()
        self._leave()
        self.holding = None
        return save_s

    def finish(self) -> None:
        """Finish the job."""
        self.advance.halt(self)
        self.generation += 1
        if self.data is not None:
            self.data.release()
        self.meter_booked()
        self.report_traffic()
        self._leave()

    def _leave(self) -> None:
        """Release its workers' shares of their nodes' cores and disks."""
        np.subtract.at(self.cluster.workers, self.config.nodes, 1)

    def close(self, now_s: float) -> None:
        """Close the job at the end of the run; the time of an unfinished period counts as computing without result."""
        self.advance.settle(self)
        self.report_traffic()
        self.meter_all(now_s)
        self._end_partial(now_s, BUSY)

    def speed_changed(self) -> None:
        """Note a new speed, from the next period on."""
        self.advance.reconfigure(self)

    def utilisation(self, now_s: float) -> Floats:
        """Busy share of each GPU it holds (GPUs held,), over the whole periods since the last call."""
        assert self.holding is not None
        self.meter_until_now()
        busy = self.measured.utilisation(now_s, self.ends.start_s)
        share: Floats = np.repeat(busy, self.config.gpus_per_worker) * self.holding.share
        return share

    def meter_until_now(self) -> None:
        """Settle, and meter all that is booked."""
        self.advance.settle(self)
        self.meter_booked()

    def _roll_back(self) -> None:
        saved = self.checkpoints.account
        self.undone_gpu_s += float(self.gpu_s[BUSY] - saved.gpu_s[BUSY])
        self.progress.account = self.progress.account.back_to(saved)

    def _end_partial(self, now_s: float, use: int) -> None:
        """Book the running period's time, or refund the unused time of a restart or checkpoint."""
        if self.round is not None and self.data is not None:  # give back what an unfinished round has read
            self.data.restore(self.round, self.config.nodes.tolist())
        self.round = None
        partial_s = now_s - self.ends.start_s
        self.charge(RESTART if partial_s < 0.0 else use, partial_s)
        if partial_s > 0.0 and use != BUSY:
            self.undone_gpu_s += partial_s * float(self.config.weight.sum())

    # -- accounts ------------------------------------------------------------------------------------------

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
        return self.checkpoints.save_s

    notice_s = save_s

    @property
    def computed_gpu_s(self) -> float:
        """All its computing so far, including lost work."""
        return float(self.gpu_s[BUSY]) + self.undone_gpu_s

    @property
    def booked_until_s(self) -> float:
        """The end of the last period that was settled."""
        return self.ends.start_s

    def charge(self, use: int, seconds: float) -> None:
        """Book `seconds` of all held GPUs."""
        self.gpu_s[use] += seconds * float(self.config.weight.sum())

    def pause(self, seconds: float) -> None:
        """Delay the next period."""
        self.charge(RESTART, seconds)
        self.ends.resume_at(self.ends.start_s + seconds)

    def saved_state(self) -> State:
        """The state that a checkpoint begun now would hold."""
        return self.progress.account.copy(), self.data.snapshot() if self.data is not None else None

    def fill_row(self, cells: Mapping[str, Any], factor: float) -> None:
        """Write the booked values to its row of the jobs table; estimates are in its `duration_s` already."""
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
            ("learning_rate", progress.learning_rate),
            ("accumulation", progress.accumulation),
            ("attained_gpu_s", float(self.gpu_s[:HELD].sum())),
            ("input_bytes", left * (self.spec.data.sample_size if self.spec.data else 0.0)),
            ("compute_demand_flops", (self.model.flop_per_sample or 0.0) * left),
            ("noise_scale", math.nan if phi < 0 else phi),
        ):
            cells[name][row] = value

    # -- exchanges -----------------------------------------------------------------------------------------

    @property
    def exchanges(self) -> int:
        """Gradient exchanges so far; a crash takes none back."""
        return self.progress.account.exchanges

    @property
    def traffic(self) -> tuple[float, int]:
        """Number of exchanges of all workers, and of near workers only; a crash takes none back.

        All workers' pushes are one where they do not wait for each other.
        """
        account = self.progress.account
        if self.config.asynchronous:
            return self.pushed, 0
        return account.exchanges - account.near_exchanges, account.near_exchanges

    def on_links(self, since: tuple[float, int]) -> tuple[float, Ints, Floats]:
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
        """Report the traffic of exchanges since the last call; call it before the exchange changes."""
        volume, links, amounts = self.on_links(self._traffic_seen)
        self._traffic_seen = self.traffic
        self.exchanged_bytes += volume
        if volume:
            for tell in self.listeners.carried:
                tell(self.row, links, amounts)

    # -- energy --------------------------------------------------------------------------------------------

    def meter_booked(self) -> None:
        """Meter the booked computing that was not metered before."""
        if self.meter.varies:
            busy_gpu_s = self.measured.take_busy_s() * self.config.busy_weight
            self.meter.computed(self.row, *self._by_gpu(busy_gpu_s))

    def not_metered(self) -> tuple[Ints, Floats]:
        """(nodes, GPU-seconds of computing), (GPUs held,) each, that are booked and not metered yet."""
        return self._by_gpu(self.measured.fresh_busy_s() * self.config.busy_weight)

    def _by_gpu(self, gpu_s: Floats) -> tuple[Ints, Floats]:
        """(nodes, GPU-seconds) of each GPU it holds, from those of the workers: a worker's GPUs compute alike."""
        per = self.config.gpus_per_worker
        return self.config.gpu_nodes, np.repeat(gpu_s / per, per)

    def meter_all(self, now_s: float) -> None:
        """As `meter_booked`, with the running period, which ends here and counts as computing."""
        self.meter_booked()
        partial_s = now_s - self.ends.start_s
        if self.meter.varies and partial_s > 0.0:
            self.meter.computed(self.row, *self._by_gpu(partial_s * self.config.weight))
