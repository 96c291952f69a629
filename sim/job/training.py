"""A training job as seen from outside: start, stop, regroup after a fault, close.

What it is stands in `job.state`, how its rounds begin and end in `job.rounds`. How a period's events unfold is
the business of `advance.event_by_event` and of what is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from equipoise.policies.observation import Bools, Floats, Ints
from equipoise.sim.cluster.cluster import Cluster, Holding
from equipoise.sim.cost.measured import step_cov
from equipoise.sim.job.account import BUSY, LOST_TO_FAULTS, RESTART
from equipoise.sim.job.dataset import JobData, Snapshot
from equipoise.sim.job.listener import Listeners
from equipoise.sim.job.pending import Asked
from equipoise.sim.job.state import PowerMeter, TrainingState
from equipoise.sim.randomness import step_noise
from equipoise.sim.scenario.model import Data, JobSpec, Model, Noise, Restart


class Advance(Protocol):
    """The interface of a time advance."""

    def begin(self, job: TrainingJob) -> None:
        """Run a job that was started or regrouped."""

    def halt(self, job: TrainingJob) -> None:
        """The job stops at once."""

    def settle(self, job: TrainingJob, *, before: bool = False) -> None:
        """Book all periods that have ended by now (`before`: strictly before now)."""

    def reconfigure(self, job: TrainingJob) -> None:
        """Note that the cost of a step has changed, from the next period on."""


class TrainingJob(TrainingState):
    """A data-parallel training job in the simulator; one kind of `Job`."""

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
        drawn_as: str,
        seed: int,
        noise: Noise,
        mtbf_s: Callable[[Ints], float],
        restart: Restart,
    ) -> None:
        super().__init__(
            row,
            name,
            spec,
            model,
            cluster,
            meter,
            listeners,
            load,
            drawn_as=drawn_as,
            seed=seed,
            noise=noise,
            mtbf_s=mtbf_s,
            restart=restart,
        )
        self.advance = advance

    def start(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Take GPUs and start or continue `delay_s` from now, from the last checkpoint when there is one."""
        if self.data is None and self.spec.data is not None:
            self.data = self.load(self.spec.data, holding.nodes.tolist())
        self._place(holding, self.checkpoints.data)
        self._go_on(now_s, delay_s)
        self.checkpoints.last_s = self.ends.start_s
        self.advance.begin(self)

    def _place(self, holding: Holding, saved: Snapshot | None) -> None:
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
            if saved is not None:
                self.data.restore(saved, nodes)
            else:
                self.data.assign(nodes)

    def _go_on(self, now_s: float, delay_s: float) -> None:
        begun_s = now_s + delay_s
        self.ends.resume_at(begun_s)
        self.measured.place(self.config.workers, now_s, begun_s)
        self.charge(RESTART, delay_s)
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
            self.checkpoints.save(self.saved_state())
        self.checkpoints.drop()
        if self.data is not None:
            self.data.release()
        self.report_traffic()
        self.asked = Asked()
        self._leave()
        self.holding = None
        return save_s

    def _halt(self, now_s: float, *, before: bool) -> None:
        """Cancel everything in progress, and meter the computing done."""
        self.advance.settle(self, before=before)
        self.advance.halt(self)
        self.meter_all(now_s)
        self.generation += 1

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

    @property
    def elastic(self) -> TrainingJob | None:
        """The job itself if it can continue with fewer GPUs after a node failure, else None."""
        return self if self.spec.on_worker_loss == "regroup" else None

    def survivors(self, lost: Bools) -> Bools | None:
        """Which of its GPUs remain usable without the `lost` ones; None: too few workers would be left."""
        per = self.config.gpus_per_worker
        alive = ~lost.reshape(-1, per).any(axis=1)  # a worker over several nodes needs them all
        return np.repeat(alive, per) if alive.sum() >= self.config.fewest else None

    def cut(self, now_s: float) -> None:
        """Drop the running period after some workers were lost; `regroup` follows."""
        self._halt(now_s, before=True)
        self.report_traffic()
        self.checkpoints.drop()
        self._end_partial(now_s, LOST_TO_FAULTS)
        self._leave()

    def regroup(self, holding: Holding, now_s: float, delay_s: float) -> None:
        """Continue with the remaining workers."""
        self.asked = Asked()
        self._place(holding, None)
        self._go_on(now_s, delay_s)
        self.advance.begin(self)

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
