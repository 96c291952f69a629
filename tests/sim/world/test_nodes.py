"""Nodes that fail, are rented, given back and reclaimed: for how long each was down and unpaid, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.sim.world.nodes import NodeEvents
from equipoise.sim.world.world import SimWorld
from tests.sim.world.small import to, world_of

TWO = [{"name": "n", "count": 2, "gpus": 2}]


def late() -> tuple[SimWorld, NodeEvents]:
    """The first job comes at 10 s."""
    world = world_of({"gpus": 1, "duration": 500.0, "arrival": 10.0}, nodes=TWO)
    return world, world.nodes


def test_a_node_is_down_from_the_first_arrival_on_until_it_is_repaired() -> None:
    world, nodes = late()
    to(world, 4.0)
    nodes.node_down(1)
    assert nodes.down_s().tolist() == [0, 0]
    to(world, 13.0)
    assert nodes.down_s().tolist() == [0, 3]
    nodes.node_down(1)
    nodes.node_up(1)
    nodes.node_up(1)
    to(world, 20.0)
    assert nodes.down_s().tolist() == [0, 3]
    assert world.cluster.up.tolist() == [True, True]
    nodes.node_down(1)
    to(world, 25.0)
    assert nodes.down_s().tolist() == [0, 8]
    nodes.node_up(1)
    to(world, 26.0)
    assert nodes.down_s().tolist() == [0, 8]


def test_a_node_that_is_repaired_before_the_first_arrival_was_never_down() -> None:
    world, nodes = late()
    to(world, 2.0)
    nodes.node_down(1)
    nodes.reclaimed(0)
    to(world, 5.0)
    nodes.node_up(1)
    nodes.returned(0)
    to(world, 12.0)
    assert (nodes.down_s().tolist(), nodes.unpaid_s().tolist()) == ([0, 0], [0, 0])


def test_a_node_is_not_paid_for_while_it_is_with_its_owner_or_not_rented() -> None:
    world, nodes = late()
    to(world, 20.0)
    nodes.reclaimed(1)
    to(world, 25.0)
    assert (nodes.unpaid_s().tolist(), nodes.down_s().tolist()) == ([0, 5], [0, 0])
    nodes.released(1)
    assert not world.cluster.up[1]
    to(world, 30.0)
    nodes.returned(1)
    to(world, 32.0)
    assert (nodes.unpaid_s().tolist(), nodes.down_s().tolist()) == ([0, 12], [0, 7])
    nodes.rented(1)
    assert world.cluster.up[1]
    to(world, 40.0)
    assert (nodes.unpaid_s().tolist(), nodes.down_s().tolist()) == ([0, 12], [0, 7])
    nodes.released(0)
    to(world, 43.0)
    assert nodes.unpaid_s().tolist() == [3, 12]


def test_a_node_comes_up_once_nothing_keeps_it_down() -> None:
    world, nodes = late()
    to(world, 12.0)
    nodes.node_down(1)
    nodes.released(1)
    nodes.rented(1)
    assert not world.cluster.up[1]
    nodes.released(1)
    nodes.node_up(1)
    assert not world.cluster.up[1]
    nodes.rented(1)
    assert world.cluster.up[1]


def test_a_spot_node_that_scales_does_not_come_back_by_itself() -> None:
    world, nodes = late()
    to(world, 12.0)
    nodes.scaled = {1}
    nodes.reclaimed(0)
    nodes.reclaimed(1)
    assert (nodes.reclaimed_nodes, nodes.released_nodes) == ({0, 1}, {1})
    nodes.returned(0)
    nodes.returned(1)
    assert (nodes.reclaimed_nodes, nodes.released_nodes) == (set(), {1})
    to(world, 15.0)
    assert nodes.unpaid_s().tolist() == [0, 3]


def test_jobs_of_a_lost_node_are_restarted_or_have_been_saved_before() -> None:
    for saved, preemptions, restarts, left_s in ((False, 0, 1, 500.0), (True, 1, 0, 487.0)):
        world = world_of({"gpus": 1, "duration": 500.0}, {"gpus": 3, "duration": 100.0}, nodes=TWO)
        to(world, 13.0)
        assert world.roster.running.rows.tolist() == [0, 1]
        node = int(world.cluster.gpus.node[world.cluster.holding[0].gpu[0]])
        world.nodes.node_down(node, saved=saved)
        assert world.roster.preemptions.tolist() == [preemptions] * 2
        assert world.roster.restarts.tolist() == [restarts] * 2
        assert world.roster.waiting.rows.tolist() == [0, 1]
        assert world.rigid.left_s[0] == left_s


def test_jobs_can_save_within_a_notice_that_is_long_enough() -> None:
    world = world_of({"gpus": 1, "duration": 500.0}, nodes=TWO)
    to(world, 5.0)
    node = int(world.cluster.gpus.node[world.cluster.holding[0].gpu[0]])
    assert world.nodes.can_save(node, 0.5)
    assert not world.nodes.can_save(node, 0.0)
    assert world.nodes.can_save(1 - node, 0.0)

    class Slow(type(world.roster.running_jobs[0])):  # type: ignore[misc]
        __slots__ = ()
        save_s = 30.0

    world.roster.running_jobs[0].__class__ = Slow
    assert [world.nodes.can_save(node, notice_s) for notice_s in (29.0, 30.0, 31.0)] == [False, True, True]


def test_a_slow_node_and_a_low_clock_both_count() -> None:
    """2.5 times as slow at 0.8 of its clock: 3.125 times; a job of 100 s that has done 20 has 250 s left."""
    world = world_of({"gpus": 3, "duration": 100.0}, nodes=TWO)
    to(world, 20.0)
    world.nodes.set_clocks(np.array([0.8, 0.5]))
    assert world.cluster.slow.tolist() == [1.25, 2.0]
    assert world.rigid.rate[0] == 0.5
    world.nodes.set_slow(0, 2.5)
    assert world.cluster.slow.tolist() == [3.125, 2.0]
    assert world.rigid.rate[0] == pytest.approx(0.32)
    world.nodes.set_clocks(np.array([0.8, 0.25]))
    assert world.cluster.slow.tolist() == [3.125, 4.0]
    assert world.rigid.rate[0] == 0.25
    world.nodes.set_slow(0, 1.0)
    assert world.cluster.slow.tolist() == [1.25, 4.0]
    to(world, 300.0)
    assert world.roster.completed == 0
    to(world, 341.0)
    assert world.roster.completion_s[0] == pytest.approx(20.0 + 80.0 / 0.25)


def test_a_sound_gpu_is_no_longer_suspected() -> None:
    world, nodes = late()
    suspect = world.cluster.gpus.suspect
    suspect.flags.writeable = True
    suspect[:] = True
    nodes.set_corrupt(2, -3.0)
    assert (world.cluster.corrupt.tolist(), suspect.tolist()) == ([1, 1, -3, 1], [True] * 4)
    nodes.set_corrupt(2, 1.0)
    assert (world.cluster.corrupt.tolist(), suspect.tolist()) == ([1] * 4, [True, True, False, True])


def test_gpus_are_busy_that_jobs_hold() -> None:
    world = world_of({"gpus": 3, "duration": 100.0}, {"gpus": 1, "duration": 100.0, "arrival": 2.0}, nodes=TWO)
    to(world, 1.0)
    busy = world.nodes.drawn_share(1.0)
    assert sorted(busy.tolist()) == [0, 1, 1, 1]
    to(world, 3.0)
    assert world.nodes.drawn_share(3.0).tolist() == [1, 1, 1, 1]


def test_readers_are_told_of_nodes_that_are_rented() -> None:
    _, nodes = late()
    told: list[tuple[str, str, float]] = []
    nodes.listeners.happened = (lambda kind, name, value, now_s: told.append((kind, name, value)),)
    nodes.happened("slow", 1, 2.5)
    nodes.released_nodes.add(1)
    for kind in ("slow", "rented", "released"):
        nodes.happened(kind, 1, 0.5)
    nodes.happened("slow", 0, 1.5)
    assert told == [("slow", "n-1", 2.5), ("rented", "n-1", 0.5), ("released", "n-1", 0.5), ("slow", "n-0", 1.5)]
