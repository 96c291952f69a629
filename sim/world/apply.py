"""Passes a plan's changes to running jobs, which apply them after their running periods or some steps later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set

from equipoise.policies.contract import Moves, Plan
from equipoise.policies.observation import Ints, Shards, Workers
from equipoise.sim.job.pending import Pending
from equipoise.sim.job.rounds import ask
from equipoise.sim.job.training import TrainingJob
from equipoise.sim.world.tables import PIECE_BITS, Member


def hand_over(
    plan: Plan,
    replaced: Set[int],
    training: Mapping[int, TrainingJob],
    members: Sequence[Member],
    shards: Shards,
    workers: Workers,
    changed: Callable[[TrainingJob], None],
    delay_rounds: int,
) -> None:
    """Note what a plan asks of each training job, and call `changed(job)` for those observed that it concerns.

    replaced: rows of jobs that the plan's allocation has stopped; members: the jobs whose workers were observed;
    delay_rounds: steps after which it acts on running jobs.
    """
    asked: defaultdict[int, Pending] = defaultdict(Pending)
    for job, part in members:
        if job.row in replaced or job.holding is None:
            continue
        config = job.config
        for name, wanted, now in (
            ("samples", plan.samples_per_step, config.samples),
            ("share", plan.gpu_share, config.share),
            ("weight", plan.gradient_weight, config.gradient_weight),
            ("push_interval", plan.push_interval, config.push_interval),
        ):
            if wanted is not None and (job.asked.held or (wanted[part] != now).any()):
                setattr(asked[job.row], name, wanted[part].copy())
    for name, of_jobs in (
        ("interval", plan.sync_interval),
        ("far_every", plan.far_every),
        ("global_batch", plan.global_batch),
        ("learning_rate", plan.learning_rate),
        ("accumulation", plan.accumulation),
    ):
        if of_jobs is not None:
            for row, job in training.items():
                if row < len(of_jobs) and (job.asked.held or of_jobs[row] != getattr(job.progress, name)):
                    setattr(asked[row], name, of_jobs[row].item())
    if plan.moves is not None:
        _move(plan.moves, replaced, asked, shards, workers)
    if plan.fetch_order is not None:
        _order_fetches(plan.fetch_order, asked, shards)
    for row, pending in asked.items():
        ask(training[row], pending, 0 if row in replaced else delay_rounds)
    for job, _ in members:
        if job.row in asked:
            changed(job)


def _piece(shards: Shards, shard: int) -> tuple[int, int]:
    """(job row, piece of its data) of a row of shards."""
    return divmod(int(shards.id[shard]), 1 << PIECE_BITS)


def _move(moves: Moves, replaced: Set[int], asked: Mapping[int, Pending], shards: Shards, workers: Workers) -> None:
    for shard, worker in zip(moves.shard.tolist(), moves.worker.tolist(), strict=True):
        row, piece = _piece(shards, shard)
        if row not in replaced:
            asked[row].moves.append((piece, int(workers.index[worker])))


def _order_fetches(order: Ints, asked: Mapping[int, Pending], shards: Shards) -> None:
    ranks: dict[int, dict[int, int]] = {}
    for rank, shard in enumerate(order.tolist()):
        row, piece = _piece(shards, shard)
        ranks.setdefault(row, {})[piece] = rank
    for row, by_piece in ranks.items():
        asked[row].order = by_piece
