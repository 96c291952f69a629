"""Each answer of docs/planning.md beside what a planner works out by hand; the page's commands run elsewhere."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from equipoise.sim.hardware.profile import load_profile

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text()
TOKENS, PEAK = 1e12, 989.5e12
DAY_S, HOUR_S = 86400.0, 3600.0


def section(title: str) -> str:
    """The part of the page below a heading."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def days(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"d": 1.0, "h": 1.0 / 24.0}[unit]


def flop(layers: int, width: int, parameters: float) -> float:
    """Six a parameter and token, and six a layer, width and token of context for causal attention."""
    return TOKENS * (6.0 * parameters + 6.0 * layers * width * 4096)


@pytest.mark.parametrize(
    ("model", "work"), [(0, flop(40, 5120, 13.0e9)), (1, flop(80, 8192, 69e9))], ids=["13B", "70B"]
)
def test_time_of_a_model(model, work):
    tables = section("How many GPUs for this model?").split("$ equipoise size")[1:3]
    rows = dict(re.findall(r"count (\d+) +\w+ .*? %  [\d.]+ %  +([\d.]+ [dh])  ", tables[model]))
    assert set(rows) == {"32", "64", "128"}
    for nodes, shown in rows.items():
        assert days(shown) == pytest.approx(work / (int(nodes) * 8 * PEAK * 0.5) / DAY_S, rel=0.1)


def test_cheapest_accelerator_follows_from_its_products_and_its_memory():
    """The page's hand calculation, from the catalogue, is within 10 % of the time and cost of each row."""
    text = section("How many GPUs for this model?")
    ranked = text.split("--objective cost")[1]
    found = {
        name: (float(time), float(usd.replace(",", "")))
        for name, time, usd in re.findall(r"accelerator (\S+) +yes .*?  ([\d.]+) d +([\d,]+) USD", ranked)
    }
    written = {
        name: tuple(float(cell.split()[0].replace(",", "")) for cell in cells.split(" | "))
        for name, cells in re.findall(r"^\| (\w+) \| (\d+ TFLOP/s .*?) \|$", text, re.MULTILINE)
    }
    names = {"mi300x": "MI300X", "h100_sxm": "H100", "h200_sxm": "H200", "l40s": "L40S", "a100_sxm_80gb": "A100"}
    assert set(found) == set(names)
    exchange = {"h100_sxm": 0.08, "a100_sxm_80gb": 0.04, "l40s": 0.02}
    profile = load_profile("catalogue")
    prices = {"mi300x": 3.0, "h100_sxm": 3.0, "h200_sxm": 4.0, "l40s": 1.2, "a100_sxm_80gb": 2.0}
    for name, (time, usd) in found.items():
        kind = profile.accelerator(name)
        share = kind.efficiency[-1].efficiency.value
        products_d = 8.3e22 / (256 * kind.flop_per_s["bf16"].value * share) / DAY_S
        rest_d = 0.17 * 7.05 * 3.35e12 / kind.hbm_bytes_per_s.value
        bubble = 7 / 64 if name == "l40s" else 0.0
        by_hand = (products_d + rest_d) * (1 + bubble) / (1 - exchange.get(name, 0.03))
        cost = 256 * 24 * by_hand * prices[name]
        assert written[names[name]][2:] == pytest.approx((products_d, rest_d, by_hand, cost), rel=0.06)
        assert time == pytest.approx(by_hand, rel=0.1), name
        assert usd == pytest.approx(cost, rel=0.1), name


def test_money_is_gpus_times_hours_times_price():
    cost, hours = re.search(r"makespan +([\d.]+) h.*?cost +([\d.]+) USD", section("The case"), re.DOTALL).groups()[::-1]
    assert float(cost) == pytest.approx(32 * 4.0 * float(hours), rel=0.01)
    row = re.search(r"count 32 .*?  ([\d.]+) d  ([\d,.]+) USD", section("How many GPUs for this model?")).groups()
    assert float(row[1].replace(",", "")) == pytest.approx(256 * 3.0 * 24 * float(row[0]), rel=0.01)


def test_checkpoint_interval_is_young_and_dalys():
    told = re.search(r"a checkpoint every ([\d.]+) min", section("How often to save?"))[1]
    by_hand_s = math.sqrt(2 * (13.0e9 * 14 / 40e9) * (50_000 / 256 * HOUR_S))
    assert float(told) * 60 == pytest.approx(by_hand_s, rel=0.1)


def test_causes_of_failures_add_up():
    text = section("Failures, as they were reported")
    rows = {
        cause: (int(number), float(hours.replace(",", "")))
        for cause, number, hours in re.findall(r"^\| (.+?) \| (\d+) \| ([\d,]+) \|$", text, re.MULTILINE)
    }
    number, between = rows.pop("all")
    assert sum(n for n, _ in rows.values()) == number == 419
    for n, hours in (*rows.values(), (number, between)):
        assert hours == pytest.approx(54 * 24 * 16_384 / n, rel=0.01)
    left = number - sum(n for cause, (n, _) in rows.items() if "GPU" in cause)
    assert pytest.approx(54 * 24 * 16_384 / left, rel=0.01) == 130_000


def test_power_cap_slows_by_the_cube_root():
    rows = re.findall(r"power_cap (\d+) W .*?  ([\d.]+) d .*?  (\d+) kW", section("What does a power cap cost?"))
    found = {int(watts): (float(time), float(power)) for watts, time, power in rows}
    assert set(found) == {700, 600, 500, 400}
    for watts, (time, power_kw) in found.items():
        clock = ((watts - 70) / (700 - 70)) ** (1 / 3)
        assert time / found[700][0] == pytest.approx(1 / clock, rel=0.1)
        assert power_kw == pytest.approx(1.3 * 32 * (8 * watts + 2300) / 1e3, rel=0.1)


def test_spot_nodes_wait_for_each_other():
    time, usd = re.search(r"count 32 .*?  ([\d.]+) d  ([\d,.]+) USD", section("Spot nodes?")).groups()
    calm = float(re.search(r"count 32 .*?  ([\d.]+) d  ", section("How many GPUs for this model?"))[1])
    between_h = 500.0 / 32
    by_hand = calm * (1 + (1.0 + 10 / 60) / between_h)
    assert float(time) == pytest.approx(by_hand, rel=0.1)
    assert float(usd.replace(",", "")) == pytest.approx(256 * 1.2 * 24 * by_hand, rel=0.1)


def test_contracts_are_the_price_on_demand_less_what_they_take_off():
    rows = re.findall(
        r"h100_sxm (.+?)  +yes .* ([\d.]+) d  +([\d,]+) USD .*?USD  +([\d,]+|-)", section("Who owns the GPUs?")
    )
    found = {
        name: (float(time), *(float(t.replace(",", "").replace("-", "0")) for t in usd)) for name, time, *usd in rows
    }
    year_h, gpus, life_h = 365 * 24, 256, 4 * 365 * 24
    tariff = 0.1 * 312 * 24  # USD a day at the page's power, which rents include
    by_hand = {
        "on_demand": (3.0, 0.0),
        "spot": (3.0 * 0.35, 0.0),
        "reserved 1 y": (3.0 * 0.65, gpus * 1.95 * year_h),
        "reserved 3 y": (3.0 * 0.45, gpus * 1.35 * 3 * year_h),
        "owned": (30_000 / life_h + tariff / 24 / gpus, gpus * 30_000.0),
    }
    assert set(found) == set(by_hand)
    for name, (usd_per_h, bound) in by_hand.items():
        time, usd, committed = found[name]
        assert usd == pytest.approx(gpus * usd_per_h * 24 * time, rel=0.02), name
        assert committed == pytest.approx(bound), name


def test_a_shared_cluster_needs_the_nodes_of_its_load_and_its_faults():
    text = section("A shared cluster: how long do people wait?")
    answers = [int(n) for n in re.findall(r"^(\d+) nodes meet wait_p95<=1h", text, re.MULTILINE)]
    fifo, easy, fifo_faults, easy_faults = answers[:4]
    assert fifo == pytest.approx(50, rel=0.1)  # what an independent simulation of such a week needed
    share = (np.arange(100_000) + 0.5) / 100_000
    hours = np.clip(np.exp(1.6 * norm.ppf(share)), 1 / 60, 120)
    gpus = np.array([1, 2, 4, 8, 16, 32, 64])
    mix = np.array([45, 15, 15, 17, 5, 2, 1]) / 100
    busy = 400 / 24 * float(mix @ gpus) * hours.mean()
    assert busy == pytest.approx(277, rel=0.01)
    assert busy / 8 < easy < fifo
    # Half a crash a node and week: a day of repair each, and on the mean half of what the job had done.
    away = 0.5 / 7
    nodes_held = float(mix @ (gpus * np.ceil(gpus / 8))) / float(mix @ gpus)
    lost = 0.5 / (7 * 24) * nodes_held * float((hours**2).mean()) / (2 * hours.mean())
    for calm, faulty in ((fifo, fifo_faults), (easy, easy_faults)):
        assert faulty == pytest.approx(calm * (1 + lost) / (1 - away), rel=0.1)


def test_nodes_that_come_and_go_cost_their_hours():
    text = section("Nodes that come and go")
    rows = {name: (float(h), float(usd)) for name, h, usd in re.findall(r"^(\S+) +([\d.]+) +([\d.]+) USD$", text, re.M)}
    total = float(re.search(r"^cost +(\d+) USD$", text, re.M)[1])
    span_h = float(re.search(r"^makespan +([\d.]+) h$", text, re.M)[1])
    first = {name: rows[name] for name in ("reserved", "on-demand")}  # of spot nodes the second run shows fewer
    assert first["reserved"][0] == pytest.approx(2 * span_h, rel=0.01)
    for name, price in (("reserved", 12.0), ("spot", 6.0), ("on-demand", 20.0)):
        assert rows[name][1] == pytest.approx(price * rows[name][0], rel=0.01)
    assert total == pytest.approx(sum(usd for _, usd in rows.values()), rel=0.01)
    assert sum(hours for hours, _ in rows.values()) > 12 * 1.5 + 4 * 2 * 3.0
