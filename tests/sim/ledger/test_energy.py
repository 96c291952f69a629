"""Energy, power caps and heat: by hand, against plain integration, and the same in both time advances."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.sim.cluster import power
from equipoise.sim.cluster.power import EXPONENT, NodePower, clock_under_cap
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading import checks_energy
from equipoise.sim.loading.file import from_mapping
from equipoise.sim.scenario.model import Scenario
from equipoise.sim.scenario.tree import InputError
from equipoise.sim.world.throttle import shared_clock, warmed
from tests.scenarios import cases, model, scenario, simulate
from tests.sim.advance.test_advance import assert_equal
from tests.sim.ledger.test_timeline import assert_kept

CHECKS = settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
GENERIC_IDLE_W, GENERIC_MAX_W = 40.0, 400.0
WATTS = st.floats(1.0, 900.0)


@pytest.fixture(scope="module", autouse=True)
def _hosts_that_draw_nothing() -> Iterator[None]:
    """What is counted by hand here is GPUs; hosts draw what a group says."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (power, checks_energy):
            patch.setattr(module, "host_w", lambda group, profile: group.host_power or 0.0)
        yield


def training(**keys: Any) -> dict[str, Any]:
    return {"gpus": 2, "model": "m", "steps": 100, "global_batch": 20} | keys


def case(**sections: Any) -> Scenario:
    base = {"workload": {"models": {"m": model()}, "jobs": [training()]}}
    return scenario(**(base | sections))


# -- energy ----------------------------------------------------------------------------------------------------


def test_energy_is_idle_power_and_what_computing_adds() -> None:
    made = simulate(case(energy={"pue": 1.5}))  # 100 steps of 0.1 s on both GPUs
    assert made.totals["energy_j"] == pytest.approx(1.5 * 2 * 10.0 * GENERIC_MAX_W)
    assert made.jobs["energy_j"].sum() == pytest.approx(made.totals["energy_j"])


def test_waiting_and_idling_gpus_draw_idle_power_and_hosts_theirs() -> None:
    nodes = [{"name": "fast"}, {"name": "slow", "speed": 0.5}, {"name": "spare"}]
    made = simulate(case(cluster={"nodes": [node | {"host_power": 100.0} for node in nodes]}, energy={"pue": 1.0}))
    gpus_w = (GENERIC_MAX_W + GENERIC_IDLE_W) / 2 + GENERIC_MAX_W + GENERIC_IDLE_W  # half waiting, busy, idle
    assert made.totals["energy_j"] == pytest.approx(20.0 * (gpus_w + 300.0))
    assert made.jobs["energy_j"][0] == pytest.approx(20.0 * (gpus_w - GENERIC_IDLE_W))


def test_a_node_that_is_down_draws_nothing() -> None:
    event = {"kind": "crash", "node": "node-1", "at": 2.0, "duration": 3.0}
    rigid = {"gpus": 1, "duration": 10.0}
    made = simulate(scenario(workload={"jobs": [rigid]}, faults={"events": [event]}, energy={"pue": 1.0}))
    assert made.totals["energy_j"] == pytest.approx(10.0 * GENERIC_MAX_W + 7.0 * GENERIC_IDLE_W)


def test_work_that_a_crash_takes_back_has_been_paid_for_in_energy() -> None:
    event = {"kind": "crash", "node": "node-0", "at": 4.05, "duration": 1000.0}
    sections = {
        "cluster": {"nodes": [{"count": 3}]},
        "workload": {"models": {"m": model()}, "jobs": [training(checkpoint={"interval": "never", "size": 0.0})]},
        "faults": {"events": [event]},
        "restart": {"detection": 5.0, "initialisation": 1.0},
        "energy": {"pue": 1.0},
    }
    made = simulate(case(**sections))
    computed_gpu_s = 2 * (4.05 + 10.0)
    span_s = made.totals["makespan_s"]
    idle_j = GENERIC_IDLE_W * (2 * span_s + 4.05)  # the first node is up until it crashed
    assert span_s == pytest.approx(4.05 + 6.0 + 10.0)
    assert made.totals["energy_j"] == pytest.approx(idle_j + 360.0 * computed_gpu_s)


MIXED: dict[str, Any] = {
    "nodes": [{"name": "a", "accelerator": "a100_sxm_80gb"}, {"name": "h", "accelerator": "h100_sxm"}]
}


def test_unlike_gpus_each_draw_their_own() -> None:
    profile = load_profile("catalogue")
    a, h = profile.accelerator("a100_sxm_80gb"), profile.accelerator("h100_sxm")
    made = simulate(case(cluster=MIXED, energy={"pue": 1.0}))
    assert made.totals["energy_j"] == pytest.approx(10.0 * (float(a.max_w) + float(h.max_w)))
    lone = scenario(cluster=MIXED, workload={"jobs": [{"gpus": 1, "duration": 10.0}]}, energy={"pue": 1.0})
    held = simulate(lone)
    assert held.totals["energy_j"] == pytest.approx(10.0 * (float(a.max_w) + float(h.idle_w)))
    assert held.jobs["energy_j"][0] == pytest.approx(10.0 * float(a.max_w))


def test_what_the_profile_does_not_state_is_not_known() -> None:
    made = simulate(case(cluster={"nodes": [{"count": 2, "accelerator": "tpu_v5e"}]}))
    assert math.isnan(made.summary()["energy_j"])
    assert made.summary()["cost_usd"] > 0.0


def heated(base: Scenario, energy: dict[str, Any], thermal: dict[str, Any] | None) -> Scenario:
    raw = base.model_dump() | {"energy": energy, "thermal": thermal}
    return Scenario.model_validate(raw)


@CHECKS
@given(
    cases(),
    st.sampled_from([{"power_cap": 150.0}, {"cluster_power_cap": 900.0}, {"ambient": 55.0}]),
    st.sampled_from(["fifo", "s1+s2+fifo", "srtf", "s1+s2+s3+s4"]),
    st.integers(0, 2),
)
def test_both_time_advances_agree_under_caps_and_heat(
    base: Scenario, energy: dict[str, Any], policy: str, seed: int
) -> None:
    hot = {"every": 4.1} if "ambient" in energy else None
    ready = heated(base, energy, hot)
    fast = simulate(ready, policy, seed, timeline=True)
    assert_equal(fast, simulate(ready, policy, seed, event_by_event=True))
    assert_kept(fast)


@CHECKS
@given(cases(), st.sampled_from(["fifo", "srtf", "s1+s2+s3+s4"]))
def test_booking_stretch_by_stretch_equals_the_accounts(base: Scenario, policy: str) -> None:
    """A price that differs by nothing that matters makes every stretch be booked by itself."""
    group = base.cluster.nodes[0]
    other = [g.model_copy(update={"price": 1.0 * g.gpus}) for g in base.cluster.nodes]
    same = base.model_copy(update={"cluster": base.cluster.model_copy(update={"nodes": tuple(other)})})
    other[0] = group.model_copy(update={"price": (1.0 + 1e-12) * group.gpus})
    booked = base.model_copy(update={"cluster": base.cluster.model_copy(update={"nodes": tuple(other)})})
    a, b = simulate(same, policy), simulate(booked, policy)
    for name in ("energy_j", "cost_usd"):
        np.testing.assert_allclose(b.jobs[name], a.jobs[name], rtol=1e-9, atol=1e-9)
        assert b.totals[name] == pytest.approx(a.totals[name], rel=1e-9)
    assert b.totals["idle_usd"] == pytest.approx(a.totals["idle_usd"], rel=1e-6, abs=1e-9)


# -- power caps ------------------------------------------------------------------------------------------------


@given(WATTS, WATTS, st.floats(0.001, 2.0))
def test_a_capped_gpu_draws_its_cap(idle_w: float, span_w: float, share: float) -> None:
    idle, highest = np.array([idle_w]), np.array([idle_w + span_w])
    clock = clock_under_cap(idle, highest, idle_w + share * span_w)
    drawn = idle + (highest - idle) * clock**EXPONENT
    assert drawn[0] == pytest.approx(min(highest[0], idle_w + share * span_w))
    with pytest.raises(ValueError, match="must be above the idle power"):
        clock_under_cap(idle, highest, idle_w)


def test_a_cap_on_each_gpu_slows_compute_and_saves_energy() -> None:
    cap_w = GENERIC_IDLE_W + 360.0 / 8
    made, free = simulate(case(energy={"power_cap": cap_w})), simulate(case())
    assert made.totals["makespan_s"] == pytest.approx(2.0 * free.totals["makespan_s"])
    assert made.totals["energy_j"] == pytest.approx(1.3 * 2 * 20.0 * cap_w)
    rigid = scenario(workload={"jobs": [{"gpus": 1, "duration": 10.0}]}, energy={"power_cap": cap_w})
    assert simulate(rigid).totals["makespan_s"] == pytest.approx(20.0)


@given(st.floats(0.05, 1.0), st.floats(0.02, 1.1))
@settings(max_examples=20)
def test_a_cap_acts_from_what_the_job_draws(share: float, left: float) -> None:
    """A job that draws 40 + share * 360 W is slowed by a cap below that only, and draws the cap then."""
    cap_w, draw_w = GENERIC_IDLE_W + 360.0 * left, GENERIC_IDLE_W + 360.0 * share
    models = {"m": model(power_share=share)}
    jobs = [training(gpus=1, global_batch=10)]
    capped, free = (
        simulate(scenario(workload={"models": models, "jobs": jobs}, energy={"pue": 1.0, **cap}))
        for cap in ({"power_cap": cap_w}, {})
    )
    seconds = free.totals["makespan_s"]
    assert capped.totals["makespan_s"] == pytest.approx(seconds * max(1.0, share / left) ** (1 / 3))
    assert free.jobs["energy_j"][0] == pytest.approx(draw_w * seconds)
    assert capped.jobs["energy_j"][0] == pytest.approx(min(cap_w, draw_w) * capped.totals["makespan_s"])


@pytest.mark.parametrize("cap", [{"power_cap": 130.0}, {"cluster_power_cap": 2 * 130.0}])
def test_a_node_takes_the_clock_of_the_job_that_draws_most(cap: dict[str, float]) -> None:
    """220 W and 58 W of 400 under 130 W each: (90/180)^(1/3) while the first is there, then no cap binds.

    Under 260 W for both 180 W are left of 180 + 18 W, and to the second alone more than it takes.
    """
    models = {"half": model(power_share=0.5), "little": model(power_share=0.05)}
    jobs = [training(model="half", gpus=1, global_batch=10), training(model="little", gpus=1, global_batch=10)]
    jobs[1]["steps"] = 2 * jobs[0]["steps"]
    nodes = {"nodes": [{"gpus": 2}]}
    both = scenario(cluster=nodes, workload={"models": models, "jobs": jobs}, energy={"pue": 1.0, **cap})
    made = simulate(both)
    clock = (0.5 if "power_cap" in cap else 180 / 198) ** (1 / 3)
    first_s = 10.0 / clock
    assert made.jobs["completion_s"].tolist() == pytest.approx([first_s, first_s + 10.0])
    assert_equal(made, simulate(both, event_by_event=True))


def test_a_cap_and_a_slow_node_multiply() -> None:
    event = {"kind": "slow", "node": "node-0", "at": 0.0, "duration": 1e4, "factor": 3.0}
    made = simulate(case(energy={"power_cap": GENERIC_IDLE_W + 360.0 / 8}, faults={"events": [event]}))
    assert made.totals["makespan_s"] == pytest.approx(60.0)


NODES = st.lists(st.tuples(WATTS, WATTS, st.booleans(), st.integers(0, 8), st.floats(0.2, 1.0)), min_size=1, max_size=6)


@given(NODES, st.floats(0.01, 1.2))
def test_a_shared_cap_is_used_up_and_not_passed(nodes: list[Any], share: float) -> None:
    idle, span, up, held, limit = (np.array(column, dtype=float) for column in zip(*nodes, strict=True))
    power = NodePower(idle, idle + span, np.full(len(nodes), 50.0))
    gpus = np.full(len(nodes), 8.0)
    idle_w = float((up * (gpus * idle + 50.0)).sum())
    most_w = float((up * held * span * limit**EXPONENT).sum())
    cap_w = idle_w + share * (most_w + 1.0)
    clock = shared_clock(power, up, held, gpus, limit, cap_w)
    drawn_w = idle_w + float((up * held * span * clock**EXPONENT).sum())
    assert (clock <= limit).all()
    assert drawn_w == pytest.approx(min(cap_w, idle_w + most_w), rel=1e-9)
    free = (up * held > 0) & (clock < limit)
    assert np.ptp(clock[free]) == pytest.approx(0.0, abs=1e-12) if free.any() else True


def test_the_cluster_cap_is_shared_by_the_gpus_that_are_held() -> None:
    jobs = [training(gpus=1, global_batch=10), training(gpus=1, global_batch=10, steps=200)]
    both = scenario(
        workload={"models": {"m": model()}, "jobs": jobs},
        energy={"cluster_power_cap": 2 * GENERIC_IDLE_W + 360.0 / 4, "pue": 1.0},
    )
    made = simulate(both)
    # Two GPUs at half speed, then one alone at (1/4)^(1/3).
    alone = 0.25 ** (1 / 3)
    assert made.jobs["completion_s"].tolist() == pytest.approx([20.0, 20.0 + 10.0 / alone])
    assert made.totals["energy_j"] == pytest.approx((2 * GENERIC_IDLE_W + 90.0) * made.totals["makespan_s"])


def test_both_time_advances_agree_when_a_clock_changes_just_as_a_period_ends() -> None:
    def job(steps: int, arrival: float = 0.0) -> dict[str, Any]:
        return training(gpus=1, global_batch=10, steps=steps, arrival=arrival)

    ready = case(
        cluster={"nodes": [{"count": 3}]},
        workload={"models": {"m": model()}, "jobs": [job(100), job(250), job(100, 3.0)]},
        energy={"cluster_power_cap": 600.0},
    )
    assert_equal(simulate(ready), simulate(ready, event_by_event=True))


# -- heat ------------------------------------------------------------------------------------------------------


@given(st.floats(0.0, 120.0), st.floats(0.0, 120.0), st.floats(1.0, 100.0), st.floats(0.0, 200.0))
def test_warming_is_what_plain_integration_gives(start_c: float, end_c: float, tau_s: float, seconds: float) -> None:
    temperature, steps = start_c, 20_000
    for _ in range(steps):
        temperature += (end_c - temperature) / tau_s * seconds / steps
    got = warmed(np.array([start_c]), np.array([end_c]), np.array([tau_s]), seconds)[0]
    assert got == pytest.approx(temperature, abs=0.05)


def test_a_hot_room_slows_down_to_where_heat_and_clock_balance() -> None:
    ambient_c, resistance, throttle_c, slope = 55.0, 0.12, 85.0, 0.02
    low, high = 0.3, 1.0
    for _ in range(60):  # the clock at which the temperature it leads to allows just that clock
        clock = (low + high) / 2
        settles_c = ambient_c + resistance * (GENERIC_IDLE_W + 360.0 * clock**3)
        low, high = (clock, high) if 1.0 - slope * (settles_c - throttle_c) > clock else (low, clock)
    long = case(workload={"models": {"m": model()}, "jobs": [training(steps=50_000)]})
    made = simulate(heated(long, {"ambient": ambient_c}, {}), timeline=True)
    assert made.totals["makespan_s"] == pytest.approx(5_000.0 / clock, rel=0.01)
    assert made.timeline is not None
    assert set(made.timeline["events"]["kind"]) == {"throttle"}


def test_a_cool_room_changes_nothing_but_the_energy_booked() -> None:
    made, free = simulate(case(thermal={})), simulate(case())
    assert made.jobs["completion_s"].tolist() == free.jobs["completion_s"].tolist()
    assert made.totals["energy_j"] == pytest.approx(free.totals["energy_j"])


def test_throttling_ends_when_the_load_ends() -> None:
    jobs = [training(steps=3_000), {"name": "later", "gpus": 1, "duration": 600.0, "arrival": 2_000.0}]
    hot = scenario(workload={"models": {"m": model()}, "jobs": jobs}, energy={"ambient": 60.0}, thermal={"every": 5.0})
    made = simulate(hot, timeline=True)
    assert made.timeline is not None
    events = made.timeline["events"]
    kinds = dict(zip(events["kind"], events["time_s"], strict=True))
    assert kinds["throttle_end"] > made.jobs["completion_s"][0]
    assert 600.0 < made.jobs["completion_s"][1] - 2_000.0 < 720.0


# -- input -----------------------------------------------------------------------------------------------------


def test_heat_needs_a_profile_that_states_its_constants() -> None:
    bare = {
        "schema_version": 1,
        "name": "x",
        "cluster": {"nodes": [{"accelerator": "tpu_v5e"}]},
        "workload": {"jobs": [{"gpus": 1, "duration": 1}]},
        "thermal": {},
    }
    with pytest.raises(InputError, match="does not state the thermal_c_per_w of tpu_v5e"):
        from_mapping(bare)
