"""Each price says whether it was given or looked up, and a looked-up one of when it is."""

from __future__ import annotations

import pytest
import yaml

from equipoise.sim.hardware.prices import load_book
from equipoise.sim.hardware.used_prices import used_prices
from equipoise.sim.loading.file import from_mapping

DATA = {"samples": 1000, "sample_size": "1 MB"}


def told(*kinds: str, **sections: object) -> dict[str, str]:
    """What is paid for on two nodes of each of these accelerators -> its value, unit, origin and date."""
    nodes = [{"name": kind[:4], "count": 2, "gpus": 8, "accelerator": kind, "nics": 8} for kind in kinds]
    scenario = from_mapping(
        {
            "schema_version": 1,
            "name": "paid",
            "cluster": {"nodes": nodes},
            "workload": {"jobs": [{"gpus": 8, "duration": "1 h"}]},
        }
        | sections
    )
    return {price.what: price.short.removeprefix(f"{price.what} ") for price in used_prices(scenario)}


def test_a_given_price_is_told_from_one_of_the_book():
    date = load_book("prices").date
    found = told("h100_sxm", "l40s", cost={"gpu_hour": {"h100_sxm": 2.5}})
    assert found == {"h100_sxm": "2.5 USD per GPU hour (given)", "l40s": f"1.2 USD per GPU hour (catalogue, {date})"}
    assert told("generic")["generic"] == f"1 USD per GPU hour (assumed, {date})"


def test_what_a_contract_takes_off_is_given_or_looked_up():
    date = load_book("prices").date
    terms = {"h100_sxm": "spot", "l40s": {"kind": "reserved", "term": "1 y", "discount": "40 %"}}
    found = told("h100_sxm", "l40s", cost={"terms": terms})
    assert found["h100_sxm spot"] == f"65 % off the price on demand (catalogue, {date})"
    assert found["l40s reserved"] == "40 % off the price on demand (given)"


def test_electricity_counts_where_it_is_charged():
    date = load_book("prices").date
    assert "electricity" not in told("h100_sxm")
    bought = {"capex": {"h100_sxm": {"price": "30 kUSD"}}}
    found = told("h100_sxm", cost=bought)
    assert found["h100_sxm"] == "30000 USD to buy a GPU (given)"
    assert found["electricity"] == f"0.1 USD/kWh (catalogue, {date})"
    own = told("h100_sxm", cost=bought, energy={"tariff": "0.2 USD/kWh"})
    assert own["electricity"] == "0.2 USD/kWh (given)"


def test_stored_data_and_the_prices_of_nodes_and_networks():
    model = {"kind": "large-products", "flop_per_sample": "1 TFLOP", "parameters": 1e6}
    job = {"gpus": 8, "model": "m", "steps": 10, "global_batch": 8, "data": DATA}
    workload = {"models": {"m": model}, "jobs": [job]}
    node = {"name": "own", "count": 2, "gpus": 8, "accelerator": "h100_sxm", "nics": 8, "price": "20 USD/h"}
    found = told(workload=workload, cluster={"nodes": [node]}, cost={"network": 1.5})
    assert found["nodes own"] == "20 USD per node hour (given)"
    assert found["network of a node"] == "1.5 USD/h (given)"
    assert found["storage"].startswith("0.02 USD/GB-month (catalogue, ")


def test_a_book_of_ones_own_says_its_own_kind_and_date(tmp_path):
    book = {
        "schema_version": 1,
        "name": "offer",
        "date": "2026-09-30",
        "source": "a seller's offer",
        "kind": "measured",
        "gpu_hour": {"h100_sxm": "1.9 USD/h"},
    }
    (tmp_path / "offer.yaml").write_text(yaml.safe_dump(book))
    scenario = from_mapping(
        {
            "schema_version": 1,
            "name": "paid",
            "cluster": {"nodes": [{"count": 1, "gpus": 8, "accelerator": "h100_sxm", "nics": 8}]},
            "workload": {"jobs": [{"gpus": 8, "duration": "1 h"}]},
            "cost": {"book": str(tmp_path / "offer.yaml")},
        }
    )
    (price,) = used_prices(scenario, tmp_path)
    assert (price.value, price.origin, price.date) == (pytest.approx(1.9), "measured", "2026-09-30")
    assert price.source == "a seller's offer"
