"""What stages share: workers by job, links, room and moves; and the virtual GPUs of S3."""

import numpy as np
import pytest

from equipoise.policies.contract import UNCHANGED, Moves, Plan
from equipoise.policies.observation import Observation, Paths, Speeds
from equipoise.policies.stages.groups import (
    append_moves,
    bytes_to_fetch,
    carry,
    free_shards,
    group_workers,
    links_of,
    moved_bytes,
    or_else,
    owned_after,
    room_bytes,
)
from equipoise.policies.stages.virtual import (
    _least_memory,
    _pays,
    gpu_room,
    slice_gpus,
    virtual_gpus,
    whole_period_s,
    whole_rates,
)
from tests.policies.observations import change, one_job, shared_gpu, together, with_dead_nodes

NAN = np.nan


def three_jobs():
    return together(one_job([1.0] * 2), one_job([1.0] * 3), one_job([1.0]))


def test_workers_by_job():
    groups = group_workers(three_jobs())
    assert (groups.rows.tolist(), groups.first.tolist(), groups.count.tolist()) == (
        [0, 1, 2],
        [0, 2, 5, 6],
        [2, 3, 1],
    )
    assert groups.sound.all()
    assert groups.spread(np.array([7, 5, 3])).tolist() == [7, 7, 5, 5, 5, 3]
    assert group_workers(with_dead_nodes(three_jobs(), [4])).sound.tolist() == [True, False, True]
    rigid = change(three_jobs(), "jobs", rigid=[True, False, False])
    assert group_workers(rigid).sound.tolist() == [False, True, True]
    none = group_workers(Observation.of(jobs=three_jobs().jobs, nodes=three_jobs().nodes))
    assert (none.rows.tolist(), none.first.tolist(), none.count.tolist(), none.sound.tolist()) == (
        [],
        [0],
        [],
        [],
    )


def test_what_is_remembered_of_nobody_is_the_default():
    o = three_jobs()
    nobody = {"id": np.empty(0, dtype=np.int64), "gpu": np.empty(0, dtype=np.int64), "share": np.empty(0)}
    assert carry(nobody, o, {"share": 0.5})["share"].tolist() == [0.5] * 6
    workers = o.workers
    first = {"id": workers.id[3:], "gpu": workers.gpu[3:], "share": np.array([0.1, 0.2, 0.3])}
    assert carry(first, o, {"share": 0.5, "new": 9.0})["share"].tolist() == [0.5, 0.5, 0.5, 0.1, 0.2, 0.3]
    assert carry(first, o, {"share": 0.5, "new": 9.0})["new"].tolist() == [9.0] * 6


def test_links_are_as_measured_or_what_is_free_of_interfaces():
    o = one_job([1.0] * 5, nic_bytes_per_s=[4e6, 4e6, 4e6, NAN, 0.0], nic_busy=[0.25, NAN, 1.0, 0.5, 0.5])
    o.paths = Paths.of(
        source=[2, 0, 2], target=[1, 3, 0], bytes_per_s=[7.0, 5.0, 3.0], latency_s=[0.7, 0.5, 0.3]
    )
    links = links_of(o)
    assert links.nic_bytes_per_s == pytest.approx([3e6, 4e6, 4e4, np.inf, np.inf])
    assert (links.key.tolist(), links.bytes_per_s.tolist()) == ([3, 10, 11], [5.0, 3.0, 7.0])
    assert links.latency_s.tolist() == [0.5, 0.3, 0.7]
    o.paths = Paths.of(
        source=[0, 2, 2], target=[3, 0, 1], bytes_per_s=[5.0, 3.0, 7.0], latency_s=[0.5, 0.3, 0.7]
    )
    assert links_of(o).bytes_per_s.tolist() == [5.0, 3.0, 7.0]
    bare = links_of(o, measured=False)
    assert (len(bare.key), bare.nic_bytes_per_s[0]) == (0, 3e6)


def moving():
    """Two jobs of two workers; shards 1, 2 and 3 of worker 0 go to workers 1 and 2, one to where it is stored."""
    o = together(one_job([1.0] * 2, shards_each=4), one_job([1.0] * 2, shards_each=4, shard_bytes=3e6))
    o = change(o, "shards", samples=np.arange(3, 19), bytes=np.arange(3, 19) * 1e6)
    return o, Moves(np.array([1, 2, 3]), np.array([0, 0, 1]), np.array([1, 2, 1]), np.array([1, 2, 1]))


def test_moves_take_room_and_samples():
    o, moves = moving()
    o = change(o, "nodes", storage_free_bytes=[NAN, 50e6, 20e6, 7e6])
    assert room_bytes(o, UNCHANGED).tolist() == [np.inf, 50e6, 20e6, 7e6]
    assert room_bytes(o, Plan(moves=moves)).tolist() == [np.inf, 46e6, 15e6, 7e6]
    assert moved_bytes(o, moves, incoming=True).tolist() == [0, 4e6, 5e6, 0]
    assert moved_bytes(o, moves, incoming=False).tolist() == [9e6, 0, 0, 0]
    unknown = Moves(moves.shard, np.array([-1, 0, 1]), moves.target, moves.worker)
    assert moved_bytes(o, unknown, incoming=True).tolist() == [0, 0, 5e6, 0]
    o = change(o, "workers", samples_owned=[100.0, 200.0, 300.0, 400.0])
    assert owned_after(o, UNCHANGED).tolist() == [100.0, 200.0, 300.0, 400.0]
    assert owned_after(o, Plan(moves=moves)).tolist() == [85.0, 210.0, 305.0, 400.0]


def test_shards_that_may_still_move_and_moves_after_those_there_are():
    o, moves = moving()
    o = change(o, "shards", worker=[0] * 4 + [1] * 3 + [-1] + [2] * 4 + [3] * 4)
    free = np.flatnonzero(free_shards(o, Plan(moves=moves))).tolist()
    assert free == [5, 6, 9, 10, 11, 13, 14, 15]
    assert np.flatnonzero(free_shards(o, UNCHANGED)).tolist() == [1, 2, 3, *free]
    assert append_moves(UNCHANGED, o, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)) is UNCHANGED
    more = append_moves(Plan(moves=moves), o, np.array([9, 13]), np.array([3, 2])).moves
    columns = [more.shard, more.source, more.target, more.worker]
    assert [column.tolist() for column in columns] == [
        [1, 2, 3, 9, 13],
        [0, 0, 1, 2, 3],
        [1, 2, 1, 3, 2],
        [1, 2, 1, 3, 2],
    ]


def test_bytes_that_are_still_to_fetch():
    o = one_job(
        [1.0] * 3, shards_each=2, shard_bytes=[2e6, 3e6, 5e6, 7e6, 11e6, 13e6], stored_on=[0, 1, 1, 2, 0, 2]
    )
    sent, received = bytes_to_fetch(o)
    assert (sent.tolist(), received.tolist()) == ([11e6, 3e6, 7e6], [3e6, 7e6, 11e6])


def test_what_is_not_known_is_replaced():
    assert or_else(np.array([NAN, 2.0, np.inf])).tolist() == [0.0, 2.0, np.inf]
    assert or_else(np.array([NAN, 2.0]), 7.0).tolist() == [7.0, 2.0]


# -- virtual GPUs ------------------------------------------------------------------------------------------


def sharing(**columns):
    """GPU 0 of jobs 0 and 1, by 0.5 and 0.25; GPU 1 of jobs 2 and 3, by 0.375 each."""
    o = together(shared_gpu([0.5, 0.25], [2.0, 1.0]), shared_gpu([0.375, 0.375], [1.0, 4.0]))
    asked = {"gpu_share_requested": [0.5, 0.25, 0.375, 0.375], **columns}
    return change(o, "jobs", **asked)


def vgpus(o):
    rows, first = virtual_gpus(o, group_workers(o))
    return rows.tolist(), first.tolist()


def test_s321_virtual_gpus_are_those_of_which_single_workers_hold_or_asked_for_a_part():
    assert vgpus(sharing()) == ([0, 1, 2, 3], [0, 2, 4])
    assert vgpus(change(sharing(), "workers", gpu=[1, 0, 0, 1])) == ([1, 2, 0, 3], [0, 2, 4])
    assert vgpus(change(sharing(), "gpus", share_quantum=[1.0, 0.01])) == ([2, 3], [0, 2])
    assert vgpus(sharing(gpus_per_worker=[1, 2, 1, 1])) == ([2, 3], [0, 2])
    whole = change(sharing(gpu_share_requested=[1.0] * 4), "workers", gpu_share=[1.0, 1.0, 0.5, 1.0])
    assert vgpus(whole) == ([2, 3], [0, 2]), "one of them holds a part"
    given = change(sharing(gpu_share_requested=[1.0, 1.0, 0.5, 1.0]), "workers", gpu_share=[1.0] * 4)
    assert vgpus(given) == ([2, 3], [0, 2]), "one of them asked for a part"
    assert vgpus(change(whole, "workers", gpu_share=[1.0] * 4)) == ([], [0])
    assert vgpus(with_dead_nodes(sharing(), [1])) == ([0, 1], [0, 2])


def test_s322_workers_may_hold_all_that_is_free_unless_somebody_waits_for_a_part():
    o = sharing()
    share, (rows, first) = o.workers.gpu_share, virtual_gpus(o, group_workers(o))
    assert gpu_room(o, share, rows, first).tolist() == [1.0, 1.0]
    held = change(o, "gpus", share_free=[0.125, 0.5])
    assert gpu_room(held, share, rows, first).tolist() == [0.875, 1.0]
    more = np.array([0.75, 0.25, 0.25, 0.25])
    for asks, room in ((0.5, [0.75, 0.5]), (1.0, [1.0, 0.75])):
        waiting = together(o, shared_gpu([0.5], [1.0]))
        waiting = change(waiting, "jobs", gpu_share_requested=[0.5, 0.25, 0.375, 0.375, asks])
        waiting.waiting = np.array([4])
        assert gpu_room(waiting, np.array([*more, 0.0]), rows, first).tolist() == room
    assert gpu_room(o, share, np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)).tolist() == []


def test_s321_rates_on_a_whole_gpu_are_the_best_of_the_job_or_as_listed():
    """Job 0: 8 and 4 samples/s on halves, and 6 on a whole GPU; job 1 nothing; listed for one of two GPU models."""
    o = together(one_job([8.0, 4.0, 6.0], samples=[8] * 3), one_job([1.0] * 2))
    o = change(
        o,
        "workers",
        gpu_share=[0.5, 0.5, 1.0, 0.5, 0.5],
        share_kappa=np.inf,
        capacity_samples_per_s=[8.0, 4.0, 6.0, NAN, NAN],
    )
    assert whole_rates(o) == pytest.approx([16.0, 16.0, 16.0, NAN, NAN], nan_ok=True)
    o = change(o, "gpus", model=[0, 1, 0, 0, 0])
    o.speeds = Speeds.of(job=[0, 0, 1], gpu_model=[1, 0, 0], gpus=[3, 2, 2], samples_per_s=[60.0, 99.0, 14.0])
    assert whole_rates(o) == pytest.approx([16.0, 20.0, 16.0, 7.0, 7.0])
    o = change(o, "jobs", global_batch=[24, 30], throughput_samples_per_s=[8.0, NAN])
    assert whole_period_s(o) == pytest.approx([3.0, 3.0, 3.0, NAN, NAN], nan_ok=True)


def test_s323_memory_that_a_worker_holds_is_what_it_asked_for_less_what_is_free():
    o = change(sharing(), "gpus", memory_bytes=[80e9, 40e9])
    o = change(o, "workers", memory_free_bytes=[10e9, 90e9, NAN, 5e9])
    assert _least_memory(o, np.arange(4)).tolist() == [0.375, 0.0, 0.0, 0.25]


def pays(new, *, restart_s=(6.0, 7.0), waits_s=(0.0, 0.0), stalls_s=(0.0, 0.0), left_s=(100.0, 60.0)):
    """Two jobs on halves of a GPU, in proportion to their shares: steps of 2 and 1 s, periods of 4 and 5 s."""
    o = shared_gpu([0.5, 0.5], [2.0, 1.0], kappa=np.inf)
    o = change(
        o,
        "jobs",
        service_s=left_s,
        restart_s=restart_s,
        global_batch=[8, 8],
        throughput_samples_per_s=[2.0, 1.6],
    )
    o = change(o, "workers", wait_s=waits_s, input_stall_s=stalls_s)
    return _pays(o, np.array([0, 1]), np.array([0.5, 0.5]), np.array(new))


def test_s323_other_slices_pay_if_they_save_more_than_the_restarts():
    """To 0.8 and 0.4: steps of 1.25 and 1.25 s; of 100 s left 18.75 are saved, of 60 s 3 are lost."""
    assert pays([0.8, 0.4], restart_s=(8.0, 7.7))
    assert not pays([0.8, 0.4], restart_s=(8.0, 7.8))
    assert pays([0.8, 0.5], restart_s=(18.7, 99.0)), "who keeps its slice does not start again"
    assert not pays([0.8, 0.5], restart_s=(18.8, 0.0))
    assert pays([0.8, 0.4], restart_s=(8.0, 10.7), waits_s=(0.0, 0.125), stalls_s=(0.0, 0.125)), (
        "it waited as long"
    )
    assert not pays([0.8, 0.5], restart_s=(6.3, 0.0), stalls_s=(0.25, 0.0), waits_s=(0.25, 0.0)), (
        "the input sets the pace"
    )
    assert pays([0.8, 0.5], restart_s=(6.2, 0.0), stalls_s=(0.25, 0.0), waits_s=(0.25, 0.0))
    assert not pays([0.503, 0.5], restart_s=(0.0, 0.0)), "the same slice"
    assert pays([0.8, 0.4], restart_s=(NAN, 15.7))
    assert not pays([0.5, 0.5], restart_s=(0.0, 0.0))


def test_s323_gpus_that_are_not_cut_keep_the_shares_in_quanta():
    o = sharing()
    rows, first = virtual_gpus(o, group_workers(o))
    new, changed = np.array([0.6, 0.4, 0.5, 0.5]), np.array([True, False])
    room = np.array([1.0, 1.0])
    same = slice_gpus(o, rows, first, o.workers.gpu_share.copy(), room, new, new, changed)
    assert same[0] is new
    assert same[1] is changed
