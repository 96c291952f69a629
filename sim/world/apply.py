"""Hands to running jobs what a plan asks of them: it acts when their running periods end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from equipoise.policies.contract import Moves, Plan
from equipoise.policies.observation import Ints, Shards, Workers
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
) -> None:
    """Note what a plan asks of each training job, and call `changed(job)` for those observed that it concerns.

    replaced: rows of jobs that the plan's allocation has stopped; members: the jobs whose workers were observed.
    """
    for job, part in members:
        if job.row in replaced or job.holding is None:
            continue
        config, pending = job.config, job.pending
        if plan.samples_per_step is not None and (plan.samples_per_step[part] != config.samples).any():
            pending.samples = plan.samples_per_step[part].copy()
        if plan.gpu_share is not None and (plan.gpu_share[part] != config.share).any():
            pending.share = plan.gpu_share[part].copy()
        if plan.gradient_weight is not None and (plan.gradient_weight[part] != config.gradient_weight).any():
            pending.weight = plan.gradient_weight[part].copy()
    if plan.sync_interval is not None:
        for row, job in training.items():
            if row < len(plan.sync_interval) and plan.sync_interval[row] != job.progress.interval:
                job.pending.interval = int(plan.sync_interval[row])
    if plan.far_every is not None:
        for row, job in training.items():
            if row < len(plan.far_every) and plan.far_every[row] != job.progress.far_every:
                job.pending.far_every = int(plan.far_every[row])
    if plan.global_batch is not None:
        for row, job in training.items():
            if row < len(plan.global_batch) and plan.global_batch[row] != job.progress.global_batch:
                job.pending.batch = int(plan.global_batch[row])
    if plan.moves is not None:
        _move(plan.moves, replaced, training, shards, workers)
    if plan.fetch_order is not None:
        _order_fetches(plan.fetch_order, training, shards)
    for job, _ in members:
        if job.pending.asked:
            changed(job)


def _piece(shards: Shards, shard: int) -> tuple[int, int]:
    """(job row, piece of its data) of a row of shards."""
    return divmod(int(shards.id[shard]), 1 << PIECE_BITS)


def _move(
    moves: Moves, replaced: Set[int], training: Mapping[int, TrainingJob], shards: Shards, workers: Workers
) -> None:
    for shard, worker in zip(moves.shard.tolist(), moves.worker.tolist(), strict=True):
        row, piece = _piece(shards, shard)
        if row not in replaced:
            training[row].pending.moves.append((piece, int(workers.index[worker])))


def _order_fetches(order: Ints, training: Mapping[int, TrainingJob], shards: Shards) -> None:
    ranks: dict[int, dict[int, int]] = {}
    for rank, shard in enumerate(order.tolist()):
        row, piece = _piece(shards, shard)
        ranks.setdefault(row, {})[piece] = rank
    for row, by_piece in ranks.items():
        training[row].pending.order = by_piece
