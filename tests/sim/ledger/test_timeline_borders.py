"""What the timeline notes of one job, node, link and replica at a time, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Holding
from equipoise.sim.cluster.power import NodePower
from equipoise.sim.job.account import (
    BUSY,
    EXPOSED_COMMUNICATION,
    HELD,
    INPUT_STALL,
    LOST_TO_FAULTS,
    RESTART,
    Use,
)
from equipoise.sim.ledger.buckets import Buckets
from equipoise.sim.ledger.costs import CostAccounts
from equipoise.sim.ledger.meter import Meter
from equipoise.sim.ledger.tables import (
    DOWN_GPU_S,
    DOWN_J,
    DYNAMIC_J,
    NETWORK_BYTES,
    QUEUED,
    REASONS,
    ROW_FIELDS,
    RUNNING,
    SERVING_GPU_S,
    USAGE_COLUMNS,
    USE_NAMES,
    Holdings,
    Records,
    build,
)
from equipoise.sim.ledger.timeline import Timeline

POWER = NodePower(np.array([10.0, 20.0]), np.array([110.0, 220.0]), np.array([5.0, 7.0]))
NODE_OF_GPU = np.array([0, 0, 1])
FIRST = 9
"""Numbers of a segment before its uses."""


class Demand:
    """Jobs that arrive at 2, 3 and 7 s."""

    arrival_s = np.array([2.0, 3.0, 7.0])
    id = np.array([40, 10, 30])

    def __len__(self) -> int:
        return 3


def holding(*gpu: int, share: float = 1.0) -> Holding:
    on = np.array(gpu)
    return Holding(on, np.full(len(gpu), share), np.unique(NODE_OF_GPU[on]), share * len(gpu))


def timeline(*, can_lose: bool = True) -> Any:
    """On two nodes, of two GPUs and of one; `added` lists what is charged."""
    cluster: Any = SimpleNamespace(nodes=SimpleNamespace(gpus=np.array([2, 1])))
    demand: Any = Demand()
    made: Any = Timeline(
        demand, cluster, Meter(POWER, NODE_OF_GPU, np.ones(3), None, varies=False), can_lose=can_lose
    )
    made.added = []
    made.usage = SimpleNamespace(
        add=lambda start, end, column, amount: (
            made.added.append((start, end, int(column), amount)) if amount else None
        )
    )
    return made


class Job:
    """A training job in a row."""

    rigid = False

    def __init__(self, row: int = 1) -> None:
        self.row, self.gpu_s, self.computed_gpu_s = row, np.zeros(len(Use)), 0.0
        self.traffic, self.booked_until_s, self.sent = (0, 0), 0.0, 0.0

    def did(self, until_s: float = 0.0, **uses: float) -> Job:
        """So much more of each use."""
        for name, amount in uses.items():
            self.gpu_s[Use[name.upper()]] += amount
        self.computed_gpu_s += uses.get("busy", 0.0)
        self.booked_until_s = until_s
        return self

    def not_metered(self) -> tuple[Any, Any]:
        return np.zeros(0, dtype=np.int64), np.zeros(0)

    def on_links(self, since: tuple[int, int]) -> tuple[float, Any, Any]:
        volume = 3.0 * (self.traffic[0] - since[0])
        return volume, np.array([4, 9]), volume * np.array([0.5, 2.0])


def segments(made: Any) -> list[list[float]]:
    return np.array(made._segments).reshape(-1, ROW_FIELDS).tolist()


def charged(made: Any, *columns: int) -> list[tuple[float, float, int, float]]:
    return [what for what in made.added if what[2] in columns]


# --- jobs ------------------------------------------------------------------------------------------------


def test_a_job_waits_from_its_arrival_or_its_last_end_until_it_gets_gpus() -> None:
    made, job = timeline(), Job()
    made.began(job, holding(2), 4.5)
    made.ended(job, "preempted", 9.0)
    made.began(job, holding(1, 0), 9.0)
    made.ended(job, "completed", 11.0)
    made.began(job, holding(0), 13.0)
    assert [row[:FIRST] for row in segments(made)] == [
        [1, 0, 0, 3.0, 4.5, 0, 0, -1, REASONS.index("started")],
        [1, 1, 1, 4.5, 9.0, 1, 1, 2, REASONS.index("preempted")],
        [1, 2, 1, 9.0, 11.0, 2, 1, 0, REASONS.index("completed")],
        [1, 3, 0, 11.0, 13.0, 0, 0, -1, REASONS.index("started")],
    ]
    assert charged(made, QUEUED) == [(3.0, 4.5, QUEUED, 1.5), (11.0, 13.0, QUEUED, 2.0)]
    assert charged(made, RUNNING) == [(4.5, 9.0, RUNNING, 4.5), (9.0, 11.0, RUNNING, 2.0)]
    assert made._open[1].segment == 4
    first = timeline()
    first.began(Job(2), holding(0), 7.0)
    assert segments(first) == []


def test_what_a_segment_was_used_for_is_what_was_booked_since_it_began() -> None:
    made, job = timeline(can_lose=False), Job().did(busy=50.0, restart=5.0)
    made.began(job, holding(0, 2), 4.0)
    job.did(busy=8.0, input_stall=3.0, restart=2.0, useful=99.0)
    made.ended(job, "resized", 10.0)
    uses = segments(made)[-1][FIRST:]
    assert len(uses) == HELD
    assert [uses[use] for use in (BUSY, INPUT_STALL, RESTART, LOST_TO_FAULTS)] == [8.0, 3.0, 2.0, 0.0]
    assert segments(made)[-1][5:8] == [2, 2, 0]
    assert charged(made, BUSY, INPUT_STALL, RESTART) == [
        (4.0, 10.0, BUSY, 8.0), (4.0, 10.0, INPUT_STALL, 3.0), (4.0, 10.0, RESTART, 2.0),
    ]  # fmt: skip
    assert charged(made, DYNAMIC_J) == [(4.0, 10.0, DYNAMIC_J, 800.0)]


def test_what_is_new_is_charged_from_look_to_look() -> None:
    made, job = timeline(can_lose=False), Job()
    made.looked_at(job, 5.0)  # it does not run
    made.began(job, holding(0), 4.0)
    made.looked_at(job.did(6.0, busy=1.5), 6.5)
    made.looked_at(job, 7.0)  # nothing new
    job.traffic = (2, 0)
    made.looked_at(job.did(8.0, busy=2.0), 7.9)  # booked for later
    made.looked_at(job, 8.0)
    job.traffic = (5, 0)
    made.ended(job.did(9.0, busy=0.25), "completed", 9.5)
    assert charged(made, BUSY) == [(4.0, 6.0, BUSY, 1.5), (6.0, 8.0, BUSY, 2.0), (8.0, 9.5, BUSY, 0.25)]
    assert [what[3] for what in charged(made, DYNAMIC_J)] == [150.0, 200.0, 25.0]
    assert charged(made, NETWORK_BYTES) == [(6.0, 8.0, NETWORK_BYTES, 6.0), (8.0, 9.5, NETWORK_BYTES, 9.0)]
    made.network.flush()
    assert made._link_column == {4: 0, 9: 1}
    assert made.network.totals.sum(axis=0).tolist() == [7.5, 30.0] + [0.0] * 6


def test_work_is_not_charged_before_a_checkpoint_that_holds_it_is_written() -> None:
    made, job = timeline(), Job()
    made.began(job, holding(0), 4.0)
    made.looked_at(job.did(6.0, busy=1.5), 6.0)
    made.checkpointing(job.did(7.0, busy=0.5), 7.0)
    made.looked_at(job.did(9.0, busy=3.0), 9.0)
    assert charged(made, BUSY) == []
    made.checkpointed(job, 9.5)
    assert charged(made, BUSY) == [(4.0, 6.0, BUSY, 1.5), (6.0, 7.0, BUSY, 0.5)]
    made.checkpointing(job, 9.6)  # nothing new was booked
    job.gpu_s[BUSY] -= 3.0
    job.gpu_s[LOST_TO_FAULTS] += 3.0
    made.ended(job, "fault", 10.0)
    assert charged(made, BUSY)[2:] == []
    assert charged(made, LOST_TO_FAULTS) == [(7.0, 9.0, LOST_TO_FAULTS, 3.0)]
    assert segments(made)[-1][FIRST + BUSY] == 2.0
    assert segments(made)[-1][FIRST + LOST_TO_FAULTS] == 3.0


def test_a_fault_takes_back_all_kinds_of_work_but_no_restart() -> None:
    made, job = timeline(), Job()
    made.began(job, holding(0), 4.0)
    made.looked_at(job.did(6.0, busy=1.5, exposed_communication=0.25, restart=0.75), 6.0)
    made.checkpointing(job, 6.0)
    made.looked_at(job.did(9.0, input_stall=2.0), 9.0)
    job.gpu_s[[BUSY, EXPOSED_COMMUNICATION, INPUT_STALL]] = 0.0
    job.gpu_s[LOST_TO_FAULTS] = 1.5 + 0.25 + 2.0 + 0.5
    made.ended(job, "fault", 10.0)
    assert charged(made, LOST_TO_FAULTS) == [
        (4.0, 6.0, LOST_TO_FAULTS, 1.75), (6.0, 9.0, LOST_TO_FAULTS, 2.0), (9.0, 10.0, LOST_TO_FAULTS, 0.5),
    ]  # fmt: skip
    assert charged(made, RESTART) == [(4.0, 6.0, RESTART, 0.75)]
    assert charged(made, BUSY, INPUT_STALL, EXPOSED_COMMUNICATION) == []


def test_what_a_fault_takes_back_beyond_a_segment_is_lost_in_those_before_the_last_first() -> None:
    made, job = timeline(), Job()
    made.began(job, holding(0, 1, 2), 4.0)
    made.regrouped(job.did(6.0, busy=5.0, input_stall=1.0), holding(0, 2), 6.0)
    made.regrouped(job.did(8.0, busy=3.0), holding(2), 8.0)
    job.did(9.0, busy=0.5)
    job.gpu_s[BUSY], job.gpu_s[INPUT_STALL], job.gpu_s[LOST_TO_FAULTS] = 1.0, 0.25, 8.25
    made.ended(job, "fault", 9.0)
    rows = [row for row in segments(made) if row[2]]
    assert [row[1] for row in rows] == [1, 2, 3]
    assert [row[5:8] for row in rows] == [[3, 2, 0], [2, 2, 0], [1, 1, 2]]
    assert [row[FIRST + BUSY] for row in rows] == [1.0, 0.0, 0.0]
    assert [row[FIRST + INPUT_STALL] for row in rows] == [0.25, 0.0, 0.0]
    assert [row[FIRST + LOST_TO_FAULTS] for row in rows] == pytest.approx([4.75, 3.0, 0.5])
    assert charged(made, RUNNING) == [
        (4.0, 6.0, RUNNING, 2.0), (6.0, 8.0, RUNNING, 2.0), (8.0, 9.0, RUNNING, 1.0),
    ]  # fmt: skip


def test_many_looks_without_a_checkpoint_are_kept_in_pairs() -> None:
    made, job = timeline(), Job()
    made.began(job, holding(0), 3.0)
    for k in range(63):
        made.looked_at(job.did(4.0 + k, busy=k + 1.0), 99.0)
    assert len(made._open[1].unsaved) == 63
    made.looked_at(job.did(67.0, busy=64.0), 99.0)
    kept = made._open[1].unsaved
    assert len(kept) == 32
    assert [(s.start_s, s.end_s, s.gpu_s[BUSY]) for s in (kept[0], kept[1], kept[31])] == [
        (3.0, 5.0, 3.0), (5.0, 7.0, 7.0), (65.0, 67.0, 127.0),
    ]  # fmt: skip


# --- nodes, links, replicas ------------------------------------------------------------------------------


def test_a_node_is_down_from_when_the_run_begins_on() -> None:
    made = timeline()
    made.node_down(1, 0.5)
    made.node_up(1, 6.0)
    made.node_down(0, 8.0)
    made.node_up(0, 11.0)
    assert made.added == [
        (2.0, 6.0, DOWN_GPU_S, 4.0), (2.0, 6.0, DOWN_J, 4.0 * 27.0),
        (8.0, 11.0, DOWN_GPU_S, 6.0), (8.0, 11.0, DOWN_J, 3.0 * 25.0),
    ]  # fmt: skip


def test_transfers_are_on_all_their_links_while_they_flow() -> None:
    made = timeline()
    for k in range(5):
        transfer: Any = SimpleNamespace(
            size_bytes=10.0 + k, begin_s=3.0 + k, links=np.array([20 + k, 7, 30 + k])
        )
        made.transferred(transfer, 9.0 + k)
    assert charged(made, NETWORK_BYTES) == [(3.0 + k, 9.0 + k, NETWORK_BYTES, 10.0 + k) for k in range(5)]
    made.network.flush()
    assert made._link_column == {
        20: 0, 7: 1, 30: 2, 21: 3, 31: 4, 22: 5, 32: 6, 23: 7, 33: 8, 24: 9, 34: 10,
    }  # fmt: skip
    sums = made.network.totals.sum(axis=0)
    assert sums.shape == (16,)
    assert sums[:11] == pytest.approx([10.0, 60.0, 10.0, 11.0, 11.0, 12.0, 12.0, 13.0, 13.0, 14.0, 14.0])


def test_replicas_serve_and_draw() -> None:
    made = timeline()
    assert not made._serves
    made.served(3.0, 8.0, 10.0, 70.0)
    assert made._serves
    assert made.added == [(3.0, 8.0, SERVING_GPU_S, 10.0), (3.0, 8.0, DYNAMIC_J, 70.0)]
    made.replica("chat", 3, 4.0, 9.0, holding(2))
    made.replica("chat", 2, 4.0, 9.5, holding(1, 0))
    assert made._replicas == [("chat", 3, 4.0, 9.0, 1, 1, 2), ("chat", 2, 4.0, 9.5, 2, 0, 0)]


# --- tables ----------------------------------------------------------------------------------------------


def records(**more: Any) -> Records:
    """Two seconds from 5 s on, in buckets of 1/512 s."""
    usage, network = Buckets(len(USAGE_COLUMNS), 5.0), Buckets(8, 5.0)
    usage.add(5.0, 7.0, BUSY, 4.0)
    usage.add(5.0, 7.0, SERVING_GPU_S, 0.5)
    network.add(5.0, 5.0 + 1 / 1024, 0, 6.0)
    network.add(5.0, 5.0, 1, 8.0)
    for buckets in (usage, network):
        buckets.flush()
        buckets.widen(2.0)
    held = Holdings()
    held.add(2, 0, np.array([1]), np.array([0.5]))
    held.add(0, 4, np.array([2, 0]), np.array([0.25, 1.0]))
    held.add(0, 1, np.array([1]), np.array([0.75]))
    rows = np.zeros((3, ROW_FIELDS))
    rows[:, :FIRST] = (
        (2, 0, 1, 3.0, 4.0, 1, 1, 1, 1), (0, 4, 0, 5.0, 6.0, 2, 2, 0, 2), (0, 1, 1, 6.0, 7.0, 3, 1, 2, 5),
    )  # fmt: skip
    rows[:, FIRST:] = np.arange(3 * HELD).reshape(3, HELD)
    given = {
        "segments": rows, "holdings": held, "usage": usage, "network": network, "link_column": {9: 0, 4: 1},
        "events": [(3.5, "crash", "n-0", 2.0), (4.5, "repair", "n-1", 6.0)], "end_s": 7.0,
    }  # fmt: skip
    return Records(**(given | more))


def built(found: Records) -> Any:
    demand: Any = Demand()
    topology = SimpleNamespace(
        link_name=lambda link: f"link {link}", node_names=["a-0", "b-0"],
        capacity_bytes_per_s=np.arange(12) * 100.0,
    )  # fmt: skip
    cluster: Any = SimpleNamespace(topology=topology, gpu_models=("x", "y"))

    class Gpus(list[int]):
        node, model = NODE_OF_GPU, np.array([1, 1, 0])

    cluster.gpus = Gpus(range(3))
    return build(demand, cluster, 100.0, 1.5, found)


def test_segments_and_holdings_are_in_order_of_jobs_and_segments() -> None:
    tables = built(records())
    found = tables["segments"]
    assert found["job_id"].tolist() == [40, 40, 30]
    assert found["segment"].tolist() == [1, 4, 0]
    assert found["state"].tolist() == ["running", "queued", "running"]
    assert found["end_reason"].tolist() == ["open", "preempted", "completed"]
    assert found["start_s"].tolist() == [6.0, 5.0, 3.0]
    assert (found["gpus"].tolist(), found["first_gpu"].tolist()) == ([3, 2, 1], [2, 0, 1])
    assert found[USE_NAMES[0]].tolist() == [2.0 * HELD, 1.0 * HELD, 0.0]
    assert found[USE_NAMES[HELD - 1]].tolist() == [3.0 * HELD - 1, 2.0 * HELD - 1, HELD - 1.0]
    held = tables["holdings"]
    assert held["job_id"].tolist() == [40, 40, 40, 30]
    assert held["segment"].tolist() == [1, 4, 4, 0]
    assert held["gpu"].tolist() == [1, 2, 0, 1]
    assert held["node"].tolist() == [0, 1, 0, 0]
    assert held["share"].tolist() == [0.75, 0.25, 1.0, 0.5]
    empty = Holdings().columns()
    assert [part.tolist() for part in empty] == [[], [], [], []]
    assert {name: tables["gpus"][name].tolist() for name in tables["gpus"]} == {
        "gpu": [0, 1, 2], "node": [0, 0, 1], "node_name": ["a-0", "a-0", "b-0"], "model": ["y", "y", "x"],
    }  # fmt: skip
    assert {name: tables["events"][name].tolist() for name in tables["events"]} == {
        "time_s": [3.5, 4.5], "kind": ["crash", "repair"], "subject": ["n-0", "n-1"], "value": [2.0, 6.0],
    }  # fmt: skip


def test_links_are_listed_by_number_where_they_carried_something() -> None:
    links = built(records())["links"]
    assert links["link"].tolist() == ["link 4", "link 9"]
    assert links["capacity_bytes_per_s"].tolist() == [400.0, 900.0]
    assert links["bytes"].tolist() == [8.0, 6.0]
    assert links["start_s"].tolist() == [5.0, 5.0]
    assert links["end_s"].tolist() == [5.0 + 1 / 512] * 2


def test_use_over_time_tells_of_services_where_there_are_some() -> None:
    """Three GPUs for two seconds, 4.5 GPU-seconds of them held."""
    plain, served = built(records()), built(records(serves=True))
    assert "serving_gpu_s" not in plain["usage"]
    for tables in (plain, served):
        assert tables["usage"]["idle_gpu_s"].sum() == pytest.approx(6.0 - 4.5)
        assert tables["usage"]["energy_j"].sum() == pytest.approx(1.5 * 200.0)
    assert served["usage"]["serving_gpu_s"].sum() == pytest.approx(0.5)
    assert "replicas" not in plain
    replicas = [("b", 1, 3.0, 4.0, 2, 1, 7), ("a", 2, 5.0, 6.0, 3, 0, 4)]
    found = built(records(replicas=replicas))["replicas"]
    assert {name: column.tolist() for name, column in found.items()} == {
        "service": ["a", "b"], "replica": [2, 1], "start_s": [5.0, 3.0], "end_s": [6.0, 4.0], "gpus": [3, 2],
        "node": [0, 1], "first_gpu": [4, 7],
    }  # fmt: skip


# --- money -----------------------------------------------------------------------------------------------


def test_what_a_job_held_is_charged_at_the_means_of_its_gpus() -> None:
    """GPUs of 10 and 20 W idling, at 0.5 and 0.75 USD/s: 6 GPU-seconds on both nodes, then 2 on the second."""
    accounts = CostAccounts(
        3, Meter(POWER, NODE_OF_GPU, np.ones(3), np.array([False, True]), varies=True), np.array([0.5, 0.75])
    )
    job: Any = Job(2).did(busy=100.0, restart=50.0)
    accounts.began(job, holding(0, 1, 2), 1.0)
    accounts.regrouped(job.did(busy=4.0, input_stall=2.0, useful=9.0), holding(2), 5.0)
    accounts.ended(job.did(restart=2.0), "completed", 9.0)
    assert accounts.idle_j.tolist() == pytest.approx([0, 0, 6 * 40 / 3 + 2 * 20])
    assert accounts.paid_idle_j.tolist() == pytest.approx([0, 0, 6 * 20 / 3 + 2 * 20])
    used = accounts.used_usd[2]
    mean = (0.5 + 0.5 + 0.75) / 3
    assert [used[use] for use in (BUSY, INPUT_STALL, RESTART)] == pytest.approx(
        [4 * mean, 2 * mean, 2 * 0.75]
    )
    assert accounts.used_usd[:2].sum() == 0.0
