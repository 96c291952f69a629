"""S422's d: distance of nodes from a job's data and from its other workers.

For one job and its candidate nodes, d is the time that its workers would wait for remote data, relative to its
computing time. Candidates are the nodes that store its data and the first others by weight: no more of those can be
used. A gang with long exchanges is placed in one rack if possible, and waits for one where that costs less than
exchanging across racks.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.allocation.proposal import Proposal
from equipoise.policies.kernels.gangs import RequestColumns, RoomColumns, frozen, start_in_order
from equipoise.policies.kernels.placement import WEIGHTED
from equipoise.policies.observation import Bools, Floats, Ints, Observation
from equipoise.policies.physics import overlapped_s

_OWN = 16  # waiting jobs with data or dear exchanges, from the first, that are placed each for itself
_DEAR = 0.05  # exchange over work from which on a gang stays in one rack
_NIC_LEAST_FREE = 0.01  # an interface counts as at least that much free


def with_data(o: Observation, rows: Ints) -> Bools:
    """Whether each job row's data is stored on known nodes and takes time to read."""
    if not len(o.stores):
        return np.zeros(len(rows), dtype=np.bool_)
    known = np.zeros(len(o.jobs), dtype=np.bool_)
    known[o.stores.job] = True
    return np.asarray(known[rows] & (o.jobs.input_bytes[rows] > 0.0))


def delays(o: Observation, row: int, gpus: int, nodes: Ints) -> Floats:
    """d of a job (row) with these GPU counts on `nodes`: seconds of fetching per second of work.

    A node with u of the job's n GPUs reads u/n of its data. The part that it does not store comes over its
    interface, or at the rate of the storing nodes if these are slower.
    """
    first, end = np.searchsorted(o.stores.job, (row, row + 1))
    homes, ratio = o.stores.node[first:end], o.stores.ratio[first:end]
    stored = np.zeros(len(o.nodes))
    stored[homes] = ratio
    taken = np.clip(o.nodes.gpus_free[nodes], 1, gpus) / gpus
    remote = np.maximum(taken - stored[nodes], 0.0)
    s_per_byte = 1.0 / _free_rate(o)
    source_s = float((ratio * s_per_byte[homes]).max())
    fetch_s = np.maximum(remote * s_per_byte[nodes], remote / taken * source_s)
    work_s = max(float(np.nan_to_num(o.jobs.service_s[row], nan=1.0)), 1e-9)
    delay: Floats = float(o.jobs.input_bytes[row]) * fetch_s / work_s
    return delay


def _free_rate(o: Observation) -> Floats:
    """Free rate (bytes/s) of each node's interface; infinite where unknown."""
    nodes = o.nodes
    busy = np.clip(np.nan_to_num(nodes.nic_busy_ratio), 0.0, 1.0 - _NIC_LEAST_FREE)
    rate: Floats = np.where(nodes.nic_bytes_per_s > 0.0, nodes.nic_bytes_per_s * (1.0 - busy), np.inf)
    return rate


def own_room(proposal: Proposal, row: int, gpus: int) -> RoomColumns:
    """The room for one job with data: weights over 1 + d, with its candidate nodes in order."""
    o, columns = proposal.observation, proposal.columns
    weight, order = columns.weight, columns.order
    free = columns.free
    first, end = np.searchsorted(o.stores.job, (row, row + 1))
    some = order[free[order] > 0]
    near = np.zeros(len(o.nodes), dtype=np.bool_)
    near[o.stores.node[first:end]] = True
    looked_at = some[near[some] | (np.cumsum(~near[some]) <= gpus)]
    own = weight.copy()
    own[looked_at] = weight[looked_at] / (1.0 + delays(o, row, gpus, looked_at))
    ranked = looked_at[np.lexsort((free[looked_at], -own[looked_at]))]
    return columns._replace(weight=frozen(own), order=frozen(ranked))


def least_delays(proposal: Proposal, model: Ints, models: int, row: int, gpus: int) -> Floats:
    """d of a job with data on the free nodes of each GPU model that are nearest to its data, (models,)."""
    o, free = proposal.observation, proposal.columns.free
    some = np.flatnonzero(free > 0)
    d, found = delays(o, row, gpus, some), np.zeros(models)
    for m in range(models):
        mine = some[model[some] == m]
        near = np.argsort(d[model[some] == m], kind="stable")
        used = near[np.cumsum(free[mine[near]]) - free[mine[near]] < gpus]
        found[m] = d[model[some] == m][used].max(initial=0.0)
    return found


def exchanging(o: Observation, rows: Ints, requests: RequestColumns) -> Bools:
    """Whether each job row spans several nodes and exchanges for at least `_DEAR` of its work, where there are
    racks."""
    speeds, racks = o.speeds, o.nodes.rack
    if not len(speeds) or not len(racks) or (racks == racks[0]).all():
        return np.zeros(len(rows), dtype=np.bool_)
    with np.errstate(divide="ignore", invalid="ignore"):
        work_s = o.jobs.global_batch[speeds.job] / speeds.samples_per_s
        dear = speeds.exchange_s >= _DEAR * work_s * o.jobs.sync_interval[speeds.job]
    dear &= speeds.gpus == requests[1][speeds.job]
    found = np.zeros(len(o.jobs), dtype=np.bool_)
    found[speeds.job[dear]] = True
    return np.asarray(found[rows] & (requests[1][rows] > int(o.nodes.gpus.max())))


def in_one_rack(o: Observation, columns: RoomColumns, gpus: int) -> RoomColumns | None:
    """The room with the nodes of one rack only: the rack of highest worth among those with enough GPUs."""
    free, weight, order = columns.free, columns.weight, columns.order
    best, most = None, 0.0
    for rack in np.unique(o.nodes.rack[order]).tolist():
        inside = order[o.nodes.rack[order] == rack]
        before = np.cumsum(free[inside]) - free[inside]
        taken = np.clip(gpus - before, 0, free[inside])
        worth = float((taken * weight[inside]).sum())
        if taken.sum() == gpus and worth > most:
            best, most = inside, worth
    return None if best is None else columns._replace(order=frozen(best))


def lost_apart_s(o: Observation, row: int, gpus: int, interval: int) -> float:
    """Extra time (s) of a job (row) on this many GPUs of two racks rather than one; 0 where unknown."""
    speeds, gamma = o.speeds, float(np.nan_to_num(o.jobs.gamma[row], nan=1.0))
    here = np.flatnonzero((speeds.job == row) & (speeds.gpus == gpus) & (speeds.apart_exchange_s > 0.0))
    if not len(here):
        return 0.0
    k = here[np.argmax(speeds.samples_per_s[here])]
    work_s = float(o.jobs.global_batch[row] / speeds.samples_per_s[k])
    step_s, apart_s = (
        (interval - 1) * work_s + overlapped_s(work_s, float(exchange_s[k]), gamma)
        for exchange_s in (speeds.exchange_s, speeds.apart_exchange_s)
    )
    return float(np.nan_to_num(o.jobs.service_s[row])) * max(apart_s / step_s - 1.0, 0.0)


def lost_in_rack_s(proposal: Proposal, row: int, gpus: int, rack: RoomColumns, columns: RoomColumns) -> float:
    """Extra time (s) of a job (row) on the best nodes of one rack over the best of all.

    Work is split by speed, so the sum over its GPUs counts.
    """
    speeds = []
    for room in (rack, columns):
        free = room.free[room.order]
        taken = np.clip(gpus - (np.cumsum(free) - free), 0, free)
        speeds.append(float((taken * proposal.speed[room.order]).sum()))
    service_s = float(np.nan_to_num(proposal.observation.jobs.service_s[row]))
    return service_s * max(speeds[1] / speeds[0] - 1.0, 0.0)


def frees_by_rack(proposal: Proposal) -> tuple[Floats, Ints]:
    """Times (s) at which the GPUs of each rack become free if jobs end as expected, ascending, and the offset of
    each rack."""
    o, holder = proposal.observation, proposal.holder
    left_s = np.where(holder == -1, 0.0, np.nan_to_num(o.jobs.service_s, nan=np.inf)[np.maximum(holder, 0)])
    left_s[(holder < -1) | ~o.nodes.up[o.gpus.node]] = np.inf
    rack = o.nodes.rack[o.gpus.node]
    order = np.lexsort((left_s, rack))
    first = np.flatnonzero(np.diff(rack[order], prepend=-1, append=-1))
    return left_s[order], first.astype(np.int64)


def rack_frees_in_s(ends_s: Floats, first: Ints, gpus: int) -> float:
    """Time (s) until the first rack has this many free GPUs, by `frees_by_rack`; infinite where none has as many."""
    at = first[:-1] + gpus - 1
    return float(ends_s[at[at < first[1:]]].min(initial=np.inf))


def start_near(proposal: Proposal, queue: Ints, strict: bool, requests: RequestColumns, intervals: Ints | None) -> int:
    """Start jobs of `queue` (rows) in order, close to their data and their own workers; `strict`: up to the first
    that cannot. With the planned `intervals` (by job row), a gang waits for a rack where that is quicker. Returns
    the number of started jobs.
    """
    data = with_data(proposal.observation, queue)
    gang = exchanging(proposal.observation, queue, requests)
    own = data | gang
    if not own.any():
        return len(proposal.start(start_in_order(frozen(queue), strict, WEIGHTED, requests, proposal.columns)[0]))
    own[np.flatnonzero(own)[_OWN:]] = False
    begun, at, frees = 0, 0, None
    while at < len(queue):
        end = at + 1 if own[at] else at + int(np.argmax(np.append(own[at:], True)))
        part, columns = frozen(queue[at:end]), proposal.columns
        started = 0
        if own[at]:
            row = int(queue[at])
            gpus = int(requests[1][row])
            if data[at]:
                columns = own_room(proposal, row, gpus)
            rack = in_one_rack(proposal.observation, columns, gpus) if gang[at] else None
            if rack is not None and intervals is not None:
                apart_s = lost_apart_s(proposal.observation, row, gpus, int(intervals[row]))
                if 0.0 < apart_s < lost_in_rack_s(proposal, row, gpus, rack, columns):
                    rack = None
                    gang[at] = False
            if gang[at] and rack is None and intervals is not None:
                lost_s = lost_apart_s(proposal.observation, row, gpus, int(intervals[row]))
                if lost_s > 0.0 and frees is None:
                    frees = frees_by_rack(proposal)
                if lost_s > 0.0 and frees is not None and rack_frees_in_s(*frees, gpus) < lost_s:
                    if strict:
                        break
                    at = end
                    continue
            started = len(proposal.start(start_in_order(part, strict, WEIGHTED, requests, rack or columns)[0]))
        if not started:
            started = len(proposal.start(start_in_order(part, strict, WEIGHTED, requests, proposal.columns)[0]))
        begun += started
        if strict and started < len(part):
            break
        at = end
    return begun
