"""What a run drew and cost, in numbers that can be added up by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from equipoise.sim.cluster.cluster import Holding
from equipoise.sim.cluster.power import NodePower
from equipoise.sim.cluster.throttle import Throttle, shared_clock, warmed
from equipoise.sim.hardware.carbon import emitted_kg
from equipoise.sim.hardware.contracts import Bond, of_on_demand
from equipoise.sim.job.account import BUSY, HELD, INPUT_STALL, LOST_TO_FAULTS, RESTART
from equipoise.sim.job.state import TrainingState
from equipoise.sim.ledger.bill import Biller
from equipoise.sim.ledger.buckets import BUCKETS, FIRST_WIDTH_S, Buckets
from equipoise.sim.ledger.late import HeldLate
from equipoise.sim.ledger.meter import Meter, mean_over
from equipoise.sim.ledger.serving import ServingAccount
from equipoise.sim.ledger.tables import DOWN_GPU_S, DOWN_J, DYNAMIC_J, QUEUED, RUNNING, USAGE_COLUMNS, _usage
from equipoise.sim.ledger.timeline import Timeline
from equipoise.sim.scenario.money import Terms
from tests.scenarios import model, scenario, simulate

POWER = NodePower(np.array([10.0, 20.0]), np.array([110.0, 220.0]), np.array([5.0, 0.0]))
NODE_OF_GPU = np.array([0, 0, 1])
SPAN_S = 100.0


def meter(pays: Any = None, *, varies: bool = False) -> Meter:
    """Two nodes: of two GPUs from 10 to 110 W and 5 W beside, and of one from 20 to 220 W."""
    return Meter(POWER, NODE_OF_GPU, np.ones(2), None if pays is None else np.array(pays), varies=varies)


def holding(gpu: list[int], share: list[float]) -> Holding:
    on = np.array(gpu)
    return Holding(on, np.array(share), np.unique(NODE_OF_GPU[on]), sum(share))


def biller(metered: Meter, accounts: Any = None, **prices: Any) -> Biller:
    given = {
        "usd_per_gpu_s": np.array([0.01, 0.02]),
        "usd_per_h": np.array([72.0, 36.0]),
        "usd_per_j": 1e-3,
        "usd_per_byte_s": 1e-3,
        "pays_energy": None,
        "bonds": [],
    }
    data = SimpleNamespace(samples=10, sample_size=5.0, replicas=2)
    demand: Any = SimpleNamespace(training={0: SimpleNamespace(data=data), 1: SimpleNamespace(data=None)})
    cluster: Any = SimpleNamespace(nodes=SimpleNamespace(gpus=np.array([2, 1])))
    found: Any = SimpleNamespace(**(given | prices))
    return Biller(cluster, demand, found, metered, accounts, 1.5)


def billed(made: Biller, serving: ServingAccount | None = None, **more: Any) -> tuple[Any, Any]:
    gpu_s = np.zeros((2, HELD))
    gpu_s[0, [BUSY, RESTART]], gpu_s[1, [BUSY, INPUT_STALL]] = (6.0, 2.0), (2.0, 1.0)
    gpu_s[0, BUSY] += more.get("more_s", 0.0)
    down_s = unpaid_s = np.array([10.0, 0.0])
    return made.bill(gpu_s, np.array([7.0, 3.0]), down_s, unpaid_s, SPAN_S, serving)


def test_a_bill_on_equal_gpus() -> None:
    """Computing draws 100 W beyond 10 W; 8 and 3 GPU-seconds held, 7 and 3 computed; the site takes half more."""
    jobs, totals = billed(biller(meter(), bonds=[Bond(10.0, 4.0, 60.0), Bond(1.0, 0.0, 100.0)]))
    assert jobs["energy_j"] == pytest.approx([1.5 * (700 + 80), 1.5 * (300 + 30)])
    assert jobs["cost_usd"] == pytest.approx([0.08 + 1.17, 0.03 + 0.495])
    standing_j = 25 * 90 + 20 * 100
    gpu_usd = (108 * 100 - 72 * 10) / 3600
    assert totals == pytest.approx(
        {
            "energy_j": 1.5 * (standing_j + 1000),
            "down_gpu_s": 20,
            "gpu_usd": gpu_usd,
            "energy_usd": 1.5e-3 * (standing_j + 1000),
            "storage_usd": 100 * 1e-3 * 100,
            "idle_usd": gpu_usd - 0.11,
            "input_stall_usd": 0.01,
            "barrier_wait_usd": 0,
            "exposed_communication_usd": 0,
            "pipeline_bubble_usd": 0,
            "tensor_exchange_usd": 0,
            "restart_usd": 0.02,
            "lost_to_faults_usd": 0,
            "committed_usd": 21,
            "upfront_usd": 8,
            "cost_usd": gpu_usd + 7.875 + 10,
        }
    )
    free = biller(meter(), usd_per_j=None, usd_per_byte_s=None)
    jobs, totals = billed(free)
    assert jobs["cost_usd"] == pytest.approx([0.08, 0.03])
    assert (totals["energy_usd"], "committed_usd" in totals) == (0.0, False)
    assert math.isnan(totals["storage_usd"])
    free.demand.training.pop(0)
    assert billed(free)[1]["storage_usd"] == 0.0
    gpu_s = gpu_usd / 0.01 - 11
    assert billed(free, more_s=gpu_s * (1 + 1e-10))[1]["idle_usd"] == 0.0  # rounding
    assert billed(free, more_s=gpu_s * (1 - 1e-8))[1]["idle_usd"] > 0.0


def test_electricity_of_owned_nodes_alone_is_paid_and_that_of_services() -> None:
    """The first node's is paid: of 10 and 20 J computing and 4 and 2 J idling; a service drew 100 J, 50 J of it."""
    metered = meter([True, False])
    metered.dynamic_j[:], metered.paid_j[:] = (30.0, 40.0), (10.0, 20.0)
    used_usd = np.zeros((2, HELD))
    used_usd[:, BUSY] = 0.25, 0.5
    accounts = SimpleNamespace(idle_j=np.array([6.0, 3.0]), paid_idle_j=np.array([4.0, 2.0]), used_usd=used_usd)
    serving = ServingAccount(dynamic_j=100.0, idle_j=10.0, paid_dynamic_j=50.0, paid_idle_j=5.0, usd=0.75)
    made = biller(metered, accounts, pays_energy=np.array([True, False]))
    jobs, totals = billed(made, serving)
    assert jobs["energy_j"] == pytest.approx([1.5 * 36, 1.5 * 43])
    assert jobs["cost_usd"] == pytest.approx([0.25 + 1.5e-3 * 14, 0.5 + 1.5e-3 * 22])
    assert totals["energy_j"] == pytest.approx(1.5 * (4250 + 70 + 100))
    assert totals["energy_usd"] == pytest.approx(1.5e-3 * (2250 + 30 + 50))
    assert totals["idle_usd"] == pytest.approx(2.8 - 0.75 - 0.75)
    assert totals["serving_usd"] == 0.75
    assert made.service_bill(serving) == pytest.approx((165, 0.75 + 1.5e-3 * 55))
    assert biller(metered, usd_per_j=None).service_bill(serving) == pytest.approx((165, 0.75))


def test_what_is_metered_of_computing() -> None:
    """At half the clock an eighth of 100 and 200 W; a holding on two nodes is metered by its shares."""
    found = meter([True, False], varies=True)
    found.computed(0, np.array([0, 1]), np.array([2.0, 3.0]))
    assert (found.dynamic_j[0], found.paid_j[0]) == (800, 200)
    found.set_clock(np.array([0.5, 1.0]))
    assert found.busy_w.tolist() == [12.5, 200]
    both = holding([1, 2], [0.125, 0.375])
    assert mean_over(POWER.idle_w, both, NODE_OF_GPU) == 0.25 * 10 + 0.75 * 20
    found.computed_evenly(1, both, 4.0)
    assert (found.dynamic_j[1], found.paid_j[1]) == (4 * (0.25 * 12.5 + 150), 4 * 0.25 * 12.5)
    found.computed_evenly(1, holding([2], [0.5]), 1.0)
    assert found.dynamic_j[1] == 612.5 + 200
    assert found.drawn_j(0, 99.0) == 800
    assert found.would_draw_j(1, np.array([0, 1]), np.array([1.0, 2.0])) == 412.5
    alike = meter()
    assert (alike.drawn_j(0, 3.0), alike.would_draw_j(0, np.array([0]), np.array([1.0]))) == (300, 0)
    account = ServingAccount()
    for node in (0, 1):
        account.book(found, np.array([0.5, 0.25]), node, 8.0, 2.0)
    assert account == ServingAccount(16, 4, 425, 240, 25, 80, 6)
    assert ServingAccount.total([account, account]) == ServingAccount(32, 8, 850, 480, 50, 160, 12)
    everywhere = ServingAccount()
    assert everywhere.book(alike, np.array([0.5, 0.25]), 1, 1.0, 1.0) == 200
    assert (everywhere.paid_dynamic_j, everywhere.paid_idle_j) == (200, 20)


def test_gpu_time_held_after_the_last_arrival() -> None:
    late = HeldLate(10.0)
    for row, (begin_s, end_s, gpus, held) in enumerate(
        ((0, 8, 1, 0), (0, 10, 1, 0), (5, 20, 2, 20), (12, 15, 2, 6), (10, 11, 1, 1))
    ):
        job: Any = SimpleNamespace(row=row)
        late.began(job, holding([0] * gpus, [1.0] * gpus), begin_s)
        before = late.gpu_s
        late.ended(job, "completed", end_s)
        assert late.gpu_s - before == held
    job = SimpleNamespace(row=9)
    late.began(job, holding([0, 1], [1.0, 1.0]), 11.0)
    late.regrouped(job, holding([0], [0.5]), 13.0)
    late.ended(job, "completed", 15.0)
    assert late.gpu_s == 27 + 4 + 1


def test_carbon_of_energy_by_the_hour() -> None:
    """100 g/kWh in the first hour, 300 in the second, 700 in the last: half an hour of each of two."""
    day = np.zeros(24)
    day[[0, 1, 23]] = 100.0, 300.0, 700.0

    def kg(start_s: float, end_s: float, begin_s: float = 0.0) -> float:
        return emitted_kg(np.array([start_s]), np.array([end_s]), np.array([7.2e6]), day, begin_s)

    assert kg(1800, 5400) == pytest.approx(0.4)
    assert kg(0, 3600, 23 * 3600) == pytest.approx(1.4)
    assert kg(0, 7200, 23 * 3600) == pytest.approx(0.8)
    assert kg(0, 3 * 86_400) == pytest.approx(2 * 1100 / 24 / 1000)
    assert kg(1800, 1800.5) == pytest.approx(0.2)
    assert kg(1800, 1800) == 0.0


def test_a_contract_is_due_once_more_when_its_term_is_over() -> None:
    bond = Bond(10.0, 4.0, 100.0)
    assert [bond.due(span_s) for span_s in (0.0, 100.0, 100.1, 200.0)] == [(10, 4), (10, 4), (20, 8), (20, 8)]
    half = Terms(kind="committed", gpus=4, term=365 * 86_400.0, upfront=0.5, interest=0.1)
    assert of_on_demand(half, 0.5, 8) == pytest.approx((4 * 0.5 * 1.025 + 4) / 8)
    assert of_on_demand(half, 0.5, 2) == pytest.approx(4 * 0.5 * 1.025 / 2)
    assert of_on_demand(half, 0.5, 0) == pytest.approx(4 * 0.5 * 1.025)


def test_buckets_at_their_edges() -> None:
    found = Buckets(1, 100.0)
    for length, count in ((0.0, 1), (1.0, 1), (1.5, 2), (2.0, 2), (2 * BUCKETS, BUCKETS)):
        start_s, end_s = found.edges_s(100.0 + length * FIRST_WIDTH_S)
        assert len(start_s) == count
        assert end_s[-1] == 100.0 + min(length, BUCKETS) * FIRST_WIDTH_S
    found.widen(BUCKETS * FIRST_WIDTH_S)
    assert found.width_s == FIRST_WIDTH_S
    found.widen(BUCKETS * FIRST_WIDTH_S * 1.01)
    assert found.width_s == 2 * FIRST_WIDTH_S
    for columns, there in ((1, 1), (2, 2), (3, 4), (4, 4), (9, 9)):
        found.grow(columns)
        assert found.totals.shape == (BUCKETS, there)
    found.add(100.0, 101.0, 8, 0.0)
    assert not found._buffer


def test_clocks_under_a_cap_of_the_site() -> None:
    """Two GPUs held of 100 W beyond idling each: of 120 W left 60 % of the power is had at its cube root."""
    power = NodePower(np.full(2, 10.0), np.full(2, 110.0), np.full(2, 5.0))
    one = np.ones(2)

    def clocks(cap_w: float, limit: list[float], up: Any = one, held: Any = one) -> list[float]:
        return shared_clock(power, up, held, one, np.array(limit), cap_w).tolist()

    assert clocks(150.0, [1.0, 1.0]) == pytest.approx([0.6 ** (1 / 3)] * 2)
    assert clocks(230.0, [1.0, 1.0]) == clocks(999.0, [1.0, 1.0]) == [1.0, 1.0]
    assert clocks(150.0, [0.5, 1.0]) == [0.5, 1.0]  # 12.5 W of one leave all for the other
    assert clocks(80.0, [0.5, 1.0]) == pytest.approx([0.5, 0.375 ** (1 / 3)])
    assert clocks(80.0, [1.0, 1.0], held=np.array([0.0, 1.0])) == pytest.approx([1.0, 0.5 ** (1 / 3)])
    assert clocks(65.0, [1.0, 1.0], up=np.array([0.0, 1.0])) == pytest.approx([1.0, 0.5 ** (1 / 3)])
    assert clocks(20.0, [1.0, 1.0]) == [0.0, 0.0]
    warm = warmed(np.array([20.0, 20.0]), np.array([60.0, 20.0]), np.array([10.0, 10.0]), 10.0)
    assert warm == pytest.approx([60 - 40 / math.e, 20])


def test_heat_moves_clocks_that_differ_and_ends_at_the_highest() -> None:
    """By less than a thousandth a clock stays as it is, but for the last step back to 1."""
    told: list[Any] = []
    made: Any = object.__new__(Throttle)
    made.hot = np.array([1.0, 0.9, 0.9995, 0.8])
    made._share_out = lambda _: told.append("shared")
    made.computing = SimpleNamespace(
        happened=lambda kind, node, value: told.append((kind, node, value)), event=lambda: told.append("event")
    )
    made._set_hot(np.array([1.0, 0.9005, 0.9995, 0.8]))
    assert told == []
    made._set_hot(np.array([0.9, 0.9, 1.0, 0.7]))
    assert made.hot.tolist() == [0.9, 0.9, 1.0, 0.7]
    assert told == ["shared", ("throttle", 0, 0.9), ("throttle_end", 2, 1.0), "event"]
    told.clear()
    made._set_hot(np.array([0.9, 0.9, 1.0, 0.6]))
    assert told == ["shared"]  # a clock moves, and nothing begins or ends


def test_a_replica_draws_power_on_all_of_its_nodes() -> None:
    """Half on an H100's node and half on an A10's, whichever node comes first."""

    def energy_j(*kinds: str) -> float:
        nodes = [{"name": kind, "accelerator": kind} for kind in kinds]
        jobs = [{"gpus": 2, "model": "m", "steps": 40, "global_batch": 100}]
        models = {"m": model(parallel={"pipeline": 2})}
        case = scenario(cluster={"nodes": nodes}, workload={"models": models, "jobs": jobs})
        return float(simulate(case).jobs["energy_j"][0])

    assert energy_j("h100_sxm", "a10") == pytest.approx(energy_j("a10", "h100_sxm"))


def test_a_duration_job_first_starts_then_computes_and_what_is_lost_was_last() -> None:
    """Two GPUs from 10 to 20 s: 5 GPU-seconds to start, 5 lost at the end."""
    told: dict[int, tuple[float, float, float]] = {}

    def charged(used: dict[int, float]) -> dict[int, tuple[float, float, float]]:
        told.clear()
        made: Any = object.__new__(Timeline)
        made.meter = meter()
        made.usage = SimpleNamespace(add=lambda start, end, column, amount: told.update({column: (start, end, amount)}))
        opened: Any = SimpleNamespace(start_s=10.0, holding=holding([0, 1], [1.0, 1.0]))
        made._charge_rigid(0, opened, 20.0, [used.get(use, 0.0) for use in range(HELD)])
        return dict(told)

    assert charged({BUSY: 10.0, RESTART: 5.0, LOST_TO_FAULTS: 5.0}) == {
        RESTART: (10, 12.5, 5),
        LOST_TO_FAULTS: (17.5, 20, 5),
        BUSY: (12.5, 17.5, 10),
        DYNAMIC_J: (12.5, 20, 1500),
    }
    assert charged({BUSY: 20.0}) == {BUSY: (10, 20, 20), DYNAMIC_J: (10, 20, 2000)}
    assert charged({RESTART: 30.0})[RESTART] == (10, 20, 30)


def test_use_over_time_by_hand() -> None:
    """Half a second, in buckets of 1/1024 s: of four GPUs three are held, two jobs run and one waits."""
    usage = Buckets(len(USAGE_COLUMNS), 0.0)
    for column, amount in (
        (BUSY, 1.5),
        (RUNNING, 1.0),
        (QUEUED, 0.5),
        (DOWN_GPU_S, 0.25),
        (DYNAMIC_J, 8.0),
        (DOWN_J, 2.0),
    ):
        usage.add(0.0, 0.5, column, amount)
    usage.flush()
    found = _usage(4, 100.0, 1.5, usage, 0.5, serves=False)
    assert len(found["start_s"]) == 512
    for name, value in (
        ("jobs_running", 2),
        ("jobs_waiting", 1),
        ("idle_gpu_s", 0.25 / 512),
        ("energy_j", 1.5 * 56 / 512),
    ):
        assert found[name] == pytest.approx(np.full(512, value)), name
    assert "serving_gpu_s" not in found


def test_what_exchanges_carry_since_they_were_last_looked_at() -> None:
    """Two more exchanges of all workers, of 10 bytes, half of them over the first link, and one of near ones."""
    job: Any = object.__new__(TrainingState)
    far = SimpleNamespace(volume_bytes=10.0, links=np.array([3, 4]), usage=np.array([0.5, 1.0]))
    near = SimpleNamespace(volume_bytes=8.0, links=np.array([7]), usage=np.array([0.25]))
    job.config = SimpleNamespace(exchange=far, near=near, asynchronous=False)
    job.progress = SimpleNamespace(account=SimpleNamespace(exchanges=7, near_exchanges=2))
    assert job.traffic == (5, 2)
    volume, links, amounts = job.on_links((3, 1))
    assert (volume, links.tolist(), amounts.tolist()) == (28, [3, 4, 7], [10, 20, 2])
    volume, links, amounts = job.on_links((4, 2))
    assert (volume, links.tolist(), amounts.tolist()) == (10, [3, 4], [5, 10])
