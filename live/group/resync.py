"""Makes the state of all members of a new group equal: parameters, optimiser, epoch, remaining samples, intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.group import rebuild
from equipoise.live.group.group import Group
from equipoise.live.train.epoch_split import EpochSplit
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.sampler import ShareSampler
from equipoise.live.train.sync import LocalSteps
from equipoise.policies.observation import Ints
from equipoise.policies.physics import deal


@dataclass(frozen=True)
class ModelReplica:
    """A member's state as it leaves a group; the defaults are those of a new member.

    It is kept until the next group has agreed on one state, over any number of attempts.
    """

    boundary: int = -1  # the last round whose result all ranks share
    rest: tuple[int, EpochSplit] | None = None  # epoch and split at that round
    tensors: list[torch.Tensor] | None = None  # parameters and buffers; None: all replicas are equal
    near: int = -1  # its intra-node group; -1: there was one level
    met: int = -1  # the last round whose result this group shares
    shared: tuple[int, ...] = ()  # samples that this group trained on up to then, which are in each member's mean
    trained: tuple[int, ...] = ()  # samples that this member trained on since


def replica_of(model: DistributedDataParallel, sampler: ShareSampler, local: LocalSteps, rank: int) -> ModelReplica:
    """This rank's state when its group breaks up."""
    everything = (*model.module.parameters(), *model.module.buffers())
    near = local.near if local.far_every > 1 else None
    return ModelReplica(
        boundary=sampler.boundary,
        rest=sampler.rest_at(sampler.boundary),
        # Copies: wrapping anew overwrites the originals with rank 0's.
        tensors=[t.detach().clone() for t in everything] if local.has_apart else None,
        near=-1 if near is None else near.group[rank],
        met=sampler.near_boundary,
        shared=() if near is None else tuple(sampler.trained_near(near.peers(rank)).tolist()),
        trained=tuple(sampler.trained_since(sampler.near_boundary).tolist()),
    )


def lineage(reports: Sequence[Mapping[str, Any]]) -> tuple[list[float], set[int]]:
    """(samples in each member's replica, all samples trained on) since the last exchange of all ranks.

    `reports` are replicas by rank, as mappings. Training resumes from those whose last common round is the latest. Of
    intra-node ranks, those whose last common round is the latest have the others' samples up to it in their mean, those
    of dead ranks as well; these count for all of them together, split by the samples of each since.
    """
    furthest = max(r["boundary"] for r in reports)
    works, done = [0.0] * len(reports), set[int]()
    groups: dict[int, list[int]] = {}
    for rank, report in enumerate(reports):
        if report["boundary"] == furthest:
            groups.setdefault(report["near"] if report["near"] >= 0 else -1 - rank, []).append(rank)
    for ranks in groups.values():
        met = max(reports[rank]["met"] for rank in ranks)
        held = [rank for rank in ranks if reports[rank]["met"] == met]
        shared, own = reports[held[0]]["shared"], [len(reports[rank]["trained"]) for rank in held]
        total = len(shared) + sum(own)
        for rank, n in zip(held, own, strict=True):
            works[rank] = total * n / sum(own) if sum(own) else total / len(held)
            done.update(reports[rank]["trained"], shared)
    return works, done


def resync(
    group: Group,
    sampler: ShareSampler,
    model: DistributedDataParallel,
    optimizer: Optimizers,
    local: LocalSteps,
    extra: Mapping[str, Any],
    replica: ModelReplica,
) -> None:
    """Agree on the state to resume from. Collective.

    Members whose last common round is the latest carry the lineage. If they made local steps since, their replicas
    are averaged by their samples; samples in none of these are assigned again, as is an interrupted round.
    """
    kept = ("boundary", "near", "met", "shared", "trained")
    reports = group.control.gather_text({name: getattr(replica, name) for name in kept})
    works, done = lineage(reports)
    total = math.fsum(works)
    merge = total > 0
    weight = works[group.rank] / total if merge else 0.0
    rebuild.agree(model, optimizer, extra, replica.tensors if weight > 0 else None, weight, merge)
    content = None
    if group.rank == 0:
        gone = np.array(sorted(done), dtype=np.int64)
        content = json.dumps(_progress(group, sampler, local, replica, gone)).encode()
    state = json.loads(group.control.broadcast(content))
    sampler.global_batch, sampler.accumulation = state["global_batch"], state["accumulation"]
    sampler.rate = state["rate"]
    sampler.set_world(group.rank, group.ranks)
    sampler.shares, sampler.members = np.array(state["shares"], dtype=np.int64), tuple(group.members)
    left = None if state["deal"] is None else sampler.deal_of(state["deal"], state["epoch"])
    sampler.resume(state["epoch"], left, state["round"])
    group.joins_seen = state["joins_seen"]
    local.near = group.near
    local.reset(state["interval"], state["far_every"])


def kept_shares(sampler: ShareSampler, members: Sequence[int]) -> Ints:
    """Shares of the next group: in the old proportions, with the mean of the remaining members for new ones."""
    known = dict(zip(sampler.members, sampler.planned_shares().tolist(), strict=True))
    stay = [known[m] for m in members if m in known]
    usual = round(sum(stay) / len(stay)) if stay else 1
    parts = np.array([known.get(m, usual) for m in members], dtype=np.int64)
    return deal(sampler.global_batch, parts if parts.any() else np.ones_like(parts), sampler.micro_batch)


def _progress(
    group: Group, sampler: ShareSampler, local: LocalSteps, replica: ModelReplica, trained: Ints
) -> dict[str, Any]:
    epoch, left = replica.rest if replica.rest is not None else (-1, None)
    return {
        "epoch": epoch,
        "round": max(replica.boundary, 0),
        "interval": local.interval,
        "far_every": local.far_every,
        "joins_seen": group.joins_seen,
        "global_batch": sampler.global_batch,
        "accumulation": sampler.accumulation,
        "rate": sampler.rate,
        "shares": kept_shares(sampler, group.members).tolist(),
        "deal": None if left is None else left.without(trained, group.ranks).to_data(),
    }
