"""Placement of one job on its allowed nodes, in one rack or node if it asks for that."""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.kernels.gangs import frozen, place_gang, working
from equipoise.policies.kernels.placement import ANY
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.quotas.limits import allowed_nodes, node_model, node_sets


def of_one_model(o: Observation, row: int, allowed: Bools) -> list[Bools]:
    """The nodes that a job may use, by GPU model if its GPUs must all be of one model."""
    if not o.jobs.one_gpu_model[row]:
        return [allowed]
    model = node_model(o)
    return [allowed & (model == one) for one in np.unique(model[allowed]).tolist()]


def place_job(
    proposal: Proposal, row: int, wanted: int, rule: int = ANY, allowed: Bools | None = None, share: float | None = None
) -> Ints | None:
    """GPUs (rows) for a job that are free in the proposal, or None. Allocates nothing: see `start_on`.

    allowed: nodes to choose from, instead of all that it may use. share: of each GPU, instead of what it asks for.
    """
    o = proposal.observation
    allowed = allowed_nodes(o, row) if allowed is None else allowed
    share = float(min(o.jobs.gpu_share_requested[row], 1.0)) if share is None else share
    memory = float(o.jobs.memory_bytes[row])
    if segment := int(o.jobs.segment[row]):
        return _place_segments(proposal, row, wanted, segment, rule, allowed, share)
    out = np.empty(wanted, dtype=np.int64)
    for mask in (one for some in of_one_model(o, row, allowed) for one in node_sets(o, row, some)):
        room = proposal.columns
        left = np.where(mask, room.free, 0)
        if share >= 1.0 and int(left.sum()) < wanted:
            continue
        columns = working(room._replace(up=frozen(room.up & mask), free=frozen(left)))
        if place_gang(columns, wanted, share, memory, rule, out, False):
            return out
    return None


def _place_segments(
    proposal: Proposal, row: int, wanted: int, segment: int, rule: int, allowed: Bools, share: float
) -> Ints | None:
    """GPUs for the parts of a job, each in one rack: the last part first where it fits best, then whole ones.

    Racks with the fewest free GPUs that fit come first, so that large ones stay whole.
    """
    o, taken = proposal.observation, list[int]()
    columns = proposal.columns
    for mask in of_one_model(o, row, allowed):
        taken = []
        for part in [size for size in (wanted % segment,) if size] + [segment] * (wanted // segment):
            used = np.bincount(o.gpus.node[np.array(taken, dtype=np.int64)], minlength=len(o.nodes))
            left = np.where(mask & columns.up, columns.free - used, 0)
            room = np.bincount(o.nodes.rack, weights=left).astype(np.int64)
            shares = columns.room.copy()
            shares[taken] = 0.0
            out = np.empty(part, dtype=np.int64)
            for rack in np.argsort(room, kind="stable")[np.sort(room) >= part].tolist():
                up = columns.up & mask & (o.nodes.rack == rack)
                own = columns._replace(up=frozen(up), free=frozen(np.where(up, left, 0)), room=frozen(shares))
                if place_gang(working(own), part, share, float(o.jobs.memory_bytes[row]), rule, out, False):
                    taken += out.tolist()
                    break
            else:
                break
        if len(taken) == wanted:
            return np.array(taken, dtype=np.int64)
    return None


def start_on(proposal: Proposal, row: int, gpus: Ints, share: Floats | None = None) -> None:
    """Start a job on free GPUs, with these shares of them or with what it asks for."""
    if share is None:
        share = np.full(len(gpus), float(min(proposal.observation.jobs.gpu_share_requested[row], 1.0)))
    proposal.start((np.array([row]), np.array([0, len(gpus)]), gpus, share))


def least_gpus(o: Observation, row: int) -> int:
    """Fewest GPUs on which a job may start."""
    jobs = o.jobs
    if jobs.rigid[row] and jobs.workers_max[row] <= jobs.workers_min[row]:
        return int(jobs.gpus_requested[row])
    return int(jobs.workers_min[row] * jobs.gpus_per_worker[row])


def wanted_gpus(o: Observation, row: int) -> int:
    """GPUs that a job asks for, in whole workers for a training job."""
    jobs = o.jobs
    if jobs.rigid[row]:
        return int(jobs.gpus_requested[row])
    per = int(jobs.gpus_per_worker[row])
    workers = min(max(int(jobs.gpus_requested[row]) // per, int(jobs.workers_min[row])), int(jobs.workers_max[row]))
    return workers * per
