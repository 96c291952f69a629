"""Rank 0's part in a decision: from the reports of all ranks to the change."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from equipoise.base.metrics_server import MetricsServer
from equipoise.live.decide.decider import Cadence, Decider
from equipoise.live.decide.metrics import families
from equipoise.live.decide.slow_ranks import SlowRanks
from equipoise.live.decide.telemetry import Recorder
from equipoise.live.decide.window import Telemetry, measure
from equipoise.live.decide.world import LiveWorld
from equipoise.live.group.places import RankPlace
from equipoise.live.options import Options, Reduction
from equipoise.live.train.change import RoundChange
from equipoise.live.train.checks import CHECK_COLUMNS, check_equal
from equipoise.live.train.devices import GPU_COLUMNS
from equipoise.live.train.drift import Drift
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.gradients import NoiseScale, noise_statistics
from equipoise.live.train.rounds import COLUMNS, COMPUTE, LOCAL_SQUARE, MEAN_SQUARE, SAMPLES, RoundInfo
from equipoise.live.train.sampler import ShareSampler
from equipoise.policies.contract import Decision, Policy, Refusal
from equipoise.policies.growth import LEAST_ROUNDS, Growth
from equipoise.policies.observation import Floats, Ints
from equipoise.policies.record.export import stage_entries
from equipoise.policies.record.journal import decode_memory, encode_memory

_NOTHING: Floats = np.empty(0)
HEADER = (
    "drawn",
    "memory_free_bytes",
    "samples_max",
    "gpu_share",
    "moved_apart",
    "moved_mean",
    *CHECK_COLUMNS,
    "queued_s",  # per round, for the processor
    *GPU_COLUMNS,
)


def pack(header: Sequence[float], rows: NDArray[np.float64], data: Floats = _NOTHING) -> Floats:
    """One vector for the gather; `data` is the report of a `live.data.movement.DataPlane`."""
    return np.concatenate([np.array(header, dtype=np.float64), data, rows.ravel()])


def unpack(gathered: Floats, data: int = 0) -> tuple[dict[str, Floats], Floats, NDArray[np.float64]]:
    """(header columns by rank, reports (ranks, data), rows (ranks, rounds, columns)) from packed vectors."""
    header = {name: gathered[:, k].copy() for k, name in enumerate(HEADER)}
    end = len(HEADER) + data
    return (header, gathered[:, len(HEADER) : end], gathered[:, end:].reshape(gathered.shape[0], -1, len(COLUMNS)))


def gradient_scale(samples: float, total: float, ranks: int, reduction: Reduction, local: bool) -> float:
    """Factor between a rank's stored gradient and its mean gradient (0: no samples)."""
    if samples == 0:
        return 0.0
    if local:
        return 1.0 if reduction == "mean" else total / ranks
    return ranks * samples / total if reduction == "mean" else float(samples)


def _stages(policy: Policy) -> list[dict[str, dict[str, Any]]] | None:
    """The stages with their parameters; None for stages that cannot be written as plain data."""
    try:
        return stage_entries(policy)
    except (TypeError, AttributeError):
        return None


class Leader:
    """Owns the live world, the policy and its journal. Exists on rank 0 only."""

    def __init__(
        self, options: Options, policy: Policy | None, recorder: Recorder, places: Sequence[RankPlace]
    ) -> None:
        self.options, self.recorder = options, recorder
        self.world = LiveWorld(options, places)
        self.decisions = self.failures = 0
        self._trained = 0  # rounds at the last of these
        self.points = 0  # moments at which the policy was due to decide
        self._noise = NoiseScale()
        most = max(2, options.bounds.interval_max)
        self._drift = Drift(options.assumed_drift, least=0.1 / (most - 1))  # a smaller one bounds no interval
        self._slow = SlowRanks()
        self._growth = Growth()
        self._cadence, self._took_s = Cadence(), 0.0  # the latter of the decision that is being made
        self._prometheus: MetricsServer | None = None
        if options.prometheus_port is not None:
            try:
                self._prometheus = MetricsServer(options.prometheus_host, options.prometheus_port)
            except OSError as error:
                self._warn(f"Prometheus port {options.prometheus_port} not served: {error}")
        self._norm: Floats = np.full(len(places), math.nan)
        self.decider = Decider(policy, options.decision_budget_s) if policy is not None else None

    def state(self) -> dict[str, Any]:
        """The learnt state, for a checkpoint."""
        memory = None if self.decider is None else encode_memory(self.decider.memory)
        world = self.world
        return {
            "memory": memory,
            "time_s": world.now_s(),
            "samples_done": world.samples_done,
            "gpu_s": world.gpu_s,
            "noise": self._noise.parts,
            "drift": self._drift.parts,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state`; the memory of a policy with other stages is dropped, with a note."""
        world = self.world
        world.started_s = time.perf_counter() - state["time_s"]
        world.forget()
        world.samples_done, world.gpu_s = state["samples_done"], state["gpu_s"]
        self._noise.parts = tuple(state["noise"])
        self._drift.parts = tuple(state.get("drift", self._drift.parts))
        world.drift = self._drift.value
        if self.decider is None or state["memory"] is None:
            return
        memory = decode_memory(state["memory"])
        if memory.keys() == self.decider.memory.keys():
            self.decider.memory = memory
        else:
            self.recorder.event("policy-memory-lost")

    def warm_up(self, shares: Ints, deal: EpochSplit | None) -> None:
        """Let the policy compile on made-up measurements before the first round."""
        if self.decider is None or self.options.mode == "observe":
            return
        self.world.shares, self.world.deal = shares, deal
        made_up = [self.world.observe()]
        ranks = len(self.world.active)
        if self.world.data is not None:
            self.world.data.update(self.world.data.made_up(ranks), [p.host for p in self.world.active])
        for slowest in (1.0, 2.0, 4.0):
            if slowest > 1.0:  # the last rank owns more than its share: data moves as well
                less = int(shares[-1]) // 2
                shares = shares + less * (np.arange(ranks) == 0) - less * (np.arange(ranks) == ranks - 1)
                self.world.shares = shares
            rows = np.full((ranks, 8, len(COLUMNS)), 0.01)
            rows[:, :, SAMPLES] = shares[:, None]
            rows[:, :, COMPUTE] = np.linspace(0.1, 0.1 * slowest, ranks)[:, None]
            nothing = np.full(ranks, math.nan)
            window = measure(rows, [True] * 8)
            self.world.telemetry = Telemetry(window, np.ones(ranks), nothing, nothing, noise_scale=100.0)
            made_up.append(self.world.observe())
        problem = self.decider.warm_up(made_up, self.options.warm_up_budget_s)
        self.world.forget()
        if self.world.data is not None:
            self.world.data = self.world.data.blank()
        if problem:
            self.recorder.event("policy-warm-up-failed", problem=problem)

    def begin(
        self, gathered: Floats, rounds: Sequence[RoundInfo], sampler: ShareSampler, intervals: tuple[int, int]
    ) -> None:
        """Take in the ranks' reports, and start the policy on them.

        `intervals`: local steps per exchange, and exchanges per exchange of all ranks.
        """
        world, began_s = self.world, time.perf_counter()
        header, reports, rows = unpack(gathered, 0 if world.data is None else world.data.length)
        check_equal(*(header[name] for name in CHECK_COLUMNS))
        if world.data is not None:
            world.data.update(reports, [place.host for place in world.active])
        world.interval, world.far_every = intervals
        world.deal, world.shares = sampler.deal, sampler.planned_shares()
        world.batch, world.rate = sampler.planned_batch(), sampler.planned_rate()
        world.samples_done += int(np.nansum(rows[:, :, SAMPLES]))
        window = measure(rows, [r.exchanged for r in rounds], [r.near for r in rounds], world.near)
        self._gradients(rows, rounds)
        self._note_drift(header, int(np.count_nonzero(world.shares)))
        self._refused_late(sampler.refused, header["gpu_share"])
        world.shares_of_gpu = header["gpu_share"]
        seen = window
        if world.data is None:  # otherwise waits for files vary
            each = window.each()
            if window.rounds >= LEAST_ROUNDS:
                self._growth.learn(each, window.step_s)
            seen = replace(window, fixed_s=self._growth.fixed_s(each, window.step_s, window.fixed_s))
        world.telemetry = Telemetry(
            seen,
            self._norm,
            header["memory_free_bytes"],
            header["samples_max"],
            self._noise.value,
            int(header["drawn"].max()),
            {name: header[name] for name in GPU_COLUMNS},
        )
        world.gpu_s += (window.span_s if window.rounds else 0.0) * len(world.active)
        self._trained = rounds[-1].number + 1 if rounds else self._trained
        for rank, slow in self._slow.news(window, header, self._growth.law):
            self._warn(f"rank {rank} is slow: {slow.cause} ({slow.times:.2f} times; {slow.evidence})")
        if self.options.mode != "observe" and self.decider is not None:
            self.points += 1
            error = window.step_cov / math.sqrt(max(1, window.rounds))
            if self._cadence.is_due(window.response_s_per_sample, error, not world.change.is_empty()):
                self.decider.begin(world)
            else:
                self.decider.pass_over()
        self._took_s = time.perf_counter() - began_s

    def answer(self, drawn: float) -> RoundChange:
        """The policy's change, from the first round not `drawn` by any rank; empty: no change, or it failed."""
        began_s, window = time.perf_counter(), self.world.telemetry.window
        first = self.world.telemetry.first_free_round = int(drawn)
        self.world.change = RoundChange(first)
        if self.options.mode != "observe" and self.decider is not None:
            answer = self.decider.answer(self.world)
            if answer.problem is not None:
                self.failures += 1
                self.recorder.event("decision-failed", problem=answer.problem, failures=self.decider.failures)
            elif answer.decision is not None:
                self._note(answer.decision, answer.refused)
            if answer.decision is not None or answer.problem is not None:
                took_s = self._took_s + time.perf_counter() - began_s
                self._cadence.took(took_s, window.span_s if window.rounds else math.nan)
        return self.world.change

    def _note_drift(self, header: Mapping[str, Floats], trained: int) -> None:
        """Record how far replicas diverged, of which `trained` had samples, if measured."""
        world = self.world
        self._drift.add(
            float(header["moved_apart"].sum()),
            float(header["moved_mean"][0]),
            trained,
            self._noise.value / world.batch,
            world.interval,
            world.far_every,
            world.far_ratio,
        )
        world.drift = self._drift.value

    def _refused_late(self, moves: Sequence[str], gpu_share: Floats) -> None:
        """Record refusals of the last change: `moves` that were too late, GPU shares refused by devices."""
        late = [Refusal("moves", why) for why in moves]
        asked = self.world.change.gpu_share or gpu_share.tolist()
        for rank, (wanted, held) in enumerate(zip(asked, gpu_share.tolist(), strict=True)):
            if held != wanted:
                late.append(Refusal("share", f"rank {rank} holds {held:.4g}, not {wanted:.4g}"))
        self.world.refused += late
        if moves:
            self.recorder.event("refused", lever="moves", why=list(moves))

    def _note(self, decision: Decision, refused: Sequence[Refusal]) -> None:
        self.decisions += 1
        self.recorder.decision(decision, refused)
        change = self.world.change
        self.recorder.event(
            "decision",
            number=self.decisions,
            time_s=decision.observation.time_s,
            point=self.points,
            rounds=self._trained,
            change=None if change.is_empty() else change.to_json(),
            refused=[f"{r.what}: {r.why}" for r in refused],
        )

    def _gradients(self, rows: NDArray[np.float64], rounds: Sequence[RoundInfo]) -> None:
        """Update gradient norms and noise scale from the rounds in which they were measured; NaN norms without any."""
        self._norm = np.full(len(rows), math.nan)  # a value reported twice would reduce the variance
        for k, info in enumerate(rounds):
            stored = rows[:, k, LOCAL_SQUARE]
            if np.isnan(stored).all():
                continue
            total, ranks = math.fsum(info.weights), len(info.weights)
            scale = np.array(
                [gradient_scale(n, total, ranks, self.options.loss_reduction, info.local) for n in info.weights]
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                squares = np.where(scale > 0, stored / scale**2, np.nan)
            # Infinity marks a measured gradient that is not finite.
            self._norm = np.sqrt(np.where(np.isinf(squares), np.nan, squares))
            if info.local or not info.exchanged:
                continue
            mean_square = float(rows[:, k, MEAN_SQUARE].sum())
            if self.options.loss_reduction == "sum":
                mean_square *= (ranks / total) ** 2
            covariance, true_square = noise_statistics(squares.tolist(), mean_square, info.weights)
            # Per unit of weight (e.g. a token); converted to samples.
            self._noise.add(covariance * math.fsum(info.window) / total, true_square)

    # -- records -------------------------------------------------------------------------------------------

    def write_manifest(
        self, run: str, sampler: ShareSampler, parameters: Iterable[torch.Tensor], *, inside: bool
    ) -> None:
        """Write the manifest of the run; `inside`: gradients are exchanged inside the backward pass."""
        options, decider = self.options, self.decider
        sizes = [(p.numel(), p.element_size(), p.requires_grad) for p in parameters]
        self.recorder.manifest(
            {
                "format": 2,
                "run": run,
                "policy": None if decider is None else decider.policy.name,
                "stages": None if decider is None else _stages(decider.policy),
                "mode": options.mode,
                "allow": sorted(options.allow),
                "global_batch": options.global_batch,
                "batch_max": options.batch_max,
                "learning_rate": options.learning_rate,
                "micro_batch": options.micro_batch,
                "accumulation": options.accumulation,
                "decide_every": options.every,
                "delay_rounds": options.delay_rounds,
                "drift": options.drift,
                "samples": sampler.samples,
                "sample_bytes": options.sample_bytes,
                "shards": sampler.shards,
                "samples_target": options.samples_target,
                "parameters": sum(n for n, _, _ in sizes),
                "gradient_bytes": sum(n * size for n, size, trained in sizes if trained),
                "compute_ends": "last gradient" if inside else "backward",
                "backend": dist.get_backend(),
                "torch": str(torch.__version__),
                "members": [asdict(place) for place in self.world.active],
                "unix_s": time.time(),
            }
        )

    def _warn(self, text: str) -> None:
        print(f"equipoise: {text}", file=sys.stderr)
        self.recorder.event("warning", text=text)

    def show(self) -> None:
        """Update Prometheus with the latest metrics."""
        if self._prometheus is not None:
            self._prometheus.update(families(self.metrics()))

    def close(self) -> None:
        """Stop serving metrics."""
        if self._prometheus is not None:
            self._prometheus.close()

    def metrics(self) -> dict[str, float | Sequence[float]]:
        """The job's state by Prometheus name."""
        seen = self.world.telemetry
        return {
            "equipoise_step_seconds": seen.window.step_s.tolist(),
            "equipoise_wait_seconds": seen.window.wait_s.tolist(),
            "equipoise_input_stall_seconds": seen.window.stall_s.tolist(),
            "equipoise_share_samples": self.world.shares.astype(float).tolist(),
            "equipoise_samples_total": float(self.world.samples_done),
            "equipoise_exchange_seconds": seen.window.exchange_s,
            "equipoise_throughput_samples_per_second": seen.window.throughput(),
            "equipoise_sync_interval": float(self.world.interval),
            "equipoise_far_every": float(self.world.far_every),
            "equipoise_noise_scale_samples": seen.noise_scale,
            "equipoise_decisions_total": float(self.decisions),
            "equipoise_decision_failures_total": float(self.failures),
            "equipoise_ranks": float(len(self.world.active)),
        }
