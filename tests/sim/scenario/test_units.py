from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from equipoise.sim.scenario import units
from equipoise.sim.scenario.units import QUANTITIES, Quantity

GOOD = [
    (units.DATA_RATE, "400 Gbit/s", 5e10),
    (units.DATA_RATE, "100 Gbps", 1.25e10),
    (units.DATA_RATE, "1 GiB/min", 2**30 / 60),
    (units.SIZE, "80 GiB", 80 * 2.0**30),
    (units.SIZE, "141 GB", 1.41e11),
    (units.SIZE, "150kB", 1.5e5),
    (units.SIZE, "8 Mbit", 1e6),
    (units.TIME, "24 h", 86400.0),
    (units.TIME, "1.5 us", 1.5e-6),
    (units.TIME, "2 days", 172800.0),
    (units.TIME, ".5 min", 30.0),
    *(
        (units.TIME, f"2 {word}", 2.0 * seconds)
        for words, seconds in (
            ("ns", 1e-9),
            ("us µs", 1e-6),
            ("ms", 1e-3),
            ("s sec second seconds", 1.0),
            ("min minute minutes", 60.0),
            ("h hr hour hours", 3600.0),
            ("d day days", 86400.0),
            ("w week weeks", 604800.0),
            ("month months", 2628000.0),
            ("y year years", 31536000.0),
        )
        for word in words.split()
    ),
    (units.WORK, "6 TFLOP", 6e12),
    (units.WORK_RATE, "989.5 TFLOP/s", 9.895e14),
    (units.SAMPLE_RATE, "2000 samples/s", 2000.0),
    (units.SHARE, "12.5 %", 0.125),
    (units.PRICE, "2.1 USD/h", 2.1),
    (units.PRICE, "$2.5/h", 2.5),
    (units.MONEY, "$30k", 30_000.0),
    (units.TARIFF, "0.36 USD/kWh", 1e-7),
    (units.POWER, "0.7 kW", 700.0),
    (units.SIZE, "2 EiB", 2.0**61),
    (units.WORK, "2 EFLOP", 2e18),
    (units.SAMPLE_RATE, "2 kHz", 2000.0),
    (units.JOB_RATE, "1209600 jobs/week", 2.0),
    (units.REQUEST_RATE, "120 requests/min", 2.0),
    (units.MONEY, "2M USD", 2e6),
    (units.TARIFF, "36 ct/kWh", 1e-7),
    (units.STORAGE_PRICE, "2.628 USD/MB-month", 1e-12),
    (units.CARBON, "2 kgCO2e/MWh", 2.0),
    (units.TEMPERATURE, "-5 C", -5.0),
    (units.TEMPERATURE, 25, 25.0),
]


@pytest.mark.parametrize(("quantity", "text", "value"), GOOD)
def test_text_becomes_base_units(quantity: Quantity, text: object, value: float) -> None:
    assert quantity.parse(text) == pytest.approx(value, rel=1e-15)


BAD = [
    (units.DATA_RATE, "5 GB", "'5 GB' is a size, a rate is needed (e.g. 100 Gbit/s)"),
    (units.SIZE, "5 GB/s", "'5 GB/s' is a rate, a size is needed (e.g. 80 GiB)"),
    (units.DATA_RATE, "5 gb/s", "upper and lower case matter, did you mean 'GB/s' or 'Gb/s'?"),
    (units.TIME, "5 parsec", "unit 'parsec' is not known; write e.g. 24 h, or a number in s"),
    (units.SIZE, "１２ GB", "'１２ GB' is not a size"),
    (units.TIME, "12:30", "'12:30' is not a time; write e.g. 24 h, or a number in s"),
    (units.TIME, "", "'' is not a time"),
    (units.SIZE, "-5 GB", "'-5 GB' is too small, a size must be at least 0"),
    (units.DATA_RATE, 0, "0 is too small, a rate must be above 0"),
    (units.SHARE, "150 %", "'150 %' is too large, a share must be at most 1"),
    (units.SHARE, 50, "50 is too large, a share must be at most 1; 50 per cent is '50 %'"),
    (units.MONEY, "5,000 USD", "'5,000 USD': numbers are written without ',', and with '.' before decimals"),
    (units.DATA_RATE, "$5", "'$5' is an amount of money, a rate is needed"),
    (units.TEMPERATURE, "-300 C", "must be at least -273.15"),
    (units.SIZE, math.inf, "inf is not a finite number"),
    (units.SIZE, "nan", "'nan' is not a size"),
    (units.SIZE, "9e999", "is not a finite number"),
    (units.TIME, True, "true is not a time"),
    (units.TIME, [1], "a list is not a time"),
]


@pytest.mark.parametrize(("quantity", "value", "message"), BAD)
def test_what_is_no_such_quantity_is_refused_in_one_line(quantity: Quantity, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        quantity.parse(value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("13B", 13e9),
        ("1.5k", 1500),
        ("2K", 2000),
        ("3 M", 3e6),
        ("4G", 4e9),
        ("2T", 2e12),
        ("5 %", 0.05),
        ("-1k", -1000),
    ],
)
def test_numbers_with_a_letter(text: str, number: float) -> None:
    assert TypeAdapter(units.Float).validate_python(text) == number
    assert number < 1 or TypeAdapter(units.Int).validate_python(text) == number


@given(st.sampled_from(QUANTITIES), st.data())
def test_text_is_rounded_once(quantity: Quantity, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(sorted(quantity.factors)))
    number = data.draw(st.decimals(0, 10**6, allow_nan=False, places=3))
    exact = Fraction(number) * quantity.factors[unit]
    if exact == 0 or exact > Fraction(quantity.high if quantity.high < 1e300 else 10**300):
        return
    assert quantity.parse(f"{number} {unit}") == float(exact)


@given(st.sampled_from(QUANTITIES), st.text(max_size=30))
def test_any_text_gives_a_number_or_one_line(quantity: Quantity, text: str) -> None:
    try:
        assert math.isfinite(quantity.parse(text))
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both ways are fine, nothing else may be raised


def test_every_example_is_readable_and_no_unit_is_a_trap() -> None:
    for quantity in QUANTITIES:
        quantity.parse(quantity.example)
    assert units.SIZE.parse("1 Gb") == 1.25e8  # gigabit, not gilbert
    assert "m" not in units.TIME.factors  # minutes or metres: refused


def test_implausible_values_are_named() -> None:
    assert "implausibly small" in units.DATA_RATE.implausible(400.0)
    assert "implausibly large" in units.TARIFF.implausible(0.1)
    assert units.SIZE.implausible(0.0) == ""
    assert units.SIZE.implausible(8e10) == ""
    assert units.SIZE.implausible(1.0, (1.0, 2.0)) == units.SIZE.implausible(2.0, (1.0, 2.0)) == ""
    assert units.SIZE.implausible(8e10, (1.0, 2.0)) == (
        "8e+10 bytes is implausibly large; a bare number is in bytes (e.g. 80 GiB)"
    )
    for quantity in QUANTITIES:
        assert quantity.plausible[0] <= quantity.parse(quantity.example) <= quantity.plausible[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(8.5e10), "85 GB"),
        (units.format_bytes(0), "0 B"),
        (units.format_scaled(80 * 2.0**30, "B", 1024), "80 GiB"),
        (units.format_bytes_per_s(5e10), "400 Gbit/s"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(5400), "90 min"),
        (units.format_seconds(-276480), "-3.2 d"),
        (units.format_seconds(math.nan), "nan s"),
        (units.format_bytes(-2.5e9), "-2.5 GB"),
        (units.format_scaled(1023.4, "B", 1024), "1023 B"),
        (units.format_scaled(1023.5, "B", 1024), "1 KiB"),
        (units.format_seconds(1e-6), "1 us"),
        (units.format_seconds(119.4), "119 s"),
        (units.format_seconds(120.0), "2 min"),
        (units.format_seconds(7200), "2 h"),
        (units.format_seconds(172_799), "48 h"),
        (units.format_seconds(172_800), "2 d"),
        (units.format_seconds(-math.inf), "-inf s"),
        (units.format_joules(99_999), "99999 J"),
        (units.format_joules(-1e5), "-27.8 Wh"),
        (units.format_kg(1000), "1 t"),
        (units.format_kg(-22_300), "-22.3 t"),
        (units.format_usd(0.9995), "1.00 USD"),
        (units.format_usd(-99.95), "-100 USD"),
        (units.format_share(0.1234), "12.3 %"),
        (units.format_usd(1234.4), "1,234 USD"),
        (units.format_usd(99.96), "100 USD"),
        (units.format_usd(0), "0.00 USD"),
        (units.format_usd(0.00123), "0.00123 USD"),
    ],
)
def test_values_are_shown_for_people(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-9, 1e17))
def test_shown_bytes_read_back_close(value: float) -> None:
    assert units.SIZE.parse(units.format_bytes(value)) == pytest.approx(value, rel=6e-3, abs=6e-3)
