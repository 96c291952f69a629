"""Gives all members of a new group one state: parameters, optimiser, epoch, remaining samples, interval."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from equipoise.live.group import rebuild
from equipoise.live.group.group import Group
from equipoise.live.train.optimizers import Optimizers
from equipoise.live.train.sampler import ShareSampler
from equipoise.live.train.sync import LocalSteps
from equipoise.policies.observation import Ints
from equipoise.policies.physics import deal


def resync(
    group: Group,
    sampler: ShareSampler,
    model: DistributedDataParallel,
    optimizer: Optimizers,
    local: LocalSteps,
    extra: Mapping[str, Any],
    mine: list[torch.Tensor] | None,
    boundary: int,
) -> None:
    """Agree on where to go on from. Collective.

    Members whose last common round (`boundary`, -1: none) is the latest carry the lineage. If they made
    local steps since, their replicas `mine` are averaged by the samples behind them; what a dead member
    trained on since is dealt again, as is a round that broke off.
    """
    trained = sampler.trained_since(boundary) if boundary >= 0 else np.empty(0, dtype=np.int64)
    reports = group.control.gather_text({"boundary": boundary, "trained": trained.tolist()})
    furthest = max(r["boundary"] for r in reports)
    work = [len(r["trained"]) if r["boundary"] == furthest else 0 for r in reports]
    merge = sum(work) > 0
    weight = work[group.rank] / sum(work) if merge else 0.0
    rebuild.agree(model, optimizer, extra, mine if weight > 0 else None, weight, merge)
    content = None
    if group.rank == 0:
        done = {i for r, n in zip(reports, work, strict=True) if n for i in r["trained"]}
        gone = np.array(sorted(done), dtype=np.int64)
        content = json.dumps(_progress(group, sampler, local, furthest, gone)).encode()
    state = json.loads(group.control.broadcast(content))
    sampler.global_batch, sampler.accumulation = state["global_batch"], state["accumulation"]
    sampler.set_world(group.rank, group.ranks)
    sampler.shares, sampler.members = np.array(state["shares"], dtype=np.int64), tuple(group.members)
    left = None if state["deal"] is None else sampler.deal_of(state["deal"], state["epoch"])
    sampler.resume(state["epoch"], left, state["round"])
    group.joins_seen = state["joins_seen"]
    local.reset(state["interval"])


def kept_shares(sampler: ShareSampler, members: Sequence[int]) -> Ints:
    """Shares of the next group: in the old proportions, with the mean of those who stay for who comes."""
    known = dict(zip(sampler.members, sampler.planned_shares().tolist(), strict=True))
    stay = [known[m] for m in members if m in known]
    usual = round(sum(stay) / len(stay)) if stay else 1
    parts = np.array([known.get(m, usual) for m in members], dtype=np.int64)
    return deal(sampler.global_batch, parts if parts.any() else np.ones_like(parts), sampler.micro_batch)


def _progress(
    group: Group, sampler: ShareSampler, local: LocalSteps, boundary: int, trained: Ints
) -> dict[str, Any]:
    rest = sampler.rest_at(boundary)
    epoch, left = rest if rest is not None else (-1, None)
    return {
        "epoch": epoch,
        "round": max(boundary, 0),
        "interval": local.interval,
        "joins_seen": group.joins_seen,
        "global_batch": sampler.global_batch,
        "accumulation": sampler.accumulation,
        "shares": kept_shares(sampler, group.members).tolist(),
        "deal": None if left is None else left.without(trained, group.ranks).to_data(),
    }
