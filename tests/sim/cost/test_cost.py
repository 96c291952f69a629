"""Prices, their order, what a run costs, and where the money went."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise.sim.hardware.contracts import HOUR_S
from equipoise.sim.hardware.prices import load_book, make_prices
from equipoise.sim.hardware.profile import load_profile
from equipoise.sim.loading.file import from_mapping, load
from equipoise.sim.record import WASTE
from equipoise.sim.scenario.model import Scenario
from equipoise.study.runs.compare import compare
from tests.scenarios import cases, model, simulate

BOOK = load_book("prices")
HOUR = {"gpus": 1, "duration": 3600.0}


def priced(cost: dict[str, Any] | None = None, nodes: list[dict[str, Any]] | None = None, **more: Any) -> Scenario:
    cluster = {"nodes": nodes or [{"count": 2, "gpus": 4, "accelerator": "h100_sxm"}]}
    given = {"cluster": cluster, "workload": {"jobs": [HOUR]}, "cost": cost or {}} | more
    return from_mapping({"schema_version": 1, "name": "case"} | given)


def usd_per_h(case: Scenario) -> list[float]:
    return make_prices(case, load_profile("catalogue")).usd_per_h.tolist()


def test_the_price_book_says_of_each_price_what_it_is_and_of_when() -> None:
    assert BOOK.date
    every = [*BOOK.gpu_hour.values(), BOOK.tariff, BOOK.storage]
    assert all(price is not None and price.value > 0 and price.source for price in every)
    assert {price.kind for price in every if price is not None} <= {"catalogue", "assumed"}
    assert BOOK.gpu_hour["h100_sxm"].kind == "catalogue"


def test_the_book_and_the_hardware_catalogue_agree() -> None:
    for name, accelerator in load_profile("catalogue").accelerators.items():
        stated = accelerator.price_usd_per_gpu_h
        assert stated is None or stated.value == BOOK.gpu_hour[name].value, name


def test_prices_in_their_order() -> None:
    listed = 4 * BOOK.gpu_hour["h100_sxm"].value
    assert usd_per_h(priced()) == [listed, listed]
    assert usd_per_h(priced({"gpu_hour": {"h100_sxm": "2 USD/h"}})) == [8.0, 8.0]
    assert usd_per_h(priced({"gpu_hour": {"h100_sxm": "2 USD/h"}, "network": "0.5 USD/h"})) == [8.5, 8.5]
    own = [{"gpus": 4, "accelerator": "h100_sxm", "price": "5 USD/h"}]
    assert usd_per_h(priced({"gpu_hour": {"h100_sxm": "2 USD/h"}}, own)) == [5.0]
    capex = {"price": "40 kUSD", "life": "5 years", "utilisation": "80 %"}
    per_hour = 40_000 / (5 * 365 * 24 * 0.8)
    assert usd_per_h(priced({"capex": {"h100_sxm": capex}})) == pytest.approx([4 * per_hour] * 2)


def test_a_rent_follows_the_network_of_its_nodes_by_the_book() -> None:
    """A port of 400 Gbit/s is 0.36 USD/h, and one is in an H100's rent of 3; 41 % of it stand above the racks.

    800 Gbit/s for 8 GPUs at 2:1: 24 - 8 * 0.36 + 2 * 0.36 * (1 - 0.41 / 2) = 21.69; one's own prices stay.
    """
    node = {"gpus": 8, "accelerator": "h100_sxm"}
    slow = node | {"nic": "100 Gbit/s", "nics": 8}
    tree = {"kind": "tree", "nodes_per_rack": 2, "oversubscription": 2}
    cases = [({}, node, 24.0), ({}, node | {"nic": "400 Gbit/s", "nics": 8}, 24.0), ({}, slow, 24 - 6 * 0.36)]
    cases += [({"network": "1 USD/h"}, slow, 25.0), ({"gpu_hour": {"h100_sxm": "2 USD/h"}}, slow, 16.0)]
    for cost, nodes, usd in cases:
        assert usd_per_h(priced(cost, [nodes])) == pytest.approx([usd])
    racks = priced({}, cluster={"nodes": [slow | {"count": 2}], "topology": tree})
    assert usd_per_h(racks) == pytest.approx([24 - 8 * 0.36 + 2 * 0.36 * 0.795] * 2)
    assert any("rents adjusted to the rate of the nodes' NICs" in note for note in simulate(racks).notes)


def test_a_book_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('name: mine\ndate: "2026-01"\ngpu_hour: {h100_sxm: 1 USD/h}\n', "utf-8")
    (tmp_path / "case.yaml").write_text(
        "schema_version: 1\nname: x\ncluster: {nodes: [{accelerator: h100_sxm}]}\n"
        "workload: {jobs: [{gpus: 1, duration: 1 h}]}\ncost: {book: ./mine.yaml}\n",
        "utf-8",
    )
    made = simulate(load(tmp_path / "case.yaml"))
    assert made.summary()["cost_usd"] == pytest.approx(1.0)
    assert any("prices of 2026-01 (catalogue, mine)" in note for note in made.notes)


# -- what a run costs ------------------------------------------------------------------------------------------


def test_the_whole_cluster_is_paid_for_as_long_as_the_run_takes() -> None:
    summary = simulate(priced({"gpu_hour": {"h100_sxm": "2 USD/h"}})).summary()
    assert summary["cost_usd"] == pytest.approx(16.0)
    assert summary["idle_usd"] == pytest.approx(14.0)
    assert summary["waste_usd"] == pytest.approx(14.0)


def test_rents_include_electricity_and_owned_gpus_do_not() -> None:
    capex = {"h100_sxm": {"price": "87600 USD", "life": "10 years"}}  # 1 USD/h
    tariff = {"tariff": "0.2 USD/kWh", "pue": 1.5}
    owned = simulate(priced({"capex": capex}, energy=tariff))
    accelerator = load_profile("catalogue").accelerator("h100_sxm")
    assert accelerator.idle_w is not None
    assert accelerator.max_w is not None
    host_w = 2 * (500.0 + 4 * 225.0)
    kwh = 1.5 * (accelerator.max_w.value + 7 * accelerator.idle_w.value + host_w) / 1000.0
    assert owned.totals["energy_j"] == pytest.approx(kwh * 3.6e6)
    assert owned.summary()["cost_usd"] == pytest.approx(8.0 + 0.2 * kwh)
    assert owned.jobs["cost_usd"][0] == pytest.approx(1.0 + 0.2 * 1.5 * accelerator.max_w.value / 1000.0)
    for energy, extra in (("included", 0.0), ("separate", 0.2 * kwh)):
        rented = simulate(priced({"gpu_hour": {"h100_sxm": "1 USD/h"}, "energy": energy}, energy=tariff))
        assert rented.summary()["cost_usd"] == pytest.approx(8.0 + extra)


def _split(owned: str, energy: str = "auto", **more: Any) -> Any:
    """Training and rigid jobs on two kinds of GPUs at 1 USD/h, of which one is owned."""
    prices: dict[str, Any] = {"energy": energy}
    for name in ("h100_sxm", "a100_sxm_80gb"):
        if name == owned:
            prices["capex"] = {name: {"price": "87600 USD", "life": "10 years"}}
        else:
            prices["gpu_hour"] = {name: "1 USD/h"}
    nodes = [
        {"name": "a", "count": 2, "gpus": 4, "accelerator": "h100_sxm", "host_power": "1 kW"},
        {"name": "b", "count": 2, "gpus": 4, "accelerator": "a100_sxm_80gb", "host_power": "500 W"},
    ]
    jobs = [
        {"name": "trains", "gpus": 8, "count": 2, "model": "m", "steps": 200, "global_batch": 640},
        {"name": "rigid", "gpus": 4, "count": 3, "spacing": 40.0, "duration": 300.0},
    ]
    workload = {"models": {"m": model(sample_time=0.02, parameters=1e8)}, "jobs": jobs}
    return simulate(
        priced(
            prices,
            nodes,
            workload=workload,
            energy={"tariff": "0.2 USD/kWh"} | more.pop("energy_is", {}),
            noise={"step_cov": 0.1},
            faults={"crash": {"mtbf": 900.0, "repair": 60.0}},
            **more,
        ),
        "easy",
    )


@pytest.mark.parametrize("more", [{}, {"energy_is": {"power_cap": "250 W"}}, {"thermal": {}}])
def test_electricity_is_charged_on_owned_nodes_only(more: dict[str, Any]) -> None:
    first, second = _split("h100_sxm", **more), _split("a100_sxm_80gb", **more)
    both = _split("h100_sxm", "separate", **more)
    usd = [made.totals["energy_usd"] for made in (first, second, both)]
    assert min(usd) > 0.0
    assert usd[0] + usd[1] == pytest.approx(usd[2], rel=1e-12)
    assert both.totals["energy_j"] == first.totals["energy_j"] == second.totals["energy_j"]
    free = _split("h100_sxm", "included", **more).jobs["cost_usd"]
    extra = [made.jobs["cost_usd"] - free for made in (first, second, both)]
    np.testing.assert_allclose(extra[0] + extra[1], extra[2], rtol=1e-9)
    assert (extra[0] > 0.0).any()


def test_a_rented_node_beside_an_owned_one_pays_no_electricity() -> None:
    node = {"gpus": 4, "accelerator": "h100_sxm", "host_power": "1 mW"}
    nodes = [{"name": name, **node} for name in ("own", "rent")]
    nodes[1]["price"] = "4 USD/h"  # the same per GPU-second
    capex = {"h100_sxm": {"price": "87600 USD", "life": "10 years"}}
    job = {"gpus": 4, "duration": 3600.0}
    made = simulate(priced({"capex": capex}, nodes, workload={"jobs": [job]}, energy={"tariff": "0.2 USD/kWh"}))
    accelerator = load_profile("catalogue").accelerator("h100_sxm")
    assert accelerator.idle_w is not None
    assert accelerator.max_w is not None
    kwh = 1.3 * 4 * accelerator.max_w.value / 1000.0  # the job is on the first node
    assert made.totals["energy_usd"] == pytest.approx(0.2 * kwh)
    assert made.jobs["cost_usd"][0] == pytest.approx(4.0 + 0.2 * kwh)
    assert made.totals["energy_j"] > kwh * 3.6e6


def test_data_is_stored_with_its_copies() -> None:
    data = {"samples": 1000, "sample_size": "1 GB", "replicas": 2}
    job = {"gpus": 2, "model": "m", "steps": 100, "global_batch": 10, "data": data}
    case = priced(
        {"gpu_hour": {"h100_sxm": "1 USD/h"}, "storage": "0.73 USD/GB-month"},
        workload={"models": {"m": model(sample_time="1 s")}, "jobs": [job]},
    )
    made = simulate(case)
    hours = made.totals["makespan_s"] / HOUR_S
    assert made.totals["storage_usd"] == pytest.approx(2 * 1000 * 0.001 * hours)
    assert made.summary()["cost_usd"] == pytest.approx(8.0 * hours + 2.0 * hours)
    assert made.summary()["cost_per_useful_sample_usd"] == pytest.approx(10.0 * hours / 1000)


@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(cases(), st.sampled_from(["fifo", "srtf", "s1+s2+s3+s4"]), st.booleans())
def test_every_dollar_is_somewhere(base: Scenario, policy: str, unlike: bool) -> None:
    """Computing that lasts, and the lines of waste, add up to the price of the GPUs; jobs to what they held."""
    nodes = tuple(g.model_copy(update={"price": 3.0 + unlike * k}) for k, g in enumerate(base.cluster.nodes))
    case = base.model_copy(update={"cluster": base.cluster.model_copy(update={"nodes": nodes})})
    made = simulate(case, policy)
    totals, summary = made.totals, made.summary()
    assert totals["gpu_usd"] == pytest.approx(
        sum(g.price * g.count for g in nodes) * totals["makespan_s"] / HOUR_S  # type: ignore[operator]
    )
    waste = {use: summary[f"{use}_usd"] for use in WASTE}
    assert summary["waste_usd"] == pytest.approx(sum(waste.values()))
    assert all(amount >= -1e-9 for amount in waste.values()), waste
    busy = totals["gpu_usd"] - summary["waste_usd"]
    assert -1e-9 <= busy <= totals["gpu_usd"] + 1e-9
    held = float(np.sum(made.jobs["cost_usd"]))
    assert held + summary["idle_usd"] == pytest.approx(totals["gpu_usd"])


def test_unlike_gpus_each_cost_their_own() -> None:
    nodes = [{"name": "a", "gpus": 1, "price": "1 USD/h"}, {"name": "b", "gpus": 2, "price": "8 USD/h"}]
    first = simulate(priced(nodes=nodes))
    assert first.jobs["cost_usd"][0] == pytest.approx(1.0)
    whole = simulate(priced(nodes=nodes, workload={"jobs": [HOUR | {"gpus": 3}]}))
    assert whole.jobs["cost_usd"][0] == pytest.approx(9.0)
    assert whole.summary()["idle_usd"] == pytest.approx(0.0, abs=1e-9)


# -- contracts -------------------------------------------------------------------------------------------------

YEAR_H = 365 * 24
LIST = BOOK.gpu_hour["h100_sxm"].value


@pytest.mark.parametrize(
    ("terms", "usd_per_gpu_h"),
    [
        ("on demand", LIST),
        ("spot", LIST * 0.35),
        ("reserved", LIST * 0.65),
        ("reserved 1 y", LIST * 0.65),
        ("Reserved 3 years", LIST * 0.45),
        ({"kind": "reserved", "term": "2 y", "discount": "40 %"}, LIST * 0.6),
        # Two years at 60 %, half of them paid first: a tenth a year on half of that half, twice.
        (
            {"kind": "reserved", "term": "2 y", "discount": 0.4, "upfront": "50 %", "interest": "10 %"},
            LIST * 0.6 * (1 + 0.5 * 0.1 * 2 / 2),
        ),
        ({"kind": "committed", "term": "3 y", "gpus": 6}, LIST * (6 * 0.54 + 2) / 8),
        ({"kind": "committed", "gpus": 16, "discount": 0.5}, LIST * 2 * 0.5),  # twice what is there
    ],
)
def test_a_contract_changes_the_price_on_demand(terms: Any, usd_per_gpu_h: float) -> None:
    case = priced({"terms": {"h100_sxm": terms}})
    assert usd_per_h(case) == pytest.approx([4 * usd_per_gpu_h] * 2, rel=1e-12)
    by_group = priced({"terms": {"node": terms, "h100_sxm": "spot"}})
    assert usd_per_h(by_group) == usd_per_h(case)


def test_an_owned_gpu_loses_value_and_binds_money() -> None:
    bought = {"price": "30 kUSD", "life": "5 y", "utilisation": "80 %", "residual": "20 %", "interest": "6 %"}
    lost = 30_000 * 0.8
    interest = 5 * 0.06 * 30_000 * (1 + 0.2) / 2
    expected = (lost + interest) / (5 * YEAR_H * 0.8)
    case = priced({"capex": {"h100_sxm": bought}})
    assert usd_per_h(case) == pytest.approx([4 * expected] * 2)
    both = {"capex": {"h100_sxm": bought}, "gpu_hour": {"h100_sxm": 2.0}}
    assert usd_per_h(priced(both | {"terms": {"h100_sxm": "owned"}})) == usd_per_h(case)
    assert usd_per_h(priced(both | {"terms": {"h100_sxm": "reserved"}})) == pytest.approx([8 * 0.65] * 2)


def test_a_contract_binds_its_whole_term_and_a_run_pays_its_hours() -> None:
    terms = {"kind": "reserved", "term": "1 y", "discount": "40 %", "upfront": "25 %"}
    prices = {"gpu_hour": {"h100_sxm": "2 USD/h"}, "terms": {"h100_sxm": terms}}
    summary = simulate(priced(prices)).summary()
    assert summary["cost_usd"] == pytest.approx(8 * 1.2)  # an hour of eight GPUs
    assert summary["committed_usd"] == pytest.approx(8 * 1.2 * YEAR_H)
    assert summary["upfront_usd"] == pytest.approx(0.25 * 8 * 1.2 * YEAR_H)
    longer = {"jobs": [HOUR | {"duration": "400 d"}]}
    assert simulate(priced(prices, workload=longer)).summary()["committed_usd"] == pytest.approx(
        2 * summary["committed_usd"]
    )
    bought = simulate(priced({"capex": {"h100_sxm": {"price": "30 kUSD"}}})).summary()
    assert bought["committed_usd"] == bought["upfront_usd"] == 8 * 30_000
    assert "committed_usd" not in simulate(priced()).summary()


def test_each_group_binds_its_part_of_a_contract() -> None:
    nodes = [
        {"name": name, "gpus": 4, "accelerator": "h100_sxm", "price": price}
        for name, price in (("a", "4 USD/h"), ("b", "12 USD/h"))
    ]
    half = {"kind": "reserved", "discount": "50 %"}
    made = simulate(priced({"terms": {"h100_sxm": half}}, nodes))
    assert made.totals["committed_usd"] == pytest.approx((4 + 12) * 0.5 * YEAR_H)
    only = simulate(priced({"terms": {"b": half}}, nodes))
    assert only.totals["committed_usd"] == pytest.approx(12 * 0.5 * YEAR_H)
    shared = {"kind": "committed", "gpus": 4, "discount": "50 %"}
    assert usd_per_h(priced({"terms": {"h100_sxm": shared}}, nodes)) == [3.0, 9.0]


def test_spot_nodes_that_are_never_taken_away_are_told() -> None:
    told = [note for note in simulate(priced({"terms": {"node": "spot"}})).notes if "spot" in note]
    assert told == ["spot nodes of 'node' are never reclaimed in this run; give 'faults.spot'"]


def test_only_spot_nodes_are_reclaimed() -> None:
    """A job of 100 h on two nodes that are reclaimed every 40 h each, unless a contract keeps them."""
    faults = {"spot": {"group": "node", "mtbf": "40 h", "away": "5 h"}}
    owned = {"capex": {"h100_sxm": {"price": "30 kUSD"}}}
    terms: tuple[dict[str, Any], ...] = (
        {},
        {"terms": {"node": "spot"}},
        {"terms": {"node": "on_demand"}},
        {"terms": {"h100_sxm": "reserved 1 y"}},
        owned,
    )
    jobs = {"jobs": [{"gpus": 16, "duration": "100 h"}]}
    node = [{"count": 2, "gpus": 8, "accelerator": "h100_sxm"}]
    made = [simulate(priced(cost, node, faults=faults, workload=jobs)) for cost in terms]
    assert [float(run.totals["makespan_s"]) == 360_000.0 for run in made] == [False, False, True, True, True]
    assert [run.totals["away_gpu_s"] > 0.0 for run in made] == [True, True, False, False, False]
    told = [note.rpartition(" is ")[2] for run in made for note in run.notes if "reclaims no node" in note]
    assert told == ["on demand", "reserved", "owned"]


def test_a_run_with_contracts_is_read_again_from_its_own_config() -> None:
    case = priced({"terms": {"h100_sxm": "reserved 3 y"}})
    assert from_mapping(case.model_dump(mode="json")) == case
    assert simulate(priced({"terms": {"h100_sxm": "on demand"}})).config


# -- what is not known -----------------------------------------------------------------------------------------


@pytest.fixture
def without_prices(tmp_path: Path) -> str:
    path = tmp_path / "empty.yaml"
    path.write_text('name: empty\ndate: "2026"\n', encoding="utf-8")
    profile = (Path(__file__).resolve().parents[3] / "scenarios" / "hardware" / "catalogue.yaml").read_text("utf-8")
    lines = [line for line in profile.splitlines() if "price" not in line]
    (tmp_path / "hardware.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(tmp_path)


def test_an_unknown_price_is_no_number_rather_than_nothing(without_prices: str) -> None:
    nodes = [{"gpus": 1, "accelerator": "h100_sxm"}]
    cluster = {"nodes": nodes, "hardware": f"{without_prices}/hardware.yaml"}
    case = priced({"book": f"{without_prices}/empty.yaml"}, cluster=cluster)
    made = simulate(case)
    assert math.isnan(made.summary()["cost_usd"])
    assert math.isnan(made.summary()["waste_usd"])
    assert not any("prices" in note for note in made.notes)
    table = compare(case, ["fifo"], 1).as_table()
    assert "cost" not in table
    assert "energy" in table
