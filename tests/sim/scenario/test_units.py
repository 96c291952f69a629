from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from equipoise.sim.scenario import units
from equipoise.sim.scenario.units import QUANTITIES, Bytes, BytesPerS, Celsius, Quantity, Seconds, Share

GOOD = [
    (units.DATA_RATE, "400 Gbit/s", 5e10),
    (units.DATA_RATE, "50 Gb/s", 6.25e9),
    (units.DATA_RATE, "100 Gbps", 1.25e10),
    (units.DATA_RATE, "3 GB/s", 3e9),
    (units.DATA_RATE, "1 GiB/min", 2**30 / 60),
    (units.SIZE, "80 GiB", 80 * 2.0**30),
    (units.SIZE, "141 GB", 1.41e11),
    (units.SIZE, "150kB", 1.5e5),
    (units.SIZE, "5 KB", 5e3),
    (units.SIZE, "8 Mbit", 1e6),
    (units.SIZE, "1e9", 1e9),
    (units.SIZE, 7, 7.0),
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
    (units.SAMPLE_RATE, "120 /min", 2.0),
    (units.SHARE, "12.5 %", 0.125),
    (units.PRICE, "2.1 USD/h", 2.1),
    (units.PRICE, "48 USD/d", 2.0),
    (units.PRICE, "$2.5/h", 2.5),
    (units.PRICE, "$ 24/d", 1.0),
    (units.MONEY, "30k", 30_000.0),
    (units.MONEY, "$30k", 30_000.0),
    (units.MONEY, "$ 1.5M", 1.5e6),
    (units.TARIFF, "0.36 USD/kWh", 1e-7),
    (units.TARIFF, "100 $/MWh", 100 / 3.6e9),
    (units.POWER, "0.7 kW", 700.0),
    (units.SIZE, "2 KiB", 2048.0),
    (units.SIZE, "2 EiB", 2.0**61),
    (units.SIZE, "2 PB", 2e15),
    (units.SIZE, "2 Eb", 2.5e17),
    (units.SIZE, "3 bytes", 3.0),
    (units.DATA_RATE, "8 kbps", 1e3),
    (units.DATA_RATE, "2 MBps", 2e6),
    (units.DATA_RATE, "7200 KB/h", 2e3),
    (units.DATA_RATE, "86400 B/d", 1.0),
    (units.WORK, "2 EFLOP", 2e18),
    (units.WORK_RATE, "2 PFLOPS", 2e15),
    (units.SAMPLE_RATE, "2 kHz", 2000.0),
    (units.SAMPLE_RATE, "7200 samples/h", 2.0),
    (units.JOB_RATE, "1209600 jobs/week", 2.0),
    (units.JOB_RATE, "172800/day", 2.0),
    (units.REQUEST_RATE, "120 requests/min", 2.0),
    (units.PRICE, "2 $/hour", 2.0),
    (units.MONEY, "2M USD", 2e6),
    (units.MONEY, "2k $", 2000.0),
    (units.TARIFF, "36 ct/kWh", 1e-7),
    (units.TARIFF, "0.5 USD/J", 0.5),
    (units.STORAGE_PRICE, "2.628 USD/MB-month", 1e-12),
    (units.CARBON, "2 kgCO2e/MWh", 2.0),
    (units.CARBON, "2 t CO2/GWh", 2.0),
    (units.POWER, "5 mW", 5e-3),
    (units.TEMPERATURE, "-5 C", -5.0),
    (units.TEMPERATURE, 25, 25.0),
]


@pytest.mark.parametrize(("quantity", "text", "value"), GOOD)
def test_text_becomes_base_units(quantity: Quantity, text: object, value: float) -> None:
    assert quantity.parse(text) == pytest.approx(value, rel=1e-15)


BAD = [
    (units.DATA_RATE, "5 GB", "'5 GB' is a size, a rate is needed (e.g. 100 Gbit/s)"),
    (units.SIZE, "5 GB/s", "'5 GB/s' is a rate, a size is needed (e.g. 80 GiB)"),
    (units.TIME, "3 W", "'3 W' is a power, a time is needed (e.g. 24 h)"),
    (units.DATA_RATE, "5 gb/s", "upper and lower case matter, did you mean 'GB/s' or 'Gb/s'?"),
    (units.TIME, "5 parsec", "unit 'parsec' is not known; write e.g. 24 h, or a number in s"),
    (units.SIZE, "１２ GB", "'１２ GB' is not a size"),
    (units.TIME, "12:30", "'12:30' is not a time; write e.g. 24 h, or a number in s"),
    (units.TIME, "", "'' is not a time"),
    (units.TIME, "h", "'h' is not a time"),
    (units.TIME, "1 2 h", "'1 2 h' is not a time"),
    (units.SIZE, "-5 GB", "'-5 GB' is too small, a size must be at least 0"),
    (units.DATA_RATE, 0, "0 is too small, a rate must be above 0"),
    (units.SHARE, "150 %", "'150 %' is too large, a share must be at most 1"),
    (units.SHARE, 50, "50 is too large, a share must be at most 1; 50 per cent is '50 %'"),
    (units.SHARE, "80", "80 per cent is '80 %'"),
    (units.MONEY, "5,000 USD", "'5,000 USD': numbers are written without ',', and with '.' before decimals"),
    (units.TIME, "1,5 h", "'1,5 h': numbers are written without ',', and with '.' before decimals"),
    (units.DATA_RATE, "$5", "'$5' is an amount of money, a rate is needed"),
    (units.TEMPERATURE, "-300 C", "must be at least -273.15"),
    (units.SIZE, math.nan, "nan is not a finite number"),
    (units.SIZE, math.inf, "inf is not a finite number"),
    (units.SIZE, "nan", "'nan' is not a size"),
    (units.SIZE, "9e999", "is not a finite number"),
    (units.SIZE, "1e99999999", "unit 'e99999999' is not known"),
    (units.TIME, True, "true is not a time"),
    (units.TIME, None, "nothing is not a time"),
    (units.TIME, [1], "a list is not a time"),
    (units.TIME, {"h": 1}, "a section is not a time"),
]


@pytest.mark.parametrize(("quantity", "value", "message"), BAD)
def test_what_is_no_such_quantity_is_refused_in_one_line(quantity: Quantity, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        quantity.parse(value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


HINT = "write e.g. 24 h, or a number in s"


def accepts(quantity: object, value: object) -> str:
    """ "" where it is taken, else what is said."""
    adapter = TypeAdapter(quantity)
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return ""


@pytest.mark.parametrize(
    ("kind", "taken", "refused", "message"),
    [
        (units.Float, 1e30, 1.1e30, "1.1e+30 is too large, must be at most 1e+30"),
        (units.Float, -1e30, -1.1e30, "-1.1e+30 is too large, must be at most 1e+30"),
        (units.Float, 1e-30, 9e-31, "9e-31 is too small, must be at least 1e-30"),
        (units.Float, -1e-30, -9e-31, "-9e-31 is too small, must be at least 1e-30"),
        (units.Float, 0, False, "false is not a number"),
        (units.Int, 10**15, 10**15 + 1, "1000000000000001 is too large, must be at most 1e+15"),
        (units.Share, 1.0, 1.5, "1.5 is too large, a share must be at most 1; 1.5 per cent is '1.5 %'"),
        (units.Share, 1, 100, "100 is too large, a share must be at most 1; 100 per cent is '100 %'"),
        (units.Share, "1", "101", "'101' is too large, a share must be at most 1"),
        (units.Share, "100 %", "2 s", "'2 s' is a time, a share is needed (e.g. 50 %)"),
        (units.Bytes, 0, 9e-31, "9e-31 is too small, a size must be at least 1e-30 bytes"),
        (units.Bytes, 1e-30, -1e-30, "-1e-30 is too small, a size must be at least 0"),
        (units.Bytes, 1e24, 1.1e24, "1.1e+24 is too large, a size must be at most 1e+24"),
        (units.Celsius, -273.15, -273.16, "-273.16 is too small, a temperature must be at least -273.15"),
        (units.Seconds, 10**12, 10**400, f"1{'0' * 56}... is not a finite number; {HINT}"),
        (units.Bytes, "0" * 40, "x" * 58, f"'{'x' * 58}' is not a size; write e.g. 80 GiB, or a number in bytes"),
        (units.Seconds, "+.5e1 min", ["x"] * 99, f"a list is not a time; {HINT}"),
    ],
)
def test_what_is_just_allowed_and_what_is_not(kind: object, taken: object, refused: object, message: str) -> None:
    assert accepts(kind, taken) == ""
    assert accepts(kind, refused) == message


BORDERS = [  # (quantity, least and most that is plausible, most that is allowed)
    (units.SIZE, 0.1, 1e18, 1e24),
    (units.DATA_RATE, 1e5, 1e14, 1e24),
    (units.TIME, 1e-10, 2e9, 1e12),
    (units.WORK, 1.0, 1e21, 1e36),
    (units.WORK_RATE, 1e6, 1e17, 1e30),
    (units.SAMPLE_RATE, 1e-6, 1e9, 1e18),
    (units.JOB_RATE, 0.0, math.inf, 1e9),
    (units.REQUEST_RATE, 0.0, math.inf, 1e9),
    (units.SHARE, 0.0, math.inf, 1.0),
    (units.PRICE, 1e-3, 1e4, 1e15),
    (units.TARIFF, 1e-10, 1e-6, 1e6),
    (units.MONEY, 1e-2, 1e12, 1e18),
    (units.STORAGE_PRICE, 1e-19, 1e-14, 1.0),
    (units.POWER, 1.0, 1e6, 1e15),
    (units.TEMPERATURE, -60.0, 150.0, 1e6),
    (units.CARBON, 1.0, 2000.0, 1e6),
]


@pytest.mark.parametrize(("quantity", "least", "most", "high"), BORDERS)
def test_what_is_doubted_and_what_is_refused_begins_where_it_is_said_to(
    quantity: Quantity, least: float, most: float, high: float
) -> None:
    assert [quantity.implausible(value) for value in (least, most)] == ["", ""]
    below = quantity.implausible(math.nextafter(least, -math.inf)) if least > 0 else "implausibly small"
    assert "implausibly small" in below
    assert math.isinf(most) or "implausibly large" in quantity.implausible(math.nextafter(most, math.inf))
    assert quantity.parse(high) == high
    with pytest.raises(ValueError, match=r"is too large, .* must be at most "):
        quantity.parse(math.nextafter(high, math.inf))


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


class Box(BaseModel):
    size: Bytes = 1.0
    rate: BytesPerS = 1.0
    time: Seconds | None = None
    share: Share = 1.0
    ambient: Celsius = 25.0


def test_annotated_types_read_units_in_models() -> None:
    box = Box.model_validate({"size": "2 GB", "rate": "8 Gbit/s", "time": "2 min", "share": "50 %"})
    assert (box.size, box.rate, box.time, box.share) == (2e9, 1e9, 120.0, 0.5)
    assert Box(time=None).time is None
    with pytest.raises(ValidationError, match="is a size, a time is needed"):
        Box.model_validate({"time": "2 GB"})


def test_json_schema_allows_numbers_and_text_and_states_limits() -> None:
    properties = Box.model_json_schema()["properties"]
    number, text = properties["rate"]["anyOf"]
    assert number == {"type": "number", "exclusiveMinimum": 0.0, "maximum": 1e24}
    assert text == {"type": "string", "examples": ["100 Gbit/s"]}
    assert properties["share"]["anyOf"][0]["maximum"] == 1.0
    assert "minimum" in properties["ambient"]["anyOf"][0]


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
        (units.format_bytes(999.9), "1 kB"),
        (units.format_scaled(80 * 2.0**30, "B", 1024), "80 GiB"),
        (units.format_bytes_per_s(5e10), "400 Gbit/s"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(2.5e-7), "250 ns"),
        (units.format_seconds(0.0123), "12.3 ms"),
        (units.format_seconds(45), "45 s"),
        (units.format_seconds(5400), "90 min"),
        (units.format_seconds(9000), "2.5 h"),
        (units.format_seconds(-276480), "-3.2 d"),
        (units.format_seconds(math.nan), "nan s"),
        (units.format_bytes(999.4), "999 B"),
        (units.format_bytes(-2.5e9), "-2.5 GB"),
        (units.format_bytes(2e21), "2000 EB"),
        (units.format_bytes(0.05), "0.05 B"),
        (units.format_scaled(1023.4, "B", 1024), "1023 B"),
        (units.format_scaled(1023.5, "B", 1024), "1 KiB"),
        (units.format_scaled(123.456, "", digits=5), "123.46 "),
        (units.format_scaled(100.0, "m"), "100 m"),
        (units.format_seconds(1e-6), "1 us"),
        (units.format_seconds(1e-3), "1 ms"),
        (units.format_seconds(1.0), "1 s"),
        (units.format_seconds(119.4), "119 s"),
        (units.format_seconds(120.0), "2 min"),
        (units.format_seconds(7199), "120 min"),
        (units.format_seconds(7200), "2 h"),
        (units.format_seconds(172_799), "48 h"),
        (units.format_seconds(172_800), "2 d"),
        (units.format_seconds(86_400e6), "1e+06 d"),
        (units.format_seconds(86_400 * 999_999), "999999 d"),
        (units.format_seconds(-math.inf), "-inf s"),
        (units.format_joules(99_999), "99999 J"),
        (units.format_joules(-1e5), "-27.8 Wh"),
        (units.format_kg(999), "999 kg"),
        (units.format_kg(1000), "1 t"),
        (units.format_kg(-22_300), "-22.3 t"),
        (units.format_usd(0.9994), "0.999 USD"),
        (units.format_usd(0.9995), "1.00 USD"),
        (units.format_usd(9.994), "9.99 USD"),
        (units.format_usd(99.94), "99.9 USD"),
        (units.format_usd(-99.95), "-100 USD"),
        (units.format_share(0.1234), "12.3 %"),
        (units.format_usd(1234.4), "1,234 USD"),
        (units.format_usd(99.96), "100 USD"),
        (units.format_usd(12.345), "12.3 USD"),
        (units.format_usd(9.996), "10.0 USD"),
        (units.format_usd(2.5), "2.50 USD"),
        (units.format_usd(0.9996), "1.00 USD"),
        (units.format_usd(0), "0.00 USD"),
        (units.format_usd(0.00123), "0.00123 USD"),
    ],
)
def test_values_are_shown_for_people(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-9, 1e17))
def test_shown_bytes_read_back_close(value: float) -> None:
    assert units.SIZE.parse(units.format_bytes(value)) == pytest.approx(value, rel=6e-3, abs=6e-3)


def test_underscores_between_thousands_are_read_beside_a_unit() -> None:
    span = next(one for one in QUANTITIES if one.noun == "a time")
    assert [span.parse(text) for text in ("40_000 s", "1_000.5 h")] == [40_000.0, 3_601_800.0]
    with pytest.raises(ValueError, match="is not a time"):
        span.parse("1_0 s")
