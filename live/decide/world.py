"""The live side of the seam: `observe` fills the tables, `apply` turns a plan into a `RoundChange`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.live.data.movement import DataView
from equipoise.live.decide.window import Telemetry
from equipoise.live.group.places import RankPlace
from equipoise.live.options import Lever, Options
from equipoise.live.train.change import RoundChange
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.sync import Near
from equipoise.policies.contract import Allocation, Plan, Refusal
from equipoise.policies.levels import mean_interval
from equipoise.policies.observation import (
    Floats,
    Gpus,
    Ints,
    Jobs,
    JobState,
    Nodes,
    Observation,
    Shards,
    Speeds,
    Workers,
)
from equipoise.policies.physics import deal, efficiency, rate_worth
from equipoise.policies.rate_rules import RULES

UNBOUNDED = 2**62


class LiveWorld:
    """Rank 0's view of the job. Rows of workers are ranks."""

    def __init__(self, options: Options, places: Sequence[RankPlace]) -> None:
        """`places` by rank."""
        self.options, self.active = options, list(places)
        self.refused: list[Refusal] = []  # since the last observation, from earlier plans
        self.started_s = time.perf_counter()
        self.samples_done = 0
        self.gpu_s = 0.0
        self.interval, self.batch = 1, options.global_batch
        self.rate = 1.0  # factor on the script's learning rate
        self.rate_rule = RULES.index(options.learning_rate or "adascale")
        self.far_every = 1  # intra-node exchanges per exchange of all ranks
        self.near: Ints | None = None  # intra-node group by rank, if there are two levels
        self.far_ratio, self.near_exchange_s = 1.0, math.nan  # drift left by intra-node exchanges; seconds of one
        self.drift = options.assumed_drift
        self.deal: EpochSplit | None = None
        self.data: DataView | None = None  # if the data lies in files
        self.shares: Ints = np.empty(0, dtype=np.int64)
        self.change = RoundChange(0)
        self._last_s = 0.0
        self._pieces: list[int] = []  # ids of the shards last observed
        self._exchange_s = self._exchange_alone_s = math.nan
        self.shares_of_gpu: Floats = np.array([place.share for place in self.active], dtype=np.float64)
        self.telemetry = Telemetry.unknown(len(places))
        self._hosts = list(dict.fromkeys(place.host for place in places))
        devices = dict.fromkeys((place.host, place.device) for place in places)
        self._devices = sorted(devices, key=lambda key: (self._hosts.index(key[0]), list(devices).index(key)))
        self._models = list(dict.fromkeys(place.model for place in places))

    def set_near(self, near: Near | None, exchange_s: float) -> None:
        """Set the intra-node groups of the present group, and the measured time of an intra-node exchange."""
        self.near = None if near is None else np.array(near.group)
        self.far_ratio = 1.0 if near is None else near.ratio
        self.near_exchange_s = math.nan if near is None else exchange_s

    def forget(self) -> None:
        """Discard all measurements and observations."""
        self.telemetry = Telemetry.unknown(len(self.active))
        self._exchange_s = self._exchange_alone_s = math.nan
        self._last_s = self.now_s()

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started_s

    # -- observe -------------------------------------------------------------------------------------------

    def observe(self) -> Observation:
        """The present tables."""
        now = self.now_s()
        window_s = now - self._last_s
        self._last_s = now
        seen = self.telemetry.window
        if seen.exchanges:
            self._exchange_s = seen.exchange_s
            self._exchange_alone_s = np.fmin(self._exchange_alone_s, seen.exchange_s)
        if math.isfinite(seen.near_exchange_s):
            self.near_exchange_s = seen.near_exchange_s
        gpus, refused, measured = self._gpus(), tuple(self.refused), self._measured()
        self.refused.clear()
        observation = Observation.of(
            now,
            window_s,
            nodes=self._nodes(gpus),
            gpus=gpus,
            jobs=self._jobs(now),
            workers=self._workers(measured),
            shards=self._shards(measured),
            gpu_models=tuple(self._models),
            speeds=self._speeds(gpus),
            paths=None if self.data is None else self.data.paths(self._hosts),
        )
        return replace(observation, refused=refused)

    def _device_row(self, place: RankPlace) -> int:
        return self._devices.index((place.host, place.device))

    def _gpus(self) -> Gpus:
        held: dict[int, list[float]] = {}
        for rank, place in enumerate(self.active):
            held.setdefault(self._device_row(place), []).append(float(self.shares_of_gpu[rank]))
        first = {row: place for place in reversed(self.active) for row in [self._device_row(place)]}
        rows = range(len(self._devices))
        shared = {row: len(parts) > 1 or parts[0] < 1.0 for row, parts in held.items()}
        columns: dict[str, Any] = {
            "node": [self._hosts.index(host) for host, _ in self._devices],
            "model": [self._models.index(first[row].model) for row in rows],
            "job": [(-2 if shared[row] else 0) if row in held else -1 for row in rows],
            "memory_bytes": [first[row].memory_bytes for row in rows],
            "share_free": [max(0.0, 1.0 - math.fsum(held.get(row, ()))) for row in rows],
            "share_quantum": [first[row].share_quantum for row in rows],
        }
        for name, by_rank in (self.telemetry.gpu or {}).items():
            values = np.full(len(self._devices), math.nan)
            for rank, place in enumerate(self.active):
                values[self._device_row(place)] = by_rank[rank]
            columns[name] = values
        return Gpus.of(**columns)

    def _nodes(self, gpus: Gpus) -> Nodes:
        count = np.bincount(gpus.node, minlength=len(self._hosts))
        free = np.bincount(gpus.node[gpus.job == -1], minlength=len(self._hosts))
        cores = [max(p.cores for p in self.active if p.host == host) for host in self._hosts]
        if self.data is not None:  # add its stores
            none = np.zeros(self.data.stores, dtype=np.int64)
            count, free, cores = np.append(count, none), np.append(free, none), [*cores, *(none * math.nan)]
        return Nodes.of(gpus=count, first_gpu=np.cumsum(count) - count, gpus_free=free, cores=cores)

    def _measured(self) -> dict[str, Floats]:
        """Columns of workers that the last window measured, by rank."""
        window = self.telemetry.window
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = {
                "capacity_samples_per_s": window.capacity(),
                "step_s": window.step_s,
                "step_cov": window.step_cov,
                "response_s_per_sample": window.response_s_per_sample,
                "gradient_rate_per_s": 1.0 / window.step_s,
            }
        if self.data is not None and window.rounds:
            queues = self.deal.queues() if self.deal is not None else [()] * len(self.active)
            part = self.shares * (self._left_of_epoch() / self.shares.sum())
            supply = [
                self.data.reading_samples_per_s(rank, self.active[rank].host, queue, float(part[rank]))
                for rank, queue in enumerate(queues)
            ]
            columns |= self.data.worker_columns(
                window.samples,
                window.step_s * window.rounds,
                window.stall_s * window.rounds,
                window.rounds,
                np.array(supply),
            ) | {"step_cov": window.computing_cov}
        return columns

    def _workers(self, measured: Mapping[str, Floats]) -> Workers:
        seen, ranks = self.telemetry, len(self.active)
        window = seen.window
        owned = self.deal.owned.astype(np.float64) if self.deal is not None else np.full(ranks, math.nan)
        return Workers.of(
            job=np.zeros(ranks, dtype=np.int64),
            index=[place.member for place in self.active],
            gpu=[self._device_row(place) for place in self.active],
            node=[self._hosts.index(place.host) for place in self.active],
            gpu_share=self.shares_of_gpu,
            samples_per_step=self.shares,
            samples_max=self._limit(),
            samples_owned=owned,
            fixed_s=np.nan_to_num(window.fixed_s),
            wait_s=window.wait_s,
            input_stall_s=window.stall_s,
            gradient_norm=seen.gradient_norm,
            memory_free_bytes=seen.memory_free_bytes,
            **measured,
        )

    def _speeds(self, gpus: Gpus) -> Speeds:
        """Speeds measured on the job's GPUs, if the global batch may change."""
        slowest_s = float(np.fmax.reduce(self.telemetry.window.step_s, initial=0.0))
        mine = np.flatnonzero(gpus.job == 0)
        if self.options.batch_max is None or not slowest_s or len(mine) != len(self.active):
            return Speeds()
        return Speeds.of(
            job=[0],
            gpu_model=[int(gpus.model[mine[0]])],
            gpus=[len(mine)],
            samples_per_s=[self.batch / slowest_s],
            exchange_s=[self._exchange_alone_s],
            apart_exchange_s=[self._exchange_alone_s],
        )

    def _limit(self) -> Ints:
        """Largest samples per round of each rank, (ranks,)."""
        most, bound = self.telemetry.samples_max, self.options.bounds.samples_max or UNBOUNDED
        known = np.where(np.isfinite(most), most, UNBOUNDED)
        return np.minimum(np.minimum(known, bound), UNBOUNDED).astype(np.int64)

    def _jobs(self, now: float) -> Jobs:
        options, window = self.options, self.telemetry.window
        members = len(self.active)
        reference = options.batch_reference or options.global_batch
        target = options.samples_target or 0
        left = max(0, target - self.samples_done) if target else self._left_of_epoch()
        throughput = window.throughput()
        learning = efficiency(
            float(self.batch),
            mean_interval(self.interval, self.far_every, self.far_ratio),
            self.telemetry.noise_scale,
            float(reference),
            self.drift,
        ) * rate_worth(
            self.rate, float(self.batch), float(options.global_batch), self.telemetry.noise_scale, self.rate_rule
        )
        work_s = float(np.nanmean(window.step_s)) if np.isfinite(window.step_s).any() else math.nan
        return Jobs.of(
            id=[0],
            arrival_s=[0.0],
            state=[int(JobState.RUNNING)],
            gpus_requested=[members],
            gpus_held=[members],
            workers_min=[members],
            workers_max=[members],
            global_batch=[self.batch],
            batch_max=[options.batch_max or 0],
            batch_reference=[reference],
            batch_given=[options.global_batch],
            learning_rate=[self.rate],
            rate_rule=[self.rate_rule],
            micro_batch=[options.micro_batch],
            accumulation=[0],
            sync_interval=[self.interval],
            work_s=[work_s],
            far_every=[self.far_every],
            far_ratio=[self.far_ratio],
            near_exchange_s=[self.near_exchange_s],
            far_exchange_s=[self._exchange_s],
            exchange_s=[self._exchange_s],
            exchange_alone_s=[self._exchange_alone_s],
            drift=[self.drift],
            noise_scale=[self.telemetry.noise_scale],
            throughput_samples_per_s=[throughput],
            goodput_samples_per_s=[throughput * learning],
            progress=[min(1.0, self.samples_done / target) if target else 0.0],
            remaining_samples=[float(left)],
            duration_s=[(self.samples_done + left) / throughput if throughput > 0 else math.nan],
            service_s=[left / throughput if throughput > 0 else math.nan],
            attained_gpu_s=[self.gpu_s],
            queued_since_s=[0.0],
            started_s=[0.0],
            restart_s=[0.0],
        )

    def _left_of_epoch(self) -> int:
        return self.deal.left if self.deal is not None else 0

    def _shards(self, measured: Mapping[str, Floats]) -> Shards:
        self._pieces = []
        if self.deal is None:
            return Shards()
        data, queues = self.data, self.deal.queues()
        # Known waits for shards are not counted: they end once shards arrive in time.
        with np.errstate(divide="ignore", invalid="ignore"):
            pace = measured["response_s_per_sample"]
            if data is not None and self.telemetry.window.rounds:
                pace = measured["step_s"] * self.telemetry.window.rounds / self.telemetry.window.samples
        rows: list[tuple[Any, ...]] = []
        for rank in range(len(self.active)):
            ahead, node, each_s = 0, self._hosts.index(self.active[rank].host), float(pace[rank])
            for piece in queues[rank]:
                started, local, size = self.deal.begun(piece), True, piece.left * self.options.sample_bytes
                if data is not None:
                    started = started or data.is_on_its_way(rank, piece.shard)
                    local = data.is_local(rank, piece.shard)
                    node, size = len(self._hosts) + int(data.store[piece.shard]), data.left_bytes(rank, piece)
                needed_s = ahead * each_s if ahead else 0.0
                rows.append((piece.id, rank, node, piece.left, size, started, local, needed_s))
                ahead += piece.left
        self._pieces = [row[0] for row in rows]
        columns = zip(*rows, strict=True) if rows else [()] * 8
        names = ("id", "worker", "node", "samples", "bytes", "started", "local", "needed_in_s")
        return Shards.of(job=np.zeros(len(rows)), **dict(zip(names, columns, strict=True)))

    # -- apply ---------------------------------------------------------------------------------------------

    def apply(self, plan: Plan) -> list[Refusal]:
        """Turn a feasible plan for the tables last observed into `self.change`; returns the refused parts."""
        self.change = RoundChange(self.telemetry.first_free_round)
        refused: list[Refusal] = []
        samples = plan.samples_per_step
        if plan.gradient_weight is not None and (plan.gradient_weight != 1.0).any():
            refused.append(Refusal("gradient_weight", "a live job cannot leave out a rank's gradient"))
            if samples is not None:
                refused.append(Refusal("samples", "split so as to leave out a rank's gradient"))
            samples = None
        if samples is not None:
            self._apply_samples(samples, refused)
        self._apply_batch(plan, samples, refused)
        pieces = self._pieces
        if plan.suspect is not None and plan.suspect.any():
            rows = ", ".join(str(k) for k in np.flatnonzero(plan.suspect))
            refused.append(Refusal("suspect", f"a live job cannot replace a GPU; check that of row {rows}"))
        if plan.moves is not None and self._allowed("moves", refused):
            pairs = zip(plan.moves.shard.tolist(), plan.moves.worker.tolist(), strict=True)
            moves = tuple((pieces[shard], worker) for shard, worker in pairs)
            self.change = replace(self.change, moves=moves)
        if plan.fetch_order is not None and self._allowed("order", refused):
            self.change = replace(self.change, order=tuple(pieces[k] for k in plan.fetch_order.tolist()))
        if plan.sync_interval is not None:
            self._apply_interval(int(plan.sync_interval[0]), refused)
        if plan.far_every is not None:
            self._apply_levels(int(plan.far_every[0]), refused)
        if plan.power_cap_w is not None:
            refused.append(Refusal("power", "a live job caps no GPU"))
        if plan.gpu_share is not None:
            self._apply_share(plan.gpu_share, refused)
        if plan.allocation is not None:
            self._apply_allocation(plan.allocation, refused)
        return refused

    def _allowed(self, lever: Lever, refused: list[Refusal]) -> bool:
        if self.options.mode != "act":
            refused.append(Refusal(lever, f"advice only: mode is {self.options.mode}"))
        elif lever not in self.options.allow:
            refused.append(Refusal(lever, "advice only: not in allow when the policy was attached"))
        else:
            return True
        return False

    def _apply_samples(self, samples: Ints, refused: list[Refusal]) -> None:
        if self._allowed("samples", refused):
            self.change = replace(self.change, shares=tuple(self._raised(samples).tolist()))

    def _raised(self, samples: Ints) -> Ints:
        """Samples with at least `bounds.samples_min` for each rank, which the ranks with most give up."""
        unit = self.options.micro_batch
        least = -(-self.options.bounds.samples_min // unit) * unit
        samples = samples.copy()
        if least * len(samples) <= samples.sum() and self.data is None:  # a rank may have no more files to read
            for rank in np.flatnonzero(samples < least):
                while samples[rank] < least:
                    samples[int(np.argmax(samples))] -= unit
                    samples[rank] += unit
        return samples

    def _apply_batch(self, plan: Plan, samples: Ints | None, refused: list[Refusal]) -> None:
        """Apply a new global batch and its rate, split in the planned proportions, otherwise in the present ones."""
        batch = self.batch if plan.global_batch is None else int(plan.global_batch[0])
        rate = self.rate if plan.learning_rate is None else float(plan.learning_rate[0])
        if batch == self.batch:
            if rate != self.rate and self._allowed("batch", refused):
                self.change = replace(self.change, learning_rate=rate)
            return
        dealt = self.shares if samples is None else samples
        shares = self._raised(deal(batch, dealt, self.options.micro_batch))
        if (shares > self._limit()).any():
            refused.append(Refusal("batch", f"{batch} gives a rank more samples than allowed"))
        elif self._allowed("batch", refused):
            by_rank = tuple(shares.tolist())
            changed = None if rate == self.rate else rate
            self.change = replace(self.change, shares=by_rank, global_batch=batch, learning_rate=changed)

    def _apply_interval(self, interval: int, refused: list[Refusal]) -> None:
        most = self.options.bounds.interval_max
        if interval > most:
            refused.append(Refusal("interval", f"{interval} is above the bound of {most}"))
        elif interval != self.interval and self._allowed("interval", refused):
            self.change = replace(self.change, interval=interval)

    def _apply_levels(self, far_every: int, refused: list[Refusal]) -> None:
        interval = self.interval if self.change.interval is None else self.change.interval
        most = self.options.bounds.interval_max
        if interval * far_every > most and far_every > 1:
            steps = f"{interval * far_every} steps per exchange of all ranks"
            refused.append(Refusal("interval", f"{steps} are above the bound of {most}"))
        elif far_every != self.far_every and self._allowed("interval", refused):
            self.change = replace(self.change, far_every=far_every)

    def _apply_share(self, share: Floats, refused: list[Refusal]) -> None:
        least = self.options.bounds.share_min
        if (share < least).any():
            refused.append(Refusal("share", f"{float(share.min()):.4g} is under the bound of {least}"))
        elif self._allowed("share", refused):
            self.change = replace(self.change, gpu_share=tuple(share.tolist()))

    def _apply_allocation(self, allocation: Allocation, refused: list[Refusal]) -> None:
        held = sorted({self._device_row(place) for place in self.active})
        wanted = sorted(allocation.gpus_of(0).tolist()) if len(allocation.job) else held
        if wanted != held:
            refused.append(
                Refusal("resize", "ranks stay as started; restart the job on other GPUs, from its checkpoint")
            )
