"""Human units in, SI base units out, and back for reports. Nothing else parses units.

A bare number is in the base unit. Prefixes are case-sensitive: `Gbit`, `Gb` are 10^9 bits, `GB` is 10^9
bytes, `GiB` is 2^30 bytes. The annotated types at the end go into pydantic models; a text with the wrong
unit is a ValueError that says what it is and what is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import core_schema

from equipoise.base.numerals import strict_float, strict_int

_NUMBER = re.compile(
    r"\s*([-+]?(?:(?:[1-9][0-9]{0,2}(?:_[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?)"
    r"\s*((?:(?:1/|[^\d\s_]).*?)?)\s*"
)
_DOLLARS = re.compile(r"\s*\$\s*([0-9.]+)\s*([kM]?)((?:/.*)?)\s*")
_SI = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_PER = {"s": Fraction(1), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_KWH = Fraction(3_600_000)  # J
_ENERGIES = {"J": Fraction(1), "kWh": _KWH, "MWh": _KWH * 1000}
_MONTH_S = Fraction(365 * 86400, 12)


LARGEST, LARGEST_WHOLE, SMALLEST = 1e30, 1e15, 1e-30
"""Bounds of a number without a unit: products of a few such numbers stay finite, and whole ones exact."""


_COUNTED = re.compile(r"\s*([-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))\s*([kKMGBT%])\s*")
_LARGE = {"k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "%": -2}


def _counted(text: str) -> str:
    """`13B`, `100k` and `5 %` as plain digits; other text as it is."""
    match = _COUNTED.fullmatch(text)
    if match is None:
        return text
    number = Fraction(match[1]) * Fraction(10) ** _LARGE[match[2]]
    return str(number.numerator) if number.denominator == 1 else repr(float(number))


def _plain(read: Callable[[str], float], most: float) -> Callable[[object], object]:
    """Reads numbers strictly (pydantic would accept true as 1), including `13B` and `5 %`."""

    def check(value: object) -> object:
        """The number, checked against its limits."""
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is not a number")
        number = read(_counted(value)) if isinstance(value, str) else value
        if isinstance(number, int | float) and not -most <= number <= most:
            raise ValueError(f"{_shown(value)} is too large, must be at most {most:g}")
        if isinstance(number, int | float) and 0.0 < abs(number) < SMALLEST:
            raise ValueError(f"{_shown(value)} is too small, must be at least {SMALLEST:g}")
        return number

    return check


Float = Annotated[float, BeforeValidator(_plain(strict_float, LARGEST))]
Int = Annotated[int, BeforeValidator(_plain(strict_int, LARGEST_WHOLE))]


@dataclass(frozen=True, eq=False)
class Quantity:
    """One kind of quantity: how it is written, its base unit, and which values are allowed and plausible.

    `factors` maps a unit's text to base units per unit. `low` is the smallest allowed value (excluded when
    `above`). Non-zero values outside `plausible` deserve a warning, not an error.
    """

    noun: str
    base: str
    example: str
    factors: Mapping[str, Fraction]
    low: float = 0.0
    above: bool = False
    high: float = math.inf
    plausible: tuple[float, float] = (0.0, math.inf)

    def parse(self, value: object) -> float:
        """`value` in base units. Raises ValueError, one clear line, for anything that is not allowed."""
        shown = _shown(value)
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{shown} is not {self.noun}; {self._wanted()}")
        try:
            result = self._of_text(value) if isinstance(value, str) else float(value)
        except OverflowError:  # a whole number of hundreds of digits
            result = math.inf
        if not math.isfinite(result):
            raise ValueError(f"{shown} is not a finite number; {self._wanted()}")
        if result < self.low or (self.above and result == self.low):
            limit = "above" if self.above else "at least"
            raise ValueError(f"{shown} is too small, {self.noun} must be {limit} {self.low:g}")
        if 0.0 < abs(result) < SMALLEST:
            raise ValueError(f"{shown} is too small, {self.noun} must be at least {SMALLEST:g} {self.base}")
        if result > self.high:
            meant = _percent(value) if "%" in self.factors else None
            hint = "" if meant is None else f"; {meant:g} per cent is '{meant:g} %'"
            raise ValueError(f"{shown} is too large, {self.noun} must be at most {self.high:g}{hint}")
        return result

    def implausible(self, value: float, limits: tuple[float, float] | None = None) -> str:
        """Why `value` (base units) looks like a wrong unit, or "" when it does not.

        `limits` (low, high), base units, replace those of the quantity.
        """
        low, high = limits or self.plausible
        if value == 0 or low <= value <= high:
            return ""
        word = "small" if value < low else "large"
        hint = f"a bare number is in {self.base} (e.g. {self.example})"
        return f"{value:g} {self.base} is implausibly {word}; {hint}"

    def _of_text(self, text: str) -> float:
        before = _DOLLARS.fullmatch(text)
        match = _NUMBER.fullmatch(text if before is None else f"{before[1]} {before[2]}${before[3]}")
        if match is None or ":" in match[2]:
            raise ValueError(f"{text!r} is not {self.noun}; {self._wanted()}")
        if match[2].startswith(","):
            raise ValueError(f"{text!r}: numbers are written without ',', and with '.' before decimals")
        number, unit = Fraction(match[1]), match[2]
        if unit and unit not in self.factors:
            raise ValueError(self._wrong_unit(text, unit))
        try:
            return float(number * self.factors[unit] if unit else number)  # exact until here: rounded once
        except OverflowError:
            return math.inf

    def _wrong_unit(self, text: str, unit: str) -> str:
        for other in QUANTITIES:
            if other is not self and unit in other.factors:
                return f"{text!r} is {other.noun}, {self.noun} is needed (e.g. {self.example})"
        close = [known for known in self.factors if known.lower() == unit.lower()]
        if close:
            hint = " or ".join(repr(known) for known in close)
            return f"{text!r}: unit {unit!r} is not known; upper and lower case matter, did you mean {hint}?"
        return f"{text!r}: unit {unit!r} is not known; {self._wanted()}"

    def _wanted(self) -> str:
        return f"write e.g. {self.example}, or a number in {self.base}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Pydantic hook: a float, read by `parse`."""
        return core_schema.no_info_before_validator_function(self.parse, core_schema.float_schema())

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Pydantic hook: a number in base units, or text with a unit."""
        bound = "exclusiveMinimum" if self.above else "minimum"
        number: dict[str, Any] = {"type": "number"}
        if math.isfinite(self.low):
            number[bound] = self.low
        if math.isfinite(self.high):
            number["maximum"] = self.high
        text = {"type": "string", "examples": [self.example]}
        return {"anyOf": [number, text], "description": f"{self.base}, or text such as {self.example}"}


def _percent(value: object) -> float | None:
    """A number from 1 to 100 that was probably meant in per cent, else None."""
    match = _NUMBER.fullmatch(str(value))
    number = float(match[1]) if match is not None and not match[2] else math.nan
    return number if 1.0 < number <= 100.0 else None


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list | tuple):
        return "a list" if not isinstance(value, dict) else "a section"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _prefixed(*units: str, scale: Fraction = Fraction(1), kilo: bool = False) -> dict[str, Fraction]:
    factors = {p + unit: scale * 10**power for unit in units for p, power in _SI.items()}
    return factors | ({"K" + unit: scale * 1000 for unit in units} if kilo else {})


def _size_units() -> dict[str, Fraction]:
    binary = {f"{p}i{unit}": Fraction(2) ** (10 * (k + 1)) for unit in ("B",) for k, p in enumerate("KMGTPE")}
    words = {"byte": Fraction(1), "bytes": Fraction(1)}
    return _prefixed("B", kilo=True) | binary | words | _prefixed("bit", "b", scale=Fraction(1, 8))


def _rate_units() -> dict[str, Fraction]:
    per = {f"{unit}/{t}": f / s for unit, f in _size_units().items() for t, s in _PER.items()}
    return per | _prefixed("bps", scale=Fraction(1, 8)) | _prefixed("Bps")


def _time_units() -> dict[str, Fraction]:
    small = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000)}
    words = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86400, "day": 86400}
    words |= {"week": 7 * 86400, "month": 365 * 86400 // 12, "year": 365 * 86400}
    words |= {"w": 7 * 86400, "wk": 7 * 86400, "y": 365 * 86400, "yr": 365 * 86400, "sec": 1, "hr": 3600}
    plural = {w + "s": f for w, f in words.items() if len(w) > 1}
    return small | {w: Fraction(f) for w, f in (words | plural | {"days": 86400}).items()}


def _sample_rates() -> dict[str, Fraction]:
    nouns = ("", "1", "sample", "samples")
    return {f"{n}/{t}": 1 / s for n in nouns for t, s in _PER.items()} | {"Hz": Fraction(1), "kHz": Fraction(1000)}


def _money_units(per: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {f"{c}/{t}": 1 / f for c in ("USD", "$") for t, f in per.items()}


_COUNTS = {f"{c}{unit}": Fraction(10**n) for c, n in (("k", 3), ("M", 6)) for unit in ("", " USD", " $")}
"""As money is written: `30k` and `30k USD` are 30 kUSD."""
MAX_TIME_S = 1e12
"""Beyond it (30,000 years) a float64 no longer tells milliseconds apart."""

SIZE = Quantity("a size", "bytes", "80 GiB", _size_units(), high=1e24, plausible=(0.1, 1e18))
DATA_RATE = Quantity("a rate", "bytes/s", "100 Gbit/s", _rate_units(), above=True, high=1e24, plausible=(1e5, 1e14))
TIME = Quantity("a time", "s", "24 h", _time_units(), high=MAX_TIME_S, plausible=(1e-10, 2e9))
WORK = Quantity("an amount of work", "FLOP", "6 TFLOP", _prefixed("FLOP", "FLOPs"), high=1e36, plausible=(1.0, 1e21))
WORK_RATE = Quantity(
    "a compute rate",
    "FLOP/s",
    "989 TFLOP/s",
    _prefixed("FLOP/s", "FLOPS"),
    above=True,
    high=1e30,
    plausible=(1e6, 1e17),
)
SAMPLE_RATE = Quantity(
    "a sample rate", "samples/s", "2000 samples/s", _sample_rates(), above=True, high=1e18, plausible=(1e-6, 1e9)
)
JOB_RATE = Quantity(
    "a rate of jobs",
    "jobs/s",
    "400/d",
    {
        f"{n}/{t}": 1 / s
        for n in ("", "1", "job", "jobs")
        for t, s in (_PER | {"day": Fraction(86400), "week": Fraction(604800)}).items()
    },
    above=True,
    high=1e9,
)
REQUEST_RATE = Quantity(
    "a rate of requests",
    "requests/s",
    "40/s",
    {f"{n}/{t}": 1 / s for n in ("", "1", "request", "requests") for t, s in _PER.items()},
    above=True,
    high=1e9,
)
SHARE = Quantity("a share", "(0 to 1)", "50 %", {"%": Fraction(1, 100)}, high=1.0)
PRICE = Quantity(
    "a price",
    "USD/h",
    "2.1 USD/h",
    _money_units({"h": Fraction(1), "hour": Fraction(1), "d": Fraction(24)}),
    high=1e15,
    plausible=(1e-3, 1e4),
)
TARIFF = Quantity(
    "an energy price",
    "USD/J",
    "0.1 USD/kWh",
    _money_units(_ENERGIES) | {f"ct/{unit}": 1 / (100 * joules) for unit, joules in _ENERGIES.items()},
    high=1e6,
    plausible=(1e-10, 1e-6),
)
MONEY = Quantity(
    "an amount of money", "USD", "30 kUSD", _prefixed("USD", "$") | _COUNTS, high=1e18, plausible=(1e-2, 1e12)
)
STORAGE_PRICE = Quantity(
    "a storage price",
    "USD/(byte s)",
    "0.02 USD/GB-month",
    {f"USD/{unit}-month": 1 / (factor * _MONTH_S) for unit, factor in _size_units().items() if "B" in unit},
    high=1.0,
    plausible=(1e-19, 1e-14),
)
POWER = Quantity(
    "a power", "W", "700 W", {"mW": Fraction(1, 1000)} | _prefixed("W"), above=True, high=1e15, plausible=(1.0, 1e6)
)
TEMPERATURE = Quantity(
    "a temperature",
    "degrees Celsius",
    "25 C",
    {c: Fraction(1) for c in ("C", "°C", "degC")},
    low=-273.15,
    high=1e6,
    plausible=(-60.0, 150.0),
)
CARBON = Quantity(
    "a carbon intensity",
    "g/kWh",
    "400 g/kWh",
    {
        f"{mass}{gas}/{energy}": factor / each
        for mass, factor in (("g", Fraction(1)), ("kg", Fraction(1000)), ("t", Fraction(10**6)))
        for gas in ("", "CO2", " CO2", "CO2e")
        for energy, each in (("kWh", Fraction(1)), ("MWh", Fraction(1000)), ("GWh", Fraction(10**6)))
    },
    high=1e6,
    plausible=(1.0, 2000.0),
)

QUANTITIES = (
    SIZE,
    DATA_RATE,
    TIME,
    WORK,
    WORK_RATE,
    SAMPLE_RATE,
    SHARE,
    PRICE,
    TARIFF,
    MONEY,
    STORAGE_PRICE,
    POWER,
    TEMPERATURE,
    CARBON,
)

Bytes = Annotated[float, SIZE]
BytesPerS = Annotated[float, DATA_RATE]
Seconds = Annotated[float, TIME]
Flop = Annotated[float, WORK]
Rate = Annotated[float, SAMPLE_RATE]  # samples/s
JobRate = Annotated[float, JOB_RATE]
RequestRate = Annotated[float, REQUEST_RATE]  # requests/s
Share = Annotated[float, SHARE]
UsdPerHour = Annotated[float, PRICE]
UsdPerJoule = Annotated[float, TARIFF]
Usd = Annotated[float, MONEY]
UsdPerByteSecond = Annotated[float, STORAGE_PRICE]
Watts = Annotated[float, POWER]
Celsius = Annotated[float, TEMPERATURE]
GramsPerKwh = Annotated[float, CARBON]


def format_scaled(value: float, unit: str, step: float = 1000.0, digits: int = 3) -> str:
    """`value` with an SI prefix (k to E; step 1024 gives Ki to Ei): 5e10, "B/s" -> "50 GB/s"."""
    prefixes = ["", *("kMGTPE" if step == 1000.0 else [p + "i" for p in "KMGTPE"])]
    size, k = abs(value), 0
    while k + 1 < len(prefixes) and size / step**k >= step * (1 - 0.5 * 10.0**-digits):
        k += 1
    return f"{_digits(value / step**k, digits)} {prefixes[k]}{unit}"


def format_bytes(value: float) -> str:
    """Bytes for people: 8.5e10 -> "85 GB"."""
    return format_scaled(value, "B")


def format_bytes_per_s(value: float) -> str:
    """Bytes/s for people, in bits as networks are: 5e10 -> "400 Gbit/s"."""
    return format_scaled(value * 8, "bit/s")


def format_seconds(value: float) -> str:
    """Seconds for people, three digits: "1.5 us", "12.3 ms", "45 s", "2.5 h", "3.2 d"."""
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return f"{value:g} s"
    for limit, unit, scale in ((1e-6, "ns", 1e-9), (1e-3, "us", 1e-6), (1.0, "ms", 1e-3), (120.0, "s", 1.0)):
        if size < limit:
            return f"{_digits(value / scale)} {unit}"
    unit, scale = ("min", 60.0) if size < 7200 else ("h", 3600.0) if size < 172800 else ("d", 86400.0)
    return f"{_digits(value / scale)} {unit}"


def format_share(value: float) -> str:
    """A share in per cent: 0.123 -> "12.3 %"."""
    return f"{_digits(100 * value)} %"


def format_usd(value: float) -> str:
    """US dollars: whole from a hundred on, else three significant digits, as prices per hour have.

    1234.5 -> "1,234 USD", 12.345 -> "12.3 USD", 2.5 -> "2.50 USD", 0.00123 -> "0.00123 USD".
    """
    size = abs(value)
    if 0 < size < 0.9995:
        return f"{value:.3g} USD"
    return f"{value:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} USD"


def format_joules(value: float) -> str:
    """Energy for people: joules when little, else watt-hours: 500 -> "500 J", 7.2e9 -> "2 MWh"."""
    return f"{_digits(value)} J" if abs(value) < 1e5 else format_scaled(value / 3600.0, "Wh")


def format_kg(value: float) -> str:
    """Mass for people: kilograms when little, else tonnes: 22300 -> "22.3 t"."""
    return f"{_digits(value)} kg" if abs(value) < 1e3 else f"{_digits(value / 1e3)} t"


def _digits(value: float, digits: int = 3) -> str:
    """At least `digits` significant digits, without an exponent below a million and without idle zeros."""
    if not math.isfinite(value) or abs(value) >= 1e6:
        return f"{value:.{digits}g}"
    whole = math.floor(math.log10(abs(value))) + 1 if value else 1
    text = f"{value:.{max(0, digits - whole)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


Positive = Annotated[Float, Field(gt=0)]
Span = Annotated[Seconds, Field(gt=0)]
Count = Annotated[Int, Field(ge=1)]


class Section(BaseModel):
    """Base of every section: unknown keys are errors, values are immutable once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
