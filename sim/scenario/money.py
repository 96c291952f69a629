"""The section `cost` of a scenario: prices, purchases and contracts."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from equipoise.sim.scenario.units import TIME, Int, Section, Share, Span, Usd, UsdPerByteSecond, UsdPerHour

YEAR_S = 365 * 86400.0


class Capex(Section):
    """GPUs that are owned, each with its share of node and network."""

    price: Usd  # price of one GPU with its share of the node
    life: Span = 4 * 365 * 86400.0  # depreciation period (straight line)
    utilisation: Annotated[Share, Field(gt=0, le=1)] = 1.0  # share of its life during which it is in use
    residual: Annotated[Share, Field(lt=1)] = 0.0  # resale value as a share of the price
    interest: Share = 0.0  # interest per year on the capital tied up


Contract = Literal["on_demand", "spot", "reserved", "committed", "owned"]
_CONTRACTS = get_args(Contract)


class Terms(Section):
    """The contract under which GPUs are rented or owned. A text such as `reserved 3 y` stands for `kind` and `term`."""

    # on_demand, spot, reserved (paid for the whole term), committed (reserved for `gpus` GPUs only), owned
    kind: Contract = "on_demand"
    term: Annotated[Span | None, Field(gt=0)] = None  # term of reserved and committed contracts; none: a year
    # discount on the on-demand price; none: the price book's for this kind and term
    discount: Annotated[Share | None, Field(lt=1)] = None
    upfront: Annotated[Share, Field(le=1)] = 0.0  # share of the term's total that is paid when it begins
    interest: Share = 0.0  # interest per year on what is paid in advance
    gpus: Annotated[Int, Field(gt=0)] | None = None  # committed: number of GPUs

    @model_validator(mode="before")
    @classmethod
    def _short(cls, raw: object) -> object:
        if not isinstance(raw, str):
            return raw
        if (known := _read(raw)) is None:
            raise ValueError(
                f"{raw!r} is not a contract; known: {', '.join(_CONTRACTS)}, with a term such as 'reserved 3 y'"
            )
        kind, term = known
        return {"kind": kind} | ({} if term is None else {"term": term})

    @model_validator(mode="after")
    def _has_a_use(self) -> Self:
        of_terms = {"term": self.term is not None, "upfront": self.upfront > 0, "interest": self.interest > 0}
        if self.kind not in ("reserved", "committed") and any(of_terms.values()):
            key = next(key for key, given in of_terms.items() if given)
            raise ValueError(f"{key!r} is for reserved and committed contracts; this one is {self.kind}")
        if self.kind in ("on_demand", "owned") and self.discount is not None:
            raise ValueError(f"'discount' is for spot, reserved and committed contracts; this one is {self.kind}")
        if self.kind == "committed" and self.gpus is None:
            raise ValueError("a committed contract needs 'gpus', the number committed to; other GPUs are on demand")
        if self.kind != "committed" and self.gpus is not None:
            raise ValueError(f"'gpus' is for committed contracts; this one is {self.kind} and covers all GPUs")
        return self

    @property
    def term_s(self) -> float:
        """How long a reservation or commitment binds."""
        return YEAR_S if self.term is None else self.term


def _read(text: str) -> tuple[str, str | None] | None:
    """(kind, term as it was written) of a contract in words; None for anything else."""
    known = re.fullmatch(rf"\s*({'|'.join(_CONTRACTS)}|on[- ]demand)(?:[\s_-]+(\S.*?))?\s*", text, re.IGNORECASE)
    return None if known is None else (re.sub("[- ]", "_", known[1].lower()), known[2])


def read_terms(text: str) -> tuple[str, float] | None:
    """(kind, term in s) of `spot` or `reserved 3 y`; a year where it says none. None for anything else."""
    known = _read(text)
    try:
        return None if known is None else (known[0], YEAR_S if known[1] is None else TIME.parse(known[1]))
    except ValueError:
        return None


class Cost(Section):
    """Prices in place of those of the price book. Keys of `gpu_hour` and `capex` are accelerators."""

    book: str = "prices"  # price book that comes with the software, or a file
    # USD per GPU hour by accelerator, in place of the price book's
    gpu_hour: dict[str, UsdPerHour] = Field(default_factory=dict)
    capex: dict[str, Capex] = Field(default_factory=dict)
    terms: dict[str, Terms] = Field(default_factory=dict)  # contract by accelerator or node group
    storage: UsdPerByteSecond | None = None  # price of stored data
    network: UsdPerHour | None = None  # per node, beyond what GPU prices include
    energy: Literal["auto", "included", "separate"] = "auto"  # auto: separate when some GPUs are owned

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if both := sorted((set(self.gpu_hour) & set(self.capex)) if not self.terms else ()):
            text = "give one, or choose one in 'terms'"
            raise ValueError(f"{both[0]!r} has both a 'gpu_hour' and a 'capex' price; {text}")
        return self
